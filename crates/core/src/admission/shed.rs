//! How much of what is offered to let in.
//!
//! The task can do some amount of work per second, which nobody knows and which changes; it is
//! offered some other amount. Utilization says only whether work piles up. The controller has to
//! find the share to admit so that utilization stays at its threshold, whatever is offered, without
//! swinging and without ever shutting the task.
//!
//! **Capacity is measured, not configured.** While work is waiting, what gets done per second *is*
//! the capacity `C`. So the amount to admit is what gets done, corrected by what should be waiting
//! and is not:
//!
//! ```text
//! admit = C x (1 + correction)
//! correction = the milder of   (s/u - 1) x inflight / (C x horizon)    reach s within the horizon
//!                        and   (1 - u/s) / 2                            proportional
//! ```
//!
//! with `u` the utilization of this moment and `s` its set point. The first term is exact where
//! utilization is proportional to what is in flight (a queue in front of a CPU), for requests of
//! any size; the second takes over where most of what is in flight only waits for others. There is
//! no integrator that could wind up. `C` is averaged over the moments in which work was waiting,
//! calm ones before the surge included; in the others, what gets done is no longer the capacity
//! but only what was let in, and can only raise it. As the correction is positive then, it does, by
//! up to half per time constant, until work is waiting again or nothing is refused.
//!
//! Offered work can only be estimated, while work done is measured, and the two need not agree. So
//! what gets done is measured in true cost, where a busy CPU does one second per second whatever
//! the luck of the draw, and translated by what requests turned out to cost over what was estimated
//! for them, over a longer time.
//!
//! **What fits is not shed.** Bad luck makes queues, too. As long as the levels from the top down
//! to some level ask for less than the capacity, none of them is cut to make a queue shorter: it
//! will get shorter by itself.
//!
//! **The amount is cut by criticality.** From the top, each level takes what it is offered until
//! the amount is used up. At most one level is let in by a share; all above it pass, all below it
//! do not. What is offered is known by level from the counts of the last moments, so a surge of
//! 10x is answered by a tenth as soon as it has been seen, not by feeling the way down.
//!
//! **Thresholds rise with criticality.** A level is touched only once utilization has reached its
//! own threshold, and the set point is the threshold of the level that is being cut.
//!
//! When the signals are wrong (stuck high, measuring something that shedding does not help), the
//! task still serves a share of [`ShedConfig::floor`]. When offered load is overestimated, the
//! queue runs empty, the correction is positive, and the share rises within the horizon.

use crate::average::Rate;
use crate::criticality::Criticality;
use crate::levels::Levels;
use crate::signal::Reading;
use crate::units::{Cost, InvalidNumber, Ratio, Timestamp, Utilization, nanos};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;

/// The correction may not stop the task, nor flood it: from a twentieth of the capacity to one and
/// a half times. Draining at 95 % clears any backlog about as fast as stopping would.
const GAIN: (f64, f64) = (0.05, 1.5);
/// Half: twice the set point halves what is admitted.
const PROPORTIONAL: f64 = 0.5;
/// Work counts as waiting from this share of the lowest threshold on.
const BUSY_FROM: f64 = 0.5;
/// Estimates that are further off than this are no estimates.
const BIAS_MAX: f64 = 64.0;
/// Levels fit if they leave this share of the capacity free for every set point's worth of work
/// that waits, so that the queue goes away in good time whatever its length…
const ROOM: f64 = 0.05;
/// …but never more than this.
const ROOM_MAX: f64 = 0.3;
/// A level that asks for degraded answers stops asking below this share of its threshold…
const DEGRADE_RELEASE: f64 = 0.75;
/// …and not before this long, so that cheaper answers do not switch themselves off at once.
const DEGRADE_HOLD: Duration = Duration::from_secs(1);

/// The parameters of a [`Shedder`].
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct ShedConfig {
    thresholds: [f64; LEVELS],
    degrade_from: [f64; LEVELS],
    /// What is offered is averaged over this long as long as nothing is shed. Too short, and the
    /// luck of a few requests looks like a surge; too long, and a surge is noticed late. Default
    /// 200 ms.
    pub offered_tau: Duration,
    /// And over this long while something is. Then utilization corrects what luck got wrong, and
    /// what counts is to follow changes: a task that still reckons with a surge that is over
    /// refuses for nothing. Default 100 ms.
    pub offered_tau_shedding: Duration,
    /// What gets done is averaged over this long. Default 500 ms.
    pub capacity_tau: Duration,
    /// The error of the estimates is averaged over this long. Default 5 s.
    pub bias_tau: Duration,
    /// How soon utilization should be back at its set point. Has to be some ticks long. Default
    /// 50 ms.
    pub horizon: Duration,
    /// The share of what is offered that is admitted however bad it looks, so that the task can
    /// find out that it is well again. Default 1 %.
    pub floor: Ratio,
}

