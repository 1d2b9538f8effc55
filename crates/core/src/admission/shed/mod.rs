//! How much of what is offered to let in.
//!
//! The task can do some amount of work per second, which nobody knows and which changes; it is
//! offered some other amount. The controller has to find what to admit so that as little waits as
//! keeps the task busy, whatever is offered, without swinging and without ever shutting the task.
//!
//! **What is in flight is limited, by criticality.** One more of a level is let in while less than
//! its limit is in flight, and what is done makes room at once:
//!
//! ```text
//! limit = C B + queue t C D                 C, B, D: see `capacity` and `flight`
//! queue = what the level may find waiting   see `limits`; t = its threshold
//! ```
//!
//! The limits rise with criticality. So where a level asks for all that there is, what is in flight
//! stands at its limit, above those of lower levels, and these are out: nobody has to guess how
//! much to admit of each. What is remembered are means that forget, so nothing winds up.
//!
//! **What fits is not shed.** Bad luck makes queues, too. As long as the levels from the top down
//! to some level ask for less than the capacity (see `demand`), none of them is cut to make a queue
//! shorter: it will get shorter by itself. At the very most some multiple of what should wait may
//! wait for them as well, so that a surge is limited before it is noticed; and while a lower level
//! is cut, what fits has room of its own above it.
//!
//! **Who is over goes first.** A customer who has rested may use at once what it has saved, and
//! that may be more than there is. Where those of its criticality who keep within their quotas
//! would fit, they are let in as if the level did, and what is over is cut.
//!
//! **Signals that are above their thresholds** know no law of Little. Where they object, what comes
//! is also thinned out, the lowest levels first, so that what is in flight becomes what goes with
//! the set point within a horizon:
//!
//! ```text
//! admit = C + (L* - L) / horizon            L: what is in flight; L*: what should be, see `flight`
//! ```
//!
//! **What fits is not degraded either.** Degraded answers are asked for before anything is shed,
//! from thresholds of their own, and for a while: a queue that luck has made of calm traffic would
//! cost its callers a second of them. So the queue and the signals of the CPU begin to ask only if
//! what comes does not plainly fit, if a level is cut, or if the queue is so long that what comes
//! might be refused. Where that is wrong, they begin when shedding does.
//!
//! **Thresholds rise with criticality.** A level is touched only once utilization has reached its
//! own threshold, and the set point is the threshold of the level that is being cut.
//!
//! When nothing waits although something is refused, the limits are too low, whatever they are
//! derived from; they then grow by half in the time that it takes to see what was let in, until
//! work is waiting again, or until it is plain that nothing need be refused. When requests hang or
//! signals are wrong (stuck high, measuring something that shedding does not help), the task still
//! serves a share of [`ShedConfig::floor`].

mod capacity;
mod config;
mod demand;
mod flight;
mod limits;

pub use config::ShedConfig;

use crate::criticality::Criticality;
use crate::decision::SignalId;
use crate::levels::Levels;
use crate::signal::Reading;
use crate::units::{Cost, Timestamp, Utilization};
use capacity::Capacity;
use core::time::Duration;
use demand::{Demand, LONG};
use flight::{Flight, Queue};
use limits::{ROOM, Unit};

const LEVELS: usize = Criticality::COUNT;

