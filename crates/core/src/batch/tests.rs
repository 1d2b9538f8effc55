use super::*;
use crate::batch::pace::Hold;
use crate::decision::Cause;
use crate::rng::{Rng, SeededRng};
use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
use proptest::prelude::*;
use std::collections::BTreeMap;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(ms)
}

fn proxy(queue_max: usize) -> BatchProxy<u64> {
    BatchProxy::new(BatchConfig { queue_max, ..BatchConfig::default() }).unwrap()
}

fn queued(offer: &Offer<u64>) -> Ticket {
    let Offer::Queued(ticket) = offer else { panic!("{offer:?}") };
    *ticket
}

/// What comes out when every item is answered at once, in steps of a second.
fn drain(proxy: &mut BatchProxy<u64>, mut now: Timestamp) -> Vec<u64> {
    let mut order = Vec::new();
    while proxy.queued() > 0 {
        now += Duration::from_secs(1);
        while let Some(release) = proxy.release(now) {
            let (Release::Send { item, .. } | Release::Expired { item, .. }) = release;
            order.push(item);
            proxy.on_result(Outcome::Served, Duration::from_millis(1), now);
        }
    }
    order
}

#[test]
fn work_goes_on_by_criticality_then_deadline_then_age() {
    let mut proxy = proxy(100);
    for (item, criticality, deadline) in [
        (1, Sheddable, Some(900)),
        (2, SheddablePlus, None),
        (3, SheddablePlus, Some(990)),
        (4, SheddablePlus, Some(950)),
        (5, Critical, None),
        (6, Critical, None),
        (7, SheddablePlus, Some(950)),
    ] {
        let deadline = deadline.map(Timestamp::from_secs);
        queued(&proxy.offer(item, criticality, deadline, at(0)));
    }
    assert_eq!(drain(&mut proxy, at(0)), [5, 6, 4, 7, 3, 2, 1]);
}

#[test]
fn a_full_queue_refuses_the_least_critical_and_the_newest() {
    let mut proxy = proxy(3);
    let rejected = |offer: Offer<u64>| match offer {
        Offer::Queued(_) => None,
        Offer::Displaced { item, rejection, .. } | Offer::Refused { item, rejection } => {
            assert_eq!(rejection.reason, Reason::QueueFull);
            assert_eq!(rejection.cause, Some(Cause::Queue { queued: 3, limit: 3 }));
            assert!(matches!(rejection.advice, Advice::RetryAfter(_)));
            Some((item, rejection.criticality))
        }
    };
    for (item, criticality, loser) in [
        (1, Sheddable, None),
        (2, Sheddable, None),
        (3, SheddablePlus, None),
        (4, Sheddable, Some((4, Sheddable))),
        (5, SheddablePlus, Some((2, Sheddable))),
        (6, Critical, Some((1, Sheddable))),
        // The lowest that waits is now its equal.
        (7, SheddablePlus, Some((7, SheddablePlus))),
        (8, CriticalPlus, Some((5, SheddablePlus))),
        (9, CriticalPlus, Some((3, SheddablePlus))),
        (10, CriticalPlus, Some((6, Critical))),
        (11, CriticalPlus, Some((11, CriticalPlus))),
    ] {
        assert_eq!(rejected(proxy.offer(item, criticality, None, at(0))), loser, "{item}");
    }
    assert_eq!(drain(&mut proxy, at(0)), [8, 9, 10]);
}

#[test]
fn what_nobody_waits_for_is_given_back() {
    let mut proxy = proxy(2);
    let late = proxy.offer(1, Critical, Some(at(5)), at(5));
    let Offer::Refused { item: 1, rejection } = late else { panic!("{late:?}") };
    assert_eq!(rejection.reason, Reason::DeadlinePassed);
    queued(&proxy.offer(2, Critical, Some(at(10)), at(5)));
    queued(&proxy.offer(3, Sheddable, Some(at(20)), at(5)));
    // An expired item makes room for anyone.
    let displaced = proxy.offer(4, Sheddable, Some(at(900)), at(10));
    let Offer::Displaced { item: 2, rejection, .. } = displaced else { panic!("{displaced:?}") };
    assert_eq!(rejection.reason, Reason::DeadlinePassed);
    let expired = proxy.release(at(20));
    let Some(Release::Expired { item: 3, rejection }) = expired else { panic!("{expired:?}") };
    assert_eq!(rejection.advice, Advice::DontRetry);
    assert_eq!(proxy.release(at(20)), Some(Release::Send { item: 4, criticality: Sheddable }));
    assert_eq!(proxy.release(at(20)), None);
}

