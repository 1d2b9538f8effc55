use super::budget::RETRY;
use super::*;
use crate::units::{Ratio, Timestamp};
use proptest::prelude::*;

const NOW: Timestamp = Timestamp::from_secs(1_000);
const SECOND: Duration = Duration::from_secs(1);

fn config(ratio: f64) -> BudgetConfig {
    BudgetConfig { ratio: Ratio::new(ratio).unwrap(), ..BudgetConfig::default() }
}

#[test]
fn decisions_by_the_table() {
    use Advice::{DontRetry, RetryAfter, RetryElsewhere};
    use GiveUpReason::{Advised, AttemptsExhausted, BudgetExhausted, DeadlineWouldPass};
    let ms = Duration::from_millis;
    let retry = |after| RetryDecision::Retry { after: ms(after) };
    let give_up = RetryDecision::GiveUp;
    // Attempt, advice, milliseconds left, whether the budget has one, what follows.
    for (attempt, advice, remaining, budget, decision) in [
        (1, RetryElsewhere, 1_000, true, retry(0)),
        (2, RetryElsewhere, 1_000, true, retry(0)),
        (3, RetryElsewhere, 1_000, true, give_up(AttemptsExhausted)),
        (4, RetryElsewhere, 1_000, true, give_up(AttemptsExhausted)),
        (u32::MAX, RetryElsewhere, 1_000, true, give_up(AttemptsExhausted)),
        // No attempt has number 0; nothing speaks against another one.
        (0, RetryElsewhere, 1_000, true, retry(0)),
        (1, DontRetry, 1_000, true, give_up(Advised)),
        (3, DontRetry, 0, false, give_up(Advised)),
        (1, RetryAfter(ms(50)), 1_000, true, retry(50)),
        (1, RetryAfter(ms(0)), 1_000, true, retry(0)),
        (1, RetryAfter(ms(999)), 1_000, true, retry(999)),
        (1, RetryAfter(ms(1_000)), 1_000, true, give_up(DeadlineWouldPass)),
        (1, RetryAfter(Duration::MAX), 1_000, true, give_up(DeadlineWouldPass)),
        (3, RetryAfter(ms(50)), 1_000, true, give_up(AttemptsExhausted)),
        (1, RetryElsewhere, 0, true, give_up(DeadlineWouldPass)),
        (1, RetryElsewhere, 1_000, false, give_up(BudgetExhausted)),
        (1, RetryAfter(ms(50)), 1_000, false, give_up(BudgetExhausted)),
    ] {
        let mut asked = false;
        let found = RetryPolicy::default().decide(attempt, advice, ms(remaining), || {
            asked = true;
            budget
        });
        let case = format!("attempt {attempt}, {advice:?}, {remaining} ms");
        assert_eq!(found, decision, "{case}");
        // Nothing is withdrawn for a retry that does not happen.
        let spent = asked && budget;
        assert_eq!(spent, matches!(found, RetryDecision::Retry { .. }), "{case}");
    }
}

#[test]
fn whoever_gives_up_asks_nobody_else_to_retry() {
    for reason in GiveUpReason::ALL {
        assert_eq!(reason.advice_above(), Advice::DontRetry, "{reason}");
    }
}

/// A stack of layers over a database that refuses everything: each layer keeps the rules, so the
/// database sees three attempts of one request, and not three to the power of the layers.
#[test]
fn attempts_do_not_multiply_along_a_stack() {
    fn call(layers: u32, database_calls: &mut u32) -> Advice {
        if layers == 0 {
            *database_calls += 1;
            return Advice::RetryElsewhere;
        }
        let mut attempt = 1;
        loop {
            let advice = call(layers - 1, database_calls);
            match RetryPolicy::default().decide(attempt, advice, SECOND, || true) {
                RetryDecision::Retry { .. } => attempt += 1,
                RetryDecision::GiveUp(reason) => return reason.advice_above(),
            }
        }
    }
    for layers in 1..6 {
        let mut database_calls = 0;
        assert_eq!(call(layers, &mut database_calls), Advice::DontRetry);
        assert_eq!(database_calls, 3, "{layers} layers");
    }
}

