//! Limits of the fleet: hand-worked against what a customer gets.

use super::*;
use tidegate_core::CostRate;
use tidegate_core::fleet::{FleetConfig, Limits, Silence};

fn cpus(cpus: f64) -> Limits {
    Limits::total(CostRate::from_cpus(cpus).unwrap())
}

/// Ten tasks. Customer 1 wants 3 CPUs of the 4 tasks that it is connected to, and may have 2.
fn skewed(server: Option<QuotaServerSpec>) -> WorldSpec {
    let subset = Some((tidegate_core::subset::SubsetPolicy::Deterministic, 4));
    let stack = StackSpec { subset, ..StackSpec::default() };
    let mut spec = world(vec![service(10, true)], 0.3, stack, 40);
    spec.services[0].work = WorkSpec::Constant(WORK);
    spec.clients[0].tasks = 1;
    spec.clients[0].customers = vec![0.0, 1.0];
    spec.customers = vec![Limits::UNLIMITED, cpus(2.0)];
    spec.quota_server = server;
    spec
}

/// Short patience, so that a test does not take minutes: a lease of 2 + 7 s.
fn server() -> QuotaServerSpec {
    let mut fleet = FleetConfig::default();
    fleet.silence = Silence { hold: Duration::from_secs(2), tau: Duration::from_secs(1) };
    fleet.learning = fleet.silence.lease();
    QuotaServerSpec { fleet, ..QuotaServerSpec::default() }
}

/// CPUs that were served between two seconds.
fn served(record: &Record, from: usize, to: usize) -> f64 {
    let answers: u32 = record.clients[0][from * 10..to * 10].iter().map(|b| b.answers).sum();
    f64::from(answers) * WORK.as_secs_f64() / (to - from) as f64
}

#[test]
fn limits_go_where_the_demand_is() {
    // Equal parts: 4 of 10 tasks enforce 0.2 CPUs each.
    let fixed = run(skewed(None));
    assert!((0.76..0.86).contains(&served(&fixed, 5, 40)), "{}", served(&fixed, 5, 40));
    // By demand: all of it, but for the 3 % that are held back for those without demand.
    let record = run(skewed(Some(server())));
    let got = served(&record, 10, 40);
    assert!((1.85..=2.02).contains(&got), "{got}");
    let second = record.quota[1][30];
    assert!((second.limit - 2.0).abs() < 1e-6 && second.enforced <= 2.0 + 1e-3, "{second:?}");
    assert!((second.demand - 3.0).abs() < 0.4, "{second:?}");
}

#[test]
fn without_the_server_limits_hold_and_then_fade_to_the_safe_share() {
    let mut spec = skewed(Some(server()));
    spec.changes = vec![
        (Timestamp::from_secs(15), Change::QuotaServer { lost: true }),
        (Timestamp::from_secs(30), Change::QuotaServer { lost: false }),
    ];
    let record = run(spec);
    // Silence counts from the last report that was answered, sent after 14 s: two seconds on.
    let enforced = |second: usize| record.quota[1][second].enforced;
    assert!(
        enforced(14) > 1.8 && enforced(14) == enforced(15),
        "{} {}",
        enforced(14),
        enforced(15)
    );
    let held = served(&record, 15, 16);
    assert!(held > 0.9 * f64::from(enforced(15)), "{held}");
    // The lease ends at 24 s at the latest; half is safe.
    assert!((enforced(25) / enforced(15) - 0.5).abs() < 1e-3, "{}", enforced(25));
    let safe = served(&record, 25, 30);
    assert!((safe / f64::from(enforced(25)) - 1.0).abs() < 0.03, "{safe}");
    let after = served(&record, 33, 40);
    assert!((1.8..=2.02).contains(&after), "{after}");
}

#[test]
fn a_new_leader_changes_nothing_while_it_learns() {
    let mut spec = skewed(Some(server()));
    spec.changes = vec![(Timestamp::from_secs(15), Change::QuotaElection)];
    let record = run(spec);
    for from in (10..40).step_by(5) {
        let got = served(&record, from, from + 5);
        assert!((1.8..=2.05).contains(&got), "{from} s: {got}");
    }
    assert!(record.quota[1].iter().skip(5).all(|second| second.enforced <= 2.01));
}

#[test]
fn a_change_of_limits_reaches_every_task() {
    let mut spec = skewed(Some(server()));
    spec.changes =
        vec![(Timestamp::from_secs(20), Change::Limits { customer: 1, limits: cpus(1.0) })];
    let record = run(spec);
    let got = served(&record, 25, 40);
    assert!((0.9..=1.01).contains(&got), "{got}");
}

#[test]
fn limits_on_requests_fail_when_requests_get_dearer() {
    // A customer may have half of a task, as 100 requests of 5 ms or as half a CPU; then they cost
    // three times as much.
    let busy = |by_requests: bool| {
        let mut spec = world(vec![service(1, true)], 0.8, StackSpec::default(), 40);
        spec.services[0].work = WorkSpec::Constant(WORK);
        spec.clients[0].customers = vec![0.0, 1.0];
        spec.customers = vec![Limits::UNLIMITED; 2];
        if by_requests {
            spec.services[0].qps_limits = vec![f64::INFINITY, 100.0];
        } else {
            spec.customers[1] = cpus(0.5);
        }
        let dearer = Change::Cost { service: 0, factor: 3.0 };
        spec.changes = vec![(Timestamp::from_secs(20), dearer)];
        let record = run(spec);
        let mean = |range: core::ops::Range<usize>| {
            let busy = &record.busy[0][0][range];
            busy.iter().map(|&b| f64::from(b)).sum::<f64>() / busy.len() as f64
        };
        [mean(5..20), mean(25..40)]
    };
    let [before, after] = busy(true);
    assert!((before - 0.5).abs() < 0.02 && after > 0.95, "{before} {after}");
    let [before, after] = busy(false);
    assert!((before - 0.5).abs() < 0.03 && (after - 0.5).abs() < 0.05, "{before} {after}");
}

#[test]
fn a_world_begins_with_a_fleet_that_works() {
    let mut spec = skewed(Some(server()));
    spec.clients[0].stack.subset = None;
    let record = run(spec);
    // What is saved up at first, a second's worth, comes on top.
    for second in 0..10 {
        let got = served(&record, second, second + 1);
        assert!(got > 1.75, "{second} s: {got}");
        let enforced = record.quota[1][second].enforced;
        assert!((1.8..=2.01).contains(&enforced), "{second} s: {enforced}");
    }
    let got = served(&record, 2, 10);
    assert!((1.85..=2.1).contains(&got), "{got}");
}
