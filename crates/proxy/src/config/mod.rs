//! How a proxy is run, as people write it.
//!
//! A file says only what differs from the defaults. It is refused as a whole if anything in it is
//! wrong, with the line, what was found and what would be right: a proxy that guesses what was
//! meant protects something else.
//!
//! ```yaml
//! upstream: 127.0.0.1:8080
//! mode: enforce
//! everyone_else: { total: 4, SHEDDABLE: 1 }
//! ```
//!
//! docs/proxy.md has every key with its unit, default and effect.

mod batch;
mod dump;
mod edge;
mod outbound;
mod prewarm;
mod quota;
mod role;
mod signals;
mod stale;
mod text;
mod tls;

pub(crate) use dump::dump;
pub use role::Role;
pub use text::{Span, Switch};

use crate::edge::EdgeConfig;
use crate::outbound::Voice;
use crate::own::SignalConfig;
use crate::pool::{PoolConfig, Protocol, Upstream};
use crate::prewarm::PrewarmConfig;
use crate::quota::QuotaConfig;
use crate::stale::StaleConfig;
use crate::tls::{Target, UpstreamTls};
use crate::watch::Watch;
use core::fmt;
use core::num::NonZeroUsize;
use core::time::Duration;
use serde::Deserialize;
use serde_saphyr::Spanned;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use text::{Cpus, Level, Place, parsed};
use tidegate::Criticality;
use tidegate::life::LifeConfig;
use tidegate::serve::Limits;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::{CostRate, fleet};
use tidegate_tls::{Clients, ServerOptions};
use tidegate_wire::customer::Identities;

/// Where to listen if nobody says.
pub const LISTEN: &str = "127.0.0.1:8000";

/// How a proxy is run.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Config {
    /// What the service behind it is called.
    pub service: String,
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where the program is.
    pub upstream: Upstream,
    /// How it wants to be spoken to, if by TLS.
    pub upstream_tls: Option<UpstreamTls>,
    /// How callers are spoken to, if by TLS.
    pub tls: Option<ServerOptions>,
    /// Connections to it.
    pub pool: PoolConfig,
    /// Threads that serve; as many as there are CPUs if not said.
    pub workers: Option<NonZeroUsize>,
    /// Whether refusals are only counted.
    pub dark: bool,
    /// What to look at of the program.
    pub watch: Watch,
    /// How many CPUs the program may use, where it cannot be seen or is seen wrongly.
    pub cpus: Option<f64>,
    /// Limits of each connection to us.
    pub limits: Limits,
    /// How many connections there may be to us, and how fast they may come.
    pub connections: ConnectionLimits,
    /// How long the head of an answer may take, if the request does not say; nothing for as long as
    /// it likes.
    pub answer_timeout: Option<Duration>,
    /// How many requests of each worker may go on whose callers have left.
    pub alone_max: usize,
    /// How copies of answers are kept, if they are.
    pub stale: Option<StaleConfig>,
    /// Where questions for health by datagram are answered, if anywhere.
    pub health_udp: Option<SocketAddr>,
    /// Signals of the user's own.
    pub signals: Vec<SignalConfig>,
    /// What is asked of the program before the first caller is taken, if anything.
    pub prewarm: Option<PrewarmConfig>,
    /// How it ends.
    pub life: LifeConfig,
    /// The most that a caller may claim whom nobody knows by a certificate.
    pub ceiling: Criticality,
    /// Customers, and what they may use.
    pub customers: Vec<(String, fleet::Limits)>,
    /// Whose certificates make them which customer, and what they may claim. What callers without
    /// any may claim is `ceiling`.
    pub identities: Identities,
    /// What everyone else may use together.
    pub everyone_else: fleet::Limits,
    /// Who says instead what customers and everyone else may use, if not this.
    pub quota: Option<QuotaConfig>,
    /// What requests count as that do not say.
    pub criticality: Criticality,
    /// What strangers may do, if callers are strangers.
    pub edge: Option<EdgeConfig>,
    /// Where the page for operators is, if anywhere.
    pub admin: Option<SocketAddr>,
    /// Who hears what an operator should know.
    pub voice: Voice,
}

