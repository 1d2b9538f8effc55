//! What requests touch: lanes to pick by, and what they leave for the keeper to take in.
//!
//! No request waits for the keeper or for another request. Picks and outcomes go through the
//! thread's own lane; a load report goes into a cell of its endpoint, the newest over the one
//! before; a lame duck is a flag.

use super::super::keeper::{Nudge, Time};
use super::super::lanes::{self, Dice, Key, Slots};
use super::super::trail::Trail;
use core::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tidegate_core::Outcome;
use tidegate_core::balance::{BackendId, Lane, Lanes, LoadReport, PickReason};
use tidegate_core::counters::{Counters, Writer};
use tidegate_core::rng::SeededRng;

thread_local! {
    static LANES: RefCell<Slots<Local>> = const { RefCell::new(Slots::new()) };
}

/// One thread's way to pick: a lane for each datacenter.
pub(super) struct Local {
    pub(super) groups: Vec<Lane>,
    pub(super) rng: SeededRng,
    counts: Writer,
}

/// Cells of counters: picks by reason, then these.
const PICKS: usize = PickReason::ALL.len();
const AVOIDED: usize = PICKS;
const BAD_REPORTS: usize = PICKS + 1;
const NO_ROOM: usize = PICKS + 2;
const CELLS: usize = PICKS + 3;

impl Local {
    pub(super) fn count_pick(&mut self, reason: PickReason) {
        self.counts.add(reason as usize, 1);
    }

    /// A pick was turned down: it had been there, or it is a lame duck.
    pub(super) fn count_avoided(&mut self) {
        self.counts.add(AVOIDED, 1);
    }

    /// No datacenter had room for it.
    pub(super) fn count_no_room(&mut self) {
        self.counts.add(NO_ROOM, 1);
    }

    fn count_bad_report(&mut self) {
        self.counts.add(BAD_REPORTS, 1);
    }
}

/// What threads and the keeper share.
pub(super) struct Gates {
    pub(super) time: Time,
    groups: Vec<Lanes>,
    counters: Arc<Counters>,
    key: Key,
    dice: Dice,
}

impl Gates {
    pub(super) fn new(time: Time, groups: Vec<Lanes>, dice: Dice) -> Self {
        Self { time, groups, counters: Counters::new(CELLS), key: Key::default(), dice }
    }

    /// Asks, or tells, this thread's lanes.
    #[inline]
    pub(super) fn lane<R>(&self, work: impl FnOnce(&mut Local) -> R) -> R {
        let make = || {
            let mut rng = self.dice.next();
            let groups = self.groups.iter().map(|lanes| lanes.lane(&mut rng)).collect();
            Local { groups, rng, counts: self.counters.writer() }
        };
        lanes::with(&LANES, &self.key, make, work)
    }

    /// What has been counted so far.
    pub(super) fn counts(&self) -> Counted {
        let mut cells = [0; CELLS];
        self.counters.read(&mut cells);
        Counted {
            picks: core::array::from_fn(|n| cells[n]),
            avoided: cells[AVOIDED],
            bad_reports: cells[BAD_REPORTS],
            no_room: cells[NO_ROOM],
        }
    }
}

/// What lanes have counted.
pub(super) struct Counted {
    pub(super) picks: [u64; PICKS],
    pub(super) avoided: u64,
    pub(super) bad_reports: u64,
    pub(super) no_room: u64,
}

impl Counted {
    /// Everything that was to be sent. What found no room is demand as well: left out, it would
    /// make the demand look as if it fitted.
    pub(super) fn demand(&self) -> u64 {
        self.picks.into_iter().fold(self.no_room, u64::wrapping_add)
    }
}

/// The newest load report of an endpoint.
///
/// Four numbers that belong together, in words that are written one by one. A count that is odd
/// while somebody writes tells the reader to come again later; whoever finds another writing goes
/// away, as that one's report is as new.
#[derive(Debug, Default)]
pub(super) struct ReportCell {
    version: AtomicU64,
    numbers: [AtomicU64; 4],
}

impl ReportCell {
    pub(super) fn put(&self, report: &LoadReport) {
        let version = self.version.load(Ordering::Relaxed);
        let writing = version.wrapping_add(1);
        let mine = version.is_multiple_of(2)
            && self
                .version
                .compare_exchange(version, writing, Ordering::AcqRel, Ordering::Relaxed)
                .is_ok();
        if mine {
            let LoadReport { rps, eps, application_utilization, cpu_utilization } = *report;
            let numbers = [rps, eps, application_utilization, cpu_utilization];
            for (cell, number) in self.numbers.iter().zip(numbers) {
                // Release: whoever sees the number sees that somebody writes.
                cell.store(number.to_bits(), Ordering::Release);
            }
            self.version.store(writing.wrapping_add(1), Ordering::Release);
        }
    }

