//! How one customer's limits are divided among the tasks that serve it.
//!
//! First every task gets a **floor**, so that demand which appears at an idle task is not turned
//! away until the next round; one more floor is kept for a task that is not known yet. Floors are
//! counted in powers of two of the number of tasks: they change rarely, and most newcomers find
//! theirs already set aside.
//!
//! What is left after floors goes by demand, highest criticality first: a level gets what the ones
//! above leave, within its own limit, by exact max-min over the tasks. So if a customer is over its
//! limit, its lowest criticality goes first across the whole fleet, not just within each task:
//!
//! ```text
//! room[level]  = min(limit[level], room[level + 1] - given[level + 1])
//! given[level] = max-min of room[level] over the tasks' demand at this level
//! need[level]  = floor + given at this level and below        (nested, as limits are)
//! ```
//!
//! What nobody needs is **room to grow**: half of it in proportion to demand, as busy tasks grow by
//! more, and half equally, as any task may become busy. The room of a level is what it and all
//! levels above it have free. Adding it up gives each level at most its limit, without a single
//! check: every step divides a whole.

use crate::criticality::Criticality;
use crate::share::Divider;
use crate::units::Ratio;

const LEVELS: usize = Criticality::COUNT;

/// Amounts per level, lowest criticality first.
pub(super) type Levels = [u64; LEVELS];

/// Shares of the room to grow are counted in this many bits.
const SHARE_BITS: u32 = 32;

/// One task's part in a customer's demand.
#[derive(Debug, Clone, Copy)]
pub(super) struct Party {
    pub(super) demand: Levels,
    pub(super) weight: u32,
}

/// What a task should have, nested.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Target {
    /// What it uses, and its floor.
    pub(super) need: Levels,
    /// The same with its room to grow.
    pub(super) whole: Levels,
}

/// Divides. Keeps its memory from one customer to the next.
#[derive(Debug, Clone, Default)]
pub(super) struct Allocator {
    pub(super) parties: Vec<Party>,
    pub(super) targets: Vec<Target>,
    pub(super) divider: Divider,
    /// What each party gets beyond its floor, level by level.
    served: Vec<Levels>,
    claims: Vec<(u64, u32)>,
    grants: Vec<u64>,
}

impl Allocator {
    /// Divides `limits`, of which `taken` is not to be had, among the parties; `floor` is the share
    /// of the limits that floors may use. Returns the floor of one unit of weight.
    pub(super) fn allocate(&mut self, limits: Levels, taken: Levels, floor: Ratio) -> Levels {
        let weight: u64 = self.parties.iter().map(|party| u64::from(party.weight)).sum();
        let places = (weight + 1).next_power_of_two();
        let floor = limits.map(|limit| floor.share_of(limit) / places);
        let mut room: Levels = core::array::from_fn(|l| {
            limits[l].saturating_sub(taken[l]).saturating_sub(floor[l] * (weight + 1))
        });
        for l in (1..LEVELS).rev() {
            room[l - 1] = room[l - 1].min(room[l]);
        }

        let mut wanted = [0_u128; LEVELS];
        self.served.clear();
        self.served.extend(self.parties.iter().map(|party| {
            let beyond = beyond_floor(party.demand, floor.map(|f| f * u64::from(party.weight)));
            for l in 0..LEVELS {
                wanted[l] += u128::from(beyond[l]);
            }
            beyond
        }));
        let mut given = [0; LEVELS];
        let mut left = room[LEVELS - 1];
        for l in (0..LEVELS).rev() {
            left = left.min(room[l]);
            given[l] = match u64::try_from(wanted[l]) {
                Ok(all) if all <= left => all,
                _ => self.ration(l, left),
            };
            left -= given[l];
        }

        // From here on what is given counts this level and all below.
        for l in 1..LEVELS {
            given[l] += given[l - 1];
        }
        let mut free: Levels = core::array::from_fn(|l| room[l] - given[l]);
        for l in (1..LEVELS).rev() {
            free[l - 1] = free[l - 1].min(free[l]);
        }
        self.grow(floor, free, weight);
        floor
    }

    /// Divides `left`, which is not enough, among the demand of level `l`. Returns how much was
    /// given.
    fn ration(&mut self, l: usize, left: u64) -> u64 {
        self.claims.clear();
        let wanted = self.served.iter().map(|served| served[l]);
        self.claims.extend(wanted.zip(self.parties.iter().map(|party| party.weight)));
        let given = self.divider.divide(left, &self.claims, &mut self.grants);
        for (served, grant) in self.served.iter_mut().zip(&self.grants) {
            served[l] = *grant;
        }
        given
    }

    /// Adds up what each party is to have: its floor, what it is served, and its part of what is
    /// `free`.
    fn grow(&mut self, floor: Levels, free: Levels, weight: u64) {
        let total = |party: &Party| party.demand.iter().map(|&d| u128::from(d)).sum::<u128>();
        let demand: u128 = self.parties.iter().map(total).sum();
        // Shares are rounded down, so that all together are at most the whole. A demand of more
        // than 33 bits is rounded as well, up where it is what others are a share of: then shares
        // are quotients of 64 bits.
        let excess = (u128::BITS - demand.leading_zeros()).saturating_sub(33);
        let whole = (demand >> excess) as u64 + u64::from(excess > 0);
        let half = 1_u64 << (SHARE_BITS - 1);
        let one = half.checked_div(weight).unwrap_or(0);
        self.targets.clear();
        for (party, served) in self.parties.iter().zip(&self.served) {
            let equal = match party.weight {
                1 => one,
                of => (u64::from(of) * half).checked_div(weight).unwrap_or(0),
            };
            let wants = (total(party) >> excess) as u64;
            let share = equal + (wants * half).checked_div(whole).unwrap_or(equal);
            let mut need = floor.map(|f| f * u64::from(party.weight));
            let mut below = 0;
            for l in 0..LEVELS {
                below += served[l];
                need[l] += below;
            }
            let whole = core::array::from_fn(|l| {
                need[l] + ((u128::from(free[l]) * u128::from(share)) >> SHARE_BITS) as u64
            });
            self.targets.push(Target { need, whole });
        }
    }
}