impl Config {
    /// A proxy at `listen` for the program at `upstream`: dark, as nobody should be refused before
    /// somebody has seen who would be.
    pub fn new(listen: SocketAddr, upstream: Upstream) -> Self {
        Self {
            service: upstream.to_string(),
            listen,
            upstream,
            upstream_tls: None,
            tls: None,
            pool: PoolConfig::default(),
            workers: None,
            dark: true,
            watch: Watch::Auto,
            cpus: None,
            limits: Limits::default(),
            connections: connection_limits(),
            answer_timeout: Some(Duration::from_secs(60)),
            // Each has a connection to the program: a tenth of the callers' that there may be.
            alone_max: 1_000,
            stale: None,
            health_udp: None,
            signals: Vec::new(),
            prewarm: None,
            life: LifeConfig::default(),
            ceiling: Criticality::Critical,
            customers: Vec::new(),
            identities: Identities::default(),
            everyone_else: fleet::Limits::UNLIMITED,
            quota: None,
            criticality: Criticality::Critical,
            edge: None,
            admin: None,
            voice: Voice::default(),
        }
    }

    /// The keys in which `other` differs and that cannot be changed while a proxy runs.
    pub(crate) fn differences(&self, other: &Self) -> Vec<&'static str> {
        let gone = |(name, _): &(String, _)| !other.customers.iter().any(|(n, _)| n == name);
        [
            ("upstream", self.upstream != other.upstream),
            ("upstream_tls", self.upstream_tls != other.upstream_tls),
            ("listen", self.listen != other.listen),
            ("tls (other files than before)", self.tls != other.tls),
            ("service", self.service != other.service),
            ("protocol", self.pool.protocol != other.pool.protocol),
            ("watch", self.watch != other.watch),
            ("cpus", self.cpus != other.cpus),
            ("workers", self.workers != other.workers),
            ("admin", self.admin != other.admin),
            ("default_criticality", self.criticality != other.criticality),
            ("ceiling", self.ceiling != other.ceiling),
            (
                "timeouts",
                PoolConfig { protocol: self.pool.protocol, ..other.pool } != self.pool
                    || self.answer_timeout != other.answer_timeout
                    || self.limits != other.limits,
            ),
            ("connections", self.connections != other.connections),
            ("drain", self.life != other.life),
            ("edge", self.edge != other.edge),
            ("stale", self.stale != other.stale),
            ("health_udp", self.health_udp != other.health_udp),
            ("signals", self.signals != other.signals),
            ("prewarm", self.prewarm != other.prewarm),
            ("quota", self.quota != other.quota),
            ("customers (one was taken out)", self.customers.iter().any(gone)),
            ("customers (who they are)", self.identities != other.identities),
        ]
        .into_iter()
        .filter_map(|(key, differs)| differs.then_some(key))
        .collect()
    }

    /// Reads what stands in `file`.
    pub fn parse(file: &str, text: &str) -> Result<Self, ConfigError> {
        let mut raw = role::read::<Raw>(file, text)?;
        let quota = raw.quota.take().map(|quota| {
            let beside = quota::Beside {
                named: raw.service.is_some(),
                everyone_else: raw.everyone_else.is_some(),
                customers: &raw.customers,
            };
            quota::resolve(file, quota, &beside)
        });
        let mut config = raw.resolve().map_err(|wrong| role::refused(file, wrong))?;
        config.quota = quota.transpose()?;
        Ok(config)
    }
}

/// How many connections there may be to us, if nobody says.
pub(crate) fn connection_limits() -> ConnectionLimits {
    let mut connections = ConnectionLimits::default();
    // Without TLS a connection costs some 50 µs to take: at this rate a fifth of a core.
    (connections.accepts_per_second, connections.burst) = (4_000, 4_000);
    connections
}

/// A file that was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct ConfigError {
    /// Which.
    pub file: String,
    /// Line and column, where it is in one place.
    pub at: Option<(u64, u64)>,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: String,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file)?;
        if let Some((line, column)) = self.at {
            write!(f, "{line}:{column}:")?;
        }
        write!(f, " {}\n  right: {}", self.what, self.right)
    }
}

