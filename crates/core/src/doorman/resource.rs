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
//!
//! **A server of the tree** that is told to make do with less goes on with more until its own
//! clients have asked again. So what it says it has counts, up to what it was given, until it says
//! less: nobody else gets it before.
//!
//! A resource may itself be one of a server below another: see [`above`](super::above).

use super::above::{Above, Ask, Provision};
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

/// Priorities kept apart for one client; a server that sends more gets its lowest ones merged, as
/// are those that this one asks for.
const BANDS_MAX: usize = 16;

/// Nobody is told to ask more often, however soon a lease ends.
const REFRESH_MIN: Duration = Duration::from_secs(1);

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
    /// It is a server, which cannot let go of anything at once.
    lets_go_late: bool,
}

impl Request {
    /// A client of its own that wants so much.
    pub fn client(wants: f64, priority: i64) -> Self {
        let bands = vec![Band { priority, clients: 1, wants: amount(wants) }];
        Self { has: None, bands, lets_go_late: false }
    }

    /// A server that asks for its own clients. Nobody counts as one client, or the server would
    /// have no share to grow from.
    pub fn server(bands: impl IntoIterator<Item = Band>) -> Self {
        let bands = bounded(merge(bands));
        if bands.is_empty() {
            return Self { lets_go_late: true, ..Self::client(0.0, 1) };
        }
        Self { has: None, bands, lets_go_late: true }
    }

    /// What the client says it has, if that has not ended.
    fn has(&self, now: Timestamp) -> Option<Lease> {
        self.has.filter(|lease| lease.expiry > now)
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

/// The same with the lowest priorities in one, if there are too many.
fn bounded(mut bands: Vec<Band>) -> Vec<Band> {
    let surplus = bands.split_off(bands.len().min(BANDS_MAX));
    if let Some(lowest) = bands.last_mut() {
        for band in surplus {
            lowest.clients = lowest.clients.saturating_add(band.clients);
            lowest.wants = amount(lowest.wants + band.wants);
        }
    }
    bands
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
    /// What it has not let go of, on top of its lease.
    kept: f64,
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
    /// The sum of what is kept on top of them.
    kept: f64,
    /// How often these were added to since they were last added up anew.
    has_changes: usize,
    /// All clients, with those behind each.
    subclients: u64,
    /// How it is shared out, unless that has to be found anew.
    shares: Option<Shares>,
    /// Where the capacity comes from, if it is not the server's own.
    above: Option<Above>,
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
            kept: 0.0,
            has_changes: 0,
            subclients: 0,
            shares: None,
            above: None,
        }
    }

    /// The same of a server below another one, which has been the master of its own clients since
    /// `master_since`. There is nothing to hand out before the one above was [heard](Self::hear).
    pub fn below(master_since: Timestamp, clients_max: usize) -> Self {
        let above = Some(Above::new(master_since));
        Self { above, ..Self::new(Template::unheard(), master_since, clients_max) }
    }

    /// What to ask the server above.
    pub fn ask(&mut self, now: Timestamp) -> Ask {
        self.expire(now);
        self.lapse(now);
        let last = self.expiries.last().map_or(now, |&(expiry, _)| expiry);
        let (out, bands) = (self.has + self.kept, bounded(self.bands()));
        let has = self.above.as_mut().and_then(|above| {
            above.asks(self.subclients, now);
            above.has(self.capacity, out, last, now)
        });
        Ask { has, bands }
    }

    /// When to ask the server above, if there is one.
    pub fn next_ask(&self) -> Option<Timestamp> {
        self.above.as_ref().map(Above::due)
    }

    /// Whether it is known how it is shared out: not before the server above was heard of.
    pub fn is_heard(&self) -> bool {
        self.above.as_ref().is_none_or(Above::is_heard)
    }

    /// The server above has answered.
    pub fn hear(&mut self, provision: &Provision, now: Timestamp) {
        let Some(above) = &mut self.above else { return };
        let first = !above.is_heard();
        if first {
            self.learning_until = above.since() + provision.algorithm.learning_duration();
        }
        above.hear(provision, now);
        let template = Template::provided(provision);
        if self.template != template || self.capacity != template.capacity() {
            self.capacity = template.capacity();
            self.template = template;
            self.shares = None;
        }
        if first {
            self.disbelieve();
        }
    }

    /// Before the server above was heard of clients were believed whatever they said to have.
    /// Nobody can have more than there is in all: what is above that counts against nobody else.
    fn disbelieve(&mut self) {
        let most = self.most();
        for client in self.clients.values_mut() {
            client.lease.capacity = client.lease.capacity.min(most);
            client.kept = client.kept.min(most - client.lease.capacity);
        }
        self.add_up_has();
    }

    /// What one client can have at most.
    fn most(&self) -> f64 {
        match self.template.algorithm().kind() {
            _ if !self.is_heard() => f64::INFINITY,
            Kind::NoAlgorithm => f64::INFINITY,
            Kind::Static | Kind::ProportionalShare | Kind::FairShare => self.capacity,
        }
    }

    /// What came from above is over, if it is: what is left is safe.
    fn lapse(&mut self, now: Timestamp) {
        if let Some(safe) = self.above.as_mut().and_then(|above| above.lapse(now)) {
            self.capacity = amount(safe);
            self.shares = None;
        }
    }

    /// Shares out by `template` from now on; leases stay. Learning does not begin again.
    pub fn reconfigure(&mut self, template: Template) {
        self.capacity = amount(template.capacity());
        self.template = template;
        self.shares = None;
    }

