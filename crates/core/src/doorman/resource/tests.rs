use super::*;
use crate::doorman::{AlgorithmDraft, Draft, Repository};
use proptest::collection::vec;
use proptest::prelude::*;

const LEASE: i64 = 60;
const REFRESH: i64 = 5;

fn template(kind: Kind, capacity: f64, safe: Option<f64>) -> Template {
    let mut draft =
        Draft::new("*", capacity).with_algorithm(AlgorithmDraft::new(kind, LEASE, REFRESH));
    draft.safe_capacity = safe;
    Repository::new(&[draft]).unwrap().find("anything").clone()
}

/// A resource whose master was elected long ago.
fn settled(kind: Kind, capacity: f64) -> Resource {
    Resource::new(template(kind, capacity, None), Timestamp::ZERO, 1_000)
}

/// After the learning period.
fn at(secs: u64) -> Timestamp {
    Timestamp::from_secs(1_000 + secs)
}

fn name(i: usize) -> String {
    format!("client-{i}")
}

/// What clients of so many subclients that want so much get, once everyone has asked often enough.
fn converged(kind: Kind, capacity: f64, clients: &[(f64, u64)]) -> Vec<f64> {
    let mut resource = settled(kind, capacity);
    let mut grants = vec![0.0; clients.len()];
    for round in 0..3 {
        for (i, &(wants, subclients)) in clients.iter().enumerate() {
            let band = Band { priority: 1, clients: subclients, wants };
            let lease = resource.decide(&name(i), &Request::server([band]), at(round)).unwrap();
            grants[i] = lease.capacity;
        }
    }
    grants
}

#[test]
fn grants_by_the_table() {
    type Row<'a> = (Kind, f64, &'a [(f64, u64)], &'a [f64]);
    let rows: [Row<'_>; 14] = [
        (Kind::NoAlgorithm, 120.0, &[(1000.0, 1), (50.0, 1)], &[1000.0, 50.0]),
        (Kind::Static, 120.0, &[(1000.0, 1), (50.0, 1), (130.0, 9)], &[120.0, 50.0, 120.0]),
        (
            Kind::ProportionalShare,
            120.0,
            &[(1000.0, 1), (50.0, 1), (10.0, 1)],
            &[69.690_721_649_484_54, 40.309_278_350_515_46, 10.0],
        ),
        // An equal share of 30, 15 left by one, 60 lacked by two: 30 + 30 x 15/60.
        (Kind::ProportionalShare, 90.0, &[(60.0, 1), (60.0, 1), (15.0, 1)], &[37.5, 37.5, 15.0]),
        (Kind::ProportionalShare, 120.0, &[(60.0, 1), (50.0, 1), (10.0, 1)], &[60.0, 50.0, 10.0]),
        (
            Kind::ProportionalShare,
            120.0,
            &[(999.0, 6), (999.0, 4), (999.0, 2)],
            &[60.0, 40.0, 20.0],
        ),
        (Kind::FairShare, 120.0, &[(1000.0, 1), (50.0, 1), (10.0, 1)], &[60.0, 50.0, 10.0]),
        (Kind::FairShare, 120.0, &[(1000.0, 1), (60.0, 1), (10.0, 1)], &[55.0, 55.0, 10.0]),
        (Kind::FairShare, 120.0, &[(1000.0, 6), (1000.0, 4), (1000.0, 2)], &[60.0, 40.0, 20.0]),
        (
            Kind::FairShare,
            1000.0,
            &[(2000.0, 10), (500.0, 10), (700.0, 30)],
            &[200.0, 200.0, 600.0],
        ),
        (Kind::FairShare, 120.0, &[(60.0, 1), (60.0, 1)], &[60.0, 60.0]),
        (Kind::FairShare, 0.0, &[(60.0, 1)], &[0.0]),
        (
            Kind::FairShare,
            120.0,
            &[(f64::NAN, 1), (-3.0, 1), (f64::INFINITY, 1)],
            &[0.0, 0.0, 120.0],
        ),
        (Kind::ProportionalShare, 90.0, &[(f64::NAN, 1), (f64::INFINITY, 0)], &[0.0, 90.0]),
    ];
    for (kind, capacity, clients, expected) in rows {
        let found = converged(kind, capacity, clients);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{kind} {clients:?}: {found} {expected}");
        }
    }
}

