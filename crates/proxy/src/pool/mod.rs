//! Connections to the program.
//!
//! A connection of HTTP/1 carries one request at a time, so there are as many as requests at once,
//! and those that are free wait here, the last one used on top: the others grow old and are closed.
//! One of HTTP/2 carries many: see `shared`.
//!
//! **A connection that was just closed.** The program may close an idle connection in the very
//! moment in which a request is put on it. If nothing of the request was sent it goes on another
//! connection; if something was, nobody can know what the program has done, and it fails.
//!
//! Each worker has a pool of its own: its connections live on its runtime.

mod idle;
mod late;
mod leased;
mod secure;
mod shared;

pub(crate) use leased::{Leased, Unfinished};
pub(crate) use secure::Secure;

use bytes::Bytes;
use core::cell::Cell;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use http::{Request, Response};
use http_body::Body;
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use idle::Idle;
use late::Late;
use secure::Spoken;
use shared::{Shared, Stream, Streams};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_tls::Offer;
use tokio::net::{TcpStream, UnixStream};

/// A request that finds so many connections closed under it fails; there may have been one for each
/// request before a program was restarted, but no more than a few are tried.
const TRIES: usize = 4;

/// How often a connection of HTTP/2 with requests on it is asked whether anybody is there, and how
/// long the answer may take. A machine that has lost its power says nothing, and TCP gives up after
/// a quarter of an hour. Those without are left to the kernel ([`KEEPALIVE`]): ten thousand idle
/// clients would ask a program two thousand times a second.
const PING: Duration = Duration::from_secs(5);

/// How often at most connections are looked for that have been idle for too long.
const SWEEP_MIN: Duration = Duration::from_millis(100);

/// Which protocol the program speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// gRPC by HTTP/2, all else by HTTP/1: what most programs understand. Behind TLS, what it picks
    /// by ALPN.
    #[default]
    Auto,
    /// HTTP/1 only.
    Http1,
    /// HTTP/2 only, without asking first (prior knowledge).
    Http2,
}

/// Where the program is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Upstream {
    /// An address.
    Address(SocketAddr),
    /// A name and a port, looked up for each connection.
    Name(String),
    /// A socket in the file system.
    Unix(PathBuf),
}

/// What is no place of a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is no place: an address such as 127.0.0.1:8080, a name such as app:8080, or unix:/PATH"
)]
pub struct InvalidUpstream(String);

impl InvalidUpstream {
    pub(crate) fn new(text: &str) -> Self {
        Self(text.to_owned())
    }
}

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let invalid = || InvalidUpstream::new(text);
        let place = text.strip_prefix("http://").unwrap_or(text);
        let place = place.strip_suffix('/').unwrap_or(place);
        if let Some(path) = place.strip_prefix("unix:") {
            let path = PathBuf::from(path);
            return if path.is_absolute() { Ok(Self::Unix(path)) } else { Err(invalid()) };
        }
        if let Ok(address) = place.parse() {
            return Ok(Self::Address(address));
        }
        let (name, port) = place.rsplit_once(':').ok_or_else(invalid)?;
        let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
        let named = !name.is_empty() && name.chars().all(plain);
        if named && port.parse::<u16>().is_ok_and(|port| port > 0) {
            return Ok(Self::Name(place.to_owned()));
        }
        Err(invalid())
    }
}

impl core::fmt::Display for Upstream {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Name(name) => name.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

/// What may be set of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolConfig {
    /// Which protocol to speak.
    pub protocol: Protocol,
    /// How long a connection may take to be made. Beside the program that is no time at all; longer
    /// only keeps callers from going elsewhere.
    pub connect_timeout: Duration,
    /// How long a connection may be idle. Shorter than what programs give theirs (5 s in node, 60
    /// to 75 in most), so that it is us who close it.
    pub idle_max: Duration,
    /// How long the first connection of HTTP/2 may have no stream, if that is longer. It is worth
    /// more than the others, as without it the next call waits for a handshake, and it can be
    /// closed at any time without harm to a call; but each of ten thousand idle clients holds one.
    pub shared_idle_max: Duration,
    /// How long the next piece of an answer may take while its caller waits for it, or up to twice
    /// that; nothing for as long as it likes. A program that hangs in the middle of an answer else
    /// holds its request for as long as the caller stays. Not for calls of gRPC, which may be
    /// silent for long, nor for connections that change their protocol.
    pub read_timeout: Option<Duration>,
}

