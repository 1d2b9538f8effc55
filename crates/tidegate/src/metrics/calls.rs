//! What this process asks of others: metrics of clients and balancers.
//!
//! A process may have clients and no task, or several of both, so they are no part of a task's
//! [`Snapshot`](super::Snapshot): whoever exports says which belong to it, as [`Calls`].
//!
//! **Bounded.** Services are those that somebody has named in code. Endpoints come from a name
//! server and may be thousands: the first [`BACKENDS_MAX`] of each balancer have rows of their own,
//! the rest is one, `other`. They keep their places while others come and go, so a row stands for
//! the same endpoint for as long as there is one. Of `other`, weights and active requests are sums,
//! and how full it is and whether it serves are those of the worst.
//!
//! **When it is wrong.** Counts of one client are not of one instant. A weight is a share of what
//! is picked by weight: datacenters that are picked among before that are not in it.

use super::doors::{self, Copies, EdgeCounts, Queue};
use super::list::{Metric, Read, Rows, Unit};
use crate::client::{Backend, Balancer, Counts, Layer};
use core::fmt;
use std::sync::Arc;
use tidegate_core::Criticality;
use tidegate_core::levels::Levels;
use tidegate_core::retry::GiveUpReason;

/// Four metrics for each: less than the histograms of one task. Whoever balances over more wants
/// to know of most of them only together.
const BACKENDS_MAX: usize = 32;
/// What endpoints beyond that are called.
const OTHER: &str = "other";

/// Reads the endpoints of a balancer, whatever its services are.
type Backends = Arc<dyn Fn() -> Vec<Backend> + Send + Sync>;
type Queues = Arc<dyn Fn() -> Queue + Send + Sync>;
type Edge = Arc<dyn Fn() -> EdgeCounts + Send + Sync>;
type Kept = Arc<dyn Fn() -> Copies + Send + Sync>;

/// Clients and balancers, each by the name of the service that it asks.
///
/// ```
/// use tidegate::client::Layer;
/// use tidegate::metrics::Calls;
///
/// let inventory = Layer::new("inventory");
/// let calls = Calls::default().client(&inventory)?;
/// assert!(calls.client(&inventory).is_err());
/// # Ok::<(), tidegate::metrics::InvalidCalls>(())
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Calls {
    clients: Vec<Layer>,
    balancers: Vec<(String, Backends)>,
    queues: Vec<(String, Queues)>,
    edge: Option<Edge>,
    copies: Option<Kept>,
    datagrams: Option<Edge>,
}

/// Two of one name would be one row with two numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidCalls {
    /// The service has no name.
    #[error("a {0} for a service without a name: call it what people call the service")]
    Unnamed(&'static str),
    /// There is one of this name.
    #[error(
        "two {what}s for `{service}`: metrics and the page tell them apart by that name. Give each \
         service one, of which clones are the same, or call the second `{service} (batch)`, say"
    )]
    Twice {
        /// `client` or `balancer`.
        what: &'static str,
        /// The name.
        service: String,
    },
}

impl Calls {
    /// Adds what is asked through `layer`.
    pub fn client(mut self, layer: &Layer) -> Result<Self, InvalidCalls> {
        let known = self.clients.iter().any(|known| known.service() == layer.service());
        valid("client", layer.service(), known)?;
        self.clients.push(layer.clone());
        Ok(self)
    }

