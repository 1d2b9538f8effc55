//! How fast work goes on to backends that others use too.
//!
//! The backends say themselves how much batch work they take: they refuse the rest. The pace feels
//! for that limit with a **window**, the number of requests that may be outstanding:
//!
//! ```text
//! accepted:   window += growth                  (below 1:  window *= 1 + growth)
//! busy:       window -= growth                  down to 1
//! refused:    window *= backoff                 once for all that was sent before
//! spacing   = latency / window                  between two releases
//! ```
//!
//! Accepts come at a rate of window / latency, so a round trip grows the window by the share
//! `growth`, whatever its size. The spacing makes the pace even, and gives meaning to a window
//! below one: where backends take 10 requests a second of 10 ms each, the right window is 0.1, and
//! one request outstanding at all times would be refused nine times out of ten.
//!
//! With `growth` 1 % and `backoff` 0.8 it takes ln(1/0.8) / 1 % = 22 accepts or round trips from
//! one refusal to the next, so about 4 % of what is sent is refused: the price of knowing the
//! limit.
//!
//! Growth is fast until the first refusal, or until the backends are busy. It is fast again after a
//! collapse, which is a window that was cut down to the slowest pace there is: whoever refuses even
//! that is not refusing the pace. The largest window of the last minute or two is then what worked,
//! and growth is fast up to half of it, so that an outage is not paid for twice, be it total or
//! partial.
//!
//! Growth pauses while nothing waits, as an unused window proves nothing, and while latency is at
//! twice its recent best, as then the backends are filling up and the next answer would be a
//! refusal. The best is the best mean of many answers: the least of a few is luck, and whoever was
//! lucky once would not grow for minutes.
//!
//! Backends that take whatever they are sent until they are full are full with batch work, and
//! everyone else waits behind it. Where answers carry a load report the pace therefore leaves room:
//! above `utilization_target` the backends are **busy**, and the window gives way. Not below one:
//! if they are busy without batch work, it should starve no more than refusals make it. Reports
//! are averages and late, and a window that did not wait for them would swing: so it changes by a
//! quarter a second at most, and by two thirds while growth is fast. Reports that have stopped for
//! [`Signals::STALE_AFTER`] say nothing any more, as with any signal whose source is silent.
//!
//! A pushback is waited for exactly. However bad it looks, one request each
//! `probe_interval` goes out, or nobody would notice that it got better.
//!
//! When it is wrong: a backend that never refuses but queues holds the window only for as long as
//! the best latency is remembered; its timeouts, reported as [`Outcome::NoAnswer`], then do what
//! refusals should have done. Backends that come back from a collapse with far less than they had
//! are asked too fast until what worked is forgotten: half of all requests may be refused for a
//! minute or two. A partial outage that lasts longer is forgotten too, and the way back from it
//! takes another minute or two.

use crate::average::Average;
use crate::decision::Advice;
use crate::outcome::Outcome;
use crate::signal::Signals;
use crate::units::{InvalidNumber, NANOS, Timestamp, nanos};
use core::ops::RangeInclusive;
use core::time::Duration;

/// How [`Pace`] behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PaceConfig {
    /// The largest window, whatever the backends take: it bounds connections and memory.
    pub window_max: u32,
    /// The share by which a round trip of accepts grows the window. More is refused more often;
    /// less takes longer to use what others leave free. Above zero: a window that was cut has to
    /// come back.
    pub growth: f64,
    /// The same while the window is far below what worked. Above zero.
    pub growth_fast: f64,
    /// What a refusal leaves of the window. Less gives way more, and leaves more unused after.
    /// Below one: who is refused has to give way.
    pub backoff: f64,
    /// Latency over its recent best, from which the window does not grow.
    pub latency_tolerance: f64,
    /// Utilization of the backends above which the window gives way, where they report it. Less
    /// leaves more of them unused; more makes those wait longer who share them. Above 1 is never.
    pub utilization_target: f64,
    /// The longest time between two releases, and so the slowest pace. Short enough to notice
    /// within seconds that the backends are back, and nothing to a backend. At least a millisecond:
    /// requests that are not spaced at all are no pace.
    pub probe_interval: Duration,
    /// The longest pushback that is believed.
    pub pushback_max: Duration,
}

impl Default for PaceConfig {
    fn default() -> Self {
        Self {
            window_max: 1_000,
            growth: 0.01,
            growth_fast: 0.25,
            backoff: 0.8,
            latency_tolerance: 2.0,
            // Queues are short up to there, and below 85 % of what it aims at no task sheds.
            utilization_target: 0.8,
            probe_interval: Duration::from_secs(1),
            pushback_max: Duration::from_secs(600),
        }
    }
}

