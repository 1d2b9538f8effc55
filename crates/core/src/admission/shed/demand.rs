//! What is offered, by criticality.
//!
//! A rate is known the better the more requests it was taken from, and the sooner the fewer. So it
//! is taken twice: over some hundred requests, and *lately*, over some ten. The long average tells
//! whether a level fits into the capacity without taking the luck of a few requests for a surge;
//! the short one tells it once a surge is plain, or once the queue shows that it does not.
//!
//! What arrives at random varies: over some ten requests by a third and more, in good and in bad
//! luck. While nothing is cut, being wrong for a moment costs little and being late costs latency,
//! so luck is not weighed. Beside a level that has been cut for a while it is the other way round:
//!
//! - A level above that has fitted all the while goes on to, whatever a queue looks like, until the
//!   long average or far more than luck says otherwise: those below leave it room meanwhile.
//! - The level that is cut fits again if the long average says so, or if what comes lately is less
//!   than by luck. Else a lull of a few requests would let it fill the queue for those above.

use super::{ShedConfig, at_least};
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
pub(super) const LONG: f64 = 3.0;
/// Who has fitted beside a level that was cut for so many times what the long average is over is
/// known to fit…
const SETTLED: f64 = 2.0;
/// …and stops to by what comes lately only if that is so many standard deviations more than usual:
/// luck of that kind comes once in a million looks.
const LUCK_ABOVE: f64 = 6.0;
/// Else so many are more than luck, and so many less: one look in forty.
const LUCK: f64 = 2.0;
/// So many less, and what was is over: the long average goes on from what comes lately. Such a lull
/// comes once in a thousand looks.
const OVER: f64 = 3.0;
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
    moment: Rates<{ 2 * LEVELS }>,
    /// The share of each level that keeps within its quota.
    within: [f64; LEVELS],
    /// The levels that fitted when last looked at.
    fitted: [bool; LEVELS],
    /// What comes lately has a variance of this times what comes.
    grain: f64,
    /// For how long each level has fitted beside one that is cut, over what the long average is
    /// over.
    fitted_for: [f64; LEVELS],
}

impl Demand {
    pub(super) fn new(config: &ShedConfig, now: Timestamp) -> Self {
        Self {
            tau: config.offered_tau,
            tau_lately: config.offered_tau_lately,
            long: Rates::new(config.offered_tau, now),
            lately: Rates::new(config.offered_tau_lately, now),
            rates: [[0.0; LEVELS]; 2],
            moment: Rates::new(OVER_TAU, now),
            within: [1.0; LEVELS],
            fitted: [true; LEVELS],
            grain: 0.0,
            fitted_for: [0.0; LEVELS],
        }
    }

    /// `offered` came since the last call, `over` of it from customers who are over their quota;
    /// one request takes the task `one` seconds of its time, and is estimated at `estimate`. `cut`
    /// is the highest level that was cut meanwhile, if any was, and for how long.
    pub(super) fn observe(
        &mut self,
        offered: &[Cost; LEVELS],
        over: &[Cost; LEVELS],
        (one, estimate): (f64, f64),
        cut: Option<(usize, Duration)>,
        now: Timestamp,
    ) {
        let tau = |least: Duration, requests: f64| at_least(least, (requests * one).min(TAU_MAX));
        let taus = [tau(self.tau, REQUESTS), tau(self.tau_lately, REQUESTS_LATELY)];
        for (level, fitted_for) in self.fitted_for.iter_mut().enumerate() {
            *fitted_for = match cut {
                Some((cut, time)) if cut < level => {
                    *fitted_for + time.as_secs_f64() / taus[0].as_secs_f64()
                }
                _ => 0.0,
            };
        }
        let amounts = offered.map(|cost| cost.as_nanos() as f64);
        for (i, rates) in [&mut self.long, &mut self.lately].into_iter().enumerate() {
            rates.set_tau(taus[i]);
            self.rates[i] = rates.add_since_last(amounts, now);
        }
        self.grain = estimate / (2.0 * taus[1].as_secs_f64());
        let [long, lately] = &mut self.rates;
        for (level, (long, lately)) in long.iter_mut().zip(lately).enumerate() {
            if *lately < *long - OVER * (*long * self.grain).sqrt() {
                self.long.scale(level, *lately / *long);
                *long = *lately;
            }
        }
        let over = |level: usize| over[level].as_nanos() as f64;
        let both = |i: usize| if i < LEVELS { amounts[i] } else { over(i - LEVELS) };
        self.moment.set_tau(tau(OVER_TAU, OVER_REQUESTS));
        let moment = self.moment.add_since_last(core::array::from_fn(both), now);
        self.within = core::array::from_fn(|level| {
            let within = 1.0 - moment[LEVELS + level] / moment[level];
            if within.is_nan() { 1.0 } else { within.clamp(0.0, 1.0) }
        });
    }

