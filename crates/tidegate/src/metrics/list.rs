//! The list of metrics, which every way of exporting them goes through.
//!
//! A metric is a name, a unit, a sentence, the names of its labels, and how to read it: those of a
//! task, here, from a [`Snapshot`], those of what it asks of others, in `calls`, from another kind.
//! Prometheus and OpenTelemetry have their own spelling of names and units, and
//! nothing else of their own: what is added here is in both, and what is in both is here.
//!
//! Names stand without what follows from kind and unit (`_total`, `_seconds`), units are base
//! units. Labels have few values: see [`metrics`](super).

use super::Snapshot;
use tidegate_core::Criticality;
use tidegate_core::decision::Reason;
use tidegate_core::quota::Usage;

/// What customers without limits of their own are called.
const OTHER: &str = "other";

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    /// Something that is on or off.
    None,
    /// Events, one of which is called so. The name says it, too.
    Events(&'static str),
    Requests,
    #[cfg_attr(not(feature = "tokio"), expect(dead_code, reason = "only clients have budgets"))]
    Retries,
    Ratio,
    Seconds,
    Cpus,
}

/// Takes the values of the labels, in their order, and the number.
pub(super) type Rows<'a, T> = &'a mut dyn FnMut(&[&str], T);

/// How to read it, and what kind it is.
pub(super) enum Read<S> {
    /// Only grows.
    Counter(fn(&S, Rows<'_, u64>)),
    /// Only grows, and is no whole number.
    Sum(fn(&S, Rows<'_, f64>)),
    /// Rises and falls.
    Gauge(fn(&S, Rows<'_, f64>)),
    /// Rises and falls, and is a whole number.
    Level(fn(&S, Rows<'_, u64>)),
    Histogram(fn(&S) -> Spread),
}

/// The end of each bucket, in seconds, with how many were in it; and their sum, in seconds.
pub(super) struct Spread {
    pub(super) buckets: Vec<(f64, u64)>,
    pub(super) sum: f64,
}

/// One metric, read from an `S`.
pub(super) struct Metric<S = Snapshot> {
    pub(super) name: &'static str,
    pub(super) unit: Unit,
    pub(super) help: &'static str,
    pub(super) labels: &'static [&'static str],
    pub(super) read: Read<S>,
}

impl<S> Metric<S> {
    pub(super) const fn new(
        name: &'static str,
        unit: Unit,
        help: &'static str,
        read: Read<S>,
    ) -> Self {
        Self { name, unit, help, labels: &[], read }
    }

    pub(super) const fn by(mut self, labels: &'static [&'static str]) -> Self {
        self.labels = labels;
        self
    }

    /// As Prometheus knows it, once or, of a histogram, three times.
    fn names(&self) -> Vec<Name> {
        let name = format!("{}{}", self.name, ending(self.unit));
        let labels = self.labels.to_vec();
        match self.read {
            Read::Counter(_) | Read::Sum(_) => vec![Name { name: format!("{name}_total"), labels }],
            Read::Gauge(_) | Read::Level(_) => vec![Name { name, labels }],
            Read::Histogram(_) => {
                let of = |ending: &str| format!("{name}_{ending}");
                vec![
                    Name { name: of("bucket"), labels: vec!["le"] },
                    Name { name: of("sum"), labels: Vec::new() },
                    Name { name: of("count"), labels: Vec::new() },
                ]
            }
        }
    }
}

/// Every metric of a task.
#[rustfmt::skip]
pub(super) static METRICS: [Metric; 24] = [
    Metric::new("tidegate_requests", Unit::Events("request"), "Requests by what was decided",
        Read::Counter(requests)).by(&["criticality", "decision", "reason"]),
    Metric::new("tidegate_attempts", Unit::Events("request"), "Requests by which try they are",
        Read::Counter(attempts)).by(&["attempt"]),
    Metric::new("tidegate_header_faults", Unit::Events("header"),
        "Headers that made no sense, and counted as absent",
        Read::Counter(faults)).by(&["fault"]),
    Metric::new("tidegate_inflight", Unit::Requests, "Requests that are admitted and not done",
        Read::Level(|s, rows| rows(&[], s.requests.inflight()))),
    Metric::new("tidegate_failed_requests", Unit::Events("request"), "Answers that failed",
        Read::Counter(|s, rows| rows(&[], s.failed))),
    Metric::new("tidegate_overloaded_below_requests", Unit::Events("request"),
        "Answers that became don't retry, as a dependency said so",
        Read::Counter(|s, rows| rows(&[], s.overloaded_below))),
    Metric::new("tidegate_cancelled_requests", Unit::Events("request"),
        "Handlers that were dropped at their deadline",
        Read::Counter(|s, rows| rows(&[], s.cancelled))),
    Metric::new("tidegate_request_cost", Unit::Seconds,
        "CPU time of requests, in seconds of the reference machine",
        Read::Histogram(|s| spread(&s.costs.buckets, s.costs.sum.as_secs_f64()))),
    Metric::new("tidegate_latency", Unit::Seconds,
        "What admitted requests took, from the decision to the end of the answer",
        Read::Histogram(|s| spread(&s.latencies.by_doubling(), s.latencies.sum.as_secs_f64()))),
    Metric::new("tidegate_good_requests", Unit::Events("request"),
        "Answers that did not fail, within their deadlines",
        Read::Counter(good)).by(&["criticality"]),
    Metric::new("tidegate_late_cost", Unit::Seconds,
        "CPU time of children after their request was done",
        Read::Sum(|s, rows| rows(&[], s.late.as_secs_f64()))),
    Metric::new("tidegate_utilization", Unit::Ratio, "Where each signal stands, over its target",
        Read::Gauge(utilization)).by(&["signal"]),
    Metric::new("tidegate_admitted", Unit::Ratio, "The share of each criticality that is let in",
        Read::Gauge(admitted)).by(&["criticality"]),
    Metric::new("tidegate_degraded", Unit::None, "Whether degraded answers are asked for",
        Read::Level(degraded)).by(&["criticality"]),
    Metric::new("tidegate_capacity", Unit::Cpus,
        "What the task is thought capable of, in CPUs of the reference machine",
        Read::Gauge(|s, rows| if let Some(plan) = &s.plan { rows(&[], plan.capacity); })),
    Metric::new("tidegate_offered", Unit::Cpus,
        "What the task is offered, in CPUs of the reference machine",
        Read::Gauge(|s, rows| if let Some(plan) = &s.plan { rows(&[], plan.offered); })),
    Metric::new("tidegate_usable", Unit::Cpus, "What the task may use",
        Read::Gauge(|s, rows| if s.plan.is_some() { rows(&[], s.cpus); })),
    Metric::new("tidegate_unattributed_cpu", Unit::Ratio,
        "The share of the process's CPU time that no request explains",
        Read::Gauge(|s, rows| if let Some(share) = s.unattributed { rows(&[], share); })),
    Metric::new("tidegate_wake_delay", Unit::Seconds, "From wake to poll",
        Read::Gauge(|s, rows| if let Some(d) = s.wake_delay { rows(&[], d.as_secs_f64()); })),
    Metric::new("tidegate_customer_used", Unit::Cpus, "What customers used in the last second",
        Read::Gauge(|s, rows| customers(s, |usage| usage.used, rows)))
        .by(&["customer", "criticality"]),
    Metric::new("tidegate_customer_wanted", Unit::Cpus,
        "What customers used or were refused for quota",
        Read::Gauge(|s, rows| customers(s, |usage| usage.wanted, rows)))
        .by(&["customer", "criticality"]),
    Metric::new("tidegate_sampler_ticks", Unit::Events("tick"), "Looks at the signals",
        Read::Counter(|s, rows| rows(&[], s.ticks))),
    Metric::new("tidegate_sampler_late_ticks", Unit::Events("tick"), "Looks late by a whole tick",
        Read::Counter(|s, rows| rows(&[], s.ticks_late))),
    Metric::new("tidegate_sampler_panics", Unit::Events("panic"), "Looks that panicked",
        Read::Counter(|s, rows| rows(&[], s.ticks_panicked))),
];

/// How often looking at each part of a page has panicked.
#[cfg(feature = "admin")]
pub(super) type Panics = Vec<(String, u64)>;

/// The metrics of the page itself.
#[cfg(feature = "admin")]
#[rustfmt::skip]
pub(super) static PAGE_METRICS: [Metric<Panics>; 1] = [
    Metric::new("tidegate_page_panics", Unit::Events("panic"),
        "Looks at a part of the page that panicked",
        Read::Counter(|panics: &Panics, rows| for (part, count) in panics {
            rows(&[part], *count);
        })).by(&["part"]),
];

/// A metric as Prometheus knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Name {
    /// Its name, with unit and kind: `tidegate_requests_total`.
    pub name: String,
    /// The names of its labels.
    pub labels: Vec<&'static str>,
}

/// The name of every metric as Prometheus knows it, of histograms that of the buckets, the sum and
/// the count: for whoever writes queries and wants to know that they ask for what there is.
pub fn names() -> Vec<Name> {
    let names = METRICS.iter().flat_map(Metric::names);
    #[cfg(feature = "tokio")]
    let names = names.chain(super::calls::metrics().flat_map(Metric::names));
    #[cfg(feature = "admin")]
    let names = names.chain(PAGE_METRICS.iter().flat_map(Metric::names));
    names.collect()
}

/// What a unit adds to a name.
const fn ending(unit: Unit) -> &'static str {
    match unit {
        Unit::None | Unit::Events(_) => "",
        Unit::Requests => "_requests",
        Unit::Retries => "_retries",
        Unit::Ratio => "_ratio",
        Unit::Seconds => "_seconds",
        Unit::Cpus => "_cpus",
    }
}

fn spread(buckets: &[(f64, u64)], sum: f64) -> Spread {
    Spread { buckets: buckets.to_vec(), sum }
}

fn requests(snapshot: &Snapshot, rows: Rows<'_, u64>) {
    let counts = &snapshot.requests;
    for criticality in Criticality::ALL {
        let name = criticality.name();
        let dark = Reason::ALL.map(|reason| counts.dark(reason, criticality));
        let admitted = counts.admitted(criticality);
        let plainly = dark.iter().fold(admitted, |left, dark| left.wrapping_sub(*dark));
        rows(&[name, "admit", ""], plainly);
        for (reason, dark) in Reason::ALL.into_iter().zip(dark) {
            let rejected = counts.rejected(reason, criticality);
            for (decision, count) in [("reject", rejected), ("dark", dark)] {
                // Most reasons are never given.
                if count > 0 {
                    rows(&[name, decision, reason.code()], count);
                }
            }
        }
    }
}

fn good(snapshot: &Snapshot, rows: Rows<'_, u64>) {
    for (criticality, count) in Criticality::ALL.into_iter().zip(snapshot.good) {
        rows(&[criticality.name()], count);
    }
}

fn attempts(snapshot: &Snapshot, rows: Rows<'_, u64>) {
    for (attempt, count) in ["1", "2", "3+"].into_iter().zip(snapshot.requests.attempts()) {
        rows(&[attempt], count);
    }
}

fn faults(snapshot: &Snapshot, rows: Rows<'_, u64>) {
    for (fault, count) in &snapshot.faults {
        rows(&[fault.code()], *count);
    }
}

fn utilization(snapshot: &Snapshot, rows: Rows<'_, f64>) {
    for signal in &snapshot.signals {
        if let Some((value, _)) = signal.last {
            rows(&[&signal.name], value / signal.target);
        }
    }
}

fn admitted(snapshot: &Snapshot, rows: Rows<'_, f64>) {
    let Some(plan) = &snapshot.plan else { return };
    for criticality in Criticality::ALL {
        rows(&[criticality.name()], plan.levels.share(criticality));
    }
}

fn degraded(snapshot: &Snapshot, rows: Rows<'_, u64>) {
    let Some(plan) = &snapshot.plan else { return };
    for (criticality, degrade) in Criticality::ALL.into_iter().zip(plan.degrade) {
        rows(&[criticality.name()], degrade.into());
    }
}

fn customers(
    snapshot: &Snapshot,
    rates: fn(&Usage) -> [tidegate_core::CostRate; Criticality::COUNT],
    rows: Rows<'_, f64>,
) {
    for (customer, usage) in &snapshot.customers {
        let name = customer.as_deref().unwrap_or(OTHER);
        for (criticality, rate) in Criticality::ALL.into_iter().zip(rates(usage)) {
            rows(&[name, criticality.name()], rate.as_cpus());
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_in_the_table_of_the_documentation() {
        let all = names();
        let distinct: std::collections::BTreeSet<_> = all.iter().map(|name| &name.name).collect();
        assert_eq!(distinct.len(), all.len());
        let page = include_str!("mod.rs");
        let rows: Vec<&str> = page.lines().filter(|line| line.starts_with("//! | `")).collect();
        for Name { name, labels } in all {
            // A histogram stands there once.
            let ends = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end));
            let name = format!("`{}`", ends.unwrap_or(&name));
            let row = rows.iter().find(|row| row.contains(&name));
            let row = row.unwrap_or_else(|| panic!("no {name}"));
            for label in labels.iter().filter(|label| **label != "le") {
                assert!(row.contains(&format!("`{label}`")), "no {label} of {name}");
            }
        }
    }
}
