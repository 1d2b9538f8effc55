//! Setting a task up.

use super::methods::METHODS_MAX;
use super::remote::{Latency, RemoteTicker, Said};
use super::tick::Ticker;
use super::{Inner, Methods, Roll, Task};
use crate::clock::Clock;
use crate::events::Events;
use crate::executor::{Executor, Watch};
use crate::metrics::{Counting, Observed};
use crate::report::{LoadReports, Reports};
use crate::server::{PeerIdentity, Turns};
use crate::signals::linux::{self, CpuTime, MemoryUse, Reader};
use crate::signals::{Pacer, Sampler, Signal, StartError};
use crate::workplace::{Remote, Workplace};
use arc_swap::ArcSwap;
use core::num::NonZeroU64;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, Mutex, OnceLock};
use tidegate_core::admission::AdmissionGate;
use tidegate_core::admission::pace::Pace;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::cost::CostTable;
use tidegate_core::fleet::Limits;
use tidegate_core::machine::{MachineFactor, MachineTable};
use tidegate_core::quota::QuotaConfig;
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Cost, Criticality, CustomerId};
use tidegate_wire::customer::Identities;

/// What a request costs before anything is known of any: a small one. Too low lets the first burst
/// in, too high charges the first customers for what they did not use; both for some dozen
/// requests.
const COST_GUESS: Cost = Cost::from_millis(1);

/// Estimates of customers and methods, of 16 bytes each. What does not fit is estimated by method.
const ESTIMATES: usize = 16 * 1_024;

/// Why a task cannot be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A number makes no sense.
    #[error("{0}")]
    Number(#[from] InvalidNumber),
    /// The sampler cannot start.
    #[error("{0}")]
    Start(#[from] StartError),
    /// There are more customers than there is room for.
    #[error(
        "there is room for {max} customers, everyone else included: leave `{name}` out, or \
             raise customers_max of the quota's configuration"
    )]
    TooManyCustomers {
        /// The first that does not fit.
        name: String,
        /// For how many there is room.
        max: usize,
    },
}

/// How fast this machine is.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Machine {
    /// This many times as fast as the reference machine.
    Fixed(MachineFactor),
    /// By its model, as the table has it; by a calibration if it has not.
    Table(MachineTable),
    /// By a piece of work that takes some 20 ms. In builds with debug assertions it is 1.
    Calibrated,
}

impl Machine {
    fn factor(&self) -> Result<MachineFactor, InvalidNumber> {
        match self {
            Self::Fixed(factor) => Ok(*factor),
            Self::Table(table) => {
                let lookup = |model: &str| table.lookup(model).map(MachineFactor::get);
                MachineFactor::new(tidegate_meter::machine::factor(lookup))
            }
            Self::Calibrated => MachineFactor::new(tidegate_meter::machine::factor(|_| None)),
        }
    }
}

/// To whom the grounds of a refusal are told: which signal, which threshold, whose quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Explain {
    /// To nobody.
    Nobody,
    /// To peers that may speak for others: they are ours.
    #[default]
    Delegators,
    /// To everyone, for networks without strangers.
    Everyone,
}

/// What the layer needs to know of the configuration.
#[derive(Debug, Clone)]
pub(crate) struct Policy {
    pub(crate) criticality: Criticality,
    pub(crate) explain: Explain,
    pub(crate) reports: LoadReports,
    pub(crate) thresholds: [f64; Criticality::COUNT],
    #[cfg(feature = "tokio")]
    pub(crate) cancel_at_deadline: bool,
}

/// Sets a [`Task`] up. Everything has a default.
#[must_use = "a task does nothing before `start`"]
pub struct Builder {
    service: String,
    clock: Clock,
    executor: Option<Executor>,
    cpus: Option<f64>,
    cpus_reserved: Option<f64>,
    memory_reserved: Option<NonZeroU64>,
    identities: Identities,
    customers: Vec<(String, Limits)>,
    everyone_else: Limits,
    routes: Vec<(String, Criticality)>,
    shed: ShedConfig,
    attempts: AttemptsConfig,
    quota: QuotaConfig,
    cost_guess: Cost,
    dark: bool,
    tick: Duration,
    system: bool,
    signals: Vec<Box<dyn Signal>>,
    machine: Machine,
    workplace: Option<Box<dyn Workplace>>,
    policy: Policy,
}

