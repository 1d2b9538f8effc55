//! A proxy, from its configuration to its end.
//!
//! ```text
//! main --- one thread a core: runtime, listener (SO_REUSEPORT), pool
//!   |----- the sampler, the finder: see `tidegate` and `watch`
//!   '----- the admin page
//! ```
//!
//! All is bound before anything is served: a port that is taken is an error at the start. A worker
//! that cannot go on takes the others with it, as half a proxy would only look like one.

use crate::config::Config;
use crate::inbound::Inbound;
use crate::pool::{Pool, PoolConfig, Upstream};
use core::num::NonZeroUsize;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate::Task;
use tidegate::admin::{Admin, AdminError, Page};
use tidegate::clock::Clock;
use tidegate::executor::Executor;
use tidegate::life::{Life, Phase};
use tidegate::serve::{self, Limits, ServeError};
use tidegate::signals::linux;
use tidegate::task::BuildError;
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_core::units::InvalidNumber;
use tidegate_wire::customer::Identities;

/// Connections that wait to be taken, at each worker.
const BACKLOG: u32 = 1024;

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
    task: Task,
    life: Life,
    address: SocketAddr,
    watched: String,
    workers: Vec<JoinHandle<Result<(), ProxyError>>>,
    page: Option<Page>,
    config: Config,
}

impl Proxy {
    /// Starts it.
    pub fn start(config: Config) -> Result<Self, ProxyError> {
        let kept = config.clone();
        let count = config.workers.map_or_else(cpus, NonZeroUsize::get);
        let (listeners, address) = listen(config.listen, count)?;
        let seen = config.watch.start(&config.upstream)?;
        let mut builder = Task::builder(config.service.as_str())
            .executor(Executor::new(Clock::default()))
            .identities(Identities::default().unidentified(config.ceiling))
            .everyone_else(config.everyone_else)
            .default_criticality(config.criticality)
            .dark(config.dark)
            .workplace(seen.place);
        if let Some(cpus) = config.cpus {
            builder = builder.cpus(cpus);
        }
        for (name, limits) in config.customers {
            builder = builder.customer(name, limits);
        }
        for signal in seen.reader.iter().flat_map(linux::all) {
            builder = builder.signal(signal);
        }
        let task = builder.start()?;
        let life = Life::with_gate(config.life, task.clock().clone(), Arc::clone(task.gate()));
        let page = match config.admin {
            None => None,
            Some(address) => {
                let page = Admin::new(&task).life(life.clone()).spawn(address);
                Some(page.map_err(|source| ProxyError::Admin { address, source })?)
            }
        };
        let gate = Arc::new(ConnectionGate::new(config.connections)?);
        let mut workers = Vec::with_capacity(count);
        for (number, listener) in listeners.into_iter().enumerate() {
            let worker = Worker {
                task: task.clone(),
                life: life.clone(),
                gate: Arc::clone(&gate),
                limits: config.limits,
                upstream: config.upstream.clone(),
                pool: config.pool,
                answer_timeout: config.answer_timeout,
            };
            let thread = std::thread::Builder::new().name(format!("tidegate-{number}"));
            workers.push(thread.spawn(move || worker.run(listener))?);
        }
        Ok(Self { task, life, address, watched: seen.words, workers, page, config: kept })
    }

    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.address
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

    /// Goes on with what `config` says, as far as that can be changed while it runs: whether it
    /// refuses, and what customers may use. Returns the keys that need a restart, and have not
    /// changed anything.
    pub fn reload(&mut self, config: Config) -> Vec<&'static str> {
        let before = core::mem::replace(&mut self.config, config);
        let after = &self.config;
        self.task.set_dark(after.dark);
        self.task.set_default_limits(after.everyone_else);
        for (name, limits) in &after.customers {
            self.task.set_limits(name, *limits);
        }
        before.differences(after)
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

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// As many sockets at one address as there are workers: the kernel deals connections out to them.
fn listen(
    address: SocketAddr,
    count: usize,
) -> Result<(Vec<std::net::TcpListener>, SocketAddr), ProxyError> {
    let failed = |source| ProxyError::Listen { address, source };
    // They share the port with each other, and with nobody who was there before.
    let mut bound = address;
    if address.port() != 0 {
        drop(std::net::TcpListener::bind(address).map_err(failed)?);
    }
    let mut listeners = Vec::with_capacity(count);
    for _ in 0..count.max(1) {
        let listener = bind(bound).map_err(failed)?;
        bound = listener.local_addr().map_err(failed)?;
        listeners.push(listener);
    }
    Ok((listeners, bound))
}

fn bind(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    sockopt::set_socket_reuseport(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, i32::try_from(BACKLOG).unwrap_or(i32::MAX))?;
    Ok(socket.into())
}

/// What a thread needs to serve.
struct Worker {
    task: Task,
    life: Life,
    gate: Arc<ConnectionGate>,
    limits: Limits,
    upstream: Upstream,
    pool: PoolConfig,
    answer_timeout: Option<Duration>,
}

impl Worker {
    fn run(self, listener: std::net::TcpListener) -> Result<(), ProxyError> {
        let life = self.life.clone();
        let ended = self.serve(listener);
        if ended.is_err() {
            life.stop();
        }
        ended
    }

    fn serve(self, listener: std::net::TcpListener) -> Result<(), ProxyError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::from_std(listener)?;
            let pool = Pool::new(self.upstream, self.pool);
            let inbound = Inbound::new(self.task.clone(), pool, self.answer_timeout);
            serve::serve(listener, serve::each(inbound))
                .life(self.life.clone())
                .clock(self.task.clock().clone())
                .executor(Executor::single_threaded(self.task.clock().clone()))
                .connections(self.gate)
                .limits(self.limits)
                .await?;
            // Tunnels and what clients still send live on this runtime: it ends with the proxy.
            self.life.reached(Phase::Gone).await;
            Ok(())
        })
    }
}
