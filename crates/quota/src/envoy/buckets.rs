//! What one Envoy counts, and what it may let through: RLQS in numbers.
//!
//! Envoy counts requests and quotas are CPU time, so what a request of the customer costs in the
//! mean (`costs`) turns each into the other:
//!
//! ```text
//! demand = (allowed + denied) / time x cost        tokens a second = limit / cost
//! ```
//!
//! A mean wavers with every answer. A bucket goes on with the one it has until it is off by a
//! twentieth, or an Envoy would be told something new all the time.
//!
//! What the real Envoy does (seen on 1.40) shapes the rest. Its own `time_elapsed` is cut to whole
//! seconds, so the time between reports is taken from the server's clock. A token bucket that is
//! filled more often than once a second is no limit at all. It is filled evenly all the time, by
//! whole tokens over whole seconds: over ten of them if there are few, or a fifth of a limit of
//! five requests a second would be lost to rounding.
//!
//! Buckets of one customer that differ in criticality share its limits: the higher takes first what
//! it wants, and what is left over goes to all of them in equal parts.

use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::Limits;
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::{self as rlqs, BucketId};
use tidegate_wire::proto::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};
use tidegate_wire::proto::envoy::r#type::v3::{RateLimitStrategy, TokenBucket};

type BucketQuotaUsage = rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;

/// An Envoy has some buckets for each customer; whoever has more has no matchers but headers of
/// strangers.
pub(crate) const BUCKETS_MAX: usize = 4_096;
/// The key of a bucket that says whose it is.
pub(crate) const CUSTOMER: &str = "customer";
/// A bucket that was not reported for so long is not counted any more: Envoy reports every 5 s.
const SILENT: Duration = Duration::from_secs(60);
/// A mean that is off by less than one part in so many is still right.
const STEADY: u64 = 20;
/// The first report of a bucket comes with its first request and tells no time.
const FIRST: Duration = Duration::from_secs(1);
/// With fewer tokens a second they are counted over [`FILL_LONG`]: rounding down loses a twentieth.
const TOKENS_FEW: u64 = 20;
/// In seconds.
const FILL_LONG: u64 = 10;
/// In seconds; nobody waits for a day for a request.
const FILL_MAX: u64 = 86_400;

#[derive(Debug)]
struct Bucket {
    customer: String,
    criticality: Criticality,
    /// What a request costs, as it is reckoned with.
    cost: Cost,
    used: CostRate,
    demand: CostRate,
    reported: Timestamp,
    told: Option<Strategy>,
}

/// The buckets of one Envoy, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    buckets: BTreeMap<BTreeMap<String, String>, Bucket>,
}

impl Buckets {
    /// Takes a report in, of a customer of which `expect` says what requests cost. Returns whether
    /// there was room for it.
    pub(crate) fn report(
        &mut self,
        usage: &BucketQuotaUsage,
        expect: impl Fn(&str) -> Cost,
        now: Timestamp,
    ) -> bool {
        let Some(id) = &usage.bucket_id else { return true };
        let room = self.buckets.len() < BUCKETS_MAX;
        let Some(bucket) = entry(&mut self.buckets, &id.bucket, room, now) else { return false };
        let span = now.since(bucket.reported);
        let span = if span.is_zero() { FIRST } else { span };
        bucket.reckon(expect(&bucket.customer));
        let cost = bucket.cost.as_nanos();
        let rate = |requests: u64| Cost::from_nanos(requests.saturating_mul(cost)).per(span);
        bucket.used = rate(usage.num_requests_allowed);
        bucket.demand = rate(usage.num_requests_allowed.saturating_add(usage.num_requests_denied));
        bucket.reported = now;
        true
    }

    /// Use and demand of each customer, by criticality.
    pub(crate) fn usages(
        &mut self,
        now: Timestamp,
    ) -> BTreeMap<&str, ([CostRate; 4], [CostRate; 4])> {
        self.buckets.retain(|_, bucket| now.since(bucket.reported) < SILENT);
        let mut sums = BTreeMap::<&str, ([CostRate; 4], [CostRate; 4])>::new();
        for bucket in self.buckets.values() {
            let (used, demand) = sums.entry(&bucket.customer).or_default();
            let level = bucket.criticality.index();
            used[level] = used[level] + bucket.used;
            demand[level] = demand[level] + bucket.demand;
        }
        sums
    }