    /// Adds whom `balancer` asks, for a service of this name.
    pub fn balancer<S: Clone + Send + Sync + 'static>(
        mut self,
        service: impl Into<String>,
        balancer: &Balancer<S>,
    ) -> Result<Self, InvalidCalls> {
        let (service, balancer) = (service.into(), balancer.clone());
        let known = self.balancers.iter().any(|(known, _)| *known == service);
        valid("balancer", &service, known)?;
        self.balancers.push((service, Arc::new(move || balancer.backends())));
        Ok(self)
    }

    /// Adds a queue before the service of this name, as `read` tells it.
    pub fn queue(
        mut self,
        service: impl Into<String>,
        read: impl Fn() -> Queue + Send + Sync + 'static,
    ) -> Result<Self, InvalidCalls> {
        let service = service.into();
        valid("queue", &service, self.queues.iter().any(|(known, _)| *known == service))?;
        self.queues.push((service, Arc::new(read)));
        Ok(self)
    }

    /// Adds an edge before all of them; there is one at most, the last.
    pub fn edge(mut self, read: impl Fn() -> EdgeCounts + Send + Sync + 'static) -> Self {
        self.edge = Some(Arc::new(read));
        self
    }

    /// Adds copies of answers that are given out where there is none; there is one such store.
    pub fn copies(mut self, read: impl Fn() -> Copies + Send + Sync + 'static) -> Self {
        self.copies = Some(Arc::new(read));
        self
    }

    /// Adds who answers questions for health by datagram.
    pub fn datagrams(mut self, read: impl Fn() -> EdgeCounts + Send + Sync + 'static) -> Self {
        self.datagrams = Some(Arc::new(read));
        self
    }

    #[cfg(feature = "admin")]
    pub(crate) fn queues(&self) -> impl Iterator<Item = (&str, Queue)> {
        self.queues.iter().map(|(service, read)| (service.as_str(), read()))
    }

    #[cfg(feature = "admin")]
    pub(crate) fn clients(&self) -> &[Layer] {
        &self.clients
    }

    #[cfg(feature = "admin")]
    pub(crate) fn backends(&self) -> impl Iterator<Item = (&str, Vec<Backend>)> {
        self.balancers.iter().map(|(service, read)| (service.as_str(), read()))
    }

    pub(super) fn snapshot(&self) -> Asked {
        let client = |layer: &Layer| Client {
            service: layer.service().to_owned(),
            counts: layer.counts(),
            levels: layer.levels(),
            budget_left: layer.budget_left(),
        };
        Asked {
            clients: self.clients.iter().map(client).collect(),
            balancers: (self.balancers.iter())
                .map(|(service, read)| (service.clone(), Fleet::of(&read())))
                .collect(),
            queues: self.queues.iter().map(|(name, read)| (name.clone(), read())).collect(),
            edge: self.edge.as_ref().map(|read| read()).unwrap_or_default(),
            copies: self.copies.as_ref().map(|read| read()),
            datagrams: self.datagrams.as_ref().map(|read| read()).unwrap_or_default(),
        }
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let balancers: Vec<&str> = self.balancers.iter().map(|(name, _)| name.as_str()).collect();
        let fields = &mut f.debug_struct("Calls");
        fields.field("clients", &self.clients).field("balancers", &balancers);
        let queues: Vec<&str> = self.queues.iter().map(|(name, _)| name.as_str()).collect();
        fields.field("queues", &queues).finish_non_exhaustive()
    }
}

fn valid(what: &'static str, service: &str, known: bool) -> Result<(), InvalidCalls> {
    if service.trim().is_empty() {
        return Err(InvalidCalls::Unnamed(what));
    }
    if known {
        return Err(InvalidCalls::Twice { what, service: service.to_owned() });
    }
    Ok(())
}

/// Where all of them stood.
pub(super) struct Asked {
    clients: Vec<Client>,
    balancers: Vec<(String, Fleet)>,
    pub(super) queues: Vec<(String, Queue)>,
    pub(super) edge: EdgeCounts,
    pub(super) copies: Option<Copies>,
    pub(super) datagrams: EdgeCounts,
}

struct Client {
    service: String,
    counts: Counts,
    levels: Levels,
    budget_left: f64,
}

/// The endpoints of a balancer.
#[derive(Debug, Default, PartialEq)]
struct Fleet {
    rows: Vec<Row>,
    serving: u64,
    lame: u64,
}

#[derive(Debug, PartialEq)]
struct Row {
    name: String,
    weight: Option<f64>,
    utilization: Option<f64>,
    active: u64,
    serving: bool,
}