#[test]
fn a_newcomer_waits_for_what_the_others_have() {
    let mut resource = settled(Kind::FairShare, 120.0);
    let wants = |w| Request::client(w, 1);
    let mut ask = |client: &str, w, secs| resource.decide(client, &wants(w), at(secs)).unwrap();
    assert_eq!(ask("a", 1000.0, 0).capacity, 120.0);
    assert_eq!(ask("b", 1000.0, 1).capacity, 0.0);
    assert_eq!(ask("a", 1000.0, 5).capacity, 60.0);
    let lease = ask("b", 1000.0, 6);
    assert_eq!(lease.capacity, 60.0);
    assert_eq!(lease.refresh_interval, Duration::from_secs(5));
    assert_eq!(lease.expiry, at(66));
    // Silence until its lease ends, and what it had is free again.
    assert_eq!(ask("b", 1000.0, 64).capacity, 60.0);
    assert_eq!(ask("b", 1000.0, 65).capacity, 120.0);
}

#[test]
fn release_gives_back_and_tolerates_strangers() {
    let mut resource = settled(Kind::FairShare, 120.0);
    resource.decide("a", &Request::client(500.0, 1), at(0)).unwrap();
    assert!(!resource.release(""));
    assert!(!resource.release("b"));
    assert!(resource.release("a"));
    assert_eq!((resource.has(), resource.clients()), (0.0, 0));
    assert_eq!(resource.next_deadline(), None);
}

/// A lease that ended while there was no master left its client with the safe capacity: it gets no
/// less than that, as soon as everybody has had the time to say what they have.
#[test]
fn while_it_learns_nobody_is_worse_off_for_having_asked() {
    // Safe capacity, what the other says it has, and what is granted after 4 s and after 6 s.
    for (safe, others, early, late) in [
        (None, 30.0, 0.0, 60.0),
        (None, 70.0, 0.0, 50.0),
        (None, 120.0, 0.0, 0.0),
        (Some(7.0), 70.0, 0.0, 7.0),
        (Some(-1.0), 70.0, 0.0, 50.0),
    ] {
        let mut resource = Resource::new(template(Kind::FairShare, 120.0, safe), at(0), 10);
        let interval = Duration::from_secs(5);
        let has = Lease { expiry: at(60), refresh_interval: interval, capacity: others };
        let other = Request::client(1000.0, 1).with_has(Some(has));
        assert_eq!(resource.decide("other", &other, at(1)).unwrap().capacity, others);
        let expired = Lease { expiry: at(0), ..has };
        let request = Request::client(1000.0, 1).with_has(Some(expired));
        let mut ask = |secs| resource.decide("expired", &request, at(secs)).unwrap().capacity;
        assert_eq!((ask(4), ask(6)), (early, late), "{safe:?}, {others}");
        // And no more for asking again.
        assert_eq!(ask(7), late, "{safe:?}, {others}");
    }
}

#[test]
fn while_it_learns_everyone_keeps_what_it_has() {
    let elected = at(0);
    let mut resource = Resource::new(template(Kind::FairShare, 120.0, None), elected, 10);
    let has = |capacity, expiry| {
        Some(Lease { expiry, refresh_interval: Duration::from_secs(5), capacity })
    };
    for (client, has, gets) in [
        ("kept", has(70.0, at(30)), 70.0),
        ("expired", has(70.0, at(5)), 0.0),
        ("none", None, 0.0),
        ("nan", has(f64::NAN, at(30)), 0.0),
        ("negative", has(-1.0, at(30)), 0.0),
        ("liar", has(1e300, Timestamp::MAX), 120.0),
    ] {
        let request = Request::client(1000.0, 1).with_has(has);
        let lease = resource.decide(client, &request, at(5)).unwrap();
        assert_eq!(lease.capacity, gets, "{client}");
    }
    assert!(resource.is_learning(at(59)) && !resource.is_learning(at(60)));
    // Then what is too much is taken back before anyone gets more.
    let mut ask = |client: &str| {
        resource.decide(client, &Request::client(1000.0, 1), at(60)).unwrap().capacity
    };
    assert_eq!(ask("none"), 0.0);
    assert_eq!(ask("liar"), 20.0);
    assert_eq!(ask("kept"), 20.0);
    assert_eq!(ask("none"), 20.0);
}

