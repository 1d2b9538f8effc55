//! What was written down of a run, as curves for charts and as figures by window.

use super::Scenario;
use super::check::REASONS;
use super::measure::{MEASURES, Measure, Of, Sample, Unit, bins};
use super::variant::Variant;
use crate::world::record::{BIN, Record};
use core::ops::Range;
use core::time::Duration;
use serde::Serialize;
use tidegate_core::{Criticality, Timestamp};

/// The curves of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Series {
    /// Seconds between two counts. Latencies and utilizations are by the second.
    pub step_seconds: f64,
    /// By group.
    pub clients: Vec<ClientSeries>,
    /// By service.
    pub services: Vec<ServiceSeries>,
}

/// The curves of a group of clients.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClientSeries {
    /// Its name.
    pub name: String,
    /// Requests.
    pub offered: Vec<u32>,
    /// Answers in time.
    pub goodput: Vec<u32>,
    /// Attempts sent.
    pub attempts: Vec<u32>,
    /// Requests that the client held back.
    pub throttled: Vec<u32>,
    /// Median latency of answers, in seconds, by the second.
    pub p50: Vec<Option<f64>>,
    /// The latency that 99 % of answers did not exceed.
    pub p99: Vec<Option<f64>>,
}

/// The curves of a service.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ServiceSeries {
    /// Its name.
    pub name: String,
    /// Requests a second that it can do.
    pub capacity: f64,
    /// Attempts that arrived.
    pub arrived: Vec<u32>,
    /// Attempts refused, highest criticality first.
    pub refused_by_criticality: Vec<Counts>,
    /// Attempts refused, by reason.
    pub refused_by_reason: Vec<Counts>,
    /// Busy share of each task, by the second.
    pub utilization: Vec<Vec<f64>>,
}

/// Counts of one kind.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// Which.
    pub name: &'static str,
    /// How many, step by step.
    pub counts: Vec<u32>,
}

/// A measure of somebody during a window.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Figure {
    /// The window.
    pub window: String,
    /// The client or service.
    pub of: String,
    /// The measure.
    pub measure: &'static str,
    /// What it is; none if there was nothing to measure.
    pub value: Option<f64>,
    /// Its unit, as in [`super::Judged::unit`].
    pub unit: &'static str,
}

impl Scenario {
    /// The curves of a variant.
    pub fn series(&self, variant: &Variant, record: &Record) -> Series {
        let range = bins(&(Duration::ZERO..self.lasts));
        let seconds = self.lasts.as_secs();
        Series {
            step_seconds: BIN.as_secs_f64(),
            clients: clients(variant, record, &range, seconds),
            services: services(variant, record, &range, seconds as usize),
        }
    }

    /// Every measure of every client and service of a variant, during every window; during all of
    /// the time if there is none.
    pub fn figures(&self, variant: &Variant, record: &Record) -> Vec<Figure> {
        let all = [("all the time".to_owned(), Duration::ZERO..self.lasts)];
        let windows = if self.windows.is_empty() { &all[..] } else { &self.windows };
        let mut figures = Vec::new();
        for (window, span) in windows {
            let clients = variant.clients().iter().enumerate();
            let clients = clients.map(|(i, name)| (name, vec![i], Vec::new(), Of::Clients));
            let services = variant.services().iter().enumerate();
            let services = services.map(|(i, name)| (name, Vec::new(), vec![i], Of::Services));
            for (name, clients, services, of) in clients.chain(services) {
                let sample = Sample::whole(variant, record, &clients, &services, span.clone());
                for measure in MEASURES.iter().filter(|measure| fits(measure, of, span)) {
                    // Of a rate, what is worth knowing is how much of what can be done it is.
                    let (scale, unit) = match measure.unit {
                        Unit::PerSecond => (sample.capacity(), Unit::Share),
                        unit => (1.0, unit),
                    };
                    figures.push(Figure {
                        window: window.clone(),
                        of: name.clone(),
                        measure: measure.name,
                        value: (measure.value)(&sample).map(|value| value / scale),
                        unit: unit.name(),
                    });
                }
            }
        }
        figures
    }
}

/// Whether a measure makes sense for `of` during `span`, without anything else being said.
fn fits(measure: &Measure, of: Of, span: &Range<Duration>) -> bool {
    let whole = span.start.subsec_nanos() == 0 && span.end.subsec_nanos() == 0;
    let of = measure.of == of || (measure.of == Of::Either && of == Of::Clients);
    of && !measure.keys.contains(&"after") && (whole || !measure.by_second)
}

fn clients(
    variant: &Variant,
    record: &Record,
    range: &Range<usize>,
    seconds: u64,
) -> Vec<ClientSeries> {
    let one = |(group, name): (usize, &String)| {
        let bins = &record.clients[group][range.clone()];
        let quantile = |share: f64| {
            let second = |s| {
                let all =
                    record.latencies(group, Timestamp::from_secs(s), Timestamp::from_secs(s + 1));
                all.quantile(share).map(|latency| latency.as_secs_f64())
            };
            (0..seconds).map(second).collect()
        };
        ClientSeries {
            name: name.clone(),
            offered: bins.iter().map(|bin| bin.offered.iter().sum()).collect(),
            goodput: bins.iter().map(|bin| bin.answers).collect(),
            attempts: bins.iter().map(|bin| bin.attempts).collect(),
            throttled: bins.iter().map(|bin| bin.throttled).collect(),
            p50: quantile(0.5),
            p99: quantile(0.99),
        }
    };
    variant.clients().iter().enumerate().map(one).collect()
}

fn services(
    variant: &Variant,
    record: &Record,
    range: &Range<usize>,
    seconds: usize,
) -> Vec<ServiceSeries> {
    let one = |(service, name): (usize, &String)| {
        let bins = &record.services[service][range.clone()];
        let level = |criticality: Criticality| Counts {
            name: criticality.name(),
            counts: bins.iter().map(|bin| bin.rejected[criticality.index()]).collect(),
        };
        let reason =
            |(i, name)| Counts { name, counts: bins.iter().map(|bin| bin.reasons[i]).collect() };
        let tasks = record.busy[service].iter().zip(&variant.world().services[service].tasks);
        // Ten-thousandths are finer than any chart, and keep files small.
        let share = |busy: f32, cores: f64| (f64::from(busy) / cores * 1e4).round() / 1e4;
        ServiceSeries {
            name: name.clone(),
            capacity: variant.capacity(service),
            arrived: bins.iter().map(|bin| bin.arrived).collect(),
            refused_by_criticality: Criticality::ALL.into_iter().rev().map(level).collect(),
            refused_by_reason: REASONS.into_iter().enumerate().map(reason).collect(),
            utilization: tasks
                .map(|(busy, task)| {
                    busy.iter().take(seconds).map(|&busy| share(busy, task.cores)).collect()
                })
                .collect(),
        }
    };
    variant.services().iter().enumerate().map(one).collect()
}
