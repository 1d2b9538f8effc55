//! What is in flight, and what should be.
//!
//! By Little's law a task that is kept busy without anything waiting has `C B` in flight: its
//! capacity times what a request takes by itself. What is beyond that waits. It may wait for
//!
//! ```text
//! D = s (q/n + r) + f (B - s)
//! ```
//!
//! with `s` the CPU time of a request, `n` the CPUs, `q` and `r` the requests that may wait at a
//! task and at each CPU, and `f` the slack; so the **queue** is `(L - C B)/(C D)`, 1 where as much
//! waits as should. What is in flight answers to admission at once, while other signals may answer
//! late: a request that waits for others before it needs the CPU shows in a load average only then.
//!
//! `B` is taken from moments in which no work waits for a CPU: the sum of `L` over that of what
//! went through, the mean of what came in and what got done: while `L` rises, the one runs ahead of
//! the law and the other behind it.
//!
//! Other signals have no such law. How much in flight goes with a unit of utilization `u` is learnt
//! from how they move together, over several times what a request takes:
//!
//! ```text
//! k = cov(L, u) / var(u)      L* = mean(L) + k (set point - mean(u))
//! ```

use super::{Facts, ShedConfig, at_least};
use crate::average::{Average, Averages, Rate};
use crate::units::Timestamp;
use core::time::Duration;

/// How what is in flight goes with utilization is learnt over this many times what a request takes,
/// as it takes that long to see what a change has done…
const SLOW: f64 = 5.0;
/// …and over this long at least, and at most.
const SLOW_RANGE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
/// What a request takes by itself is an average over this long of moments without a queue.
const BASE_TAU: Duration = Duration::from_secs(2);
/// A load average tells a queue and a fan-out apart over this long.
const SMOOTH_TAU: Duration = Duration::from_millis(100);

#[derive(Debug, Clone)]
pub(super) struct Flight {
    queue_per_task: f64,
    queue_per_cpu: f64,
    slack: f64,
    /// Runs only while nothing waits; starts at zero.
    free_clock: Timestamp,
    /// `L` over time and what went through, while nothing waited.
    free: [Rate; 2],
    /// The one over the other: seconds that a request takes where nothing waits.
    base: Option<f64>,
    smoothed: Average,
    /// Means of `L`, `u`, `L u` and `u u`.
    means: Averages<4>,
}

/// What is in flight, in estimated cost, where the capacity is known.
#[derive(Debug, Clone, Copy)]
pub(super) struct Queue {
    /// What is in flight while the task is busy and nothing waits.
    pub(super) busy: f64,
    /// What may wait.
    pub(super) unit: f64,
    /// The part of it that waits for others, not for a CPU.
    pub(super) slack: f64,
    /// What waits, as a multiple of what may.
    pub(super) instant: f64,
    /// The same, smoothed.
    pub(super) smoothed: f64,
}

impl Queue {
    /// What is in flight where `most` queues wait. Requests that wait for others may need more or
    /// less of that wait than is known, so a short queue is no shorter for them.
    pub(super) fn limit(&self, most: f64) -> f64 {
        self.busy + most * (self.unit - self.slack) + most.max(1.0) * self.slack
    }
}

impl Flight {
    pub(super) fn new(config: &ShedConfig, now: Timestamp) -> Self {
        Self {
            queue_per_task: config.queue_per_task,
            queue_per_cpu: config.queue_per_cpu,
            slack: config.slack.get(),
            free_clock: Timestamp::ZERO,
            free: core::array::from_fn(|_| Rate::new(BASE_TAU, Timestamp::ZERO)),
            base: None,
            smoothed: Average::starting_at(SMOOTH_TAU, 0.0, now),
            means: Averages::new(SLOW_RANGE.0),
        }
    }

    pub(super) fn observe(&mut self, facts: &Facts, free: bool, elapsed: Duration, now: Timestamp) {
        let (inflight, u) = (facts.inflight.as_nanos() as f64, facts.reading.instant.get());
        if free {
            self.free_clock += elapsed;
            let time = inflight * elapsed.as_secs_f64();
            let through = facts.admitted.as_nanos() as f64 + facts.completed.as_nanos() as f64;
            let both = [time, through / 2.0];
            let [time, done] = Rate::add_together(&mut self.free, both, self.free_clock);
            self.base = Some(time / done).filter(|base| base.is_finite());
        }
        let slow = (SLOW * self.base.unwrap_or(0.0)).min(SLOW_RANGE.1.as_secs_f64());
        self.means.set_tau(at_least(SLOW_RANGE.0, slow));
        self.means.record([inflight, u, inflight * u, u * u], now);
    }

    /// Reads what a tick will read, line by line.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let [time, done] = &self.free;
        let numbers = [self.means.get()[0], self.smoothed.get().unwrap_or(0.0), self.slack];
        let word = time.touch() ^ done.touch() ^ self.free_clock.as_nanos();
        numbers.into_iter().fold(word, |word, number| word ^ number.to_bits())
    }

    /// Seconds that a request takes where nothing waits, if that was ever seen.
    pub(super) const fn base(&self) -> Option<f64> {
        self.base
    }

    /// What waits, of requests of `request` seconds at `capacity`, on `cpus`.
    pub(super) fn queue(
        &mut self,
        facts: &Facts,
        capacity: f64,
        request: f64,
        cpus: f64,
        now: Timestamp,
    ) -> Queue {
        let base = self.base.unwrap_or(0.0).max(request);
        let waiting = self.queue_per_cpu + self.queue_per_task / cpus;
        let [queue, slack] = [request * waiting, self.slack * (base - request)];
        let [busy, unit, slack] = [base, queue + slack, slack].map(|time| capacity * time);
        let instant = (facts.inflight.as_nanos() as f64 - busy) / unit;
        let instant = if instant.is_nan() { 0.0 } else { instant.clamp(0.0, f64::MAX) };
        self.smoothed.record(instant, now);
        Queue { busy, unit, slack, instant, smoothed: self.smoothed.get().unwrap_or(0.0) }
    }

    /// What should be in flight for the signals to stand at `set_point`.
    pub(super) fn by_signals(&self, set_point: f64) -> Option<f64> {
        let [inflight, u, product, square] = self.means.get();
        if u <= 0.0 {
            return None;
        }
        let variance = square - u * u;
        let slope = (product - inflight * u) / variance;
        // All of it at the most; and all of it where utilization never moved.
        let all = inflight / u;
        let slope = if slope.is_finite() { slope.clamp(0.0, all) } else { all };
        Some((inflight + slope * (set_point - u)).max(0.0))
    }
}
