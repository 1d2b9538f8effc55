//! The outbound role, as people write it.
//!
//! ```yaml
//! role: outbound
//! services:
//!   - name: inventory
//!     listen: 127.0.0.1:7001
//!     dns: inventory.internal:8080
//! ```

use super::text::{self, Level, Place, Span, Switch};
use super::{Connections, Drain, RoleName, Speaks, Wrong, batch, edge, tls};
use crate::outbound::{
    Check, DNS_PERIOD, DatacenterConfig, Endpoints, FILE_PERIOD, HealthConfig, Host,
    OutboundConfig, ServiceConfig, parse_endpoint,
};
use crate::pool::Upstream;
use core::num::{NonZeroU32, NonZeroUsize};
use core::str::FromStr;
use core::time::Duration;
use http::uri::PathAndQuery;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidegate::Cost;
use tidegate::client::{Balance, Repeat, Subset};
use tidegate_core::CostRate;
use tidegate_core::balance::{LeastLoadedConfig, PrequalConfig, SlowStart, WeightedConfig};
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::spillover::Resources;
use tidegate_core::subset::SubsetPolicy;
use tidegate_core::throttle::Multiplier;
use tidegate_core::units::Ratio;
use tidegate_tls::Clients;
use tidegate_wire::customer::Identities;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Raw {
    role: RoleName,
    name: Option<String>,
    services: Vec<Service>,
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
    edge: Option<edge::Edge>,
    tls: Option<tls::Tls>,
}

/// Of connections to us.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Timeouts {
    header: Option<Span>,
    stall: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Service {
    name: String,
    listen: SocketAddr,
    endpoints: Option<Vec<Place<Listed>>>,
    dns: Option<Place<Named>>,
    file: Option<PathBuf>,
    period: Option<Span>,
    #[serde(default)]
    protocol: Speaks,
    tls: Option<tls::Upstream>,
    host: Option<Place<Host>>,
    #[serde(default)]
    policy: Policy,
    slow_start: Option<Span>,
    probe: Option<Place<Path>>,
    subset: Option<SubsetOf>,
    #[serde(default)]
    datacenters: Vec<Datacenter>,
    cost: Option<Span>,
    lame_duck_wait: Option<Span>,
    health: Option<Health>,
    throttle: Option<Throttle>,
    retries: Option<Retries>,
    queue: Option<batch::Queue>,
    pace: Option<batch::Pace>,
    #[serde(default)]
    timeouts: Waits,
    default_criticality: Option<Level>,
    propagate: Option<Switch>,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Policy {
    RoundRobin,
    #[default]
    LeastLoaded,
    Weighted,
    Prequal,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct SubsetOf {
    client: u64,
    size: NonZeroU32,
    #[serde(default)]
    method: Method,
}

#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Method {
    #[default]
    Rocksteadier,
    Deterministic,
    Random,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Datacenter {
    name: String,
    round_trip: Span,
    cpus: text::Cpus,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Health {
    path: Option<Place<Path>>,
    grpc: Option<String>,
    udp: Option<Place<Datagrams>>,
    interval: Option<Span>,
    timeout: Option<Span>,
    fall: Option<NonZeroU32>,
    rise: Option<NonZeroU32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Throttle {
    multiplier: Option<f64>,
    window: Option<Span>,
    requests_min: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Retries {
    attempts: Option<NonZeroU32>,
    budget_percent: Option<f64>,
    min_per_second: Option<u32>,
    repeat: Option<Again>,
    body_max: Option<usize>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Again {
    Idempotent,
    All,
    Unsent,
}

/// Of calls.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Waits {
    connect: Option<Span>,
    answer: Option<Span>,
    attempt: Option<Span>,
    read: Option<Span>,
    idle: Option<Span>,
}

/// An endpoint as it stands; its datacenter is not known before all is read.
#[derive(Debug, Clone)]
struct Listed(String);

impl FromStr for Listed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let place = text.split_whitespace().next().unwrap_or("");
        place.parse::<Upstream>().map_err(|error| error.to_string())?;
        Ok(Self(text.to_owned()))
    }
}

/// `name:port`.
#[derive(Debug, Clone)]
struct Named(String);

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(Upstream::Name(name)) if name == text => Ok(Self(name)),
            _ => Err(format!("`{text}` is no name; right: NAME:PORT, such as inventory:8080")),
        }
    }
}

