//! Who gets how much of what is too little for all: weighted max-min fairness, exactly.
//!
//! Pour water into vessels as wide as each one's weight and as tall as it wants per unit of weight.
//! All fill at the same level; a full vessel takes no more, and what it leaves raises the level of
//! the others:
//!
//! ```text
//! grant_i = min(wants_i, level x weight_i)        sum of grants = min(capacity, sum of wants)
//! ```
//!
//! So nobody gets more than it wants, nothing is left over while someone wants more, and whoever
//! gets less than it wants has no less per weight than anybody else: asking for more than one's
//! share gains nothing.
//!
//! To find the level, sort by what each wants per weight and satisfy one after the other, as long
//! as what is left gives everyone still waiting at least as much per weight. The first for whom it
//! does not marks the level: what is left over the weight still waiting. Dividing in rounds instead
//! (everyone an equal part, then the rest again) stops short of the level or needs as many rounds
//! as there are claims.
//!
//! The walk is the same for `f64` (Doorman's leases) and for integers (the fleet's quotas); only
//! the last step differs. With floats the sum is right up to rounding. With integers the level
//! stays the exact fraction `left / weight`, grants are rounded down, and the few units that this
//! leaves go one each to the claims that want most: the sum is exact to the last unit.

use core::cmp::Ordering;
use core::ops::{Add, Mul, Sub};

/// The largest amount of a [`Claim`], and of a capacity that is not infinite. Far beyond any
/// resource, and small enough that no sum or quotient of claims leaves the range of `f64`; so that
/// none gets lost below it either, less than the inverse counts as nothing.
pub const AMOUNT_MAX: f64 = 1e150;

/// The weights of a [`Claim`] other than zero lie between this and its inverse, for the same reason
/// as [`AMOUNT_MAX`].
const WEIGHT_MIN: f64 = 1e-50;

/// What one party wants, and how much it counts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Claim {
    wants: f64,
    weight: f64,
}

impl Claim {
    /// A claim to `wants` with `weight`. What is not a number or negative counts as zero, what is
    /// too large as the largest. A claim without weight has no share at all.
    pub fn new(wants: f64, weight: f64) -> Self {
        let weight = if weight > 0.0 { weight.clamp(WEIGHT_MIN, 1.0 / WEIGHT_MIN) } else { 0.0 };
        Self { wants: amount(wants), weight }
    }

    /// What is wanted.
    pub const fn wants(&self) -> f64 {
        self.wants
    }

    /// What this claim gets at `level`.
    pub fn at(&self, level: f64) -> f64 {
        if self.weight == 0.0 { 0.0 } else { self.wants.min(level * self.weight) }
    }
}

/// `value` as an amount: zero or more, and of a size that can be reckoned with.
pub(crate) fn amount(value: f64) -> f64 {
    // A comparison with a value that is not a number is false.
    if value >= 1.0 / AMOUNT_MAX { value.min(AMOUNT_MAX) } else { 0.0 }
}

/// The level at which `capacity` is used up, or infinity if all claims fit. The order of the claims
/// does not change a bit of it.
///
/// ```
/// use tidegate_core::share::{Claim, water_level};
///
/// let claims = [1000.0, 50.0, 10.0].map(|wants| Claim::new(wants, 1.0));
/// let level = water_level(120.0, claims);
/// assert_eq!(claims.map(|claim| claim.at(level)), [60.0, 50.0, 10.0]);
/// ```
pub fn water_level(capacity: f64, claims: impl IntoIterator<Item = Claim>) -> f64 {
    if capacity == f64::INFINITY {
        return capacity;
    }
    let mut slots: Vec<Slot<f64>> = claims
        .into_iter()
        .filter(|claim| claim.weight > 0.0)
        .map(|claim| Slot { wants: claim.wants, weight: claim.weight, waiting: 0.0, index: 0 })
        .collect();
    match fill(amount(capacity), &mut slots) {
        None => f64::INFINITY,
        Some(Level { first, left, weight }) => {
            // Rounding must not put the level below those who were satisfied.
            let full = slots[..first].last().map_or(0.0, |slot| slot.wants / slot.weight);
            full.max(left / weight)
        }
    }
}

/// How often [`Divider`] raises the level before it sorts. Claims of one kind need three or four.
const RISES_MAX: usize = 24;

/// Divides whole amounts. Keeps its memory from one division to the next.
///
/// Claims come by the thousand, many times a second, and to sort them would be most of the work. So
/// the level rises from below: everyone who wants no more than an equal part is satisfied, which
/// leaves more for the others, until nobody is satisfied any more. That ends at the same level.
/// Claims that are made to need many rises are sorted after all.
#[derive(Debug, Clone, Default)]
pub struct Divider {
    slots: Vec<Slot<u128>>,
    /// The claims that are not satisfied.
    short: Vec<u32>,
}