#[test]
fn the_safe_capacity_is_an_equal_part_unless_it_is_set() {
    let mut resource = settled(Kind::FairShare, 120.0);
    assert_eq!(resource.safe_capacity(), 120.0);
    for i in 0..4 {
        resource.decide(&name(i), &Request::client(1.0, 1), at(0)).unwrap();
    }
    assert_eq!(resource.safe_capacity(), 30.0);
    for (set, expected) in [(-1.0, -1.0), (0.0, 0.0), (7.5, 7.5)] {
        resource.reconfigure(template(Kind::FairShare, 120.0, Some(set)));
        assert_eq!(resource.safe_capacity(), expected);
    }
}

#[test]
fn there_is_a_most_and_leases_that_end_make_room() {
    let mut resource = Resource::new(template(Kind::Static, 1.0, None), Timestamp::ZERO, 2);
    let request = Request::client(1.0, 1);
    assert!(resource.decide("a", &request, at(0)).is_ok());
    assert!(resource.decide("b", &request, at(10)).is_ok());
    assert_eq!(resource.decide("c", &request, at(10)), Err(TooManyClients { max: 2 }));
    assert!(resource.decide("a", &request, at(10)).is_ok());
    assert!(resource.decide("c", &request, at(70)).is_ok());
    assert_eq!(resource.clients(), 1);
}

#[test]
fn priorities_are_added_up_for_the_server_above() {
    let mut resource = settled(Kind::FairShare, 120.0);
    let band = |priority, clients, wants| Band { priority, clients, wants };
    let server = Request::server([band(2, 3, 30.0), band(0, 1, f64::NAN), band(2, 1, 5.0)]);
    resource.decide("server", &server, at(0)).unwrap();
    resource.decide("client", &Request::client(8.0, 0), at(0)).unwrap();
    assert_eq!(resource.bands(), [band(2, 4, 35.0), band(0, 2, 8.0)]);

    let many = Request::server((0..100).map(|priority| band(priority, 1, 1.0)));
    resource.decide("server", &many, at(1)).unwrap();
    let bands = resource.bands();
    assert!(bands.len() <= BANDS_MAX + 1);
    assert_eq!(bands.iter().map(|b| b.clients).sum::<u64>(), 101);
    assert_eq!(bands.iter().map(|b| b.wants).sum::<f64>(), 108.0);
}

#[test]
fn priorities_mean_criticalities() {
    use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
    for (priority, criticality) in [
        (i64::MIN, Sheddable),
        (-1, Sheddable),
        (0, SheddablePlus),
        (1, Critical),
        (2, CriticalPlus),
        (i64::MAX, CriticalPlus),
    ] {
        assert_eq!(Band::criticality(priority), criticality, "{priority}");
    }
}

/// What clients with bands of (priority, subclients, wants) get, once all have asked often enough.
fn by_priority(kind: Kind, capacity: f64, clients: &[&[(i64, u64, f64)]]) -> Vec<f64> {
    let mut resource = settled(kind, capacity);
    let mut grants = vec![0.0; clients.len()];
    for round in 0..3 {
        for (i, bands) in clients.iter().enumerate() {
            let bands =
                bands.iter().map(|&(priority, clients, wants)| Band { priority, clients, wants });
            let lease = resource.decide(&name(i), &Request::server(bands), at(round)).unwrap();
            grants[i] = lease.capacity;
        }
    }
    grants
}