/// A proxy whose pace has settled at one release each 10 ms, with answers after 20 ms.
fn settled() -> (BatchProxy<u64>, Timestamp) {
    let mut proxy = proxy(1_000);
    let mut now = at(0);
    // One always waits, so that the window counts as used.
    let mut last = queued(&proxy.offer(0, Sheddable, None, now));
    let mut answer = |proxy: &mut BatchProxy<u64>, outcome| {
        now += Duration::from_secs(1);
        last = queued(&proxy.offer(0, Sheddable, None, now));
        assert!(proxy.release(now).is_some());
        proxy.on_result(outcome, Duration::from_millis(20), now);
    };
    // Windows of 1, 1.25, 1.5 to 2.5, of which a refusal leaves 2.
    for _ in 0..6 {
        answer(&mut proxy, Outcome::Served);
    }
    answer(&mut proxy, Outcome::Refused(Advice::RetryElsewhere));
    assert_eq!(proxy.cancel(last), Some(0));
    now += Duration::from_secs(1);
    assert_eq!(proxy.pace().window(), 2.0);
    assert_eq!(proxy.pace().spacing(), Duration::from_millis(10));
    // The first sample counts as off by half, and five seconds forget most of that.
    assert_eq!(proxy.pace().answer_time().as_micros() / 100, 201);
    (proxy, now)
}

#[test]
fn what_cannot_be_reached_in_time_is_refused_at_once() {
    let (mut proxy, now) = settled();
    let after = |ms| Some(now + Duration::from_millis(ms));
    // Alone, it may try its luck.
    let ticket = queued(&proxy.offer(0, Sheddable, after(5), now));
    assert_eq!(proxy.cancel(ticket), Some(0));
    for item in 1..=10 {
        queued(&proxy.offer(item, Critical, None, now));
    }
    for (criticality, ms, queued, limit) in [
        // Ten releases of 10 ms, then 20.1 ms to the answer.
        (Sheddable, 120, 10, 10),
        (Sheddable, 60, 10, 4),
        // Before those without a deadline.
        (Critical, 10, 0, 0),
    ] {
        let offer = proxy.offer(99, criticality, after(ms), now);
        let Offer::Refused { item: 99, rejection } = offer else { panic!("{ms}: {offer:?}") };
        if limit == 0 {
            assert_eq!(rejection.reason, Reason::DeadlinePassed);
        } else {
            assert_eq!(rejection.reason, Reason::QueueFull);
            assert_eq!(rejection.cause, Some(Cause::Queue { queued, limit }), "{ms}");
        }
    }
    queued(&proxy.offer(11, Sheddable, after(121), now));
    queued(&proxy.offer(12, Critical, after(25), now));
    // 20.1 ms before its deadline it is given back, as others may be better off.
    assert_eq!(proxy.next_deadline(), Some(proxy.pace().due()).filter(|due| *due <= now));
    let late = proxy.release(now + Duration::from_millis(5));
    assert!(matches!(late, Some(Release::Expired { item: 12, .. })), "{late:?}");
}

#[test]
fn a_proxy_that_was_slow_learns_that_it_no_longer_is() {
    let mut proxy = proxy(100);
    let mut now = at(0);
    queued(&proxy.offer(0, Sheddable, None, now));
    assert!(proxy.release(now).is_some());
    now += Duration::from_secs(3);
    proxy.on_result(Outcome::Served, Duration::from_secs(3), now);
    assert!(proxy.pace().answer_time() > Duration::from_secs(3));
    // Everyone has less patience than that, and answers take a tenth of it.
    let (mut sent, mut offered) = (0, 0);
    for _ in 0..200 {
        now += Duration::from_millis(100);
        for item in 0..2 {
            offered += 1;
            let _ = proxy.offer(item, Sheddable, Some(now + Duration::from_millis(200)), now);
        }
        while let Some(release) = proxy.release(now) {
            if matches!(release, Release::Send { .. }) {
                sent += 1;
                proxy.on_result(Outcome::Served, Duration::from_millis(20), now);
            }
        }
    }
    assert!(sent * 4 > offered * 3, "{sent} of {offered}");
}

