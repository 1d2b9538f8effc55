//! Each backend in turn.
//!
//! The least that works: it needs no facts but the set. With equal machines and equal requests it
//! is as good as any; with real ones the most loaded task does about twice what the least loaded
//! does, because requests differ in cost, machines in speed, and neighbours in appetite.
//!
//! A backend that joins cold gets fewer turns while it ramps up ([`SlowStart`]): the order is then
//! worked out by weight, one for a warm backend and the share of the ramp for a cold one, and anew
//! for each sixteenth of the ramp. With all warm, or all equally cold, everyone has its turn.

use super::gate::PickGate;
use super::order::Order;
use super::roster::Roster;
use super::slow_start::SlowStart;
use super::{BackendId, Join, Pick, PickReason, Standing};
use crate::outcome::Outcome;
use crate::units::{Ratio, Timestamp};
use std::sync::Arc;

/// Round robin over a set of backends.
#[derive(Debug)]
pub struct RoundRobin {
    slow_start: SlowStart,
    roster: Roster,
    order: Order,
    weights: Vec<(BackendId, f64)>,
    /// When cold backends get more turns.
    next_ramp: Option<Timestamp>,
    /// The latest time seen: a clock that steps back stands still here.
    now: Timestamp,
}

impl RoundRobin {
    /// Over at most `backends_max` backends: the gate's memory is 64 bytes for each.
    pub fn new(backends_max: usize) -> Self {
        let backends_max = backends_max.min(BackendId::LIMIT as usize);
        Self {
            slow_start: SlowStart::default(),
            roster: Roster::new(backends_max),
            order: Order::new(backends_max),
            weights: Vec::new(),
            next_ramp: None,
            now: Timestamp::ZERO,
        }
    }

    /// The same with another ramp for cold backends.
    #[must_use]
    pub fn with_slow_start(self, slow_start: SlowStart) -> Self {
        Self { slow_start, ..self }
    }

    /// Where threads pick. It follows every change of the set; call [`RoundRobin::on_deadline`]
    /// when it is due, or cold backends stay where they are.
    pub fn gate(&self) -> Arc<PickGate> {
        Arc::clone(self.order.gate())
    }

    /// `id` joins, or comes back. Whether it is in now: not if there are too many.
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        self.now = self.now.max(now);
        let known = self.roster.serves(id) && join == Join::Warm;
        let joined = self.roster.join(id, join, self.now);
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

    #[inline]
    pub(super) fn peek(&self) -> Option<BackendId> {
        self.order.gate().peek()
    }

    /// The next backend. For a single owner: what is due is done first.
    pub fn pick(&mut self, now: Timestamp) -> Option<Pick> {
        self.on_deadline(now);
        self.order.gate().pick()
    }

    /// An attempt on `id` begins. Only [`RoundRobin::active`] depends on this and on the end:
    /// threads that pick at the gate can leave both out.
    pub fn on_start(&mut self, id: BackendId) {
        self.roster.on_start(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, _outcome: Outcome) {
        self.roster.on_complete(id);
    }

    /// When [`RoundRobin::on_deadline`] wants to be called next: while a backend ramps up.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        self.next_ramp
    }

    /// Gives cold backends more turns, if that is due.
    pub fn on_deadline(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        if self.next_ramp.is_some_and(|at| at <= self.now) {
            self.publish();
        }
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
        let Self { slow_start, roster, order, weights, next_ramp, now } = self;
        *next_ramp = None;
        if roster.serving().is_empty() {
            order.in_turn(roster.lame(), PickReason::AllLameDuck);
            return;
        }
        let share = |id| {
            let cold_since = roster.cold_since(id);
            cold_since.map_or(Ratio::ONE, |start| slow_start.share(now.since(start)))
        };
        weights.clear();
        weights.extend(roster.serving().iter().map(|&id| (id, share(id).get())));
        if weights.iter().all(|&(_, weight)| weight >= 1.0) {
            order.in_turn(roster.serving(), PickReason::RoundRobin);
        } else {
            order.by_weight(weights, PickReason::RoundRobin);
            // Not at the end of time, where it would always be due.
            *next_ramp = Some(*now + slow_start.tick()).filter(|at| at > now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::time::Duration;
    use proptest::prelude::*;

    proptest! {
        /// With all warm, or all equally cold: over any stretch of picks, no two backends differ by
        /// more than one.
        #[test]
        fn turns_are_fair(
            backends in 1_u32..50, picks in 1_usize..500, start: u32, cold: bool,
        ) {
            let join = if cold { Join::Cold } else { Join::Warm };
            let mut rr = RoundRobin::new(50);
            // The cursor jumps when it wraps around: leave that moment out.
            rr.gate().start_at(start / 2);
            for id in 0..backends {
                rr.add(BackendId(id), join, Timestamp::ZERO);
            }
            let mut counts = vec![0_u32; backends as usize];
            for _ in 0..picks {
                let pick = rr.pick(Timestamp::ZERO).unwrap();
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

    /// Nine warm backends and one that joins cold: a tenth of a share, then more, then all of it.
    #[test]
    fn a_cold_backend_ramps_up() {
        let mut rr = RoundRobin::new(10);
        for id in 0..9 {
            rr.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        rr.add(BackendId(9), Join::Cold, Timestamp::ZERO);
        let joined = rr.orders_published();
        for secs in 0..=40 {
            let now = Timestamp::from_secs(secs);
            let share = SlowStart::default().share(Duration::from_secs(secs)).get();
            assert_eq!(rr.next_deadline().is_some(), secs <= 30, "before {secs} s");
            // Ten rounds of a table of 260, each right to one entry. The order may be a tick old.
            let picks = (0..2_600).map(|_| rr.pick(now).unwrap());
            let cold = picks.filter(|pick| pick.backend == BackendId(9)).count() as f64;
            let exact = |share: f64| 2_600.0 * share / (9.0 + share);
            let oldest = exact(share - 0.06);
            assert!((oldest - 10.0..=exact(share) + 10.0).contains(&cold), "{cold} at {secs} s");
        }
        // Due every 1.9 s, and picks come each second: at every other one until 30 s.
        assert_eq!(rr.orders_published() - joined, 15);
        // A restart, seen by threads that pick at the gate.
        let (gate, now) = (rr.gate(), Timestamp::from_secs(50));
        rr.add(BackendId(3), Join::Cold, now);
        let picks = |backend| (0..260).filter(|_| gate.pick().unwrap().backend == backend).count();
        assert!(picks(BackendId(3)) <= 3);
        rr.on_deadline(now + Duration::from_secs(30));
        assert_eq!(picks(BackendId(3)), 26);
    }

    #[test]
    fn ramps_can_be_turned_off() {
        let mut rr = RoundRobin::new(10).with_slow_start(SlowStart::OFF);
        for id in 0..10 {
            let join = if id == 0 { Join::Cold } else { Join::Warm };
            rr.add(BackendId(id), join, Timestamp::from_secs(u64::from(id)));
        }
        assert_eq!(rr.next_deadline(), None);
        let first = (0..1_000).filter(|_| rr.pick(Timestamp::ZERO).unwrap().backend.0 == 0);
        assert_eq!(first.count(), 100);
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
