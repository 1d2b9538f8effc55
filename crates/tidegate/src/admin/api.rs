//! What the admin router says, as types: the JSON of `/api/snapshot`, `/api/stream`, `/api/events`
//! and `/api/explain`.
//!
//! The page and `tidegate top` read the same. Fields that are missing have their defaults and those
//! that are new are passed over, so that either side may be older than the other. Rates are per
//! second, over the last one; times are milliseconds since 1970, costs CPUs of the reference
//! machine. Lists by criticality go from the highest to the lowest.

use serde::{Deserialize, Serialize};

/// All that is shown of one part at one moment.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Snapshot {
    /// What the service is called.
    pub service: String,
    /// Which part of what is shown this is.
    pub part: String,
    /// All parts that can be asked for.
    pub parts: Vec<String>,
    /// The version of tidegate.
    pub version: String,
    /// When.
    pub at_ms: u64,
    /// Since when somebody looks. A process that was started anew has another.
    pub began_ms: u64,
    /// What it does and why, in a sentence.
    pub state: State,
    /// What comes and what becomes of it.
    pub work: Work,
    /// The same by criticality.
    pub levels: Vec<Level>,
    /// How long admitted requests took.
    pub latency: Latency,
    /// How full the task is, by each signal.
    pub signals: Vec<Signal>,
    /// From where on each criticality may be shed, as multiples of a target.
    pub thresholds: Vec<Threshold>,
    /// What was refused, and where.
    pub rejections: Vec<Rejections>,
    /// The customers who use most, and those who are out of quota.
    pub customers: Vec<Customer>,
    /// How many customers are not in the list.
    pub customers_left_out: usize,
    /// Times that customers were over their limits across the fleet: those who still are, then the
    /// latest first. Only a quota server knows; of others there is nothing.
    pub overs: Option<Vec<Over>>,
    /// What comes again.
    pub retries: Retries,
    /// What this process asks of others.
    pub clients: Vec<Client>,
    /// Whom it asks.
    pub backends: Vec<Backend>,
    /// What waits before that.
    pub queues: Vec<Queue>,
    /// Where limits come from.
    pub quota: Quota,
}

/// What a part does, and why.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct State {
    /// In a word.
    pub kind: Kind,
    /// In a sentence.
    pub sentence: String,
    /// Since when.
    pub since_ms: u64,
    /// The highest criticality that is refused at times, if any is.
    pub shed: Option<String>,
    /// Whether refusals say "don't retry".
    pub dont_retry: bool,
}

/// What a part does, in a word.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Kind {
    /// Nothing was measured yet.
    Starting,
    /// It serves all that comes.
    Healthy,
    /// It asks for degraded answers.
    Degrading,
    /// It refuses customers who are out of quota, and nobody else.
    OutOfQuota,
    /// It refuses what matters least.
    Shedding,
    /// It decides, and refuses nobody.
    Dark,
    /// It takes no new requests.
    LameDuck,
    /// It takes all that comes, and that is more than it can do.
    Overrun,
    /// The task is gone.
    Gone,
    /// It cannot be looked at.
    Failed,
    /// Nothing is known.
    #[default]
    #[serde(other)]
    Unknown,
}

/// What comes and what becomes of it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Work {
    /// Requests that came.
    pub offered: f64,
    /// Requests that were let in.
    pub admitted: f64,
    /// Answers that did not fail, within their deadlines.
    pub good: f64,
    /// Requests that were refused.
    pub rejected: f64,
    /// Answers that failed.
    pub failed: f64,
    /// Requests that it could serve, at what they cost at present.
    pub capacity: Option<f64>,
    /// Requests let in and not done, at this moment.
    pub inflight: u64,
    /// CPUs that what comes would take.
    pub offered_cpus: Option<f64>,
    /// CPUs that the task is thought capable of using.
    pub capacity_cpus: Option<f64>,
    /// CPUs that it may use.
    pub usable_cpus: Option<f64>,
    /// CPU milliseconds of a request, over the last ten seconds.
    pub cost_ms: Option<f64>,
    /// The share of the process's CPU time that no request explains.
    pub unattributed: Option<f64>,
}

/// One criticality.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Level {
    /// Its name.
    pub criticality: String,
    /// Requests let in.
    pub admitted: f64,
    /// Requests refused, for whatever reason.
    pub rejected: f64,
    /// Answers that did not fail, within their deadlines.
    pub good: f64,
    /// Whether degraded answers are asked for.
    pub degraded: bool,
}

/// How long admitted requests took, in milliseconds; nothing where none was done.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Latency {
    /// Half of them took no longer.
    pub p50_ms: Option<f64>,
    /// Nine of ten took no longer.
    pub p90_ms: Option<f64>,
    /// Ninety-nine of a hundred took no longer.
    pub p99_ms: Option<f64>,
}

