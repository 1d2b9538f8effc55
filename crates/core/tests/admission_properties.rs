//! What holds at an admission gate whatever happens: customers with limits of every kind, a
//! controller that is fed arbitrary readings, requests that come in on one thread's lane and end on
//! another's, switches that are thrown at any moment.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used)]

mod inputs;

use inputs::{config, number, reading};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{Advice, Cause, Reason};
use tidegate_core::fleet::Limits;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Cost, CostRate, Criticality, CustomerId, Timestamp};

const LANES: usize = 3;
const CUSTOMERS: usize = 3;
const NANOSECOND: Duration = Duration::from_nanos(1);

/// Dice that always fall the same: zero lets in whatever gets in by a share, the highest only what
/// gets in whole.
#[derive(Clone, Copy)]
struct Loaded(u64);

impl Rng for Loaded {
    fn next_u64(&mut self) -> u64 {
        self.0
    }
}

#[derive(Debug, Clone)]
enum Operation {
    Offer { lane: usize, customer: u32, level: usize, cost: u64, patience: u64, attempt: u8 },
    Complete { lane: usize, index: usize, actual: u64 },
    Tick { seen: Seen, level: usize },
    Pass { millis: u64 },
    Limit { customer: u32, rates: [u64; 4] },
    Restart { lane: usize },
    LameDuck(bool),
    Dark(bool),
}

fn operation() -> impl Strategy<Value = Operation> {
    let cost = || prop_oneof![8 => 0..50_000_000_u64, 1 => 0..5_000_000_000_u64, 1 => any::<u64>()];
    let rate = prop_oneof![
        1 => Just(0_u64),
        4 => 1_000_000..2_000_000_000_u64,
        1 => any::<u64>(),
        2 => Just(u64::MAX),
    ];
    let rates = prop_oneof![
        rate.clone().prop_map(|rate| [rate; 4]),
        [rate.clone(), rate.clone(), rate.clone(), rate],
    ];
    let patience = prop_oneof![1 => Just(0), 9 => 1..9_u64];
    prop_oneof![
        12 => (0..LANES, 0..5_u32, 0..4_usize, cost(), patience, any::<u8>())
            .prop_map(|(lane, customer, level, cost, patience, attempt)| {
                Operation::Offer { lane, customer, level, cost, patience, attempt }
            }),
        6 => (0..LANES, any::<usize>(), cost())
            .prop_map(|(lane, index, actual)| Operation::Complete { lane, index, actual }),
        4 => (seen(), 0..4_usize).prop_map(|(seen, level)| Operation::Tick { seen, level }),
        4 => prop_oneof![8 => 0..100_u64, 1 => 0..100_000_u64]
            .prop_map(|millis| Operation::Pass { millis }),
        2 => (0..5_u32, rates)
            .prop_map(|(customer, rates)| Operation::Limit { customer, rates }),
        1 => (0..LANES).prop_map(|lane| Operation::Restart { lane }),
        1 => prop_oneof![Just(true), Just(false), Just(false)].prop_map(Operation::LameDuck),
        1 => prop_oneof![Just(true), Just(false), Just(false)].prop_map(Operation::Dark),
    ]
}

/// What a task sees of itself, in full; loads that are no numbers among it.
fn seen() -> impl Strategy<Value = Seen> {
    let load = || prop_oneof![4 => 0.0..4.0_f64, 1 => number(), 1 => Just(f64::NAN)];
    let used = prop_oneof![4 => 0..100_000_000_u64, 1 => any::<u64>()];
    (reading(), option::of(reading()), option::of(load()), option::of(load()), option::of(used))
        .prop_map(|(reading, beyond_cpu, load, load_least, used)| {
            let mut seen = Seen::new(reading);
            seen = beyond_cpu.map_or(seen, |reading| seen.beyond_cpu(reading));
            seen = load.map_or(seen, |load| seen.load(load));
            seen = load_least.map_or(seen, |load| seen.load_least(load));
            used.map_or(seen, |used| seen.used(Cost::from_nanos(used)))
        })
}

/// What each request of a probe costs: nothing, or more than a lease may hold.
const PROBES: [Cost; 2] = [Cost::ZERO, Cost::from_millis(1)];

/// A gate, and what is known about it from outside.
struct World {
    gate: Arc<AdmissionGate>,
    controller: Controller,
    lanes: [Lane; LANES],
    permits: Vec<Permit>,
    limits: [Limits; CUSTOMERS],
    /// No thread may have more in flight than this, if it is of customers who are over.
    limit_over: [Cost; 4],
    config: ShedConfig,
    offered: [u64; 4],
    lame_duck: bool,
    dark: bool,
    rng: SeededRng,
    now: Timestamp,
}

