//! What can be set.

use crate::criticality::Criticality;
use crate::units::{InvalidNumber, Ratio, Utilization};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;

/// The parameters of a [`Shedder`](super::Shedder). All have defaults; none can be set to what
/// makes no sense.
#[derive(Debug, Clone, PartialEq)]
pub struct ShedConfig {
    pub(super) thresholds: [f64; LEVELS],
    pub(super) degrade_from: [f64; LEVELS],
    pub(super) cpus: Option<f64>,
    pub(super) queue_per_task: f64,
    pub(super) queue_per_cpu: f64,
    pub(super) slack: Ratio,
    pub(super) offered_tau: Duration,
    pub(super) offered_tau_lately: Duration,
    pub(super) capacity_tau: Duration,
    pub(super) bias_tau: Duration,
    pub(super) horizon: Duration,
    pub(super) floor: Ratio,
}

impl Default for ShedConfig {
    fn default() -> Self {
        Self {
            thresholds: [0.85, 0.90, 0.95, 1.0],
            degrade_from: [0.60, 0.65, 0.70, 0.75],
            cpus: None,
            queue_per_task: 5.0,
            queue_per_cpu: 0.25,
            slack: Ratio::percent(25),
            offered_tau: Duration::from_millis(300),
            offered_tau_lately: Duration::from_millis(50),
            capacity_tau: Duration::from_millis(500),
            bias_tau: Duration::from_secs(5),
            horizon: Duration::from_millis(20),
            floor: Ratio::percent(1),
        }
    }
}

impl ShedConfig {
    /// The utilizations, as multiples of the target, from which each criticality may be shed;
    /// lowest first. They must rise, and lie above those of [`ShedConfig::degrade_from`]. Default
    /// 0.85, 0.9, 0.95, 1.
    pub fn thresholds(mut self, thresholds: [f64; LEVELS]) -> Result<Self, InvalidNumber> {
        self.thresholds = rising(thresholds, "a shedding threshold")?;
        self.degrade_before_shed()
    }

    /// The utilizations from which requests of each criticality are asked for degraded answers;
    /// lowest first. They must rise, and not lie above those from which it is shed. Default 0.6,
    /// 0.65, 0.7, 0.75.
    pub fn degrade_from(mut self, thresholds: [f64; LEVELS]) -> Result<Self, InvalidNumber> {
        self.degrade_from = rising(thresholds, "a degrading threshold")?;
        self.degrade_before_shed()
    }

    fn degrade_before_shed(self) -> Result<Self, InvalidNumber> {
        let pairs = self.degrade_from.iter().zip(self.thresholds);
        match pairs.into_iter().find(|(degrade, shed)| **degrade > *shed) {
            Some((&degrade, _)) => {
                let wanted = "no higher than the one from which that criticality is shed";
                Err(InvalidNumber::new("a degrading threshold", wanted, degrade))
            }
            None => Ok(self),
        }
    }

    /// CPUs that the task may use, in CPUs of the reference machine; they need not be whole. It can
    /// do no more than this, which is all that is known of its capacity before it was ever busy.
    /// Without it, a surge is answered only once work has been seen to wait. Default unknown.
    pub fn cpus(mut self, cpus: f64) -> Result<Self, InvalidNumber> {
        self.cpus = Some(positive(cpus, "a number of CPUs")?);
        Ok(self)
    }

    /// Requests that may wait for a CPU, however many CPUs there are. Too few, and luck leaves CPUs
    /// idle; too many, and everyone waits for them. Default 5: with exponential
    /// work at 0.7 of its load, one CPU has as many by luck one time in nine (0.7^6).
    pub fn queue_per_task(mut self, requests: f64) -> Result<Self, InvalidNumber> {
        self.queue_per_task = positive(requests, "a number of requests")?;
        Ok(self)
    }

