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
//!
//! What one request costs is a mean over that longer time, too, of full and of degraded answers by
//! itself; what is done lately tells how many are of which kind. One mean of both would be wrong
//! for seconds after a task has changed over: too high, and too much may wait; too low, and what
//! fits is refused.

use super::{Done, Facts, ShedConfig, at_least};
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
    /// Estimated and true cost of what was done, and how many requests that were: with full answers
    /// first, then with degraded ones.
    sums: Rates<{ 3 * KINDS }>,
    /// As of the last look.
    means: [[f64; 3]; KINDS],
    /// Requests done lately, by kind, and the share of each.
    lately: Rates<KINDS>,
    tau_lately: Duration,
    shares: [f64; KINDS],
}

/// Full and degraded answers.
const KINDS: usize = 2;
/// Of which kind answers are is told by so many requests at the least: they change over together,
/// or by criticality, where some ten tell the mix well enough.
const REQUESTS_LATELY: f64 = 10.0;

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
            means: [[0.0; 3]; KINDS],
            lately: Rates::new(config.offered_tau_lately, now),
            tau_lately: config.offered_tau_lately,
            shares: [1.0, 0.0],
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
        self.count(facts, now);
        let tau = match facts.used {
            Some(_) => self.tau,
            None => at_least(self.tau, (TIMES * base).min(TAU_MAX.as_secs_f64())),
        };
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

    /// Counts what was done, by the kind of answer.
    fn count(&mut self, facts: &Facts, now: Timestamp) {
        let degraded = facts.degraded;
        let full = Done {
            requests: facts.done.saturating_sub(degraded.requests),
            estimated: facts.completed - degraded.estimated,
            worked: facts.worked - degraded.worked,
        };
        let done = [full, degraded];
        let mut sums = [0.0; 3 * KINDS];
        for (sums, done) in sums.chunks_exact_mut(3).zip(done) {
            let costs = [done.estimated, done.worked].map(|cost| cost.as_nanos() as f64);
            sums.copy_from_slice(&[costs[0], costs[1], done.requests as f64]);
        }
        let sums = self.sums.add_since_last(sums, now);
        for (mean, sums) in self.means.iter_mut().zip(sums.chunks_exact(3)) {
            mean.copy_from_slice(sums);
        }
        let enough = REQUESTS_LATELY / self.means.iter().map(|mean| mean[2]).sum::<f64>();
        let enough = enough.min(TAU_MAX.as_secs_f64());
        self.lately.set_tau(at_least(self.tau_lately, enough));
        let lately = self.lately.add_since_last(done.map(|done| done.requests as f64), now);
        let share = lately[1] / (lately[0] + lately[1]);
        if share.is_finite() {
            self.shares = [1.0 - share, share];
        }
    }

    /// Reads what a tick will read, line by line.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let rates = self.done.touch() ^ self.done_busy.touch() ^ self.lately.touch();
        let numbers = [self.means[0][0], self.means[1][2], self.shares[0]];
        let word = rates ^ self.sums.touch() ^ self.busy_clock.as_nanos();
        numbers.into_iter().fold(word, |word, number| word ^ number.to_bits())
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
        self.of_one(1).map(|nanos| nanos / 1e9).filter(|&mean| mean > 0.0)
    }

    /// What was estimated for a request, in nanoseconds; nothing before the first is done.
    pub(super) fn estimate(&self) -> f64 {
        self.of_one(0).unwrap_or(0.0)
    }

    /// Estimated or true cost of a request, as the kinds of answers are mixed lately.
    fn of_one(&self, cost: usize) -> Option<f64> {
        let kinds = self.shares.iter().zip(&self.means).filter(|(share, _)| **share > 0.0);
        let mean: f64 = kinds.map(|(share, mean)| share * (mean[cost] / mean[2])).sum();
        mean.is_finite().then_some(mean)
    }

    /// CPUs, as far as they are known: those of the configuration, or those that were kept busy.
    pub(super) fn cpus(&mut self) -> f64 {
        let most = self.most.unwrap_or_else(|| self.done_busy.per_second(self.busy_clock));
        (most / 1e9).max(f64::MIN_POSITIVE)
    }

    /// True cost over estimated cost.
    fn bias(&self) -> f64 {
        let sum = |of: usize| self.means.iter().map(|mean| mean[of]).sum::<f64>();
        let ratio = sum(1) / sum(0);
        if ratio.is_finite() { ratio.clamp(1.0 / BIAS_MAX, BIAS_MAX) } else { 1.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signal::Reading;
    use crate::units::Cost;

    const TICK: Duration = Duration::from_millis(10);

    /// So many full answers of 20 ms and degraded ones of 6 ms in each tick.
    fn facts(full: u64, degraded: u64) -> Facts {
        let cost = |requests, millis| Cost::from_millis(requests * millis);
        let (worked, part) = (cost(full, 20) + cost(degraded, 6), cost(degraded, 6));
        Facts {
            reading: Reading::IDLE,
            beyond_cpu: Reading::IDLE,
            load: None,
            load_least: None,
            used: None,
            offered: [Cost::ZERO; 4],
            over: [Cost::ZERO; 4],
            admitted: worked,
            done: full + degraded,
            completed: worked,
            worked,
            degraded: Done { requests: degraded, estimated: part, worked: part },
            inflight: Cost::ZERO,
            dark: false,
        }
    }

    #[test]
    fn what_a_request_costs_goes_with_the_kind_of_answer() {
        let mut capacity = Capacity::new(&ShedConfig::default(), Timestamp::ZERO);
        assert_eq!((capacity.request(), capacity.estimate()), (None, 0.0));
        let mut now = Timestamp::ZERO;
        // For so many ticks, so many answers of each kind; then a request costs so many ms.
        for (ticks, full, degraded, expected) in [
            (300, 4, 0, 20.0),
            // Ten time constants of 50 ms and no more, after seconds of the other kind.
            (50, 0, 8, 6.0),
            (300, 0, 8, 6.0),
            (50, 4, 0, 20.0),
            // Half of them each.
            (50, 4, 4, 13.0),
            // Nothing is done: as before.
            (300, 0, 0, 13.0),
        ] {
            for _ in 0..ticks {
                now += TICK;
                capacity.observe(&facts(full, degraded), false, 0.0, TICK, now);
            }
            let found = [capacity.request().unwrap_or(0.0) * 1e3, capacity.estimate() / 1e6];
            for found in found {
                assert!((found - expected).abs() < 0.1, "{full}, {degraded}: {found} ms");
            }
        }
    }
}
