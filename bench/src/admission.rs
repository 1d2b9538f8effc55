//! What admitting, refusing and releasing cost, by gates whose limits bind as real ones do.
//!
//! The only shared write of a request under a total limit is the lease that its thread takes once
//! in a while. How often that is depends on nothing but how much of a burst a request uses, so
//! every line says which limit its customers have, and how much time passes from one request to
//! the next: then they use what they would use under load, and the leases come as they would.

use crate::measure::{Contender, Tally};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::customer::CustomerId;
use tidegate_core::decision::Reason;
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::signal::Reading;
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};

pub(crate) const CUSTOMERS: u32 = 10_000;
/// `SHEDDABLE` is refused, of `SHEDDABLE_PLUS` a half, and the others not.
const SHEDDING: [f64; 4] = [0.0, 0.5, 1.0, 1.0];
/// All are admitted.
const CALM: [f64; 4] = [1.0; 4];

/// The customers of 65,536 requests, drawn evenly.
pub(crate) fn many() -> Arc<[CustomerId]> {
    let mut rng = SeededRng::new(1);
    (0..1 << 16).map(|_| CustomerId(1 + rng.below(u64::from(CUSTOMERS)) as u32)).collect()
}

fn single() -> Arc<[CustomerId]> {
    [CustomerId(1)].into()
}

/// The customer of request `i`. The lists are powers of two long, as a division would cost as much
/// as what is measured.
#[inline]
pub(crate) fn at(customers: &[CustomerId], i: u64) -> CustomerId {
    customers[i as usize & (customers.len() - 1)]
}

/// The requests of one line, and the limits that they meet.
#[derive(Clone)]
struct Load {
    customers: Arc<[CustomerId]>,
    limits: Limits,
    levels: [f64; 4],
    criticality: Criticality,
    /// What is charged in advance; a tenth less is what it cost in the end.
    estimate: Cost,
    /// The time from one request of a thread to its next.
    step: Duration,
    /// The share that gets in.
    share: f64,
    /// Whether what is in flight is limited, and whether it has reached the limit.
    limited: Option<Full>,
    /// What the controller that limits it knows of the machine.
    cpus: f64,
}

/// How often a controller looks, as in a task.
const TICK: Duration = Duration::from_millis(10);

/// Whether what is in flight has reached its limit.
#[derive(Clone, Copy, PartialEq)]
struct Full(bool);

/// Dice of its own, so that what sets a line up is other code than what is measured: a service
/// calls the gate in one place, where it can be inlined.
struct Lucky;

impl Rng for Lucky {
    fn next_u64(&mut self) -> u64 {
        0
    }
}

impl Load {
    /// One customer uses 8 of its 10 CPUs on one thread: 9 µs every 1,125 ns. A lease lasts some
    /// thousand requests.
    fn one() -> Self {
        Self {
            customers: single(),
            limits: Limits::total(cpus(10.0)),
            levels: CALM,
            criticality: Criticality::Critical,
            estimate: Cost::from_micros(10),
            step: Duration::from_nanos(1_125),
            share: 1.0,
            limited: None,
            cpus: 10.0,
        }
    }

    /// What is in flight is limited, and the limit is what the line is about: no time passes, so
    /// that it stays as it is; so the customer has no limit of its own.
    fn limited(full: bool) -> Self {
        let (limits, step) = (Limits::UNLIMITED, Duration::ZERO);
        let share = if full { 0.0 } else { 1.0 };
        Self { limits, step, share, limited: Some(Full(full)), ..Self::one() }
    }

    /// The same customer on two threads at half the pace each. The threads' clocks run apart when
    /// one of them is held up, by a ninth of a second at most in 50,000 requests, which is less
    /// than the three quarters of a burst that `CRITICAL` may use.
    fn one_on_two_threads() -> Self {
        let one = Self::one();
        Self { step: one.step * 2, ..one }
    }

    /// 10,000 customers use 0.009 CPUs each: 9 µs of one of them every 100 ns. The draw gives the
    /// busiest three times as much, and the limit is just above that. A lease of quota lasts some
    /// dozen requests. A controller looks as time passes, as in every task that serves: what is in
    /// flight has a limit, which is far away.
    fn many() -> Self {
        Self {
            customers: many(),
            limits: Limits::total(cpus(0.03)),
            step: Duration::from_nanos(100),
            limited: Some(Full(false)),
            cpus: 100.0,
            ..Self::one()
        }
    }