impl Default for PoolConfig {
    fn default() -> Self {
        Self {
            protocol: Protocol::Auto,
            connect_timeout: Duration::from_secs(1),
            idle_max: Duration::from_secs(4),
            // As core's policy for idle connections has it.
            shared_idle_max: Duration::from_secs(300),
            // As nginx has it: events that are sent now and then come more often, or a comment
            // does.
            read_timeout: Some(Duration::from_secs(60)),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Failure {
    /// Nobody answers there.
    #[error("no connection: {0}")]
    Connect(#[source] io::Error),
    /// It takes too long to connect.
    #[error("no connection in time")]
    ConnectTimeout,
    /// The connection ended before anything of the request was sent.
    #[error("the connection ended before the request was sent: {0}")]
    Unsent(#[source] hyper::Error),
    /// The connection ended before the answer came.
    #[error("the connection ended without an answer: {0}")]
    Broken(#[source] hyper::Error),
}

/// The head of an answer, or why there is none.
pub(crate) type Outcome<B> = Result<Response<Leased<B>>, Failure>;

thread_local! {
    static SENT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a request is handed to a connection within `poll`, beside what it returns. Before that
/// the program cannot know of it.
#[inline]
pub(crate) fn watching<T>(poll: impl FnOnce() -> T) -> (T, bool) {
    SENT.set(false);
    (poll(), SENT.get())
}

/// Connections to one program, of one worker.
#[derive(Debug)]
pub(crate) struct Pool<B> {
    upstream: Upstream,
    config: PoolConfig,
    secure: Option<Secure>,
    spoken: Spoken,
    idle: Mutex<Idle<http1::SendRequest<B>>>,
    shared: Shared<B>,
    /// Held by whoever makes a shared one.
    making: tokio::sync::Mutex<()>,
    /// Whether somebody looks for connections that have been idle for too long.
    swept: AtomicBool,
    late: Arc<Late>,
}

/// A connection in use.
#[derive(Debug)]
enum Lease<B> {
    /// By one request: of HTTP/1. It goes back when the answer has come to its end, and is closed
    /// if it does not.
    Alone { pool: Arc<Pool<B>>, sender: http1::SendRequest<B> },
    /// By others meanwhile.
    Among { _stream: Stream },
}

impl<B> Lease<B>
where
    B: Send + 'static,
{
    /// The answer has been read to its end.
    fn give_back(self) {
        if let Self::Alone { pool, sender } = self
            && !sender.is_closed()
        {
            let idle_max = pool.config.idle_max;
            pool.idle().put(sender, tokio::time::Instant::now(), idle_max);
            pool.sweep_later();
        }
    }
}

impl<B> Pool<B> {
    fn idle(&self) -> MutexGuard<'_, Idle<http1::SendRequest<B>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has somebody close what is idle, also when no more requests come.
    #[inline]
    fn sweep_later(self: &Arc<Self>)
    where
        B: Send + 'static,
    {
        if !self.swept.load(Ordering::Relaxed) {
            self.start_sweeping();
        }
    }

    #[cold]
    fn start_sweeping(self: &Arc<Self>)
    where
        B: Send + 'static,
    {
        if self.swept.swap(true, Ordering::Relaxed) {
            return;
        }
        let (pool, idle_max) = (Arc::downgrade(self), self.config.idle_max);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(idle_max.max(SWEEP_MIN)).await;
                let Some(pool) = pool.upgrade() else { return };
                let now = tokio::time::Instant::now();
                let alone = pool.idle().sweep(now, idle_max);
                let among =
                    pool.shared.sweep(now, idle_max, idle_max.max(pool.config.shared_idle_max));
                if !alone && !among {
                    pool.swept.store(false, Ordering::Relaxed);
                    return;
                }
            }
        });
    }

    /// Whether a call of gRPC, or of anything else, goes by HTTP/2; nothing if the program has to
    /// be asked ([`Pool::ask`]).
    pub(crate) fn is_http2(&self, grpc: bool, upgrade: bool) -> Option<bool> {
        match self.config.protocol {
            Protocol::Auto if grpc || self.secure.is_none() => Some(grpc),
            // Only HTTP/1.1 can change its protocol.
            Protocol::Auto if upgrade => Some(false),
            Protocol::Auto => self.spoken.is_http2(),
            Protocol::Http1 => Some(false),
            Protocol::Http2 => Some(true),
        }
    }
}

impl<B> Pool<B>
where
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    pub(crate) fn new(upstream: Upstream, config: PoolConfig, secure: Option<Secure>) -> Arc<Self> {
        Arc::new(Self {
            upstream,
            config,
            secure,
            spoken: Spoken::default(),
            idle: Mutex::default(),
            shared: Shared::default(),
            making: tokio::sync::Mutex::new(()),
            swept: AtomicBool::new(false),
            late: Late::new(None),
        })
    }

    /// One whose answers may take so long, where that is asked for.
    pub(crate) fn limited(
        upstream: Upstream,
        config: PoolConfig,
        secure: Option<Secure>,
        answer_timeout: Option<Duration>,
    ) -> Arc<Self> {
        let mut pool = Self::new(upstream, config, secure);
        // Nobody else has it yet.
        if let Some(pool) = Arc::get_mut(&mut pool) {
            pool.late = Late::new(answer_timeout);
        }
        pool
    }

    /// Sends `request`, and waits for the head of its answer.
    pub(crate) async fn send(
        self: &Arc<Self>,
        request: Request<B>,
        http2: bool,
    ) -> Result<Response<Leased<B>>, Failure> {
        if http2 { self.send_http2(request).await } else { self.send_http1(request).await }
    }

    /// The same; nothing if it takes longer than answers may.
    pub(crate) async fn send_in_time(
        self: &Arc<Self>,
        request: Request<B>,
        http2: bool,
    ) -> Option<Outcome<B>> {
        self.late.limit(self.send(request, http2), tokio::time::Instant::now()).await
    }

    /// The same by HTTP/1, and at once: the request is handed to a connection that is free, or
    /// given back if there is none. What is returned is small, as most requests wait there.
    #[expect(clippy::result_large_err, reason = "it is given back as it came, to be sent anew")]
    pub(crate) fn begin(
        self: &Arc<Self>,
        request: Request<B>,
    ) -> Result<impl Future<Output = Option<Outcome<B>>> + Send + use<B>, Request<B>> {
        let now = tokio::time::Instant::now();
        let free = self.idle().take(now, self.config.idle_max, http1::SendRequest::is_ready);
        let Some(mut sender) = free else { return Err(request) };
        let (sending, pool) = (sender.try_send_request(request), Arc::clone(self));
        Ok(async move {
            let sent = pool.late.limit(sending, now).await?;
            Some(match sent {
                Ok(response) => {
                    let read_timeout = pool.config.read_timeout;
                    Ok(Leased::of(response, Lease::Alone { pool, sender }, read_timeout))
                }
                Err(mut failed) => match failed.take_message() {
                    // Now and then a connection was just closed; what it takes to try others is
                    // nothing for all the rest to carry.
                    Some(unsent) => return Box::pin(pool.send_in_time(unsent, false)).await,
                    None => Err(Failure::Broken(failed.into_error())),
                },
            })
        })
    }

    /// Whether the program speaks HTTP/2, by a connection that is then there to be used.
    pub(crate) async fn ask(self: &Arc<Self>) -> Result<bool, Failure> {
        let _one = self.making().await?;
        if let Some(known) = self.is_http2(false, false) {
            return Ok(known);
        }
        let (io, http2) = self.connect(Offer::Either).await?;
        if http2 {
            self.share(io).await?;
        } else {
            let sender = Self::use_alone(io).await?;
            let idle_max = self.config.idle_max;
            self.idle().put(sender, tokio::time::Instant::now(), idle_max);
        }
        self.spoken.is(http2);
        Ok(http2)
    }

    async fn send_http1(
        self: &Arc<Self>,
        mut request: Request<B>,
    ) -> Result<Response<Leased<B>>, Failure> {
        for tried in 0.. {
            let used = if tried < TRIES { self.take().await } else { None };
            let is_new = used.is_none();
            let mut sender = match used {
                Some(sender) => sender,
                None => self.connect_http1().await?,
            };
            SENT.set(true);
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let lease = Lease::Alone { pool: Arc::clone(self), sender };
                    return Ok(Leased::of(response, lease, self.config.read_timeout));
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !is_new => request = unsent,
                    Some(_) => return Err(Failure::Unsent(failed.into_error())),
                    None => return Err(Failure::Broken(failed.into_error())),
                },
            }
        }
        unreachable!("a new connection is the last that is tried")
    }

    /// A connection that is free.
    async fn take(&self) -> Option<http1::SendRequest<B>> {
        loop {
            let now = tokio::time::Instant::now();
            let (sender, ready) = {
                let mut idle = self.idle();
                let ready = idle.take(now, self.config.idle_max, http1::SendRequest::is_ready);
                match ready {
                    Some(sender) => (sender, true),
                    None => {
                        (idle.take(now, self.config.idle_max, |sender| !sender.is_closed())?, false)
                    }
                }
            };
            if !ready {
                // Its last answer has ended, and its task may not have seen that yet.
                tokio::task::yield_now().await;
            }
            // If it is not ready now, the body of its last request is still coming: the program has
            // answered without it. To wait would be to wait for a stranger, so the connection goes.
            if sender.is_ready() {
                return Some(sender);
            }
        }
    }

    async fn connect_http1(&self) -> Result<http1::SendRequest<B>, Failure> {
        let (io, _) = self.connect(Offer::Http1).await?;
        Self::use_alone(io).await
    }

    async fn use_alone(io: TokioIo<Io>) -> Result<http1::SendRequest<B>, Failure> {
        let (sender, connection) = http1::handshake(io).await.map_err(Failure::Unsent)?;
        // It ends by itself when the sender is gone or the program hangs up.
        tokio::spawn(connection.with_upgrades());
        Ok(sender)
    }

    async fn send_http2(
        self: &Arc<Self>,
        mut request: Request<B>,
    ) -> Result<Response<Leased<B>>, Failure> {
        if self.secure.is_some() {
            secure::mark(&mut request);
        }
        for tried in 0.. {
            let (mut sender, stream, is_new) = self.connection_http2().await?;
            SENT.set(true);
            match sender.try_send_request(request).await {
                Ok(response) => {
                    let lease = Lease::Among { _stream: stream };
                    return Ok(Leased::of(response, lease, self.config.read_timeout));
                }
                Err(mut failed) => match failed.take_message() {
                    Some(unsent) if !is_new && tried < TRIES => request = unsent,
                    Some(_) => return Err(Failure::Unsent(failed.into_error())),
                    None => return Err(Failure::Broken(failed.into_error())),
                },
            }
        }
        unreachable!("a new connection is the last that is tried")
    }

    /// A stream on a connection, and whether that was just made.
    async fn connection_http2(
        self: &Arc<Self>,
    ) -> Result<(http2::SendRequest<B>, Stream, bool), Failure> {
        if let Some((sender, stream)) = self.shared.take() {
            return Ok((sender, stream, false));
        }
        let _one = self.making().await?;
        if let Some((sender, stream)) = self.shared.take() {
            return Ok((sender, stream, false));
        }
        let made = match self.connect(Offer::Http2).await {
            Ok((io, _)) => self.share(io).await,
            Err(failure) => Err(failure),
        };
        let failure = match made {
            Ok((sender, stream)) => return Ok((sender, stream, true)),
            Err(failure) => failure,
        };
        let (sender, stream) = self.shared.take_full().ok_or(failure)?;
        Ok((sender, stream, false))
    }

    /// Waits for somebody else's attempt no longer than for one of its own.
    async fn making(&self) -> Result<tokio::sync::MutexGuard<'_, ()>, Failure> {
        let making = tokio::time::timeout(self.config.connect_timeout, self.making.lock()).await;
        making.map_err(|_| Failure::ConnectTimeout)
    }

