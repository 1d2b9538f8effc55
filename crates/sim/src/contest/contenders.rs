//! Those who decide.
//!
//! tidegate's own controller runs as it is. The others are here to be measured beside it: each is
//! the shortest honest version of an idea, with its usual parameters, and with criticality added
//! where it knows none, by handing out what it would admit from the top.

use super::{Answer, Asked, Contender};
use core::time::Duration;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::average::{Average, Rate};
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::decision::SignalId;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::signal::{Combine, LoadAverage, Signal, Signals};
use tidegate_core::{Cost, CustomerId, Timestamp};

/// Lets everything in.
#[derive(Debug, Default)]
pub struct Bare;

impl Contender for Bare {
    fn offer(&mut self, _: Asked, _: usize, _: Timestamp, _: &mut SeededRng) -> Answer {
        Answer::Admit
    }
    fn done(&mut self, _: u32, _: Duration, _: Duration, _: usize, _: Timestamp) {}
    fn tick(&mut self, _: usize, _: f64, _: Timestamp) {}
}

/// tidegate-core's own gate and controller.
#[derive(Debug)]
pub struct Tidegate {
    gate: Arc<AdmissionGate>,
    lane: Lane,
    controller: Controller,
    signals: Signals,
    load: LoadAverage,
    id: SignalId,
    cores: f64,
    used: f64,
    /// The fewest running or ready since the last tick.
    least: usize,
    permits: HashMap<u32, Permit>,
    costs: CostLane,
}

impl Tidegate {
    /// With its defaults.
    pub fn new(cores: u32, mean: f64) -> Self {
        let now = Timestamp::ZERO;
        let cores = f64::from(cores.max(1));
        let shed = ShedConfig::default().cpus(cores).expect("cores");
        let mut quota = QuotaConfig::default();
        quota.customers_max = 4;
        let gate = AdmissionGate::new(quota);
        let mut signals = Signals::new(Combine::Highest);
        let signal = Signal::new("executor_load", 16.0).expect("a target");
        let id = signals.register(signal).expect("one signal");
        let guess = Cost::from_nanos((mean * 1e9) as u64);
        Self {
            lane: gate.lane(),
            controller: Controller::new(shed, AttemptsConfig::default(), &gate, now),
            signals,
            load: LoadAverage::new(LoadAverage::TAU_DEFAULT, cores, now).expect("cores"),
            id,
            cores,
            used: 0.0,
            least: 0,
            permits: HashMap::new(),
            costs: CostTable::new(4, guess).lane(),
            gate,
        }
    }
}

impl Contender for Tidegate {
    fn offer(&mut self, asked: Asked, _: usize, now: Timestamp, rng: &mut SeededRng) -> Answer {
        let cost = self.costs.estimate(CustomerId::DEFAULT, MethodId(0));
        match self.lane.admit(&Request::new(asked.criticality, cost), now, rng) {
            Decision::Admit(permit) => {
                self.permits.insert(asked.id, permit);
                Answer::Admit
            }
            Decision::Reject(_) => Answer::Refuse,
        }
    }
    fn done(&mut self, id: u32, work: Duration, _: Duration, _: usize, now: Timestamp) {
        let cost = Cost::from_nanos(work.as_nanos() as u64);
        self.costs.record(CustomerId::DEFAULT, MethodId(0), cost);
        if let Some(permit) = self.permits.remove(&id) {
            self.lane.complete(permit, cost, now);
        }
    }
    fn tick(&mut self, active: usize, used: f64, now: Timestamp) {
        self.sample(active, now);
        let cost = Cost::from_nanos(((used - self.used).max(0.0) * 1e9) as u64);
        self.used = self.used.max(used);
        let load = active as f64 / self.cores;
        let least = core::mem::replace(&mut self.least, active) as f64 / self.cores;
        let seen = Seen::new(self.signals.reading(now)).load(load).load_least(least).used(cost);
        self.controller.tick(&self.gate, seen, now);
    }
    fn sample(&mut self, active: usize, now: Timestamp) {
        self.least = self.least.min(active);
        let smoothed = self.load.record(active as u64, now);
        self.signals.record_smoothed(self.id, smoothed, active as f64 / self.cores, now);
    }
}

/// The book's: a criticality is refused while the smoothed load is above its threshold.
#[derive(Debug)]
pub struct Thresholds {
    load: LoadAverage,
    level: f64,
    /// Load per core from which each criticality is refused, lowest first.
    from: [f64; 4],
}