impl Default for ShedConfig {
    fn default() -> Self {
        Self {
            thresholds: [0.85, 0.90, 0.95, 1.0],
            degrade_from: [0.60, 0.65, 0.70, 0.75],
            offered_tau: Duration::from_millis(200),
            offered_tau_shedding: Duration::from_millis(100),
            capacity_tau: Duration::from_millis(500),
            bias_tau: Duration::from_secs(5),
            horizon: Duration::from_millis(50),
            floor: Ratio::percent(1),
        }
    }
}

impl ShedConfig {
    /// The utilizations, as multiples of the target, from which each criticality may be shed;
    /// lowest first. They must rise. Default 0.85, 0.9, 0.95, 1.
    pub fn thresholds(mut self, thresholds: [f64; LEVELS]) -> Result<Self, InvalidNumber> {
        self.thresholds = rising(thresholds, "a shedding threshold")?;
        Ok(self)
    }

    /// The utilizations from which requests of each criticality are asked for degraded answers;
    /// lowest first. They must rise. Default 0.6, 0.65, 0.7, 0.75: before anything is shed.
    pub fn degrade_from(mut self, thresholds: [f64; LEVELS]) -> Result<Self, InvalidNumber> {
        self.degrade_from = rising(thresholds, "a degrading threshold")?;
        Ok(self)
    }

    /// The threshold of `criticality`.
    pub fn threshold(&self, criticality: Criticality) -> Utilization {
        Utilization::new(self.thresholds[criticality.index()]).unwrap_or(Utilization::FULL)
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

/// What happened since the last tick.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// What the signals say.
    pub reading: Reading,
    /// Estimated cost of what came as far as this decision, by criticality, lowest first.
    pub offered: [Cost; LEVELS],
    /// Estimated cost of the requests that were done.
    pub completed: Cost,
    /// What they did cost; as estimated, where nobody measures.
    pub worked: Cost,
    /// Estimated cost of what is in flight now.
    pub inflight: Cost,
}

/// What is to be done until the next tick, and why.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Plan {
    /// How much of each criticality to let in.
    pub levels: Levels,
    /// Whether to ask for degraded answers, by criticality, lowest first.
    pub degrade: [bool; LEVELS],
    /// What the signals said.
    pub reading: Reading,
    /// Where utilization is held while something is shed.
    pub set_point: Utilization,
    /// Work per second that the task is thought capable of, in CPUs.
    pub capacity: f64,
    /// Work per second that it is offered, in CPUs.
    pub offered: f64,
}

impl Plan {
    /// Whether anything is refused.
    pub fn sheds(&self) -> bool {
        self.levels != Levels::OPEN
    }
}

/// The controller.
#[derive(Debug, Clone)]
pub struct Shedder {
    config: ShedConfig,
    offered: [Rate; LEVELS],
    offered_lately: [Rate; LEVELS],
    /// Work done per second.
    done: Rate,
    /// Estimated and true cost of what was done.
    bias: [Rate; 2],
    /// Work done per second of the busy clock.
    done_busy: Rate,
    /// Runs only while work is waiting; starts at zero.
    busy_clock: Timestamp,
    was_busy: bool,
    last: Timestamp,
    /// The levels whose thresholds were reached and that may be cut.
    armed: [bool; LEVELS],
    /// The lowest level that still gets in.
    cut: usize,
    /// Until when each level asks for degraded answers.
    degrade_until: [Option<Timestamp>; LEVELS],
}

impl Shedder {
    /// Lets everything in until it knows better.
    pub fn new(config: ShedConfig, now: Timestamp) -> Self {
        Self {
            offered: core::array::from_fn(|_| Rate::new(config.offered_tau, now)),
            offered_lately: core::array::from_fn(|_| Rate::new(config.offered_tau_shedding, now)),
            done: Rate::new(config.capacity_tau, now),
            bias: core::array::from_fn(|_| Rate::new(config.bias_tau, now)),
            done_busy: Rate::new(config.capacity_tau, Timestamp::ZERO),
            config,
            busy_clock: Timestamp::ZERO,
            was_busy: false,
            last: now,
            armed: [false; LEVELS],
            cut: 0,
            degrade_until: [None; LEVELS],
        }
    }

    /// The parameters.
    pub fn config(&self) -> &ShedConfig {
        &self.config
    }