#[test]
fn a_worker_that_went_away_takes_its_item_back() {
    let mut proxy = proxy(3);
    let deadline = Some(Timestamp::from_secs(9));
    let [first, second, third] = [(1, None), (2, deadline), (3, None)]
        .map(|(item, deadline)| queued(&proxy.offer(item, Sheddable, deadline, at(0))));
    assert_eq!(proxy.cancel(first), Some(1));
    assert_eq!(proxy.cancel(first), None);
    assert_eq!(proxy.queued(), 2);
    // Its place is free, and its ticket is nobody else's.
    let fourth = queued(&proxy.offer(4, Sheddable, None, at(0)));
    assert_ne!(fourth, first);
    assert_eq!(proxy.release(at(0)), Some(Release::Send { item: 2, criticality: Sheddable }));
    assert_eq!(proxy.cancel(second), None);
    assert_eq!(proxy.outstanding(), 1);
    let window = proxy.pace().window();
    proxy.on_result(Outcome::Abandoned, Duration::ZERO, at(1));
    assert_eq!((proxy.outstanding(), proxy.pace().window()), (0, window));
    assert_eq!(proxy.pace().answer_time(), Duration::ZERO);
    assert_eq!(proxy.cancel(third), Some(3));
    assert_eq!(drain(&mut proxy, at(0)), [4]);
}

#[test]
fn a_pushback_is_waited_for_exactly_and_deadlines_go_on() {
    let mut proxy = proxy(10);
    for (item, deadline) in [(1, None), (2, Some(at(400))), (3, Some(at(500)))] {
        queued(&proxy.offer(item, Sheddable, deadline, at(0)));
    }
    assert_eq!(proxy.release(at(0)), Some(Release::Send { item: 2, criticality: Sheddable }));
    // One is outstanding and no more may be: only a deadline is left to wait for.
    assert_eq!(proxy.next_deadline(), Some(at(500)));
    let pushback = Outcome::Refused(Advice::RetryAfter(Duration::from_secs(3)));
    proxy.on_result(pushback, Duration::from_millis(1), at(1));
    assert_eq!(proxy.next_deadline(), Some(at(500)));
    assert!(matches!(proxy.release(at(500)), Some(Release::Expired { item: 3, .. })));
    assert_eq!(proxy.next_deadline(), Some(at(3_001)));
    assert_eq!(proxy.release(at(3_000)), None);
    assert_eq!(proxy.release(at(3_001)), Some(Release::Send { item: 1, criticality: Sheddable }));
}

#[test]
fn a_pace_that_makes_no_sense_is_refused() {
    let default = PaceConfig::default();
    for (config, name) in [
        (PaceConfig { growth: f64::NAN, ..default }, "growth"),
        // A window that never grows, or never shrinks, and requests that are not spaced at all.
        (PaceConfig { growth: 0.0, ..default }, "growth"),
        (PaceConfig { growth_fast: 0.0, ..default }, "fast growth"),
        (PaceConfig { growth_fast: -0.1, ..default }, "fast growth"),
        (PaceConfig { backoff: 0.0, ..default }, "backoff"),
        (PaceConfig { backoff: 1.0, ..default }, "backoff"),
        (PaceConfig { probe_interval: Duration::ZERO, ..default }, "the probe interval in seconds"),
        (PaceConfig { latency_tolerance: f64::INFINITY, ..default }, "latency tolerance"),
        (PaceConfig { utilization_target: 0.0, ..default }, "the utilization to aim at"),
        (PaceConfig { window_max: 0, ..default }, "the largest window"),
    ] {
        assert_eq!(Pace::new(config).unwrap_err().quantity, name);
        assert!(BatchProxy::<()>::new(BatchConfig { pace: config, queue_max: 1 }).is_err());
    }
}

#[test]
fn a_refusal_costs_one_cut_for_all_that_were_under_way() {
    let mut pace = Pace::new(PaceConfig::default()).unwrap();
    // Fast growth to begin with: each accept adds a quarter.
    for ms in 1..=36 {
        pace.on_release(at(ms));
        pace.on_result(Outcome::Served, Duration::from_millis(1), true, at(ms));
    }
    assert_eq!(pace.window(), 10.0);
    let refused = Outcome::Refused(Advice::RetryElsewhere);
    for (ms, latency, window) in [
        (100, 10, 8.0),
        // Sent before the cut took effect.
        (105, 10, 8.0),
        (109, 10, 8.0),
        (111, 10, 6.4),
    ] {
        pace.on_result(refused, Duration::from_millis(latency), true, at(ms));
        assert!((pace.window() - window).abs() < 1e-9, "{} at {ms} ms", pace.window());
    }
    // From now on an accept adds a hundredth, as 6.4 is not far below the 10 that worked.
    pace.on_result(Outcome::Served, Duration::from_millis(1), true, at(112));
    assert!((pace.window() - 6.41).abs() < 1e-9);
    // Nothing waits and little is under way: an unused window does not grow.
    pace.on_result(Outcome::Served, Duration::from_millis(1), false, at(113));
    assert!((pace.window() - 6.41).abs() < 1e-9);
}

