//! Each thread's own way through the gates of a client.
//!
//! Gates count in cells that only one thread writes, so each thread needs a lane of each client
//! that it sends for. They stand in a thread-local list: usually of one or two, so that looking
//! through it is a compare or two. No lock, and no allocation but for a thread's first request.
//!
//! A lane belongs to a [`Key`]. The list holds keys weakly, which keeps a key's address from being
//! given to another; lanes whose client is gone are dropped when the next one is made.

use core::cell::RefCell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread::LocalKey;
use tidegate_core::rng::{SeededRng, mix};

/// Whose lanes.
#[derive(Debug, Clone, Default)]
pub(super) struct Key(Arc<()>);

/// The lanes of one thread.
#[derive(Debug)]
pub(super) struct Slots<T> {
    slots: Vec<(Weak<()>, T)>,
}

impl<T> Slots<T> {
    pub(super) const fn new() -> Self {
        Self { slots: Vec::new() }
    }

    /// This thread's lane of `key`, made if there is none.
    #[inline]
    pub(super) fn lane(&mut self, key: &Key, make: impl FnOnce() -> T) -> &mut T {
        let is = |slot: &(Weak<()>, T)| Weak::as_ptr(&slot.0) == Arc::as_ptr(&key.0);
        let place = self.slots.iter().position(is).unwrap_or_else(|| self.add(key, make()));
        &mut self.slots[place].1
    }

    #[cold]
    fn add(&mut self, key: &Key, lane: T) -> usize {
        self.slots.retain(|(owner, _)| owner.strong_count() > 0);
        self.slots.push((Arc::downgrade(&key.0), lane));
        self.slots.len() - 1
    }
}

/// Asks, or tells, this thread's lane of `key` among `lanes`.
#[inline]
pub(super) fn with<T, R>(
    lanes: &'static LocalKey<RefCell<Slots<T>>>,
    key: &Key,
    make: impl Fn() -> T,
    work: impl FnOnce(&mut T) -> R,
) -> R {
    let mut work = Some(work);
    let found = lanes.try_with(|lanes| {
        let mut lanes = lanes.try_borrow_mut().ok()?;
        let work = work.take()?;
        Some(work(lanes.lane(key, &make)))
    });
    match (found, work) {
        (Ok(Some(result)), _) => result,
        // The thread is ending, and its lanes are gone: a lane for this once.
        (_, Some(work)) => work(&mut make()),
        (_, None) => unreachable!("work is taken only to be done"),
    }
}

/// Gives each lane dice of its own.
#[derive(Debug)]
pub(super) struct Dice {
    seed: u64,
    lanes: AtomicU64,
}

impl Dice {
    /// Dice that `seed` decides, or nobody.
    pub(super) fn new(seed: Option<u64>) -> Self {
        // The standard library's own randomness for hash maps: no dependency, and no secret.
        let seed = seed.unwrap_or_else(|| RandomState::new().build_hasher().finish());
        Self { seed, lanes: AtomicU64::new(0) }
    }

    /// The dice of one more lane.
    pub(super) fn next(&self) -> SeededRng {
        let lane = self.lanes.fetch_add(1, Ordering::Relaxed);
        SeededRng::new(mix(self.seed ^ mix(lane)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_keeps_the_lanes_of_those_that_live() {
        let mut slots = Slots::new();
        let (a, b) = (Key::default(), Key::default());
        *slots.lane(&a, || 1) += 10;
        assert_eq!(*slots.lane(&b, || 2), 2);
        assert_eq!(*slots.lane(&a.clone(), || unreachable!()), 11);
        drop(a);
        let c = Key::default();
        assert_eq!(*slots.lane(&c, || 3), 3);
        assert_eq!(slots.slots.len(), 2);
        assert_eq!(*slots.lane(&b, || unreachable!()), 2);
    }
}
