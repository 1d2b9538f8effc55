//! A program behind a proxy, and clients in front of it.

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use tidegate::client::Balance;
use tidegate_core::balance::SlowStart;
use tidegate_proxy::outbound::Endpoints;
use tidegate_proxy::{Config, OutboundConfig, Proxy, Role, ServiceConfig, Upstream};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

pub(crate) const ANY: &str = "127.0.0.1:0";

/// A proxy with one worker that looks at nobody and refuses what is too much.
pub(crate) fn config(upstream: SocketAddr) -> Config {
    let mut config = Config::new(ANY.parse().unwrap(), Upstream::Address(upstream));
    config.workers = NonZeroUsize::new(1);
    config.dark = false;
    config
}

/// A service at these endpoints, each in turn, whose throttle and budget are in nobody's way.
pub(crate) fn service(endpoints: &[SocketAddr]) -> ServiceConfig {
    let endpoints = endpoints.iter().map(|address| (*address).into()).collect();
    let mut service = ServiceConfig::new("shop", ANY.parse().unwrap(), Endpoints::List(endpoints));
    service.balance = Balance::RoundRobin(SlowStart::OFF);
    service.throttle.requests_min = 1_000_000;
    service.budget.retries_min_per_second = 10_000;
    service
}

/// A proxy beside a client of `service`, with one worker.
pub(crate) fn outbound(service: ServiceConfig) -> OutboundConfig {
    let mut config = OutboundConfig::new(vec![service]);
    config.workers = NonZeroUsize::new(1);
    config
}

/// A proxy that ends with its test.
pub(crate) struct Running(Option<Proxy>);

impl Running {
    pub(crate) fn start(role: impl Into<Role>) -> Self {
        Self::of(Proxy::start(role).unwrap())
    }

    pub(crate) const fn of(proxy: Proxy) -> Self {
        Self(Some(proxy))
    }

    pub(crate) fn get(&self) -> &Proxy {
        self.0.as_ref().unwrap()
    }

    pub(crate) fn get_mut(&mut self) -> &mut Proxy {
        self.0.as_mut().unwrap()
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.get().address()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(proxy) = self.0.take() {
            proxy.life().stop();
            proxy.life().hasten();
            proxy.life().hasten();
            proxy.join().unwrap();
        }
    }
}

/// A server of HTTP/1 whose connections are each served by `serve`.
pub(crate) async fn program<F, R>(serve: F) -> SocketAddr
where
    F: Fn(Request<Incoming>) -> R + Clone + Send + Sync + 'static,
    R: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            let serve = serve.clone();
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let answer = serve(request);
                    async move { Ok::<_, Infallible>(answer.await) }
                });
                let http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                let _ = http.serve_connection_with_upgrades(TokioIo::new(io), service).await;
            });
        }
    });
    address
}

/// What came: the request line and headers as the program saw them, sorted, and the body.
pub(crate) async fn echo(request: Request<Incoming>) -> Response<Full<Bytes>> {
    let (head, body) = request.into_parts();
    let mut lines: Vec<String> = head
        .headers
        .iter()
        .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
        .collect();
    lines.sort();
    let body = body.collect().await.map(http_body_util::Collected::to_bytes).unwrap_or_default();
    let text = format!(
        "{} {} {:?}\n{}\n\n{}",
        head.method,
        head.uri,
        head.version,
        lines.join("\n"),
        String::from_utf8_lossy(&body)
    );
    Response::new(Full::new(text.into()))
}

/// Writes `bytes` to `address` and reads what comes until the peer closes.
pub(crate) async fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut io = TcpStream::connect(address).await.unwrap();
    io.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    io.read_to_end(&mut answer).await.unwrap();
    String::from_utf8_lossy(&answer).into_owned()
}

/// One answer of HTTP/1.1 with a length, from a connection that stays open.
pub(crate) async fn read_answer(io: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    loop {
        let mut byte = [0];
        io.read_exact(&mut byte).await.unwrap();
        bytes.push(byte[0]);
        if !bytes.ends_with(b"\r\n\r\n") {
            continue;
        }
        let head = String::from_utf8_lossy(&bytes).to_lowercase();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let mut body = vec![0; length.map_or(0, |length| length.trim().parse().unwrap())];
        io.read_exact(&mut body).await.unwrap();
        bytes.extend(body);
        return String::from_utf8_lossy(&bytes).into_owned();
    }
}

/// A client of HTTP/1.
pub(crate) async fn client(
    address: SocketAddr,
) -> hyper::client::conn::http1::SendRequest<Full<Bytes>> {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let (sender, connection) = hyper::client::conn::http1::handshake(io).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    sender
}

/// A client of HTTP/2.
pub(crate) async fn client_h2(
    address: SocketAddr,
) -> hyper::client::conn::http2::SendRequest<Full<Bytes>> {
    let io = TokioIo::new(TcpStream::connect(address).await.unwrap());
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

pub(crate) async fn text(response: Response<Incoming>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8_lossy(&bytes).into_owned()
}
