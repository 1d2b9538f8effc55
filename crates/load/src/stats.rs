//! What has happened, in numbers that add up.
//!
//! Threads count for themselves and hand over what they have every interval; whoever reads adds. A
//! request is counted where its fate is known:
//!
//! ```text
//! offered = ok + failed + throttled + not sent + unfinished
//! ```
//!
//! Latency is from when a request should have started to when its last answer was there. A server
//! that stalls for a second then shows a second to all that were due in it, and not only to those
//! few that a generator which waits for answers would have sent.

use crate::verdict::{Code, ErrorKind};
use core::time::Duration;
use hdrhistogram::Histogram;
use tidegate_core::Criticality;
use tidegate_core::decision::Reason;
use tidegate_core::retry::GiveUpReason;

/// Why a request was not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum NotSent {
    /// No connection was free until its caller gave up.
    NoConnection,
    /// As many were waiting for a connection as may.
    BacklogFull,
    /// The run was ended.
    Ended,
}

impl NotSent {
    /// All, for tables of counters.
    pub const ALL: [Self; 3] = [Self::NoConnection, Self::BacklogFull, Self::Ended];

    /// The code that stands in reports.
    pub const fn code(self) -> &'static str {
        match self {
            Self::NoConnection => "no_connection",
            Self::BacklogFull => "backlog_full",
            Self::Ended => "ended",
        }
    }
}

/// Counts by answer: few kinds, so that looking through them takes no time.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Codes(Vec<(Code, u64)>);

impl Codes {
    pub(crate) fn add(&mut self, code: Code, more: u64) {
        match self.0.iter_mut().find(|(known, _)| *known == code) {
            Some((_, count)) => *count += more,
            None => self.0.push((code, more)),
        }
    }

    /// By code.
    pub fn sorted(&self) -> Vec<(Code, u64)> {
        let mut list = self.0.clone();
        list.sort_unstable();
        list
    }

    /// How many there were of this one.
    pub fn of(&self, code: Code) -> u64 {
        self.0.iter().find(|(known, _)| *known == code).map_or(0, |(_, count)| *count)
    }
}

/// What has become of the requests of one criticality.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Level {
    /// Requests that were due.
    pub offered: u64,
    /// Requests that were tried at least once: given to a connection, or to the making of one.
    pub sent: u64,
    /// Attempts that were made, retries included.
    pub attempts: u64,
    /// Requests that ended well.
    pub ok: u64,
    /// Of these, those within their deadline.
    pub good: u64,
    /// Requests that were sent and did not end well.
    pub failed: u64,
    /// Requests that the client held back.
    pub throttled: u64,
    /// Requests that were not sent, in the order of [`NotSent::ALL`].
    pub not_sent: [u64; NotSent::ALL.len()],
    /// Requests whose fate was not known when the run ended.
    pub unfinished: u64,
    /// Attempts by answer.
    pub codes: Codes,
    /// Attempts without an answer, in the order of [`ErrorKind::ALL`].
    pub errors: [u64; ErrorKind::ALL.len()],
    /// Refusals by what a tidegate says is the reason, in the order of [`Reason::ALL`].
    pub reasons: [u64; Reason::ALL.len()],
    /// Nanoseconds from the intended start, of what ended well.
    pub latency: Histogram<u64>,
}

/// What is shorter is not told apart: a microsecond is a tenth of what a system call takes.
const SHORTEST: u64 = 1_000;
/// What is longer counts as this: an hour.
const LONGEST: u64 = 3_600_000_000_000;
/// Three digits are right: one in a thousand, at 0.3 MB each.
const DIGITS: u8 = 3;

/// A histogram of nanoseconds.
pub(crate) fn histogram() -> Histogram<u64> {
    #[expect(clippy::unwrap_used, reason = "the bounds are constants, and every test makes one")]
    Histogram::new_with_bounds(SHORTEST, LONGEST, DIGITS).unwrap()
}

fn record(histogram: &mut Histogram<u64>, span: Duration) {
    let nanos = u64::try_from(span.as_nanos()).unwrap_or(u64::MAX);
    histogram.saturating_record(nanos.min(LONGEST));
}

impl Level {
    pub(crate) fn new() -> Self {
        Self {
            offered: 0,
            sent: 0,
            attempts: 0,
            ok: 0,
            good: 0,
            failed: 0,
            throttled: 0,
            not_sent: Default::default(),
            unfinished: 0,
            codes: Codes::default(),
            errors: Default::default(),
            reasons: Default::default(),
            latency: histogram(),
        }
    }

    /// Adds what has become of others.
    pub fn merge(&mut self, other: &Self) {
        self.offered += other.offered;
        self.sent += other.sent;
        self.attempts += other.attempts;
        self.ok += other.ok;
        self.good += other.good;
        self.failed += other.failed;
        self.throttled += other.throttled;
        self.unfinished += other.unfinished;
        add_all(&mut self.not_sent, &other.not_sent);
        add_all(&mut self.errors, &other.errors);
        add_all(&mut self.reasons, &other.reasons);
        for &(code, count) in &other.codes.0 {
            self.codes.add(code, count);
        }
        add_histogram(&mut self.latency, &other.latency);
    }

    /// Requests that were not sent, whatever the reason.
    pub fn not_sent(&self) -> u64 {
        self.not_sent.iter().sum()
    }
}

