//! A plain server on hyper, spoken to by hyper-util and by reqwest.

use super::{generous, ticks};
use bytes::Bytes;
use core::convert::Infallible;
use http::{Request, Response, Version};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::client::legacy::Client;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate::client::{self, BoxError, Discovery, Service};
use tokio::net::TcpListener;
use tower::ServiceExt;
use tower_layer::Layer as _;

/// What arrived: path, attempt, body.
type Log = Arc<Mutex<Vec<(String, String, Bytes, Instant)>>>;

/// Refuses the first request to each path in the way that the path names.
async fn serve() -> (SocketAddr, Log) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let log = Log::default();
    let seen = Arc::clone(&log);
    let visits: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
    tokio::spawn(async move {
        loop {
            let Ok((stream, _)) = listener.accept().await else { return };
            let (log, visits) = (Arc::clone(&seen), Arc::clone(&visits));
            let service = service_fn(move |request: Request<Incoming>| {
                answer(request, Arc::clone(&log), Arc::clone(&visits))
            });
            tokio::spawn(async move {
                let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await;
            });
        }
    });
    (address, log)
}

async fn answer(
    request: Request<Incoming>,
    log: Log,
    visits: Arc<Mutex<BTreeMap<String, u32>>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let path = request.uri().path().to_owned();
    let attempt = request.headers().get("x-envoy-attempt-count");
    let attempt = attempt.map_or("none", |value| value.to_str().unwrap()).to_owned();
    assert_eq!(request.headers()["x-criticality"], "CRITICAL");
    let body = request.into_body().collect().await.unwrap().to_bytes();
    log.lock().unwrap().push((path.clone(), attempt, body.clone(), Instant::now()));
    let visit = {
        let mut visits = visits.lock().unwrap();
        let visit = visits.entry(path.clone()).or_default();
        *visit += 1;
        *visit
    };
    let refusal = match path.as_str() {
        _ if visit > 1 => None,
        "/busy" => Some((503, None)),
        "/at-once" => Some((503, Some(("retry-after", "0")))),
        "/dont" => Some((503, Some(("x-envoy-ratelimited", "true")))),
        "/quota" => Some((429, None)),
        "/quota-later" => Some((429, Some(("retry-after", "0")))),
        "/broken" => Some((500, None)),
        _ => None,
    };
    let Some((status, header)) = refusal else { return Ok(Response::new(Full::new(body))) };
    let mut response = Response::builder().status(status);
    if let Some((name, value)) = header {
        response = response.header(name, value);
    }
    Ok(response.body(Full::from("no")).unwrap())
}

/// What each path comes to: the status in the end, and the attempts it takes.
const CASES: [(&str, u16, usize); 7] = [
    ("/fine", 200, 1),
    ("/busy", 200, 2),
    ("/at-once", 200, 2),
    ("/dont", 503, 1),
    ("/quota", 429, 1),
    ("/quota-later", 200, 2),
    ("/broken", 500, 1),
];

fn attempts(log: &Log, path: &str) -> Vec<String> {
    let log = log.lock().unwrap();
    log.iter().filter(|entry| entry.0 == path).map(|entry| entry.1.clone()).collect()
}

#[tokio::test]
async fn hyper_util_over_http_1_and_2() {
    for version in [Version::HTTP_11, Version::HTTP_2] {
        let (address, log) = serve().await;
        let mut builder = Client::builder(TokioExecutor::new());
        let http2 = version == Version::HTTP_2;
        let inner: Client<_, Full<Bytes>> = builder.http2_only(http2).build_http();
        let layer = generous("plain");
        let service = layer.layer(inner);
        let ask = async |path: &str| -> Result<Response<Bytes>, BoxError> {
            let uri = format!("http://{address}{path}");
            let request = Request::post(uri).version(version).body(Full::from("hello")).unwrap();
            let (parts, body) = service.clone().oneshot(request).await?.into_parts();
            Ok(Response::from_parts(parts, body.collect().await?.to_bytes()))
        };
        ask("/fine-too").await.unwrap();
        ticks().await;
        for (path, status, tries) in CASES {
            let response = ask(path).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(attempts(&log, path), ["1", "2", "3"][..tries], "{path}");
            assert_eq!(response.version(), version);
            if status == 200 {
                assert_eq!(response.body(), "hello");
            }
        }
        assert_eq!(layer.counts().retries.retries, 3);
    }
}