    /// What has to be told, by what each customer may use; everything if it is told `again`.
    pub(crate) fn assign(
        &mut self,
        limits: impl Fn(&str) -> Limits,
        again: bool,
    ) -> Vec<(BucketId, RateLimitStrategy)> {
        let mut of: BTreeMap<&str, Vec<(Criticality, CostRate)>> = BTreeMap::new();
        for bucket in self.buckets.values() {
            of.entry(&bucket.customer).or_default().push((bucket.criticality, bucket.demand));
        }
        let shares: BTreeMap<String, Vec<CostRate>> = of
            .iter()
            .map(|(customer, wants)| ((*customer).to_owned(), divide(limits(customer), wants)))
            .collect();
        let mut places = BTreeMap::<String, usize>::new();
        let mut said = Vec::new();
        for (id, bucket) in &mut self.buckets {
            let place = places.entry(bucket.customer.clone()).or_default();
            let share = shares.get(&bucket.customer).and_then(|shares| shares.get(*place));
            *place += 1;
            let strategy = strategy(share.copied().unwrap_or(CostRate::ZERO), bucket.cost);
            if again || bucket.told.as_ref() != Some(&strategy) {
                bucket.told = Some(strategy);
                let strategy = RateLimitStrategy { strategy: Some(strategy) };
                said.push((BucketId { bucket: id.clone() }, strategy));
            }
        }
        said
    }
}

impl Bucket {
    /// A request costs `measured`; as long as that is about the same, nothing changes.
    fn reckon(&mut self, measured: Cost) {
        let (before, now) = (self.cost.as_nanos(), measured.as_nanos());
        if before.abs_diff(now) > before / STEADY {
            self.cost = measured;
        }
    }
}

/// The bucket of this id, new if there is room.
fn entry<'a>(
    buckets: &'a mut BTreeMap<BTreeMap<String, String>, Bucket>,
    id: &BTreeMap<String, String>,
    room: bool,
    now: Timestamp,
) -> Option<&'a mut Bucket> {
    if !room && !buckets.contains_key(id) {
        return None;
    }
    Some(buckets.entry(id.clone()).or_insert_with(|| {
        Bucket {
            customer: id.get(CUSTOMER).cloned().unwrap_or_default(),
            criticality: id
                .get("criticality")
                .and_then(|name| name.parse().ok())
                .unwrap_or(Criticality::Critical),
            cost: Cost::ZERO,
            used: CostRate::ZERO,
            demand: CostRate::ZERO,
            reported: now,
            told: None,
        }
    }))
}

/// Divides nested limits among buckets of so much demand, in their order.
fn divide(limits: Limits, wants: &[(Criticality, CostRate)]) -> Vec<CostRate> {
    if limits.whole() == CostRate::MAX {
        return vec![CostRate::MAX; wants.len()];
    }
    let mut given = vec![CostRate::ZERO; wants.len()];
    let mut left = limits.whole();
    for level in Criticality::ALL.into_iter().rev() {
        left = left.min(limits[level]);
        for (place, (criticality, demand)) in wants.iter().enumerate() {
            if *criticality == level {
                given[place] = (*demand).min(left);
                left = left - given[place];
            }
        }
    }
    // What is left by then is below every cap, as it was lowered to each.
    let part = left.as_nanos_per_sec() / wants.len().max(1) as u64;
    given.iter().map(|rate| *rate + CostRate::from_nanos_per_sec(part)).collect()
}

