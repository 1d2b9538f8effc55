//! What a backend answers to a probe: its requests in flight, and how long one more would take.
//!
//! Latency depends on how many requests there are at once, so each finished request is remembered
//! with the number that were in flight when it arrived. The estimate is the median of recent
//! requests that arrived at about the present number; if there are too few of those, of the next
//! nearest numbers.
//!
//! Samples are forgotten after ten seconds. A backend that once was slow and is therefore avoided
//! would otherwise tell of its bad day for ever, and never be asked again. With nothing to go by
//! the estimate is zero, "try me": the requests in flight that follow hold back the rush.
//!
//! All of it is atomics, as requests arrive and end on many threads. The number in flight is one
//! count that all of them add to, since each has to know it on arrival: two adds a request that may
//! be contended, the price of answering probes. Samples are whole words that may be overwritten by
//! whoever finishes at the same moment.

use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Timestamp, nanos};
use core::time::Duration;

/// Requests in flight are told apart exactly up to this many, and then by quarters of a power of
/// two: a hundred and a hundred and ten are as good as the same.
const EXACT: u32 = 16;
/// From 16 to 2^16 in quarters; what is beyond goes with the last. Each sample is a word that loom
/// has to watch: models have two levels only.
const LEVELS: usize = if cfg!(feature = "loom") { 2 } else { EXACT as usize + 12 * 4 };
/// Samples kept per level. A median of eight is steady enough, and a probe is answered within
/// some hundred nanoseconds.
const SAMPLES: usize = if cfg!(feature = "loom") { 2 } else { 8 };
/// The median is taken of at least so many, if there are: one may be an outlier, of three the
/// middle is not.
const ENOUGH: usize = 3;
const MEMORY: Duration = Duration::from_secs(10);

/// Latencies are kept in units of 64 ns, so that 32 bits hold up to 274 s; what is longer counts
/// as that.
const UNIT_BITS: u32 = 6;
/// Times are kept in milliseconds, of which 32 bits wrap around after 50 days.
const TIME_UNIT: u64 = 1_000_000;

/// A request that has arrived: remembers how many were in flight then.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "give it back when the request ends, or it counts as in flight for ever"]
pub struct Arrival {
    rif: u32,
}

/// The answer to a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProbeAnswer {
    /// Requests in flight.
    pub rif: u32,
    /// How long one more would take; zero if nothing is known.
    pub latency: Duration,
}

/// The samples of one level: a cache line, and where the next one goes.
#[derive(Debug)]
#[repr(align(64))]
struct Level {
    samples: [AtomicU64; SAMPLES],
    next: AtomicU32,
}

/// Keeps what probes ask for. Any number of threads serve requests and answer probes.
#[derive(Debug)]
pub struct ProbeState {
    rif: AtomicU32,
    levels: Box<[Level]>,
}

impl Default for ProbeState {
    fn default() -> Self {
        let level = |_| Level {
            samples: core::array::from_fn(|_| AtomicU64::new(0)),
            next: AtomicU32::new(0),
        };
        Self { rif: AtomicU32::new(0), levels: (0..LEVELS).map(level).collect() }
    }
}

impl ProbeState {
    /// A request arrives.
    ///
    /// For the shell's request path: one add, contended if others arrive or end at this moment.
    #[inline]
    pub fn on_arrival(&self) -> Arrival {
        Arrival { rif: self.rif.fetch_add(1, Ordering::Relaxed) }
    }

    /// It was served in `latency`.
    ///
    /// For the shell's request path: one add, as for the arrival, and two stores.
    pub fn on_finish(&self, arrival: Arrival, latency: Duration, now: Timestamp) {
        let level = &self.levels[level_of(arrival.rif)];
        self.on_abandon(arrival);
        // Two that finish at once may take the same place. Then there is one sample less.
        let next = level.next.load(Ordering::Relaxed);
        level.next.store(next.wrapping_add(1), Ordering::Relaxed);
        level.samples[next as usize % SAMPLES].store(sample(latency, now), Ordering::Relaxed);
    }

    /// It ended in a way that says nothing about latency: refused, cancelled, failed. (A quick
    /// failure is not a short latency.)
    ///
    /// For the shell's request path: one add, as for the arrival.
    pub fn on_abandon(&self, _arrival: Arrival) {
        self.rif.fetch_sub(1, Ordering::Relaxed);
    }

    /// What to answer to a probe.
    pub fn answer(&self, now: Timestamp) -> ProbeAnswer {
        let rif = self.rif.load(Ordering::Relaxed);
        ProbeAnswer { rif, latency: self.estimate(rif, now) }
    }

