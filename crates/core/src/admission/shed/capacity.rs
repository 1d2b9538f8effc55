//! What the task is capable of.
//!
//! While work is waiting, what gets done per second *is* the capacity. It is averaged over the
//! moments in which work was waiting, calm ones before the surge included; in the others, what gets
//! done is only what was let in, and can but raise it. Before any work was ever seen to wait, the
//! CPUs are all that is known.
//!
//! What gets done is measured in true cost, where a busy CPU does one second per second whatever
//! the luck of the draw; what is offered can only be estimated. So the capacity is translated by
//! what requests turned out to cost over what was estimated for them, over a longer time.

use super::{Facts, ShedConfig};
use crate::average::{Rate, Rates};
use crate::units::Timestamp;
use core::time::Duration;

/// Work that is counted only when it is done: to see the rate of long requests takes several…
const TIMES: f64 = 4.0;
/// …but a machine that has become slower must be noticed.
const TAU_MAX: Duration = Duration::from_secs(10);
/// What was learnt while work waited is forgotten in so much time without: a moment in which
/// everything stood still must not make a small machine of a large one for good.
const FORGET: Duration = Duration::from_secs(60);
/// Estimates that are further off than this are no estimates.
const BIAS_MAX: f64 = 64.0;

#[derive(Debug, Clone)]
pub(super) struct Capacity {
    tau: Duration,
    /// Nanoseconds per second, in true cost.
    most: Option<f64>,
    /// Work done per second.
    done: Rate,
    /// Work done per second of the busy clock.
    done_busy: Rate,
    /// Runs only while work is waiting; starts at zero.
    busy_clock: Timestamp,
    was_busy: bool,
    /// For how long no work has waited.
    calm: Duration,
    /// Estimated and true cost of what was done, and how many requests that were.
    sums: Rates<3>,
    /// As of the last look.
    means: [f64; 3],
}

impl Capacity {
    pub(super) fn new(config: &ShedConfig, now: Timestamp) -> Self {
        Self {
            tau: config.capacity_tau,
            most: config.cpus.map(|cpus| cpus * 1e9),
            done: Rate::new(config.capacity_tau, now),
            done_busy: Rate::new(config.capacity_tau, Timestamp::ZERO),
            busy_clock: Timestamp::ZERO,
            was_busy: false,
            calm: Duration::ZERO,
            sums: Rates::new(config.bias_tau, now),
            means: [0.0; 3],
        }
    }

    /// Looks at what was done. `base` is what a request takes.
    pub(super) fn observe(
        &mut self,
        facts: &Facts,
        busy: bool,
        base: f64,
        elapsed: Duration,
        now: Timestamp,
    ) {
        let costs = [facts.completed, facts.worked].map(|cost| cost.as_nanos() as f64);
        self.means = self.sums.add_since_last([costs[0], costs[1], facts.done as f64], now);
        let several = Duration::try_from_secs_f64(TIMES * base).unwrap_or(self.tau);
        let several = several.min(TAU_MAX).max(self.tau);
        let tau = if facts.used.is_some() { self.tau } else { several };
        self.done.set_tau(tau);
        self.done_busy.set_tau(tau);
        let worked = facts.used.unwrap_or(facts.worked).as_nanos() as f64;
        self.done.add_since_last(worked, now);
        // Work that waits at both ends of a tick says nothing if the CPUs idled in between.
        self.calm = if busy { Duration::ZERO } else { self.calm + elapsed };
        let idled = facts.load_least.is_some_and(|least| least < 1.0);
        if core::mem::replace(&mut self.was_busy, busy) && busy && !idled {
            self.busy_clock += elapsed;
            self.done_busy.add_since_last(worked, self.busy_clock);
        }
    }

    /// The task may use other CPUs than it could.
    pub(super) fn set_cpus(&mut self, cpus: Option<f64>) {
        self.most = cpus.map(|cpus| cpus * 1e9);
    }

    /// Per second, in estimated cost; nothing if it is not known.
    pub(super) fn get(&mut self, busy: bool, now: Timestamp) -> Option<f64> {
        let done = self.done.per_second(now);
        // A tenth of the time constant is some ticks, and as early as the rate reads right.
        let known = self.busy_clock >= Timestamp::ZERO + self.tau / 10;
        let capacity = match (known, busy) {
            (false, _) => self.most.map(|most| most.max(done)),
            (true, true) => Some(self.done_busy.per_second(self.busy_clock)),
            (true, false) => {
                let seen = self.done_busy.per_second(self.busy_clock).max(done);
                let most = self.most.unwrap_or(seen).max(seen);
                let forgotten = self.calm.as_secs_f64() / FORGET.as_secs_f64();
                Some(seen + (most - seen) * forgotten.min(1.0))
            }
        };
        capacity.map(|true_cost| true_cost / self.bias())
    }

    /// What got done per second, in estimated cost.
    pub(super) fn done(&mut self, now: Timestamp) -> f64 {
        self.done.per_second(now) / self.bias()
    }

    /// What a request costs, in seconds of true cost; nothing before the first is done.
    pub(super) fn request(&self) -> Option<f64> {
        let mean = self.means[1] / self.means[2] / 1e9;
        (mean.is_finite() && mean > 0.0).then_some(mean)
    }

    /// What was estimated for a request, in nanoseconds; nothing before the first is done.
    pub(super) fn estimate(&self) -> f64 {
        let mean = self.means[0] / self.means[2];
        if mean.is_finite() { mean } else { 0.0 }
    }

    /// CPUs, as far as they are known: those of the configuration, or those that were kept busy.
    pub(super) fn cpus(&mut self) -> f64 {
        let most = self.most.unwrap_or_else(|| self.done_busy.per_second(self.busy_clock));
        (most / 1e9).max(f64::MIN_POSITIVE)
    }

    /// True cost over estimated cost.
    fn bias(&self) -> f64 {
        let [estimated, worked, _] = self.means;
        let ratio = worked / estimated;
        if ratio.is_finite() { ratio.clamp(1.0 / BIAS_MAX, BIAS_MAX) } else { 1.0 }
    }
}
