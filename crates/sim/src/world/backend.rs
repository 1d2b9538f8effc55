//! One backend task: a CPU, and the decisions in front of it.

use super::cpu::Cpu;
use super::spec::{AdmissionSpec, ServiceSpec, TaskSpec};
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::average::Rate;
use tidegate_core::balance::LoadReport;
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::decision::SignalId;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::Rng;
use tidegate_core::signal::{Combine, LoadAverage, Signal, Signals};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};

/// How often a task's controller looks.
pub(crate) const TICK: Duration = Duration::from_millis(10);
/// Load reports are averages over about this long.
const REPORT_TAU: Duration = Duration::from_secs(1);

/// What protects a task. What only its controller looks at lies elsewhere: requests wait for every
/// line of memory between what they need.
#[derive(Debug)]
struct Protection {
    lane: Lane,
    load: LoadAverage,
    costs: CostLane,
    control: Box<Control>,
}

#[derive(Debug)]
struct Control {
    controller: Controller,
    signals: Signals,
    load_signal: SignalId,
    worked_seen: f64,
}

/// What a task reports is worked out from.
#[derive(Debug)]
struct Meters {
    requests: Rate,
    errors: Rate,
    busy: Rate,
    busy_seen: f64,
}

/// A backend task.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct Backend {
    pub(crate) service: usize,
    /// Its place among the tasks of its service.
    pub(crate) index: usize,
    pub(crate) spec: TaskSpec,
    pub(crate) cpu: Cpu<u64>,
    /// When the world will look whether a job is done.
    pub(crate) scheduled: Timestamp,
    pub(crate) fails: bool,
    pub(crate) down: bool,
    /// It has not joined yet: nobody knows of it.
    pub(crate) absent: bool,
    protection: Option<Protection>,
    /// Answers and errors since the last look of the controller.
    answers: [u32; 2],
    /// The fewest running or ready jobs since the last tick.
    active_least: u32,
    meters: Box<Meters>,
    /// Busy core-seconds until the last whole second.
    pub(crate) busy_written: f64,
}

/// The answer of a task to an attempt that reached it.
pub(crate) enum Welcome {
    Admitted { permit: Option<Permit>, degrade: bool },
    Refused(tidegate_core::decision::Rejection),
}

impl Backend {
    pub(crate) fn new(
        service: usize,
        index: usize,
        of: &ServiceSpec,
        customers: usize,
    ) -> Result<Self, InvalidNumber> {
        let now = Timestamp::ZERO;
        let spec = of.tasks[index];
        let protect = |admission| Protection::new(admission, of, spec, customers);
        Ok(Self {
            service,
            index,
            spec,
            cpu: Cpu::new(of.sharing, spec.cores, spec.speed),
            scheduled: Timestamp::MAX,
            fails: false,
            down: false,
            absent: false,
            protection: of.admission.as_ref().map(protect).transpose()?,
            answers: [0; 2],
            active_least: 0,
            meters: Box::new(Meters {
                requests: Rate::new(REPORT_TAU, now),
                errors: Rate::new(REPORT_TAU, now),
                busy: Rate::new(REPORT_TAU, now),
                busy_seen: 0.0,
            }),
            busy_written: 0.0,
        })
    }

    pub(crate) fn gate(&self) -> Option<&Arc<AdmissionGate>> {
        self.protection.as_ref().map(|p| p.lane.gate())
    }

