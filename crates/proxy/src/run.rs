//! A proxy, from its configuration to its end.
//!
//! ```text
//! main --- one thread a core: runtime, listeners (SO_REUSEPORT), pools
//!   |----- the sampler, the finder: see `tidegate` and `watch`
//!   '----- the admin page
//! ```
//!
//! All is bound before anything is served: a port that is taken is an error at the start. Workers
//! wait for each other before the first connection is taken (`muster`), and one that cannot go on
//! takes the others with it, as half a proxy would only look like one.
//!
//! A proxy may be started while another runs, in this process or another, and listen at the same
//! sockets (`sockets`, `handover`); that one then ends as a lame duck would, but for saying so.

use crate::batch;
use crate::config::{Config, Role, dump};
use crate::edge::{Bare, Edge, Make, Meet};
use crate::inbound::{self, Inbound};
use crate::muster::Muster;
use crate::outbound::{self, InvalidEndpoints};
use crate::own::Own;
use crate::pool::{Pool, Unfinished};
use crate::prewarm;
use crate::quota;
use crate::responder::{Datagrams, Responder};
use crate::sockets::{Ears, Legacy, Register, Sockets};
use crate::stale::Stale;
use crate::tls::{self, Unusable};
use bytes::Bytes;
use core::cell::Cell;
use core::convert::Infallible;
use core::num::NonZeroUsize;
use futures_util::future::try_join_all;
use http::{HeaderValue, Request, Response};
use http_body::Body;
use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use tidegate::Task;
use tidegate::admin::{Admin, AdminError, Page};
use tidegate::clock::Clock;
use tidegate::executor::Executor;
use tidegate::life::{Life, Phase};
use tidegate::report::LoadReports;
use tidegate::serve::{self, Limits, Peer, RequestBody, ServeError, Tls};
use tidegate::signals::linux;
use tidegate::task::BuildError;
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_core::units::InvalidNumber;
use tidegate_quota::Client;
use tidegate_quota::client::AttachError;
use tower_service::Service;

