//! Who pays for the time between two readings of a thread's clock.
//!
//! A thread's time is cut where a scope begins or ends, and each piece has exactly one payer, the
//! innermost scope around it:
//!
//! ```text
//! outer begins     inner begins        inner ends       outer ends
//!      |---- outer ----|---- inner --------|---- outer ----|
//! ```
//!
//! So scopes are charged exclusively, and what all accounts got is what the thread spent in scopes:
//! nothing twice, nothing lost. One reading serves both sides of a cut. A piece is paid when it
//! ends and nothing is held back on the stack, so that an account is up to date but for the piece
//! that is running, whoever asks and however deep.
//!
//! A cut in a thread's time is worth nothing by itself: the host tells how long pieces were, and
//! may correct itself only by making one shorter (see `clock`). What was charged is never taken
//! back.

use crate::current::{Current, Payer};

/// What a thread has for its ledger; a fake in tests.
pub(crate) trait Host {
    /// A piece begins here, and what came before was nobody's.
    fn begin(&self);
    /// A piece ends and the next begins. Returns the nanoseconds of the one that ended.
    fn lap(&self) -> u64;
    /// So many nanoseconds more were charged to somebody.
    fn charged(&self, nanos: u64);
}

/// The accounts of one thread.
#[derive(Debug)]
pub(crate) struct Ledger<H> {
    host: H,
    current: Current,
}

impl<H: Host> Ledger<H> {
    pub(crate) const fn new(host: H) -> Self {
        Self { host, current: Current::new() }
    }

    pub(crate) const fn host(&self) -> &H {
        &self.host
    }

    pub(crate) const fn current(&self) -> &Current {
        &self.current
    }

    /// Runs `work` at the cost of `payer`.
    #[inline]
    pub(crate) fn run<R>(&self, payer: Payer<'_>, work: impl FnOnce() -> R) -> R {
        if self.current.is_nobody() {
            self.host.begin();
        } else {
            self.cut();
        }
        self.current.during(payer, work, |payer| {
            let nanos = self.host.lap();
            self.charge(payer, nanos);
        })
    }

    /// Charges the running piece to whom the thread works for, so that everything up to now is in
    /// that account.
    #[inline(never)]
    pub(crate) fn cut(&self) {
        self.current.with(|payer| {
            if let Some(payer) = payer {
                let nanos = self.host.lap();
                self.charge(payer, nanos);
            }
        });
    }

    #[inline]
    fn charge(&self, payer: Payer<'_>, nanos: u64) {
        payer.account.charge(nanos, payer.alone);
        self.host.charged(nanos);
    }
}

#[cfg(test)]
mod tests;
