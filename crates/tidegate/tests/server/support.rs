//! Servers on real sockets, and clients that show all that is on the wire.

use axum::Router;
use axum::body::Bytes;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::time::Duration;
use tidegate::Task;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{Controller, Request};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::levels::Levels;
use tidegate_core::rng::SeededRng;
use tidegate_core::signal::Reading;
use tidegate_core::{Cost, Criticality};
use tokio::net::{TcpListener, TcpStream};

/// Serves `router` on a port of its own, over HTTP/1.1 and h2c, until the runtime ends.
pub(crate) async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// How to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    Http1,
    H2c,
}

pub(crate) const VERSIONS: [Version; 2] = [Version::Http1, Version::H2c];

/// A connection.
pub(crate) enum Client {
    Http1(hyper::client::conn::http1::SendRequest<Full<Bytes>>),
    H2c(hyper::client::conn::http2::SendRequest<Full<Bytes>>),
}

impl Client {
    pub(crate) async fn connect(address: SocketAddr, version: Version) -> Self {
        let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
        match version {
            Version::Http1 => {
                let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
                tokio::spawn(connection);
                Self::Http1(sender)
            }
            Version::H2c => {
                let executor = TokioExecutor::new();
                let (sender, connection) =
                    hyper::client::conn::http2::handshake(executor, io).await.unwrap();
                tokio::spawn(connection);
                Self::H2c(sender)
            }
        }
    }

    /// Sends a request and returns the head of the answer, with the body still to come.
    pub(crate) async fn send(
        &mut self,
        request: http::request::Builder,
    ) -> http::Response<hyper::body::Incoming> {
        let request = request.body(Full::new(Bytes::new())).unwrap();
        match self {
            Self::Http1(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::H2c(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
        }
    }

    /// The whole answer to a request for `path` with these headers.
    pub(crate) async fn get(
        &mut self,
        path: &str,
        headers: &[(&str, &str)],
    ) -> http::Response<String> {
        let authority = match self {
            Self::Http1(_) => path.to_owned(),
            Self::H2c(_) => format!("http://localhost{path}"),
        };
        let mut request = http::Request::get(authority).header("host", "localhost");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, body) = self.send(request).await.into_parts();
        let body = body.collect().await.unwrap().to_bytes();
        http::Response::from_parts(head, String::from_utf8(body.to_vec()).unwrap())
    }
}

/// Waits until nothing is in flight any more. A test that waits in vain is ended by its runner.
pub(crate) async fn idle(task: &Task) {
    while task.gate().counts().inflight() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Says hello at `/`.
pub(crate) fn hello(task: &Task) -> Router {
    Router::new().route("/", axum::routing::get(|| async { "hello" })).layer(task.layer())
}

/// Shuts the gate of a task, and makes it say "don't retry": nearly half of what came were retries.
pub(crate) fn say_dont_retry(task: &Task) {
    let (gate, now) = (task.gate(), task.clock().now());
    let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
    let mut controller = Controller::new(shed, attempts, gate, now);
    gate.set_levels(Levels::CLOSED);
    let mut lane = gate.lane();
    for n in 0..2_000 {
        let request = Request::new(Criticality::Critical, Cost::from_millis(1));
        let request = request.attempt(if n % 2 == 0 { 1 } else { 2 });
        let decision = lane.admit(&request, now, &mut SeededRng::new(n));
        assert!(!decision.is_admitted());
    }
    controller.tick(gate, Reading::IDLE, now + Duration::from_millis(10));
    // The tick has opened it.
    gate.set_levels(Levels::CLOSED);
}

/// Uses the CPU: about a millisecond for `millis` of 1, on the machine that this was written on.
/// Compare such times with each other only.
pub(crate) fn burn(millis: u64) -> u64 {
    let mut state = millis | 1;
    for _ in 0..millis * 300_000 {
        state = std::hint::black_box(state.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23));
    }
    state
}

impl Client {
    /// Sends a request and gives up the connection.
    pub(crate) async fn try_send(
        self,
        request: http::request::Builder,
    ) -> Result<http::Response<hyper::body::Incoming>, hyper::Error> {
        let request = request.body(Full::new(Bytes::new())).unwrap();
        match self {
            Self::Http1(mut sender) => sender.send_request(request).await,
            Self::H2c(mut sender) => sender.send_request(request).await,
        }
    }
}
