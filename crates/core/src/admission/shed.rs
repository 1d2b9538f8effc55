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
//! admit = C x (1 + correction)          correction = (L* - L) / (C x horizon)
//! L  = what is in flight                L* = what should be: W + k x s
//! k  = cov(L, u) / var(u)               what in flight belongs to a unit of utilization u
//! W  = mean(L) - k x mean(u)            what is in flight and does not show in it
//! ```
//!
//! with `s` the set point. What is in flight answers to admission at once, while utilization may
//! answer late: a request that waits for others before it needs the CPU shows only then. Steering
//! by utilization alone swings with the length of that wait. So utilization is used only to learn,
//! over several times what requests take, how much in flight is right; and what is in flight is
//! then held there. If utilization is too high on average, `L*` lies below the mean of `L` by what
//! that is worth. All that is remembered are means that forget, so nothing winds up.
//!
//! This holds utilization where requests need the CPU at once. The longer they wait for others
//! before that, the less of what is in flight shows, and the rougher `k` is known: with waits of a
//! third of a second to a second the cores stay busy, but the queue is some times longer than it
//! should be.
//!
//! `C` is averaged over the moments in which work was waiting, calm ones before the surge included;
//! in the others, what gets done is no longer the capacity but only what was let in, and can only
//! raise it. If then something is still refused, the amount grows by half in the time that it takes
//! to see what was let in, until work is waiting again or nothing is refused.
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

use crate::average::{Average, Rate};
use crate::criticality::Criticality;
use crate::levels::Levels;
use crate::signal::Reading;
use crate::units::{Cost, InvalidNumber, Ratio, Timestamp, Utilization};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;

/// The correction may not stop the task, nor flood it: from a twentieth of the capacity to one and
/// a half times. Draining at 95 % clears any backlog about as fast as stopping would.
const GAIN: (f64, f64) = (0.05, 1.5);
/// How what is in flight goes with utilization is learnt over this many times what a request takes,
/// as it takes that long to see what a change has done…
const SLOW: f64 = 5.0;
/// …and over this long at least, and at most.
const SLOW_RANGE: (f64, f64) = (1.0, 60.0);
/// What gets done is counted when it is done: to see the rate of long requests takes several.
const CAPACITY_TIMES: f64 = 4.0;
/// …but a machine that has become slower must be noticed.
const CAPACITY_TAU_MAX: Duration = Duration::from_secs(10);
/// The base time is what requests take lately in calm, by an average over this long.
const BASE_TAU: Duration = Duration::from_secs(10);
/// By how much the amount grows while nothing waits and something is refused, in the time that it
/// takes to see what was let in: a horizon, or what a request takes…
const GROWTH: f64 = 0.5;
/// …but no longer than this, in seconds: a hundredfold in two seconds.
const GROWTH_TIME_MAX: f64 = 0.2;
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

/// The parameters of a [`Shedder`]. All have defaults; none can be set to what makes no sense.
#[derive(Debug, Clone, PartialEq)]
pub struct ShedConfig {
    thresholds: [f64; LEVELS],
    degrade_from: [f64; LEVELS],
    offered_tau: Duration,
    offered_tau_shedding: Duration,
    capacity_tau: Duration,
    bias_tau: Duration,
    horizon: Duration,
    floor: Ratio,
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

    /// What is offered is averaged over this long as long as nothing is shed. Too short, and the
    /// luck of a few requests looks like a surge; too long, and a surge is noticed late. Default
    /// 200 ms.
    pub fn offered_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.offered_tau = some_time(tau)?;
        Ok(self)
    }

    /// And over this long while something is. Then utilization corrects what luck got wrong, and
    /// what counts is to follow changes: a task that still reckons with a surge that is over
    /// refuses for nothing. Default 100 ms.
    pub fn offered_tau_shedding(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.offered_tau_shedding = some_time(tau)?;
        Ok(self)
    }

    /// What gets done is averaged over this long, and over some times what a request takes. Too
    /// short, and the amount to admit jumps; too long, and a machine that has become slower is
    /// overloaded for that time. Default 500 ms.
    pub fn capacity_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.capacity_tau = some_time(tau)?;
        Ok(self)
    }

    /// The error of cost estimates is averaged over this long. Default 5 s.
    pub fn bias_tau(mut self, tau: Duration) -> Result<Self, InvalidNumber> {
        self.bias_tau = some_time(tau)?;
        Ok(self)
    }

    /// How soon what is in flight should be what it should be. Too short, and it overshoots between
    /// two ticks; too long, and latency stays high after a surge has begun. Default 50 ms, five
    /// ticks.
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
    /// Whether refusals are only counted: then what is in flight says nothing about what would be.
    pub dark: bool,
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
    /// The highest utilization since something is shed: what caused it.
    pub peak: Utilization,
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
    capacity: Capacity,
    flight: Flight,
    /// The levels whose thresholds were reached and that may be cut.
    armed: [bool; LEVELS],
    /// The highest utilization since the lowest level was armed.
    peak: Utilization,
    /// The lowest level that still gets in.
    cut: usize,
    /// Grows while nothing waits and something is refused.
    boost: f64,
    /// Until when each level asks for degraded answers.
    degrade_until: [Option<Timestamp>; LEVELS],
    last: Timestamp,
}

