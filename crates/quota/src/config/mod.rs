//! Who may use how much: the configuration of a quota server.
//!
//! ```yaml
//! quota:
//!   listen: 127.0.0.1:7300
//!   services:
//!     search:
//!       capacity: { cpu: 400 }
//!       default: 10
//!       customers:
//!         gmail: 120
//!         crawler: { cpu: 200, sheddable_plus: 50 }
//! ```
//!
//! A file is read in two steps: its shape (`raw`), then its meaning (`resolve`). What comes out
//! cannot be wrong, and what is wrong is refused with its line and what would be right; nothing is
//! guessed, and nothing is only warned about. Limits may add up to more than the capacity: that is
//! what shares are for, and [`Service::oversubscription`] says by how much.

mod doorman;
mod election;
mod fault;
mod parent;
mod raw;
mod resolve;
#[cfg(test)]
mod tests;
mod units;
mod who;

pub use crate::access::{DoormanAccess, ServiceAccess};
pub use election::EtcdElection;
pub use fault::Refused;
pub use parent::{DoormanParent, Parent};
pub use who::Exposed;

use crate::access;
use core::time::Duration;
use fault::Fault;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use tidegate_core::doorman::Repository;
use tidegate_core::fleet::{FleetConfig, Limits};
use tidegate_core::{Cost, CostRate};
use tidegate_tls::ServerOptions;
use tidegate_wire::customer::IdentityPattern;

/// The port of a server that is not told another.
pub const PORT: u16 = 7300;

/// Where one server is and what it remembers, as its file says: the command line may have it listen
/// elsewhere, which is no change of the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Fixed {
    listen: Option<SocketAddr>,
    advertise: Option<String>,
    state: Option<PathBuf>,
    trust_network: bool,
}

impl Fixed {
    /// The first key in which `other` differs.
    pub(crate) fn difference(&self, other: &Self) -> Option<&'static str> {
        let differences = [
            ("listen", self.listen != other.listen),
            ("advertise", self.advertise != other.advertise),
            ("state", self.state != other.state),
            ("trust_network", self.trust_network != other.trust_network),
        ];
        differences.into_iter().find_map(|(key, differs)| differs.then_some(key))
    }
}

/// What is of one server, and what limits that all share say nothing of.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Own {
    pub(crate) fixed: Fixed,
    pub(crate) tls: Option<ServerOptions>,
    pub(crate) election: Option<EtcdElection>,
    operators: Vec<IdentityPattern>,
    pub(crate) parent: Option<Parent>,
    pub(crate) doorman_parent: Option<DoormanParent>,
}

impl Own {
    /// What this configuration says of it.
    pub fn of(config: &Config) -> Self {
        Self {
            fixed: config.fixed.clone(),
            tls: config.tls.clone(),
            election: config.election.clone(),
            operators: config.operators.clone(),
            parent: config.parent.clone(),
            doorman_parent: config.doorman_parent.clone(),
        }
    }
}

/// A configuration that can be run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen; loopback, [`PORT`], if not said.
    pub listen: SocketAddr,
    /// What others call this server: host and port; where it listens if not said.
    pub advertise: String,
    /// Where the number of the last election is kept, so that a restart is a later one even if the
    /// clock was set back.
    pub state: Option<PathBuf>,
    /// How several servers elect one; nothing for a single server.
    pub election: Option<EtcdElection>,
    /// By name.
    pub services: BTreeMap<String, Service>,
    /// What clients of Doorman may share; nothing if they are not served, or by a server above.
    pub doorman: Option<Repository>,
    /// The server above, if this one is of Doorman's tree and not its root.
    pub doorman_parent: Option<DoormanParent>,
    /// How callers are spoken to, if by TLS. Where they show certificates, lists say who may do
    /// what.
    pub tls: Option<ServerOptions>,
    /// Whoever can reach the server may be believed, though nobody proves who they are.
    pub trust_network: bool,
    /// Who may see how everything stands.
    pub operators: Vec<IdentityPattern>,
    /// The global server, if this one is a zone's.
    pub parent: Option<Parent>,
    /// Who may ask for Doorman's resources.
    pub doorman_access: Option<DoormanAccess>,
    /// What the file says of `listen`, `advertise`, `state` and `trust_network`.
    pub(crate) fixed: Fixed,
}

