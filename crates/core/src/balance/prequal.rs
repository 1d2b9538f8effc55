//! Probing for requests in flight and latency.
//!
//! CPU utilization is an average over a second or more; what makes a request slow is what its
//! backend is doing right now. Prequal ("Load is not what you should balance", NSDI 2024) asks a
//! few backends with each request, keeps the answers in a small pool for the requests after it, and
//! picks from the pool:
//!
//! - A backend is *hot* if its requests in flight (RIF) exceed the `hot_quantile` of the RIFs that
//!   probes lately found, else *cold*.
//! - Of the cold ones, the lowest latency. If all are hot, the lowest RIF. RIF foretells trouble,
//!   latency shows it; so RIF is a limit, and within the limit latency decides.
//!
//! Answers go stale, so each leaves the pool when
//!
//! ```text
//! it is older than `probe_age_max`
//! it has been used reuse times   reuse = (1 + slack) / ((1 - pool/backends) x probes - removals)
//! a request drops it             `removals_per_request`, in turn the oldest and the worst
//! the pool is full or it is answered anew
//! ```
//!
//! The worst is the highest RIF of the hot ones, or the highest latency if all are cold. Dropping
//! it keeps the pool from filling up with backends that nobody wants. Every use adds one to the
//! answer's RIF, since this client's own request is now in flight there as well.
//!
//! A task that fails fast has few requests in flight and a splendid latency. Recent errors of this
//! client there are added to its RIF, and multiply its latency by one more each. The RIF of a cold
//! backend counts as larger while it ramps up.
//!
//! With fewer than two answers at hand there is nothing to choose from, and the pick is by chance.
//! A client that sends a request every other second would always be there, since answers live for
//! one. So a client that has been idle for half the age of an answer asks without a request, again
//! and again until one comes: [`Prequal::next_deadline`] says when, [`Prequal::on_deadline`] makes
//! [`Prequal::probes_wanted`] ask. That is six probes a second by default, for every idle client.

use super::errors::{MEMORY, RecentErrors};
use super::roster::Roster;
use super::slow_start::{STEPS, SlowStart};
use super::{BackendId, Join, Pick, PickReason, Standing};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::{InvalidNumber, Ratio, Timestamp, nanos};
use core::time::Duration;
use std::collections::VecDeque;

/// No request asks more backends than this. Past five or so, more probes hardly improve the pick;
/// they only cost.
const PROBES_MAX: usize = 8;
/// An answer is used no more often than this, also where the formula has no bound (a pool as large
/// as the set): by then half of what it says is our own compensation.
const REUSE_MAX: f64 = 16.0;
/// What an idle client asks at least: with fewer answers there is nothing to choose from.
const IDLE_PROBES_MIN: usize = 2;
/// Answers that live for less are stale on arrival.
const PROBE_AGE_MIN: Duration = Duration::from_millis(1);
/// How many RIFs the quantile is taken of: enough for the 84th percentile, few enough that it
/// follows a surge within some twenty requests.
const RIFS: usize = 64;

/// How Prequal probes and picks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PrequalConfig {
    /// Answers kept: 16. More are staler, fewer give less choice.
    pub pool_size: usize,
    /// Probes per request: 3, at most 8; fractions are carried over.
    pub probes_per_request: f64,
    /// Answers dropped per request: 1; fractions are carried over.
    pub removals_per_request: f64,
    /// The oldest answer that is used: 1 s, and at least a millisecond.
    pub probe_age_max: Duration,
    /// Whether to go on probing while no requests are sent. Without, the first request after a
    /// pause goes anywhere.
    pub idle_probes: bool,
    /// How many more uses than needed answers get, so that the pool does not run dry: 1, that is
    /// twice as many.
    pub reuse_slack: f64,
    /// Which part of the RIFs counts as cold: 84 % (2^-1/4). Less heeds latency less.
    pub hot_quantile: Ratio,
    /// How long an error counts as a request in flight: 5 s.
    pub error_memory: Duration,
    /// How cold backends ramp up.
    pub slow_start: SlowStart,
}

