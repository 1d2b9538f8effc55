//! What is left between utilizations when weights have done what they can.
//!
//! A weight says how many requests a backend could do, from how many it does. That levels
//! utilizations if what it does goes by weight as well. Where it also does `d` requests a second
//! that come whatever it weighs (of clients that see only some backends, say), beside `x` that go
//! by weight, it settles above the others, as `x` is in proportion to the weight and the weight to
//! `d + x`:
//!
//! ```text
//! x ~ weight = (d + x) / u        so        u = 1 + d/x times what it is elsewhere
//! ```
//!
//! whatever those `d` cost. No weight that is made of one report alone can tell; but the reports
//! of all show what is left. Each backend has a factor that goes on falling while it is busier than
//! the mean, and rising while it is idler:
//!
//! ```text
//! factor' = factor (1 + (mean - u) / max(mean, u, BUSY) x time / TAU)      1/most ..= most
//! ```
//!
//! Who is alone in looking at reports among clients that do not moves its own requests to the
//! idler backends, up to the bound, which is what is wanted of it. When utilizations are noise the
//! factors follow it, averaged over [`TAU`]; when they are lies, they are bounded.

use core::time::Duration;

/// Factors follow over about this long: ten updates, so that what an update does is in the reports
/// long before the factor has gone all the way, and the luck of a second is a tenth of its size.
const TAU: f64 = 10.0;
/// After a pause there is no more than this to make up for, as utilizations of before say little.
const STEP_MAX: f64 = 0.2;
/// Differences between backends that are next to idle are noise, and harm nobody.
const BUSY: f64 = 0.1;

/// The factor of one backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Correction(f32);

impl Default for Correction {
    fn default() -> Self {
        Self(1.0)
    }
}

impl Correction {
    pub(super) fn factor(self) -> f64 {
        f64::from(self.0)
    }

    /// The backend has been at `utilization` where the mean is `mean`, for as long as `elapsed`.
    pub(super) fn learn(&mut self, utilization: f64, mean: f64, elapsed: Duration, most: f64) {
        let missing = (mean - utilization) / mean.max(utilization).max(BUSY);
        let step = (elapsed.as_secs_f64() / TAU).min(STEP_MAX);
        let factor = self.factor() * (1.0 + missing * step);
        self.0 = factor.clamp(1.0 / most, most) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn factors_by_hand() {
        // Utilization, mean, seconds, and the factor that 1 becomes; 2 is the most.
        for (utilization, mean, secs, factor) in [
            (0.5, 0.5, 1.0, 1.0),
            (0.75, 0.5, 1.0, 1.0 - 0.1 / 3.0),
            (0.25, 0.5, 1.0, 1.05),
            (0.25, 0.5, 0.0, 1.0),
            // A minute is worth two seconds.
            (0.25, 0.5, 60.0, 1.1),
            // Half as much again as next to nothing.
            (0.015, 0.01, 1.0, 0.995),
            (1e12, 0.0, 1.0, 0.9),
        ] {
            let mut correction = Correction::default();
            correction.learn(utilization, mean, Duration::from_secs_f64(secs), 2.0);
            let found = correction.factor();
            assert!((found - factor).abs() < 1e-6, "{utilization} beside {mean}: {found}");
        }
    }

    proptest! {
        #[test]
        fn factors_are_bounded(
            seen in proptest::collection::vec((0.0..1e12_f64, 0.0..1e12_f64, 0_u64..1_000), 0..100),
            most in 1.0..10.0_f64,
        ) {
            let mut correction = Correction::default();
            for (utilization, mean, secs) in seen {
                correction.learn(utilization, mean, Duration::from_secs(secs), most);
                let factor = correction.factor();
                prop_assert!(factor >= 0.999_999 / most && factor <= 1.000_001 * most, "{factor}");
            }
        }
    }
}
