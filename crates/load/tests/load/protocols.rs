//! The same load over each protocol.

use crate::support::{Reply, Server, run};
use bytes::Bytes;
use http::Method;
use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::time::Duration;
use tidegate_core::Criticality;
use tidegate_load::{Load, Protocol, Spacing, Weighted};

/// A hundred requests, evenly spaced over half a second.
fn even(plan: &mut tidegate_load::Plan) {
    if let Load::Open { spacing, .. } = &mut plan.course.load {
        *spacing = Spacing::Even;
    }
}

#[test]
fn every_request_arrives_with_all_that_it_says() {
    for protocol in [Protocol::Http1, Protocol::H2, Protocol::Grpc] {
        let server = Server::start(move |_, _| match protocol {
            Protocol::Grpc => Reply::grpc("0", &[]),
            _ => Reply::ok(),
        });
        let mut plan = server.plan(&["200 for 500ms"]);
        even(&mut plan);
        plan.protocol = protocol;
        let mut route = plan.course.routes.items()[0].clone();
        route.method = Method::POST;
        route.path = "/pkg.Service/Method".to_owned();
        route.headers.insert("x-mine", "yes".parse().unwrap());
        route.bodies = Weighted::only(Bytes::from_static(b"\x0a\x05"));
        let levels = [(Criticality::Critical, 3), (Criticality::Sheddable, 1)];
        route.mix.criticality = Weighted::new(levels).unwrap();
        route.mix.customer = Weighted::only(Some("alice".into()));
        route.mix.deadline = Weighted::only(Some(Duration::from_secs(15)));
        plan.course.routes = Weighted::only(route);

        let report = run(plan);
        assert_eq!((report.total.offered, report.total.ok), (100, 100), "{report:?}");
        assert_eq!(report.total.good, 100);
        let name = if protocol == Protocol::Grpc { "OK" } else { "200" };
        assert_eq!(report.total.statuses, BTreeMap::from([(name.to_owned(), 100)]));
        assert!(report.bytes_sent > 0 && report.bytes_received > 0);
        assert!(report.generator.cpu_seconds > 0.0);
        let (latency, service) = (report.latency_ms.unwrap(), report.service_ms.unwrap());
        assert!(latency.p50 >= service.min && latency.max >= service.max);

        let asked = server.asked();
        assert_eq!(asked.len(), 100);
        let mut levels = BTreeMap::new();
        for asked in &asked {
            let said = asked.said();
            *levels.entry(said.criticality.unwrap().name()).or_insert(0) += 1;
            assert_eq!(
                (asked.method.as_str(), asked.path.as_str()),
                ("POST", "/pkg.Service/Method")
            );
            assert_eq!(
                (said.attempt, &asked.headers["x-customer"]),
                (1, &"alice".parse().unwrap())
            );
            assert_eq!(asked.headers["x-mine"], "yes");
            let left = said.deadline.unwrap();
            assert!(left <= Duration::from_secs(15) && left > Duration::ZERO, "{left:?}");
            let (body, version): (&[u8], _) = match protocol {
                Protocol::Http1 => (b"\x0a\x05", http::Version::HTTP_11),
                Protocol::H2 => (b"\x0a\x05", http::Version::HTTP_2),
                Protocol::Grpc => (b"\0\0\0\0\x02\x0a\x05", http::Version::HTTP_2),
            };
            assert_eq!((&asked.body[..], asked.version), (body, version));
        }
        let counted: BTreeMap<_, _> =
            report.criticality.iter().map(|(name, fates)| (*name, fates.offered)).collect();
        assert_eq!(counted, levels);
        assert_eq!(levels.len(), 2);
    }
}

