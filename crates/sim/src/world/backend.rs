//! One backend task: a CPU, and the decisions in front of it.

use super::contender::Contender;
use super::cpu::Cpu;
use super::log::Look;
use super::spec::{AdmissionSpec, ServiceSpec, TaskSpec};
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::admission::pace::{Looks, Pace};
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::average::Rate;
use tidegate_core::balance::LoadReport;
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::decision::{Advice, Reason, Rejection, SignalId};
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::SeededRng;
use tidegate_core::signal::{Combine, LoadAverage, Role, Signal, Signals, Slope};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};

/// Load reports are averages over about this long.
const REPORT_TAU: Duration = Duration::from_secs(1);
/// Busy cores are measured over about this long: ten looks, so that one of them says little.
const CPU_TAU: Duration = Duration::from_millis(100);

/// Who stands in front of a task. tidegate is asked directly, as in ordinary worlds there is nobody
/// else; only a contender is asked through a pointer.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most tasks have it, and a box is a line more to wait for"
)]
pub(crate) enum Guard {
    Nobody,
    Tidegate(Protection),
    Contender(Box<dyn Contender>),
}

/// What protects a task. What only its controller looks at lies elsewhere: requests wait for every
/// line of memory between what they need.
#[derive(Debug)]
pub(crate) struct Protection {
    load: LoadAverage,
    costs: CostLane,
    lane: Lane,
    looks: Looks,
    control: Box<Control>,
}

#[derive(Debug)]
struct Control {
    controller: Controller,
    pace: Pace,
    looked: Timestamp,
    signals: Signals,
    load_signal: SignalId,
    /// The signal of busy cores, and what it is worked out from.
    cpu: Option<(SignalId, Slope)>,
    worked_seen: f64,
}

/// What a task reports is worked out from.
#[derive(Debug)]
struct Meters {
    /// Busy cores, answers and errors per second.
    rates: [Rate; 3],
    busy_seen: f64,
}

/// A backend task. What requests need of it comes first, and takes five lines of memory.
#[derive(Debug)]
#[repr(C, align(64))]
pub(crate) struct Backend {
    /// When the world will look whether a job is done.
    pub(crate) scheduled: Timestamp,
    pub(crate) service: usize,
    /// Answers and errors since the last look of the controller.
    answers: [u32; 2],
    /// The fewest running or ready jobs since the last tick.
    active_least: u32,
    /// That of `spec`.
    pub(crate) datacenter: u32,
    pub(crate) fails: bool,
    pub(crate) down: bool,
    /// It has not joined yet: nobody knows of it.
    pub(crate) absent: bool,
    pub(crate) cpu: Cpu<u64>,
    pub(crate) guard: Guard,
    pub(crate) spec: TaskSpec,
    /// Its place among the tasks of its service.
    pub(crate) index: usize,
    /// How often its controller looks; that of tidegate, where it matters.
    look_every: Duration,
    meters: Box<Meters>,
    /// Busy core-seconds until the last whole second.
    pub(crate) busy_written: f64,
}

/// The answer of a task to an attempt that reached it.
pub(crate) enum Welcome {
    Admitted { permit: Option<Permit>, degrade: bool },
    Refused(Rejection),
}

