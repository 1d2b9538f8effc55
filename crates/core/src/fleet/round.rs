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
use super::entry::{NUMBER_MAX, grantable};
use super::ledger::{Ledger, State, add, higher, limits, part};
use super::message::{Change, Generation};
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::units::{Ratio, Timestamp};

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
    /// At which levels every task gets all that it should have.
    whole: [bool; LEVELS],
    claims: Vec<(u64, u32)>,
    grants: Vec<u64>,
}

/// A share that is taken of millions of amounts, each with one multiplication.
#[derive(Debug, Clone, Copy)]
struct Band(u64);

impl Band {
    fn new(ratio: Ratio) -> Self {
        Self((u64::from(ratio.billionths()) << 32) / u64::from(Ratio::WHOLE))
    }

    fn of(self, amount: u64) -> u64 {
        ((u128::from(amount) * u128::from(self.0)) >> 32) as u64
    }
}

impl CustomerDivider {
    pub(super) fn new(epoch: u64) -> Self {
        Self {
            epoch,
            number: 0,
            allocator: Allocator::default(),
            seats: Vec::new(),
            whole: [false; LEVELS],
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
        if ledger.customers[index].revokes {
            remove_revoked(ledger, index);
        }
        let limit = ledger.customers[index].limits;
        let lost = self.seat(ledger, config, index, now);
        let reserve = part(config.unseen, limit);
        let taken = core::array::from_fn(|l| lost[l].saturating_add(reserve[l]));
        let floor = self.allocator.allocate(limit, taken, config.floor);
        let counted = ledger.customers[index].counted;
        for (seat, target) in self.seats.iter().zip(&mut self.allocator.targets) {
            if seat.revoke {
                target.whole = [0; LEVELS];
                target.need = target.whole;
            } else if learning {
                // Everyone keeps what it has, unless that is too much of all together.
                let kept: Levels = core::array::from_fn(|l| {
                    let most = if counted[l] <= limit[l] { limit[l] } else { target.whole[l] };
                    seat.holds[l].min(most)
                });
                target.whole = higher(kept, floor.map(|f| f * u64::from(seat.weight)));
                target.need = target.whole;
            }
        }

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
        let customer = &ledger.customers[index];
        let (mut used, mut demand) = ([0; LEVELS], [0; LEVELS]);
        let (mut counted, mut claimed, mut lost) = (used, used, used);
        self.allocator.parties.clear();
        self.seats.clear();
        for (place, entry) in customer.entries.iter().enumerate() {
            let task = &ledger.tasks[entry.task as usize];
            let holds = customer.counted(entry, task.acked);
            let wants = entry.demand();
            add(&mut used, entry.used());
            add(&mut demand, wants);
            add(&mut counted, holds);
            add(&mut claimed, customer.claimed(entry, task.acked));
            if task.state != State::Live {
                add(&mut lost, holds);
                continue;
            }
            let idle = entry.wants_nothing() && entry.idle(now) >= config.idle;
            self.allocator.parties.push(Party { demand: wants, weight: task.weight });
            self.seats.push(Seat {
                place: place as u32,
                weight: task.weight,
                settled: entry.is_settled(task.acked),
                revoke: idle || customer.retired,
                holds,
                granted: entry.granted(),
                raise: [0; LEVELS],
            });
        }
        let customer = &mut ledger.customers[index];
        (customer.used, customer.demand) = (used, demand);
        (customer.counted, customer.claimed) = (counted, claimed);
        lost
    }

    /// Divides what is `free` among the tasks that should have more than they have, level by level:
    /// first what they need, then room to grow. Returns whether there is too little of the first.
    fn raise(&mut self, free: Levels) -> bool {
        let (mut needs, mut rooms) = ([0_u128; LEVELS], [0_u128; LEVELS]);
        for (seat, target) in self.seats.iter().zip(&self.allocator.targets) {
            for l in 0..if seat.settled { LEVELS } else { 0 } {
                let has = seat.granted[l];
                needs[l] += u128::from(target.need[l].saturating_sub(has));
                rooms[l] += u128::from(target.whole[l].saturating_sub(has.max(target.need[l])));
            }
        }
        let mut pressed = false;
        for l in 0..LEVELS {
            let free = u128::from(free[l]);
            self.whole[l] = needs[l] + rooms[l] <= free;
            if self.whole[l] {
                continue;
            }
            let needed = needs[l].min(free) as u64;
            self.raise_to(l, needed, |target| target.need[l]);
            self.raise_to(l, free as u64 - needed, |target| target.whole[l]);
            pressed |= needs[l] > free;
        }
        pressed
    }

    /// Divides `free` among the tasks that have less than `goal` at level `l`.
    fn raise_to(&mut self, l: usize, free: u64, goal: impl Fn(&Target) -> u64) {
        if free == 0 {
            return;
        }
        self.claims.clear();
        for (seat, target) in self.seats.iter().zip(&self.allocator.targets) {
            let has = seat.granted[l].saturating_add(seat.raise[l]);
            let lacks = if seat.settled { goal(target).saturating_sub(has) } else { 0 };
            self.claims.push((lacks, seat.weight));
        }
        self.allocator.divider.divide(free, &self.claims, &mut self.grants);
        for (seat, grant) in self.seats.iter_mut().zip(&self.grants) {
            seat.raise[l] += *grant;
        }
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
        let (deadband, room_band) = (Band::new(config.deadband), Band::new(config.room_band));
        for (seat, target) in self.seats.iter().zip(&self.allocator.targets) {
            if !seat.settled {
                continue;
            }
            let mut new: Levels = core::array::from_fn(|l| {
                let most = seat.granted[l].saturating_add(seat.raise[l]);
                if self.whole[l] { target.whole[l] } else { target.whole[l].min(most) }
            });
            for l in (1..LEVELS).rev() {
                new[l - 1] = new[l - 1].min(new[l]);
            }
            let new = grantable(new);
            let entry = &customer.entries[seat.place as usize];
            let told = entry.number() != 0 && entry.is_revoked() == seat.revoke;
            if told && new == seat.granted {
                continue;
            }
            let slight = !exact && {
                let need = grantable(target.need);
                (0..LEVELS).all(|l| {
                    let room = room_band.of(target.whole[l] - target.need[l]);
                    let band = deadband.of(seat.granted[l]).max(room);
                    seat.granted[l] >= need[l] && seat.granted[l].abs_diff(new[l]) <= band
                })
            };
            if (told && slight) || self.number == NUMBER_MAX {
                continue;
            }
            self.number += 1;
            let task = &mut ledger.tasks[entry.task as usize];
            customer.grant(seat.place as usize, new, self.number, task.acked, seat.revoke);
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
    let mut left = false;
    for place in (0..ledger.customers[index].entries.len()).rev() {
        let customer = &ledger.customers[index];
        let entry = &customer.entries[place];
        if !entry.is_revoked() {
            continue;
        }
        let task = &ledger.tasks[entry.task as usize];
        let known = entry.is_acked(task.acked);
        if known && (customer.retired || entry.wants_nothing()) {
            ledger.remove(index, place);
        } else {
            left = true;
        }
    }
    ledger.customers[index].revokes = left;
}
