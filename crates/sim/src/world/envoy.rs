//! A contender: adaptive throttling as Envoy's admission control filter does it.
//!
//! ```text
//! p = ((requests - successes / threshold) / (requests + 1)) ^ (1 / aggression)
//! ```
//!
//! over the last 30 s, where requests are those that were **sent**. What was refused here is not
//! counted, so that more demand does not raise `p`. With `x` sent a second, of which the backend
//! takes `C`, and `L` wanted, `x = L (1 - p) = L C / (t x)`:
//!
//! ```text
//! x = sqrt(L x C / t)
//! ```
//!
//! where counting them gives `K x C`, whatever `L` is. Written from Envoy's documentation, as a
//! measure for `tidegate_core::throttle`, which is what tidegate does.

use super::spec::EnvoyThrottleSpec;
use crate::dice;
use tidegate_core::Timestamp;
use tidegate_core::rng::Rng;
use tidegate_core::window::Window;

/// Steps in which the window forgets: a second each of the default.
const BUCKETS: usize = 30;

#[derive(Debug)]
pub(crate) struct EnvoyThrottle {
    spec: EnvoyThrottleSpec,
    /// Requests sent, and successes among them.
    sent: Window<[u64; 2]>,
}

impl EnvoyThrottle {
    pub(crate) fn new(spec: EnvoyThrottleSpec) -> Self {
        Self { spec, sent: Window::new(spec.window, BUCKETS) }
    }

    pub(crate) fn allows(&mut self, now: Timestamp, rng: &mut impl Rng) -> bool {
        let [requests, successes] = self.sent.total(now);
        let p = self.probability(requests as f64, successes as f64);
        p <= 0.0 || rng.unit() >= p
    }

    fn probability(&self, requests: f64, successes: f64) -> f64 {
        let base = (requests - successes / self.spec.success_threshold) / (requests + 1.0);
        if base <= 0.0 {
            return 0.0;
        }
        let power = dice::exp(dice::ln(base) / self.spec.aggression.max(1.0));
        power.min(self.spec.rejection_max)
    }

    pub(crate) fn on_response(&mut self, success: bool, now: Timestamp) {
        self.sent.add([1, u64::from(success)], now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_probability_by_the_table() {
        let throttle = EnvoyThrottle::new(EnvoyThrottleSpec::default());
        for (requests, successes, p) in [
            (0.0, 0.0, 0.0),
            (100.0, 95.0, 0.0),
            // 100 - 50 / 0.95 = 47.37 of 101.
            (100.0, 50.0, 0.469),
            (100.0, 0.0, 0.8),
        ] {
            let found = throttle.probability(requests, successes);
            assert!((found - p).abs() < 1e-3, "{requests} {successes}: {found}");
        }
        let spec = EnvoyThrottleSpec { aggression: 2.0, ..EnvoyThrottleSpec::default() };
        let found = EnvoyThrottle::new(spec).probability(100.0, 50.0);
        assert!((found - 0.469_f64.sqrt()).abs() < 1e-3, "{found}");
    }
}