/// Budgets that divide grant 500 of 1,000 for 0.4, and all 1,000 for 0.6.
#[test]
fn ratios_are_kept_exactly() {
    for (ratio, requests, retries) in [
        (0.1, 1_000, 100),
        (0.1, 1_009, 100),
        (0.1, 1_010, 101),
        (0.4, 1_000, 400),
        (0.6, 1_000, 600),
        (1.0 / 3.0, 1_000, 333),
        (0.123_456_789, 1_000, 123),
        (1.0, 1_000, 1_000),
        (0.0, 1_000, 0),
        (0.000_000_001, 1_000, 0),
    ] {
        let mut budget = RetryBudget::new(config(ratio));
        let mut controller = BudgetController::new(config(ratio));
        let mut lane = controller.gate().lane();
        for _ in 0..requests {
            budget.deposit(NOW);
            lane.deposit();
        }
        assert!(!lane.withdraw(), "credit came before the tick");
        controller.tick(NOW);
        assert_eq!(budget.available(NOW), retries, "{ratio}");
        let granted = (0..2_000).filter(|_| budget.withdraw(NOW)).count() as u64;
        assert_eq!(granted, retries, "{ratio}");
        let granted = (0..2_000).filter(|_| lane.withdraw()).count() as u64;
        assert_eq!(granted, retries, "{ratio}, gate");
        assert_eq!(
            controller.gate().counts(),
            BudgetCounts { requests, retries, refused: 2_001 - retries }
        );
    }
}

/// 100 requests a second for an hour, then refusals: ten seconds' worth may be spent, no more.
#[test]
fn calm_hours_save_up_no_storm() {
    let mut budget = RetryBudget::new(config(0.1));
    let mut now = Timestamp::ZERO;
    for _ in 0..360_000 {
        now += Duration::from_millis(10);
        budget.deposit(now);
    }
    let granted = (0..1_000).filter(|_| budget.withdraw(now)).count();
    assert!((90..=100).contains(&granted), "{granted}");
    // From then on a tenth.
    let granted = (0..1_000)
        .filter(|_| {
            now += Duration::from_millis(10);
            budget.deposit(now);
            budget.withdraw(now)
        })
        .count();
    assert!((99..=101).contains(&granted), "{granted}");
    assert_eq!(budget.available(now + Duration::from_secs(3_600)), 0);
}

/// A request a minute: credit would expire long before it amounts to a retry.
#[test]
fn a_sporadic_client_may_still_retry_one_in_ten() {
    let mut budget = RetryBudget::new(config(0.1));
    let mut granted = 0;
    for minute in 0..100 {
        let now = Timestamp::from_secs(60 * minute);
        budget.deposit(now);
        granted += u64::from(budget.withdraw(now));
    }
    assert_eq!(granted, 10);
}

#[test]
fn the_floor_is_so_many_a_second() {
    let config = BudgetConfig { retries_min_per_second: 3, ..config(0.0) };
    let mut budget = RetryBudget::new(config);
    assert!(!budget.withdraw(Timestamp::ZERO));
    let mut granted = 0;
    for ms in (0..=60_000).step_by(10) {
        granted += u64::from(budget.withdraw(Timestamp::from_millis(ms)));
    }
    assert_eq!(granted, 180);
    // An idle day is worth a window.
    assert_eq!(budget.available(Timestamp::from_secs(86_400)), 30);
}

#[test]
fn nothing_overflows() {
    let config =
        BudgetConfig { ratio: Ratio::ONE, window: Duration::MAX, retries_min_per_second: u32::MAX };
    let mut budget = RetryBudget::new(config);
    budget.deposit(Timestamp::ZERO);
    budget.deposit(Timestamp::MAX);
    assert_eq!(budget.available(Timestamp::MAX), u64::MAX / RETRY);
    assert!(budget.withdraw(Timestamp::ZERO));
}

