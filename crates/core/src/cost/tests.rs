use super::*;
use crate::rng::{Rng, SeededRng};
use proptest::prelude::*;

const GUESS: Cost = Cost::from_millis(1);
const A: CustomerId = CustomerId(1);
const B: CustomerId = CustomerId(2);
const GET: MethodId = MethodId(0);
const PUT: MethodId = MethodId(1);
/// Whoever, whatever.
const EVERYTHING: Key = keys(A, GET)[2];

fn millis(cost: Cost) -> f64 {
    cost.as_secs_f64() * 1e3
}

#[test]
fn the_closest_that_is_known_answers() {
    let table = CostTable::new(64, GUESS);
    let mut lane = table.lane();
    assert_eq!(table.estimate(A, GET), GUESS);
    for _ in 0..100 {
        lane.record(A, GET, Cost::from_millis(4));
    }
    for (customer, method) in [(A, GET), (B, GET), (B, PUT)] {
        assert!((millis(table.estimate(customer, method)) - 4.0).abs() < 0.1);
    }
    for _ in 0..200 {
        lane.record(B, GET, Cost::from_millis(40));
    }
    assert!((millis(table.estimate(A, GET)) - 4.0).abs() < 0.1);
    assert!((millis(table.estimate(B, GET)) - 40.0).abs() < 1.0);
}

/// After 2,000 full answers of 20 ms to one customer, and then some degraded ones of 6 ms to the
/// same.
#[test]
fn degraded_answers_do_not_make_full_ones_look_cheap() {
    // How many degraded ones; whose and which method; what a full and a degraded answer will cost.
    let table = [
        // Nothing is known of degraded ones: they may be as dear as full ones.
        (0, A, GET, [20.0, 20.0]),
        (0, B, PUT, [20.0, 20.0]),
        // As 20 and ten of 6 are in the mean.
        (10, A, GET, [20.0, 7.27]),
        (10_000, A, GET, [20.0, 6.0]),
        (10_000, B, GET, [20.0, 6.0]),
        (10_000, B, PUT, [20.0, 6.0]),
    ];
    for (degraded, customer, method, expected) in table {
        let costs = CostTable::new(64, GUESS);
        let mut lane = costs.lane();
        (0..2_000).for_each(|_| lane.record(A, GET, Cost::from_millis(20)));
        (0..degraded).for_each(|_| lane.record(A, GET.answering(true), Cost::from_millis(6)));
        let found = [false, true].map(|d| millis(costs.estimate(customer, method.answering(d))));
        for (found, expected) in found.into_iter().zip(expected) {
            let what = "of the other customer, or method, the fallbacks tell";
            assert!((found - expected).abs() < 0.1, "{degraded}: {found}, not {expected}; {what}");
        }
    }
}

/// A customer whose full answers are dear is not taken for one of the others by its degraded ones.
#[test]
fn where_no_degraded_answer_is_known_the_closest_full_one_tells() {
    let table = CostTable::new(64, GUESS);
    let mut lane = table.lane();
    for _ in 0..2_000 {
        lane.record(A, GET, Cost::from_millis(20));
        lane.record(B, GET.answering(true), Cost::from_millis(1));
    }
    assert!((millis(table.estimate(A, GET.answering(true))) - 20.0).abs() < 0.1);
    // And a full one is never taken for a degraded one.
    assert!((millis(table.estimate(B, GET)) - 20.0).abs() < 0.1);
    let table = CostTable::new(64, GUESS);
    table.lane().record(B, GET.answering(true), Cost::from_millis(9));
    assert_eq!(table.estimate(B, GET), GUESS);
}

/// What `record` leaves alone at a look is what would not have changed.
#[test]
fn requests_that_are_passed_over_would_have_changed_nothing() {
    let [table, whole] = [(); 2].map(|()| CostTable::new(16, GUESS));
    let (mut lane, mut every) = (table.lane(), whole.lane());
    let mut rng = SeededRng::new(5);
    let words = |table: &CostTable| -> Vec<u64> {
        let slots = table.slots.sets.iter().flat_map(|set| &set.0);
        slots.flat_map(|s| [&s.key, &s.entry].map(|word| word.load(Ordering::Relaxed))).collect()
    };
    for n in 0..20_000 {
        let (customer, method) = (CustomerId(rng.below(3) as u32), MethodId(rng.below(3) as u32));
        // Mostly alike, at times three times as dear, and dearer for good from half-way on.
        let times = if rng.below(100) == 0 { 3 } else { 1 } * if n > 10_000 { 5 } else { 1 };
        let cost = Cost::from_nanos((900_000 + rng.below(200_000)) * times);
        lane.record(customer, method, cost);
        let drawn = every.draws.below(STRIDE) == 0;
        every.learn(customer, method, cost, drawn);
        if n % 5_000 == 4_999 {
            table.sweep();
            whole.sweep();
        }
        assert_eq!(words(&table), words(&whole), "after {n}");
    }
}

