//! What every customer uses and wants, per second: the task's report to the fleet.

use super::{LEVELS, QuotaGate};
use crate::counters::LINE;
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
    last: Vec<u64>,
    totals: Vec<u64>,
    /// Corrections below zero that the next report has to make up for.
    owed: Vec<u64>,
    at: Timestamp,
}

impl UsageMeter {
    /// Begins to measure at `now`.
    pub fn new(gate: &QuotaGate, now: Timestamp) -> Self {
        let last = gate.usage.totals();
        Self { totals: last.clone(), owed: vec![0; last.len()], last, at: now }
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
        gate.usage.read(&mut self.totals);
        let lines = self.totals.chunks_exact(LINE).zip(self.last.chunks_exact_mut(LINE));
        for (customer, ((now, last), owed)) in
            lines.zip(self.owed.chunks_exact_mut(LINE)).enumerate()
        {
            if now == last {
                continue;
            }
            let grown: [u64; LINE] = core::array::from_fn(|cell| {
                let difference = now[cell].wrapping_sub(last[cell]) as i64;
                settle(difference, &mut owed[cell])
            });
            last.copy_from_slice(now);
            let mut usage = Usage::default();
            for level in 0..LEVELS {
                let used = Cost::from_nanos(grown[level]);
                let refused = Cost::from_nanos(grown[LEVELS + level]);
                usage.used[level] = used.per(span);
                usage.wanted[level] = (used + refused).per(span);
            }
            report(CustomerId::new(customer), usage);
        }
    }
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
