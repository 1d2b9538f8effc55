//! The controller, an operator and requests at one admission gate.
//!
//! Whoever writes what it has read before does so on the first thread: of two threads that read the
//! same word loom remembers the later, and would not go back to what the other could have read.

use crate::{explore, join};
use Criticality::{CriticalPlus, Sheddable};
use std::sync::Arc;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{Cause, Reason, SignalId, Thousandths};
use tidegate_core::levels::Levels;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::Rng;
use tidegate_core::signal::Reading;
use tidegate_core::{Cost, Criticality, Timestamp, Utilization};

const NOW: Timestamp = Timestamp::from_secs(1);
const SIGNAL: SignalId = SignalId(3);

/// Dice that let in only what gets in whole.
struct Unlucky;

impl Rng for Unlucky {
    fn next_u64(&mut self) -> u64 {
        u64::MAX
    }
}

fn gate() -> Arc<AdmissionGate> {
    let mut quota = QuotaConfig::default();
    quota.customers_max = 1;
    AdmissionGate::new(quota)
}

fn controller(gate: &AdmissionGate) -> Controller {
    Controller::new(ShedConfig::default(), AttemptsConfig::default(), gate, Timestamp::ZERO)
}

/// Far over every threshold.
fn overloaded() -> Reading {
    let nine = Utilization::new(9.0).expect("a utilization");
    Reading { signal: SIGNAL, utilization: nine, instant: nine }
}

fn admit(lane: &mut Lane, criticality: Criticality) -> Decision {
    lane.admit(&Request::new(criticality, Cost::from_millis(1)), NOW, &mut Unlucky)
}

fn permit(decision: Decision) -> Permit {
    match decision {
        Decision::Admit(permit) => permit,
        Decision::Reject(refusal) => panic!("{refusal}"),
    }
}

/// An operator switches while the controller publishes: each writes its own bits of one word.
#[test]
fn no_switch_is_lost_to_a_tick() {
    explore(|| {
        let gate = gate();
        let mut lane = gate.lane();
        let operator = {
            let gate = Arc::clone(&gate);
            loom::thread::spawn(move || {
                gate.set_dark(true);
                gate.set_lame_duck(true);
            })
        };
        controller(&gate).tick(&gate, overloaded(), NOW);
        join(operator);
        let Decision::Reject(refusal) = admit(&mut lane, Sheddable) else {
            panic!("admitted in lame duck");
        };
        assert_eq!(refusal.reason(), Reason::LameDuck);
        gate.set_lame_duck(false);
        gate.set_levels(Levels::CLOSED);
        let permit = permit(admit(&mut lane, Sheddable));
        assert_eq!(permit.would_reject(), Some(Reason::Overloaded), "dark mode was lost");
        assert!(permit.degrade(), "what the controller said was lost");
    });
}

/// Two threads fill up to the limit of one plan: as much gets in as there is room for, whoever
/// comes first, and nobody is refused while there is some.
#[test]
fn threads_share_the_room_of_a_plan() {
    explore(|| {
        let (_gate, [mut here, mut there], _, each) = room_for_two();
        let other = loom::thread::spawn(move || offer(&mut there, each) + offer(&mut there, each));
        let admitted = offer(&mut here, each) + offer(&mut here, each);
        assert_eq!(admitted + join(other), 2);
    });
}

/// One thread gives room back while the other takes it: what is in flight never exceeds the limit
/// by more than the request that fills it, and what was given back can be had afterwards.
#[test]
fn room_that_is_given_back_is_taken_once() {
    explore(|| {
        let (gate, [mut here, mut there], _, each) = room_for_two();
        let request = Request::new(Sheddable, each);
        let permits = [(); 2].map(|()| permit(here.admit(&request, NOW, &mut Unlucky)));
        let other = loom::thread::spawn(move || {
            let got = offer(&mut there, each);
            (got, there)
        });
        for permit in permits {
            here.complete(permit, each, NOW);
        }
        let (got, mut there) = join(other);
        // One request's room may stay with the thread that gave it back.
        let later = (0..4).map(|_| offer(&mut there, each)).sum::<usize>();
        assert!((1..=2).contains(&(got + later)), "{got} and {later}");
        let rest = offer(&mut here, each) + offer(&mut here, each);
        assert_eq!(got + later + rest, 2);
        assert_eq!(gate.counts().inflight(), 2);
    });
}

/// A gate with a plan that has room for two requests of the cost that is returned.
fn room_for_two() -> (Arc<AdmissionGate>, [Lane; 2], Controller, Cost) {
    let gate = gate();
    let shed = ShedConfig::default().cpus(1.0).expect("a CPU");
    let mut controller = Controller::new(shed, AttemptsConfig::default(), &gate, Timestamp::ZERO);
    let mut lanes = [gate.lane(), gate.lane()];
    let first = permit(admit(&mut lanes[0], Sheddable));
    lanes[0].complete(first, Cost::from_millis(1), NOW);
    let plan = controller.tick(&gate, Seen::new(Reading::IDLE).load(0.0), NOW);
    let limit = plan.limit[Sheddable.index()];
    assert!(Cost::ZERO < limit && limit < Cost::MAX, "{limit:?}");
    (gate, lanes, controller, Cost::from_nanos(limit.as_nanos() / 2 + 1))
}

