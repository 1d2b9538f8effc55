use super::Phase::{Draining, Gone, LameDuck, Serving, Starting};
use super::*;
use core::time::Duration;
use tidegate_core::admission::{Decision, Request};
use tidegate_core::decision::Reason;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::SeededRng;
use tidegate_core::{Cost, Criticality};

fn config() -> LifeConfig {
    LifeConfig { drain_delay: Duration::from_secs(10), drain_max: Duration::from_secs(15) }
}

/// Whether the gate refuses because the task is leaving, or has not come yet.
fn refuses(gate: &Arc<AdmissionGate>) -> bool {
    let request = Request::new(Criticality::CriticalPlus, Cost::ZERO);
    let decision = gate.lane().admit(&request, Timestamp::ZERO, &mut SeededRng::new(1));
    matches!(decision, Decision::Reject(refusal) if refusal.reason() == Reason::LameDuck)
}

#[test]
fn the_gate_is_shut_before_and_after_and_not_for_a_lame_duck() {
    let (clock, hand) = Clock::manual();
    let gate = AdmissionGate::new(QuotaConfig::default());
    assert!(!refuses(&gate));
    let life = Life::with_gate(config(), clock, Arc::clone(&gate));
    let second = Duration::from_secs(1);
    for (advance, act, phase, shut) in [
        (0, None, Starting, true),
        (1, Some(Life::ready as fn(&Life) -> Phase), Serving, false),
        (1, Some(Life::stop), LameDuck, false),
        (9, None, LameDuck, false),
        (1, None, Draining, true),
        (14, None, Draining, true),
        (1, None, Gone, true),
    ] {
        hand.advance(second * advance);
        let found = act.map_or_else(|| life.phase(), |act| act(&life));
        assert_eq!(found, phase);
        assert_eq!(refuses(&gate), shut, "{phase:?}");
        assert_eq!(life.is_leaving(), phase >= LameDuck, "{phase:?}");
    }
}

#[test]
fn what_was_due_has_happened_before_what_happens() {
    let (clock, hand) = Clock::manual();
    let life = Life::new(config(), clock);
    life.ready();
    life.stop();
    // The delay is over, though nobody has looked; so this ends the draining, not the lame duck.
    hand.advance(Duration::from_secs(12));
    assert_eq!(life.hasten(), Gone);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_moves_it_along() {
    // A clock that goes with the timers.
    let (clock, hand) = Clock::manual();
    let life = Life::new(config(), clock);
    let ticking = tokio::spawn(async move {
        loop {
            tokio::time::sleep(Duration::from_millis(100)).await;
            hand.advance(Duration::from_millis(100));
        }
    });
    let start = tokio::time::Instant::now();
    let watcher = {
        let life = life.clone();
        tokio::spawn(async move {
            let mut phases = vec![life.phase()];
            while let Some(&last) = phases.last()
                && last != Gone
            {
                phases.push(life.left(last).await);
            }
            phases
        })
    };
    tokio::task::yield_now().await;
    assert_eq!(life.try_prewarm(async { Err::<(), _>("cold") }).await, Err("cold"));
    assert_eq!(life.phase(), Starting);
    assert_eq!(life.prewarm(async { 7 }).await, 7);
    tokio::task::yield_now().await;
    life.stop();
    life.draining().await;
    let delay = start.elapsed().as_secs_f64();
    assert!((10.0..10.5).contains(&delay), "{delay}");
    // A server that never ends is dropped at the limit.
    assert_eq!(life.bound(std::future::pending::<()>()).await, None);
    let whole = start.elapsed().as_secs_f64();
    assert!((25.0..25.5).contains(&whole), "{whole}");
    assert_eq!(watcher.await.unwrap(), [Starting, Serving, LameDuck, Draining, Gone]);
    ticking.abort();
}

#[test]
fn it_is_gone_when_the_last_has_finished() {
    let life = Life::new(config(), Clock::manual().0);
    life.ready();
    let (first, second) = (life.hold(), life.hold());
    drop(first);
    drop(second);
    assert_eq!(life.phase(), Serving, "only a task that drains has an end");
    let (first, second) = (life.hold(), life.hold());
    life.stop();
    life.hasten();
    drop(first);
    assert_eq!(life.phase(), Draining);
    drop(second);
    assert_eq!(life.phase(), Gone);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_is_not_waited_for() {
    let life = Life::new(config(), Clock::manual().0);
    life.ready();
    life.stop();
    life.hasten();
    assert_eq!(life.bound(async { 3 }).await, Some(3));
    assert_eq!(life.phase(), Gone);
}
