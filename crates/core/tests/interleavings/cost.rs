//! Estimates that several threads make at once, and a sweep among them.
//!
//! One set of four places. A request to the method that stands for any has one estimate of its own
//! beside that of everything, and the latter is steady before the race begins: what is left to race
//! for is one key.

use crate::{explore, join};
use std::sync::Arc;
use tidegate_core::cost::{CostLane, CostTable, MethodId};
use tidegate_core::{Cost, CustomerId};

const A: CustomerId = CustomerId(1);
const B: CustomerId = CustomerId(2);
const C: CustomerId = CustomerId(3);
const D: CustomerId = CustomerId(4);
const ANYONE: CustomerId = CustomerId(u32::MAX);
const ANY: MethodId = MethodId(u32::MAX);
const GUESS: Cost = Cost::from_millis(1);

fn table() -> Arc<CostTable> {
    let table = CostTable::new(4, GUESS);
    warm_up(&table);
    table
}

/// Makes the estimate of everything rest on so many requests that it takes in only some of those
/// that follow.
fn warm_up(table: &Arc<CostTable>) {
    let mut lane = table.lane();
    for _ in 0..7 {
        lane.record(ANYONE, ANY, Cost::from_millis(2));
    }
}

fn record(lane: &mut CostLane, customer: CustomerId, millis: u64) {
    lane.record(customer, ANY, Cost::from_millis(millis));
}

fn record_in_thread(table: &Arc<CostTable>, millis: u64) -> loom::thread::JoinHandle<()> {
    let mut lane = table.lane();
    loom::thread::spawn(move || record(&mut lane, A, millis))
}

/// In whole milliseconds.
fn estimate(table: &CostTable, customer: CustomerId) -> u64 {
    table.estimate(customer, ANY).as_nanos() / 1_000_000
}

/// Whether `customer` gets a place of its own: then its own request moves its estimate, and not
/// only that of everything, which takes none in.
fn gets_a_place(table: &Arc<CostTable>, customer: CustomerId) -> bool {
    let before = estimate(table, customer);
    record(&mut table.lane(), customer, 8);
    estimate(table, customer) > before
}

/// Both find or claim the same place, so that two are left for others.
#[test]
fn a_key_is_claimed_once() {
    explore(|| {
        let table = table();
        let other = record_in_thread(&table, 2);
        record(&mut table.lane(), A, 2);
        join(other);
        assert!(gets_a_place(&table, B) && gets_a_place(&table, C));
    });
}

/// One of two samples may be lost, but no estimate is outside of what was seen.
#[test]
fn an_estimate_stays_within_the_samples() {
    explore(|| {
        let table = table();
        let other = record_in_thread(&table, 6);
        record(&mut table.lane(), A, 4);
        assert!((2..=6).contains(&estimate(&table, A)));
        join(other);
        assert!((2..=6).contains(&estimate(&table, A)));
        assert_eq!(estimate(&table, B), 2);
    });
}

/// A sweep may forget what is being recorded, or leave it to the next key in that place; it makes
/// no number that nobody saw, and takes no place away for good.
#[test]
fn a_sweep_does_no_harm() {
    explore(|| {
        let table = table();
        record(&mut table.lane(), A, 4);
        table.sweep();
        warm_up(&table);
        // Only that of A is unused from here on.
        let other = record_in_thread(&table, 6);
        table.sweep();
        assert!((2..=6).contains(&estimate(&table, A)));
        join(other);
        assert!((2..=6).contains(&estimate(&table, A)));
        warm_up(&table);
        table.sweep();
        warm_up(&table);
        table.sweep();
        assert_eq!(estimate(&table, A), 2, "forgotten, if not used any more");
        for customer in [B, C, D] {
            assert!(gets_a_place(&table, customer));
        }
    });
}
