//! A bucket of CPU time, kept as a point in time.
//!
//! A bucket that fills at the customer's limit and holds `burst` worth of it needs no filling if
//! it is written down as the moment at which it will be full again. Its **depth** is how long that
//! will take; taking `cost` out makes it deeper by the time that the limit needs to make up for it:
//!
//! ```text
//! depth = max(0, full_at - now)            full_at' = max(full_at, now) + cost / limit
//! ```
//!
//! Depth is measured in time and not in cost; when the limit is raised, what is owed takes less
//! time to make up for, and the depth is scaled down with it. `1 / limit` is a [`Pace`]: time per
//! cost as a fixed-point number, rounded up, as are times, so that no rounding gives more than the
//! limit.

use crate::sync::{AtomicU64, Ordering};
use crate::units::{CostRate, NANOS, Timestamp};

/// Binary places of a [`Pace`]: limits from a millionth of a CPU to a million CPUs keep six digits.
const PLACES: u32 = 40;

/// Beside the time at which a total is full: that time alone does not tell whether a request may
/// in, as its customer has limits by criticality or is blocked. Times end before it, in the year
/// 292 of the clock, so that such a total looks deeper than any other.
pub(super) const CLOSELY: u64 = 1 << 63;
/// Stands in the place of a time at which a bucket is full: never.
pub(super) const BLOCKED: u64 = u64::MAX;
/// The latest time at which a bucket can be full.
pub(super) const LATEST: u64 = CLOSELY - 1;
/// Beside the pace of a total: its customer has limits by criticality, so there are more buckets
/// to look at. No lease has it, so that nobody takes one for all there is to charge.
pub(super) const BY_LEVEL: u64 = !Pace::SLOWEST.bits();
/// How much time a limit needs to make up for one unit of cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace(u64);

impl Pace {
    /// No limit: nothing has to be made up for.
    pub(super) const UNLIMITED: Self = Self(0);
    /// A ten-millionth of a CPU. The bit above is free for whoever keeps a pace in a word.
    pub(super) const SLOWEST: Self = Self(u64::MAX >> 1);

    pub(super) fn of(limit: CostRate) -> Self {
        if limit == CostRate::MAX {
            return Self::UNLIMITED;
        }
        let per_unit = (u128::from(NANOS) << PLACES)
            .checked_div(u128::from(limit.as_nanos_per_sec()))
            .unwrap_or(u128::MAX);
        Self(u64::try_from(per_unit.saturating_add(1)).unwrap_or(u64::MAX).min(Self::SLOWEST.0))
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// What is left of a depth that came about at the pace `before`: less where this pace is
    /// quicker, and never more.
    pub(super) fn rescale(self, depth: u64, before: Self) -> u64 {
        if self.0 >= before.0 {
            return depth;
        }
        (u128::from(depth) * u128::from(self.0) / u128::from(before.0)) as u64
    }

    /// The time that makes up for `cost`, in nanoseconds, rounded up.
    #[inline]
    pub(super) fn time_for(self, cost: u64) -> u64 {
        let time = (u128::from(cost) * u128::from(self.0)).div_ceil(1 << PLACES);
        u64::try_from(time).unwrap_or(u64::MAX)
    }

    /// The cost that `time` makes up for, in nanoseconds, rounded down; the limit over that time.
    pub(super) fn cost_over(self, time: u64) -> u64 {
        if self.0 == 0 {
            return u64::MAX;
        }
        u64::try_from((u128::from(time) << PLACES) / u128::from(self.0)).unwrap_or(u64::MAX)
    }

    /// Sixteen bits by which to recognise this pace: what is charged at one is not given back at
    /// another. Two paces in a row share them once in 65,536 times. By one multiplication, as every
    /// request asks for it twice; the factor is 2^64 over the golden ratio, which spreads what
    /// differs in few bits.
    #[inline]
    pub(super) const fn tag(self) -> u16 {
        (self.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 48) as u16
    }
}

/// One limit of one customer.
#[derive(Debug)]
#[repr(align(16))]
pub(crate) struct Bucket {
    /// A time, and [`CLOSELY`]; or [`BLOCKED`].
    pub(super) full_at: AtomicU64,
    /// [`Pace`] of the limit, and [`BY_LEVEL`].
    pub(super) pace: AtomicU64,
}

impl Bucket {
    pub(super) fn new() -> Self {
        Self { full_at: AtomicU64::new(0), pace: AtomicU64::new(Pace::UNLIMITED.bits()) }
    }

