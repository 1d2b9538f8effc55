//! What a request of one criticality meets, in one word.
//!
//! In an overload most requests are refused, and a refusal has to cost next to nothing. All that it
//! needs to know of the gate is written into one word for each criticality: one load, and one test
//! tells that the level is closed and that nothing else is to be looked at. The word then goes out
//! with the refusal as it is; what it says is worked out if anybody asks ([`Refusal`]).
//!
//! ```text
//! bits  0-15  the share that gets in, in 65,536ths; the highest value means all
//!         16  lame duck: nobody gets in
//!         17  dark: everybody gets in, but for lame duck
//!         18  refusals say "don't retry"
//!         19  degraded answers are asked for
//!      20-35  the threshold of this criticality, in thousandths, as far as 65.535
//!      36-43  the signal that was furthest over its target
//!      44-63  where it stood, in thousandths, as far as 1,048.575
//! ```
//!
//! A share and the cause that is told for it are so always of the same plan. The words of two
//! criticalities are written one after the other: in the nanoseconds between, one level goes by the
//! new plan and another by the old. What closes is therefore written from the lowest level up and
//! what opens from the highest down, by [`Level::lets_in`].

use crate::criticality::Criticality;
use crate::decision::{Advice, Cause, Reason, Rejection, SignalId, Thousandths};
use crate::levels::Levels;
use crate::rng::Rng;
use core::fmt;

const SHARE: u64 = 0xffff;
const LAME_DUCK: u64 = 1 << 16;
const DARK: u64 = 1 << 17;
const DONT_RETRY: u64 = 1 << 18;
const DEGRADE: u32 = 19;
const THRESHOLD: u32 = 20;
const THRESHOLD_MAX: u32 = 0xffff;
const SIGNAL: u32 = 36;
const UTILIZATION: u32 = 44;
const UTILIZATION_MAX: u32 = (1 << (64 - UTILIZATION)) - 1;

/// See the module.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(u64);

impl Level {
    /// All get in.
    pub(super) const OPEN: Self = Self(SHARE);

    pub(super) const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    pub(super) const fn bits(self) -> u64 {
        self.0
    }

    /// Nobody gets in, and there is no lame duck or dark mode to think of.
    #[inline]
    pub(super) const fn is_closed(self) -> bool {
        self.0 & (SHARE | LAME_DUCK | DARK) == 0
    }

    /// All get in.
    #[inline]
    pub(super) const fn is_open(self) -> bool {
        self.0 & (SHARE | LAME_DUCK) == SHARE
    }

    /// How much gets in, as a number to compare with another's.
    pub(super) const fn lets_in(self) -> u64 {
        if self.is_lame_duck() {
            0
        } else if self.is_dark() {
            SHARE
        } else {
            self.0 & SHARE
        }
    }

    /// Whether a request gets in where some do, by the dice.
    #[inline]
    pub(super) fn admits(self, rng: &mut impl Rng) -> bool {
        match self.0 & SHARE {
            SHARE => true,
            0 => false,
            share => (rng.next_u64() >> 48) < share,
        }
    }

    #[inline]
    pub(super) const fn is_lame_duck(self) -> bool {
        self.0 & LAME_DUCK != 0
    }

    #[inline]
    pub(super) const fn is_dark(self) -> bool {
        self.0 & DARK != 0
    }

    /// Whether degraded answers are asked for; as a number, for words that it becomes part of.
    #[inline]
    pub(super) const fn degrade(self) -> u64 {
        self.0 >> DEGRADE & 1
    }

    /// What to tell those who are refused for overload.
    #[inline]
    pub(super) const fn advice(self) -> Advice {
        if self.0 & DONT_RETRY != 0 { Advice::DontRetry } else { Advice::RetryElsewhere }
    }

    const fn cause(self) -> Cause {
        Cause::Signal {
            signal: SignalId((self.0 >> SIGNAL) as u8),
            utilization: Thousandths((self.0 >> UTILIZATION) as u32),
            threshold: Thousandths((self.0 >> THRESHOLD) as u32 & THRESHOLD_MAX),
        }
    }

    /// The share of `criticality` among `levels`, and all else as it was.
    pub(super) const fn with_share(self, levels: Levels, criticality: Criticality) -> Self {
        Self(self.0 & !SHARE | levels.bits(criticality) as u64)
    }

    /// The share, from which to make [`Levels`] again.
    pub(super) const fn share_bits(self) -> u16 {
        self.0 as u16
    }

    pub(super) const fn with_lame_duck(self, on: bool) -> Self {
        self.with(LAME_DUCK, on)
    }

    pub(super) const fn with_dark(self, on: bool) -> Self {
        self.with(DARK, on)
    }

    pub(super) fn with_advice(self, advice: Advice) -> Self {
        self.with(DONT_RETRY, advice == Advice::DontRetry)
    }

    pub(super) const fn with_degrade(self, on: bool) -> Self {
        self.with(1 << DEGRADE, on)
    }

    /// What to tell those who are refused.
    pub(super) fn with_cause(
        self,
        signal: SignalId,
        utilization: Thousandths,
        threshold: Thousandths,
    ) -> Self {
        let kept = self.0 & ((1 << THRESHOLD) - 1);
        let threshold = u64::from(threshold.0.min(THRESHOLD_MAX));
        let utilization = u64::from(utilization.0.min(UTILIZATION_MAX));
        Self(
            kept | threshold << THRESHOLD
                | u64::from(signal.0) << SIGNAL
                | utilization << UTILIZATION,
        )
    }