    /// Looks at what happened since the last tick and says what to do until the next. Call it every
    /// few milliseconds; 10 ms is a good choice.
    pub fn tick(&mut self, facts: &Facts, now: Timestamp) -> Plan {
        for level in 0..LEVELS {
            let cost = facts.offered[level].as_nanos() as f64;
            self.offered[level].add_since_last(cost, now);
            self.offered_lately[level].add_since_last(cost, now);
        }
        self.done.add_since_last(facts.worked.as_nanos() as f64, now);
        for (rate, cost) in self.bias.iter_mut().zip([facts.completed, facts.worked]) {
            rate.add_since_last(cost.as_nanos() as f64, now);
        }
        let rates = if self.armed[0] { &mut self.offered_lately } else { &mut self.offered };
        let offered: [f64; LEVELS] = core::array::from_fn(|i| rates[i].per_second(now));
        let total: f64 = offered.iter().sum();

        let utilization = facts.reading.utilization.get();
        for (armed, threshold) in self.armed.iter_mut().zip(self.config.thresholds) {
            *armed |= utilization >= threshold;
        }
        let set_point = self.config.thresholds[self.cut];
        let capacity = self.capacity(facts, now) / self.bias(now);
        let shares = if self.armed[0] {
            let wanted = capacity * self.gain(facts, capacity, set_point);
            let floor = total * self.config.floor.get();
            let room = (ROOM * facts.reading.instant.get() / set_point).clamp(ROOM, ROOM_MAX);
            let amount = wanted.max(floor).max(fitting(capacity * (1.0 - room), &offered));
            self.cut_by_criticality(amount, &offered)
        } else {
            [1.0; LEVELS]
        };
        self.cut = shares.iter().position(|&share| share > 0.0).unwrap_or(LEVELS - 1);
        for (armed, share) in self.armed.iter_mut().zip(shares) {
            *armed &= share < 1.0;
        }
        Plan {
            levels: Levels::from_shares(shares),
            degrade: self.degrade(utilization, now),
            reading: facts.reading,
            set_point: Utilization::new(set_point).unwrap_or(Utilization::FULL),
            capacity: capacity / 1e9,
            offered: total / 1e9,
        }
    }

    /// What the task is capable of, per second.
    fn capacity(&mut self, facts: &Facts, now: Timestamp) -> f64 {
        let done = self.done.per_second(now);
        let busy = facts.reading.instant.get() >= BUSY_FROM * self.config.thresholds[0];
        let was_busy = core::mem::replace(&mut self.was_busy, busy);
        let elapsed = now.since(core::mem::replace(&mut self.last, now));
        if busy && was_busy {
            self.busy_clock += elapsed;
            self.done_busy.add_since_last(facts.worked.as_nanos() as f64, self.busy_clock);
        }
        // A tenth of the time constant is some ticks, and as early as the rate reads right.
        if self.busy_clock < Timestamp::ZERO + self.config.capacity_tau / 10 {
            return done;
        }
        let capacity = self.done_busy.per_second(self.busy_clock);
        if busy { capacity } else { capacity.max(done) }
    }

    /// True cost over estimated cost.
    fn bias(&mut self, now: Timestamp) -> f64 {
        let [estimated, worked] = &mut self.bias;
        let ratio = worked.per_second(now) / estimated.per_second(now);
        if ratio.is_finite() { ratio.clamp(1.0 / BIAS_MAX, BIAS_MAX) } else { 1.0 }
    }

    /// What to multiply the capacity by so that utilization comes to its set point.
    fn gain(&self, facts: &Facts, capacity: f64, set_point: f64) -> f64 {
        let level = facts.reading.instant.get() / set_point;
        let proportional = PROPORTIONAL * (1.0 - level);
        let horizon = capacity * nanos(self.config.horizon) as f64 / 1e9;
        let missing = facts.inflight.as_nanos() as f64 * (1.0 / level - 1.0);
        let reach = missing / horizon;
        // Both have the sign of `1 - level`; one that is no number (nothing in flight, nothing
        // done yet) has nothing to say.
        let milder = if reach.abs() < proportional.abs() { reach } else { proportional };
        (1.0 + milder).clamp(GAIN.0, GAIN.1)
    }

    /// Hands `amount` out from the top.
    fn cut_by_criticality(&self, amount: f64, offered: &[f64; LEVELS]) -> [f64; LEVELS] {
        let mut left = amount;
        let mut shares = [0.0; LEVELS];
        for level in (0..LEVELS).rev() {
            let share = if !self.armed[level] {
                1.0
            } else if offered[level] > left {
                left.max(0.0) / offered[level]
            } else {
                1.0
            };
            shares[level] = share;
            if share < 1.0 {
                break;
            }
            left -= offered[level];
        }
        shares
    }

    /// Asks for degraded answers in time, and does not stop asking at once.
    fn degrade(&mut self, utilization: f64, now: Timestamp) -> [bool; LEVELS] {
        core::array::from_fn(|level| {
            let from = self.config.degrade_from[level];
            let until = &mut self.degrade_until[level];
            if utilization >= from {
                *until = Some(now + DEGRADE_HOLD);
            } else if utilization < from * DEGRADE_RELEASE && until.is_some_and(|t| now >= t) {
                *until = None;
            }
            until.is_some()
        })
    }
}

/// What the levels from the top ask for as long as it is no more than `room` together.
fn fitting(room: f64, offered: &[f64; LEVELS]) -> f64 {
    let mut sum = 0.0;
    for rate in offered.iter().rev() {
        if sum + rate > room {
            break;
        }
        sum += rate;
    }
    sum
}