#[tokio::test]
async fn reqwest_with_bodies_in_memory_and_streamed() {
    for streamed in [false, true] {
        let (address, log) = serve().await;
        let http = reqwest::Client::new();
        let layer = generous("plain");
        let protected = client::reqwest::Client::with_layer(&layer, http.clone());
        let url = |path: &str| format!("http://{address}{path}");
        let body = || {
            if streamed {
                reqwest::Body::wrap(Full::<Bytes>::from("hello"))
            } else {
                reqwest::Body::from("hello")
            }
        };
        protected.send(http.get(url("/fine-too"))).await.unwrap();
        ticks().await;
        for (path, status, tries) in CASES {
            let response = protected.send(http.post(url(path)).body(body())).await.unwrap();
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(response.url().path(), path);
            assert_eq!(attempts(&log, path).len(), tries, "{path}");
            if status == 200 {
                assert_eq!(response.text().await.unwrap(), "hello");
            }
        }
        let sent = log.lock().unwrap();
        assert!(sent.iter().skip(1).all(|(_, _, body, _)| body == "hello"), "{sent:?}");
    }
}

/// A wait is waited: the second attempt does not come before it is over.
#[tokio::test]
async fn pushback_is_waited() {
    let waits = Duration::from_millis(40);
    let first = Arc::new(Mutex::new(None));
    let noted = Arc::clone(&first);
    let server = tower::service_fn(move |_: Request<Full<Bytes>>| {
        let refused = noted.lock().unwrap().is_none();
        let response = if refused {
            *noted.lock().unwrap() = Some(Instant::now());
            let response = Response::builder().header("grpc-status", "14");
            response.header("grpc-retry-pushback-ms", waits.as_millis().to_string())
        } else {
            Response::builder().header("grpc-status", "0")
        };
        async move { Ok::<_, Infallible>(response.body(Full::<Bytes>::from("")).unwrap()) }
    });
    let layer = generous("waits");
    let service: Service<_> = layer.layer(server);
    let earn = layer.layer(tower::service_fn(async |_: Request<Full<Bytes>>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("")))
    }));
    earn.oneshot(Request::new(Full::from(""))).await.unwrap();
    ticks().await;
    let request = Request::post("/").header("content-type", "application/grpc");
    service.oneshot(request.body(Full::from("")).unwrap()).await.unwrap();
    assert!(first.lock().unwrap().unwrap().elapsed() >= waits);
    assert_eq!(layer.counts().retries.retries, 1);
}

/// Two servers and a port where nobody listens: nobody notices.
#[tokio::test]
async fn a_balancer_over_plain_connections() {
    let ((a, log_a), (b, log_b)) = (serve().await, serve().await);
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let dead = closed.local_addr().unwrap();
    drop(closed);
    let balancer = client::hyper::balancer::<Full<Bytes>>(Discovery::list([a, b, dead]));
    let balancer = balancer.seed(4).build().unwrap();
    let layer = generous("plain");
    let service = layer.layer(balancer.clone());
    let ask = async || {
        let request = Request::post("http://inventory/fine").body(Full::from("hello")).unwrap();
        service.clone().oneshot(request).await
    };
    let _ = ask().await;
    ticks().await;
    for _ in 0..50 {
        assert_eq!(ask().await.unwrap().status(), 200);
    }
    let (a, b) = (log_a.lock().unwrap().len(), log_b.lock().unwrap().len());
    assert!(a >= 15 && b >= 15 && a + b >= 50, "{a} {b}");
    // Its first error keeps it out for five seconds.
    assert!(layer.counts().retries.retries <= 5);
    assert_eq!(balancer.counts().endpoints, 3);
}