    /// Reads what a tick will read, line by line.
    #[inline]
    pub(super) fn touch(&self) -> u64 {
        let rates = self.long.touch() ^ self.lately.touch() ^ self.moment.touch();
        let [long, lately] = &self.rates;
        let numbers = [long[0], lately[LEVELS - 1], self.within[0], self.fitted_for[0], self.grain];
        numbers.into_iter().fold(rates, |word, number| word ^ number.to_bits())
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

    /// Whether each level has fitted beside one that is cut for so long that it is known to.
    pub(super) fn settled(&self) -> [bool; LEVELS] {
        self.fitted_for.map(|time| time >= SETTLED)
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

    /// Whether all that comes leaves so much of the capacity free that it would fit if it had not.
    pub(super) fn fits_plainly(&self, capacity: f64) -> bool {
        let [long, lately] = self.rates.map(|rates| rates.iter().sum::<f64>());
        long.min(lately) <= capacity * (1.0 - MARGIN_AGAIN)
    }

    /// Whether each level fits into the capacity together with all above it, and what the lowest
    /// that does and all above it ask for. `queue` is what waits, as a multiple of what should;
    /// `cut` the highest level that did not fit so far.
    pub(super) fn fits(
        &mut self,
        capacity: f64,
        queue: f64,
        cut: Option<usize>,
    ) -> ([bool; LEVELS], f64) {
        let margin = (MARGIN + MARGIN_PER_QUEUE * (queue - 1.0)).clamp(MARGIN, MARGIN_MAX);
        let (mut long, mut lately, mut asked) = (0.0, 0.0, 0.0);
        let (settled, mut all_above) = (self.settled(), true);
        for level in (0..LEVELS).rev() {
            long += self.rates[0][level];
            lately += self.rates[1][level];
            let deviation = (long * self.grain).sqrt();
            let fitted = self.fitted[level];
            let known = fitted && settled[level] && cut.is_some_and(|cut| cut < level);
            let (plain, sum) = if known {
                (long + LUCK_ABOVE * deviation, f64::min(long, lately))
            } else if !fitted && lately >= long - LUCK * deviation {
                (0.0, long)
            } else {
                let sudden = queue > LONG && lately > long + LUCK * deviation;
                (0.0, if sudden { lately } else { f64::min(long, lately) })
            };
            let margin = if fitted { margin } else { MARGIN_AGAIN.max(margin) };
            let plain = plain.max(PLAIN * capacity);
            all_above &= lately < plain && sum <= capacity * (1.0 - margin);
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

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);
    /// Requests of ten milliseconds, on one CPU: the averages are over a second and a tenth.
    const ONE: (f64, f64) = (0.01, 1e7);
    const CAPACITY: f64 = 1e9;

    struct Offers {
        demand: Demand,
        now: Timestamp,
        cut: Option<usize>,
    }

    impl Offers {
        /// So many CPUs are asked for by level, for so many ticks, with a queue as it should be.
        fn hold(&mut self, ticks: u32, cpus: [f64; LEVELS]) -> Option<usize> {
            for _ in 0..ticks {
                self.now += TICK;
                let offered = cpus.map(|cpus| Cost::from_nanos((cpus * 1e7) as u64));
                let cut = self.cut.map(|cut| (cut, TICK));
                self.demand.observe(&offered, &[Cost::ZERO; LEVELS], ONE, cut, self.now);
                let (fits, _) = self.demand.fits(CAPACITY, 1.0, self.cut);
                self.cut = (0..LEVELS).rev().find(|&level| !fits[level]);
            }
            self.cut
        }
    }

    /// A burst of 1.4 to 1.5 times the capacity, by what comes lately, is plain, but within six
    /// standard deviations of what is usual. It stops a level that fits only if that has not fitted
    /// for long beside one that is cut.
    #[test]
    fn a_level_is_known_to_fit_once_it_has_fitted_for_long() {
        let calm = [3.0, 0.0, 0.5, 0.1];
        let burst = [3.0, 0.0, 2.5, 0.1];
        // What CRITICAL asks for before, for how many ticks it then fits, and what is cut in the
        // burst: it was cut itself until then, or something else was.
        let table = [(2.0, 1, Some(2)), (2.0, 99, Some(2)), (2.0, 250, Some(0)), (0.5, 1, Some(0))];
        for (before, ticks, expected) in table {
            let demand = Demand::new(&ShedConfig::default(), Timestamp::ZERO);
            let mut offers = Offers { demand, now: Timestamp::ZERO, cut: None };
            let cut = offers.hold(300, [3.0, 0.0, before, 0.1]);
            assert_eq!(cut, Some(if before > 1.0 { 2 } else { 0 }));
            let fits = (0..300).position(|_| offers.hold(1, calm) == Some(0));
            assert!(fits.is_some(), "{before}");
            offers.hold(ticks, calm);
            assert_eq!(offers.hold(6, burst), expected, "{before}, fitting for {ticks}");
        }
    }
}