#[derive(Debug, Clone, Copy)]
enum Operation {
    Deposit,
    Withdraw,
    Wait(u64),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let operation = prop_oneof![
        6 => Just(Operation::Deposit),
        3 => Just(Operation::Withdraw),
        2 => prop_oneof![0_u64..500, 500..15_000_u64].prop_map(Operation::Wait),
    ];
    proptest::collection::vec(operation, 0..150)
}

proptest! {
    /// Over any stretch of any history: no more retries than its requests and those of the window
    /// before it pay for, or than the one that may be kept.
    #[test]
    fn no_stretch_has_more_retries_than_requests_paid_for(
        operations in operations(),
        ratio in 0.0..=1.0_f64,
        retries_min_per_second in prop_oneof![3 => Just(0_u32), 1 => 1..4_u32],
    ) {
        let config = BudgetConfig { retries_min_per_second, ..config(ratio) };
        let ratio = u128::from(config.ratio.billionths());
        let per_milli = u128::from(retries_min_per_second) * 1_000_000;
        let window = 10_000_u64;

        let mut budget = RetryBudget::new(config);
        let mut ms = 0;
        let mut log: Vec<(u64, bool)> = Vec::new();
        for operation in operations {
            let now = Timestamp::from_millis(ms);
            match operation {
                Operation::Deposit => {
                    budget.deposit(now);
                    log.push((ms, false));
                }
                Operation::Withdraw => {
                    if budget.withdraw(now) {
                        log.push((ms, true));
                    }
                }
                Operation::Wait(step) => ms += step,
            }
        }
        for (first, &(start, _)) in log.iter().enumerate() {
            let before = log[..first]
                .iter()
                .filter(|&&(at, retry)| !retry && at + window > start)
                .count();
            let kept = before as u128 * ratio + u128::from(window) * per_milli;
            let mut paid = kept.max(u128::from(RETRY));
            let mut spent = 0;
            for &(at, retry) in &log[first..] {
                if retry {
                    spent += u128::from(RETRY);
                } else {
                    paid += ratio;
                }
                let floor = u128::from(at - start) * per_milli;
                prop_assert!(spent <= paid + floor, "from {} to {} ms", start, at);
            }
        }
        if retries_min_per_second == 0 {
            let retries = log.iter().filter(|(_, retry)| *retry).count() as u128;
            let requests = log.len() as u128 - retries;
            prop_assert!(retries * u128::from(RETRY) <= requests * ratio);
        }
    }

    /// Ticked before each question, the gate answers as the controller does; ticked less often it
    /// still never grants more than the requests so far pay for.
    #[test]
    fn the_gate_keeps_the_same_account(
        operations in operations(),
        ratio in 0.0..=1.0_f64,
        lazy in 1_usize..20,
    ) {
        let config = config(ratio);
        let mut alone = RetryBudget::new(config);
        let mut eager = BudgetController::new(config);
        let mut eager_lanes = [eager.gate().lane(), eager.gate().lane()];
        let mut seldom = BudgetController::new(config);
        let mut lane = seldom.gate().lane();
        let mut now = Timestamp::ZERO;
        for (i, operation) in operations.into_iter().enumerate() {
            match operation {
                Operation::Deposit => {
                    alone.deposit(now);
                    eager_lanes[i % 2].deposit();
                    lane.deposit();
                }
                Operation::Withdraw => {
                    prop_assert_eq!(eager_lanes[i % 2].withdraw(), alone.withdraw(now));
                    let _ = lane.withdraw();
                }
                Operation::Wait(step) => now += Duration::from_millis(step),
            }
            eager.tick(now);
            if i % lazy == 0 {
                seldom.tick(now);
            }
            let counts = seldom.gate().counts();
            let paid = u128::from(counts.requests) * u128::from(config.ratio.billionths());
            let spent = u128::from(counts.retries) * u128::from(RETRY);
            prop_assert!(spent + u128::from(seldom.gate().balance()) <= paid);
        }
    }
}
