//! Picks that overlap a change of the set.

use crate::{explore, join};
use core::time::Duration;
use loom::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tidegate_core::balance::{
    BackendId, Join, LeastLoaded, LeastLoadedConfig, PickReason, Prequal, PrequalConfig,
    ProbeState, RoundRobin,
};
use tidegate_core::rng::SeededRng;
use tidegate_core::{Outcome, Timestamp};

/// Round robin over the backends of these numbers.
fn round_robin(ids: &[u32]) -> RoundRobin {
    let mut policy = RoundRobin::new(2);
    for &id in ids {
        assert!(policy.add(BackendId(id), Join::Warm, Timestamp::ZERO));
    }
    policy
}

/// Nobody is picked before the first table is whole.
#[test]
fn a_first_pick_is_of_the_first_table() {
    explore(|| {
        let mut policy = round_robin(&[]);
        let gate = policy.gate();
        let picker = loom::thread::spawn(move || gate.pick().map(|pick| pick.backend.0));
        policy.add(BackendId(7), Join::Warm, Timestamp::ZERO);
        let picked = join(picker);
        assert!([None, Some(7)].contains(&picked), "{picked:?}");
    });
}

/// While one set follows the other, every pick is of one that is or was, and there always is one.
#[test]
fn there_is_always_someone_to_pick() {
    explore(|| {
        let mut policy = round_robin(&[5, 6]);
        let gate = policy.gate();
        let picker = loom::thread::spawn(move || {
            for _ in 0..2 {
                let pick = gate.pick().expect("the set is never empty");
                assert!((5..=7).contains(&pick.backend.0), "{pick:?}");
            }
        });
        policy.remove(BackendId(5));
        policy.add(BackendId(7), Join::Warm, Timestamp::ZERO);
        join(picker);
    });
}

/// Who has been told that a backend is gone does not pick it.
#[test]
fn nobody_picks_a_backend_that_it_knows_to_be_gone() {
    explore(|| {
        let mut policy = round_robin(&[5, 6]);
        let gate = policy.gate();
        let gone = Arc::new(AtomicBool::new(false));
        let picker = {
            let gone = Arc::clone(&gone);
            loom::thread::spawn(move || {
                let told = gone.load(Ordering::Acquire);
                let picks = [gate.pick(), gate.pick()];
                picks.map(|pick| {
                    let id = pick.expect("the set is never empty").backend.0;
                    assert!(id == 6 || (id == 5 && !told), "{id}");
                })
            })
        };
        policy.remove(BackendId(5));
        gone.store(true, Ordering::Release);
        join(picker);
    });
}

fn least_loaded(ids: &[u32]) -> LeastLoaded {
    let mut config = LeastLoadedConfig::default();
    config.backends_max = 2;
    let mut policy = LeastLoaded::new(config);
    for &id in ids {
        assert!(policy.add(BackendId(id), Join::Warm, Timestamp::ZERO));
    }
    policy
}

/// What starts and ends on two threads adds up, errors included, also while the controller takes
/// the errors away again.
#[test]
fn loads_of_all_threads_add_up() {
    explore(|| {
        let mut policy = least_loaded(&[0, 1]);
        let lanes = policy.lanes();
        let threads = [Outcome::Failed, Outcome::Served].map(|outcome| {
            let mut lane = lanes.lane(0);
            loom::thread::spawn(move || {
                lane.on_start(BackendId(0));
                lane.on_complete(BackendId(0), outcome);
                lane.on_start(BackendId(0));
            })
        });
        policy.on_deadline(Timestamp::from_secs(1));
        policy.on_deadline(Timestamp::from_secs(10));
        for thread in threads {
            join(thread);
        }
        assert_eq!(policy.active(BackendId(0)), 2);
        assert!(policy.recent_errors(BackendId(0)) <= 1);
        policy.on_deadline(Timestamp::from_secs(20));
        policy.on_deadline(Timestamp::from_secs(30));
        assert_eq!(policy.recent_errors(BackendId(0)), 0);
    });
}

/// Who has been told that a backend is a lame duck does not pick it, however idle it is.
#[test]
fn the_least_loaded_that_is_known_to_be_gone_is_not_picked() {
    explore(|| {
        let mut policy = least_loaded(&[0, 1]);
        let mut lane = policy.lanes().lane(0);
        lane.on_start(BackendId(1));
        let gone = Arc::new(AtomicBool::new(false));
        let picker = {
            let gone = Arc::clone(&gone);
            loom::thread::spawn(move || {
                let told = gone.load(Ordering::Acquire);
                let id = lane.pick(&mut SeededRng::new(1)).expect("one always serves").backend.0;
                assert!(id == 1 || (id == 0 && !told), "{id}");
            })
        };
        policy.lame_duck(BackendId(0));
        gone.store(true, Ordering::Release);
        join(picker);
    });
}

/// A thread that has been told of a restart does not pick by an answer of the task before.
#[test]
fn answers_end_with_the_task_they_were_of() {
    explore(|| {
        let mut config = PrequalConfig::default();
        config.backends_max = 2;
        let mut policy = Prequal::new(config).unwrap();
        let now = Timestamp::from_secs(1);
        for id in 0..2 {
            policy.add(BackendId(id), Join::Warm, now);
        }
        let mut lane = policy.lanes().lane(0);
        for id in 0..2 {
            assert!(lane.on_probe(BackendId(id), 0, Duration::from_millis(1), now));
        }
        let told = Arc::new(AtomicBool::new(false));
        let picker = {
            let told = Arc::clone(&told);
            loom::thread::spawn(move || {
                let told = told.load(Ordering::Acquire);
                let pick = lane.pick(now, &mut SeededRng::new(1)).expect("both serve");
                assert!(!told || pick.reason == PickReason::TooFewProbes, "{pick:?}");
            })
        };
        policy.add(BackendId(0), Join::Cold, now);
        told.store(true, Ordering::Release);
        join(picker);
    });
}

/// The number in flight is that of all threads, and an answer is a latency that was seen.
#[test]
fn probes_see_requests_of_all_threads() {
    explore(|| {
        let state = Arc::new(ProbeState::default());
        let now = Timestamp::from_secs(1);
        let threads = [1, 2].map(|millis| {
            let state = Arc::clone(&state);
            loom::thread::spawn(move || {
                let arrival = state.on_arrival();
                state.on_finish(arrival, Duration::from_millis(millis), now);
            })
        });
        let answer = state.answer(now);
        assert!(answer.rif <= 2);
        let seen = [0, 1, 2].map(Duration::from_millis);
        assert!(seen.contains(&answer.latency), "{answer:?}");
        for thread in threads {
            join(thread);
        }
        let answer = state.answer(now);
        assert_eq!(answer.rif, 0);
        assert!(seen[1..].contains(&answer.latency), "{answer:?}");
    });
}
