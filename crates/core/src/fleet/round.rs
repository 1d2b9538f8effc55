//! What may be pushed to which task, and when.
//!
//! The sum of what all tasks enforce must stay within the limit **at every moment**, while grants
//! travel, tasks vanish and leaders change. So every task counts for the most that it may be
//! enforcing, not for what it should:
//!
//! ```text
//! counts = last grant                            once the task acknowledged it
//!          the higher of it and the one before   until then; nothing new is pushed meanwhile
//!          the safe share of that                after the lease ended in silence
//!          nothing                               after it left, or was forgotten; a process
//!                                                that was replaced, when its lease ended
//! ```
//!
//! A cut is pushed at once. A raise is pushed only as far as the limit exceeds what counts: if it
//! has to come from another task, that takes one round to take back and one to hand out. Acks are
//! the number of the last grant that arrived, all before it having arrived too, as on any stream.
//! After a stream broke and was resumed, everything is said again under new numbers.

use super::allocate::{Allocator, Levels, Party, Target};
use super::config::FleetConfig;
use super::ledger::{Ledger, State, add, higher, limits, part};
use super::message::{Change, Generation};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::units::Timestamp;

const LEVELS: usize = Criticality::COUNT;

/// A live task of the customer at hand.
#[derive(Debug, Clone, Copy)]
struct Seat {
    /// Its place among the customer's entries.
    place: u32,
    weight: u32,
    /// It is known to hold its last grant, and may be given a new one.
    settled: bool,
    /// Everything is taken back.
    revoke: bool,
    /// The most that it may be using.
    holds: Levels,
    /// What it was granted last.
    granted: Levels,
    /// What it gets above that.
    raise: Levels,
}

/// Divides the limits of one customer after the other, and numbers the grants.
#[derive(Debug, Clone)]
pub(super) struct CustomerDivider {
    epoch: u64,
    /// The number of the last grant.
    number: u64,
    allocator: Allocator,
    seats: Vec<Seat>,
    claims: Vec<(u64, u32)>,
    grants: Vec<u64>,
}