fn offer(lane: &mut Lane, cost: Cost) -> usize {
    let decision = lane.admit(&Request::new(Sheddable, cost), NOW, &mut Unlucky);
    usize::from(decision.is_admitted())
}

/// A request beside a tick is decided by the old plan or by the new, and the numbers it is told
/// belong together.
#[test]
fn a_refusal_beside_a_tick_tells_numbers_that_belong_together() {
    explore(|| {
        let gate = gate();
        let mut lane = gate.lane();
        let mut controller = controller(&gate);
        let _inflight = [permit(admit(&mut lane, Sheddable)), permit(admit(&mut lane, Sheddable))];
        let client = loom::thread::spawn(move || {
            let high = admit(&mut lane, CriticalPlus).is_admitted();
            assert!(high, "nothing is asked for but the lowest");
            match admit(&mut lane, Sheddable) {
                Decision::Admit(_) => {}
                Decision::Reject(refusal) => {
                    assert_eq!(refusal.reason(), Reason::Overloaded);
                    let Some(Cause::Signal { signal, utilization, .. }) = refusal.cause() else {
                        panic!("{refusal}");
                    };
                    let told = (signal, utilization);
                    // Let in by the old share, refused by the new limits: there is no more room.
                    let no_room = (SignalId::QUEUE, Thousandths(850));
                    assert!([no_room, (SIGNAL, Thousandths(9_000))].contains(&told), "{told:?}");
                }
            }
        });
        assert!(controller.tick(&gate, overloaded(), NOW).sheds());
        join(client);
        assert_eq!(gate.counts().admitted(CriticalPlus), 1);
        let lowest = gate.counts().admitted(Sheddable)
            + gate.counts().rejected(Reason::Overloaded, Sheddable);
        assert_eq!(lowest, 3);
    });
}

/// Levels that open together open from the top: who has got in with the lowest is not refused with
/// the highest after it.
#[test]
fn levels_open_from_the_highest() {
    explore(|| {
        let gate = gate();
        gate.set_levels(Levels::CLOSED);
        let mut lane = gate.lane();
        let client = loom::thread::spawn(move || {
            let low = admit(&mut lane, Sheddable).is_admitted();
            let high = admit(&mut lane, CriticalPlus).is_admitted();
            assert!(high || !low, "the lowest is in, and then the highest not");
        });
        gate.set_levels(Levels::OPEN);
        join(client);
    });
}

/// And they close from the bottom: who was refused with the highest does not get in with the lowest
/// after it.
#[test]
fn levels_close_from_the_lowest() {
    explore(|| {
        let gate = gate();
        let mut lane = gate.lane();
        let client = loom::thread::spawn(move || {
            let high = admit(&mut lane, CriticalPlus).is_admitted();
            let low = admit(&mut lane, Sheddable).is_admitted();
            assert!(high || !low, "the highest is not in, and then the lowest is");
        });
        gate.set_levels(Levels::CLOSED);
        join(client);
    });
}

/// The same of the room that plans give: a full task gets more CPUs, and its next plan has room for
/// all levels.
#[test]
fn room_opens_from_the_highest() {
    explore(|| {
        let (gate, [mut here, mut there], mut controller, each) = room_for_two();
        let request = Request::new(CriticalPlus, each);
        while here.admit(&request, NOW, &mut Unlucky).is_admitted() {}
        controller.tick(&gate, Seen::new(Reading::IDLE).load(0.0), NOW);
        assert!(!there.admit(&request, NOW, &mut Unlucky).is_admitted(), "it is full");
        controller.reconfigure(ShedConfig::default().cpus(1_000.0).expect("CPUs"));
        let client = loom::thread::spawn(move || {
            let low = offer(&mut there, each) > 0;
            let high = there.admit(&request, NOW, &mut Unlucky).is_admitted();
            assert!(high || !low, "the lowest is in, and then the highest not");
            there
        });
        controller.tick(&gate, Seen::new(Reading::IDLE).load(0.0), NOW);
        assert_eq!(offer(&mut join(client), each), 1, "it has room");
    });
}

/// A request comes in on one thread and is done on another, while a third adds up what is in
/// flight: none or one, whatever of it has been seen.
#[test]
fn in_flight_is_never_less_than_none() {
    explore(|| {
        let gate = gate();
        let (mut entry, mut exit) = (gate.lane(), gate.lane());
        let handover = Arc::new(loom::sync::Mutex::new(None));
        let entering = {
            let handover = Arc::clone(&handover);
            loom::thread::spawn(move || {
                let permit = permit(admit(&mut entry, Sheddable));
                *handover.lock().expect("nobody panics") = Some(permit);
            })
        };
        let leaving = {
            let handover = Arc::clone(&handover);
            loom::thread::spawn(move || {
                let permit = handover.lock().expect("nobody panics").take();
                let done = permit.is_some();
                if let Some(permit) = permit {
                    exit.complete(permit, Cost::from_millis(2), NOW);
                }
                done
            })
        };
        assert!(gate.counts().inflight() <= 1);
        join(entering);
        let done = join(leaving);
        assert_eq!(gate.counts().inflight(), u64::from(!done));
    });
}
