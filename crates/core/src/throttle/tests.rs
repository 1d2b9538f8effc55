use super::*;

const REFUSED: Outcome = Outcome::Refused(Advice::RetryElsewhere);
use crate::rng::{Rng, SeededRng};
use proptest::prelude::*;

use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};

fn config(multiplier: f64) -> ThrottleConfig {
    ThrottleConfig { multiplier: Multiplier::new(multiplier).unwrap(), ..ThrottleConfig::default() }
}

#[test]
fn the_formula_by_hand() {
    // K, requests_min, requests, accepts, probability
    for (multiplier, requests_min, requests, accepts, probability) in [
        // The book's formula, without a floor.
        (2.0, 0, 0, 0, 0.0),
        (2.0, 0, 1, 0, 1.0 / 2.0),
        (2.0, 0, 99, 0, 99.0 / 100.0),
        (2.0, 0, 100, 50, 0.0),
        (2.0, 0, 100, 100, 0.0),
        (2.0, 0, 199, 50, 99.0 / 200.0),
        (2.0, 0, 999, 100, 799.0 / 1_000.0),
        (1.0, 0, 199, 100, 99.0 / 200.0),
        (1.5, 0, 199, 100, 49.0 / 200.0),
        (4.0, 0, 399, 50, 199.0 / 400.0),
        // The floor: 20 may always be sent, and above it nothing jumps.
        (2.0, 20, 20, 0, 0.0),
        (2.0, 20, 21, 0, 1.0 / 22.0),
        (2.0, 20, 99, 9, 79.0 / 100.0),
        (2.0, 20, 99, 10, 79.0 / 100.0),
        (2.0, 20, 99, 20, 59.0 / 100.0),
        // More accepts than requests: answers to requests that the window has forgotten.
        (2.0, 20, 100, 1_000, 0.0),
        (2.0, 20, u64::MAX, u64::MAX, 0.0),
    ] {
        let config = ThrottleConfig { requests_min, ..config(multiplier) };
        let found = config.probability(requests, accepts);
        assert!(
            (found - probability).abs() < 1e-12,
            "K {multiplier}, {requests} requests, {accepts} accepts: {found}"
        );
    }
}

#[test]
fn a_multiplier_that_throttles_the_healthy_is_refused() {
    for bad in [0.0, 0.99, -2.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        assert!(Multiplier::new(bad).is_err(), "{bad}");
    }
    assert_eq!(Multiplier::new(1.0).map(Multiplier::get), Ok(1.0));
    assert_eq!(
        Multiplier::new(0.5).unwrap_err().to_string(),
        "a throttle's multiplier must be 1 or more, and finite, but it is 0.5"
    );
}

#[test]
fn a_throttled_request_says_why_and_is_not_to_be_retried() {
    let mut throttle = Throttle::new(ThrottleConfig::default());
    // Of 99 requests 30 were taken: (99 - 60) / 100.
    let refused = ThrottleCounts { accepted: 30, refused: 69, ..ThrottleCounts::default() };
    let mut controller = ThrottleController::new(ThrottleConfig::default());
    for _ in 0..30 {
        controller.gate().lane().on_response(Critical, Outcome::Served);
    }
    for _ in 0..69 {
        controller.gate().lane().on_response(Critical, REFUSED);
    }
    controller.tick(Timestamp::ZERO);
    throttle.record(Critical, refused, Timestamp::ZERO);
    let mut lane = controller.gate().lane();
    let mut rng = SeededRng::new(1);
    for rejection in [
        (0..).find_map(|_| throttle.clone().decide(Critical, Timestamp::ZERO, &mut rng).err()),
        (0..).find_map(|_| lane.decide(Critical, &mut SeededRng::new(rng.next_u64())).err()),
    ] {
        let text = "throttled (CRITICAL): held back with probability 0.390; don't retry";
        assert_eq!(rejection.unwrap().to_string(), text);
        assert_eq!(rejection.unwrap().advice, Advice::DontRetry);
    }
}