impl CustomerDivider {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            number: 0,
            allocator: Allocator::default(),
            seats: Vec::new(),
            claims: Vec::new(),
            grants: Vec::new(),
        }
    }

    pub(super) const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Divides the limits of the customer at `index` and pushes what may be pushed. Returns whether
    /// there is more to do in the next round, even if nobody reports anything new.
    pub(super) fn divide(
        &mut self,
        ledger: &mut Ledger,
        config: &FleetConfig,
        index: usize,
        learning: bool,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> bool {
        remove_revoked(ledger, index);
        let limit = ledger.customers[index].limits;
        let lost = self.seat(ledger, config, index, now);
        let reserve = part(config.unseen, limit);
        let taken = core::array::from_fn(|l| lost[l].saturating_add(reserve[l]));
        let floor = self.allocator.allocate(limit, taken, config.floor);
        for (seat, target) in self.seats.iter().zip(&mut self.allocator.targets) {
            if seat.revoke {
                target.whole = [0; LEVELS];
                target.need = target.whole;
            } else if learning {
                let kept: Levels = core::array::from_fn(|l| seat.holds[l].min(limit[l]));
                target.whole = higher(kept, floor.map(|f| f * u64::from(seat.weight)));
                target.need = target.whole;
            }
        }

        let counted = ledger.customers[index].counted;
        let free = core::array::from_fn(|l| {
            limit[l].saturating_sub(reserve[l]).saturating_sub(counted[l])
        });
        let pressed = self.raise(free);
        let exact = pressed || learning;
        let pushed = self.push(ledger, config, index, exact, now, changes);
        pushed || pressed || self.seats.iter().any(|seat| !seat.settled)
    }

    /// Seats the live tasks and adds the customer up. Returns what the others still hold.
    fn seat(
        &mut self,
        ledger: &mut Ledger,
        config: &FleetConfig,
        index: usize,
        now: Timestamp,
    ) -> Levels {
        let customer = &mut ledger.customers[index];
        let mut lost = [0; LEVELS];
        (customer.used, customer.demand) = (lost, lost);
        (customer.counted, customer.claimed) = (lost, lost);
        self.allocator.parties.clear();
        self.seats.clear();
        for (place, entry) in customer.entries.iter().enumerate() {
            let task = &ledger.tasks[entry.task as usize];
            let holds = entry.counted(task.acked);
            add(&mut customer.used, entry.used);
            add(&mut customer.demand, entry.demand);
            add(&mut customer.counted, holds);
            add(&mut customer.claimed, entry.claimed(task.acked));
            if task.state != State::Live {
                add(&mut lost, holds);
                continue;
            }
            let idle = entry.demand == [0; LEVELS] && now.since(entry.wanted_at) >= config.idle;
            self.allocator.parties.push(Party { demand: entry.demand, weight: task.weight });
            self.seats.push(Seat {
                place: place as u32,
                weight: task.weight,
                settled: entry.is_settled(task.acked),
                revoke: idle || customer.retired,
                holds,
                granted: entry.granted,
                raise: [0; LEVELS],
            });
        }
        lost
    }

    /// Divides what is `free` among the tasks that should have more than they have, level by level:
    /// first what they need, then room to grow. Returns whether there is too little of the first.
    fn raise(&mut self, free: Levels) -> bool {
        let mut pressed = false;
        for (l, &free) in free.iter().enumerate() {
            let (given, enough) = self.raise_to(l, free, |target| target.need[l]);
            pressed |= !enough;
            self.raise_to(l, free - given, |target| target.whole[l]);
        }
        pressed
    }

    /// Divides `free` among the tasks that have less than `goal` at level `l`. Returns how much was
    /// given, and whether that was enough.
    fn raise_to(&mut self, l: usize, free: u64, goal: impl Fn(&Target) -> u64) -> (u64, bool) {
        self.claims.clear();
        let mut lacked = 0_u128;
        for (seat, target) in self.seats.iter().zip(&self.allocator.targets) {
            let has = seat.granted[l].saturating_add(seat.raise[l]);
            let lacks = if seat.settled { goal(target).saturating_sub(has) } else { 0 };
            lacked += u128::from(lacks);
            self.claims.push((lacks, seat.weight));
        }
        if lacked == 0 {
            return (0, true);
        }
        let given = self.allocator.divider.divide(free, &self.claims, &mut self.grants);
        for (seat, grant) in self.seats.iter_mut().zip(&self.grants) {
            seat.raise[l] += *grant;
        }
        (given, lacked <= u128::from(free))
    }

    /// Pushes the new grants of all tasks that hold their last one; slight changes only if it has
    /// to be `exact`. Returns whether there were any.
    fn push(
        &mut self,
        ledger: &mut Ledger,
        config: &FleetConfig,
        index: usize,
        exact: bool,
        now: Timestamp,
        changes: &mut Vec<Change>,
    ) -> bool {
        let before = changes.len();
        let customer = &mut ledger.customers[index];
        for (seat, target) in self.seats.iter().zip(&self.allocator.targets) {
            if !seat.settled {
                continue;
            }
            let mut new: Levels = core::array::from_fn(|l| {
                target.whole[l].min(seat.granted[l].saturating_add(seat.raise[l]))
            });
            for l in (1..LEVELS).rev() {
                new[l - 1] = new[l - 1].min(new[l]);
            }
            let slight = (0..LEVELS).all(|l| {
                let room = config.room_band.share_of(target.whole[l] - target.need[l]);
                let band = config.deadband.share_of(seat.granted[l]).max(room);
                seat.granted[l] >= target.need[l] && seat.granted[l].abs_diff(new[l]) <= band
            });
            let entry = &mut customer.entries[seat.place as usize];
            let told = entry.number != 0 && entry.revoked == seat.revoke;
            if told && (new == seat.granted || (slight && !exact)) {
                continue;
            }
            self.number += 1;
            let task = &mut ledger.tasks[entry.task as usize];
            entry.grant(new, self.number, task.acked, seat.revoke);
            task.pushed = self.number;
            task.waiting_since.get_or_insert(now);
            let (granted, safe) = if seat.revoke {
                let unseen = config.unseen_of(customer.limits, ledger.places.count());
                (unseen, unseen)
            } else {
                (limits(new), limits(part(config.safe, new)))
            };
            changes.push(Change {
                task: task.id,
                customer: CustomerId::new(index),
                generation: Generation { epoch: self.epoch, number: self.number },
                limits: granted,
                safe,
                revoked: seat.revoke,
            });
        }
        changes.len() > before
    }
}

/// Removes the entries that were taken back, once their tasks know and want nothing again.
fn remove_revoked(ledger: &mut Ledger, index: usize) {
    for place in (0..ledger.customers[index].entries.len()).rev() {
        let customer = &ledger.customers[index];
        let entry = &customer.entries[place];
        let task = &ledger.tasks[entry.task as usize];
        let known = entry.number != 0 && entry.is_settled(task.acked);
        if entry.revoked && known && (customer.retired || entry.demand == [0; LEVELS]) {
            ledger.remove(index, place);
        }
    }
}
