//! How long admitted requests took, in a histogram that threads can add to.
//!
//! A mean hides what matters and a list of all has no bound. So there are buckets, four to a
//! doubling: whoever reads a quantile off them is wrong by a quarter at most, and by an eighth as
//! often as not.
//!
//! ```text
//! bucket 0              up to 16 µs
//! bucket 1 + 4 o + q    up to 16 µs * 2^o * (1 + (q + 1) / 4)
//! the last              everything
//! ```
//!
//! It is the time from the decision to the end of the answer's body, as the task sees it: what the
//! network takes, and what waited to be read off a socket, is not in it.

use core::time::Duration;

/// The first bucket ends at two to the power of this, in nanoseconds: less than any handler takes.
const FIRST: u32 = 14;
/// Doublings: up to 68 s, longer than callers wait.
const OCTAVES: usize = 22;
/// Buckets in a doubling, as a power of two.
const STEP_BITS: u32 = 2;
const STEPS: usize = 1 << STEP_BITS;
/// All of them, with the one below and the one above.
pub(super) const BUCKETS: usize = OCTAVES * STEPS + 2;

/// The bucket of a latency: the first whose end it does not exceed.
#[inline]
pub(super) const fn bucket(nanos: u64) -> usize {
    let before = nanos.saturating_sub(1);
    if before >> FIRST == 0 {
        return 0;
    }
    let log2 = u64::BITS - 1 - before.leading_zeros();
    let step = (before >> (log2 - STEP_BITS)) as usize & (STEPS - 1);
    let bucket = 1 + (log2 - FIRST) as usize * STEPS + step;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

/// Where a bucket ends, in seconds.
fn end(bucket: usize) -> f64 {
    let first = (1_u64 << FIRST) as f64 / 1e9;
    match bucket.checked_sub(1) {
        None => first,
        Some(_) if bucket + 1 == BUCKETS => f64::INFINITY,
        Some(n) => {
            let (octave, step) = (n / STEPS, n % STEPS);
            first * (1_u64 << octave) as f64 * (1.0 + (step + 1) as f64 / STEPS as f64)
        }
    }
}

/// How long requests took.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct LatencyHistogram {
    /// The end of each bucket, in seconds, and how many were in it; the last has no end.
    pub buckets: Vec<(f64, u64)>,
    /// How long they took together.
    pub sum: Duration,
}

impl LatencyHistogram {
    pub(super) fn new(counts: &[u64], sum: u64) -> Self {
        let buckets = counts.iter().enumerate().map(|(n, count)| (end(n), *count)).collect();
        Self { buckets, sum: Duration::from_nanos(sum) }
    }

