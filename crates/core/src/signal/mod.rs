//! How full this task is.
//!
//! A utilization signal is a number with a target: 1 means "as full as it should ever be". Which
//! number tells the truth depends on the service. The most useful one counts what is running or
//! ready to run per CPU ([`LoadAverage`]): it grows without bound as soon as more work comes than
//! gets done. CPU percent does not; it reads 100 % at 1x and at 3x, so it may confirm an overload
//! but never declare one ([`Role::Confirming`]). Memory, run delay, requests in flight or anything
//! else a user can measure are plain numbers with targets.
//!
//! [`Signals`] holds them and combines them, normalised by their targets:
//!
//! ```text
//! highest:        max over signals of value / target
//! weighted sum:   sum of weight x value / target, over the sum of the weights
//! ```
//!
//! A signal whose source has died would shed for ever or hide an overload for ever; one that was
//! not heard from for [`Signals::STALE_AFTER`] is left out until it speaks again.

mod latency;
mod sources;
#[cfg(test)]
mod tests;

pub use latency::{Answers, LatencyGradient};
pub use sources::{LoadAverage, Slope};

use crate::decision::SignalId;
use crate::units::{InvalidNumber, Timestamp, Utilization};
use core::time::Duration;

/// What a signal may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Role {
    /// Declares overload by itself.
    #[default]
    Leading,
    /// Counts only while a leading signal declares overload itself: for numbers such as CPU
    /// percent that are high in health, too, but tell how bad it is.
    Confirming,
}

/// How several signals become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Combine {
    /// The one furthest over its target decides.
    #[default]
    Highest,
    /// All of them, by weight.
    WeightedSum,
}

/// The description of one signal.
#[derive(Debug, Clone, PartialEq)]
pub struct Signal {
    name: String,
    target: f64,
    weight: f64,
    role: Role,
    of_cpu: bool,
}

/// The highest weight: sums of weighted levels stay numbers, and what weighs a billionth of another
/// is not heard beside it anyway.
const WEIGHT_MAX: f64 = 1e9;

impl Signal {
    /// A leading signal called `name` which should not exceed `target`.
    pub fn new(name: impl Into<String>, target: f64) -> Result<Self, InvalidNumber> {
        if target.is_finite() && target > 0.0 {
            Ok(Self { name: name.into(), target, weight: 1.0, role: Role::Leading, of_cpu: false })
        } else {
            Err(InvalidNumber::new("a signal's target", "more than zero, and finite", target))
        }
    }

    /// What it may do; [`Role::Leading`] if not said.
    #[must_use]
    pub fn role(mut self, role: Role) -> Self {
        self.role = role;
        self
    }

    /// It tells how short the CPU is, as what waits for it does: see [`Signals::beyond_cpu`].
    #[must_use]
    pub const fn of_cpu(mut self, of_cpu: bool) -> Self {
        self.of_cpu = of_cpu;
        self
    }

    /// Its weight in a [`Combine::WeightedSum`], from zero to a billion; 1 if not said.
    pub fn weight(mut self, weight: f64) -> Result<Self, InvalidNumber> {
        if (0.0..=WEIGHT_MAX).contains(&weight) {
            self.weight = weight;
            Ok(self)
        } else {
            Err(InvalidNumber::new("a signal's weight", "between zero and a billion", weight))
        }
    }

    /// What it is called in metrics and explanations.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// What the signals say together, as multiples of the target: 1 is as full as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// Smoothed: whether the task is overloaded.
    pub utilization: Utilization,
    /// At this very moment, not smoothed: how far there is to go. A controller that steered by the
    /// smoothed value would always be late, and swing.
    pub instant: Utilization,
    /// The signal that decided, or [`SignalId::COMBINED`].
    pub signal: SignalId,
}

impl Reading {
    /// Nothing is known, so nothing is full.
    pub const IDLE: Self = Self {
        utilization: Utilization::ZERO,
        instant: Utilization::ZERO,
        signal: SignalId::COMBINED,
    };
}

/// The signals of one task.
#[derive(Debug, Clone)]
pub struct Signals {
    combine: Combine,
    confirm_from: f64,
    signals: Vec<(Signal, Option<Heard>)>,
}

#[derive(Debug, Clone, Copy)]
struct Heard {
    /// Smoothed, as a multiple of the target.
    level: f64,
    /// Not smoothed, as a multiple of the target.
    instant: f64,
    at: Timestamp,
}

impl Signals {
    /// Sources are sampled many times a second; one that is silent for this long is dead.
    pub const STALE_AFTER: Duration = Duration::from_secs(5);

    /// As many as have a number of their own below [`SignalId::QUEUE`].
    pub const COUNT_MAX: usize = SignalId::QUEUE.0 as usize;