impl Thresholds {
    /// Refuses from these loads per core on.
    pub fn new(cores: u32, from: [f64; 4]) -> Self {
        let load = LoadAverage::new(Duration::from_millis(100), f64::from(cores), Timestamp::ZERO);
        Self { load: load.expect("cores"), level: 0.0, from }
    }
}

impl Contender for Thresholds {
    fn offer(&mut self, asked: Asked, _: usize, _: Timestamp, _: &mut SeededRng) -> Answer {
        if self.level < self.from[asked.criticality.index()] {
            Answer::Admit
        } else {
            Answer::Refuse
        }
    }
    fn done(&mut self, _: u32, _: Duration, _: Duration, _: usize, _: Timestamp) {}
    fn tick(&mut self, active: usize, _: f64, now: Timestamp) {
        self.sample(active, now);
    }
    fn sample(&mut self, active: usize, now: Timestamp) {
        self.level = self.load.record(active as u64, now);
    }
}

/// A proportional-integral cut over criticalities: the share of what is offered to admit is
/// steered by the load, and handed out from the top by a histogram of what is offered.
#[derive(Debug)]
pub struct Pi {
    cores: f64,
    target: f64,
    share: f64,
    last: f64,
    offered: [Rate; 4],
    shares: [f64; 4],
}

impl Pi {
    /// Holds `target` per core.
    pub fn new(cores: u32, target: f64) -> Self {
        let rate = || Rate::new(Duration::from_millis(200), Timestamp::ZERO);
        Self {
            cores: f64::from(cores),
            target,
            share: 1.0,
            last: 0.0,
            offered: [rate(), rate(), rate(), rate()],
            shares: [1.0; 4],
        }
    }
}

impl Contender for Pi {
    fn offer(&mut self, asked: Asked, _: usize, now: Timestamp, rng: &mut SeededRng) -> Answer {
        let level = asked.criticality.index();
        self.offered[level].add(1.0, now);
        if rng.unit() < self.shares[level] { Answer::Admit } else { Answer::Refuse }
    }
    fn done(&mut self, _: u32, _: Duration, _: Duration, _: usize, _: Timestamp) {}
    fn tick(&mut self, active: usize, _: f64, now: Timestamp) {
        let load = active as f64 / self.cores / self.target;
        // Gains by hand: 5 % of the share a tick at twice the target, damped by the change.
        let change = -0.05 * (load - 1.0).clamp(-1.0, 3.0) - 0.2 * (load - self.last);
        self.last = load;
        self.share = (self.share * (1.0 + change)).clamp(0.01, 1.0);
        let rates: [f64; 4] = core::array::from_fn(|i| self.offered[i].per_second(now));
        let mut left = self.share * rates.iter().sum::<f64>();
        for level in (0..4).rev() {
            self.shares[level] =
                if rates[level] <= left { 1.0 } else { (left / rates[level]).max(0.0) };
            left = (left - rates[level]).max(0.0);
        }
    }
}

/// `CoDel` on the delay from becoming ready to running: while the lowest delay of an interval is
/// above target, requests are refused at growing frequency, lowest criticality first.
#[derive(Debug)]
pub struct CoDel {
    cores: f64,
    mean: Average,
    interval_ends: Timestamp,
    lowest: f64,
    /// Refusals per request offered, that grow while the delay stays.
    severity: f64,
    offered: [Rate; 4],
    shares: [f64; 4],
}

impl CoDel {
    /// With the usual 5 ms in 100 ms.
    pub fn new(cores: u32) -> Self {
        let rate = || Rate::new(Duration::from_millis(200), Timestamp::ZERO);
        Self {
            cores: f64::from(cores),
            mean: Average::new(Duration::from_secs(1)),
            interval_ends: Timestamp::ZERO,
            lowest: f64::MAX,
            severity: 0.0,
            offered: [rate(), rate(), rate(), rate()],
            shares: [1.0; 4],
        }
    }
}

