//! What can be measured in a run. A new measure is one entry in [`MEASURES`] and one function; it
//! gives nothing if there was nothing to measure.

// A measure that always gives something has the type of those that do not.
#![allow(clippy::unnecessary_wraps)]

use super::measure_parts;
use super::parts::Parts;
use super::variant::Variant;
use crate::world::record::{BIN, ClientBin, Latencies, Record, ServiceBin};
use core::ops::Range;
use core::time::Duration;
use tidegate_core::{Criticality, Timestamp};

/// The unit of a measure, and how its bounds are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unit {
    /// A share of a whole: `95%`.
    Share,
    /// Requests a second: `190/s`; or, in `%`, over the capacity of the service.
    PerSecond,
    /// Seconds: `20ms`.
    Time,
    /// How many: `0`.
    Count,
    /// How many times: `1.1`.
    Times,
}

impl Unit {
    /// Its name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Share => "share",
            Self::PerSecond => "per_second",
            Self::Time => "seconds",
            Self::Count => "count",
            Self::Times => "times",
        }
    }
}

/// Whose measure it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Of {
    /// Of clients; of a service, it is that of all clients that ask it.
    Clients,
    /// Of services.
    Services,
    /// Of either, and it means something else for each.
    Either,
}

/// Something that can be measured.
#[derive(Debug)]
pub struct Measure {
    /// Its name in a check.
    pub name: &'static str,
    /// Whose it is.
    pub of: Of,
    /// Its unit.
    pub unit: Unit,
    /// The keys of a check that it heeds beside those that all do.
    pub keys: &'static [&'static str],
    /// Whether it is written down by the second, so that windows have to be whole seconds.
    pub by_second: bool,
    pub(super) value: fn(&Sample<'_>) -> Option<f64>,
}

const CLIENT_KEYS: &[&str] = &["criticality", "customer"];
const TASK_KEYS: &[&str] = &["tasks"];

/// All that can be measured.
pub const MEASURES: &[Measure] = &[
    Measure::of_clients("offered", Unit::PerSecond, &["criticality"], offered),
    Measure::of_clients("goodput", Unit::PerSecond, &[], goodput),
    Measure::of_clients("success", Unit::Share, CLIENT_KEYS, success),
    Measure::of_clients("failed", Unit::Share, CLIENT_KEYS, failed),
    Measure::of_clients("degraded", Unit::Share, &[], degraded),
    Measure::of_clients("throttled", Unit::Share, &[], throttled),
    Measure::of_clients("recovery", Unit::Time, &["criticality", "after", "until", "holding"], {
        recovery
    }),
    Measure::of_clients("p50", Unit::Time, &[], |s| s.quantile(0.5)).by_second(),
    Measure::of_clients("p90", Unit::Time, &[], |s| s.quantile(0.9)).by_second(),
    Measure::of_clients("p99", Unit::Time, &[], |s| s.quantile(0.99)).by_second(),
    Measure::of_clients("p999", Unit::Time, &[], |s| s.quantile(0.999)).by_second(),
    Measure {
        of: Of::Either,
        ..Measure::of_clients("amplification", Unit::Times, &["per"], amplification)
    },
    Measure::of_services("refused", Unit::Count, &["criticality", "reason"], refused),
    Measure::of_services("refused_share", Unit::Share, &["reason"], refused_share),
    Measure::of_services("rejects_per_accept", Unit::Times, &[], rejects_per_accept),
    Measure::of_services("dont_retry", Unit::Share, &[], dont_retry),
    Measure::of_services("wasted", Unit::Share, &[], wasted),
    Measure::of_services("utilization", Unit::Share, TASK_KEYS, utilization).by_second(),
    Measure::of_services("cpu_spread", Unit::Times, TASK_KEYS, cpu_spread).by_second(),
    Measure::of_services("cpu_peak", Unit::Times, TASK_KEYS, cpu_peak).by_second(),
    Measure::of_clients("unplaced", Unit::Share, &[], measure_parts::unplaced),
    Measure::of_clients("nearest", Unit::Share, &[], measure_parts::nearest).by_second(),
    Measure::of_clients("batch_time", Unit::Time, &[], measure_parts::batch_time),
    Measure::of_clients("batch_done", Unit::Count, &[], measure_parts::batch_done).by_second(),
    Measure::of_clients("leased", Unit::Share, &[], measure_parts::leased).by_second(),
    Measure::of_clients("leased_least", Unit::Share, &[], measure_parts::leased_least).by_second(),
    Measure::of_clients("leased_most", Unit::Share, &[], measure_parts::leased_most).by_second(),
    Measure::of_clients("quota_enforced", Unit::Share, &["customer"], {
        measure_parts::quota_enforced
    })
    .by_second(),
    Measure::of_services("connections", Unit::Count, &[], measure_parts::connections).by_second(),
    Measure::of_services("connections_least", Unit::Times, TASK_KEYS, {
        measure_parts::connections_least
    })
    .by_second(),
    Measure::of_services("connections_most", Unit::Times, TASK_KEYS, {
        measure_parts::connections_most
    })
    .by_second(),
    Measure::of_services("connects", Unit::Count, &[], measure_parts::connects).by_second(),
    Measure::of_services("health_checks", Unit::Count, &[], measure_parts::health_checks)
        .by_second(),
    Measure::of_services("connection_cpu", Unit::Share, &[], measure_parts::connection_cpu)
        .by_second(),
];

