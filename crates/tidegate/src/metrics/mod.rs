//! What was counted, and where the task stands.
//!
//! [`Task::snapshot`](crate::Task::snapshot) gives all of it as plain numbers, for whoever has a
//! metrics library of their own. With the feature `prometheus` there is a `Collector` for a
//! registry of prometheus-client, with the feature `opentelemetry` a function `observe` for a meter
//! of OpenTelemetry. Both ask for a snapshot when they are read, and go through one list.
//!
//! Of a task:
//!
//! | name | labels | is |
//! |---|---|---|
//! | `tidegate_requests_total` | `criticality`, `decision`, `reason` | `admit`, `reject`, or `dark` for those that dark mode let in |
//! | `tidegate_attempts_total` | `attempt` | requests by which try they are: `1`, `2`, `3+` |
//! | `tidegate_inflight_requests` | | admitted and not done |
//! | `tidegate_request_cost_seconds` | | histogram of CPU time, of the reference machine |
//! | `tidegate_latency_seconds` | | histogram of what admitted requests took, from the decision to the end of the answer |
//! | `tidegate_good_requests_total` | `criticality` | answers that did not fail, within their deadlines |
//! | `tidegate_late_cost_seconds_total` | | CPU time of children after their request was done |
//! | `tidegate_failed_requests_total` | | answers that failed |
//! | `tidegate_overloaded_below_requests_total` | | answers that became "don't retry", as a dependency said so |
//! | `tidegate_cancelled_requests_total` | | handlers that were dropped at their deadline |
//! | `tidegate_header_faults_total` | `fault` | headers that made no sense |
//! | `tidegate_utilization_ratio` | `signal` | where each signal stands, over its target |
//! | `tidegate_admitted_ratio` | `criticality` | the share that is let in |
//! | `tidegate_degraded` | `criticality` | 1 while degraded answers are asked for |
//! | `tidegate_capacity_cpus`, `tidegate_offered_cpus`, `tidegate_usable_cpus` | | what the task can do, is offered, and may use |
//! | `tidegate_unattributed_cpu_ratio` | | the share of CPU time that no request explains |
//! | `tidegate_wake_delay_seconds` | | from wake to poll |
//! | `tidegate_customer_used_cpus`, `tidegate_customer_wanted_cpus` | `customer`, `criticality` | in the last second; `other` is everyone without limits of their own |
//! | `tidegate_sampler_ticks_total`, `tidegate_sampler_late_ticks_total`, `tidegate_sampler_panics_total` | | looks at the signals |
//!
//! Of the clients and balancers that are given to them as `Calls`:
//!
//! | name | labels | is |
//! |---|---|---|
//! | `tidegate_client_requests_total`, `tidegate_client_retries_total` | `service` | requests to another service, and retries of them: both together over the first is the amplification |
//! | `tidegate_client_attempts_total` | `service`, `criticality`, `fate` | `accepted`, `refused`, `unanswered`, or `throttled` for those that were never sent |
//! | `tidegate_client_given_up_requests_total` | `service`, `reason` | not tried again: `advised`, `attempts_exhausted`, `deadline_would_pass`, `budget_exhausted`, `unrepeatable` |
//! | `tidegate_client_throttle_ratio` | `service`, `criticality` | how likely a request is to be held back |
//! | `tidegate_client_budget_retries` | `service` | retries that the budget has left |
//! | `tidegate_backends` | `service`, `state` | endpoints: `serving`, `lame_duck` |
//! | `tidegate_backend_weight_ratio` | `service`, `backend` | an endpoint's share of the picks, where the policy has weights |
//! | `tidegate_backend_utilization_ratio` | `service`, `backend` | how full it says that it is |
//! | `tidegate_backend_active_requests` | `service`, `backend` | attempts that have begun and not ended |
//! | `tidegate_backend_serving` | `service`, `backend` | 1 while it takes new requests |
//!
//! Of what stands before a service in the proxy, a queue of batch work, an edge, copies of answers
//! and health by datagram:
//!
//! | name | labels | is |
//! |---|---|---|
//! | `tidegate_batch_queued_requests`, `tidegate_batch_queued_bytes` | `service` | what waits |
//! | `tidegate_batch_outstanding_requests`, `tidegate_batch_window_requests` | `service` | what was handed on and has not come back, and how much of that there may be |
//! | `tidegate_batch_pace` | `service` | requests a second that go on |
//! | `tidegate_batch_requests_total` | `service`, `fate` | `sent`, `again` for those that were refused and wait once more, `full`, `late`, `left` |
//! | `tidegate_edge_events_total` | `event` | `stripped_header`, `client_limit`, `connection_limit`, `connection_refused`, `body_too_long`, `body_too_slow` |
//! | `tidegate_stale_copies`, `tidegate_stale_bytes` | | copies of answers, and what they take |
//! | `tidegate_stale_events_total` | `event` | `kept`, `forgotten` for those that a change made wrong; given out `refused` for want of the program's time, `failed` instead of its failure, `spared` to spare it |
//! | `tidegate_health_datagrams_total` | `event` | `answered`, `dropped` for more than there is time for, `garbage` |
//!
//! And `/metrics` of the dashboard has one of its own:
//!
//! | name | labels | is |
//! |---|---|---|
//! | `tidegate_page_panics_total` | `part` | looks at a part that panicked |
//!
//! OpenTelemetry has dots for the first underscore and leaves out what follows from the unit:
//! `tidegate.late_cost` in `s`. It knows no histogram that is read rather than written, so each
//! is two counters: `tidegate.request_cost` in `s`, and `tidegate.request_cost.bucket`, the
//! requests that cost no more than the seconds in the attribute `le`.
//!
//! Counts are per thread and added up by whoever asks: a request adds to cells that only its thread
//! writes. They only ever grow (and wrap), so work with differences.
//!
//! **Bounded.** Reasons, criticalities, faults and signals are few. Customers are those who have
//! limits of their own, whom somebody has configured; all others are one. Of endpoints 32 a
//! balancer have rows of their own; the rest is `other`, with the sum of their weights and active
//! requests, and as full as the fullest and serving if all are.

