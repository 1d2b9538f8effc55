//! The admission controller against machines of many kinds: it holds utilization at its target
//! under any excess, neither swings nor starves, and sheds in the order of criticality.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Story, least, mean};
use std::fmt::Write as _;
use std::time::Duration;
use tidegate_core::Criticality;
use tidegate_sim::world::spec::{Arrivals, WorkSpec};

/// What refusing costs where it costs something.
const REJECT_COST: Duration = Duration::from_micros(20);

/// A machine and what is asked of it, 10 s for each load.
fn story(work: WorkSpec, cores: u32, loads: &[f64]) -> Story {
    let patience = Duration::from_secs_f64((40.0 * work.mean()).max(1.0));
    let loads = loads.to_vec();
    Story { work, cores, patience, loads, reject_cost: REJECT_COST, ..Story::default() }
}

fn machines() -> [(WorkSpec, u32); 7] {
    let us = Duration::from_micros;
    [
        (WorkSpec::Constant(us(5_000)), 1),
        (WorkSpec::Exponential(us(5_000)), 1),
        // Nine in ten take half the mean, the tenth five and a half times the mean.
        (WorkSpec::Rare { usual: us(2_500), rare: us(27_500), share: 0.1 }, 1),
        (WorkSpec::Exponential(us(1_000)), 1),
        (WorkSpec::Constant(us(500)), 1),
        (WorkSpec::Exponential(us(5_000)), 8),
        (WorkSpec::Exponential(us(50_000)), 4),
    ]
}

#[test]
fn utilization_is_held_and_work_gets_done_under_any_excess() {
    for (work, cores) in machines() {
        for load in [1.5, 2.0, 10.0, 30.0] {
            let story = Story { reject_cost: Duration::ZERO, ..story(work, cores, &[0.7, load]) };
            let told = story.run();
            let what = format!("{work:?} on {cores} cores at {load}x");
            assert!(told.goodput(1) >= 0.9, "{what}: goodput {}", told.goodput(1));
            let seen: Vec<f64> =
                told.looks(1, 1).map(|look| look.plan.reading.instant.get()).collect();
            assert!((0.75..1.45).contains(&mean(&seen)), "{what}: utilization {}", mean(&seen));
            // Neither swings nor starves: after the first second, no second goes by with less than
            // two thirds of the work done.
            let worst = least(&told.seconds(1)[1..]);
            assert!(worst > 0.67, "{what}: second {worst}");
        }
    }
}

#[test]
fn success_falls_in_the_order_of_criticality() {
    for (work, cores) in machines() {
        let told = story(work, cores, &[2.0, 5.0, 10.0]).run();
        for phase in 0..3 {
            let success = Criticality::ALL.map(|c| told.success(phase, c));
            // The first moments of a surge are served as they come.
            let sorted = success.windows(2).all(|w| w[0] <= w[1] + 0.02);
            assert!(sorted, "{work:?} on {cores} cores: {success:?}");
        }
    }
}

#[test]
fn a_criticality_whose_demand_fits_loses_next_to_nothing() {
    // 5x: CRITICAL_PLUS asks for half of what can be done.
    for (work, cores) in machines() {
        let told = story(work, cores, &[0.7, 5.0]).run();
        let success = told.success(1, Criticality::CriticalPlus);
        assert!(success > 0.99, "{work:?} on {cores} cores: {success}");
    }
}

#[test]
fn without_protection_the_same_surge_is_a_collapse() {
    let work = WorkSpec::Constant(Duration::from_millis(5));
    let bare = Story { admission: None, ..story(work, 1, &[0.7, 2.0, 0.7]) }.run();
    let [calm, surge, after] = [0, 1, 2].map(|phase| bare.goodput(phase));
    assert!(calm > 0.65, "{calm}");
    assert!(surge < 0.25, "{surge}");
    assert!(after < 0.4, "{after}");
}

#[test]
fn calm_returns_within_two_seconds_of_the_surge() {
    for (work, cores) in machines() {
        let told = story(work, cores, &[0.7, 10.0, 0.7]).run();
        let after = mean(&told.seconds(2)[2..]);
        assert!((0.6..0.8).contains(&after), "{work:?} on {cores} cores: {after}");
    }
}

#[test]
fn calm_traffic_is_next_to_never_refused() {
    let (mut refused, mut offered) = (0, 0);
    for seed in 0..10 {
        let work = WorkSpec::Constant(Duration::from_millis(5));
        let told = Story { seed, ..story(work, 1, &[0.7, 0.7, 0.7]) }.run();
        for phase in 0..3 {
            refused += told.refused(phase).count();
            offered += told.offered(phase).iter().sum::<u32>() as usize;
        }
    }
    assert!(refused * 1_000 <= offered, "{refused} of {offered}");
}

#[test]
fn a_phase_without_load_is_a_pause() {
    let work = WorkSpec::Constant(Duration::from_millis(5));
    let told = Story { secs: 2, ..story(work, 1, &[0.5, 0.0, 0.5]) }.run();
    assert_eq!(told.offered(1), [0; 4]);
    assert!(told.goodput(2) > 0.4);
}

/// A story's every look, as text. A change of any decision shows here; run with
/// `UPDATE_GOLDEN=1` to accept it.
#[test]
fn golden_trace_of_a_surge() {
    // A second of each phase is enough to see it.
    let work = WorkSpec::Exponential(Duration::from_millis(5));
    let story = story(work, 2, &[0.7, 4.0, 0.7]);
    let trace = trace(&Story { secs: 1, arrivals: Arrivals::Even, ..story.clone() });
    let again = self::trace(&Story { secs: 1, arrivals: Arrivals::Even, ..story });
    assert_eq!(trace, again, "the same seed, another run");
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/surge.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &trace).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (number, (found, expected)) in trace.lines().zip(golden.lines()).enumerate() {
        assert_eq!(found, expected, "line {} of {path}", number + 1);
    }
    assert_eq!(trace.lines().count(), golden.lines().count());
}

fn trace(story: &Story) -> String {
    let mut text = format!("seed {}\n", story.seed);
    let told = story.run();
    for look in (0..story.loads.len()).flat_map(|phase| told.looks(phase, 0)) {
        let plan = &look.plan;
        let shares = Criticality::ALL.map(|c| plan.levels.share(c));
        let (smoothed, instant) = (plan.reading.utilization, plan.reading.instant);
        let ms = look.at.as_nanos() / 1_000_000;
        writeln!(text, "{ms} {smoothed} {instant} {:.3} {shares:.3?}", plan.capacity).unwrap();
    }
    text
}
