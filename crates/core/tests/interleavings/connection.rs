//! Connections that come and go at once.

use crate::{explore, join};
use Criticality::{CriticalPlus, Sheddable};
use std::sync::Arc;
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimit, ConnectionLimits};
use tidegate_core::{Criticality, Ratio, Timestamp};

/// The lowest criticality may use half of `open_max` and of `burst`, the others all of it.
fn gate(open_max: u64, burst: u32) -> Arc<ConnectionGate> {
    let mut limits = ConnectionLimits::default();
    limits.open_max = open_max;
    limits.burst = burst;
    limits.accepts_per_second = 1;
    limits.room = [50, 100, 100, 100].map(Ratio::percent);
    limits.unknown = CriticalPlus;
    Arc::new(ConnectionGate::new(limits).expect("room that rises"))
}

fn in_thread<T: 'static>(
    gate: &Arc<ConnectionGate>,
    body: impl FnOnce(&ConnectionGate) -> T + 'static,
) -> loom::thread::JoinHandle<T> {
    let gate = Arc::clone(gate);
    loom::thread::spawn(move || body(&gate))
}

#[test]
fn the_last_place_is_taken_once() {
    explore(|| {
        let gate = gate(2, 8);
        let other = in_thread(&gate, |gate| gate.accept(Some(Sheddable), Timestamp::ZERO).is_ok());
        let mine = gate.accept(Some(Sheddable), Timestamp::ZERO).is_ok();
        assert!(gate.open() <= 1);
        let other = join(other);
        assert!(mine != other, "both or none were taken");
        assert_eq!(gate.open(), 1);
        // The place that is kept free for others is still there.
        assert!(gate.accept(None, Timestamp::ZERO).is_ok());
        assert!(gate.accept(None, Timestamp::ZERO).is_err());
    });
}

#[test]
fn the_last_token_is_taken_once() {
    explore(|| {
        let gate = gate(8, 1);
        let other = in_thread(&gate, |gate| gate.accept(None, Timestamp::ZERO));
        let mine = gate.accept(None, Timestamp::ZERO);
        let results = [mine, join(other)];
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let refused = results.into_iter().find_map(Result::err).expect("one was refused");
        assert_eq!(refused.limit, ConnectionLimit::AcceptRate);
        assert_eq!(gate.open(), 1);
    });
}

/// A place is free again once it is released, never earlier, and a release too many does no harm.
#[test]
fn places_come_back_when_they_are_released() {
    explore(|| {
        let gate = gate(1, 8);
        let other = in_thread(&gate, |gate| {
            if gate.accept(None, Timestamp::ZERO).is_ok() {
                assert_eq!(gate.open(), 1, "it is mine");
                gate.release();
            }
        });
        let mine = gate.accept(None, Timestamp::ZERO).is_ok();
        assert!(gate.open() <= 1);
        join(other);
        assert_eq!(gate.open(), u64::from(mine));
        if mine {
            gate.release();
        }
        gate.release();
        assert_eq!(gate.open(), 0);
        assert!(gate.accept(None, Timestamp::ZERO).is_ok());
    });
}

/// Two strangers turn out to be of the lowest class, which has one place: at most one stays.
#[test]
fn who_was_overrated_does_not_stay_in_the_room_of_others() {
    explore(|| {
        fn stays(gate: &ConnectionGate) -> bool {
            let taken = gate.accept(None, Timestamp::ZERO).is_ok();
            assert!(taken, "there are two places");
            let stays = gate.confirm(Sheddable).is_ok();
            if !stays {
                gate.release();
            }
            stays
        }
        let gate = gate(2, 8);
        let other = in_thread(&gate, stays);
        let staying = u64::from(stays(&gate)) + u64::from(join(other));
        assert!(staying <= 1);
        assert_eq!(gate.open(), staying);
    });
}
