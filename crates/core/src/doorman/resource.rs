//! One resource: who has how much of it, and who gets how much next.
//!
//! With capacity `C`, `n` subclients in all, `s` of them behind this client, `w` wanted, and all of
//! the same priority:
//!
//! ```text
//! NO_ALGORITHM        w
//! STATIC              min(C, w)
//! PROPORTIONAL_SHARE  E = C / n;  w if all that is wanted fits or w <= E s,
//!                     else E s + (w - E s) x (left by those below E s) / (lacked by those above)
//! FAIR_SHARE          min(w, level x s), the level of weighted max-min
//! ```
//!
//! The last two serve each priority from what the ones above leave: see `demand`. They never
//! promise the same capacity twice: a client gets at most `C` less the leases of all others. A
//! newcomer therefore may have to wait until the others refreshed and gave up what is now too much.
//! A lease that ended counts for nothing.
//!
//! A new master knows no leases. While it **learns** everyone keeps what it says it has; by the end
//! every lease of the old master was either reported or has run out. Who has none any more (it
//! ended while there was no master) was left with the safe capacity, and a lease of nothing would
//! be worse than no answer. Once everybody who is there has asked, which is after a refresh
//! interval, it gets that, out of what nobody has said to have.
//!
//! A client whose grant would change by rounding only keeps the old one to the bit, so that rate
//! limiters behind it are not reset for nothing.

use super::config::{Kind, SafeCapacity, Template};
use super::demand::{Demand, Shares};
use crate::criticality::Criticality;
use crate::share::amount;
use crate::units::Timestamp;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Two grants closer than this share of themselves are the same: a thousand times what rounding
/// does to the sum of a million leases, a thousandth of what any rate limiter could show.
const SAME: f64 = 1e-9;

/// Priorities kept apart for one client; a server that sends more gets its lowest ones merged.
const BANDS_MAX: usize = 16;

/// What a client may use, and until when.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lease {
    /// When it ends.
    pub expiry: Timestamp,
    /// After how long the client should ask again.
    pub refresh_interval: Duration,
    /// How much it may use.
    pub capacity: f64,
}

/// What the clients of one priority want together.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Band {
    /// Their priority; higher matters more.
    pub priority: i64,
    /// How many they are.
    pub clients: u64,
    /// What they want together.
    pub wants: f64,
}

impl Band {
    /// What a priority means. Nobody ever had a reason to set it, and the stock client sends 1:
    /// that is the default, `CRITICAL`. One more is one criticality higher, one less one lower.
    /// Whether the client may claim that much is for the shell to check.
    pub fn criticality(priority: i64) -> Criticality {
        let steps = priority.saturating_add(1).clamp(0, Criticality::COUNT as i64 - 1);
        Criticality::from_index(steps as usize).unwrap_or_default()
    }
}

/// What one client asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    has: Option<Lease>,
    /// Highest priority first, each once, never empty.
    bands: Vec<Band>,
}

impl Request {
    /// A client of its own that wants so much.
    pub fn client(wants: f64, priority: i64) -> Self {
        Self { has: None, bands: vec![Band { priority, clients: 1, wants: amount(wants) }] }
    }

    /// A server that asks for its own clients. Nobody counts as one client, or the server would
    /// have no share to grow from.
    pub fn server(bands: impl IntoIterator<Item = Band>) -> Self {
        let mut bands = merge(bands);
        if bands.is_empty() {
            return Self::client(0.0, 1);
        }
        while bands.len() > BANDS_MAX {
            let surplus = bands.pop().map_or((0, 0.0), |b| (b.clients, b.wants));
            if let Some(lowest) = bands.last_mut() {
                lowest.clients = lowest.clients.saturating_add(surplus.0);
                lowest.wants = amount(lowest.wants + surplus.1);
            }
        }
        Self { has: None, bands }
    }

    /// The client says it already has this.
    #[must_use]
    pub fn with_has(mut self, has: Option<Lease>) -> Self {
        self.has = has;
        self
    }
}

/// Adds up bands of the same priority; highest first.
fn merge(bands: impl IntoIterator<Item = Band>) -> Vec<Band> {
    let mut by_priority = BTreeMap::<i64, Band>::new();
    for band in bands {
        let sum =
            by_priority.entry(band.priority).or_insert(Band { clients: 0, wants: 0.0, ..band });
        sum.clients = sum.clients.saturating_add(band.clients);
        sum.wants = amount(sum.wants + amount(band.wants));
    }
    by_priority.into_values().rev().collect()
}

