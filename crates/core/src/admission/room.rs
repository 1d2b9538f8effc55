//! How much may still be let in until the controller looks again.
//!
//! A share of what comes is no limit on how much comes. So each plan has room for some cost, and
//! what was let in since is counted against it, by all threads together: level by level, with more
//! room for higher ones, so that where a level finds none, no lower level does.
//!
//! Counting every request in one place would cost what the gate saves everywhere else. A thread
//! takes room for several requests at once, as a **lease**, and needs the shared count only when
//! that is used up: [`PARTS`] times per thread and plan. What is leased and not used when the next
//! plan comes is forgotten: the controller counts what is in flight, not what was leased.
//!
//! A request is let in while there is any room at all, so a plan may be overdrawn by one request
//! or lease per thread. When no plan comes for a while (the controller's thread is held up), an old
//! one is no reason to refuse: then shares alone decide, until the next.

use crate::criticality::Criticality;
use crate::sync::{AtomicU64, Ordering};
use crate::units::{Cost, Timestamp};
use core::time::Duration;

const LEVELS: usize = Criticality::COUNT;
/// A lease is this part of a thread's share of the room: what is leased and not used when the next
/// plan comes is missing.
const PARTS: u64 = 64;
/// Plans come every few milliseconds; one that is this old is not being followed up.
const VALID: Duration = Duration::from_millis(100);

#[derive(Debug)]
pub(super) struct Room {
    /// By level, in nanoseconds of cost; `u64::MAX` is no limit.
    most: [AtomicU64; LEVELS],
    used: AtomicU64,
    valid_until: AtomicU64,
    lanes: AtomicU64,
}

impl Room {
    pub(super) fn new() -> Self {
        Self {
            most: core::array::from_fn(|_| AtomicU64::new(u64::MAX)),
            used: AtomicU64::new(0),
            valid_until: AtomicU64::new(u64::MAX),
            lanes: AtomicU64::new(0),
        }
    }

    pub(super) fn publish(&self, room: &[Cost; LEVELS], now: Timestamp) {
        for (most, room) in self.most.iter().zip(room) {
            most.store(room.as_nanos(), Ordering::Relaxed);
        }
        self.valid_until.store((now + VALID).as_nanos(), Ordering::Relaxed);
        self.used.store(0, Ordering::Relaxed);
    }

    pub(super) fn lease(&self) -> Lease {
        self.lanes.fetch_add(1, Ordering::Relaxed);
        // No plan has this number for as long as anyone will wait.
        Lease { left: 0, plan: u32::MAX, from: 0 }
    }

    pub(super) fn lane_gone(&self) {
        self.lanes.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What one thread may let in without asking.
#[derive(Debug)]
pub(super) struct Lease {
    left: u64,
    /// The plan it belongs to.
    plan: u32,
    /// The level it was taken for, and may not be used below.
    from: u8,
}

impl Lease {
    /// Takes room for `cost`; whether there was any.
    #[inline]
    pub(super) fn take(
        &mut self,
        room: &Room,
        plan: u32,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) -> bool {
        let cost = cost.as_nanos();
        let here = plan == self.plan && criticality as u8 >= self.from && self.left >= cost;
        if here {
            self.left -= cost;
            return true;
        }
        self.renew(room, plan, criticality, cost, now)
    }

    #[cold]
    fn renew(
        &mut self,
        room: &Room,
        plan: u32,
        criticality: Criticality,
        cost: u64,
        now: Timestamp,
    ) -> bool {
        let most = room.most[criticality.index()].load(Ordering::Relaxed);
        let from = criticality as u8;
        if most == u64::MAX {
            *self = Self { left: u64::MAX - cost, plan, from };
            return true;
        }
        if now.as_nanos() > room.valid_until.load(Ordering::Relaxed) {
            return true;
        }
        if room.used.load(Ordering::Relaxed) >= most {
            return false;
        }
        // What is leased for a higher level stays; the others lease whole requests like this one,
        // as a rest that is of no use to anybody would be lost.
        let keeps = plan == self.plan && from < self.from && self.left > 0;
        let part = most / room.lanes.load(Ordering::Relaxed).max(1) / PARTS;
        let lease = if keeps { 0 } else { part - part % cost.max(1) };
        let before = room.used.fetch_add(cost.saturating_add(lease), Ordering::Relaxed);
        if before >= most {
            return false;
        }
        if !keeps {
            *self = Self { left: lease, plan, from };
        }
        true
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable};

    const NOW: Timestamp = Timestamp::from_secs(1);

    fn cost(nanos: u64) -> Cost {
        Cost::from_nanos(nanos)
    }

    fn admitted(lease: &mut Lease, room: &Room, plan: u32, level: Criticality, each: u64) -> u64 {
        (0..1_000).take_while(|_| lease.take(room, plan, level, cost(each), NOW)).count() as u64
    }

    #[test]
    fn as_much_gets_in_as_there_is_room_for() {
        let room = Room::new();
        let mut lease = room.lease();
        assert_eq!(admitted(&mut lease, &room, 0, Sheddable, 7), 1_000, "without a plan");
        for (plan, (each, expected)) in (1..).zip([(1, 100), (30, 4), (100, 1), (250, 1)]) {
            room.publish(&[cost(100); 4], NOW);
            assert_eq!(admitted(&mut lease, &room, plan, Critical, each), expected, "{each} each");
        }
        room.publish(&[cost(0); 4], NOW);
        assert_eq!(admitted(&mut lease, &room, 9, CriticalPlus, 1), 0);
    }

    #[test]
    fn higher_levels_have_more_room_and_keep_what_they_lease() {
        let room = Room::new();
        let mut lease = room.lease();
        room.publish(&[10, 20, 100, 200].map(cost), NOW);
        assert_eq!(admitted(&mut lease, &room, 1, Sheddable, 1), 10);
        // Some of what is leased here is of no use to a lower level.
        assert!(lease.take(&room, 1, Critical, cost(1), NOW));
        assert!(!lease.take(&room, 1, Sheddable, cost(1), NOW));
        assert_eq!(admitted(&mut lease, &room, 1, Critical, 1), 89);
        assert_eq!(admitted(&mut lease, &room, 1, CriticalPlus, 1), 100);
    }

    #[test]
    fn two_threads_share_one_room() {
        let room = Room::new();
        let mut leases = [room.lease(), room.lease()];
        room.publish(&[cost(1_000); 4], NOW);
        let mut total = 0;
        for i in 0..4_000 {
            total += u64::from(leases[i % 2].take(&room, 1, Critical, cost(1), NOW));
        }
        // Leases of 7 and the request that takes them: the last one is overdrawn.
        assert_eq!(total, 1_000);
    }

    #[test]
    fn an_old_plan_is_no_reason_to_refuse() {
        let room = Room::new();
        let mut lease = room.lease();
        room.publish(&[cost(0); 4], NOW);
        assert!(!lease.take(&room, 1, Critical, cost(1), NOW + VALID));
        assert!(lease.take(&room, 1, Critical, cost(1), NOW + VALID + Duration::from_nanos(1)));
    }
}
