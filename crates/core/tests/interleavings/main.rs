//! Every interleaving of the gates' threads, and every value that the memory model lets them see.
//!
//! ```text
//! cargo test -p tidegate-core --features loom --test interleavings --release
//! ```
//!
//! Models are small, two or three threads of one to three steps, since the number of interleavings
//! explodes with the number of steps.
#![cfg(feature = "loom")]

use std::sync::Arc;
use std::time::Duration;
use tidegate_core::counters::Counters;
use tidegate_core::levels::{LevelGate, Levels};
use tidegate_core::retry::{BudgetConfig, BudgetController, BudgetGate, BudgetLane};
use tidegate_core::rng::SeededRng;
use tidegate_core::throttle::{Outcome, ThrottleConfig, ThrottleController};
use tidegate_core::{Criticality, Ratio, Timestamp};

/// A whole retry in the budget's billionths.
const RETRY: u64 = 1_000_000_000;

/// Runs `body` under every interleaving with at most three preemptions, unless the environment
/// (`LOOM_MAX_PREEMPTIONS`) says otherwise. A race that is lost takes one or two.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(body);
}

fn join<T>(thread: loom::thread::JoinHandle<T>) -> T {
    thread.join().expect("the thread panicked")
}

#[test]
fn counters_lose_nothing_and_count_nothing_twice() {
    explore(|| {
        let counters = Counters::new(1);
        let writers = [1, 10].map(|amount| {
            let counters = Arc::clone(&counters);
            loom::thread::spawn(move || {
                let mut writer = counters.writer();
                writer.add(0, amount);
                writer.add(0, amount);
            })
        });
        // While writers come, count and go, a total is a sum of whole adds, and never goes back.
        let first = counters.totals()[0];
        let second = counters.totals()[0];
        for total in [first, second] {
            assert!(total % 10 <= 2 && total / 10 <= 2, "{total}");
        }
        assert!(first <= second, "{first} {second}");
        for writer in writers {
            join(writer);
        }
        assert_eq!(counters.totals(), [22]);
    });
}

#[test]
fn levels_are_seen_whole_and_in_order() {
    explore(|| {
        let words = [
            Levels::OPEN,
            Levels::from_shares([0.0, 0.25, 0.5, 0.75]),
            Levels::from_shares([0.75, 0.5, 0.25, 0.0]),
        ];
        let gate = Arc::new(LevelGate::new());
        let publisher = {
            let gate = Arc::clone(&gate);
            loom::thread::spawn(move || {
                gate.publish(words[1]);
                gate.publish(words[2]);
            })
        };
        let age = |levels| words.iter().position(|&word| word == levels).expect("a torn word");
        let first = age(gate.levels());
        let second = age(gate.levels());
        assert!(first <= second);
        join(publisher);
        assert_eq!(gate.levels(), words[2]);
    });
}

/// A budget in which every request pays for a retry, with `requests` already made.
fn budget(requests: u64, now: Timestamp) -> (BudgetController, BudgetLane) {
    let mut config = BudgetConfig::default();
    config.ratio = Ratio::ONE;
    let mut controller = BudgetController::new(config);
    let mut lane = controller.gate().lane();
    for _ in 0..requests {
        lane.deposit();
    }
    controller.tick(now);
    (controller, lane)
}

fn withdraw_in_thread(gate: &Arc<BudgetGate>, times: u64) -> loom::thread::JoinHandle<u64> {
    let gate = Arc::clone(gate);
    loom::thread::spawn(move || {
        let mut lane = gate.lane();
        (0..times).filter(|_| lane.withdraw()).count() as u64
    })
}

/// Reading the balance and subtracting later would grant the last retry to both.
#[test]
fn the_last_retry_is_granted_once() {
    explore(|| {
        let (controller, mut lane) = budget(1, Timestamp::ZERO);
        let other = withdraw_in_thread(controller.gate(), 1);
        let mine = u64::from(lane.withdraw());
        assert_eq!(mine + join(other), 1);
        assert_eq!(controller.gate().balance(), 0);
        let counts = controller.gate().counts();
        assert_eq!((counts.retries, counts.refused), (1, 1));
    });
}

#[test]
fn three_withdrawals_share_two_retries() {
    explore(|| {
        let (controller, mut lane) = budget(2, Timestamp::ZERO);
        let other = withdraw_in_thread(controller.gate(), 2);
        let mine = u64::from(lane.withdraw());
        assert_eq!(mine + join(other), 2);
        assert_eq!(controller.gate().balance(), 0);
    });
}

/// Credit that arrives while others withdraw is neither lost nor granted twice.
#[test]
fn a_tick_and_withdrawals_keep_the_account() {
    explore(|| {
        let (mut controller, mut lane) = budget(1, Timestamp::ZERO);
        lane.deposit();
        let other = withdraw_in_thread(controller.gate(), 2);
        controller.tick(Timestamp::ZERO);
        let granted = join(other);
        assert!((1..=2).contains(&granted));
        assert_eq!(granted * RETRY + controller.gate().balance(), 2 * RETRY);
    });
}

/// Trimming to one retry happens before, between or after the withdrawals, and not in part.
#[test]
fn a_trim_does_not_bring_back_what_was_withdrawn() {
    explore(|| {
        let (mut controller, _lane) = budget(2, Timestamp::ZERO);
        let other = withdraw_in_thread(controller.gate(), 2);
        controller.tick(Timestamp::ZERO + Duration::from_secs(60));
        let granted = join(other);
        assert!((1..=2).contains(&granted));
        assert_eq!(controller.gate().balance(), 0);
    });
}

/// A lane that counts and goes away during ticks has each of its requests credited once.
#[test]
fn every_request_is_credited_once() {
    explore(|| {
        let (mut controller, lane) = budget(0, Timestamp::ZERO);
        drop(lane);
        let depositor = {
            let gate = Arc::clone(controller.gate());
            loom::thread::spawn(move || {
                let mut lane = gate.lane();
                lane.deposit();
                lane.deposit();
            })
        };
        controller.tick(Timestamp::ZERO);
        assert!(controller.gate().balance() <= 2 * RETRY);
        join(depositor);
        controller.tick(Timestamp::ZERO);
        assert_eq!(controller.gate().balance(), 2 * RETRY);
    });
}

/// What a lane counts during a tick is taken in by this tick or the next, and once.
#[test]
fn a_throttle_takes_in_every_outcome_once() {
    explore(|| {
        let mut config = ThrottleConfig::default();
        config.requests_min = 0;
        let mut controller = ThrottleController::new(config);
        let lane = {
            let gate = Arc::clone(controller.gate());
            loom::thread::spawn(move || {
                let mut lane = gate.lane();
                lane.on_response(Criticality::Critical, Outcome::Refused);
                lane.on_response(Criticality::Critical, Outcome::Refused);
                lane.decide(Criticality::Critical, &mut SeededRng::new(1)).is_err()
            })
        };
        controller.tick(Timestamp::ZERO);
        let throttled = u64::from(join(lane));
        controller.tick(Timestamp::ZERO);
        // None accepted: (requests - 0) / (requests + 1).
        let requests = (2 + throttled) as f64;
        let probability = controller.probability(Criticality::Critical, Timestamp::ZERO);
        assert_eq!(probability, requests / (requests + 1.0));
    });
}