/// So many requests a second, as Envoy understands it.
fn strategy(limit: CostRate, hit: Cost) -> Strategy {
    if limit == CostRate::MAX {
        return Strategy::BlanketRule(BlanketRule::AllowAll as i32);
    }
    let (limit, hit) = (limit.as_nanos_per_sec(), hit.as_nanos().max(1));
    let over = |seconds: u64| limit.saturating_mul(seconds) / hit;
    let (tokens, every) = if over(1) >= TOKENS_FEW {
        (over(1), 1)
    } else if over(FILL_LONG) > 0 {
        (over(FILL_LONG), FILL_LONG)
    } else {
        match hit.checked_div(limit) {
            Some(seconds) if seconds <= FILL_MAX => (1, seconds),
            _ => return Strategy::BlanketRule(BlanketRule::DenyAll as i32),
        }
    };
    let whole = |tokens: u64| u32::try_from(tokens).unwrap_or(u32::MAX);
    Strategy::TokenBucket(TokenBucket {
        // A second's worth may be saved up.
        max_tokens: whole(tokens.div_ceil(every)),
        tokens_per_fill: Some(whole(tokens)),
        fill_interval: Some(prost_types::Duration { seconds: every as i64, nanos: 0 }),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable};

    fn cpus(n: f64) -> CostRate {
        CostRate::from_cpus(n).unwrap()
    }

    #[test]
    fn limits_become_tokens_by_the_table() {
        let hit = Cost::from_millis(10);
        let bucket = |strategy| match strategy {
            Strategy::TokenBucket(bucket) => {
                let seconds = bucket.fill_interval.unwrap().seconds;
                (bucket.max_tokens, bucket.tokens_per_fill.unwrap(), seconds)
            }
            other => panic!("{other:?}"),
        };
        for (limit, max, tokens, seconds) in [
            (1.0, 100, 100, 1),
            (0.049, 5, 49, 10),
            (0.01, 1, 10, 10),
            (0.002, 1, 2, 10),
            (0.0002, 1, 1, 50),
            (1e9, u32::MAX, u32::MAX, 1),
        ] {
            assert_eq!(bucket(strategy(cpus(limit), hit)), (max, tokens, seconds), "{limit}");
        }
        let blanket = |rule: BlanketRule| Strategy::BlanketRule(rule as i32);
        assert_eq!(strategy(CostRate::ZERO, hit), blanket(BlanketRule::DenyAll));
        assert_eq!(strategy(CostRate::from_nanos_per_sec(1), hit), blanket(BlanketRule::DenyAll));
        assert_eq!(strategy(CostRate::MAX, hit), blanket(BlanketRule::AllowAll));
    }

    #[test]
    fn the_higher_criticality_takes_first_and_what_is_left_goes_to_all() {
        let total = Limits::total(cpus(10.0));
        for (wants, expected) in [
            (vec![(Critical, 4.0)], vec![10.0]),
            (vec![(Sheddable, 9.0), (CriticalPlus, 8.0)], vec![2.0, 8.0]),
            (vec![(Sheddable, 1.0), (CriticalPlus, 5.0)], vec![3.0, 7.0]),
            (vec![(Critical, 20.0), (Sheddable, 1.0)], vec![10.0, 0.0]),
        ] {
            let wants: Vec<_> = wants.into_iter().map(|(l, n)| (l, cpus(n))).collect();
            let expected: Vec<_> = expected.into_iter().map(cpus).collect();
            assert_eq!(divide(total, &wants), expected);
        }
        let capped = Limits::clamped([1.0, 1.0, 10.0, 10.0].map(cpus));
        let wants = [(Sheddable, cpus(5.0)), (Critical, cpus(2.0))];
        assert_eq!(divide(capped, &wants), [cpus(1.0), cpus(2.0)]);
        assert_eq!(divide(Limits::UNLIMITED, &wants), [CostRate::MAX; 2]);
    }

    #[test]
    fn counts_become_rates_by_the_servers_clock_and_only_what_changed_is_told() {
        let mut buckets = Buckets::default();
        let ten = |_: &str| Cost::from_millis(10);
        let id = |customer: &str| BTreeMap::from([("customer".to_owned(), customer.to_owned())]);
        let usage = |customer: &str, allowed, denied| BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket: id(customer) }),
            time_elapsed: None,
            num_requests_allowed: allowed,
            num_requests_denied: denied,
        };
        let at = Timestamp::from_secs;
        assert!(buckets.report(&usage("a", 1, 0), ten, at(10)));
        assert!(buckets.report(&usage("a", 100, 400), ten, at(15)));
        let usages = buckets.usages(at(15));
        let (used, demand) = usages["a"];
        assert_eq!((used[2], demand[2]), (cpus(0.2), cpus(1.0)));
        assert_eq!(buckets.assign(|_| Limits::total(cpus(0.5)), false).len(), 1);
        assert_eq!(buckets.assign(|_| Limits::total(cpus(0.5)), false), []);
        assert_eq!(buckets.assign(|_| Limits::total(cpus(0.5)), true).len(), 1);
        assert_eq!(buckets.assign(|_| Limits::total(cpus(0.4)), false).len(), 1);
        assert!(buckets.usages(at(100)).is_empty(), "nobody speaks of it any more");
        for n in 0..BUCKETS_MAX {
            assert!(buckets.report(&usage(&n.to_string(), u64::MAX, u64::MAX), ten, at(100)));
        }
        assert!(!buckets.report(&usage("one more", 1, 0), ten, at(100)));
        assert!(buckets.report(&usage("7", 1, 0), ten, at(100)));
    }
    #[test]
    fn a_mean_that_was_measured_turns_limits_into_requests() {
        let mut buckets = Buckets::default();
        let bucket = BTreeMap::from([("customer".to_owned(), "a".to_owned())]);
        let usage = BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket }),
            time_elapsed: None,
            num_requests_allowed: 100,
            num_requests_denied: 0,
        };
        let mut tokens = |millis: u64, second: u64| {
            let at = Timestamp::from_secs(second);
            assert!(buckets.report(&usage, |_| Cost::from_millis(millis), at));
            let said = buckets.assign(|_| Limits::total(cpus(1.0)), false);
            let (_, used) = buckets.usages(at).pop_first().unwrap();
            let tokens = said.first().map(|(_, strategy)| match strategy.strategy {
                Some(Strategy::TokenBucket(bucket)) => bucket.tokens_per_fill.unwrap(),
                other => panic!("{other:?}"),
            });
            (tokens, used.0[2].as_cpus())
        };
        // A hundred requests in the first second; then in ten.
        assert_eq!(tokens(10, 0), (Some(100), 1.0));
        assert_eq!(tokens(40, 10), (Some(25), 0.4));
        // About the same is the same, and nobody is told.
        assert_eq!(tokens(41, 20), (None, 0.4));
        assert_eq!(tokens(20, 30), (Some(50), 0.2));
    }
}
