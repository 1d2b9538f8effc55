//! Leases: what is handed out against what there is.

use super::*;
use record::DoormanSecond;

/// A hundred clients that want 400 requests a second of the 200 there are.
fn leased(changes: Vec<(Timestamp, Change)>) -> Record {
    let mut of = service(20, false);
    of.work = WorkSpec::Constant(Duration::from_millis(1));
    let mut spec = world(vec![of], 0.0, StackSpec::default(), 120);
    (spec.clients[0].tasks, spec.clients[0].rate) = (100, 400.0);
    spec.clients[0].doorman = Some(0);
    spec.doormen = vec![DoormanSpec {
        capacity: 200.0,
        lease_length: 20,
        refresh_interval: 2,
        safe_capacity: Some(0.5),
        ..DoormanSpec::default()
    }];
    spec.changes = changes;
    run(spec)
}

/// Requests a second that were sent.
fn sent(record: &Record, from: usize, to: usize) -> f64 {
    let bins = &record.clients[0][from * 10..to * 10];
    bins.iter().map(|bin| f64::from(bin.attempts)).sum::<f64>() / (to - from) as f64
}

fn share(second: &DoormanSecond) -> f32 {
    second.leased / second.capacity
}

#[test]
fn all_of_the_capacity_is_handed_out_and_no_more() {
    let record = leased(Vec::new());
    for (at, second) in record.doormen[0].iter().enumerate().skip(10) {
        assert!((0.966..=1.06).contains(&share(second)), "{at}: {second:?}");
        assert_eq!(second.wanted, 400.0);
    }
    // Twice as much is wanted as there is: next to nothing is left unused.
    let sent = sent(&record, 20, 120);
    assert!((194.0..=201.0).contains(&sent), "{sent}");
}

#[test]
fn a_new_master_hands_out_what_the_old_one_had() {
    let record = leased(vec![(Timestamp::from_secs(40), Change::DoormanElection { server: 0 })]);
    for (at, second) in record.doormen[0].iter().enumerate().skip(10) {
        assert!((0.966..=1.06).contains(&share(second)), "{at}: {second:?}");
    }
}

#[test]
fn without_a_server_leases_end_and_the_safe_capacity_is_left() {
    let record = leased(vec![
        (Timestamp::from_secs(40), Change::Doorman { server: 0, lost: true }),
        (Timestamp::from_secs(80), Change::Doorman { server: 0, lost: false }),
    ]);
    let leased = |second: usize| share(&record.doormen[0][second]);
    // The last lease is from before 40 s and ends before 60 s.
    assert!(leased(55) > 0.5 && leased(61) == 0.0 && leased(90) > 0.966);
    // A hundred clients with half a request a second each, of four that they want.
    let sent = sent(&record, 65, 80);
    assert!((47.0..=51.0).contains(&sent), "{sent}");
}

#[test]
fn demand_and_capacity_may_change() {
    let record = leased(vec![
        (Timestamp::from_secs(40), Change::Rate { client: 0, rate: 100.0 }),
        (Timestamp::from_secs(80), Change::Rate { client: 0, rate: 400.0 }),
        (Timestamp::from_secs(80), Change::DoormanCapacity { server: 0, capacity: 300.0 }),
    ]);
    let second = |at: usize| record.doormen[0][at];
    assert!((second(60).leased - 100.0).abs() < 1.0, "{:?}", second(60));
    assert!((second(100).leased - 300.0).abs() < 3.0, "{:?}", second(100));
}
