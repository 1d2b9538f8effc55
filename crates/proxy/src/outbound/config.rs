//! How the outbound role is run.
//!
//! Numbers of throttle, retries and balancing are `tidegate-core`'s own: what they are good for is
//! said there, and what is not said here is as it is there.

use super::endpoints::InvalidEndpoints;
use super::health::HealthConfig;
use crate::config::connection_limits;
use crate::edge::EdgeConfig;
use crate::pool::{PoolConfig, Upstream};
use crate::tls::UpstreamTls;
use core::fmt;
use core::num::{NonZeroU32, NonZeroUsize};
use core::time::Duration;
use http::HeaderValue;
use http::uri::{Authority, PathAndQuery};
use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use tidegate::client::{Balance, Endpoint, Repeat, Spill, Subset};
use tidegate::life::LifeConfig;
use tidegate::serve::Limits;
use tidegate::{Cost, Criticality};
use tidegate_core::Ratio;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::retry::{BudgetConfig, RetryPolicy};
use tidegate_core::spillover::{Datacenter, DatacenterId};
use tidegate_core::throttle::ThrottleConfig;
use tidegate_tls::ServerOptions;
use tidegate_wire::customer::Identities;

/// How often a file is looked at: a change is picked up within a second, and a file that is read
/// once a second costs nothing.
pub const FILE_PERIOD: Duration = Duration::from_secs(1);

/// How often a name is looked up: as often as the library does.
pub const DNS_PERIOD: Duration = Duration::from_secs(30);

/// A proxy beside a client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct OutboundConfig {
    /// What the program is called that calls through it.
    pub name: String,
    /// What it calls. One at least.
    pub services: Vec<ServiceConfig>,
    /// Threads that serve; as many as there are CPUs if not said.
    pub workers: Option<NonZeroUsize>,
    /// Limits of each connection to us.
    pub limits: Limits,
    /// How many connections there may be to us, and how fast they may come.
    pub connections: ConnectionLimits,
    /// Whether those that come faster wait for their turn, rather than be refused.
    pub patient: bool,
    /// How it ends.
    pub life: LifeConfig,
    /// Who may claim what. Only our own program calls, so it is believed whatever it says.
    pub identities: Identities,
    /// What calls count as that do not say.
    pub criticality: Criticality,
    /// What strangers may do, if callers are strangers: the edge role.
    pub edge: Option<EdgeConfig>,
    /// How callers are spoken to, if by TLS.
    pub tls: Option<ServerOptions>,
    /// Where the page for operators is, if anywhere.
    pub admin: Option<SocketAddr>,
    /// Who hears what an operator should know.
    pub voice: Voice,
}

impl OutboundConfig {
    /// For batch work to `services`, which is sheddable: it may claim no more than
    /// `SHEDDABLE_PLUS`.
    pub fn batch(services: Vec<ServiceConfig>) -> Self {
        Self {
            name: "batch".to_owned(),
            criticality: Criticality::Sheddable,
            identities: Identities::default().unidentified(Criticality::SheddablePlus),
            connections: batch_connections(),
            patient: true,
            ..Self::new(services)
        }
    }

    /// For calls to `services`.
    pub fn new(services: Vec<ServiceConfig>) -> Self {
        Self {
            name: "outbound".to_owned(),
            services,
            workers: None,
            limits: Limits::default(),
            connections: connection_limits(),
            patient: false,
            life: LifeConfig::default(),
            identities: Identities::default().unidentified(Criticality::CriticalPlus),
            criticality: Criticality::Critical,
            edge: None,
            tls: None,
            admin: None,
            voice: Voice::default(),
        }
    }
}

/// A crowd that comes at once is what the batch role is for, so that nobody is turned away for
/// that: all of them have the same room, and the pace is that at which they are taken.
fn batch_connections() -> ConnectionLimits {
    let mut connections = connection_limits();
    // Three jobs of ten thousand workers. At the 5 to 20 KiB of an idle one they take 150 to 600
    // MiB, when there are so many.
    connections.open_max = 30_000;
    connections.room = [Ratio::ONE; Criticality::COUNT];
    connections
}

