//! The task's metrics for a registry of prometheus-client.
//!
//! | name | labels | is |
//! |---|---|---|
//! | `tidegate_requests_total` | `criticality`, `decision`, `reason` | `admit`, `reject`, or `dark` for those that dark mode let in |
//! | `tidegate_attempts_total` | `attempt` | requests by which try they are: `1`, `2`, `3+` |
//! | `tidegate_inflight_requests` | | admitted and not done |
//! | `tidegate_request_cost_seconds` | | histogram of CPU time, of the reference machine |
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

use super::Snapshot;
use crate::task::{Inner, Task};
use core::fmt;
use prometheus_client::collector::Collector as Collects;
use prometheus_client::encoding::{DescriptorEncoder, EncodeGaugeValue, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;
use std::sync::{Arc, Weak};
use tidegate_core::Criticality;
use tidegate_core::decision::Reason;

/// What customers without limits of their own are called.
const OTHER: &str = "other";

/// Gives a registry the metrics of a task, by asking for a snapshot at each scrape.
///
/// ```
/// use prometheus_client::registry::Registry;
/// use tidegate::Task;
/// use tidegate::metrics::Collector;
///
/// let task = Task::builder("shop").build()?;
/// let mut registry = Registry::default();
/// registry.register_collector(Box::new(Collector::new(&task)));
/// let mut text = String::new();
/// prometheus_client::encoding::text::encode(&mut text, &registry)?;
/// assert!(text.contains("tidegate_inflight_requests 0"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Collector {
    /// A registry that is kept for ever does not keep the task at work.
    task: Weak<Inner>,
}

impl Collector {
    /// For `task`.
    pub fn new(task: &Task) -> Self {
        Self { task: Arc::downgrade(&task.inner) }
    }
}

impl Collects for Collector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.task.upgrade() else { return Ok(()) };
        let snapshot = Task { inner }.snapshot();
        let mut page = Page { encoder };
        requests(&mut page, &snapshot)?;
        costs(&mut page, &snapshot)?;
        load(&mut page, &snapshot)?;
        customers(&mut page, &snapshot)
    }
}

/// What is written.
struct Page<'a> {
    encoder: DescriptorEncoder<'a>,
}

impl Page<'_> {
    fn begin<'s>(
        &'s mut self,
        name: &'s str,
        help: &str,
        unit: Option<&'s Unit>,
        kind: MetricType,
    ) -> Result<MetricEncoder<'s>, fmt::Error> {
        self.encoder.encode_descriptor(name, help, unit, kind)
    }

    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let mut metric = self.begin(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, u64, f64>(&count, None)
    }

    fn gauge(
        &mut self,
        name: &str,
        help: &str,
        unit: &str,
        value: Option<impl EncodeGaugeValue>,
    ) -> fmt::Result {
        let unit = Unit::Other(unit.to_owned());
        let Some(value) = value else { return Ok(()) };
        self.begin(name, help, Some(&unit), MetricType::Gauge)?.encode_gauge(&value)
    }
}

fn requests(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let counts = &snapshot.requests;
    let help = "Requests by what was decided about them";
    let mut metric = page.begin("tidegate_requests", help, None, MetricType::Counter)?;
    for criticality in Criticality::ALL {
        let mut write = |decision: &str, reason: &str, count: u64| {
            let labels =
                [("criticality", criticality.name()), ("decision", decision), ("reason", reason)];
            let mut one = metric.encode_family(&labels)?;
            one.encode_counter::<NoLabelSet, u64, f64>(&count, None)
        };
        let dark = Reason::ALL.map(|reason| counts.dark(reason, criticality));
        let admitted = counts.admitted(criticality);
        write("admit", "", dark.iter().fold(admitted, |left, dark| left.wrapping_sub(*dark)))?;
        for (reason, dark) in Reason::ALL.into_iter().zip(dark) {
            let rejected = counts.rejected(reason, criticality);
            for (decision, count) in [("reject", rejected), ("dark", dark)] {
                if count > 0 {
                    write(decision, reason.code(), count)?;
                }
            }
        }
    }
    let help = "Requests by which try they are";
    let mut metric = page.begin("tidegate_attempts", help, None, MetricType::Counter)?;
    for (attempt, count) in ["1", "2", "3+"].into_iter().zip(counts.attempts()) {
        let labels = [("attempt", attempt)];
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(&count, None)?;
    }
    let help = "Headers that made no sense, and counted as absent";
    let mut metric = page.begin("tidegate_header_faults", help, None, MetricType::Counter)?;
    for (fault, count) in &snapshot.faults {
        let labels = [("fault", fault.code())];
        metric.encode_family(&labels)?.encode_counter::<NoLabelSet, u64, f64>(count, None)?;
    }
    let help = "Requests that are admitted and not done";
    page.gauge("tidegate_inflight", help, "requests", Some(counts.inflight()))?;
    page.counter("tidegate_failed_requests", "Answers that failed", snapshot.failed)?;
    let help = "Answers that became don't retry, as a dependency said so";
    page.counter("tidegate_overloaded_below_requests", help, snapshot.overloaded_below)?;
    let help = "Handlers that were dropped at their deadline";
    page.counter("tidegate_cancelled_requests", help, snapshot.cancelled)
}