/// A window shorter than a second counts as one: it would forget before it has counted.
#[test]
fn a_throttle_without_a_window_throttles() {
    for window in [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(1)] {
        let mut throttle = Throttle::new(ThrottleConfig { window, ..ThrottleConfig::default() });
        for ms in 0..10_000 {
            throttle.on_response(Critical, REFUSED, Timestamp::from_millis(ms));
        }
        let p = throttle.probability(Critical, Timestamp::from_millis(9_999));
        assert!(p > 0.9, "{window:?}: {p}");
    }
}

#[test]
fn requests_under_way_are_not_held_against_the_backend() {
    let mut throttle = Throttle::new(ThrottleConfig::default());
    let mut rng = SeededRng::new(5);
    for _ in 0..10_000 {
        assert!(throttle.decide(Critical, Timestamp::ZERO, &mut rng).is_ok());
    }
    for _ in 0..10_000 {
        throttle.on_response(Critical, Outcome::Served, Timestamp::from_secs(1));
        assert_eq!(throttle.probability(Critical, Timestamp::from_secs(1)), 0.0);
    }
}

#[test]
fn only_refusals_and_silence_count_against_the_backend() {
    for (outcome, probability) in
        [(Outcome::Served, 0.0), (REFUSED, 980.0 / 1_001.0), (Outcome::NoAnswer, 980.0 / 1_001.0)]
    {
        let mut throttle = Throttle::new(ThrottleConfig::default());
        for _ in 0..1_000 {
            throttle.on_response(Critical, outcome, Timestamp::ZERO);
        }
        let found = throttle.probability(Critical, Timestamp::ZERO);
        assert!((found - probability).abs() < 1e-12, "{outcome:?}: {found}");
    }
}

/// A client that asks every seven seconds has at most 18 requests in two minutes.
#[test]
fn a_sporadic_client_is_never_throttled() {
    let mut throttle = Throttle::new(ThrottleConfig::default());
    let mut rng = SeededRng::new(5);
    for secs in (0..3_600).step_by(7) {
        let now = Timestamp::from_secs(secs);
        assert!(throttle.decide(Critical, now, &mut rng).is_ok(), "at {secs} s");
        throttle.on_response(Critical, REFUSED, now);
    }
}

#[test]
fn criticalities_do_not_suffer_for_each_other() {
    let mut throttle = Throttle::new(ThrottleConfig::default());
    let now = Timestamp::from_secs(9);
    for _ in 0..1_000 {
        throttle.on_response(Sheddable, REFUSED, now);
        throttle.on_response(Critical, Outcome::Served, now);
    }
    for i in 0..1_000 {
        let outcome = if i % 4 == 0 { Outcome::Served } else { REFUSED };
        throttle.on_response(SheddablePlus, outcome, now);
    }
    let levels = throttle.levels(now);
    // 1,000 requests each; sendable 20, 500, 2,000 and no requests at all.
    for (criticality, probability) in [
        (Sheddable, 980.0 / 1_001.0),
        (SheddablePlus, 500.0 / 1_001.0),
        (Critical, 0.0),
        (CriticalPlus, 0.0),
    ] {
        assert!((throttle.probability(criticality, now) - probability).abs() < 1e-12);
        assert!((levels.share(criticality) - (1.0 - probability)).abs() <= 1.0 / 65_536.0);
    }
}

#[test]
fn a_gate_is_never_shut_altogether() {
    let mut throttle = Throttle::new(ThrottleConfig { requests_min: 0, ..config(2.0) });
    let refused = ThrottleCounts { refused: u64::MAX, ..ThrottleCounts::default() };
    throttle.record(Critical, refused, Timestamp::ZERO);
    assert!(throttle.levels(Timestamp::ZERO).share(Critical) > 0.0);
}

/// A backend that takes `capacity` requests a second and refuses the rest at once. It can lag one
/// second behind, so that it is the mean that matters and not how requests fall into steps.
struct Backend {
    capacity: u64,
    room: u64,
}

const STEP_MS: u64 = 10;

impl Backend {
    fn new(capacity: u64) -> Self {
        Self { capacity, room: 0 }
    }

    fn step(&mut self) {
        // Room is counted in thousandths of a request.
        self.room = (self.room + self.capacity * STEP_MS).min(self.capacity * 1_000);
    }

