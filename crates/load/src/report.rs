//! What came of a run, as figures for people and programs.

use crate::plan::{Load, Plan};
use crate::stats::{Level, NotSent, Stats};
use crate::verdict::ErrorKind;
use core::time::Duration;
use hdrhistogram::Histogram;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_core::Criticality;
use tidegate_core::decision::Reason;
use tidegate_core::retry::GiveUpReason;

/// Counts by name, without those that are zero.
type Counts = BTreeMap<String, u64>;

/// A distribution of spans of time, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Spans {
    pub mean: f64,
    pub min: f64,
    pub p50: f64,
    pub p90: f64,
    pub p95: f64,
    pub p99: f64,
    pub p999: f64,
    pub max: f64,
}

/// Nanoseconds in a millisecond.
const MILLI: f64 = 1e6;

impl Spans {
    /// Of a histogram of nanoseconds; none if it is empty.
    pub fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let at = |quantile| histogram.value_at_quantile(quantile) as f64 / MILLI;
        (!histogram.is_empty()).then(|| Self {
            mean: histogram.mean() / MILLI,
            min: histogram.min() as f64 / MILLI,
            p50: at(0.5),
            p90: at(0.9),
            p95: at(0.95),
            p99: at(0.99),
            p999: at(0.999),
            max: histogram.max() as f64 / MILLI,
        })
    }
}

/// What has become of requests.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Fates {
    /// Requests that were due.
    pub offered: u64,
    /// Requests that were tried at least once: given to a connection, or to the making of one.
    pub sent: u64,
    /// Attempts that were made.
    pub attempts: u64,
    /// Requests that ended well.
    pub ok: u64,
    /// Of these, those within their deadline.
    pub good: u64,
    /// Requests that were sent and did not end well.
    pub failed: u64,
    /// Requests that the client's throttle held back.
    pub throttled: u64,
    /// Requests that were not sent, by why.
    pub not_sent: Counts,
    /// Requests whose fate was not known at the end.
    pub unfinished: u64,
    /// `good` over `offered`; 1 if nothing was offered.
    pub success: f64,
    /// Attempts by answer.
    pub statuses: Counts,
    /// Refusals by the reason that the server gives.
    pub reasons: Counts,
    /// Attempts without an answer, by what happened.
    pub errors: Counts,
    /// From the intended start, of what ended well.
    pub latency_ms: Option<Spans>,
}

/// Counts of what is not zero.
fn counts<'a>(pairs: impl Iterator<Item = (&'a str, u64)>) -> Counts {
    pairs.filter(|(_, count)| *count > 0).map(|(name, count)| (name.to_owned(), count)).collect()
}

impl Fates {
    fn of(level: &Level) -> Self {
        Self {
            offered: level.offered,
            sent: level.sent,
            attempts: level.attempts,
            ok: level.ok,
            good: level.good,
            failed: level.failed,
            throttled: level.throttled,
            not_sent: counts(NotSent::ALL.iter().map(|why| why.code()).zip(level.not_sent)),
            unfinished: level.unfinished,
            success: ratio(level.good, level.offered).unwrap_or(1.0),
            statuses: level.codes.sorted().into_iter().map(|(c, n)| (c.to_string(), n)).collect(),
            reasons: counts(Reason::ALL.iter().map(|reason| reason.code()).zip(level.reasons)),
            errors: counts(ErrorKind::ALL.iter().map(|kind| kind.code()).zip(level.errors)),
            latency_ms: Spans::of(&level.latency),
        }
    }
}

fn ratio(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// How the generator itself fared.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Generator {
    /// CPU time of the threads that send, in seconds.
    pub cpu_seconds: f64,
    /// The same for each attempt, in microseconds.
    pub cpu_us_per_attempt: Option<f64>,
    /// Of the thread that used most, over the time of the run. Above 0.9 figures are in doubt.
    pub busiest: f64,
    /// By how much it was late, in milliseconds; none in a closed loop.
    pub late_ms: Option<Spans>,
    /// Requests that had to wait because no connection was free.
    pub queued: u64,
    /// Whether everything that was due was sent, and on time: 99 of 100 within a millisecond.
    pub kept_schedule: bool,
}