/// The port of the endpoint, or another.
#[derive(Debug, Clone)]
struct Datagrams(Option<u16>);

impl FromStr for Datagrams {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == "same" => Ok(Self(None)),
            Ok(port) if port > 0 => Ok(Self(Some(port))),
            _ => Err(format!("`{text}` is no port; right: a number, or same")),
        }
    }
}

#[derive(Debug, Clone)]
struct Path(PathAndQuery);

impl FromStr for Path {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let path = text.parse().ok().filter(|_| text.starts_with('/'));
        path.map(Self).ok_or_else(|| format!("`{text}` is no path; right: such as /readyz"))
    }
}

impl Raw {
    pub(super) fn resolve(self) -> Result<OutboundConfig, Wrong> {
        let mut names = BTreeSet::new();
        for service in &self.services {
            if service.name.trim().is_empty() {
                return wrong("a service has no name", "what people call it");
            }
            if !names.insert(&service.name) {
                return wrong(format!("two services `{}`", service.name), "a name for each");
            }
        }
        if names.is_empty() {
            return wrong("there are no services", "one at least, with endpoints");
        }
        let services = self.services.into_iter().map(|service| service.resolve(self.role));
        let services = services.collect::<Result<_, _>>()?;
        let mut config = match self.role {
            RoleName::Batch => OutboundConfig::batch(services),
            _ => OutboundConfig::new(services),
        };
        if let Some(name) = self.name {
            config.name = name;
        }
        config.workers = self.workers;
        config.admin = self.admin.and_then(|admin| admin.0.0);
        if let Some(level) = self.default_criticality {
            config.criticality = level.0;
        }
        if let Some(level) = self.ceiling {
            config.identities = Identities::default().unidentified(level.0);
        }
        if let Some(header) = self.timeouts.header {
            config.limits.header_timeout = header.0;
        }
        if let Some(stall) = self.timeouts.stall {
            config.limits.stall_max = Some(stall.0).filter(|limit| !limit.is_zero());
        }
        if self.role == RoleName::Edge {
            config.tls = self.tls.map(tls::Tls::resolve).transpose()?;
            let shown = config.tls.as_ref().is_some_and(|tls| tls.clients != Clients::Ignored);
            if config.tls.is_some() {
                // Handshakes take CPU: core's own numbers are made for that.
                config.connections = ConnectionLimits::default();
            }
            let edge = self.edge.unwrap_or_default();
            config.edge = Some(edge.resolve(shown, &mut config.limits)?);
        } else if self.edge.is_some() || self.tls.is_some() {
            let what = "edge and tls of callers are for strangers, and this role is for programs \
                        of yours";
            return wrong(what, "role: edge");
        }
        self.connections.apply(&mut config.connections, &mut config.limits);
        self.drain.apply(&mut config.life);
        config.limits.check().map_err(|wrong| (wrong.to_string(), wrong.right.to_owned()))?;
        Ok(config)
    }
}

