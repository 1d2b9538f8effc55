//! From one plan to the next: what has changed.

use super::event::{Grounds, What};
use crate::signals::Health;
use core::time::Duration;
use tidegate_core::admission::AdmissionGate;
use tidegate_core::admission::shed::Plan;
use tidegate_core::decision::{SignalId, Thousandths};
use tidegate_core::{Criticality, Timestamp};

const LEVELS: usize = Criticality::COUNT;
/// For so long less has to be shed before that is news. Where demand is about as high as capacity
/// it changes with every other tick; in a second, whoever looks has not seen it change.
const HOLD: Duration = Duration::from_secs(1);

/// A change as it is kept.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Changed {
    Shed { before: Option<Criticality>, now: Option<Criticality>, why: Why },
    Degrade { criticality: Criticality, on: bool, why: Why },
    DontRetry(bool),
    LameDuck(bool),
    Dark(bool),
}

/// Which signal, where it stood, and what was to be held.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Why {
    signal: SignalId,
    utilization: Thousandths,
    threshold: Option<Thousandths>,
}

impl Why {
    fn named(self, signals: &[Health]) -> Grounds {
        Grounds::signal(self.signal, self.utilization, self.threshold, signals)
    }
}

/// How many kinds of changes there are: see [`Changed::kind`].
pub(super) const KINDS: usize = 4 + LEVELS;

impl Changed {
    /// What it is a change of.
    pub(super) const fn kind(&self) -> usize {
        match self {
            Self::Shed { .. } => 0,
            Self::DontRetry(_) => 1,
            Self::LameDuck(_) => 2,
            Self::Dark(_) => 3,
            Self::Degrade { criticality, .. } => 4 + criticality.index(),
        }
    }

    pub(super) fn named(self, signals: &[Health]) -> What {
        match self {
            Self::Shed { before, now, why } => {
                What::Shed { before, now, grounds: why.named(signals) }
            }
            Self::Degrade { criticality, on, why } => {
                What::Degrade { criticality, on, grounds: why.named(signals) }
            }
            Self::DontRetry(on) => What::DontRetry(on),
            Self::LameDuck(on) => What::LameDuck(on),
            Self::Dark(on) => What::Dark(on),
        }
    }
}

/// What was told last.
#[derive(Debug, Default)]
pub(super) struct Watch {
    cut: Option<Criticality>,
    /// Since when less is shed than was told, and the most of it.
    less: Option<(Timestamp, Option<Criticality>)>,
    degrade: [bool; LEVELS],
    dont_retry: bool,
    lame_duck: bool,
    dark: bool,
}

impl Watch {
    pub(super) fn plan(&mut self, plan: &Plan, now: Timestamp, mut tell: impl FnMut(Changed)) {
        let signal = plan.reading.signal;
        let cut = self.cut_after(plan.cut, now);
        let before = core::mem::replace(&mut self.cut, cut);
        if cut != before {
            // What has caused it may be over already.
            let (utilization, threshold) = (plan.peak.into(), Some(plan.set_point.into()));
            let why = Why { signal, utilization, threshold };
            tell(Changed::Shed { before, now: cut, why });
        }
        for (criticality, on) in Criticality::ALL.into_iter().zip(plan.degrade) {
            let told = &mut self.degrade[criticality.index()];
            if core::mem::replace(told, on) != on {
                let utilization = plan.reading.utilization.into();
                let why = Why { signal, utilization, threshold: None };
                tell(Changed::Degrade { criticality, on, why });
            }
        }
    }

    /// What is to be told as shed: more at once, less once it has held.
    fn cut_after(&mut self, cut: Option<Criticality>, now: Timestamp) -> Option<Criticality> {
        if cut >= self.cut {
            self.less = None;
            return cut;
        }
        let (since, most) = self.less.get_or_insert((now, cut));
        *most = (*most).max(cut);
        let (since, most) = (*since, *most);
        if now.since(since) < HOLD {
            return self.cut;
        }
        self.less = None;
        most
    }

    pub(super) fn switches(&mut self, gate: &AdmissionGate, mut tell: impl FnMut(Changed)) {
        let mut look = |told: &mut bool, on: bool, change: fn(bool) -> Changed| {
            if core::mem::replace(told, on) != on {
                tell(change(on));
            }
        };
        look(&mut self.dont_retry, gate.says_dont_retry(), Changed::DontRetry);
        look(&mut self.lame_duck, gate.is_lame_duck(), Changed::LameDuck);
        look(&mut self.dark, gate.is_dark(), Changed::Dark);
    }
}