/// The demand that floors do not cover; they go to the highest criticality first.
fn beyond_floor(mut demand: Levels, floors: Levels) -> Levels {
    let mut spare = floors[LEVELS - 1];
    for l in (0..LEVELS).rev() {
        spare = spare.min(floors[l]);
        let covered = demand[l].min(spare);
        demand[l] -= covered;
        spare -= covered;
    }
    demand
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn allocate(
        limits: Levels,
        taken: Levels,
        floor: Ratio,
        parties: &[(Levels, u32)],
    ) -> Vec<Target> {
        let parties = parties.iter().map(|&(demand, weight)| Party { demand, weight }).collect();
        let mut allocator = Allocator { parties, ..Allocator::default() };
        allocator.allocate(limits, taken, floor);
        allocator.targets
    }

    fn needs(limits: Levels, floor: u32, parties: &[(Levels, u32)]) -> Vec<Levels> {
        allocate(limits, [0; 4], Ratio::percent(floor), parties).iter().map(|t| t.need).collect()
    }

    #[test]
    fn the_total_is_divided_by_max_min() {
        let demand = |d| ([0, 0, d, 0], 1);
        assert_eq!(
            needs([120; 4], 0, &[demand(1000), demand(50), demand(10)]),
            [[0, 0, 60, 60], [0, 0, 50, 50], [0, 0, 10, 10]]
        );
        assert_eq!(
            needs(
                [1000; 4],
                0,
                &[([0, 0, 2000, 0], 10), ([0, 0, 500, 0], 10), ([0, 0, 700, 0], 30)]
            ),
            [[0, 0, 200, 200], [0, 0, 200, 200], [0, 0, 600, 600]]
        );
    }

    #[test]
    fn lower_criticalities_go_first_whichever_task_they_are_at() {
        // One task has only critical demand, the other only sheddable: the critical is served.
        assert_eq!(
            needs([100; 4], 0, &[([0, 0, 80, 0], 1), ([80, 0, 0, 0], 1)]),
            [[0, 0, 80, 80], [20, 20, 20, 20]]
        );
        // A level of its own: 30 for both sheddables, though 50 would be free.
        assert_eq!(needs([30, 30, 100, 100], 0, &[([10, 40, 50, 0], 1)]), [[0, 30, 80, 80]]);
    }

    #[test]
    fn floors_are_set_aside_and_cover_demand() {
        // Two tasks and a newcomer make four places: 16 / 4 each, so 100 - 12 to divide.
        assert_eq!(
            needs([100; 4], 16, &[([0, 0, 0, 500], 1), ([0; 4], 1)]),
            [[4, 4, 4, 92], [4; 4]]
        );
        assert_eq!(
            needs([100; 4], 16, &[([0, 0, 0, 3], 1), ([0, 9, 0, 0], 1)]),
            [[4; 4], [4, 9, 9, 9]]
        );
    }

    #[test]
    fn what_is_free_goes_half_by_demand_and_half_equally() {
        let targets =
            allocate([100; 4], [20; 4], Ratio::ZERO, &[([0, 0, 30, 0], 1), ([0, 0, 10, 0], 1)]);
        // 40 are free: 15 and 5 by demand, 10 each equally.
        let wholes: Vec<_> = targets.iter().map(|t| t.whole).collect();
        assert_eq!(wholes, [[25, 25, 55, 55], [15, 15, 25, 25]]);
    }

    #[test]
    fn without_demand_everyone_has_the_same_room() {
        let targets = allocate([100; 4], [0; 4], Ratio::ZERO, &[([0; 4], 1), ([0; 4], 3)]);
        assert_eq!(targets[0].whole, [25; 4]);
        assert_eq!(targets[1].whole, [75; 4]);
    }

    fn rate() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..100_u64, 0..5_000_000_000_u64, any::<u64>()]
    }

    proptest! {
        #[test]
        fn targets_are_nested_and_add_up_to_at_most_the_limits(
            mut limits in [rate(), rate(), rate(), rate()],
            taken in [rate(), rate(), rate(), rate()],
            floor in 0..50_u32,
            parties in vec(
                (
                    [rate(), rate(), rate(), rate()],
                    prop_oneof![4 => Just(1_u32), 1 => any::<u32>()],
                ),
                0..12,
            ),
        ) {
            limits.sort_unstable();
            let floor = Ratio::percent(floor);
            let targets = allocate(limits, taken, floor, &parties);
            for l in 0..LEVELS {
                let sum: u128 = targets.iter().map(|t| u128::from(t.whole[l])).sum();
                let rest = limits[l].saturating_sub(taken[l]).max(floor.share_of(limits[l]));
                prop_assert!(sum <= u128::from(rest), "{sum} of {rest} at {l}");
            }
            for (target, (demand, _)) in targets.iter().zip(&parties) {
                prop_assert!(target.need.is_sorted() && target.whole.is_sorted());
                for l in 0..LEVELS {
                    prop_assert!(target.need[l] <= target.whole[l]);
                }
                // Whoever lacks something at a level gives no room to grow to the levels below.
                let wanted: u128 = demand.iter().map(|&d| u128::from(d)).sum();
                if u128::from(target.need[LEVELS - 1]) < wanted {
                    prop_assert_eq!(target.whole[0], target.need[0]);
                }
            }
        }
    }
}
