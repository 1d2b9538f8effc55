//! One running process, and all that is decided in it.
//!
//! A service adds two lines: it starts a [`Task`], and puts [`Task::layer`] around what it serves.
//!
//! ```no_run
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let task = tidegate::Task::builder("shop").start()?;
//! let app = axum::Router::new()
//!     .route("/", axum::routing::get(|| async { "hello" }))
//!     .layer(task.layer());
//! let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
//! axum::serve(listener, app).await?;
//! # Ok(())
//! # }
//! ```
//!
//! The task owns the gate that requests pass and the controller that sets it, the cost model, the
//! customers, the executor that counts who wants the CPU, and a thread that looks at all this up to
//! a hundred times a second (`tick`). It is a handle: clones are the same task, and when the last
//! one goes the thread ends.
//!
//! **One to a process.** CPU time is metered for the process as a whole. Two tasks in one process
//! work, but each takes what requests of both use for its own, and so thinks itself capable of
//! more than it is.

mod builder;
mod lanes;
mod methods;
mod remote;
mod tick;

pub use builder::{BuildError, Builder, Explain, Machine};

pub(crate) use methods::{Method, Methods};

use crate::clock::Clock;
use crate::events::{Event, Events};
use crate::executor::Executor;
use crate::metrics::{Counting, Observed, Snapshot};
use crate::report::{METRIC_LATENCY, METRIC_RIF, Reports};
use crate::server::{self, PeerIdentity, Turns};
use crate::signals::{Handle, Health, Pacer};
use crate::workplace::Remote;
use arc_swap::ArcSwap;
use builder::Policy;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
#[cfg(feature = "admin")]
use tidegate_core::Timestamp;
use tidegate_core::admission::AdmissionGate;
use tidegate_core::cost::CostTable;
use tidegate_core::customer::Customers;
use tidegate_core::fleet::Limits;
use tidegate_core::machine::MachineFactor;
use tidegate_core::{Criticality, CustomerId};
use tidegate_wire::customer::Identities;
use tidegate_wire::orca::OrcaLoadReport;

/// One running process. Cheap to clone; clones are the same task.
#[derive(Debug, Clone)]
pub struct Task {
    pub(crate) inner: Arc<Inner>,
}

/// Where a task's limits come from, as whoever sets them says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QuotaSource {
    /// The quota server, if there is a stream to one.
    pub server: Option<String>,
    /// How old the limits are; nothing if they are of this very moment, or nobody's.
    pub stale: Option<Duration>,
    /// All of it in a sentence.
    pub sentence: String,
}

/// What all clones share.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Tells tasks of one process apart.
    pub(crate) id: u64,
    service: Box<str>,
    pub(crate) clock: Clock,
    pub(crate) executor: Executor,
    pub(crate) gate: Arc<AdmissionGate>,
    pub(crate) costs: Arc<CostTable>,
    pub(crate) factor: MachineFactor,
    pub(crate) methods: Methods,
    pub(crate) policy: Policy,
    pub(crate) counting: Counting,
    pub(crate) events: Events,
    pub(crate) reports: Reports,
    pub(crate) observed: Mutex<Observed>,
    identities: Identities,
    /// Whoever has proved nothing.
    pub(crate) stranger: PeerIdentity,
    customers: ArcSwap<Roll>,
    /// Held by whoever changes the customers.
    enrolling: Mutex<()>,
    quota_source: Mutex<Option<QuotaSource>>,
    /// Whether no CPU idled between the last two looks.
    busy: AtomicBool,
    pub(crate) turns: Turns,
    /// When the sampler looks again.
    pub(crate) pacer: Arc<Pacer>,
    /// Where the work is done elsewhere: what is counted of it.
    pub(crate) remote: Option<Remote>,
    sampler: OnceLock<Handle>,
}

/// The customers by name and by number.
#[derive(Debug, Clone)]
pub(crate) struct Roll {
    ids: Customers,
    names: Vec<Option<Arc<str>>>,
    /// What each may use; the first is everyone else. The gate knows too, and cannot be asked.
    limits: Vec<Limits>,
}

impl Roll {
    fn new(customers_max: usize) -> Self {
        Self { ids: Customers::new(customers_max), names: Vec::new(), limits: Vec::new() }
    }

    fn enrol(&mut self, name: &str, limits: Limits) -> Option<CustomerId> {
        let id = self.ids.register(name)?;
        if self.names.len() <= id.index() {
            self.names.resize(id.index() + 1, None);
        }
        self.names[id.index()].get_or_insert_with(|| name.into());
        self.limit(id, limits);
        Some(id)
    }