    /// One customer asks for twice its hundredth of a CPU, by requests that are each worth more
    /// than a lease: one is admitted, which goes to the shared bucket, and one is refused.
    fn exhausted() -> Self {
        Self {
            limits: Limits::total(cpus(0.01)),
            estimate: Cost::from_micros(100),
            step: Duration::from_micros(4_500),
            share: 0.5,
            ..Self::one()
        }
    }

    /// One customer uses 4 of the 5 CPUs that `SHEDDABLE_PLUS` and below may use of its 10, on one
    /// thread: 1.8 µs every 450 ns.
    fn by_criticality() -> Self {
        let entries = [None, Some(cpus(5.0)), None, Some(cpus(10.0))];
        let Ok(limits) = Limits::from_entries(entries) else {
            unreachable!("5 of 10 CPUs are nested")
        };
        Self {
            limits,
            criticality: Criticality::SheddablePlus,
            estimate: Cost::from_micros(2),
            step: Duration::from_nanos(450),
            ..Self::one()
        }
    }

    fn by_criticality_on_two_threads() -> Self {
        let one = Self::by_criticality();
        Self { step: one.step * 2, ..one }
    }

    /// Shares that no controller sets anew.
    fn shed(self, criticality: Criticality, share: f64) -> Self {
        Self { levels: SHEDDING, criticality, share, limited: None, ..self }
    }

    /// A gate of its own for each line, as another line's clock is another time; and its controller
    /// where there is one.
    fn gate(&self) -> (Arc<AdmissionGate>, Option<Controller>) {
        let customers_max = 1 + self.customers.iter().map(|c| c.0).max().unwrap_or(0);
        let gate = new_gate(customers_max as usize);
        for customer in 0..customers_max {
            gate.quota().set_limits(CustomerId(customer), self.limits, Timestamp::ZERO);
        }
        gate.set_levels(Levels::from_shares(self.levels));
        let controller = self.limited.map(|full| self.limit(&gate, full));
        (gate, controller)
    }

    /// Lets a controller look once, and fills up what it allows.
    fn limit(&self, gate: &Arc<AdmissionGate>, Full(full): Full) -> Controller {
        let Ok(shed) = ShedConfig::default().cpus(self.cpus) else { unreachable!("some CPUs") };
        let start = Timestamp::from_secs(1);
        let mut controller = Controller::new(shed, AttemptsConfig::default(), gate, start);
        let mut lane = gate.lane();
        // Not counted with the line's own.
        let request = Request::new(Criticality::CriticalPlus, self.estimate);
        let mut rng = Lucky;
        if let Decision::Admit(permit) = lane.admit(&request, start, &mut rng) {
            lane.complete(permit, self.estimate, start);
        }
        let _ = controller.tick(gate, Seen::new(Reading::IDLE).load(0.0), start);
        while full && lane.admit(&request, start, &mut rng).is_admitted() {}
        controller
    }

    fn alone<'a>(self, name: &'static str) -> Contender<'a> {
        let (gate, controller) = self.gate();
        let requests = self.requests(&gate, controller);
        Contender::alone(name, requests).checked(self.share, self.tally(gate))
    }

    fn on_two_threads<'a>(self, name: &'static str) -> Contender<'a> {
        let (gate, controller) = self.gate();
        Contender::contended(name, self.requests(&gate, controller), self.requests(&gate, None))
            .checked(self.share, self.tally(gate))
    }

    /// Admits and releases, and has the controller look as time passes.
    fn requests(
        &self,
        gate: &Arc<AdmissionGate>,
        mut controller: Option<Controller>,
    ) -> impl FnMut(u64) + Send + use<> {
        let mut lane = gate.lane();
        let gate = Arc::clone(gate);
        let Self { customers, criticality, estimate, step, .. } = self.clone();
        let actual = Cost::from_nanos(estimate.as_nanos() / 10 * 9);
        // A shell has its time in nanoseconds already.
        let step = step.as_nanos() as u64;
        let mut rng = SeededRng::new(2);
        let per_tick = match (&controller, step) {
            (None, _) | (_, 0) => u64::MAX,
            _ => TICK.as_nanos() as u64 / step,
        };
        let (mut clock, mut first, mut until_tick) = (Timestamp::from_secs(1), 0, per_tick);
        move |operations| {
            // On the stack, where no other thread's state is near.
            let (mut now, mut rng) = (clock, rng.fork());
            let customers = &*customers;
            let mut left = operations;
            while left > 0 {
                let chunk = left.min(until_tick);
                for i in first..first + chunk {
                    now = Timestamp::from_nanos(now.as_nanos() + step);
                    // Known only when the request is there, so that the loop is not built around
                    // it.
                    let request = Request::new(black_box(criticality), estimate);
                    let request = request.customer(at(customers, i));
                    match lane.admit(&request, now, &mut rng) {
                        Decision::Admit(permit) => lane.complete(black_box(permit), actual, now),
                        Decision::Reject(refusal) => {
                            let _ = black_box(refusal);
                        }
                    }
                }
                (first, left, until_tick) = (first + chunk, left - chunk, until_tick - chunk);
                if until_tick == 0 {
                    until_tick = per_tick;
                    if let Some(controller) = &mut controller {
                        let _ = controller.tick(&gate, Seen::new(Reading::IDLE).load(0.5), now);
                    }
                }
            }
            clock = now;
        }
    }

    fn tally(&self, gate: Arc<AdmissionGate>) -> impl Fn() -> Tally + use<> {
        let criticality = self.criticality;
        move || {
            let counts = gate.counts();
            let rejected = [Reason::OutOfQuota, Reason::Overloaded]
                .iter()
                .map(|&reason| counts.rejected(reason, criticality));
            let admitted = counts.admitted(criticality);
            Tally { admitted, decided: admitted + rejected.sum::<u64>() }
        }
    }
}

