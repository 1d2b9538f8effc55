//! An order of picks on its way to the gate.

use super::gate::PickGate;
use super::schedule::{self, Scheduler};
use super::{BackendId, PickReason};
use std::sync::Arc;

/// Works out orders and publishes them to its gate. Each costs O(backends), so they are counted.
#[derive(Debug)]
pub(super) struct Order {
    scheduler: Scheduler,
    gate: Arc<PickGate>,
    published: u64,
}

impl Order {
    pub(super) fn new(backends_max: usize) -> Self {
        // Every slot is a store that loom has to interleave: models have turns only, no weights.
        let length_max =
            if cfg!(feature = "loom") { backends_max } else { schedule::length_max(backends_max) };
        let gate = Arc::new(PickGate::new(length_max));
        Self { scheduler: Scheduler::default(), gate, published: 0 }
    }

    pub(super) fn gate(&self) -> &Arc<PickGate> {
        &self.gate
    }

    pub(super) fn published(&self) -> u64 {
        self.published
    }

    /// From now on each in turn.
    pub(super) fn in_turn(&mut self, backends: &[BackendId], reason: PickReason) {
        self.published += 1;
        self.gate.publish(backends, reason);
    }

    /// From now on as often as their weights say.
    pub(super) fn by_weight(&mut self, weights: &[(BackendId, f64)], reason: PickReason) {
        self.published += 1;
        self.gate.publish(self.scheduler.next(weights), reason);
    }
}