    /// Requests that may wait for each CPU on top of that. Default 0.25: the more CPUs there are,
    /// the shorter the queue of each may be, as a free one is found sooner.
    pub fn queue_per_cpu(mut self, requests: f64) -> Result<Self, InvalidNumber> {
        self.queue_per_cpu = positive(requests, "a number of requests")?;
        Ok(self)
    }

    /// The share of what a request waits for others in calm that it may take longer in a surge,
    /// besides the queue: that wait is never known better than this. Default 25 %.
    pub fn slack(mut self, slack: Ratio) -> Result<Self, InvalidNumber> {
        if slack == Ratio::ZERO {
            return Err(InvalidNumber::new("the slack", "more than zero", 0.0));
        }
        self.slack = slack;
        Ok(self)
    }

    /// What is offered is averaged over this long, and over a hundred requests. Too short, and the
    /// luck of a few looks like a surge; too long, and a small surge is noticed late. Default
    /// 300 ms.
    pub fn offered_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.offered_tau = some_time(tau)?;
        Ok(self)
    }

    /// And over this long, and ten requests, where the surge is plain or the queue is long. Default
    /// 50 ms.
    pub fn offered_tau_lately(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.offered_tau_lately = some_time(tau)?;
        Ok(self)
    }

    /// What gets done is averaged over this long. Too short, and the amount to admit jumps; too
    /// long, and a machine that has become slower is overloaded for that time. Default 500 ms.
    pub fn capacity_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.capacity_tau = some_time(tau)?;
        Ok(self)
    }

    /// The error of cost estimates is averaged over this long. Default 5 s.
    pub fn bias_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.bias_tau = some_time(tau)?;
        Ok(self)
    }

    /// How soon what is in flight should be what the signals ask for. Too short, and it overshoots
    /// between two ticks; too long, and signals stay off their targets. Default 20 ms, two ticks.
    pub fn horizon(mut self, horizon: Duration) -> Result<Self, InvalidNumber> {
        self.horizon = some_time(horizon)?;
        Ok(self)
    }

    /// The share of what is offered that is admitted however bad it looks, so that the task can
    /// find out that it is well again. More than nothing. Default 1 %.
    pub fn floor(mut self, floor: Ratio) -> Result<Self, InvalidNumber> {
        if floor == Ratio::ZERO {
            return Err(InvalidNumber::new("the floor of admission", "more than zero", 0.0));
        }
        self.floor = floor;
        Ok(self)
    }

    /// The threshold of `criticality`.
    pub fn threshold(&self, criticality: Criticality) -> Utilization {
        Utilization::new(self.thresholds[criticality.index()]).unwrap_or(Utilization::FULL)
    }
}

/// Nothing that is counted in CPUs or in requests is beyond a billion or below a billionth: sums
/// and products of such numbers stay numbers.
fn positive(number: f64, quantity: &'static str) -> Result<f64, InvalidNumber> {
    if (1e-9..=1e9).contains(&number) {
        Ok(number)
    } else {
        Err(InvalidNumber::new(quantity, "between a billionth and a billion", number))
    }
}

/// Controllers tick every few milliseconds; what is shorter than one is no time to average over.
fn some_time(span: Duration) -> Result<Duration, InvalidNumber> {
    if span >= Duration::from_millis(1) {
        Ok(span)
    } else {
        let wanted = "a millisecond or more";
        Err(InvalidNumber::new("a time of the controller, in seconds", wanted, span.as_secs_f64()))
    }
}

fn rising(
    thresholds: [f64; LEVELS],
    quantity: &'static str,
) -> Result<[f64; LEVELS], InvalidNumber> {
    let mut least = f64::MIN_POSITIVE;
    for threshold in thresholds {
        if !(threshold.is_finite() && threshold >= least) {
            let wanted = "more than zero, and no lower than that of the criticality below";
            return Err(InvalidNumber::new(quantity, wanted, threshold));
        }
        least = threshold;
    }
    Ok(thresholds)
}
