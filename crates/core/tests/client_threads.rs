//! The client's gates under real threads, with exact accounts.
#![cfg(not(feature = "loom"))]

use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;
use tidegate_core::decision::Advice;
use tidegate_core::retry::{BudgetConfig, BudgetController};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::throttle::{ThrottleConfig, ThrottleController};
use tidegate_core::{Criticality, Outcome, Ratio, Timestamp};

const RETRY: u128 = 1_000_000_000;

/// A race for what is there: a hundred thousand retries and twice as many who want one.
#[test]
fn a_rush_is_granted_exactly_what_there_is() {
    const RETRIES: u64 = 100_000;
    let mut config = BudgetConfig::default();
    config.ratio = Ratio::ONE;
    let mut controller = BudgetController::new(config);
    let mut lane = controller.gate().lane();
    for _ in 0..RETRIES {
        lane.deposit();
    }
    controller.tick(Timestamp::ZERO);
    let gate = controller.gate();
    let start = Barrier::new(4);
    let granted: usize = thread::scope(|scope| {
        let threads: [_; 4] = core::array::from_fn(|_| {
            scope.spawn(|| {
                let mut lane = gate.lane();
                start.wait();
                (0..RETRIES / 2).filter(|_| lane.withdraw()).count()
            })
        });
        threads.into_iter().map(|thread| thread.join().expect("a thread panicked")).sum()
    });
    assert_eq!(granted as u64, RETRIES);
    assert_eq!(gate.balance(), 0);
    let counts = gate.counts();
    assert_eq!((counts.retries, counts.refused), (RETRIES, RETRIES));
}

/// Four threads deposit and withdraw as fast as they can while a fifth ticks, each tick
/// `tick_millis` after the one before. Returns the controller after a last tick.
fn hammer(config: BudgetConfig, tick_millis: u64) -> BudgetController {
    const ROUNDS: u64 = 50_000;
    let mut controller = BudgetController::new(config);
    let gate = controller.gate().clone();
    let (start, done) = (Barrier::new(5), AtomicBool::new(false));
    let mut now = Timestamp::ZERO;
    thread::scope(|scope| {
        let threads: [_; 4] = core::array::from_fn(|_| {
            scope.spawn(|| {
                start.wait();
                // Lanes come and go, as threads do.
                for _ in 0..10 {
                    let mut lane = gate.lane();
                    for _ in 0..ROUNDS / 10 {
                        lane.deposit();
                        let _ = lane.withdraw();
                    }
                }
            })
        });
        scope.spawn(|| {
            start.wait();
            while !done.load(Ordering::Relaxed) {
                controller.tick(now);
                now += Duration::from_millis(tick_millis);
            }
        });
        for thread in threads {
            thread.join().expect("a thread panicked");
        }
        done.store(true, Ordering::Relaxed);
    });
    controller.tick(now);
    assert_eq!(gate.counts().requests, 4 * ROUNDS);
    controller
}

/// With nothing trimmed, what was granted and what is left are what was deposited, to the
/// billionth.
#[test]
fn the_budget_balances_to_the_billionth() {
    for ratio in [0.1, 0.4, 1.0 / 3.0] {
        let mut config = BudgetConfig::default();
        config.ratio = Ratio::new(ratio).expect("a ratio");
        let controller = hammer(config, 0);
        let counts = controller.gate().counts();
        let deposited = u128::from(counts.requests) * u128::from(config.ratio.billionths());
        let balance = u128::from(controller.gate().balance());
        assert_eq!(u128::from(counts.retries) * RETRY + balance, deposited, "{ratio}");
    }
}

/// With credit expiring all the time, never more is granted than was deposited.
#[test]
fn expiring_credit_is_never_overdrawn() {
    let mut config = BudgetConfig::default();
    config.window = Duration::from_millis(10);
    let controller = hammer(config, 3);
    let counts = controller.gate().counts();
    let deposited = u128::from(counts.requests) * u128::from(config.ratio.billionths());
    let balance = u128::from(controller.gate().balance());
    assert!(u128::from(counts.retries) * RETRY + balance <= deposited);
}

/// Every attempt has one fate, however the ticks fall.
#[test]
fn the_throttle_counts_every_attempt_once() {
    const ATTEMPTS: u64 = 50_000;
    let now = Timestamp::from_secs(1);
    let mut controller = ThrottleController::new(ThrottleConfig::default());
    let gate = controller.gate().clone();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let threads: [_; 3] = core::array::from_fn(|seed| {
            let gate = &gate;
            scope.spawn(move || {
                let mut rng = SeededRng::new(seed as u64);
                let mut lane = gate.lane();
                for _ in 0..ATTEMPTS {
                    if lane.decide(Criticality::Sheddable, &mut rng).is_ok() {
                        let outcome = match rng.below(8) {
                            0 => Outcome::Served,
                            1 => Outcome::NoAnswer,
                            _ => Outcome::Refused(Advice::RetryElsewhere),
                        };
                        lane.on_response(Criticality::Sheddable, outcome);
                    }
                    lane.on_response(Criticality::Critical, Outcome::Served);
                }
            })
        });
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                controller.tick(now);
            }
        });
        for thread in threads {
            thread.join().expect("a thread panicked");
        }
        done.store(true, Ordering::Relaxed);
    });
    let levels = controller.tick(now);
    let [sheddable, _, critical, _] = gate.counts();
    assert_eq!(sheddable.requests(), 3 * ATTEMPTS);
    assert_eq!(critical.accepted, 3 * ATTEMPTS);
    assert_eq!(levels.share(Criticality::Critical), 1.0);
    // The controller's books hold the same numbers, each once.
    let (requests, accepted) = (sheddable.requests() as f64, sheddable.accepted as f64);
    let expected = (requests - 2.0 * accepted) / (requests + 1.0);
    let found = controller.probability(Criticality::Sheddable, now);
    assert!((found - expected).abs() < 1e-12, "{found} {expected}");
}
