//! An order of picks in which everyone comes as often as its weight says, evenly spread.
//!
//! Picking by weight at the time of the pick needs a heap (O(log n), under a lock) or chance
//! (uneven). Here the order for a few thousand picks is worked out ahead, and picking is a walk
//! around it.
//!
//! **How often.** With weights `w` and a table of `L` entries, backend `i` should have
//! `L x w[i] / W` of them, which is not a whole number. Lay the weights end to end, and let every
//! `W/L` along the line give an entry to whoever lies there, beginning at a phase:
//!
//! ```text
//! count[i] = floor((L x (w[0] + … + w[i]) + phase) / W)
//!          - floor((L x (w[0] + … + w[i-1]) + phase) / W)
//! ```
//!
//! That is always `L` in all, and each backend's exact part rounded down or up. From table to
//! table the phase moves on by the golden ratio of `W`, which visits all phases evenly: what a
//! backend has too little in one table it has more in the next, so shares are exact in the long
//! run, also of backends whose part of a table is less than one entry. Nothing has to be carried
//! over but the phase, so weights and the set may change from table to table.
//!
//! **In which order.** A backend with `c` entries has one every `1/c` of the table, beginning at an
//! offset of its own within that; around the end of the table the distance is the same. The offsets
//! again step by the golden ratio, so that backends with few entries do not stand in one heap.
//! Entries are dropped into `L` buckets by place and read out, in O(L).

use super::BackendId;

/// Entries per backend, on average. A backend of mean weight has sixteen give or take a rounding,
/// so within one table its share is right to 6 %, and over several tables exactly.
const ENTRIES_EACH: usize = 16;
/// With few backends the table is at least about this long, so that small weights are seen at once.
const ENTRIES_MIN: usize = 256;
/// And never longer: 256 kB, which a core's second-level cache still holds.
const ENTRIES_MAX: usize = 1 << 16;

/// 2^64 over the golden ratio.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;

/// The largest whole weight. The sum over all backends times the length of the table has to fit a
/// `u64`: 2^31 x 2^16 x 2^16.
const WHOLE: f64 = (1_u64 << 31) as f64;

/// How long a table for so many backends is: a multiple of their number, so that equal weights give
/// plain turns.
pub(super) fn length(backends: usize) -> usize {
    let backends = backends.clamp(1, ENTRIES_MAX);
    let each = ENTRIES_EACH.max(ENTRIES_MIN.div_ceil(backends));
    backends * each.min(ENTRIES_MAX / backends)
}

/// Room that a gate needs for tables of up to so many backends.
pub(super) fn length_max(backends: usize) -> usize {
    // Less than `ENTRIES_MIN + backends` for few, at most `ENTRIES_EACH` for each of many.
    (ENTRIES_MIN + backends).max(ENTRIES_EACH * backends).min(ENTRIES_MAX)
}

/// Works out one table after another.
#[derive(Debug, Clone, Default)]
pub(super) struct Scheduler {
    phase: u64,
    counts: Vec<u32>,
    buckets: Vec<u32>,
    order: Vec<BackendId>,
}

impl Scheduler {
    /// The next table for backends with these weights, which have to be finite and not negative.
    /// All zero counts as all equal.
    pub(super) fn next(&mut self, weights: &[(BackendId, f64)]) -> &[BackendId] {
        self.order.clear();
        let Some(&(first, _)) = weights.first() else { return &self.order };
        let len = length(weights.len());
        self.count(weights, len);
        // Pass one: how many entries fall into each bucket; then where each bucket begins.
        self.buckets.clear();
        self.buckets.resize(len + 1, 0);
        for (i, &count) in self.counts.iter().enumerate() {
            places(i, count, len).for_each(|place| self.buckets[place + 1] += 1);
        }
        for b in 1..self.buckets.len() {
            self.buckets[b] += self.buckets[b - 1];
        }
        // Pass two: each entry to its place.
        self.order.resize(len, first);
        for (i, (&count, &(id, _))) in self.counts.iter().zip(weights).enumerate() {
            for place in places(i, count, len) {
                let at = self.buckets[place];
                self.buckets[place] += 1;
                self.order[at as usize] = id;
            }
        }
        &self.order
    }

    /// How many of `len` entries each backend gets.
    fn count(&mut self, weights: &[(BackendId, f64)], len: usize) {
        let largest = weights.iter().fold(0.0, |a: f64, &(_, w)| a.max(w));
        let whole = |weight: f64| -> u64 {
            // A weight of nothing beside others is still one part in 2^31: everyone is in.
            if largest > 0.0 { ((weight / largest * WHOLE) as u64).max(1) } else { 1 }
        };
        let total: u64 = weights.iter().map(|&(_, w)| whole(w)).sum();
        self.phase = self.phase.wrapping_add(GOLDEN);
        let phase = ((u128::from(self.phase) * u128::from(total)) >> 64) as u64;
        let (mut line, mut given) = (0, 0);
        self.counts.clear();
        self.counts.extend(weights.iter().map(|&(_, w)| {
            line += whole(w);
            let upto = (line * len as u64 + phase) / total;
            let count = upto - given;
            given = upto;
            count as u32
        }));
    }
}