    /// An attempt has arrived.
    pub(crate) fn welcome(
        &mut self,
        criticality: Criticality,
        customer: CustomerId,
        attempt: u8,
        deadline: Timestamp,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Welcome {
        let Some(protection) = &mut self.protection else {
            return Welcome::Admitted { permit: None, degrade: false };
        };
        let cost = protection.costs.estimate(customer, MethodId(0));
        let request =
            Request::new(criticality, cost).customer(customer).attempt(attempt).deadline(deadline);
        match protection.lane.admit(&request, now, rng) {
            Decision::Admit(permit) => {
                let degrade = permit.degrade();
                Welcome::Admitted { permit: Some(permit), degrade }
            }
            Decision::Reject(rejection) => Welcome::Refused(rejection),
        }
    }

    /// An admitted attempt is done, having cost `cost`.
    pub(crate) fn complete(
        &mut self,
        permit: Option<Permit>,
        customer: CustomerId,
        cost: Cost,
        now: Timestamp,
    ) {
        if let (Some(protection), Some(permit)) = (&mut self.protection, permit) {
            protection.costs.record(customer, MethodId(0), cost);
            protection.lane.complete(permit, cost, now);
        }
    }

    /// An answer went out; `error` if it was one that the task itself made.
    #[inline]
    pub(crate) fn answered(&mut self, error: bool) {
        self.answers[0] += 1;
        self.answers[1] += u32::from(error);
    }

    /// The number of running or ready jobs has changed.
    #[inline]
    pub(crate) fn sample(&mut self, now: Timestamp) {
        if let Some(protection) = &mut self.protection {
            let active = self.cpu.active();
            self.active_least = self.active_least.min(active as u32);
            protection.load.record(active as u64, now);
        }
    }

    /// The controller looks. Returns what goes with every answer from now on.
    pub(crate) fn tick(&mut self, now: Timestamp) -> LoadReport {
        let busy = self.cpu.busy(now);
        let meters = &mut *self.meters;
        meters.busy.add_since_last((busy - meters.busy_seen).max(0.0), now);
        meters.busy_seen = busy;
        let [answers, errors] = core::mem::take(&mut self.answers);
        meters.requests.add_since_last(answers.into(), now);
        meters.errors.add_since_last(errors.into(), now);
        let report = LoadReport {
            rps: meters.requests.per_second(now),
            eps: meters.errors.per_second(now),
            cpu_utilization: meters.busy.per_second(now) / self.spec.cores,
            ..LoadReport::default()
        };
        if let Some(protection) = &mut self.protection {
            let Protection { lane, load, control, .. } = protection;
            let active = self.cpu.active() as u64;
            let (smoothed, instant) = (load.record(active, now), active as f64 / self.spec.cores);
            let signals = &mut control.signals;
            signals.record_smoothed(control.load_signal, smoothed, instant, now);
            let worked = self.cpu.worked();
            let used = (worked - control.worked_seen).max(0.0);
            control.worked_seen = worked;
            let used = Cost::from_nanos((used * 1e9) as u64);
            let least = core::mem::replace(&mut self.active_least, active as u32);
            let least = f64::from(least) / self.spec.cores;
            let seen = Seen::new(signals.reading(now)).load(instant).load_least(least).used(used);
            control.controller.tick(lane.gate(), seen, now);
        }
        report
    }
}

impl Protection {
    fn new(
        admission: &AdmissionSpec,
        of: &ServiceSpec,
        task: TaskSpec,
        customers: usize,
    ) -> Result<Self, InvalidNumber> {
        let now = Timestamp::ZERO;
        let shed = admission.shed.clone().cpus(task.cores * task.speed)?;
        let mut quota = QuotaConfig::default();
        quota.customers_max = customers.max(1);
        let gate = AdmissionGate::new(quota);
        let mut signals = Signals::new(Combine::Highest);
        let load_signal = signals
            .register(Signal::new("executor_load", admission.load_target)?)
            .unwrap_or(SignalId::COMBINED);
        let guess = Cost::from_nanos((of.work.mean() * 1e9) as u64);
        let attempts = AttemptsConfig::default();
        Ok(Self {
            lane: gate.lane(),
            load: LoadAverage::new(admission.load_tau, task.cores, now)?,
            costs: CostTable::new(4 * customers.max(1), guess).lane(),
            control: Box::new(Control {
                controller: Controller::new(shed, attempts, &gate, now),
                signals,
                load_signal,
                worked_seen: 0.0,
            }),
        })
    }
}
