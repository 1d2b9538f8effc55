//! Prequal, with a pool of answers for each thread.
//!
//! The paper gives each client task its pool; here each thread is such a client. It probes along
//! with its own requests, picks from what it asked for, and shares only what is about this client
//! as a whole: who serves, and recent errors. How many requests a backend has in flight, of all
//! clients and threads, is known at the backend, and that is what probes ask.
//!
//! A thread's answers are as fresh as if it were alone, and there are as many more probes in the
//! pools as there are threads, not more per request. A thread that sends less than a request or so
//! a second keeps its pool warm by idle probes ([`PrequalLane::next_deadline`]), or goes without:
//! a lane whose deadlines nobody serves picks by chance after a pause.

use super::loads::{Loads, State};
use super::prequal_pool::{Pool, Probes, View};
use super::{BackendId, Pick, PickReason};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::Timestamp;
use core::time::Duration;
use std::sync::Arc;

/// Where threads get their [`PrequalLane`]s.
#[derive(Debug, Clone)]
pub struct PrequalLanes {
    loads: Arc<Loads>,
    /// Empty, to be copied.
    pool: Pool,
}

impl PrequalLanes {
    pub(super) fn new(loads: &Arc<Loads>, pool: &Pool) -> Self {
        Self { loads: Arc::clone(loads), pool: pool.emptied() }
    }

    /// A lane for one thread, with an empty pool. `start` is where its turns begin when all
    /// backends are lame ducks.
    pub fn lane(&self, start: u32) -> PrequalLane {
        let view = Shared { loads: Arc::clone(&self.loads) };
        PrequalLane { view, pool: self.pool.emptied(), turn: start }
    }
}

/// One thread's way to probe, to pick, and to tell what became of it.
#[derive(Debug)]
pub struct PrequalLane {
    view: Shared,
    pool: Pool,
    turn: u32,
}

/// What all threads know of the backends.
#[derive(Debug)]
struct Shared {
    loads: Arc<Loads>,
}

impl View for Shared {
    fn serving(&self) -> usize {
        let shape = self.loads.shape();
        let lame = shape.reason() == Some(PickReason::AllLameDuck);
        if lame { 0 } else { shape.len() as usize }
    }

    fn backend(&self, place: usize) -> Option<BackendId> {
        let shape = self.loads.shape();
        let lame = shape.reason() == Some(PickReason::AllLameDuck);
        if lame { None } else { self.loads.entry(shape, place as u32) }
    }

    fn state(&self, id: BackendId) -> State {
        self.loads.state(id)
    }

    fn errors(&self, id: BackendId) -> u32 {
        self.loads.errors(id)
    }
}

impl PrequalLane {
    /// Whom to probe along with the request that is being sent, or because a deadline has passed.
    /// Call it once for each of those.
    ///
    /// For the shell's request path: a load for each. No lock, no allocation, no clock.
    pub fn probes_wanted(&mut self, rng: &mut impl Rng) -> Probes {
        self.pool.probes_wanted(&self.view, rng)
    }

    /// A probe of `id` that this lane wanted was answered. Whether the answer is kept: not from
    /// backends that do not serve.
    pub fn on_probe(&mut self, id: BackendId, rif: u32, latency: Duration, now: Timestamp) -> bool {
        self.pool.on_probe(&self.view, id, rif, latency, now)
    }

    /// The backend for a request; nothing if there are none.
    ///
    /// For the shell's request path: two loads for each answer in the pool. No lock, no allocation.
    pub fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<Pick> {
        if let Some(pick) = self.pool.pick(&self.view, now, rng) {
            return Some(pick);
        }
        let shape = self.view.loads.shape();
        let backend = self.view.loads.entry(shape, self.turn)?;
        self.turn = self.turn.wrapping_add(1);
        let lame = shape.reason() == Some(PickReason::AllLameDuck);
        // Someone may have begun to serve this very moment.
        let reason = if lame { PickReason::AllLameDuck } else { PickReason::TooFewProbes };
        Some(Pick { backend, reason })
    }

    /// An attempt on `id` begins.
    ///
    /// For the shell's request path: one add, contended if others send there at this moment.
    #[inline]
    pub fn on_start(&mut self, id: BackendId) {
        self.view.loads.on_start(id);
    }

    /// An attempt that began on a lane, this one or another, has ended.
    ///
    /// For the shell's request path: one add, as for the start.
    #[inline]
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome) {
        self.view.loads.on_complete(id, outcome);
    }

    /// When a thread that sends nothing should probe: never, if that is turned off or there is
    /// nothing to choose from.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.pool.next_deadline(self.view.serving())
    }

    /// If the deadline has passed, the next [`PrequalLane::probes_wanted`] is to be asked now,
    /// without waiting for a request.
    pub fn on_deadline(&mut self, now: Timestamp) {
        self.pool.on_deadline(self.view.serving(), now);
    }

    /// How many answers are in the pool.
    pub fn pool_len(&self) -> usize {
        self.pool.len()
    }
}
