//! A server that bears load: hyper with every limit set, and an end in good order.
//!
//! A server is not overloaded by requests alone. Whoever opens ten thousand connections, sends
//! headers a byte a second, resets streams as fast as it opens them, or hangs up before the answer,
//! takes memory, file descriptors or CPU before any request is there to be refused. hyper has a
//! limit for most of it; many are off, too high, or (header timeouts) have no effect until a timer
//! is set. [`serve`] sets them all ([`Limits`]), and adds what hyper leaves to others:
//!
//! | | |
//! |---|---|
//! | too many connections, or too fast | refused by core's [`ConnectionGate`] before the handshake; by class of peer if addresses tell ([`Serve::classify`]) |
//! | no file descriptors | waits, with a back-off, rather than spin ([`Listener`]) |
//! | a peer that does not finish its greeting, its handshake or its headers | cut off |
//! | a peer that reads no answer, or sends no body | cut off |
//! | a peer that sends a body that was refused | thrown away up to a limit ([`RequestBody`]), so that it sees the answer |
//! | connections as work | tracked by the [`Executor`], so that the load average sees them |
//! | the end | [`Life`]: lame duck, drain, exit |
//!
//! ```no_run
//! # #[cfg(feature = "axum")]
//! # async fn run(router: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
//! let listener = tokio::net::TcpListener::bind("[::]:8080").await?;
//! tidegate::serve(listener, router.into_make_service()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! tonic and axum go into one port by tonic's `Routes::into_axum_router`, merged with the rest.
//!
//! # Leaving
//!
//! As soon as the task is a lame duck, HTTP/2 connections get a GOAWAY, one after the other within
//! [`Serve::goodbye_spread`], and HTTP/1 connections close after their next answer. Those that are
//! idle stay until the drain delay is over, as a request may be on its way. Who connects meanwhile
//! is served. Then nobody is, and what is in flight has until the limit of draining.
//!
//! A connection that was upgraded (a WebSocket) is no longer HTTP, and neither counted nor waited
//! for: whoever holds it should watch [`Life`].

mod activity;
mod answer;
mod body;
mod connection;
mod front;
mod io;
mod limits;
mod listener;
mod peer;
mod protocol;
mod rest;
mod seldom;
mod stall;
mod stream;
#[cfg(feature = "tls")]
mod tls;

pub use body::{BodyError, BodyLimits, Breach, Breached, RequestBody};
pub use limits::{InvalidLimit, Limits};
pub use listener::Listener;
pub use peer::{Peer, Stay};
#[cfg(feature = "tls")]
pub use tidegate_tls::InvalidTls;
#[cfg(feature = "tls")]
pub use tls::{ClientCertificates, Tls};

use crate::clock::Clock;
use crate::executor::Executor;
use crate::life::{Life, LifeConfig, Phase};
use connection::Place;
use core::any::Any;
use core::fmt;
use core::pin::{Pin, pin};
use core::time::Duration;
use http::{Request, Response};
use http_body::Body;
use hyper::server::conn::{http1, http2};
use hyper_util::rt::TokioTimer;
use listener::Backoff;
use protocol::Http;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use stream::Streams;
use thiserror::Error;
use tidegate_core::Criticality;
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimit, ConnectionLimits};
use tidegate_core::rng::SeededRng;
use tokio::sync::watch;
use tower_service::Service;

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type WarmUp = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
type Classify = Arc<dyn Fn(SocketAddr) -> Option<Criticality> + Send + Sync>;
/// Something that is held for as long as a connection is there.
type Held = Box<dyn Any + Send + Sync>;
type Welcome = Arc<dyn Fn(SocketAddr) -> Option<Held> + Send + Sync>;

/// Serves what comes from `listener`. `make` makes the service of each connection, and is told its
/// [`Peer`]: a router of axum by `into_make_service`, another service by [`each`].
pub fn serve<L: Listener, M>(listener: L, make: M) -> Serve<L, M> {
    Serve {
        listener,
        make,
        life: None,
        clock: Clock::default(),
        executor: None,
        limits: Limits::default(),
        gate: None,
        classify: None,
        welcome: None,
        goodbye_spread: Duration::ZERO,
        introduces: true,
        patient: false,
        warm_up: None,
        counters: Arc::default(),
        #[cfg(feature = "tls")]
        tls: None,
    }
}

/// A server that is about to run: await it.
#[must_use = "a server does nothing unless awaited"]
pub struct Serve<L, M> {
    listener: L,
    make: M,
    life: Option<Life>,
    clock: Clock,
    executor: Option<Executor>,
    limits: Limits,
    gate: Option<Arc<ConnectionGate>>,
    classify: Option<Classify>,
    welcome: Option<Welcome>,
    goodbye_spread: Duration,
    introduces: bool,
    patient: bool,
    warm_up: Option<WarmUp>,
    counters: Arc<Counters>,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl<L, M> fmt::Debug for Serve<L, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serve").field("limits", &self.limits).finish_non_exhaustive()
    }
}

