//! Calls through a proxy beside the client.

use crate::support::{
    ANY, Running, client, client_h2, echo, outbound, program, read_answer, service, text,
};
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use tidegate::Criticality;
use tidegate::client::{Balance, Repeat};
use tidegate_core::balance::{LeastLoadedConfig, PrequalConfig, WeightedConfig};
use tidegate_core::throttle::ThrottleConfig;
use tidegate_proxy::OutboundConfig;
use tidegate_proxy::outbound::Endpoints;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn get(headers: &[(&str, &str)]) -> Request<Full<Bytes>> {
    let mut request = Request::builder().uri("/").header("host", "shop");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(Full::default()).unwrap()
}

/// Sends one, and reads all of its answer.
async fn ask(
    client: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
) -> (StatusCode, HeaderMap, String) {
    client.ready().await.unwrap();
    let response = client.send_request(request).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    (status, headers, text(response).await)
}

/// A backend that always answers the same, and notes what came.
#[derive(Clone)]
struct Backend {
    address: SocketAddr,
    came: Arc<Mutex<Vec<(HeaderMap, Bytes)>>>,
}

impl Backend {
    async fn new(status: u16, headers: &'static [(&'static str, &'static str)]) -> Self {
        let came = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&came);
        let address = program(move |request| {
            let noted = Arc::clone(&noted);
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                noted.lock().unwrap().push((head.headers, body));
                let mut response = Response::builder().status(status);
                for (name, value) in headers {
                    response = response.header(*name, *value);
                }
                response.body(Full::new(Bytes::from_static(b"said"))).unwrap()
            }
        })
        .await;
        Self { address, came }
    }

    fn count(&self) -> usize {
        self.came.lock().unwrap().len()
    }

    fn attempts(&self) -> Vec<String> {
        let came = self.came.lock().unwrap();
        came.iter()
            .map(|(headers, _)| headers["x-envoy-attempt-count"].to_str().unwrap().to_owned())
            .collect()
    }
}

#[tokio::test]
async fn a_call_arrives_and_its_answer_comes_back() {
    let mut service = service(&[program(echo).await]);
    service.host = Some("inventory.internal:80".parse().unwrap());
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let request = Request::post("/a?b=c").header("host", "127.0.0.1:7001");
    let request = request.header("keep-alive", "5").body(Full::from("hello")).unwrap();
    let (status, _, body) = ask(&mut client, request).await;
    assert_eq!(status, StatusCode::OK);
    let expected = "POST /a?b=c HTTP/1.1\nbaggage: criticality=CRITICAL\ncontent-length: 5\n\
                    host: inventory.internal:80\nvia: 1.1 tidegate\nx-criticality: CRITICAL\n\
                    x-envoy-attempt-count: 1\n\nhello";
    assert_eq!(body, expected);
    // Over HTTP/2 as well.
    let mut client = client_h2(proxy.address()).await;
    let request = Request::get("http://127.0.0.1:7001/x").body(Full::default()).unwrap();
    let body = text(client.send_request(request).await.unwrap()).await;
    assert!(body.starts_with("GET /x HTTP/1.1\n"), "{body}");
    assert!(body.contains("\nhost: inventory.internal:80\n"), "{body}");
}

#[tokio::test]
async fn answers_that_were_read_to_their_end_are_good() {
    let backend = Backend::new(200, &[]).await;
    let proxy = Running::start(outbound(service(&[backend.address])));
    let mut client = client(proxy.address()).await;
    for method in [Method::GET, Method::HEAD, Method::POST] {
        let mut request = get(&[]);
        *request.method_mut() = method;
        let (status, headers, _) = ask(&mut client, request).await;
        assert_eq!((status, &headers["content-length"]), (StatusCode::OK, &"4".parse().unwrap()));
    }
    let snapshot = proxy.get().task().snapshot();
    assert_eq!((snapshot.requests.completed(), snapshot.failed), (3, 0));
    assert_eq!(snapshot.good[Criticality::Critical.index()], 3);
}

