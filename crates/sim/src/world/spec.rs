//! What a world is made of.
//!
//! Every part has a default that is off or small: a world is written as what differs from it.

mod change;
mod parts;

pub use change::Change;
pub use parts::{
    Arrivals, BatchProxySpec, BatchSpec, ConnectionSpec, DoormanSpec, EnvoyThrottleSpec,
    HealthSpec, QuotaServerSpec, SpilloverSpec, WorldError,
};

use super::cpu::Sharing;
use crate::dice;
use core::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::balance::{LeastLoadedConfig, PrequalConfig, WeightedConfig};
use tidegate_core::fleet::Limits;
use tidegate_core::retry::BudgetConfig;
use tidegate_core::rng::Rng;
use tidegate_core::subset::SubsetPolicy;
use tidegate_core::throttle::ThrottleConfig;
use tidegate_core::{Criticality, Timestamp};

/// A world, ready to run. The same world and seed give the same outcome, to the byte.
#[derive(Debug, Clone)]
pub struct WorldSpec {
    /// Names the dice.
    pub seed: u64,
    /// How long it lasts.
    pub lasts: Duration,
    /// One-way latency between datacenters; the diagonal is the latency inside one.
    pub distance: Vec<Vec<Duration>>,
    /// How much a message's latency varies: exponential, with this share of the distance as mean.
    pub jitter: f64,
    /// The share of messages that is lost.
    pub loss: f64,
    /// Services, by index.
    pub services: Vec<ServiceSpec>,
    /// Those who ask.
    pub clients: Vec<ClientSpec>,
    /// Limits of the customers, by index; the first is everyone else. Each task of a service
    /// enforces its part of them.
    pub customers: Vec<Limits>,
    /// Who divides the customers' limits among tasks by demand; `None` divides them equally, once
    /// and for all.
    pub quota_server: Option<QuotaServerSpec>,
    /// Servers that lease capacity to clients, by index.
    pub doormen: Vec<DoormanSpec>,
    /// What changes, and when.
    pub changes: Vec<(Timestamp, Change)>,
    /// Whether to keep a log of every attempt and every look of a controller.
    pub log: bool,
}

impl Default for WorldSpec {
    /// A minute of nothing, in one datacenter of a tenth of a millisecond across.
    fn default() -> Self {
        Self {
            seed: 1,
            lasts: Duration::from_secs(60),
            distance: vec![vec![Duration::from_micros(100)]],
            jitter: 0.0,
            loss: 0.0,
            services: Vec::new(),
            clients: Vec::new(),
            customers: Vec::new(),
            quota_server: None,
            doormen: Vec::new(),
            changes: Vec::new(),
            log: false,
        }
    }
}

/// A service: tasks that answer requests.
#[derive(Debug, Clone)]
pub struct ServiceSpec {
    /// Its name.
    pub name: String,
    /// Its tasks.
    pub tasks: Vec<TaskSpec>,
    /// How a task shares its cores.
    pub sharing: Sharing,
    /// CPU time of a request on the reference machine.
    pub work: WorkSpec,
    /// How long a request waits for something else, such as a disk, before it needs the CPU.
    pub waits: Duration,
    /// CPU time of a refusal.
    pub reject_cost: Duration,
    /// How often the controllers of its tasks look.
    pub look_every: Duration,
    /// How it protects itself; `None` is not at all.
    pub admission: Option<AdmissionSpec>,
    /// CPU time of a degraded answer as a share of a full one; `None` if it has none.
    pub degraded: Option<f64>,
    /// What it asks of other services while it answers, one after the other.
    pub calls: Vec<CallSpec>,
    /// Requests a second that each customer may make of all tasks together, by index, whatever
    /// they cost; each task enforces an equal part. A contender: what limits by cost are there to
    /// do better. Customers without an entry have no such limit.
    pub qps_limits: Vec<f64>,
    /// Requests running or ready to run at which a task refuses the next, at that very moment. A
    /// contender: what smoothing is there to do better.
    pub active_limit: Option<u32>,
    /// What connections to it cost; `None` is nothing at all.
    pub connections: Option<ConnectionSpec>,
    /// Divides its clients' traffic among datacenters; without it every client sees all tasks.
    pub spillover: Option<SpilloverSpec>,
}

