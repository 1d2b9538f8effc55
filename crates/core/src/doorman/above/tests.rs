use super::*;
use crate::doorman::{AlgorithmDraft, Draft, Kind, Repository, Request, Resource};
use proptest::collection::vec;
use proptest::prelude::*;

const LEASE: u64 = 60;
const REFRESH: u64 = 5;

fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

fn draft(kind: Kind, learning: i64) -> AlgorithmDraft {
    let (lease, refresh) = (LEASE as i64, REFRESH as i64);
    AlgorithmDraft {
        learning_mode_duration: Some(learning),
        ..AlgorithmDraft::new(kind, lease, refresh)
    }
}

fn lease(capacity: f64, until: Timestamp) -> Lease {
    Lease { expiry: until, refresh_interval: Duration::from_secs(REFRESH), capacity }
}

/// So much until then, fairly, by a server that lets nobody learn.
fn provision(capacity: f64, until: Timestamp, safe: Option<f64>) -> Provision {
    let algorithm = Algorithm::from_above(draft(Kind::FairShare, -1));
    Provision { lease: lease(capacity, until), algorithm, safe }
}

/// A resource of a server below another, which has begun long ago.
fn below() -> Resource {
    Resource::below(Timestamp::ZERO, 1_000)
}

fn get(resource: &mut Resource, client: &str, wants: f64, now: Timestamp) -> Lease {
    resource.decide(client, &Request::client(wants, 1), now).unwrap()
}

#[test]
fn it_asks_for_all_clients_by_priority_and_says_what_may_be_in_use() {
    let mut resource = below();
    assert!(!resource.is_heard());
    assert_eq!(get(&mut resource, "a", 70.0, at(0)).capacity, 0.0);
    resource.decide("b", &Request::client(30.0, 2), at(0)).unwrap();
    let band = |priority, clients, wants| Band { priority, clients, wants };
    let ask = resource.ask(at(0));
    assert_eq!(ask, Ask { has: None, bands: vec![band(2, 1, 30.0), band(1, 1, 70.0)] });

    resource.hear(&provision(100.0, at(60), Some(7.0)), at(0));
    assert!(resource.is_heard());
    assert_eq!(get(&mut resource, "a", 70.0, at(1)).capacity, 70.0);
    let said = |ask: Ask| ask.has.map(|has| (has.capacity, has.expiry));
    assert_eq!(said(resource.ask(at(5))), Some((100.0, at(60))));
    // There is less now, and nobody has heard of it yet.
    resource.hear(&provision(40.0, at(65), Some(7.0)), at(5));
    assert_eq!(said(resource.ask(at(6))), Some((70.0, at(65))));
    assert_eq!(get(&mut resource, "a", 70.0, at(6)).capacity, 10.0, "what matters more is first");
    assert_eq!(said(resource.ask(at(7))), Some((40.0, at(65))));
    // Afterwards it has what is out, and then nothing.
    assert_eq!(get(&mut resource, "a", 70.0, at(70)).capacity, 14.0, "safe for two, and one asks");
    assert_eq!(said(resource.ask(at(71))), Some((14.0, at(130))));
    assert_eq!(resource.ask(at(131)), Ask { has: None, bands: vec![] });
}

#[test]
fn it_keeps_no_more_priorities_apart_than_the_server_above_would() {
    for (clients, bands) in [(0, 0), (1, 1), (16, 16), (17, 16), (1_000, 16)] {
        let mut resource = below();
        for n in 0..clients {
            resource.decide(&format!("c{n}"), &Request::client(2.0, n), at(0)).unwrap();
        }
        let ask = resource.ask(at(0));
        assert_eq!(ask.bands.len(), bands, "of {clients}");
        assert_eq!(ask.bands.first().map(|band| band.priority), (clients > 0).then(|| clients - 1));
        let (count, wants) =
            ask.bands.iter().fold((0, 0.0), |(n, sum), band| (n + band.clients, sum + band.wants));
        assert_eq!((count, wants), (clients as u64, 2.0 * clients as f64), "nobody is left out");
    }
}