/// There are as many clients as the resource can keep account of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the resource has {max} clients already: wait until a lease ends, or raise the maximum")]
pub struct TooManyClients {
    /// The most there can be.
    pub max: usize,
}

#[derive(Debug, Clone)]
struct Client {
    bands: Vec<Band>,
    demand: Demand,
    lease: Lease,
}

/// A resource and its leases.
#[derive(Debug, Clone)]
pub struct Resource {
    template: Template,
    capacity: f64,
    learning_until: Timestamp,
    clients_max: usize,
    clients: BTreeMap<Arc<str>, Client>,
    expiries: BTreeSet<(Timestamp, Arc<str>)>,
    /// The sum of all leases.
    has: f64,
    /// How often `has` was added to since it was last added up anew.
    has_changes: usize,
    /// How it is shared out, unless that has to be found anew.
    shares: Option<Shares>,
}

impl Resource {
    /// A resource without leases, of a server that has been the master since `master_since`.
    pub fn new(template: Template, master_since: Timestamp, clients_max: usize) -> Self {
        Self {
            capacity: amount(template.capacity()),
            learning_until: master_since + template.algorithm().learning_duration(),
            template,
            clients_max,
            clients: BTreeMap::new(),
            expiries: BTreeSet::new(),
            has: 0.0,
            has_changes: 0,
            shares: None,
        }
    }

    /// Shares out by `template` from now on; leases stay. Learning does not begin again.
    pub fn reconfigure(&mut self, template: Template) {
        self.capacity = amount(template.capacity());
        self.template = template;
        self.shares = None;
    }

    /// Sets the capacity that a server further up the tree has granted.
    pub fn set_capacity(&mut self, capacity: f64) {
        self.capacity = amount(capacity);
        self.shares = None;
    }

    /// Gives `client` a lease, in place of the one it has.
    pub fn decide(
        &mut self,
        client: &str,
        request: &Request,
        now: Timestamp,
    ) -> Result<Lease, TooManyClients> {
        self.expire(now);
        let known = self.clients.get_key_value(client);
        if known.is_none() && self.clients.len() >= self.clients_max {
            return Err(TooManyClients { max: self.clients_max });
        }
        let held = known.map_or(0.0, |(_, client)| client.lease.capacity);
        let key = known.map_or_else(|| Arc::from(client), |(key, _)| Arc::clone(key));
        let demand = self.enter(&key, request, now);

        let granted = if now < self.learning_until {
            self.learned(request.has, now).unwrap_or_else(|| self.unlearned(&demand, held, now))
        } else {
            self.share(&demand, held)
        };
        // A grant that is already counted can be kept without raising any sum.
        let same = (granted - held).abs() <= SAME * held && held <= demand.wants();
        let capacity = if same { held } else { granted };

        let algorithm = self.template.algorithm();
        let lease = Lease {
            expiry: now + algorithm.lease_length(),
            refresh_interval: algorithm.refresh_interval(),
            capacity,
        };
        if let Some(entry) = self.clients.get_mut(&key) {
            self.expiries.remove(&(entry.lease.expiry, Arc::clone(&key)));
            entry.lease = lease;
        }
        self.expiries.insert((lease.expiry, key));
        self.count_has(capacity - held);
        Ok(lease)
    }

    /// Takes back what `client` has; returns whether it had anything. Names nobody knows are fine.
    pub fn release(&mut self, client: &str) -> bool {
        let Some((key, gone)) = self.clients.remove_entry(client) else { return false };
        self.expiries.remove(&(gone.lease.expiry, key));
        self.shares = None;
        self.count_has(-gone.lease.capacity);
        true
    }

    /// Ends the leases that have run out.
    pub fn expire(&mut self, now: Timestamp) {
        while let Some((expiry, key)) = self.expiries.first().cloned() {
            if expiry > now {
                break;
            }
            self.release(&key);
        }
    }