#[cfg(all(feature = "tokio", any(feature = "opentelemetry", feature = "prometheus")))]
mod calls;
#[cfg(all(feature = "tokio", any(feature = "opentelemetry", feature = "prometheus")))]
mod doors;
mod latency;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
mod list;
#[cfg(feature = "opentelemetry")]
mod opentelemetry;
#[cfg(feature = "prometheus")]
mod prometheus;

#[cfg(all(feature = "tokio", any(feature = "opentelemetry", feature = "prometheus")))]
pub use calls::{Calls, InvalidCalls};
#[cfg(all(feature = "tokio", any(feature = "opentelemetry", feature = "prometheus")))]
pub use doors::{Copies, EdgeCounts, Queue};
pub use latency::LatencyHistogram;
#[cfg(any(feature = "opentelemetry", feature = "prometheus"))]
pub use list::{Name, names};
#[cfg(feature = "opentelemetry")]
pub use opentelemetry::observe;
#[cfg(all(feature = "tokio", feature = "opentelemetry"))]
pub use opentelemetry::observe_calls;
#[cfg(feature = "prometheus")]
pub use prometheus::Collector;
#[cfg(feature = "admin")]
pub(crate) use prometheus::PageCollector;

use crate::signals::Health;
use crate::task::Inner;
use core::time::Duration;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidegate_core::admission::Counts;
use tidegate_core::admission::shed::Plan;
use tidegate_core::counters::{Counters, Writer};
use tidegate_core::quota::Usage;
use tidegate_core::{Cost, Criticality, CustomerId};
use tidegate_wire::faults::{Fault, Faults};

/// Buckets of the histogram of costs: up to 4 µs, and so on by doubling up to 8.6 s, then
/// everything. Below are requests that do nothing, above are batches.
const BUCKETS: usize = 23;
/// The first bucket ends at two to the power of this, in nanoseconds.
const FIRST: u32 = 12;

/// Where threads count.
pub(crate) mod cell {
    use super::{BUCKETS, Criticality, Fault, latency};

    /// By cost, from here on.
    pub(super) const COSTS: usize = 0;
    pub(super) const COST_SUM: usize = COSTS + BUCKETS;
    pub(super) const LATE: usize = COST_SUM + 1;
    /// Answers that failed.
    pub(crate) const FAILED: usize = LATE + 1;
    /// Answers that became "overloaded; don't retry".
    pub(crate) const OVERLOADED_BELOW: usize = FAILED + 1;
    /// Handlers that were dropped as their deadline had passed.
    pub(crate) const CANCELLED: usize = OVERLOADED_BELOW + 1;
    /// By fault, from here on.
    pub(crate) const FAULTS: usize = CANCELLED + 1;
    /// Good answers by criticality, from here on.
    pub(super) const GOOD: usize = FAULTS + Fault::ALL.len();
    /// By latency, from here on.
    pub(super) const LATENCIES: usize = GOOD + Criticality::COUNT;
    pub(super) const LATENCY_SUM: usize = LATENCIES + latency::BUCKETS;
    pub(super) const COUNT: usize = LATENCY_SUM + 1;
}

