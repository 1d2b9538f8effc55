//! Turns in proportion to what each backend can do.
//!
//! Backends report how many requests they do, how many fail and how utilized they are
//! ([`LoadReport`]); from that follows what each could do at full utilization, its weight. A fast
//! machine, or one without a noisy neighbour, has a larger one and gets more, until all are equally
//! utilized.
//!
//! Once per update period, and at once when a backend goes, the controller works out an order of
//! picks and publishes it to its [`PickGate`]. What a backend gets follows from
//!
//! ```text
//! weight            as reported, if reports have been coming for the blackout and have not expired
//!                   else the mean of the others; with fewer than two usable weights all are equal
//! kept within       median / ratio ..= median x ratio
//! x correction      for what is left between utilizations, see `correction`
//! slow start        a cold backend gets its share of what a warm one of mean weight does, up to
//!                   its own weight; where that is higher, or all are cold, its share of its own
//! x success         successes/attempts lately, as this client saw them; a twentieth at the least
//! ```
//!
//! A cold task that needs twice the CPU for each request reports half the weight. Its ramp ends
//! there: the share of what is already little would leave it idle for no reason.
//!
//! The median and the success are there because a report is the backend's own view. A task with
//! broken counters can claim a utilization of next to nothing; the median bounds what that draws. A
//! task that fails everything at once reports a weight of about its rate, which in an overload is
//! more than the others' rate over utilization: the more it gets, the more it weighs. One that
//! cannot be reached reports nothing and keeps its weight until that expires. What this client sees
//! for itself settles both, and the twentieth that is left finds out when the task has recovered.
//!
//! A single owner picks and tells outcomes through [`Weighted`] itself. Where many threads send,
//! each does so through a [`WeightedLane`](super::WeightedLane), without a lock.

use super::correction::Correction;
use super::gate::PickGate;
use super::lane::{LaneBooks, WeightedLanes};
use super::order::Order;
use super::roster::Roster;
use super::slow_start::SlowStart;
use super::weight::{LoadReport, ReportFate, ReportedWeight};
use super::{BackendId, Join, Pick, PickReason, Standing, errors};
use crate::outcome::Outcome;
use crate::units::{InvalidNumber, Ratio, Timestamp};
use crate::window::Window;
use core::time::Duration;
use std::sync::Arc;

/// The least that failures leave of a weight: enough to notice a recovery, little enough that a
/// task of mean weight among ten costs half a percent of the requests.
const SUCCESS_MIN: f64 = 0.05;

/// Working out an order for a thousand backends takes a tenth of a millisecond or so: with a period
/// of a millisecond it is still a small part of a core, with less it would be done for every pick.
const UPDATE_PERIOD_MIN: Duration = Duration::from_millis(1);

/// How weighted round robin weighs.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct WeightedConfig {
    /// How many backends there can be, and the end of their numbers: sizes the gate, 64 bytes for
    /// each, and every lane, 32 bytes for each.
    pub backends_max: usize,
    /// How long reports have to have been coming before they count: 10 s. The first reports of a
    /// task tell of its start, not of its work.
    pub blackout: Duration,
    /// How old the last report may be: 3 minutes.
    pub expiry: Duration,
    /// How often weights turn into a new order: 1 s, and at least a millisecond. More often follows
    /// noise; less often lets utilizations drift apart.
    pub update_period: Duration,
    /// How much utilization a share of failures of 1 counts as: 1.
    pub error_penalty: f64,
    /// How many times larger or smaller than the median a weight may be: 10. Machines of one
    /// service differ less than that; reports that differ more are wrong.
    pub ratio_max: f64,
    /// How far differences between utilizations that weights leave may correct these, up and down:
    /// 2, which levels a backend that does as many requests that come in any case as go by weight.
    /// 1 leaves them as reported, as gRPC and Envoy do.
    pub correction_max: f64,
    /// How long successes and failures seen by this client count: 5 s. Zero leaves them out.
    pub outcome_memory: Duration,
    /// How cold backends ramp up.
    pub slow_start: SlowStart,
}

