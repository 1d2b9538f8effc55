//! Whether a connection is used.
//!
//! Requests leave a mark, and whoever wants to know looks for it now and then: so the clock is read
//! by the one who looks, and not by every request.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};

/// The requests of a connection.
#[derive(Debug, Default)]
pub(super) struct Activity {
    busy: AtomicU64,
    ended: AtomicBool,
}

impl Activity {
    pub(super) fn begin(&self) {
        self.busy.fetch_add(1, Relaxed);
    }

    pub(super) fn end(&self) {
        self.ended.store(true, Relaxed);
        self.busy.fetch_sub(1, Relaxed);
    }

    /// Whether there is a request, or one has ended since somebody asked last.
    pub(super) fn is_used(&self) -> bool {
        let ended = self.ended.swap(false, Relaxed);
        ended || self.busy.load(Relaxed) > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_used_while_there_are_requests_and_once_after() {
        let activity = Activity::default();
        assert!(!activity.is_used());
        activity.begin();
        activity.begin();
        assert!(activity.is_used());
        activity.end();
        assert!(activity.is_used() && activity.is_used());
        activity.end();
        assert!(activity.is_used());
        assert!(!activity.is_used());
    }
}
