//! When a task may join: at a pace of its own, so that those who have joined are heard meanwhile.
//!
//! A join is dear: a connection, a message that names all customers, and another division of what
//! all others have. After a restart, or when a whole fleet is rolled out, thousands come at once.
//! If all were taken at once, what the first of them say would wait behind the last, their
//! acknowledgements as well, and streams would end over that which had only just been opened. So
//! each has its turn:
//!
//! ```text
//! turn = max(last turn + 1 / rate, now - burst / rate)     waits until then, but not for long
//! ```
//!
//! Those who would have to wait longer are sent away, and come back: they cost a connection each
//! time, where one that waits costs nothing. Who resumes a stream, or takes the place of another,
//! has joined already and needs no turn.
//!
//! **When it is wrong.** A rate that is too high is none: the leader is as late as it would be
//! without. One that is too low keeps tasks from a leader that has time. They go on with the limits
//! that they have; after a restart these hold for a minute.

use crate::units::Timestamp;
use core::time::Duration;

/// How far apart turns are: a thousand tasks a second. As many as a server may have by default have
/// joined in seventeen seconds then, a quarter of the time for which limits hold without it.
const APART: Duration = Duration::from_millis(1);
/// So many may come at once: small fleets never wait.
const BURST: u32 = 256;
/// Nobody waits longer. Tasks give up after five seconds, and in a crowd the connection itself may
/// take most of these: who had its turn after the task has gone would have it in vain.
const WAIT_MAX: Duration = Duration::from_secs(1);

/// Tells tasks when it is their turn to join.
#[derive(Debug, Clone, Default)]
pub struct Joins {
    /// When the next turn would be, if nobody could come early.
    next: Timestamp,
}

/// Too many wait already.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many tasks join at once: come back in {again:?}")]
pub struct Crowd {
    /// When there may be a turn.
    pub again: Duration,
}

impl Joins {
    /// One comes. Returns how long it has to wait.
    pub fn turn(&mut self, now: Timestamp) -> Result<Duration, Crowd> {
        let next = self.next.max(now);
        let wait = next.since(now).saturating_sub(APART * BURST);
        if wait > WAIT_MAX {
            return Err(Crowd { again: wait });
        }
        self.next = next + APART;
        Ok(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_nanos(millis * 1_000_000)
    }

    #[test]
    fn a_crowd_has_its_turns_one_after_the_other() {
        let mut joins = Joins::default();
        let mut turn = |millis: u64| joins.turn(at(millis));
        for n in 0..=BURST {
            assert_eq!(turn(5_000), Ok(Duration::ZERO), "{n} of a small fleet");
        }
        for n in 1..=1_000 {
            assert_eq!(turn(5_000), Ok(Duration::from_millis(n)), "{n} more");
        }
        let crowd = Crowd { again: Duration::from_millis(1_001) };
        for _ in 0..10_000 {
            assert_eq!(turn(5_000), Err(crowd), "those who are sent away have no turn");
        }
        assert_eq!(crowd.to_string(), "too many tasks join at once: come back in 1.001s");
        // A second later a thousand have joined, and as many find room.
        for n in 1..=1_000 {
            assert_eq!(turn(6_000), Ok(Duration::from_millis(n)));
        }
        assert!(turn(6_000).is_err());
        assert_eq!(turn(20_000), Ok(Duration::ZERO), "that was long ago");
    }

    proptest! {
        /// However they come, no second has more turns than there are for it.
        #[test]
        fn turns_keep_their_pace(spans in vec(0..40_u64, 1..3_000)) {
            let mut joins = Joins::default();
            let (mut now, mut turns) = (1_000, Vec::new());
            for span in spans {
                now += span / 30;
                if let Ok(wait) = joins.turn(at(now)) {
                    turns.push(now + u64::try_from(wait.as_millis()).unwrap());
                }
            }
            turns.sort_unstable();
            let most = 1_000 + BURST as usize + 1;
            for n in most..turns.len() {
                prop_assert!(turns[n] >= turns[n - most] + 1_000, "{n}");
            }
        }
    }
}