#[tokio::test]
async fn what_one_refuses_another_takes_with_the_same_body() {
    let (full, free) = (Backend::new(503, &[]).await, Backend::new(200, &[]).await);
    let proxy = Running::start(outbound(service(&[full.address, free.address])));
    let mut client = client(proxy.address()).await;
    // The budget has nothing in it before its first tick.
    while !free.attempts().contains(&"2".to_owned()) {
        let request = Request::post("/").header("host", "shop").body(Full::from("order 7"));
        ask(&mut client, request.unwrap()).await;
    }
    assert!(full.attempts().iter().all(|attempt| attempt == "1"), "{:?}", full.attempts());
    assert!(free.came.lock().unwrap().iter().all(|(_, body)| body == "order 7"));
}

#[tokio::test]
async fn no_more_than_a_tenth_of_the_calls_are_retries() {
    let (full, free) = (Backend::new(503, &[]).await, Backend::new(200, &[]).await);
    let mut service = service(&[full.address, free.address]);
    service.budget.retries_min_per_second = 0;
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let (mut calls, mut refused) = (0, 0);
    let retries = || free.attempts().iter().filter(|attempt| *attempt == "2").count();
    while retries() < 20 {
        calls += 1;
        let (status, headers, _) = ask(&mut client, get(&[])).await;
        // When there is nothing left to retry with, the refusal is handed on as it came.
        refused += usize::from(status == StatusCode::SERVICE_UNAVAILABLE);
        assert!(!headers.contains_key("x-tidegate-reason"), "{headers:?}");
    }
    assert!(retries() * 10 <= calls, "{} retries of {calls} calls", retries());
    assert_eq!(full.count() + free.count(), calls + retries());
    assert_eq!(full.count(), refused + retries());
}

#[tokio::test]
async fn who_says_dont_retry_is_obeyed() {
    let headers = &[("x-envoy-ratelimited", "true")];
    let (one, two) = (Backend::new(503, headers).await, Backend::new(503, headers).await);
    let proxy = Running::start(outbound(service(&[one.address, two.address])));
    let mut client = client(proxy.address()).await;
    for _ in 0..300 {
        let (status, headers, body) = ask(&mut client, get(&[])).await;
        assert_eq!((status, body.as_str()), (StatusCode::SERVICE_UNAVAILABLE, "said"));
        assert_eq!(headers["x-envoy-ratelimited"], "true");
    }
    assert_eq!(one.count() + two.count(), 300);
}

#[tokio::test]
async fn a_body_too_long_to_keep_is_not_sent_twice() {
    let (full, free) = (Backend::new(503, &[]).await, Backend::new(200, &[]).await);
    let mut service = service(&[full.address, free.address]);
    service.body_max = 10;
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    for _ in 0..300 {
        let request = Request::put("/").header("host", "shop").body(Full::from("eleven byte"));
        ask(&mut client, request.unwrap()).await;
    }
    assert_eq!(full.count() + free.count(), 300);
    assert!(full.count() > 0);
}

#[tokio::test]
async fn a_backend_that_refuses_all_is_soon_left_alone() {
    let backend = Backend::new(503, &[("x-envoy-ratelimited", "true")]).await;
    let mut service = service(&[backend.address]);
    service.throttle = ThrottleConfig::default();
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let mut sent = 0;
    let headers = loop {
        let (status, headers, body) = ask(&mut client, get(&[])).await;
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
        if headers.get("x-tidegate-reason").is_some_and(|reason| reason == "throttled") {
            assert!(body.contains("don't retry"), "{body}");
            break headers;
        }
        sent += 1;
    };
    assert_eq!(headers["x-envoy-ratelimited"], "true");
    assert_eq!(headers["content-type"], "application/problem+json");
    // It was never sent.
    assert_eq!(backend.count(), sent);
    // Others are not held back for what the lower ones have met.
    let (_, headers, _) = ask(&mut client, get(&[("x-criticality", "CRITICAL_PLUS")])).await;
    assert!(!headers.contains_key("x-tidegate-reason"), "{headers:?}");
}

