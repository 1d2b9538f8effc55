//! What a task may admit of a customer before the server knows that it serves it.
//!
//! A share of every limit is set aside for this, because a customer's first request at a task
//! cannot wait for a round. Nobody knows which tasks will need it, so every task has a part of it,
//! and all parts together must not be more:
//!
//! ```text
//! part of a task = share set aside / places        places = power of two, at least 2 x tasks
//! ```
//!
//! A task never enforces less than its part, also with a grant: the part is there anyway, and a
//! task whose grant is nothing yet would block the customer if the server fell silent right then.
//! Parts are whole nanoseconds a second: of a limit of which less than one for each place is set
//! aside (6,400 ns of CPU a second, with 1 % and 64 places), nothing is left of a part.
//!
//! By the most tasks there could ever be instead, parts would be too small for a single request.
//!
//! **When it is wrong.** Newcomers get a part of what they find, while others still hold the larger
//! part of a smaller fleet. They are told in the next round. Until then parts fit as long as the
//! fleet does not grow to four times its size, or to 128 tasks: half of the places are free, and
//! each doubling beyond takes a quarter of the whole. Should 16,384 tasks join before any can be
//! told, their parts add up to 2.75 times what is set aside.

use super::limits::Limits;
use crate::units::CostRate;

/// The least number of places. Up to 32 tasks nothing has to be told; and of a customer with
/// 100 CPU, of which 1 is set aside, each task may still use 16 ms a second.
const LEAST: usize = 64;

/// Places shrink when there are this many for each task, so that a fleet whose size wavers is not
/// told again and again: they grow at two.
const SPARSE: usize = 8;

/// What a task may admit of a customer for which it has no grant, of what is set `aside` for all.
pub fn unseen_part(aside: Limits, places: u64) -> Limits {
    let part = |share: CostRate| share.as_nanos_per_sec() / places.max(1);
    Limits::clamped(aside.as_array().map(|share| CostRate::from_nanos_per_sec(part(share))))
}

/// Among how many tasks the share that is set aside is divided.
#[derive(Debug, Clone, Default)]
pub(super) struct Places {
    tasks_max: usize,
    count: usize,
    /// The count that tasks have been told.
    told: usize,
}

impl Places {
    pub(super) fn new(tasks_max: usize) -> Self {
        let count = LEAST.min(tasks_max).max(1);
        Self { tasks_max, count, told: count }
    }

    pub(super) const fn count(&self) -> u64 {
        self.count as u64
    }

    /// There are `tasks` now, one of them new: it must find a place.
    pub(super) fn fit(&mut self, tasks: usize) {
        if self.tasks_max > LEAST {
            self.count = self.count.max(tasks.saturating_mul(2).next_power_of_two());
        }
    }

    /// A round, with `tasks`. Returns whether all of them have to be told their parts again.
    pub(super) fn settle(&mut self, tasks: usize) -> bool {
        if self.count > LEAST && tasks.saturating_mul(SPARSE) <= self.count {
            self.count /= 2;
        }
        core::mem::replace(&mut self.told, self.count) != self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    #[test]
    fn places_follow_the_tasks_by_the_table() {
        let mut places = Places::new(1 << 14);
        for (tasks, count, changed) in [
            (1, 64, false),
            (32, 64, false),
            (33, 128, true),
            (64, 128, false),
            (16_384, 32_768, true),
            // Rarely smaller, and then step by step.
            (4_097, 32_768, false),
            (4_096, 16_384, true),
            (100, 8_192, true),
            (100, 4_096, true),
            (100, 2_048, true),
            (100, 1_024, true),
            (100, 512, true),
            (64, 256, true),
            (33, 256, false),
            (0, 128, true),
            (0, 64, true),
            (0, 64, false),
        ] {
            places.fit(tasks);
            let found = (places.settle(tasks), places.count());
            assert_eq!(found, (changed, count), "{tasks} tasks");
        }
        // With few places in all, there is always one for each.
        for tasks_max in [1, 8, 64] {
            let mut places = Places::new(tasks_max);
            places.fit(tasks_max);
            assert!(!places.settle(tasks_max));
            assert_eq!(places.count(), tasks_max as u64);
        }
    }

    /// All parts in units that every number of places divides.
    const WHOLE: u64 = 1 << 32;

    fn parts(held: &[u64]) -> u64 {
        held.iter().map(|places| WHOLE / places).sum()
    }

    #[test]
    fn a_crowd_that_cannot_be_told_is_over_by_so_much() {
        let mut places = Places::new(1 << 14);
        let mut held = Vec::new();
        for tasks in 1..=1 << 14 {
            places.fit(tasks);
            held.push(places.count());
            assert!(tasks > 128 || parts(&held) <= WHOLE);
        }
        assert_eq!(parts(&held), WHOLE / 4 * 11);
    }

    proptest! {
        /// Tasks come and go, and hold the part they found or were told last.
        #[test]
        fn parts_fit_into_the_whole(steps in vec((0..400_usize, 0..400_usize), 1..30)) {
            let mut places = Places::new(1 << 20);
            let mut held: Vec<u64> = Vec::new();
            for (leave, join) in steps {
                held.truncate(held.len().saturating_sub(leave));
                let most = (4 * held.len()).max(128);
                for _ in 0..join.min(most - held.len()) {
                    places.fit(held.len() + 1);
                    held.push(places.count());
                    prop_assert!(parts(&held) <= WHOLE);
                }
                if places.settle(held.len()) {
                    held.fill(places.count());
                }
                prop_assert!(parts(&held) <= WHOLE / 2);
            }
        }
    }
}