impl Shedder {
    /// Lets everything in until it knows better.
    pub fn new(config: ShedConfig, now: Timestamp) -> Self {
        Self {
            offered: core::array::from_fn(|_| Rate::new(config.offered_tau, now)),
            offered_lately: core::array::from_fn(|_| Rate::new(config.offered_tau_shedding, now)),
            capacity: Capacity::new(&config, now),
            flight: Flight::new(now),
            config,
            armed: [false; LEVELS],
            peak: Utilization::ZERO,
            cut: 0,
            boost: 1.0,
            degrade_until: [None; LEVELS],
            last: now,
        }
    }

    /// The parameters.
    pub fn config(&self) -> &ShedConfig {
        &self.config
    }

    /// Looks at what happened since the last tick and says what to do until the next. Call it every
    /// few milliseconds (10 ms is a good choice) from a thread that the work itself cannot hold up:
    /// without ticks the gate stays as it is.
    pub fn tick(&mut self, facts: &Facts, now: Timestamp) -> Plan {
        let elapsed = now.since(self.last);
        self.last = self.last.max(now);
        for level in 0..LEVELS {
            let cost = facts.offered[level].as_nanos() as f64;
            self.offered[level].add_since_last(cost, now);
            self.offered_lately[level].add_since_last(cost, now);
        }
        let rates = if self.armed[0] { &mut self.offered_lately } else { &mut self.offered };
        let offered: [f64; LEVELS] = core::array::from_fn(|i| rates[i].per_second(now));
        let total: f64 = offered.iter().sum();

        let busy = facts.reading.instant.get() >= BUSY_FROM * self.config.thresholds[0];
        let capacity = self.capacity.measure(facts, busy, self.flight.base(), elapsed, now);
        self.flight.observe(facts, busy, now);

        self.arm(facts.reading.utilization);
        let set_point = self.config.thresholds[self.cut];
        let shares = if self.armed[0] {
            let amount = self.amount(facts, capacity, busy, set_point, elapsed, &offered);
            self.cut_by_criticality(amount.max(total * self.config.floor.get()), &offered)
        } else {
            self.boost = 1.0;
            [1.0; LEVELS]
        };
        self.cut = shares.iter().position(|&share| share > 0.0).unwrap_or(LEVELS - 1);
        for (armed, share) in self.armed.iter_mut().zip(shares) {
            *armed &= share < 1.0;
        }
        Plan {
            levels: Levels::from_shares(shares),
            degrade: self.degrade(facts.reading.utilization.get(), now),
            reading: facts.reading,
            peak: self.peak,
            set_point: Utilization::new(set_point).unwrap_or(Utilization::FULL),
            capacity: capacity / 1e9,
            offered: total / 1e9,
        }
    }

    fn arm(&mut self, utilization: Utilization) {
        let was_calm = !self.armed[0];
        for (armed, threshold) in self.armed.iter_mut().zip(self.config.thresholds) {
            *armed |= utilization.get() >= threshold;
        }
        self.peak = if was_calm { utilization } else { self.peak.max(utilization) };
    }

    /// How much to let in per second.
    fn amount(
        &mut self,
        facts: &Facts,
        capacity: f64,
        busy: bool,
        set_point: f64,
        elapsed: Duration,
        offered: &[f64; LEVELS],
    ) -> f64 {
        if facts.dark {
            return capacity;
        }
        let horizon = self.config.horizon.as_secs_f64();
        let unseen = self.flight.base().clamp(horizon, GROWTH_TIME_MAX.max(horizon));
        let growth = 1.0 + GROWTH * elapsed.as_secs_f64() / unseen;
        self.boost = if busy { 1.0 } else { (self.boost * growth).min(1.0 / f64::EPSILON) };
        let missing = self.flight.missing(facts, set_point);
        let correction = missing / (capacity * horizon);
        // Nothing done and nothing in flight is no reason to change anything.
        let gain = if correction.is_nan() { 1.0 } else { 1.0 + correction };
        let wanted = capacity * self.boost * gain.clamp(GAIN.0, GAIN.1);
        let room = (ROOM * facts.reading.instant.get() / set_point).clamp(ROOM, ROOM_MAX);
        wanted.max(fitting(capacity * (1.0 - room), offered))
    }