#[tokio::test]
async fn criticality_deadline_and_attempt_arrive() {
    let proxy = Running::start(outbound(service(&[program(echo).await])));
    let mut client = client(proxy.address()).await;
    let said = [
        ("baggage", "user=7,criticality=SHEDDABLE"),
        ("x-envoy-expected-rq-timeout-ms", "5000"),
        ("x-envoy-attempt-count", "3"),
    ];
    let (_, _, body) = ask(&mut client, get(&said)).await;
    assert!(body.contains("\nbaggage: criticality=SHEDDABLE,user=7\n"), "{body}");
    assert!(body.contains("\nx-criticality: SHEDDABLE\n"), "{body}");
    assert!(body.contains("\nx-envoy-attempt-count: 3\n"), "{body}");
    let line = body.lines().find_map(|line| line.strip_prefix("x-envoy-expected-rq-timeout-ms: "));
    let left: u64 = line.unwrap().parse().unwrap();
    assert!((1..=5_000).contains(&left), "{left}");
    // The program beside us is believed.
    let (_, _, body) = ask(&mut client, get(&[("x-criticality", "CRITICAL_PLUS")])).await;
    assert!(body.contains("\nx-criticality: CRITICAL_PLUS\n"), "{body}");
    // What makes no sense is counted, and replaced.
    let (_, _, body) = ask(&mut client, get(&[("x-criticality", "very")])).await;
    assert!(body.contains("\nx-criticality: CRITICAL\n"), "{body}");
    let snapshot = proxy.get().task().snapshot();
    let admitted = Criticality::ALL.map(|criticality| snapshot.requests.admitted(criticality));
    assert_eq!(admitted, [1, 0, 1, 1]);
    assert_eq!(snapshot.faults.iter().map(|(_, count)| count).sum::<u64>(), 1);
}

#[tokio::test]
async fn strangers_are_told_nothing() {
    let mut service = service(&[program(echo).await]);
    service.propagate = false;
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let said = [
        ("baggage", "user=7,criticality=SHEDDABLE"),
        ("x-envoy-expected-rq-timeout-ms", "5000"),
        ("x-envoy-attempt-count", "3"),
    ];
    let (_, _, body) = ask(&mut client, get(&said)).await;
    assert_eq!(body, "GET / HTTP/1.1\nbaggage: user=7\nhost: shop\nvia: 1.1 tidegate\n\n");
}

#[tokio::test]
async fn a_deadline_ends_a_call_whoever_is_silent() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let service = service(&[listener.local_addr().unwrap()]);
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let (status, headers, _) =
        ask(&mut client, get(&[("x-envoy-expected-rq-timeout-ms", "50")])).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(headers["x-tidegate-reason"], "upstream_timeout");
    let (status, headers, _) = ask(&mut client, get(&[("grpc-timeout", "0m")])).await;
    assert_eq!(status, StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(headers["x-tidegate-reason"], "deadline_passed");
}

#[tokio::test]
async fn who_fails_fast_draws_no_traffic() {
    let (broken, sound) = (Backend::new(500, &[]).await, Backend::new(200, &[]).await);
    let mut service = service(&[broken.address, sound.address]);
    service.balance = Balance::LeastLoaded(LeastLoadedConfig::default());
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    for _ in 0..300 {
        ask(&mut client, get(&[])).await;
    }
    // An error counts as an active request: of calls one after the other none goes there again.
    assert!(broken.count() <= 3, "{}", broken.count());
}

#[tokio::test]
async fn nobody_at_home_is_tried_elsewhere_whatever_the_method() {
    let nobody = TcpListener::bind(ANY).await.unwrap().local_addr().unwrap();
    let backend = Backend::new(200, &[]).await;
    let mut service = service(&[nobody, backend.address]);
    service.repeat = Repeat::Unsent;
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    while !backend.attempts().contains(&"2".to_owned()) {
        let request = Request::post("/").header("host", "shop").body(Full::from("x")).unwrap();
        let (status, headers, _) = ask(&mut client, request).await;
        if status != StatusCode::OK {
            assert_eq!(status, StatusCode::BAD_GATEWAY);
            assert_eq!(headers["x-tidegate-reason"], "upstream_unreachable");
        }
    }
}