impl Default for ServiceSpec {
    /// One task that answers in 5 ms of CPU time, without protection.
    fn default() -> Self {
        Self {
            name: String::new(),
            tasks: vec![TaskSpec::default()],
            sharing: Sharing::Shared,
            work: WorkSpec::default(),
            waits: Duration::ZERO,
            reject_cost: Duration::ZERO,
            look_every: Duration::from_millis(10),
            admission: None,
            degraded: None,
            calls: Vec::new(),
            qps_limits: Vec::new(),
            active_limit: None,
            connections: None,
            spillover: None,
        }
    }
}

/// One task of a service.
#[derive(Debug, Clone, Copy)]
pub struct TaskSpec {
    /// Where it runs.
    pub datacenter: usize,
    /// Its cores.
    pub cores: f64,
    /// Work per second of a core; 1 is the reference machine.
    pub speed: f64,
}

impl Default for TaskSpec {
    /// One core of the reference machine.
    fn default() -> Self {
        Self { datacenter: 0, cores: 1.0, speed: 1.0 }
    }
}

/// How a task protects itself.
#[derive(Debug, Clone)]
pub struct AdmissionSpec {
    /// Tasks running or ready per core that are as many as there should be.
    pub load_target: f64,
    /// Time constant of the executor load average.
    pub load_tau: Duration,
    /// Busy cores over all cores that are as many as there should be; the signal only confirms what
    /// another says. `None` is no such signal.
    pub cpu_target: Option<f64>,
    /// Whether to decide and count only, and let everything in.
    pub dark: bool,
    /// The controller's parameters.
    pub shed: ShedConfig,
}

impl Default for AdmissionSpec {
    /// The queue is what is held as a rule, at a few jobs a core; the load average is there for
    /// what the queue does not see. A tenth of a second is some dozen requests of usual size.
    fn default() -> Self {
        Self {
            load_target: 16.0,
            load_tau: Duration::from_millis(100),
            cpu_target: None,
            dark: false,
            shed: ShedConfig::default(),
        }
    }
}

/// How the work of requests is spread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum WorkSpec {
    /// All the same.
    Constant(Duration),
    /// Exponential around the mean.
    Exponential(Duration),
    /// Log-normal with this mean and the standard deviation of its logarithm.
    LogNormal {
        /// Mean.
        mean: Duration,
        /// Standard deviation of the logarithm: 0.5 is mild, 2 is wild.
        sigma: f64,
    },
    /// Usually one, rarely the other.
    Rare {
        /// The usual work.
        usual: Duration,
        /// The rare one.
        rare: Duration,
        /// How often it comes.
        share: f64,
    },
}

impl Default for WorkSpec {
    /// 5 ms, exponential.
    fn default() -> Self {
        Self::Exponential(Duration::from_millis(5))
    }
}

impl WorkSpec {
    /// The mean, in seconds.
    pub fn mean(&self) -> f64 {
        match *self {
            Self::Constant(work) | Self::Exponential(work) => work.as_secs_f64(),
            Self::LogNormal { mean, .. } => mean.as_secs_f64(),
            Self::Rare { usual, rare, share } => {
                usual.as_secs_f64() * (1.0 - share) + rare.as_secs_f64() * share
            }
        }
    }

    pub(crate) fn draw(&self, rng: &mut impl Rng) -> Duration {
        match *self {
            Self::Constant(work) => work,
            Self::Exponential(mean) => dice::exponential(mean.as_secs_f64(), rng),
            Self::LogNormal { mean, sigma } => {
                let logarithm = sigma * dice::normal(rng) - sigma * sigma / 2.0;
                dice::seconds(mean.as_secs_f64() * dice::exp(logarithm))
            }
            Self::Rare { usual, rare, share } => {
                if rng.unit() < share {
                    rare
                } else {
                    usual
                }
            }
        }
    }
}

