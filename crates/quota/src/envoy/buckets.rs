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
//! seconds, so the time between reports is taken from the server's clock; only the first report of
//! a bucket that an Envoy brings from an earlier stream has nothing else. A token bucket that is
//! filled more often than once a second is no limit at all. It is filled evenly all the time, by
//! whole tokens over whole seconds: over ten of them if there are few, or a fifth of a limit of
//! five requests a second would be lost to rounding.
//!
//! Buckets of one customer share its limits (`tidegate_core::fleet::divide_within`). Names that
//! nobody has configured are one customer, however many there are: everyone else.
//!
//! **Bounds.** Names come from headers of strangers, and Envoy reports every bucket that it ever
//! had until it is told to abandon it. So a bucket without requests is abandoned after
//! [`IDLE`], and there is room for so many of each customer and of everyone else. One that finds
//! none is told to let nothing through, its requests count as demand of its customer, and nothing
//! is kept of it; it is abandoned as soon as it reports no requests.
//!
//! **Buckets from before.** An Envoy that comes back, to this server or another, still has what it
//! was told. Until its customer's grant is known, to tell it anything would only cut it: so it is
//! told nothing, and what such buckets let through counts as what the Envoy has.

use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::{Limits, divide_within};
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};
use tidegate_wire::proto::envoy::service::rate_limit_quota::v3::{self as rlqs, BucketId};
use tidegate_wire::proto::envoy::r#type::v3::TokenBucket;
use tidegate_wire::proto::envoy::r#type::v3::rate_limit_strategy::{BlanketRule, Strategy};

type BucketQuotaUsage = rlqs::rate_limit_quota_usage_reports::BucketQuotaUsage;
type Id = BTreeMap<String, String>;
/// By criticality, lowest first.
type Rates = [CostRate; 4];

/// An Envoy has some buckets for each customer; whoever has more has no matchers but headers of
/// strangers.
const BUCKETS_MAX: usize = 4_096;
/// Of everyone else: so that made-up names leave room for customers.
const STRANGERS_MAX: usize = 1_024;
/// Of one customer: four criticalities, and as many times more as matchers may tell apart.
const OF_CUSTOMER_MAX: usize = 64;
/// Bytes of an id, keys and values. Names of customers are shorter by far.
const ID_MAX: usize = 1 << 10;
/// The key of a bucket that says whose it is.
pub(crate) const CUSTOMER: &str = "customer";
/// A bucket that counted no request for so long is abandoned. Envoy reports every 5 s, so it was
/// heard of a dozen times.
const IDLE: Duration = Duration::from_secs(60);
/// What is not kept is added up over so long: Envoy reports every 5 s.
const WINDOW: Duration = Duration::from_secs(5);
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

/// What an Envoy is told of a bucket.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Word {
    /// Let so much through.
    Assign(Strategy),
    /// Forget it.
    Abandon,
}

/// What customers use, want, and have from before.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Line {
    pub(crate) used: Rates,
    pub(crate) demand: Rates,
    /// What buckets from before let through, where there are any.
    pub(crate) before: Option<Rates>,
}

#[derive(Debug)]
struct Bucket {
    customer: String,
    criticality: Criticality,
    /// What a request costs, as it is reckoned with.
    cost: Cost,
    used: CostRate,
    demand: CostRate,
    reported: Timestamp,
    /// When it last counted a request.
    wanted: Timestamp,
    told: Option<Strategy>,
    /// It is from before this stream, and what it was told then still holds.
    before: bool,
}

/// What is not kept, added up by the numbers of customers, which the server's file has.
#[derive(Debug, Default)]
struct Surplus {
    since: Timestamp,
    /// Nanoseconds of CPU time.
    sums: BTreeMap<u32, [[u64; 4]; 2]>,
    rates: BTreeMap<u32, [Rates; 2]>,
}

/// The buckets of one Envoy, by their ids.
#[derive(Debug, Default)]
pub(crate) struct Buckets {
    buckets: BTreeMap<Id, Bucket>,
    /// How many there are of each customer, by its number.
    counts: BTreeMap<u32, usize>,
    surplus: Surplus,
    /// Of buckets that are not kept.
    words: Vec<(BucketId, Word)>,
}

