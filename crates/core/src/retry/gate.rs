//! The retry budget of a client with many threads.
//!
//! Requests are many, and each one deposits: a shared balance that every request adds to would cost
//! more than the rest of the request path. So a [`BudgetLane`] only counts its requests in a cell
//! of its own, and the [`BudgetController`] turns counts into credit on its tick. Retries are few,
//! and each one withdraws from the shared balance by compare-and-exchange: it takes a whole retry
//! or nothing, so no interleaving of threads overdraws it. Reading the balance first and
//! subtracting later would.
//!
//! The tick replaces the balance by `min(balance + credit, cap)` in one exchange as well: a
//! withdrawal comes before or after it, never in between. There is one controller to a gate, so
//! every request is turned into credit once.
//!
//! Credit arrives a tick late, and with the controller gone retries run dry. Both err on the side
//! of fewer retries. Between ticks nothing is trimmed, so the window is longer by up to a tick.

use super::budget::{BudgetConfig, Ledger, RETRY};
use crate::counters::{Counters, Writer};
use crate::sync::{AtomicU64, Ordering};
use crate::units::Timestamp;
use std::sync::Arc;

const REQUESTS: usize = 0;
const RETRIES: usize = 1;
const REFUSED: usize = 2;
const CELLS: usize = 3;

/// What a budget's threads and its controller share.
///
/// Everything is `Relaxed`: each word stands for itself and announces nothing else.
#[derive(Debug)]
pub struct BudgetGate {
    balance: AtomicU64,
    counters: Arc<Counters>,
}

/// What has been asked of a budget so far. Wraps at 2^64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BudgetCounts {
    /// Requests, without their retries.
    pub requests: u64,
    /// Retries that were granted.
    pub retries: u64,
    /// Retries that were asked for in vain.
    pub refused: u64,
}

impl BudgetGate {
    /// A lane for one thread. Takes a lock: once per thread, not per request.
    pub fn lane(self: &Arc<Self>) -> BudgetLane {
        BudgetLane { gate: Arc::clone(self), writer: self.counters.writer() }
    }

    /// What has been asked so far. Takes a lock that only lanes being made or dropped contend for.
    /// For ticks and metrics.
    pub fn counts(&self) -> BudgetCounts {
        let mut cells = [0; CELLS];
        self.counters.read(&mut cells);
        BudgetCounts { requests: cells[REQUESTS], retries: cells[RETRIES], refused: cells[REFUSED] }
    }

    /// The balance in billionths of a retry. For metrics and tests.
    pub fn balance(&self) -> u64 {
        self.balance.load(Ordering::Relaxed)
    }

    fn take(&self) -> bool {
        self.replace(|balance| balance.checked_sub(RETRY))
    }

    /// Replaces the balance by what `next` makes of it, as one step; not at all if that is nothing.
    fn replace(&self, next: impl Fn(u64) -> Option<u64>) -> bool {
        self.balance.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// One thread's way to the budget.
#[derive(Debug)]
pub struct BudgetLane {
    gate: Arc<BudgetGate>,
    writer: Writer,
}

impl BudgetLane {
    /// A request is sent for the first time. Not for retries.
    ///
    /// For the shell's request path: one store of this thread's own.
    #[inline]
    pub fn deposit(&mut self) {
        self.writer.add(REQUESTS, 1);
    }

    /// Takes one retry out of the account, if there is one.
    ///
    /// For the shell's request path, before a retry ([`RetryPolicy::decide`]). One
    /// compare-and-exchange on a shared word if granted, one load of it if not.
    ///
    /// [`RetryPolicy::decide`]: super::RetryPolicy::decide
    #[inline]
    #[must_use]
    pub fn withdraw(&mut self) -> bool {
        let granted = self.gate.take();
        self.writer.add(if granted { RETRIES } else { REFUSED }, 1);
        granted
    }
}

/// Turns a [`BudgetGate`]'s requests into credit and lets old credit expire.
#[derive(Debug)]
pub struct BudgetController {
    ledger: Ledger,
    gate: Arc<BudgetGate>,
    seen: u64,
}

impl BudgetController {
    /// An empty account: the first requests have to earn the first retry.
    pub fn new(config: BudgetConfig) -> Self {
        let gate =
            Arc::new(BudgetGate { balance: AtomicU64::new(0), counters: Counters::new(CELLS) });
        Self { ledger: Ledger::new(config), gate, seen: 0 }
    }

    /// The gate, from which threads get their lanes.
    pub fn gate(&self) -> &Arc<BudgetGate> {
        &self.gate
    }

    /// Takes in the requests since the last tick, adds what they are worth and trims what is old.
    ///
    /// Off the request path, about every 100 ms. Costs a lock that no request takes, a load per
    /// cell and lane, and one exchange of the shared word.
    pub fn tick(&mut self, now: Timestamp) {
        let requests = self.gate.counts().requests;
        let credit = self.ledger.accrue(requests.wrapping_sub(self.seen), now);
        self.seen = requests;
        self.gate.replace(|balance| Some(credit.applied_to(balance)));
    }
}
