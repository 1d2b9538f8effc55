//! What a thread has taken out of a bucket in advance, and where it keeps it.
//!
//! A request that finds enough in its thread's lease touches nothing that threads share. So the
//! lease of a customer's total is what nearly every request reads and writes, twice, and beside it
//! the count of what the customer has used. Both are on one cache line, the customer's [`Account`]
//! with this thread: apart they would be two misses for each request of ten thousand customers.
//!
//! A lease is worth something at the pace at which it was taken, and is recognised by it. A bucket
//! with the same pace and enough in hand is all that the request path asks for; customers without
//! a limit have leases [without an end](Lease::ENDLESS), so that it need not ask for them either.

use super::LEVELS;
use super::bucket::Pace;
use crate::counters::Line;
use crate::criticality::Criticality;
use crate::sync::{AtomicU64, Ordering};

/// What one thread has taken out of a customer's bucket and not yet charged for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    /// In nanoseconds of cost.
    pub(super) left: u64,
    /// The pace of the limit at which it was taken.
    pub(super) pace: Pace,
    /// The most that may be in hand, above the [`Pace::tag`].
    most_and_tag: u64,
}

/// Binary places for the most that may be in hand: three days of CPU time in nanoseconds.
const MOST: u32 = 48;

impl Lease {
    pub(super) const NONE: Self = Self { left: 0, pace: Pace::UNLIMITED, most_and_tag: 0 };

    /// For those who have no limit; taken anew when it is used up all the same.
    pub(super) const ENDLESS: Self = Self::new(1 << (MOST - 2), 1 << (MOST - 2), Pace::UNLIMITED);

    /// What is left of a lease that was `whole` when it was taken. Two in hand are one too many.
    pub(super) const fn new(left: u64, whole: u64, pace: Pace) -> Self {
        let most = whole.saturating_mul(2);
        let most = if most >> MOST == 0 { most } else { (1 << MOST) - 2 };
        Self { left, pace, most_and_tag: most << 16 | pace.tag() as u64 }
    }

    #[inline]
    pub(super) const fn tag(self) -> u16 {
        self.most_and_tag as u16
    }

    #[inline]
    pub(super) const fn most(self) -> u64 {
        self.most_and_tag >> 16
    }

    pub(super) const fn whole(self) -> u64 {
        self.most() / 2
    }

    /// What is left after `cost` is taken, if there is so much.
    #[inline]
    pub(super) const fn less(self, cost: u64) -> Option<u64> {
        self.left.checked_sub(cost)
    }

    /// What is left after what was charged is exchanged for what it was in the end, if there is so
    /// much, and no more than may be in hand. Not for costs of centuries, between which differences
    /// wrap.
    #[inline]
    pub(super) const fn corrected(self, charged: u64, actual: u64) -> Option<u64> {
        let left = self.left.wrapping_sub(actual.wrapping_sub(charged));
        let is_fine = left <= self.most() && (charged | actual) >> 63 == 0;
        if is_fine { Some(left) } else { None }
    }
}

/// Cells of a line that the lease of the total takes; those before count use by criticality.
const LEFT: usize = LEVELS;
const PACE: usize = LEVELS + 1;
const MOST_AND_TAG: usize = LEVELS + 2;

/// A customer's line in the cells of one thread, who alone writes it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account<'a>(pub(super) &'a Line);

impl Account<'_> {
    /// Counts use.
    #[inline]
    pub(super) fn count(self, criticality: Criticality, cost: u64) {
        self.0.add(criticality.index(), cost);
    }

    #[inline]
    pub(super) fn lease(self) -> Lease {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let cells = &self.0.0;
        Lease {
            left: load(&cells[LEFT]),
            pace: Pace::from_bits(load(&cells[PACE])),
            most_and_tag: load(&cells[MOST_AND_TAG]),
        }
    }

    /// As [`Account::lease`], where nobody asks for the pace.
    #[inline]
    pub(super) fn lease_of_any_pace(self) -> Lease {
        let load = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        let cells = &self.0.0;
        let pace = Pace::UNLIMITED;
        Lease { left: load(&cells[LEFT]), pace, most_and_tag: load(&cells[MOST_AND_TAG]) }
    }

    #[inline]
    pub(super) fn set_left(self, left: u64) {
        self.0.0[LEFT].store(left, Ordering::Relaxed);
    }

    pub(super) fn set(self, lease: Lease) {
        self.set_left(lease.left);
        self.0.0[PACE].store(lease.pace.bits(), Ordering::Relaxed);
        self.0.0[MOST_AND_TAG].store(lease.most_and_tag, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn corrections_stay_within_what_there_is_and_what_may_be_in_hand() {
        let lease = Lease::new(30, 50, Pace::UNLIMITED);
        for (charged, actual, left) in [
            (10, 10, Some(30)),
            (10, 0, Some(40)),
            (0, 30, Some(0)),
            (0, 31, None),
            (70, 0, Some(100)),
            (71, 0, None),
            (0, u64::MAX, None),
            (u64::MAX, 0, None),
            (u64::MAX, u64::MAX, None),
        ] {
            assert_eq!(lease.corrected(charged, actual), left, "{charged} {actual}");
        }
        assert_eq!((lease.less(30), lease.less(31)), (Some(0), None));
    }

    #[test]
    fn what_is_beyond_reason_does_not_reach_the_tag() {
        let pace = Pace::from_bits(12_345);
        let lease = Lease::new(u64::MAX, u64::MAX, pace);
        assert_eq!(lease.tag(), pace.tag());
        assert_eq!(lease.most(), (1 << MOST) - 2);
        assert_eq!(Lease::ENDLESS.tag(), Pace::UNLIMITED.tag());
        assert!(Lease::ENDLESS.left <= Lease::ENDLESS.most());
    }
}
