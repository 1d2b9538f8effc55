//! A pool of probes' answers, and what is picked from it.
//!
//! There is one for a client with a single owner, and one for each thread of a client with many, as
//! if each thread were a client: the answers that a thread picks by are those it asked for itself,
//! and nobody waits for anybody. What all threads share (who serves, this client's errors) comes in
//! through a [`View`].

use super::loads::State;
use super::slow_start::STEPS;
use super::{BackendId, Pick, PickReason, PrequalConfig};
use crate::rng::Rng;
use crate::units::{InvalidNumber, Ratio, Timestamp, nanos};
use core::time::Duration;
use std::collections::VecDeque;

/// No request asks more backends than this. Past five or so, more probes hardly improve the pick;
/// they only cost.
const PROBES_MAX: usize = 8;
/// An answer is used no more often than this, also where the formula has no bound (a pool as large
/// as the set): by then half of what it says is our own compensation.
pub(super) const REUSE_MAX: f64 = 16.0;
/// What an idle client asks at least: with fewer answers there is nothing to choose from.
const IDLE_PROBES_MIN: usize = 2;
/// Answers that live for less are stale on arrival.
const PROBE_AGE_MIN: Duration = Duration::from_millis(1);
/// How many RIFs the quantile is taken of: enough for the 84th percentile, few enough that it
/// follows a surge within some twenty requests.
pub(super) const RIFS: usize = 64;

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
pub(super) struct Answer {
    pub(super) backend: BackendId,
    rif: u32,
    latency: u64,
    at: Timestamp,
    pub(super) uses_left: u32,
    /// Which task had the backend's number.
    task: u32,
}

/// An answer as it is judged now: cold before hot, then by latency or by RIF.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Score {
    Cold { latency: u64, rif: u64 },
    Hot { rif: u64, latency: u64 },
}

/// What a pool has to know of the backends.
pub(super) trait View {
    /// How many serve.
    fn serving(&self) -> usize;
    /// One of those that serve, by its place.
    fn backend(&self, place: usize) -> Option<BackendId>;
    fn state(&self, id: BackendId) -> State;
    /// Recent errors of this client there.
    fn errors(&self, id: BackendId) -> u32;
}

/// Answers, at most so many.
#[derive(Debug, Clone)]
pub(super) struct Pool {
    config: PrequalConfig,
    probes: PerRequest,
    removals: PerRequest,
    /// What is left over of the fractional uses of answers.
    reuse_carry: f64,
    /// Whether the next removal takes the worst rather than the oldest.
    worst_next: bool,
    /// Oldest first.
    pub(super) answers: Vec<Answer>,
    /// RIFs that probes lately found: in order of arrival, and in order of size.
    rifs: VecDeque<u32>,
    rifs_sorted: Vec<u32>,
    /// When the last request was picked for, or the last idle probes were due.
    busy_at: Option<Timestamp>,
    /// Whether the next probes are those of an idle client.
    idle_due: bool,
    /// The latest time seen: a clock that steps back stands still here.
    now: Timestamp,
}

