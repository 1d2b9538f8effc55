use super::*;
use tidegate_core::doorman::{AlgorithmDraft, Draft, Kind};

fn templates(kind: Kind) -> Repository {
    let algorithm =
        AlgorithmDraft { learning_mode_duration: Some(-1), ..AlgorithmDraft::new(kind, 60, 5) };
    Repository::new(&[Draft::new("*", 120.0).with_algorithm(algorithm)]).unwrap()
}

const START: Moment = Moment { now: Timestamp::from_secs(100), wall: 1_000_000 };

fn at(seconds: u64) -> Moment {
    Moment { now: START.now + Duration::from_secs(seconds), wall: START.wall + seconds as i64 }
}

fn get(book: &mut Book, client: &str, wants: f64, moment: Moment) -> wire::ResourceResponse {
    let resource =
        wire::ResourceRequest { resource_id: "db".to_owned(), priority: 1, has: None, wants };
    let request =
        wire::GetCapacityRequest { client_id: client.to_owned(), resource: vec![resource] };
    book.get(&request, client, moment).unwrap().response.remove(0)
}

#[test]
fn leases_are_told_in_seconds_since_1970_and_share_as_the_table_says() {
    for (kind, expected) in [
        (Kind::FairShare, [60.0, 50.0, 10.0]),
        (Kind::ProportionalShare, [69.690_721_65, 40.309_278_351, 10.0]),
        (Kind::Static, [120.0, 50.0, 10.0]),
        (Kind::NoAlgorithm, [1_000.0, 50.0, 10.0]),
    ] {
        let mut book = Book::new(Some(templates(kind)), START.now);
        let mut last = Vec::new();
        // In the second and third turn everyone has let go of what was too much.
        for turn in 0..4 {
            let wants = [("a", 1_000.0), ("b", 50.0), ("c", 10.0)];
            last = wants.map(|(client, wants)| get(&mut book, client, wants, at(turn * 5))).into();
        }
        for (response, expected) in last.iter().zip(expected) {
            let lease = &response.gets;
            assert!((lease.capacity - expected).abs() < 1e-6, "{kind}: {lease:?} {expected}");
            assert_eq!((lease.expiry_time, lease.refresh_interval), (START.wall + 75, 5));
            assert_eq!(response.safe_capacity, Some(40.0));
        }
    }
}

#[test]
fn what_old_clients_do_is_borne() {
    let mut book = Book::new(Some(templates(Kind::FairShare)), START.now);
    for wants in [f64::NAN, f64::INFINITY, -5.0] {
        assert!(get(&mut book, "odd", wants, START).gets.capacity.is_finite());
    }
    for name in ["", "nothing", "db"] {
        book.release(name, "odd");
    }
    assert_eq!(get(&mut book, "a", 500.0, START).gets.capacity, 120.0);
    // A lease that has ended counts for nothing.
    assert_eq!(get(&mut book, "b", 500.0, at(1)).gets.capacity, 0.0);
    assert_eq!(get(&mut book, "b", 500.0, at(61)).gets.capacity, 120.0);
    for (client, resource) in [("", "db"), ("a", ""), ("a", &"x".repeat(1_025))] {
        let resource = wire::ResourceRequest {
            resource_id: resource.to_owned(),
            priority: 1,
            has: None,
            wants: 1.0,
        };
        let request =
            wire::GetCapacityRequest { client_id: client.to_owned(), resource: vec![resource] };
        let status = book.get(&request, client, START).unwrap_err();
        assert_eq!(status.code(), tonic::Code::InvalidArgument, "{status}");
    }
}

#[test]
fn a_new_master_lets_everyone_keep_what_it_has() {
    let algorithm = AlgorithmDraft::new(Kind::FairShare, 60, 5);
    let templates = Repository::new(&[Draft::new("*", 120.0).with_algorithm(algorithm)]).unwrap();
    let mut book = Book::new(Some(templates), START.now);
    let mut ask = |client: &str, has: Option<(i64, f64)>| {
        let has = has.map(|(left, capacity)| wire::Lease {
            expiry_time: START.wall.saturating_add(left),
            refresh_interval: 5,
            capacity,
        });
        let resource =
            wire::ResourceRequest { resource_id: "db".to_owned(), priority: 1, has, wants: 500.0 };
        let request =
            wire::GetCapacityRequest { client_id: client.to_owned(), resource: vec![resource] };
        book.get(&request, client, at(1)).unwrap().response[0].gets.capacity
    };
    assert_eq!(ask("a", Some((30, 70.0))), 70.0);
    assert_eq!(ask("expired", Some((-1, 70.0))), 0.0);
    assert_eq!(ask("liar", Some((i64::MAX, f64::NAN))), 0.0);
    assert_eq!(ask("new", None), 0.0);
}