impl Default for WeightedConfig {
    fn default() -> Self {
        Self {
            backends_max: 1_024,
            blackout: Duration::from_secs(10),
            expiry: Duration::from_secs(180),
            update_period: Duration::from_secs(1),
            error_penalty: 1.0,
            ratio_max: 10.0,
            correction_max: 2.0,
            outcome_memory: errors::MEMORY,
            slow_start: SlowStart::default(),
        }
    }
}

/// What is known about one backend. What an answer touches is on one cache line: a client's last
/// answer from the same backend is usually long ago, and each line is waited for.
#[derive(Debug)]
#[repr(C, align(64))]
struct Record {
    reported: ReportedWeight,
    /// Successes and failures.
    outcomes: Window<[u32; 2]>,
    correction: Correction,
}

/// Weighted round robin. What a pick needs is on the first cache line, and what a report needs of
/// the configuration on another: there may be thousands of these, and each line is waited for.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Weighted {
    next_update: Timestamp,
    /// That of `order`.
    gate: Arc<PickGate>,
    /// By number; set for those that are or were in the set.
    records: Vec<Option<Record>>,
    roster: Roster,
    reports_dropped: u64,
    weights: Vec<(BackendId, f64)>,
    /// When corrections were last learnt.
    corrected: Timestamp,
    config: WeightedConfig,
    order: Order,
    lanes: LaneBooks,
}

impl Weighted {
    /// A policy without backends.
    pub fn new(mut config: WeightedConfig) -> Result<Self, InvalidNumber> {
        let WeightedConfig { error_penalty: penalty, ratio_max: ratio, .. } = config;
        if !(0.0..=1_000.0).contains(&penalty) {
            return Err(InvalidNumber::new(
                "the penalty for errors",
                "between 0 and 1000",
                penalty,
            ));
        }
        if !(1.0..=1e6).contains(&ratio) {
            return Err(InvalidNumber::new("the ratio of weights", "between 1 and 1e6", ratio));
        }
        let correction = config.correction_max;
        if !(1.0..=1e6).contains(&correction) {
            let wanted = "between 1 and 1e6";
            return Err(InvalidNumber::new("the correction of weights", wanted, correction));
        }
        if config.update_period < UPDATE_PERIOD_MIN {
            let found = config.update_period.as_secs_f64();
            return Err(InvalidNumber::new("seconds between orders", "0.001 or more", found));
        }
        config.backends_max = config.backends_max.min(BackendId::LIMIT as usize);
        let backends_max = config.backends_max;
        let order = Order::new(backends_max);
        Ok(Self {
            next_update: Timestamp::ZERO,
            gate: Arc::clone(order.gate()),
            records: Vec::new(),
            roster: Roster::new(backends_max),
            reports_dropped: 0,
            weights: Vec::new(),
            corrected: Timestamp::MAX,
            config,
            order,
            lanes: LaneBooks::new(backends_max),
        })
    }

    /// Where threads pick. Call [`Weighted::on_deadline`] when it is due to keep it fresh.
    pub fn gate(&self) -> Arc<PickGate> {
        Arc::clone(&self.gate)
    }

    /// Where threads get lanes, to pick and to tell outcomes without this controller's owner. What
    /// they tell is taken in by [`Weighted::on_deadline`].
    pub fn lanes(&self) -> WeightedLanes {
        self.lanes.lanes(&self.gate)
    }

