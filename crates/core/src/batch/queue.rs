//! A bounded queue by criticality, then deadline.
//!
//! Each criticality has its items by age, for who makes room, and a sorted list of their deadlines,
//! for who goes next and how many go before. Finding a place costs O(log n). Taking it moves the
//! entries on the shorter side of it, 16 bytes each: none where deadlines come in order, as they do
//! when everyone has the same patience, and a microsecond or two in the middle of ten thousand.

use crate::criticality::Criticality;
use crate::units::Timestamp;
use std::collections::{BTreeMap, VecDeque};

/// An item with all that decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued<T> {
    /// The item.
    pub item: T,
    /// How much it matters.
    pub criticality: Criticality,
    /// Until when someone waits for it; none, or the end of time, is for ever.
    pub deadline: Option<Timestamp>,
}

impl<T> Queued<T> {
    fn sort_key(&self) -> Timestamp {
        self.deadline.unwrap_or(Timestamp::MAX)
    }
}

/// Where an item waits. No other item of the same queue ever has the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ticket {
    criticality: Criticality,
    number: u64,
}

/// The order in a level: items without a deadline come last, equals in the order of arrival.
type Order = (Timestamp, u64);

#[derive(Debug, Clone)]
struct Level<T> {
    by_deadline: VecDeque<Order>,
    by_age: BTreeMap<u64, Queued<T>>,
}

impl<T> Level<T> {
    const fn new() -> Self {
        Self { by_deadline: VecDeque::new(), by_age: BTreeMap::new() }
    }

    /// How many go before an item with this order.
    fn rank(&self, order: Order) -> usize {
        self.by_deadline.partition_point(|theirs| *theirs < order)
    }

    fn insert(&mut self, number: u64, new: Queued<T>) {
        let order = (new.sort_key(), number);
        self.by_deadline.insert(self.rank(order), order);
        self.by_age.insert(number, new);
    }

    fn remove(&mut self, number: u64) -> Option<Queued<T>> {
        let queued = self.by_age.remove(&number)?;
        let place = self.rank((queued.sort_key(), number));
        self.by_deadline.remove(place);
        Some(queued)
    }

    fn pop_first(&mut self) -> Option<Queued<T>> {
        let (_, number) = self.by_deadline.pop_front()?;
        self.by_age.remove(&number)
    }

    fn pop_newest(&mut self) -> Option<Queued<T>> {
        let number = *self.by_age.last_key_value()?.0;
        self.remove(number)
    }

    fn earliest_deadline(&self) -> Option<Timestamp> {
        let (deadline, _) = *self.by_deadline.front()?;
        (deadline < Timestamp::MAX).then_some(deadline)
    }
}

/// A queue that never holds more than it may.
#[derive(Debug, Clone)]
pub struct Queue<T> {
    /// Lowest criticality first.
    levels: [Level<T>; Criticality::COUNT],
    len: usize,
    max: usize,
    next_number: u64,
}

impl<T> Queue<T> {
    /// A queue for at most `max` items.
    pub const fn new(max: usize) -> Self {
        let levels = [Level::new(), Level::new(), Level::new(), Level::new()];
        Self { levels, len: 0, max, next_number: 0 }
    }

    /// How many items wait.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// How many items may wait.
    pub const fn max(&self) -> usize {
        self.max
    }

    /// Whether nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nothing more may wait.
    pub const fn is_full(&self) -> bool {
        self.len >= self.max
    }

    /// The lowest criticality that waits.
    pub fn lowest(&self) -> Option<Criticality> {
        let waiting = |&level: &Criticality| !self.levels[level.index()].by_age.is_empty();
        Criticality::ALL.into_iter().find(waiting)
    }

    /// How many of those that wait would go before a new item.
    pub fn ahead_of(&self, criticality: Criticality, deadline: Timestamp) -> usize {
        let own = criticality.index();
        let higher = self.levels.iter().skip(own + 1).map(|level| level.by_deadline.len());
        higher.sum::<usize>() + self.levels[own].rank((deadline, self.next_number))
    }

    /// Adds an item; gives it back if the queue is full.
    pub fn push(&mut self, new: Queued<T>) -> Result<Ticket, Queued<T>> {
        if self.is_full() {
            return Err(new);
        }
        let ticket = Ticket { criticality: new.criticality, number: self.next_number };
        self.levels[new.criticality.index()].insert(ticket.number, new);
        self.next_number += 1;
        self.len += 1;
        Ok(ticket)
    }

    /// The item that goes next: the highest criticality's with the earliest deadline.
    pub fn pop(&mut self) -> Option<Queued<T>> {
        let found = self.levels.iter_mut().rev().find_map(Level::pop_first);
        self.took(found)
    }

    /// An item with a deadline of `by` or before, if there is one.
    pub fn pop_due(&mut self, by: Timestamp) -> Option<Queued<T>> {
        let found = self.levels.iter_mut().find_map(|level| {
            let due = level.earliest_deadline().is_some_and(|deadline| deadline <= by);
            if due { level.pop_first() } else { None }
        });
        self.took(found)
    }

    /// The newest item of the lowest criticality that waits, if that is below `criticality`.
    pub fn pop_newest_below(&mut self, criticality: Criticality) -> Option<Queued<T>> {
        let lower = self.levels.iter_mut().take(criticality.index());
        let found = lower.into_iter().find_map(Level::pop_newest);
        self.took(found)
    }

    /// The item of this ticket, if it still waits.
    pub fn remove(&mut self, ticket: Ticket) -> Option<Queued<T>> {
        let found = self.levels[ticket.criticality.index()].remove(ticket.number);
        self.took(found)
    }

    /// The earliest deadline of all that wait.
    pub fn earliest_deadline(&self) -> Option<Timestamp> {
        self.levels.iter().filter_map(Level::earliest_deadline).min()
    }

    fn took(&mut self, found: Option<Queued<T>>) -> Option<Queued<T>> {
        self.len -= usize::from(found.is_some());
        found
    }
}