#[test]
fn a_server_of_the_tree_asks_for_its_clients() {
    let mut book = Book::new(Some(templates(Kind::FairShare)), START.now);
    let mut ask = |server: &str, clients, wants| {
        let wants = vec![wire::PriorityBandAggregate { priority: 1, num_clients: clients, wants }];
        let resource =
            wire::ServerCapacityResourceRequest { resource_id: "db".to_owned(), has: None, wants };
        let request = wire::GetServerCapacityRequest {
            server_id: server.to_owned(),
            resource: vec![resource],
        };
        book.get_for_server(&request, server, START).unwrap().response.remove(0)
    };
    let mut granted = Vec::new();
    for _ in 0..3 {
        granted = [("a", 6), ("b", 4), ("c", 2)].map(|(s, n)| ask(s, n, 1e6)).into();
    }
    let capacities: Vec<f64> = granted.iter().map(|response| response.gets.capacity).collect();
    assert_eq!(capacities, [60.0, 40.0, 20.0]);
    let algorithm = granted[0].algorithm.clone().unwrap();
    assert_eq!((algorithm.kind, algorithm.lease_length, algorithm.refresh_interval), (3, 60, 5));
    assert!(ask("nonsense", i64::MIN, f64::NAN).gets.capacity >= 0.0);
}

#[test]
fn templates_change_and_go_while_it_runs() {
    let mut book = Book::new(Some(templates(Kind::FairShare)), START.now);
    assert_eq!(get(&mut book, "a", 500.0, START).gets.capacity, 120.0);
    let algorithm = AlgorithmDraft::new(Kind::FairShare, 60, 5);
    let less = Repository::new(&[Draft::new("*", 30.0).with_algorithm(algorithm)]).unwrap();
    book.reload(Some(less));
    assert_eq!(get(&mut book, "a", 500.0, START).gets.capacity, 30.0);
    book.reload(None);
    let request = wire::GetCapacityRequest {
        client_id: "a".to_owned(),
        resource: vec![wire::ResourceRequest {
            resource_id: "db".to_owned(),
            ..Default::default()
        }],
    };
    let status = book.get(&request, "a", START).unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unimplemented);
}

/// What a server above answers: so much of each for a minute, to be asked for every five seconds.
fn provide(resources: &[(&str, f64)], moment: Moment) -> wire::GetServerCapacityResponse {
    let response = resources.iter().map(|(name, capacity)| wire::ServerCapacityResourceResponse {
        resource_id: (*name).to_owned(),
        gets: wire::Lease {
            expiry_time: moment.wall + 60,
            refresh_interval: 5,
            capacity: *capacity,
        },
        algorithm: Some(wire::Algorithm {
            kind: 2,
            lease_length: 60,
            refresh_interval: 5,
            learning_mode_duration: Some(0),
            ..wire::Algorithm::default()
        }),
        safe_capacity: Some(7.0),
    });
    wire::GetServerCapacityResponse { response: response.collect(), mastership: None }
}

#[test]
fn a_server_below_another_asks_for_what_its_clients_want() {
    let mut book = Book::below(START.now);
    assert_eq!(book.next_ask(), None);
    let unheard = get(&mut book, "a", 500.0, START);
    assert_eq!((unheard.gets.capacity, unheard.safe_capacity), (0.0, None));
    assert!(book.is_unheard(["other", "db"].into_iter()) && !book.is_unheard(["x"].into_iter()));
    assert!(book.next_ask() <= Some(START.now));
    let asks = book.asks(START);
    let [asked] = &asks.resources[..] else { panic!("{asks:?}") };
    let wants = wire::PriorityBandAggregate { priority: 1, num_clients: 1, wants: 500.0 };
    assert_eq!((asked.resource_id.as_str(), asked.has), ("db", None));
    assert_eq!(asked.wants, [wants]);
    // Nobody is asked twice at once, nor for what it did not answer.
    assert!(book.asks(START).resources.is_empty());
    book.hear(&asks, &provide(&[("nobody/asked", 9.0)], START), START);
    assert_eq!(book.next_ask(), Some(at(1).now));
    book.hear(&asks, &provide(&[("db", 80.0)], at(1)), at(1));
    assert!(!book.is_unheard(["db"].into_iter()));
    assert_eq!(book.next_ask(), Some(at(6).now));
    let heard = get(&mut book, "a", 500.0, at(2));
    assert_eq!((heard.gets.capacity, heard.gets.expiry_time), (80.0, START.wall + 60));
    assert_eq!(heard.safe_capacity, Some(7.0));
    // Templates of the file are none of its business.
    book.reload(Some(templates(Kind::Static)));
    assert_eq!(get(&mut book, "b", 500.0, at(3)).gets.capacity, 0.0);
    let has = book.asks(at(6)).resources[0].has.unwrap();
    assert_eq!((has.capacity, has.expiry_time), (80.0, START.wall + 60));
    // An answer to who led before is not believed.
    book.begin(at(7).now);
    get(&mut book, "a", 500.0, at(7));
    book.hear(&asks, &provide(&[("db", 80.0)], at(7)), at(7));
    assert!(book.is_unheard(["db"].into_iter()));
}

