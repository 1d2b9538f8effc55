//! Measures of records that are written by hand.

use super::*;
use crate::world::record::{DoormanSecond, Record};
use tidegate_core::Timestamp;

/// One service of two tasks of two cores each, with a capacity of 200 requests a second.
fn scenario(checks: &[&str]) -> Scenario {
    let mut text = "\
name: hand
story: Written by hand.
lasts: 10s
services: { api: { tasks: 2, cores: 2, work: 20ms }, db: { tasks: 1, work: 1ms } }
clients: { web: { service: api, rate: 100/s }, jobs: { service: api, rate: 100/s } }
customers: { good: {} }
windows: { early: 0s..4s, late: 4s..8s }
variants: { other: {} }
checks:
"
    .to_owned();
    for check in checks {
        text = format!("{text}  - {{ {check} }}\n");
    }
    Scenario::parse("hand.yaml", &text).unwrap_or_else(|refused| panic!("{refused}"))
}

fn record() -> Record {
    Record::new(2, &[2, 1], Duration::from_secs(11), 2)
}

fn measured(check: &str, records: [&Record; 2]) -> Option<f64> {
    scenario(&[check]).judge(&records)[0].measured
}

/// Compares each check with what was worked out by hand.
#[track_caller]
fn table(records: [&Record; 2], rows: &[(&str, Option<f64>)]) {
    for (check, expected) in rows {
        let found = measured(&format!("{check}, at_most: 1"), records);
        let same = match (found, expected) {
            (Some(found), Some(expected)) => (found - expected).abs() < 1e-9,
            (found, expected) => found.is_none() && expected.is_none(),
        };
        assert!(same, "{check}: {found:?}, not {expected:?}");
    }
}

#[test]
fn counts_of_clients() {
    let (mut one, mut other) = (record(), record());
    // The first second of web: 10 requests a tenth, 6 of them served; 4 and 2 are SHEDDABLE.
    for bin in &mut one.clients[0][0..10] {
        bin.offered = [4, 0, 6, 0];
        bin.served = [2, 0, 4, 0];
        bin.answers = 5;
        bin.degraded = 1;
        bin.attempts = 15;
        bin.throttled = 2;
        bin.customers = vec![[7, 3], [3, 3]];
    }
    for bin in &mut one.clients[1][0..40] {
        bin.offered = [0, 0, 0, 5];
        bin.served = [0, 0, 0, 5];
        bin.answers = 5;
    }
    for bin in &mut other.clients[0][0..10] {
        bin.offered = [0, 0, 20, 0];
        bin.served = [0, 0, 3, 0];
        bin.answers = 3;
    }
    table(
        [&one, &other],
        &[
            ("success: web, during: early", Some(0.6)),
            ("failed: web, during: early", Some(0.4)),
            ("success: web, criticality: SHEDDABLE, during: early", Some(0.5)),
            ("success: web, criticality: CRITICAL_PLUS, during: early", None),
            ("success: web, customer: good, during: early", Some(1.0)),
            ("success: web, customer: others, during: early", Some(3.0 / 7.0)),
            ("success: web, during: late", None),
            ("success: web, variant: other, during: early", Some(0.15)),
            // (60 + 200) of (100 + 200), of both clients and of the service that both ask.
            ("success: [web, jobs], during: early", Some(260.0 / 300.0)),
            ("success: api, during: early", Some(260.0 / 300.0)),
            ("degraded: web, during: early", Some(0.2)),
            ("throttled: web, during: early", Some(0.2)),
            ("amplification: web, during: early", Some(1.5)),
            // A quarter as much in the other variant: 0.15 of 0.6.
            ("success: web, variant: other, during: early, times: { variant: base }", Some(0.25)),
            ("success: web, during: early, times: { of: jobs }", Some(0.6)),
            ("success: web, during: early, times: { criticality: SHEDDABLE }", Some(1.2)),
            ("success: web, during: early, times: { during: late }", None),
        ],
    );
    // Rates: 50 answers in 4 s are 12.5 a second, of the 200 that can be done.
    let per_second = measured("goodput: web, during: early, at_most: 1/s", [&one, &other]);
    assert_eq!(per_second, Some(12.5));
    let share = measured("goodput: web, during: early, at_most: 1%", [&one, &other]);
    assert_eq!(share, Some(0.0625));
    // Both share one service: its capacity counts once.
    let both = measured("offered: [web, jobs], during: early, at_most: 1%", [&one, &other]);
    assert_eq!(both, Some(300.0 / 4.0 / 200.0));
}

