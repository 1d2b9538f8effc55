//! How much of what is offered to let in.
//!
//! The task can do some amount of work per second, which nobody knows and which changes; it is
//! offered some other amount. The controller has to find what to admit so that as little waits as
//! keeps the task busy, whatever is offered, without swinging and without ever shutting the task.
//!
//! **What is in flight is held at what it should be.** The amount to admit is what gets done,
//! corrected by what should be in flight and is not:
//!
//! ```text
//! admit = C + (L* - L) / horizon
//! C  = what the task is capable of          see `capacity`
//! L  = what is in flight                    L* = what should be: see `flight`
//! ```
//!
//! `L*` comes from Little's law, and from the signals where these are above their thresholds: the
//! lower of the two holds. All that is remembered are means that forget, so nothing winds up.
//!
//! **The amount is cut by criticality.** From the top, each level takes what it is offered until
//! the amount is used up. At most one level is let in in part; all above it pass, all below it do
//! not. What is offered is known by level from the counts of the last moments (see `demand`), so a
//! surge of 10x is answered by a tenth as soon as it has been seen, not by feeling the way down.
//!
//! **What fits is not shed.** Bad luck makes queues, too. As long as the levels from the top down
//! to some level ask for less than the capacity, none of them is cut to make a queue shorter: it
//! will get shorter by itself.
//!
//! **Between two ticks there is only so much room.** A share of what comes is no limit: in ten
//! milliseconds ten times the usual may come. So every plan also says how much may be let in until
//! the next, by level: for the level that is cut, what is to be admitted; for the others, what
//! may at the very most be in flight, some multiple of what should. The share of the level that
//! is cut is set somewhat too high, so that it is the room which runs out: then just what is wanted
//! gets in, instead of what the dice make of it.
//!
//! **Thresholds rise with criticality.** A level is touched only once utilization has reached its
//! own threshold, and the set point is the threshold of the level that is being cut.
//!
//! When nothing waits although something is refused, the amount is too low, whatever it is derived
//! from; it then grows by half in the time that it takes to see what was let in, until work is
//! waiting again or nothing is refused. When the signals are wrong (stuck high, measuring something
//! that shedding does not help), the task still serves a share of [`ShedConfig::floor`].

mod capacity;
mod config;
mod demand;
mod flight;

pub use config::ShedConfig;

use crate::criticality::Criticality;
use crate::decision::SignalId;
use crate::levels::Levels;
use crate::signal::Reading;
use crate::units::{Cost, Timestamp, Utilization};
use capacity::Capacity;
use core::time::Duration;
use demand::Demand;
use flight::{Flight, Queue};

const LEVELS: usize = Criticality::COUNT;

/// The amount is never below this share of the capacity: draining at 95 % clears any backlog about
/// as fast as stopping would.
const AMOUNT_MIN: f64 = 0.05;
/// By how much the amount grows while nothing waits and something is refused, in the time that it
/// takes to see what was let in: a horizon, or what a request takes…
const GROWTH: f64 = 0.5;
/// …but no longer and no shorter than this, in seconds: a hundredfold in two seconds.
const GROWTH_TIME: (f64, f64) = (0.05, 0.2);
/// Growing beyond this is as good as opening.
const BOOST_MAX: f64 = 1e6;
/// Without a count of what is ready to run, work counts as waiting from this share of the lowest
/// threshold on.
const BUSY_FROM: f64 = 0.5;
/// And what a request takes by itself is learnt while less than this share of a queue waits.
const FREE_BELOW: f64 = 0.1;
/// At the very most so much may wait, as a multiple of what should, by criticality. Calm traffic of
/// exponential work on one CPU at 0.7 finds the lowest limit reached four times in ten thousand
/// (0.7^22), the highest once in a hundred thousand; a surge reaches them in no time.
const ROOM: [f64; LEVELS] = [4.0, 4.5, 5.0, 6.0];
/// As long as nothing is shed so much may wait in any case, in seconds: a queue that is gone in two
/// ticks is gone before anything could be done about it. Where requests are short, it is a
/// fan-out's.
const ROOM_TIME: f64 = 0.02;
/// And of levels that are known not to fit.
const ROOM_CUT: [f64; LEVELS] = [2.0, 2.0, 2.0, 2.5];
/// By how much the share of the level that is cut is set too high.
const OVER: f64 = 1.25;
/// A level that is cut is not let in whole by its share.
const SHARE_MAX: f64 = 0.999;
/// Controllers that look more seldom are taken to look as often as this: a plan is no promise for
/// longer.
const TICK_MAX: Duration = Duration::from_millis(100);
/// A level that asks for degraded answers stops asking below this share of its threshold…
const DEGRADE_RELEASE: f64 = 0.75;
/// …and not before this long, so that cheaper answers do not switch themselves off at once.
const DEGRADE_HOLD: Duration = Duration::from_secs(1);

