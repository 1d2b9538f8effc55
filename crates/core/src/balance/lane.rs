//! Attempts counted where they happen, by many threads.
//!
//! Picks at the gate take no lock; what becomes of them should not either. Each thread has a
//! [`WeightedLane`] and counts starts and outcomes in cells of its own. On its deadlines the
//! controller adds up all lanes and takes in what is new, through the same code that a single
//! owner's outcomes go through. They count from then on, so they are up to an update period late,
//! and are forgotten that much later; with a second of period and five of memory that is all one.

use super::gate::PickGate;
use super::{BackendId, Pick};
use crate::counters::{Counters, LINE, Writer};
use crate::outcome::Outcome;
use std::sync::Arc;

/// Cells per backend: two backends share a cache line, and one request writes to one line.
const CELLS: usize = 4;
const STARTED: usize = 0;
const SUCCEEDED: usize = 1;
const FAILED: usize = 2;
const IGNORED: usize = 3;

const _: () = assert!(LINE.is_multiple_of(CELLS));

/// Where threads get their [`WeightedLane`]s.
#[derive(Debug, Clone)]
pub struct WeightedLanes {
    gate: Arc<PickGate>,
    counters: Arc<Counters>,
}

impl WeightedLanes {
    /// A lane for one thread, 32 bytes for each backend that there can be. Takes a lock: once per
    /// thread, not per request.
    pub fn lane(&self) -> WeightedLane {
        WeightedLane { gate: Arc::clone(&self.gate), writer: self.counters.writer() }
    }
}

/// One thread's way to pick, and to tell what became of it.
#[derive(Debug)]
pub struct WeightedLane {
    gate: Arc<PickGate>,
    writer: Writer,
}

impl WeightedLane {
    /// The backend for one request; nothing if there are none.
    ///
    /// For the shell's request path: no lock, no allocation, no clock.
    #[inline]
    pub fn pick(&self) -> Option<Pick> {
        self.gate.pick()
    }

    /// An attempt on `id` begins.
    ///
    /// For the shell's request path: one store of this thread's own.
    #[inline]
    pub fn on_start(&mut self, id: BackendId) {
        self.count(id, STARTED);
    }

    /// An attempt that began on a lane, this one or another, has ended.
    ///
    /// For the shell's request path: one store of this thread's own.
    #[inline]
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome) {
        self.count(
            id,
            match outcome.is_failure() {
                Some(false) => SUCCEEDED,
                Some(true) => FAILED,
                None => IGNORED,
            },
        );
    }

    #[inline]
    fn count(&mut self, id: BackendId, what: usize) {
        self.writer.add(id.index().saturating_mul(CELLS).saturating_add(what), 1);
    }
}

/// The controller's side: what the lanes have counted.
#[derive(Debug)]
pub(super) struct LaneBooks {
    counters: Arc<Counters>,
    /// The counts that have been taken in, and room to read the next into.
    seen: Vec<u64>,
    read: Vec<u64>,
}

impl LaneBooks {
    /// For backends with numbers below `backends_max`.
    pub(super) fn new(backends_max: usize) -> Self {
        let counters = Counters::new(backends_max * CELLS);
        Self { counters, seen: Vec::new(), read: Vec::new() }
    }

    pub(super) fn lanes(&self, gate: &Arc<PickGate>) -> WeightedLanes {
        WeightedLanes { gate: Arc::clone(gate), counters: Arc::clone(&self.counters) }
    }

    /// Adds up the lanes of backends with numbers below `backends`, and tells `take` what successes
    /// and failures are new of each. Costs a lock that no request takes, and a load per cell and
    /// lane.
    pub(super) fn take_in(&mut self, backends: usize, mut take: impl FnMut(BackendId, [u64; 2])) {
        let Self { counters, seen, read } = self;
        let cells = (backends * CELLS).max(seen.len());
        seen.resize(cells, 0);
        read.resize(cells, 0);
        counters.read(read);
        for ((id, new), old) in (0..).zip(read.chunks_exact(CELLS)).zip(seen.chunks_exact(CELLS)) {
            let since = |cell: usize| new[cell].wrapping_sub(old[cell]);
            let outcomes = [since(SUCCEEDED), since(FAILED)];
            if outcomes != [0, 0] {
                take(BackendId(id), outcomes);
            }
        }
        core::mem::swap(seen, read);
    }

    /// Attempts on `id` that have begun and not ended, as of the last taking in.
    pub(super) fn active(&self, id: BackendId) -> u32 {
        let from = id.index().saturating_mul(CELLS);
        let Some(&[started, succeeded, failed, ignored]) =
            self.seen.get(from..).and_then(|cells| cells.first_chunk::<CELLS>())
        else {
            return 0;
        };
        let ended = succeeded.wrapping_add(failed).wrapping_add(ignored);
        // Cells are not read at one instant: an end may be seen and its start not yet.
        let active = started.wrapping_sub(ended).cast_signed().max(0);
        u32::try_from(active).unwrap_or(u32::MAX)
    }
}
