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

use crate::units::{CostRate, NANOS};

/// Binary places of a [`Pace`]: limits from a millionth of a CPU to a million CPUs keep six digits.
const PLACES: u32 = 40;

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