#[test]
fn counts_of_services() {
    let mut record = record();
    for bin in &mut record.clients[0][0..10] {
        bin.offered = [0, 0, 10, 0];
    }
    for bin in &mut record.services[0][0..10] {
        bin.arrived = 16;
        bin.admitted = 8;
        bin.rejected = [4, 2, 1, 1];
        bin.reasons = [0, 1, 2, 5];
        bin.dont_retry = 6;
        bin.wasted = 2;
    }
    for bin in &mut record.services[1][0..10] {
        bin.arrived = 30;
    }
    // Busy core-seconds by second: 2 cores, so 1.0 is half of what there is.
    record.busy[0] = vec![vec![1.0; 10], vec![2.0, 2.0, 2.0, 2.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]];
    record.busy[1] = vec![vec![0.0; 10]];
    table(
        [&record, &record],
        &[
            ("refused: api, during: early", Some(80.0)),
            ("refused: api, criticality: SHEDDABLE, during: early", Some(40.0)),
            ("refused: api, reason: quota, during: early", Some(20.0)),
            ("refused: api, during: late", Some(0.0)),
            ("refused_share: api, during: early", Some(0.5)),
            ("rejects_per_accept: api, during: early", Some(1.0)),
            ("dont_retry: api, during: early", Some(0.75)),
            ("wasted: api, during: early", Some(0.25)),
            ("wasted: db, during: early", None),
            // Arrivals for each request of clients.
            ("amplification: api, during: early", Some(1.6)),
            ("amplification: db, during: early", Some(3.0)),
            ("amplification: db, during: early, per: jobs", None),
            ("utilization: api, during: early", Some(0.75)),
            ("utilization: api, during: late", Some(0.375)),
            ("utilization: api, during: late, tasks: 1", Some(0.25)),
            ("cpu_spread: api, during: early", Some(2.0)),
            ("cpu_peak: api, during: early", Some(4.0 / 3.0)),
            ("cpu_spread: db, during: early", None),
        ],
    );
}

#[test]
fn recovery_is_when_it_stays_well() {
    // 100 requests a tenth; a tenth with `lost` requests lost.
    let lossy = |losses: &[(usize, u32)]| {
        let mut record = record();
        for bin in &mut record.clients[0] {
            (bin.offered, bin.served) = ([0, 0, 100, 0], [0, 0, 100, 0]);
        }
        for &(tenth, lost) in losses {
            record.clients[0][tenth].served[2] -= lost;
        }
        record
    };
    let from_2 = |losses: &[(usize, u32)]| {
        let record = lossy(losses);
        measured("recovery: web, after: 2s, at_most: 1s", [&record, &record])
    };
    assert_eq!(from_2(&[]), Some(0.0));
    // What was before does not count.
    assert_eq!(from_2(&[(19, 100)]), Some(0.0));
    // 1 % of a second may be lost: that is 10.
    assert_eq!(from_2(&[(25, 10)]), Some(0.0));
    // A bad tenth number 25 is in the seconds from 1.6 to 2.5: the first without begins at 2.6.
    let close = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
    assert!(close(from_2(&[(25, 11)]), 0.6));
    // A relapse counts, however long after.
    assert!(close(from_2(&[(25, 50), (70, 50)]), 5.1));
    // Bad until the end is no recovery.
    assert_eq!(from_2(&[(99, 50)]), None);
    // Unless somebody looks no further.
    let record = lossy(&[(99, 50)]);
    let until = "recovery: web, after: 2s, until: 9s, at_most: 1s";
    assert_eq!(measured(until, [&record, &record]), Some(0.0));
    let held = "recovery: web, after: 2s, holding: 90%, at_most: 1s";
    assert_eq!(measured(held, [&record, &record]), Some(0.0));
}