impl Buckets {
    /// Takes a report in, of a customer that `who` numbers and of which `expect` says what requests
    /// cost. Returns whether there is something to tell of it.
    pub(crate) fn report(
        &mut self,
        usage: &BucketQuotaUsage,
        who: impl Fn(&str) -> u32,
        expect: impl Fn(&str) -> Cost,
        now: Timestamp,
    ) -> bool {
        let Some(id) = usage.bucket_id.as_ref().map(|id| &id.bucket) else { return false };
        let customer = id.get(CUSTOMER).map_or("", String::as_str);
        let is_new = !self.buckets.contains_key(id);
        let number = who(customer);
        if is_new && !self.has_room(id, number) {
            self.pass_over(usage, id, number, expect(customer), now);
            return true;
        }
        let elapsed = usage.time_elapsed.as_ref();
        let elapsed = elapsed.map_or(0, |span| u64::try_from(span.seconds).unwrap_or(0));
        if is_new {
            *self.counts.entry(number).or_default() += 1;
            self.buckets.insert(id.clone(), Bucket::new(id, elapsed > 0, now));
        }
        let Some(bucket) = self.buckets.get_mut(id) else { return false };
        let span = now.since(bucket.reported);
        let span = match (is_new, elapsed) {
            (true, 1..) => Duration::from_secs(elapsed),
            _ if span.is_zero() => FIRST,
            _ => span,
        };
        bucket.reckon(expect(customer));
        let cost = bucket.cost.as_nanos();
        let rate = |requests: u64| Cost::from_nanos(requests.saturating_mul(cost)).per(span);
        let requests = usage.num_requests_allowed.saturating_add(usage.num_requests_denied);
        (bucket.used, bucket.demand) = (rate(usage.num_requests_allowed), rate(requests));
        bucket.reported = now;
        if requests > 0 {
            bucket.wanted = now;
        }
        is_new
    }

    fn has_room(&self, id: &Id, number: u32) -> bool {
        let bytes: usize = id.iter().map(|(key, value)| key.len() + value.len()).sum();
        let most = if number == 0 { STRANGERS_MAX } else { OF_CUSTOMER_MAX };
        let count = self.counts.get(&number).copied().unwrap_or(0);
        bytes <= ID_MAX && count < most && self.buckets.len() < BUCKETS_MAX
    }

    /// A bucket for which there is no room.
    fn pass_over(
        &mut self,
        usage: &BucketQuotaUsage,
        id: &Id,
        number: u32,
        cost: Cost,
        now: Timestamp,
    ) {
        let of = |requests: u64| requests.saturating_mul(cost.as_nanos());
        let requests = usage.num_requests_allowed.saturating_add(usage.num_requests_denied);
        let both = [of(usage.num_requests_allowed), of(requests)];
        self.surplus.add(number, criticality(id), both, now);
        // Who finds no room here, either, asks again in five seconds.
        if self.words.len() < BUCKETS_MAX {
            let word = if requests > 0 {
                Word::Assign(Strategy::BlanketRule(BlanketRule::DenyAll as i32))
            } else {
                Word::Abandon
            };
            self.words.push((BucketId { bucket: id.clone() }, word));
        }
    }

    /// What customers use and want, by their numbers. Forgets buckets that nobody needs.
    pub(crate) fn usages(
        &mut self,
        who: impl Fn(&str) -> u32,
        now: Timestamp,
    ) -> BTreeMap<u32, Line> {
        let words = &mut self.words;
        self.buckets.retain(|id, bucket| {
            let stays = now.since(bucket.wanted) < IDLE || words.len() >= BUCKETS_MAX;
            if !stays {
                words.push((BucketId { bucket: id.clone() }, Word::Abandon));
            }
            stays
        });
        let mut lines = BTreeMap::<u32, Line>::new();
        self.counts.clear();
        for bucket in self.buckets.values() {
            let number = who(&bucket.customer);
            *self.counts.entry(number).or_default() += 1;
            let line = lines.entry(number).or_default();
            let level = bucket.criticality.index();
            line.used[level] = line.used[level] + bucket.used;
            line.demand[level] = line.demand[level] + bucket.demand;
            if bucket.before {
                let before = line.before.get_or_insert_default();
                before[level] = before[level] + bucket.used;
            }
        }
        for (number, [used, demand]) in self.surplus.rates(now) {
            let line = lines.entry(*number).or_default();
            line.used = core::array::from_fn(|l| line.used[l] + used[l]);
            line.demand = core::array::from_fn(|l| line.demand[l] + demand[l]);
        }
        lines
    }

