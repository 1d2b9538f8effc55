//! What is offered, by criticality.
//!
//! A rate is known the better the more requests it was taken from, and the sooner the fewer. So it
//! is taken twice: over some hundred requests, and *lately*, over some ten. The long average tells
//! whether a level fits into the capacity without taking the luck of a few requests for a surge;
//! the short one tells it once a surge is plain, or once the queue shows that it does not.

use super::ShedConfig;
use crate::average::Rates;
use crate::criticality::Criticality;
use crate::units::{Cost, Timestamp};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;
/// Requests that an average is taken over at the least.
const REQUESTS: f64 = 100.0;
/// …and lately: their rate is then right to about a quarter.
const REQUESTS_LATELY: f64 = 10.0;
/// Averages are over no more than this, in seconds, however dear requests are.
const TAU_MAX: f64 = 60.0;
/// What comes lately is plainly a surge from this multiple of the capacity on. Calm traffic at 0.7
/// of it shows as much by luck about once in four hundred looks that have nothing in common (26
/// arrivals where 14 are usual), and is touched only if it also finds a queue…
const PLAIN: f64 = 1.3;
/// …and the queue is plainly long from this multiple of what it should be.
const LONG: f64 = 3.0;
/// Levels fit if they leave this share of the capacity free…
const MARGIN: f64 = 0.05;
/// …and this much more for every set point's worth that waits beyond the first, so that a queue
/// goes away in good time…
const MARGIN_PER_QUEUE: f64 = 0.05;
/// …but no more than this: the lot of calm traffic.
const MARGIN_MAX: f64 = 0.25;
/// A level that did not fit fits again when it leaves this share free, so that one which asks for
/// just what there is does not come and go.
const MARGIN_AGAIN: f64 = 0.15;

/// The share of customers who are over is taken over this long at the least: a tick, as it changes
/// at a stroke…
const OVER_TAU: Duration = Duration::from_millis(10);
/// …and over so many requests.
const OVER_REQUESTS: f64 = 5.0;

/// What is offered.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    tau: Duration,
    tau_lately: Duration,
    long: Rates<LEVELS>,
    lately: Rates<LEVELS>,
    rates: [[f64; LEVELS]; 2],
    /// All that came in the last moments, and what came of customers who are over.
    moment: [Rates<LEVELS>; 2],
    /// The share of each level that keeps within its quota.
    within: [f64; LEVELS],
    /// The levels that fitted when last looked at.
    fitted: [bool; LEVELS],
}

impl Demand {
    pub(super) fn new(config: &ShedConfig, now: Timestamp) -> Self {
        Self {
            tau: config.offered_tau,
            tau_lately: config.offered_tau_lately,
            long: Rates::new(config.offered_tau, now),
            lately: Rates::new(config.offered_tau_lately, now),
            rates: [[0.0; LEVELS]; 2],
            moment: core::array::from_fn(|_| Rates::new(OVER_TAU, now)),
            within: [1.0; LEVELS],
            fitted: [true; LEVELS],
        }
    }

    /// `offered` came since the last call, `over` of it from customers who are over their quota;
    /// one request takes the task `one` seconds of its time.
    pub(super) fn observe(
        &mut self,
        offered: &[Cost; LEVELS],
        over: &[Cost; LEVELS],
        one: f64,
        now: Timestamp,
    ) {
        let tau = |least: Duration, requests: f64| {
            let enough = Duration::try_from_secs_f64((requests * one).min(TAU_MAX));
            least.max(enough.unwrap_or_default())
        };
        let taus = [tau(self.tau, REQUESTS), tau(self.tau_lately, REQUESTS_LATELY)];
        let amounts = offered.map(|cost| cost.as_nanos() as f64);
        for (i, rates) in [&mut self.long, &mut self.lately].into_iter().enumerate() {
            rates.set_tau(taus[i]);
            self.rates[i] = rates.add_since_last(amounts, now);
        }
        let over = over.map(|cost| cost.as_nanos() as f64);
        let moment = tau(OVER_TAU, OVER_REQUESTS);
        let [all, over] = [(0, amounts), (1, over)].map(|(i, amounts)| {
            self.moment[i].set_tau(moment);
            self.moment[i].add_since_last(amounts, now)
        });
        self.within = core::array::from_fn(|level| {
            let within = 1.0 - over[level] / all[level];
            if within.is_nan() { 1.0 } else { within.clamp(0.0, 1.0) }
        });
    }

    /// Per second, lately.
    pub(super) fn total(&self) -> f64 {
        self.rates[1].iter().sum()
    }

    /// What a level asks for at most, per second: what has to be kept free for it.
    pub(super) fn most(&self, level: usize) -> f64 {
        self.rates[0][level].max(self.rates[1][level])
    }

    /// What a level asks for at least, per second.
    pub(super) fn least(&self, level: usize) -> f64 {
        self.rates[0][level].min(self.rates[1][level])
    }

    /// What each level asks for over the capacity, over the longer time: what comes lately is no
    /// measure of what will.
    pub(super) fn over(&self, capacity: f64) -> [f64; LEVELS] {
        self.rates[0].map(|rate| rate / capacity)
    }

    /// Whether more comes than could be luck.
    pub(super) fn plain(&self, capacity: f64) -> bool {
        self.total() >= PLAIN * capacity
    }

    /// Whether each level fits into the capacity together with all above it, and what the lowest
    /// that does and all above it ask for. `queue` is what waits, as a multiple of what should.
    pub(super) fn fits(&mut self, capacity: f64, queue: f64) -> ([bool; LEVELS], f64) {
        let margin = (MARGIN + MARGIN_PER_QUEUE * (queue - 1.0)).clamp(MARGIN, MARGIN_MAX);
        let (mut long, mut lately, mut asked) = (0.0, 0.0, 0.0);
        let mut all_above = true;
        for level in (0..LEVELS).rev() {
            long += self.rates[0][level];
            lately += self.rates[1][level];
            let sum = if queue > LONG { lately } else { f64::min(long, lately) };
            let margin = if self.fitted[level] { margin } else { MARGIN_AGAIN.max(margin) };
            all_above &= lately < PLAIN * capacity && sum <= capacity * (1.0 - margin);
            self.fitted[level] = all_above;
            if all_above {
                asked = sum;
            }
        }
        (self.fitted, asked)
    }

    /// Whether the levels above `level` and those of it who keep within their quotas fit. Some of
    /// it must be of others, or it is the level that would have to.
    pub(super) fn within_fits(&self, level: usize, capacity: f64) -> bool {
        let least: f64 = (level + 1..LEVELS).map(|level| self.least(level)).sum();
        let within = self.within[level];
        within < 1.0 && least + self.least(level) * within <= capacity * (1.0 - MARGIN_AGAIN)
    }

    /// Nothing is shed any more.
    pub(super) fn reset(&mut self) {
        self.fitted = [true; LEVELS];
    }
}