/// What happened since the last tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// What the signals say.
    pub reading: Reading,
    /// Running or ready to run per CPU at this moment, where somebody counts.
    pub load: Option<f64>,
    /// The least of it since the last tick.
    pub load_least: Option<f64>,
    /// What requests used of the CPU, where it is metered as it is used.
    pub used: Option<Cost>,
    /// Estimated cost of what came as far as this decision, by criticality, lowest first.
    pub offered: [Cost; LEVELS],
    /// How many requests were done.
    pub done: u64,
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
    /// How much may be let in until the next tick, in estimated cost of all levels together, as far
    /// as each criticality is concerned. It rises with criticality.
    pub room: [Cost; LEVELS],
    /// Whether to ask for degraded answers, by criticality, lowest first.
    pub degrade: [bool; LEVELS],
    /// What the signals and the queue say together.
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
    /// Room for everything.
    pub const ROOM_UNLIMITED: [Cost; LEVELS] = [Cost::MAX; LEVELS];

    /// Whether anything is refused.
    pub fn sheds(&self) -> bool {
        self.levels != Levels::OPEN
    }
}

/// What a tick has worked out when it comes to shedding.
#[derive(Debug, Clone, Copy)]
struct Look {
    capacity: f64,
    queue: Option<Queue>,
    busy: bool,
    set_point: f64,
    /// Seconds until the next tick, as far as the last tells.
    tick: f64,
}

/// The controller.
#[derive(Debug, Clone)]
pub struct Shedder {
    config: ShedConfig,
    demand: Demand,
    capacity: Capacity,
    flight: Flight,
    /// The levels whose thresholds were reached and that may be cut.
    armed: [bool; LEVELS],
    /// Whether it was the signals that reached them.
    by_signals: bool,
    /// The highest utilization since the lowest level was armed.
    peak: Utilization,
    /// The lowest level that still gets in.
    cut: usize,
    /// Grows while nothing waits and something is refused.
    boost: f64,
    /// What waited when last looked at.
    waiting: f64,
    /// Until when each level asks for degraded answers.
    degrade_until: [Option<Timestamp>; LEVELS],
    last: Timestamp,
}

impl Shedder {
    /// Lets everything in until it knows better.
    pub fn new(config: ShedConfig, now: Timestamp) -> Self {
        Self {
            demand: Demand::new(&config, now),
            capacity: Capacity::new(&config, now),
            flight: Flight::new(&config, now),
            config,
            armed: [false; LEVELS],
            by_signals: false,
            peak: Utilization::ZERO,
            cut: 0,
            boost: 1.0,
            waiting: 0.0,
            degrade_until: [None; LEVELS],
            last: now,
        }
    }

    /// The parameters.
    pub fn config(&self) -> &ShedConfig {
        &self.config
    }