impl PaceConfig {
    fn check(&self) -> Result<(), InvalidNumber> {
        let within = |name, wanted, range: RangeInclusive<f64>, value: f64| {
            if range.contains(&value) {
                Ok(())
            } else {
                Err(InvalidNumber::new(name, wanted, value))
            }
        };
        within("growth", "between 0.000001 and 1", 1e-6..=1.0, self.growth)?;
        within("fast growth", "between 0.000001 and 1", 1e-6..=1.0, self.growth_fast)?;
        // Without any window left there is nothing that could grow again.
        within("backoff", "between 0.01 and 0.99", 0.01..=0.99, self.backoff)?;
        let probe = self.probe_interval.as_secs_f64();
        within("the probe interval in seconds", "0.001 or more", 0.001..=f64::MAX, probe)?;
        within("latency tolerance", "between 1 and 1000", 1.0..=1000.0, self.latency_tolerance)?;
        let target = self.utilization_target;
        within("the utilization to aim at", "between 0.01 and 1000", 0.01..=1000.0, target)?;
        within("the largest window", "1 or more", 1.0..=f64::MAX, f64::from(self.window_max))
    }
}

/// Assumed before the first answer.
const LATENCY_FIRST: Duration = Duration::from_millis(50);
/// Over what time latency is averaged: long enough for a dozen requests at a slow pace.
const LATENCY_TAU: Duration = Duration::from_secs(1);
/// Answers whose mean counts as a latency that was had. Of service times that spread like an
/// exponential it is right to 6 %, and the least of hundreds of such means a sixth too low.
const BEST_OF: u32 = 256;
/// The highest utilization that is believed.
const UTILIZATION_MAX: f64 = 10.0;
/// Over what time reports are averaged: each is an average already, but of one backend alone.
const REPORTS_TAU: Duration = Duration::from_millis(250);
/// How long reports take to show what was sent: they are averages over about that.
const REPORT_LAG: Duration = Duration::from_secs(1);
/// How long the best is remembered, once or twice over. For latency: a release that makes requests
/// dearer stops growth for no longer than that. For the window: a minute outlasts most outages, and
/// is short enough to ask too fast.
const EPOCH: Duration = Duration::from_secs(60);
/// How much lateness is made up for: shells look at the clock every millisecond or so, and a pace
/// above one release a look would else be lost.
const CATCH_UP: Duration = Duration::from_millis(5);

/// For how long a refusal is what holds the pace, for people who watch: it takes about that long to
/// grow back to where it was.
const CUT_SHOWS: Duration = Duration::from_secs(5);

/// What holds the pace where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Hold {
    /// Nothing: it grows as long as work waits.
    Growing,
    /// The backends have refused a part lately.
    Refused,
    /// The backends have said how long to wait.
    Pushback,
    /// The backends report that they are busy.
    Busy,
    /// Answers take much longer than they did.
    Slow,
    /// As many are outstanding as there may ever be.
    WindowMax,
    /// The backends take nothing, or do not answer.
    Outage,
}

/// Decides when the next request may go on.
#[derive(Debug, Clone)]
pub struct Pace {
    config: PaceConfig,
    window: f64,
    /// The largest window at a refusal that followed an accept, or while the backends were busy;
    /// none before the first. Refusals without any accept between them are an outage, and say
    /// nothing about what works.
    worked: Best,
    accepted_since_cut: bool,
    /// Whether the window was cut down to the slowest pace, and has not come back since.
    collapsed: bool,
    last_cut: Option<Timestamp>,
    latency: Average,
    /// How far latencies are from their average, on average.
    deviation: Average,
    best: Best,
    /// Latencies that are not in a mean yet: their sum and number.
    lately: (f64, u32),
    /// What the backends report.
    utilization: Average,
    reported_at: Timestamp,
    outstanding: u64,
    /// When the next release is due.
    due: Timestamp,
    pushback_until: Timestamp,
}

impl Pace {
    /// A pace that begins with one request outstanding.
    pub fn new(config: PaceConfig) -> Result<Self, InvalidNumber> {
        config.check()?;
        Ok(Self {
            config,
            window: 1.0,
            worked: Best::new(f64::max),
            accepted_since_cut: false,
            collapsed: false,
            last_cut: None,
            latency: Average::new(LATENCY_TAU),
            deviation: Average::new(LATENCY_TAU),
            best: Best::new(f64::min),
            lately: (0.0, 0),
            utilization: Average::new(REPORTS_TAU),
            reported_at: Timestamp::ZERO,
            outstanding: 0,
            due: Timestamp::ZERO,
            pushback_until: Timestamp::ZERO,
        })
    }

    /// Whether a request may go on at `now`.
    pub fn may_release(&self, now: Timestamp) -> bool {
        self.ready_at().is_some_and(|ready| ready <= now)
    }