impl core::fmt::Debug for Builder {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Builder").field("service", &self.service).finish_non_exhaustive()
    }
}

impl Builder {
    pub(super) fn new(service: String) -> Self {
        Self {
            service,
            clock: Clock::monotonic(),
            executor: None,
            cpus: None,
            cpus_reserved: None,
            memory_reserved: None,
            identities: Identities::default(),
            customers: Vec::new(),
            everyone_else: Limits::UNLIMITED,
            routes: Vec::new(),
            shed: ShedConfig::default(),
            attempts: AttemptsConfig::default(),
            quota: QuotaConfig::default(),
            cost_guess: COST_GUESS,
            dark: false,
            tick: Sampler::TICK,
            system: true,
            signals: Vec::new(),
            machine: Machine::Fixed(MachineFactor::REFERENCE),
            workplace: None,
            policy: Policy {
                criticality: Criticality::Critical,
                explain: Explain::default(),
                reports: LoadReports::default(),
                thresholds: thresholds(&ShedConfig::default()),
                #[cfg(feature = "tokio")]
                cancel_at_deadline: false,
            },
        }
    }

    /// How many CPUs the task may use, whole or not. If not said the system is asked: affinity and
    /// the limits of its control groups.
    pub const fn cpus(mut self, cpus: f64) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// How many CPUs are reserved for the task, which its use is held against; as many as it may
    /// use if not said.
    pub const fn cpus_reserved(mut self, cpus: f64) -> Self {
        self.cpus_reserved = Some(cpus);
        self
    }

    /// How much memory is reserved for the task, in bytes, which its use is held against; the limit
    /// of its control group if not said.
    pub const fn memory_reserved(mut self, bytes: NonZeroU64) -> Self {
        self.memory_reserved = Some(bytes);
        self
    }

    /// Who is who: customers by certificate, who may speak for others, who may claim how much.
    pub fn identities(mut self, identities: Identities) -> Self {
        self.identities = identities;
        self
    }

    /// The customer `name` may use so much.
    pub fn customer(mut self, name: impl Into<String>, limits: Limits) -> Self {
        self.customers.push((name.into(), limits));
        self
    }

    /// Everyone who is no customer of their own may use so much together; no limit if not said.
    pub const fn everyone_else(mut self, limits: Limits) -> Self {
        self.everyone_else = limits;
        self
    }

    /// What a request counts as that does not say, on a route without a default of its own;
    /// `CRITICAL` if not said.
    pub const fn default_criticality(mut self, criticality: Criticality) -> Self {
        self.policy.criticality = criticality;
        self
    }

    /// What a request to `method` counts as that does not say. The method is the path of a gRPC
    /// call (`/package.Service/Method`), the route of axum (`/users/{id}`, with the feature
    /// `axum`), or the HTTP method.
    pub fn route(mut self, method: impl Into<String>, criticality: Criticality) -> Self {
        self.routes.push((method.into(), criticality));
        self
    }

    /// When requests are shed, and when degraded answers are asked for. Its number of CPUs is set
    /// from [`Builder::cpus`].
    pub fn shed(mut self, shed: ShedConfig) -> Self {
        self.policy.thresholds = thresholds(&shed);
        self.shed = shed;
        self
    }

    /// When refusals say "don't retry".
    pub const fn attempts(mut self, attempts: AttemptsConfig) -> Self {
        self.attempts = attempts;
        self
    }

    /// Sizes of the customers' quotas.
    pub const fn quota(mut self, quota: QuotaConfig) -> Self {
        self.quota = quota;
        self
    }

    /// What a request costs before anything is known of any; 1 ms if not said.
    pub const fn cost_guess(mut self, cost: Cost) -> Self {
        self.cost_guess = cost;
        self
    }

