//! What requests of customers cost, as answers have told.
//!
//! RLQS counts requests and RLS asks about them before they are served, while quotas are CPU time.
//! So both need the cost of a request in advance, and only answers tell it (`hits_addend`, in
//! microseconds). What they tell is averaged by customer, robustly (`tidegate_core::cost`); of a
//! customer without answers the mean of all counts, and before the first answer the `hit` of the
//! file, or a guess.
//!
//! **Bounds.** Only customers that the file names have an average, so nobody can make the table
//! grow; one that it names no more makes room. Where there is none, as a zone may be told of more
//! customers than its own file has room for, answers count for everyone else's mean. What an answer
//! claims to have cost beyond a minute is a mistake and counts as a minute; beyond eight times the
//! mean it counts as that.
//!
//! **When it is wrong** by a factor, customers of RLQS may use that factor too much or too little
//! until a few dozen answers have told. By RLS, what was used is charged whatever was expected.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::{Cost, CustomerId};

/// What a request costs where nobody has said anything.
const GUESS: Cost = Cost::from_millis(1);
/// No request costs more: what says so is in another unit.
const COST_MAX: Cost = Cost::from_millis(60_000);
/// Estimates for each customer that there may be, of 16 bytes: the table finds room for nearly all
/// where three of eight places are taken, those of customers that have left included.
const ROOM: usize = 4;
/// All requests of a customer are of one kind here.
const METHOD: MethodId = MethodId(0);

/// What requests of a service cost, by customer. Cheap to clone; clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Costs {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    hit: Option<Cost>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Whom the file names.
    named: BTreeSet<String>,
    /// Numbers of those that have told, by name; everyone else has none. Who found no room has the
    /// number of everyone else.
    numbers: BTreeMap<String, CustomerId>,
    /// The last number that was given out. None is given out again, or a customer would begin with
    /// the mean of a stranger.
    last: u32,
    /// Customers that are named no more, since the table was swept.
    left: usize,
    customers_max: usize,
    table: Arc<CostTable>,
    lane: CostLane,
}

impl Costs {
    /// Of a service whose file says `hit`, with room for so many customers.
    pub(crate) fn new(hit: Option<Cost>, customers_max: usize) -> Self {
        let table = CostTable::new(ROOM * customers_max, hit.unwrap_or(GUESS));
        let inner = Inner {
            named: BTreeSet::new(),
            numbers: BTreeMap::new(),
            last: 0,
            left: 0,
            customers_max,
            lane: table.lane(),
            table,
        };
        Self { shared: Arc::new(Shared { hit, inner: Mutex::new(inner) }) }
    }

    /// The file names these, from now on.
    pub(crate) fn name<'a>(&self, customers: impl Iterator<Item = &'a String>) {
        let mut inner = self.inner();
        let Inner { named, numbers, left, customers_max, table, .. } = &mut *inner;
        *named = customers.cloned().collect();
        let before = numbers.len();
        numbers.retain(|name, _| name.is_empty() || named.contains(name));
        *left += before - numbers.len();
        // A sweep forgets what was not told of since the last.
        if *left > *customers_max / ROOM {
            table.sweep();
            *left = 0;
        }
    }

    /// An answer to a customer has cost so much. Nothing for a name is everyone else, and so is
    /// whoever the file does not name.
    pub(crate) fn told(&self, customer: &str, cost: Cost) {
        let mut inner = self.inner();
        let number = inner.number(customer);
        inner.lane.record(number, METHOD, cost.min(COST_MAX));
    }

    /// What a request of a customer will probably cost.
    pub(crate) fn expect(&self, customer: &str) -> Cost {
        let inner = self.inner();
        let number = inner.numbers.get(customer).copied().unwrap_or(CustomerId::DEFAULT);
        inner.lane.estimate(number, METHOD)
    }

    /// Whether anything is known of what requests cost.
    pub(crate) fn are_known(&self) -> bool {
        self.shared.hit.is_some() || !self.inner().numbers.is_empty()
    }

    /// Whether answers to this customer tell what they have cost. Those to others say nothing of
    /// that: one of them may be alone in telling.
    pub(crate) fn are_measured(&self, customer: &str) -> bool {
        let inner = self.inner();
        let name = if inner.named.contains(customer) { customer } else { "" };
        inner.numbers.contains_key(name)
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.shared.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn number(&mut self, customer: &str) -> CustomerId {
        // Names that nobody has configured are everyone else's.
        let named = self.named.contains(customer);
        let name = if named { customer } else { "" };
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let room = self.numbers.len() <= self.customers_max && self.last < u32::MAX - 1;
        let number = if named && room {
            self.last += 1;
            CustomerId(self.last)
        } else {
            CustomerId::DEFAULT
        };
        self.numbers.insert(name.to_owned(), number);
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
        costs.name(["a".to_owned(), "b".to_owned(), "d".to_owned()].iter());
        assert!(costs.are_known() && !costs.are_measured("a"));
        assert_eq!(costs.expect("a"), Cost::from_millis(3));
        for _ in 0..200 {
            costs.told("a", Cost::from_millis(10));
            costs.told("b", Cost::from_millis(40));
        }
        let (a, b) = (millis(costs.expect("a")), millis(costs.expect("b")));
        assert!((9.9..10.1).contains(&a) && (39.0..41.0).contains(&b), "{a} {b}");
        // Whoever does not tell is charged as before.
        assert!(costs.are_measured("a") && !costs.are_measured("d") && !costs.are_measured("c"));
        costs.told("made-up", Cost::from_millis(10));
        assert!(costs.are_measured("c") && !costs.are_measured("d"));
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
        costs.name(["a".to_owned()].iter());
        for _ in 0..500 {
            costs.told("a", Cost::from_millis(10));
        }
        costs.told("a", Cost::from_nanos(u64::MAX));
        let mean = millis(costs.expect("a"));
        assert!((9.9..12.0).contains(&mean), "{mean}");
        for n in 0..1_000 {
            costs.told(&format!("made-up-{n}"), Cost::from_millis(1));
        }
        let names: Vec<String> = costs.inner().numbers.keys().cloned().collect();
        assert_eq!(names, ["", "a"], "those are everyone else's");
    }

    /// Who counts as not measured is charged for its questions as well as for its answers.
    #[test]
    fn whoever_tells_is_measured_however_many_were_named_and_left_before() {
        let costs = Costs::new(Some(Cost::from_millis(3)), 20);
        for generation in 0..40_u64 {
            let names = ["a", "b"].map(|name| format!("{name}-{generation}"));
            costs.name(names.iter());
            assert!(names.iter().all(|name| !costs.are_measured(name)), "they told nothing yet");
            for (n, name) in names.iter().enumerate() {
                for _ in 0..500 {
                    costs.told(name, Cost::from_millis(10 + 30 * n as u64 + generation));
                }
                assert!(costs.are_measured(name), "{name}");
                let (found, right) = (millis(costs.expect(name)), (10 + 30 * n) as f64);
                assert!((found - right - generation as f64).abs() < 1.0, "{name}: {found}");
            }
        }
        // More than there is room for, as a zone is told by a global server with more of it.
        let costs = Costs::new(None, 3);
        let crowd: Vec<String> = (0..10).map(|n| format!("c-{n}")).collect();
        costs.name(crowd.iter());
        for name in &crowd[..9] {
            costs.told(name, Cost::from_millis(10));
        }
        let measured: Vec<bool> = crowd.iter().map(|name| costs.are_measured(name)).collect();
        assert_eq!(measured, [[true; 9].as_slice(), &[false]].concat());
    }
}
