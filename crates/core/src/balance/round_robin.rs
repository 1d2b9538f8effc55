//! Each backend in turn.
//!
//! The least that works: it needs no facts but the set. With equal machines and equal requests it
//! is as good as any; with real ones the most loaded task does about twice what the least loaded
//! does, because requests differ in cost, machines in speed, and neighbours in appetite.

use super::gate::PickGate;
use super::order::Order;
use super::roster::Roster;
use super::{BackendId, Join, Outcome, Pick, PickReason, Standing};
use crate::units::Timestamp;
use std::sync::Arc;

/// Round robin over a set of backends.
#[derive(Debug)]
pub struct RoundRobin {
    roster: Roster,
    order: Order,
}

impl RoundRobin {
    /// Over at most `backends_max` backends: the gate's memory is four bytes for each.
    pub fn new(backends_max: usize) -> Self {
        let backends_max = backends_max.min(BackendId::LIMIT as usize);
        Self { roster: Roster::new(backends_max), order: Order::new(backends_max) }
    }

    /// Where threads pick. It follows every change of the set.
    pub fn gate(&self) -> Arc<PickGate> {
        Arc::clone(self.order.gate())
    }

    /// `id` joins, or comes back. Whether it is in now: not if there are too many.
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        let known = self.roster.serves(id);
        let joined = self.roster.join(id, join, now);
        if joined && !known {
            self.publish();
        }
        joined
    }

    /// `id` asks for no new requests; hearing that again costs nothing. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId) -> bool {
        let served = self.roster.serves(id);
        let known = self.roster.lame_duck(id);
        if served {
            self.publish();
        }
        known
    }

    /// `id` is gone. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId) -> bool {
        let known = self.roster.leave(id);
        if known {
            self.publish();
        }
        known
    }

    /// The next backend.
    pub fn pick(&mut self) -> Option<Pick> {
        self.order.gate().pick()
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId) {
        self.roster.on_start(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, _outcome: Outcome) {
        self.roster.on_complete(id);
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        self.roster.standing(id)
    }

    /// Attempts on `id` that have begun and not ended.
    pub fn active(&self, id: BackendId) -> u32 {
        self.roster.active(id)
    }

    /// How many orders have been published. Each costs O(backends).
    pub fn orders_published(&self) -> u64 {
        self.order.published()
    }

    fn publish(&mut self) {
        if self.roster.serving().is_empty() {
            self.order.in_turn(self.roster.lame(), PickReason::AllLameDuck);
        } else {
            self.order.in_turn(self.roster.serving(), PickReason::RoundRobin);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Over any stretch of picks, no two backends differ by more than one.
        #[test]
        fn turns_are_fair(backends in 1_u32..50, picks in 1_usize..500, start: u32) {
            let mut rr = RoundRobin::new(50);
            // The cursor jumps when it wraps around: leave that moment out.
            rr.gate().start_at(start / 2);
            for id in 0..backends {
                rr.add(BackendId(id), Join::Cold, Timestamp::ZERO);
            }
            let mut counts = vec![0_u32; backends as usize];
            for _ in 0..picks {
                let pick = rr.pick().unwrap();
                prop_assert_eq!(pick.reason, PickReason::RoundRobin);
                counts[pick.backend.0 as usize] += 1;
            }
            prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
        }
    }

    /// A backend says that it is a lame duck with every response.
    #[test]
    fn old_news_costs_nothing() {
        let mut rr = RoundRobin::new(4);
        for id in 0..3 {
            rr.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        rr.lame_duck(BackendId(1));
        rr.remove(BackendId(2));
        assert_eq!(rr.orders_published(), 5);
        for _ in 0..1_000 {
            assert!(rr.add(BackendId(0), Join::Warm, Timestamp::ZERO));
            assert!(rr.lame_duck(BackendId(1)));
            assert!(!rr.lame_duck(BackendId(9)));
            assert!(!rr.remove(BackendId(2)));
        }
        assert_eq!(rr.orders_published(), 5);
        assert!(rr.remove(BackendId(1)));
        assert_eq!(rr.orders_published(), 6);
    }

    #[test]
    fn a_full_set_refuses() {
        let mut rr = RoundRobin::new(2);
        let added: Vec<bool> =
            (0..3).map(|i| rr.add(BackendId(i), Join::Warm, Timestamp::ZERO)).collect();
        assert_eq!(added, [true, true, false]);
        assert!(rr.remove(BackendId(0)));
        assert!(rr.add(BackendId(2), Join::Warm, Timestamp::ZERO));
        assert!(!rr.add(BackendId(BackendId::LIMIT), Join::Warm, Timestamp::ZERO));
    }
}