    fn serve(&mut self) -> Outcome {
        if self.room < 1_000 {
            return REFUSED;
        }
        self.room -= 1_000;
        Outcome::Served
    }
}

/// A client that offers `rate` requests a second, evenly, for `secs` from `start`. Returns what
/// became of them.
fn run(
    throttle: &mut Throttle,
    backend: &mut Backend,
    rng: &mut SeededRng,
    rate: u64,
    start: u64,
    secs: u64,
) -> ThrottleCounts {
    let mut counts = ThrottleCounts::default();
    for step in 0..secs * 1_000 / STEP_MS {
        let now = Timestamp::from_millis(start * 1_000 + step * STEP_MS);
        backend.step();
        for _ in 0..rate * STEP_MS / 1_000 {
            if throttle.decide(Critical, now, rng).is_err() {
                counts.throttled += 1;
                continue;
            }
            let outcome = backend.serve();
            throttle.on_response(Critical, outcome, now);
            match outcome {
                Outcome::Served => counts.accepted += 1,
                _ => counts.refused += 1,
            }
        }
    }
    counts
}

/// However large the demand, the backend refuses `K - 1` requests for each one it takes, and what
/// it sees is steady.
#[test]
fn the_backend_refuses_as_much_as_the_multiplier_says() {
    const CAPACITY: u64 = 200;
    for (multiplier, range) in [(2.0, 0.9..1.1), (1.1, 0.07..0.13)] {
        for overload in [3, 10, 100] {
            let case = format!("K {multiplier}, {overload}x");
            let mut throttle = Throttle::new(config(multiplier));
            let (mut backend, mut rng) = (Backend::new(CAPACITY), SeededRng::new(overload));
            let mut go = |start, secs| {
                let rate = overload * CAPACITY;
                run(&mut throttle, &mut backend, &mut rng, rate, start, secs)
            };
            go(0, 30);
            let (mut refused, mut accepted) = (0, 0);
            for start in (30..120).step_by(10) {
                let counts = go(start, 10);
                let sent = (counts.refused + counts.accepted) as f64;
                let wanted = multiplier * (CAPACITY * 10) as f64;
                assert!((0.9..1.1).contains(&(sent / wanted)), "{case}: {sent} at {start} s");
                refused += counts.refused;
                accepted += counts.accepted;
            }
            let ratio = refused as f64 / accepted as f64;
            assert!(range.contains(&ratio), "{case}: {ratio} refused per accept");
            assert!(accepted >= CAPACITY * 90 * 99 / 100, "{case}: {accepted} accepted");
        }
    }
}

/// The mean demand that needs no throttling gets none: `K` times what is taken.
#[test]
fn mild_overload_is_left_to_the_backend() {
    let mut throttle = Throttle::new(config(2.0));
    let (mut backend, mut rng) = (Backend::new(100), SeededRng::new(4));
    let counts = run(&mut throttle, &mut backend, &mut rng, 200, 0, 240);
    let share = counts.throttled as f64 / counts.requests() as f64;
    assert!(share < 0.02, "{share}");
}

/// Many small clients of one backend, each with two accepts a second: their view is coarse, and
/// still what they send together is what the backend takes twice over.
#[test]
fn a_fleet_of_small_clients_keeps_to_the_multiplier() {
    let mut clients = vec![Throttle::new(config(2.0)); 50];
    let (mut backend, mut rng) = (Backend::new(100), SeededRng::new(9));
    let mut counts = ThrottleCounts::default();
    for step in 0..150_000 / STEP_MS {
        let now = Timestamp::from_millis(step * STEP_MS);
        backend.step();
        for _ in 0..10 {
            let client = &mut clients[rng.below(50) as usize];
            let Ok(()) = client.decide(Critical, now, &mut rng) else { continue };
            let outcome = backend.serve();
            client.on_response(Critical, outcome, now);
            if now >= Timestamp::from_secs(30) {
                counts.refused += u64::from(outcome == REFUSED);
                counts.accepted += u64::from(outcome == Outcome::Served);
            }
        }
    }
    let ratio = counts.refused as f64 / counts.accepted as f64;
    assert!((0.8..1.2).contains(&ratio), "{ratio} refused per accept");
}

