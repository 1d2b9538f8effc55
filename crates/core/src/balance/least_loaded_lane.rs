//! Least loaded, picked by many threads.
//!
//! To find the very least of all takes a look at every backend or a heap under a lock. A lane looks
//! at four instead: the one whose turn it is, and three by chance. It takes the lowest level, the
//! one whose turn it is if that is as low as any, and looks no further if that is idle. With four
//! backends or fewer it looks at all.
//!
//! **Why four is enough.** With one look by chance the fullest of `n` backends has about
//! `ln n / ln ln n` more than the mean; with `d` looks `ln ln n / ln d` (Azar and others, 1994): of
//! a thousand backends 1.4 more with four looks, 2.8 with two. Turns make it better still, as an
//! idle client sends to everyone equally often. Someone who fails everything looks busy; chance
//! shows only such a one with probability `(f/n)^4` when `f` of `n` fail.
//!
//! Loads are those of all threads, not of this one. Between a pick and its
//! [`LeastLoadedLane::on_start`] others do not see it; two threads may then take the same backend,
//! and the next pick of either sees both.

use super::loads::Loads;
use super::{BackendId, Pick, PickReason};
use crate::outcome::Outcome;
use crate::rng::Rng;
use std::sync::Arc;

/// How many backends a pick looks at. Each is a cache line that other threads write to.
pub(super) const LOOKS: u32 = 4;

/// Where threads get their [`LeastLoadedLane`]s.
#[derive(Debug, Clone)]
pub struct LeastLoadedLanes {
    loads: Arc<Loads>,
}

impl LeastLoadedLanes {
    pub(super) fn new(loads: &Arc<Loads>) -> Self {
        Self { loads: Arc::clone(loads) }
    }

    /// A lane for one thread. Lanes that all begin with the same backend send their first requests
    /// there: let chance choose where this one begins.
    pub fn lane(&self, start: u32) -> LeastLoadedLane {
        LeastLoadedLane { loads: Arc::clone(&self.loads), turn: start }
    }
}

/// One thread's way to pick, and to tell what became of it.
#[derive(Debug)]
pub struct LeastLoadedLane {
    loads: Arc<Loads>,
    turn: u32,
}

impl LeastLoadedLane {
    /// The backend for one request; nothing if there are none.
    ///
    /// For the shell's request path: at most nine loads. No lock, no allocation, no clock.
    #[inline]
    pub fn pick(&mut self, rng: &mut impl Rng) -> Option<Pick> {
        let shape = self.loads.shape();
        let (turn, reason) = (self.turn, shape.reason()?);
        let mut backend = self.loads.entry(shape, turn)?;
        self.turn = turn.wrapping_add(1);
        if reason != PickReason::LeastLoaded {
            return Some(Pick { backend, reason });
        }
        let mut level = self.loads.level(backend);
        for look in 1..LOOKS.min(shape.len()) {
            if level == 0 {
                break;
            }
            let other = if shape.len() <= LOOKS {
                turn.wrapping_add(look)
            } else {
                rng.below(u64::from(shape.len())) as u32
            };
            let other = self.loads.entry(shape, other)?;
            let others = self.loads.level(other);
            if others < level {
                (backend, level) = (other, others);
            }
        }
        Some(Pick { backend, reason })
    }

    /// An attempt on `id` begins.
    ///
    /// For the shell's request path: one add, contended if others send there at this moment.
    #[inline]
    pub fn on_start(&mut self, id: BackendId) {
        self.loads.on_start(id);
    }

    /// An attempt that began on a lane, this one or another, has ended.
    ///
    /// For the shell's request path: one add, as for the start.
    #[inline]
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome) {
        self.loads.on_complete(id, outcome);
    }
}