#[test]
fn order_shows_the_largest_inversion() {
    let mut record = record();
    let order = |record: &Record| {
        let scenario = scenario(&["success: web, order: criticality, during: early"]);
        let judged = scenario.judge(&[record, record])[0].clone();
        (judged.measured, judged.passed)
    };
    record.clients[0][0].offered = [10, 10, 0, 10];
    record.clients[0][0].served = [2, 5, 0, 10];
    assert_eq!(order(&record), (Some(0.0), true));
    // CRITICAL_PLUS has 0.1 less than SHEDDABLE_PLUS, the next one that there is.
    record.clients[0][0].served = [2, 10, 0, 9];
    let (inversion, passed) = order(&record);
    assert!((inversion.unwrap() - 0.1).abs() < 1e-9 && !passed);
    // One criticality alone has no order.
    record.clients[0][0].offered = [0, 0, 0, 10];
    assert_eq!(order(&record), (None, false));
}

#[test]
fn bounds_are_bounds() {
    let mut record = record();
    record.clients[0][0].offered[2] = 4;
    record.clients[0][0].served[2] = 3;
    for (bounds, passed) in [
        ("at_least: 75%", true),
        ("at_most: 75%", true),
        ("at_least: 75.1%", false),
        ("at_most: 0.749", false),
        ("at_least: 70%, at_most: 80%", true),
        ("at_least: 76%, at_most: 80%", false),
    ] {
        let scenario = scenario(&[&format!("success: web, {bounds}")]);
        assert_eq!(scenario.judge(&[&record, &record])[0].passed, passed, "{bounds}");
    }
    // What was not measured is not within bounds.
    let scenario = scenario(&["success: jobs, at_most: 100%"]);
    let judged = &scenario.judge(&[&record, &record])[0];
    assert_eq!((judged.measured, judged.passed), (None, false));
    assert_eq!(judged.line(), "FAIL  success of jobs all the time: nothing (≤ 100 %)");
}

#[test]
fn latencies_by_window() {
    let mut record = record();
    for (second, millis) in [(0, 10), (1, 10), (5, 100)] {
        for _ in 0..100 {
            record.latency(0, Timestamp::from_secs(second), Duration::from_millis(millis));
        }
    }
    let p99 = |when: &str| measured(&format!("p99: web, {when}, at_most: 1s"), [&record, &record]);
    // Rounded up to an eighth of a power of two of a microsecond: 10 ms lie from 9216 to 10240 us.
    assert_eq!(p99("during: early"), Some(0.010_240));
    assert_eq!(p99("during: late"), Some(0.106_496));
    assert_eq!(p99("during: 8s..10s"), None);
}

#[test]
fn a_list_is_as_many_checks() {
    let scenario = scenario(&["success: web, during: [early, late], variant: [base, other], \
         criticality: [CRITICAL, SHEDDABLE], at_least: 1%"]);
    let what: Vec<String> =
        scenario.checks.iter().map(|check| check.what(&scenario.variants)).collect();
    assert_eq!(what.len(), 8);
    assert_eq!(what[0], "success of web, CRITICAL during early");
    assert_eq!(what[7], "success of web, SHEDDABLE during late in other");
}