impl<L, M> Serve<L, M> {
    /// The life that this server is part of. Without, it has one of its own that ends by SIGTERM or
    /// ctrl-c.
    pub fn life(mut self, life: Life) -> Self {
        self.life = Some(life);
        self
    }

    /// The clock of the gate and of idle connections; the system's if not said.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// What counts the work of connections; one of its own if not said, which nobody looks at.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    /// The limits of each connection.
    pub const fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// How many connections there may be; the gate's own defaults if not said. Several servers may
    /// share a gate.
    pub fn connections(mut self, gate: Arc<ConnectionGate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// What connections from an address count as, if it tells: health checkers and proxies find
    /// room where strangers do not.
    pub fn classify(
        mut self,
        class: impl Fn(SocketAddr) -> Option<Criticality> + Send + Sync + 'static,
    ) -> Self {
        self.classify = Some(Arc::new(class));
        self
    }

    /// Whether an address may have one more connection, asked before anything else is: one that
    /// comes again and again must not use up what is there for all. What is returned is held for
    /// as long as the connection is there.
    pub fn welcome(
        mut self,
        welcome: impl Fn(SocketAddr) -> Option<Box<dyn Any + Send + Sync>> + Send + Sync + 'static,
    ) -> Self {
        self.welcome = Some(Arc::new(welcome));
        self
    }

    /// A lame duck asks its connections of HTTP/2 to end one after the other within this time, so
    /// that not all clients reconnect elsewhere at once; all at once if not said. Longer than the
    /// drain delay is as long as the drain delay.
    pub const fn goodbye_spread(mut self, spread: Duration) -> Self {
        self.goodbye_spread = spread;
        self
    }

    /// Whether each request has its [`Peer`] among its extensions, as it has if not said. Where
    /// `make` gives each connection a service that knows its peer, nobody looks there, and three
    /// allocations a request are spared.
    pub const fn introduce(mut self, introduces: bool) -> Self {
        self.introduces = introduces;
        self
    }

    /// Whether connections that come faster than the gate lets them wait for their turn rather than
    /// be refused, as they are if not said. Meanwhile none is taken, and the rest wait in the
    /// kernel's queue, where they cost next to nothing: right for callers who all come at once and
    /// do not mind waiting, wrong where some matter more than others, as that queue knows no order.
    pub const fn patient(mut self, patient: bool) -> Self {
        self.patient = patient;
        self
    }

    /// What has to be done before the task is ready. Health is answered meanwhile. If it fails, the
    /// server ends, and says why.
    pub fn prewarm<E: Into<BoxError>>(
        mut self,
        warm_up: impl Future<Output = Result<(), E>> + Send + 'static,
    ) -> Self {
        self.warm_up = Some(Box::pin(async { warm_up.await.map_err(Into::into) }));
        self
    }

    /// Encrypts connections.
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = Some(tls);
        self
    }

    /// What it counts while it runs.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }
}

/// What a server has counted.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that were taken.
    pub accepted: AtomicU64,
    /// Connections that were refused because too many were open.
    pub refused_open: AtomicU64,
    /// Connections that were refused because they came too fast.
    pub refused_rate: AtomicU64,
    /// Connections from addresses that were not welcome to more.
    pub refused_address: AtomicU64,
    /// Times that no connection could be taken, for want of file descriptors for instance.
    pub accept_errors: AtomicU64,
    /// Handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// Connections for which there was no service.
    pub unserved: AtomicU64,
    /// Connections that were cut off because they did not end when they were asked to.
    pub cut: AtomicU64,
    /// Times that a connection was not used for so long that nothing but its transport was kept.
    pub rested: AtomicU64,
}

/// Why a server ended in disorder.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ServeError {
    /// With these limits nobody could be served.
    #[error(transparent)]
    Limits(#[from] InvalidLimit),
    /// The task could not warm up, and was never ready.
    #[error("warming up failed")]
    Prewarm(#[source] BoxError),
    /// Signals cannot be listened to; give the server a [`Life`] that ends by other means.
    #[error("SIGTERM and ctrl-c cannot be listened to")]
    Signals(#[source] std::io::Error),
}

/// What all connections share.
struct Common {
    life: Life,
    clock: Clock,
    executor: Executor,
    limits: Limits,
    gate: Arc<ConnectionGate>,
    classify: Option<Classify>,
    welcome: Option<Welcome>,
    goodbye_spread: Duration,
    introduces: bool,
    patient: bool,
    counters: Arc<Counters>,
    http: Http,
    #[cfg(feature = "tls")]
    tls: Option<Tls>,
}

impl<L, M, S, B> IntoFuture for Serve<L, M>
where
    L: Listener,
    M: Service<Peer, Response = S> + Clone + Send + 'static,
    M::Future: Send,
    M::Error: Into<BoxError> + Send,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Output = Result<(), ServeError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.run())
    }
}