#[test]
fn a_window_does_not_grow_while_latency_is_high() {
    let mut pace = Pace::new(PaceConfig::default()).unwrap();
    let mut now = Timestamp::ZERO;
    let mut accept = |pace: &mut Pace, latency_ms, times| {
        for _ in 0..times {
            now += Duration::from_millis(10);
            pace.on_result(Outcome::Served, Duration::from_millis(latency_ms), true, now);
        }
        pace.window()
    };
    let calm = accept(&mut pace, 10, 300);
    let rising = accept(&mut pace, 40, 300);
    assert!(rising > calm, "the average takes a moment");
    assert_eq!(accept(&mut pace, 40, 300), rising);
    assert!(accept(&mut pace, 10, 300) > rising);
}

#[test]
fn one_lucky_answer_is_no_latency_to_go_by() {
    let mut pace = Pace::new(PaceConfig::default()).unwrap();
    let mut now = Timestamp::ZERO;
    for latency_us in core::iter::once(10).chain(core::iter::repeat_n(10_000, 100)) {
        now += Duration::from_millis(10);
        pace.on_result(Outcome::Served, Duration::from_micros(latency_us), true, now);
    }
    assert!((pace.window() - (1.0 + 101.0 * 0.25)).abs() < 1e-9, "{}", pace.window());
}

#[test]
fn a_window_gives_way_while_backends_are_busy_down_to_one() {
    let mut pace = Pace::new(PaceConfig::default()).unwrap();
    let mut now = Timestamp::ZERO;
    let mut accept = |pace: &mut Pace, utilization, times| {
        for _ in 0..times {
            now += Duration::from_millis(10);
            pace.on_load(utilization, now);
            pace.on_result(Outcome::Served, Duration::from_millis(50), true, now);
        }
        pace.window()
    };
    // Reports show what was sent after a second: 50 ms of latency are 5 % of that, and half of it
    // is a step.
    let grown = accept(&mut pace, 0.5, 100);
    assert!((grown - 3.5).abs() < 1e-9, "{grown}");
    // An average over 250 ms from 0.5 towards 0.9 is above 0.8 after 250 x ln 4 = 347 ms. From
    // then on it is a step of 1 % down for each answer.
    let peak = accept(&mut pace, 0.9, 35);
    assert!((peak - 4.35).abs() < 0.04, "{peak}");
    let given = accept(&mut pace, 0.9, 200);
    assert!((peak - given - 2.0).abs() < 0.03, "{peak} {given}");
    assert_eq!(accept(&mut pace, 0.9, 2_000).to_bits(), 1.0_f64.to_bits());
    // What refusals took below one, reports leave alone.
    now += Duration::from_secs(1);
    pace.on_result(Outcome::Refused(Advice::RetryElsewhere), Duration::ZERO, true, now);
    let cut = pace.window();
    assert!((cut - 0.8).abs() < 1e-9);
    pace.on_load(0.9, now);
    pace.on_result(Outcome::Served, Duration::from_millis(50), true, now);
    assert_eq!(pace.window().to_bits(), cut.to_bits());
    // Nonsense is no report.
    let mut unheard = Pace::new(PaceConfig::default()).unwrap();
    for nonsense in [f64::NAN, f64::NEG_INFINITY, -1.0, 0.0] {
        unheard.on_load(nonsense, now);
    }
    unheard.on_result(Outcome::Served, Duration::from_millis(50), true, now);
    assert!((unheard.window() - 1.25).abs() < 1e-9);
}

/// Whoever reported and stopped is not what it said last: a restart without the reports, a proxy
/// between that drops them.
#[test]
fn reports_that_stop_hold_nothing() {
    let mut pace = Pace::new(PaceConfig::default()).unwrap();
    let mut now = Timestamp::ZERO;
    let mut accept = |pace: &mut Pace, utilization: Option<f64>, times| {
        for _ in 0..times {
            now += Duration::from_millis(10);
            if let Some(utilization) = utilization {
                pace.on_load(utilization, now);
            }
            pace.on_result(Outcome::Served, Duration::from_millis(50), true, now);
        }
        (pace.window(), pace.hold(now))
    };
    accept(&mut pace, Some(0.5), 100);
    let (busy, hold) = accept(&mut pace, Some(0.9), 1_000);
    assert_eq!((busy.to_bits(), hold), (1.0_f64.to_bits(), Hold::Busy));
    // A gap between reports is none.
    let (still, hold) = accept(&mut pace, None, 400);
    assert_eq!((still.to_bits(), hold), (1.0_f64.to_bits(), Hold::Busy));
    // From five seconds on each answer is worth a hundredth, as if nobody had ever reported.
    let (grown, hold) = accept(&mut pace, None, 600);
    assert_eq!(hold, Hold::Growing);
    assert!((grown - 6.0).abs() < 0.02, "{grown}");
}