    /// `id` joins, or comes back, and what was known about it no longer counts. It gets requests
    /// from the next pick or deadline on. Whether it is in now: not if its number is not below
    /// [`WeightedConfig::backends_max`].
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        let known = self.roster.serves(id);
        if id.index() >= self.config.backends_max || !self.roster.join(id, join, now) {
            return false;
        }
        if !known || join == Join::Cold {
            if self.record(id).is_some() {
                // What the lanes have counted so far was about the task before.
                self.take_in(now);
            }
            if self.records.len() <= id.index() {
                self.records.resize_with(id.index() + 1, || None);
            }
            self.records[id.index()] = Some(Record {
                reported: ReportedWeight::default(),
                outcomes: Window::new(self.config.outcome_memory, 8),
                correction: Correction::default(),
            });
            // Due at once, and only once however many join together.
            self.next_update = Timestamp::ZERO;
        }
        true
    }

    /// `id` asks for no new requests; hearing that again costs nothing. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId, now: Timestamp) -> bool {
        let served = self.roster.serves(id);
        let known = self.roster.lame_duck(id);
        if served {
            self.update(now);
        }
        known
    }

    /// `id` is gone. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId, now: Timestamp) -> bool {
        let known = self.roster.leave(id);
        if known {
            self.update(now);
        }
        known
    }

    #[inline]
    pub(super) fn peek(&self) -> Option<BackendId> {
        self.gate.peek()
    }

    #[inline]
    pub(super) fn touch_start(&self, id: BackendId) -> u64 {
        self.roster.active(id).into()
    }

    #[inline]
    pub(super) fn touch_end(&self, id: BackendId) -> u64 {
        let record = self.records.get(id.index()).and_then(Option::as_ref);
        let word = record.map_or(0, |record| record.outcomes.touch());
        word ^ self.touch_start(id) ^ self.config.error_penalty.to_bits()
    }

    /// The backend whose turn it is. For a single owner: what is due is done first.
    #[inline]
    pub fn pick(&mut self, now: Timestamp) -> Option<Pick> {
        self.on_deadline(now);
        self.gate.pick()
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId) {
        self.roster.on_start(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome, now: Timestamp) {
        self.roster.on_complete(id);
        if let Some(failed) = outcome.is_failure() {
            learn(&mut self.records, id, [u64::from(!failed), u64::from(failed)], now);
        }
    }

    /// `id` reports its load.
    pub fn on_report(&mut self, id: BackendId, report: &LoadReport, now: Timestamp) -> ReportFate {
        if self.roster.standing(id) == Standing::Absent {
            return ReportFate::Unused;
        }
        let WeightedConfig { error_penalty, expiry, .. } = self.config;
        let fate = self.record(id).map_or(ReportFate::Unused, |record| {
            record.reported.on_report(report, error_penalty, expiry, now)
        });
        if fate == ReportFate::Invalid {
            self.reports_dropped += 1;
        }
        fate
    }

    /// How many reports were dropped for a number that makes no sense.
    pub fn reports_dropped(&self) -> u64 {
        self.reports_dropped
    }

    /// When [`Weighted::on_deadline`] wants to be called next.
    pub fn next_deadline(&self) -> Timestamp {
        self.next_update
    }

    /// Takes in what lanes have counted and publishes a new order, if one is due.
    #[inline]
    pub fn on_deadline(&mut self, now: Timestamp) {
        if now >= self.next_update {
            self.update(now);
        }
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        self.roster.standing(id)
    }

    /// Attempts on `id` that have begun and not ended; those on lanes as of the last order.
    pub fn active(&self, id: BackendId) -> u32 {
        self.roster.active(id).saturating_add(self.lanes.active(id))
    }

    /// The backends of the order now in force, each with its weight; the shares of picks are in
    /// proportion. Empty when nobody serves.
    pub fn weights(&self) -> &[(BackendId, f64)] {
        &self.weights
    }

    /// How many orders have been published. Each costs O(backends).
    pub fn orders_published(&self) -> u64 {
        self.order.published()
    }

    fn record(&mut self, id: BackendId) -> Option<&mut Record> {
        self.records.get_mut(id.index())?.as_mut()
    }

    #[cold]
    fn update(&mut self, now: Timestamp) {
        self.next_update = now + self.config.update_period;
        self.take_in(now);
        if self.roster.serving().is_empty() {
            self.weights.clear();
            self.order.in_turn(self.roster.lame(), PickReason::AllLameDuck);
            return;
        }
        let reason = self.weigh(now);
        self.order.by_weight(&self.weights, reason);
    }

    fn take_in(&mut self, now: Timestamp) {
        let Self { lanes, records, .. } = self;
        lanes.take_in(records.len(), |id, outcomes| learn(records, id, outcomes, now));
    }

    /// Brings `weights` up to date.
    fn weigh(&mut self, now: Timestamp) -> PickReason {
        self.correct(now);
        let Self { config, roster, records, weights, .. } = self;
        weights.clear();
        let mut usable: Vec<f64> = Vec::new();
        for &id in roster.serving() {
            // Zero stands for "has none" until the mean is known; no usable weight is zero.
            let record = records.get(id.index()).and_then(Option::as_ref);
            let usable_now = |r: &Record| r.reported.usable(config.blackout, config.expiry, now);
            let weight = record.and_then(usable_now).map(|(weight, _)| weight);
            usable.extend(weight);
            weights.push((id, weight.unwrap_or(0.0)));
        }
        let reason = if usable.len() < 2 {
            for (_, weight) in weights.iter_mut() {
                *weight = 1.0;
            }
            PickReason::TooFewWeights
        } else {
            settle(weights, &mut usable, config.ratio_max);
            PickReason::Weighted
        };
        let share = |id| {
            let since = roster.cold_since(id).map(|start| now.since(start))?;
            Some(config.slow_start.share(since)).filter(|&share| share < Ratio::ONE)
        };
        let warm = mean(weights.iter().filter(|(id, _)| share(*id).is_none()).map(|&(_, w)| w));
        for (id, weight) in weights {
            if let Some(share) = share(*id) {
                // All of them cold: their shares cancel out.
                let full = warm.unwrap_or(*weight).max(*weight);
                *weight = weight.min(full * share.get());
            }
            if let Some(record) = records.get_mut(id.index()).and_then(Option::as_mut) {
                *weight *= success(config.outcome_memory, record.outcomes.total(now));
                *weight *= record.correction.factor();
            }
        }
        reason
    }

    /// Learns what weights leave between the utilizations of those that are warm.
    fn correct(&mut self, now: Timestamp) {
        let elapsed = now.since(core::mem::replace(&mut self.corrected, now));
        let Self { config, roster, records, .. } = self;
        let ramp = config.slow_start.window;
        let mut warm = Vec::new();
        for &id in roster.serving() {
            let cold = roster.cold_since(id).is_some_and(|start| now.since(start) < ramp);
            let record = records.get(id.index()).and_then(Option::as_ref).filter(|_| !cold);
            // Until it has been weighed for a while, its utilization is not what weights leave.
            let weighed = config.blackout.saturating_mul(2);
            let usable = record.and_then(|r| r.reported.usable(weighed, config.expiry, now));
            warm.extend(usable.and_then(|(_, utilization)| Some((id, utilization?))));
        }
        let Some(mean) = mean(warm.iter().map(|&(_, utilization)| utilization)) else { return };
        for (id, utilization) in warm {
            if let Some(record) = records.get_mut(id.index()).and_then(Option::as_mut) {
                record.correction.learn(utilization, mean, elapsed, config.correction_max);
            }
        }
    }
}

