//! What a task does and why, in one sentence: the first thing that somebody reads when it burns.
//!
//! | is | says |
//! |---|---|
//! | a lame duck | `Lame duck: takes no new requests, 3 in flight` |
//! | dark | `Dark: refuses nobody; would be shedding SHEDDABLE because …` |
//! | shedding | `Shedding SHEDDABLE because executor_load is 2.3 over 1.5; offered 19 CPUs, capable of 1.9` |
//! | asking for less | `Asking SHEDDABLE for degraded answers because …` |
//! | short of quota | `Serving all who have quota; out of quota: shop` |
//! | well | `Healthy: offered 0.7 CPUs, capable of 1.9` |
//!
//! The first that is so counts. Of the levels that may be shed those are named that were, in the
//! last second. What is said of signals is what stood there when the change was made: while
//! something is shed, utilization is held at the threshold, and its present value would explain
//! nothing.

use super::api::{Kind, State};
use super::text::number;
use crate::events::{Event, Grounds, What};
use tidegate_core::{Criticality, Timestamp};

/// What the sentence is made of.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Facts<'a> {
    /// The last change of each kind, oldest first.
    pub(super) standing: &'a [Event],
    /// Whether a controller has looked at anything yet.
    pub(super) measured: bool,
    pub(super) inflight: u64,
    pub(super) offered_cpus: Option<f64>,
    pub(super) capacity_cpus: Option<f64>,
    /// The highest criticality that was refused for load in the last second, if any was.
    pub(super) refused: Option<Criticality>,
    /// Customers who are refused for want of quota.
    pub(super) out_of_quota: &'a [String],
}