/// Backends that take `rate` requests of batch work a second and refuse the rest.
struct Backends {
    latency_ms: f64,
    tokens: f64,
    /// By when they come back: (outcome, latency).
    answers: BTreeMap<(Timestamp, u64), (Outcome, Duration)>,
}

#[derive(Debug, Default)]
struct Tally {
    accepted: u64,
    refused: u64,
    outstanding_max: u64,
    /// Seconds in which nothing was accepted.
    idle_seconds: u64,
}

/// Ten thousand workers always have work; `rate_at` says what the backends take at each second.
fn closed_loop(
    latency_ms: f64,
    seconds: core::ops::Range<u64>,
    rate_at: impl Fn(u64) -> f64,
) -> Tally {
    let mut rng = SeededRng::new(11);
    let mut backends = Backends { latency_ms, tokens: 0.0, answers: BTreeMap::new() };
    let mut proxy = proxy(100);
    let mut tally = Tally::default();
    let mut accepted_this_second = 0;
    let mut number = 0;
    for ms in 0..seconds.end * 1_000 {
        let (second, now) = (ms / 1_000, at(ms));
        let counted = seconds.contains(&second);
        let rate = rate_at(second);
        // Half a tenth of a second's worth, or one request, may come at once.
        backends.tokens = (backends.tokens + rate / 1_000.0).min((rate * 0.05).max(1.0));
        while let Some(entry) = backends.answers.first_entry().filter(|e| e.key().0 <= now) {
            let (outcome, latency) = entry.remove();
            proxy.on_result(outcome, latency, now);
        }
        while proxy.queued() < 100 {
            number += 1;
            queued(&proxy.offer(number, Sheddable, None, now));
        }
        while let Some(release) = proxy.release(now) {
            assert!(matches!(release, Release::Send { .. }));
            let accept = backends.tokens >= 1.0;
            let (outcome, wait_ms) = if accept {
                backends.tokens -= 1.0;
                (Outcome::Served, backends.latency_ms * (0.5 + rng.unit()))
            } else {
                (Outcome::Refused(Advice::RetryElsewhere), 1.0)
            };
            let latency = Duration::from_nanos((wait_ms * 1e6) as u64);
            number += 1;
            backends.answers.insert((now + latency, number), (outcome, latency));
            if counted {
                tally.accepted += u64::from(accept);
                tally.refused += u64::from(!accept);
                tally.outstanding_max = tally.outstanding_max.max(proxy.outstanding());
            }
            accepted_this_second += u64::from(accept);
        }
        if ms % 1_000 == 999 {
            tally.idle_seconds += u64::from(counted && accepted_this_second == 0);
            accepted_this_second = 0;
        }
    }
    tally
}

#[test]
fn the_pace_settles_at_what_the_backends_take() {
    for (rate, latency_ms, fewest_of_rate) in [
        // The right windows are 0.05, 0.5, 2, 20, 20 and 100. The first and the one of a second's
        // latency take half a minute to grow back what a refusal cut.
        (5.0, 10.0, 0.7),
        (50.0, 10.0, 0.95),
        (200.0, 10.0, 0.95),
        (2_000.0, 10.0, 0.95),
        (20.0, 1_000.0, 0.65),
        (500.0, 200.0, 0.9),
    ] {
        let tally = closed_loop(latency_ms, 60..120, |_| rate);
        let refused = tally.refused as f64 / (tally.accepted + tally.refused) as f64;
        let used = tally.accepted as f64 / (60.0 * rate);
        let name = format!("{rate} a second of {latency_ms} ms: {tally:?}");
        assert!(refused < 0.1, "{name}");
        assert!(used > fewest_of_rate, "{name}");
        assert_eq!(tally.idle_seconds, 0, "{name}");
        let window = rate * latency_ms / 1_000.0;
        assert!(tally.outstanding_max as f64 <= 1.5 * window + 2.0, "{name}");
    }
}

#[test]
fn the_pace_follows_interactive_traffic_and_outlasts_an_outage() {
    // Interactive traffic takes 100 to 900 of 1,000, in steps of ten seconds.
    let left = |second: u64| [900.0, 500.0, 100.0, 300.0][(second / 10 % 4) as usize];
    let tally = closed_loop(20.0, 40..120, left);
    let refused = tally.refused as f64 / (tally.accepted + tally.refused) as f64;
    assert!(refused < 0.1, "{tally:?}");
    assert!(tally.accepted as f64 > 0.7 * 450.0 * 80.0, "{tally:?}");
    assert_eq!(tally.idle_seconds, 0, "{tally:?}");

    // For a minute nothing is taken: a probe a second or so, and back within ten seconds.
    let outage = |second: u64| if (60..120).contains(&second) { 0.0 } else { 200.0 };
    let during = closed_loop(10.0, 70..120, outage);
    assert!((40..=60).contains(&during.refused), "{during:?}");
    let after = closed_loop(10.0, 130..140, outage);
    assert!(after.accepted as f64 > 0.8 * 200.0 * 10.0, "{after:?}");
}

