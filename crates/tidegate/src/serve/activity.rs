//! When a connection was last used.

use crate::clock::Clock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate_core::Timestamp;

/// How many requests a connection has, and when it last had one.
#[derive(Debug)]
pub(super) struct Activity {
    clock: Clock,
    busy: AtomicU64,
    /// In nanoseconds; while it is busy, of no meaning.
    idle_since: AtomicU64,
}

impl Activity {
    pub(super) fn new(clock: Clock) -> Self {
        let now = clock.now().as_nanos();
        Self { clock, busy: AtomicU64::new(0), idle_since: AtomicU64::new(now) }
    }

    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    /// The time is read only when the last request ends.
    pub(super) fn end(&self) {
        if self.busy.load(Relaxed) == 1 {
            self.idle_since.store(self.clock.now().as_nanos(), Relaxed);
        }
        self.busy.fetch_sub(1, Relaxed);
    }

    /// When it was last used: at this moment, if it is busy.
    pub(super) fn last_used(&self, now: Timestamp) -> Timestamp {
        match self.busy.load(Relaxed) {
            0 => Timestamp::from_nanos(self.idle_since.load(Relaxed)),
            _ => now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;

    #[test]
    fn idle_begins_when_the_last_request_ends() {
        let (clock, hand) = Clock::manual();
        let activity = Activity::new(clock.clone());
        let at = |second: u64| {
            hand.set(Timestamp::from_secs(second));
            activity.last_used(clock.now()).since(Timestamp::ZERO)
        };
        let seconds = Duration::from_secs;
        assert_eq!(at(5), seconds(0));
        activity.begin();
        activity.begin();
        assert_eq!(at(10), seconds(10));
        activity.end();
        assert_eq!(at(20), seconds(20));
        activity.end();
        assert_eq!(at(30), seconds(20));
    }
}