/// The bucket of a cost: the first whose end it does not exceed.
const fn bucket(cost: Cost) -> usize {
    let log2 = u64::BITS - cost.as_nanos().saturating_sub(1).leading_zeros();
    let bucket = log2.saturating_sub(FIRST) as usize;
    if bucket < BUCKETS { bucket } else { BUCKETS - 1 }
}

#[inline]
pub(crate) fn count_cost(counts: &mut Writer, cost: Cost) {
    counts.add(cell::COSTS + bucket(cost), 1);
    counts.add(cell::COST_SUM, cost.as_nanos());
}

#[inline]
pub(crate) fn count_latency(counts: &mut Writer, latency: Duration) {
    let nanos = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
    counts.add(cell::LATENCIES + latency::bucket(nanos), 1);
    counts.add(cell::LATENCY_SUM, nanos);
}

#[inline]
pub(crate) fn count_good(counts: &mut Writer, criticality: Criticality) {
    counts.add(cell::GOOD + criticality.index(), 1);
}

#[cfg(feature = "tokio")]
pub(crate) fn count_late(counts: &mut Writer, cost: Cost) {
    counts.add(cell::LATE, cost.as_nanos());
}

/// What threads count.
#[derive(Debug)]
pub(crate) struct Counting(Arc<Counters>);

impl Counting {
    pub(crate) fn new() -> Self {
        Self(Counters::new(cell::COUNT))
    }

    pub(crate) fn writer(&self) -> Writer {
        self.0.writer()
    }

    fn totals(&self) -> [u64; cell::COUNT] {
        let mut totals = [0; cell::COUNT];
        self.0.read(&mut totals);
        totals
    }

    pub(crate) fn answers(&self) -> Answers {
        let totals = self.totals();
        let latencies = &totals[cell::LATENCIES..cell::LATENCY_SUM];
        Answers {
            done: latencies.iter().fold(0, |sum, count| sum.wrapping_add(*count)),
            nanos: totals[cell::LATENCY_SUM],
            failed: totals[cell::FAILED],
        }
    }
}

/// Counts of answers, so far or since.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers {
    pub(crate) done: u64,
    /// How long they took together.
    pub(crate) nanos: u64,
    pub(crate) failed: u64,
}

impl Answers {
    /// What came since `earlier`.
    pub(crate) const fn since(&self, earlier: &Self) -> Self {
        Self {
            done: self.done.wrapping_sub(earlier.done),
            nanos: self.nanos.wrapping_sub(earlier.nanos),
            failed: self.failed.wrapping_sub(earlier.failed),
        }
    }
}

/// Where the task stood at the last tick.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) plan: Option<Plan>,
    pub(crate) cpus: f64,
    pub(crate) delay: Option<Duration>,
    /// How long requests have taken of late.
    pub(crate) latency: Option<Duration>,
    pub(crate) unattributed: Option<f64>,
    pub(crate) customers: Vec<(CustomerId, Usage)>,
}

/// What requests have cost, by doubling.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct CostHistogram {
    /// The end of each bucket, in seconds, and how many were in it; the last has no end.
    pub buckets: Vec<(f64, u64)>,
    /// What they have cost together.
    pub sum: Cost,
}

