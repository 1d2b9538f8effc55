//! A bounded queue by criticality, then deadline.
//!
//! Each criticality has its items twice: by deadline, for who goes next, and by age, for who makes
//! room. Every operation costs O(log n).

use crate::criticality::Criticality;
use crate::units::Timestamp;
use std::collections::BTreeMap;

/// An item with all that decides about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Queued<T> {
    /// The item.
    pub item: T,
    /// How much it matters.
    pub criticality: Criticality,
    /// Until when someone waits for it.
    pub deadline: Option<Timestamp>,
}

impl<T> Queued<T> {
    /// Whether nobody waits for it any more.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }
}

/// The order in a level: items without a deadline come last, equals in the order of arrival.
type Order = (Timestamp, u64);

#[derive(Debug, Clone)]
struct Level<T> {
    by_deadline: BTreeMap<Order, Queued<T>>,
    by_age: BTreeMap<u64, Timestamp>,
}

impl<T> Level<T> {
    const fn new() -> Self {
        Self { by_deadline: BTreeMap::new(), by_age: BTreeMap::new() }
    }

    fn pop_first(&mut self) -> Option<Queued<T>> {
        let ((_, number), queued) = self.by_deadline.pop_first()?;
        self.by_age.remove(&number);
        Some(queued)
    }

    fn pop_newest(&mut self) -> Option<Queued<T>> {
        let (number, deadline) = self.by_age.pop_last()?;
        self.by_deadline.remove(&(deadline, number))
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

    /// Whether nothing waits.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nothing more may wait.
    pub const fn is_full(&self) -> bool {
        self.len >= self.max
    }

    /// Adds an item; gives it back if the queue is full.
    pub fn push(&mut self, new: Queued<T>) -> Option<Queued<T>> {
        if self.is_full() {
            return Some(new);
        }
        let level = &mut self.levels[new.criticality.index()];
        let deadline = new.deadline.unwrap_or(Timestamp::MAX);
        level.by_age.insert(self.next_number, deadline);
        level.by_deadline.insert((deadline, self.next_number), new);
        self.next_number += 1;
        self.len += 1;
        None
    }

    /// The item that goes next: the highest criticality's with the earliest deadline.
    pub fn pop(&mut self) -> Option<Queued<T>> {
        let found = self.levels.iter_mut().rev().find_map(Level::pop_first);
        self.took(found)
    }

    /// An item that nobody waits for any more, if there is one.
    pub fn pop_expired(&mut self, now: Timestamp) -> Option<Queued<T>> {
        let found = self.levels.iter_mut().find_map(|level| {
            let first = level.by_deadline.values().next()?;
            if first.is_expired(now) { level.pop_first() } else { None }
        });
        self.took(found)
    }

    /// The newest item of the lowest criticality that waits, if that is below `criticality`.
    pub fn pop_newest_below(&mut self, criticality: Criticality) -> Option<Queued<T>> {
        let lower = self.levels.iter_mut().take(criticality.index());
        let found = lower.into_iter().find_map(Level::pop_newest);
        self.took(found)
    }

    /// The earliest deadline of all that wait.
    pub fn earliest_deadline(&self) -> Option<Timestamp> {
        let firsts = self.levels.iter().filter_map(|level| level.by_deadline.values().next());
        firsts.filter_map(|queued| queued.deadline).min()
    }

    fn took(&mut self, found: Option<Queued<T>>) -> Option<Queued<T>> {
        self.len -= usize::from(found.is_some());
        found
    }
}
