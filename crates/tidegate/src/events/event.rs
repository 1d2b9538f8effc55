//! What is told about a decision.

use super::source::{CriticalityFrom, CustomerFrom};
use crate::signals::Health;
use core::fmt;
use http::StatusCode;
use std::sync::Arc;
use tidegate_core::decision::{Advice, Cause, Reason, SignalId, Thousandths};
use tidegate_core::{Criticality, Timestamp};
use tidegate_wire::grpc::Code;
use tidegate_wire::reject::DecisionId;

/// Something that the task has decided.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Event {
    /// When, by the task's clock.
    pub at: Timestamp,
    /// What.
    pub what: What,
}

/// What was decided.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum What {
    /// A request was refused, or would have been if the task were not dark.
    Refused(Refusal),
    /// A request was let in, and got another answer than its handler's.
    Ended(Ended),
    /// Other criticalities are shed than before.
    Shed {
        /// The highest that was refused at times, if any was.
        before: Option<Criticality>,
        /// The highest that is refused at times from now on, if any is.
        now: Option<Criticality>,
        /// What is furthest over its target.
        grounds: Grounds,
    },
    /// Degraded answers are asked for, or not any more.
    Degrade {
        /// From requests that count as this.
        criticality: Criticality,
        /// Whether they are asked.
        on: bool,
        /// What is furthest over its target.
        grounds: Grounds,
    },
    /// Refusals say "don't retry", or may be retried elsewhere again.
    DontRetry(bool),
    /// The task takes no new requests, or takes them again.
    LameDuck(bool),
    /// The task decides and refuses nobody, or refuses again.
    Dark(bool),
}

/// A request that was refused.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Refusal {
    /// What its answer has in `x-tidegate-decision`.
    pub id: DecisionId,
    /// Why.
    pub reason: Reason,
    /// What it counted as.
    pub criticality: Criticality,
    /// What said so.
    pub criticality_from: CriticalityFrom,
    /// Whether it claimed more than its sender may.
    pub lowered: bool,
    /// Whom it was charged to, if that one has limits of their own.
    pub customer: Option<Arc<str>>,
    /// What said so.
    pub customer_from: CustomerFrom,
    /// Which try it was, from 1.
    pub attempt: u32,
    /// The numbers behind it, where the reason has numbers.
    pub grounds: Option<Grounds>,
    /// How it was answered; nothing in dark mode, which let it in.
    pub answer: Option<Answer>,
}

/// A request that was let in, and got another answer than its handler's.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Ended {
    /// What its answer has in `x-tidegate-decision`.
    pub id: DecisionId,
    /// How it ended.
    pub how: Ending,
    /// What it counted as.
    pub criticality: Criticality,
    /// Whom it was charged to, if that one has limits of their own.
    pub customer: Option<Arc<str>>,
    /// Which try it was, from 1.
    pub attempt: u32,
    /// How it was answered.
    pub answer: Answer,
}

/// How a request ended that was let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Ending {
    /// A dependency was overloaded and its handler failed: that became "overloaded; don't retry".
    OverloadedBelow,
    /// Its deadline passed before its handler was done, or had begun.
    Cancelled,
}

impl Ending {
    pub(super) const COUNT: usize = 2;

    /// In a word.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OverloadedBelow => "overloaded_below",
            Self::Cancelled => "cancelled",
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::OverloadedBelow => "failed, as a dependency was overloaded",
            Self::Cancelled => "cancelled at its deadline",
        })
    }
}

/// The answer to a request that was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// Its status in HTTP.
    pub status: StatusCode,
    /// Its status in gRPC, if it is gRPC.
    pub code: Option<Code>,
    /// What it tells the caller to do.
    pub advice: Advice,
}

/// The numbers behind a decision.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Grounds {
    /// Where a signal stood, in its own unit.
    Signal {
        /// Its name: `executor_load`, `queue`.
        name: String,
        /// Where it stood.
        value: f64,
        /// What was to be held, where there is one number for it.
        threshold: Option<f64>,
    },
    /// Something else.
    Other(Cause),
}

impl Grounds {
    pub(super) fn of(cause: Cause, signals: &[Health]) -> Self {
        match cause {
            Cause::Signal { signal, utilization, threshold } => {
                Self::signal(signal, utilization, Some(threshold), signals)
            }
            other => Self::Other(other),
        }
    }

