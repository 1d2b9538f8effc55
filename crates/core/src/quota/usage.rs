//! What every customer uses and wants, per second: the task's report to the fleet.

use super::{LEVELS, QuotaGate};
use crate::counters::{Counters, LINE};
use crate::customer::CustomerId;
use crate::units::{Cost, CostRate, Timestamp};

/// One customer's use and demand at this task, lowest criticality first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Usage {
    /// What was served.
    pub used: [CostRate; LEVELS],
    /// What was served or refused for want of quota.
    pub wanted: [CostRate; LEVELS],
}

/// Turns the counts of a [`QuotaGate`] into rates, report by report.
#[derive(Debug)]
pub struct UsageMeter {
    used: Growth,
    refused: Growth,
    at: Timestamp,
}

impl UsageMeter {
    /// Begins to measure at `now`.
    pub fn new(gate: &QuotaGate, now: Timestamp) -> Self {
        Self {
            used: Growth::of(&gate.accounts, LINE),
            refused: Growth::of(&gate.refused, LEVELS),
            at: now,
        }
    }

    /// Calls `report` for every customer who used or wanted anything since the last call. Does
    /// nothing if no time has passed since: there is no rate over no time.
    pub fn collect(
        &mut self,
        gate: &QuotaGate,
        now: Timestamp,
        mut report: impl FnMut(CustomerId, Usage),
    ) {
        let span = now.since(self.at);
        if span.is_zero() {
            return;
        }
        self.at = now;
        gate.accounts.read(&mut self.used.totals);
        gate.refused.read(&mut self.refused.totals);
        for customer in 0..gate.customers_max() {
            if self.used.is_still(customer) && self.refused.is_still(customer) {
                continue;
            }
            let used = self.used.take(customer);
            let refused = self.refused.take(customer);
            let wanted = core::array::from_fn(|level| (used[level] + refused[level]).per(span));
            report(CustomerId::new(customer), Usage { used: used.map(|u| u.per(span)), wanted });
        }
    }
}

/// Counts by customer and level, and what they were at the last report.
#[derive(Debug)]
struct Growth {
    /// A customer's cells begin this many after those of the one before.
    stride: usize,
    totals: Vec<u64>,
    last: Vec<[u64; LEVELS]>,
    /// Corrections below zero that the next report has to make up for.
    owed: Vec<[u64; LEVELS]>,
}

impl Growth {
    fn of(counters: &Counters, stride: usize) -> Self {
        let totals = counters.totals();
        let last: Vec<_> = totals.chunks_exact(stride).map(by_level).collect();
        Self { stride, totals, owed: vec![[0; LEVELS]; last.len()], last }
    }

    fn counts(&self, customer: usize) -> [u64; LEVELS] {
        by_level(&self.totals[customer * self.stride..])
    }

    fn is_still(&self, customer: usize) -> bool {
        self.counts(customer) == self.last[customer]
    }

    /// By how much a customer's counts have grown, level by level.
    fn take(&mut self, customer: usize) -> [Cost; LEVELS] {
        let counts = self.counts(customer);
        let before = core::mem::replace(&mut self.last[customer], counts);
        core::array::from_fn(|level| {
            let difference = counts[level].wrapping_sub(before[level]) as i64;
            Cost::from_nanos(settle(difference, &mut self.owed[customer][level]))
        })
    }
}

/// The first cells of a customer.
fn by_level(cells: &[u64]) -> [u64; LEVELS] {
    core::array::from_fn(|level| cells[level])
}

/// What to report of a `difference` that may be negative: corrections of an earlier report's
/// estimates are owed and taken out of later ones.
fn settle(difference: i64, owed: &mut u64) -> u64 {
    if difference < 0 {
        *owed = owed.saturating_add(difference.unsigned_abs());
        return 0;
    }
    let grown = difference.unsigned_abs();
    let paid = grown.min(*owed);
    *owed -= paid;
    grown - paid
}
