//! Batch jobs beside users.

use super::*;
use tidegate_core::batch::BatchConfig;

const WORKERS: u32 = 2_000;

/// Ten tasks, half of them busy with users; 2,000 workers with 10 requests each from 10 s on.
fn beside_users(proxy: Option<BatchProxySpec>) -> WorldSpec {
    let mut of = service(10, true);
    of.reject_cost = Duration::from_micros(100);
    of.connections = Some(ConnectionSpec::default());
    let stack = StackSpec {
        balance: BalanceSpec::LeastLoaded(LeastLoadedConfig::default()),
        ..StackSpec::default()
    };
    let mut spec = world(vec![of], 0.5, stack.clone(), 60);
    spec.clients[0].mix = [0.0, 0.0, 1.0, 0.0];
    spec.clients.push(ClientSpec {
        name: "batch".to_owned(),
        tasks: WORKERS,
        mix: [1.0, 0.0, 0.0, 0.0],
        deadline: Duration::from_secs(30),
        stack,
        batch: Some(BatchSpec {
            start: Timestamp::from_secs(10),
            requests: 10,
            proxy,
            ..BatchSpec::default()
        }),
        ..ClientSpec::default()
    });
    spec
}

fn refused(record: &Record) -> u32 {
    record.services[0].iter().map(|bin| bin.rejected.iter().sum::<u32>()).sum()
}

#[test]
fn a_proxy_is_a_fuse() {
    let direct = run(beside_users(None));
    let proxy = BatchProxySpec { tasks: 2, config: BatchConfig::default() };
    let proxied = run(beside_users(Some(proxy)));
    for (name, record) in [("direct", &direct), ("proxied", &proxied)] {
        assert!(record.batch_finished[1].is_some(), "{name}: {:?}", record.batch[1].last());
        assert_eq!(record.batch[1].last().unwrap().done, WORKERS * 10, "{name}");
    }
    // Batch work is shed first, but 2,000 workers that connect to ten tasks are 20 s of CPU time
    // for handshakes in any case.
    let users = |record: &Record| sum(record, |bin| bin.answers) / offered(record);
    assert!(users(&proxied) > 0.995, "{}", users(&proxied));
    let p99 = |record: &Record| {
        let [from, to] = [10, 20].map(Timestamp::from_secs);
        record.latencies(0, from, to).quantile(0.99).unwrap()
    };
    assert!(p99(&direct) > p99(&proxied) * 5 / 4, "{:?} {:?}", p99(&direct), p99(&proxied));
    // All workers connect to all tasks, or two proxies do.
    let open = |record: &Record| record.connections[0].iter().map(|s| s.open).max().unwrap();
    assert!(open(&direct) > 10_000, "{}", open(&direct));
    assert_eq!(open(&proxied), 10 * 10 + 2 * 10);
    assert!(refused(&proxied) * 4 < refused(&direct), "{} {}", refused(&proxied), refused(&direct));
    // The half of ten cores that is free does 1,000 requests a second: 20 s at best.
    let took = proxied.batch_finished[1].unwrap().since(Timestamp::from_secs(10)).as_secs_f64();
    assert!((18.0..40.0).contains(&took), "{took}");
    assert!(proxied.inflight_max < 3_000, "{}", proxied.inflight_max);
}

#[test]
fn every_request_is_done_once_whatever_fails() {
    for proxy in [None, Some(BatchProxySpec::default())] {
        let mut spec = beside_users(proxy);
        (spec.clients[1].tasks, spec.loss) = (100, 0.002);
        for client in &mut spec.clients {
            client.stack.attempt_timeout = Some(Duration::from_secs(1));
        }
        let down = |down| Change::Down { service: 0, tasks: 0..3, down };
        spec.changes =
            vec![(Timestamp::from_secs(11), down(true)), (Timestamp::from_secs(20), down(false))];
        let record = run(spec);
        assert_eq!(record.batch[1].last().unwrap().done, 1_000, "{proxy:?}");
        assert_eq!(record.batch[1].last().unwrap().workers_left, 0);
        let served: u32 = record.clients[1].iter().map(|b| b.served.iter().sum::<u32>()).sum();
        assert_eq!(served, 1_000);
    }
}

#[test]
fn a_batch_is_the_same_each_time() {
    let spec = || {
        let mut spec = beside_users(Some(BatchProxySpec::default()));
        (spec.clients[1].tasks, spec.jitter) = (300, 0.5);
        spec.lasts = Duration::from_secs(20);
        spec
    };
    assert_eq!(format!("{:?}", run(spec())), format!("{:?}", run(spec())));
}
