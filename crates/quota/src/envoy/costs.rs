//! What requests of customers cost, as answers have told.
//!
//! RLQS counts requests and RLS asks about them before they are served, while quotas are CPU time.
//! So both need the cost of a request in advance, and only answers tell it (`hits_addend`, in
//! microseconds). What they tell is averaged by customer, robustly (`tidegate_core::cost`); of a
//! customer without answers the mean of all counts, and before the first answer the `hit` of the
//! file, or a guess.
//!
//! **Bounds.** Only customers that the file names have an average, so nobody can make the table
//! grow. What an answer claims to have cost beyond a minute is a mistake and counts as a minute;
//! beyond eight times the mean it counts as that.
//!
//! **When it is wrong** by a factor, customers of RLQS may use that factor too much or too little
//! until a few dozen answers have told. By RLS, what was used is charged whatever was expected.

use core::sync::atomic::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::{Cost, CustomerId};

/// What a request costs where nobody has said anything.
const GUESS: Cost = Cost::from_millis(1);
/// No request costs more: what says so is in another unit.
const COST_MAX: Cost = Cost::from_millis(60_000);
/// All requests of a customer are of one kind here.
const METHOD: MethodId = MethodId(0);

/// What requests of a service cost, by customer. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    measured: AtomicBool,
    hit: Option<Cost>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Numbers of customers that were measured, by name.
    numbers: BTreeMap<String, CustomerId>,
    customers_max: usize,
    lane: CostLane,
}

impl Costs {
    /// Of a service whose file says `hit`, with room for so many customers.
    pub(crate) fn new(hit: Option<Cost>, customers_max: usize) -> Self {
        let lane = CostTable::new(2 * customers_max, hit.unwrap_or(GUESS)).lane();
        let inner = Inner { numbers: BTreeMap::new(), customers_max, lane };
        let (measured, inner) = (AtomicBool::new(false), Mutex::new(inner));
        Self { shared: Arc::new(Shared { measured, hit, inner }) }
    }

    /// An answer to a customer has cost so much. Nothing for a name is everyone else, and so is
    /// whoever the file does not name.
    pub(crate) fn told(&self, customer: &str, cost: Cost) {
        let mut inner = self.inner();
        let number = inner.number(customer);
        inner.lane.record(number, METHOD, cost.min(COST_MAX));
        drop(inner);
        self.shared.measured.store(true, Ordering::Relaxed);
    }

    /// What a request of a customer will probably cost.
    pub(crate) fn expect(&self, customer: &str) -> Cost {
        let inner = self.inner();
        let number = inner.numbers.get(customer).copied().unwrap_or(CustomerId::DEFAULT);
        inner.lane.estimate(number, METHOD)
    }

    /// Whether anything is known of what requests cost.
    pub(crate) fn are_known(&self) -> bool {
        self.shared.hit.is_some() || self.are_measured()
    }

    /// Whether answers tell what they have cost.
    pub(crate) fn are_measured(&self) -> bool {
        self.shared.measured.load(Ordering::Relaxed)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn number(&mut self, customer: &str) -> CustomerId {
        if customer.is_empty() {
            return CustomerId::DEFAULT;
        }
        if let Some(number) = self.numbers.get(customer) {
            return *number;
        }
        if self.numbers.len() >= self.customers_max {
            return CustomerId::DEFAULT;
        }
        let number = CustomerId(self.numbers.len() as u32 + 1);
        self.numbers.insert(customer.to_owned(), number);
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn millis(cost: Cost) -> f64 {
        cost.as_secs_f64() * 1e3
    }

    #[test]
    fn answers_count_by_customer_then_all_of_them_then_the_file() {
        let costs = Costs::new(Some(Cost::from_millis(3)), 10);
        assert!(costs.are_known() && !costs.are_measured());
        assert_eq!(costs.expect("a"), Cost::from_millis(3));
        for _ in 0..200 {
            costs.told("a", Cost::from_millis(10));
            costs.told("b", Cost::from_millis(40));
        }
        let (a, b) = (millis(costs.expect("a")), millis(costs.expect("b")));
        assert!((9.9..10.1).contains(&a) && (39.0..41.0).contains(&b), "{a} {b}");
        // Of others the mean of all.
        let other = millis(costs.expect("c"));
        assert!((15.0..35.0).contains(&other), "{other}");
        let silent = Costs::new(None, 10);
        assert!(!silent.are_known());
        assert_eq!(silent.expect("a"), GUESS);
    }

    #[test]
    fn nonsense_neither_moves_a_mean_far_nor_makes_the_table_grow() {
        let costs = Costs::new(None, 10);
        for _ in 0..500 {
            costs.told("a", Cost::from_millis(10));
        }
        costs.told("a", Cost::from_nanos(u64::MAX));
        let mean = millis(costs.expect("a"));
        assert!((9.9..12.0).contains(&mean), "{mean}");
        for n in 0..1_000 {
            costs.told(&format!("made-up-{n}"), Cost::from_millis(1));
        }
        assert_eq!(costs.inner().numbers.len(), 10);
    }
}
