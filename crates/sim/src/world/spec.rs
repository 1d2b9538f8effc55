//! What a world is made of.

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
    /// What changes, and when.
    pub changes: Vec<(Timestamp, Change)>,
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
    /// CPU time of a refusal.
    pub reject_cost: Duration,
    /// How it protects itself; `None` is not at all.
    pub admission: Option<AdmissionSpec>,
    /// CPU time of a degraded answer as a share of a full one; `None` if it has none.
    pub degraded: Option<f64>,
    /// What it asks of other services while it answers, one after the other.
    pub calls: Vec<CallSpec>,
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

/// How a task protects itself.
#[derive(Debug, Clone)]
pub struct AdmissionSpec {
    /// Tasks running or ready per core that are as many as there should be.
    pub load_target: f64,
    /// Time constant of the executor load average.
    pub load_tau: Duration,
    /// The controller's parameters.
    pub shed: ShedConfig,
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

    pub fn draw(&self, rng: &mut impl Rng) -> Duration {
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
}

/// Something that changes at some moment.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// A group asks at another rate.
    Rate {
        /// Which group.
        client: usize,
        /// Requests a second.
        rate: f64,
    },
    /// Tasks run slower or faster: an antagonist comes or goes, a cold start ends.
    Speed {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// As a multiple of what the machine can do.
        factor: f64,
    },
    /// Requests to a service cost more or less: a release.
    Cost {
        /// Which service.
        service: usize,
        /// As a multiple of what they did.
        factor: f64,
    },
    /// Tasks fail every request at once, or stop doing so.
    FailFast {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// Whether they do.
        fails: bool,
    },
    /// Tasks are gone with all they had, or come back.
    Down {
        /// Which service.
        service: usize,
        /// Which of its tasks.
        tasks: core::ops::Range<usize>,
        /// Whether they are gone.
        down: bool,
    },
}
