//! Counters that many write, and levels that many read.

use crate::{explore, join};
use std::sync::Arc;
use tidegate_core::counters::Counters;
use tidegate_core::levels::{LevelGate, Levels};

#[test]
fn counters_lose_nothing_and_count_nothing_twice() {
    explore(|| {
        let counters = Counters::new(1);
        let writers = [1, 10].map(|amount| {
            let counters = Arc::clone(&counters);
            loom::thread::spawn(move || {
                let mut writer = counters.writer();
                writer.add(0, amount);
                writer.add(0, amount);
            })
        });
        // While writers come, count and go, a total is a sum of whole adds, and never goes back.
        let first = counters.totals()[0];
        let second = counters.totals()[0];
        for total in [first, second] {
            assert!(total % 10 <= 2 && total / 10 <= 2, "{total}");
        }
        assert!(first <= second, "{first} {second}");
        for writer in writers {
            join(writer);
        }
        assert_eq!(counters.totals(), [22]);
    });
}

#[test]
fn levels_are_seen_whole_and_in_order() {
    explore(|| {
        let words = [
            Levels::OPEN,
            Levels::from_shares([0.0, 0.25, 0.5, 0.75]),
            Levels::from_shares([0.75, 0.5, 0.25, 0.0]),
        ];
        let gate = Arc::new(LevelGate::new());
        let publisher = {
            let gate = Arc::clone(&gate);
            loom::thread::spawn(move || {
                gate.publish(words[1]);
                gate.publish(words[2]);
            })
        };
        let age = |levels| words.iter().position(|&word| word == levels).expect("a torn word");
        let first = age(gate.levels());
        let second = age(gate.levels());
        assert!(first <= second);
        join(publisher);
        assert_eq!(gate.levels(), words[2]);
    });
}