#[test]
fn it_asks_when_it_is_told_to_and_before_its_lease_ends() {
    // Refresh interval and what is left of the lease, and in how long it asks.
    for (refresh, left, asks) in [(5, 60, 5), (5, 8, 4), (0, 60, 1), (5, 0, 1), (60, 60, 30)] {
        let mut resource = below();
        let mut provision = provision(1.0, at(left), None);
        provision.lease.refresh_interval = Duration::from_secs(refresh);
        resource.hear(&provision, at(0));
        assert_eq!(resource.next_ask(), Some(at(asks)), "{refresh}, {left}");
    }
    let own = Repository::new(&[Draft::new("*", 1.0).with_algorithm(draft(Kind::Static, -1))]);
    let own = Resource::new(own.unwrap().find("db").clone(), at(0), 1);
    assert_eq!((own.next_ask(), own.is_heard()), (None, true));
}

#[test]
fn no_lease_lasts_longer_than_that_from_above() {
    let mut resource = below();
    resource.hear(&provision(100.0, at(60), Some(0.0)), at(0));
    // When the client asks, when its lease ends and in how long it asks again.
    for (now, ends, again) in [(0, 60, 5), (30, 60, 5), (57, 60, 3), (59, 60, 1)] {
        let lease = get(&mut resource, "a", 70.0, at(now));
        assert_eq!((lease.expiry, lease.refresh_interval.as_secs()), (at(ends), again), "{now}");
    }
    resource.hear(&provision(100.0, at(200), Some(0.0)), at(60));
    assert_eq!(get(&mut resource, "a", 70.0, at(60)).expiry, at(60 + LEASE));
}

#[test]
fn without_the_server_above_there_is_what_is_safe() {
    // The safe capacity that was said, what there was last, and what there is for two clients.
    for (safe, capacity, expected) in [
        (Some(7.0), 100.0, 14.0),
        (Some(7.0), 0.0, 14.0),
        (Some(0.0), 100.0, 0.0),
        (Some(-1.0), 100.0, 100.0),
        (None, 100.0, 50.0),
        (Some(f64::NAN), 100.0, 50.0),
        (Some(-3.0), 100.0, 50.0),
        (Some(f64::INFINITY), 100.0, 50.0),
    ] {
        let mut resource = below();
        for client in ["a", "b"] {
            get(&mut resource, client, 1_000.0, at(0));
        }
        let _ = resource.ask(at(0));
        resource.hear(&provision(capacity, at(30), safe), at(0));
        let sum = |resource: &mut Resource, now| -> f64 {
            // One more, of whom the server above was never told.
            for _ in 0..3 {
                for client in ["a", "b", "c"] {
                    get(resource, client, 1_000.0, now);
                }
            }
            resource.has()
        };
        assert!((sum(&mut resource, at(29)) - capacity).abs() < 1e-9, "{safe:?}");
        assert_eq!(resource.capacity(), capacity);
        assert!((sum(&mut resource, at(30)) - expected).abs() < 1e-9, "{safe:?}");
        assert_eq!(get(&mut resource, "a", 1_000.0, at(31)).expiry, at(31 + LEASE));
        // It is back.
        let _ = resource.ask(at(40));
        resource.hear(&provision(60.0, at(100), safe), at(40));
        assert!((sum(&mut resource, at(41)) - 60.0).abs() < 1e-9, "{safe:?}");
    }
    // What matters is what there was when there was something.
    let mut resource = below();
    resource.hear(&provision(80.0, at(30), Some(-1.0)), at(0));
    resource.hear(&provision(0.0, at(35), Some(-1.0)), at(5));
    assert_eq!(get(&mut resource, "a", 1_000.0, at(35)).capacity, 80.0);
}

#[test]
fn clients_are_told_what_each_may_use_without_it() {
    for (safe, expected) in [(Some(7.0), 7.0), (Some(-1.0), -1.0), (Some(0.0), 0.0), (None, 30.0)] {
        let mut resource = below();
        resource.hear(&provision(60.0, at(60), safe), at(0));
        for client in ["a", "b"] {
            get(&mut resource, client, 1.0, at(0));
        }
        assert_eq!(resource.safe_capacity(), expected, "{safe:?}");
    }
}