impl Default for PrequalConfig {
    fn default() -> Self {
        Self {
            pool_size: 16,
            probes_per_request: 3.0,
            removals_per_request: 1.0,
            probe_age_max: Duration::from_secs(1),
            idle_probes: true,
            reuse_slack: 1.0,
            hot_quantile: Ratio::percent(84),
            error_memory: MEMORY,
            slow_start: SlowStart::default(),
        }
    }
}

/// Backends to ask, at most eight.
#[derive(Debug, Clone, Copy)]
pub struct Probes {
    ids: [BackendId; PROBES_MAX],
    len: usize,
}

impl Probes {
    const NONE: Self = Self { ids: [BackendId(0); PROBES_MAX], len: 0 };

    /// The backends, each once.
    pub fn as_slice(&self) -> &[BackendId] {
        &self.ids[..self.len]
    }
}

/// A number of things per request, with what is left of a whole one carried over.
#[derive(Debug, Clone)]
struct PerRequest {
    billionths: u64,
    carry: u64,
}

impl PerRequest {
    fn new(quantity: &'static str, value: f64) -> Result<Self, InvalidNumber> {
        if (0.0..=PROBES_MAX as f64).contains(&value) {
            let billionths = (value * f64::from(Ratio::WHOLE)).round() as u64;
            Ok(Self { billionths, carry: 0 })
        } else {
            Err(InvalidNumber::new(quantity, "between 0 and 8", value))
        }
    }

    fn take(&mut self) -> usize {
        let sum = self.carry + self.billionths;
        self.carry = sum % u64::from(Ratio::WHOLE);
        (sum / u64::from(Ratio::WHOLE)) as usize
    }
}

/// A probe's answer in the pool.
#[derive(Debug, Clone, Copy)]
struct Answer {
    backend: BackendId,
    rif: u32,
    latency: u64,
    at: Timestamp,
    uses_left: u32,
}

/// An answer as it is judged now: cold before hot, then by latency or by RIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Score {
    Cold { latency: u64, rif: u64 },
    Hot { rif: u64, latency: u64 },
}

/// Picks by probes.
#[derive(Debug, Clone)]
pub struct Prequal {
    config: PrequalConfig,
    roster: Roster,
    errors: RecentErrors,
    probes: PerRequest,
    removals: PerRequest,
    /// What is left over of the fractional uses of answers.
    reuse_carry: f64,
    /// Whether the next removal takes the worst rather than the oldest.
    worst_next: bool,
    /// Oldest first.
    pool: Vec<Answer>,
    /// RIFs that probes lately found: in order of arrival, and in order of size.
    rifs: VecDeque<u32>,
    rifs_sorted: Vec<u32>,
    /// When the last request was picked for, or the last idle probes were due.
    busy_at: Option<Timestamp>,
    /// Whether the next probes are those of an idle client.
    idle_due: bool,
    now: Timestamp,
}

impl Prequal {
    /// A policy without backends.
    pub fn new(config: PrequalConfig) -> Result<Self, InvalidNumber> {
        if !(2..=256).contains(&config.pool_size) {
            let found = config.pool_size as f64;
            return Err(InvalidNumber::new("the pool of probes", "between 2 and 256", found));
        }
        if !(0.0..=100.0).contains(&config.reuse_slack) {
            let found = config.reuse_slack;
            return Err(InvalidNumber::new("the slack of reuse", "between 0 and 100", found));
        }
        if config.probe_age_max < PROBE_AGE_MIN {
            let found = config.probe_age_max.as_secs_f64();
            return Err(InvalidNumber::new("the age of answers", "0.001 s or more", found));
        }
        Ok(Self {
            config,
            roster: Roster::new(BackendId::LIMIT as usize),
            errors: RecentErrors::new(config.error_memory),
            probes: PerRequest::new("probes per request", config.probes_per_request)?,
            removals: PerRequest::new("removals per request", config.removals_per_request)?,
            reuse_carry: 0.0,
            worst_next: false,
            pool: Vec::with_capacity(config.pool_size),
            rifs: VecDeque::with_capacity(RIFS),
            rifs_sorted: Vec::with_capacity(RIFS),
            busy_at: None,
            idle_due: false,
            now: Timestamp::ZERO,
        })
    }