impl Divider {
    /// Divides `capacity` among `claims` of what each wants and its weight; `grants` is overwritten
    /// with what each gets. Returns the sum of the grants, which is exactly the smaller of
    /// `capacity` and of all that is wanted by claims that have weight.
    pub fn divide(&mut self, capacity: u64, claims: &[(u64, u32)], grants: &mut Vec<u64>) -> u64 {
        grants.clear();
        grants.extend(claims.iter().map(|&(wants, weight)| if weight == 0 { 0 } else { wants }));
        let wanted: u128 = grants.iter().copied().map(u128::from).sum();
        if wanted <= u128::from(capacity) {
            return wanted as u64;
        }
        let (left, weight) = self.satisfy(capacity, claims);
        let one = (left / weight) as u64;
        let mut rest = left;
        for &index in &self.short {
            // Below what the claim wants, or it would have been satisfied; so it fits into 64 bits,
            // and one more unit still does not exceed what is wanted.
            let grant = match claims[index as usize].1 {
                1 => one,
                of => (left * u128::from(of) / weight) as u64,
            };
            grants[index as usize] = grant;
            rest -= u128::from(grant);
        }
        // Each division lost less than one unit, so there are fewer units than claims.
        let rest = rest as usize;
        if rest > 0 {
            let most = |a: &u32, b: &u32| {
                let ((a, wa), (b, wb)) = (claims[*a as usize], claims[*b as usize]);
                let per_weight = if wa == wb {
                    Ordering::Equal
                } else {
                    (u128::from(b) * u128::from(wa)).cmp(&(u128::from(a) * u128::from(wb)))
                };
                per_weight.then(b.cmp(&a))
            };
            let (first, last, _) = self.short.select_nth_unstable_by(rest - 1, most);
            first.iter().chain([&*last]).for_each(|&index| grants[index as usize] += 1);
        }
        capacity
    }

    /// Finds who is not satisfied. Returns what is left for them, and their weight.
    fn satisfy(&mut self, capacity: u64, claims: &[(u64, u32)]) -> (u128, u128) {
        self.short.clear();
        let mut weight = 0;
        for (index, claim) in (0..).zip(claims) {
            if claim.1 > 0 {
                self.short.push(index);
                weight += u128::from(claim.1);
            }
        }
        let mut left = u128::from(capacity);
        for _ in 0..RISES_MAX {
            let one = (left / weight) as u64;
            let (mut taken, mut gone) = (0, 0);
            self.short.retain(|&index| {
                let (wants, of) = claims[index as usize];
                let full = match of {
                    1 => wants <= one,
                    _ => u128::from(wants) * weight <= left * u128::from(of),
                };
                if full {
                    taken += u128::from(wants);
                    gone += u128::from(of);
                }
                !full
            });
            if gone == 0 {
                return (left, weight);
            }
            left -= taken;
            weight -= gone;
        }
        self.slots.clear();
        self.slots.extend(self.short.iter().map(|&index| {
            let (wants, weight) = claims[index as usize];
            let (wants, weight) = (u128::from(wants), u128::from(weight));
            Slot { wants, weight, waiting: 0, index: index as usize }
        }));
        // More is wanted than there is, and so somebody is not satisfied.
        let Some(level) = fill(left, &mut self.slots) else { return (left, weight) };
        self.short.clear();
        self.short.extend(self.slots[level.first..].iter().map(|slot| slot.index as u32));
        (level.left, level.weight)
    }
}

/// A claim in the order in which it is satisfied.
#[derive(Debug, Clone, Copy)]
struct Slot<T> {
    wants: T,
    weight: T,
    /// The weight of this claim and of all after it.
    waiting: T,
    index: usize,
}

/// Where the water stands: claims from `first` on share `left` by their `weight`.
struct Level<T> {
    first: usize,
    left: T,
    weight: T,
}

/// What the walk needs of a number; sums and products must stay in range.
trait Number:
    Copy + PartialOrd + Default + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Orders by what is wanted per weight, then by what is wanted: a total order.
    fn order(a: &Slot<Self>, b: &Slot<Self>) -> Ordering;
}

impl Number for f64 {
    fn order(a: &Slot<f64>, b: &Slot<f64>) -> Ordering {
        // Products on both sides would be rounded each on its own, and the order not transitive.
        let ratio = |slot: &Slot<f64>| slot.wants / slot.weight;
        ratio(a).total_cmp(&ratio(b)).then(a.wants.total_cmp(&b.wants))
    }
}

impl Number for u128 {
    fn order(a: &Slot<u128>, b: &Slot<u128>) -> Ordering {
        // 64 bits of amount times 32 of weight: exact.
        (a.wants * b.weight).cmp(&(b.wants * a.weight)).then(a.wants.cmp(&b.wants))
    }
}