    /// Goes on with other parameters. Averages start anew, as what they are over has changed; what
    /// is being shed goes on being shed.
    pub fn reconfigure(&mut self, config: ShedConfig) {
        if config != self.config {
            let fresh = Self::new(config, self.last);
            let before = core::mem::replace(self, fresh);
            (self.armed, self.by_signals) = (before.armed, before.by_signals);
            (self.peak, self.cut) = (before.peak, before.cut);
            self.degrade_until = before.degrade_until;
        }
    }

    /// Looks at what happened since the last tick and says what to do until the next. Call it every
    /// few milliseconds (10 ms is a good choice) from a thread that the work itself cannot hold up:
    /// without ticks the gate stays as it is.
    pub fn tick(&mut self, facts: &Facts, now: Timestamp) -> Plan {
        let elapsed = now.since(self.last);
        self.last = self.last.max(now);
        let (busy, free) = self.waits(facts);
        let base = self.flight.base().unwrap_or(0.0);
        self.capacity.observe(facts, busy, base, elapsed, now);
        self.flight.observe(facts, free, elapsed, now);
        let (request, cpus) = (self.capacity.request(), self.capacity.cpus());
        self.demand.observe(&facts.offered, request.unwrap_or(0.0) / cpus, now);

        let known = self.capacity.get(busy, now);
        let queue = match (known, request) {
            (Some(capacity), Some(request)) if capacity > 0.0 => {
                Some(self.flight.queue(facts, capacity, request, cpus, now))
            }
            _ => None,
        };
        self.waiting = queue.map_or(0.0, |queue| queue.instant);
        let capacity = known.unwrap_or_else(|| self.capacity.done(now));
        let reading = reading(facts.reading, queue);
        self.arm(facts.reading.utilization, reading, queue, capacity);

        let set_point = self.config.thresholds[self.cut];
        let tick = elapsed.clamp(Duration::from_millis(1), TICK_MAX).as_secs_f64();
        let mut room = match queue {
            Some(queue) if !facts.dark => {
                let time = if self.armed[0] { 0.0 } else { ROOM_TIME * capacity / queue.unit };
                ROOM.map(|most| left(facts, queue, most.max(time), capacity, tick))
            }
            _ => [f64::INFINITY; LEVELS],
        };
        let shares = if self.armed[0] {
            let look = Look { capacity, queue, busy, set_point, tick };
            self.shed(facts, look, &mut room)
        } else {
            self.boost = 1.0;
            self.by_signals = false;
            self.demand.reset();
            [1.0; LEVELS]
        };
        for level in (0..LEVELS - 1).rev() {
            room[level] = room[level].min(room[level + 1]);
        }
        self.cut = shares.iter().position(|&share| share > 0.0).unwrap_or(LEVELS - 1);
        Plan {
            levels: Levels::from_shares(shares),
            room: room.map(|room| if room < 1e18 { nanos(room) } else { Cost::MAX }),
            degrade: self.degrade(reading.utilization.get(), now),
            reading,
            peak: self.peak,
            set_point: Utilization::new(set_point).unwrap_or(Utilization::FULL),
            capacity: capacity / 1e9,
            offered: self.demand.total() / 1e9,
        }
    }

    /// Whether work waits for a CPU, and whether none does.
    fn waits(&self, facts: &Facts) -> (bool, bool) {
        if let Some(load) = facts.load {
            return (load > 1.0, load <= 1.0);
        }
        let busy = facts.reading.instant.get() >= BUSY_FROM * self.config.thresholds[0];
        (busy, !busy && (self.waiting < FREE_BELOW || self.boost > 1.0 + GROWTH))
    }

    fn arm(&mut self, signals: Utilization, reading: Reading, queue: Option<Queue>, capacity: f64) {
        let was_calm = !self.armed[0];
        let thresholds = self.config.thresholds;
        // A surge that is plain need not be averaged.
        let at_once = match queue {
            Some(queue) if self.demand.plain(capacity) => queue.instant,
            _ => 0.0,
        };
        let utilization = reading.utilization.get().max(at_once);
        for (armed, threshold) in self.armed.iter_mut().zip(thresholds) {
            *armed |= utilization >= threshold;
        }
        self.by_signals |= signals.get() >= thresholds[0];
        let utilization = Utilization::new(utilization).unwrap_or(reading.utilization);
        self.peak = if was_calm { utilization } else { self.peak.max(utilization) };
    }

