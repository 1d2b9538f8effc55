//! Who holds what: tasks, customers, and one entry for each pair that has to do with each other.
//!
//! Entries lie side by side per customer, because that is how limits are divided. Each task keeps a
//! sorted list of where its entries are. Ids are indices, so that a report costs no search by name:
//! tasks send their customers in the same order every time, and a cursor finds each at once.

use super::allocate::Levels;
use super::entry::{CLAIMS, Entry};
use super::limits::Limits;
use super::message::{Generation, TaskId};
use super::unseen::Places;
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::units::{CostRate, Ratio, Timestamp};
use core::mem::take;
use std::collections::{BTreeMap, VecDeque};

/// The higher of both at every level.
pub(super) fn higher(a: Levels, b: Levels) -> Levels {
    core::array::from_fn(|l| a[l].max(b[l]))
}

pub(super) fn add(sum: &mut Levels, levels: Levels) {
    for (sum, level) in sum.iter_mut().zip(levels) {
        *sum = sum.saturating_add(level);
    }
}

pub(super) fn nanos(rates: [CostRate; Criticality::COUNT]) -> Levels {
    rates.map(CostRate::as_nanos_per_sec)
}

pub(super) fn limits(levels: Levels) -> Limits {
    Limits::clamped(levels.map(CostRate::from_nanos_per_sec))
}

/// `ratio` of every level.
pub(super) fn part(ratio: Ratio, levels: Levels) -> Levels {
    levels.map(|level| ratio.share_of(level))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// No task has this slot.
    Vacant,
    /// The task reports, or did within its lease.
    Live,
    /// The lease has ended: the task is gone, or runs on its safe shares where nobody sees it.
    Lost,
    /// Another process joined under its name: it is not renewed, and counts until its lease ends.
    Replaced,
}

#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) id: TaskId,
    pub(super) name: String,
    pub(super) state: State,
    pub(super) weight: u32,
    /// By which election it stands for others; 0 if for itself.
    pub(super) reign: u64,
    /// Who stands for them, if that was proved.
    pub(super) identity: Option<Box<str>>,
    /// It was named as one who may.
    pub(super) named: bool,
    /// When its lease ends, or when it is forgotten.
    pub(super) deadline: Timestamp,
    /// All grants up to this one have arrived.
    pub(super) acked: u64,
    /// The last grant pushed to it.
    pub(super) pushed: u64,
    /// Since when there has been a grant that did not arrive, without any progress.
    pub(super) waiting_since: Option<Timestamp>,
    pub(super) stamp: u8,
    /// Customer and place in that customer's entries, sorted.
    pub(super) entries: Vec<(u32, u32)>,
}