#[test]
fn what_ends_leaves_what_would_be_without_it() {
    let text = "\
name: rates
story: Surges that end.
lasts: 60s
services: { api: { tasks: 1, work: 10ms } }
clients: { web: { service: api, load: 0.5 } }
events:
  - { at: 10s, for: 10s, load: { web: 3 } }
  - { at: 15s, load: { web: 0.6 } }
  - { at: 30s, for: 5s, rate: { web: 7/s } }
  - { at: 40s, for: 5s, down: api }
checks: [{ success: web, at_least: 0% }]
";
    let scenario = Scenario::parse("rates.yaml", text).unwrap();
    let changes: Vec<(u64, String)> = scenario.variants[0]
        .world()
        .changes
        .iter()
        .map(|(at, change)| (at.as_nanos() / 1_000_000_000, format!("{change:?}")))
        .collect();
    let rate = |rate: f64| format!("Rate {{ client: 0, rate: {rate:?} }}");
    let down = |down: bool| format!("Down {{ service: 0, tasks: 0..1, down: {down} }}");
    assert_eq!(
        changes,
        [
            (10, rate(300.0)),
            (15, rate(60.0)),
            (20, rate(60.0)),
            (30, rate(7.0)),
            (35, rate(60.0)),
            (40, down(true)),
            (45, down(false)),
        ]
    );
}

#[test]
fn numbers_are_written_so_that_they_do_not_lie() {
    for (value, unit, expected) in [
        (0.9999, "share", "99.990 %"),
        (0.999_999, "share", "99.999 %"),
        (1.0, "share", "100 %"),
        (0.973, "share", "97.3 %"),
        (0.0004, "share", "0.04 %"),
        (10.05, "share", "1005 %"),
        (0.000_25, "seconds", "250 µs"),
        (0.0123, "seconds", "12.3 ms"),
        (1.5, "seconds", "1.50 s"),
        (0.0, "seconds", "0 s"),
        (1.1, "times", "1.10x"),
        (0.0004, "times", "0.0004x"),
        (190.4, "per_second", "190/s"),
        (17.0, "count", "17"),
    ] {
        assert_eq!(written(value, unit), expected);
    }
}

#[test]
fn connections_of_each_task() {
    let mut one = record();
    // Four seconds of api, whose tasks have 3 and 9 connections at the end of the last.
    one.connected[0] = vec![vec![0, 0], vec![9, 3], vec![6, 6], vec![3, 9]];
    table(
        [&one, &record()],
        &[
            ("connections_least: api, during: 0s..4s", Some(0.5)),
            ("connections_most: api, during: 0s..4s", Some(1.5)),
            ("connections_most: api, during: 0s..3s", Some(1.0)),
            ("connections_most: api, tasks: 1..2, during: 0s..4s", Some(1.0)),
            // Nobody is connected, and later nothing is known.
            ("connections_least: api, during: 0s..1s", None),
            ("connections_least: api, during: 0s..5s", None),
        ],
    );
}

#[test]
fn leases_over_what_there_is_or_is_wanted() {
    let second = |leased, wanted| DoormanSecond { capacity: 100.0, leased, wanted };
    let mut record = record();
    record.doormen = vec![vec![second(90.0, 200.0), second(105.0, 200.0), second(60.0, 50.0)]];
    // Both clients have the same server, which counts once: 0.9, 1.05 and 60 of 50.
    let checks = "\
name: hand
story: Written by hand.
lasts: 10s
services: { api: { tasks: 1, work: 1ms } }
doormen: { rate: { capacity: 100/s } }
clients:
  web: { service: api, rate: 100/s, doorman: rate }
  jobs: { service: api, rate: 100/s, doorman: rate }
checks:
  - { leased: [web, jobs], at_least: 105%, at_most: 105% }
  - { leased: web, during: 0s..2s, at_least: 97.5%, at_most: 97.5% }
  - { leased_least: [web, jobs], at_least: 90%, at_most: 90% }
  - { leased_most: [web, jobs], at_least: 120%, at_most: 120% }
  - { leased: web, during: 5s..6s, at_most: 100% }
";
    let scenario = Scenario::parse("hand.yaml", checks).unwrap();
    let found: Vec<Option<f64>> =
        scenario.judge(&[&record]).iter().map(|judged| judged.measured).collect();
    for (found, expected) in found.iter().zip([1.05, 0.975, 0.9, 1.2]) {
        assert!((found.unwrap() - expected).abs() < 1e-6, "{found:?}, not {expected}");
    }
    assert_eq!(found[4], None, "nothing was written down");
}
