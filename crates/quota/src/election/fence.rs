//! What a leader may do when its time is up: nothing.
//!
//! Everyone who acts for a reign looks here before each act, with a clock that was read after what
//! is acted on had come in. So a process that was held up for a minute finds its fence shut,
//! although nobody had a chance to shut it. A fence belongs to one reign: it opens again only if
//! that reign was found to have never ended.

use core::sync::atomic::{AtomicU64, Ordering};
use std::sync::Arc;
use tidegate_core::Timestamp;

/// Open until some time. Cheap to clone; clones are one.
#[derive(Debug, Clone)]
pub(crate) struct Fence(Arc<AtomicU64>);

impl Fence {
    /// That of a server which nobody can replace.
    pub(crate) fn never() -> Self {
        Self(Arc::new(AtomicU64::new(u64::MAX)))
    }

    pub(crate) fn until(time: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(time.as_nanos())))
    }

    /// The reign goes on until then.
    pub(crate) fn move_to(&self, time: Timestamp) {
        self.0.store(time.as_nanos(), Ordering::Release);
    }

    /// The reign is over.
    pub(crate) fn shut(&self) {
        self.move_to(Timestamp::ZERO);
    }

    pub(crate) fn is_open(&self, now: Timestamp) -> bool {
        now.as_nanos() < self.0.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_open_before_its_time_only() {
        let at = Timestamp::from_secs;
        let fence = Fence::until(at(5));
        let same = fence.clone();
        assert!(same.is_open(at(4)) && !same.is_open(at(5)));
        fence.move_to(at(9));
        assert!(same.is_open(at(8)) && !same.is_open(at(9)));
        fence.shut();
        assert!(!same.is_open(at(0)));
        assert!(Fence::never().is_open(at(1_000_000_000)));
    }
}