    /// When a request may go on; none while too many are outstanding.
    pub fn ready_at(&self) -> Option<Timestamp> {
        let limit = self.window.ceil().max(1.0) as u64;
        (self.outstanding < limit).then(|| self.due())
    }

    /// When the next request is due, were fewer outstanding.
    pub fn due(&self) -> Timestamp {
        self.due.max(self.pushback_until)
    }

    /// A request went on.
    pub fn on_release(&mut self, now: Timestamp) {
        self.outstanding = self.outstanding.saturating_add(1);
        self.due = self.due.max(now - CATCH_UP) + self.spacing();
    }

    /// A request came back after `latency`; `backlog` says whether others wait.
    pub fn on_result(
        &mut self,
        outcome: Outcome,
        latency: Duration,
        backlog: bool,
        now: Timestamp,
    ) {
        let window_is_used = backlog || self.outstanding as f64 >= self.window / 2.0;
        self.outstanding = self.outstanding.saturating_sub(1);
        match outcome {
            Outcome::Served | Outcome::Failed => {
                let sample = nanos(latency) as f64;
                let off = self.latency.get().map_or(sample / 2.0, |mean| (sample - mean).abs());
                self.deviation.record(off, now);
                self.latency.record(sample, now);
                self.note_best(sample, now);
                self.accepted_since_cut = true;
                if self.is_busy(now) {
                    self.give_way(now);
                } else if window_is_used && !self.is_slow() {
                    self.grow(now);
                }
            }
            Outcome::Refused(advice) => {
                if let Advice::RetryAfter(wait) = advice {
                    let wait = wait.min(self.config.pushback_max);
                    self.pushback_until = self.pushback_until.max(now + wait);
                }
                self.cut(latency, now);
            }
            Outcome::NoAnswer => self.cut(latency, now),
            Outcome::Abandoned => {}
        }
    }

    /// An answer said how busy the backend is that it came from: used over reserved.
    pub fn on_load(&mut self, utilization: f64, now: Timestamp) {
        // Less than nothing is no report; beyond all measure it would never be forgotten.
        if utilization > 0.0 {
            self.utilization.record(utilization.min(UTILIZATION_MAX), now);
            self.reported_at = self.reported_at.max(now);
        }
    }

    /// The largest window from now on; at least one.
    pub fn set_window_max(&mut self, window_max: u32) {
        self.config.window_max = window_max.max(1);
        self.window = self.window.min(f64::from(self.config.window_max));
    }

    /// How many requests may be outstanding, in fractions.
    pub const fn window(&self) -> f64 {
        self.window
    }

    /// How many requests are outstanding.
    pub const fn outstanding(&self) -> u64 {
        self.outstanding
    }

    /// The time from one release to the next.
    pub fn spacing(&self) -> Duration {
        // Casting a float that is too large stops at the largest integer.
        Duration::from_nanos((self.latency_nanos() / self.window) as u64)
            .min(self.config.probe_interval)
    }

    /// The time within which nearly every answer comes: the average and twice the deviation, which
    /// is all of it where latencies are spread evenly. Zero before the first answer.
    pub fn answer_time(&self) -> Duration {
        let [mean, off] = [&self.latency, &self.deviation].map(|a| a.get().unwrap_or(0.0));
        Duration::from_nanos((mean + 2.0 * off) as u64)
    }

    /// Whether the backends have shown what they take, so that [`Pace::spacing`] will last.
    pub fn is_known(&self) -> bool {
        !self.is_growing_fast()
    }

    /// What holds the pace where it is.
    pub fn hold(&self, now: Timestamp) -> Hold {
        if self.pushback_until > now {
            Hold::Pushback
        } else if self.collapsed {
            Hold::Outage
        } else if self.is_busy(now) {
            Hold::Busy
        } else if self.is_slow() {
            Hold::Slow
        } else if self.window >= f64::from(self.config.window_max) {
            Hold::WindowMax
        } else if self.last_cut.is_some_and(|cut| now.since(cut) < CUT_SHOWS) {
            Hold::Refused
        } else {
            Hold::Growing
        }
    }

    fn is_slow(&self) -> bool {
        let tolerance = self.config.latency_tolerance;
        self.best.get().is_some_and(|best| self.latency_nanos() > tolerance * best)
    }

    fn grow(&mut self, now: Timestamp) {
        let growth = if self.is_growing_fast() {
            self.config.growth_fast.min(self.step_max(now) / 2.0)
        } else {
            self.config.growth.min(self.step_max(now) / 4.0)
        };
        self.window += growth * self.window.min(1.0);
        self.window = self.window.min(f64::from(self.config.window_max));
        self.collapsed &= self.is_growing_fast();
    }

    /// The backends are busy: as after a refusal, what they take is known.
    fn give_way(&mut self, now: Timestamp) {
        self.worked.record(self.window, now);
        let step = self.config.growth.min(self.step_max(now) / 4.0);
        self.window = self.window.min((self.window - step).max(1.0));
    }