#[test]
fn higher_priorities_are_served_first_and_within_one_by_the_algorithm() {
    type Row<'a> = (Kind, &'a [&'a [(i64, u64, f64)]], &'a [f64]);
    let (fair, proportional) = (Kind::FairShare, Kind::ProportionalShare);
    // There are 120.
    let rows: [Row<'_>; 10] = [
        // The stock client's priority, or any other: if it is the same, it does not matter.
        (fair, &[&[(1, 1, 1000.0)], &[(1, 1, 50.0)], &[(1, 1, 10.0)]], &[60.0, 50.0, 10.0]),
        (fair, &[&[(-1, 1, 1000.0)], &[(-9, 1, 60.0)], &[(-1, 1, 10.0)]], &[55.0, 55.0, 10.0]),
        // 100 for the first, 20 left for two.
        (fair, &[&[(2, 1, 100.0)], &[(1, 1, 50.0)], &[(1, 1, 50.0)]], &[100.0, 10.0, 10.0]),
        (fair, &[&[(1, 1, 500.0)], &[(0, 9, 50.0)], &[(-1, 1, 50.0)]], &[120.0, 0.0, 0.0]),
        (fair, &[&[(-1, 1, 50.0)], &[(0, 1, 50.0)], &[(1, 1, 60.0)]], &[10.0, 50.0, 60.0]),
        // What fits is not touched, whatever its priority.
        (fair, &[&[(-1, 1, 60.0)], &[(2, 1, 60.0)]], &[60.0, 60.0]),
        // Each band of a server stands for itself: 30 of the upper one, 30 of what is left.
        (fair, &[&[(2, 1, 30.0), (0, 2, 90.0)], &[(2, 1, 30.0), (0, 2, 90.0)]], &[60.0, 60.0]),
        // 90 are left; an equal share of 30, 15 left by one, 60 lacked by two.
        (
            proportional,
            &[&[(2, 7, 30.0)], &[(1, 1, 60.0)], &[(1, 1, 60.0)], &[(1, 1, 15.0)]],
            &[30.0, 37.5, 37.5, 15.0],
        ),
        (proportional, &[&[(1, 1, 500.0)], &[(0, 1, 50.0)]], &[120.0, 0.0]),
        // Without an account of others there is nobody to be served before.
        (Kind::Static, &[&[(-1, 1, 500.0)], &[(2, 1, 50.0)]], &[120.0, 50.0]),
    ];
    for (kind, clients, expected) in rows {
        let found = by_priority(kind, 120.0, clients);
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-9, "{kind} {clients:?}: {found} {expected}");
        }
    }
}

#[test]
fn a_change_of_priority_alone_is_noticed() {
    let mut resource = settled(Kind::FairShare, 120.0);
    let mut ask = |client: &str, priority, secs| {
        resource.decide(client, &Request::client(100.0, priority), at(secs)).unwrap().capacity
    };
    for secs in [0, 1] {
        ask("a", 1, secs);
        ask("b", 1, secs);
    }
    assert_eq!((ask("a", 1, 2), ask("b", 1, 2)), (60.0, 60.0));
    // Nobody is cut before it asks again.
    assert_eq!(ask("b", 2, 3), 60.0);
    assert_eq!((ask("a", 1, 4), ask("b", 2, 4)), (20.0, 100.0));
}

