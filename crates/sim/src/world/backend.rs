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

/// What protects a task.
#[derive(Debug)]
struct Protection {
    gate: Arc<AdmissionGate>,
    lane: Lane,
    controller: Controller,
    signals: Signals,
    load: LoadAverage,
    load_signal: SignalId,
    costs: CostLane,
    worked_seen: f64,
}

/// A backend task.
#[derive(Debug)]
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
    requests: Rate,
    errors: Rate,
    busy: Rate,
    busy_seen: f64,
    report: LoadReport,
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
            requests: Rate::new(REPORT_TAU, now),
            errors: Rate::new(REPORT_TAU, now),
            busy: Rate::new(REPORT_TAU, now),
            busy_seen: 0.0,
            report: LoadReport::default(),
            busy_written: 0.0,
        })
    }

    pub(crate) fn gate(&self) -> Option<&Arc<AdmissionGate>> {
        self.protection.as_ref().map(|p| &p.gate)
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

    /// An admitted attempt is done, having taken `work`.
    pub(crate) fn complete(
        &mut self,
        permit: Option<Permit>,
        customer: CustomerId,
        work: Duration,
        now: Timestamp,
    ) {
        if let (Some(protection), Some(permit)) = (&mut self.protection, permit) {
            let cost = Cost::from_nanos(u64::try_from(work.as_nanos()).unwrap_or(u64::MAX));
            protection.costs.record(customer, MethodId(0), cost);
            protection.lane.complete(permit, cost, now);
        }
    }

    /// An answer went out; `error` if it was one that the task itself made.
    pub(crate) fn answered(&mut self, error: bool, now: Timestamp) {
        self.requests.add(1.0, now);
        if error {
            self.errors.add(1.0, now);
        }
    }

    /// The number of running or ready jobs has changed.
    #[inline]
    pub(crate) fn sample(&mut self, now: Timestamp) {
        if let Some(protection) = &mut self.protection {
            let active = self.cpu.active() as u64;
            let smoothed = protection.load.record(active, now);
            let instant = active as f64 / self.spec.cores;
            protection.signals.record_smoothed(protection.load_signal, smoothed, instant, now);
        }
    }

    pub(crate) fn tick(&mut self, now: Timestamp) {
        self.sample(now);
        let busy = self.cpu.busy(now);
        self.busy.add_since_last((busy - self.busy_seen).max(0.0), now);
        self.busy_seen = busy;
        self.report = LoadReport {
            rps: self.requests.per_second(now),
            eps: self.errors.per_second(now),
            cpu_utilization: self.busy.per_second(now) / self.spec.cores,
            ..LoadReport::default()
        };
        if let Some(p) = &mut self.protection {
            let worked = self.cpu.worked();
            let used = Cost::from_nanos(((worked - p.worked_seen).max(0.0) * 1e9) as u64);
            p.worked_seen = worked;
            let load = self.cpu.active() as f64 / self.spec.cores;
            let seen = Seen::new(p.signals.reading(now)).load(load).used(used);
            p.controller.tick(&p.gate, seen, now);
        }
    }

    /// What goes with every answer.
    pub(crate) fn report(&self) -> &LoadReport {
        &self.report
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
            controller: Controller::new(shed, attempts, &gate, now),
            signals,
            load: LoadAverage::new(admission.load_tau, task.cores, now)?,
            load_signal,
            costs: CostTable::new(4 * customers.max(1), guess).lane(),
            gate,
            worked_seen: 0.0,
        })
    }
}
