//! Who was over its limit, and when.
//!
//! A customer is over while it asks for more than it may use, at any criticality and below. That is
//! noted when it begins and when it has ended for a while, so that demand which wavers around its
//! limit is one entry and not hundreds. The latest are kept.

use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use tidegate_core::CostRate;
use tidegate_core::fleet::CustomerStatus;

/// An entry has about 100 bytes. A thousand are enough for the page of a bad day.
const ENTRIES_MAX: usize = 1_000;
/// Two reports without being over may be chance; ten are not.
const CALM: Duration = Duration::from_secs(10);

/// One time that a customer was over.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Over {
    /// Nothing is everyone else.
    pub(super) customer: String,
    /// In milliseconds since 1970, as all of these.
    pub(super) began: u64,
    pub(super) last: u64,
    pub(super) ended: bool,
    pub(super) demand_max: CostRate,
}

/// The latest times that anyone was over.
#[derive(Debug, Default)]
pub(super) struct History {
    /// Those that are not over yet, by customer.
    open: BTreeMap<String, Over>,
    /// Oldest first.
    ended: VecDeque<Over>,
}

/// Whether a customer asks for more than it may use.
pub(super) fn is_over(status: &CustomerStatus) -> bool {
    let mut wanted = CostRate::ZERO;
    status.demand.into_iter().zip(status.limits.as_array()).any(|(demand, limit)| {
        wanted = CostRate::from_nanos_per_sec(
            wanted.as_nanos_per_sec().saturating_add(demand.as_nanos_per_sec()),
        );
        wanted > limit
    })
}

impl History {
    /// How a customer stands at `now`.
    pub(super) fn note(&mut self, customer: &str, status: &CustomerStatus, now: u64) {
        let open = self.open.get_mut(customer);
        if !is_over(status) {
            if open.is_some_and(|over| now.saturating_sub(over.last) >= CALM.as_millis() as u64) {
                self.end(customer);
            }
            return;
        }
        let wanted = status.demand.iter().map(|rate| rate.as_nanos_per_sec());
        let wanted = CostRate::from_nanos_per_sec(wanted.fold(0, u64::saturating_add));
        if let Some(over) = open {
            over.last = now;
            over.demand_max = over.demand_max.max(wanted);
            return;
        }
        let name = customer.to_owned();
        let over = Over {
            customer: name.clone(),
            began: now,
            last: now,
            ended: false,
            demand_max: wanted,
        };
        self.open.insert(name, over);
    }

    /// The customer is no longer over, or no longer there.
    pub(super) fn end(&mut self, customer: &str) {
        let Some(over) = self.open.remove(customer) else { return };
        if self.ended.len() >= ENTRIES_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(Over { ended: true, ..over });
    }

    /// Those that go on, then the latest first.
    pub(super) fn latest(&self) -> impl Iterator<Item = &Over> {
        self.open.values().chain(self.ended.iter().rev()).take(ENTRIES_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::fleet::Limits;

    fn status(demand: [u64; 4], limits: [u64; 4]) -> CustomerStatus {
        let rates = |nanos: [u64; 4]| nanos.map(CostRate::from_nanos_per_sec);
        CustomerStatus {
            limits: Limits::clamped(rates(limits)),
            used: rates([0; 4]),
            demand: rates(demand),
            counted: rates([0; 4]),
            tasks: 1,
        }
    }

    #[test]
    fn over_by_the_table() {
        for (demand, limits, over) in [
            ([0, 0, 10, 0], [10; 4], false),
            ([0, 0, 11, 0], [10; 4], true),
            ([3, 3, 3, 2], [10; 4], true),
            ([3, 0, 0, 0], [2, 10, 10, 10], true),
            ([0, 3, 0, 0], [2, 10, 10, 10], false),
            ([u64::MAX; 4], [u64::MAX; 4], false),
            ([1, 0, 0, 0], [0; 4], true),
        ] {
            assert_eq!(is_over(&status(demand, limits)), over, "{demand:?} {limits:?}");
        }
    }

    #[test]
    fn demand_that_wavers_is_one_entry_and_calm_ends_it() {
        let mut history = History::default();
        let (calm, over) = (status([0, 0, 5, 0], [10; 4]), status([0, 0, 20, 0], [10; 4]));
        for second in 0..100 {
            let status = if second % 2 == 0 && second < 50 { &over } else { &calm };
            history.note("gmail", status, second * 1_000);
        }
        history.note("", &over, 100_000);
        let found: Vec<_> = history.latest().cloned().collect();
        let twenty = CostRate::from_nanos_per_sec(20);
        let entry = |customer: &str, began, last, ended| Over {
            customer: customer.to_owned(),
            began,
            last,
            ended,
            demand_max: twenty,
        };
        assert_eq!(found, [entry("", 100_000, 100_000, false), entry("gmail", 0, 48_000, true)]);
        for n in 0..3_000 {
            history.note(&n.to_string(), &over, 200_000);
        }
        assert_eq!(history.latest().count(), ENTRIES_MAX);
    }
}