impl Pool {
    /// An empty pool. All the memory that it will ever need is taken here.
    pub(super) fn new(config: PrequalConfig) -> Result<Self, InvalidNumber> {
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
            probes: PerRequest::new("probes per request", config.probes_per_request)?,
            removals: PerRequest::new("removals per request", config.removals_per_request)?,
            reuse_carry: 0.0,
            worst_next: false,
            answers: Vec::with_capacity(config.pool_size),
            rifs: VecDeque::with_capacity(RIFS),
            rifs_sorted: Vec::with_capacity(RIFS),
            busy_at: None,
            idle_due: false,
            now: Timestamp::ZERO,
        })
    }

    /// An empty pool of the same kind.
    pub(super) fn emptied(&self) -> Self {
        let mut pool = Self {
            reuse_carry: 0.0,
            worst_next: false,
            answers: Vec::with_capacity(self.config.pool_size),
            rifs: VecDeque::with_capacity(RIFS),
            rifs_sorted: Vec::with_capacity(RIFS),
            busy_at: None,
            idle_due: false,
            now: Timestamp::ZERO,
            probes: self.probes.clone(),
            removals: self.removals.clone(),
            config: self.config,
        };
        (pool.probes.carry, pool.removals.carry) = (0, 0);
        pool
    }

    pub(super) fn len(&self) -> usize {
        self.answers.len()
    }

    pub(super) fn now(&self) -> Timestamp {
        self.now
    }

    /// Drops what is too old.
    pub(super) fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        let (now, age_max) = (self.now, self.config.probe_age_max);
        self.answers.retain(|answer| now.since(answer.at) <= age_max);
    }

    /// Drops the answers of tasks that are gone or take no requests.
    pub(super) fn prune(&mut self, view: &impl View) {
        self.answers.retain(|answer| {
            let State { step, task } = view.state(answer.backend);
            step > 0 && task == answer.task
        });
    }

    /// Drops the answer of `id`.
    pub(super) fn forget(&mut self, id: BackendId) {
        self.answers.retain(|answer| answer.backend != id);
    }

    pub(super) fn probes_wanted(&mut self, view: &impl View, rng: &mut impl Rng) -> Probes {
        let serving = view.serving();
        let least = if core::mem::take(&mut self.idle_due) { IDLE_PROBES_MIN } else { 0 };
        let wanted = self.probes.take().max(least).min(serving).min(PROBES_MAX);
        let mut probes = Probes::NONE;
        // Floyd's draw without replacement: every subset is as likely as the others. The first
        // draws leave the last places out, and whoever is drawn twice makes way for the newest.
        for last in serving - wanted..serving {
            let drawn = view.backend(rng.below(last as u64 + 1) as usize);
            let fresh = drawn.filter(|id| !probes.as_slice().contains(id));
            // A table that is replaced meanwhile may have fewer, or the same one twice.
            if let Some(id) = fresh.or_else(|| view.backend(last))
                && !probes.as_slice().contains(&id)
            {
                probes.ids[probes.len] = id;
                probes.len += 1;
            }
        }
        probes
    }

    pub(super) fn on_probe(
        &mut self,
        view: &impl View,
        id: BackendId,
        rif: u32,
        latency: Duration,
        now: Timestamp,
    ) -> bool {
        self.advance(now);
        self.prune(view);
        let State { step, task } = view.state(id);
        if step == 0 {
            return false;
        }
        self.learn_rif(rif);
        self.answers.retain(|answer| answer.backend != id);
        if self.answers.len() >= self.config.pool_size {
            self.answers.remove(0);
        }
        let budget = self.reuse(view.serving()) + self.reuse_carry;
        self.reuse_carry = budget.fract();
        self.answers.push(Answer {
            backend: id,
            rif,
            latency: nanos(latency),
            at: self.now,
            uses_left: budget as u32,
            task,
        });
        true
    }

    /// The backend for a request; nothing if nobody serves.
    pub(super) fn pick(
        &mut self,
        view: &impl View,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Option<Pick> {
        self.advance(now);
        self.prune(view);
        self.busy_at = Some(self.now);
        let removals = self.removals.take();
        let Some((place, score)) = self.best(view).filter(|_| self.answers.len() >= 2) else {
            let backend = view.backend(rng.below(view.serving() as u64) as usize)?;
            return Some(Pick { backend, reason: PickReason::TooFewProbes });
        };
        let answer = &mut self.answers[place];
        let backend = answer.backend;
        answer.rif = answer.rif.saturating_add(1);
        answer.uses_left = answer.uses_left.saturating_sub(1);
        if answer.uses_left == 0 {
            self.answers.remove(place);
        }
        for _ in 0..removals {
            self.drop_one(view);
        }
        let reason = match score {
            Score::Cold { .. } => PickReason::LowestLatency,
            Score::Hot { .. } => PickReason::FewestInFlight,
        };
        Some(Pick { backend, reason })
    }

    pub(super) fn next_deadline(&self, serving: usize) -> Option<Timestamp> {
        let wanted = self.config.idle_probes && serving >= IDLE_PROBES_MIN;
        let pause = self.config.probe_age_max / 2;
        wanted.then(|| self.busy_at.map_or(Timestamp::ZERO, |at| at + pause))
    }

    pub(super) fn on_deadline(&mut self, serving: usize, now: Timestamp) {
        self.advance(now);
        if self.next_deadline(serving).is_some_and(|at| at <= self.now) {
            self.busy_at = Some(self.now);
            self.idle_due = true;
        }
    }

    /// How often an answer may be used, so that at the rates of probing and dropping the pool
    /// neither runs dry nor fills with stale answers.
    pub(super) fn reuse(&self, serving: usize) -> f64 {
        let PrequalConfig { pool_size, probes_per_request, removals_per_request, .. } = self.config;
        let fresh = 1.0 - pool_size as f64 / serving.max(1) as f64;
        let gain = fresh * probes_per_request - removals_per_request;
        if gain > 0.0 {
            ((1.0 + self.config.reuse_slack) / gain).clamp(1.0, REUSE_MAX)
        } else {
            REUSE_MAX
        }
    }

    pub(super) fn learn_rif(&mut self, rif: u32) {
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
    pub(super) fn rif_limit(&self) -> u64 {
        // The smallest rank that covers the quantile, counted from zero.
        let exact =
            self.rifs_sorted.len() as u64 * u64::from(self.config.hot_quantile.billionths());
        let rank = exact.div_ceil(u64::from(Ratio::WHOLE)).saturating_sub(1);
        self.rifs_sorted.get(rank as usize).map_or(0, |&rif| u64::from(rif))
    }

    fn best(&self, view: &impl View) -> Option<(usize, Score)> {
        let limit = self.rif_limit();
        let scores = self.answers.iter().map(|answer| score(view, answer, limit));
        scores.enumerate().min_by_key(|&(_, score)| score)
    }

    /// Drops the oldest or the worst, in turn, as long as a choice of two is left.
    fn drop_one(&mut self, view: &impl View) {
        if self.answers.len() <= 2 {
            return;
        }
        let limit = self.rif_limit();
        let scores = self.answers.iter().map(|answer| score(view, answer, limit));
        let worst =
            scores.enumerate().max_by_key(|&(_, score)| score).map_or(0, |(place, _)| place);
        self.answers.remove(if self.worst_next { worst } else { 0 });
        self.worst_next = !self.worst_next;
    }
}

fn score(view: &impl View, answer: &Answer, limit: u64) -> Score {
    let errors = u64::from(view.errors(answer.backend));
    let step = view.state(answer.backend).step.max(1);
    // One more than it has, as if this request were there already: else an idle newcomer
    // would not be held back at all.
    let load = u64::from(answer.rif) + errors + 1;
    let rif = load * u64::from(STEPS) / u64::from(step) - 1;
    let latency = answer.latency.saturating_mul(errors + 1);
    if rif > limit { Score::Hot { rif, latency } } else { Score::Cold { latency, rif } }
}