    /// What came since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let before = earlier.buckets.iter().map(|(_, count)| *count).chain(core::iter::repeat(0));
        let buckets = self.buckets.iter().zip(before);
        let buckets = buckets.map(|((end, now), before)| (*end, now.wrapping_sub(before)));
        Self { buckets: buckets.collect(), sum: self.sum.saturating_sub(earlier.sum) }
    }

    /// How many.
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, (_, count)| sum.wrapping_add(*count))
    }

    /// What this share of them did not exceed, 0.99 for the 99th percentile: in between the ends of
    /// its bucket as far as its rank is, so from a fifth too low to a quarter too high, and below
    /// the end of the first bucket anywhere. Nothing if there were none.
    pub fn quantile(&self, share: f64) -> Option<Duration> {
        let count = self.count();
        if count == 0 {
            return None;
        }
        let rank = share.clamp(0.0, 1.0) * count as f64;
        let (mut below, mut start) = (0.0, 0.0);
        for &(end, count) in &self.buckets {
            let within = count as f64;
            if within > 0.0 && below + within >= rank {
                // Of what is above all ends it is only known that it is above.
                let end = if end.is_finite() { end } else { start };
                let part = ((rank - below) / within).clamp(0.0, 1.0);
                return Some(Duration::from_secs_f64(start + (end - start) * part));
            }
            below += within;
            start = if end.is_finite() { end } else { start };
        }
        Some(Duration::from_secs_f64(start))
    }

    /// One bucket for each doubling: for those who keep every bucket for ever.
    pub fn by_doubling(&self) -> Vec<(f64, u64)> {
        let mut coarse = Vec::with_capacity(OCTAVES + 2);
        let mut sum = 0;
        for (n, &(end, count)) in self.buckets.iter().enumerate() {
            // Of a difference a count may be below zero, and wraps as sums do.
            sum = count.wrapping_add(sum);
            if n % STEPS == 0 || end.is_infinite() {
                coarse.push((end, core::mem::take(&mut sum)));
            }
        }
        coarse
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn of(nanos: &[u64]) -> LatencyHistogram {
        let mut counts = [0; BUCKETS];
        for n in nanos {
            counts[bucket(*n)] += 1;
        }
        LatencyHistogram::new(&counts, nanos.iter().sum())
    }

    #[test]
    fn a_latency_is_in_the_first_bucket_that_it_does_not_exceed() {
        for (nanos, expected) in [
            (0, 0),
            (16_384, 0),
            (16_385, 1),
            (20_480, 1),
            (20_481, 2),
            (32_768, 4),
            (32_769, 5),
            (1 << 36, BUCKETS - 2),
            ((1 << 36) + 1, BUCKETS - 1),
            (u64::MAX, BUCKETS - 1),
        ] {
            assert_eq!(bucket(nanos), expected, "{nanos}");
        }
        for n in 0..BUCKETS - 1 {
            let nanos = (end(n) * 1e9).round() as u64;
            assert_eq!((bucket(nanos), bucket(nanos + 1)), (n, n + 1));
        }
    }

    #[test]
    fn quantiles_are_a_fifth_too_low_or_a_quarter_too_high_at_worst() {
        let all: Vec<u64> = (1..=1_000).map(|n| n * 100_000).collect();
        let histogram = of(&all);
        assert_eq!((histogram.count(), histogram.sum), (1_000, Duration::from_millis(50_050)));
        for (share, exact) in [(0.5, 0.050), (0.9, 0.090), (0.99, 0.099), (1.0, 0.100)] {
            let found = histogram.quantile(share).unwrap_or_default().as_secs_f64();
            assert!((exact * 0.8..exact * 1.25).contains(&found), "{share}: {found}");
        }
        // All at one end of a bucket: the rank alone moves the answer through the whole of it.
        for n in 1..BUCKETS - 1 {
            let [low, high] = [end(n - 1) * 1e9 + 1.0, end(n) * 1e9].map(f64::round);
            for exact in [low, high] {
                let histogram = of(&[exact as u64; 1_000]);
                for share in [0.001, 0.5, 1.0] {
                    let found = histogram.quantile(share).unwrap_or_default().as_nanos() as f64;
                    let error = found / exact;
                    assert!((0.799..=1.251).contains(&error), "{exact} at {share}: {found}");
                }
            }
        }
        assert_eq!(of(&[]).quantile(0.5), None);
        // Above all ends.
        let last = of(&[u64::MAX / 2]).quantile(0.99).unwrap_or_default();
        assert_eq!(last.as_nanos(), 1 << 36);
    }

    #[test]
    fn what_came_since_is_what_came_since() {
        let (earlier, now) = (of(&[1, 50_000]), of(&[1, 50_000, 50_000, 7_000_000]));
        let since = now.since(&earlier);
        assert_eq!((since.count(), since.sum), (2, Duration::from_micros(7_050)));
        assert_eq!(since.since(&since).quantile(0.5), None);
    }

    #[test]
    fn doublings_lose_nobody() {
        let histogram = of(&[1, 17_000, 20_000, 33_000, 1 << 36, u64::MAX / 2]);
        let coarse = histogram.by_doubling();
        assert_eq!(coarse.len(), OCTAVES + 2);
        let ends = [coarse[0], coarse[1], coarse[2], coarse[OCTAVES], coarse[OCTAVES + 1]];
        assert_eq!(ends.map(|(_, count)| count), [1, 2, 1, 1, 1]);
        assert_eq!(coarse[1].0, 32_768e-9);
        assert_eq!(coarse[OCTAVES + 1].0, f64::INFINITY);
    }
}
