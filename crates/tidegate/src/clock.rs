//! The one clock of a process.
//!
//! Decisions take [`Timestamp`]s, and two of them can only be compared if they count from the same
//! moment. Every [`Clock::monotonic`] counts from the first use of any of them, so that what the
//! sampler, the layers and the executor write down fits together. It is the system's clock, read by
//! the time-stamp counter where that can be trusted ([`tidegate_meter::monotonic`]): requests read
//! it twice, and that costs 10 ns instead of 20 to 30. Two threads may differ by a tenth of a
//! microsecond.
//!
//! In tests time is a number that somebody sets: [`Clock::manual`] gives a clock and the [`Hand`]
//! that moves it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tidegate_core::Timestamp;
use tidegate_meter::monotonic;

/// What all monotonic clocks count from.
static EPOCH: LazyLock<u64> = LazyLock::new(monotonic);

/// Tells the time. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Clock(Source);

#[derive(Debug, Clone, Default)]
enum Source {
    #[default]
    Monotonic,
    Manual(Arc<AtomicU64>),
}

impl Clock {
    /// The system's clock that never goes back.
    pub const fn monotonic() -> Self {
        Self(Source::Monotonic)
    }

    /// A clock that stands at zero until its hand is moved.
    pub fn manual() -> (Self, Hand) {
        let nanos = Arc::new(AtomicU64::new(0));
        (Self(Source::Manual(Arc::clone(&nanos))), Hand(nanos))
    }

    /// The time.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::Monotonic => {
                // The first reading is the epoch, so it has to be there before the next is taken.
                let epoch = *EPOCH;
                Timestamp::from_nanos(monotonic().saturating_sub(epoch))
            }
            Source::Manual(nanos) => Timestamp::from_nanos(nanos.load(Ordering::Relaxed)),
        }
    }
}

/// Moves the clock that it was made with, and all clones of it.
#[derive(Debug, Clone)]
pub struct Hand(Arc<AtomicU64>);

impl Hand {
    /// Later by `span`, but no later than the end of time.
    pub fn advance(&self, span: Duration) {
        let moved = |nanos| Some((Timestamp::from_nanos(nanos) + span).as_nanos());
        // The closure never declines, so there is no error to handle.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
    }

    /// To this time, be it earlier.
    pub fn set(&self, now: Timestamp) {
        self.0.store(now.as_nanos(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_of_a_process_agree() {
        let (a, b) = (Clock::monotonic(), Clock::default());
        let first = a.now();
        let second = b.now();
        let third = a.now();
        assert!(first <= second && second <= third);
    }

    #[test]
    fn a_hand_moves_every_clone() {
        let (clock, hand) = Clock::manual();
        let other = clock.clone();
        assert_eq!(clock.now(), Timestamp::ZERO);
        hand.advance(Duration::from_millis(7));
        assert_eq!(other.now(), Timestamp::from_millis(7));
        hand.set(Timestamp::from_millis(3));
        assert_eq!(clock.now(), Timestamp::from_millis(3));
        hand.advance(Duration::MAX);
        assert_eq!(clock.now(), Timestamp::MAX);
    }
}
