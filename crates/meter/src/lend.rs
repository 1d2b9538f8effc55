//! A waker that costs nothing until somebody keeps it.
//!
//! Whoever wants to know when a future is woken polls it with a waker of its own, and a waker that
//! may be kept is an allocation and half a dozen counts of references. But most requests are served
//! in one poll, and their futures keep no waker. So what a future is lent for a poll is a pointer
//! to something on the stack of whoever polls it, and becomes a real waker when it is cloned:
//!
//! ```text
//! lend(&what, |waker| future.poll(waker))      waker.clone()   ->  what.keep()
//!                                              waker.wake_by_ref()  ->  what.wake()
//! ```
//!
//! A `&Waker` cannot outlive the call that it is given to, and to clone it is the only way to have
//! one for longer. The clone has nothing to do with the stack any more: it is whatever
//! [`Lend::keep`] made.

use std::mem::ManuallyDrop;
use std::ptr;
use std::task::{RawWaker, RawWakerVTable, Waker};

/// What a waker is lent by. Threads that a poll starts and waits for may use it as well, so it has
/// to be `Sync`.
pub trait Lend: Sync {
    /// A waker to keep.
    fn keep(&self) -> Waker;

    /// Somebody wakes without keeping anything.
    fn wake(&self) {
        self.keep().wake();
    }
}

/// Calls `poll` with a waker that is `by` for as long as the call lasts.
#[inline]
pub fn lend<L: Lend, R>(by: &L, poll: impl FnOnce(&Waker) -> R) -> R {
    let raw = RawWaker::new(ptr::from_ref(by).cast(), const { &table::<L>() });
    // SAFETY: the functions of the table keep to what `RawWaker` asks for. They may be called from
    // any thread, as `L` is `Sync`. The data are a borrow of `by`: the waker is on this frame, is
    // never moved out of it and is handed out by reference for the length of a call, in which `by`
    // is borrowed too. `clone` gives out a waker that does not point to `by`. `drop` has nothing to
    // give back, and `wake`, which would be the last use, is as good as `wake_by_ref`.
    let waker = ManuallyDrop::new(unsafe { Waker::from_raw(raw) });
    poll(&waker)
}

const fn table<L: Lend>() -> RawWakerVTable {
    RawWakerVTable::new(keep::<L>, wake::<L>, wake::<L>, |_| {})
}

/// # Safety
///
/// `by` is a borrow of an `L` that lasts.
unsafe fn keep<L: Lend>(by: *const ()) -> RawWaker {
    // SAFETY: by the caller.
    let by = unsafe { &*by.cast::<L>() };
    // Whoever gets the raw one has the count of references that this one had.
    let kept = ManuallyDrop::new(by.keep());
    RawWaker::new(kept.data(), kept.vtable())
}

/// # Safety
///
/// `by` is a borrow of an `L` that lasts.
unsafe fn wake<L: Lend>(by: *const ()) {
    // SAFETY: by the caller.
    let by = unsafe { &*by.cast::<L>() };
    by.wake();
}

#[cfg(test)]
mod tests;