impl Measure {
    const fn of_clients(
        name: &'static str,
        unit: Unit,
        keys: &'static [&'static str],
        value: fn(&Sample<'_>) -> Option<f64>,
    ) -> Self {
        Self { name, of: Of::Clients, unit, keys, by_second: false, value }
    }

    const fn of_services(
        name: &'static str,
        unit: Unit,
        keys: &'static [&'static str],
        value: fn(&Sample<'_>) -> Option<f64>,
    ) -> Self {
        Self { of: Of::Services, ..Self::of_clients(name, unit, keys, value) }
    }

    const fn by_second(self) -> Self {
        Self { by_second: true, ..self }
    }

    /// The measure of that name.
    pub fn named(name: &str) -> Option<&'static Self> {
        MEASURES.iter().find(|measure| measure.name == name)
    }
}

/// The share of a second's requests that has to be answered in time for calm: with a hundred of
/// them, all but one, so that a single refusal is forgiven and a run of them is not.
pub(super) const HOLDING: f64 = 0.99;

/// What is measured: whose, when, and of which requests.
#[derive(Debug, Clone)]
pub(super) struct Sample<'a> {
    pub(super) parts: &'a Parts,
    pub(super) record: &'a Record,
    pub(super) clients: &'a [usize],
    pub(super) services: &'a [usize],
    pub(super) span: Range<Duration>,
    pub(super) criticality: Option<Criticality>,
    pub(super) customer: Option<usize>,
    /// A column of [`ServiceBin::reasons`].
    pub(super) reason: Option<usize>,
    pub(super) tasks: Option<Range<usize>>,
    /// The share of success that counts as recovered.
    pub(super) holding: f64,
}

/// Bins from one moment to another.
pub(super) fn bins(span: &Range<Duration>) -> Range<usize> {
    let bin = |at: Duration| (at.as_nanos() / BIN.as_nanos()) as usize;
    bin(span.start)..bin(span.end)
}

pub(super) fn part<T>(bins: &[T], range: Range<usize>) -> &[T] {
    let end = range.end.min(bins.len());
    &bins[range.start.min(end)..end]
}

impl<'a> Sample<'a> {
    /// All requests, tasks and reasons.
    pub(super) fn whole(
        variant: &'a Variant,
        record: &'a Record,
        clients: &'a [usize],
        services: &'a [usize],
        span: Range<Duration>,
    ) -> Self {
        Self {
            parts: &variant.parts,
            record,
            clients,
            services,
            span,
            criticality: None,
            customer: None,
            reason: None,
            tasks: None,
            holding: HOLDING,
        }
    }

    /// Requests a second that could be done for those who are measured.
    pub(super) fn capacity(&self) -> f64 {
        let mut services: Vec<usize> = if self.services.is_empty() {
            self.clients.iter().map(|&client| self.parts.capacity_of[client]).collect()
        } else {
            self.services.to_vec()
        };
        services.sort_unstable();
        services.dedup();
        services.into_iter().map(|service| self.parts.capacity(service)).sum()
    }

    pub(super) fn seconds(&self) -> f64 {
        self.span.end.saturating_sub(self.span.start).as_secs_f64()
    }

    fn client_bins(&self) -> impl Iterator<Item = &ClientBin> {
        let all = self.clients.iter().map(|&client| &self.record.clients[client]);
        all.flat_map(|series| part(series, bins(&self.span)))
    }

    fn service_bins(&self) -> impl Iterator<Item = &ServiceBin> {
        let all = self.services.iter().map(|&service| &self.record.services[service]);
        all.flat_map(|series| part(series, bins(&self.span)))
    }

    pub(super) fn sum_clients(&self, what: impl Fn(&ClientBin) -> u32) -> f64 {
        self.client_bins().map(|bin| f64::from(what(bin))).sum()
    }

    fn sum_services(&self, what: impl Fn(&ServiceBin) -> u32) -> f64 {
        self.service_bins().map(|bin| f64::from(what(bin))).sum()
    }

    fn level(&self, counts: &[u32; Criticality::COUNT]) -> u32 {
        self.criticality.map_or_else(|| counts.iter().sum(), |c| counts[c.index()])
    }

    /// Requests, and those of them that were answered in time.
    pub(super) fn asked(&self) -> (f64, f64) {
        match self.customer {
            Some(customer) => {
                let of =
                    |bin: &ClientBin, i: usize| bin.customers.get(customer).map_or(0, |c| c[i]);
                (self.sum_clients(|bin| of(bin, 0)), self.sum_clients(|bin| of(bin, 1)))
            }
            None => (
                self.sum_clients(|bin| self.level(&bin.offered)),
                self.sum_clients(|bin| self.level(&bin.served)),
            ),
        }
    }

