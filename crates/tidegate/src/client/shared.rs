//! What all services of a layer have in common: one throttle and one budget for one backend.

use super::keeper::{Kept, Time, Watch};
use super::lanes::{self, Dice, Key, Slots};
use super::layer::Config;
use core::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::Timestamp;
use tidegate_core::criticality::Criticality;
use tidegate_core::levels::Levels;
use tidegate_core::retry::{BudgetController, BudgetCounts, BudgetGate, BudgetLane, GiveUpReason};
use tidegate_core::rng::SeededRng;
use tidegate_core::throttle::{ThrottleController, ThrottleCounts, ThrottleGate, ThrottleLane};
use tidegate_wire::faults::{Fault, Faults};

thread_local! {
    static LANES: RefCell<Slots<Lane>> = const { RefCell::new(Slots::new()) };
}

/// One thread's way through both gates.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) throttle: ThrottleLane,
    pub(super) budget: BudgetLane,
    pub(super) rng: SeededRng,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: Config,
    pub(super) time: Time,
    throttle: Arc<ThrottleGate>,
    budget: Arc<BudgetGate>,
    /// Only the keeper's.
    controllers: Mutex<(ThrottleController, BudgetController)>,
    watch: Watch,
    key: Key,
    dice: Dice,
    given_up: [AtomicU64; GiveUpReason::ALL.len()],
    unrepeatable: AtomicU64,
    faults: [AtomicU64; Fault::ALL.len()],
}

/// What a client has done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// The fates of attempts by criticality, lowest first.
    pub attempts: [ThrottleCounts; Criticality::COUNT],
    /// Requests and retries.
    pub retries: BudgetCounts,
    /// Requests that were not tried again, by reason, in the order of [`GiveUpReason::ALL`].
    pub given_up: [u64; GiveUpReason::ALL.len()],
    /// Requests that were not tried again because their body could not be sent twice.
    pub unrepeatable: u64,
    /// What made no sense in answers, in the order of [`Fault::ALL`].
    pub faults: [u64; Fault::ALL.len()],
}

impl Shared {
    pub(super) fn new(config: Config) -> Self {
        let throttle = ThrottleController::new(config.throttle);
        let budget = BudgetController::new(config.budget);
        Self {
            time: Time::begin(),
            throttle: Arc::clone(throttle.gate()),
            budget: Arc::clone(budget.gate()),
            controllers: Mutex::new((throttle, budget)),
            watch: Watch::default(),
            key: Key::default(),
            dice: Dice::new(config.seed),
            given_up: Default::default(),
            unrepeatable: AtomicU64::new(0),
            faults: Default::default(),
            config,
        }
    }

    /// Asks, or tells, this thread's lane.
    #[inline]
    pub(super) fn lane<R>(&self, work: impl FnOnce(&mut Lane) -> R) -> R {
        let make = || Lane {
            throttle: self.throttle.lane(),
            budget: self.budget.lane(),
            rng: self.dice.next(),
        };
        lanes::with(&LANES, &self.key, make, work)
    }

    pub(super) fn count_given_up(&self, reason: GiveUpReason) {
        self.given_up[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_unrepeatable(&self) {
        self.unrepeatable.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_faults(&self, faults: Faults) {
        for fault in faults.iter() {
            self.faults[fault.index()].fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn counts(&self) -> Counts {
        let read = |cell: &AtomicU64| cell.load(Ordering::Relaxed);
        Counts {
            attempts: self.throttle.counts(),
            retries: self.budget.counts(),
            given_up: self.given_up.each_ref().map(read),
            unrepeatable: read(&self.unrepeatable),
            faults: self.faults.each_ref().map(read),
        }
    }

    pub(super) fn budget_left(&self) -> f64 {
        // The gate has it in billionths.
        self.budget.balance() as f64 / 1e9
    }

    pub(super) fn levels(&self) -> Levels {
        self.throttle.levels()
    }
}

impl Kept for Shared {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn time(&self) -> Time {
        self.time
    }

    fn tick(self: &Arc<Self>, now: Timestamp) {
        // A keeper that panicked left numbers that are at worst a tick old.
        let mut controllers = self.controllers.lock().unwrap_or_else(PoisonError::into_inner);
        controllers.0.tick(now);
        controllers.1.tick(now);
    }
}