impl Contender for CoDel {
    fn offer(&mut self, asked: Asked, _: usize, now: Timestamp, rng: &mut SeededRng) -> Answer {
        let level = asked.criticality.index();
        self.offered[level].add(1.0, now);
        if rng.unit() < self.shares[level] { Answer::Admit } else { Answer::Refuse }
    }
    fn done(&mut self, _: u32, work: Duration, _: Duration, _: usize, now: Timestamp) {
        self.mean.record(work.as_secs_f64(), now);
    }
    fn tick(&mut self, active: usize, _: f64, now: Timestamp) {
        let waiting = (active as f64 - self.cores).max(0.0) / self.cores;
        self.lowest = self.lowest.min(waiting * self.mean.get().unwrap_or(0.0));
        if now >= self.interval_ends {
            self.interval_ends = now + Duration::from_millis(100);
            if self.lowest > 0.005 {
                self.severity += 1.0;
            } else {
                self.severity = (self.severity - 2.0).max(0.0);
            }
            self.lowest = f64::MAX;
        }
        let rates: [f64; 4] = core::array::from_fn(|i| self.offered[i].per_second(now));
        let mut cut = (1.0 - 1.0 / (1.0 + 0.1 * self.severity)) * rates.iter().sum::<f64>();
        for (share, rate) in self.shares.iter_mut().zip(rates) {
            let here = cut.min(rate);
            *share = if rate > 0.0 { 1.0 - here / rate } else { 1.0 };
            cut -= here;
        }
    }
}

/// As many at once as the gradient of latency allows, with thresholds by criticality.
#[derive(Debug)]
pub struct Gradient {
    limit: f64,
    inflight: f64,
    shortest: f64,
    recent: Average,
    until: Timestamp,
}

impl Gradient {
    /// Starts at ten a core.
    pub fn new(cores: u32) -> Self {
        Self {
            limit: 10.0 * f64::from(cores),
            inflight: 0.0,
            shortest: f64::MAX,
            recent: Average::new(Duration::from_millis(500)),
            until: Timestamp::ZERO,
        }
    }
}

impl Contender for Gradient {
    fn offer(&mut self, asked: Asked, _: usize, _: Timestamp, _: &mut SeededRng) -> Answer {
        let share = [0.7, 0.8, 0.9, 1.0][asked.criticality.index()];
        if self.inflight < self.limit * share {
            self.inflight += 1.0;
            Answer::Admit
        } else {
            Answer::Refuse
        }
    }
    fn done(&mut self, _: u32, _: Duration, took: Duration, _: usize, now: Timestamp) {
        self.inflight -= 1.0;
        self.recent.record(took.as_secs_f64(), now);
        self.shortest = self.shortest.min(took.as_secs_f64());
    }
    fn tick(&mut self, _: usize, _: f64, now: Timestamp) {
        if now < self.until {
            return;
        }
        self.until = now + Duration::from_millis(100);
        let Some(recent) = self.recent.get() else { return };
        let gradient = (2.0 * self.shortest / recent).clamp(0.5, 1.0);
        let wanted = self.limit * gradient + self.limit.sqrt();
        self.limit = (0.8 * self.limit + 0.2 * wanted).clamp(3.0, 1e4);
    }
}

/// A short queue in front of few runners, highest criticality first; when it is full the lowest
/// goes.
#[derive(Debug)]
pub struct Queue {
    runners: usize,
    places: usize,
    waiting: [VecDeque<u32>; 4],
    evicted: Vec<u32>,
}

impl Queue {
    /// Two runners a core, and so many places a core.
    pub fn new(cores: u32, places: usize) -> Self {
        Self {
            runners: 1 + cores as usize,
            places: places * cores as usize,
            waiting: Default::default(),
            evicted: Vec::new(),
        }
    }
}

impl Contender for Queue {
    fn offer(&mut self, asked: Asked, _: usize, _: Timestamp, _: &mut SeededRng) -> Answer {
        self.waiting[asked.criticality.index()].push_back(asked.id);
        while self.waiting.iter().map(VecDeque::len).sum::<usize>() > self.places {
            let lowest = self.waiting.iter_mut().find(|q| !q.is_empty());
            self.evicted.extend(lowest.and_then(VecDeque::pop_front));
        }
        Answer::Hold
    }
    fn done(&mut self, _: u32, _: Duration, _: Duration, _: usize, _: Timestamp) {}
    fn tick(&mut self, _: usize, _: f64, _: Timestamp) {}
    fn release(
        &mut self,
        active: usize,
        _: Timestamp,
        start: &mut Vec<u32>,
        refuse: &mut Vec<u32>,
    ) {
        refuse.append(&mut self.evicted);
        for _ in active..self.runners {
            let Some(next) = self.waiting.iter_mut().rev().find_map(VecDeque::pop_front) else {
                return;
            };
            start.push(next);
        }
    }
}