/// What holds since when, of one kind of change.
#[derive(Debug, Default)]
struct Standing<'a> {
    shed: Option<(Criticality, &'a Grounds)>,
    degrade: Option<(Criticality, &'a Grounds)>,
    dont_retry: bool,
    lame_duck: bool,
    dark: bool,
    /// When that which is said began, by kind.
    shed_at: Option<Timestamp>,
    degrade_at: Option<Timestamp>,
    lame_duck_at: Option<Timestamp>,
    dark_at: Option<Timestamp>,
}

impl<'a> Standing<'a> {
    fn of(events: &'a [Event]) -> Self {
        let mut standing = Self::default();
        for event in events {
            let at = Some(event.at);
            match &event.what {
                What::Shed { now, grounds, .. } => {
                    standing.shed = now.map(|now| (now, grounds));
                    standing.shed_at = at;
                }
                What::Degrade { criticality, on: true, grounds } => {
                    // The highest of those who are asked.
                    let higher = standing.degrade.is_none_or(|(level, _)| *criticality > level);
                    if higher {
                        standing.degrade = Some((*criticality, grounds));
                    }
                    standing.degrade_at = standing.degrade_at.max(at);
                }
                What::Degrade { on: false, .. } => {
                    standing.degrade_at = standing.degrade_at.max(at);
                }
                What::DontRetry(on) => standing.dont_retry = *on,
                What::LameDuck(on) => {
                    standing.lame_duck = *on;
                    standing.lame_duck_at = at;
                }
                What::Dark(on) => {
                    standing.dark = *on;
                    standing.dark_at = at;
                }
                What::Refused(_) | What::Ended(_) => {}
            }
        }
        standing
    }

    /// When the last of these changes was.
    fn latest(&self) -> Option<Timestamp> {
        self.shed_at.max(self.degrade_at).max(self.lame_duck_at).max(self.dark_at)
    }
}

/// The state, and since when it holds; since the beginning if nothing is said.
pub(super) fn state(facts: &Facts<'_>) -> (State, Option<Timestamp>) {
    let standing = Standing::of(facts.standing);
    let shedding = standing.shed.map(|(level, grounds)| {
        // What may be refused need not be: all of it may fit.
        let level = facts.refused.map_or(level, |refused| refused.min(level));
        let because = because(grounds);
        format!("hedding {}{because}", levels(level))
    });
    let (kind, sentence, since) = if standing.lame_duck {
        let sentence = format!("Lame duck: takes no new requests, {} in flight", facts.inflight);
        (Kind::LameDuck, sentence, standing.lame_duck_at)
    } else if standing.dark {
        let sentence = match shedding {
            Some(shedding) => format!("Dark: refuses nobody; would be s{shedding}{}", load(facts)),
            None => format!("Dark: refuses nobody, and would refuse nobody{}", load(facts)),
        };
        (Kind::Dark, sentence, standing.dark_at)
    } else if let Some(shedding) = shedding {
        (Kind::Shedding, format!("S{shedding}{}", load(facts)), standing.shed_at)
    } else if let Some((level, grounds)) = standing.degrade {
        let because = because(grounds);
        let sentence = format!("Asking {} for degraded answers{because}", levels(level));
        (Kind::Degrading, sentence, standing.degrade_at)
    } else if !facts.out_of_quota.is_empty() {
        let names = names(facts.out_of_quota);
        let sentence = format!("Serving all who have quota; out of quota: {names}");
        (Kind::OutOfQuota, sentence, None)
    } else if facts.measured {
        (Kind::Healthy, format!("Healthy{}", load(facts).replacen(';', ":", 1)), standing.latest())
    } else {
        (Kind::Starting, "Starting: nothing was measured yet".to_owned(), None)
    };
    let shed = standing.shed.map(|(level, _)| level.name().to_owned());
    let state = State { kind, sentence, since_ms: 0, shed, dont_retry: standing.dont_retry };
    (state, since)
}

/// `SHEDDABLE`, or `CRITICAL and below`.
fn levels(highest: Criticality) -> String {
    if highest == Criticality::ALL[0] {
        highest.name().to_owned()
    } else {
        format!("{highest} and below")
    }
}

fn because(grounds: &Grounds) -> String {
    match grounds {
        // Between two looks what is in flight has reached its limit, and no signal had to say so.
        Grounds::Signal { value, threshold: Some(threshold), .. } if value < threshold => {
            " because more came than there was room for".to_owned()
        }
        Grounds::Signal { name, value, threshold: Some(threshold) } => {
            format!(" because {name} was {} over {}", number(*value), number(*threshold))
        }
        Grounds::Signal { name, value, threshold: None } => {
            format!(" because {name} was at {}", number(*value))
        }
        Grounds::Other(cause) => format!(" because {cause}"),
    }
}

fn load(facts: &Facts<'_>) -> String {
    match (facts.offered_cpus, facts.capacity_cpus) {
        (Some(offered), Some(capacity)) => {
            format!("; offered {} CPUs, capable of {}", number(offered), number(capacity))
        }
        _ => String::new(),
    }
}

/// The first few names.
fn names(all: &[String]) -> String {
    const SHOWN: usize = 3;
    let shown = all.iter().take(SHOWN).map(String::as_str).collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(SHOWN) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grounds(name: &str, value: f64, threshold: Option<f64>) -> Grounds {
        Grounds::Signal { name: name.to_owned(), value, threshold }
    }

    fn shed(at: u64, now: Option<Criticality>) -> Event {
        let grounds = grounds("executor_load", 2.3, Some(1.5));
        Event { at: Timestamp::from_secs(at), what: What::Shed { before: None, now, grounds } }
    }

    #[test]
    fn a_signal_that_is_below_its_threshold_is_no_reason() {
        for (value, expected) in [
            (0.4, " because more came than there was room for"),
            (13.6, " because executor_load was 13.6 over 13.6"),
        ] {
            assert_eq!(because(&grounds("executor_load", value, Some(13.6))), expected);
        }
    }

    fn degrade(at: u64, criticality: Criticality, on: bool) -> Event {
        let what = What::Degrade { criticality, on, grounds: grounds("queue", 0.61, None) };
        Event { at: Timestamp::from_secs(at), what }
    }

    fn switch(at: u64, what: What) -> Event {
        Event { at: Timestamp::from_secs(at), what }
    }

    #[test]
    fn those_who_were_refused_are_named_and_not_those_who_may_be() {
        use Criticality::{Critical, Sheddable, SheddablePlus};
        for (may, refused, said) in [
            (Critical, None, "Shedding CRITICAL and below"),
            (Critical, Some(Sheddable), "Shedding SHEDDABLE because"),
            (Critical, Some(SheddablePlus), "Shedding SHEDDABLE_PLUS and below"),
            // For want of room in calm, say: that is not what is told.
            (Sheddable, Some(Critical), "Shedding SHEDDABLE because"),
        ] {
            let standing = [shed(1, Some(may))];
            let (state, _) =
                state(&Facts { standing: &standing, refused, measured: true, ..Facts::default() });
            assert!(state.sentence.starts_with(said), "{}", state.sentence);
        }
    }

    #[test]
    fn every_state_has_its_sentence_and_its_beginning() {
        use Criticality::{Critical, Sheddable, SheddablePlus};
        let out = ["a", "b", "c", "d", "e"].map(str::to_owned);
        let facts = Facts {
            measured: true,
            inflight: 3,
            offered_cpus: Some(19.04),
            capacity_cpus: Some(1.9),
            ..Facts::default()
        };
        let of = |standing| Facts { standing, ..facts };
        let quota = |standing| Facts { standing, out_of_quota: &out, ..facts };
        let calm = [shed(1, None), degrade(2, Sheddable, false)];
        let sheds = [degrade(1, Sheddable, true), shed(2, Some(Sheddable))];
        let sheds_more = [shed(2, Some(Critical)), switch(3, What::DontRetry(true))];
        let degrades = [degrade(4, SheddablePlus, true), degrade(5, Sheddable, true)];
        let dark = [shed(2, Some(Sheddable)), switch(6, What::Dark(true))];
        let idly_dark = [shed(2, None), switch(6, What::Dark(true))];
        let lame = [
            shed(2, Some(Sheddable)),
            switch(6, What::Dark(true)),
            switch(7, What::LameDuck(true)),
        ];
        let back = [switch(7, What::LameDuck(false)), switch(8, What::Dark(false))];
        let load = "offered 19 CPUs, capable of 1.9";
        for (facts, kind, sentence, since) in [
            (Facts::default(), Kind::Starting, "Starting: nothing was measured yet".into(), None),
            (of(&[]), Kind::Healthy, format!("Healthy: {load}"), None),
            (of(&calm), Kind::Healthy, format!("Healthy: {load}"), Some(2)),
            (of(&back), Kind::Healthy, format!("Healthy: {load}"), Some(8)),
            (
                Facts { capacity_cpus: None, ..of(&calm) },
                Kind::Healthy,
                "Healthy".to_owned(),
                Some(2),
            ),
            (
                of(&sheds),
                Kind::Shedding,
                format!("Shedding SHEDDABLE because executor_load was 2.3 over 1.5; {load}"),
                Some(2),
            ),
            (
                of(&sheds_more),
                Kind::Shedding,
                format!(
                    "Shedding CRITICAL and below because executor_load was 2.3 over 1.5; {load}"
                ),
                Some(2),
            ),
            (
                of(&degrades),
                Kind::Degrading,
                "Asking SHEDDABLE_PLUS and below for degraded answers because queue was at 0.61"
                    .to_owned(),
                Some(5),
            ),
            (
                of(&dark),
                Kind::Dark,
                format!(
                    "Dark: refuses nobody; would be shedding SHEDDABLE because executor_load was \
                     2.3 over 1.5; {load}"
                ),
                Some(6),
            ),
            (
                of(&idly_dark),
                Kind::Dark,
                format!("Dark: refuses nobody, and would refuse nobody; {load}"),
                Some(6),
            ),
            (
                of(&lame),
                Kind::LameDuck,
                "Lame duck: takes no new requests, 3 in flight".to_owned(),
                Some(7),
            ),
            (
                quota(&calm),
                Kind::OutOfQuota,
                "Serving all who have quota; out of quota: a, b, c and 2 more".to_owned(),
                None,
            ),
            (
                quota(&sheds),
                Kind::Shedding,
                format!("Shedding SHEDDABLE because executor_load was 2.3 over 1.5; {load}"),
                Some(2),
            ),
        ] {
            let (state, at) = state(&facts);
            assert_eq!((state.kind, state.sentence), (kind, sentence));
            assert_eq!(at, since.map(Timestamp::from_secs));
        }
        let (said, _) = state(&of(&sheds_more));
        assert_eq!((said.shed.as_deref(), said.dont_retry), (Some("CRITICAL"), true));
    }
}
