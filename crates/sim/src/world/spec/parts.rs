//! The parts that only some worlds have.

use core::fmt;
use core::time::Duration;
use tidegate_core::Timestamp;
use tidegate_core::batch::BatchConfig;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::connection::idle::{HealthPacerConfig, IdlePolicy};
use tidegate_core::doorman::{ConfigError, Kind};
use tidegate_core::fleet::{FleetConfig, FleetConfigError};
use tidegate_core::spillover::SpilloverConfig;
use tidegate_core::units::InvalidNumber;

/// Why a world cannot be.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum WorldError {
    /// A number makes no sense.
    Number(InvalidNumber),
    /// The quota server's configuration makes no sense.
    Fleet(FleetConfigError),
    /// A server of leases makes no sense.
    Doorman(ConfigError),
}

impl fmt::Display for WorldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(error) => error.fmt(f),
            Self::Fleet(error) => error.fmt(f),
            Self::Doorman(error) => error.fmt(f),
        }
    }
}

impl core::error::Error for WorldError {}

impl WorldError {
    /// What would be right.
    pub const fn wanted(&self) -> &'static str {
        match self {
            Self::Number(error) => error.wanted,
            Self::Fleet(_) => "numbers that a fleet can be run with",
            Self::Doorman(_) => "leases that last at least until they are refreshed",
        }
    }
}

impl From<InvalidNumber> for WorldError {
    fn from(error: InvalidNumber) -> Self {
        Self::Number(error)
    }
}

impl From<FleetConfigError> for WorldError {
    fn from(error: FleetConfigError) -> Self {
        Self::Fleet(error)
    }
}

impl From<ConfigError> for WorldError {
    fn from(error: ConfigError) -> Self {
        Self::Doorman(error)
    }
}

/// The fleet's quota server.
#[derive(Debug, Clone)]
pub struct QuotaServerSpec {
    /// How often tasks report: a second.
    pub report_every: Duration,
    /// How often the server divides anew: a tenth of a report, so that what a report changes is
    /// known to all before the next.
    pub round_every: Duration,
    /// One way between a task and the server.
    pub latency: Duration,
    /// How the fleet is run.
    pub fleet: FleetConfig,
}

impl Default for QuotaServerSpec {
    fn default() -> Self {
        Self {
            report_every: Duration::from_secs(1),
            round_every: Duration::from_millis(100),
            latency: Duration::from_millis(1),
            fleet: FleetConfig::default(),
        }
    }
}

/// How traffic is divided among datacenters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SpilloverSpec {
    /// How often it is planned anew.
    pub every: Duration,
    /// The share of a datacenter's capacity that is planned for. The rest is for what the plan
    /// cannot know: luck between two plans.
    pub fill: f64,
    /// Whether what a datacenter does beyond the plan counts as load from elsewhere.
    pub measured_use: bool,
    /// How it moves traffic.
    pub config: SpilloverConfig,
}

impl Default for SpilloverSpec {
    fn default() -> Self {
        Self {
            every: Duration::from_secs(1),
            fill: 0.9,
            measured_use: false,
            config: SpilloverConfig::default(),
        }
    }
}

/// What connections to a service cost.
#[derive(Debug, Clone)]
pub struct ConnectionSpec {
    /// CPU time of a new one at the backend: a TLS handshake takes up to a millisecond.
    pub connect_cost: Duration,
    /// When clients drop unused ones; `None` is never.
    pub idle: Option<IdlePolicy>,
    /// How clients without a connection ask whether a backend is well; `None` is not at all.
    pub health: Option<HealthSpec>,
    /// CPU time of answering that.
    pub health_cost: Duration,
    /// Which connections a backend takes; `None` is all.
    pub limits: Option<ConnectionLimits>,
    /// Whether clients connect to all their backends at the start, rather than when they first
    /// have something to send.
    pub eager: bool,
}

impl Default for ConnectionSpec {
    fn default() -> Self {
        Self {
            connect_cost: Duration::from_millis(1),
            idle: Some(IdlePolicy::default()),
            health: Some(HealthSpec::Paced(HealthPacerConfig::default())),
            health_cost: Duration::from_micros(10),
            limits: None,
            eager: false,
        }
    }
}

/// How often clients ask a backend whether it is well.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum HealthSpec {
    /// As often as it tells them. Only those without a connection ask.
    Paced(HealthPacerConfig),
    /// At this interval, everyone, with a connection or without: a contender.
    Fixed(Duration),
}

/// When requests come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Arrivals {
    /// At random.
    #[default]
    Poisson,
    /// At equal intervals.
    Even,
}

/// A batch job. Each worker makes one request after the other until all are answered.
#[derive(Debug, Clone)]
pub struct BatchSpec {
    /// When all workers start.
    pub start: Timestamp,
    /// How many requests each has to have answered.
    pub requests: u32,
    /// How long a worker waits before it tries a request again that came to nothing, unless it was
    /// told otherwise.
    pub pause: Duration,
    /// Through which proxy they go; `None` is straight to the backends.
    pub proxy: Option<BatchProxySpec>,
}

impl Default for BatchSpec {
    fn default() -> Self {
        Self { start: Timestamp::ZERO, requests: 100, pause: Duration::from_secs(1), proxy: None }
    }
}

/// The batch proxy of a group.
#[derive(Debug, Clone, Copy)]
pub struct BatchProxySpec {
    /// How many tasks it has.
    pub tasks: u32,
    /// How each of them behaves.
    pub config: BatchConfig,
}

impl Default for BatchProxySpec {
    fn default() -> Self {
        Self { tasks: 1, config: BatchConfig::default() }
    }
}

/// A server that leases capacity to clients.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DoormanSpec {
    /// Requests a second that there are to give.
    pub capacity: f64,
    /// How they are shared out.
    pub kind: Kind,
    /// How long a lease lasts, in seconds.
    pub lease_length: i64,
    /// After how long a client asks again, in seconds.
    pub refresh_interval: i64,
    /// How long a new master learns, in seconds; `None` is as long as a lease.
    pub learning: Option<i64>,
    /// What a client may use when its lease has ended, in requests a second; `None` is an equal
    /// part.
    pub safe_capacity: Option<f64>,
    /// One way between a client and the server.
    pub latency: Duration,
}

impl Default for DoormanSpec {
    fn default() -> Self {
        Self {
            capacity: 0.0,
            kind: Kind::FairShare,
            lease_length: 60,
            refresh_interval: 5,
            learning: None,
            safe_capacity: None,
            latency: Duration::from_millis(1),
        }
    }
}

/// Envoy's admission control filter at the client, with Envoy's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EnvoyThrottleSpec {
    /// How far back it looks.
    pub window: Duration,
    /// The share of successes below which it begins to refuse.
    pub success_threshold: f64,
    /// `1 / aggression` is the exponent of the probability.
    pub aggression: f64,
    /// The highest probability of a refusal.
    pub rejection_max: f64,
}

impl Default for EnvoyThrottleSpec {
    fn default() -> Self {
        Self {
            window: Duration::from_secs(30),
            success_threshold: 0.95,
            aggression: 1.0,
            rejection_max: 0.8,
        }
    }
}
