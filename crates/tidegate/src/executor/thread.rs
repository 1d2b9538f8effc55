//! What a thread remembers: which stripe it counts in, what it polls, and its dice.

use core::cell::Cell;
use std::sync::atomic::{AtomicU32, Ordering};

/// Numbers for threads. It only ever grows and guards nothing, so loom need not know it.
static NEXT: AtomicU32 = AtomicU32::new(0);

pub(super) struct Thread {
    /// One more than the thread's number; zero before it has one.
    number: Cell<u32>,
    dice: Cell<u32>,
    /// Which executor's future is being polled here; zero for none.
    polling: Cell<usize>,
}

impl Thread {
    const fn new() -> Self {
        Self { number: Cell::new(0), dice: Cell::new(0), polling: Cell::new(0) }
    }

    #[inline]
    fn number(&self) -> u32 {
        match self.number.get() {
            0 => self.enrol(),
            number => number - 1,
        }
    }

    #[cold]
    fn enrol(&self) -> u32 {
        // Every run of a model has to be the same: there all threads have one number, and one
        // sequence of dice.
        let step = u32::from(cfg!(not(feature = "loom")));
        let number = NEXT.fetch_add(step, Ordering::Relaxed) % (u32::MAX - 1);
        self.number.set(number + 1);
        number
    }
}

// Without a destructor it can be used to the very end of a thread, when others' destructors wake.
#[cfg(not(feature = "loom"))]
thread_local! {
    static THREAD: Thread = const { Thread::new() };
}

#[cfg(feature = "loom")]
loom::thread_local! {
    static THREAD: Thread = Thread::new();
}

/// The number of this thread, from zero in the order in which threads came.
#[inline]
pub(super) fn number() -> usize {
    THREAD.with(Thread::number) as usize
}

/// 32 bits by chance, good enough to choose samples by (xorshift, a nanosecond).
#[inline]
pub(super) fn dice() -> u32 {
    THREAD.with(|thread| {
        let mut x = thread.dice.get();
        if x == 0 {
            // Odd, hence never zero, which the dice would stay at.
            x = thread.number().wrapping_mul(0x9e37_79b9) | 1;
        }
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        thread.dice.set(x);
        x
    })
}

/// Marks that a future of `executor` is polled on this thread, until it is dropped. Nothing if one
/// of them is being polled here already.
#[inline]
pub(super) fn enter(executor: usize) -> Option<Entered> {
    THREAD.with(|thread| {
        let outer = thread.polling.get();
        (outer != executor).then(|| {
            thread.polling.set(executor);
            Entered { outer }
        })
    })
}

/// Gives the thread back to whom it was polling for.
#[derive(Debug)]
pub(super) struct Entered {
    outer: usize,
}

impl Drop for Entered {
    #[inline]
    fn drop(&mut self) {
        THREAD.with(|thread| thread.polling.set(self.outer));
    }
}
