//! What came of the demo, as it stands in the JSON.

use super::record::{BIN, Record};
use super::script::{DEADLINE, MIX, PHASES, Phase, RECOVERY, Timing, WORST, Who};
use super::service::Side;
use super::show::Show;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_core::Criticality;
use tidegate_core::decision::Reason;
use tidegate_load::Stats;
use tidegate_load::report::Spans;

/// One run of the demo.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    /// Requests a second that the bare service answered when asked without a pause.
    pub(super) capacity_rps: f64,
    /// Goodput of the protected side at ten times the capacity, over the capacity. None if that
    /// phase did not come to its end, or if the user has changed its load.
    pub(super) goodput_ratio_at_10x: Option<f64>,
    pub(super) recovery_seconds: BySide<Option<f64>>,
    pub(super) bare: SideReport,
    pub(super) protected: SideReport,
    pub(super) seed: u64,
    /// Whether both sides were driven at the same time.
    pub(super) at_once: bool,
    /// Who ran where.
    pub(super) places: String,
    pub(super) work_ms: f64,
    pub(super) deadline_ms: f64,
    /// Shares of all requests.
    pub(super) mix: ByLevel,
    /// Whether it was ended before its time.
    pub(super) interrupted: bool,
    pub(super) notices: Vec<String>,
    /// Where the page with the plots is, if there is one.
    pub(super) report: Option<String>,
}

/// The same for both sides.
#[derive(Debug, Clone, Serialize)]
pub(super) struct BySide<T> {
    pub(super) bare: T,
    pub(super) protected: T,
}

/// A share for each criticality, by its name; none where nothing was asked.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) struct ByLevel {
    pub(super) critical_plus: Option<f64>,
    pub(super) critical: Option<f64>,
    pub(super) sheddable_plus: Option<f64>,
    pub(super) sheddable: Option<f64>,
}

impl ByLevel {
    fn new(of: impl Fn(Criticality) -> Option<f64>) -> Self {
        Self {
            critical_plus: of(Criticality::CriticalPlus),
            critical: of(Criticality::Critical),
            sheddable_plus: of(Criticality::SheddablePlus),
            sheddable: of(Criticality::Sheddable),
        }
    }

    /// Highest first.
    pub(super) const fn descending(&self) -> [Option<f64>; Criticality::COUNT] {
        [self.critical_plus, self.critical, self.sheddable_plus, self.sheddable]
    }
}

#[derive(Debug, Clone, Serialize)]
pub(super) struct SideReport {
    /// Those that have begun.
    pub(super) phases: Vec<PhaseReport>,
    /// Goodput in requests a second, every quarter of a second.
    pub(super) curve: Vec<Point>,
    /// How late the load generator was with 99 of 100 requests, in milliseconds.
    pub(super) generator_late_p99_ms: Option<f64>,
}

/// A quarter of a second.
#[derive(Debug, Clone, Copy, Serialize)]
pub(super) struct Point {
    /// When it ended, in seconds from the beginning of the side.
    pub(super) at: f64,
    pub(super) offered_rps: f64,
    pub(super) goodput_rps: f64,
    pub(super) p99_ms: Option<f64>,
    pub(super) attempts_rps: f64,
    /// Share of what ended that ended well, of the highest criticality.
    pub(super) critical_plus: Option<f64>,
}

/// What came of the requests of one phase.
#[derive(Debug, Clone, Serialize)]
pub(super) struct PhaseReport {
    pub(super) name: &'static str,
    pub(super) why: &'static str,
    /// Offered load over capacity, as planned and without the bad customer.
    pub(super) load: f64,
    /// Whether the user has changed it.
    pub(super) changed: bool,
    /// Whether it came to its end.
    pub(super) complete: bool,
    /// From the beginning of the side, in seconds.
    pub(super) begins: f64,
    /// How long it lasted, or has lasted so far.
    pub(super) seconds: f64,
    #[serde(flatten)]
    pub(super) all: Figures,
    /// The same without the bad customer, and of the bad customer alone; none where it did not ask.
    pub(super) others: Option<Figures>,
    pub(super) bad_customer: Option<Figures>,
}

/// What came of some requests.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Figures {
    pub(super) offered_rps: f64,
    /// OK within the deadline.
    pub(super) goodput_rps: f64,
    /// Of OK answers, from when the request was due.
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// The share that was OK within the deadline.
    pub(super) success: ByLevel,
    /// Attempts for each request that was sent.
    pub(super) amplification: f64,
    /// Attempts that were refused, and those that nobody answered.
    pub(super) refused: u64,
    pub(super) unanswered: u64,
    /// Refusals by the reason that the service gave.
    pub(super) reasons: BTreeMap<&'static str, u64>,
    /// Requests that found no connection.
    pub(super) not_sent: u64,
}

