//! The admission controller against machines of many kinds: it holds utilization at its target
//! under any excess, neither swings nor starves, and sheds in the order of criticality.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use std::time::Duration;
use tidegate_core::Criticality;
use tidegate_core::rng::SeededRng;
use tidegate_sim::story::{Outcome, Phase, Spread, Story};
use tidegate_sim::task::{Task, TaskConfig};

const MIX: [f64; 4] = [0.2, 0.3, 0.4, 0.1];

fn story(work: Duration, spread: Spread, cores: u32, loads: &[f64]) -> Story {
    let phases = loads.iter().map(|&load| Phase { name: "", load, lasts: Duration::from_secs(10) });
    Story {
        seed: 1,
        task: TaskConfig { cores, ..TaskConfig::default() },
        work,
        spread,
        mix: MIX,
        patience: Duration::from_secs(1).max(40 * work),
        phases: phases.collect(),
    }
}

fn machines() -> impl Iterator<Item = (Duration, Spread, u32)> {
    [
        (5_000, Spread::Constant, 1),
        (5_000, Spread::Exponential, 1),
        (5_000, Spread::Bimodal, 1),
        (1_000, Spread::Exponential, 1),
        (500, Spread::Constant, 1),
        (5_000, Spread::Exponential, 8),
        (50_000, Spread::Exponential, 4),
    ]
    .into_iter()
    .map(|(micros, spread, cores)| (Duration::from_micros(micros), spread, cores))
}

#[test]
fn utilization_is_held_and_work_gets_done_under_any_excess() {
    for (work, spread, cores) in machines() {
        for load in [1.5, 2.0, 10.0, 30.0] {
            let mut story = story(work, spread, cores, &[0.7, load]);
            story.task.reject_cost = Duration::ZERO;
            let outcome = story.run().unwrap().remove(1);
            let what = format!("{work:?} {spread:?} on {cores} cores at {load}x");
            assert!(outcome.goodput >= 0.9, "{what}: goodput {}", outcome.goodput);
            let mean = outcome.utilization.1;
            assert!((0.75..1.45).contains(&mean), "{what}: utilization {mean}");
            // Neither swings nor starves: after the first second, no second goes by with less than
            // two thirds of the work done.
            let settled = &outcome.curve[10..];
            let seconds = settled.chunks_exact(10).map(|s| s.iter().sum::<f64>() / 10.0);
            let worst = seconds.fold(f64::MAX, f64::min);
            assert!(worst > 0.67, "{what}: second {worst}");
        }
    }
}

#[test]
fn success_falls_in_the_order_of_criticality() {
    for (work, spread, cores) in machines() {
        for outcome in story(work, spread, cores, &[2.0, 5.0, 10.0]).run().unwrap() {
            let success = Criticality::ALL.map(|c| outcome.success(c));
            // The first moments of a surge are served as they come.
            let sorted = success.windows(2).all(|w| w[0] <= w[1] + 0.02);
            assert!(sorted, "{work:?} {spread:?} {cores}: {success:?}");
        }
    }
}

#[test]
fn a_criticality_whose_demand_fits_loses_next_to_nothing() {
    // 5x: CRITICAL_PLUS asks for half of what can be done.
    for (work, spread, cores) in machines() {
        let outcome = story(work, spread, cores, &[0.7, 5.0]).run().unwrap().remove(1);
        let success = outcome.success(Criticality::CriticalPlus);
        assert!(success > 0.99, "{work:?} {spread:?} {cores}: {success}");
    }
}

#[test]
fn without_protection_the_same_surge_is_a_collapse() {
    let mut bare = story(Duration::from_millis(5), Spread::Constant, 1, &[0.7, 2.0, 0.7]);
    bare.task.shed = None;
    let [calm, surge, after]: [Outcome; 3] = bare.run().unwrap().try_into().unwrap();
    assert!(calm.goodput > 0.65);
    assert!(surge.goodput < 0.25, "{}", surge.goodput);
    assert!(after.goodput < 0.4, "{}", after.goodput);
}

#[test]
fn calm_returns_within_two_seconds_of_the_surge() {
    for (work, spread, cores) in machines() {
        let outcome = story(work, spread, cores, &[0.7, 10.0, 0.7]).run().unwrap().remove(2);
        let after = outcome.curve[20..].iter().sum::<f64>() / 80.0;
        assert!((0.6..0.8).contains(&after), "{work:?} {spread:?} {cores}: {after}");
    }
}

#[test]
fn calm_traffic_is_next_to_never_refused() {
    let (mut refused, mut offered) = (0, 0);
    for seed in 0..10 {
        let mut story = story(Duration::from_millis(5), Spread::Constant, 1, &[0.7, 0.7, 0.7]);
        story.seed = seed;
        for outcome in story.run().unwrap() {
            refused += outcome.refused;
            offered += outcome.offered.iter().sum::<u64>();
        }
    }
    assert!(refused * 1_000 <= offered, "{refused} of {offered}");
}

/// A story's every tick, as text. A change of any decision shows here; run with
/// `UPDATE_GOLDEN=1` to accept it.
#[test]
fn golden_trace_of_a_surge() {
    let story = story(Duration::from_millis(5), Spread::Exponential, 2, &[0.7, 4.0, 0.7]);
    let trace = trace(&story);
    assert_eq!(trace, self::trace(&story), "the same seed, another run");
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
    use tidegate_core::admission::Request;
    use tidegate_core::rng::Rng;
    use tidegate_core::{Cost, Timestamp};

    let mut text = format!("seed {}\n", story.seed);
    let mut rng = SeededRng::new(story.seed);
    let mut task = Task::new(story.task.clone()).unwrap();
    let cost = Cost::from_nanos(story.work.as_nanos() as u64);
    let mut next = Timestamp::ZERO;
    for (i, phase) in story.phases.iter().enumerate() {
        // A second of each phase is enough to see it, and arrivals at a steady beat keep the file
        // the same on every platform.
        let ends = Timestamp::from_secs(i as u64 + 1);
        let beat = Duration::from_secs_f64(1.0 / (story.capacity() * phase.load));
        while next.min(task.next_event()) < ends {
            let now = next.min(task.next_event());
            if task.next_event() <= now {
                if let (_, Some(plan)) = task.advance(now) {
                    let shares = Criticality::ALL.map(|c| plan.levels.share(c));
                    let u = (plan.reading.utilization, plan.reading.instant);
                    let ms = now.as_nanos() / 1_000_000;
                    writeln!(text, "{ms} {} {} {:.3} {shares:.3?}", u.0, u.1, plan.capacity)
                        .unwrap();
                }
            } else {
                let criticality = Criticality::ALL[rng.below(4) as usize];
                let work = story.work.mul_f64(0.5 + rng.unit());
                let _ = task.offer(&Request::new(criticality, cost), work, now, &mut rng);
                next = now + beat;
            }
        }
    }
    text
}