impl Fleet {
    fn of(backends: &[Backend]) -> Self {
        let sum: f64 = backends.iter().filter_map(|backend| backend.weight).sum();
        let mut fleet = Self::default();
        for backend in backends {
            let serving = !backend.lame_duck;
            *(if serving { &mut fleet.serving } else { &mut fleet.lame }) += 1;
            let row = Row {
                name: backend.endpoint.to_string(),
                weight: backend.weight.filter(|_| sum > 0.0).map(|weight| weight / sum),
                utilization: backend.utilization,
                active: backend.active.into(),
                serving,
            };
            fleet.add(row);
        }
        fleet
    }

    /// Two of one name are one, as are all that come too late to have a row.
    fn add(&mut self, mut row: Row) {
        let known = |rows: &[Row], name: &str| rows.iter().position(|row| row.name == name);
        if known(&self.rows, &row.name).is_none() && self.rows.len() >= BACKENDS_MAX {
            OTHER.clone_into(&mut row.name);
        }
        match known(&self.rows, &row.name) {
            None => self.rows.push(row),
            Some(at) => self.rows[at].join(&row),
        }
    }
}

impl Row {
    fn join(&mut self, other: &Self) {
        let both = |a: Option<f64>, b: Option<f64>, join: fn(f64, f64) -> f64| match (a, b) {
            (Some(a), Some(b)) => Some(join(a, b)),
            (one, None) | (None, one) => one,
        };
        self.weight = both(self.weight, other.weight, |a, b| a + b);
        self.utilization = both(self.utilization, other.utilization, f64::max);
        self.active += other.active;
        self.serving &= other.serving;
    }
}

/// Every metric of these.
#[rustfmt::skip]
static CALLS: [Metric<Asked>; 11] = [
    Metric::new("tidegate_client_requests", Unit::Events("request"),
        "Requests to other services, without their retries",
        Read::Counter(|asked, rows| clients(asked, |counts| counts.retries.requests, rows)))
        .by(&["service"]),
    Metric::new("tidegate_client_retries", Unit::Events("retry"),
        "Retries of requests to other services",
        Read::Counter(|asked, rows| clients(asked, |counts| counts.retries.retries, rows)))
        .by(&["service"]),
    Metric::new("tidegate_client_attempts", Unit::Events("attempt"),
        "Attempts by what became of them; those that were throttled were never sent",
        Read::Counter(attempts)).by(&["service", "criticality", "fate"]),
    Metric::new("tidegate_client_given_up_requests", Unit::Events("request"),
        "Requests that failed and were not tried again",
        Read::Counter(given_up)).by(&["service", "reason"]),
    Metric::new("tidegate_client_throttle", Unit::Ratio,
        "How likely a request is to be held back",
        Read::Gauge(throttle)).by(&["service", "criticality"]),
    Metric::new("tidegate_client_budget", Unit::Retries, "Retries that the budget has left",
        Read::Gauge(|asked: &Asked, rows| for client in &asked.clients {
            rows(&[&client.service], client.budget_left);
        })).by(&["service"]),
    Metric::new("tidegate_backends", Unit::Events("backend"), "Endpoints of a balancer",
        Read::Level(|asked: &Asked, rows| for (service, fleet) in &asked.balancers {
            rows(&[service, "serving"], fleet.serving);
            rows(&[service, "lame_duck"], fleet.lame);
        })).by(&["service", "state"]),
    Metric::new("tidegate_backend_weight", Unit::Ratio,
        "The share of the picks that an endpoint has, where the policy has weights",
        Read::Gauge(|asked, rows| backends(asked, |row| row.weight, rows)))
        .by(&["service", "backend"]),
    Metric::new("tidegate_backend_utilization", Unit::Ratio,
        "How full an endpoint says that it is",
        Read::Gauge(|asked, rows| backends(asked, |row| row.utilization, rows)))
        .by(&["service", "backend"]),
    Metric::new("tidegate_backend_active", Unit::Requests,
        "Attempts at an endpoint that have begun and not ended",
        Read::Level(|asked, rows| backends(asked, |row| Some(row.active), rows)))
        .by(&["service", "backend"]),
    Metric::new("tidegate_backend_serving", Unit::None,
        "Whether an endpoint takes new requests",
        Read::Level(|asked, rows| backends(asked, |row| Some(row.serving.into()), rows)))
        .by(&["service", "backend"]),
];

