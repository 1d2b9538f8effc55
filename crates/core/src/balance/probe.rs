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

use crate::units::{Timestamp, nanos};
use core::time::Duration;

/// Requests in flight are told apart exactly up to this many, and then by quarters of a power of
/// two: a hundred and a hundred and ten are as good as the same.
const EXACT: u32 = 16;
/// From 16 to 2^16 in quarters; what is beyond goes with the last.
const LEVELS: usize = EXACT as usize + 12 * 4;
/// Samples kept per level. A median of eight is steady enough, and a probe is answered within
/// some hundred nanoseconds.
const SAMPLES: usize = 8;
/// The median is taken of at least so many, if there are: one may be an outlier, of three the
/// middle is not.
const ENOUGH: usize = 3;
const MEMORY: Duration = Duration::from_secs(10);

/// A request that has arrived: remembers how many were in flight then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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

#[derive(Debug, Clone, Copy, Default)]
struct Level {
    samples: [Option<(u64, Timestamp)>; SAMPLES],
    next: usize,
}

/// Keeps what probes ask for.
#[derive(Debug, Clone)]
pub struct ProbeState {
    rif: u32,
    levels: Box<[Level]>,
}

impl Default for ProbeState {
    fn default() -> Self {
        Self { rif: 0, levels: vec![Level::default(); LEVELS].into_boxed_slice() }
    }
}

impl ProbeState {
    /// A request arrives.
    pub fn on_arrival(&mut self) -> Arrival {
        let arrival = Arrival { rif: self.rif };
        self.rif = self.rif.saturating_add(1);
        arrival
    }

    /// It was served in `latency`.
    pub fn on_finish(&mut self, arrival: Arrival, latency: Duration, now: Timestamp) {
        self.on_abandon(arrival);
        let level = &mut self.levels[level_of(arrival.rif)];
        level.samples[level.next % SAMPLES] = Some((nanos(latency), now));
        level.next = (level.next + 1) % SAMPLES;
    }

    /// It ended in a way that says nothing about latency: refused, cancelled, failed. (A quick
    /// failure is not a short latency.)
    pub fn on_abandon(&mut self, _arrival: Arrival) {
        self.rif = self.rif.saturating_sub(1);
    }

    /// What to answer to a probe.
    pub fn answer(&self, now: Timestamp) -> ProbeAnswer {
        ProbeAnswer { rif: self.rif, latency: self.estimate(now) }
    }

    fn estimate(&self, now: Timestamp) -> Duration {
        let here = level_of(self.rif);
        // Two levels are looked at after `ENOUGH - 1` were found, at the most.
        let mut found = [0_u64; ENOUGH - 1 + 2 * SAMPLES];
        let mut len = 0;
        for distance in 0..LEVELS {
            let below = here.checked_sub(distance);
            let above = (distance > 0).then_some(here + distance);
            for level in [below, above].into_iter().flatten() {
                let samples = self.levels.get(level).map_or(&[][..], |l| &l.samples[..]);
                for &(latency, at) in samples.iter().flatten() {
                    if now.since(at) <= MEMORY && len < found.len() {
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
        let mut state = ProbeState::default();
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
            let mut state = ProbeState::default();
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
