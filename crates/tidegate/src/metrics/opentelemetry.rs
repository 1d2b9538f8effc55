//! The metrics of a task, and of what it asks of others, as instruments of an OpenTelemetry meter.
//!
//! The meter comes from the service, which has an SDK, an exporter and views of its own; this is
//! the API only. All instruments are observed: they are asked when the SDK collects, so that a
//! request pays nothing for them.
//!
//! **One snapshot for a collection.** An SDK asks the instruments one by one and says neither when
//! it begins nor when it ends. To take a snapshot for each of them would cost twenty times as much,
//! and their numbers would not belong together. So they share one, which is taken anew when one
//! that has read it asks again: then another collection has begun. Two readers that collect at the
//! same time may share a snapshot; both then see numbers that are newer than their last.

#[cfg(feature = "tokio")]
use super::calls::{self, Calls};
use super::list::{METRICS, Metric, Read, Rows, Unit};
use crate::task::Task;
use opentelemetry::KeyValue;
use opentelemetry::metrics::{AsyncInstrument, Meter};
use std::sync::{Arc, Mutex, PoisonError};

/// From here on bits are those of buckets: a histogram is two instruments.
const BUCKETS: usize = 32;
const _: () = assert!(METRICS.len() <= BUCKETS, "each has a bit of a word, and maybe another");

/// Gives `meter` the metrics of `task`. Call it once for a meter; they stay as long as the meter
/// does, and fall silent when the task is gone.
///
/// ```
/// use tidegate::{Task, metrics};
///
/// let task = Task::builder("shop").build()?;
/// metrics::observe(&task, &opentelemetry::global::meter("tidegate"));
/// # Ok::<(), tidegate::task::BuildError>(())
/// ```
pub fn observe(task: &Task, meter: &Meter) {
    // A meter that is kept for ever does not keep the task at work.
    let task = Arc::downgrade(&task.inner);
    let take = move || task.upgrade().map(|inner| Task { inner }.snapshot());
    observe_all(METRICS.iter(), meter, take);
}

/// Gives `meter` the metrics of what this process asks of others. Call it once for a meter; these
/// clients and balancers stay as long as the meter does.
///
/// ```
/// use tidegate::client::Layer;
/// use tidegate::metrics::{self, Calls};
///
/// let calls = Calls::default().client(&Layer::new("inventory"))?;
/// metrics::observe_calls(calls, &opentelemetry::global::meter("tidegate"));
/// # Ok::<(), tidegate::metrics::InvalidCalls>(())
/// ```
#[cfg(feature = "tokio")]
pub fn observe_calls(calls: Calls, meter: &Meter) {
    const { assert!(calls::COUNT <= BUCKETS, "each has a bit of a word") };
    observe_all(calls::metrics(), meter, move || Some(calls.snapshot()));
}

fn observe_all<S: Send + Sync + 'static>(
    metrics: impl Iterator<Item = &'static Metric<S>>,
    meter: &Meter,
    take: impl Fn() -> Option<S> + Send + Sync + 'static,
) {
    let latest = Arc::new(Latest { take: Box::new(take), shared: Mutex::new((None, 0)) });
    for (bit, metric) in metrics.enumerate() {
        register(meter, metric, &latest, bit);
    }
}

/// `tidegate.header_faults` for `tidegate_header_faults`.
fn name<S>(metric: &Metric<S>) -> String {
    metric.name.replacen('_', ".", 1)
}

/// As UCUM has it; what is counted stands in braces.
fn unit(unit: Unit) -> String {
    match unit {
        Unit::None => String::new(),
        Unit::Events(of) => format!("{{{of}}}"),
        Unit::Requests => "{request}".to_owned(),
        Unit::Retries => "{retry}".to_owned(),
        Unit::Ratio => "1".to_owned(),
        Unit::Seconds => "s".to_owned(),
        Unit::Cpus => "{cpu}".to_owned(),
    }
}