impl Service {
    fn resolve(self, role: RoleName) -> Result<ServiceConfig, Wrong> {
        let of = format!("of `{}`", self.name);
        let datacenters: Vec<String> =
            self.datacenters.iter().map(|datacenter| datacenter.name.clone()).collect();
        let period = self.period.map(|period| positive(period, &format!("period {of}")));
        let period = period.transpose()?;
        let endpoints = match (self.endpoints, self.dns, self.file) {
            (Some(list), None, None) if !list.is_empty() && period.is_none() => {
                let parse = |listed: &Place<Listed>| parse_endpoint(&listed.0.0, &datacenters);
                let list = list.iter().map(parse).collect::<Result<_, _>>();
                Endpoints::List(
                    list.map_err(|error| (format!("{} {of}", error.what), error.right))?,
                )
            }
            (None, Some(name), None) => {
                Endpoints::Dns { name: name.0.0, period: period.unwrap_or(DNS_PERIOD) }
            }
            (None, None, Some(path)) => {
                Endpoints::File { path, period: period.unwrap_or(FILE_PERIOD) }
            }
            (Some(list), None, None) if !list.is_empty() => {
                return wrong(format!("a list {of} has no period"), "period with dns or file");
            }
            _ => {
                let what = format!("it is not said who serves, or more than once, {of}");
                return wrong(what, "one of endpoints, dns and file, and not empty");
            }
        };
        let mut config = ServiceConfig::new(self.name, self.listen, endpoints);
        config.pool.protocol = self.protocol.into();
        config.tls = self.tls.map(|tls| tls.resolve("tls")).transpose()?;
        config.host = self.host.map(|host| host.0);
        config.balance = self.policy.balance(self.slow_start.map(|window| window.0));
        if let Some(Place(Path(path))) = self.probe {
            config.probe = path;
        }
        config.subset = self.subset.map(SubsetOf::resolve);
        for Datacenter { name, round_trip, cpus } in self.datacenters {
            let rate = CostRate::from_cpus(cpus.0).unwrap_or(CostRate::MAX);
            let (round_trip, capacity) = (round_trip.0, Resources::cpu(rate));
            config.datacenters.push(DatacenterConfig { name, round_trip, capacity });
        }
        if let Some(cost) = self.cost {
            let cost = positive(cost, &format!("cost {of}"))?;
            config.cost = Cost::from_nanos(u64::try_from(cost.as_nanos()).unwrap_or(u64::MAX));
        }
        if let Some(wait) = self.lame_duck_wait {
            config.lame_duck_wait = wait.0;
        }
        config.health = self.health.map(|health| health.resolve(&of)).transpose()?;
        if role == RoleName::Batch {
            if self.throttle.is_some() || self.retries.is_some() {
                let what =
                    format!("throttle or retries {of}: in the batch role its pace does both");
                return wrong(what, "queue and pace, as in docs/proxy-batch.md");
            }
            let (queue, pace) = (self.queue.unwrap_or_default(), self.pace.unwrap_or_default());
            config.queue = Some(batch::resolve(&queue, &pace, &of)?);
        } else if self.queue.is_some() || self.pace.is_some() {
            return wrong(format!("queue or pace {of}: nothing waits in this role"), "role: batch");
        }
        self.throttle.unwrap_or_default().apply(&mut config, &of)?;
        self.retries.unwrap_or_default().apply(&mut config, &of)?;
        self.timeouts.apply(&mut config, &of)?;
        config.criticality = self.default_criticality.map(|level| level.0);
        config.propagate = self.propagate.is_none_or(|switch| switch.0);
        Ok(config)
    }
}

impl Policy {
    fn balance(self, window: Option<Duration>) -> Balance {
        let mut slow_start = SlowStart::default();
        slow_start.window = window.unwrap_or(slow_start.window);
        match self {
            Self::RoundRobin => Balance::RoundRobin(slow_start),
            Self::LeastLoaded => {
                let mut config = LeastLoadedConfig::default();
                config.slow_start = slow_start;
                Balance::LeastLoaded(config)
            }
            Self::Weighted => {
                let mut config = WeightedConfig::default();
                config.slow_start = slow_start;
                Balance::Weighted(config)
            }
            Self::Prequal => {
                let mut config = PrequalConfig::default();
                config.slow_start = slow_start;
                Balance::Prequal(config)
            }
        }
    }
}

impl SubsetOf {
    fn resolve(self) -> Subset {
        let policy = match self.method {
            Method::Rocksteadier => SubsetPolicy::Rocksteadier,
            Method::Deterministic => SubsetPolicy::Deterministic,
            Method::Random => SubsetPolicy::Random,
        };
        Subset { policy, client: self.client, size: self.size.get() }
    }
}

