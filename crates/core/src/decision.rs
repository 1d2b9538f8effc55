//! Decisions as values that say why.
//!
//! A refused request has a [`Reason`], an [`Advice`] for whoever sent it, and the [`Cause`]: which
//! signal stood at what, over which threshold, or which limit was met. Shells map these to statuses
//! and headers, metrics count them, the simulator checks them; nobody has to guess or to parse a
//! text.
//!
//! All of it is a few bytes and `Copy`. Making a rejection must be far cheaper than serving the
//! request, or an overloaded task spends itself on saying no.

use crate::criticality::Criticality;
use crate::units::Utilization;
use core::fmt;
use core::time::Duration;

/// Why a request was not served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// The task is on its way out and takes no new requests.
    LameDuck,
    /// Whoever asked has stopped waiting.
    DeadlinePassed,
    /// The customer has used what it may use.
    OutOfQuota,
    /// The task has more to do than it can.
    Overloaded,
    /// The client itself held the request back: the backend would most likely have refused it.
    Throttled,
    /// There are more connections, or more new ones a second, than the task takes.
    TooManyConnections,
    /// The queue that smooths batch work is full.
    QueueFull,
}

impl Reason {
    /// All reasons, for tables of counters.
    pub const ALL: [Self; 7] = [
        Self::LameDuck,
        Self::DeadlinePassed,
        Self::OutOfQuota,
        Self::Overloaded,
        Self::Throttled,
        Self::TooManyConnections,
        Self::QueueFull,
    ];

    /// The code that stands in headers, metrics and events.
    pub const fn code(self) -> &'static str {
        match self {
            Self::LameDuck => "lame_duck",
            Self::DeadlinePassed => "deadline_passed",
            Self::OutOfQuota => "out_of_quota",
            Self::Overloaded => "overloaded",
            Self::Throttled => "throttled",
            Self::TooManyConnections => "too_many_connections",
            Self::QueueFull => "queue_full",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

/// What the refused should do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Advice {
    /// Try again at once: another task may well take it.
    RetryElsewhere,
    /// Don't: others are full too, or it is not ours to decide. Tell whoever asked you the same.
    DontRetry,
    /// Try again after exactly this long.
    RetryAfter(Duration),
}

/// Which of the task's utilization signals. Numbers are given out by
/// the shell, in the order in which it registers its signals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SignalId(pub u8);

impl SignalId {
    /// No signal in particular: a weighted sum of several.
    pub const COMBINED: Self = Self(u8::MAX);
    /// What waits at the task, by what is in flight: the admission controller's own signal.
    pub const QUEUE: Self = Self(u8::MAX - 1);
}

/// A utilization or a probability in whole thousandths, small enough to travel with every
/// rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Thousandths(pub u32);

impl From<Utilization> for Thousandths {
    /// Rounds, and stops at four million.
    fn from(utilization: Utilization) -> Self {
        Self((utilization.get() * 1_000.0).round() as u32)
    }
}

impl fmt::Display for Thousandths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1_000, self.0 % 1_000)
    }
}

/// The numbers behind a rejection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// A signal stood over the threshold of this criticality. Both are multiples of its target.
    Signal {
        /// The signal that was furthest over its target.
        signal: SignalId,
        /// Where it stood.
        utilization: Thousandths,
        /// What this criticality may see.
        threshold: Thousandths,
    },
    /// The customer's quota had nothing left for this criticality.
    Quota {
        /// When it will have, if the customer asks for nothing meanwhile.
        opens_in: Duration,
    },
    /// The client's own throttle drew lots.
    Throttle {
        /// How likely a request of this criticality was to be held back.
        probability: Thousandths,
    },
    /// There were as many open connections as this criticality may see.
    Connections {
        /// Open connections.
        open: u32,
        /// From how many on this criticality is refused.
        limit: u32,
    },
    /// New connections came faster than they are taken.
    AcceptRate {
        /// How many are taken a second, in the long run.
        per_second: u32,
    },
    /// More was queued than the queue holds, or than is done before the deadline of this item.
    Queue {
        /// What was queued, of that what would have gone first.
        queued: u32,
        /// For how much there is room, or time.
        limit: u32,
    },
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal { signal, utilization, threshold } => {
                write!(f, "signal {} at {utilization}, over {threshold}", signal.0)
            }
            Self::Quota { opens_in } => write!(f, "quota opens in {opens_in:?}"),
            Self::Throttle { probability } => write!(f, "held back with probability {probability}"),
            Self::Connections { open, limit } => {
                write!(f, "{open} connections open, with room for {limit}")
            }
            Self::AcceptRate { per_second } => {
                write!(f, "more than {per_second} new connections a second")
            }
            Self::Queue { queued, limit } => write!(f, "{queued} queued, with room for {limit}"),
        }
    }
}

/// A request that is not served: why, on what grounds, and what to do next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Rejection {
    /// Why.
    pub reason: Reason,
    /// What to do next.
    pub advice: Advice,
    /// What the request counted as.
    pub criticality: Criticality,
    /// The numbers behind it, where the reason has numbers.
    pub cause: Option<Cause>,
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.reason, self.criticality)?;
        if let Some(cause) = self.cause {
            write!(f, ": {cause}")?;
        }
        match self.advice {
            Advice::RetryElsewhere => f.write_str("; may be retried elsewhere"),
            Advice::DontRetry => f.write_str("; don't retry"),
            Advice::RetryAfter(wait) => write!(f, "; retry after {wait:?}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cause_tells_its_numbers() {
        for (cause, text) in [
            (Cause::Quota { opens_in: Duration::from_millis(7) }, "quota opens in 7ms"),
            (Cause::Throttle { probability: Thousandths(981) }, "held back with probability 0.981"),
            (Cause::Connections { open: 91, limit: 90 }, "91 connections open, with room for 90"),
            (Cause::AcceptRate { per_second: 500 }, "more than 500 new connections a second"),
            (Cause::Queue { queued: 10, limit: 9 }, "10 queued, with room for 9"),
        ] {
            assert_eq!(cause.to_string(), text);
        }
    }

    #[test]
    fn a_rejection_tells_its_story() {
        let rejection = Rejection {
            reason: Reason::Overloaded,
            advice: Advice::DontRetry,
            criticality: Criticality::Sheddable,
            cause: Some(Cause::Signal {
                signal: SignalId(0),
                utilization: Thousandths(1_500),
                threshold: Thousandths(850),
            }),
        };
        assert_eq!(
            rejection.to_string(),
            "overloaded (SHEDDABLE): signal 0 at 1.500, over 0.850; don't retry"
        );
    }

    #[test]
    fn a_rejection_stays_small() {
        assert!(size_of::<Cause>() <= 24, "{}", size_of::<Cause>());
        assert!(size_of::<Rejection>() <= 48, "{}", size_of::<Rejection>());
    }

    #[test]
    fn codes_are_distinct() {
        let codes: std::collections::BTreeSet<_> = Reason::ALL.map(Reason::code).into();
        assert_eq!(codes.len(), Reason::ALL.len());
    }
}