impl Task {
    /// The grant `acked` of the leader of `epoch` arrived, and all before it. Returns whether that
    /// is news; what nobody pushed cannot have arrived.
    pub(super) fn acknowledge(
        &mut self,
        acked: Option<Generation>,
        epoch: u64,
        now: Timestamp,
    ) -> bool {
        let acked = acked.filter(|generation| generation.epoch == epoch);
        let acked = acked.map_or(0, |generation| generation.number.min(self.pushed));
        let news = acked > self.acked;
        if news {
            self.acked = acked;
            self.waiting_since = (acked < self.pushed).then_some(now);
        }
        news
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Customer {
    pub(super) limits: Levels,
    pub(super) entries: Vec<Entry>,
    /// Waits to be looked at.
    pub(super) dirty: bool,
    /// No longer configured; its entries are taken back.
    pub(super) retired: bool,
    /// Sums as of the last look.
    pub(super) used: Levels,
    pub(super) demand: Levels,
    pub(super) counted: Levels,
    /// As of then, and what was claimed since.
    pub(super) claimed: Levels,
    /// What tasks say they hold from before they joined, by their slots. Unlike what the leader
    /// granted this is hearsay: it ends with the lease, or with the first grant that arrives.
    pub(super) claims: BTreeMap<u32, Levels>,
    /// Some of the entries may have been taken back.
    pub(super) revokes: bool,
}

impl Customer {
    /// What counts only because the task says so.
    pub(super) fn claimed(&self, entry: &Entry, acked: u64) -> Levels {
        if !entry.has(CLAIMS) || entry.is_acked(acked) {
            return [0; 4];
        }
        self.claims.get(&entry.task).copied().unwrap_or_default()
    }

    /// The most that the task may be using.
    pub(super) fn counted(&self, entry: &Entry, acked: u64) -> Levels {
        let known = entry.known(acked).get();
        if entry.has(CLAIMS) { higher(self.claimed(entry, acked), known) } else { known }
    }

    /// The task says that it holds `has`, though the leader has learned everything there was to
    /// learn: a safe share of which nobody knows any more, an old report, or a lie. It counts as
    /// far as there is `room` for such claims, but is no grant. Returns by how much that is more.
    pub(super) fn claim(&mut self, place: usize, has: Levels, acked: u64, room: Levels) -> Levels {
        let entry = &self.entries[place];
        let mut more = [0; 4];
        if entry.is_acked(acked) {
            return more;
        }
        let (known, mut claimed) = (self.counted(entry, acked), self.claimed(entry, acked));
        for l in 0..4 {
            if has[l] > known[l] {
                more[l] = (has[l] - claimed[l]).min(room[l]);
                claimed[l] += more[l];
            }
        }
        if more != [0; 4] {
            let entry = &mut self.entries[place];
            entry.set(CLAIMS, true);
            self.claims.insert(entry.task, claimed);
        }
        more
    }

    fn drop_claim(&mut self, place: usize) {
        let entry = &mut self.entries[place];
        if entry.has(CLAIMS) {
            entry.set(CLAIMS, false);
            self.claims.remove(&entry.task);
        }
    }

    /// The stream of the task broke: it has to be told anew, and may hold any of what it was told.
    fn untell(&mut self, place: usize, acked: u64) {
        if self.entries[place].is_acked(acked) {
            self.drop_claim(place);
        }
        self.entries[place].untell(acked);
    }

    /// The lease of the task ended.
    fn lapse(&mut self, place: usize, acked: u64, safe: Ratio) {
        self.drop_claim(place);
        self.entries[place].lapse(acked, safe);
    }

    /// The next grant to a task, as [`grantable`] says.
    pub(super) fn grant(
        &mut self,
        place: usize,
        levels: Levels,
        number: u64,
        acked: u64,
        revoked: bool,
    ) {
        if self.entries[place].is_acked(acked) {
            self.drop_claim(place);
        }
        self.revokes |= revoked;
        self.entries[place].grant(levels, number, acked, revoked);
    }
}

/// Makes room for one more, for few more than that: there are many of these, and half of what is
/// doubled lies idle. They grow rarely, so that to copy more often costs nothing.
fn make_room<T>(list: &mut Vec<T>) {
    if list.len() == list.capacity() {
        list.reserve_exact((list.len() / 16).max(4));
    }
}

#[derive(Debug, Clone, Default)]
pub(super) struct Ledger {
    epoch: u64,
    /// How many have joined so far.
    joins: u64,
    pub(super) tasks: Vec<Task>,
    pub(super) places: Places,
    pub(super) customers: Vec<Customer>,
    vacant: Vec<u32>,
    /// Places of customers that are retired and have no entries left.
    pub(super) vacant_customers: Vec<u32>,
    task_names: BTreeMap<String, u32>,
    customer_names: BTreeMap<String, u32>,
    /// Customers that wait to be looked at, in the order in which they were marked.
    pub(super) dirty: VecDeque<u32>,
}

impl Ledger {
    /// Nobody but the customer who stands for all that are not configured.
    pub(super) fn new(epoch: u64, tasks_max: usize, default: Customer) -> Self {
        let places = Places::new(tasks_max);
        Self { epoch, places, customers: vec![default], ..Self::default() }
    }

    /// The slot of a task that has not left.
    pub(super) fn slot(&self, id: TaskId) -> Option<usize> {
        let task = self.tasks.get(id.slot())?;
        (task.state != State::Vacant && task.id == id).then_some(id.slot())
    }

    pub(super) fn customer_named(&self, name: &str) -> Option<usize> {
        self.customer_names.get(name).map(|&index| index as usize)
    }

    pub(super) fn slot_named(&self, name: &str) -> Option<usize> {
        self.task_names.get(name).map(|&slot| slot as usize)
    }

    /// How many tasks there are, lost and replaced ones included.
    pub(super) fn tasks(&self) -> usize {
        self.tasks.len() - self.vacant.len()
    }

    /// Gives a new task a slot.
    pub(super) fn enter(&mut self, name: &str) -> usize {
        let slot = self.vacant.pop().map_or(self.tasks.len(), |slot| slot as usize);
        self.joins += 1;
        let task = Task {
            id: TaskId::new(self.epoch, self.joins, slot),
            name: name.to_owned(),
            state: State::Live,
            weight: 1,
            reign: 0,
            identity: None,
            named: false,
            deadline: Timestamp::ZERO,
            acked: 0,
            pushed: 0,
            waiting_since: None,
            stamp: 0,
            entries: Vec::new(),
        };
        if slot == self.tasks.len() {
            self.tasks.push(task);
        } else {
            self.tasks[slot] = task;
        }
        self.task_names.insert(name.to_owned(), slot as u32);
        self.places.fit(self.tasks());
        slot
    }

    /// Whether a task has a lease, and may be using something under it.
    pub(super) fn is_using(&mut self, slot: usize) -> bool {
        let task = &self.tasks[slot];
        let (acked, leased) = (task.acked, task.state == State::Live);
        let mut holds = false;
        self.each_entry(slot, |customer, place| {
            holds |= customer.counted(&customer.entries[place], acked) != [0; 4];
        });
        leased && holds
    }

    /// Another process has the name now. What this one may be using goes on counting until its
    /// lease ends; if that is nothing, it is struck out.
    pub(super) fn replace(&mut self, slot: usize) {
        if self.is_using(slot) {
            self.tasks[slot].state = State::Replaced;
            self.each_entry(slot, |customer, place| {
                customer.entries[place].rest();
            });
            self.mark_customers_of(slot);
        } else {
            self.strike(slot);
        }
    }

    /// Strikes a task out; what it held is free.
    pub(super) fn strike(&mut self, slot: usize) {
        let task = &mut self.tasks[slot];
        task.state = State::Vacant;
        let name = take(&mut task.name);
        if self.task_names.get(&name) == Some(&(slot as u32)) {
            self.task_names.remove(&name);
        }
        for (customer, place) in take(&mut task.entries) {
            // Removing an entry moves another one of this customer, but none of this task: each
            // task has one entry per customer.
            self.take_out(customer as usize, place as usize);
            self.mark(customer as usize);
        }
        self.vacant.push(slot as u32);
    }

    /// Gives a new customer a place, unless there are `max` already.
    pub(super) fn add_customer(&mut self, name: &str, max: usize) -> Option<usize> {
        let index = match self.vacant_customers.pop() {
            Some(index) => index as usize,
            None if self.customers.len() < max => {
                self.customers.push(Customer::default());
                self.customers.len() - 1
            }
            None => return None,
        };
        self.customers[index].retired = false;
        self.customer_names.insert(name.to_owned(), index as u32);
        Some(index)
    }

    /// The customer is no longer configured. Its place is free once its entries are gone.
    pub(super) fn retire_customer(&mut self, name: &str) -> Option<usize> {
        let index = self.customer_names.remove(name)?;
        let customer = &mut self.customers[index as usize];
        customer.retired = true;
        if customer.entries.is_empty() {
            self.vacant_customers.push(index);
        }
        Some(index as usize)
    }

    /// Has the customer looked at, after all that wait for it.
    pub(super) fn mark(&mut self, customer: usize) {
        if !core::mem::replace(&mut self.customers[customer].dirty, true) {
            self.dirty.push_back(customer as u32);
        }
    }

    pub(super) fn mark_all(&mut self) {
        for customer in 0..self.customers.len() {
            self.mark(customer);
        }
    }

    /// All customers of a task are looked at.
    pub(super) fn mark_customers_of(&mut self, slot: usize) {
        for i in 0..self.tasks[slot].entries.len() {
            self.mark(self.tasks[slot].entries[i].0 as usize);
        }
    }

    /// The entries of a task, one after the other.
    fn each_entry(&mut self, slot: usize, mut visit: impl FnMut(&mut Customer, usize)) {
        for &(customer, place) in &self.tasks[slot].entries {
            visit(&mut self.customers[customer as usize], place as usize);
        }
    }

    /// The stream of a task broke.
    pub(super) fn untell(&mut self, slot: usize) {
        let acked = self.tasks[slot].acked;
        self.each_entry(slot, |customer, place| customer.untell(place, acked));
        self.mark_customers_of(slot);
    }

    /// The lease of a task ended.
    pub(super) fn lapse(&mut self, slot: usize, safe: Ratio) {
        let acked = self.tasks[slot].acked;
        self.each_entry(slot, |customer, place| customer.lapse(place, acked, safe));
        self.mark_customers_of(slot);
    }

    /// What the last report of a task did not mention is no more.
    pub(super) fn rest_unmentioned(&mut self, slot: usize) {
        let task = &self.tasks[slot];
        for &(index, place) in &task.entries {
            let customer = &mut self.customers[index as usize];
            let entry = &mut customer.entries[place as usize];
            if entry.stamp() != task.stamp && entry.rest() && !customer.dirty {
                customer.dirty = true;
                self.dirty.push_back(index);
            }
        }
    }

    /// Where the task's entry for the customer is. `cursor` is where the one before was, plus one.
    pub(super) fn find(
        &self,
        slot: usize,
        customer: CustomerId,
        cursor: &mut usize,
    ) -> Result<usize, usize> {
        let entries = &self.tasks[slot].entries;
        let customer = customer.index() as u32;
        let found = match entries.get(*cursor) {
            Some(&(next, _)) if next == customer => Ok(*cursor),
            _ => entries.binary_search_by_key(&customer, |&(id, _)| id),
        };
        let position = match found {
            Ok(position) | Err(position) => position,
        };
        *cursor = position + 1;
        found.map(|position| entries[position].1 as usize)
    }

    /// Makes an entry at `position` of the task's list, where [`Ledger::find`] missed it.
    pub(super) fn insert(
        &mut self,
        slot: usize,
        customer: CustomerId,
        position: usize,
        now: Timestamp,
    ) -> usize {
        let entries = &mut self.customers[customer.index()].entries;
        let place = entries.len();
        make_room(entries);
        entries.push(Entry::new(slot, self.tasks[slot].stamp.wrapping_sub(1), now));
        let list = &mut self.tasks[slot].entries;
        make_room(list);
        list.insert(position, (customer.index() as u32, place as u32));
        place
    }

    /// Removes an entry that its task's list has.
    pub(super) fn remove(&mut self, customer: usize, place: usize) {
        let slot = self.customers[customer].entries[place].task as usize;
        let entries = &mut self.tasks[slot].entries;
        if let Ok(position) = entries.binary_search_by_key(&(customer as u32), |&(id, _)| id) {
            entries.remove(position);
        }
        self.take_out(customer, place);
    }

    /// Takes an entry out of the customer's, and tells the task whose entry takes its place.
    fn take_out(&mut self, customer: usize, place: usize) {
        self.customers[customer].drop_claim(place);
        let Customer { entries, retired, .. } = &mut self.customers[customer];
        entries.swap_remove(place);
        if *retired && entries.is_empty() {
            self.vacant_customers.push(customer as u32);
        }
        if let Some(moved) = entries.get(place) {
            let list = &mut self.tasks[moved.task as usize].entries;
            if let Ok(position) = list.binary_search_by_key(&(customer as u32), |&(id, _)| id) {
                list[position].1 = place as u32;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HALF: Ratio = Ratio::percent(50);

    /// A customer at one task.
    struct Pair(Customer);

    impl Pair {
        fn new() -> Self {
            let mut ledger = Ledger::new(1, 1, Customer::default());
            let slot = ledger.enter("task");
            ledger.insert(slot, CustomerId::DEFAULT, 0, Timestamp::ZERO);
            Self(ledger.customers.remove(0))
        }

        fn grant(&mut self, levels: Levels, number: u64, acked: u64) {
            self.0.grant(0, levels, number, acked, false);
        }

        fn counted(&self, acked: u64) -> Levels {
            self.0.counted(&self.0.entries[0], acked)
        }

        fn claimed(&self, acked: u64) -> Levels {
            self.0.claimed(&self.0.entries[0], acked)
        }

        fn claim(&mut self, has: Levels, acked: u64, room: Levels) -> Levels {
            self.0.claim(0, has, acked, room)
        }

        fn learn(&mut self, has: Levels, acked: u64) {
            self.0.entries[0].learn(has, acked);
        }

        fn granted(&self) -> Levels {
            self.0.entries[0].granted()
        }
    }

    #[test]
    fn until_it_is_acknowledged_a_grant_counts_beside_the_one_before() {
        let mut pair = Pair::new();
        pair.grant([8; 4], 1, 0);
        assert_eq!(pair.counted(0), [8; 4]);
        pair.grant([3, 3, 9, 9], 2, 1);
        assert_eq!(pair.counted(1), [8, 8, 9, 9]);
        assert_eq!(pair.counted(2), [3, 3, 9, 9]);
        // A broken stream leaves it open which of the two arrived.
        pair.0.untell(0, 1);
        assert_eq!(pair.counted(2), [8, 8, 9, 9]);
        pair.grant([1; 4], 3, 2);
        assert_eq!(pair.counted(2), [8, 8, 9, 9]);
        assert_eq!(pair.counted(3), [1; 4]);
    }

    #[test]
    fn silence_halves_a_grant_once() {
        let mut pair = Pair::new();
        pair.grant([8; 4], 1, 0);
        pair.0.lapse(0, 1, HALF);
        assert_eq!(pair.counted(1), [4; 4]);
        // It came back, was told something that it never acknowledged, and fell silent again.
        pair.grant([2; 4], 2, 1);
        pair.0.lapse(0, 1, HALF);
        assert_eq!(pair.counted(1), [4; 4]);
        // This time it did acknowledge, and the next one may not have arrived.
        pair.grant([6; 4], 3, 1);
        pair.grant([2; 4], 4, 3);
        pair.0.lapse(0, 3, HALF);
        assert_eq!(pair.counted(3), [3; 4]);
    }

    #[test]
    fn what_a_leader_learns_counts_as_a_grant() {
        let mut learning = Pair::new();
        learning.learn([8; 4], 0);
        assert_eq!((learning.granted(), learning.counted(0)), ([8; 4], [8; 4]));
        // Nobody knows what this falls back to.
        learning.0.lapse(0, 0, HALF);
        assert_eq!(learning.counted(0), [8; 4]);

        let mut known = Pair::new();
        known.grant([3; 4], 1, 0);
        known.learn([5; 4], 0);
        assert_eq!((known.granted(), known.counted(0)), ([3; 4], [5; 4]));
        known.learn([7; 4], 1);
        assert_eq!(known.counted(1), [3; 4]);
    }

    #[test]
    fn a_claim_counts_as_far_as_there_is_room_and_until_an_ack_or_the_end_of_the_lease() {
        let mut later = Pair::new();
        assert_eq!(later.claim([8; 4], 0, [5, 5, 9, 9]), [5, 5, 8, 8]);
        assert_eq!((later.granted(), later.counted(0)), ([0; 4], [5, 5, 8, 8]));
        // Said again, it counts once.
        assert_eq!(later.claim([8; 4], 0, [0, 1, 9, 9]), [0, 1, 0, 0]);
        later.grant([6; 4], 1, 0);
        assert_eq!((later.counted(0), later.claimed(0)), ([6, 6, 8, 8], [5, 6, 8, 8]));
        assert_eq!((later.counted(1), later.claimed(1)), ([6; 4], [0; 4]));
        assert_eq!(later.claim([9; 4], 1, [9; 4]), [0; 4]);
        // The lease ends without an ack: the grant may have arrived, the claim is forgotten.
        later.0.lapse(0, 0, HALF);
        assert_eq!(later.counted(0), [3; 4]);
        assert!(later.0.claims.is_empty());
        // What is known to be held needs no room.
        assert_eq!(later.claim([3; 4], 0, [9; 4]), [0; 4]);
    }
}