    /// Its number has no name any more: what is counted under it is everyone else's.
    fn strike(&mut self, name: &str, limits: Limits) -> Option<CustomerId> {
        let id = self.ids.remove(name)?;
        self.names[id.index()] = None;
        self.limit(id, limits);
        Some(id)
    }

    fn limit(&mut self, id: CustomerId, limits: Limits) {
        if self.limits.len() <= id.index() {
            self.limits.resize(id.index() + 1, Limits::UNLIMITED);
        }
        self.limits[id.index()] = limits;
    }
}

impl Task {
    /// A task of the service `service`, to be set up and started.
    pub fn builder(service: impl Into<String>) -> Builder {
        Builder::new(service.into())
    }

    /// What the service is called.
    pub fn service(&self) -> &str {
        &self.inner.service
    }

    /// The layer to put around what is served.
    pub fn layer(&self) -> server::Layer {
        server::Layer::new(self.clone())
    }

    /// The gate that requests pass.
    pub fn gate(&self) -> &Arc<AdmissionGate> {
        &self.inner.gate
    }

    /// Counts the tasks that want the CPU; for connections, and for work of the service's own.
    pub fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    /// The clock that deadlines are told by.
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// What a CPU-second of this machine is on the reference machine.
    pub fn machine_factor(&self) -> MachineFactor {
        self.inner.factor
    }

    /// Takes no new requests from now on, or takes them again.
    pub fn set_lame_duck(&self, lame_duck: bool) {
        self.inner.gate.set_lame_duck(lame_duck);
    }

    /// Decides and counts, but refuses nobody; or refuses again.
    pub fn set_dark(&self, dark: bool) {
        self.inner.gate.set_dark(dark);
    }

    /// Whoever is at the other end of a connection that has shown this URI in its certificate, or
    /// none. Ask once per connection, and put the answer into the extensions of its requests.
    pub fn peer(&self, uri: Option<&str>) -> PeerIdentity {
        let peer = self.inner.identities.peer(uri);
        let customer = peer.name().map_or(CustomerId::DEFAULT, |name| self.customer(name));
        PeerIdentity::new(peer, customer)
    }

    /// The number of the customer `name`, or that of everyone else.
    pub fn customer(&self, name: &str) -> CustomerId {
        self.inner.customer(name)
    }

    /// What the customer `name` may use from now on. One that is new gets a number, which is found
    /// by connections that come later. Nothing if there is no more room for customers.
    pub fn set_limits(&self, name: &str, limits: Limits) -> Option<CustomerId> {
        let id = self.inner.enrol(name, limits)?;
        self.inner.gate.quota().set_limits(id, limits, self.inner.clock.now());
        Some(id)
    }

    /// The same for many customers at once, which costs about as much as for one. Returns their
    /// numbers, in order.
    pub fn set_limits_of(&self, customers: &[(&str, Limits)]) -> Vec<Option<CustomerId>> {
        let enrolled = self.inner.change_roll(|roll| {
            let enrol = |&(name, limits): &(&str, Limits)| roll.enrol(name, limits);
            customers.iter().map(enrol).collect::<Vec<_>>()
        });
        let (quota, now) = (self.inner.gate.quota(), self.inner.clock.now());
        for (id, (_, limits)) in enrolled.iter().zip(customers) {
            if let Some(id) = id {
                quota.set_limits(*id, *limits, now);
            }
        }
        enrolled
    }

    /// The customer `name` is one of everyone else from now on. Connections that it has already
    /// keep its number, which is not given to others; they may use `limits` together.
    pub fn remove_customer(&self, name: &str, limits: Limits) -> Option<CustomerId> {
        let id = self.inner.change_roll(|roll| roll.strike(name, limits))?;
        self.inner.gate.quota().set_limits(id, limits, self.inner.clock.now());
        Some(id)
    }

    /// What everyone who is no customer of their own may use together.
    pub fn set_default_limits(&self, limits: Limits) {
        let now = self.inner.clock.now();
        self.inner.change_roll(|roll| roll.limit(CustomerId::DEFAULT, limits));
        self.inner.gate.quota().set_limits(CustomerId::DEFAULT, limits, now);
    }

    /// What the customer `name` may use; what everyone else may, if it is no customer of its own.
    pub fn limits(&self, name: &str) -> Limits {
        self.inner.limits(self.customer(name))
    }