/// A service that is called through the proxy.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ServiceConfig {
    /// What it is called.
    pub name: String,
    /// Where the program calls it: a loopback address.
    pub listen: SocketAddr,
    /// Who serves it.
    pub endpoints: Endpoints,
    /// Connections to each endpoint.
    pub pool: PoolConfig,
    /// How endpoints want to be spoken to, if by TLS. The name that their certificates have to have
    /// is the one that was looked up, or else each endpoint's host, if not said.
    pub tls: Option<UpstreamTls>,
    /// The host that requests name; the one that the program has named if not said.
    pub host: Option<Host>,
    /// How an endpoint is picked.
    pub balance: Balance,
    /// What a probe of Prequal asks for.
    pub probe: PathAndQuery,
    /// Which part of the endpoints to connect to; all of them if not said.
    pub subset: Option<Subset>,
    /// Datacenters, the nearest first; there is one if this is empty.
    pub datacenters: Vec<DatacenterConfig>,
    /// What a request costs a datacenter.
    pub cost: Cost,
    /// How long an endpoint is left alone that has said it shuts down.
    pub lame_duck_wait: Duration,
    /// How endpoints are asked whether they serve; they are not if not said.
    pub health: Option<HealthConfig>,
    /// How calls are throttled.
    pub throttle: ThrottleConfig,
    /// How often a call is tried.
    pub retries: RetryPolicy,
    /// How many retries there may be in all.
    pub budget: BudgetConfig,
    /// Which calls may be sent again when it is not known what became of them.
    pub repeat: Repeat,
    /// How many bytes of a request are kept for a retry.
    pub body_max: usize,
    /// How long the head of an answer may take, all attempts together.
    pub answer_timeout: Duration,
    /// How long it may take in one attempt; as long as there is time if not said.
    pub attempt_timeout: Option<Duration>,
    /// What calls count as that do not say, if not as the proxy's others.
    pub criticality: Option<Criticality>,
    /// Whether criticality, deadline and attempt go out with calls.
    pub propagate: bool,
    /// What waits before it: in the batch role, and in no other.
    pub queue: Option<QueueConfig>,
}

/// What waits before a service, and how it goes on.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct QueueConfig {
    /// Requests that may wait, and the pace at which they go on.
    pub batch: tidegate_core::batch::BatchConfig,
    /// Bytes that those may have together: headers, and what is kept of bodies. A worker's request
    /// of a few kilobytes ten thousand times is well within.
    pub bytes_max: u64,
    /// How many bytes of a body are read before its request waits. A longer one is read on when it
    /// is its turn; that its caller has left is not noticed before, and it is sent once only.
    pub body_max: usize,
    /// Connections to one endpoint, and so many requests at once where each has its own.
    pub connections_max: NonZeroUsize,
    /// How often a request is sent that backends refuse, the first time included.
    pub attempts_max: NonZeroU32,
}

impl Default for QueueConfig {
    fn default() -> Self {
        Self {
            batch: tidegate_core::batch::BatchConfig::default(),
            bytes_max: 256 << 20,
            body_max: 64 << 10,
            // Enough for a backend of 16 CPUs to be kept busy by requests that never wait, and
            // nothing beside the connections of interactive callers.
            connections_max: NonZeroUsize::MIN.saturating_add(15),
            attempts_max: NonZeroU32::MIN.saturating_add(2),
        }
    }
}

impl ServiceConfig {
    /// The service `name`, which the program calls at `listen`.
    pub fn new(name: impl Into<String>, listen: SocketAddr, endpoints: Endpoints) -> Self {
        Self {
            name: name.into(),
            listen,
            endpoints,
            pool: PoolConfig::default(),
            tls: None,
            host: None,
            balance: Balance::default(),
            probe: PathAndQuery::from_static("/readyz"),
            subset: None,
            datacenters: Vec::new(),
            // What a task thinks a request costs before it knows of any.
            cost: Cost::from_millis(1),
            lame_duck_wait: Duration::from_secs(30),
            health: None,
            throttle: ThrottleConfig::default(),
            retries: RetryPolicy::default(),
            budget: BudgetConfig::default(),
            repeat: Repeat::default(),
            body_max: 64 * 1_024,
            answer_timeout: Duration::from_secs(60),
            attempt_timeout: None,
            criticality: None,
            propagate: true,
            queue: None,
        }
    }

