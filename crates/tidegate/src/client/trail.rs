//! Which endpoints a request has been to.
//!
//! A retry that goes to the endpoint that has just refused it is refused again. The balancer picks,
//! but the layer above it retries; so the layer lays a trail into the request's extensions, the
//! balancer marks where it sent it, and keeps off the marks next time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use tidegate_core::balance::BackendId;

/// Marks kept. Three attempts make two that a third has to keep off; who configures more has the
/// last four.
const MARKS: usize = 4;

/// The marks of one request, shared by its attempts.
#[derive(Debug, Clone, Default)]
pub(super) struct Trail(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    /// One more than the number of the endpoint; zero for none.
    marks: [AtomicU32; MARKS],
    next: AtomicU32,
}

impl Trail {
    /// It goes to `id`.
    pub(super) fn mark(&self, id: BackendId) {
        // Attempts follow each other, so nobody else writes.
        let next = self.0.next.load(Ordering::Relaxed);
        self.0.marks[next as usize % MARKS].store(id.0 + 1, Ordering::Relaxed);
        self.0.next.store(next.wrapping_add(1), Ordering::Relaxed);
    }

    /// Whether it was at `id`.
    pub(super) fn has(&self, id: BackendId) -> bool {
        self.0.marks.iter().any(|mark| mark.load(Ordering::Relaxed) == id.0 + 1)
    }

    /// Whether it was anywhere.
    pub(super) fn is_empty(&self) -> bool {
        self.0.next.load(Ordering::Relaxed) == 0
    }
}