impl World {
    fn new(config: ShedConfig) -> Self {
        let now = Timestamp::from_secs(1);
        let mut quota = QuotaConfig::default();
        quota.customers_max = CUSTOMERS;
        let gate = AdmissionGate::new(quota);
        let cpus = |cpus| CostRate::from_cpus(cpus).unwrap();
        let nested = Limits::from_entries([Some(cpus(0.1)), None, Some(cpus(0.5)), None]);
        let limits = [Limits::UNLIMITED, Limits::total(cpus(0.5)), nested.unwrap()];
        for (customer, limits) in (0..).zip(limits) {
            gate.quota().set_limits(CustomerId(customer), limits, now);
        }
        Self {
            controller: Controller::new(config.clone(), AttemptsConfig::default(), &gate, now),
            lanes: core::array::from_fn(|_| gate.lane()),
            gate,
            permits: Vec::new(),
            limits,
            limit_over: [Cost::MAX; 4],
            config,
            offered: [0; 4],
            lame_duck: false,
            dark: false,
            rng: SeededRng::new(5),
            now,
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Offer { lane, customer, level, cost, patience, attempt } => {
                let deadline = self.now + Duration::from_millis(patience);
                let request = Request::new(Criticality::ALL[level], Cost::from_nanos(cost))
                    .customer(CustomerId(customer))
                    .attempt(attempt)
                    .deadline(deadline);
                let mut rng = self.rng.fork();
                if let Ok(permit) = self.offer(lane, &request, &mut rng)? {
                    self.permits.push(permit);
                }
            }
            Operation::Complete { lane, index, actual } => {
                if !self.permits.is_empty() {
                    let permit = self.permits.swap_remove(index % self.permits.len());
                    self.lanes[lane].complete(permit, Cost::from_nanos(actual), self.now);
                }
            }
            Operation::Tick { seen, level } => {
                let plan = self.controller.tick(&self.gate, seen, self.now);
                self.limit_over = plan.limit_over;
                prop_assert!(plan.capacity.is_finite() && plan.offered.is_finite());
                self.probe_lanes(level)?;
            }
            Operation::Pass { millis } => self.now += Duration::from_millis(millis),
            Operation::Limit { customer, rates } => {
                let limits = Limits::clamped(rates.map(CostRate::from_nanos_per_sec));
                self.gate.quota().set_limits(CustomerId(customer), limits, self.now);
                self.limits[known(CustomerId(customer))] = limits;
            }
            Operation::Restart { lane } => self.lanes[lane] = self.gate.lane(),
            Operation::LameDuck(on) => {
                self.gate.set_lame_duck(on);
                self.lame_duck = on;
            }
            Operation::Dark(on) => {
                self.gate.set_dark(on);
                self.dark = on;
            }
        }
        Ok(())
    }

    /// Offers a request and checks what every answer has to keep to. A refusal, also one that dark
    /// mode let in, comes back as its reason.
    fn offer(
        &mut self,
        lane: usize,
        request: &Request,
        rng: &mut impl Rng,
    ) -> Result<Result<Permit, Reason>, TestCaseError> {
        self.offered[request.criticality.index()] += 1;
        let decision = self.lanes[lane].admit(request, self.now, rng);
        let reason = match &decision {
            Decision::Admit(permit) => {
                prop_assert!(!self.lame_duck, "admitted in lame duck");
                prop_assert!(self.dark || permit.would_reject().is_none());
                prop_assert_eq!(permit.criticality(), request.criticality);
                permit.would_reject()
            }
            Decision::Reject(refusal) => {
                let rejection = refusal.rejection();
                prop_assert!(!self.dark || rejection.reason == Reason::LameDuck, "{rejection}");
                prop_assert_eq!(rejection.criticality, request.criticality);
                self.check_cause(request, rejection.reason, rejection.advice, rejection.cause)?;
                Some(rejection.reason)
            }
        };
        prop_assert_eq!(reason == Some(Reason::LameDuck), self.lame_duck);
        if !self.lame_duck {
            let late = request.deadline <= self.now;
            prop_assert_eq!(reason == Some(Reason::DeadlinePassed), late);
        }
        let limits = self.limits[known(request.customer)];
        if limits == Limits::UNLIMITED {
            prop_assert_ne!(reason, Some(Reason::OutOfQuota));
        }
        if limits[request.criticality] == CostRate::ZERO {
            prop_assert!(reason.is_some(), "a blocked customer got in");
        }
        match (decision, reason) {
            (Decision::Admit(permit), None) => Ok(Ok(permit)),
            (Decision::Admit(permit), Some(reason)) => {
                // In dark mode: served like any other.
                self.permits.push(permit);
                Ok(Err(reason))
            }
            (Decision::Reject(refusal), _) => Ok(Err(refusal.reason())),
        }
    }

