//! How an attempt ended, as whoever sent it sees it.
//!
//! A shell looks at a response once and tells everyone the same. What follows differs:
//!
//! | | throttle | balancing | batch pace |
//! |---|---|---|---|
//! | [`Served`](Outcome::Served) | an accept | a success | an accept |
//! | [`Failed`](Outcome::Failed) | an accept: it was taken on | an error | an accept |
//! | [`Refused`](Outcome::Refused) | a refusal | an error | slow down, as advised |
//! | [`NoAnswer`](Outcome::NoAnswer) | no accept | an error | slow down |
//! | [`Abandoned`](Outcome::Abandoned) | not counted | not counted | not counted |

use crate::decision::Advice;

/// How an attempt ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The backend did what it should. An error that the request itself is to blame for (not found,
    /// not allowed) is one of these.
    Served,
    /// The backend took it on and failed: an error that it alone is to blame for.
    Failed,
    /// The backend refused it for overload or quota, and said what to do next.
    Refused(Advice),
    /// No answer came within the attempt's deadline, or there was no connection to send it on.
    ///
    /// Not an accept: a backend that drowns too deep to refuse looks exactly like this.
    NoAnswer,
    /// Whoever asked went away before the deadline. Says nothing about the backend.
    Abandoned,
}

impl Outcome {
    /// Whether the backend is to blame; none if that cannot be told.
    pub const fn is_failure(self) -> Option<bool> {
        match self {
            Self::Served => Some(false),
            Self::Failed | Self::Refused(_) | Self::NoAnswer => Some(true),
            Self::Abandoned => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::balance::{BackendId, Join, LeastLoaded, LeastLoadedConfig};
    use crate::batch::pace::{Pace, PaceConfig};
    use crate::throttle::ThrottleCounts;
    use crate::units::Timestamp;
    use core::time::Duration;

    #[test]
    fn what_follows_by_the_table() {
        let advice = Advice::RetryElsewhere;
        for (outcome, counts, errors, slower) in [
            (Outcome::Served, [1, 0, 0], 0, false),
            (Outcome::Failed, [1, 0, 0], 1, false),
            (Outcome::Refused(advice), [0, 1, 0], 1, true),
            (Outcome::NoAnswer, [0, 0, 1], 1, true),
            (Outcome::Abandoned, [0, 0, 0], 0, false),
        ] {
            let found = ThrottleCounts::one(outcome);
            assert_eq!([found.accepted, found.refused, found.unanswered], counts, "{outcome:?}");

            let (now, id) = (Timestamp::from_secs(1), BackendId(0));
            let mut policy = LeastLoaded::new(LeastLoadedConfig::default());
            policy.add(id, Join::Warm, now);
            policy.on_start(id, now);
            policy.on_complete(id, outcome, now);
            assert_eq!((policy.active(id), policy.recent_errors(id)), (0, errors), "{outcome:?}");

            let mut pace = Pace::new(PaceConfig::default()).unwrap();
            let before = pace.window();
            pace.on_release(now);
            pace.on_result(outcome, Duration::from_millis(1), true, now);
            assert_eq!(pace.window() < before, slower, "{outcome:?}");
        }
    }
}
