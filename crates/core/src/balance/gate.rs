//! Picks on the request path: one load, one add, one more load.
//!
//! A [`PickGate`] holds a table of backends, in the order in which they get requests, and a cursor
//! that walks around it. The order is a controller's business: each backend once for round robin,
//! in proportion to weight for weighted and while backends ramp up. So a weighted pick costs what a
//! round-robin pick costs, however many backends there are.
//!
//! A controller may publish a new table while others pick. There is no lock and no version: a pick
//! that overlaps may see an old length with new entries, or the other way round. That is harmless,
//! because *every* slot always holds a backend of the newest or the previous table: the new order
//! is written around and around until it fills all slots, also those beyond its length. Such a pick
//! is one that could have been made just before or just after. Once `publish` has returned, and its
//! caller has told others so, no pick gives a backend that is not in the new table.

use super::{BackendId, Pick, PickReason};
use crate::sync::{AtomicU32, Ordering};

/// The length takes the low bits of the shape, the reason the high ones.
const LENGTH_BITS: u32 = 24;
const LENGTH_MAX: usize = (1 << LENGTH_BITS) - 1;

/// How many entries a table has, and why picks of it are what they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape(u32);

impl Shape {
    pub(super) const fn len(self) -> u32 {
        self.0 & LENGTH_MAX as u32
    }

    pub(super) fn reason(self) -> Option<PickReason> {
        PickReason::ALL.get((self.0 >> LENGTH_BITS) as usize).copied()
    }
}

/// A table of picks that any number of threads walk around together.
#[derive(Debug)]
pub struct PickGate {
    /// How many slots are in use, and why picks are what they are, in one word so that a pick
    /// reads both at once.
    shape: AtomicU32,
    /// Wraps around after four billion picks; the walk then jumps once, which nobody can feel.
    cursor: AtomicU32,
    slots: Box<[AtomicU32]>,
}

impl PickGate {
    /// An empty gate with room for `capacity` entries.
    pub(super) fn new(capacity: usize) -> Self {
        let slots = (0..capacity.min(LENGTH_MAX)).map(|_| AtomicU32::new(0)).collect();
        Self { shape: AtomicU32::new(0), cursor: AtomicU32::new(0), slots }
    }

    /// Continues the walk from anywhere. Clients that all start at the same entry send their first
    /// requests to the same backend: let chance choose.
    pub fn start_at(&self, entry: u32) {
        self.cursor.store(entry, Ordering::Relaxed);
    }

    /// The backend for one request; nothing if there are none.
    #[inline]
    pub fn pick(&self) -> Option<Pick> {
        let shape = self.shape();
        if shape.len() == 0 {
            return None;
        }
        let entry = self.cursor.fetch_add(1, Ordering::Relaxed);
        let backend = self.entry(shape, entry)?;
        Some(Pick { backend, reason: shape.reason()? })
    }

    /// The backend that the next pick will give if nobody else picks before.
    #[inline]
    pub(super) fn peek(&self) -> Option<BackendId> {
        self.entry(self.shape(), self.cursor.load(Ordering::Relaxed))
    }

    #[inline]
    pub(super) fn shape(&self) -> Shape {
        // Pairs with the release in `publish`: entries within this length have been written.
        Shape(self.shape.load(Ordering::Acquire))
    }

    /// The backend at `entry`, counted around and around; nothing if there are none.
    #[inline]
    pub(super) fn entry(&self, shape: Shape, entry: u32) -> Option<BackendId> {
        let entry = entry.checked_rem(shape.len())?;
        Some(BackendId(self.slots.get(entry as usize)?.load(Ordering::Relaxed)))
    }

    /// Replaces the table. What does not fit is left out; controllers see to it that all fits.
    pub(super) fn publish(&self, order: &[BackendId], reason: PickReason) {
        for (slot, id) in self.slots.iter().zip(order.iter().cycle()) {
            slot.store(id.0, Ordering::Relaxed);
        }
        let len = order.len().min(self.slots.len()) as u32;
        self.shape.store((reason as u32) << LENGTH_BITS | len, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_survive_the_packing() {
        let gate = PickGate::new(3);
        assert_eq!(gate.pick(), None);
        for reason in PickReason::ALL {
            gate.publish(&[BackendId(7)], reason);
            assert_eq!(gate.pick(), Some(Pick { backend: BackendId(7), reason }));
        }
        gate.publish(&[], PickReason::RoundRobin);
        assert_eq!(gate.pick(), None);
    }

    #[test]
    fn a_shorter_table_leaves_no_trace_of_the_longer_one() {
        let gate = PickGate::new(8);
        let ids: Vec<BackendId> = (0..8).map(BackendId).collect();
        gate.publish(&ids, PickReason::RoundRobin);
        gate.publish(&ids[..3], PickReason::RoundRobin);
        assert!(gate.slots.iter().all(|slot| slot.load(Ordering::Relaxed) < 3));
    }

    /// Picks while tables are swapped: always someone who is in one of the two tables.
    #[test]
    fn picks_that_overlap_a_publish_are_of_the_old_table_or_the_new() {
        let gate = PickGate::new(64);
        let odd: Vec<BackendId> = (0..64).map(|i| BackendId(2 * i + 1)).collect();
        let even: Vec<BackendId> = (1..10).map(|i| BackendId(2 * i)).collect();
        gate.publish(&odd, PickReason::RoundRobin);
        std::thread::scope(|scope| {
            let picker = scope.spawn(|| {
                (0..20_000).all(|_| {
                    let id = gate.pick().map(|pick| pick.backend);
                    id.is_some_and(|id| odd.contains(&id) || even.contains(&id))
                })
            });
            for _ in 0..500 {
                gate.publish(&even, PickReason::Weighted);
                gate.publish(&odd, PickReason::RoundRobin);
            }
            assert!(picker.join().unwrap());
        });
    }
}
