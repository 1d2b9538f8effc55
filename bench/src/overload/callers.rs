//! Those who ask, each over a connection as its protocol has them.
//!
//! HTTP/1.1: one request at a time on each of many connections, and a caller who gives up closes
//! its own. gRPC: many requests on each of a few connections, and a caller who gives up resets its
//! stream.

use super::server::App;
use crate::Outcome;
use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode, Version};
use http_body_util::{BodyExt, Empty, Full};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::Criticality;
use tidegate_wire::grpc::Code;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// What ten times a capacity of 200 a second needs if nobody is answered within the deadline,
/// doubled.
const CONNECTIONS_MAX: usize = 4_096;
/// Servers allow some hundred streams on each: more than are ever waited for at once.
const GRPC_CONNECTIONS: usize = 32;
/// `grpc.health.v1.Health/Check` with an empty message: not compressed, no bytes.
const EMPTY_MESSAGE: &[u8] = &[0; 5];

/// What a server has said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Said {
    /// 200, or `OK`.
    Good,
    /// No.
    Refused,
    /// Something else.
    Other,
}

/// Callers of one server.
#[derive(Clone)]
pub(crate) enum Callers {
    Http1(Http1),
    Grpc(Grpc),
}

impl Callers {
    pub(crate) async fn new(app: App, address: SocketAddr, callers: usize) -> Outcome<Self> {
        Ok(match app {
            App::Axum => Self::Http1(Http1::new(address, callers).await?),
            App::Tonic => Self::Grpc(Grpc::new(address, callers.min(GRPC_CONNECTIONS)).await?),
        })
    }

    pub(crate) async fn ask(&self, criticality: Criticality) -> Outcome<Said> {
        match self {
            Self::Http1(http1) => http1.ask(criticality).await,
            Self::Grpc(grpc) => grpc.ask(criticality).await,
        }
    }

    /// Closes what is idle.
    pub(crate) fn close(&self) {
        match self {
            Self::Http1(http1) => http1.close(),
            Self::Grpc(grpc) => grpc.connections.iter().for_each(|(_, driver)| driver.abort()),
        }
    }
}

/// A connection, which is closed when this is dropped.
struct Connection {
    sender: http1::SendRequest<Empty<Bytes>>,
    driver: AbortHandle,
    pool: Arc<Mutex<Pool>>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
        lock(&self.pool).open -= 1;
    }
}

#[derive(Default)]
struct Pool {
    idle: Vec<Connection>,
    open: usize,
}

fn lock(pool: &Mutex<Pool>) -> std::sync::MutexGuard<'_, Pool> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Clone)]
pub(crate) struct Http1 {
    address: SocketAddr,
    pool: Arc<Mutex<Pool>>,
}

impl Http1 {
    async fn new(address: SocketAddr, connections: usize) -> Outcome<Self> {
        let callers = Self { address, pool: Arc::default() };
        for _ in 0..connections {
            let connection = callers.connect().await?;
            callers.put_back(connection);
        }
        Ok(callers)
    }

    fn close(&self) {
        // Dropped when the pool is free again: each takes itself off the count.
        let idle = std::mem::take(&mut lock(&self.pool).idle);
        drop(idle);
    }

    async fn connect(&self) -> Outcome<Connection> {
        {
            let mut pool = lock(&self.pool);
            if pool.open >= CONNECTIONS_MAX {
                return Err("there are too many connections".into());
            }
            pool.open += 1;
        }
        let opened = Opening(&self.pool);
        let stream = TcpStream::connect(self.address).await?;
        stream.set_nodelay(true)?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        let driver = tokio::spawn(async {
            // Whoever asks is told.
            let _ = connection.await;
        });
        std::mem::forget(opened);
        let (driver, pool) = (driver.abort_handle(), Arc::clone(&self.pool));
        Ok(Connection { sender, driver, pool })
    }

    fn put_back(&self, connection: Connection) {
        lock(&self.pool).idle.push(connection);
    }

    async fn connection(&self) -> Outcome<Connection> {
        loop {
            let idle = lock(&self.pool).idle.pop();
            let Some(mut connection) = idle else { return self.connect().await };
            if connection.sender.ready().await.is_ok() {
                return Ok(connection);
            }
        }
    }

    async fn ask(&self, criticality: Criticality) -> Outcome<Said> {
        let mut connection = self.connection().await?;
        let request = Request::get("/")
            .header("host", "localhost")
            .header("x-criticality", criticality.name())
            .body(Empty::new())?;
        let answer = connection.sender.send_request(request).await?;
        let status = answer.status();
        answer.into_body().collect().await?;
        self.put_back(connection);
        Ok(match status {
            StatusCode::OK => Said::Good,
            StatusCode::SERVICE_UNAVAILABLE
            | StatusCode::TOO_MANY_REQUESTS
            | StatusCode::GATEWAY_TIMEOUT => Said::Refused,
            _ => Said::Other,
        })
    }
}

/// A connection on its way, taken off the count if it does not come.
struct Opening<'a>(&'a Mutex<Pool>);

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        lock(self.0).open -= 1;
    }
}

#[derive(Clone)]
pub(crate) struct Grpc {
    address: SocketAddr,
    connections: Arc<[(http2::SendRequest<Full<Bytes>>, AbortHandle)]>,
    next: Arc<AtomicUsize>,
}

impl Grpc {
    async fn new(address: SocketAddr, connections: usize) -> Outcome<Self> {
        let mut open = Vec::with_capacity(connections);
        for _ in 0..connections {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let io = TokioIo::new(stream);
            let (sender, connection) = http2::handshake(TokioExecutor::new(), io).await?;
            let driver = tokio::spawn(async {
                // Whoever asks is told.
                let _ = connection.await;
            });
            open.push((sender, driver.abort_handle()));
        }
        Ok(Self { address, connections: open.into(), next: Arc::default() })
    }

    async fn ask(&self, criticality: Criticality) -> Outcome<Said> {
        let next = self.next.fetch_add(1, Ordering::Relaxed) % self.connections.len();
        let mut sender = self.connections[next].0.clone();
        ask_grpc(&mut sender, &self.address.to_string(), criticality).await
    }
}

/// Asks `Check` of the service of health checks.
pub(crate) async fn ask_grpc(
    sender: &mut http2::SendRequest<Full<Bytes>>,
    host: &str,
    criticality: Criticality,
) -> Outcome<Said> {
    let request = Request::post(format!("http://{host}/grpc.health.v1.Health/Check"))
        .version(Version::HTTP_2)
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("x-criticality", criticality.name())
        .body(Full::new(Bytes::from_static(EMPTY_MESSAGE)))?;
    sender.ready().await?;
    let (head, body) = sender.send_request(request).await?.into_parts();
    if head.status != StatusCode::OK {
        return Ok(Said::Other);
    }
    if let Some(code) = code(&head.headers) {
        return Ok(said(code));
    }
    let body = body.collect().await?;
    Ok(body.trailers().and_then(code).map_or(Said::Other, said))
}

fn code(headers: &HeaderMap) -> Option<u8> {
    headers.get("grpc-status")?.to_str().ok()?.parse().ok()
}

fn said(code: u8) -> Said {
    const REFUSALS: [Code; 3] =
        [Code::Unavailable, Code::ResourceExhausted, Code::DeadlineExceeded];
    match code {
        0 => Said::Good,
        _ if REFUSALS.into_iter().any(|refusal| refusal as u8 == code) => Said::Refused,
        _ => Said::Other,
    }
}