    async fn share(
        self: &Arc<Self>,
        io: TokioIo<Io>,
    ) -> Result<(http2::SendRequest<B>, Stream), Failure> {
        let mut builder = http2::Builder::new(TokioExecutor::new());
        // None before the program has said how many.
        builder.timer(TokioTimer::new()).initial_max_send_streams(0);
        builder.keep_alive_interval(PING).keep_alive_timeout(PING).keep_alive_while_idle(false);
        let (sender, connection) = builder.handshake(io).await.map_err(Failure::Unsent)?;
        let streams = Streams::new();
        let allowed = http2::Connection::current_max_send_streams;
        tokio::spawn(shared::drive(connection, Arc::clone(&streams), allowed));
        let said = tokio::time::timeout(self.config.connect_timeout, streams.said()).await;
        said.map_err(|_| Failure::ConnectTimeout)?;
        if sender.is_closed() {
            let ended = io::Error::from(io::ErrorKind::ConnectionAborted);
            return Err(Failure::Connect(ended));
        }
        let stream = self.shared.put(sender.clone(), streams);
        self.sweep_later();
        Ok((sender, stream))
    }

    /// A connection, and whether HTTP/2 was picked on it.
    async fn connect(&self, offer: Offer) -> Result<(TokioIo<Io>, bool), Failure> {
        let connecting = async {
            let io = match &self.upstream {
                Upstream::Address(address) => TcpStream::connect(address).await?,
                Upstream::Name(name) => TcpStream::connect(name.as_str()).await?,
                Upstream::Unix(path) => {
                    return Ok((Io::Unix { io: UnixStream::connect(path).await? }, false));
                }
            };
            let io = set_up(io);
            match &self.secure {
                Some(secure) => secure.shake(io, offer).await,
                None => Ok((Io::Tcp { io }, false)),
            }
        };
        let connected = tokio::time::timeout(self.config.connect_timeout, connecting).await;
        let connected = connected.map_err(|_| Failure::ConnectTimeout)?.map_err(Failure::Connect);
        let (io, http2) = connected.inspect_err(|failure| self.spoken.forget_if(failure))?;
        Ok((TokioIo::new(io), http2))
    }
}