#[test]
fn what_nobody_wants_is_given_back_and_what_makes_no_sense_is_borne() {
    let mut book = Book::below(START.now);
    get(&mut book, "a", 500.0, START);
    let asks = book.asks(START);
    let mut answer = provide(&[("db", f64::NAN)], START);
    let response = &mut answer.response[0];
    response.algorithm = Some(wire::Algorithm { kind: 77, lease_length: -5, ..Default::default() });
    (response.gets.expiry_time, response.safe_capacity) = (i64::MAX, Some(f64::NAN));
    book.hear(&asks, &answer, START);
    let lease = get(&mut book, "a", 500.0, at(1)).gets;
    assert_eq!((lease.capacity, lease.refresh_interval), (0.0, 1));
    answer.response[0].algorithm = None;
    answer.response[0].gets = wire::Lease { expiry_time: 0, refresh_interval: -1, capacity: 9.0 };
    book.hear(&asks, &answer, at(1));
    assert_eq!(get(&mut book, "a", 500.0, at(1)).gets.capacity, 4.5, "half of what has ended");
    book.release("db", "a");
    let asks = book.asks(at(100));
    assert_eq!((asks.gone.as_slice(), asks.resources.len()), (&["db".to_owned()][..], 0));
    assert_eq!(book.next_ask(), None);
}

#[test]
fn a_resource_that_is_refused_is_left_out_of_the_answer_to_a_server() {
    let mut book = Book::new(Some(templates(Kind::FairShare)), START.now);
    let mut ask = |names: &[&str]| {
        let resource = names.iter().map(|name| wire::ServerCapacityResourceRequest {
            resource_id: (*name).to_owned(),
            has: None,
            wants: vec![wire::PriorityBandAggregate { priority: 1, num_clients: 1, wants: 5.0 }],
        });
        let request = wire::GetServerCapacityRequest {
            server_id: "below".to_owned(),
            resource: resource.collect(),
        };
        let answer = book.get_for_server(&request, "below", START)?;
        Ok::<_, Status>(answer.response.into_iter().map(|r| r.resource_id).collect::<Vec<_>>())
    };
    let long = "x".repeat(NAME_MAX + 1);
    assert_eq!(ask(&["a", &long, "b"]).unwrap(), ["a", "b"]);
    assert_eq!(ask(&[]).unwrap(), [""; 0]);
    assert_eq!(ask(&[&long, ""]).unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[test]
fn a_resource_that_is_refused_is_left_out_of_the_answer_to_a_client() {
    let mut book = Book::new(Some(templates(Kind::FairShare)), START.now);
    let mut ask = |names: &[&str]| {
        let resource = names.iter().map(|name| wire::ResourceRequest {
            resource_id: (*name).to_owned(),
            priority: 1,
            has: None,
            wants: 5.0,
        });
        let (client_id, resource) = ("a".to_owned(), resource.collect());
        let answer = book.get(&wire::GetCapacityRequest { client_id, resource }, "a", START)?;
        Ok::<_, Status>(answer.response.into_iter().map(|r| r.resource_id).collect::<Vec<_>>())
    };
    let long = "x".repeat(NAME_MAX + 1);
    assert_eq!(ask(&["a", &long, "b"]).unwrap(), ["a", "b"]);
    assert_eq!(ask(&[]).unwrap(), [""; 0]);
    assert_eq!(ask(&[&long, ""]).unwrap_err().code(), tonic::Code::InvalidArgument);
}

#[test]
fn those_that_have_waited_longest_are_asked_for_first() {
    let mut book = Book::below(START.now);
    let names: Vec<String> = (0..ASKS_MAX + 88).map(|n| format!("r{n:03}")).collect();
    let resource = names.iter().map(|name| wire::ResourceRequest {
        resource_id: name.clone(),
        priority: 1,
        has: None,
        wants: 1.0,
    });
    let request =
        wire::GetCapacityRequest { client_id: "a".to_owned(), resource: resource.collect() };
    book.get(&request, "a", START).unwrap();
    assert_eq!(book.asks(START).resources.len(), ASKS_MAX);
    // Nothing of these was answered, and they are due again.
    let asked = book.asks(at(10)).resources;
    assert_eq!(asked.len(), ASKS_MAX);
    for name in &names[ASKS_MAX..] {
        assert!(asked.iter().any(|ask| ask.resource_id == *name), "{name} waits for ever");
    }
}

#[test]
fn a_lease_from_above_is_as_long_as_it_says_whatever_the_time_is_there() {
    for (ahead, ends) in [(0, 60), (3_600, 60), (-20, 40)] {
        let mut book = Book::below(START.now);
        get(&mut book, "a", 500.0, START);
        let asks = book.asks(START);
        let there = Moment { wall: START.wall + ahead, ..START };
        book.hear(&asks, &provide(&[("db", 80.0)], there), START);
        let lease = get(&mut book, "a", 500.0, at(1)).gets;
        assert_eq!((lease.capacity, lease.expiry_time), (80.0, START.wall + ends), "{ahead}");
    }
}