/// Backends that take 50 a second, for 50 to 150 ms each, and refuse the rest. Each second
/// `offered` items come that have `patience`. Returns, of the second half of a minute, how many
/// were taken, and how many of these came back in time.
fn overload(offered: u64, patience_ms: impl Fn(u64) -> u64) -> (u64, u64) {
    const END: u64 = 60_000;
    let mut proxy = BatchProxy::new(BatchConfig::default()).unwrap();
    let mut rng = SeededRng::new(offered);
    let (mut tokens, mut taken, mut in_time, mut number) = (0_u64, 0, 0, 0_u64);
    // By when they come back: (deadline, outcome, latency).
    let mut answers: BTreeMap<(u64, u64), (u64, Outcome, u64)> = BTreeMap::new();
    for now in 0..END {
        tokens = (tokens + 50).min(5_000);
        if now % (1_000 / offered) == 0 {
            number += 1;
            let deadline = now + patience_ms(number);
            let _ = proxy.offer(deadline, Sheddable, Some(at(deadline)), at(now));
        }
        while let Some(entry) = answers.first_entry().filter(|e| e.key().0 <= now) {
            let (deadline, outcome, latency) = entry.remove();
            proxy.on_result(outcome, Duration::from_millis(latency), at(now));
            if outcome == Outcome::Served && now >= END / 2 {
                taken += 1;
                in_time += u64::from(now <= deadline);
            }
        }
        while let Some(release) = proxy.release(at(now)) {
            let Release::Send { item: deadline, .. } = release else { continue };
            number += 1;
            let (outcome, latency) = if tokens >= 1_000 {
                tokens -= 1_000;
                (Outcome::Served, 50 + rng.below(101))
            } else {
                (Outcome::Refused(Advice::RetryElsewhere), 1)
            };
            answers.insert((now + latency, number), (deadline, outcome, latency));
        }
    }
    (taken, in_time)
}

/// At twice what the backends take half of the work has to be thrown away, not all of it.
#[test]
fn work_that_is_sent_comes_back_in_time() {
    let mixed = |number: u64| [500, 5_000, 20_000][(number % 3) as usize];
    for (case, (taken, in_time)) in [
        ("2x, 5 s", overload(100, |_| 5_000)),
        ("10x, 5 s", overload(500, |_| 5_000)),
        ("2x, 300 ms", overload(100, |_| 300)),
        ("2x, mixed", overload(100, mixed)),
    ] {
        assert!(taken > 1_200, "{case}: {taken} of 1,500");
        assert!(in_time * 100 >= taken * 95, "{case}: {in_time} of {taken} came in time");
    }
}

/// Whatever refuses most requests at any pace says nothing about the pace.
#[test]
fn the_pace_comes_back_from_a_partial_outage() {
    // One in so many is taken, for half a minute.
    for one_in in [2, 20] {
        let mut proxy = proxy(100);
        let mut rng = SeededRng::new(3);
        let mut busy: std::collections::VecDeque<(u64, bool)> = [].into();
        let (mut before, mut after) = (0_u64, 0_u64);
        for now in 0..125_000_u64 {
            while proxy.queued() < 100 {
                let _ = proxy.offer(0, Sheddable, None, at(now));
            }
            while let Some((_, taken)) = busy.pop_front_if(|(done, _)| *done <= now) {
                let refused = Outcome::Refused(Advice::RetryElsewhere);
                let outcome = if taken { Outcome::Served } else { refused };
                proxy.on_result(outcome, Duration::from_millis(50), at(now));
                before += u64::from(taken && (50_000..60_000).contains(&now));
                after += u64::from(taken && (115_000..125_000).contains(&now));
            }
            while let Some(Release::Send { .. }) = proxy.release(at(now)) {
                let outage = (60_000..90_000).contains(&now);
                let taken = if outage { rng.below(one_in) == 0 } else { busy.len() < 100 };
                busy.push_back((now + 50, taken));
            }
        }
        assert!(before > 15_000, "{before} of 20,000");
        assert!(after * 5 >= before * 4, "one in {one_in}: {after} after, {before} before");
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Offer { criticality: usize, deadline_ms: Option<u64> },
    Cancel(usize),
    Release,
    Result(u8),
    Wait(u64),
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..Criticality::COUNT, proptest::option::of(0_u64..2_000))
            .prop_map(|(criticality, deadline_ms)| Operation::Offer { criticality, deadline_ms }),
        1 => (0_usize..8).prop_map(Operation::Cancel),
        3 => Just(Operation::Release),
        2 => (0_u8..4).prop_map(Operation::Result),
        1 => (0_u64..500).prop_map(Operation::Wait),
    ]
}