fn add_all(mine: &mut [u64], theirs: &[u64]) {
    for (mine, theirs) in mine.iter_mut().zip(theirs) {
        *mine += theirs;
    }
}

fn add_histogram(mine: &mut Histogram<u64>, theirs: &Histogram<u64>) {
    if !theirs.is_empty() {
        // Both have the same bounds, so nothing is out of range.
        let _ = mine.add(theirs);
    }
}

/// What has happened in an interval, or in all.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Stats {
    /// By criticality, lowest first.
    pub levels: [Level; Criticality::COUNT],
    /// Nanoseconds from the real send of the attempt that ended well.
    pub service: Histogram<u64>,
    /// Nanoseconds from the intended start to an end that was not OK.
    pub unhappy: Histogram<u64>,
    /// Nanoseconds by which the generator itself was late: from when a request was due to when it
    /// was looked at.
    pub late: Histogram<u64>,
    /// Requests that had to wait because no connection was free.
    pub queued: u64,
    /// Retries that were not made, in the order of [`GiveUpReason::ALL`].
    pub given_up: [u64; GiveUpReason::ALL.len()],
    /// Bytes received, before decryption is undone.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Connections made.
    pub connections: u64,
    /// CPU time of the threads that send.
    pub cpu: Duration,
    /// The same, of the thread that used most.
    pub cpu_busiest: Duration,
}

impl Default for Stats {
    fn default() -> Self {
        Self {
            levels: core::array::from_fn(|_| Level::new()),
            service: histogram(),
            unhappy: histogram(),
            late: histogram(),
            queued: 0,
            given_up: Default::default(),
            received: 0,
            sent: 0,
            connections: 0,
            cpu: Duration::ZERO,
            cpu_busiest: Duration::ZERO,
        }
    }
}

impl Stats {
    /// Adds what another thread, or a later interval, has counted.
    pub fn add(&mut self, other: &Self) {
        for (mine, theirs) in self.levels.iter_mut().zip(&other.levels) {
            mine.merge(theirs);
        }
        add_histogram(&mut self.service, &other.service);
        add_histogram(&mut self.unhappy, &other.unhappy);
        add_histogram(&mut self.late, &other.late);
        self.queued += other.queued;
        add_all(&mut self.given_up, &other.given_up);
        self.received += other.received;
        self.sent += other.sent;
        self.connections += other.connections;
        self.cpu += other.cpu;
    }

    /// The sum over all criticalities.
    pub fn sum(&self, of: impl Fn(&Level) -> u64) -> u64 {
        self.levels.iter().map(of).sum()
    }

    /// Latency of what ended well, whatever the criticality.
    pub fn latency(&self) -> Histogram<u64> {
        let mut all = histogram();
        for level in &self.levels {
            add_histogram(&mut all, &level.latency);
        }
        all
    }

    /// Attempts for each request that was sent; 1 if there was none.
    pub fn amplification(&self) -> f64 {
        let sent = self.sum(|level| level.sent);
        if sent == 0 { 1.0 } else { self.sum(|level| level.attempts) as f64 / sent as f64 }
    }

    pub(crate) fn level(&mut self, criticality: Criticality) -> &mut Level {
        &mut self.levels[criticality.index()]
    }

    pub(crate) fn record_ok(
        &mut self,
        criticality: Criticality,
        latency: Duration,
        service: Duration,
        deadline: Option<Duration>,
    ) {
        let level = self.level(criticality);
        level.ok += 1;
        level.good += u64::from(deadline.is_none_or(|deadline| latency <= deadline));
        record(&mut level.latency, latency);
        record(&mut self.service, service);
    }

    pub(crate) fn record_unhappy(&mut self, criticality: Criticality, latency: Duration) {
        self.level(criticality).failed += 1;
        record(&mut self.unhappy, latency);
    }

    pub(crate) fn record_late(&mut self, late: Duration) {
        record(&mut self.late, late);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_parts() {
        let mut first = Stats::default();
        let second = Duration::from_secs(1);
        let critical = Criticality::Critical;
        first.record_ok(critical, second, second / 2, Some(second));
        first.level(critical).codes.add(Code::Http(200), 1);
        let mut other = first.clone();
        other.record_ok(critical, second * 2, second / 2, Some(second));
        other.record_unhappy(Criticality::Sheddable, second);
        other.level(critical).attempts = 4;
        other.level(critical).sent = 2;
        first.add(&other);
        assert_eq!(first.sum(|level| level.ok), 3);
        assert_eq!(first.sum(|level| level.good), 2);
        assert_eq!(first.sum(|level| level.failed), 1);
        assert_eq!(first.levels[critical.index()].codes.of(Code::Http(200)), 2);
        assert_eq!((first.latency().len(), first.service.len(), first.unhappy.len()), (3, 3, 1));
        assert_eq!(first.amplification(), 2.0);
        // Three digits: 2 s to a few milliseconds.
        assert!(first.latency().max().abs_diff(2_000_000_000) < 3_000_000);
    }

    #[test]
    fn no_span_is_too_long_to_be_counted() {
        let mut stats = Stats::default();
        stats.record_late(Duration::MAX);
        stats.record_late(Duration::ZERO);
        assert_eq!(stats.late.len(), 2);
    }
}