    /// The report, if there is one that is newer than version `seen`, which is then that of this.
    pub(super) fn take(&self, seen: &mut u64) -> Option<LoadReport> {
        let version = self.version.load(Ordering::Acquire);
        if version == *seen || !version.is_multiple_of(2) {
            return None;
        }
        let numbers = self.numbers.each_ref().map(|n| f64::from_bits(n.load(Ordering::Acquire)));
        if self.version.load(Ordering::Relaxed) != version {
            return None;
        }
        *seen = version;
        let [rps, eps, application_utilization, cpu_utilization] = numbers;
        Some(LoadReport { rps, eps, application_utilization, cpu_utilization })
    }
}

/// One endpoint, as requests and reports see it.
pub(super) struct Member {
    pub(super) id: BackendId,
    pub(super) group: usize,
    pub(super) report: ReportCell,
    lame: AtomicBool,
    /// Whether health checks say that it does not serve.
    unwell: AtomicBool,
    gates: Arc<Gates>,
    nudge: Arc<Nudge>,
}

impl Member {
    pub(super) fn new(id: BackendId, group: usize, gates: Arc<Gates>, nudge: Arc<Nudge>) -> Self {
        let (lame, unwell) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { id, group, report: ReportCell::default(), lame, unwell, gates, nudge }
    }

    pub(super) fn is_lame(&self) -> bool {
        self.lame.load(Ordering::Relaxed) || self.is_unwell()
    }

    pub(super) fn is_unwell(&self) -> bool {
        self.unwell.load(Ordering::Relaxed)
    }

    /// Health checks say whether it serves.
    pub(super) fn set_unwell(&self, unwell: bool) {
        if self.unwell.swap(unwell, Ordering::Relaxed) != unwell {
            self.nudge.now();
        }
    }

    /// It wants no more requests: picks turn it down from now on, and the policy hears of it.
    pub(super) fn lame_duck(&self) {
        if !self.lame.swap(true, Ordering::Relaxed) {
            self.nudge.now();
        }
    }

    pub(super) fn forgive(&self) {
        self.lame.store(false, Ordering::Relaxed);
    }

    pub(super) fn bad_report(&self) {
        self.gates.lane(Local::count_bad_report);
    }

    pub(super) fn begin(self: &Arc<Self>, trail: Option<Trail>) -> Attempt {
        let (id, group) = (self.id, self.group);
        self.gates.lane(|lane| lane.groups[group].on_start(id));
        Attempt { member: Arc::clone(self), outcome: Outcome::Abandoned, trail }
    }
}

/// An attempt under way. When it is dropped it has ended: if nobody said how, it was not answered
/// in the time that it had, or nobody wanted it any more.
pub struct Attempt {
    pub(super) member: Arc<Member>,
    pub(super) outcome: Outcome,
    trail: Option<Trail>,
}

impl Drop for Attempt {
    fn drop(&mut self) {
        let Member { id, group, gates, .. } = &*self.member;
        let expired = self.trail.as_ref().is_some_and(Trail::is_expired);
        let outcome = match self.outcome {
            Outcome::Abandoned if expired => Outcome::NoAnswer,
            outcome => outcome,
        };
        gates.lane(|lane| lane.groups[*group].on_complete(*id, outcome));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_gives_each_report_once_and_the_newest() {
        let (cell, mut seen) = (ReportCell::default(), 0);
        assert_eq!(cell.take(&mut seen), None);
        for rps in [1.0, 2.0] {
            cell.put(&LoadReport { rps, eps: 3.0, ..LoadReport::default() });
        }
        let report = cell.take(&mut seen).unwrap();
        assert_eq!((report.rps, report.eps), (2.0, 3.0));
        assert_eq!(cell.take(&mut seen), None);
    }

    /// Two threads write reports of four equal numbers; nobody reads of one this and of one that.
    #[test]
    fn nobody_reads_half_a_report() {
        let (cell, mut seen) = (ReportCell::default(), 0);
        std::thread::scope(|scope| {
            for from in [1, 1_000_000] {
                let cell = &cell;
                scope.spawn(move || {
                    for n in from..from + 100_000 {
                        let number = f64::from(n);
                        cell.put(&LoadReport {
                            rps: number,
                            eps: number,
                            application_utilization: number,
                            cpu_utilization: number,
                        });
                    }
                });
            }
            for _ in 0..200_000 {
                if let Some(report) = cell.take(&mut seen) {
                    let LoadReport { rps, eps, application_utilization, cpu_utilization } = report;
                    assert_eq!([rps; 3], [eps, application_utilization, cpu_utilization]);
                }
            }
        });
    }
}