/// Seconds from 150 s on until nothing is throttled any more, in steps of five.
fn throttled_until(mut throttle: Throttle, mut backend: Backend, rate: u64) -> u64 {
    let mut rng = SeededRng::new(rate);
    (0..400)
        .step_by(5)
        .take_while(|after| {
            run(&mut throttle, &mut backend, &mut rng, rate, 150 + after, 5).throttled > 0
        })
        .last()
        .map_or(0, |after| after + 5)
}

/// What the two minutes alone would take, the last ten seconds do in a fraction.
#[test]
fn throttling_ends_soon_after_its_cause() {
    const CAPACITY: u64 = 100;
    let book = ThrottleConfig { recovery_window: Duration::ZERO, ..config(2.0) };
    // Overload, seconds until it ends when the demand falls to the capacity, and when the capacity
    // rises to twice the demand.
    for (config, overload, demand_falls, capacity_rises) in [
        (book, 3, 60..=90, 35..=50),
        (book, 10, 165..=195, 120..=145),
        (config(2.0), 3, 1..=15, 1..=15),
        (config(2.0), 10, 1..=30, 1..=25),
        (config(2.0), 100, 1..=60, 1..=45),
        (config(1.1), 3, 1..=110, 1..=110),
    ] {
        let case = format!("{config:?} {overload}x");
        let mut throttle = Throttle::new(config);
        let (mut backend, mut rng) = (Backend::new(CAPACITY), SeededRng::new(overload));
        let rate = overload * CAPACITY;
        run(&mut throttle, &mut backend, &mut rng, rate, 0, 150);
        assert!(throttle.probability(Critical, Timestamp::from_secs(150)) > 0.3, "{case}");
        let ends = throttled_until(throttle.clone(), Backend::new(CAPACITY), CAPACITY);
        assert!(demand_falls.contains(&ends), "{case}: {ends} s when the demand falls");
        let ends = throttled_until(throttle, Backend::new(2 * rate), rate);
        assert!(capacity_rises.contains(&ends), "{case}: {ends} s when the capacity rises");
    }
}

/// After minutes without a single accept the client still tries, and comes back.
#[test]
fn a_client_finds_its_way_back_from_an_outage() {
    let mut throttle = Throttle::new(config(2.0));
    let (mut backend, mut rng) = (Backend::new(0), SeededRng::new(6));
    run(&mut throttle, &mut backend, &mut rng, 100, 0, 270);
    let outage = run(&mut throttle, &mut backend, &mut rng, 100, 270, 120);
    // 20 a window are sent, give or take twice their standard error.
    assert!((11..=29).contains(&outage.refused), "{outage:?}");
    backend.capacity = 200;
    run(&mut throttle, &mut backend, &mut rng, 100, 390, 120);
    let back = run(&mut throttle, &mut backend, &mut rng, 100, 510, 10);
    assert_eq!(back.throttled, 0, "{back:?}");
}

/// The lanes' totals arrive a tick late and the shares are rounded; otherwise it is one throttle.
#[test]
fn gate_and_controller_agree() {
    let mut alone = Throttle::new(config(2.0));
    let mut controller = ThrottleController::new(config(2.0));
    let mut lanes = [controller.gate().lane(), controller.gate().lane()];
    let mut rng = SeededRng::new(8);
    for ms in 0..300_000 {
        let now = Timestamp::from_millis(ms);
        for (criticality, refused_of_8) in Criticality::ALL.into_iter().zip([8, 5, 3, 0]) {
            let outcome = match rng.below(8) {
                draw if draw < refused_of_8 && ms < 150_000 => REFUSED,
                _ => Outcome::Served,
            };
            alone.on_response(criticality, outcome, now);
            lanes[(ms % 2) as usize].on_response(criticality, outcome);
        }
        if ms % 100 == 99 {
            let levels = controller.tick(now);
            assert_eq!(levels, controller.gate().levels());
            for criticality in Criticality::ALL {
                let share = 1.0 - alone.probability(criticality, now);
                let published = levels.share(criticality);
                assert!((published - share).abs() < 1e-3, "{criticality}: {published} {share}");
            }
        }
    }
}