impl<L, M, S, B> Serve<L, M>
where
    L: Listener,
    M: Service<Peer, Response = S> + Clone + Send + 'static,
    M::Future: Send,
    M::Error: Into<BoxError> + Send,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    async fn run(self) -> Result<(), ServeError> {
        self.limits.check()?;
        let life = if let Some(life) = self.life {
            life
        } else {
            let life = Life::new(LifeConfig::default(), self.clock.clone());
            life.stop_on_signals().map_err(ServeError::Signals)?;
            life
        };
        let runtime = tokio::runtime::Handle::current();
        let executor =
            self.executor.unwrap_or_else(|| Executor::for_runtime(self.clock.clone(), &runtime));
        let common = Arc::new(Common {
            http: http(executor.clone(), &self.limits),
            gate: self.gate.unwrap_or_else(default_gate),
            life,
            clock: self.clock,
            executor,
            limits: self.limits,
            classify: self.classify,
            welcome: self.welcome,
            goodbye_spread: self.goodbye_spread,
            introduces: self.introduces,
            patient: self.patient,
            counters: self.counters,
            #[cfg(feature = "tls")]
            tls: self.tls,
        });
        let _hold = common.life.hold();
        // Every connection holds a receiver: when there is none left, all are closed.
        let alive = watch::Sender::new(());
        let ended = accept_all(&common, self.listener, self.make, self.warm_up, &alive).await;
        tokio::select! {
            () = alive.closed() => {}
            _ = common.life.reached(Phase::Gone) => {}
        }
        // Those that are cut off see it themselves.
        alive.closed().await;
        ended
    }
}

/// Takes connections until the task drains. The listener is closed when this returns.
async fn accept_all<L, M, S, B>(
    common: &Arc<Common>,
    mut listener: L,
    make: M,
    warm_up: Option<WarmUp>,
    alive: &watch::Sender<()>,
) -> Result<(), ServeError>
where
    L: Listener,
    M: Service<Peer, Response = S> + Clone + Send + 'static,
    M::Future: Send,
    M::Error: Into<BoxError> + Send,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    let mut dice = SeededRng::new(RandomState::new().hash_one(0));
    let mut backoff = Backoff::default();
    let mut draining = pin!(common.life.draining());
    let mut warm_up = warm_up.unwrap_or_else(|| Box::pin(core::future::ready(Ok(()))));
    let mut warm = false;
    loop {
        tokio::select! {
            () = &mut draining => return Ok(()),
            warmed = &mut warm_up, if !warm => {
                warm = true;
                if let Err(error) = warmed {
                    common.life.stop();
                    return Err(ServeError::Prewarm(error));
                }
                common.life.ready();
            }
            (io, address) = next(&mut listener, &mut backoff, &common.counters) => {
                let admitted = tokio::select! {
                    biased;
                    admitted = admit_in_turn(common, address) => admitted,
                    () = &mut draining => {
                        L::refuse(io);
                        return Ok(());
                    }
                };
                let Some((peer, held)) = admitted else {
                    L::refuse(io);
                    continue;
                };
                let (common, make, dice) = (Arc::clone(common), make.clone(), dice.fork());
                let alive = alive.subscribe();
                drop(common.executor.clone().spawn(async move {
                    let _held = (alive, held);
                    secure_and_run(common, io, peer, make, dice).await;
                }));
            }
        }
    }
}

