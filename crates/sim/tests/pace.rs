//! When a task looks: seldom while nothing happens, every tick while something does, and at once
//! when work comes to a task that rests.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Story, Told};
use std::time::Duration;
use tidegate_core::Timestamp;
use tidegate_sim::world::spec::{Arrivals, WorkSpec};

const TICK: Duration = Duration::from_millis(10);
const CALM: Duration = Duration::from_millis(50);

/// Requests of 0.2 ms at even intervals, for three seconds at each load.
fn story(seed: u64, loads: &[f64]) -> Story {
    Story {
        seed,
        work: WorkSpec::Constant(Duration::from_micros(200)),
        arrivals: Arrivals::Even,
        loads: loads.to_vec(),
        secs: 3,
        ..Story::default()
    }
}

/// How many times it looks in the last second of a phase: degraded answers are asked for until a
/// second after a surge, and it looks often while they are.
fn looks_per_second(told: &Told, phase: usize) -> usize {
    told.looks(phase, 2).count()
}

#[test]
fn a_task_looks_as_often_as_there_is_something_to_see() {
    // Below a tenth of a CPU, a quarter of a tick's work takes a calm rest or more to come.
    for (load, least, most) in [(0.0, 20, 20), (0.04, 20, 20), (0.09, 20, 40), (0.11, 99, 101)] {
        let told = story(1, &[f64::max(load, 0.01), load, 2.0, load]).run();
        for phase in [1, 3] {
            let looks = looks_per_second(&told, phase);
            assert!((least..=most).contains(&looks), "{looks} looks at {load}, phase {phase}");
        }
        assert!((99..=101).contains(&looks_per_second(&told, 2)), "at {load}");
    }
}

/// Five times what it can do come to a task that rests: 2.5 ms of work in half a millisecond. What
/// comes between two looks is let in by a plan that knows nothing of it.
#[test]
fn a_surge_is_seen_a_tick_after_the_last_look_or_at_once() {
    for seed in 0..20 {
        let told = story(seed, &[0.01, 5.0]).run();
        let surge = Timestamp::from_secs(3);
        let asked = told.log.attempts.iter().map(|attempt| attempt.asked);
        let first = asked.filter(|&at| at >= surge).min().unwrap();
        let looks: Vec<Timestamp> = told.log.looks.iter().map(|look| look.at).collect();
        let next = looks.iter().position(|&at| at >= first).unwrap();
        let (before, next) = (looks[next - 1], looks[next]);
        let soonest = (before + TICK).max(first);
        let late = next.since(soonest);
        assert!(late <= Duration::from_millis(3), "seed {seed}: {late:?} late");
        assert!(next.since(before) >= TICK, "seed {seed}");
    }
}

#[test]
fn no_look_is_later_than_a_calm_rest_or_sooner_than_a_tick() {
    for loads in [[0.0, 0.05, 0.3], [0.02, 10.0, 0.0], [0.08, 0.12, 0.08]] {
        let told = story(2, &loads).run();
        for pair in told.log.looks.windows(2) {
            let rest = pair[1].at.since(pair[0].at);
            assert!((TICK..=CALM).contains(&rest), "{rest:?} at {:?}", pair[0].at);
        }
    }
}
