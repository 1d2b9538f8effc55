//! A program in virtual time that serves a mix of cheap and dear requests, seen from outside.

use super::*;
use crate::rng::{Rng, SeededRng};

/// Nanoseconds.
const TICK: u64 = 10_000_000;
const MS: f64 = 1e6;

#[derive(Clone, Copy, PartialEq)]
enum Order {
    /// One after the other.
    Fifo,
    /// All at once, at equal shares.
    Sharing,
}

struct Kind {
    customer: CustomerId,
    method: MethodId,
    /// Requests a second.
    rate: f64,
    /// Nanoseconds of CPU, on average; exponential if it varies.
    cost: f64,
    varies: bool,
}

fn kind(customer: u32, method: u32, rate: f64, cost_ms: f64) -> Kind {
    let (customer, method) = (CustomerId(customer), MethodId(method));
    Kind { customer, method, rate, cost: cost_ms * MS, varies: false }
}

#[expect(clippy::disallowed_methods, reason = "nothing here has to be the same on all platforms")]
fn exponential(rng: &mut SeededRng) -> f64 {
    let uniform = (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    -(1.0 - uniform).ln()
}

/// A gate in front lets so many in.
const INSIDE_MAX: usize = 12;

/// What each kind is thought to cost after `secs`, over what it does cost. The CPU is read in steps
/// of `grain` nanoseconds, as the system counts it.
fn run(kinds: &[Kind], order: Order, secs: u64, grain: f64, seed: u64) -> Vec<f64> {
    let mut rng = SeededRng::new(seed);
    let classes = Classes::new();
    let mut attribution = Attribution::new(Timestamp::ZERO);
    let mut next: Vec<f64> =
        kinds.iter().map(|kind| exponential(&mut rng) / kind.rate * 1e9).collect();
    // Class and work left.
    let mut inside: Vec<(usize, f64)> = Vec::new();
    let (mut burnt, mut read) = (0.0, 0.0);
    for tick in 1..=secs * 100 {
        let (mut came, mut done) = ([0; CLASSES], [0; CLASSES]);
        let end = (tick * TICK) as f64;
        for (kind, at) in kinds.iter().zip(&mut next) {
            while *at < end {
                let cost = kind.cost * if kind.varies { exponential(&mut rng) } else { 1.0 };
                let class = classes.class(kind.customer, kind.method).index();
                if inside.len() < INSIDE_MAX {
                    came[class] += 1;
                    inside.push((class, cost));
                }
                *at += exponential(&mut rng) / kind.rate * 1e9;
            }
        }
        let mut budget = TICK as f64;
        while budget > 1.0 && !inside.is_empty() {
            let sharing = if order == Order::Fifo { 1 } else { inside.len() };
            let least = inside[..sharing].iter().map(|(_, left)| *left).fold(f64::MAX, f64::min);
            let step = least.min(budget / sharing as f64);
            for (_, left) in &mut inside[..sharing] {
                *left -= step;
            }
            budget -= step * sharing as f64;
            burnt += step * sharing as f64;
            inside.retain(|(class, left)| {
                if *left <= 0.5 {
                    done[*class] += 1;
                }
                *left > 0.5
            });
        }
        let seen = (burnt / grain).floor() * grain;
        let used = Cost::from_nanos((seen - read) as u64);
        read = seen;
        let now = Timestamp::from_nanos(tick * TICK);
        attribution.observe(&classes, &came, &done, used, now);
    }
    let cost = |kind: &Kind| {
        let found = classes.cost(classes.class(kind.customer, kind.method));
        found.map_or(0.0, |cost| cost.as_nanos() as f64) / kind.cost
    };
    kinds.iter().map(cost).collect()
}

#[test]
fn cheap_and_dear_requests_are_told_apart_to_fifteen_per_cent() {
    for order in [Order::Fifo, Order::Sharing] {
        for seed in 0..5 {
            // 0.25, 0.3 and 0.12 of a CPU.
            let kinds = [kind(1, 1, 250.0, 1.0), kind(1, 2, 15.0, 20.0), kind(2, 1, 40.0, 3.0)];
            let found = run(&kinds, order, 300, 4.0 * MS, seed);
            let errors: Vec<f64> = found.iter().map(|ratio| (ratio - 1.0).abs()).collect();
            let good = errors[0] < 0.15 && errors[1] < 0.15 && errors[2] < 0.3;
            assert!(good, "seed {seed}: {found:?}");
        }
    }
}

#[test]
fn requests_of_one_kind_that_differ_have_their_mean() {
    for seed in 0..5 {
        let mut kinds = [kind(1, 1, 150.0, 2.0), kind(2, 2, 15.0, 20.0)];
        kinds[1].varies = true;
        let found = run(&kinds, Order::Fifo, 300, 10.0 * MS, seed);
        let good = found.iter().all(|ratio| (ratio - 1.0).abs() < 0.15);
        assert!(good, "seed {seed}: {found:?}");
    }
}

#[test]
fn a_program_that_is_offered_three_times_too_much_tells_as_well() {
    let kinds = [kind(1, 1, 500.0, 2.0), kind(2, 1, 100.0, 20.0)];
    for seed in 0..5 {
        let found = run(&kinds, Order::Fifo, 180, 4.0 * MS, seed);
        let good = found.iter().all(|ratio| (ratio - 1.0).abs() < 0.15);
        assert!(good, "seed {seed}: {found:?}");
    }
}

#[test]
fn those_who_always_come_together_share_the_mean() {
    let classes = Classes::new();
    let mut attribution = Attribution::new(Timestamp::ZERO);
    let both = [1, 2].map(|method| classes.class(CustomerId(1), MethodId(method)).index());
    for tick in 1..=2_000 {
        let mut requests = [0; CLASSES];
        for class in both {
            requests[class] = 3;
        }
        let now = Timestamp::from_nanos(tick * TICK);
        attribution.observe(&classes, &requests, &requests, Cost::from_millis(6), now);
    }
    for class in both {
        let nanos = classes.costs[class].load(Ordering::Relaxed) as f64;
        assert!((nanos / MS - 1.0).abs() < 0.01, "{nanos}");
    }
}

#[test]
fn more_classes_than_there_is_room_for_share_one() {
    let classes = Classes::new();
    let found: Vec<_> = (0..10_000).map(|n| classes.class(CustomerId(n), MethodId(n))).collect();
    assert!(found.iter().all(|class| class.index() < CLASSES));
    assert!(found.iter().filter(|class| class.index() == REST).count() > 9_000);
    for (n, class) in found.iter().enumerate() {
        let again = classes.class(CustomerId(n as u32), MethodId(n as u32));
        assert_eq!(again, *class);
    }
}

#[test]
fn whoever_stays_away_makes_room() {
    let classes = Classes::new();
    let mut attribution = Attribution::new(Timestamp::ZERO);
    let class = classes.class(CustomerId(7), MethodId(7)).index();
    let mut tick = 0;
    let mut observe = |count: u64| {
        tick += 1;
        let mut requests = [0; CLASSES];
        requests[class] = count;
        let now = Timestamp::from_nanos(tick * 100 * TICK);
        attribution.observe(&classes, &requests, &requests, Cost::from_millis(count), now);
    };
    observe(5);
    assert_ne!(classes.keys[class].load(Ordering::Relaxed), 0);
    for _ in 0..1_000 {
        observe(0);
    }
    assert_eq!(classes.keys[class].load(Ordering::Relaxed), 0);
    assert_eq!(classes.costs[class].load(Ordering::Relaxed), 0);
}