/// A call that a service makes while it answers.
#[derive(Debug, Clone)]
pub struct CallSpec {
    /// Whom it asks.
    pub service: usize,
    /// How.
    pub stack: StackSpec,
    /// How many requests it makes at once; it waits for all of them.
    pub fanout: u32,
}

impl Default for CallSpec {
    /// One request to the first service.
    fn default() -> Self {
        Self { service: 0, stack: StackSpec::default(), fanout: 1 }
    }
}

/// How a client asks a service.
#[derive(Debug, Clone)]
pub struct StackSpec {
    /// How it chooses a task.
    pub balance: BalanceSpec,
    /// How many tasks it connects to, and by which rule; `None` is all.
    pub subset: Option<(SubsetPolicy, u32)>,
    /// Its adaptive throttle.
    pub throttle: Option<ThrottleConfig>,
    /// Envoy's throttle in its place: a contender.
    pub envoy_throttle: Option<EnvoyThrottleSpec>,
    /// What it does with a refusal.
    pub retries: RetrySpec,
    /// How long it waits for one attempt; the request's deadline holds in any case.
    pub attempt_timeout: Option<Duration>,
}

impl Default for StackSpec {
    fn default() -> Self {
        Self {
            balance: BalanceSpec::RoundRobin,
            subset: None,
            throttle: None,
            envoy_throttle: None,
            retries: RetrySpec::Never,
            attempt_timeout: None,
        }
    }
}

/// How a task is chosen.
#[derive(Debug, Clone)]
pub enum BalanceSpec {
    /// Each in turn.
    RoundRobin,
    /// The fewest active requests.
    LeastLoaded(LeastLoadedConfig),
    /// By reported rate, errors and utilization.
    Weighted(WeightedConfig),
    /// By probes.
    Prequal(PrequalConfig),
}

/// What a client does when an attempt was refused or not answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RetrySpec {
    /// Gives up.
    Never,
    /// Tries again, up to so many attempts, whatever the answer said.
    Naive {
        /// The most attempts.
        attempts: u32,
    },
    /// Tries again as `tidegate_core::retry` allows.
    Budget(BudgetConfig),
    /// Heeds the advice, without a budget.
    Advised {
        /// The most attempts.
        attempts: u32,
    },
}

/// A group of client tasks that ask for the same reason.
#[derive(Debug, Clone)]
pub struct ClientSpec {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub datacenter: usize,
    /// How many tasks it has.
    pub tasks: u32,
    /// Whom it asks.
    pub service: usize,
    /// Requests a second of all its tasks together.
    pub rate: f64,
    /// Share of each criticality, lowest first.
    pub mix: [f64; Criticality::COUNT],
    /// Share of each customer, by index.
    pub customers: Vec<f64>,
    /// How long it waits for an answer.
    pub deadline: Duration,
    /// How it asks.
    pub stack: StackSpec,
    /// CPU time of its requests, if they differ from what the service's usually take.
    pub work: Option<WorkSpec>,
    /// When it asks.
    pub arrivals: Arrivals,
    /// How many requests a task makes at once: 1, or the size of a fan-out. `rate` counts requests.
    pub burst: u32,
    /// Its tasks are workers of a batch job; `rate` does not matter then.
    pub batch: Option<BatchSpec>,
    /// The server that leases it its rate, by index.
    pub doorman: Option<usize>,
}

impl Default for ClientSpec {
    /// One task that asks the first service nothing yet, and would wait for a second.
    fn default() -> Self {
        Self {
            name: String::new(),
            datacenter: 0,
            tasks: 1,
            service: 0,
            rate: 0.0,
            mix: [0.0, 0.0, 1.0, 0.0],
            customers: vec![1.0],
            deadline: Duration::from_secs(1),
            stack: StackSpec::default(),
            work: None,
            arrivals: Arrivals::Poisson,
            burst: 1,
            batch: None,
            doorman: None,
        }
    }
}