/// The amount is never below this share of the capacity: draining at 95 % clears any backlog about
/// as fast as stopping would.
const AMOUNT_MIN: f64 = 0.05;
/// By how much the amount grows while nothing waits and something is refused, in the time that it
/// takes to see what was let in: a horizon, or what a request takes…
const GROWTH: f64 = 0.5;
/// …but no shorter and no longer than this, in seconds: a few ticks, and what callers wait for.
const GROWTH_TIME: (f64, f64) = (0.05, 1.0);
/// Nothing is shed any more once what may be in flight has grown to this multiple and still nothing
/// waits…
const BOOST_OPEN: f64 = 4.0;
/// …unless the signals object; then growing beyond this is as good as opening.
const BOOST_MAX: f64 = 1e6;
/// Without a count of what is ready to run, work counts as waiting from this share of the lowest
/// threshold on.
const BUSY_FROM: f64 = 0.5;
/// And what a request takes by itself is learnt while less than this share of a queue waits.
const FREE_BELOW: f64 = 0.1;
/// As long as no level is cut so much may wait in any case, in seconds: a queue that is gone in two
/// ticks is gone before anything could be done about it. Where requests are short, it is a
/// fan-out's.
const ROOM_TIME: f64 = 0.02;
/// While nothing is cut, customers who are over their quotas may find as much as the level below:
/// between two levels, so that neither order is upset.
const ROOM_OVER: [f64; LEVELS] = [3.5, ROOM[0], ROOM[1], ROOM[2]];
/// So many requests may be in flight however little the task is capable of. Where less than one
/// may, each level gets in whenever nothing is in flight, and who comes most often comes first. So
/// one of a lower level is no reason to refuse one of the two highest, and three are none to refuse
/// what matters most.
const ROOM_MIN: [f64; LEVELS] = [0.0, 1.0, 2.0, 4.0];
/// Levels are shut while work waits and those above ask for so much of the capacity: they would not
/// get in, and to be refused by their share is cheapest. The capacity may be misjudged by as much
/// where rare requests cost a thousand times the usual.
const HOPELESS: f64 = 2.0;
/// A level that is cut is not let in whole by its share.
const SHARE_MAX: f64 = 0.999;
/// Controllers that look more seldom are taken to look as often as this: a plan is no promise for
/// longer.
const TICK_MAX: Duration = Duration::from_millis(100);
/// A level that asks for degraded answers stops asking below this share of its threshold…
const DEGRADE_RELEASE: f64 = 0.75;
/// …and not before this long, so that cheaper answers do not switch themselves off at once.
const DEGRADE_HOLD: Duration = Duration::from_secs(1);
/// For so long after it what comes is known by what degraded answers cost, and says little of luck:
/// a task that is offered more than it can do in full asks again within a fraction of it.
const DEGRADE_MEMORY: Duration = Duration::from_millis(500);

/// Requests that were done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Done {
    /// How many.
    pub requests: u64,
    /// What was estimated for them.
    pub estimated: Cost,
    /// What they did cost.
    pub worked: Cost,
}

/// What happened since the last tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Facts {
    /// What the signals say.
    pub reading: Reading,
    /// What those say that are not of the CPU.
    pub beyond_cpu: Reading,
    /// Running or ready to run per CPU at this moment, where somebody counts.
    pub load: Option<f64>,
    /// The least of it since the last tick.
    pub load_least: Option<f64>,
    /// What requests used of the CPU, where it is metered as it is used.
    pub used: Option<Cost>,
    /// Estimated cost of what came as far as this decision, by criticality, lowest first.
    pub offered: [Cost; LEVELS],
    /// The part of it that is of customers who have used more than their quota lately.
    pub over: [Cost; LEVELS],
    /// Estimated cost of what was let in.
    pub admitted: Cost,
    /// How many requests were done.
    pub done: u64,
    /// Estimated cost of the requests that were done.
    pub completed: Cost,
    /// What they did cost; as estimated, where nobody measures.
    pub worked: Cost,
    /// The part of those three that is of degraded answers.
    pub degraded: Done,
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
    /// How much of all levels together may be in flight, in estimated cost, for one more of each
    /// criticality to be let in. It rises with criticality.
    pub limit: [Cost; LEVELS],
    /// The same for customers who have used more than their quota lately: no higher.
    pub limit_over: [Cost; LEVELS],
    /// How much is.
    pub inflight: Cost,
    /// The highest criticality that is refused at times, if any.
    pub cut: Option<Criticality>,
    /// Estimated cost of what was refused since the last tick, also for want of room in calm.
    pub refused: Cost,
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
    /// No limits.
    pub const UNLIMITED: [Cost; LEVELS] = [Cost::MAX; LEVELS];

    /// Whether anything is refused: because a level is cut, or because a burst found no room.
    pub fn sheds(&self) -> bool {
        self.cut.is_some() || self.refused > Cost::ZERO
    }
}