    /// From multiples of a signal's target.
    pub(super) fn signal(
        id: SignalId,
        utilization: Thousandths,
        threshold: Option<Thousandths>,
        signals: &[Health],
    ) -> Self {
        let health = signals.iter().find(|health| health.id == id);
        let name = match (id, health) {
            (_, Some(health)) => health.name.clone(),
            (SignalId::QUEUE, None) => "queue".to_owned(),
            (SignalId::COMBINED, None) => "combined".to_owned(),
            (SignalId(n), None) => format!("signal {n}"),
        };
        let target = health.map_or(1.0, |health| health.target);
        let in_its_unit = |Thousandths(n)| f64::from(n) / 1_000.0 * target;
        let threshold = threshold.map(in_its_unit);
        Self::Signal { name, value: in_its_unit(utilization), threshold }
    }
}

impl fmt::Display for Grounds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { name, value, threshold: Some(threshold) } => {
                write!(f, "{name} at {value:.3}, over {threshold:.3}")
            }
            Self::Signal { name, value, threshold: None } => write!(f, "{name} at {value:.3}"),
            Self::Other(cause) => cause.fmt(f),
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Ended(ended) => ended.fmt(f),
            Self::Shed { before: None, now: Some(now), grounds } => {
                write!(f, "began to shed {now}: {grounds}")
            }
            Self::Shed { before, now: Some(now), grounds } if Some(*now) > *before => {
                write!(f, "sheds {now} as well: {grounds}")
            }
            Self::Shed { now: Some(now), .. } => write!(f, "sheds no more than {now}"),
            Self::Shed { now: None, .. } => f.write_str("sheds nothing any more"),
            Self::Degrade { criticality, on: true, grounds } => {
                write!(f, "asks {criticality} for degraded answers: {grounds}")
            }
            Self::Degrade { criticality, on: false, .. } => {
                write!(f, "asks {criticality} for whole answers")
            }
            Self::DontRetry(true) => f.write_str("says \"don't retry\": too many are retries"),
            Self::DontRetry(false) => f.write_str("lets retry elsewhere"),
            Self::LameDuck(true) => f.write_str("takes no new requests"),
            Self::LameDuck(false) => f.write_str("takes requests"),
            Self::Dark(true) => f.write_str("is dark: decides, and refuses nobody"),
            Self::Dark(false) => f.write_str("is dark no more"),
        }
    }
}

/// `1f… refused as overloaded (SHEDDABLE by baggage, shop by certificate, attempt 1):
/// executor_load at 31.200, over 13.600; answered 503, may be retried elsewhere`
impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, reason, criticality, attempt, .. } = self;
        let how = if self.answer.is_some() { "refused" } else { "let in by dark mode" };
        let by = self.criticality_from.name();
        let lowered = if self.lowered { ", lowered" } else { "" };
        let customer = self.customer.as_deref().unwrap_or("other");
        let from = self.customer_from.name();
        write!(f, "{id} {how}, {reason} ({criticality} by {by}{lowered}, ")?;
        write!(f, "{customer} by {from}, attempt {attempt})")?;
        if let Some(grounds) = &self.grounds {
            write!(f, ": {grounds}")?;
        }
        let Some(answer) = &self.answer else { return Ok(()) };
        write!(f, "; answered {answer}")
    }
}

/// `1f… cancelled at its deadline (SHEDDABLE, shop, attempt 1); answered 504, don't retry`
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, how, criticality, attempt, answer, .. } = self;
        let customer = self.customer.as_deref().unwrap_or("other");
        write!(f, "{id} {how} ({criticality}, {customer}, attempt {attempt}); answered {answer}")
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.code {
            Some(code) => write!(f, "{code:?}")?,
            None => write!(f, "{}", self.status.as_u16())?,
        }
        match self.advice {
            Advice::RetryElsewhere => f.write_str(", may be retried elsewhere"),
            Advice::DontRetry => f.write_str(", don't retry"),
            Advice::RetryAfter(wait) => write!(f, ", retry after {wait:?}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.what.fmt(f)
    }
}