/// A gate with the default configuration, and room for so many customers.
fn new_gate(customers_max: usize) -> Arc<AdmissionGate> {
    let mut quota = QuotaConfig::default();
    quota.customers_max = quota.customers_max.max(customers_max);
    AdmissionGate::new(quota)
}

fn cpus(cpus: f64) -> CostRate {
    CostRate::from_cpus(cpus).unwrap_or(CostRate::MAX)
}

pub(crate) fn contenders<'a>() -> Vec<Contender<'a>> {
    let (none, half) = ((Criticality::Sheddable, 0.0), (Criticality::SheddablePlus, 0.5));
    vec![
        Load::many().alone("admit + release, 10,000 customers"),
        Load::one().alone("admit + release, one customer"),
        Load::one_on_two_threads().on_two_threads("admit + release, two threads, one customer"),
        Load::by_criticality().alone("admit + release, limits by criticality"),
        Load::by_criticality_on_two_threads()
            .on_two_threads("admit + release, two threads, by criticality"),
        Load::exhausted().alone("half out of quota, one customer"),
        Load::one().shed(half.0, half.1).alone("half shed by dice, one customer"),
        Load::many().shed(half.0, half.1).alone("half shed by dice, 10,000 customers"),
        Load::one().shed(none.0, none.1).alone("reject by criticality, one customer"),
        Load::many().shed(none.0, none.1).alone("reject by criticality, 10,000 customers"),
        Load::limited(false).alone("admit + release, below a limit"),
        Load::limited(false).on_two_threads("admit + release, two threads, below a limit"),
        Load::limited(true).alone("reject at the limit, one customer"),
    ]
}

const METHOD: MethodId = MethodId(1);

fn learned() -> Arc<CostTable> {
    let table = CostTable::new(2 * CUSTOMERS as usize, Cost::from_millis(1));
    let mut lane = table.lane();
    for _ in 0..20 {
        for customer in 0..=CUSTOMERS {
            lane.record(CustomerId(customer), METHOD, Cost::from_millis(2));
        }
    }
    table
}

/// Records costs that vary by a fifth around what is known.
fn record(mut lane: CostLane, customers: Arc<[CustomerId]>) -> impl FnMut(u64) + Send {
    let mut rng = SeededRng::new(5);
    move |operations| {
        for i in 0..operations {
            let cost = Cost::from_nanos(1_800_000 + rng.below(400_000));
            lane.record(at(&customers, i), METHOD, cost);
        }
    }
}

pub(crate) fn estimates<'a>() -> Vec<Contender<'a>> {
    let table = learned();
    let lane = table.lane();
    let customers = many();
    vec![
        Contender::alone("estimate a cost, 10,000 customers", move |operations| {
            for i in 0..operations {
                black_box(lane.estimate(at(&customers, i), METHOD));
            }
        }),
        Contender::alone("learn a cost, 10,000 customers", record(table.lane(), many())),
        Contender::contended(
            "learn a cost, two threads, one customer",
            record(table.lane(), single()),
            record(table.lane(), single()),
        ),
    ]
}
