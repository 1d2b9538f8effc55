//! The account of a request, and the scopes that charge it.
//!
//! An [`Account`] is shared: the request's future has it, and so have its children on other threads
//! and its blocking work. It has two counters. One is for everybody, by atomic adds. The other
//! belongs to one [`Scope`], which is usually the request's own future; as a scope runs with
//! `&mut self`, it has one writer at a time, who needs no locked instruction for it (6 ns of the 25
//! that a poll may cost).
//!
//! # The request's own data
//!
//! An account carries a context of any type: criticality, deadline, what the handler may ask for.
//! It rides on the account because that is what the thread-local already points at, so finding the
//! one finds the other at no further cost, and on every thread that works for the request.
//!
//! It stands in the account's own allocation as `dyn Any` and is asked for by type. A type
//! parameter `Account<T>` would be checked earlier, but a thread-local cannot be generic: two
//! crates of one program that choose two types would have two thread-locals, not see each other's
//! scopes, and charge nested ones twice. Asking costs one indirect call and a comparison, once per
//! question and never in a poll.

use crate::current::Payer;
use crate::meter::LEDGER;
use crate::metered::Metered;
use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// CPU time that was spent for one request, on all threads.
///
/// Clones are the same account.
#[derive(Clone)]
pub struct Account {
    inner: Arc<Inner>,
}

struct Inner<T: ?Sized = dyn Any + Send + Sync> {
    /// Nanoseconds charged by the scope that has `claimed`.
    alone: AtomicU64,
    /// Nanoseconds charged by everybody else.
    shared: AtomicU64,
    claimed: AtomicBool,
    context: T,
}

impl Account {
    /// An account without a context.
    pub fn new() -> Self {
        Self::with_context(())
    }

    /// An account that carries `context` to wherever it is charged.
    pub fn with_context<T: Any + Send + Sync>(context: T) -> Self {
        Self::open(context, false)
    }

    #[inline]
    fn open<T: Any + Send + Sync>(context: T, claimed: bool) -> Self {
        Self {
            inner: Arc::new(Inner {
                alone: AtomicU64::new(0),
                shared: AtomicU64::new(0),
                claimed: AtomicBool::new(claimed),
                context,
            }),
        }
    }

    /// What [`with_context`](Self::with_context) was given, if that was a `T`.
    #[inline]
    pub fn context<T: Any>(&self) -> Option<&T> {
        self.inner.context.downcast_ref()
    }

    /// Runs `work` at the cost of this account: blocking work, and whatever is not polled often.
    #[inline]
    pub fn run<R>(&self, work: impl FnOnce() -> R) -> R {
        LEDGER.with(|ledger| ledger.run(Payer { account: self, alone: false }, work))
    }

    /// For work that comes in many short pieces, such as the polls of a future or of a body.
    pub fn scope(&self) -> Scope {
        Scope::new(self.clone())
    }

    /// A future each poll of which this account pays for, and its drop too.
    pub fn meter<F>(&self, future: F) -> Metered<F> {
        Metered::new(future, self.scope())
    }

    /// The CPU time so far. Asked from inside a scope of this account, the running part is
    /// included; what other threads are running at this moment comes in when their polls end.
    ///
    /// It never decreases.
    pub fn so_far(&self) -> Duration {
        LEDGER.with(|ledger| {
            if ledger.current().with(|payer| payer.is_some_and(|payer| self.is(payer.account))) {
                ledger.cut();
            }
        });
        Duration::from_nanos(self.charged())
    }

    /// Whether both are the same account.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    pub(crate) fn charged(&self) -> u64 {
        let inner = &self.inner;
        let (alone, shared) =
            (inner.alone.load(Ordering::Relaxed), inner.shared.load(Ordering::Relaxed));
        alone.saturating_add(shared)
    }

    #[inline]
    pub(crate) fn charge(&self, nanos: u64, alone: bool) {
        if alone {
            // The one writer is whoever has the claiming scope, and handing that to another thread
            // orders what was written before.
            let before = self.inner.alone.load(Ordering::Relaxed);
            self.inner.alone.store(before.wrapping_add(nanos), Ordering::Relaxed);
        } else {
            self.inner.shared.fetch_add(nanos, Ordering::Relaxed);
        }
    }
}

impl Default for Account {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let charged = Duration::from_nanos(self.charged());
        f.debug_struct("Account").field("charged", &charged).finish_non_exhaustive()
    }
}

/// Pieces of one request's work that follow one another, on whatever threads.
///
/// ```
/// # use tidegate_meter::Account;
/// let account = Account::new();
/// let mut scope = account.scope();
/// for _ in 0..3 {
///     scope.run(|| { /* poll something */ });
/// }
/// # let _ = account.so_far();
/// ```
#[derive(Debug)]
pub struct Scope {
    account: Account,
    /// Whether this scope has the account's counter for one.
    alone: bool,
}

impl Scope {
    /// A scope of `account`. The first one at a time is the cheapest.
    pub fn new(account: Account) -> Self {
        // Acquires what a scope before this one has charged.
        let alone = !account.inner.claimed.swap(true, Ordering::Acquire);
        Self { account, alone }
    }

    /// The first scope of an account of its own that carries `context`.
    #[inline]
    pub fn with_context<T: Any + Send + Sync>(context: T) -> Self {
        Self { account: Account::open(context, true), alone: true }
    }

    /// The account that pays.
    #[inline]
    pub fn account(&self) -> &Account {
        &self.account
    }

    /// Runs `work` at the cost of the account, exclusive of what nested scopes pay for. A panic in
    /// `work` is passed on, and what it cost until then is charged.
    #[inline]
    pub fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        LEDGER.with(|ledger| self.run_on(ledger, work))
    }

    #[inline]
    pub(crate) fn run_on<H: crate::ledger::Host, R>(
        &mut self,
        ledger: &crate::ledger::Ledger<H>,
        work: impl FnOnce() -> R,
    ) -> R {
        ledger.run(Payer { account: &self.account, alone: self.alone }, work)
    }
}

impl Drop for Scope {
    fn drop(&mut self) {
        if self.alone {
            self.account.inner.claimed.store(false, Ordering::Release);
        }
    }
}

/// The account that pays for what runs here and now, for children to inherit. None outside of any
/// scope.
pub fn current() -> Option<Account> {
    with_current(|account| Some(account?.clone()))
}

/// Calls `ask` with the account that pays for what runs here and now, without cloning it.
#[inline]
pub fn with_current<R>(ask: impl FnOnce(Option<&Account>) -> R) -> R {
    LEDGER.with(|ledger| ledger.current().with(|payer| ask(payer.map(|payer| payer.account))))
}

#[cfg(test)]
mod tests;