    /// Decides and counts, but refuses nobody.
    pub const fn dark(mut self, dark: bool) -> Self {
        self.dark = dark;
        self
    }

    /// How often to look at the signals when it matters; 10 ms if not said. In calm it is a fifth
    /// as often: see [`tidegate_core::admission::pace`].
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Looks at `signal` as well.
    pub fn signal(mut self, signal: impl Signal + 'static) -> Self {
        self.signals.push(Box::new(signal));
        self
    }

    /// Whether to look at what the system knows of this process; so if not said.
    pub const fn system_signals(mut self, system: bool) -> Self {
        self.system = system;
        self
    }

    /// How fast this machine is; as fast as the reference machine if not said, which is right in a
    /// fleet of equals.
    pub fn machine(mut self, machine: Machine) -> Self {
        self.machine = machine;
        self
    }

    /// To whom the grounds of a refusal are told; to delegators if not said.
    pub const fn explain(mut self, explain: Explain) -> Self {
        self.policy.explain = explain;
        self
    }

    /// When answers carry load reports, and whether with what they have cost.
    pub const fn load_reports(mut self, reports: LoadReports) -> Self {
        self.policy.reports = reports;
        self
    }

    /// Whether a handler is dropped when its deadline passes while it runs. If not said it goes on:
    /// what was begun may have effects, and dropping it half-way is not always safe. Needs the
    /// runtime's timer.
    #[cfg(feature = "tokio")]
    pub const fn cancel_at_deadline(mut self, cancel: bool) -> Self {
        self.policy.cancel_at_deadline = cancel;
        self
    }

    /// The work is done by another program, of which this can be seen; for proxies, which ask by
    /// [`Task::admit`]. Signals of this process are left out.
    pub fn workplace(mut self, workplace: impl Workplace + 'static) -> Self {
        self.workplace = Some(Box::new(workplace));
        self.system = false;
        self
    }

    /// The executor that connections and requests are counted by. If not said, one for the runtime
    /// in which the task is started.
    pub fn executor(mut self, executor: Executor) -> Self {
        self.executor = Some(executor);
        self
    }

    /// The clock; the system's if not said.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// The task without the thread that looks at its signals: its gate sheds nothing until somebody
    /// sets its levels. For tests, and for controllers of one's own.
    pub fn build(self) -> Result<Task, BuildError> {
        let (task, ..) = self.assemble()?;
        Ok(task)
    }

    /// The task, at work.
    pub fn start(self) -> Result<Task, BuildError> {
        let (task, watch, parts) = self.assemble()?;
        let Parts { cpus, shed, attempts, tick, signals, workplace } = parts;
        let inner = &task.inner;
        let pacer = Arc::clone(&inner.pacer);
        let mut sampler = Sampler::new(inner.clock.clone()).tick(tick).paced(pacer);
        sampler = match &workplace {
            Some(_) => sampler.signal(Said::new(inner)).signal(Latency::new(inner)),
            None => sampler.watch(watch),
        };
        if let Some(cpus) = cpus {
            sampler = sampler.cpus(cpus);
        }
        for signal in signals {
            sampler = sampler.signal(signal);
        }
        let mut ticker = Ticker::new(inner, shed, attempts);
        ticker.remote = workplace.map(|place| RemoteTicker::new(place, cpus, inner.clock.now()));
        let weak = Arc::downgrade(inner);
        let handle = sampler.start(move |tick| {
            if let Some(task) = weak.upgrade() {
                ticker.tick(&task, &tick);
            }
        })?;
        // It was empty: nobody else has this task yet.
        let _ = inner.sampler.set(handle);
        Ok(task)
    }

