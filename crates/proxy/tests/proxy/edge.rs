//! Strangers in front of an edge, before either role.

use crate::support::{
    Running, client, client_h2, config, echo, outbound, program, read_answer, service, text,
};
use bytes::Bytes;
use core::time::Duration;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use std::net::SocketAddr;
use tidegate::Criticality;
use tidegate_proxy::edge::{Allowance, EdgeConfig, Rule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};

/// An edge where paying matters most and the rest less than usual.
fn edge() -> EdgeConfig {
    let mut rule = Rule::new();
    rule.path = Some("/checkout/**".parse().unwrap());
    rule.criticality = Some(Criticality::CriticalPlus);
    let mut edge = EdgeConfig::default();
    edge.rules = vec![rule];
    edge.criticality = Criticality::SheddablePlus;
    edge.forwarded = false;
    edge
}

/// The same edge before the inbound role and before a list of endpoints.
fn both(upstream: SocketAddr, edge: &EdgeConfig) -> [Running; 2] {
    let mut inbound = config(upstream);
    inbound.edge = Some(edge.clone());
    let mut alone = outbound(service(&[upstream]));
    alone.edge = Some(edge.clone());
    [Running::start(inbound), Running::start(alone)]
}

fn get(path: &str, headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::get(path).header("host", "shop");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

async fn ask(client: &mut SendRequest<Full<Bytes>>, request: Request<Full<Bytes>>) -> String {
    client.ready().await.unwrap();
    text(client.send_request(request).await.unwrap()).await
}

/// Everything a stranger might try.
const CLAIMS: &[(&str, &str)] = &[
    ("baggage", "user=7, criticality=CRITICAL_PLUS"),
    ("baggage", "%63riticality=CRITICAL_PLUS,b=2"),
    ("x-criticality", "CRITICAL_PLUS"),
    ("x_criticality", "CRITICAL_PLUS"),
    ("x-request-criticality", "CRITICAL_PLUS"),
    ("criticality", "CRITICAL_PLUS"),
    ("x-envoy-attempt-count", "9"),
    ("grpc-previous-rpc-attempts", "9"),
    ("x-customer", "maps"),
    ("x-tidegate-decision", "0"),
    ("x-envoy-original-path", "/admin"),
    ("endpoint-load-metrics-format", "JSON"),
    ("x-envoy-expected-rq-timeout-ms", "999999999"),
];

#[tokio::test]
async fn a_stranger_says_nothing_and_the_edge_says_it_all() {
    for (number, proxy) in both(program(echo).await, &edge()).iter().enumerate() {
        let mut client = client(proxy.address()).await;
        for (path, level) in [("/checkout/7", "CRITICAL_PLUS"), ("/search", "SHEDDABLE_PLUS")] {
            let seen = ask(&mut client, get(path, CLAIMS)).await;
            let lines: Vec<&str> =
                seen.lines().skip(1).take_while(|line| !line.is_empty()).collect();
            let baggage = format!("baggage: criticality={level},user=7,b=2");
            let criticality = format!("x-criticality: {level}");
            let deadline: u64 = lines
                .iter()
                .find_map(|line| line.strip_prefix("x-envoy-expected-rq-timeout-ms: "))
                .unwrap()
                .parse()
                .unwrap();
            assert!((59_000..=60_000).contains(&deadline), "{seen}");
            // The outbound role numbers its own attempts, from one.
            let mut expected = vec![baggage.as_str(), "host: shop", "via: 1.1 tidegate"];
            expected.push(criticality.as_str());
            if number == 1 {
                expected.push("x-envoy-attempt-count: 1");
            }
            let left: Vec<&str> =
                lines.into_iter().filter(|line| !line.contains("-timeout-ms")).collect();
            assert_eq!(left, expected, "{seen}");
        }
        let snapshot = proxy.get().task().snapshot();
        assert_eq!(snapshot.requests.admitted(Criticality::CriticalPlus), 1);
        assert_eq!(snapshot.requests.admitted(Criticality::SheddablePlus), 1);
    }
}

#[tokio::test]
async fn nor_does_it_in_trailers() {
    let address = program(|request: Request<hyper::body::Incoming>| async move {
        let body = request.into_body().collect().await.unwrap();
        let mut names: Vec<String> = body
            .trailers()
            .map(|trailers| trailers.keys().map(ToString::to_string).collect())
            .unwrap_or_default();
        names.sort();
        Response::new(Full::from(names.join(",")))
    })
    .await;
    let mut config = config(address);
    config.edge = Some(edge());
    config.pool.protocol = tidegate_proxy::Protocol::Http2;
    let proxy = Running::start(config);
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(
        b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntrailer: x-sum\r\n\r\n\
          2\r\nhi\r\n0\r\nx-sum: 1\r\nx-criticality: CRITICAL_PLUS\r\nkeep-alive: 5\r\n\
          x-forwarded-for: 10.0.0.1\r\nx-real-ip: 10.0.0.1\r\n\r\n",
    )
    .await
    .unwrap();
    let answer = read_answer(&mut io).await;
    assert!(answer.ends_with("\r\n\r\nx-sum"), "{answer}");
}

#[tokio::test]
async fn what_goes_on_inside_stays_there() {
    let address = program(|_| async {
        Response::builder()
            .status(503)
            .header("endpoint-load-metrics", "TEXT cpu_utilization=0.5")
            .header("endpoint-load-metrics-bin", "CQAAAAAAAOA/")
            .header("x-tidegate-cause", "utilization 2.0")
            .header("x-tidegate-reason", "overloaded")
            .header("x-envoy-upstream-service-time", "5")
            .header("x-envoy-ratelimited", "true")
            .header("server", "shop")
            .body(Full::from("no"))
            .unwrap()
    })
    .await;
    for proxy in both(address, &edge()) {
        let mut client = client(proxy.address()).await;
        let asked = get("/", &[("endpoint-load-metrics-format", "JSON")]);
        client.ready().await.unwrap();
        let response = client.send_request(asked).await.unwrap();
        assert_eq!(response.status(), 503);
        let mut names: Vec<&str> =
            response.headers().keys().map(http::HeaderName::as_str).collect();
        names.sort_unstable();
        let expected =
            ["content-length", "date", "server", "x-envoy-ratelimited", "x-tidegate-reason"];
        assert_eq!(names, expected);
    }
}

/// A connection from another address of this machine.
async fn connect_from(from: &str, to: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind(format!("{from}:0").parse().unwrap())?;
    socket.connect(to).await
}

#[tokio::test]
async fn one_address_has_so_much_and_the_others_do_not_feel_it() {
    let mut edge = edge();
    edge.connections = Allowance::at_once(3);
    edge.requests = Allowance::at_once(2);
    let (came, mut comes) = tokio::sync::mpsc::unbounded_channel();
    let (go, _) = tokio::sync::broadcast::channel::<()>(1);
    let gone = go.clone();
    let address = program(move |request| {
        let (came, mut going) = (came.clone(), gone.subscribe());
        async move {
            if request.uri().path() == "/wait" {
                came.send(()).unwrap();
                let _ = going.recv().await;
            }
            Response::new(Full::from("done"))
        }
    })
    .await;
    for proxy in both(address, &edge) {
        let wait = b"GET /wait HTTP/1.1\r\nhost: x\r\n\r\n";
        let plain = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        let mut held = Vec::new();
        for _ in 0..2 {
            let mut io = connect_from("127.0.0.1", proxy.address()).await.unwrap();
            io.write_all(wait).await.unwrap();
            comes.recv().await.unwrap();
            held.push(io);
        }
        // One request too many, and then one connection.
        let mut third = connect_from("127.0.0.1", proxy.address()).await.unwrap();
        third.write_all(plain).await.unwrap();
        let refused = read_answer(&mut third).await;
        assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
        assert!(refused.contains("\r\nretry-after: 1\r\n"), "{refused}");
        assert!(refused.contains("\r\nx-tidegate-reason: client_limit\r\n"), "{refused}");
        // It is reset, which may be seen at any step.
        let fourth = async {
            let mut fourth = connect_from("127.0.0.1", proxy.address()).await?;
            fourth.write_all(plain).await?;
            fourth.read(&mut [0; 64]).await
        };
        assert!(matches!(fourth.await, Ok(0) | Err(_)), "it was taken");
        // Somebody else is served, and so is the first again.
        let mut other = connect_from("127.0.0.2", proxy.address()).await.unwrap();
        other.write_all(plain).await.unwrap();
        assert!(read_answer(&mut other).await.starts_with("HTTP/1.1 200 "));
        go.send(()).unwrap();
        for io in &mut held {
            assert!(read_answer(io).await.starts_with("HTTP/1.1 200 "));
        }
        third.write_all(plain).await.unwrap();
        assert!(read_answer(&mut third).await.starts_with("HTTP/1.1 200 "));
    }
}

#[tokio::test]
async fn one_connection_is_only_so_fast() {
    let mut edge = edge();
    edge.each_connection = Allowance::per_second(1);
    edge.each_connection.burst = Some(3);
    let proxy = &both(program(echo).await, &edge)[0];
    let mut fast = client_h2(proxy.address()).await;
    let mut statuses = Vec::new();
    // A token comes back each second, and a thousand requests do not take as many.
    while statuses.len() < 1_000 && !statuses.contains(&StatusCode::TOO_MANY_REQUESTS) {
        let request = Request::get("http://shop/").body(Full::<Bytes>::default()).unwrap();
        let response = fast.send_request(request).await.unwrap();
        statuses.push(response.status());
    }
    assert_eq!(statuses[..3], [StatusCode::OK; 3]);
    assert_eq!(statuses.last(), Some(&StatusCode::TOO_MANY_REQUESTS));
    let mut other = client(proxy.address()).await;
    assert!(ask(&mut other, get("/", &[])).await.starts_with("GET / "));
}

#[tokio::test]
async fn bodies_may_be_so_long() {
    let mut edge = edge();
    edge.body.bytes_max = Some(10);
    for proxy in both(program(echo).await, &edge) {
        for (body, status) in [
            ("content-length: 10\r\n\r\n0123456789", "200"),
            ("content-length: 11\r\n\r\n0123456789a", "413"),
            ("transfer-encoding: chunked\r\n\r\na\r\n0123456789\r\n0\r\n\r\n", "200"),
            ("transfer-encoding: chunked\r\n\r\n6\r\n012345\r\n5\r\n67890\r\n0\r\n\r\n", "413"),
        ] {
            let mut io = TcpStream::connect(proxy.address()).await.unwrap();
            let request = format!("POST / HTTP/1.1\r\nhost: x\r\n{body}");
            io.write_all(request.as_bytes()).await.unwrap();
            let answer = read_answer(&mut io).await;
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{body:?}: {answer}");
            let why = answer.contains("x-tidegate-reason: body_too_long");
            assert_eq!(why, status == "413", "{answer}");
        }
    }
}

/// Whoever sends nothing of a body is told so, in HTTP/2 as well.
#[tokio::test]
async fn bodies_may_not_stand_still() {
    let mut edge = edge();
    edge.body.stall_max = Some(Duration::from_millis(20));
    for proxy in both(program(echo).await, &edge) {
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf").await.unwrap();
        let answer = read_answer(&mut io).await;
        assert!(answer.starts_with("HTTP/1.1 408 "), "{answer}");
        assert!(answer.contains("x-tidegate-reason: body_too_slow"), "{answer}");
        // Whoever calls it gRPC has no more time for it.
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        let claims = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-type: application/grpc\r\n\
            content-length: 9\r\n\r\nhalf";
        io.write_all(claims).await.unwrap();
        let answer = read_answer(&mut io).await;
        assert!(answer.contains("x-tidegate-reason: body_too_slow"), "{answer}");
        let h2 = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut h2, connection) = hyper::client::conn::http2::handshake(
            hyper_util::rt::TokioExecutor::new(),
            hyper_util::rt::TokioIo::new(h2),
        )
        .await
        .unwrap();
        tokio::spawn(connection);
        // A body that never comes.
        let silent = http_body_util::StreamBody::new(futures_util::stream::pending::<
            Result<http_body::Frame<Bytes>, std::convert::Infallible>,
        >());
        let request = Request::post("http://shop/").body(silent).unwrap();
        let response = h2.send_request(request).await.unwrap();
        assert_eq!(response.status(), 408);
    }
}
