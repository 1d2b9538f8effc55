//! How many tasks are running or ready, counted by many threads.
//!
//! A task enters the count when it is woken and leaves it when its poll ends, each time by one
//! atomic add: 6 ns, but 26 ns if two threads want the same cache line. So there are several lines,
//! and threads are spread over them. A task may enter on one and leave on another: single lines go
//! below zero, their sum does not (but for a moment, while it is being read).
//!
//! The least of the sum over a time cannot be had from several lines without reading all of them at
//! every change. With one line it can: whoever leaves knows the count and notes a new low. That is
//! what a runtime of one thread uses; for others see [`super::Watch`].

use super::thread;
use crate::sync::{AtomicI64, Ordering};

/// Lines beyond this many cost memory and time to add up, and hardly make two threads meet less.
pub(super) const STRIPES_MAX: usize = 64;

/// A cache line of its own.
#[derive(Debug)]
#[repr(align(64))]
struct Stripe {
    active: AtomicI64,
    /// The least that `active` was since it was last asked for; only kept where there is one line.
    least: AtomicI64,
}

#[derive(Debug)]
pub(super) struct Tally {
    /// A power of two of them.
    stripes: Box<[Stripe]>,
}

impl Tally {
    /// For about so many threads.
    pub(super) fn new(threads: usize) -> Self {
        let count = threads.clamp(1, STRIPES_MAX).next_power_of_two();
        let stripe = |_| Stripe { active: AtomicI64::new(0), least: AtomicI64::new(i64::MAX) };
        Self { stripes: (0..count).map(stripe).collect() }
    }

    #[inline]
    fn stripe(&self) -> &Stripe {
        match &*self.stripes {
            [only] => only,
            many => &many[thread::number() & (many.len() - 1)],
        }
    }

    #[inline]
    pub(super) fn enter(&self) {
        self.stripe().active.fetch_add(1, Ordering::Relaxed);
    }

    #[inline]
    pub(super) fn leave(&self) {
        let stripe = self.stripe();
        let left = stripe.active.fetch_sub(1, Ordering::Relaxed) - 1;
        if self.stripes.len() == 1 && left < stripe.least.load(Ordering::Relaxed) {
            stripe.least.fetch_min(left, Ordering::Relaxed);
        }
    }

    /// Running or ready at this moment.
    pub(super) fn active(&self) -> u64 {
        let sum: i64 = self.stripes.iter().map(|s| s.active.load(Ordering::Relaxed)).sum();
        u64::try_from(sum).unwrap_or(0)
    }

    /// The least it was at the end of any poll since this was last asked. Nothing where several
    /// threads count apart; the highest number if no poll ended.
    pub(super) fn take_least(&self) -> Option<u64> {
        let [only] = &*self.stripes else { return None };
        let least = only.least.swap(i64::MAX, Ordering::Relaxed);
        Some(u64::try_from(least).unwrap_or(0))
    }
}