impl Health {
    fn resolve(self, of: &str) -> Result<HealthConfig, Wrong> {
        let check = match (self.path, self.grpc, self.udp) {
            (Some(path), None, None) => Check::Http(path.0.0),
            (None, Some(service), None) => Check::Grpc(service),
            (None, None, Some(port)) => Check::Udp(port.0.0),
            _ => {
                let what = format!("health {of} has neither path nor grpc nor udp, or several");
                return wrong(what, "path: /readyz, or grpc: SERVICE, or udp: same");
            }
        };
        let mut config = HealthConfig::new(check);
        if let Some(interval) = self.interval {
            config.interval = positive(interval, &format!("health.interval {of}"))?;
        }
        if let Some(timeout) = self.timeout {
            config.timeout = positive(timeout, &format!("health.timeout {of}"))?;
        }
        config.fall = self.fall.unwrap_or(config.fall);
        config.rise = self.rise.unwrap_or(config.rise);
        Ok(config)
    }
}

impl Throttle {
    fn apply(self, config: &mut ServiceConfig, of: &str) -> Result<(), Wrong> {
        let throttle = &mut config.throttle;
        if let Some(multiplier) = self.multiplier {
            let right =
                |_| (format!("`{multiplier}` is no multiplier {of}"), "1 or more".to_owned());
            throttle.multiplier = Multiplier::new(multiplier).map_err(right)?;
        }
        if let Some(window) = self.window {
            throttle.window = positive(window, &format!("throttle.window {of}"))?;
        }
        throttle.requests_min = self.requests_min.unwrap_or(throttle.requests_min);
        Ok(())
    }
}

impl Retries {
    fn apply(self, config: &mut ServiceConfig, of: &str) -> Result<(), Wrong> {
        if let Some(attempts) = self.attempts {
            config.retries.attempts_max = attempts;
        }
        if let Some(percent) = self.budget_percent {
            let ratio = Ratio::new(percent / 100.0).map_err(|_| {
                (format!("`{percent}` is no retries.budget_percent {of}"), "0 to 100".to_owned())
            })?;
            config.budget.ratio = ratio;
        }
        let budget = &mut config.budget;
        budget.retries_min_per_second =
            self.min_per_second.unwrap_or(budget.retries_min_per_second);
        config.repeat = match self.repeat {
            None | Some(Again::Idempotent) => Repeat::Idempotent,
            Some(Again::All) => Repeat::All,
            Some(Again::Unsent) => Repeat::Unsent,
        };
        config.body_max = self.body_max.unwrap_or(config.body_max);
        Ok(())
    }
}

impl Waits {
    fn apply(self, config: &mut ServiceConfig, of: &str) -> Result<(), Wrong> {
        if let Some(connect) = self.connect {
            config.pool.connect_timeout = positive(connect, &format!("timeouts.connect {of}"))?;
        }
        if let Some(answer) = self.answer {
            config.answer_timeout = positive(answer, &format!("timeouts.answer {of}"))?;
        }
        if let Some(attempt) = self.attempt {
            config.attempt_timeout = Some(positive(attempt, &format!("timeouts.attempt {of}"))?);
        }
        if let Some(read) = self.read {
            config.pool.read_timeout = Some(read.0).filter(|limit| !limit.is_zero());
        }
        if let Some(idle) = self.idle {
            config.pool.idle_max = idle.0;
        }
        Ok(())
    }
}

fn positive(span: Span, key: &str) -> Result<Duration, Wrong> {
    if span.0.is_zero() {
        return wrong(format!("{key} is no time at all"), "more than zero, such as 1s");
    }
    Ok(span.0)
}

fn wrong<T>(what: impl Into<String>, right: impl Into<String>) -> Result<T, Wrong> {
    Err((what.into(), right.into()))
}