    /// What has to be told, by what each customer may use; everything if it is told `again`. Of
    /// buckets from before nothing, unless their customer `is_known`.
    pub(crate) fn assign(
        &mut self,
        who: impl Fn(&str) -> u32,
        limits: impl Fn(u32) -> Limits,
        is_known: impl Fn(u32) -> bool,
        again: bool,
    ) -> Vec<(BucketId, Word)> {
        let mut of = BTreeMap::<u32, Vec<(Criticality, CostRate)>>::new();
        for bucket in self.buckets.values() {
            let wants = of.entry(who(&bucket.customer)).or_default();
            wants.push((bucket.criticality, bucket.demand));
        }
        let shares = of.into_iter();
        let mut shares: BTreeMap<u32, _> = shares
            .map(|(number, wants)| (number, divide_within(limits(number), &wants).into_iter()))
            .collect();
        let mut said = core::mem::take(&mut self.words);
        for (id, bucket) in &mut self.buckets {
            let number = who(&bucket.customer);
            let share = shares.get_mut(&number).and_then(Iterator::next).unwrap_or(CostRate::ZERO);
            bucket.before &= !is_known(number);
            if bucket.before {
                continue;
            }
            let strategy = strategy(share, bucket.cost);
            if again || bucket.told.as_ref() != Some(&strategy) {
                bucket.told = Some(strategy);
                said.push((BucketId { bucket: id.clone() }, Word::Assign(strategy)));
            }
        }
        said
    }

    /// Whether the Envoy may be using something that it was told here or before.
    pub(crate) fn may_be_used(&self) -> bool {
        self.buckets.values().any(|bucket| bucket.before || bucket.told.is_some())
    }
}

impl Surplus {
    fn add(&mut self, number: u32, level: Criticality, both: [u64; 2], now: Timestamp) {
        if self.sums.is_empty() && self.rates.is_empty() {
            self.since = now;
        }
        let sums = self.sums.entry(number).or_default();
        for (sum, more) in sums.iter_mut().zip(both) {
            sum[level.index()] = sum[level.index()].saturating_add(more);
        }
    }

    /// What was used and wanted in the last window.
    fn rates(&mut self, now: Timestamp) -> impl Iterator<Item = (&u32, &[Rates; 2])> {
        let span = now.since(self.since);
        if span >= WINDOW {
            let sums = core::mem::take(&mut self.sums).into_iter();
            let rate = |nanos: u64| Cost::from_nanos(nanos).per(span);
            self.rates = sums.map(|(n, both)| (n, both.map(|sum| sum.map(rate)))).collect();
            self.since = now;
        }
        self.rates.iter()
    }
}

impl Bucket {
    fn new(id: &Id, before: bool, now: Timestamp) -> Self {
        Self {
            customer: id.get(CUSTOMER).cloned().unwrap_or_default(),
            criticality: criticality(id),
            cost: Cost::ZERO,
            used: CostRate::ZERO,
            demand: CostRate::ZERO,
            reported: now,
            wanted: now,
            told: None,
            before,
        }
    }

    /// A request costs `measured`; as long as that is about the same, nothing changes.
    fn reckon(&mut self, measured: Cost) {
        let (before, now) = (self.cost.as_nanos(), measured.as_nanos());
        if before.abs_diff(now) > before / STEADY {
            self.cost = measured;
        }
    }
}

