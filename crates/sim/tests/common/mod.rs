//! One task, offered more or less than it can do, phase by phase.

// Each test uses some of it.
#![allow(dead_code, unreachable_pub)]

use std::ops::Range;
use std::time::Duration;
use tidegate_core::{Criticality, Timestamp};
use tidegate_sim::world::World;
use tidegate_sim::world::cpu::Sharing;
use tidegate_sim::world::log::{Attempt, Ending, Log, Look};
use tidegate_sim::world::record::{ClientBin, Record};
use tidegate_sim::world::spec::{
    AdmissionSpec, Arrivals, Change, ClientSpec, ServiceSpec, TaskSpec, WorkSpec, WorldSpec,
};

/// Bins of a record in a second.
const BINS: usize = 10;

/// A task and what is asked of it.
#[derive(Clone)]
pub struct Story {
    pub seed: u64,
    pub cores: u32,
    pub work: WorkSpec,
    /// How long requests wait for something else before they need the CPU.
    pub waits: Duration,
    pub reject_cost: Duration,
    /// CPU time of a degraded answer as a share of a full one.
    pub degraded: Option<f64>,
    pub admission: Option<AdmissionSpec>,
    pub patience: Duration,
    pub arrivals: Arrivals,
    /// Offered load in each phase, as a multiple of what the task can do.
    pub loads: Vec<f64>,
    /// How many seconds each phase lasts.
    pub secs: usize,
}

impl Default for Story {
    fn default() -> Self {
        Self {
            seed: 1,
            cores: 1,
            work: WorkSpec::Exponential(Duration::from_millis(5)),
            waits: Duration::ZERO,
            reject_cost: Duration::ZERO,
            degraded: None,
            admission: Some(AdmissionSpec::default()),
            patience: Duration::from_secs(1),
            arrivals: Arrivals::Poisson,
            loads: Vec::new(),
            secs: 10,
        }
    }
}

impl Story {
    /// Requests a second that the task can do.
    pub fn capacity(&self) -> f64 {
        f64::from(self.cores) / self.work.mean()
    }

    /// Runs it, until the last request of the last phase is answered or given up.
    pub fn run(&self) -> Told {
        let rate = |load: f64| load * self.capacity();
        let phases = self.loads.iter().copied().chain([0.0]).enumerate().skip(1);
        let change = |(phase, load): (usize, f64)| {
            let at = Timestamp::from_secs((phase * self.secs) as u64);
            (at, Change::Rate { client: 0, rate: rate(load) })
        };
        let spec = WorldSpec {
            seed: self.seed,
            lasts: Duration::from_secs((self.loads.len() * self.secs) as u64) + self.patience,
            distance: vec![vec![Duration::ZERO]],
            services: vec![ServiceSpec {
                tasks: vec![TaskSpec { cores: self.cores.into(), ..TaskSpec::default() }],
                sharing: Sharing::Fifo,
                work: self.work,
                waits: self.waits,
                reject_cost: self.reject_cost,
                degraded: self.degraded,
                admission: self.admission.clone(),
                ..ServiceSpec::default()
            }],
            clients: vec![ClientSpec {
                rate: rate(self.loads[0]),
                mix: [0.2, 0.3, 0.4, 0.1],
                deadline: self.patience,
                arrivals: self.arrivals,
                ..ClientSpec::default()
            }],
            changes: phases.map(change).collect(),
            log: true,
            ..WorldSpec::default()
        };
        let mut record = World::new(spec).unwrap().run();
        let log = *record.log.take().unwrap();
        Told { capacity: self.capacity(), cores: self.cores.into(), secs: self.secs, record, log }
    }
}

/// What came of it.
pub struct Told {
    capacity: f64,
    cores: f64,
    secs: usize,
    record: Record,
    pub log: Log,
}

impl Told {
    fn bins(&self, phase: usize) -> &[ClientBin] {
        let bins = self.secs * BINS;
        &self.record.clients[0][phase * bins..(phase + 1) * bins]
    }

    /// Answers in time over what the task can do, in each second of a phase.
    pub fn seconds(&self, phase: usize) -> Vec<f64> {
        let answers = |bins: &[ClientBin]| bins.iter().map(|bin| f64::from(bin.answers)).sum();
        let second = |bins: &[ClientBin]| -> f64 { answers(bins) };
        self.bins(phase).chunks(BINS).map(|bins| second(bins) / self.capacity).collect()
    }

    /// Answers in time over what the task can do.
    pub fn goodput(&self, phase: usize) -> f64 {
        mean(&self.seconds(phase))
    }

    /// Requests of a phase, by criticality, lowest first.
    pub fn offered(&self, phase: usize) -> [u32; 4] {
        std::array::from_fn(|level| self.bins(phase).iter().map(|bin| bin.offered[level]).sum())
    }

    /// The share of requests of a phase that was answered in time; all if there was none.
    pub fn success(&self, phase: usize, criticality: Criticality) -> f64 {
        let level = criticality.index();
        let offered = self.offered(phase)[level];
        let served: u32 = self.bins(phase).iter().map(|bin| bin.served[level]).sum();
        if offered == 0 { 1.0 } else { f64::from(served) / f64::from(offered) }
    }

    /// Attempts that were refused during a phase.
    pub fn refused(&self, phase: usize) -> impl Iterator<Item = &Attempt> {
        let span = self.span(phase);
        let refused = |attempt: &&Attempt| matches!(attempt.ending, Ending::Refused { .. });
        self.log.attempts.iter().filter(refused).filter(move |a| span.contains(&a.asked))
    }

    /// What the controller saw in a phase, after its first seconds.
    pub fn looks(&self, phase: usize, settle: u64) -> impl Iterator<Item = &Look> {
        let mut span = self.span(phase);
        span.start += Duration::from_secs(settle);
        self.log.looks.iter().filter(move |look| span.contains(&look.at))
    }

    /// Busy share of all cores in each second of a phase.
    pub fn busy(&self, phase: usize) -> Vec<f64> {
        let busy = &self.record.busy[0][0][phase * self.secs..(phase + 1) * self.secs];
        busy.iter().map(|&busy| f64::from(busy) / self.cores).collect()
    }

    fn span(&self, phase: usize) -> Range<Timestamp> {
        let secs = |phases| Timestamp::from_secs((phases * self.secs) as u64);
        secs(phase)..secs(phase + 1)
    }
}

pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn least(values: &[f64]) -> f64 {
    values.iter().copied().fold(f64::MAX, f64::min)
}
