//! Sums over the recent past.
//!
//! "Requests of the last two minutes" must forget smoothly: a counter that is reset every two
//! minutes knows nothing right after the reset, and a list of every event has no bound. A
//! [`Window`] keeps a ring of buckets and a running total; when time passes, old buckets are taken
//! out of the total. Adding and asking cost O(1), and O(buckets) at most after a long silence. The
//! newest bucket lies beside the total until the next one begins, so that adding touches neither
//! the ring nor a division.
//!
//! The window covers its span to within one bucket: with `n` buckets, between `(n - 1)/n` and the
//! whole of it. A timestamp from before the newest bucket (a late caller, a clock that stepped
//! back) is counted in the newest one: nothing is lost, and time never runs backwards.

use crate::units::{Timestamp, nanos};
use core::time::Duration;

/// Something that can be added up and taken out again.
pub trait Tally: Copy + Default {
    /// Adds `other`, stopping at the end of the range.
    fn add(&mut self, other: Self);
    /// Takes `other` out again.
    fn sub(&mut self, other: Self);
}

impl Tally for u64 {
    fn add(&mut self, other: Self) {
        *self = self.saturating_add(other);
    }

    fn sub(&mut self, other: Self) {
        *self = self.saturating_sub(other);
    }
}

impl Tally for u32 {
    fn add(&mut self, other: Self) {
        *self = self.saturating_add(other);
    }

    fn sub(&mut self, other: Self) {
        *self = self.saturating_sub(other);
    }
}

impl<T: Tally, const N: usize> Tally for [T; N]
where
    Self: Default,
{
    fn add(&mut self, other: Self) {
        for (mine, theirs) in self.iter_mut().zip(other) {
            mine.add(theirs);
        }
    }

    fn sub(&mut self, other: Self) {
        for (mine, theirs) in self.iter_mut().zip(other) {
            mine.sub(theirs);
        }
    }
}

/// A running total over the recent past.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Timestamp, window::Window};
///
/// let mut requests = Window::<u64>::new(Duration::from_secs(120), 24);
/// requests.add(3, Timestamp::from_secs(1));
/// requests.add(4, Timestamp::from_secs(100));
/// assert_eq!(requests.total(Timestamp::from_secs(110)), 7);
/// assert_eq!(requests.total(Timestamp::from_secs(130)), 4);
/// ```
#[derive(Debug, Clone)]
#[repr(C)] // What adding touches comes first, and together.
pub struct Window<T> {
    /// When the newest bucket ends.
    ends_nanos: u64,
    total: T,
    /// What is in the newest bucket. Its place in the ring is empty until it ends.
    fresh: T,
    /// Elsewhere, so that a window takes little room where it is used.
    ring: Box<Ring<T>>,
}

#[derive(Debug, Clone)]
struct Ring<T> {
    bucket_nanos: u64,
    /// Number of the newest bucket, counted from the epoch.
    newest: u64,
    buckets: Box<[T]>,
}

impl<T: Tally> Window<T> {
    /// A window of about `span`, in `buckets` steps. Both are raised to the least that makes sense:
    /// one bucket of one nanosecond.
    pub fn new(span: Duration, buckets: usize) -> Self {
        let buckets = buckets.max(1);
        let bucket_nanos = (nanos(span) / buckets as u64).max(1);
        Self {
            ends_nanos: bucket_nanos,
            total: T::default(),
            fresh: T::default(),
            ring: Box::new(Ring {
                bucket_nanos,
                newest: 0,
                buckets: vec![T::default(); buckets].into_boxed_slice(),
            }),
        }
    }

    /// Adds `amount` at `now`.
    #[inline]
    pub fn add(&mut self, amount: T, now: Timestamp) {
        self.advance(now);
        self.fresh.add(amount);
        self.total.add(amount);
    }

    /// What was added within the span before `now`.
    #[inline]
    pub fn total(&mut self, now: Timestamp) -> T {
        self.advance(now);
        self.total
    }

    /// Reads what adding and asking begin with.
    #[inline]
    pub(crate) const fn touch(&self) -> u64 {
        self.ends_nanos
    }

    #[inline]
    fn advance(&mut self, now: Timestamp) {
        if now.as_nanos() >= self.ends_nanos {
            self.turn(now);
        }
    }

    #[cold]
    fn turn(&mut self, now: Timestamp) {
        let Self { ends_nanos, total, fresh, ring } = self;
        let Ring { bucket_nanos, newest, buckets } = &mut **ring;
        let current = now.as_nanos() / *bucket_nanos;
        let len = buckets.len() as u64;
        buckets[(*newest % len) as usize] = core::mem::take(fresh);
        let steps = current.saturating_sub(*newest);
        if steps >= len {
            buckets.fill(T::default());
            *total = T::default();
        } else {
            for step in 1..=steps {
                total.sub(core::mem::take(&mut buckets[((*newest + step) % len) as usize]));
            }
        }
        *newest = (*newest).max(current);
        // Empty, unless it is still the same bucket: at the end of time they end no more.
        *fresh = core::mem::take(&mut buckets[(*newest % len) as usize]);
        *ends_nanos = newest.saturating_add(1).saturating_mul(*bucket_nanos);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buckets_leave_one_by_one() {
        let mut w = Window::<[u64; 2]>::new(Duration::from_secs(4), 4);
        for s in 0..4 {
            w.add([1, 10 * s], Timestamp::from_secs(s));
        }
        for (secs, total) in
            [(3, [4, 60]), (4, [3, 60]), (5, [2, 50]), (6, [1, 30]), (7, [0, 0]), (900, [0, 0])]
        {
            assert_eq!(w.total(Timestamp::from_secs(secs)), total, "at {secs} s");
        }
    }

    #[test]
    fn a_clock_that_steps_back_loses_nothing() {
        let mut w = Window::<u64>::new(Duration::from_secs(4), 4);
        w.add(1, Timestamp::from_secs(100));
        w.add(1, Timestamp::from_secs(10));
        assert_eq!(w.total(Timestamp::from_secs(10)), 2);
        assert_eq!(w.total(Timestamp::from_secs(103)), 2);
        assert_eq!(w.total(Timestamp::from_secs(104)), 0);
    }

    #[test]
    fn degenerate_windows_and_the_end_of_time_do_no_harm() {
        let mut w = Window::<u64>::new(Duration::ZERO, 0);
        w.add(u64::MAX, Timestamp::MAX);
        w.add(1, Timestamp::MAX);
        assert_eq!(w.total(Timestamp::MAX), u64::MAX);
    }

    proptest! {
        /// Against the list of every event: all of the last (n - 1)/n of the span is in, nothing
        /// older than the span is.
        #[test]
        fn the_total_lies_between_the_two_exact_sums(
            events in proptest::collection::vec((0_u64..3_000, 0_u64..100), 0..200),
            buckets in 1_usize..20,
        ) {
            let span = 10_000_u64;
            let mut w = Window::<u64>::new(Duration::from_nanos(span), buckets);
            let bucket = span / buckets as u64;
            let mut log: Vec<(u64, u64)> = Vec::new();
            let mut now = 0;
            for (step, amount) in events {
                now += step;
                w.add(amount, Timestamp::from_nanos(now));
                log.push((now, amount));
                let newer_than = |age: u64| -> u64 {
                    log.iter().filter(|(t, _)| t + age > now).map(|(_, n)| n).sum()
                };
                let total = w.total(Timestamp::from_nanos(now));
                prop_assert!(total >= newer_than(bucket * (buckets as u64 - 1)));
                prop_assert!(total <= newer_than(bucket * buckets as u64));
            }
        }
    }
}