    /// There is so much from now on.
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
        self.lapse(now);
        let known = self.clients.get_key_value(client);
        if known.is_none() && self.clients.len() >= self.clients_max {
            return Err(TooManyClients { max: self.clients_max });
        }
        let (held, kept) =
            known.map_or((0.0, 0.0), |(_, client)| (client.lease.capacity, client.kept));
        let key = known.map_or_else(|| Arc::from(client), |(key, _)| Arc::clone(key));
        let demand = self.enter(&key, request, now);
        let others = (self.has + self.kept - held - kept).max(0.0);

        let (granted, until) = if self.is_learning(now) {
            self.learn(request, &demand, others, now)
        } else {
            (self.share(&demand, held + kept), self.lease_end())
        };
        // A grant that is already counted can be kept without raising any sum.
        let same = (granted - held).abs() <= SAME * held && held <= demand.wants();
        let capacity = if same { held } else { granted };

        let algorithm = self.template.algorithm();
        let expiry = (now + algorithm.lease_length()).min(until);
        let refresh_interval = algorithm.refresh_interval().min(expiry.since(now)).max(REFRESH_MIN);
        let lease = Lease { expiry, refresh_interval, capacity };
        let keeps = match request.has(now) {
            Some(has) if request.lets_go_late => {
                (amount(has.capacity).min(held + kept) - capacity).max(0.0)
            }
            _ => 0.0,
        };
        if let Some(entry) = self.clients.get_mut(&key) {
            self.expiries.remove(&(entry.lease.expiry, Arc::clone(&key)));
            (entry.lease, entry.kept) = (lease, keeps);
        }
        self.expiries.insert((lease.expiry, key));
        self.count_has(capacity - held, keeps - kept);
        if let (Some(above), Some(has)) = (&mut self.above, request.has(now)) {
            above.gathers(has, now);
        }
        Ok(lease)
    }

    /// Takes back what `client` has; returns whether it had anything. Names nobody knows are fine.
    pub fn release(&mut self, client: &str) -> bool {
        let Some((key, gone)) = self.clients.remove_entry(client) else { return false };
        self.expiries.remove(&(gone.lease.expiry, key));
        self.shares = None;
        self.subclients = self.subclients.saturating_sub(gone.demand.subclients());
        self.count_has(-gone.lease.capacity, -gone.kept);
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

    /// What a client may use when it cannot reach the server: -1 for anything. A server has so much
    /// for each of its clients.
    pub fn safe_capacity(&self) -> f64 {
        match self.template.safe_capacity() {
            SafeCapacity::EqualPart => self.capacity / self.subclients.max(1) as f64,
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
        now < self.learning_until || !self.is_heard()
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
            Client { bands: Vec::new(), demand: Demand::default(), lease: none, kept: 0.0 }
        });
        if client.bands != request.bands {
            self.shares = None;
            self.subclients = self.subclients.saturating_sub(client.demand.subclients());
            client.bands.clone_from(&request.bands);
            client.demand = Demand::new(&request.bands);
            self.subclients = self.subclients.saturating_add(client.demand.subclients());
        }
        client.demand
    }

    /// When all leases have to end that are handed out now.
    fn lease_end(&self) -> Timestamp {
        self.above.as_ref().map_or(Timestamp::MAX, Above::lease_end)
    }

    /// What someone gets while others may have leases that are not known, and until when: what it
    /// says it has, but no more than there is in all, which nobody can have. If that is more than
    /// others leave of what came from above, nothing is added to it and it ends when it would have.
    /// Before the server above was heard of nobody knows how much there is; see `disbelieve`.
    fn learn(
        &self,
        request: &Request,
        demand: &Demand,
        others: f64,
        now: Timestamp,
    ) -> (f64, Timestamp) {
        let Some(has) = request.has(now) else {
            return (self.unlearned(demand, others, now), self.lease_end());
        };
        let capacity = amount(has.capacity).min(self.most());
        if self.above.is_some() {
            let covered = self.is_heard() && others + capacity <= self.capacity;
            return (capacity, if covered { self.lease_end() } else { has.expiry });
        }
        (capacity, Timestamp::MAX)
    }

    /// What someone gets who has no lease, as long as others may have some that are not known.
    fn unlearned(&self, demand: &Demand, others: f64, now: Timestamp) -> f64 {
        let algorithm = self.template.algorithm();
        let learnt_for =
            algorithm.learning_duration().saturating_sub(self.learning_until.since(now));
        if learnt_for <= algorithm.refresh_interval() {
            return 0.0;
        }
        let safe = match self.template.safe_capacity() {
            SafeCapacity::Unlimited => f64::INFINITY,
            SafeCapacity::EqualPart | SafeCapacity::Fixed(_) => {
                self.safe_capacity() * demand.subclients() as f64
            }
        };
        let free = match algorithm.kind() {
            Kind::NoAlgorithm | Kind::Static => f64::INFINITY,
            Kind::ProportionalShare | Kind::FairShare => self.capacity - others,
        };
        demand.wants().min(safe).min(free.max(0.0))
    }

    /// What the algorithm gives to someone who wants that and for whom `held` counts.
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
        let others = (self.has + self.kept - held).max(0.0);
        shares.of(demand).min((self.capacity - others).max(0.0))
    }

    /// Adds to the sum of leases. Rounding errors add up too, so that after as many additions as
    /// there are leases it is made anew.
    fn count_has(&mut self, change: f64, kept: f64) {
        self.has = (self.has + change).max(0.0);
        self.kept = (self.kept + kept).max(0.0);
        self.has_changes += 1;
        if self.has_changes > self.clients.len() {
            self.add_up_has();
        }
    }

    fn add_up_has(&mut self) {
        self.has = self.clients.values().map(|client| client.lease.capacity).sum();
        self.kept = self.clients.values().map(|client| client.kept).sum();
        self.has_changes = 0;
    }
}

#[cfg(test)]
mod tests;