/// What a controller's look comes to.
pub(crate) struct Looked {
    /// What goes with every answer from now on.
    pub(crate) report: LoadReport,
    /// What it saw, if it is tidegate's.
    pub(crate) look: Option<Look>,
    /// When it looks again.
    pub(crate) next: Timestamp,
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
        Ok(Self {
            scheduled: Timestamp::MAX,
            service,
            answers: [0; 2],
            active_least: 0,
            datacenter: spec.datacenter as u32,
            cpu: Cpu::new(of.sharing, spec.cores, spec.speed),
            spec,
            index,
            fails: false,
            down: false,
            absent: false,
            guard: match &of.admission {
                Some(admission) => {
                    Guard::Tidegate(Protection::new(admission, of, spec, customers)?)
                }
                None => Guard::Nobody,
            },
            look_every: of.look_every,
            meters: Box::new(Meters {
                rates: core::array::from_fn(|_| Rate::new(REPORT_TAU, now)),
                busy_seen: 0.0,
            }),
            busy_written: 0.0,
        })
    }

    /// Its controller looks at `at` for the first time.
    pub(crate) fn first_look(&mut self, at: Timestamp) {
        if let Guard::Tidegate(protection) = &mut self.guard {
            protection.looks = Looks::new(at);
        }
    }

    /// Whether a look that was planned for `now` is still to be then.
    pub(crate) fn is_due(&self, now: Timestamp) -> bool {
        match &self.guard {
            Guard::Tidegate(protection) => protection.looks.due() == now,
            Guard::Nobody | Guard::Contender(_) => true,
        }
    }

    pub(crate) fn gate(&self) -> Option<&Arc<AdmissionGate>> {
        match &self.guard {
            Guard::Tidegate(protection) => Some(protection.lane.gate()),
            Guard::Nobody | Guard::Contender(_) => None,
        }
    }

    /// Reads what lies in this task itself.
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let word = self.cpu.touch() ^ self.scheduled.as_nanos();
        match &self.guard {
            Guard::Tidegate(protection) => {
                word ^ protection.load.touch() ^ protection.lane.touch_lane()
            }
            Guard::Nobody | Guard::Contender(_) => word,
        }
    }

    /// Reads what it points to, and what a request meets there.
    #[inline]
    pub(crate) fn touch_guard(&self, customer: CustomerId, criticality: Criticality) -> u64 {
        match &self.guard {
            Guard::Tidegate(Protection { lane, costs, .. }) => {
                lane.touch(customer, criticality) ^ costs.touch(customer, MethodId(0))
            }
            Guard::Nobody | Guard::Contender(_) => 0,
        }
    }

    /// The same, for the end of a request.
    #[inline]
    pub(crate) fn touch_guard_end(&self, customer: CustomerId) -> u64 {
        match &self.guard {
            Guard::Tidegate(Protection { lane, costs, .. }) => {
                lane.touch_end(customer) ^ costs.touch(customer, MethodId(0))
            }
            Guard::Nobody | Guard::Contender(_) => 0,
        }
    }

    /// Reads what a look of the controller needs.
    #[inline]
    pub(crate) fn touch_control(&self) -> u64 {
        let Meters { rates: [first, .., last], busy_seen } = &*self.meters;
        let word = first.touch() ^ last.touch() ^ busy_seen.to_bits();
        match &self.guard {
            Guard::Tidegate(Protection { lane, control, .. }) => {
                let seen = control.worked_seen.to_bits() ^ control.looked.as_nanos();
                word ^ seen ^ control.controller.touch() ^ lane.touch_all()
            }
            Guard::Nobody | Guard::Contender(_) => word,
        }
    }

    /// Reads what lies behind that.
    #[inline]
    pub(crate) fn touch_signals(&self) -> u64 {
        match &self.guard {
            Guard::Tidegate(protection) => protection.control.signals.touch(),
            Guard::Nobody | Guard::Contender(_) => 0,
        }
    }

    #[inline]
    pub(crate) const fn has_contender(&self) -> bool {
        matches!(self.guard, Guard::Contender(_))
    }

    /// Whether a job that is ready for the CPU is held back by a contender.
    pub(crate) fn holds(&mut self, id: u64, criticality: Criticality) -> bool {
        match &mut self.guard {
            Guard::Contender(contender) => contender.hold(id, criticality),
            Guard::Nobody | Guard::Tidegate(_) => false,
        }
    }

    /// An attempt has arrived. Gives also when the controller is to look, if that is sooner than it
    /// would have.
    pub(crate) fn welcome(
        &mut self,
        criticality: Criticality,
        customer: CustomerId,
        attempt: u8,
        deadline: Timestamp,
        now: Timestamp,
        rng: &mut SeededRng,
    ) -> (Welcome, Option<Timestamp>) {
        let protection = match &mut self.guard {
            Guard::Tidegate(protection) => protection,
            Guard::Contender(contender) => {
                if contender.offer(criticality, now, rng) {
                    return (Welcome::Admitted { permit: None, degrade: false }, None);
                }
                let (reason, advice) = (Reason::Overloaded, Advice::RetryElsewhere);
                let rejection = Rejection { reason, advice, criticality, cause: None };
                return (Welcome::Refused(rejection), None);
            }
            Guard::Nobody => return (Welcome::Admitted { permit: None, degrade: false }, None),
        };
        let method = MethodId(0).answering(protection.lane.degrades(criticality));
        let cost = protection.costs.estimate(customer, method);
        let request =
            Request::new(criticality, cost).customer(customer).attempt(attempt).deadline(deadline);
        let sooner = protection.looks.came(cost, now);
        let welcome = match protection.lane.admit(&request, now, rng) {
            Decision::Admit(permit) => {
                let degrade = permit.degrade();
                Welcome::Admitted { permit: Some(permit), degrade }
            }
            Decision::Reject(refusal) => Welcome::Refused(refusal.into()),
        };
        (welcome, sooner)
    }

    /// An admitted attempt is done, having cost `cost`; `asked` if anybody still waits. Its permit
    /// says of which kind the answer was.
    pub(crate) fn complete(
        &mut self,
        permit: Option<Permit>,
        customer: CustomerId,
        cost: Cost,
        asked: Option<Timestamp>,
        now: Timestamp,
    ) {
        match &mut self.guard {
            Guard::Tidegate(protection) => {
                if let Some(permit) = permit {
                    let method = MethodId(0).answering(permit.degrade());
                    protection.costs.record(customer, method, cost);
                    protection.lane.complete(permit, cost, now);
                }
            }
            Guard::Contender(contender) => {
                let work = Duration::from_nanos(cost.as_nanos());
                contender.done(work, asked.map(|asked| now.since(asked)), now);
            }
            Guard::Nobody => {}
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
        let active = self.cpu.active();
        match &mut self.guard {
            Guard::Tidegate(protection) => {
                self.active_least = self.active_least.min(active as u32);
                protection.load.record(active as u64, now);
            }
            Guard::Contender(contender) => contender.sample(active, now),
            Guard::Nobody => {}
        }
    }

    /// The controller looks.
    pub(crate) fn tick(&mut self, number: u32, now: Timestamp) -> Looked {
        let busy = self.cpu.busy(now);
        let meters = &mut *self.meters;
        let used = (busy - meters.busy_seen).max(0.0);
        meters.busy_seen = busy;
        let [answers, errors] = core::mem::take(&mut self.answers);
        let since = [used, answers.into(), errors.into()];
        let [busy_cores, rps, eps] = Rate::add_together(&mut meters.rates, since, now);
        let cpu_utilization = busy_cores / self.spec.cores;
        let report = LoadReport { rps, eps, cpu_utilization, ..LoadReport::default() };
        let evenly = Looked { report, look: None, next: now + self.look_every };
        let active = self.cpu.active();
        let protection = match &mut self.guard {
            Guard::Tidegate(protection) => protection,
            Guard::Contender(contender) => {
                contender.tick(active, now);
                return evenly;
            }
            Guard::Nobody => return evenly,
        };
        let Protection { lane, load, looks, control, .. } = protection;
        let instant = active as f64 / self.spec.cores;
        let load = load.record(active as u64, now);
        let signals = &mut control.signals;
        signals.record_smoothed(control.load_signal, load, instant, now);
        if let Some((signal, slope)) = &mut control.cpu
            && let Some(value) = slope.record(Duration::from_nanos((busy * 1e9) as u64), now)
        {
            signals.record(*signal, value, now);
        }
        let worked = self.cpu.worked();
        let used = (worked - control.worked_seen).max(0.0);
        control.worked_seen = worked;
        let used = Cost::from_nanos((used * 1e9) as u64);
        let least = core::mem::replace(&mut self.active_least, active as u32);
        let least = f64::from(least) / self.spec.cores;
        let seen = Seen::new(signals.reading(now)).beyond_cpu(signals.beyond_cpu(now));
        let seen = seen.load(instant).load_least(least).used(used);
        let plan = control.controller.tick(lane.gate(), seen, now);
        let elapsed = now.since(core::mem::replace(&mut control.looked, now));
        let rest = control.pace.rest(&seen, &plan, elapsed);
        let next = looks.looked(&control.pace, self.spec.cores, rest, now);
        Looked { report, look: Some(Look { at: now, backend: number, load, plan }), next }
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
        gate.set_dark(admission.dark);
        let mut signals = Signals::new(Combine::Highest);
        let load_signal = signals
            .register(Signal::new("executor_load", admission.load_target)?.of_cpu(true))
            .unwrap_or(SignalId::COMBINED);
        let mut cpu = None;
        if let Some(target) = admission.cpu_target {
            let signal = Signal::new("cpu", target)?.role(Role::Confirming).of_cpu(true);
            let signal = signals.register(signal);
            let slope = Slope::new(CPU_TAU, task.cores)?;
            cpu = signal.map(|signal| (signal, slope));
        }
        let guess = Cost::from_nanos((of.work.mean() * 1e9) as u64);
        let attempts = AttemptsConfig::default();
        // Where there are degraded answers, estimates are twice as many, and need more room not to
        // meet in one place.
        let estimates = if of.degraded.is_some() { 32 } else { 4 } * customers.max(1);
        Ok(Self {
            lane: gate.lane(),
            looks: Looks::new(now),
            load: LoadAverage::new(admission.load_tau, task.cores, now)?,
            costs: CostTable::new(estimates, guess).lane(),
            control: Box::new(Control {
                controller: Controller::new(shed, attempts, &gate, now),
                pace: Pace::new(of.look_every),
                looked: now,
                signals,
                load_signal,
                cpu,
                worked_seen: 0.0,
            }),
        })
    }
}
