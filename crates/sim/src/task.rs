//! One backend task: cores, a queue, and the gate in front of them.
//!
//! Requests that were admitted run to the end on the first core that is free, in the order in which
//! they came, as in a runtime whose handlers do not yield. Refusing costs CPU as well: it is done
//! by the same cores, before the next request starts.

use core::time::Duration;
use std::collections::{BinaryHeap, VecDeque};
use std::sync::Arc;
use tidegate_core::admission::shed::{Plan, ShedConfig};
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{Rejection, SignalId};
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::Rng;
use tidegate_core::signal::{Combine, LoadAverage, Signal, Signals};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Cost, Criticality, Timestamp};

/// How often the controller looks.
pub const TICK: Duration = Duration::from_millis(10);

/// The machine and its protection.
#[derive(Debug, Clone)]
pub struct TaskConfig {
    /// Cores of the task.
    pub cores: u32,
    /// What refusing a request costs.
    pub reject_cost: Duration,
    /// Tasks running or ready per core that are as many as there should be.
    pub load_target: f64,
    /// Time constant of the executor load average.
    pub load_tau: Duration,
    /// How to shed; `None` is no protection at all.
    pub shed: Option<ShedConfig>,
}

impl Default for TaskConfig {
    fn default() -> Self {
        Self {
            cores: 1,
            reject_cost: Duration::from_micros(20),
            load_target: 16.0,
            load_tau: LoadAverage::TAU_DEFAULT,
            shed: Some(ShedConfig::default()),
        }
    }
}

/// A request that came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// When it arrived.
    pub arrived: Timestamp,
    /// When it was done.
    pub finished: Timestamp,
    /// What it counted as.
    pub criticality: Criticality,
}

#[derive(Debug)]
struct Job {
    arrived: Timestamp,
    work: Duration,
    permit: Permit,
}

/// A backend task in virtual time.
#[derive(Debug)]
pub struct Task {
    config: TaskConfig,
    gate: Arc<AdmissionGate>,
    lane: Lane,
    controller: Controller,
    signals: Signals,
    load: LoadAverage,
    load_signal: SignalId,
    waiting: VecDeque<Job>,
    /// When each busy core will be free, latest last, by the order of the heap.
    running: BinaryHeap<Running>,
    /// Refusals that the cores have not got round to.
    chores: Duration,
    next_tick: Timestamp,
}

#[derive(Debug)]
struct Running {
    finishes: Timestamp,
    /// Breaks ties in the order of arrival.
    number: u64,
    job: Job,
}

impl PartialEq for Running {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Running {}

impl PartialOrd for Running {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Running {
    /// The one that finishes first is the greatest, as the heap gives out the greatest.
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        (other.finishes, other.number).cmp(&(self.finishes, self.number))
    }
}

impl Task {
    /// An idle task at time zero.
    pub fn new(config: TaskConfig) -> Result<Self, InvalidNumber> {
        let shed = config.shed.clone().unwrap_or_default().cpus(f64::from(config.cores))?;
        let mut quota = QuotaConfig::default();
        quota.customers_max = 16;
        let gate = AdmissionGate::new(quota);
        let now = Timestamp::ZERO;
        let mut signals = Signals::new(Combine::Highest);
        let load_signal = signals
            .register(Signal::new("executor_load", config.load_target)?)
            .unwrap_or(SignalId::COMBINED);
        Ok(Self {
            lane: gate.lane(),
            controller: Controller::new(shed, AttemptsConfig::default(), &gate, now),
            signals,
            load: LoadAverage::new(config.load_tau, f64::from(config.cores), now)?,
            load_signal,
            waiting: VecDeque::new(),
            running: BinaryHeap::new(),
            chores: Duration::ZERO,
            next_tick: now + TICK,
            gate,
            config,
        })
    }

    /// The gate in front of the task.
    pub fn gate(&self) -> &Arc<AdmissionGate> {
        &self.gate
    }

    /// Whether nothing is running or waiting.
    pub fn is_idle(&self) -> bool {
        self.running.is_empty()
    }

    /// When something will happen by itself: a core becomes free, or the controller looks.
    pub fn next_event(&self) -> Timestamp {
        self.running.peek().map_or(Timestamp::MAX, |r| r.finishes).min(self.next_tick)
    }

    /// Lets the next thing happen, at `now` = [`Task::next_event`].
    pub fn advance(&mut self, now: Timestamp) -> (Option<Done>, Option<Plan>) {
        let finished = self.running.peek().is_some_and(|r| r.finishes <= now);
        let done = if finished { self.finish(now) } else { None };
        let plan = if self.next_tick <= now { self.tick(now) } else { None };
        (done, plan)
    }

    /// A request that will take `work` of CPU arrives.
    pub fn offer(
        &mut self,
        request: &Request,
        work: Duration,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Result<(), Rejection> {
        match self.lane.admit(request, now, rng) {
            Decision::Admit(permit) => {
                self.waiting.push_back(Job { arrived: now, work, permit });
                self.start(now);
                self.sample(now);
                Ok(())
            }
            Decision::Reject(rejection) => {
                self.chores += self.config.reject_cost;
                Err(rejection)
            }
        }
    }

    fn active(&self) -> u64 {
        (self.waiting.len() + self.running.len()) as u64
    }

    fn sample(&mut self, now: Timestamp) {
        let active = self.active();
        let smoothed = self.load.record(active, now);
        let instant = active as f64 / f64::from(self.config.cores);
        self.signals.record_smoothed(self.load_signal, smoothed, instant, now);
    }

    fn start(&mut self, now: Timestamp) {
        while self.running.len() < self.config.cores as usize {
            let Some(job) = self.waiting.pop_front() else { return };
            let finishes = now + core::mem::take(&mut self.chores) + job.work;
            let number = job.arrived.as_nanos();
            self.running.push(Running { finishes, number, job });
        }
    }

    fn finish(&mut self, now: Timestamp) -> Option<Done> {
        let Job { arrived, work, permit } = self.running.pop()?.job;
        let criticality = permit.criticality();
        let cost = Cost::from_nanos(u64::try_from(work.as_nanos()).unwrap_or(u64::MAX));
        self.lane.complete(permit, cost, now);
        self.start(now);
        self.sample(now);
        Some(Done { arrived, finished: now, criticality })
    }

    fn tick(&mut self, now: Timestamp) -> Option<Plan> {
        self.next_tick = now + TICK;
        self.sample(now);
        self.config.shed.as_ref()?;
        let load = self.active() as f64 / f64::from(self.config.cores);
        let seen = Seen::new(self.signals.reading(now)).load(load);
        Some(self.controller.tick(&self.gate, seen, now))
    }
}