    /// Hands `amount` out from the top.
    fn cut_by_criticality(&self, amount: f64, offered: &[f64; LEVELS]) -> [f64; LEVELS] {
        let mut left = amount;
        let mut shares = [0.0; LEVELS];
        for level in (0..LEVELS).rev() {
            let share = if !self.armed[level] || offered[level] <= left {
                1.0
            } else if left > 0.0 {
                left / offered[level]
            } else {
                0.0
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

/// What the task is capable of.
#[derive(Debug, Clone)]
struct Capacity {
    tau: Duration,
    /// Work done per second.
    done: Rate,
    /// Work done per second of the busy clock.
    done_busy: Rate,
    /// Runs only while work is waiting; starts at zero.
    busy_clock: Timestamp,
    was_busy: bool,
    /// Estimated and true cost of what was done.
    bias: [Rate; 2],
}

impl Capacity {
    fn new(config: &ShedConfig, now: Timestamp) -> Self {
        Self {
            tau: config.capacity_tau,
            done: Rate::new(config.capacity_tau, now),
            done_busy: Rate::new(config.capacity_tau, Timestamp::ZERO),
            busy_clock: Timestamp::ZERO,
            was_busy: false,
            bias: core::array::from_fn(|_| Rate::new(config.bias_tau, now)),
        }
    }

    /// Per second, in estimated cost.
    fn measure(
        &mut self,
        facts: &Facts,
        busy: bool,
        base: f64,
        elapsed: Duration,
        now: Timestamp,
    ) -> f64 {
        for (rate, cost) in self.bias.iter_mut().zip([facts.completed, facts.worked]) {
            rate.add_since_last(cost.as_nanos() as f64, now);
        }
        let tau = Duration::try_from_secs_f64(CAPACITY_TIMES * base).unwrap_or(self.tau);
        let tau = tau.min(CAPACITY_TAU_MAX).max(self.tau);
        self.done.set_tau(tau);
        self.done_busy.set_tau(tau);
        let worked = facts.worked.as_nanos() as f64;
        self.done.add_since_last(worked, now);
        if core::mem::replace(&mut self.was_busy, busy) && busy {
            self.busy_clock += elapsed;
            self.done_busy.add_since_last(worked, self.busy_clock);
        }
        let done = self.done.per_second(now);
        // A tenth of the time constant is some ticks, and as early as the rate reads right.
        let known = self.busy_clock >= Timestamp::ZERO + tau / 10;
        let capacity = match (known, busy) {
            (false, _) => done,
            (true, true) => self.done_busy.per_second(self.busy_clock),
            (true, false) => self.done_busy.per_second(self.busy_clock).max(done),
        };
        capacity / self.bias(now)
    }

    /// True cost over estimated cost.
    fn bias(&mut self, now: Timestamp) -> f64 {
        let [estimated, worked] = &mut self.bias;
        let ratio = worked.per_second(now) / estimated.per_second(now);
        if ratio.is_finite() { ratio.clamp(1.0 / BIAS_MAX, BIAS_MAX) } else { 1.0 }
    }
}

/// What is in flight, and how utilization goes with it.
#[derive(Debug, Clone)]
struct Flight {
    /// Seconds that a request takes where nothing waits, as far as that was ever seen.
    base: f64,
    base_average: Average,
    completed: Rate,
    /// Means of `L`, `u`, `L u` and `u u`.
    inflight: Average,
    utilization: Average,
    product: Average,
    square: Average,
}

impl Flight {
    fn new(now: Timestamp) -> Self {
        let tau = Duration::from_secs_f64(SLOW_RANGE.0);
        Self {
            base: f64::MAX,
            base_average: Average::new(BASE_TAU),
            completed: Rate::new(tau, now),
            inflight: Average::new(tau),
            utilization: Average::new(tau),
            product: Average::new(tau),
            square: Average::new(tau),
        }
    }

    fn observe(&mut self, facts: &Facts, busy: bool, now: Timestamp) {
        let (inflight, u) = (facts.inflight.as_nanos() as f64, facts.reading.instant.get());
        self.completed.add_since_last(facts.completed.as_nanos() as f64, now);
        let taken = self.inflight.get().unwrap_or(0.0) / self.completed.per_second(now);
        if taken.is_finite() {
            if busy {
                self.base = self.base.min(taken);
            } else {
                self.base_average.record(taken, now);
                self.base = self.base_average.get().unwrap_or(taken);
            }
        }
        let slow = (SLOW * self.base()).clamp(SLOW_RANGE.0, SLOW_RANGE.1);
        let slow = Duration::from_secs_f64(slow);
        for (average, value) in [
            (&mut self.inflight, inflight),
            (&mut self.utilization, u),
            (&mut self.product, inflight * u),
            (&mut self.square, u * u),
        ] {
            average.set_tau(slow);
            average.record(value, now);
        }
    }

    /// Seconds that a request takes where nothing waits; none if that is not known.
    fn base(&self) -> f64 {
        if self.base < f64::MAX { self.base } else { 0.0 }
    }

    /// How much more should be in flight for utilization to be at `set_point`.
    fn missing(&self, facts: &Facts, set_point: f64) -> f64 {
        let mean = |average: &Average| average.get().unwrap_or(0.0);
        let (inflight, u) = (mean(&self.inflight), mean(&self.utilization));
        let now = facts.inflight.as_nanos() as f64;
        if u <= 0.0 {
            return 0.0;
        }
        let variance = mean(&self.square) - u * u;
        let slope = (mean(&self.product) - inflight * u) / variance;
        // All of it at the most; and all of it where utilization never moved.
        let all = inflight / u;
        let slope = if slope.is_finite() { slope.clamp(0.0, all) } else { all };
        inflight + slope * (set_point - u) - now
    }
}
