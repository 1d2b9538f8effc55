//! What is measured while a side is driven.
//!
//! Everything is counted at the client. Figures of a phase are of the requests that were due in it,
//! whenever they ended; the curve over time is of what happened in each quarter of a second.

use super::script::{PHASES, RECOVERY, Who};
use core::time::Duration;
use tidegate_core::Criticality;
use tidegate_load::report::{Generator, Spans};
use tidegate_load::{Interval, Stats};

/// How often the curve has a point: some dozen calm requests.
pub(super) const BIN: Duration = Duration::from_millis(250);
/// Bins in the second that has to be well.
const SECOND: usize = 4;
/// The share of what ends in that second that has to end well: one request in twenty may fail, as
/// one more or less of a hundred and thirty is chance.
pub(super) const WELL: f64 = 0.95;
/// The share of what is asked in that second that has to have ended well: answers lag behind, and
/// failures lag further, so that the share above alone would be of those that were quick.
const KEPT_UP: f64 = 0.8;

/// What happened in a quarter of a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Bin {
    pub(super) phase: usize,
    pub(super) offered: u64,
    /// OK within the deadline.
    pub(super) good: u64,
    pub(super) attempts: u64,
    /// Of OK answers, in milliseconds.
    pub(super) p99_ms: Option<f64>,
    /// OK answers that `p99_ms` is of.
    ok: u64,
    /// Good ones, and all that ended, by criticality, lowest first.
    pub(super) levels: [(u64, u64); Criticality::COUNT],
    /// Offered, good and ended of the requests of the recovery alone.
    recovery: (u64, u64, u64),
}

/// What came of one side.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) bins: Vec<Bin>,
    /// By phase, for everyone who behaves and for the bad customer.
    phases: [[Option<Box<Stats>>; 2]; PHASES.len()],
    /// Phases by number of course, of both runs.
    courses: [Vec<usize>; 2],
    /// Phases whose load the user has changed.
    pub(super) changed: [bool; PHASES.len()],
    /// Phases that were over when the side ended.
    pub(super) over: usize,
    /// The phase that goes on.
    pub(super) phase: Option<usize>,
    /// How the generator fared.
    pub(super) generator: Option<Generator>,
}

fn ended(stats: &Stats) -> [(u64, u64); Criticality::COUNT] {
    core::array::from_fn(|index| {
        let level = &stats.levels[index];
        (level.good, level.ok + level.failed + level.throttled + level.not_sent())
    })
}

impl Record {
    /// The next course of a run belongs to this phase.
    pub(super) fn begin(&mut self, who: Who, phase: usize) {
        self.courses[who as usize].push(phase);
    }

    /// Takes what a run tells.
    pub(super) fn take(&mut self, who: Who, interval: &Interval<'_>) {
        let courses = &self.courses[who as usize];
        let phase = courses.get(interval.course as usize).copied().unwrap_or_default();
        self.add(who, phase, interval.number as usize, interval.stats);
    }

    fn add(&mut self, who: Who, phase: usize, number: usize, stats: &Stats) {
        let offered = stats.sum(|level| level.offered);
        let levels = ended(stats);
        let (good, all) = levels.iter().fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        let attempts = stats.sum(|level| level.attempts);
        if offered + all + attempts == 0 {
            return;
        }
        self.phases[phase][who as usize].get_or_insert_default().add(stats);
        if self.bins.len() <= number {
            self.bins.resize_with(number + 1, Bin::default);
        }
        let bin = &mut self.bins[number];
        bin.phase = bin.phase.max(phase);
        bin.offered += offered;
        bin.good += good;
        bin.attempts += attempts;
        for (mine, theirs) in bin.levels.iter_mut().zip(levels) {
            *mine = (mine.0 + theirs.0, mine.1 + theirs.1);
        }
        if phase == RECOVERY && who == Who::Everyone {
            bin.recovery.0 += offered;
            bin.recovery.1 += good;
            bin.recovery.2 += all;
        }
        let ok = stats.sum(|level| level.ok);
        if ok > bin.ok {
            // Of several courses under way, that with most answers.
            bin.ok = ok;
            bin.p99_ms = Spans::of(&stats.latency()).map(|spans| spans.p99);
        }
    }

    /// What came of the requests of a phase.
    pub(super) fn stats(&self, phase: usize, who: Who) -> Option<&Stats> {
        self.phases[phase][who as usize].as_deref()
    }

    /// Attempts for each request of the phase that goes on, or of the last one. In a quarter of a
    /// second there are attempts of requests that began before, and the other way round.
    pub(super) fn amplification(&self) -> f64 {
        let last = self.over.saturating_sub(1);
        let stats = self.stats(self.phase.unwrap_or(last), Who::Everyone);
        stats.map_or(1.0, Stats::amplification)
    }