#[tokio::test]
async fn what_may_have_been_done_is_not_done_twice() {
    let (cut, came) = (TcpListener::bind(ANY).await.unwrap(), Arc::new(AtomicUsize::new(0)));
    let (address, counted) = (cut.local_addr().unwrap(), Arc::clone(&came));
    tokio::spawn(async move {
        while let Ok((mut io, _)) = cut.accept().await {
            let mut buffer = [0; 4096];
            let _ = io.read(&mut buffer).await;
            counted.fetch_add(1, Ordering::SeqCst);
        }
    });
    let backend = Backend::new(200, &[]).await;
    let proxy = Running::start(outbound(service(&[address, backend.address])));
    let mut client = client(proxy.address()).await;
    for _ in 0..100 {
        let request = Request::post("/").header("host", "shop").body(Full::from("x")).unwrap();
        let (status, headers, _) = ask(&mut client, request).await;
        if status != StatusCode::OK {
            assert_eq!(status, StatusCode::BAD_GATEWAY);
            assert_eq!(headers["x-tidegate-reason"], "upstream_broken");
        }
    }
    assert_eq!(came.load(Ordering::SeqCst) + backend.count(), 100);
    assert!(backend.attempts().iter().all(|attempt| attempt == "1"));
}

#[tokio::test]
async fn lame_ducks_get_no_more() {
    let leaving = Backend::new(200, &[("x-envoy-immediate-health-check-fail", "true")]).await;
    let staying = Backend::new(200, &[]).await;
    let proxy = Running::start(outbound(service(&[leaving.address, staying.address])));
    let mut client = client(proxy.address()).await;
    for _ in 0..100 {
        ask(&mut client, get(&[])).await;
    }
    assert_eq!((leaving.count(), staying.count()), (1, 99));
}

#[tokio::test]
async fn load_reports_are_asked_for_and_kept() {
    const REPORT: &str = r#"JSON {"rpsFractional":100,"applicationUtilization":0.5}"#;
    let backend = Backend::new(200, &[("endpoint-load-metrics", REPORT)]).await;
    let mut service = service(&[backend.address]);
    service.balance = Balance::Weighted(WeightedConfig::default());
    let mut config = outbound(service);
    config.admin = Some(ANY.parse().unwrap());
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    let (_, headers, _) = ask(&mut client, get(&[])).await;
    assert!(!headers.contains_key("endpoint-load-metrics"), "{headers:?}");
    assert_eq!(backend.came.lock().unwrap()[0].0["endpoint-load-metrics-format"], "BIN");
    let row = format!(
        "tidegate_backend_utilization_ratio{{service=\"shop\",backend=\"{}\"}} 0.5",
        backend.address
    );
    let metrics = metrics(&proxy).await;
    assert!(metrics.contains(&row), "{row}\n{metrics}");
}

#[tokio::test]
async fn prequal_probes() {
    let probed = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&probed);
    let address = program(move |request| {
        noted.lock().unwrap().push(request.uri().path().to_owned());
        let report = r#"JSON {"namedMetrics":{"tidegate.rif":3}}"#;
        let response = Response::builder().header("endpoint-load-metrics", report);
        async { response.body(Full::<Bytes>::default()).unwrap() }
    })
    .await;
    let mut service = service(&[address]);
    service.balance = Balance::Prequal(PrequalConfig::default());
    service.probe = "/load".parse().unwrap();
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    while !probed.lock().unwrap().contains(&"/load".to_owned()) {
        let (status, ..) = ask(&mut client, get(&[])).await;
        assert_eq!(status, StatusCode::OK);
    }
}

