//! Which account is being charged, without counting references.
//!
//! Each poll makes its account the thread's current one, and whatever runs inside may ask for it.
//! An `Arc` in a thread-local would cost two atomic counts a poll, 12 ns. But a scope is a call:
//! the account is borrowed for as long as the call lasts, and so a plain pointer will do. That
//! takes one unsafe line, and these rules to make it right, which hold by what this module offers:
//!
//! - A pointer is put here only by [`Current::during`]. It points to the payer on that call's own
//!   stack frame, and is taken away before the call returns or unwinds.
//! - It is read only by [`Current::with`], which hands out what it points to for the length of a
//!   call. That call is made by something inside of the scope, so it ends before the scope does.
//! - The type is not `Sync`: both happen on one thread, and so on one stack. (Coroutines that swap
//!   stacks under running code break this, as they do every thread-local that is set for a call;
//!   futures do not.)

use crate::account::Account;
use std::cell::Cell;
use std::mem;
use std::ptr;

/// An account and how it is charged.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payer<'a> {
    pub(crate) account: &'a Account,
    /// Nobody else charges by the same counter at the same time: no locked instruction is needed.
    pub(crate) alone: bool,
}

/// Whom a thread works for.
///
/// The lifetime is a lie that only [`Current::with`] sees: it is that of the innermost call of
/// [`Current::during`].
#[derive(Debug)]
pub(crate) struct Current(Cell<*const Payer<'static>>);

impl Current {
    pub(crate) const fn new() -> Self {
        Self(Cell::new(ptr::null()))
    }

    pub(crate) fn is_nobody(&self) -> bool {
        self.0.get().is_null()
    }

    /// Makes `payer` the current one while `work` runs. Afterwards the one before is current again
    /// and `after` is called, also if `work` panics.
    #[inline]
    pub(crate) fn during<R>(
        &self,
        payer: Payer<'_>,
        work: impl FnOnce() -> R,
        after: impl Fn(Payer<'_>),
    ) -> R {
        let outer = self.0.replace(ptr::from_ref(&payer).cast());
        let unwinding = Unwinding { current: self, outer, payer: &payer, after: &after };
        let result = work();
        // The way that is taken each time stands apart from that of a panic, so that the compiler
        // can merge it with what is around: a fifth of what a poll costs.
        mem::forget(unwinding);
        self.0.set(outer);
        after(payer);
        result
    }

    /// Calls `ask` with whom the thread works for, if anybody.
    #[inline]
    pub(crate) fn with<R>(&self, ask: impl FnOnce(Option<Payer<'_>>) -> R) -> R {
        // SAFETY: the pointer is null, or was put here by a call of `during` that has not taken it
        // away yet. So that call is below us on this thread's stack, with the payer that the
        // pointer leads to and the borrow of the account in it, and both outlive `ask`. `ask` takes
        // any lifetime, so nothing of it can get out. Neither is ever borrowed mutably.
        let payer = unsafe { self.0.get().as_ref() };
        ask(payer.copied())
    }
}

/// What to do if the work of a scope panics.
struct Unwinding<'a, A: Fn(Payer<'_>)> {
    current: &'a Current,
    outer: *const Payer<'static>,
    payer: &'a Payer<'a>,
    after: &'a A,
}

impl<A: Fn(Payer<'_>)> Drop for Unwinding<'_, A> {
    #[cold]
    #[inline(never)]
    fn drop(&mut self) {
        self.current.0.set(self.outer);
        (self.after)(*self.payer);
    }
}