    /// Seconds from the beginning of the recovery to the first second that is well; none if there
    /// was none.
    pub(super) fn recovery_seconds(&self) -> Option<f64> {
        let first = self.bins.iter().position(|bin| bin.recovery.0 > 0)?;
        let after: Vec<_> = self.bins[first..].iter().map(|bin| bin.recovery).collect();
        // The last answers come after the last request: seconds without any are none.
        let asked = after.iter().rposition(|bin| bin.0 > 0)? + 1;
        let windows = after[..asked].windows(SECOND.min(asked));
        let well = windows.map(|window| {
            let sum = |of: fn(&(u64, u64, u64)) -> u64| window.iter().map(of).sum::<u64>() as f64;
            let (offered, good, ended) = (sum(|bin| bin.0), sum(|bin| bin.1), sum(|bin| bin.2));
            good >= WELL * ended && good >= KEPT_UP * offered
        });
        let bins = well.into_iter().position(|well| well)?;
        Some(bins as f64 * BIN.as_secs_f64())
    }
}

#[cfg(test)]
impl Record {
    /// A side that is over, with so many requests and so many good ones in each bin, and the phase
    /// that they are of. They are spread over criticalities alike, and what fails was tried twice.
    pub(super) fn drawn(bins: &[(usize, u64, u64)]) -> Self {
        let mut record = Self { over: PHASES.len(), ..Self::default() };
        for (number, &(phase, offered, good)) in bins.iter().enumerate() {
            let mut stats = Stats::default();
            let count = Criticality::COUNT as u64;
            for (index, level) in stats.levels.iter_mut().enumerate() {
                let part = |all: u64| all / count + u64::from((index as u64) < all % count);
                (level.offered, level.sent) = (part(offered), part(offered));
                (level.good, level.ok) = (part(good), part(good));
                level.failed = level.offered - level.good;
                level.attempts = level.offered + level.failed;
                level.latency.saturating_record_n(20_000_000, level.ok);
            }
            record.add(Who::Everyone, phase, number, &stats);
            if PHASES[phase].bad {
                record.add(Who::Bad, phase, number, &stats);
            }
        }
        record
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Offered, good and ended of each quarter of a second, all in the recovery.
    fn recovery(bins: &[(u64, u64, u64)]) -> Option<f64> {
        let bin = |&recovery: &_| Bin { recovery, ..Bin::default() };
        Record { bins: bins.iter().map(bin).collect(), ..Record::default() }.recovery_seconds()
    }

    #[test]
    fn recovery_is_when_the_first_second_is_well() {
        let (well, ill) = ((40, 40, 40), (40, 0, 40));
        assert_eq!(recovery(&[well; 4]), Some(0.0));
        assert_eq!(recovery(&[ill, ill, well, well, well, well]), Some(0.5));
        assert_eq!(recovery(&[ill; 8]), None);
        assert_eq!(recovery(&[well, well, well, ill, ill]), None);
        assert_eq!(recovery(&[]), None);
    }

    #[test]
    fn quick_answers_among_slow_failures_are_no_recovery() {
        // Ten good answers at once, while nothing is known yet of thirty others.
        assert_eq!(recovery(&[(40, 10, 10); 6]), None);
        // What comes after the last request is no second of its own.
        assert_eq!(recovery(&[(40, 0, 0), (40, 0, 0), (40, 0, 0), (40, 0, 40), (0, 0, 120)]), None);
    }

    #[test]
    fn a_phase_has_what_was_due_in_it_and_a_bin_what_happened_in_it() {
        let mut record = Record::default();
        let mut stats = Stats::default();
        stats.levels[0].offered = 10;
        stats.levels[0].sent = 10;
        stats.levels[0].attempts = 30;
        stats.levels[0].failed = 10;
        record.add(Who::Everyone, 2, 0, &stats);
        // The fate of requests of the phase before is known in the next.
        record.add(Who::Everyone, 2, 1, &stats);
        record.add(Who::Bad, 3, 1, &stats);
        let offered = |stats: Option<&Stats>| stats.map(|stats| stats.sum(|level| level.offered));
        assert_eq!(offered(record.stats(2, Who::Everyone)), Some(20));
        assert_eq!(offered(record.stats(3, Who::Bad)), Some(10));
        assert_eq!(offered(record.stats(3, Who::Everyone)), None);
        assert_eq!((record.bins[1].phase, record.bins[1].offered), (3, 20));
        assert_eq!((record.bins[1].attempts, record.bins[1].levels[0]), (60, (0, 20)));
        // Attempts count also where nothing began and nothing ended.
        let mut attempts = Stats::default();
        (attempts.levels[0].sent, attempts.levels[0].attempts) = (10, 10);
        record.add(Who::Everyone, 2, 2, &attempts);
        let stats = record.stats(2, Who::Everyone).unwrap();
        assert_eq!(stats.amplification(), 70.0 / 30.0);
    }
}
