//! Those who would decide in the place of tidegate.
//!
//! Each is the shortest honest version of an idea, with its usual parameters, and with criticality
//! added where it knows none, by handing out what it would admit from the top.

use crate::world::contender::Contender;
use core::time::Duration;
use std::collections::VecDeque;
use tidegate_core::average::{Average, Rate};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::signal::LoadAverage;
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Criticality, Timestamp};

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
    pub fn new(cores: u32, from: [f64; 4]) -> Result<Self, InvalidNumber> {
        let load = LoadAverage::new(Duration::from_millis(100), f64::from(cores), Timestamp::ZERO)?;
        Ok(Self { load, level: 0.0, from })
    }
}

impl Contender for Thresholds {
    fn offer(&mut self, criticality: Criticality, _: Timestamp, _: &mut SeededRng) -> bool {
        self.level < self.from[criticality.index()]
    }
    fn tick(&mut self, active: usize, now: Timestamp) {
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
    fn offer(&mut self, criticality: Criticality, now: Timestamp, rng: &mut SeededRng) -> bool {
        let level = criticality.index();
        self.offered[level].add(1.0, now);
        rng.unit() < self.shares[level]
    }
    fn tick(&mut self, active: usize, now: Timestamp) {
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
    fn offer(&mut self, criticality: Criticality, now: Timestamp, rng: &mut SeededRng) -> bool {
        let level = criticality.index();
        self.offered[level].add(1.0, now);
        rng.unit() < self.shares[level]
    }
    fn done(&mut self, work: Duration, _: Option<Duration>, now: Timestamp) {
        self.mean.record(work.as_secs_f64(), now);
    }
    fn tick(&mut self, active: usize, now: Timestamp) {
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
    fn offer(&mut self, criticality: Criticality, _: Timestamp, _: &mut SeededRng) -> bool {
        let share = [0.7, 0.8, 0.9, 1.0][criticality.index()];
        let admits = self.inflight < self.limit * share;
        if admits {
            self.inflight += 1.0;
        }
        admits
    }
    fn done(&mut self, _: Duration, took: Option<Duration>, now: Timestamp) {
        self.inflight -= 1.0;
        let Some(took) = took else { return };
        self.recent.record(took.as_secs_f64(), now);
        self.shortest = self.shortest.min(took.as_secs_f64());
    }
    fn tick(&mut self, _: usize, now: Timestamp) {
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
    waiting: [VecDeque<u64>; 4],
    evicted: Vec<u64>,
}

impl Queue {
    /// A runner for each core and one more, and so many places a core.
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
    fn offer(&mut self, _: Criticality, _: Timestamp, _: &mut SeededRng) -> bool {
        true
    }
    fn hold(&mut self, id: u64, criticality: Criticality) -> bool {
        self.waiting[criticality.index()].push_back(id);
        while self.waiting.iter().map(VecDeque::len).sum::<usize>() > self.places {
            let lowest = self.waiting.iter_mut().find(|q| !q.is_empty());
            self.evicted.extend(lowest.and_then(VecDeque::pop_front));
        }
        true
    }
    fn release(&mut self, active: usize, start: &mut Vec<u64>, refuse: &mut Vec<u64>) {
        refuse.append(&mut self.evicted);
        for _ in active..self.runners {
            let Some(next) = self.waiting.iter_mut().rev().find_map(VecDeque::pop_front) else {
                return;
            };
            start.push(next);
        }
    }
}
