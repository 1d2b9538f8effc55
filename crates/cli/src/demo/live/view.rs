//! What the screen shows, as figures: of the last second, and goodput over the whole time.

use super::super::record::{BIN, Bin, Record};
use super::super::script::{PHASES, Phase, Tweak};
use super::super::service::Side;
use super::super::show::{Board, Show, Stage};
use tidegate_core::Criticality;

/// Bins that figures are of: a second.
const RECENT: usize = 4;

/// All that is on the screen.
#[derive(Debug, Clone)]
pub(super) struct View {
    pub(super) seed: u64,
    pub(super) places: String,
    pub(super) capacity: Option<f64>,
    pub(super) stage: Stage,
    /// The phase that goes on, and how far it is, from 0 to 1.
    pub(super) phase: Option<(usize, f64)>,
    pub(super) sides: [Panel; 2],
    pub(super) tweak: Tweak,
    pub(super) notice: Option<String>,
}

/// One side.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Panel {
    pub(super) side: Side,
    pub(super) state: State,
    /// Requests a second.
    pub(super) offered: f64,
    pub(super) goodput: f64,
    pub(super) p99_ms: Option<f64>,
    pub(super) amplification: f64,
    /// The share of what ended that ended well, highest criticality first.
    pub(super) success: [Option<f64>; Criticality::COUNT],
    /// Goodput of each bin so far, in requests a second.
    pub(super) curve: Vec<f64>,
    /// Bins of the whole time.
    pub(super) bins: usize,
    /// What the service says about itself.
    pub(super) says: Option<String>,
    pub(super) dark: bool,
}

/// Whether a side is driven.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Waits,
    Live,
    Done,
}

impl View {
    pub(super) fn new(show: &Show, board: &Board, records: [&Record; 2]) -> Self {
        let bins = (show.timing.side.as_secs_f64() / BIN.as_secs_f64()).ceil() as usize;
        let panel = |side: Side| {
            let record = records[side.index()];
            let status = board.statuses[side.index()].as_ref();
            Panel {
                says: status.map(|status| status.sentence.clone()),
                dark: status.is_some_and(|status| status.dark),
                ..Panel::of(side, record, bins)
            }
        };
        let driven = records.iter().find_map(|record| Some((record.phase?, record.bins.len())));
        let phase = driven.map(|(phase, bins)| {
            let end = show.timing.ends()[phase].as_secs_f64();
            let lasts = show.timing.lasts(phase).as_secs_f64();
            let now = bins as f64 * BIN.as_secs_f64();
            (phase, (1.0 - (end - now) / lasts).clamp(0.0, 1.0))
        });
        Self {
            seed: show.seed,
            places: show.places.describe(),
            capacity: board.capacity,
            stage: board.stage,
            phase,
            sides: Side::ALL.map(panel),
            tweak: Tweak::NONE,
            notice: None,
        }
    }

    pub(super) fn script(&self) -> Option<&'static Phase> {
        self.phase.map(|(phase, _)| &PHASES[phase])
    }
}

impl Panel {
    pub(super) fn of(side: Side, record: &Record, bins: usize) -> Self {
        let recent = &record.bins[record.bins.len().saturating_sub(RECENT)..];
        let seconds = (recent.len() as f64 * BIN.as_secs_f64()).max(BIN.as_secs_f64());
        let sum = |of: fn(&Bin) -> u64| recent.iter().map(of).sum::<u64>();
        let success = core::array::from_fn(|place| {
            let level = Criticality::COUNT - 1 - place;
            let (good, ended) = recent.iter().fold((0, 0), |(good, ended), bin| {
                (good + bin.levels[level].0, ended + bin.levels[level].1)
            });
            (ended > 0).then(|| good as f64 / ended as f64)
        });
        let state = match (record.phase, record.bins.is_empty()) {
            (Some(_), _) => State::Live,
            (None, true) => State::Waits,
            (None, false) => State::Done,
        };
        let length = BIN.as_secs_f64();
        Self {
            side,
            state,
            offered: sum(|bin| bin.offered) as f64 / seconds,
            goodput: sum(|bin| bin.good) as f64 / seconds,
            p99_ms: recent.iter().filter_map(|bin| bin.p99_ms).reduce(f64::max),
            amplification: record.amplification(),
            success,
            curve: record.bins.iter().map(|bin| bin.good as f64 / length).collect(),
            bins,
            says: None,
            dark: false,
        }
    }

    /// Goodput over the whole time as so many columns; none where it has not come to yet.
    pub(super) fn columns(&self, width: usize) -> Vec<Option<f64>> {
        let bins = self.bins.max(1);
        let column = |i: usize| {
            let from = i * bins / width;
            let to = ((i + 1) * bins / width).max(from + 1);
            let part = self.curve.get(from..to.min(self.curve.len()))?;
            (!part.is_empty()).then(|| part.iter().sum::<f64>() / part.len() as f64)
        };
        (0..width).map(column).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_of_the_last_second() {
        let mut bins = vec![(0, 100, 0); 4];
        bins.extend([(0, 48, 24); 4]);
        let mut record = Record::drawn(&bins);
        record.phase = Some(0);
        let panel = Panel::of(Side::Bare, &record, 16);
        assert_eq!((panel.offered, panel.goodput), (192.0, 96.0));
        assert_eq!((panel.success, panel.state), ([Some(0.5); 4], State::Live));
        // What fails was tried twice: 400 of the 592 of the whole phase, and 96 more.
        assert_eq!(panel.amplification, (592.0 + 496.0) / 592.0);
        // Half of the time is over: two bins a column.
        let columns = panel.columns(8);
        assert_eq!(columns[..4], [Some(0.0), Some(0.0), Some(96.0), Some(96.0)]);
        assert_eq!(columns[4..], [None; 4]);
    }

    #[test]
    fn nothing_yet_is_no_number() {
        let panel = Panel::of(Side::Protected, &Record::default(), 16);
        assert_eq!((panel.state, panel.goodput, panel.p99_ms), (State::Waits, 0.0, None));
        assert_eq!((panel.amplification, panel.success), (1.0, [None; 4]));
    }
}