/// What a tick has worked out when it comes to shedding.
#[derive(Debug, Clone, Copy)]
struct Look {
    capacity: f64,
    queue: Option<Queue>,
    /// What signals say of which it is not known what they can take.
    signals: Reading,
    busy: bool,
    /// What gets done per second.
    done: f64,
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
    /// Whether signals have reached the lowest threshold since: those that are not of the CPU, and
    /// all of them.
    high: [bool; 2],
    /// Whether it is signals that tell how much may come, and not the queue alone.
    by_signals: bool,
    /// The highest utilization since the lowest level was armed.
    peak: Utilization,
    /// The highest level that does not fit.
    cut: Option<usize>,
    /// Grows while nothing waits and something is refused.
    boost: f64,
    /// What should have been done however bad it looks, and was not.
    owed: f64,
    /// What waited when last looked at.
    waiting: f64,
    /// Until when each level asks for degraded answers.
    degrade_until: [Option<Timestamp>; LEVELS],
    /// From when on luck is told from overload before any level asks.
    luck_from: Timestamp,
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
            high: [false; 2],
            by_signals: false,
            peak: Utilization::ZERO,
            cut: None,
            boost: 1.0,
            owed: 0.0,
            waiting: 0.0,
            degrade_until: [None; LEVELS],
            luck_from: now,
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
        let same = ShedConfig { cpus: self.config.cpus, ..config.clone() };
        if same == self.config {
            self.capacity.set_cpus(config.cpus);
            self.config = config;
        } else {
            let fresh = Self::new(config, self.last);
            let before = core::mem::replace(self, fresh);
            (self.armed, self.high) = (before.armed, before.high);
            self.by_signals = before.by_signals;
            (self.peak, self.cut) = (before.peak, before.cut);
            (self.degrade_until, self.luck_from) = (before.degrade_until, before.luck_from);
        }
    }

    /// Reads what a tick will read, line by line.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let parts = self.demand.touch() ^ self.capacity.touch() ^ self.flight.touch();
        let config = &self.config;
        let numbers = [self.boost, self.owed, config.thresholds[0], config.degrade_from[0]];
        let until = self.degrade_until[0].unwrap_or(self.last).as_nanos();
        let word = parts ^ until ^ u64::from(config.horizon.subsec_nanos());
        numbers.into_iter().fold(word, |word, number| word ^ number.to_bits())
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
        let one = request.map_or(0.0, |request| request / cpus);
        let one = if one.is_finite() { one } else { 0.0 };
        let cut = self.cut.map(|cut| (cut, elapsed));
        let one = (one, self.capacity.estimate());
        self.demand.observe(&facts.offered, &facts.over, one, cut, now);

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
        self.arm(facts, reading, queue, capacity);
        let signals = if queue.is_some() { facts.beyond_cpu } else { facts.reading };

        let tick = elapsed.clamp(Duration::from_millis(1), TICK_MAX).as_secs_f64();
        let [mut limit, room_over] = match queue {
            Some(queue) if !facts.dark => {
                let time = ROOM_TIME * capacity / queue.unit;
                [ROOM, ROOM_OVER].map(|room| room.map(|most| queue.limit(most.max(time))))
            }
            _ => [[f64::INFINITY; LEVELS]; 2],
        };
        let shares = if self.armed[0] {
            let done = self.capacity.done(now);
            let look = Look { capacity, queue, signals, busy, done, tick };
            self.shed(facts, look, &mut limit)
        } else {
            self.boost = 1.0;
            (self.high, self.by_signals) = ([false; 2], false);
            self.demand.reset();
            self.cut = None;
            self.trickle(facts, tick, &mut limit);
            [1.0; LEVELS]
        };
        for (limit, least) in limit.iter_mut().zip(ROOM_MIN) {
            *limit = limit.max(least * self.capacity.estimate());
        }
        for level in (0..LEVELS - 1).rev() {
            limit[level] = limit[level].min(limit[level + 1]);
        }
        let mut limit_over = limit;
        match (self.cut, queue) {
            (Some(cut), Some(queue)) if self.demand.within_fits(cut, capacity) => {
                let above = limit.get(cut + 1).copied().unwrap_or(f64::INFINITY);
                limit[cut] = limit[cut].max(queue.limit(ROOM[cut]).min(above));
            }
            (None, _) => {
                // Limits have been raised since for what is owed and for single requests.
                let mut below = 0.0;
                for ((over, room), &limit) in limit_over.iter_mut().zip(room_over).zip(&limit) {
                    *over = over.min(room.max(below));
                    below = limit;
                }
            }
            _ => {}
        }
        // A task with nothing in flight lets one in, whatever it thinks of itself.
        let cost = |limit: f64| if limit < 1e18 { nanos(limit.max(1.0)) } else { Cost::MAX };
        Plan {
            levels: Levels::from_shares(shares),
            limit: limit.map(cost),
            limit_over: limit_over.map(cost),
            inflight: facts.inflight,
            cut: self.cut.map(|level| Criticality::ALL[level]),
            refused: facts.offered.into_iter().sum::<Cost>() - facts.admitted,
            degrade: self.degrade(facts, reading, queue.map(|queue| (queue, capacity)), now),
            reading,
            peak: self.peak,
            set_point: Utilization::new(self.set_point()).unwrap_or(Utilization::FULL),
            capacity: capacity / 1e9,
            offered: self.demand.total() / 1e9,
        }
    }

    fn set_point(&self) -> f64 {
        self.config.thresholds[self.cut.unwrap_or(0)]
    }

    /// Whether work waits for a CPU, and whether none does.
    fn waits(&self, facts: &Facts) -> (bool, bool) {
        if let Some(load) = facts.load {
            return (load > 1.0, load <= 1.0);
        }
        let busy = facts.reading.instant.get() >= BUSY_FROM * self.config.thresholds[0];
        (busy, !busy && (self.waiting < FREE_BELOW || self.boost > 1.0 + GROWTH))
    }

    fn arm(&mut self, facts: &Facts, reading: Reading, queue: Option<Queue>, capacity: f64) {
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
        for (high, signals) in self.high.iter_mut().zip([facts.beyond_cpu, facts.reading]) {
            *high |= signals.utilization.get() >= thresholds[0];
        }
        self.by_signals = self.high[usize::from(queue.is_none())];
        let utilization = Utilization::new(utilization).unwrap_or(reading.utilization);
        self.peak = if was_calm { utilization } else { self.peak.max(utilization) };
    }

    /// How much may be in flight for each level, and the share of each to let in.
    fn shed(&mut self, facts: &Facts, look: Look, limit: &mut [f64; LEVELS]) -> [f64; LEVELS] {
        let capacity = look.capacity;
        let waiting = look.signals.instant.get() / self.set_point();
        let waiting = if self.by_signals { self.waiting.max(waiting) } else { self.waiting };
        let (mut fits, mut asked) = self.demand.fits(capacity, waiting, self.cut);
        // What fits into the CPUs may be too much for what the signals measure.
        let signals = look.signals.utilization.get();
        if self.by_signals && signals >= self.config.thresholds[0] {
            for (fits, threshold) in fits.iter_mut().zip(self.config.thresholds) {
                *fits &= signals < threshold;
            }
            asked = 0.0;
        }
        self.cut = (0..LEVELS).rev().find(|&level| !fits[level] && self.armed[level]);
        for (armed, fits) in self.armed.iter_mut().zip(fits) {
            *armed &= !fits;
        }
        self.grow(signals, look);
        if self.boost >= BOOST_OPEN && signals < self.config.thresholds[0] {
            self.armed = [false; LEVELS];
            self.cut = None;
        }
        let Some(cut) = self.cut else { return [1.0; LEVELS] };
        let Some(queue) = look.queue.filter(|_| !facts.dark) else {
            return self.shares(facts, look, fits, asked);
        };
        let queue = Queue { busy: queue.busy * self.boost, ..queue };
        let over = self.demand.over(capacity);
        let queues = limits::queues(over, cut);
        let most = core::array::from_fn(|level| self.demand.most(level) / capacity);
        let unit = Unit {
            one: self.capacity.estimate() / queue.unit,
            elsewhere: queue.slack / self.config.slack.get() / queue.unit,
        };
        let rooms = limits::rooms(over, most, unit, cut, self.demand.settled());
        for level in 0..LEVELS {
            limit[level] = if level > cut {
                queue.limit(rooms[level])
            } else {
                queue.limit(queues[level] * self.config.thresholds[level])
            };
        }
        self.trickle(facts, look.tick, &mut limit[cut..]);
        if self.by_signals {
            return self.shares(facts, look, fits, asked);
        }
        let mut above = 0.0;
        let mut shares = [1.0; LEVELS];
        for level in (0..LEVELS).rev() {
            if look.busy && above > HOPELESS * capacity {
                shares[level] = 0.0;
            }
            above += self.demand.least(level);
        }
        shares
    }

    /// However much is in flight, and if none of it is ever done, a little gets in.
    fn trickle(&mut self, facts: &Facts, tick: f64, limits: &mut [f64]) {
        let floor = self.config.floor.get() * self.demand.total() * tick;
        self.owed = (self.owed + floor - facts.completed.as_nanos() as f64).max(0.0);
        if self.owed > 0.0 && self.owed >= self.capacity.request().unwrap_or(0.0) * 1e9 {
            // Room for any part of a request is room for one.
            let any = facts.inflight.as_nanos() as f64 + 1.0;
            for limit in limits {
                *limit = limit.max(any);
            }
            self.owed = 0.0;
        }
    }

    /// The share of each level to let in, where it is not what is in flight that tells.
    fn shares(
        &mut self,
        facts: &Facts,
        look: Look,
        fits: [bool; LEVELS],
        asked: f64,
    ) -> [f64; LEVELS] {
        let amount = self.amount(facts, look).max(asked);
        let mut unused = amount.max(self.demand.total() * self.config.floor.get());
        let mut shares = [0.0; LEVELS];
        for level in (0..LEVELS).rev() {
            let most = self.demand.most(level);
            if fits[level] || !self.armed[level] || most <= unused {
                shares[level] = 1.0;
                unused -= most;
                continue;
            }
            if unused > 0.0 {
                shares[level] = (unused / most).min(SHARE_MAX);
            }
            break;
        }
        shares
    }

    /// Nothing waits although something is refused: the amount is too low.
    fn grow(&mut self, signals: f64, look: Look) {
        let unseen = self.flight.base().unwrap_or(0.0).clamp(GROWTH_TIME.0, GROWTH_TIME.1);
        let growth = 1.0 + GROWTH * look.tick / unseen;
        let enough = look.busy || self.by_signals && signals >= self.config.thresholds[0];
        self.boost = if enough { 1.0 } else { (self.boost * growth).min(BOOST_MAX) };
    }

    /// How much to let in per second.
    fn amount(&mut self, facts: &Facts, look: Look) -> f64 {
        let Look { capacity, tick, .. } = look;
        if facts.dark {
            return capacity;
        }
        let by_signals = self.flight.by_signals(self.set_point()).filter(|_| self.by_signals);
        let inflight = facts.inflight.as_nanos() as f64;
        let missing = by_signals.map_or(0.0, |wanted| wanted - inflight);
        let soon = missing / self.config.horizon.as_secs_f64().max(tick);
        // With CPUs to spare, what gets done is what the signals go with.
        (capacity.min(look.done) * self.boost + soon).max(AMOUNT_MIN * look.done)
    }

    /// Asks for degraded answers in time, and does not stop asking at once. `queue` comes with the
    /// capacity, where that is known.
    fn degrade(
        &mut self,
        facts: &Facts,
        reading: Reading,
        queue: Option<(Queue, f64)>,
        now: Timestamp,
    ) -> [bool; LEVELS] {
        let luck = now >= self.luck_from && self.cut.is_none();
        let luck = luck
            && queue.is_some_and(|(queue, capacity)| {
                queue.instant < LONG && self.demand.fits_plainly(capacity)
            });
        let utilization = reading.utilization.get();
        let counts = if luck { facts.beyond_cpu.utilization.get() } else { utilization };
        let degrade = core::array::from_fn(|level| {
            let from = self.config.degrade_from[level];
            let until = &mut self.degrade_until[level];
            if utilization >= from && (counts >= from || until.is_some()) {
                *until = Some(now + DEGRADE_HOLD);
            } else if utilization < from * DEGRADE_RELEASE && until.is_some_and(|t| now >= t) {
                *until = None;
            }
            until.is_some()
        });
        if degrade.contains(&true) {
            self.luck_from = now + DEGRADE_MEMORY;
        }
        degrade
    }
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

/// So many seconds, but no less than `least`, which is also for what is no span. Mostly it is that,
/// and seen to be without working out the other to the nanosecond.
fn at_least(least: Duration, secs: f64) -> Duration {
    if secs < least.as_secs_f64() {
        return least;
    }
    Duration::try_from_secs_f64(secs).map_or(least, |span| span.max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_span_is_no_less_than_the_least() {
        let least = Duration::from_millis(50);
        let table = [
            (f64::NAN, least),
            (-1.0, least),
            (0.0, least),
            (0.049_999_999_9, least),
            (0.05, least),
            (0.050_000_001, least + Duration::from_nanos(1)),
            (3.0, Duration::from_secs(3)),
            (f64::INFINITY, least),
        ];
        for (secs, expected) in table {
            assert_eq!(at_least(least, secs), expected, "{secs}");
        }
    }
}