/// The buckets of the `count` entries of the `i`-th backend in a table of `len`.
fn places(i: usize, count: u32, len: usize) -> impl Iterator<Item = usize> {
    // In 2^-32 of a bucket.
    let distance = ((len as u64) << 32) / u64::from(count.max(1));
    let offset = GOLDEN.wrapping_mul(i as u64);
    let begin = ((u128::from(offset) * u128::from(distance)) >> 64) as u64;
    (0..u64::from(count)).map(move |k| ((begin + k * distance) >> 32) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn backends(weights: &[f64]) -> Vec<(BackendId, f64)> {
        weights.iter().enumerate().map(|(i, &w)| (BackendId(i as u32), w)).collect()
    }

    fn counts(order: &[BackendId], backends: usize) -> Vec<u32> {
        let mut counts = vec![0; backends];
        for id in order {
            counts[id.0 as usize] += 1;
        }
        counts
    }

    #[test]
    fn lengths_are_bounded_multiples() {
        for (backends, entries) in [
            (1, 256),
            (2, 256),
            (3, 258),
            (10, 260),
            (100, 1_600),
            (1_000, 16_000),
            (5_000, 65_000),
        ] {
            assert_eq!(length(backends), entries);
            assert!(length_max(backends) >= entries);
        }
        for backends in 1..=65_536 {
            assert!((backends..=ENTRIES_MAX).contains(&length(backends)));
            assert!(length(backends) <= length_max(backends));
        }
    }

    #[test]
    fn equal_weights_are_plain_turns() {
        for n in [1, 2, 3, 7, 100] {
            let mut scheduler = Scheduler::default();
            for weight in [0.0, 1.0, 1e24] {
                let order = scheduler.next(&backends(&vec![weight; n])).to_vec();
                for i in 0..order.len() {
                    assert_eq!(order[i], order[(i + n) % order.len()]);
                }
                assert!(counts(&order, n).iter().all(|&c| c as usize == order.len() / n));
            }
        }
    }

    #[test]
    fn shares_by_hand() {
        let mut scheduler = Scheduler::default();
        // Of 256 entries a half, a quarter and two eighths.
        let order = scheduler.next(&backends(&[4.0, 2.0, 1.0, 1.0]));
        assert_eq!(counts(order, 4), [128, 64, 32, 32]);
        // A half: never more than two others in between.
        assert!(order.windows(3).all(|w| w.contains(&BackendId(0))));
    }

    /// A backend with a thousandth of an entry in each table: after a thousand tables it has one,
    /// give or take one.
    #[test]
    fn small_weights_come_in_the_long_run() {
        let mut scheduler = Scheduler::default();
        let weights = backends(&[1.0, 1.0, 1.0, 3.0 / 260_000.0]);
        let mut seen = 0;
        for _ in 0..5_000 {
            seen += counts(scheduler.next(&weights), 4)[3];
        }
        assert!((4..=6).contains(&seen), "{seen}");
    }

    proptest! {
        /// Each table rounds each exact part down or up, and the sum over the tables stays within
        /// a few entries of the exact sum, however many tables there are.
        #[test]
        fn the_long_run_is_exact(
            weights in proptest::collection::vec(0.1_f64..10.0, 2..20),
            tables in 1_u32..200,
        ) {
            let mut scheduler = Scheduler::default();
            let total: f64 = weights.iter().sum();
            let mut sums = vec![0; weights.len()];
            let mut len = 0;
            for _ in 0..tables {
                let order = scheduler.next(&backends(&weights));
                len = order.len();
                for ((count, sum), weight) in
                    counts(order, weights.len()).into_iter().zip(&mut sums).zip(&weights)
                {
                    let exact = len as f64 * weight / total;
                    prop_assert!((f64::from(count) - exact).abs() < 1.001);
                    *sum += count;
                }
            }
            for (sum, weight) in sums.into_iter().zip(weights) {
                let exact = f64::from(tables) * len as f64 * weight / total;
                prop_assert!((f64::from(sum) - exact).abs() < 5.0, "{sum} {exact}");
            }
        }

        /// Around the whole table: nobody with a tenth or less comes twice in a row, and nobody
        /// waits more than three times its mean distance.
        #[test]
        fn picks_are_spread(
            weights in proptest::collection::vec(0.1_f64..10.0, 10..100),
            skip in 0_usize..10,
        ) {
            let mut scheduler = Scheduler::default();
            for _ in 0..skip {
                scheduler.next(&backends(&weights));
            }
            let order = scheduler.next(&backends(&weights)).to_vec();
            let counts = counts(&order, weights.len());
            let mut last = vec![None; weights.len()];
            for (at, id) in order.iter().chain(&order).enumerate() {
                let i = id.0 as usize;
                if let Some(before) = last[i].replace(at) {
                    let gap = at - before;
                    if counts[i] as usize * 10 <= order.len() {
                        prop_assert!(gap > 1, "t{i} twice in a row at {at}");
                    }
                    let mean = order.len() as f64 / f64::from(counts[i]);
                    prop_assert!((gap as f64) < 3.0 * mean + 1.0, "t{i}: {gap} for {mean}");
                }
            }
        }

        #[test]
        fn odd_weights_do_no_harm(
            weights in proptest::collection::vec(
                prop_oneof![
                    Just(0.0),
                    Just(f64::MIN_POSITIVE),
                    Just(1e24),
                    Just(f64::MAX),
                    0.0_f64..1.0,
                ],
                1..300,
            ),
        ) {
            let mut scheduler = Scheduler::default();
            for _ in 0..3 {
                let order = scheduler.next(&backends(&weights));
                prop_assert_eq!(order.len(), length(weights.len()));
                prop_assert!(order.iter().all(|id| (id.0 as usize) < weights.len()));
            }
        }
    }
}
