//! What the tests of admission generate: everything that a shell may set and see.

use proptest::option;
use proptest::prelude::*;
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::decision::SignalId;
use tidegate_core::signal::Reading;
use tidegate_core::{Criticality, Ratio, Utilization};

pub(crate) const LEVELS: usize = Criticality::COUNT;

pub(crate) fn number() -> impl Strategy<Value = f64> {
    prop_oneof![
        6 => 0.0..3.0_f64,
        2 => 0.0..100.0_f64,
        1 => Just(0.0),
        1 => Just(1e-300),
        1 => Just(f64::MAX),
    ]
}

fn rising() -> impl Strategy<Value = [f64; LEVELS]> {
    [0.01..0.5_f64, 0.0..0.5, 0.0..0.5, 0.0..0.5].prop_map(|steps| {
        let mut sum = 0.0;
        steps.map(|step| {
            sum += step;
            sum
        })
    })
}

fn span() -> impl Strategy<Value = Duration> {
    prop_oneof![
        8 => (1..2_000_u64).prop_map(Duration::from_millis),
        1 => Just(Duration::MAX),
    ]
}

/// Every field of it; often some that are as they come.
pub(crate) fn config() -> impl Strategy<Value = ShedConfig> {
    let positive = || prop_oneof![8 => 0.01..20.0_f64, 1 => Just(1e-9), 1 => Just(1e9)];
    let share = || (1..=100_u32).prop_map(Ratio::percent);
    let thresholds = (rising(), rising());
    let numbers = (option::weighted(0.8, positive()), positive(), positive());
    let spans = [span(), span(), span(), span(), span()];
    (thresholds, numbers, share(), share(), spans, any::<[bool; 5]>()).prop_map(
        |((degrade, above), (cpus, per_task, per_cpu), slack, floor, spans, set)| {
            let mut config = ShedConfig::default();
            if let Some(cpus) = cpus {
                config = config.cpus(cpus).unwrap();
            }
            if set[0] {
                let thresholds = core::array::from_fn(|level| degrade[level] + above[level]);
                // From below everything, so that each is above the other at every step.
                config = config.degrade_from([1e-9; LEVELS]).unwrap();
                config = config.thresholds(thresholds).unwrap().degrade_from(degrade).unwrap();
            }
            if set[1] {
                config = config.queue_per_task(per_task).unwrap().queue_per_cpu(per_cpu).unwrap();
            }
            if set[2] {
                config = config.slack(slack).unwrap().floor(floor).unwrap();
            }
            if set[3] {
                config = config.offered_tau(spans[0]).unwrap();
                config = config.offered_tau_lately(spans[1]).unwrap();
            }
            if set[4] {
                config = config.capacity_tau(spans[2]).unwrap();
                config = config.bias_tau(spans[3]).unwrap().horizon(spans[4]).unwrap();
            }
            config
        },
    )
}

pub(crate) fn reading() -> impl Strategy<Value = Reading> {
    (number(), number(), any::<u8>()).prop_map(|(utilization, instant, signal)| {
        let [utilization, instant] =
            [utilization, instant].map(|value| Utilization::new(value).unwrap());
        Reading { utilization, instant, signal: SignalId(signal) }
    })
}
