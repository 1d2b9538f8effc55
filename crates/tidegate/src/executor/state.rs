//! Where one task stands.
//!
//! ```text
//!            wake            poll              poll ends, pending
//!    idle ---------> ready --------> running --------------------> idle
//!                      ^                |  wake                      |
//!                      |   poll ends    v                            | poll without a wake
//!                      +------------- woken                          +------------> running
//! ```
//!
//! and from anywhere to **gone**, when the future is done, dropped, or waits elsewhere. From
//! *ready* to the end of the poll the task is in the [`Tally`](super::tally::Tally), once, however
//! often it is woken.
//!
//! All of it is one word that changes by single atomic steps. Wakes come from any thread; polls and
//! the end from the owner alone. A wake counts the task before it makes it ready, and takes that
//! back if another was quicker: so the count is never below the truth, only, for a moment, above.

use super::Shared;
use crate::sync::{AtomicU64, Ordering};

/// The state is the lower three bits; a timed one has its probe above (see `probes`).
const STATE: u64 = 0b111;
const IDLE: u64 = 0;
const READY: u64 = 1;
/// Ready, and how long it waits is measured.
const TIMED: u64 = 2;
const RUNNING: u64 = 3;
/// Running, and to be polled again.
const WOKEN: u64 = 4;
const GONE: u64 = 5;

#[derive(Debug)]
pub(super) struct State(AtomicU64);

/// A task that was made ready before it had anything to be woken by.
#[derive(Debug)]
pub(super) struct Ready(u64);

impl Ready {
    /// It is about to be spawned.
    pub(super) fn new(shared: &Shared) -> Self {
        shared.tally.enter();
        Self(shared.probes.begin(TIMED).unwrap_or(READY))
    }

    /// Its wait is over, and whoever polls it counts it from here on.
    pub(super) fn served(self, shared: &Shared) {
        if self.0 & STATE == TIMED {
            shared.probes.end(self.0);
        }
        shared.tally.leave();
    }

    /// It will not be polled.
    pub(super) fn forget(self, shared: &Shared) {
        if self.0 & STATE == TIMED {
            shared.probes.cancel(self.0);
        }
        shared.tally.leave();
    }
}

impl State {
    /// Of a task that is polled for the first time by this waker: it was ready, or it was not.
    #[inline]
    pub(super) fn running(before: Option<Ready>, shared: &Shared) -> Self {
        begin(before.map_or(IDLE, |ready| ready.0), shared);
        Self(AtomicU64::new(RUNNING))
    }

    /// Of a task that is being polled and is in the tally.
    pub(super) fn counted() -> Self {
        Self(AtomicU64::new(RUNNING))
    }

    /// Somebody wants it to be polled.
    #[inline]
    pub(super) fn wake(&self, shared: &Shared) {
        let mut state = self.0.load(Ordering::Relaxed);
        loop {
            let next = match state & STATE {
                IDLE => {
                    shared.tally.enter();
                    shared.probes.begin(TIMED).unwrap_or(READY)
                }
                RUNNING => WOKEN,
                _ => return,
            };
            match self.0.compare_exchange(state, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return,
                Err(other) => {
                    if matches!(next & STATE, READY | TIMED) {
                        Ready(next).forget(shared);
                    }
                    state = other;
                }
            }
        }
    }

    /// It is polled.
    #[inline]
    pub(super) fn begin(&self, shared: &Shared) {
        let mut state = self.0.load(Ordering::Acquire);
        if matches!(state & STATE, READY | TIMED) {
            // Wakes leave these as they are, so a store will do, for a third of an exchange.
            self.0.store(RUNNING, Ordering::Release);
        } else {
            state = self.0.swap(RUNNING, Ordering::AcqRel);
        }
        begin(state, shared);
    }

    /// Its poll has ended, and it waits for something.
    #[inline]
    pub(super) fn end(&self, shared: &Shared) {
        let idle =
            self.0.compare_exchange(RUNNING, IDLE, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        if idle {
            shared.tally.leave();
        } else {
            // Woken: it waits for its next turn from here on. Nobody else changes this state.
            self.0.store(shared.probes.begin(TIMED).unwrap_or(READY), Ordering::Release);
        }
    }

    /// Nobody will poll it any more by this waker. Returns what it leaves to the next if it was
    /// ready.
    #[inline]
    pub(super) fn retire(&self, shared: &Shared) -> Option<Ready> {
        let state = self.0.swap(GONE, Ordering::AcqRel);
        match state & STATE {
            READY | TIMED => Some(Ready(state)),
            RUNNING | WOKEN => {
                shared.tally.leave();
                None
            }
            _ => None,
        }
    }
}

#[inline]
fn begin(before: u64, shared: &Shared) {
    match before & STATE {
        IDLE => shared.tally.enter(),
        TIMED => shared.probes.end(before),
        _ => {}
    }
}