    /// The share of each level to let in, and less room for those that do not fit.
    fn shed(&mut self, facts: &Facts, look: Look, room: &mut [f64; LEVELS]) -> [f64; LEVELS] {
        let Look { capacity, queue, set_point, tick, .. } = look;
        let waiting = facts.reading.instant.get() / set_point;
        let waiting = if self.by_signals { self.waiting.max(waiting) } else { self.waiting };
        let (fits, asked) = self.demand.fits(capacity, waiting);
        let amount = self.amount(facts, look).max(asked);
        let amount = amount.max(self.demand.total() * self.config.floor.get());
        let mut unused = amount;
        let mut shares = [0.0; LEVELS];
        let mut touched = [true; LEVELS];
        for level in (0..LEVELS).rev() {
            let most = self.demand.most(level);
            if let (Some(queue), false) = (queue, fits[level] || facts.dark) {
                room[level] = left(facts, queue, ROOM_CUT[level], capacity, tick);
            }
            if fits[level] || !self.armed[level] || most <= unused {
                shares[level] = 1.0;
                touched[level] = !fits[level];
                unused -= most;
                continue;
            }
            if unused > 0.0 {
                let over = if facts.dark { 1.0 } else { OVER };
                shares[level] = (over * unused / most).min(SHARE_MAX);
            }
            if !facts.dark {
                room[level] = room[level].min(amount * tick);
            }
            break;
        }
        for (armed, touched) in self.armed.iter_mut().zip(touched) {
            *armed &= touched;
        }
        shares
    }

    /// How much to let in per second.
    fn amount(&mut self, facts: &Facts, look: Look) -> f64 {
        let Look { capacity, queue, busy, set_point, tick } = look;
        if facts.dark {
            return capacity;
        }
        let unseen = self.flight.base().unwrap_or(0.0).clamp(GROWTH_TIME.0, GROWTH_TIME.1);
        let growth = 1.0 + GROWTH * tick / unseen;
        self.boost = if busy { 1.0 } else { (self.boost * growth).min(BOOST_MAX) };
        let by_queue = queue.map(|queue| queue.busy + set_point * queue.unit);
        let by_signals = if self.by_signals { self.flight.by_signals(set_point) } else { None };
        let wanted = by_queue.into_iter().chain(by_signals).reduce(f64::min);
        let inflight = facts.inflight.as_nanos() as f64;
        let missing = wanted.map_or(0.0, |wanted| wanted - inflight);
        let soon = missing / self.config.horizon.as_secs_f64().max(tick);
        (capacity * self.boost + soon).max(AMOUNT_MIN * capacity)
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

/// How much more may be let in until the next tick so that `most` of a queue waits then.
fn left(facts: &Facts, queue: Queue, most: f64, capacity: f64, tick: f64) -> f64 {
    let inflight = facts.inflight.as_nanos() as f64;
    (queue.busy + most * queue.unit - inflight + capacity * tick).max(0.0)
}

/// What the signals and the queue say together: whichever is higher.
fn reading(signals: Reading, queue: Option<Queue>) -> Reading {
    match queue {
        Some(queue) if queue.smoothed > signals.utilization.get() => Reading {
            utilization: Utilization::new(queue.smoothed).unwrap_or(signals.utilization),
            instant: Utilization::new(queue.instant).unwrap_or(signals.instant),
            signal: SignalId::QUEUE,
        },
        _ => signals,
    }
}

fn nanos(cost: f64) -> Cost {
    Cost::from_nanos(cost as u64)
}