/// A file as it stands.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    #[serde(default)]
    role: RoleName,
    upstream: Place<Target>,
    upstream_tls: Option<tls::Upstream>,
    tls: Option<tls::Tls>,
    listen: Option<SocketAddr>,
    service: Option<String>,
    #[serde(default)]
    protocol: Speaks,
    #[serde(default)]
    mode: Mode,
    watch: Option<Place<Watch>>,
    cpus: Option<Cpus>,
    workers: Option<NonZeroUsize>,
    admin: Option<Place<text::Admin>>,
    default_criticality: Option<Level>,
    ceiling: Option<Level>,
    #[serde(default)]
    timeouts: Timeouts,
    #[serde(default)]
    connections: Connections,
    #[serde(default)]
    drain: Drain,
    stale: Option<stale::Stale>,
    health_udp: Option<Place<text::Admin>>,
    #[serde(default)]
    signals: BTreeMap<String, signals::Raw>,
    prewarm: Option<prewarm::Prewarm>,
    #[serde(default)]
    customers: tls::Customers,
    #[serde(default)]
    delegators: Vec<String>,
    everyone_else: Option<Quota>,
    quota: Option<Spanned<quota::Quota>>,
    edge: Option<edge::Edge>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RoleName {
    #[default]
    Inbound,
    Outbound,
    Edge,
    Batch,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Speaks {
    #[default]
    Auto,
    H1,
    H2,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Dark,
    Enforce,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeouts {
    connect: Option<Span>,
    answer: Option<Span>,
    read: Option<Span>,
    idle: Option<Span>,
    header: Option<Span>,
    stall: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Connections {
    open_max: Option<u64>,
    accepts_per_second: Option<u32>,
    burst: Option<u32>,
    streams_max: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Drain {
    delay: Option<Span>,
    limit: Option<Span>,
}

/// What a customer may use: CPUs in all, or by criticality.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Quota {
    Total(Cpus),
    ByCriticality(BTreeMap<String, Cpus>),
}

type Wrong = (String, String);

impl Raw {
    fn resolve(self) -> Result<Config, Wrong> {
        if self.role != RoleName::Inbound {
            let what = "`role: outbound` has services and no upstream".to_owned();
            return Err((what, "role: inbound, or as in docs/proxy-outbound.md".to_owned()));
        }
        let listen = match self.listen {
            Some(listen) => listen,
            None => LISTEN.parse().map_err(|_| (String::new(), String::new()))?,
        };
        let Target { upstream, tls: secure } = self.upstream.0;
        let mut config = Config::new(listen, upstream);
        config.upstream_tls = match self.upstream_tls {
            Some(tls) if secure => Some(tls.resolve("upstream_tls")?),
            Some(_) => {
                let what = "upstream_tls for an upstream without TLS".to_owned();
                return Err((what, "upstream: https://HOST:PORT".to_owned()));
            }
            None => secure.then(UpstreamTls::default),
        };
        config.tls = self.tls.map(tls::Tls::resolve).transpose()?;
        if config.tls.is_some() {
            // A handshake takes up to a millisecond of CPU: core's own numbers are made for that.
            config.connections = ConnectionLimits::default();
        }
        if let Some(service) = self.service {
            config.service = service;
        }
        config.pool.protocol = self.protocol.into();
        config.dark = self.mode == Mode::Dark;
        config.watch = self.watch.map(|watch| watch.0).unwrap_or_default();
        config.cpus = self.cpus.map(|cpus| cpus.0);
        config.workers = self.workers;
        config.admin = self.admin.and_then(|admin| admin.0.0);
        if let Some(level) = self.default_criticality {
            config.criticality = level.0;
        }
        if let Some(level) = self.ceiling {
            config.ceiling = level.0;
        }
        self.timeouts.apply(&mut config)?;
        self.connections.apply(&mut config.connections, &mut config.limits);
        self.drain.apply(&mut config.life);
        config.stale = self.stale.map(StaleConfig::from);
        config.health_udp = self.health_udp.and_then(|at| at.0.0);
        config.signals = signals::resolve(self.signals)?;
        config.prewarm = self.prewarm.map(prewarm::Prewarm::resolve).transpose()?;
        let shown = config.tls.as_ref().is_some_and(|tls| tls.clients != Clients::Ignored);
        (config.customers, config.identities) =
            tls::customers(self.customers, &self.delegators, shown, config.identities)?;
        if let Some(quota) = self.everyone_else {
            config.everyone_else = quota.limits("everyone_else")?;
        }
        if let Some(edge) = self.edge {
            config.edge = Some(edge.resolve(shown, &mut config.limits)?);
        }
        config.limits.check().map_err(|wrong| (wrong.to_string(), wrong.right.to_owned()))?;
        Ok(config)
    }
}

impl Timeouts {
    fn apply(self, config: &mut Config) -> Result<(), Wrong> {
        if let Some(connect) = self.connect {
            if connect.0.is_zero() {
                let what = "timeouts.connect is no time at all".to_owned();
                return Err((what, "more than zero, such as 1s".to_owned()));
            }
            config.pool.connect_timeout = connect.0;
        }
        if let Some(answer) = self.answer {
            config.answer_timeout = Some(answer.0).filter(|limit| !limit.is_zero());
        }
        if let Some(read) = self.read {
            config.pool.read_timeout = Some(read.0).filter(|limit| !limit.is_zero());
        }
        if let Some(idle) = self.idle {
            config.pool.idle_max = idle.0;
        }
        if let Some(header) = self.header {
            config.limits.header_timeout = header.0;
        }
        if let Some(stall) = self.stall {
            config.limits.stall_max = Some(stall.0).filter(|limit| !limit.is_zero());
        }
        Ok(())
    }
}

impl Connections {
    fn apply(self, limits: &mut ConnectionLimits, each: &mut Limits) {
        limits.open_max = self.open_max.unwrap_or(limits.open_max);
        limits.accepts_per_second = self.accepts_per_second.unwrap_or(limits.accepts_per_second);
        limits.burst = self.burst.unwrap_or(limits.burst);
        each.h2_streams_max = self.streams_max.unwrap_or(each.h2_streams_max);
    }
}

impl Drain {
    fn apply(self, life: &mut LifeConfig) {
        if let Some(delay) = self.delay {
            life.drain_delay = delay.0;
        }
        if let Some(limit) = self.limit {
            life.drain_max = limit.0;
        }
    }
}

impl From<Speaks> for Protocol {
    fn from(speaks: Speaks) -> Self {
        match speaks {
            Speaks::Auto => Self::Auto,
            Speaks::H1 => Self::Http1,
            Speaks::H2 => Self::Http2,
        }
    }
}

impl Quota {
    fn limits(self, key: &str) -> Result<fleet::Limits, Wrong> {
        let rate = |cpus: Cpus| CostRate::from_cpus(cpus.0).unwrap_or(CostRate::MAX);
        let levels = match self {
            Self::Total(cpus) => return Ok(fleet::Limits::total(rate(cpus))),
            Self::ByCriticality(levels) => levels,
        };
        let mut entries = [None; Criticality::COUNT];
        for (name, cpus) in levels {
            let level = match name.as_str() {
                "total" => Criticality::CriticalPlus,
                name => name.parse().map_err(|_| {
                    let right = "total, CRITICAL_PLUS, CRITICAL, SHEDDABLE_PLUS or SHEDDABLE";
                    (format!("`{name}` in {key} is no criticality"), right.to_owned())
                })?,
            };
            entries[level.index()] = Some(rate(cpus));
        }
        fleet::Limits::from_entries(entries).map_err(|wrong| {
            (format!("{key}: {wrong}"), "no more for a lower criticality than for a higher".into())
        })
    }
}

impl<'de, T> Deserialize<'de> for Place<T>
where
    T: core::str::FromStr,
    T::Err: fmt::Display,
{
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer).map(Self)
    }
}

#[cfg(test)]
mod tests;
