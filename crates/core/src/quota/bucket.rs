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
//! Depth is measured in time and not in cost, so a limit can be changed at any moment and a bucket
//! that was half empty still is. `1 / limit` is a [`Pace`]: time per cost as a fixed-point number,
//! rounded up so that no rounding ever gives more than the limit.

use crate::units::{Cost, CostRate, NANOS};

/// Binary places of a [`Pace`]: limits from a millionth of a CPU to a million CPUs keep six digits.
const PLACES: u32 = 40;

/// How much time a limit needs to make up for one unit of cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pace(u64);

impl Pace {
    /// Nothing has to be made up for.
    pub(super) const NONE: Self = Self(0);

    pub(super) fn of(limit: CostRate) -> Self {
        if limit == CostRate::MAX {
            return Self::NONE;
        }
        let per_unit = (u128::from(NANOS) << PLACES)
            .checked_div(u128::from(limit.as_nanos_per_sec()))
            .unwrap_or(u128::MAX);
        Self(u64::try_from(per_unit.saturating_add(1)).unwrap_or(u64::MAX))
    }

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// The time that makes up for `cost`, in nanoseconds.
    #[inline]
    pub(super) fn time_for(self, cost: Cost) -> u64 {
        let time = (u128::from(cost.as_nanos()) * u128::from(self.0)) >> PLACES;
        if time > u128::from(u64::MAX) { u64::MAX } else { time as u64 }
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
            [(1.0, 10, 10.0), (0.5, 10, 20.0), (4.0, 10, 2.5), (4_000.0, 10, 0.002_5)]
        {
            let pace = Pace::of(CostRate::from_cpus(cpus).unwrap());
            let time = pace.time_for(Cost::from_millis(cost_ms)) as f64 / 1e6;
            assert!((time - time_ms).abs() / time_ms < 1e-6, "{cpus} CPUs: {time} ms");
        }
        assert_eq!(Pace::of(CostRate::MAX).time_for(Cost::MAX), 0);
        assert_eq!(Pace::of(CostRate::ZERO).time_for(Cost::MAX), u64::MAX);
    }

    proptest! {
        /// What a limit yields in the time it was charged for is never less than the charge.
        #[test]
        fn rounding_never_gives_more_than_the_limit(
            rate in 1_000_u64..1_000_000_000_000_000,
            cost in 0_u64..1_000_000_000_000,
        ) {
            let limit = CostRate::from_nanos_per_sec(rate);
            let time = Pace::of(limit).time_for(Cost::from_nanos(cost)).saturating_add(1);
            let yielded = limit.over(Duration::from_nanos(time)).as_nanos();
            prop_assert!(yielded.saturating_add(1) >= cost);
        }
    }
}