/// A server that was started anew, before and after it has heard of the one above.
#[test]
fn while_it_learns_clients_keep_what_they_have_for_as_long_as_they_have_it() {
    let mut resource = Resource::below(at(0), 10);
    let has = |capacity, until| Request::client(500.0, 1).with_has(Some(lease(capacity, until)));
    let mut ask = |client: &str, request: &Request, now| {
        let lease = resource.decide(client, request, now).unwrap();
        (lease.capacity, lease.expiry, resource.next_ask().unwrap())
    };
    // It first waits until everyone has asked again, for half of what is left at most.
    assert_eq!(ask("a", &has(40.0, at(50)), at(0)), (40.0, at(50), at(5)));
    assert_eq!(ask("b", &has(30.0, at(33)), at(3)), (30.0, at(33), at(5)));
    assert_eq!(ask("liar", &has(f64::NAN, at(33)), at(3)).0, 0.0);
    assert_eq!(ask("late", &has(40.0, at(2)), at(3)).0, 0.0);
    let asked = resource.ask(at(5));
    let said = asked.has.map(|has| (has.capacity, has.expiry));
    assert_eq!(said, Some((70.0, at(63))), "until the last of them ends");

    let mut provided = provision(60.0, at(65), Some(7.0));
    provided.algorithm = Algorithm::from_above(draft(Kind::FairShare, 20));
    resource.hear(&provided, at(5));
    let mut ask = |client: &str, request: &Request, now| {
        let lease = resource.decide(client, request, now).unwrap();
        (lease.capacity, lease.expiry)
    };
    // What is covered from above is as good as new, and what is not ends when it would have.
    assert_eq!(ask("b", &has(30.0, at(33)), at(6)), (30.0, at(33)));
    assert_eq!(ask("liar", &Request::client(500.0, 1), at(6)).0, 0.0);
    assert_eq!(ask("b", &has(20.0, at(33)), at(7)), (20.0, at(65)));
    // It has begun at 0 and has learned by 20.
    assert_eq!(ask("a", &has(40.0, at(50)), at(19)), (40.0, at(65)));
    assert!(ask("a", &has(40.0, at(50)), at(20)).0 < 40.0);
}

/// What somebody claims counts against everyone else.
#[test]
fn nobody_has_more_than_there_is_from_above_whatever_it_says() {
    for (kind, most) in [
        (Kind::FairShare, 60.0),
        (Kind::ProportionalShare, 60.0),
        (Kind::Static, 60.0),
        (Kind::NoAlgorithm, 1e12),
    ] {
        let mut resource = Resource::below(at(0), 10);
        let mut provided = provision(60.0, at(60), Some(7.0));
        provided.algorithm = Algorithm::from_above(draft(kind, 20));
        let _ = resource.ask(at(0));
        resource.hear(&provided, at(0));
        let claims = Request::client(500.0, 1).with_has(Some(lease(1e12, at(50))));
        assert_eq!(resource.decide("liar", &claims, at(1)).unwrap().capacity, most, "{kind}");
        let said = resource.ask(at(2)).has.map(|has| has.capacity);
        assert_eq!(said, Some(most), "{kind}: it goes no further up");
    }
}

/// A server that was started anew believes whatever it is told until it knows how much there is.
#[test]
fn what_was_claimed_before_the_server_above_was_heard_counts_for_all_there_is_at_most() {
    for (kind, most) in [
        (Kind::FairShare, 60.0),
        (Kind::ProportionalShare, 60.0),
        (Kind::Static, 60.0),
        (Kind::NoAlgorithm, 1e12),
    ] {
        let mut resource = Resource::below(at(0), 10);
        let has = |capacity| Request::client(500.0, 1).with_has(Some(lease(capacity, at(50))));
        assert_eq!(resource.decide("liar", &has(1e12), at(1)).unwrap().capacity, 1e12, "{kind}");
        let _ = resource.ask(at(2));
        let mut provided = provision(60.0, at(60), Some(7.0));
        provided.algorithm = Algorithm::from_above(draft(kind, 20));
        resource.hear(&provided, at(2));
        assert_eq!(resource.has(), most, "{kind}");
        let said = resource.ask(at(3)).has.map(|has| has.capacity);
        assert_eq!(said, Some(most), "{kind}: it goes no further up");
        // What there is may become less later: then what clients have counts until they ask again.
        provided.lease.capacity = 20.0;
        resource.hear(&provided, at(4));
        assert_eq!(resource.has(), most, "{kind}");
    }
}

/// One server of two, and its two clients.
#[derive(Debug, Clone)]
enum Operation {
    Client {
        server: usize,
        client: usize,
        priority: i64,
        wants: f64,
    },
    Release {
        server: usize,
        client: usize,
    },
    /// A server asks the root; its question or the answer may be lost.
    Ask {
        server: usize,
        asked: bool,
        answered: bool,
    },
    Wait {
        secs: u64,
    },
}