/// The next connection that can be had.
async fn next<L: Listener>(
    listener: &mut L,
    backoff: &mut Backoff,
    counters: &Counters,
) -> (L::Io, Option<SocketAddr>) {
    loop {
        match listener.accept().await {
            Ok(connection) => {
                backoff.on_accept();
                return connection;
            }
            Err(error) => {
                counters.accept_errors.fetch_add(1, Relaxed);
                if let Some(wait) = backoff.on_error(&error) {
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

/// What a connection has that was taken.
type Admitted = (Peer, Arc<peer::Held>);

/// How long to wait before the gate is asked again for one that came too fast. At the rates that
/// gates allow there are some tokens more by then.
const TURN: Duration = Duration::from_millis(1);

/// Asks the gate, until it is not for their pace that it refuses if that is to be waited for.
async fn admit_in_turn(common: &Common, address: Option<SocketAddr>) -> Option<Admitted> {
    let counters = &common.counters;
    loop {
        match admit(common, address) {
            Ok(admitted) => {
                counters.accepted.fetch_add(1, Relaxed);
                return Some(admitted);
            }
            Err(Unwelcome::Gate(ConnectionLimit::AcceptRate)) if common.patient => {
                tokio::time::sleep(TURN).await;
            }
            Err(unwelcome) => {
                let counter = match unwelcome {
                    Unwelcome::Address => &counters.refused_address,
                    Unwelcome::Gate(ConnectionLimit::AcceptRate) => &counters.refused_rate,
                    Unwelcome::Gate(_) => &counters.refused_open,
                };
                counter.fetch_add(1, Relaxed);
                return None;
            }
        }
    }
}

/// Why a connection is not taken.
enum Unwelcome {
    /// Its address has as many as it may.
    Address,
    Gate(ConnectionLimit),
}

/// Asks the gate.
fn admit(common: &Common, address: Option<SocketAddr>) -> Result<Admitted, Unwelcome> {
    let guest = match (&common.welcome, address) {
        (Some(welcome), Some(address)) => Some(welcome(address).ok_or(Unwelcome::Address)?),
        _ => None,
    };
    let class = match (&common.classify, address) {
        (Some(classify), Some(address)) => classify(address),
        _ => None,
    };
    let asked = common.gate.accept(class, common.clock.now());
    asked.map_err(|refused| Unwelcome::Gate(refused.limit))?;
    let place = Place::new(Arc::clone(&common.gate));
    let held = Arc::new(peer::Held { _place: place, _guest: guest });
    Ok((Peer::new(address, class, &held), held))
}

async fn secure_and_run<I, M, S, B>(
    common: Arc<Common>,
    io: I,
    peer: Peer,
    make: M,
    dice: SeededRng,
) where
    I: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin + 'static,
    M: Service<Peer, Response = S>,
    M::Error: Into<BoxError>,
    S: Service<Request<RequestBody>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    #[cfg(feature = "tls")]
    if let Some(tls) = &common.tls {
        // In a box, as is what it comes to: connections without TLS need not have the room for it.
        let secured = tokio::select! {
            secured = Box::pin(tls.accept(io, peer, &common.gate)) => secured,
            () = common.life.draining() => return,
        };
        let counter = match secured {
            Ok((io, peer)) => {
                return Box::pin(connection::run(common, io, peer, make, dice)).await;
            }
            Err(tls::Unsecured::Failed) => &common.counters.handshakes_failed,
            Err(tls::Unsecured::Refused) => &common.counters.refused_open,
        };
        counter.fetch_add(1, Relaxed);
        return;
    }
    connection::run(common, io, peer, make, dice).await;
}

fn default_gate() -> Arc<ConnectionGate> {
    // The defaults are in order, as core's own tests say.
    #[allow(clippy::unwrap_used)]
    Arc::new(ConnectionGate::new(ConnectionLimits::default()).unwrap())
}

/// How much of one answer HTTP/2 keeps that its peer has not let through: as much as a window has
/// if nobody says, so that who takes all of it at once does not wait for more to be read. hyper's
/// 400 KiB, times as many streams as there may be, are 80 MiB for one connection that reads
/// nothing.
const SEND_BUFFER_MAX: usize = 64 * 1024;

/// hyper with all limits set.
fn http(executor: Executor, limits: &Limits) -> Http {
    let streams = Streams::new(executor, limits.stall_max);
    let (mut http1, mut http2) = (http1::Builder::new(), http2::Builder::new(streams));
    // How long headers may take is seen to by whoever ends idle connections.
    http1.header_read_timeout(None).max_buf_size(limits.h1_buffer_max);
    if let Some(headers) = limits.h1_headers_max {
        http1.max_headers(headers);
    }
    http2
        .timer(TokioTimer::new())
        .max_concurrent_streams(limits.h2_streams_max)
        .max_send_buf_size(SEND_BUFFER_MAX)
        .max_header_list_size(limits.h2_header_list_max)
        .max_pending_accept_reset_streams(limits.h2_resets_max)
        .max_local_error_reset_streams(limits.h2_errors_max)
        .keep_alive_interval(limits.h2_ping_interval)
        .keep_alive_timeout(limits.h2_ping_timeout);
    Http { http1, http2 }
}

/// Makes clones of one service, for [`serve`].
pub const fn each<S>(service: S) -> Each<S> {
    Each(service)
}

/// Made by [`each`].
#[derive(Debug, Clone)]
pub struct Each<S>(S);

impl<S: Clone, T> Service<T> for Each<S> {
    type Response = S;
    type Error = core::convert::Infallible;
    type Future = core::future::Ready<Result<S, Self::Error>>;

    fn poll_ready(
        &mut self,
        _: &mut core::task::Context<'_>,
    ) -> core::task::Poll<Result<(), Self::Error>> {
        core::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: T) -> Self::Future {
        core::future::ready(Ok(self.0.clone()))
    }
}
