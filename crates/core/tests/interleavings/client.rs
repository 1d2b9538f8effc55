//! The client's side: the retry budget and the throttle.

use crate::{explore, join};
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::decision::Advice;
use tidegate_core::retry::{BudgetConfig, BudgetController, BudgetGate, BudgetLane};
use tidegate_core::rng::SeededRng;
use tidegate_core::throttle::{ThrottleConfig, ThrottleController};
use tidegate_core::{Criticality, Outcome, Ratio, Timestamp};

/// A whole retry in the budget's billionths.
const RETRY: u64 = 1_000_000_000;

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
                lane.on_response(Criticality::Critical, Outcome::Refused(Advice::RetryElsewhere));
                lane.on_response(Criticality::Critical, Outcome::Refused(Advice::RetryElsewhere));
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