/// One signal.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Signal {
    /// Its name.
    pub name: String,
    /// Where it stands, in its own unit.
    pub value: Option<f64>,
    /// What it should not exceed, in its own unit.
    pub target: f64,
    /// Where it stands, over its target.
    pub ratio: Option<f64>,
    /// Whether it may declare overload by itself.
    pub leading: bool,
    /// Whether it is the one that decides at present.
    pub decides: bool,
    /// Why it is not known.
    pub trouble: Option<String>,
}

/// From where on a criticality may be shed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Threshold {
    /// Its name.
    pub criticality: String,
    /// The multiple of a signal's target.
    pub ratio: f64,
}

/// What was refused for one reason in one place.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Rejections {
    /// Why, by its code.
    pub reason: String,
    /// Where: at the gate, in dark mode, or before a call to a service.
    pub place: String,
    /// How many a second.
    pub rate: f64,
    /// How many since the process began.
    pub total: u64,
}

/// One customer, in CPU-seconds per second.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Customer {
    /// Its name.
    pub name: String,
    /// What it used.
    pub used: f64,
    /// What it used or was refused for want of quota.
    pub wanted: f64,
    /// What a quota server has granted this task of its limit.
    pub granted: Option<f64>,
    /// What it may use here; nothing if there is no limit.
    pub limit: Option<f64>,
}

/// One time that a customer wanted more than its limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Over {
    /// Its name.
    pub customer: String,
    /// Since when.
    pub began_ms: u64,
    /// Until when; nothing while it goes on.
    pub ended_ms: Option<u64>,
    /// The most that it wanted.
    pub wanted_max: f64,
    /// All of it in a sentence.
    pub sentence: String,
}

/// What comes again.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Retries {
    /// Requests by which try they are: first, second, third or later.
    pub attempts: [f64; 3],
    /// Attempts for each first one.
    pub amplification: Option<f64>,
}

/// What this process asks of one service.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Client {
    /// The service.
    pub service: String,
    /// Requests to it.
    pub requests: f64,
    /// Retries among its attempts.
    pub retries: f64,
    /// Attempts for each request.
    pub amplification: Option<f64>,
    /// How likely a request is to be held back, by criticality.
    pub throttle: Vec<Throttle>,
    /// Retries that the budget has left.
    pub budget_left: f64,
}

/// How likely a request is to be held back.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Throttle {
    /// Of this criticality.
    pub criticality: String,
    /// From none to one.
    pub probability: f64,
}

/// One endpoint of a balancer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Backend {
    /// The service.
    pub service: String,
    /// Where it is.
    pub endpoint: String,
    /// Its share of the picks, where the policy has weights.
    pub share: Option<f64>,
    /// Attempts under way.
    pub active: u32,
    /// How full it says it is.
    pub load: Option<f64>,
    /// `serving` or `lame duck`.
    pub state: String,
}

/// Batch work that waits for its turn.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Queue {
    /// The service.
    pub service: String,
    /// Requests that wait.
    pub queued: u64,
    /// How many may.
    pub queue_max: u64,
    /// Requests handed on that have not come back.
    pub outstanding: u64,
    /// How many there may be.
    pub window: f64,
    /// Requests a second that go on.
    pub pace: f64,
    /// All of it, and why, in a sentence.
    pub sentence: String,
}

/// Where limits come from.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Quota {
    /// The server's address; nothing if there is none.
    pub server: Option<String>,
    /// Who leads, if several servers elect one.
    pub leader: Option<String>,
    /// How old the limits are, in seconds.
    pub stale_s: Option<f64>,
    /// All of it in a sentence.
    pub sentence: String,
}

/// A decision that mattered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Event {
    /// What it can be asked about by.
    pub id: String,
    /// When.
    pub at_ms: u64,
    /// Whether it is a change of what the task does, which charts mark, and not of one request.
    pub change: bool,
    /// In a word: `refused`, `overloaded_below`, `cancelled`, `shed`, `degrade`, `dont_retry`,
    /// `lame_duck`, `dark`.
    pub kind: String,
    /// What, in a line.
    pub text: String,
    /// Why, of a request that was refused.
    pub reason: Option<String>,
    /// What it counted as.
    pub criticality: Option<String>,
    /// Whom it was charged to.
    pub customer: Option<String>,
}

/// Why something was decided.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Explanation {
    /// What it was asked for by.
    pub id: String,
    /// When.
    pub at_ms: u64,
    /// What was decided, in a line.
    pub title: String,
    /// What led to it, in the order in which it was decided.
    pub facts: Vec<Fact>,
    /// What would have changed it.
    pub would_change: Vec<String>,
}

/// A fact behind a decision.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Fact {
    /// What it is about.
    pub about: String,
    /// What is so.
    pub text: String,
}

/// Lines of charts: a time and a number for each column, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Series {
    /// The name of each column.
    pub columns: Vec<String>,
    /// When, and where each column stood; columns that came later are missing at the end.
    pub rows: Vec<(u64, Vec<Option<f32>>)>,
}

/// What a stream sends once a second. The first has all that is remembered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Update {
    /// How things stand.
    pub snapshot: Snapshot,
    /// Where they stood since the last update.
    pub series: Series,
    /// What was decided since, oldest first.
    pub events: Vec<Event>,
}