#[test]
fn no_key_reads_as_a_free_slot() {
    let degraded = keys(CustomerId(0), GET.answering(true));
    let keys = [key(0, 0), key(0, 1), key(ANY, 0), EVERYTHING, key(0, ANY), key(1, ANY)];
    let keys: Vec<u64> = keys.into_iter().chain(degraded).map(|key| key.bits).collect();
    assert!(!keys.contains(&0));
    let distinct: std::collections::BTreeSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
}

#[test]
fn one_blend_by_the_table() {
    for (nanos, samples, sample, expected) in [
        (1_000_000, 15, 1_000_000, 1_000_000),
        (1_000_000, 15, 2_600_000, 1_100_000),
        (1_000_000, 15, 1_000_000_000, 1_437_500),
        (1_000_000, 1, 3_000_000, 2_000_000),
        (1_000_000, 15, 0, 937_500),
        (0, 15, 1_000_000, 500),
    ] {
        let entry = Entry { nanos, samples, ..Entry::nothing(EVERYTHING) }.blend(sample);
        assert_eq!(entry.nanos, expected, "{nanos} and {sample}");
    }
}

#[test]
fn the_rare_dear_request_does_not_spoil_the_rest() {
    let table = CostTable::new(64, GUESS);
    let mut lane = table.lane();
    let mut rng = SeededRng::new(11);
    let (mut sum, mut worst) = (0.0, 0.0_f64);
    for i in 0..100_000 {
        let cost = if rng.below(1_000) == 0 { 10_000 } else { 10 };
        lane.record(A, GET, Cost::from_millis(cost));
        if i > 1_000 {
            let estimate = millis(table.estimate(A, GET));
            sum += estimate;
            worst = worst.max(estimate);
        }
    }
    let mean = sum / 99_000.0;
    assert!((9.9..10.1).contains(&mean), "{mean}");
    assert!(worst < 30.0, "{worst}");
}

/// Costs through a lane, once the estimate stands at 1 ms and is steady.
fn steady(table: &Arc<CostTable>) -> CostLane {
    let mut lane = table.lane();
    for _ in 0..100 {
        lane.record(A, GET, Cost::from_millis(1));
    }
    lane
}

#[test]
fn a_lasting_jump_is_followed_within_a_hundred_and_fifty_requests() {
    for (nanos, least, most) in [
        (3_000_000, 2_250_000, 3_000_000),
        (1_000_000_000, 750_000_000, 1_000_000_000),
        (100_000, 100_000, 500_000),
    ] {
        let table = CostTable::new(64, GUESS);
        let mut lane = steady(&table);
        for _ in 0..150 {
            lane.record(A, GET, Cost::from_nanos(nanos));
        }
        let estimate = table.estimate(A, GET).as_nanos();
        assert!((least..=most).contains(&estimate), "{nanos}: {estimate}");
    }
}

/// One in ten costs ten times as much: the surprises do not weigh more than they are.
#[test]
fn an_estimate_does_not_lean_towards_surprises() {
    let table = CostTable::new(64, GUESS);
    let mut lane = table.lane();
    let mut rng = SeededRng::new(12);
    let (mut sum, mut costs) = (0.0, 0.0);
    for _ in 0..200_000 {
        let cost = if rng.below(10) == 0 { 10 } else { 1 };
        lane.record(A, GET, Cost::from_millis(cost));
        costs += cost as f64;
        sum += millis(table.estimate(A, GET));
    }
    let bias = sum / costs;
    assert!((0.9..1.1).contains(&bias), "{bias}");
}

#[test]
fn calm_requests_seldom_write() {
    let table = CostTable::new(64, GUESS);
    let mut lane = steady(&table);
    let mut rng = SeededRng::new(13);
    let keys = keys(A, GET);
    let words = || {
        keys.map(|key| table.slots.find(key).map_or(0, |slot| slot.entry.load(Ordering::Relaxed)))
    };
    let mut writes = [0; 3];
    for _ in 0..8_000 {
        let before = words();
        lane.record(A, GET, Cost::from_micros(800 + rng.below(400)));
        for ((writes, before), after) in writes.iter_mut().zip(before).zip(words()) {
            *writes += u32::from(before != after);
        }
    }
    for writes in writes {
        assert!((900..1_100).contains(&writes), "{writes} of 8,000");
    }
}

#[test]
fn requests_in_a_pattern_are_all_learned() {
    for period in [2, 4, 8, 16] {
        let table = CostTable::new(4_096, GUESS);
        let mut lane = table.lane();
        let round = |lane: &mut CostLane, millis| {
            for method in 0..period {
                lane.record(A, MethodId(method), Cost::from_millis(millis));
            }
        };
        for _ in 0..100 {
            round(&mut lane, 10);
        }
        // Too close to be a surprise: only the draw brings it in.
        for _ in 0..4_000 {
            round(&mut lane, 17);
        }
        for method in 0..period {
            let estimate = millis(table.estimate(A, MethodId(method)));
            assert!((estimate - 17.0).abs() < 0.1, "{method} of {period}: {estimate}");
        }
    }
}

