//! How values were spread, lately.
//!
//! Quantiles of the recent past, in bounded memory and without sorting. Values are `u64` (usually
//! nanoseconds) and fall into buckets that are an eighth of a power of two wide, so a quantile is
//! right to 12.5 %, from one nanosecond to centuries. The past is kept in generations; when one
//! has lasted its share of the span, the oldest is forgotten.

use crate::units::{Ratio, Timestamp, nanos};
use core::time::Duration;

/// Buckets per power of two: 2^3.
const SUB_BITS: u32 = 3;
const SUB: u64 = 1 << SUB_BITS;
/// Values below 16 have a bucket each; the 60 powers of two from 2^4 on have eight each.
const EXACT: u64 = SUB * 2;
const BUCKETS: usize = (EXACT + (64 - SUB_BITS as u64 - 1) * SUB) as usize;
/// A quarter of the span is forgotten at a time: coarse enough to be cheap, fine enough that a
/// quantile does not jump.
const GENERATIONS: usize = 4;

/// Counts of values of the recent past, by size.
#[derive(Debug, Clone)]
pub struct RecentHistogram {
    generation_nanos: u64,
    newest: u64,
    generations: Box<[[u32; BUCKETS]]>,
}

impl RecentHistogram {
    /// Remembers about `span`: between three quarters of it and the whole.
    pub fn new(span: Duration) -> Self {
        Self {
            generation_nanos: (nanos(span) / GENERATIONS as u64).max(1),
            newest: 0,
            generations: vec![[0; BUCKETS]; GENERATIONS].into_boxed_slice(),
        }
    }

    /// Counts `value` at `now`.
    pub fn record(&mut self, value: u64, now: Timestamp) {
        self.advance(now);
        let count = &mut self.generations[self.newest as usize % GENERATIONS][bucket_of(value)];
        *count = count.saturating_add(1);
    }

    /// How many values are remembered.
    pub fn count(&mut self, now: Timestamp) -> u64 {
        self.advance(now);
        self.generations.iter().flatten().map(|&n| u64::from(n)).sum()
    }

    /// The value that `share` of all remembered values do not exceed, to the width of its bucket
    /// (rounded up). Nothing if nothing is remembered.
    pub fn quantile(&mut self, share: Ratio, now: Timestamp) -> Option<u64> {
        let count = self.count(now);
        if count == 0 {
            return None;
        }
        // The smallest rank that covers the share: the ceiling of share x count.
        let exact = u128::from(count) * u128::from(share.billionths());
        let rank = (exact.div_ceil(u128::from(Ratio::WHOLE)) as u64).max(1);
        let mut seen = 0;
        (0..BUCKETS)
            .find(|&b| {
                seen += self.generations.iter().map(|g| u64::from(g[b])).sum::<u64>();
                seen >= rank
            })
            .map(upper_edge)
    }

    fn advance(&mut self, now: Timestamp) {
        let current = now.as_nanos() / self.generation_nanos;
        let steps = current.saturating_sub(self.newest).min(GENERATIONS as u64);
        for step in 0..steps {
            self.generations[(current - step) as usize % GENERATIONS].fill(0);
        }
        self.newest = self.newest.max(current);
    }
}

fn bucket_of(value: u64) -> usize {
    if value < EXACT {
        return value as usize;
    }
    let power = value.ilog2();
    let sub = (value >> (power - SUB_BITS)) & (SUB - 1);
    (EXACT + u64::from(power - SUB_BITS - 1) * SUB + sub) as usize
}

/// The largest value of a bucket.
fn upper_edge(bucket: usize) -> u64 {
    let bucket = bucket as u64;
    if bucket < EXACT {
        return bucket;
    }
    let power = (bucket - EXACT) / SUB + u64::from(SUB_BITS) + 1;
    let sub = (bucket - EXACT) % SUB;
    let width = 1_u64 << (power - u64::from(SUB_BITS));
    (SUB + sub) * width + (width - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_of_a_known_spread() {
        let mut h = RecentHistogram::new(Duration::from_secs(60));
        for v in 1..=1_000_u64 {
            h.record(v * 1_000, Timestamp::ZERO);
        }
        for (percent, exact) in [(1, 10_000), (50, 500_000), (99, 990_000), (100, 1_000_000)] {
            let found = h.quantile(Ratio::percent(percent), Timestamp::ZERO).unwrap();
            assert!((exact..=exact * 9 / 8).contains(&found), "p{percent}: {found}");
        }
        assert_eq!(h.quantile(Ratio::ZERO, Timestamp::ZERO), Some(1_023));
    }

    #[test]
    fn the_past_is_forgotten_by_generations() {
        let mut h = RecentHistogram::new(Duration::from_secs(4));
        for s in 0..4 {
            h.record(s, Timestamp::from_secs(s));
        }
        for (secs, count) in [(3, 4), (4, 3), (5, 2), (6, 1), (7, 0)] {
            assert_eq!(h.count(Timestamp::from_secs(secs)), count);
        }
        h.record(1, Timestamp::MAX);
        assert_eq!(h.count(Timestamp::MAX), 1);
        assert_eq!(h.quantile(Ratio::ONE, Timestamp::MAX), Some(1));
    }

    proptest! {
        #[test]
        fn every_value_has_a_bucket_and_its_edge_is_close(value: u64) {
            let bucket = bucket_of(value);
            prop_assert!(bucket < BUCKETS);
            let edge = upper_edge(bucket);
            prop_assert!(edge >= value);
            prop_assert!(edge - value <= value / SUB);
            prop_assert_eq!(bucket_of(edge), bucket);
        }
    }
}
