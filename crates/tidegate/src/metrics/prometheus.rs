//! The task's metrics for a registry of prometheus-client.

use super::Snapshot;
use super::list::{METRICS, Metric, Read, Spread, Unit};
use crate::task::{Inner, Task};
use core::fmt;
use prometheus_client::collector::Collector as Collects;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry;
use std::sync::{Arc, Weak};

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
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Some(inner) = self.task.upgrade() else { return Ok(()) };
        let snapshot = Task { inner }.snapshot();
        METRICS.iter().try_for_each(|metric| write(metric, &snapshot, &mut encoder))
    }
}

fn unit(unit: Unit) -> Option<registry::Unit> {
    let other = |name: &str| Some(registry::Unit::Other(name.to_owned()));
    match unit {
        Unit::None | Unit::Events(_) => None,
        Unit::Requests => other("requests"),
        Unit::Ratio => other("ratio"),
        Unit::Seconds => Some(registry::Unit::Seconds),
        Unit::Cpus => other("cpus"),
    }
}

fn write(metric: &Metric, snapshot: &Snapshot, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    let mut rows = Rows { metric, unit: unit(metric.unit), encoder };
    match metric.read {
        Read::Counter(read) => rows.write(MetricType::Counter, snapshot, read, |m, count| {
            m.encode_counter::<NoLabelSet, u64, f64>(&count, None)
        }),
        Read::Sum(read) => rows.write(MetricType::Counter, snapshot, read, |m, sum| {
            m.encode_counter::<NoLabelSet, f64, f64>(&sum, None)
        }),
        Read::Gauge(read) => {
            rows.write(MetricType::Gauge, snapshot, read, |m, value| m.encode_gauge(&value))
        }
        Read::Level(read) => {
            rows.write(MetricType::Gauge, snapshot, read, |m, value| m.encode_gauge(&value))
        }
        Read::Histogram(read) => {
            let Spread { buckets, sum } = read(snapshot);
            let count = buckets.iter().map(|(_, count)| count).sum();
            let mut histogram = rows.begin(MetricType::Histogram)?;
            histogram.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
        }
    }
}

/// The rows of one metric.
struct Rows<'a, 'e> {
    metric: &'a Metric,
    unit: Option<registry::Unit>,
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl Rows<'_, '_> {
    fn begin(&mut self, kind: MetricType) -> Result<MetricEncoder<'_>, fmt::Error> {
        let Metric { name, help, .. } = self.metric;
        self.encoder.encode_descriptor(name, help, self.unit.as_ref(), kind)
    }

    /// Writes what there is; nothing at all, not even a heading, if there is nothing.
    fn write<T>(
        &mut self,
        kind: MetricType,
        snapshot: &Snapshot,
        read: fn(&Snapshot, super::list::Rows<'_, T>),
        encode: impl Fn(&mut MetricEncoder<'_>, T) -> fmt::Result,
    ) -> fmt::Result {
        let mut found: Vec<(Vec<(&str, String)>, T)> = Vec::new();
        let labels = self.metric.labels;
        read(snapshot, &mut |values, number| {
            let values = values.iter().map(|&value| value.to_owned());
            found.push((labels.iter().copied().zip(values).collect(), number));
        });
        if found.is_empty() {
            return Ok(());
        }
        let mut metric = self.begin(kind)?;
        for (labels, number) in found {
            if labels.is_empty() {
                encode(&mut metric, number)?;
            } else {
                encode(&mut metric.encode_family(&labels)?, number)?;
            }
        }
        Ok(())
    }
}
