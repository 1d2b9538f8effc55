//! Picks that overlap a change of the set.

use crate::{explore, join};
use loom::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_core::balance::{BackendId, Join, RoundRobin};

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