    /// The step for an answer that makes a factor e in the lag of reports, where there are any.
    fn step_max(&self, now: Timestamp) -> f64 {
        let known = self.reported(now).map(|_| self.latency_nanos() / nanos(REPORT_LAG) as f64);
        known.unwrap_or(f64::INFINITY)
    }

    fn note_best(&mut self, latency: f64, now: Timestamp) {
        self.lately = (self.lately.0 + latency, self.lately.1 + 1);
        let (sum, count) = self.lately;
        if count >= BEST_OF {
            self.best.record(sum / f64::from(count), now);
            self.lately = (0.0, 0);
        }
    }

    /// What the backends report, unless they have stopped to.
    fn reported(&self, now: Timestamp) -> Option<f64> {
        let fresh = now.since(self.reported_at) <= Signals::STALE_AFTER;
        self.utilization.get().filter(|_| fresh)
    }

    fn is_busy(&self, now: Timestamp) -> bool {
        self.reported(now).is_some_and(|load| load > self.config.utilization_target)
    }

    fn is_growing_fast(&self) -> bool {
        self.worked.get().is_none_or(|worked| self.collapsed && self.window < worked / 2.0)
    }

    /// Backs off, once for all requests that were under way together.
    fn cut(&mut self, latency: Duration, now: Timestamp) {
        let sent = now - latency;
        if self.last_cut.is_some_and(|last| sent < last) {
            return;
        }
        if core::mem::take(&mut self.accepted_since_cut) {
            self.worked.record(self.window, now);
        }
        self.last_cut = Some(now);
        // Below this window the spacing would be the probe interval anyway, and the way back
        // longer.
        let probe = nanos(self.config.probe_interval).max(1) as f64;
        let floor = (self.latency_nanos() / probe).clamp(1e-6, 1.0);
        let cut = self.window * self.config.backoff;
        self.collapsed |= cut <= floor;
        self.window = cut.max(floor);
    }

    fn latency_nanos(&self) -> f64 {
        self.latency.get().unwrap_or(nanos(LATENCY_FIRST) as f64).clamp(1.0, 1e6 * NANOS as f64)
    }
}

/// The best value of this epoch and the one before.
#[derive(Debug, Clone)]
struct Best {
    better: fn(f64, f64) -> f64,
    epoch: u64,
    this: Option<f64>,
    before: Option<f64>,
}

impl Best {
    const fn new(better: fn(f64, f64) -> f64) -> Self {
        Self { better, epoch: 0, this: None, before: None }
    }

    fn record(&mut self, value: f64, now: Timestamp) {
        let epoch = now.as_nanos() / nanos(EPOCH);
        if epoch > self.epoch {
            self.before = if epoch == self.epoch + 1 { self.this } else { None };
            self.this = None;
            self.epoch = epoch;
        }
        self.this = Some(self.this.map_or(value, |best| (self.better)(best, value)));
    }

    fn get(&self) -> Option<f64> {
        [self.this, self.before].into_iter().flatten().reduce(self.better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_the_pace_is_told() {
        let config = PaceConfig { window_max: 2, ..PaceConfig::default() };
        let (mut pace, at) = (Pace::new(config).unwrap(), Timestamp::from_millis);
        let ms = Duration::from_millis;
        assert_eq!(pace.hold(at(0)), Hold::Growing);
        for n in 0..10 {
            pace.on_release(at(n));
            pace.on_result(Outcome::Served, ms(1), true, at(n));
        }
        assert_eq!(pace.hold(at(10)), Hold::WindowMax);
        pace.set_window_max(3);
        assert_eq!((pace.hold(at(10)), pace.window()), (Hold::Growing, 2.0));
        pace.set_window_max(0);
        assert_eq!((pace.hold(at(10)), pace.window()), (Hold::WindowMax, 1.0));
        pace.set_window_max(2);
        pace.on_release(at(10));
        pace.on_result(Outcome::Refused(Advice::RetryElsewhere), ms(1), true, at(12));
        assert_eq!(pace.hold(at(20)), Hold::Refused);
        assert_eq!(pace.hold(at(5_012)), Hold::Growing);
        pace.on_load(0.9, at(5_012));
        assert_eq!(pace.hold(at(5_012)), Hold::Busy);
        pace.on_release(at(5_020));
        pace.on_result(Outcome::Refused(Advice::RetryAfter(ms(500))), ms(1), true, at(5_030));
        assert_eq!(pace.hold(at(5_031)), Hold::Pushback);
        for n in 0..100 {
            let now = at(6_000 + 2 * n);
            pace.on_release(now);
            pace.on_result(Outcome::NoAnswer, Duration::ZERO, true, now);
        }
        assert_eq!(pace.hold(at(6_300)), Hold::Outage);
    }
}
