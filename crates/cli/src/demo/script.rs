//! What happens, in which order, and for how long.
//!
//! ```text
//! --seconds = setting up + calibration + sides x phases + last answers
//! ```
//!
//! where the phases count twice if the sides take turns. Both sides get the same arrivals: the same
//! seed, the same rates, which are multiples of the capacity that was found before.

use super::service::{BAD_CUSTOMER, CUSTOMERS};
use core::num::NonZeroU32;
use core::time::Duration;
use tidegate_core::Criticality;
use tidegate_load::{Course, Load, Mix, Plan, Rate, Retry, Spacing, Stage, Weighted};

/// How long callers wait, and say so. Fifty requests one after the other: calm never comes near
/// it, and a queue that is not kept short is beyond it in a second.
pub(super) const DEADLINE: Duration = Duration::from_millis(500);
/// CPU time of a request: what a page that is put together from some tables takes. Refusing one
/// takes some 40 µs, so that at 10x with retries about an eighth of a core goes into refusing.
pub(super) const WORK_MS: u32 = 10;
/// Attempts of naive callers, in all: what many clients have as their default.
const ATTEMPTS: NonZeroU32 = NonZeroU32::new(3).unwrap();
/// What the bad customer asks for, in multiples of the capacity.
pub(super) const BAD_LOAD: f64 = 4.0;

/// Percent of all requests.
pub(super) const MIX: [(Criticality, u32); Criticality::COUNT] = [
    (Criticality::CriticalPlus, 10),
    (Criticality::Critical, 40),
    (Criticality::SheddablePlus, 30),
    (Criticality::Sheddable, 20),
];

/// A part of the script.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Phase {
    pub(super) name: &'static str,
    /// What it is there to show.
    pub(super) why: &'static str,
    /// Offered load as a multiple of the capacity, without the bad customer's.
    pub(super) load: f64,
    /// Whether callers try again at once whatever fails.
    pub(super) retries: bool,
    /// Whether the bad customer asks as well.
    pub(super) bad: bool,
    /// Its part of the time.
    weight: f64,
}

/// The phase at the height of the surge.
pub(super) const WORST: usize = 2;
/// The phase after the surge.
pub(super) const RECOVERY: usize = 4;

/// One after the other, without a pause.
pub(super) const PHASES: [Phase; 5] = [
    Phase {
        name: "calm",
        why: "less than it can do: nothing is to be refused",
        load: 0.7,
        retries: false,
        bad: false,
        weight: 1.0,
    },
    Phase {
        name: "surge 2x",
        why: "twice what it can do: half has to go, the least important half",
        load: 2.0,
        retries: false,
        bad: false,
        weight: 1.0,
    },
    Phase {
        name: "surge 10x",
        why: "ten times, and callers try again at once, up to three times",
        load: 10.0,
        retries: true,
        bad: false,
        weight: 1.25,
    },
    Phase {
        name: "bad customer",
        why: "calm, but for one customer who asks for four times what there is",
        load: 0.7,
        retries: true,
        bad: true,
        weight: 1.0,
    },
    Phase {
        name: "recovery",
        why: "calm again, but callers still retry: how long until all is well?",
        load: 0.7,
        retries: true,
        bad: false,
        weight: 1.75,
    },
];

/// What the user has changed, on top of the phase.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Tweak {
    /// Times the load of the phase.
    pub(super) factor: f64,
    /// Callers retry whatever the phase says.
    pub(super) storm: bool,
    /// The bad customer asks whatever the phase says.
    pub(super) bad: bool,
}

impl Tweak {
    /// Nothing.
    pub(super) const NONE: Self = Self { factor: 1.0, storm: false, bad: false };
}

/// How long everything takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Timing {
    /// Until the capacity counts.
    pub(super) warmup: Duration,
    /// For finding the capacity.
    pub(super) calibration: Duration,
    /// All phases of one side.
    pub(super) side: Duration,
}

/// Callers with three attempts wait for the last answer three times as long as the deadline.
pub(super) const LAST_ANSWERS: Duration = DEADLINE.saturating_mul(ATTEMPTS.get());
/// What starting processes and connecting takes, for each side.
const OVERHEAD: Duration = Duration::from_millis(500);