    #[inline]
    pub(super) fn depth(&self, now: Timestamp) -> u64 {
        let full_at = match self.full_at.load(Ordering::Relaxed) {
            BLOCKED => BLOCKED,
            at => at & !CLOSELY,
        };
        full_at.saturating_sub(now.as_nanos())
    }

    /// Whether a bucket is less deep than `leased`, and this is all there is to look at.
    #[inline]
    pub(super) fn is_plainly_within(&self, leased: u64, now: Timestamp) -> bool {
        // Where the sum wraps, it is looked at closely.
        self.full_at.load(Ordering::Relaxed) < now.as_nanos().wrapping_add(leased)
    }

    #[inline]
    pub(crate) fn charged_at(&self) -> ChargedAt {
        ChargedAt(self.pace.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn pace(&self) -> Pace {
        Pace::from_bits(self.pace.load(Ordering::Relaxed) & !BY_LEVEL)
    }

    #[inline]
    pub(super) fn is_by_level(&self) -> bool {
        self.pace.load(Ordering::Relaxed) & BY_LEVEL != 0
    }

    /// Moves the time at which a bucket is full to what `change` makes of it, knowing the pace of
    /// the limit that it stands for. Returns whether it did: buckets without a limit and blocked
    /// ones do not move.
    fn change(&self, mut change: impl FnMut(u64, Pace) -> Option<u64>) -> bool {
        // Pairs with the release in `set_limits`: whoever reads what that wrote reads its pace.
        let changed = self.full_at.fetch_update(Ordering::Relaxed, Ordering::Acquire, |at| {
            let pace = self.pace();
            let moves = at != BLOCKED && pace != Pace::UNLIMITED;
            if moves { Some(change(at & !CLOSELY, pace)?.min(LATEST) | at & CLOSELY) } else { None }
        });
        changed.is_ok()
    }

    /// Makes a bucket deeper by the `time` that it takes at its pace, but not deeper than
    /// `depth_max` by it. Returns whether there was anything to take from.
    pub(super) fn deepen(
        &self,
        mut time: impl FnMut(Pace) -> u64,
        depth_max: u64,
        now: Timestamp,
    ) -> bool {
        let now = now.as_nanos();
        let deepest = now.saturating_add(depth_max);
        self.change(|at, pace| Some(at.max(now).saturating_add(time(pace)).min(deepest).max(at)))
    }

    /// Gives back the time for `cost`, rounded down: a nanosecond less than what was taken for it.
    /// Nothing if it was `taken` at another pace.
    pub(super) fn lift(&self, cost: u64, taken: Pace) {
        self.change(|at, pace| {
            let time = pace.time_for(cost).saturating_sub(1);
            (pace == taken).then(|| at.saturating_sub(time))
        });
    }
}

/// What a total was charged at when it was looked at: its pace, and [`BY_LEVEL`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct ChargedAt(u64);

impl ChargedAt {
    /// Whether a lease that was taken at `pace` is all that a request has to be charged to.
    #[inline]
    pub(super) const fn is_all(self, pace: Pace) -> bool {
        self.0 == pace.bits()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::prelude::*;

    #[test]
    fn times_by_the_table() {
        for (cpus, cost_ms, time_ms) in
            [(1.0, 10_u64, 10.0), (0.5, 10, 20.0), (4.0, 10, 2.5), (4_000.0, 10, 0.002_5)]
        {
            let pace = Pace::of(CostRate::from_cpus(cpus).unwrap());
            let time = pace.time_for(cost_ms * 1_000_000) as f64 / 1e6;
            assert!((time - time_ms).abs() < 1e-6 * time_ms + 2e-6, "{cpus} CPUs: {time} ms");
        }
        assert_eq!(Pace::of(CostRate::MAX).time_for(u64::MAX), 0);
        assert_eq!(Pace::of(CostRate::ZERO).time_for(u64::MAX), u64::MAX);
    }

    proptest! {
        /// What a limit yields in the time it was charged for is never less than the charge, and
        /// no lease is worth more than the time it was taken for.
        #[test]
        fn rounding_never_gives_more_than_the_limit(
            rate in 1_000_u64..1_000_000_000_000_000,
            cost in 0_u64..1_000_000_000_000,
        ) {
            let limit = CostRate::from_nanos_per_sec(rate);
            let pace = Pace::of(limit);
            let time = pace.time_for(cost);
            prop_assert!(limit.over(Duration::from_nanos(time)).as_nanos() >= cost);
            prop_assert!(pace.cost_over(time) >= cost);
            prop_assert!(pace.cost_over(cost) <= limit.over(Duration::from_nanos(cost)).as_nanos());
        }
    }
}