/// How long nothing may come on a connection before the kernel asks whether anybody is there, how
/// often it asks then, and how often in vain. A machine that has lost its power is noticed within a
/// minute; what is asked is answered by the other kernel, and no program is woken for it.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(30), Duration::from_secs(10), 3);

/// It fails on a connection that is dead already, and that will be found out soon enough.
fn set_up(io: TcpStream) -> TcpStream {
    use rustix::net::sockopt;
    let _ = io.set_nodelay(true);
    let (idle, interval, count) = KEEPALIVE;
    let _ = sockopt::set_socket_keepalive(&io, true);
    let _ = sockopt::set_tcp_keepidle(&io, idle);
    let _ = sockopt::set_tcp_keepintvl(&io, interval);
    let _ = sockopt::set_tcp_keepcnt(&io, count);
    io
}

pin_project_lite::pin_project! {
    /// A socket of any kind.
    #[project = IoProjection]
    #[derive(Debug)]
    pub(crate) enum Io {
        Tcp { #[pin] io: TcpStream },
        Tls { #[pin] io: Box<tidegate_tls::tokio_rustls::client::TlsStream<TcpStream>> },
        Unix { #[pin] io: UnixStream },
    }
}

macro_rules! either {
    ($io:expr, $method:ident ( $($argument:expr),* )) => {
        match $io.project() {
            IoProjection::Tcp { io } => io.$method($($argument),*),
            IoProjection::Tls { io } => io.$method($($argument),*),
            IoProjection::Unix { io } => io.$method($($argument),*),
        }
    };
}

mod io_impl {
    use super::{Io, IoProjection};
    use core::pin::Pin;
    use core::task::{Context, Poll};
    use std::io;
    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    impl AsyncRead for Io {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            either!(self, poll_read(context, buffer))
        }
    }

    impl AsyncWrite for Io {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            either!(self, poll_write(context, bytes))
        }

        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            either!(self, poll_write_vectored(context, bytes))
        }

        fn is_write_vectored(&self) -> bool {
            true
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            either!(self, poll_flush(context))
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            either!(self, poll_shutdown(context))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        let address = |text: &str| Upstream::Address(text.parse().unwrap());
        for (text, place) in [
            ("127.0.0.1:8080", address("127.0.0.1:8080")),
            ("http://127.0.0.1:8080", address("127.0.0.1:8080")),
            ("http://127.0.0.1:8080/", address("127.0.0.1:8080")),
            ("[::1]:80", address("[::1]:80")),
            ("app.ns:80", Upstream::Name("app.ns:80".to_owned())),
            ("unix:/run/app.sock", Upstream::Unix("/run/app.sock".into())),
        ] {
            assert_eq!(text.parse(), Ok(place), "{text}");
        }
        for text in
            ["", "app", "app:", "app:0", "app:x", ":80", "unix:app", "https://app:1", "a b:1"]
        {
            let error = text.parse::<Upstream>().unwrap_err().to_string();
            assert!(error.contains("127.0.0.1:8080"), "{text}: {error}");
        }
    }
}