#[test]
fn long_answers_and_long_requests_pass() {
    for protocol in [Protocol::Http1, Protocol::H2] {
        let long = Bytes::from(vec![b'x'; 3_000_000]);
        let answer = long.clone();
        let server = Server::start(move |_, _| Reply { body: answer.clone(), ..Reply::ok() });
        let mut plan = server.plan(&["20 for 500ms"]);
        even(&mut plan);
        plan.protocol = protocol;
        let mut route = plan.course.routes.items()[0].clone();
        route.method = Method::PUT;
        route.bodies = Weighted::only(long);
        plan.course.routes = Weighted::only(route);
        let report = run(plan);
        assert_eq!((report.total.offered, report.total.ok), (10, 10), "{report:?}");
        assert!(report.bytes_received > 30_000_000 && report.bytes_sent > 30_000_000);
        assert!(server.asked().iter().all(|asked| asked.body.len() == 3_000_000));
    }
}

/// A server written by hand, for what hyper does not do: `answer` gets the number of a connection.
fn by_hand(answer: impl Fn(usize) -> Vec<Vec<u8>> + Send + 'static) -> std::net::SocketAddr {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for (number, stream) in listener.incoming().enumerate() {
            let (mut stream, answers) = (stream.unwrap(), answer(number));
            stream.set_nodelay(true).unwrap();
            std::thread::spawn(move || {
                let mut request = [0; 4_096];
                for answer in answers {
                    // Requests without a body come in one piece over loopback.
                    if stream.read(&mut request).unwrap_or(0) == 0 {
                        return;
                    }
                    for byte in answer.chunks(7) {
                        let _ = stream.write_all(byte);
                        let _ = stream.flush();
                    }
                }
            });
        }
    });
    address
}

#[test]
fn a_server_that_closes_after_each_answer_is_connected_to_again() {
    for answer in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nhi",
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\nuntil it closes",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi",
    ] {
        let address = by_hand(move |_| vec![answer.as_bytes().to_vec()]);
        let mut plan = crate::support::plan(address, &["100 for 300ms"]);
        even(&mut plan);
        let report = run(plan);
        assert_eq!((report.total.offered, report.total.ok), (30, 30), "{answer}: {report:?}");
    }
}

#[test]
fn chunks_and_kept_connections() {
    let chunked: &[u8] = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
                           5\r\nhello\r\n10\r\n0123456789abcdef\r\n0\r\n\r\n";
    let address = by_hand(move |_| vec![chunked.to_vec(); 1_000]);
    let mut plan = crate::support::plan(address, &["200 for 300ms"]);
    even(&mut plan);
    plan.connections = 1;
    plan.connections_max = 1;
    plan.warmup = Duration::from_millis(20);
    let report = run(plan);
    assert_eq!((report.total.offered, report.total.ok), (60, 60), "{report:?}");
    assert_eq!(report.connections_made, 0, "the one from the start was kept");
}

#[test]
fn what_is_no_answer_is_counted_as_that() {
    for (answer, kind) in [
        (&b"SSH-2.0-OpenSSH\r\n"[..], "malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhi", "malformed"),
        (b"", "connection_closed"),
    ] {
        let address = by_hand(move |_| vec![answer.to_vec()]);
        let mut plan = crate::support::plan(address, &["100 for 200ms"]);
        even(&mut plan);
        let report = run(plan);
        assert_eq!((report.total.offered, report.total.failed), (20, 20), "{kind}");
        assert_eq!(report.total.errors.get(kind), Some(&20), "{:?}", report.total.errors);
    }
}

#[test]
fn statuses_are_told_apart() {
    let server = Server::start(|number, _| match number % 4 {
        0 => Reply::ok(),
        1 => Reply::status(404, &[]),
        2 => Reply::status(500, &[]),
        _ => Reply::status(503, &[("x-tidegate-reason", "overloaded")]),
    });
    for protocol in [Protocol::Http1, Protocol::H2] {
        let mut plan = server.plan(&["200 for 400ms"]);
        even(&mut plan);
        plan.protocol = protocol;
        let report = run(plan);
        let statuses: Vec<_> = report.total.statuses.iter().collect();
        assert_eq!(statuses.len(), 4, "{statuses:?}");
        assert!(statuses.iter().all(|(_, count)| **count == 20), "{statuses:?}");
        assert_eq!(report.total.reasons, BTreeMap::from([("overloaded".to_owned(), 20)]));
        assert_eq!((report.total.ok, report.total.failed), (20, 60));
        assert!(report.unhappy_ms.is_some());
    }
}
