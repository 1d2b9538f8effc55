//! Errors of the last seconds, per backend.
//!
//! A task that fails at once always looks idle: it has no active requests and the lowest latency.
//! Policies that look for the idle would send it everything (it *sinkholes* the traffic). So recent
//! errors are counted as if they were requests still under way.
//!
//! Time is cut into ticks, eight to the memory; an error counts from when it happens until its
//! tick is eight ticks old, which is between seven eighths of the memory and the whole. A queue of
//! (tick, backend) says whose count falls next, so forgetting costs O(1) an error, and nothing is
//! scanned.

use super::BackendId;
use crate::units::{Timestamp, nanos};
use core::time::Duration;
use std::collections::VecDeque;

const TICKS: usize = 8;

/// The default memory of errors. Long against a round trip, so that a dead task is tried about as
/// often as health checks would try it; short enough that one stray error does not keep a healthy
/// task idle for long.
pub(super) const MEMORY: Duration = Duration::from_secs(5);

#[derive(Debug, Clone, Copy, Default)]
struct Recent {
    ticks: [u32; TICKS],
    total: u32,
}

#[derive(Debug, Clone)]
pub(super) struct RecentErrors {
    /// Zero: nothing is remembered.
    tick_nanos: u64,
    newest: u64,
    backends: Vec<Recent>,
    queue: VecDeque<(u64, BackendId)>,
}

impl RecentErrors {
    pub(super) fn new(memory: Duration) -> Self {
        let tick_nanos = match nanos(memory) {
            0 => 0,
            memory => (memory / TICKS as u64).max(1),
        };
        Self { tick_nanos, newest: 0, backends: Vec::new(), queue: VecDeque::new() }
    }

    pub(super) fn count(&self, id: BackendId) -> u32 {
        self.backends.get(id.index()).map_or(0, |b| b.total)
    }

    /// One more error of `id`, which must be a number below the limit. Call
    /// [`RecentErrors::forget_next`] until it has nothing more, first.
    pub(super) fn record(&mut self, id: BackendId) {
        if self.tick_nanos == 0 || id.0 >= BackendId::LIMIT {
            return;
        }
        if self.backends.len() <= id.index() {
            self.backends.resize(id.index() + 1, Recent::default());
        }
        let backend = &mut self.backends[id.index()];
        let tick = &mut backend.ticks[self.newest as usize % TICKS];
        if *tick == 0 {
            self.queue.push_back((self.newest, id));
        }
        *tick = tick.saturating_add(1);
        backend.total = backend.total.saturating_add(1);
    }

    /// Forgets one backend's errors of one tick that has grown too old by `now`, and says whose.
    pub(super) fn forget_next(&mut self, now: Timestamp) -> Option<BackendId> {
        if self.tick_nanos == 0 {
            return None;
        }
        self.newest = self.newest.max(now.as_nanos() / self.tick_nanos);
        let &(tick, id) = self.queue.front()?;
        if self.newest - tick < TICKS as u64 {
            return None;
        }
        self.queue.pop_front();
        let backend = &mut self.backends[id.index()];
        backend.ticks[tick as usize % TICKS] = 0;
        // Adding up anew keeps the total right even if a count stood at the end of its range.
        backend.total = backend.ticks.iter().fold(0, |sum, &n| sum.saturating_add(n));
        Some(id)
    }

    /// Forgets all errors of `id`: another task has its number from now on. O(backends with
    /// errors).
    pub(super) fn clear(&mut self, id: BackendId) {
        if let Some(backend) = self.backends.get_mut(id.index()) {
            *backend = Recent::default();
            self.queue.retain(|&(_, of)| of != id);
        }
    }

    /// Forgets all that has grown too old.
    pub(super) fn forget(&mut self, now: Timestamp) {
        while self.forget_next(now).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against the list of all errors.
        #[test]
        fn counts_what_is_less_than_eight_ticks_old(
            steps in proptest::collection::vec(
                (0_u64..4_000, 0_u32..4, proptest::bool::weighted(0.1)),
                1..200,
            ),
        ) {
            let mut errors = RecentErrors::new(Duration::from_micros(8));
            let mut log: Vec<(u64, u32)> = Vec::new();
            let mut now = 0;
            for (step, id, gone) in steps {
                now += step;
                errors.forget(Timestamp::from_nanos(now));
                if gone {
                    errors.clear(BackendId(id));
                    log.retain(|&(_, i)| i != id);
                } else {
                    errors.record(BackendId(id));
                    log.push((now, id));
                }
                for id in 0..4 {
                    let recent =
                        log.iter().filter(|(t, i)| *i == id && t / 1_000 + 8 > now / 1_000);
                    prop_assert_eq!(errors.count(BackendId(id)) as usize, recent.count());
                }
                prop_assert!(errors.queue.len() <= 4 * TICKS);
            }
        }
    }

    #[test]
    fn no_memory_counts_nothing_and_the_ends_do_no_harm() {
        let mut none = RecentErrors::new(Duration::ZERO);
        none.record(BackendId(1));
        assert_eq!(none.count(BackendId(1)), 0);
        let mut some = RecentErrors::new(Duration::from_nanos(1));
        some.record(BackendId(u32::MAX));
        some.forget(Timestamp::MAX);
        some.record(BackendId(3));
        some.forget(Timestamp::MAX);
        assert_eq!(some.count(BackendId(3)), 1);
    }
}