/// How many there are.
#[cfg(feature = "opentelemetry")]
pub(super) const COUNT: usize = CALLS.len() + doors::METRICS.len();

/// These, and those of what stands before services.
pub(super) fn metrics() -> impl Iterator<Item = &'static Metric<Asked>> {
    CALLS.iter().chain(&doors::METRICS)
}

fn clients(asked: &Asked, count: fn(&Counts) -> u64, rows: Rows<'_, u64>) {
    for client in &asked.clients {
        rows(&[&client.service], count(&client.counts));
    }
}

fn attempts(asked: &Asked, rows: Rows<'_, u64>) {
    for client in &asked.clients {
        for (criticality, counts) in Criticality::ALL.into_iter().zip(client.counts.attempts) {
            for (fate, count) in [
                ("accepted", counts.accepted),
                ("refused", counts.refused),
                ("unanswered", counts.unanswered),
                ("throttled", counts.throttled),
            ] {
                rows(&[&client.service, criticality.name(), fate], count);
            }
        }
    }
}

fn given_up(asked: &Asked, rows: Rows<'_, u64>) {
    for client in &asked.clients {
        for (reason, count) in GiveUpReason::ALL.into_iter().zip(client.counts.given_up) {
            rows(&[&client.service, reason.code()], count);
        }
        rows(&[&client.service, "unrepeatable"], client.counts.unrepeatable);
    }
}

fn throttle(asked: &Asked, rows: Rows<'_, f64>) {
    for client in &asked.clients {
        for criticality in Criticality::ALL {
            let sent = client.levels.share(criticality);
            rows(&[&client.service, criticality.name()], 1.0 - sent);
        }
    }
}

fn backends<T>(asked: &Asked, read: fn(&Row) -> Option<T>, rows: Rows<'_, T>) {
    for (service, fleet) in &asked.balancers {
        for row in &fleet.rows {
            if let Some(number) = read(row) {
                rows(&[service, &row.name], number);
            }
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::client::Endpoint;

    fn backend(n: u32) -> Backend {
        Backend {
            endpoint: Endpoint::new(format!("10.0.0.{n}:80")),
            weight: Some(f64::from(n)),
            active: n,
            utilization: Some(f64::from(n) / 100.0),
            rps: None,
            lame_duck: n == 40,
        }
    }

    #[test]
    fn what_has_no_row_of_its_own_is_other() {
        let all: Vec<Backend> = (1..=50).map(backend).collect();
        let fleet = Fleet::of(&all);
        assert_eq!((fleet.rows.len(), fleet.serving, fleet.lame), (BACKENDS_MAX + 1, 49, 1));
        let share = |range: core::ops::RangeInclusive<u32>| f64::from(range.sum::<u32>()) / 1275.0;
        assert_eq!(fleet.rows[0].name, "10.0.0.1:80");
        assert!((fleet.rows[31].weight.unwrap() - share(32..=32)).abs() < 1e-12);
        let other = &fleet.rows[32];
        assert_eq!((other.name.as_str(), other.active), (OTHER, (33..=50).sum::<u32>().into()));
        assert_eq!((other.utilization, other.serving), (Some(0.5), false));
        assert!((other.weight.unwrap() - share(33..=50)).abs() < 1e-12);
        // All that are named have no other; two of one name are one row.
        assert_eq!(Fleet::of(&all[..32]).rows.len(), 32);
        let twice = Fleet::of(&[backend(3), backend(3)]);
        assert_eq!((twice.rows.len(), twice.rows[0].active, twice.serving), (1, 6, 2));
    }

    #[test]
    fn a_name_is_given_once() {
        let calls = Calls::default().client(&Layer::new("a")).unwrap();
        let twice = calls.clone().client(&Layer::new("a")).unwrap_err();
        assert!(twice.to_string().contains("two clients for `a`"), "{twice}");
        assert!(calls.client(&Layer::new("b")).is_ok());
        let unnamed = Calls::default().client(&Layer::new(" ")).unwrap_err();
        assert_eq!(unnamed, InvalidCalls::Unnamed("client"));
    }
}