/// So many attempts on `id` succeeded and failed.
fn learn(records: &mut [Option<Record>], id: BackendId, outcomes: [u64; 2], now: Timestamp) {
    if let Some(record) = records.get_mut(id.index()).and_then(Option::as_mut) {
        let outcomes = outcomes.map(|count| u32::try_from(count).unwrap_or(u32::MAX));
        record.outcomes.add(outcomes, now);
    }
}

/// Keeps weights within bounds around the median, and gives those that have none the mean.
fn settle(weights: &mut [(BackendId, f64)], usable: &mut [f64], ratio: f64) {
    // The lower of the two in the middle: of two backends, the one that claims more is bounded.
    let middle = (usable.len() - 1) / 2;
    let (_, &mut median, _) = usable.select_nth_unstable_by(middle, f64::total_cmp);
    let bounded = |weight: f64| weight.clamp(median / ratio, median * ratio);
    let mean = mean(usable.iter().map(|&weight| bounded(weight))).unwrap_or(median);
    for (_, weight) in weights {
        *weight = if *weight > 0.0 { bounded(*weight) } else { mean };
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    (count > 0.0).then(|| sum / count)
}

/// The share of attempts that succeed. One success that was not seen is taken for granted, so that
/// a first failure halves a weight and does not end it.
fn success(memory: Duration, [successes, failures]: [u32; 2]) -> f64 {
    if memory.is_zero() {
        return 1.0;
    }
    let successes = f64::from(successes) + 1.0;
    (successes / (successes + f64::from(failures))).max(SUCCESS_MIN)
}

#[cfg(test)]
mod tests;