    /// How its endpoints are spoken to by TLS, by the name that was looked up where nobody says.
    pub(super) fn secured(&self) -> Option<UpstreamTls> {
        let mut tls = self.tls.clone()?;
        if let (None, Endpoints::Dns { name, .. }) = (&tls.name, &self.endpoints) {
            tls.name = name.rsplit_once(':').map(|(host, _)| host.to_owned());
        }
        Some(tls)
    }

    /// The names of its datacenters.
    pub(crate) fn datacenter_names(&self) -> Vec<String> {
        self.datacenters.iter().map(|place| place.name.clone()).collect()
    }

    /// How to spill over, if there is anywhere to.
    pub(super) fn spill(&self) -> Option<Spill> {
        if self.datacenters.is_empty() {
            return None;
        }
        let mut spill = Spill::new(self.cost);
        for (number, place) in (0..).zip(&self.datacenters) {
            let capacity = place.capacity;
            let datacenter = Datacenter::new(DatacenterId(number), capacity);
            spill = spill.datacenter(datacenter, place.round_trip);
        }
        Some(spill)
    }
}

/// A datacenter.
#[derive(Debug, Clone)]
pub struct DatacenterConfig {
    /// What it is called where endpoints are named.
    pub name: String,
    /// How far it is.
    pub round_trip: Duration,
    /// What this client may use of it.
    pub capacity: tidegate_core::spillover::Resources,
}

/// A host that requests name.
#[derive(Debug, Clone)]
pub struct Host {
    pub(super) authority: Authority,
    pub(super) value: HeaderValue,
}

impl core::str::FromStr for Host {
    type Err = InvalidHost;

    fn from_str(text: &str) -> Result<Self, InvalidHost> {
        let invalid = || InvalidHost(text.to_owned());
        let authority: Authority = text.parse().map_err(|_| invalid())?;
        if text.contains('@') {
            return Err(invalid());
        }
        let value = HeaderValue::from_str(text).map_err(|_| invalid())?;
        Ok(Self { authority, value })
    }
}

/// What is no host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no host; right: a name, with or without a port, such as inventory.internal:80")]
pub struct InvalidHost(String);

/// Who serves a service.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Endpoints {
    /// These.
    List(Vec<Endpoint>),
    /// Whatever `name:port` resolves to, looked up again and again.
    Dns {
        /// The name and the port.
        name: String,
        /// How often.
        period: Duration,
    },
    /// What stands in a file, one a line, read again and again.
    File {
        /// Which.
        path: PathBuf,
        /// How often.
        period: Duration,
    },
    /// What a function finds, asked again and again.
    Resolver {
        /// The function.
        resolver: Resolver,
        /// How often.
        period: Duration,
    },
}

impl Endpoints {
    /// These, each as in a line of a file.
    pub fn list<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Self, InvalidEndpoints> {
        let all = words.into_iter().map(|word| super::endpoints::parse(word, &[]));
        Ok(Self::List(all.collect::<Result<_, _>>()?))
    }
}

/// Whether an endpoint's address is one that can be connected to.
pub(super) fn upstream(endpoint: &Endpoint) -> Result<Upstream, crate::pool::InvalidUpstream> {
    endpoint.address().parse()
}

type Resolved = Pin<Box<dyn Future<Output = io::Result<Vec<SocketAddr>>> + Send>>;

/// Finds endpoints.
#[derive(Clone)]
pub struct Resolver(Arc<dyn Fn() -> Resolved + Send + Sync>);

impl Resolver {
    /// By this function.
    pub fn new<F>(resolve: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = io::Result<Vec<SocketAddr>>> + Send + 'static,
    {
        Self(Arc::new(move || Box::pin(resolve())))
    }

    pub(super) fn ask(&self) -> Resolved {
        (self.0)()
    }
}

impl fmt::Debug for Resolver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Resolver")
    }
}

/// Who hears what an operator should know: a file that was refused, a name that is not found.
#[derive(Clone)]
pub struct Voice(Arc<dyn Fn(&str) + Send + Sync>);

impl Voice {
    /// This one.
    pub fn new(say: impl Fn(&str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(say))
    }

    pub(crate) fn say(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Voice {
    /// The standard error.
    fn default() -> Self {
        Self::new(|line| {
            // If nobody listens there is nobody to tell.
            let _ = writeln!(io::stderr(), "tidegate: {line}");
        })
    }
}

impl fmt::Debug for Voice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Voice")
    }
}