#[test]
fn what_was_used_between_two_sweeps_stays() {
    for period in [1, 2, 4, 8] {
        let table = CostTable::new(4_096, GUESS);
        let mut lane = table.lane();
        for sweep in 0..10 {
            for method in (0..period).cycle().take(8 * 20) {
                lane.record(A, MethodId(method), Cost::from_millis(1));
            }
            table.sweep();
            for method in 0..period {
                let key = key(A.0, method);
                assert!(table.slots.find(key).is_some(), "{method} of {period}, sweep {sweep}");
            }
        }
        // One use is enough.
        for _ in 0..10 {
            lane.record(A, GET, Cost::from_millis(1));
            table.sweep();
            assert!(table.slots.find(key(A.0, GET.0)).is_some());
        }
        table.sweep();
        assert!(table.slots.find(key(A.0, GET.0)).is_none());
    }
}

#[test]
fn a_full_table_falls_back_and_a_sweep_makes_room() {
    let table = CostTable::new(4, GUESS);
    let mut lane = table.lane();
    for customer in 0..1_000 {
        lane.record(CustomerId(customer), GET, Cost::from_millis(2));
    }
    assert!((millis(table.estimate(CustomerId(999), GET)) - 2.0).abs() < 0.1);
    assert!(table.slots.find(key(999, 0)).is_none());
    table.sweep();
    table.sweep();
    lane.record(CustomerId(999), GET, Cost::from_millis(3));
    assert!(table.slots.find(key(999, 0)).is_some());
}

#[test]
fn one_request_between_sweeps_keeps_a_key() {
    let table = CostTable::new(4, GUESS);
    for _ in 0..100 {
        table.lane().record(A, GET, Cost::from_millis(4));
    }
    for _ in 0..10 {
        table.sweep();
        table.lane().record(A, GET, Cost::from_millis(4));
    }
    assert!((millis(table.estimate(A, GET)) - 4.0).abs() < 0.1);
    table.sweep();
    table.sweep();
    assert_eq!(table.estimate(A, GET), GUESS);
}

/// As when a sweep frees a slot while another thread is about to write to it.
#[test]
fn nobody_takes_over_what_a_stranger_left_behind() {
    let table = CostTable::new(4, GUESS);
    let mut lane = table.lane();
    for _ in 0..100 {
        lane.record(A, GET, Cost::from_millis(100));
    }
    for slot in &table.slots.sets[0].0 {
        slot.key.store(0, Ordering::Relaxed);
    }
    assert!(table.slots.take(key(B.0, PUT.0)).is_some());
    assert_eq!(table.estimate(B, PUT), GUESS);
    lane.record(B, PUT, Cost::from_millis(2));
    assert_eq!(table.estimate(B, PUT), Cost::from_millis(2));
}

#[test]
fn an_entry_survives_its_word() {
    for nanos in [0, 1, 999, Entry::NANOS_MAX] {
        for (key, eager, samples, used) in
            [(EVERYTHING, EAGER, 0, true), (key(7, 7), 0, SAMPLES, false), (key(7, 8), 1, 1, true)]
        {
            let entry = Entry { nanos, eager, samples, used, ..Entry::nothing(key) };
            assert_eq!(Entry::unpack(entry.pack()), entry);
        }
    }
}

proptest! {
    /// What is done to an entry that rests on enough samples is what is done to any.
    #[test]
    fn full_entries_learn_as_others_do(
        nanos in 0..=Entry::NANOS_MAX, eager in 0..=EAGER, sample: u64, drawn: bool, watched: bool,
    ) {
        let key = keys(A, GET)[0];
        let (tag, samples, used) = (key.tag(), SAMPLES, true);
        let before = Entry { nanos, tag, eager, samples, used };
        for sample in [sample, sample >> 20, sample >> 40] {
            let table = CostTable::new(4, GUESS);
            let slot = table.slots.take(key).unwrap();
            slot.entry.store(before.pack(), Ordering::Relaxed);
            table.slots.full(key).unwrap().learn(sample, drawn, watched);
            prop_assert_eq!(slot.read(key), before.after(sample, drawn, watched));
        }
    }

    #[test]
    fn no_cost_breaks_the_table(
        records in proptest::collection::vec(
            (any::<u32>(), any::<u32>(), any::<u64>()),
            0..200,
        ),
    ) {
        let table = CostTable::new(16, GUESS);
        let mut lane = table.lane();
        for (customer, method, cost) in records {
            prop_assert_ne!(key(customer, method).bits, 0);
            let (customer, method) = (CustomerId(customer), MethodId(method));
            let before = table.estimate(customer, method).as_nanos();
            lane.record(customer, method, Cost::from_nanos(cost));
            let after = table.estimate(customer, method).as_nanos();
            prop_assert!(after <= before.max(FLOOR).saturating_mul(CLIP).max(cost));
            prop_assert!(after <= Entry::NANOS_MAX.max(GUESS.as_nanos()));
        }
    }
}