impl Figures {
    pub(super) fn of(stats: &Stats, seconds: f64) -> Self {
        let rate = |count: u64| count as f64 / seconds;
        let spans = Spans::of(&stats.latency());
        let success = |level: Criticality| {
            let level = &stats.levels[level.index()];
            (level.offered > 0).then(|| level.good as f64 / level.offered as f64)
        };
        Self {
            offered_rps: rate(stats.sum(|level| level.offered)),
            goodput_rps: rate(stats.sum(|level| level.good)),
            p50_ms: spans.map(|spans| spans.p50),
            p99_ms: spans.map(|spans| spans.p99),
            success: ByLevel::new(success),
            amplification: stats.amplification(),
            refused: stats.sum(|level| level.reasons.iter().sum()),
            unanswered: stats.sum(|level| level.errors.iter().sum()),
            reasons: Reason::ALL
                .iter()
                .enumerate()
                .map(|(i, reason)| (reason.code(), stats.sum(|level| level.reasons[i])))
                .filter(|(_, count)| *count > 0)
                .collect(),
            not_sent: stats.sum(tidegate_load::stats::Level::not_sent),
        }
    }
}

impl PhaseReport {
    fn of(phase: &Phase, index: usize, record: &Record, timing: &Timing) -> Option<Self> {
        let planned = timing.lasts(index).as_secs_f64();
        let begins = timing.ends()[index].as_secs_f64() - planned;
        let complete = record.over > index;
        let so_far = record.bins.len() as f64 * BIN.as_secs_f64() - begins;
        let seconds = if complete { planned } else { so_far.clamp(BIN.as_secs_f64(), planned) };
        let [everyone, bad] = [Who::Everyone, Who::Bad].map(|who| record.stats(index, who));
        if !complete && everyone.is_none() {
            return None;
        }
        // On a machine that stands still for a whole phase nothing is asked in it.
        let mut sum = everyone.cloned().unwrap_or_default();
        if let Some(bad) = bad {
            sum.add(bad);
        }
        Some(Self {
            name: phase.name,
            why: phase.why,
            load: phase.load,
            changed: record.changed[index],
            complete,
            begins,
            seconds,
            all: Figures::of(&sum, seconds),
            others: bad.and(everyone).map(|stats| Figures::of(stats, seconds)),
            bad_customer: bad.map(|stats| Figures::of(stats, seconds)),
        })
    }
}

impl SideReport {
    fn new(record: &Record, timing: &Timing) -> Self {
        let phases = PHASES.iter().enumerate();
        let phases = phases.filter_map(|(i, phase)| PhaseReport::of(phase, i, record, timing));
        let length = BIN.as_secs_f64();
        let point = |(i, bin): (usize, &super::record::Bin)| {
            let (good, ended) = bin.levels[Criticality::CriticalPlus.index()];
            Point {
                at: (i + 1) as f64 * length,
                offered_rps: bin.offered as f64 / length,
                goodput_rps: bin.good as f64 / length,
                p99_ms: bin.p99_ms,
                attempts_rps: bin.attempts as f64 / length,
                critical_plus: (ended > 0).then(|| good as f64 / ended as f64),
            }
        };
        Self {
            phases: phases.collect(),
            curve: record.bins.iter().enumerate().map(point).collect(),
            generator_late_p99_ms: record
                .generator
                .as_ref()
                .and_then(|generator| generator.late_ms)
                .map(|late| late.p99),
        }
    }

    /// Goodput of a phase over time, as so many values: the means of stretches of the curve.
    pub(super) fn stretches(&self, phase: &PhaseReport, count: usize) -> Vec<f64> {
        let end = phase.begins + phase.seconds;
        let within = |point: &&Point| point.at > phase.begins && point.at <= end;
        let rates: Vec<f64> =
            self.curve.iter().filter(within).map(|point| point.goodput_rps).collect();
        let stretch = |i: usize| {
            let from = i * rates.len() / count;
            let to = ((i + 1) * rates.len() / count).max(from + 1).min(rates.len());
            let part = rates.get(from..to).unwrap_or_default();
            part.iter().sum::<f64>() / part.len().max(1) as f64
        };
        (0..count).map(stretch).collect()
    }

    /// The phase, if it has begun.
    pub(super) fn phase(&self, index: usize) -> Option<&PhaseReport> {
        self.phases.iter().find(|phase| phase.name == PHASES[index].name)
    }
}

impl Report {
    pub(super) fn new(
        (seed, capacity): (u64, f64),
        show: &Show,
        records: [&Record; 2],
        notices: Vec<String>,
    ) -> Self {
        let (places, timing) = (&show.places, &show.timing);
        let [bare, protected] = records.map(|record| SideReport::new(record, timing));
        let protected_record = records[Side::Protected.index()];
        let worst = protected.phase(WORST).filter(|phase| {
            let whole = protected_record.over > WORST && !phase.changed;
            whole && capacity > 0.0
        });
        let [bare_calm, protected_calm] = records.map(Record::recovery_seconds);
        Self {
            capacity_rps: capacity,
            goodput_ratio_at_10x: worst.map(|phase| phase.all.goodput_rps / capacity),
            recovery_seconds: BySide { bare: bare_calm, protected: protected_calm },
            bare,
            protected,
            seed,
            at_once: places.at_once,
            places: places.describe(),
            work_ms: show.work.as_secs_f64() * 1e3,
            deadline_ms: DEADLINE.as_secs_f64() * 1e3,
            mix: ByLevel::new(|level| {
                let found = MIX.iter().find(|(other, _)| *other == level);
                found.map(|(_, percent)| f64::from(*percent) / 100.0)
            }),
            interrupted: records.iter().any(|record| record.over < PHASES.len()),
            notices,
            report: None,
        }
    }