fn operation() -> impl Strategy<Value = Operation> {
    let wants = prop_oneof![4 => 0.0..300.0, 1 => any::<f64>()];
    prop_oneof![
        6 => (0..3_usize, 0..3_usize, 0..3_i64, wants).prop_map(
            |(server, client, priority, wants)| {
                Operation::Client { server, client, priority, wants }
            }
        ),
        1 => (0..3_usize, 0..3_usize)
            .prop_map(|(server, client)| Operation::Release { server, client }),
        5 => (0..3_usize, proptest::bool::weighted(0.9), proptest::bool::weighted(0.9))
            .prop_map(|(server, asked, answered)| Operation::Ask { server, asked, answered }),
        3 => (0..20_u64).prop_map(|secs| Operation::Wait { secs }),
    ]
}

fn sum(leases: &[Lease], now: Timestamp) -> f64 {
    leases.iter().filter(|lease| lease.expiry > now).map(|lease| lease.capacity).sum()
}

proptest! {
    /// A tree of a root of 120, three servers and three clients of each, with messages that get
    /// lost. What the clients of a server have together is within what it has, or had until a
    /// lease that has not ended; and what all clients have is within what there is, as nothing
    /// is safe here without a server.
    #[test]
    fn nobody_hands_out_more_than_there_is(
        kind in prop_oneof![Just(Kind::FairShare), Just(Kind::ProportionalShare)],
        safe in prop_oneof![Just(0.0), Just(4.0)],
        operations in vec(operation(), 1..120),
    ) {
        let template =
            Draft::new("*", 120.0).with_algorithm(draft(kind, -1)).with_safe_capacity(safe);
        let template = Repository::new(&[template]).unwrap().find("db").clone();
        let algorithm = template.algorithm();
        let mut root = Resource::new(template, Timestamp::ZERO, 10);
        let mut servers: Vec<Resource> = (0..3).map(|_| below()).collect();
        let nothing = lease(0.0, at(0));
        let mut believed = vec![[nothing; 3]; 3];
        // What each server may hand out, and until when it may have been handed out.
        let mut backing: Vec<Vec<Lease>> = vec![Vec::new(); 3];
        let mut now = at(0);
        for operation in operations {
            match operation {
                Operation::Client { server, client, priority, wants } => {
                    let has = believed[server][client];
                    let request = Request::client(wants, priority).with_has(Some(has));
                    let resource = &mut servers[server];
                    let name = format!("client-{client}");
                    let lease = resource.decide(&name, &request, now).unwrap();
                    prop_assert!(lease.capacity >= 0.0 && lease.capacity <= amount(wants));
                    believed[server][client] = lease;
                    let (capacity, end) = (resource.capacity(), now + algorithm.lease_length());
                    if backing[server].last().is_some_and(|last| last.expiry <= now) {
                        // Of its lease nothing is left, and what there is is safe.
                        prop_assert!(capacity <= 3.0 * safe);
                        backing[server].insert(0, self::lease(capacity, end));
                    }
                }
                Operation::Release { server, client } => {
                    servers[server].release(&format!("client-{client}"));
                    believed[server][client] = nothing;
                }
                Operation::Ask { server, asked, answered } => {
                    let ask = servers[server].ask(now);
                    if !asked {
                        continue;
                    }
                    let request = Request::server(ask.bands).with_has(ask.has);
                    let lease = root.decide(&format!("server-{server}"), &request, now).unwrap();
                    if answered {
                        let safe = Some(root.safe_capacity());
                        let provision = Provision { lease, algorithm, safe };
                        servers[server].hear(&provision, now);
                        backing[server].push(lease);
                    }
                }
                Operation::Wait { secs } => now += Duration::from_secs(secs),
            }
            for (leases, backing) in believed.iter().zip(&backing) {
                let live = backing.iter().filter(|lease| lease.expiry > now);
                let most = live.map(|lease| lease.capacity).fold(0.0, f64::max);
                let sum = sum(leases, now);
                prop_assert!(sum <= most * (1.0 + 1e-9), "{sum} of {most}");
            }
            let all: f64 = believed.iter().map(|leases| sum(leases, now)).sum();
            let unseen = if safe > 0.0 { 9.0 * safe } else { 0.0 };
            prop_assert!(all <= (120.0 + unseen) * (1.0 + 1e-9), "{all} of 120");
        }
    }
}
