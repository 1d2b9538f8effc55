//! What holds of every plan, whatever is configured and whatever was seen: facts that belong
//! together, as a task has them, and facts that nobody could have.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used)]

mod inputs;

use inputs::{LEVELS, config, number, reading};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_core::admission::shed::{Done, Facts, Plan, ShedConfig, Shedder};
use tidegate_core::{Cost, Criticality, Timestamp};

/// Facts of a task whose requests cost about a millisecond, how long they are from the last, and
/// for how many ticks they stay: what is averaged gets to where they would have it.
fn likely() -> impl Strategy<Value = (Facts, Duration, u32)> {
    let load = || option::weighted(0.8, prop_oneof![0.0..1.0_f64, 0.0..20.0_f64]);
    let many = || prop_oneof![3 => 0..10_u64, 1 => 0..200_u64];
    let counts = (many(), many(), 0..10_u64);
    let ticks = prop_oneof![2 => 1..4_u32, 1 => 1..100_u32];
    let costs = (500_000..2_000_000_u64, 500_000..2_000_000_u64, option::of(0..20_000_000_u64));
    (
        (reading(), reading(), load(), load()),
        ([many(), many(), many(), many()], [0..=100_u64, 0..=100, 0..=100, 0..=100], 0..=100_u64),
        (counts, costs, prop::bool::weighted(0.1), 1..30_u64, ticks),
    )
        .prop_map(|(signals, (offered, over, share), (counts, costs, dark, millis, ticks))| {
            let (reading, beyond_cpu, load, load_least) = signals;
            let ((done, inflight, degraded), (estimate, worked, used)) = (counts, costs);
            let degraded = degraded.min(done);
            let cost = |requests: u64| Cost::from_nanos(requests * estimate);
            let true_cost = |requests: u64| Cost::from_nanos(requests * worked);
            let facts = Facts {
                reading,
                beyond_cpu,
                load,
                load_least,
                used: used.map(Cost::from_nanos),
                offered: offered.map(cost),
                over: core::array::from_fn(|level| cost(offered[level] * over[level] / 100)),
                admitted: cost(offered.iter().sum::<u64>() * share / 100),
                done,
                completed: cost(done),
                worked: true_cost(done),
                degraded: Done {
                    requests: degraded,
                    estimated: cost(degraded),
                    worked: true_cost(degraded),
                },
                inflight: cost(inflight),
                dark,
            };
            (facts, Duration::from_millis(millis), ticks)
        })
}

/// Facts that contradict each other.
fn anything() -> impl Strategy<Value = (Facts, Duration, u32)> {
    let cost =
        || prop_oneof![any::<u64>(), Just(u64::MAX), 0..1_000_u64].prop_map(Cost::from_nanos);
    let costs = || [cost(), cost(), cost(), cost()];
    (
        (reading(), reading(), option::of(number()), option::of(number()), option::of(cost())),
        (costs(), costs(), costs(), [cost(), cost(), cost()]),
        (any::<u64>(), any::<u64>(), any::<bool>(), any::<u64>()),
    )
        .prop_map(|(signals, costs, (done, degraded, dark, nanos))| {
            let (reading, beyond_cpu, load, load_least, used) = signals;
            let (offered, over, [admitted, completed, worked, inflight], [a, b, _]) = costs;
            let degraded = Done { requests: degraded, estimated: a, worked: b };
            let facts = Facts {
                reading,
                beyond_cpu,
                load,
                load_least,
                used,
                offered,
                over,
                admitted,
                done,
                completed,
                worked,
                degraded,
                inflight,
                dark,
            };
            (facts, Duration::from_nanos(nanos), 1)
        })
}

/// Limits by rank: who is over before who is not, level by level.
fn ranks(plan: &Plan) -> [Cost; 2 * LEVELS] {
    core::array::from_fn(|rank| [plan.limit_over, plan.limit][rank % 2][rank / 2])
}

fn check(plan: &Plan) -> Result<(), TestCaseError> {
    let shares = Criticality::ALL.map(|criticality| plan.levels.share(criticality));
    let in_order = shares.windows(2).all(|two| two[1] == 1.0 || two[0] == 0.0);
    prop_assert!(in_order, "{shares:?}");
    let ranks = ranks(plan);
    prop_assert!(ranks.is_sorted(), "{ranks:?}");
    prop_assert!(ranks[0] > Cost::ZERO, "an idle task lets one in: {ranks:?}");
    prop_assert!(plan.capacity.is_finite() && plan.capacity >= 0.0, "{}", plan.capacity);
    prop_assert!(plan.offered.is_finite() && plan.offered >= 0.0, "{}", plan.offered);
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// At most one level is let in by a share, all above it whole and none below; limits rise with
    /// criticality, and those of customers who are over stand between two levels.
    #[test]
    fn plans_keep_the_order_of_ranks(
        config in config(),
        steps in vec(prop_oneof![12 => likely(), 1 => anything()], 1..20),
    ) {
        let mut now = Timestamp::ZERO;
        let mut shedder = Shedder::new(config, now);
        for (facts, elapsed, ticks) in &steps {
            for _ in 0..*ticks {
                now += *elapsed;
                check(&shedder.tick(facts, now))?;
            }
        }
    }

    /// The same where a task is as it should be: without this, what shrinks a case of the other
    /// begins with nonsense.
    #[test]
    fn plans_of_likely_facts_keep_the_order_of_ranks(
        cpus in 0.05..8.0_f64,
        steps in vec(likely(), 1..20),
    ) {
        let mut now = Timestamp::ZERO;
        let mut shedder = Shedder::new(ShedConfig::default().cpus(cpus).unwrap(), now);
        for (facts, elapsed, ticks) in &steps {
            for _ in 0..*ticks {
                now += *elapsed;
                check(&shedder.tick(facts, now))?;
            }
        }
    }
}