#[derive(Debug, Clone)]
enum Operation {
    Ask { client: usize, priority: i64, wants: f64, subclients: u64, has: f64 },
    Release { client: usize },
    Wait { millis: u64 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let wants = prop_oneof![4 => 0.0..500.0, 1 => any::<f64>()];
    prop_oneof![
        6 => (0..6_usize, -2..4_i64, wants, 0..5_u64, any::<f64>()).prop_map(
            |(client, priority, wants, subclients, has)| {
                Operation::Ask { client, priority, wants, subclients, has }
            }
        ),
        1 => (0..7_usize).prop_map(|client| Operation::Release { client }),
        2 => (0..50_000_u64).prop_map(|millis| Operation::Wait { millis }),
    ]
}

proptest! {
    /// Clients believe their leases until they end or are given back. Together they never have
    /// more than there is, nobody has more than it wanted, and the books agree.
    #[test]
    fn leases_never_add_up_to_more_than_there_is(
        kind in prop_oneof![Just(Kind::FairShare), Just(Kind::ProportionalShare)],
        operations in vec(operation(), 1..80),
    ) {
        let mut resource = settled(kind, 120.0);
        let mut now = at(0);
        let mut believed: BTreeMap<usize, Lease> = BTreeMap::new();
        for operation in operations {
            match operation {
                Operation::Ask { client, priority, wants, subclients, has } => {
                    let has = Lease {
                        expiry: Timestamp::MAX,
                        refresh_interval: Duration::ZERO,
                        capacity: has,
                    };
                    let band = Band { priority, clients: subclients, wants };
                    let request = Request::server([band]).with_has(Some(has));
                    let lease = resource.decide(&name(client), &request, now).unwrap();
                    prop_assert!(lease.capacity >= 0.0 && lease.capacity <= amount(wants));
                    let again = resource.decide(&name(client), &request, now).unwrap();
                    let before = believed.get(&client);
                    let settled = before.is_some_and(|b| b.capacity == lease.capacity);
                    if settled {
                        prop_assert_eq!(again.capacity.to_bits(), lease.capacity.to_bits());
                    }
                    believed.insert(client, again);
                }
                Operation::Release { client } => {
                    let had = believed.remove(&client).is_some_and(|lease| lease.expiry > now);
                    resource.expire(now);
                    prop_assert_eq!(resource.release(&name(client)), had);
                }
                Operation::Wait { millis } => now += Duration::from_millis(millis),
            }
            let live = believed.values().filter(|lease| lease.expiry > now);
            let sum: f64 = live.map(|lease| lease.capacity).sum();
            prop_assert!(sum <= 120.0 * (1.0 + 1e-9), "{sum}");
            resource.expire(now);
            prop_assert!((resource.has() - sum).abs() < 1e-9);
        }
    }

    /// Nobody has anything of a lower priority while someone lacks something of a higher one, and
    /// nothing is left over while anyone lacks anything.
    #[test]
    fn nothing_goes_to_a_lower_priority_while_a_higher_one_lacks(
        clients in vec((-2..4_i64, 1..5_u64, 0.0..200.0_f64), 1..10),
        fair: bool,
    ) {
        let kind = if fair { Kind::FairShare } else { Kind::ProportionalShare };
        let bands: Vec<_> = clients.iter().map(|&client| [client]).collect();
        let bands: Vec<&[_]> = bands.iter().map(<[_; 1]>::as_slice).collect();
        let grants = by_priority(kind, 120.0, &bands);
        let lacks = |i: usize| grants[i] < clients[i].2 - 1e-9;
        for (i, &(low, ..)) in clients.iter().enumerate() {
            let starved = clients.iter().enumerate().any(|(j, &(high, ..))| {
                Band::criticality(high) > Band::criticality(low) && lacks(j)
            });
            prop_assert!(!starved || grants[i] < 1e-9, "{clients:?} {grants:?}");
        }
        let sum: f64 = grants.iter().sum();
        prop_assert!(sum > 120.0 - 1e-6 || !(0..clients.len()).any(lacks), "{sum} of 120");
    }

    /// Whoever asks again with nothing changed gets the same bits.
    #[test]
    fn an_unchanged_grant_stays_as_it_is(wants in vec(0.0..200.0_f64, 1..20), fair: bool) {
        let kind = if fair { Kind::FairShare } else { Kind::ProportionalShare };
        let mut resource = settled(kind, 120.0);
        let mut round = |secs| -> Vec<u64> {
            wants.iter().enumerate()
                .map(|(i, &w)| resource.decide(&name(i), &Request::client(w, 1), at(secs)).unwrap())
                .map(|lease| lease.capacity.to_bits())
                .collect()
        };
        round(0);
        round(5);
        let settled = round(10);
        for secs in [15, 20, 25] {
            prop_assert_eq!(round(secs), settled.clone());
        }
    }
}