    fn quantile(&self, share: f64) -> Option<f64> {
        let mut all = Latencies::default();
        let [from, to] = [self.span.start, self.span.end].map(|at| Timestamp::ZERO + at);
        for &client in self.clients {
            all.merge(&self.record.latencies(client, from, to));
        }
        all.quantile(share).map(|latency| latency.as_secs_f64())
    }

    /// Busy share of each task.
    fn utilizations(&self) -> Vec<f64> {
        let seconds = self.span.start.as_secs() as usize..self.span.end.as_secs() as usize;
        let mut all = Vec::new();
        for &service in self.services {
            let specs = &self.parts.world.services[service].tasks;
            let tasks = self.tasks.clone().unwrap_or(0..specs.len());
            for task in tasks {
                let busy = part(&self.record.busy[service][task], seconds.clone());
                let busy: f64 = busy.iter().map(|&b| f64::from(b)).sum();
                all.push(busy / specs[task].cores / self.seconds());
            }
        }
        all
    }
}

pub(super) fn over(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

fn offered(s: &Sample<'_>) -> Option<f64> {
    Some(s.asked().0 / s.seconds())
}

fn goodput(s: &Sample<'_>) -> Option<f64> {
    Some(s.sum_clients(|bin| bin.answers) / s.seconds())
}

fn success(s: &Sample<'_>) -> Option<f64> {
    let (asked, served) = s.asked();
    over(served, asked)
}

fn failed(s: &Sample<'_>) -> Option<f64> {
    success(s).map(|share| 1.0 - share)
}

fn degraded(s: &Sample<'_>) -> Option<f64> {
    over(s.sum_clients(|bin| bin.degraded), s.sum_clients(|bin| bin.answers))
}

fn throttled(s: &Sample<'_>) -> Option<f64> {
    over(s.sum_clients(|bin| bin.throttled), s.asked().0)
}

/// Tenths of a second in the second over which success is looked at.
const SECOND: usize = 10;

/// How long after the beginning of the span the first second begins from which on every second, in
/// steps of a tenth, has the success that counts as recovered.
fn recovery(s: &Sample<'_>) -> Option<f64> {
    let range = bins(&s.span);
    let counts: Vec<(u32, u32)> = range
        .map(|i| {
            s.clients.iter().filter_map(|&client| s.record.clients[client].get(i)).fold(
                (0, 0),
                |(asked, served), bin| {
                    (asked + s.level(&bin.offered), served + s.level(&bin.served))
                },
            )
        })
        .collect();
    let good = |second: &[(u32, u32)]| {
        let (asked, served) =
            second.iter().fold((0, 0), |sum, tenth| (sum.0 + tenth.0, sum.1 + tenth.1));
        f64::from(served) >= s.holding * f64::from(asked)
    };
    let seconds = counts.windows(SECOND);
    let count = seconds.len();
    let bad_last = seconds.rev().position(|second| !good(second));
    // Counted from the end, so what comes after it is good, if anything does.
    let tenths = bad_last.map_or(0, |from_end| count - from_end);
    (tenths < count).then(|| tenths as f64 * BIN.as_secs_f64())
}

/// Attempts that leave clients, or arrive at services, for each request of clients.
fn amplification(s: &Sample<'_>) -> Option<f64> {
    let asked = s.asked().0;
    if s.services.is_empty() {
        over(s.sum_clients(|bin| bin.attempts), asked)
    } else {
        over(s.sum_services(|bin| bin.arrived), asked)
    }
}

fn rejected(s: &Sample<'_>) -> f64 {
    match s.reason {
        Some(reason) => s.sum_services(|bin| bin.reasons[reason]),
        None => s.sum_services(|bin| s.level(&bin.rejected)),
    }
}

fn refused(s: &Sample<'_>) -> Option<f64> {
    Some(rejected(s))
}

fn refused_share(s: &Sample<'_>) -> Option<f64> {
    over(rejected(s), s.sum_services(|bin| bin.arrived))
}

fn rejects_per_accept(s: &Sample<'_>) -> Option<f64> {
    over(rejected(s), s.sum_services(|bin| bin.admitted))
}

fn dont_retry(s: &Sample<'_>) -> Option<f64> {
    over(s.sum_services(|bin| bin.dont_retry), rejected(s))
}

fn wasted(s: &Sample<'_>) -> Option<f64> {
    over(s.sum_services(|bin| bin.wasted), s.sum_services(|bin| bin.admitted))
}

fn utilization(s: &Sample<'_>) -> Option<f64> {
    let tasks = s.utilizations();
    over(tasks.iter().sum(), tasks.len() as f64)
}

fn cpu_spread(s: &Sample<'_>) -> Option<f64> {
    let tasks = s.utilizations();
    let most = tasks.iter().copied().reduce(f64::max)?;
    over(most, tasks.iter().copied().reduce(f64::min)?)
}

fn cpu_peak(s: &Sample<'_>) -> Option<f64> {
    let tasks = s.utilizations();
    let mean = tasks.iter().sum::<f64>() / tasks.len() as f64;
    over(tasks.into_iter().reduce(f64::max)?, mean)
}