/// One service, whose tasks share what its customers may use.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Service {
    /// What all its tasks can do together, if said. Only to tell by how much it is oversubscribed.
    pub capacity: Option<CostRate>,
    /// The same account of memory.
    pub memory: Memory,
    /// What everyone without limits of their own may use together.
    pub default: Limits,
    /// What each customer may use, by name.
    pub customers: BTreeMap<String, Limits>,
    /// What a request costs that an Envoy asks about, if it does not tell so afterwards.
    pub hit: Option<Cost>,
    /// Whom it listens to, where callers show certificates.
    pub access: ServiceAccess,
    /// How often tasks report. Default 1 s.
    pub report_every: Duration,
    /// How often limits are divided and pushed. Default 250 ms.
    pub round_every: Duration,
    /// All the rest.
    pub fleet: FleetConfig,
}

/// Who may hold how much memory, in bytes: an account of its own beside CPU time. It is shown, and
/// not enforced.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Memory {
    /// What all tasks have together, if said.
    pub capacity: Option<u64>,
    /// What everyone without a limit of their own may hold together; nothing is no limit.
    pub default: Option<u64>,
    /// What each customer may hold that has a limit, by name.
    pub customers: BTreeMap<String, u64>,
}

impl Memory {
    /// What a customer may hold, if it is said; nothing for a name is everyone else.
    pub fn of(&self, customer: &str) -> Option<u64> {
        if customer.is_empty() { self.default } else { self.customers.get(customer).copied() }
    }

    /// Whether anybody has said anything of it.
    pub fn is_said(&self) -> bool {
        *self != Self::default()
    }
}

impl Service {
    /// As [`Service::oversubscription`], of memory. Only limits that are said count: who has none
    /// has not been promised anything.
    pub fn memory_oversubscription(&self) -> Option<f64> {
        let capacity = self.memory.capacity? as f64;
        let limits = self.memory.customers.values().chain(&self.memory.default);
        let promised: u128 = limits.map(|bytes| u128::from(*bytes)).sum();
        Some(promised as f64 / capacity)
    }

    /// The sum of all limits over the capacity: above 1, not everyone can have its limit at once.
    /// Who has no limit counts with the whole capacity. Nothing if the capacity is not said.
    pub fn oversubscription(&self) -> Option<f64> {
        let capacity = self.capacity?.as_cpus();
        let limits = self.customers.values().chain([&self.default]);
        let promised = limits.map(|limits| match limits.whole() {
            CostRate::MAX => capacity,
            rate => rate.as_cpus(),
        });
        Some(promised.sum::<f64>() / capacity)
    }

    /// Whether a running service can become this one. Tasks and server must agree on leases, and
    /// tables have their sizes, so everything but the limits and the capacity needs a restart.
    pub(crate) fn fits(&self, running: &Self) -> bool {
        let now = (self.report_every, self.round_every, &self.fleet, self.hit);
        now == (running.report_every, running.round_every, &running.fleet, running.hit)
    }
}

impl Config {
    /// Reads the text of a file; `file` is what it is called in complaints.
    pub fn parse(file: &str, text: &str) -> Result<Self, Refused> {
        read(text).map_err(|fault| fault.of(file))
    }

    /// Whether callers prove who they are.
    pub fn identified(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| access::proves(&tls.clients))
    }

    /// Listens there instead, unless others could reach it who prove nothing.
    pub fn listen_at(&mut self, address: SocketAddr) -> Result<(), Exposed> {
        Exposed::check(address, self.identified(), self.trust_network)?;
        self.listen = address;
        Ok(())
    }

    /// Reads what all servers have in common: services and `doorman`, and nothing of one server,
    /// for that which has `own`.
    pub fn parse_limits(file: &str, text: &str, own: &Own) -> Result<Self, Refused> {
        shape(text).and_then(|raw| resolve::limits_only(raw, own)).map_err(|fault| fault.of(file))
    }

    /// What people should know of it, line by line: services, customers, and by how much each is
    /// oversubscribed.
    pub fn summary(&self) -> String {
        let mut lines = Vec::new();
        if let Some(election) = &self.election {
            lines.push(election.summary());
        }
        for (name, service) in &self.services {
            let of = service.oversubscription().map_or_else(
                || "no capacity said".to_owned(),
                |over| format!("{:.0} % of the capacity promised", over * 100.0),
            );
            let of = match service.memory_oversubscription() {
                None => of,
                Some(over) => format!("{of}, {:.0} % of the memory", over * 100.0),
            };
            let count = service.customers.len();
            let customers = if count == 1 { "customer" } else { "customers" };
            lines.push(format!("{name}: {count} {customers}, {of}"));
        }
        lines.join("\n")
    }
}

fn read(text: &str) -> Result<Config, Fault> {
    shape(text).and_then(resolve::file)
}

fn shape(text: &str) -> Result<raw::File, Fault> {
    let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
    let raw = serde_saphyr::from_str_with_options::<raw::File>(text, options);
    raw.map_err(|error| Fault::from_yaml(&error))
}
