//! A task that has just started gets a little first.
//!
//! Its caches are empty, its code is cold, its connections are not open: each request costs it
//! more than it will in a minute. A full share at once makes it slow or makes it fail, and to
//! least-loaded and to probes an idle task looks like the best of all, so everyone's requests rush
//! there. A cold backend therefore starts at a floor and ramps up in a straight line:
//!
//! ```text
//! share = floor + (1 - floor) x age / window        1 from then on
//! ```
//!
//! Weights are multiplied by the share. Loads are divided by it, in sixteenths, so that one active
//! request on a backend at a quarter counts as four.
//!
//! When all backends are equally cold (a whole service restarts) the shares cancel out, and every
//! backend gets its part of the whole. Too short a window overloads the newcomer; too long a one
//! wastes it: a restart costs half a window of one task.

use crate::units::{Ratio, Timestamp, nanos};
use core::time::Duration;

/// Loads are scaled in so many steps. Sixteen make each step small against the noise of a load,
/// and keep the number of times that a backend has to be re-sorted while it ramps small as well.
pub(super) const STEPS: u32 = 16;

/// How the share of a cold backend grows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SlowStart {
    /// How long it takes to reach the full share; zero turns slow start off. Thirty seconds: three
    /// times the blackout of weights (10 s), so that a backend is still held back when its own
    /// first reports begin to count, and about what filling a cache or compiling hot code takes.
    pub window: Duration,
    /// The share to start with. A tenth is enough work to warm up on.
    pub floor: Ratio,
}

impl Default for SlowStart {
    fn default() -> Self {
        Self { window: Duration::from_secs(30), floor: Ratio::percent(10) }
    }
}

impl SlowStart {
    /// Full shares from the start.
    pub const OFF: Self = Self { window: Duration::ZERO, floor: Ratio::ONE };

    /// A ramp from `floor` to everything in `window`.
    pub const fn new(window: Duration, floor: Ratio) -> Self {
        Self { window, floor }
    }

    /// The share of a backend that started `age` ago.
    pub fn share(&self, age: Duration) -> Ratio {
        let (age, window) = (nanos(age), nanos(self.window));
        if age >= window {
            return Ratio::ONE;
        }
        let ramp = u128::from(self.floor.complement().billionths()) * u128::from(age);
        // The sum is at most the whole: the ramp is a part of what the floor leaves.
        let billionths = u64::from(self.floor.billionths()) + (ramp / u128::from(window)) as u64;
        Ratio::of(billionths, u64::from(Ratio::WHOLE))
    }

    /// How long one of sixteen steps takes; at least a nanosecond, so that time goes on.
    pub(super) fn tick(&self) -> Duration {
        (self.window / STEPS).max(Duration::from_nanos(1))
    }

    /// The share in sixteenths, rounded up: 1 to 16. `cold_since` is unset for a warm backend.
    pub(super) fn step(&self, cold_since: Option<Timestamp>, now: Timestamp) -> u32 {
        let Some(start) = cold_since else { return STEPS };
        let share = u64::from(self.share(now.since(start)).billionths());
        let step = (share * u64::from(STEPS)).div_ceil(u64::from(Ratio::WHOLE));
        (step as u32).clamp(1, STEPS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ramp_by_the_table() {
        let ramp = SlowStart::default();
        for (secs, percent, step) in
            [(0, 10, 2), (10, 40, 7), (15, 55, 9), (20, 70, 12), (29, 97, 16), (30, 100, 16)]
        {
            assert_eq!(ramp.share(Duration::from_secs(secs)), Ratio::percent(percent), "{secs} s");
            assert_eq!(ramp.step(Some(Timestamp::ZERO), Timestamp::from_secs(secs)), step);
        }
        assert_eq!(ramp.step(None, Timestamp::ZERO), STEPS);
    }

    #[test]
    fn odd_ramps_stay_within_bounds() {
        assert_eq!(SlowStart::OFF.share(Duration::ZERO), Ratio::ONE);
        let from_nothing = SlowStart::new(Duration::MAX, Ratio::ZERO);
        assert_eq!(from_nothing.share(Duration::ZERO), Ratio::ZERO);
        assert_eq!(from_nothing.step(Some(Timestamp::MAX), Timestamp::ZERO), 1);
    }
}