/// All that was counted, and where the task stands.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Snapshot {
    /// What the service is called.
    pub service: String,
    /// Requests admitted, refused, in flight, by criticality and by reason.
    pub requests: Counts,
    /// What requests have cost.
    pub costs: CostHistogram,
    /// How long admitted requests took.
    pub latencies: LatencyHistogram,
    /// Answers that did not fail, within their deadlines; by criticality, lowest first.
    pub good: [u64; Criticality::COUNT],
    /// What children of requests have cost after their request was done.
    pub late: Cost,
    /// Answers that failed: 5xx, and what gRPC has for it.
    pub failed: u64,
    /// Failed answers that became "overloaded; don't retry", as a dependency had said so.
    pub overloaded_below: u64,
    /// Handlers that were dropped as their deadline had passed.
    pub cancelled: u64,
    /// Headers that made no sense, by kind.
    pub faults: Vec<(Fault, u64)>,
    /// The last plan of the controller; nothing before the first tick.
    pub plan: Option<Plan>,
    /// The signals.
    pub signals: Vec<Health>,
    /// How many CPUs the task may use.
    pub cpus: f64,
    /// From wake to poll.
    pub wake_delay: Option<Duration>,
    /// The share of the process's CPU time in the last second that no request explains.
    pub unattributed: Option<f64>,
    /// What customers used and wanted in the last second. Nobody has the name of everyone else.
    pub customers: Vec<(Option<Arc<str>>, Usage)>,
    /// How often the signals were looked at.
    pub ticks: u64,
    /// How often that was late by a whole tick.
    pub ticks_late: u64,
    /// How often it panicked.
    pub ticks_panicked: u64,
}

/// By name. Numbers whose customers are gone count as everyone else.
fn named(task: &Inner, usages: &[(CustomerId, Usage)]) -> Vec<(Option<Arc<str>>, Usage)> {
    let mut customers = BTreeMap::<_, Usage>::new();
    for &(id, usage) in usages {
        let sum = customers.entry(task.customer_name(id)).or_default();
        for level in 0..usage.used.len() {
            sum.used[level] = sum.used[level] + usage.used[level];
            sum.wanted[level] = sum.wanted[level] + usage.wanted[level];
        }
    }
    customers.into_iter().collect()
}

impl Snapshot {
    pub(crate) fn of(task: &Inner, signals: Vec<Health>) -> Self {
        let totals = task.counting.totals();
        let observed = task.observed();
        let buckets = (0..BUCKETS).map(|n| (bucket_end(n), totals[cell::COSTS + n])).collect();
        let faults = Fault::ALL.map(|fault| (fault, totals[cell::FAULTS + fault.index()]));
        let customers = named(task, &observed.customers);
        let latencies = &totals[cell::LATENCIES..cell::LATENCY_SUM];
        let (ticks, ticks_late, ticks_panicked) = task.sampled();
        Self {
            service: task.service().to_owned(),
            requests: task.gate.counts(),
            costs: CostHistogram { buckets, sum: Cost::from_nanos(totals[cell::COST_SUM]) },
            latencies: LatencyHistogram::new(latencies, totals[cell::LATENCY_SUM]),
            good: core::array::from_fn(|n| totals[cell::GOOD + n]),
            late: Cost::from_nanos(totals[cell::LATE]),
            failed: totals[cell::FAILED],
            overloaded_below: totals[cell::OVERLOADED_BELOW],
            cancelled: totals[cell::CANCELLED],
            faults: faults.into(),
            plan: observed.plan,
            signals,
            cpus: observed.cpus,
            wake_delay: observed.delay,
            unattributed: observed.unattributed,
            customers,
            ticks,
            ticks_late,
            ticks_panicked,
        }
    }

    /// How often `fault` was seen.
    pub fn fault(&self, fault: Fault) -> u64 {
        self.faults.iter().find(|(other, _)| *other == fault).map_or(0, |(_, count)| *count)
    }
}

fn bucket_end(bucket: usize) -> f64 {
    if bucket + 1 == BUCKETS {
        f64::INFINITY
    } else {
        (1_u64 << (FIRST as usize + bucket)) as f64 / 1e9
    }
}

/// The cells of what made no sense.
pub(crate) fn fault_cells(faults: Faults) -> impl Iterator<Item = usize> {
    faults.iter().map(|fault| cell::FAULTS + fault.index())
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_cost_is_in_the_first_bucket_that_it_does_not_exceed() {
        for (nanos, expected) in [
            (0, 0),
            (1, 0),
            (4_096, 0),
            (4_097, 1),
            (8_192, 1),
            (8_193, 2),
            (1 << 33, 21),
            ((1 << 33) + 1, 22),
            (u64::MAX, 22),
        ] {
            assert_eq!(bucket(Cost::from_nanos(nanos)), expected, "{nanos}");
        }
        assert_eq!(bucket_end(0), 4.096e-6);
        assert_eq!(bucket_end(21), 8.589_934_592);
        assert_eq!(bucket_end(22), f64::INFINITY);
    }
}