fn criticality(id: &Id) -> Criticality {
    let name = id.get("criticality");
    name.and_then(|name| name.parse().ok()).unwrap_or(Criticality::Critical)
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
        match limit {
            1.. if hit.div_ceil(limit) <= FILL_MAX => (1, hit.div_ceil(limit)),
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

    const TEN: fn(&str) -> Cost = |_| Cost::from_millis(10);
    /// Names of one letter are configured.
    const WHO: fn(&str) -> u32 = |name| match *name.as_bytes() {
        [letter] => u32::from(letter),
        _ => 0,
    };

    fn usage(customer: &str, allowed: u64, denied: u64) -> BucketQuotaUsage {
        let bucket = BTreeMap::from([("customer".to_owned(), customer.to_owned())]);
        BucketQuotaUsage {
            bucket_id: Some(BucketId { bucket }),
            time_elapsed: None,
            num_requests_allowed: allowed,
            num_requests_denied: denied,
        }
    }

    #[test]
    fn counts_become_rates_by_the_servers_clock_and_only_what_changed_is_told() {
        let mut buckets = Buckets::default();
        let at = Timestamp::from_secs;
        let told = |buckets: &mut Buckets, limit: f64, again: bool| {
            buckets.assign(WHO, |_| Limits::total(cpus(limit)), |_| true, again).len()
        };
        assert!(buckets.report(&usage("a", 1, 0), WHO, TEN, at(10)));
        assert!(!buckets.report(&usage("a", 100, 400), WHO, TEN, at(15)));
        let line = buckets.usages(WHO, at(15))[&u32::from(b'a')];
        assert_eq!((line.used[2], line.demand[2], line.before), (cpus(0.2), cpus(1.0), None));
        assert_eq!(told(&mut buckets, 0.5, false), 1);
        assert_eq!(told(&mut buckets, 0.5, false), 0);
        assert_eq!(told(&mut buckets, 0.5, true), 1);
        assert_eq!(told(&mut buckets, 0.4, false), 1);
        assert!(buckets.usages(WHO, at(100)).is_empty(), "nobody wants it any more");
        assert_eq!(buckets.words.len(), 1, "it is abandoned");
    }

    #[test]
    fn strangers_leave_room_for_customers_and_a_customer_for_others() {
        let mut buckets = Buckets::default();
        let at = Timestamp::from_secs;
        for n in 0..2 * STRANGERS_MAX {
            let name = format!("made-up-{n}");
            buckets.report(&usage(&name, u64::MAX, u64::MAX), WHO, TEN, at(100));
        }
        assert_eq!((buckets.buckets.len(), buckets.words.len()), (STRANGERS_MAX, STRANGERS_MAX));
        for n in 0..2 * OF_CUSTOMER_MAX {
            let mut mine = usage("a", 1, 0);
            let id = &mut mine.bucket_id.as_mut().unwrap().bucket;
            id.insert("path".to_owned(), n.to_string());
            buckets.report(&mine, WHO, TEN, at(100));
        }
        assert_eq!(buckets.buckets.len(), STRANGERS_MAX + OF_CUSTOMER_MAX);
        buckets.report(&usage("b", 1, 0), WHO, TEN, at(100));
        assert_eq!(buckets.buckets.len(), STRANGERS_MAX + OF_CUSTOMER_MAX + 1);
        // What found no room is demand all the same: 64 requests of 10 ms in five seconds.
        let line = buckets.usages(WHO, at(105))[&u32::from(b'a')];
        assert_eq!(line.demand[2], cpus(0.64 + 0.128));
    }

    #[test]
    fn a_mean_that_was_measured_turns_limits_into_requests() {
        let mut buckets = Buckets::default();
        let usage = usage("a", 100, 0);
        let mut tokens = |millis: u64, second: u64| {
            let at = Timestamp::from_secs(second);
            buckets.report(&usage, WHO, |_| Cost::from_millis(millis), at);
            let said = buckets.assign(WHO, |_| Limits::total(cpus(1.0)), |_| true, false);
            let (_, line) = buckets.usages(WHO, at).pop_first().unwrap();
            let tokens = said.first().map(|(_, word)| match word {
                Word::Assign(Strategy::TokenBucket(bucket)) => bucket.tokens_per_fill.unwrap(),
                other => panic!("{other:?}"),
            });
            (tokens, line.used[2].as_cpus())
        };
        // A hundred requests in the first second; then in ten.
        assert_eq!(tokens(10, 0), (Some(100), 1.0));
        assert_eq!(tokens(40, 10), (Some(25), 0.4));
        // About the same is the same, and nobody is told.
        assert_eq!(tokens(41, 20), (None, 0.4));
        assert_eq!(tokens(20, 30), (Some(50), 0.2));
    }
}