/// Why a proxy cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProxyError {
    /// Somebody else listens there, or we may not.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
    /// The page for operators cannot be there.
    #[error("the admin page cannot be at {address}: {source}")]
    Admin {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: AdminError,
    },
    /// A number makes no sense.
    #[error(transparent)]
    Task(#[from] BuildError),
    /// With these limits there would be no connections.
    #[error(transparent)]
    Connections(#[from] InvalidNumber),
    /// It cannot be found out who there is to send to.
    #[error(transparent)]
    Endpoints(#[from] InvalidEndpoints),
    /// Certificates, keys or names are wrong.
    #[error(transparent)]
    Tls(#[from] Unusable),
    /// The quota server cannot be asked as it was said.
    #[error("quota: {0}")]
    Quota(#[from] AttachError),
    /// A worker ended in disorder.
    #[error(transparent)]
    Serve(#[from] ServeError),
    /// The system does not give us threads or runtimes.
    #[error("the system gives us no thread: {0}")]
    Thread(#[from] io::Error),
}

/// A proxy that runs.
#[derive(Debug)]
pub struct Proxy {
    pub(crate) task: Task,
    pub(crate) life: Life,
    /// Never empty.
    pub(crate) services: Vec<(String, SocketAddr)>,
    pub(crate) watched: String,
    pub(crate) workers: Vec<Worker>,
    pub(crate) page: Option<Page>,
    /// As it was last told, and that as text; nothing in the outbound role.
    pub(crate) config: Option<(Box<Config>, Text)>,
    pub(crate) sockets: Sockets,
    pub(crate) responder: Option<Responder>,
    /// Who is told what customers use, and tells what they may; it leaves with the proxy.
    pub(crate) quota: Option<Client>,
}

/// The one that serves, as far as a successor is concerned.
#[derive(Debug, Clone)]
pub struct Incumbent {
    life: Life,
    register: Arc<Register>,
}

impl Incumbent {
    /// What it listens at, for a successor to listen at as well.
    pub fn legacy(&self) -> io::Result<Legacy> {
        self.register.legacy()
    }

    /// A successor serves, and has taken these: what is in flight is finished, and it ends.
    pub fn replaced(&self, taken: &BTreeSet<usize>) {
        self.register.give(taken);
        self.life.replaced();
    }

    /// Whether both are one.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.register, &other.register)
    }
}

/// A thread that serves.
pub(crate) type Worker = JoinHandle<Result<(), ProxyError>>;

impl Proxy {
    /// Starts it, in the role that its configuration gives it.
    pub fn start(role: impl Into<Role>) -> Result<Self, ProxyError> {
        Self::succeed(role, Legacy::default())
    }

    /// Starts it as the successor of one that still serves. That one is to be told by
    /// [`Incumbent::replaced`] as soon as this one serves.
    pub fn succeed(role: impl Into<Role>, legacy: Legacy) -> Result<Self, ProxyError> {
        let sockets = Sockets::new(legacy);
        match role.into() {
            Role::Inbound(config) => Self::inbound(*config, sockets),
            Role::Outbound(config) => outbound::start(*config, sockets),
            Role::Batch(config) => batch::start(*config, sockets),
        }
    }

    fn inbound(config: Config, mut sockets: Sockets) -> Result<Self, ProxyError> {
        let kept = Box::new(config.clone());
        let tls = config.tls.map(|options| tls::server(options, &config.voice)).transpose()?;
        let secure = match &config.upstream_tls {
            Some(tls) => {
                let client = tls.client("upstream_tls", &config.voice)?;
                tls.to(&client, &config.upstream).map_err(Unusable::from)?
            }
            None => None,
        };
        let count = worker_count(config.workers);
        let (listeners, address) = sockets.listen(config.listen, count)?;
        let seen = config.watch.start(&config.upstream)?;
        let mut builder = Task::builder(config.service.as_str())
            .executor(Executor::new(Clock::default()))
            .identities(config.identities.unidentified(config.ceiling))
            .everyone_else(config.everyone_else)
            .default_criticality(config.criticality)
            .dark(config.dark)
            .workplace(seen.place);
        if config.edge.is_some() {
            // How we are doing is no business of strangers.
            builder = builder.load_reports(LoadReports::NEVER);
        }
        if let Some(cpus) = config.cpus {
            builder = builder.cpus(cpus);
        }
        // A quota server tells who else has limits.
        let enrolled = config.customers.into_iter().filter(|_| config.quota.is_none());
        for (name, limits) in enrolled {
            builder = builder.customer(name, limits);
        }
        for signal in seen.reader.iter().flat_map(linux::all) {
            builder = builder.signal(signal);
        }
        for signal in config.signals {
            builder = builder.signal(Own::start(signal)?);
        }
        let task = builder.start()?;
        let quota = config.quota.map(|quota| quota.attach(&task)).transpose()?;
        let life = Life::with_gate(config.life, task.clock().clone(), Arc::clone(task.gate()));
        let gate = Arc::new(ConnectionGate::new(config.connections)?);
        let edge = config.edge.map(|edge| Edge::new(edge, task.clock().clone())).transpose()?;
        let stale = config.stale.map(Stale::new);
        let datagrams = Arc::new(Datagrams::default());
        let text = Arc::new(Mutex::new(dump(&kept)));
        let mut admin = shown(Admin::new(&task), edge.as_ref());
        if let Some(stale) = stale.clone() {
            admin = admin.copies(move || stale.counts());
        }
        if config.health_udp.is_some() {
            let datagrams = Arc::clone(&datagrams);
            admin = admin.datagrams(move || datagrams.events());
        }
        let page = page(config.admin, &life, told(admin, &text), &mut sockets)?;
        let setting = Setting {
            clock: task.clock().clone(),
            life: life.clone(),
            gate,
            limits: config.limits,
            patient: false,
            tls: tls.map(Tls::from),
            edge: edge.clone(),
        };
        if let Some(prewarm) = config.prewarm {
            let host = HeaderValue::from_str(&config.upstream.to_string());
            let host = host.unwrap_or_else(|_| HeaderValue::from_static("localhost"));
            let (upstream, pool, secure) = (config.upstream.clone(), config.pool, secure.clone());
            let pool = move || Pool::new(upstream, pool, secure);
            config.voice.say(&prewarm::warm(prewarm, pool, host)?);
        }
        if let Some(client) = &quota {
            quota::wait_for(client, &config.voice);
        }
        let doors = listeners.into_iter().map(|listener| {
            let (upstream, secure) = (config.upstream.clone(), secure.clone());
            let pool = Pool::limited(upstream, config.pool, secure, config.answer_timeout);
            let inbound = Inbound::from(inbound::Parts {
                task: task.clone(),
                pool,
                alone_max: config.alone_max,
                told: edge.is_some(),
                stale: stale.clone(),
            });
            vec![(listener, inbound)]
        });
        let workers = spawn_behind(&setting, doors)?;
        // Last: what it says is that somebody serves here.
        let responder = config.health_udp.map(|address| {
            let succeeds = sockets.succeeds();
            let manner = (succeeds, edge.is_some());
            Responder::start(address, manner, task.clone(), life.clone(), datagrams)
                .map_err(|source| ProxyError::Listen { address, source })
        });
        let responder = responder.transpose().inspect_err(|_| {
            life.stop();
        })?;
        let services = vec![(config.service, address)];
        let watched = seen.words;
        let config = Some((kept, text));
        Ok(Self { task, life, services, watched, workers, page, config, sockets, responder, quota })
    }

    /// What a successor has to know of it.
    pub fn incumbent(&self) -> Incumbent {
        Incumbent { life: self.life.clone(), register: self.sockets.register() }
    }

    /// What it has taken of what its predecessor left.
    pub const fn taken(&self) -> &BTreeSet<usize> {
        self.sockets.taken()
    }

    /// Where it listens; in the outbound role, for its first service.
    pub fn address(&self) -> SocketAddr {
        self.services[0].1
    }

    /// Services by name, and where it listens for each.
    pub fn services(&self) -> &[(String, SocketAddr)] {
        &self.services
    }

    /// Where health is answered by datagram, and how often, if it is.
    pub fn datagrams(&self) -> Option<(SocketAddr, &Datagrams)> {
        self.responder.as_ref().map(|responder| (responder.address, &*responder.counts))
    }

    /// What is seen of the program, in words.
    pub fn watched(&self) -> &str {
        &self.watched
    }

    /// The page for operators, if there is one.
    pub fn page(&self) -> Option<&Page> {
        self.page.as_ref()
    }

    /// What is decided in it.
    pub const fn task(&self) -> &Task {
        &self.task
    }

    /// Its life: to end it.
    pub const fn life(&self) -> &Life {
        &self.life
    }

    /// Goes on with what it is told now, as far as that can be changed while it runs: in the
    /// inbound role whether it refuses, and what customers may use. Returns the keys that need a
    /// restart; if there are any, nothing has changed.
    pub fn reload(&mut self, role: impl Into<Role>) -> Vec<&'static str> {
        let (Role::Inbound(told), Some((config, text))) = (role.into(), &mut self.config) else {
            return vec!["all of it"];
        };
        let differences = config.differences(&told);
        // Whoever starts anew for the rest starts with all of it, and if that cannot be done
        // nothing was changed.
        if differences.is_empty() {
            self.task.set_dark(told.dark);
            // Limits that a quota server tells are not the file's to change.
            if self.quota.is_none() {
                self.task.set_default_limits(told.everyone_else);
                for (name, limits) in &told.customers {
                    self.task.set_limits(name, *limits);
                }
            }
            (config.dark, config.everyone_else) = (told.dark, told.everyone_else);
            config.customers = told.customers;
            *text.lock().unwrap_or_else(PoisonError::into_inner) = dump(&config);
        }
        differences
    }

    /// Waits until it has ended.
    pub fn join(self) -> Result<(), ProxyError> {
        let mut outcome = Ok(());
        for worker in self.workers {
            let ended = worker.join().unwrap_or_else(|_| {
                self.life.stop();
                Err(ProxyError::Thread(io::Error::other("a worker panicked")))
            });
            outcome = outcome.and(ended);
        }
        outcome
    }
}

/// As many workers as were asked for, or as there are CPUs.
pub(crate) fn worker_count(asked: Option<NonZeroUsize>) -> usize {
    let cpus = || std::thread::available_parallelism().map_or(1, usize::from);
    asked.map_or_else(cpus, NonZeroUsize::get)
}

/// The page for operators, if it is to be anywhere.
pub(crate) fn page(
    address: Option<SocketAddr>,
    life: &Life,
    admin: Admin,
    sockets: &mut Sockets,
) -> Result<Option<Page>, ProxyError> {
    let Some(address) = address else { return Ok(None) };
    let failed = |source| ProxyError::Admin { address, source };
    let (ears, bound) = sockets.listen(address, 1).map_err(|error| match error {
        ProxyError::Listen { source, .. } => failed(source.into()),
        other => other,
    })?;
    let open = || ears.into_iter().next().map_or_else(|| Err(io::Error::other("none")), Ears::open);
    admin.life(life.clone()).spawn_on(bound, open).map(Some).map_err(failed)
}

/// A configuration as text, which may be another after a reload.
pub(crate) type Text = Arc<Mutex<String>>;

/// The page with what the proxy runs by.
pub(crate) fn told(admin: Admin, text: &Text) -> Admin {
    let text = Arc::clone(text);
    admin.config(move || text.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

/// The page with what the edge does on it, if there is one.
pub(crate) fn shown(admin: Admin, edge: Option<&Arc<Edge>>) -> Admin {
    match edge.map(Arc::clone) {
        Some(edge) => admin.edge(move || edge.counts()),
        None => admin,
    }
}

thread_local! {
    static WORKER: Cell<usize> = const { Cell::new(0) };
}

/// The number of the worker whose thread this is, from 0.
pub(crate) fn worker() -> usize {
    WORKER.get()
}

/// What all workers serve by.
#[derive(Clone)]
pub(crate) struct Setting {
    pub(crate) clock: Clock,
    pub(crate) life: Life,
    pub(crate) gate: Arc<ConnectionGate>,
    pub(crate) limits: Limits,
    /// Whether connections wait for their turn.
    pub(crate) patient: bool,
    pub(crate) tls: Option<Tls>,
    pub(crate) edge: Option<Arc<Edge>>,
}

/// What one worker listens at, and who makes those who answer there.
pub(crate) type Doors<M> = Vec<(Ears, M)>;

/// A worker for each of `doors`, whose services are behind the edge if there is one.
pub(crate) fn spawn_behind<S, B>(
    setting: &Setting,
    doors: impl Iterator<Item = Doors<S>>,
) -> Result<Vec<Worker>, ProxyError>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Meet + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = Unfinished> + Send + Unpin + 'static,
{
    match &setting.edge {
        None => spawn_workers(setting, doors.map(|doors| each(doors, Bare))),
        Some(edge) => {
            let make = |inner| Make::new(Arc::clone(edge), inner);
            spawn_workers(setting, doors.map(|doors| each(doors, make)))
        }
    }
}

fn each<S, M>(doors: Doors<S>, make: impl Fn(S) -> M) -> Doors<M> {
    doors.into_iter().map(|(ears, inner)| (ears, make(inner))).collect()
}

/// A worker for each of `doors`.
fn spawn_workers<M, S, B>(
    setting: &Setting,
    doors: impl Iterator<Item = Doors<M>>,
) -> Result<Vec<Worker>, ProxyError>
where
    M: Service<Peer, Response = S, Error = Infallible> + Clone + Send + 'static,
    M::Future: Send,
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + Sync + 'static,
    S::Future: Send,
    B: Body<Data = Bytes, Error = Unfinished> + Send + 'static,
{
    let doors: Vec<Doors<M>> = doors.collect();
    let muster = Muster::of(doors.len());
    let spawn = |(number, doors): (usize, Doors<M>)| {
        let (setting, muster) = (setting.clone(), muster.clone());
        let thread = std::thread::Builder::new().name(format!("tidegate-{number}"));
        Ok(thread.spawn(move || {
            WORKER.set(number);
            // However this one ends, the others end with it.
            let _end = End(setting.life.clone());
            setting.serve(doors, &muster)
        })?)
    };
    // Those that wait for one that cannot even be started wait no longer.
    doors.into_iter().enumerate().map(spawn).collect::<Result<_, _>>().inspect_err(|_| {
        setting.life.stop();
    })
}

/// Ends the others when it is dropped.
pub(crate) struct End(pub(crate) Life);

impl Drop for End {
    fn drop(&mut self) {
        self.0.stop();
        // If nobody has begun to serve, there is nobody to wait for either.
        drop(self.0.hold());
    }
}

impl Setting {
    fn serve<M, S, B>(&self, doors: Doors<M>, muster: &Muster) -> Result<(), ProxyError>
    where
        M: Service<Peer, Response = S, Error = Infallible> + Clone + Send + 'static,
        M::Future: Send,
        S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + Sync + 'static,
        S::Future: Send,
        B: Body<Data = Bytes, Error = Unfinished> + Send + 'static,
    {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let executor = Executor::uncounted(self.clock.clone());
            let open = doors.into_iter().map(|(ears, make)| Ok((ears.open()?, make)));
            let open = open.collect::<Result<Vec<_>, ProxyError>>()?;
            if !muster.all(&self.life).await {
                return Ok(());
            }
            try_join_all(open.into_iter().map(|(ears, make)| async {
                let mut server = serve::serve(ears, make)
                    .life(self.life.clone())
                    .clock(self.clock.clone())
                    .executor(executor.clone())
                    .connections(Arc::clone(&self.gate))
                    .introduce(false)
                    .patient(self.patient)
                    .limits(self.limits);
                if let Some(tls) = &self.tls {
                    server = server.tls(tls.clone());
                }
                if let Some(edge) = &self.edge {
                    let edge = Arc::clone(edge);
                    server = server.welcome(move |address| edge.welcome(address));
                }
                server.await?;
                Ok::<_, ProxyError>(())
            }))
            .await?;
            // Tunnels and what clients still send live on this runtime: it ends with the proxy.
            self.life.reached(Phase::Gone).await;
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests;
