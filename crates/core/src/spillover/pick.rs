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
        let mut end = 0_u64;
        let ends = assignment
            .placed
            .iter()
            .map(|(id, rate)| {
                end = end.saturating_add(rate.as_nanos_per_sec());
                (end, *id)
            })
            .collect();
        Self { ends, whole: end.saturating_add(assignment.unplaced.as_nanos_per_sec()) }
    }

    /// The datacenter of the next request; none for the share that no datacenter has room for.
    ///
    /// Without any demand so far there are no shares, and so no datacenter either.
    pub fn pick(&self, rng: &mut impl Rng) -> Option<DatacenterId> {
        let draw = rng.below(self.whole);
        self.ends.iter().find(|(end, _)| draw < *end).map(|(_, id)| *id)
    }
}