/// What came of a run.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct Report {
    /// Whom we asked.
    pub target: String,
    /// In which language.
    pub protocol: &'static str,
    /// `poisson`, `even` or `closed`.
    pub arrivals: &'static str,
    /// Names the dice: the same seed and plan give the same requests at the same times.
    pub seed: u64,
    /// Threads that sent.
    pub threads: u32,
    /// What callers did when an attempt failed.
    pub retry: String,
    /// Whether clients throttled themselves.
    pub throttle: bool,
    /// For how long requests were due, without the warm-up.
    pub seconds: f64,
    /// Whether that was shorter than planned.
    pub ended_early: bool,
    /// Requests a second that were due.
    pub offered_rps: f64,
    /// Attempts a second that were made.
    pub sent_rps: f64,
    /// Requests a second that ended well.
    pub ok_rps: f64,
    /// Requests a second that ended well within their deadline.
    pub goodput_rps: f64,
    /// Attempts for each request that was sent.
    pub amplification: f64,
    /// Retries that were not made, by why.
    pub given_up: Counts,
    /// From the intended start, of what ended well.
    pub latency_ms: Option<Spans>,
    /// From the real send, of the attempt that ended well.
    pub service_ms: Option<Spans>,
    /// From the intended start, of what did not end well.
    pub unhappy_ms: Option<Spans>,
    /// All requests.
    pub total: Fates,
    /// Those that were offered, by criticality.
    pub criticality: BTreeMap<&'static str, Fates>,
    /// Bytes that came.
    pub bytes_received: u64,
    /// Bytes that went.
    pub bytes_sent: u64,
    /// Connections that were made, after the warm-up.
    pub connections_made: u64,
    /// How the generator itself fared.
    pub generator: Generator,
    /// The histograms and counts behind all this.
    #[serde(skip)]
    pub stats: Stats,
}

/// Late by more than this is late.
const LATE_MS: f64 = 1.0;

impl Report {
    pub(crate) fn new(plan: &Plan, stats: Stats, measured: Duration, ended_early: bool) -> Self {
        let seconds = measured.as_secs_f64();
        let rate = |count: u64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
        let mut all = Level::new();
        for level in &stats.levels {
            all.merge(level);
        }
        let offered = Criticality::ALL.into_iter().zip(&stats.levels).rev();
        let offered = offered.filter(|(_, level)| level.offered > 0);
        let late = Spans::of(&stats.late);
        let kept = all.not_sent() == 0 && late.is_none_or(|late| late.p99 <= LATE_MS);
        Self {
            target: plan.target.url(),
            protocol: plan.protocol.name(),
            arrivals: match &plan.course.load {
                Load::Open { spacing, .. } => spacing.name(),
                Load::Closed { .. } => "closed",
            },
            seed: plan.course.seed,
            threads: plan.threads,
            retry: plan.course.retry.to_string(),
            throttle: plan.course.throttle,
            seconds,
            ended_early,
            offered_rps: rate(all.offered),
            sent_rps: rate(all.attempts),
            ok_rps: rate(all.ok),
            goodput_rps: rate(all.good),
            amplification: stats.amplification(),
            given_up: counts(GiveUpReason::ALL.iter().map(|why| why.code()).zip(stats.given_up)),
            latency_ms: Spans::of(&all.latency),
            service_ms: Spans::of(&stats.service),
            unhappy_ms: Spans::of(&stats.unhappy),
            criticality: offered.map(|(level, fates)| (level.name(), Fates::of(fates))).collect(),
            bytes_received: stats.received,
            bytes_sent: stats.sent,
            connections_made: stats.connections,
            generator: Generator {
                cpu_seconds: stats.cpu.as_secs_f64(),
                cpu_us_per_attempt: (all.attempts > 0)
                    .then(|| stats.cpu.as_secs_f64() * 1e6 / all.attempts as f64),
                busiest: if seconds > 0.0 {
                    stats.cpu_busiest.as_secs_f64() / seconds
                } else {
                    0.0
                },
                late_ms: late,
                queued: stats.queued,
                kept_schedule: kept,
            },
            total: Fates::of(&all),
            stats,
        }
    }
}