/// As one loop: what the gate refuses counts as requests, and the backend sees `K` times what it
/// takes.
#[test]
fn lanes_hold_the_backend_at_the_multiplier() {
    let mut controller = ThrottleController::new(config(2.0));
    let mut lanes = [controller.gate().lane(), controller.gate().lane()];
    let (mut backend, mut rng) = (Backend::new(100), SeededRng::new(3));
    let mut before = ThrottleCounts::default();
    for step in 0..180_000 / STEP_MS {
        let now = Timestamp::from_millis(step * STEP_MS);
        backend.step();
        for i in 0..10 {
            let lane = &mut lanes[i % 2];
            if lane.decide(Critical, &mut rng).is_ok() {
                lane.on_response(Critical, backend.serve());
            }
        }
        if step % 10 == 9 {
            controller.tick(now);
        }
        if now == Timestamp::from_secs(60) {
            before = controller.gate().counts()[Critical.index()];
        }
    }
    drop(lanes);
    let after = controller.gate().counts()[Critical.index()];
    assert_eq!(after.requests(), 180_000);
    let refused = (after.refused - before.refused) as f64;
    let ratio = refused / (after.accepted - before.accepted) as f64;
    assert!((0.8..1.2).contains(&ratio), "{ratio}");
}

#[derive(Debug, Clone)]
enum Operation {
    Decide(usize),
    Respond(usize, Outcome),
    Record(usize, u64),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    let outcome = prop_oneof![Just(Outcome::Served), Just(REFUSED), Just(Outcome::NoAnswer)];
    prop_oneof![
        4 => (0..4_usize).prop_map(Operation::Decide),
        4 => (0..4_usize, outcome).prop_map(|(c, o)| Operation::Respond(c, o)),
        1 => (0..4_usize, any::<u64>()).prop_map(|(c, n)| Operation::Record(c, n)),
        1 => prop_oneof![0_u64..1_000_000_000, 0..300_000_000_000_u64, any::<u64>()]
            .prop_map(Operation::Wait),
    ]
}

proptest! {
    /// Whatever happens: a probability is one, accepts do not raise it (over the floor), refusals
    /// do not lower it, and nothing is refused without one.
    #[test]
    fn probabilities_stay_probabilities(
        operations in proptest::collection::vec(operation(), 0..100),
        multiplier in 1.0..1e6_f64,
        requests_min in prop_oneof![Just(0_u64), 0_u64..100],
    ) {
        let mut throttle = Throttle::new(ThrottleConfig { requests_min, ..config(multiplier) });
        let mut rng = SeededRng::new(1);
        let mut now = Timestamp::ZERO;
        for operation in operations {
            match operation {
                Operation::Decide(c) => {
                    let before = throttle.probability(Criticality::ALL[c], now);
                    let decision = throttle.decide(Criticality::ALL[c], now, &mut rng);
                    prop_assert!(decision.is_ok() || before > 0.0);
                }
                Operation::Respond(c, outcome) => {
                    let before = throttle.probability(Criticality::ALL[c], now);
                    throttle.on_response(Criticality::ALL[c], outcome, now);
                    let after = throttle.probability(Criticality::ALL[c], now);
                    match outcome {
                        Outcome::Served if requests_min == 0 => {
                            prop_assert!(after <= before + 1e-12);
                        }
                        Outcome::Served => {}
                        _ => prop_assert!(after >= before - 1e-12),
                    }
                }
                Operation::Record(c, refused) => {
                    let counts = ThrottleCounts { refused, ..ThrottleCounts::default() };
                    throttle.record(Criticality::ALL[c], counts, now);
                }
                Operation::Wait(nanos) => now += Duration::from_nanos(nanos),
            }
            for criticality in Criticality::ALL {
                let p = throttle.probability(criticality, now);
                prop_assert!((0.0..=1.0).contains(&p), "{}", p);
                prop_assert!(throttle.levels(now).share(criticality) > 0.0);
            }
        }
    }
}