    fn estimate(&self, rif: u32, now: Timestamp) -> Duration {
        let here = level_of(rif);
        // Two levels are looked at after `ENOUGH - 1` were found, at the most.
        let mut found = [0_u64; ENOUGH - 1 + 2 * SAMPLES];
        let mut len = 0;
        for distance in 0..LEVELS {
            let below = here.checked_sub(distance);
            let above = (distance > 0).then_some(here + distance);
            for level in [below, above].into_iter().flatten() {
                let samples = self.levels.get(level).map_or(&[][..], |l| &l.samples[..]);
                for word in samples {
                    if let Some(latency) = latency_of(word.load(Ordering::Relaxed), now)
                        && len < found.len()
                    {
                        found[len] = latency;
                        len += 1;
                    }
                }
            }
            if len >= ENOUGH {
                break;
            }
        }
        if len == 0 {
            return Duration::ZERO;
        }
        let (_, &mut median, _) = found[..len].select_nth_unstable((len - 1) / 2);
        Duration::from_nanos(median)
    }
}

/// Latency and time in one word, so that nobody reads one of this and the other of that request.
fn sample(latency: Duration, now: Timestamp) -> u64 {
    // No latency is written as one, as zero stands for no sample.
    let latency = ((nanos(latency) >> UNIT_BITS) + 1).min(u64::from(u32::MAX));
    let time = now.as_nanos() / TIME_UNIT;
    latency << 32 | (time & u64::from(u32::MAX))
}

/// The latency of a sample that is young enough.
fn latency_of(sample: u64, now: Timestamp) -> Option<u64> {
    let age = ((now.as_nanos() / TIME_UNIT) as u32).wrapping_sub(sample as u32);
    // One that was taken by a clock a little ahead of the reader's is of this moment.
    let age = if age.cast_signed() < 0 { 0 } else { u64::from(age) };
    let young = age <= nanos(MEMORY) / TIME_UNIT;
    let latency = (sample >> 32).checked_sub(1)?;
    young.then_some(latency << UNIT_BITS)
}

fn level_of(rif: u32) -> usize {
    if rif < EXACT {
        return rif as usize;
    }
    let power = rif.ilog2();
    let quarter = (rif >> (power - 2)) & 3;
    let level = EXACT + (power - 4) * 4 + quarter;
    (level as usize).min(LEVELS - 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn levels_rise_and_end() {
        let levels: Vec<usize> = (0..100_000).map(level_of).collect();
        assert!(levels.is_sorted());
        assert!(levels.windows(2).all(|w| w[1] - w[0] <= 1));
        assert_eq!(level_of(15), 15);
        assert_eq!(level_of(16), 16);
        assert_eq!(level_of(20), 17);
        assert_eq!(level_of(65_535), LEVELS - 1);
        assert_eq!(level_of(u32::MAX), LEVELS - 1);
    }

    #[test]
    fn the_estimate_is_of_the_present_number_in_flight() {
        let state = ProbeState::default();
        let now = Timestamp::ZERO;
        assert_eq!(state.answer(now), ProbeAnswer { rif: 0, latency: Duration::ZERO });
        // Alone a request takes 10 ms (one took 500), with one beside it 30 ms.
        for latency in [10, 500, 9, 11, 10] {
            let alone = state.on_arrival();
            state.on_finish(alone, ms(latency), now);
        }
        for _ in 0..5 {
            let (alone, beside) = (state.on_arrival(), state.on_arrival());
            state.on_finish(beside, ms(30), now);
            state.on_abandon(alone);
        }
        assert_eq!(state.answer(now), ProbeAnswer { rif: 0, latency: ms(10) });
        let first = state.on_arrival();
        assert_eq!(state.answer(now), ProbeAnswer { rif: 1, latency: ms(30) });
        // With four in flight the nearest that is known is two.
        let more = [(); 3].map(|()| state.on_arrival());
        assert_eq!(state.answer(now), ProbeAnswer { rif: 4, latency: ms(30) });
        for arrival in more {
            state.on_abandon(arrival);
        }
        state.on_abandon(first);
        // A bad day is forgotten, and so is a good one.
        assert_eq!(state.answer(Timestamp::from_secs(10)).latency, ms(10));
        assert_eq!(state.answer(Timestamp::from_secs(11)).latency, Duration::ZERO);
    }

    proptest! {
        /// The number in flight is exact, and the estimate is a latency that was seen.
        #[test]
        fn any_history_gives_a_sensible_answer(
            steps in proptest::collection::vec((0_u8..3, 0_u64..1_000, 0_u64..5), 1..300),
        ) {
            let state = ProbeState::default();
            let mut open = Vec::new();
            let mut seen = vec![Duration::ZERO];
            let mut secs = 0;
            for (kind, latency, step) in steps {
                secs += step;
                let now = Timestamp::from_secs(secs);
                match (kind, open.pop()) {
                    (0, Some(arrival)) => {
                        state.on_finish(arrival, ms(latency), now);
                        seen.push(ms(latency));
                    }
                    (1, Some(arrival)) => state.on_abandon(arrival),
                    (_, arrival) => {
                        open.extend(arrival);
                        open.push(state.on_arrival());
                    }
                }
                let answer = state.answer(now);
                prop_assert_eq!(answer.rif as usize, open.len());
                prop_assert!(seen.contains(&answer.latency));
            }
        }
    }
}