/// Sorts the claims, satisfies one after the other and stops where the capacity ends; `None` if it
/// does not.
fn fill<T: Number>(capacity: T, slots: &mut [Slot<T>]) -> Option<Level<T>> {
    slots.sort_unstable_by(T::order);
    // Sums from the back: subtracting each weight from a total would leave rounding errors that are
    // large beside the small weights.
    let mut waiting = T::default();
    for slot in slots.iter_mut().rev() {
        waiting = waiting + slot.weight;
        slot.waiting = waiting;
    }
    let mut satisfied = T::default();
    for (first, slot) in slots.iter().enumerate() {
        let left = if capacity > satisfied { capacity - satisfied } else { T::default() };
        if slot.wants * slot.waiting > left * slot.weight {
            return Some(Level { first, left, weight: slot.waiting });
        }
        satisfied = satisfied + slot.wants;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn fair(capacity: f64, claims: &[(f64, f64)]) -> Vec<f64> {
        let claims: Vec<_> = claims.iter().map(|&(w, s)| Claim::new(w, s)).collect();
        let level = water_level(capacity, claims.iter().copied());
        claims.iter().map(|claim| claim.at(level)).collect()
    }

    fn divide(capacity: u64, claims: &[(u64, u32)]) -> Vec<u64> {
        let mut grants = Vec::new();
        Divider::default().divide(capacity, claims, &mut grants);
        grants
    }

    #[test]
    fn shares_by_the_table() {
        type Row<'a> = (u64, &'a [(u64, u32)], &'a [u64]);
        let rows: [Row<'_>; 12] = [
            (120, &[(1000, 1), (50, 1), (10, 1)], &[60, 50, 10]),
            (120, &[(1000, 1), (60, 1), (10, 1)], &[55, 55, 10]),
            (120, &[(1000, 6), (1000, 4), (1000, 2)], &[60, 40, 20]),
            (1000, &[(2000, 10), (500, 10), (700, 30)], &[200, 200, 600]),
            // All that is wanted fits.
            (200, &[(100, 1), (50, 7)], &[100, 50]),
            (150, &[(100, 1), (50, 1)], &[100, 50]),
            // Nothing to divide, nobody to divide among, nothing wanted.
            (0, &[(5, 1), (5, 2)], &[0, 0]),
            (7, &[], &[]),
            (7, &[(0, 1), (0, 0)], &[0, 0]),
            // Without weight, without share.
            (100, &[(100, 0), (30, 1)], &[0, 30]),
            (100, &[(100, 0), (300, 1)], &[0, 100]),
            // A satisfied claim leaves its rest to the others, who get 4 per weight.
            (22, &[(2, 3), (100, 1), (21, 4)], &[2, 4, 16]),
        ];
        for (capacity, claims, expected) in rows {
            let floats: Vec<_> = claims.iter().map(|&(w, s)| (w as f64, f64::from(s))).collect();
            let exact: Vec<_> = expected.iter().map(|&grant| grant as f64).collect();
            assert_eq!(fair(capacity as f64, &floats), exact, "{claims:?}");
            assert_eq!(divide(capacity, claims), expected, "{claims:?}");
        }
    }

    #[test]
    fn units_that_do_not_divide_go_to_those_who_want_most() {
        assert_eq!(divide(100, &[(90, 1), (70, 1), (80, 1)]), [34, 33, 33]);
        assert_eq!(divide(101, &[(90, 1), (70, 1), (80, 1)]), [34, 33, 34]);
        assert_eq!(divide(2, &[(u64::MAX, 1); 5]).iter().sum::<u64>(), 2);
    }

    /// Each is satisfied only by what the one before has left.
    #[test]
    fn claims_that_need_many_rises_are_divided_all_the_same() {
        let mut claims: Vec<(u64, u32)> = vec![(u64::MAX / 2, 1); 2];
        let mut left = 1_000_000_u64;
        for waiting in (3..200).rev() {
            let wants = left / waiting;
            claims.push((wants, 1));
            left -= wants;
        }
        let grants = divide(1_000_000, &claims);
        assert_eq!(grants.iter().sum::<u64>(), 1_000_000);
        let short = claims.iter().zip(&grants).filter(|(claim, grant)| **grant < claim.0).count();
        assert_eq!(short, 2, "{grants:?}");
    }

    #[test]
    fn the_ends_of_the_range_do_no_harm() {
        let huge = [(u64::MAX, u32::MAX), (u64::MAX, u32::MAX), (u64::MAX, 1)];
        let grants = divide(u64::MAX, &huge);
        assert_eq!(grants.iter().map(|&g| u128::from(g)).sum::<u128>(), u128::from(u64::MAX));

        let nonsense = [(f64::NAN, 1.0), (-5.0, 1.0), (f64::INFINITY, 1.0), (8.0, f64::NAN)];
        assert_eq!(fair(120.0, &nonsense), [0.0, 0.0, 120.0, 0.0]);
        assert_eq!(fair(f64::NAN, &[(5.0, 1.0)]), [0.0]);
        assert_eq!(fair(-1.0, &[(5.0, 1.0)]), [0.0]);
        assert_eq!(fair(f64::INFINITY, &[(5.0, 1.0), (f64::INFINITY, 1.0)]), [5.0, AMOUNT_MAX]);
    }

    /// Amounts of every size, many of them equal.
    fn whole() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 0..20_u64, 0..2_000_000_000_u64, any::<u64>()]
    }

    fn any_number() -> impl Strategy<Value = f64> {
        prop_oneof![0.0..100.0, (0..10_u32).prop_map(f64::from), any::<f64>()]
    }

    proptest! {
        #[test]
        fn whole_shares_are_exact_and_fair(
            capacity in whole(),
            claims in vec((whole(), prop_oneof![Just(1_u32), 0..5_u32, any::<u32>()]), 0..30),
        ) {
            let mut grants = Vec::new();
            let sum = Divider::default().divide(capacity, &claims, &mut grants);
            let entitled = |&(wants, weight): &(u64, u32)| {
                u128::from(if weight == 0 { 0 } else { wants })
            };
            let wanted: u128 = claims.iter().map(entitled).sum();
            prop_assert_eq!(u128::from(sum), wanted.min(u128::from(capacity)));
            prop_assert_eq!(grants.iter().map(|&g| u128::from(g)).sum::<u128>(), u128::from(sum));
            for (i, &(wants, weight)) in claims.iter().enumerate() {
                prop_assert!(grants[i] <= wants);
                if u128::from(grants[i]) < entitled(&(wants, weight)) {
                    // Nobody has more per weight, but for the unit by which each may be off.
                    for (j, &(_, other)) in claims.iter().enumerate() {
                        prop_assert!(
                            u128::from(grants[j].saturating_sub(1)) * u128::from(weight)
                                <= u128::from(grants[i] + 1) * u128::from(other)
                        );
                    }
                }
            }
        }

        #[test]
        fn the_order_of_whole_claims_does_not_matter(
            capacity in 0..200_u64,
            claims in vec((0..50_u64, 0..4_u32), 0..20).prop_shuffle(),
        ) {
            let outcome = |claims: &[(u64, u32)]| {
                let grants = divide(capacity, claims);
                let mut all: Vec<_> = claims.iter().copied().zip(grants).collect();
                all.sort_unstable();
                all
            };
            let mut sorted = claims.clone();
            sorted.sort_unstable();
            prop_assert_eq!(outcome(&claims), outcome(&sorted));
        }

        #[test]
        fn levels_are_fair_use_all_and_never_more(
            capacity in any_number(),
            claims in vec((any_number(), any_number()), 0..30),
        ) {
            let grants = fair(capacity, &claims);
            let claims: Vec<_> = claims.iter().map(|&(w, s)| Claim::new(w, s)).collect();
            let capacity = if capacity == f64::INFINITY { capacity } else { amount(capacity) };
            let wanted: f64 = claims.iter().filter(|c| c.weight > 0.0).map(|c| c.wants).sum();
            let sum: f64 = grants.iter().sum();
            prop_assert!(sum <= capacity * (1.0 + 1e-12), "{sum} of {capacity}");
            prop_assert!(sum >= wanted.min(capacity) * (1.0 - 1e-12), "{sum} of {capacity}");
            for (claim, &grant) in claims.iter().zip(&grants) {
                prop_assert!(grant.is_finite() && (0.0..=claim.wants).contains(&grant));
                if claim.weight > 0.0 && grant < claim.wants {
                    for (other, &theirs) in claims.iter().zip(&grants) {
                        prop_assert!(
                            theirs * claim.weight <= grant * other.weight * (1.0 + 1e-12)
                        );
                    }
                }
            }
        }

        #[test]
        fn the_order_of_claims_does_not_change_a_bit_of_the_level(
            capacity in 0.0..200.0_f64,
            claims in vec((0.0..50.0_f64, 0.0..4.0_f64), 0..20),
        ) {
            let claims: Vec<_> = claims.iter().map(|&(w, s)| Claim::new(w, s)).collect();
            let reversed = claims.iter().rev().copied();
            prop_assert_eq!(
                water_level(capacity, claims.iter().copied()).to_bits(),
                water_level(capacity, reversed).to_bits()
            );
        }
    }
}