    /// Reasons that have numbers tell them, and what they tell is exact.
    fn check_cause(
        &self,
        request: &Request,
        reason: Reason,
        advice: Advice,
        cause: Option<Cause>,
    ) -> Result<(), TestCaseError> {
        match (reason, cause) {
            (Reason::OutOfQuota, Some(Cause::Quota { opens_in })) => {
                prop_assert_eq!(advice, Advice::DontRetry);
                let opens_at = self.now + opens_in;
                let check = |at| self.gate.quota().check(request.customer, request.criticality, at);
                prop_assert_eq!(check(opens_at), Ok(()));
                prop_assert_eq!(
                    check(self.now + opens_in.saturating_sub(NANOSECOND)),
                    Err(NANOSECOND)
                );
            }
            (Reason::Overloaded, Some(Cause::Signal { threshold, .. })) => {
                let expected = self.config.threshold(request.criticality);
                prop_assert_eq!(threshold, expected.into());
                let limited = self.limit_over[request.criticality.index()] < Cost::MAX;
                prop_assert!(limited || self.gate.levels().share(request.criticality) < 1.0);
            }
            (Reason::LameDuck | Reason::DeadlinePassed, None) => {}
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    /// At this moment, on each thread, for each customer and for dice that always fall the same:
    /// where a level is refused, every lower one is.
    fn probe(&mut self) -> Result<(), TestCaseError> {
        for (lane, cost) in (0..LANES).flat_map(|lane| PROBES.map(|cost| (lane, cost))) {
            for customer in 0..CUSTOMERS as u32 {
                for dice in [Loaded(0), Loaded(u64::MAX)] {
                    self.probe_levels(lane, CustomerId(customer), cost, dice)?;
                }
            }
        }
        Ok(())
    }

    fn probe_levels(
        &mut self,
        lane: usize,
        customer: CustomerId,
        cost: Cost,
        dice: Loaded,
    ) -> Result<(), TestCaseError> {
        let mut refused: Option<(Criticality, Reason)> = None;
        for level in Criticality::ALL.into_iter().rev() {
            let request = Request::new(level, cost).customer(customer);
            match self.offer(lane, &request, &mut { dice })? {
                Ok(permit) => {
                    prop_assert!(refused.is_none(), "{level} is in, but {refused:?} not");
                    self.lanes[(lane + 1) % LANES].complete(permit, cost, self.now);
                }
                Err(reason) => {
                    // In lame duck before all, and out of quota before overloaded.
                    let by_quota = (Reason::OutOfQuota, Reason::Overloaded);
                    prop_assert!(refused.is_none_or(|(_, r)| (r, reason) != by_quota));
                    refused = Some((level, reason));
                    if reason == Reason::Overloaded && level > Criticality::Sheddable {
                        self.probe_others(lane, level, cost, dice)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Somebody was refused for want of room: nobody else is let in with less criticality, however
    /// well within their quota.
    fn probe_others(
        &mut self,
        lane: usize,
        refused: Criticality,
        cost: Cost,
        dice: Loaded,
    ) -> Result<(), TestCaseError> {
        let below = Criticality::ALL[refused.index() - 1];
        for customer in 0..CUSTOMERS as u32 {
            let request = Request::new(below, cost).customer(CustomerId(customer));
            let got = self.offer(lane, &request, &mut { dice })?;
            prop_assert!(got.is_err(), "{below} of {customer} is in, but {refused} not");
        }
        Ok(())
    }

    /// Right after a plan no thread has leased anything: whoever is refused on one of them, no
    /// lower level gets in on any.
    fn probe_lanes(&mut self, level: usize) -> Result<(), TestCaseError> {
        let [_, cost] = PROBES;
        let high = Criticality::ALL[level];
        match self.offer(0, &Request::new(high, cost), &mut Loaded(u64::MAX))? {
            Ok(permit) => self.lanes[0].complete(permit, cost, self.now),
            Err(Reason::Overloaded) if !self.dark => {
                for lane in 0..LANES {
                    for below in Criticality::ALL.into_iter().take(level) {
                        let request = Request::new(below, cost);
                        let got = self.offer(lane, &request, &mut Loaded(u64::MAX))?;
                        prop_assert!(got.is_err(), "{below} is in on {lane}, but {high} not");
                    }
                }
            }
            Err(_) => {}
        }
        Ok(())
    }

    /// Every request that was offered is admitted or refused, and in flight until it is done.
    fn check_counts(&self) -> Result<(), TestCaseError> {
        let counts = self.gate.counts();
        for level in Criticality::ALL {
            let rejected: u64 = Reason::ALL.iter().map(|&r| counts.rejected(r, level)).sum();
            let dark: u64 = Reason::ALL.iter().map(|&r| counts.dark(r, level)).sum();
            let admitted = counts.admitted(level);
            prop_assert_eq!(admitted + rejected, self.offered[level.index()]);
            prop_assert!(dark <= admitted);
        }
        prop_assert_eq!(counts.inflight(), self.permits.len() as u64);
        Ok(())
    }
}

/// Strangers count as the default customer.
fn known(customer: CustomerId) -> usize {
    if customer.index() < CUSTOMERS { customer.index() } else { 0 }
}

proptest! {
    #[test]
    fn what_holds_whatever_happens(config in config(), operations in vec(operation(), 0..80)) {
        let mut world = World::new(config);
        for operation in &operations {
            world.apply(operation)?;
            world.probe()?;
            world.check_counts()?;
        }
    }
}
