//! How a task that enforces by parts divides what it may use of a customer among them.
//!
//! An Envoy counts by buckets, each of one customer and one criticality, and has to be told a
//! number for each. The higher criticality takes first what it wants, within the nested limits;
//! parts of one criticality share by max-min fairness, so that none is shut out by another that was
//! named before it; and what nobody wants goes to all in equal parts, as demand moves faster than
//! reports.
//!
//! ```text
//! left = the lower of left and limits[level]       for each level, highest first
//! given = max-min of left by demand                among the parts of that level
//! ```
//!
//! The sum of all parts is never above the whole limit. What is lost to rounding of the last step
//! is less than a nanosecond a second for each part.

use super::limits::Limits;
use crate::criticality::Criticality;
use crate::share::Divider;
use crate::units::CostRate;

/// Divides nested limits among parts of so much demand, in their order.
///
/// ```
/// use tidegate_core::fleet::{Limits, divide_within};
/// use tidegate_core::{CostRate, Criticality::Critical};
///
/// let cpus = |n| CostRate::from_cpus(n).unwrap();
/// let parts = divide_within(Limits::total(cpus(6.0)), &[(Critical, cpus(5.0)); 2]);
/// assert_eq!(parts, [cpus(3.0), cpus(3.0)]);
/// ```
pub fn divide_within(limits: Limits, wants: &[(Criticality, CostRate)]) -> Vec<CostRate> {
    if limits.whole() == CostRate::MAX {
        return vec![CostRate::MAX; wants.len()];
    }
    let mut parts = vec![CostRate::ZERO; wants.len()];
    let mut left = limits.whole();
    let (mut divider, mut claims, mut given) = (Divider::default(), Vec::new(), Vec::new());
    for level in Criticality::ALL.into_iter().rev() {
        left = left.min(limits[level]);
        let of_level = || (0..).zip(wants).filter(|(_, (of, _))| *of == level);
        claims.clear();
        claims.extend(of_level().map(|(_, (_, demand))| (demand.as_nanos_per_sec(), 1)));
        let taken = divider.divide(left.as_nanos_per_sec(), &claims, &mut given);
        left = left - CostRate::from_nanos_per_sec(taken);
        for ((place, _), rate) in of_level().zip(&given) {
            let place: usize = place;
            parts[place] = CostRate::from_nanos_per_sec(*rate);
        }
    }
    // What is left by then is below every cap, as it was lowered to each.
    let each = left.as_nanos_per_sec() / wants.len().max(1) as u64;
    parts.iter().map(|rate| *rate + CostRate::from_nanos_per_sec(each)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn cpus(n: f64) -> CostRate {
        CostRate::from_cpus(n).unwrap()
    }

    #[test]
    fn the_higher_takes_first_equals_share_and_what_is_left_goes_to_all() {
        let total = Limits::total(cpus(10.0));
        for (wants, expected) in [
            (vec![(Critical, 4.0)], vec![10.0]),
            (vec![(Sheddable, 9.0), (CriticalPlus, 8.0)], vec![2.0, 8.0]),
            (vec![(Sheddable, 1.0), (CriticalPlus, 5.0)], vec![3.0, 7.0]),
            (vec![(Critical, 20.0), (Sheddable, 1.0)], vec![10.0, 0.0]),
            (vec![(Critical, 20.0), (Critical, 20.0)], vec![5.0, 5.0]),
            (vec![(Critical, 2.0), (Critical, 20.0), (Critical, 9.0)], vec![2.0, 4.0, 4.0]),
            (vec![], vec![]),
        ] {
            let wants: Vec<_> = wants.into_iter().map(|(l, n)| (l, cpus(n))).collect();
            let expected: Vec<_> = expected.into_iter().map(cpus).collect();
            assert_eq!(divide_within(total, &wants), expected);
        }
        let capped = Limits::clamped([1.0, 1.0, 10.0, 10.0].map(cpus));
        let wants = [(Sheddable, cpus(5.0)), (Critical, cpus(2.0))];
        assert_eq!(divide_within(capped, &wants), [cpus(1.0), cpus(2.0)]);
        assert_eq!(divide_within(Limits::UNLIMITED, &wants), [CostRate::MAX; 2]);
    }

    proptest! {
        #[test]
        fn parts_never_add_up_to_more_than_any_limit(
            rates in any::<[u32; 4]>(),
            wants in vec((0..4_usize, any::<u64>()), 0..20),
        ) {
            let rate = |nanos| CostRate::from_nanos_per_sec(nanos);
            let limits = Limits::clamped(rates.map(|nanos| rate(u64::from(nanos))));
            let wants: Vec<_> =
                wants.into_iter().map(|(l, nanos)| (Criticality::ALL[l], rate(nanos))).collect();
            let parts = divide_within(limits, &wants);
            for level in Criticality::ALL {
                let sum: u64 = wants.iter().zip(&parts)
                    .filter(|((of, _), _)| of.index() <= level.index())
                    .map(|(_, part)| part.as_nanos_per_sec())
                    .sum();
                prop_assert!(sum <= limits[level].as_nanos_per_sec(), "{level}: {sum}");
            }
        }
    }
}