/// Makes an instrument of `$kind`. The kinds share no trait.
macro_rules! instrument {
    ($meter:expr, $kind:ident, $name:expr, $unit:expr, $metric:expr, $callback:expr) => {{
        let builder = $meter.$kind($name).with_unit($unit).with_description($metric.help);
        // Its callback is what matters; a handle to it does nothing.
        let _ = builder.with_callback($callback).build();
    }};
}

fn register<S: Send + Sync + 'static>(
    meter: &Meter,
    metric: &'static Metric<S>,
    latest: &Arc<Latest<S>>,
    bit: usize,
) {
    let (name, unit) = (name(metric), unit(metric.unit));
    match metric.read {
        Read::Counter(read) => {
            let callback = rows(latest, bit, metric, read);
            instrument!(meter, u64_observable_counter, name, unit, metric, callback);
        }
        Read::Sum(read) => {
            let callback = rows(latest, bit, metric, read);
            instrument!(meter, f64_observable_counter, name, unit, metric, callback);
        }
        Read::Gauge(read) => {
            let callback = rows(latest, bit, metric, read);
            instrument!(meter, f64_observable_gauge, name, unit, metric, callback);
        }
        Read::Level(read) => {
            let callback = rows(latest, bit, metric, read);
            instrument!(meter, u64_observable_gauge, name, unit, metric, callback);
        }
        Read::Histogram(read) => {
            let asked = Arc::clone(latest);
            let buckets = move |instrument: &dyn AsyncInstrument<u64>| {
                let Some(snapshot) = asked.snapshot(BUCKETS + bit) else { return };
                let mut sum = 0_u64;
                for (end, count) in read(&snapshot).buckets {
                    sum = sum.wrapping_add(count);
                    let end = if end.is_finite() { end.to_string() } else { "+Inf".to_owned() };
                    instrument.observe(sum, &[KeyValue::new("le", end)]);
                }
            };
            let of_buckets = format!("{name}.bucket");
            instrument!(meter, u64_observable_counter, of_buckets, "{request}", metric, buckets);
            let asked = Arc::clone(latest);
            let sum = move |instrument: &dyn AsyncInstrument<f64>| {
                let Some(snapshot) = asked.snapshot(bit) else { return };
                instrument.observe(read(&snapshot).sum, &[]);
            };
            instrument!(meter, f64_observable_counter, name, unit, metric, sum);
        }
    }
}

/// Observes each row that `read` finds.
fn rows<S: Send + Sync + 'static, T: 'static>(
    latest: &Arc<Latest<S>>,
    bit: usize,
    metric: &'static Metric<S>,
    read: fn(&S, Rows<'_, T>),
) -> impl Fn(&dyn AsyncInstrument<T>) + Send + Sync + 'static {
    let latest = Arc::clone(latest);
    move |instrument| {
        let Some(snapshot) = latest.snapshot(bit) else { return };
        read(&snapshot, &mut |values, number| {
            let labels = metric.labels.iter().zip(values);
            let labels: Vec<KeyValue> =
                labels.map(|(label, value)| KeyValue::new(*label, (*value).to_owned())).collect();
            instrument.observe(number, &labels);
        });
    }
}

/// The snapshot that instruments share, and a bit for each that has read it.
struct Latest<S> {
    /// Takes another; nothing once there is nothing to take it of.
    take: Box<dyn Fn() -> Option<S> + Send + Sync>,
    shared: Mutex<(Option<Arc<S>>, u64)>,
}

impl<S> Latest<S> {
    /// The snapshot of this collection, for the instrument with this bit.
    fn snapshot(&self, bit: usize) -> Option<Arc<S>> {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let (snapshot, read) = &mut *shared;
        let mine = 1 << bit;
        if snapshot.is_none() || *read & mine != 0 {
            *snapshot = (self.take)().map(Arc::new);
            *read = 0;
        }
        *read |= mine;
        snapshot.clone()
    }
}