fn costs(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let costs = &snapshot.costs;
    let help = "CPU time of requests, in seconds of the reference machine";
    let (name, unit) = ("tidegate_request_cost", Unit::Seconds);
    let mut metric = page.begin(name, help, Some(&unit), MetricType::Histogram)?;
    let count = costs.buckets.iter().map(|(_, count)| count).sum();
    let sum = costs.sum.as_secs_f64();
    metric.encode_histogram::<NoLabelSet>(sum, count, &costs.buckets, None)?;
    let help = "CPU time of children after their request was done";
    let mut metric = page.begin("tidegate_late_cost", help, Some(&unit), MetricType::Counter)?;
    metric.encode_counter::<NoLabelSet, f64, f64>(&snapshot.late.as_secs_f64(), None)
}

fn load(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let ratio = Unit::Other("ratio".to_owned());
    let help = "Where each signal stands, over its target";
    let mut metric = page.begin("tidegate_utilization", help, Some(&ratio), MetricType::Gauge)?;
    for signal in &snapshot.signals {
        if let Some((value, _)) = signal.last {
            let labels = [("signal", signal.name.as_str())];
            metric.encode_family(&labels)?.encode_gauge(&(value / signal.target))?;
        }
    }
    if let Some(plan) = &snapshot.plan {
        let help = "The share of each criticality that is let in";
        let mut metric = page.begin("tidegate_admitted", help, Some(&ratio), MetricType::Gauge)?;
        for criticality in Criticality::ALL {
            let labels = [("criticality", criticality.name())];
            metric.encode_family(&labels)?.encode_gauge(&plan.levels.share(criticality))?;
        }
        let help = "Whether degraded answers are asked for";
        let mut metric = page.begin("tidegate_degraded", help, None, MetricType::Gauge)?;
        for (criticality, degrade) in Criticality::ALL.into_iter().zip(plan.degrade) {
            let labels = [("criticality", criticality.name())];
            metric.encode_family(&labels)?.encode_gauge(&u64::from(degrade))?;
        }
        let help = "What the task is thought capable of, in CPUs of the reference machine";
        page.gauge("tidegate_capacity", help, "cpus", Some(plan.capacity))?;
        let help = "What the task is offered, in CPUs of the reference machine";
        page.gauge("tidegate_offered", help, "cpus", Some(plan.offered))?;
        page.gauge("tidegate_usable", "What the task may use", "cpus", Some(snapshot.cpus))?;
    }
    let help = "The share of the process's CPU time that no request explains";
    page.gauge("tidegate_unattributed_cpu", help, "ratio", snapshot.unattributed)?;
    let delay = snapshot.wake_delay.map(|delay| delay.as_secs_f64());
    page.gauge("tidegate_wake_delay", "From wake to poll", "seconds", delay)?;
    page.counter("tidegate_sampler_ticks", "Looks at the signals", snapshot.ticks)?;
    let help = "Looks that were late by a whole tick";
    page.counter("tidegate_sampler_late_ticks", help, snapshot.ticks_late)?;
    page.counter("tidegate_sampler_panics", "Looks that panicked", snapshot.ticks_panicked)
}

fn customers(page: &mut Page<'_>, snapshot: &Snapshot) -> fmt::Result {
    let cpus = Unit::Other("cpus".to_owned());
    let used = ("tidegate_customer_used", "What customers used in the last second");
    let wanted = ("tidegate_customer_wanted", "What customers used or were refused for quota");
    for ((name, help), is_used) in [(used, true), (wanted, false)] {
        let mut metric = page.begin(name, help, Some(&cpus), MetricType::Gauge)?;
        for (customer, usage) in &snapshot.customers {
            let rates = if is_used { usage.used } else { usage.wanted };
            for (criticality, rate) in Criticality::ALL.into_iter().zip(rates) {
                let name = customer.as_deref().unwrap_or(OTHER);
                let labels = [("customer", name), ("criticality", criticality.name())];
                metric.encode_family(&labels)?.encode_gauge(&rate.as_cpus())?;
            }
        }
    }
    Ok(())
}
