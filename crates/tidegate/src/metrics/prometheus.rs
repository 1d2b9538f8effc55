//! The metrics of a task, and of what it asks of others, for a registry of prometheus-client.

#[cfg(feature = "tokio")]
use super::calls::{self, Calls};
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
    #[cfg(feature = "tokio")]
    calls: Calls,
}

impl Collector {
    /// For `task`.
    pub fn new(task: &Task) -> Self {
        Self {
            task: Arc::downgrade(&task.inner),
            #[cfg(feature = "tokio")]
            calls: Calls::default(),
        }
    }

    /// For a process that only asks others.
    #[cfg(feature = "tokio")]
    pub const fn of_calls(calls: Calls) -> Self {
        Self { task: Weak::new(), calls }
    }

    /// Shows what the task asks of others as well. These clients and balancers stay as long as the
    /// registry does.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn calls(mut self, calls: Calls) -> Self {
        self.calls = calls;
        self
    }
}

impl Collects for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        if let Some(inner) = self.task.upgrade() {
            let snapshot = Task { inner }.snapshot();
            METRICS.iter().try_for_each(|metric| write(metric, &snapshot, &mut encoder))?;
        }
        #[cfg(feature = "tokio")]
        {
            let asked = self.calls.snapshot();
            calls::metrics().try_for_each(|metric| write(metric, &asked, &mut encoder))?;
        }
        Ok(())
    }
}

/// Gives a registry the metrics of the page itself.
#[cfg(feature = "admin")]
pub(crate) struct PageCollector {
    panics: Box<dyn Fn() -> super::list::Panics + Send + Sync>,
}

#[cfg(feature = "admin")]
impl PageCollector {
    pub(crate) fn new(panics: impl Fn() -> super::list::Panics + Send + Sync + 'static) -> Self {
        Self { panics: Box::new(panics) }
    }
}

#[cfg(feature = "admin")]
impl fmt::Debug for PageCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PageCollector")
    }
}

#[cfg(feature = "admin")]
impl Collects for PageCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let panics = (self.panics)();
        let mut metrics = super::list::PAGE_METRICS.iter();
        metrics.try_for_each(|metric| write(metric, &panics, &mut encoder))
    }
}

fn unit(unit: Unit) -> Option<registry::Unit> {
    let other = |name: &str| Some(registry::Unit::Other(name.to_owned()));
    match unit {
        Unit::None | Unit::Events(_) => None,
        Unit::Requests => other("requests"),
        Unit::Retries => other("retries"),
        Unit::Ratio => other("ratio"),
        Unit::Seconds => Some(registry::Unit::Seconds),
        Unit::Cpus => other("cpus"),
    }
}

fn write<S>(metric: &Metric<S>, snapshot: &S, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
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
struct Rows<'a, 'e, S> {
    metric: &'a Metric<S>,
    unit: Option<registry::Unit>,
    encoder: &'a mut DescriptorEncoder<'e>,
}

impl<S> Rows<'_, '_, S> {
    fn begin(&mut self, kind: MetricType) -> Result<MetricEncoder<'_>, fmt::Error> {
        let Metric { name, help, .. } = self.metric;
        self.encoder.encode_descriptor(name, help, self.unit.as_ref(), kind)
    }

    /// Writes what there is; nothing at all, not even a heading, if there is nothing.
    fn write<T>(
        &mut self,
        kind: MetricType,
        snapshot: &S,
        read: fn(&S, super::list::Rows<'_, T>),
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