/// How long before its deadline an item is given back.
fn head_start(proxy: &BatchProxy<u64>, others: bool) -> Duration {
    if others { proxy.pace().answer_time() } else { Duration::ZERO }
}

proptest! {
    /// Against a plain list of all that waits.
    #[test]
    fn the_queue_keeps_its_order_and_its_bound(
        operations in proptest::collection::vec(operation(), 0..300), queue_max in 0_usize..8,
    ) {
        let mut proxy = proxy(queue_max);
        let mut waiting: BTreeMap<u64, (Criticality, Option<Timestamp>)> = BTreeMap::new();
        let mut tickets: Vec<(u64, Ticket)> = Vec::new();
        let mut now = at(0);
        for (number, operation) in (0..).zip(operations) {
            match operation {
                Operation::Wait(ms) => now += Duration::from_millis(ms),
                Operation::Result(kind) => {
                    let outcome = match kind {
                        0 => Outcome::NoAnswer,
                        1 => Outcome::Refused(Advice::RetryAfter(Duration::from_millis(7))),
                        _ => Outcome::Served,
                    };
                    proxy.on_result(outcome, Duration::from_millis(u64::from(kind)), now);
                }
                Operation::Cancel(nth) => {
                    // Of those that wait and those that do not any more.
                    if let Some((item, ticket)) = tickets.iter().rev().nth(nth) {
                        let waited = waiting.remove(item).map(|_| *item);
                        prop_assert_eq!(proxy.cancel(*ticket), waited);
                    }
                }
                Operation::Offer { criticality, deadline_ms } => {
                    let criticality = Criticality::ALL[criticality];
                    let deadline = deadline_ms.map(|ms| now + Duration::from_millis(ms));
                    let lowest = waiting.values().map(|(c, _)| *c).min();
                    let head_start = head_start(&proxy, !waiting.is_empty());
                    match proxy.offer(number, criticality, deadline, now) {
                        Offer::Queued(ticket) => {
                            waiting.insert(number, (criticality, deadline));
                            tickets.push((number, ticket));
                        }
                        Offer::Displaced { ticket, item, rejection } => {
                            tickets.push((number, ticket));
                            let (theirs, their_deadline) = waiting.remove(&item).unwrap();
                            prop_assert_eq!(rejection.criticality, theirs);
                            if rejection.reason == Reason::QueueFull {
                                prop_assert!(theirs < criticality && Some(theirs) == lowest);
                                let newer = waiting.range(item..).any(|(_, (c, _))| *c == theirs);
                                prop_assert!(!newer);
                            } else {
                                prop_assert!(their_deadline.unwrap() <= now + head_start);
                            }
                            waiting.insert(number, (criticality, deadline));
                        }
                        Offer::Refused { item, rejection } => {
                            prop_assert_eq!(item, number);
                            let Some(Cause::Queue { queued, limit }) = rejection.cause else {
                                prop_assert!(deadline.unwrap() <= now + head_start);
                                continue;
                            };
                            prop_assert!(queued >= limit);
                            let before = |(c, d): &&(Criticality, Option<Timestamp>)| {
                                let theirs = (core::cmp::Reverse(*c), d.unwrap_or(Timestamp::MAX));
                                theirs <= (core::cmp::Reverse(criticality), deadline.unwrap())
                            };
                            if limit as usize == queue_max && waiting.len() == queue_max {
                                prop_assert!(lowest.is_none_or(|lowest| lowest >= criticality));
                            } else {
                                let ahead = waiting.values().filter(before).count();
                                prop_assert_eq!(queued as usize, ahead);
                            }
                        }
                    }
                }
                Operation::Release => {
                    let ready = proxy.next_deadline();
                    let outstanding = proxy.outstanding();
                    let head_start = head_start(&proxy, waiting.len() > 1);
                    let release = proxy.release(now);
                    prop_assert_eq!(release.is_some(), ready.is_some_and(|t| t <= now));
                    match release {
                        None => {}
                        Some(Release::Expired { item, .. }) => {
                            let (_, deadline) = waiting.remove(&item).unwrap();
                            prop_assert!(deadline.unwrap() <= now + head_start);
                        }
                        Some(Release::Send { item, criticality }) => {
                            let rank = |(n, (c, d)): (&u64, &(Criticality, Option<Timestamp>))| {
                                (core::cmp::Reverse(*c), d.unwrap_or(Timestamp::MAX), *n)
                            };
                            let first = waiting.iter().min_by_key(|&e| rank(e)).map(|e| *e.0);
                            prop_assert_eq!(first, Some(item));
                            prop_assert_eq!(waiting.remove(&item).unwrap().0, criticality);
                            prop_assert_eq!(proxy.outstanding(), outstanding + 1);
                        }
                    }
                }
            }
            prop_assert_eq!(proxy.queued(), waiting.len());
            prop_assert!(proxy.queued() <= queue_max);
        }
    }

    /// Whatever is configured and reported, the window stays a number within its bounds.
    #[test]
    fn no_report_breaks_the_pace(
        growth in 1e-6..=1.0_f64, growth_fast in 1e-6..=1.0_f64, backoff in 0.01..=0.99_f64,
        tolerance in 1.0..=1000.0_f64, window_max in 1_u32.., probe in 1_000_000_u64..,
        target in 0.01..=2.0_f64, load in any::<f64>(),
        results in proptest::collection::vec((0_u8..4, any::<u64>(), any::<u64>()), 0..60),
    ) {
        let mut pace = Pace::new(PaceConfig {
            window_max,
            growth,
            growth_fast,
            backoff,
            latency_tolerance: tolerance,
            utilization_target: target,
            probe_interval: Duration::from_nanos(probe),
            pushback_max: Duration::MAX,
        })
        .unwrap();
        for (kind, latency, now) in results {
            let (latency, now) = (Duration::from_nanos(latency), Timestamp::from_nanos(now));
            let outcome = match kind {
                0 => Outcome::NoAnswer,
                1 => Outcome::Refused(Advice::RetryAfter(latency)),
                _ => Outcome::Served,
            };
            if pace.may_release(now) {
                pace.on_release(now);
            }
            if kind == 3 {
                pace.on_load(load, now);
            }
            pace.on_result(outcome, latency, true, now);
            prop_assert!(pace.window() > 0.0);
            prop_assert!(pace.window() <= f64::from(window_max));
            prop_assert!(pace.spacing() <= Duration::from_nanos(probe));
        }
    }
}