impl Timing {
    pub(super) fn new(seconds: f64, at_once: bool) -> Self {
        // A fifteenth of all, but 150 requests at least, and no more than 600, so that the error
        // of the count is a few percent.
        let calibration = (seconds / 15.0).clamp(0.75, 3.0);
        let warmup = 0.25;
        let sides = if at_once { 1.0 } else { 2.0 };
        let around = (OVERHEAD + LAST_ANSWERS).as_secs_f64();
        let rest = seconds - warmup - calibration - sides * around;
        Self {
            warmup: Duration::from_secs_f64(warmup),
            calibration: Duration::from_secs_f64(calibration),
            side: Duration::from_secs_f64((rest / sides).max(1.0)),
        }
    }

    /// When each phase ends, from the beginning of a side.
    pub(super) fn ends(&self) -> [Duration; PHASES.len()] {
        let all: f64 = PHASES.iter().map(|phase| phase.weight).sum();
        let mut sum = 0.0;
        PHASES.map(|phase| {
            sum += phase.weight;
            self.side.mul_f64(sum / all)
        })
    }

    /// How long a phase lasts.
    pub(super) fn lasts(&self, phase: usize) -> Duration {
        let ends = self.ends();
        let begins = phase.checked_sub(1).map_or(Duration::ZERO, |before| ends[before]);
        ends[phase].saturating_sub(begins)
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// All customers that behave.
    Everyone,
    /// The one that does not.
    Bad,
}

/// What callers do in a phase.
pub(super) fn course(
    plan: &Plan,
    who: Who,
    (phase, tweak): (&Phase, Tweak),
    (capacity, seed): (f64, u64),
    lasts: Duration,
) -> Course {
    let load = match who {
        Who::Everyone => phase.load * tweak.factor,
        Who::Bad if phase.bad || tweak.bad => BAD_LOAD,
        Who::Bad => 0.0,
    };
    let stages = vec![Stage::constant(Rate(load * capacity), lasts)];
    let retry = if phase.retries || tweak.storm { Retry::Naive(ATTEMPTS) } else { Retry::None };
    Course {
        load: Load::Open { stages, spacing: Spacing::Poisson },
        seed,
        retry,
        timeout: DEADLINE,
        ..plan.course.clone()
    }
}

/// What requests say about themselves.
pub(super) fn mix(who: Who) -> Option<Mix> {
    let customers = match who {
        Who::Everyone => Weighted::new(CUSTOMERS.map(|name| (Some(name.into()), 1))),
        Who::Bad => Some(Weighted::only(Some(BAD_CUSTOMER.into()))),
    };
    Some(Mix {
        criticality: Weighted::new(MIX)?,
        customer: customers?,
        deadline: Weighted::only(Some(DEADLINE)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_fill_the_time_and_both_sides_fit_into_the_whole() {
        for seconds in [10.0, 40.0, 60.0, 600.0] {
            for (at_once, sides) in [(true, 1.0), (false, 2.0)] {
                let timing = Timing::new(seconds, at_once);
                assert_eq!(timing.ends()[RECOVERY], timing.side);
                let sum: Duration = (0..PHASES.len()).map(|phase| timing.lasts(phase)).sum();
                assert_eq!(sum, timing.side);
                let all = timing.side.as_secs_f64() * sides
                    + (timing.warmup + timing.calibration).as_secs_f64();
                assert!(all < seconds, "{seconds}: {all}");
                assert!(timing.lasts(0) >= Duration::from_millis(400), "{timing:?}");
            }
        }
    }

    #[test]
    fn the_phases_are_where_their_names_say() {
        assert_eq!((PHASES[WORST].name, PHASES[WORST].load), ("surge 10x", 10.0));
        assert_eq!((PHASES[RECOVERY].name, PHASES[RECOVERY].load), ("recovery", 0.7));
        assert_eq!(MIX.iter().map(|(_, percent)| percent).sum::<u32>(), 100);
    }
}
