//! Whether a batch proxy takes an item at all, for threads that do not own it.
//!
//! A queue by criticality and deadline has one order and so one owner. A thousand workers that are
//! all refused would keep that owner busy with saying no, just when it should be releasing. So the
//! owner writes down who would find no room, and whoever reads that does not come:
//!
//! ```text
//! word = lowest criticality that finds room << 56 | wait in milliseconds << 32 | queued
//! ```
//!
//! An empty place is room for all; in a full queue there is room for whoever is above the lowest
//! that waits, as that one has to make way.
//!
//! **When it is wrong.** The word is as old as the last thing that the owner did. Who reads "room"
//! may still be refused by the owner, who alone decides; who reads "full" may have missed a place
//! that an item past its deadline would have left, until the owner's next look. Neither is told
//! anything that was not so a moment ago.

use crate::criticality::Criticality;
use crate::decision::{Advice, Cause, Reason, Rejection};
use crate::sync::{AtomicU64, Ordering};
use crate::units::nanos;
use core::time::Duration;

const LEVEL_SHIFT: u32 = 56;
const WAIT_SHIFT: u32 = 32;
/// 24 bits of milliseconds are four and a half hours; waits end at a minute.
const WAIT_MAX: u64 = (1 << (LEVEL_SHIFT - WAIT_SHIFT)) - 1;

/// What a [`BatchProxy`](super::BatchProxy)'s owner has written down for others.
#[derive(Debug)]
pub struct BatchGate {
    word: AtomicU64,
    limit: u32,
}

impl BatchGate {
    /// Everyone finds room in a queue of `limit`, until something else is published.
    pub(super) fn new(limit: u32) -> Self {
        Self { word: AtomicU64::new(0), limit }
    }

    /// Whether an item of this criticality should be handed to the owner.
    ///
    /// For the shell's request path: one load and a compare. No lock, no allocation, no clock.
    #[inline]
    pub fn check(&self, criticality: Criticality) -> Result<(), Rejection> {
        let word = self.word.load(Ordering::Relaxed);
        if (word >> LEVEL_SHIFT) as usize <= criticality.index() {
            return Ok(());
        }
        let wait = Duration::from_millis(word >> WAIT_SHIFT & WAIT_MAX);
        Err(refused(criticality, wait, word as u32, self.limit))
    }

    /// Items that wait, as of the last thing that the owner did.
    pub fn queued(&self) -> u32 {
        self.word.load(Ordering::Relaxed) as u32
    }

    /// `room` is the index of the lowest criticality that finds room; four if none does.
    pub(super) fn publish(&self, room: usize, wait: Duration, queued: u32) {
        let wait = nanos(wait).div_ceil(1_000_000).min(WAIT_MAX);
        let word = (room as u64) << LEVEL_SHIFT | wait << WAIT_SHIFT | u64::from(queued);
        self.word.store(word, Ordering::Relaxed);
    }
}

/// Too much is queued: to be tried again after `wait`.
pub(super) const fn refused(
    criticality: Criticality,
    wait: Duration,
    queued: u32,
    limit: u32,
) -> Rejection {
    Rejection {
        reason: Reason::QueueFull,
        advice: Advice::RetryAfter(wait),
        criticality,
        cause: Some(Cause::Queue { queued, limit }),
    }
}