#[test]
fn a_full_queue_refuses_at_the_gate() {
    let config = BatchConfig { queue_max: 2, ..BatchConfig::default() };
    let mut proxy = BatchProxy::new(config).unwrap();
    let gate = proxy.gate();
    let open = || Criticality::ALL.map(|level| gate.check(level).is_ok());
    assert_eq!(open(), [true; 4]);
    let _ = proxy.offer(1, SheddablePlus, None, at(0));
    assert_eq!(open(), [true; 4]);
    let _ = proxy.offer(2, Critical, None, at(0));
    // Who is above SHEDDABLE_PLUS displaces it.
    assert_eq!(open(), [false, false, true, true]);
    let told = gate.check(Sheddable).unwrap_err();
    let Offer::Refused { rejection, .. } = proxy.offer(3, Sheddable, None, at(0)) else {
        panic!("taken into a full queue")
    };
    assert_eq!(told, rejection);
    let _ = proxy.offer(4, CriticalPlus, None, at(0));
    assert_eq!(open(), [false, false, false, true]);
    assert!(proxy.release(at(0)).is_some());
    assert_eq!((open(), gate.queued()), ([true; 4], 1));
}

proptest! {
    /// As long as nothing has a deadline, the gate says what the owner does.
    #[test]
    fn the_gate_says_what_the_owner_does(
        steps in proptest::collection::vec((0_u8..4, 0_usize..4), 1..100),
        queue_max in 0_usize..5,
    ) {
        let mut proxy = BatchProxy::new(BatchConfig { queue_max, ..Default::default() }).unwrap();
        let gate = proxy.gate();
        let mut tickets = Vec::new();
        for (i, (kind, level)) in steps.into_iter().enumerate() {
            let now = at(i as u64);
            match kind {
                0 | 1 => {
                    let level = Criticality::ALL[level];
                    let said = gate.check(level);
                    match proxy.offer(i, level, None, now) {
                        Offer::Refused { rejection, .. } => prop_assert_eq!(said, Err(rejection)),
                        Offer::Queued(ticket) | Offer::Displaced { ticket, .. } => {
                            prop_assert_eq!(said, Ok(()));
                            tickets.push(ticket);
                        }
                    }
                }
                2 => drop(proxy.release(now)),
                _ => drop(tickets.pop().and_then(|ticket| proxy.cancel(ticket))),
            }
            prop_assert_eq!(gate.queued() as usize, proxy.queued());
        }
    }
}
