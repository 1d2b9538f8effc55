//! Whether to try again.
//!
//! When a few tasks of many are overloaded, the best answer to a refusal is to send the request
//! again at once: another task most likely takes it, and the load moves to where there is room.
//! When most are, retries only add to the load, three times over, and three times three with every
//! layer of the stack. Four rules tell the two apart:
//!
//! - **At most three attempts a request.** Whoever met three full tasks will meet a fourth.
//! - **At most a tenth of a client's requests are retries.** With few full tasks that is plenty;
//!   with many it holds the growth at 1.1 times instead of 3. This is the [`RetryBudget`].
//! - **The refusal's [`Advice`] is obeyed.** "Don't retry" means it; a wait is waited exactly.
//! - **Only the layer right above a refusal retries.** Whoever gives up tells its own caller not to
//!   retry ([`GiveUpReason::advice_above`]), or answers in a degraded way.
//!
//! A retry goes through balancer and throttle like any new request: nothing makes sure that it
//! reaches a different task, it is merely likely to.
//!
//! An attempt that failed without a refusal (no connection, no answer) has no advice of its own.
//! The shell treats it as [`Advice::RetryElsewhere`] if the request may be sent twice, and as
//! [`Advice::DontRetry`] if not; the budget holds for these retries as well.

mod budget;
mod gate;
#[cfg(test)]
#[cfg(not(feature = "loom"))]
mod tests;

pub use budget::{BudgetConfig, RetryBudget};
pub use gate::{BudgetController, BudgetCounts, BudgetGate, BudgetLane};

use crate::decision::Advice;
use core::fmt;
use core::num::NonZeroU32;
use core::time::Duration;

/// The rules for a single request. Start from [`RetryPolicy::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct RetryPolicy {
    /// How often a request is tried in all, the first time included: three times. With a tenth of
    /// the tasks full, one request in a thousand fails after that; with nearly all of them full, no
    /// number would help.
    pub attempts_max: NonZeroU32,
}

impl Default for RetryPolicy {
    fn default() -> Self {
        const THREE: NonZeroU32 = NonZeroU32::MIN.saturating_add(2);
        Self { attempts_max: THREE }
    }
}

impl RetryPolicy {
    /// What to do after attempt number `attempt` (the first is 1) has failed with this advice.
    ///
    /// `remaining` is the time until the request's deadline; who has none says how long an answer
    /// would still be wanted. `withdraw` asks the budget for one retry, and is called last, only if
    /// nothing else is against it: what it grants is spent.
    ///
    /// For the shell's request path, once per failed attempt. Costs a few compares and the
    /// withdrawal ([`BudgetLane::withdraw`], or [`RetryBudget::withdraw`] for a single owner).
    ///
    /// ```
    /// use std::time::Duration;
    /// use tidegate_core::decision::Advice;
    /// use tidegate_core::retry::{GiveUpReason, RetryDecision, RetryPolicy};
    ///
    /// let policy = RetryPolicy::default();
    /// let second = Duration::from_secs(1);
    /// assert_eq!(
    ///     policy.decide(1, Advice::RetryElsewhere, second, || true),
    ///     RetryDecision::Retry { after: Duration::ZERO },
    /// );
    /// assert_eq!(
    ///     policy.decide(1, Advice::DontRetry, second, || true),
    ///     RetryDecision::GiveUp(GiveUpReason::Advised),
    /// );
    /// ```
    pub fn decide(
        &self,
        attempt: u32,
        advice: Advice,
        remaining: Duration,
        withdraw: impl FnOnce() -> bool,
    ) -> RetryDecision {
        let after = match advice {
            Advice::DontRetry => return RetryDecision::GiveUp(GiveUpReason::Advised),
            Advice::RetryElsewhere => Duration::ZERO,
            Advice::RetryAfter(wait) => wait,
        };
        if attempt >= self.attempts_max.get() {
            RetryDecision::GiveUp(GiveUpReason::AttemptsExhausted)
        } else if after >= remaining {
            RetryDecision::GiveUp(GiveUpReason::DeadlineWouldPass)
        } else if withdraw() {
            RetryDecision::Retry { after }
        } else {
            RetryDecision::GiveUp(GiveUpReason::BudgetExhausted)
        }
    }
}

/// What to do after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum RetryDecision {
    /// Send it again, through the balancer, after exactly this long; zero means at once.
    Retry {
        /// How long to wait.
        after: Duration,
    },
    /// Don't.
    GiveUp(GiveUpReason),
}

/// Why a request is not tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GiveUpReason {
    /// The refusal said not to.
    Advised,
    /// It was tried as often as a request may be.
    AttemptsExhausted,
    /// The answer would come too late for whoever asked.
    DeadlineWouldPass,
    /// The client has made as many retries lately as it may.
    BudgetExhausted,
}

impl GiveUpReason {
    /// All reasons, for tables of counters.
    pub const ALL: [Self; 4] =
        [Self::Advised, Self::AttemptsExhausted, Self::DeadlineWouldPass, Self::BudgetExhausted];

    /// The code that stands in metrics and events.
    pub const fn code(self) -> &'static str {
        match self {
            Self::Advised => "advised",
            Self::AttemptsExhausted => "attempts_exhausted",
            Self::DeadlineWouldPass => "deadline_would_pass",
            Self::BudgetExhausted => "budget_exhausted",
        }
    }

    /// What to tell our own caller if the request cannot be answered without this dependency.
    ///
    /// Always not to retry. This layer was the one to try again, and it has: were each of `n`
    /// layers to repeat three attempts, the lowest would see `3^n`. It holds for a deadline that
    /// would pass too, as the caller's is no later than ours.
    ///
    /// For the shell's request path; costs nothing.
    pub const fn advice_above(self) -> Advice {
        match self {
            Self::Advised
            | Self::AttemptsExhausted
            | Self::DeadlineWouldPass
            | Self::BudgetExhausted => Advice::DontRetry,
        }
    }
}

impl fmt::Display for GiveUpReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}
