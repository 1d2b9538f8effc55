//! A contender: so many requests a second for each customer, whatever they cost. It is what limits
//! by cost are there to do better.

use super::spec::WorldSpec;
use tidegate_core::{CustomerId, Timestamp};

/// One task's part of the limits of a service.
#[derive(Debug)]
pub(super) struct RequestLimits {
    /// Tokens, and the rate at which they come.
    buckets: Vec<(f64, f64)>,
    last: Vec<Timestamp>,
}

impl RequestLimits {
    /// One task's part of the limits of a service.
    pub(super) fn new(spec: &WorldSpec, service: usize) -> Option<Self> {
        let of = &spec.services[service];
        if of.qps_limits.is_empty() {
            return None;
        }
        let part = |rate: &f64| rate / of.tasks.len().max(1) as f64;
        let buckets: Vec<_> = of.qps_limits.iter().map(part).map(|r| (r.max(1.0), r)).collect();
        Some(Self { last: vec![Timestamp::ZERO; buckets.len()], buckets })
    }

    /// Whether another request of `customer` is within its limit. A second's worth may come at
    /// once.
    pub(super) fn admit(&mut self, customer: CustomerId, now: Timestamp) -> bool {
        let Some((tokens, rate)) = self.buckets.get_mut(customer.index()) else { return true };
        let last = &mut self.last[customer.index()];
        *tokens = (*tokens + now.since(*last).as_secs_f64() * *rate).min(rate.max(1.0));
        *last = now;
        let admitted = *tokens >= 1.0;
        if admitted {
            *tokens -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::spec::ServiceSpec;
    use tidegate_core::rng::{Rng, SeededRng};

    #[test]
    fn requests_are_counted_whatever_they_cost() {
        let mut spec = WorldSpec::default();
        spec.services.push(ServiceSpec { qps_limits: vec![10.0], ..ServiceSpec::default() });
        let mut limits = RequestLimits::new(&spec, 0).unwrap();
        // A second's worth at once, then ten a second: 10 + 20 in two seconds.
        let mut rng = SeededRng::new(1);
        let mut at: Vec<u64> = (0..1_000).map(|_| rng.below(2_000_000_000)).collect();
        at.sort_unstable();
        let admit = |at: u64| limits.admit(CustomerId(0), Timestamp::from_nanos(at));
        let admitted = at.into_iter().map(admit).filter(|&a| a).count();
        assert!((28..=30).contains(&admitted), "{admitted}");
        assert!(limits.admit(CustomerId(7), Timestamp::ZERO), "no limit");
    }
}