    /// When the next lease ends.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.expiries.first().map(|&(expiry, _)| expiry)
    }

    /// What a client may use when it cannot reach the server: -1 for anything.
    pub fn safe_capacity(&self) -> f64 {
        match self.template.safe_capacity() {
            SafeCapacity::EqualPart => self.capacity / self.clients.len().max(1) as f64,
            SafeCapacity::Fixed(capacity) => capacity,
            SafeCapacity::Unlimited => -1.0,
        }
    }

    /// What all clients want, by priority, highest first: the request to a server further up.
    pub fn bands(&self) -> Vec<Band> {
        merge(self.clients.values().flat_map(|client| client.bands.iter().copied()))
    }

    /// Whether the server still believes what clients say they have.
    pub fn is_learning(&self, now: Timestamp) -> bool {
        now < self.learning_until
    }

    /// How it is shared out.
    pub const fn template(&self) -> &Template {
        &self.template
    }

    /// How much there is.
    pub const fn capacity(&self) -> f64 {
        self.capacity
    }

    /// How many clients have a lease.
    pub fn clients(&self) -> usize {
        self.clients.len()
    }

    /// The sum of all leases.
    pub const fn has(&self) -> f64 {
        self.has
    }

    /// Notes what the client wants. Its lease stays as it is, or is an empty one.
    fn enter(&mut self, key: &Arc<str>, request: &Request, now: Timestamp) -> Demand {
        let none = Lease { expiry: now, refresh_interval: Duration::ZERO, capacity: 0.0 };
        let client = self.clients.entry(Arc::clone(key)).or_insert_with(|| {
            self.shares = None;
            Client { bands: Vec::new(), demand: Demand::default(), lease: none }
        });
        if client.bands != request.bands {
            self.shares = None;
            client.bands.clone_from(&request.bands);
            client.demand = Demand::new(&request.bands);
        }
        client.demand
    }

    /// What the client says it has, as far as that can be; nothing if it has no lease.
    fn learned(&self, has: Option<Lease>, now: Timestamp) -> Option<f64> {
        let most = match self.template.algorithm().kind() {
            Kind::NoAlgorithm => f64::INFINITY,
            Kind::Static | Kind::ProportionalShare | Kind::FairShare => self.capacity,
        };
        has.filter(|lease| lease.expiry > now).map(|lease| amount(lease.capacity).min(most))
    }

    /// What someone gets who has no lease, as long as others may have some that are not known.
    fn unlearned(&self, demand: &Demand, held: f64, now: Timestamp) -> f64 {
        let algorithm = self.template.algorithm();
        let learnt_for =
            algorithm.learning_duration().saturating_sub(self.learning_until.since(now));
        if learnt_for <= algorithm.refresh_interval() {
            return 0.0;
        }
        let safe = match self.template.safe_capacity() {
            SafeCapacity::Unlimited => f64::INFINITY,
            SafeCapacity::EqualPart | SafeCapacity::Fixed(_) => self.safe_capacity(),
        };
        let free = match algorithm.kind() {
            Kind::NoAlgorithm | Kind::Static => f64::INFINITY,
            Kind::ProportionalShare | Kind::FairShare => self.capacity - (self.has - held),
        };
        demand.wants().min(safe).min(free.max(0.0))
    }

    /// What the algorithm gives to someone who wants that and holds `held`.
    fn share(&mut self, demand: &Demand, held: f64) -> f64 {
        let kind = self.template.algorithm().kind();
        match kind {
            Kind::NoAlgorithm => return demand.wants(),
            Kind::Static => return demand.wants().min(self.capacity),
            Kind::ProportionalShare | Kind::FairShare => {}
        }
        let shares = if let Some(shares) = self.shares {
            shares
        } else {
            self.add_up_has();
            let demands = self.clients.values().map(|client| &client.demand);
            *self.shares.insert(Shares::new(kind, self.capacity, &demands))
        };
        let others = (self.has - held).max(0.0);
        shares.of(demand).min((self.capacity - others).max(0.0))
    }

    /// Adds to the sum of leases. Rounding errors add up too, so that after as many additions as
    /// there are leases it is made anew.
    fn count_has(&mut self, change: f64) {
        self.has = (self.has + change).max(0.0);
        self.has_changes += 1;
        if self.has_changes > self.clients.len() {
            self.add_up_has();
        }
    }

    fn add_up_has(&mut self) {
        self.has = self.clients.values().map(|client| client.lease.capacity).sum();
        self.has_changes = 0;
    }
}

#[cfg(test)]
mod tests;