    /// The lowest threshold by default: below it a leading signal declares nothing, and there is
    /// nothing to confirm.
    pub const CONFIRM_FROM: f64 = 0.85;

    /// No signals yet.
    pub const fn new(combine: Combine) -> Self {
        Self { combine, confirm_from: Self::CONFIRM_FROM, signals: Vec::new() }
    }

    /// Confirming signals count while a leading one stands at `level` or above. Default
    /// [`Signals::CONFIRM_FROM`]; whoever sets other thresholds sets this to the lowest of them.
    #[must_use]
    pub fn confirm_from(mut self, level: Utilization) -> Self {
        self.confirm_from = level.get();
        self
    }

    /// Adds a signal; nothing if there are [`Signals::COUNT_MAX`] already.
    pub fn register(&mut self, signal: Signal) -> Option<SignalId> {
        let id = u8::try_from(self.signals.len()).ok().filter(|&id| id < SignalId::QUEUE.0)?;
        self.signals.push((signal, None));
        Some(SignalId(id))
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch(&self) -> u64 {
        let signals = self.signals.iter();
        signals.fold(0, |word, (signal, heard)| {
            let level = heard.map_or(0.0, |heard| heard.level);
            word ^ signal.target.to_bits() ^ level.to_bits()
        })
    }

    /// The signal with this number.
    pub fn get(&self, id: SignalId) -> Option<&Signal> {
        self.signals.get(usize::from(id.0)).map(|(signal, _)| signal)
    }

    /// The signal stands at `value`, in its own unit. Returns whether that was taken: numbers that
    /// are negative or not finite, and unknown signals, are not.
    pub fn record(&mut self, id: SignalId, value: f64, now: Timestamp) -> bool {
        self.record_smoothed(id, value, value, now)
    }

    /// The signal stands at `smoothed` on average and at `instant` right now. Returns whether that
    /// was taken, as in [`Signals::record`].
    pub fn record_smoothed(
        &mut self,
        id: SignalId,
        smoothed: f64,
        instant: f64,
        now: Timestamp,
    ) -> bool {
        let Some((signal, heard)) = self.signals.get_mut(usize::from(id.0)) else { return false };
        let (level, instant) = (smoothed / signal.target, instant / signal.target);
        let taken = [level, instant].iter().all(|x| x.is_finite() && *x >= 0.0);
        if taken {
            *heard = Some(Heard { level, instant, at: now });
        }
        taken
    }

    /// What they say together.
    pub fn reading(&self, now: Timestamp) -> Reading {
        self.reading_of(now, |_| true)
    }

    /// What those say together that are not of the CPU. Where it is known what the CPUs are capable
    /// of, requests that fit are not too many for them, however short others make them; but they
    /// may be too many for a memory or a pool.
    pub fn beyond_cpu(&self, now: Timestamp) -> Reading {
        self.reading_of(now, |signal| !signal.of_cpu)
    }

    fn reading_of(&self, now: Timestamp, counts: impl Fn(&Signal) -> bool) -> Reading {
        let fresh = |role: Role| {
            self.signals.iter().enumerate().filter_map(move |(i, (signal, heard))| {
                let heard = heard.filter(|h| now.since(h.at) <= Self::STALE_AFTER)?;
                (signal.role == role).then_some((i, signal, heard))
            })
        };
        let leading = fresh(Role::Leading).map(|(_, _, heard)| heard.level).fold(0.0, f64::max);
        let voices = fresh(Role::Leading)
            .chain(fresh(Role::Confirming).filter(move |_| leading >= self.confirm_from))
            .filter(|(_, signal, _)| counts(signal));
        match self.combine {
            Combine::Highest => voices
                .fold(None, |best: Option<(usize, Heard)>, (i, _, heard)| match best {
                    Some((_, highest)) if highest.level >= heard.level => best,
                    _ => Some((i, heard)),
                })
                .map_or(Reading::IDLE, |(i, heard)| {
                    reading(heard.level, heard.instant, SignalId(i as u8))
                }),
            Combine::WeightedSum => {
                let (level, instant, weights) =
                    voices.fold((0.0, 0.0, 0.0), |(level, instant, weights), (_, s, heard)| {
                        let weighted = (s.weight * heard.level, s.weight * heard.instant);
                        (level + weighted.0, instant + weighted.1, weights + s.weight)
                    });
                if weights > 0.0 {
                    reading(level / weights, instant / weights, SignalId::COMBINED)
                } else {
                    Reading::IDLE
                }
            }
        }
    }
}

fn reading(level: f64, instant: f64, signal: SignalId) -> Reading {
    // Every level is finite, but a sum of them may not be.
    let finite = |x: f64| Utilization::new(x.min(f64::MAX)).unwrap_or(Utilization::ZERO);
    Reading { utilization: finite(level), instant: finite(instant), signal }
}