#[tokio::test]
async fn workers_share_what_they_learn() {
    let (broken, sound) = (Backend::new(500, &[]).await, Backend::new(200, &[]).await);
    let mut service = service(&[broken.address, sound.address]);
    service.balance = Balance::LeastLoaded(LeastLoadedConfig::default());
    let mut config = outbound(service);
    config.workers = NonZeroUsize::new(4);
    let proxy = Running::start(config);
    // Each connection may be another worker's; each worker has its own connections to backends.
    for _ in 0..40 {
        let mut client = client(proxy.address()).await;
        for _ in 0..5 {
            ask(&mut client, get(&[])).await;
        }
    }
    assert_eq!(broken.count() + sound.count(), 200);
    assert!(broken.count() <= 16, "{}", broken.count());
}

#[tokio::test]
async fn each_service_has_its_own_door() {
    let (shop, stock) = (Backend::new(200, &[]).await, Backend::new(404, &[]).await);
    let mut second = service(&[stock.address]);
    second.name = "stock".to_owned();
    let mut config = outbound(service(&[shop.address]));
    config.services.push(second);
    config.admin = Some(ANY.parse().unwrap());
    let proxy = Running::start(config);
    for (name, address) in proxy.get().services() {
        let (status, ..) = ask(&mut client(*address).await, get(&[])).await;
        assert_eq!(status.as_u16(), if name == "shop" { 200 } else { 404 });
    }
    let metrics = metrics(&proxy).await;
    for service in ["shop", "stock"] {
        let row = format!("tidegate_client_requests_total{{service=\"{service}\"");
        assert!(metrics.contains(&row), "{row}\n{metrics}");
        let row = format!("tidegate_backends{{service=\"{service}\",state=\"serving\"}} 1");
        assert!(metrics.contains(&row), "{row}\n{metrics}");
    }
}

async fn metrics(proxy: &Running) -> String {
    let page = proxy.get().page().unwrap().address();
    let request = Request::builder().uri("/metrics").header("host", page.to_string());
    let mut client = client(page).await;
    ask(&mut client, request.body(Full::default()).unwrap()).await.2
}

#[tokio::test]
async fn tunnels_pass() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1024];
        let _ = io.read(&mut buffer).await;
        let head = "HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        io.write_all(head.as_bytes()).await.unwrap();
        while let Ok(read @ 1..) = io.read(&mut buffer).await {
            io.write_all(&buffer[..read].to_ascii_uppercase()).await.unwrap();
        }
    });
    let proxy = Running::start(outbound(service(&[address])));
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    let ask = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
    io.write_all(ask).await.unwrap();
    let head = read_answer(&mut io).await;
    assert!(head.starts_with("HTTP/1.1 101"), "{head}");
    io.write_all(b"hello").await.unwrap();
    let mut echoed = [0; 5];
    io.read_exact(&mut echoed).await.unwrap();
    assert_eq!(&echoed, b"HELLO");
}

#[tokio::test]
async fn while_it_drains_calls_still_go_out() {
    let backend = Backend::new(200, &[]).await;
    let proxy = Running::start(outbound(service(&[backend.address])));
    ask(&mut client(proxy.address()).await, get(&[])).await;
    proxy.get().life().stop();
    let (status, ..) = ask(&mut client(proxy.address()).await, get(&[])).await;
    assert_eq!(status, StatusCode::OK);
}

#[tokio::test]
async fn what_cannot_be_started_says_why() {
    use tidegate_proxy::Proxy;
    let error = Proxy::start(OutboundConfig::new(Vec::new())).unwrap_err().to_string();
    assert!(error.contains("no service to call; right: "), "{error}");
    let path = std::env::temp_dir().join("tidegate-no-such-file");
    let period = Duration::from_secs(1);
    let mut service = service(&[]);
    service.endpoints = Endpoints::File { path, period };
    let error = Proxy::start(outbound(service)).unwrap_err().to_string();
    assert!(error.contains("tidegate-no-such-file: No such file"), "{error}");
}