    fn assemble(self) -> Result<(Task, Watch, Parts), BuildError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // Has the milliseconds that the first use takes over with.
        tidegate_meter::Meter::probe();
        let factor = self.machine.factor()?;
        if let Some(cpus) = self.cpus {
            // Refuses what is no number of CPUs.
            self.shed.clone().cpus(cpus)?;
        }
        let signals = system_signals(self.system, self.cpus_reserved, self.memory_reserved)?;
        let (executor, watch) = watched(self.executor, &self.clock);
        let gate = AdmissionGate::new(self.quota);
        gate.set_dark(self.dark);
        let now = self.clock.now();
        gate.quota().set_limits(CustomerId::DEFAULT, self.everyone_else, now);
        let max = self.quota.customers_max;
        let mut roll = Roll::new(max);
        roll.limit(CustomerId::DEFAULT, self.everyone_else);
        for (name, limits) in self.customers {
            let Some(id) = roll.enrol(&name, limits) else {
                return Err(BuildError::TooManyCustomers { name, max });
            };
            gate.quota().set_limits(id, limits, now);
        }
        let stranger = PeerIdentity::new(self.identities.peer(None), CustomerId::DEFAULT);
        let inner = Inner {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            service: self.service.into(),
            executor,
            gate,
            costs: CostTable::new(ESTIMATES, self.cost_guess),
            factor,
            methods: Methods::new(METHODS_MAX, &self.routes),
            policy: self.policy,
            counting: Counting::new(),
            events: Events::new(),
            reports: Reports::default(),
            observed: Mutex::new(Observed::default()),
            identities: self.identities,
            stranger,
            customers: ArcSwap::from_pointee(roll),
            enrolling: Mutex::new(()),
            quota_source: Mutex::new(None),
            busy: AtomicBool::new(false),
            turns: Turns::new(workers()),
            pacer: Arc::new(Pacer::new(Pace::new(self.tick))),
            remote: self.workplace.is_some().then(Remote::new),
            sampler: OnceLock::new(),
            clock: self.clock,
        };
        let signals = signals.into_iter().chain(self.signals).collect();
        let (cpus, shed, attempts, tick) = (self.cpus, self.shed, self.attempts, self.tick);
        let parts = Parts { cpus, shed, attempts, tick, signals, workplace: self.workplace };
        Ok((Task { inner: Arc::new(inner) }, watch, parts))
    }
}

fn thresholds(shed: &ShedConfig) -> [f64; Criticality::COUNT] {
    Criticality::ALL.map(|criticality| shed.threshold(criticality).get())
}

/// What the sampler needs, and the task does not.
struct Parts {
    cpus: Option<f64>,
    shed: ShedConfig,
    attempts: AttemptsConfig,
    tick: Duration,
    signals: Vec<Box<dyn Signal>>,
    workplace: Option<Box<dyn Workplace>>,
}

/// What the system knows, held against what is reserved.
fn system_signals(
    wanted: bool,
    cpus: Option<f64>,
    memory: Option<NonZeroU64>,
) -> Result<Vec<Box<dyn Signal>>, InvalidNumber> {
    let reader = Reader::default();
    let mut signals = if wanted { linux::all(&reader) } else { Vec::new() };
    let mut replace = |signal: Box<dyn Signal>| {
        signals.retain(|other| other.name() != signal.name());
        signals.push(signal);
    };
    if let Some(cpus) = cpus {
        replace(Box::new(CpuTime::new(reader.clone()).reserved(cpus)?));
    }
    if let Some(bytes) = memory {
        replace(Box::new(MemoryUse::new(reader).reserved(bytes)));
    }
    Ok(signals)
}

/// How many handlers can run at once.
fn workers() -> usize {
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        return runtime.metrics().num_workers();
    }
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// The executor and a watch over it, which knows the runtime if there is one.
fn watched(executor: Option<Executor>, clock: &Clock) -> (Executor, Watch) {
    #[cfg(feature = "tokio")]
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        let executor = executor.unwrap_or_else(|| Executor::for_runtime(clock.clone(), &runtime));
        let watch = executor.watch().runtime(&runtime);
        return (executor, watch);
    }
    let executor = executor.unwrap_or_else(|| Executor::new(clock.clone()));
    let watch = executor.watch();
    (executor, watch)
}
