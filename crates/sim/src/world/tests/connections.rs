//! What connections cost, by hand.

use super::*;
use record::ConnectionSecond;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::connection::idle::{HealthPacerConfig, IdlePolicy};

fn total(record: &Record, what: impl Fn(&ConnectionSecond) -> f64) -> f64 {
    record.connections[0].iter().map(what).sum()
}

fn drop_after(secs: u64) -> IdlePolicy {
    let mut policy = IdlePolicy::default();
    policy.drop_after = Duration::from_secs(secs);
    policy
}

#[test]
fn a_connection_costs_a_round_trip_and_cpu_once() {
    let mut spec = world(vec![service(2, false)], 0.1, StackSpec::default(), 20);
    spec.distance = vec![vec![Duration::from_millis(20)]];
    spec.services[0].work = WorkSpec::Constant(Duration::from_millis(1));
    spec.services[0].connections = Some(ConnectionSpec {
        connect_cost: Duration::from_millis(2),
        ..ConnectionSpec::default()
    });
    let record = run(spec);
    // Ten clients of two backends, and nobody is idle for long.
    assert_eq!(total(&record, |s| f64::from(s.connects)), 20.0);
    assert_eq!(record.connections[0].last().unwrap().open, 20);
    let cpu = total(&record, |s| f64::from(s.cpu));
    let checks = total(&record, |s| f64::from(s.health_checks));
    assert!((cpu - 20.0 * 0.002 - checks * 1e-5).abs() < 1e-5, "{cpu} {checks}");
    // 41 ms with a connection, 40 + 2 more without: the first second is slower than the others.
    let slowest = |from, to| {
        let (from, to) = (Timestamp::from_secs(from), Timestamp::from_secs(to));
        record.latencies(0, from, to).quantile(1.0).unwrap()
    };
    assert!(slowest(0, 1) >= Duration::from_millis(83), "{:?}", slowest(0, 1));
    assert!(slowest(5, 20) < Duration::from_millis(50), "{:?}", slowest(5, 20));
}

#[test]
fn idle_connections_go_and_health_is_asked_for_instead() {
    let mut spec = world(vec![service(1, false)], 0.1, StackSpec::default(), 60);
    let connections = ConnectionSpec { idle: Some(drop_after(5)), ..ConnectionSpec::default() };
    spec.services[0].connections = Some(connections);
    spec.changes = vec![(Timestamp::from_secs(20), Change::Rate { client: 0, rate: 0.0 })];
    let record = run(spec);
    let open = |second: usize| record.connections[0][second].open;
    assert_eq!((open(19), open(27)), (10, 0));
    // Ten clients that ask every 5 s or more, half of that longer at times: 2 a second at most.
    let checks: u32 = record.connections[0][30..60].iter().map(|s| s.health_checks).sum();
    assert!((40..=62).contains(&checks), "{checks}");
}

#[test]
fn ten_thousand_idle_clients_cost_less_than_an_active_one() {
    let mut spec = world(vec![service(1, false)], 0.0, StackSpec::default(), 400);
    spec.clients[0].tasks = 10_000;
    let connections = ConnectionSpec {
        idle: Some(drop_after(60)),
        connect_cost: Duration::from_micros(50),
        eager: true,
        ..ConnectionSpec::default()
    };
    spec.services[0].connections = Some(connections.clone());
    let record = run(spec.clone());
    assert_eq!(record.connections[0][10].open, 10_000);
    let late = |record: &Record| -> f64 {
        record.connections[0][300..400].iter().map(|s| f64::from(s.cpu)).sum::<f64>() / 100.0
    };
    assert_eq!(record.connections[0][399].open, 0);
    // The budget is half a percent of a CPU: one request of 5 ms a second.
    assert!(late(&record) <= 0.0051, "{}", late(&record));
    // Everyone asking every five seconds: 2,000 checks of 10 us a second.
    let health = Some(HealthSpec::Fixed(HealthPacerConfig::default().base));
    spec.services[0].connections = Some(ConnectionSpec { health, ..connections });
    let fixed = late(&run(spec));
    assert!((fixed - 0.02).abs() < 0.0005, "{fixed}");
}

#[test]
fn a_gate_takes_so_many_a_second() {
    let mut spec = world(vec![service(1, false)], 0.0, StackSpec::default(), 10);
    spec.clients[0].tasks = 1_000;
    let mut limits = ConnectionLimits::default();
    (limits.accepts_per_second, limits.burst) = (100, 100);
    spec.services[0].connections =
        Some(ConnectionSpec { limits: Some(limits), eager: true, ..ConnectionSpec::default() });
    let record = run(spec);
    // 90 at once, which is the room of those whom nobody knows, then 100 a second.
    for (second, of) in record.connections[0].iter().enumerate().take(8) {
        let most = 90 + 100 * (second as u32 + 1);
        assert!(of.open <= most && of.open >= most - 25, "{second}: {of:?}");
    }
}

#[test]
fn a_backend_that_goes_takes_its_connections_with_it() {
    let stack = StackSpec { retries: RetrySpec::Advised { attempts: 3 }, ..StackSpec::default() };
    let mut spec = world(vec![service(4, true)], 0.3, stack, 20);
    spec.services[0].connections = Some(ConnectionSpec::default());
    spec.changes = vec![(
        Timestamp::from_secs(5),
        Change::Restart {
            service: 0,
            tasks: 0..1,
            lame_duck: Duration::from_secs(1),
            down_for: Duration::from_secs(2),
            cold_for: Duration::ZERO,
            cold_speed: 1.0,
        },
    )];
    let record = run(spec);
    let open = |second: usize| record.connections[0][second].open;
    assert_eq!((open(4), open(7), open(19)), (40, 30, 40));
    assert_eq!(total(&record, |s| f64::from(s.connects)), 50.0);
}
