//! Which endpoints a request has been to.
//!
//! A retry that goes to the endpoint that has just refused it is refused again. The balancer picks,
//! but the layer above it retries; so the layer lays a trail into the request's extensions, the
//! balancer marks where it sent it, and keeps off the marks next time.
//!
//! The trail also tells the balancer why an attempt is dropped. The layer above waits only so long;
//! an endpoint that has said nothing by then has failed, while one whose caller just went away has
//! not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
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
    expired: AtomicBool,
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

    /// The attempt under way is dropped because its time is over.
    pub(super) fn expire(&self) {
        self.0.expired.store(true, Ordering::Relaxed);
    }

    /// Another attempt begins.
    pub(super) fn renew(&self) {
        self.0.expired.store(false, Ordering::Relaxed);
    }

    /// Whether the time of the attempt under way is over.
    pub(super) fn is_expired(&self) -> bool {
        self.0.expired.load(Ordering::Relaxed)
    }

    /// Whether it was anywhere.
    pub(super) fn is_empty(&self) -> bool {
        self.0.next.load(Ordering::Relaxed) == 0
    }
}