    pub(super) const fn side(&self, side: Side) -> &SideReport {
        match side {
            Side::Bare => &self.bare,
            Side::Protected => &self.protected,
        }
    }

    pub(super) const fn recovery(&self, side: Side) -> Option<f64> {
        match side {
            Side::Bare => self.recovery_seconds.bare,
            Side::Protected => self.recovery_seconds.protected,
        }
    }

    /// How long the recovery was watched, as far as it came.
    pub(super) fn recovery_watched(&self, side: Side) -> Option<f64> {
        self.side(side).phase(RECOVERY).map(|phase| phase.seconds)
    }
}

#[cfg(test)]
impl Report {
    /// A run of twenty seconds in which the bare side falls in the surge and the other holds.
    pub(super) fn example() -> Self {
        let options = super::Options::example();
        let show = Show::new(&options, super::cpus::Places::find(options.sides, false));
        let ends = show.timing.ends();
        let bins = |good: [u64; PHASES.len()]| -> Vec<(usize, u64, u64)> {
            let count = (show.timing.side.as_secs_f64() / BIN.as_secs_f64()) as u32;
            let phase = |i: u32| ends.iter().position(|end| BIN * (i + 1) <= *end).unwrap_or(0);
            let offered = [35, 100, 500, 35, 35];
            (0..count).map(|i| (phase(i), offered[phase(i)], good[phase(i)])).collect()
        };
        let bare = Record::drawn(&bins([35, 5, 0, 1, 2]));
        let protected = Record::drawn(&bins([35, 50, 48, 35, 35]));
        Self::new((7, 200.0), &show, [&bare, &protected], vec!["port 8080 is taken".to_owned()])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_worked_out_by_hand() {
        let report = Report::example();
        let calm = &report.protected.phases[0].all;
        assert_eq!(calm.offered_rps, calm.goodput_rps);
        assert_eq!((calm.amplification, calm.success.critical), (1.0, Some(1.0)));
        let worst = report.protected.phase(WORST).unwrap();
        // 48 good ones in each quarter of a second, of a capacity of 200 a second. The bins that
        // fit into the phase are counted over all of it.
        let ratio = report.goodput_ratio_at_10x.unwrap();
        assert!((0.8..=1.0).contains(&ratio), "{ratio}");
        assert_eq!(worst.all.success.sheddable, Some(12.0 / 125.0));
        // What fails was tried twice: 500 + 452 attempts.
        assert!((worst.all.amplification - 952.0 / 500.0).abs() < 1e-9);
        assert_eq!(report.recovery_seconds.protected, Some(0.0));
        assert_eq!(report.recovery_seconds.bare, None);
        assert!(!report.interrupted);
    }

    #[test]
    fn a_phase_that_was_changed_or_cut_short_has_no_ratio() {
        let options = super::super::Options::example();
        let show = Show::new(&options, super::super::cpus::Places::find(options.sides, false));
        let bare = Record::drawn(&[(0, 10, 10)]);
        for (over, changed, whole) in [(5, false, true), (5, true, false), (2, false, false)] {
            let mut protected = Record::drawn(&[(0, 10, 10), (WORST, 10, 10)]);
            protected.over = over;
            protected.changed[WORST] = changed;
            let report = Report::new((7, 200.0), &show, [&bare, &protected], Vec::new());
            assert_eq!(report.protected.phases.len(), if whole || changed { 5 } else { 3 });
            assert_eq!(report.goodput_ratio_at_10x.is_some(), whole, "{over} {changed}");
            // What has begun is told as far as it came: rates are of that time.
            let phase = report.protected.phase(0).unwrap();
            assert!(phase.complete && phase.seconds == show.timing.lasts(0).as_secs_f64());
            let worst = report.protected.phase(WORST).unwrap();
            assert_eq!(worst.complete, over > WORST);
            assert_eq!(worst.seconds < show.timing.lasts(WORST).as_secs_f64(), over <= WORST);
        }
    }

    #[test]
    fn the_bad_customer_is_told_apart_where_it_asks() {
        let report = Report::example();
        for phase in &report.protected.phases {
            assert_eq!(phase.others.is_some(), phase.name == "bad customer");
            assert_eq!(phase.bad_customer.is_some(), phase.others.is_some());
        }
        let bad = &report.protected.phases[3];
        let parts = [&bad.others, &bad.bad_customer].map(|part| part.as_ref().unwrap().offered_rps);
        assert!((bad.all.offered_rps - parts[0] - parts[1]).abs() < 1e-9);
    }
}