    const fn with(self, bit: u64, on: bool) -> Self {
        Self(if on { self.0 | bit } else { self.0 & !bit })
    }
}

/// A request that the gate does not let in. Says why and what to do next when it is asked: made
/// millions of times a second, it is read far less often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Refusal {
    /// For a refusal by overload the level's word; by quota, in how many nanoseconds it opens.
    word: u64,
    /// The criticality above the reason. A whole word, so that it is written as one; and as far up
    /// as a line of counts is long, as that number is there when a refusal is counted.
    about: u64,
}

/// Where the criticality stands.
const CRITICALITY: u32 = 6;
const REASON: u64 = (1 << CRITICALITY) - 1;

/// A reason as it stands there: that of nearly all is nothing.
const fn code(reason: Reason) -> u64 {
    reason as u64 ^ Reason::Overloaded as u64
}

impl Refusal {
    #[inline]
    pub(super) const fn overloaded(level: Level, criticality: Criticality) -> Self {
        Self::other(Reason::Overloaded, criticality, level.bits())
    }

    /// For any other of the gate's reasons; out of quota, `word` says when it opens.
    #[inline]
    pub(super) const fn other(reason: Reason, criticality: Criticality, word: u64) -> Self {
        Self { word, about: (criticality as u64) << CRITICALITY | code(reason) }
    }

    /// Why.
    #[inline]
    pub const fn reason(&self) -> Reason {
        const LAME_DUCK: u64 = code(Reason::LameDuck);
        const DEADLINE_PASSED: u64 = code(Reason::DeadlinePassed);
        const OUT_OF_QUOTA: u64 = code(Reason::OutOfQuota);
        match self.about & REASON {
            LAME_DUCK => Reason::LameDuck,
            DEADLINE_PASSED => Reason::DeadlinePassed,
            OUT_OF_QUOTA => Reason::OutOfQuota,
            _ => Reason::Overloaded,
        }
    }

    /// What the request counted as.
    #[inline]
    pub const fn criticality(&self) -> Criticality {
        Criticality::ALL[(self.about >> CRITICALITY) as usize % Criticality::COUNT]
    }

    /// What to do next.
    #[inline]
    pub const fn advice(&self) -> Advice {
        match self.reason() {
            Reason::Overloaded => Level(self.word).advice(),
            Reason::LameDuck => Advice::RetryElsewhere,
            _ => Advice::DontRetry,
        }
    }

    /// The numbers behind it, where the reason has numbers.
    #[inline]
    pub const fn cause(&self) -> Option<Cause> {
        match self.reason() {
            Reason::Overloaded => Some(Level(self.word).cause()),
            Reason::OutOfQuota => {
                Some(Cause::Quota { opens_in: core::time::Duration::from_nanos(self.word) })
            }
            _ => None,
        }
    }

    /// All of it.
    #[inline]
    pub const fn rejection(&self) -> Rejection {
        Rejection {
            reason: self.reason(),
            advice: self.advice(),
            criticality: self.criticality(),
            cause: self.cause(),
        }
    }
}

impl From<Refusal> for Rejection {
    #[inline]
    fn from(refusal: Refusal) -> Self {
        refusal.rejection()
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.rejection().fmt(f)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Whatever is written into a level is read again, and moves nothing else.
        #[test]
        fn no_part_of_a_level_touches_another(
            shares: [f64; 4],
            flags: [bool; 4],
            numbers: (u8, u32, u32),
            order in Just([0, 1, 2, 3, 4, 5]).prop_shuffle(),
        ) {
            let [lame_duck, dark, dont_retry, degrade] = flags;
            let (signal, utilization, threshold) = numbers;
            let levels = Levels::from_shares(shares);
            let advice = if dont_retry { Advice::DontRetry } else { Advice::RetryElsewhere };
            for criticality in Criticality::ALL {
                let mut level = Level::OPEN;
                for part in order {
                    level = match part {
                        0 => level.with_share(levels, criticality),
                        1 => level.with_lame_duck(lame_duck),
                        2 => level.with_dark(dark),
                        3 => level.with_advice(advice),
                        4 => level.with_degrade(degrade),
                        _ => level.with_cause(
                            SignalId(signal),
                            Thousandths(utilization),
                            Thousandths(threshold),
                        ),
                    };
                }
                prop_assert_eq!(level.share_bits(), levels.bits(criticality));
                prop_assert_eq!(level.is_lame_duck(), lame_duck);
                prop_assert_eq!(level.is_dark(), dark);
                prop_assert_eq!(level.degrade() == 1, degrade);
                let share = levels.share(criticality);
                prop_assert_eq!(level.is_open(), share >= 1.0 && !lame_duck);
                prop_assert_eq!(level.is_closed(), share <= 0.0 && !lame_duck && !dark);
                let refusal = Refusal::overloaded(level, criticality);
                let expected = Rejection {
                    reason: Reason::Overloaded,
                    advice,
                    criticality,
                    cause: Some(Cause::Signal {
                        signal: SignalId(signal),
                        utilization: Thousandths(utilization.min(1_048_575)),
                        threshold: Thousandths(threshold.min(65_535)),
                    }),
                };
                prop_assert_eq!(Rejection::from(refusal), expected);
            }
        }
    }
}
