//! What a customer may use, criticality by criticality.
//!
//! When a customer is over its limit, its least important requests must go first. Four separate
//! limits would not do that: `SHEDDABLE` could have room left while `CRITICAL` has none. So the
//! limits are **nested**: `limits[level]` caps the use of that level *and of every level below it*
//! together. A level then finds its cap used up only if every lower level does too:
//!
//! ```text
//! limits[SHEDDABLE] <= limits[SHEDDABLE_PLUS] <= limits[CRITICAL] <= limits[CRITICAL_PLUS] = total
//! ```
//!
//! A level without an entry of its own repeats the next higher one, and so is bound by that alone.

use crate::criticality::Criticality;
use crate::units::CostRate;
use core::ops::Index;

/// Nested limits of one customer; never higher at a lower criticality.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limits([CostRate; Criticality::COUNT]);

/// A level was given more than a level above it, which it counts towards.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "the limit of {level} is {found}, but it counts towards that of {above}: at most {at_most} \
     would be right"
)]
#[non_exhaustive]
pub struct NotNested {
    /// The level whose limit is too high.
    pub level: Criticality,
    /// What it was given.
    pub found: CostRate,
    /// The next higher level that has a limit.
    pub above: Criticality,
    /// What that level was given.
    pub at_most: CostRate,
}

impl Limits {
    /// Nothing may be used: a blocked customer.
    pub const ZERO: Self = Self([CostRate::ZERO; Criticality::COUNT]);
    /// Anything may be used.
    pub const UNLIMITED: Self = Self([CostRate::MAX; Criticality::COUNT]);

    /// One limit for everything, whatever its criticality.
    pub const fn total(rate: CostRate) -> Self {
        Self([rate; Criticality::COUNT])
    }

    /// The limits with these entries, lowest criticality first. A level without an entry repeats
    /// the next higher one; without an entry for `CRITICAL_PLUS` there is no total.
    ///
    /// ```
    /// use tidegate_core::{CostRate, Criticality, fleet::Limits};
    ///
    /// let cpus = |n| CostRate::from_cpus(n).unwrap();
    /// // 10 CPUs in all, of which at most 4 for what may be shed.
    /// let limits = Limits::from_entries([None, Some(cpus(4.0)), None, Some(cpus(10.0))])?;
    /// assert_eq!(limits.as_array(), [cpus(4.0), cpus(4.0), cpus(10.0), cpus(10.0)]);
    /// assert!(Limits::from_entries([Some(cpus(11.0)), None, None, Some(cpus(10.0))]).is_err());
    /// # Ok::<(), tidegate_core::fleet::NotNested>(())
    /// ```
    pub fn from_entries(
        entries: [Option<CostRate>; Criticality::COUNT],
    ) -> Result<Self, NotNested> {
        let mut rates = Self::UNLIMITED.0;
        let (mut above, mut at_most) = (Criticality::CriticalPlus, CostRate::MAX);
        for level in Criticality::ALL.into_iter().rev() {
            if let Some(found) = entries[level.index()] {
                if found > at_most {
                    return Err(NotNested { level, found, above, at_most });
                }
                (above, at_most) = (level, found);
            }
            rates[level.index()] = at_most;
        }
        Ok(Self(rates))
    }

    /// The limits at `rates`, lowest criticality first, each lowered to the next higher one where
    /// it is above it. For rates that were computed or came over the network.
    pub fn clamped(rates: [CostRate; Criticality::COUNT]) -> Self {
        let mut rates = rates;
        for i in (1..Criticality::COUNT).rev() {
            rates[i - 1] = rates[i - 1].min(rates[i]);
        }
        Self(rates)
    }

    /// The lower of both at every level.
    #[must_use]
    pub fn min(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i].min(other.0[i])))
    }

    /// The higher of both at every level.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self(core::array::from_fn(|i| self.0[i].max(other.0[i])))
    }

    /// What `level` and everything below it may use together.
    pub const fn get(&self, level: Criticality) -> CostRate {
        self.0[level.index()]
    }

    /// What may be used in all.
    pub const fn whole(&self) -> CostRate {
        self.get(Criticality::CriticalPlus)
    }

    /// The rates, lowest criticality first.
    pub const fn as_array(&self) -> [CostRate; Criticality::COUNT] {
        self.0
    }
}

impl Index<Criticality> for Limits {
    type Output = CostRate;

    fn index(&self, level: Criticality) -> &CostRate {
        &self.0[level.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rates(nanos: [u64; 4]) -> [CostRate; 4] {
        nanos.map(CostRate::from_nanos_per_sec)
    }

    #[test]
    fn absent_levels_repeat_the_next_higher_one() {
        const MAX: u64 = u64::MAX;
        for (entries, expected) in [
            ([None, None, None, None], [MAX; 4]),
            ([None, None, None, Some(9)], [9; 4]),
            ([None, Some(4), None, Some(9)], [4, 4, 9, 9]),
            ([Some(0), None, Some(9), Some(9)], [0, 9, 9, 9]),
            ([Some(1), Some(2), Some(3), None], [1, 2, 3, MAX]),
        ] {
            let entries = entries.map(|e: Option<u64>| e.map(CostRate::from_nanos_per_sec));
            assert_eq!(Limits::from_entries(entries).unwrap().as_array(), rates(expected));
        }
    }

    #[test]
    fn a_level_above_the_one_it_counts_towards_is_refused_with_what_would_be_right() {
        let cpus = |n| Some(CostRate::from_cpus(n).unwrap());
        let error = Limits::from_entries([cpus(5.0), None, cpus(4.0), cpus(9.0)]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the limit of SHEDDABLE is 5 CPU, but it counts towards that of CRITICAL: at most 4 \
             CPU would be right"
        );
    }

    proptest! {
        #[test]
        fn limits_are_nested_whatever_they_are_made_of(nanos: [u64; 4]) {
            let limits = Limits::clamped(rates(nanos));
            prop_assert!(limits.as_array().is_sorted());
            prop_assert!(limits.as_array().iter().zip(rates(nanos)).all(|(&l, r)| l <= r));
            prop_assert_eq!(limits.whole(), rates(nanos)[3]);
            let was_nested = rates(nanos).is_sorted();
            prop_assert_eq!(Limits::from_entries(rates(nanos).map(Some)).is_ok(), was_nested);
            prop_assert_eq!(limits.as_array() == rates(nanos), was_nested);
        }
    }
}
