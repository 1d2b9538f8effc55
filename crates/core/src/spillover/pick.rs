//! An assignment as a table to pick from.

use super::{Assignment, DatacenterId};
use crate::rng::Rng;

/// Picks a datacenter for one request, with the shares of an [`Assignment`].
///
/// A draw and a walk over a handful of numbers: cheap enough for every request. It never changes; a
/// shell swaps it for the next plan's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PickTable {
    /// For each datacenter the end of its part of `whole`.
    ends: Box<[(u64, DatacenterId)]>,
    whole: u64,
}

impl PickTable {
    pub(super) fn new(assignment: &Assignment) -> Self {
        let placed = assignment.placed.iter().map(|(id, rate)| (*id, rate.as_nanos_per_sec()));
        let idle = assignment.idle.iter().map(|(id, share)| (*id, share.billionths().into()));
        let mut end = 0_u64;
        let mut part = |(id, size): (DatacenterId, u64)| {
            end = end.saturating_add(size);
            (end, id)
        };
        // Where there is demand nothing is idle, and the other way round.
        let ends = placed.chain(idle).map(&mut part).collect();
        Self { ends, whole: end.saturating_add(assignment.unplaced.as_nanos_per_sec()) }
    }

    /// The datacenter of the next request; none for the share that no datacenter has room for.
    pub fn pick(&self, rng: &mut impl Rng) -> Option<DatacenterId> {
        let draw = rng.below(self.whole);
        self.ends.iter().find(|(end, _)| draw < *end).map(|(_, id)| *id)
    }
}