    /// Says where the limits come from, for people to see.
    pub fn set_quota_source(&self, source: QuotaSource) {
        *self.inner.quota_source() = Some(source);
    }

    /// Where the limits come from, if anybody has said so.
    pub fn quota_source(&self) -> Option<QuotaSource> {
        self.inner.quota_source().clone()
    }

    /// From where on each criticality may be shed, lowest first, as multiples of a signal's target.
    pub fn thresholds(&self) -> [f64; Criticality::COUNT] {
        self.inner.policy.thresholds
    }

    /// What the task says about itself at this moment.
    pub fn load_report(&self) -> OrcaLoadReport {
        self.inner.reports.report()
    }

    /// The same with what a probe wants to know: how many requests are in flight at this moment
    /// ([`METRIC_RIF`]), and how long requests have taken in the last second or so
    /// ([`METRIC_LATENCY`]), once there were any.
    pub fn probe_report(&self) -> OrcaLoadReport {
        let mut report = self.load_report();
        let in_flight = self.inner.gate.counts().inflight() as f64;
        report.named_metrics.insert(METRIC_RIF.to_owned(), in_flight);
        if let Some(latency) = self.inner.observed().latency {
            report.named_metrics.insert(METRIC_LATENCY.to_owned(), latency.as_secs_f64());
        }
        report
    }

    /// How the signals are doing; nothing if the task was built and not started.
    pub fn signals(&self) -> Vec<Health> {
        self.inner.sampler.get().map(Handle::health).unwrap_or_default()
    }

    /// All that was counted, and where the task stands.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot::of(&self.inner, self.signals())
    }

    /// The last decisions that mattered, oldest first: changes of what the task does, and a sample
    /// of what it refuses.
    pub fn events(&self) -> Vec<Event> {
        self.inner.events.read(&self.inner, &self.signals(), None)
    }

    /// How the task came to do what it does: the last change of each kind, oldest first.
    pub fn standing(&self) -> Vec<Event> {
        self.inner.events.standing(&self.inner, &self.signals())
    }

    /// The decisions after `after`.
    #[cfg(feature = "admin")]
    pub(crate) fn events_after(&self, after: Option<Timestamp>) -> Vec<Event> {
        self.inner.events.read(&self.inner, &self.signals(), after)
    }
}

impl Inner {
    pub(crate) fn service(&self) -> &str {
        &self.service
    }

    pub(crate) fn customer(&self, name: &str) -> CustomerId {
        self.customers.load().ids.lookup(name)
    }

    pub(crate) fn customer_name(&self, id: CustomerId) -> Option<Arc<str>> {
        self.customers.load().names.get(id.index()).cloned().flatten()
    }

    pub(crate) fn limits(&self, id: CustomerId) -> Limits {
        self.customers.load().limits.get(id.index()).copied().unwrap_or(Limits::UNLIMITED)
    }

    /// Everyone who has limits of their own, with these.
    #[cfg(feature = "admin")]
    pub(crate) fn customers(&self) -> Vec<(Arc<str>, Limits)> {
        let roll = self.customers.load();
        let named = roll.names.iter().zip(&roll.limits);
        named.filter_map(|(name, limits)| Some((name.clone()?, *limits))).collect()
    }

    fn enrol(&self, name: &str, limits: Limits) -> Option<CustomerId> {
        self.change_roll(|roll| roll.enrol(name, limits))
    }

    fn change_roll<R>(&self, change: impl FnOnce(&mut Roll) -> R) -> R {
        let _one = self.enrolling.lock().unwrap_or_else(PoisonError::into_inner);
        let mut roll = Roll::clone(&self.customers.load());
        let changed = change(&mut roll);
        self.customers.store(Arc::new(roll));
        changed
    }

    /// Whether no CPU idles, as far as anybody knows.
    #[inline]
    pub(crate) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(crate) fn set_busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
        if !busy {
            self.turns.open();
        }
    }

    fn quota_source(&self) -> MutexGuard<'_, Option<QuotaSource>> {
        self.quota_source.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn observed(&self) -> MutexGuard<'_, Observed> {
        self.observed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How the sampler is doing: ticks, late ones, panics.
    pub(crate) fn sampled(&self) -> (u64, u64, u64) {
        self.sampler.get().map_or((0, 0, 0), |s| (s.ticks(), s.late(), s.panics()))
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
