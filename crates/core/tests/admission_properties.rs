//! What holds at an admission gate whatever happens: customers with limits of every kind, a
//! controller that is fed arbitrary readings, requests that come in on one thread's lane and end on
//! another's, switches that are thrown at any moment.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used)]

use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::Arc;
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Lane, Permit, Request};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{Advice, Cause, Reason, SignalId};
use tidegate_core::fleet::Limits;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::signal::Reading;
use tidegate_core::{Cost, CostRate, Criticality, CustomerId, Timestamp, Utilization};

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
    Offer { lane: usize, customer: u32, level: usize, cost: u64, patience: u64 },
    Complete { lane: usize, index: usize, actual: u64 },
    Tick { utilization: f64, instant: f64 },
    Pass { millis: u64 },
    Limit { customer: u32, rates: [u64; 4] },
    Restart { lane: usize },
    LameDuck(bool),
    Dark(bool),
}

fn operation() -> impl Strategy<Value = Operation> {
    let cost = || prop_oneof![8 => 0..50_000_000_u64, 1 => 0..5_000_000_000_u64, 1 => any::<u64>()];
    let level = || prop_oneof![4 => 0.0..3.0_f64, 1 => Just(f64::MAX)];
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
    prop_oneof![
        12 => (0..LANES, 0..5_u32, 0..4_usize, cost(), prop_oneof![1 => Just(0), 9 => 1..9_u64])
            .prop_map(|(lane, customer, level, cost, patience)| {
                Operation::Offer { lane, customer, level, cost, patience }
            }),
        6 => (0..LANES, any::<usize>(), cost())
            .prop_map(|(lane, index, actual)| Operation::Complete { lane, index, actual }),
        4 => (level(), level())
            .prop_map(|(utilization, instant)| Operation::Tick { utilization, instant }),
        4 => prop_oneof![8 => 0..100_u64, 1 => 0..100_000_u64]
            .prop_map(|millis| Operation::Pass { millis }),
        2 => (0..5_u32, rates)
            .prop_map(|(customer, rates)| Operation::Limit { customer, rates }),
        1 => (0..LANES).prop_map(|lane| Operation::Restart { lane }),
        1 => prop_oneof![Just(true), Just(false), Just(false)].prop_map(Operation::LameDuck),
        1 => prop_oneof![Just(true), Just(false), Just(false)].prop_map(Operation::Dark),
    ]
}

/// A gate, and what is known about it from outside.
struct World {
    gate: Arc<AdmissionGate>,
    controller: Controller,
    lanes: [Lane; LANES],
    permits: Vec<Permit>,
    limits: [Limits; CUSTOMERS],
    limit: [Cost; 4],
    offered: [u64; 4],
    lame_duck: bool,
    dark: bool,
    rng: SeededRng,
    now: Timestamp,
}

impl World {
    fn new() -> Self {
        let now = Timestamp::from_secs(1);
        let mut quota = QuotaConfig::default();
        quota.customers_max = CUSTOMERS;
        let shed = ShedConfig::default();
        let gate = AdmissionGate::new(quota);
        let cpus = |cpus| CostRate::from_cpus(cpus).unwrap();
        let nested = Limits::from_entries([Some(cpus(0.1)), None, Some(cpus(0.5)), None]);
        let limits = [Limits::UNLIMITED, Limits::total(cpus(0.5)), nested.unwrap()];
        for (customer, limits) in (0..).zip(limits) {
            gate.quota().set_limits(CustomerId(customer), limits, now);
        }
        Self {
            controller: Controller::new(shed, AttemptsConfig::default(), &gate, now),
            lanes: core::array::from_fn(|_| gate.lane()),
            gate,
            permits: Vec::new(),
            limits,
            limit: [Cost::MAX; 4],
            offered: [0; 4],
            lame_duck: false,
            dark: false,
            rng: SeededRng::new(5),
            now,
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Offer { lane, customer, level, cost, patience } => {
                let deadline = self.now + Duration::from_millis(patience);
                let request = Request::new(Criticality::ALL[level], Cost::from_nanos(cost))
                    .customer(CustomerId(customer))
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
            Operation::Tick { utilization, instant } => {
                let [utilization, instant] =
                    [utilization, instant].map(|value| Utilization::new(value).unwrap());
                let reading = Reading { utilization, instant, signal: SignalId(0) };
                self.limit = self.controller.tick(&self.gate, reading, self.now).limit;
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
                let expected = ShedConfig::default().threshold(request.criticality);
                prop_assert_eq!(threshold, expected.into());
                let limited = self.limit[request.criticality.index()] < Cost::MAX;
                prop_assert!(limited || self.gate.levels().share(request.criticality) < 1.0);
            }
            (Reason::LameDuck | Reason::DeadlinePassed, None) => {}
            other => prop_assert!(false, "{other:?}"),
        }
        Ok(())
    }

    /// At this moment, for each customer and for dice that always fall the same: where a level is
    /// refused, every lower one is.
    fn probe(&mut self) -> Result<(), TestCaseError> {
        for customer in 0..CUSTOMERS as u32 {
            for dice in [Loaded(0), Loaded(u64::MAX)] {
                let mut refused: Option<(Criticality, Reason)> = None;
                for level in Criticality::ALL.into_iter().rev() {
                    let request = Request::new(level, Cost::ZERO).customer(CustomerId(customer));
                    match self.offer(0, &request, &mut { dice })? {
                        Ok(permit) => {
                            prop_assert!(refused.is_none(), "{level} is in, but {refused:?} not");
                            self.lanes[1].complete(permit, Cost::ZERO, self.now);
                        }
                        Err(reason) => {
                            // In lame duck before all, and out of quota before overloaded.
                            let by_quota = (Reason::OutOfQuota, Reason::Overloaded);
                            prop_assert!(refused.is_none_or(|(_, r)| (r, reason) != by_quota));
                            refused = Some((level, reason));
                        }
                    }
                }
            }
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
    fn what_holds_whatever_happens(operations in vec(operation(), 0..80)) {
        let mut world = World::new();
        for operation in &operations {
            world.apply(operation)?;
            world.probe()?;
            world.check_counts()?;
        }
    }
}