    /// `id` joins, or comes back; one that joins cold has neither errors nor answers. Whether it is
    /// in now: not if its number is too large.
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        self.advance(now);
        if join == Join::Cold {
            self.errors.clear(id);
            self.pool.retain(|answer| answer.backend != id);
        }
        self.roster.join(id, join, self.now)
    }

    /// `id` asks for no new requests. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId) -> bool {
        self.pool.retain(|answer| answer.backend != id);
        self.roster.lame_duck(id)
    }

    /// `id` is gone, and with it its errors and answers. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId) -> bool {
        self.errors.clear(id);
        self.pool.retain(|answer| answer.backend != id);
        self.roster.leave(id)
    }

    /// Whom to probe along with the request that is being sent, or because a deadline has passed.
    /// Call it once for each of those; backends are drawn by chance, each at most once.
    pub fn probes_wanted(&mut self, rng: &mut impl Rng) -> Probes {
        let serving = self.roster.serving();
        let least = if core::mem::take(&mut self.idle_due) { IDLE_PROBES_MIN } else { 0 };
        let wanted = self.probes.take().max(least).min(serving.len()).min(PROBES_MAX);
        let mut probes = Probes::NONE;
        // Floyd's draw without replacement: every subset is as likely as the others. The first
        // draws leave the last places out, and whoever is drawn twice makes way for the newest.
        for last in serving.len() - wanted..serving.len() {
            let drawn = serving[rng.below(last as u64 + 1) as usize];
            let again = probes.as_slice().contains(&drawn);
            probes.ids[probes.len] = if again { serving[last] } else { drawn };
            probes.len += 1;
        }
        probes
    }

    /// A probe of `id` was answered: so many requests in flight, and so long would one more take.
    /// Whether the answer is kept: not from backends that do not serve.
    pub fn on_probe(&mut self, id: BackendId, rif: u32, latency: Duration, now: Timestamp) -> bool {
        self.advance(now);
        if !self.roster.serves(id) {
            return false;
        }
        self.learn_rif(rif);
        self.pool.retain(|answer| answer.backend != id);
        if self.pool.len() >= self.config.pool_size {
            self.pool.remove(0);
        }
        let budget = self.reuse() + self.reuse_carry;
        self.reuse_carry = budget.fract();
        self.pool.push(Answer {
            backend: id,
            rif,
            latency: nanos(latency),
            at: self.now,
            uses_left: budget as u32,
        });
        true
    }

    /// The backend for a request.
    pub fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<Pick> {
        self.advance(now);
        self.busy_at = Some(self.now);
        let removals = self.removals.take();
        let Some((place, score)) = self.best().filter(|_| self.pool.len() >= 2) else {
            let serving = self.roster.serving();
            return match serving.get(rng.below(serving.len() as u64) as usize) {
                Some(&backend) => Some(Pick { backend, reason: PickReason::TooFewProbes }),
                None => self.roster.pick_lame(),
            };
        };
        let answer = &mut self.pool[place];
        let backend = answer.backend;
        answer.rif = answer.rif.saturating_add(1);
        answer.uses_left = answer.uses_left.saturating_sub(1);
        if answer.uses_left == 0 {
            self.pool.remove(place);
        }
        for _ in 0..removals {
            self.drop_one();
        }
        let reason = match score {
            Score::Cold { .. } => PickReason::LowestLatency,
            Score::Hot { .. } => PickReason::FewestInFlight,
        };
        Some(Pick { backend, reason })
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId) {
        self.roster.on_start(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome, now: Timestamp) {
        self.advance(now);
        self.roster.on_complete(id);
        if outcome.is_failure() == Some(true) && self.roster.standing(id) != Standing::Absent {
            self.errors.record(id);
        }
    }

    /// When a client that sends nothing should probe: never, if that is turned off or there is
    /// nothing to choose from.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let wanted = self.config.idle_probes && self.roster.serving().len() >= IDLE_PROBES_MIN;
        let pause = self.config.probe_age_max / 2;
        wanted.then(|| self.busy_at.map_or(Timestamp::ZERO, |at| at + pause))
    }

    /// If the deadline has passed, the next [`Prequal::probes_wanted`] is to be asked now, without
    /// waiting for a request.
    pub fn on_deadline(&mut self, now: Timestamp) {
        self.advance(now);
        if self.next_deadline().is_some_and(|at| at <= self.now) {
            self.busy_at = Some(self.now);
            self.idle_due = true;
        }
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        self.roster.standing(id)
    }

    /// Attempts on `id` that have begun and not ended.
    pub fn active(&self, id: BackendId) -> u32 {
        self.roster.active(id)
    }

    /// How many answers are in the pool.
    pub fn pool_len(&self) -> usize {
        self.pool.len()
    }

    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        self.errors.forget(self.now);
        let (now, age_max) = (self.now, self.config.probe_age_max);
        self.pool.retain(|answer| now.since(answer.at) <= age_max);
    }

    /// How often an answer may be used, so that at the rates of probing and dropping the pool
    /// neither runs dry nor fills with stale answers.
    fn reuse(&self) -> f64 {
        let PrequalConfig { pool_size, probes_per_request, removals_per_request, .. } = self.config;
        let backends = self.roster.serving().len().max(1);
        let fresh = 1.0 - pool_size as f64 / backends as f64;
        let gain = fresh * probes_per_request - removals_per_request;
        if gain > 0.0 {
            ((1.0 + self.config.reuse_slack) / gain).clamp(1.0, REUSE_MAX)
        } else {
            REUSE_MAX
        }
    }

    fn learn_rif(&mut self, rif: u32) {
        if self.rifs.len() >= RIFS
            && let Some(oldest) = self.rifs.pop_front()
            && let Ok(place) = self.rifs_sorted.binary_search(&oldest)
        {
            self.rifs_sorted.remove(place);
        }
        self.rifs.push_back(rif);
        let place = self.rifs_sorted.partition_point(|&r| r < rif);
        self.rifs_sorted.insert(place, rif);
    }

    /// The RIF that the cold ones do not exceed.
    fn rif_limit(&self) -> u64 {
        // The smallest rank that covers the quantile, counted from zero.
        let exact =
            self.rifs_sorted.len() as u64 * u64::from(self.config.hot_quantile.billionths());
        let rank = exact.div_ceil(u64::from(Ratio::WHOLE)).saturating_sub(1);
        self.rifs_sorted.get(rank as usize).map_or(0, |&rif| u64::from(rif))
    }

    fn score(&self, answer: &Answer, limit: u64) -> Score {
        let errors = u64::from(self.errors.count(answer.backend));
        let step = self.config.slow_start.step(self.roster.cold_since(answer.backend), self.now);
        // One more than it has, as if this request were there already: else an idle newcomer
        // would not be held back at all.
        let load = u64::from(answer.rif) + errors + 1;
        let rif = load * u64::from(STEPS) / u64::from(step) - 1;
        let latency = answer.latency.saturating_mul(errors + 1);
        if rif > limit { Score::Hot { rif, latency } } else { Score::Cold { latency, rif } }
    }

    fn best(&self) -> Option<(usize, Score)> {
        let limit = self.rif_limit();
        let scores = self.pool.iter().map(|answer| self.score(answer, limit));
        scores.enumerate().min_by_key(|&(_, score)| score)
    }

    /// Drops the oldest or the worst, in turn, as long as a choice of two is left.
    fn drop_one(&mut self) {
        if self.pool.len() <= 2 {
            return;
        }
        let limit = self.rif_limit();
        let scores = self.pool.iter().map(|answer| self.score(answer, limit));
        let worst =
            scores.enumerate().max_by_key(|&(_, score)| score).map_or(0, |(place, _)| place);
        self.pool.remove(if self.worst_next { worst } else { 0 });
        self.worst_next = !self.worst_next;
    }
}

#[cfg(test)]
mod tests;
