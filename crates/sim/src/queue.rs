//! What happens next.
//!
//! A discrete-event world spends much of its time here. Nearly all events lie a few milliseconds
//! ahead, so the near future is cut into slots of some microseconds: putting an event in is adding
//! it to its slot's list, and taking one out is taking the last of the current slot, which is
//! sorted when its time comes. With some events a slot neither depends on how many there are in
//! all. Empty slots are skipped by a map of bits. What lies beyond the last slot waits in a heap,
//! and moves over as soon as there is a slot for it.
//!
//! Events come out by time; those of the same moment in the order in which they were put in. An
//! event of a moment that is over comes at once.

use core::time::Duration;
use std::collections::BinaryHeap;
use tidegate_core::Timestamp;

/// A slot lasts 2^12 ns: a world of a thousand by a thousand tasks has some dozen events in each,
/// which is little to sort; smaller ones would be opened more often than events are taken out.
const SLOT_BITS: u32 = 12;
/// Slots: 17 ms, which is longer than the period of a controller, or than most requests take.
const SLOTS: usize = 1 << 12;
/// Slots for which one word of the map stands, and words for which one word of its summary does.
const WORD: usize = 64;
const WORDS: usize = SLOTS / WORD;

/// The end of a list.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node<E> {
    at: Timestamp,
    event: E,
    next: u32,
}

/// An event beyond the last slot. The greatest comes out of a heap first, so the earliest is it.
#[derive(Debug)]
struct Far<E> {
    at: Timestamp,
    number: u64,
    event: E,
}

impl<E> Far<E> {
    fn order(&self) -> (Timestamp, u64) {
        (self.at, self.number)
    }
}

impl<E> PartialEq for Far<E> {
    fn eq(&self, other: &Self) -> bool {
        self.order() == other.order()
    }
}

impl<E> Eq for Far<E> {}

impl<E> PartialOrd for Far<E> {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> Ord for Far<E> {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        other.order().cmp(&self.order())
    }
}

/// Events by time, earliest first.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// The events of the current slot and what is overdue, the next one last.
    current: Vec<(Timestamp, E)>,
    /// The number of the current slot, counted from the epoch.
    slot: u64,
    /// The list of each later slot, newest first, by number modulo the number of slots.
    lists: Box<[u32; SLOTS]>,
    /// Which lists are not empty, and which words of that are not zero.
    map: [u64; WORDS],
    summary: [u64; WORDS / WORD],
    nodes: Vec<Node<E>>,
    free: u32,
    far: BinaryHeap<Far<E>>,
    /// How many have gone to the far ones.
    number: u64,
}

impl<E: Copy> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            current: Vec::new(),
            slot: 0,
            lists: Box::new([NONE; SLOTS]),
            map: [0; WORDS],
            summary: [0; WORDS / WORD],
            nodes: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            number: 0,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, at: Timestamp, event: E) {
        let slot = slot_of(at);
        if slot <= self.slot {
            // After those of the same moment.
            let place = self.current.partition_point(|&(other, _)| other > at);
            self.current.insert(place, (at, event));
        } else if slot - self.slot < SLOTS as u64 {
            self.file(slot, at, event);
        } else {
            self.number += 1;
            self.far.push(Far { at, number: self.number, event });
        }
    }

    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Timestamp, E)> {
        self.turn();
        self.current.pop()
    }

    /// Goes on to the next slot if the current one is used up. Whether it did.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        let turns = self.current.is_empty();
        while self.current.is_empty() {
            let Some(slot) = self.next_slot() else { return false };
            self.slot = slot;
            self.open();
        }
        turns
    }

    /// The events of the current slot, the next one last. Others may come between them.
    pub(crate) fn current(&self) -> &[(Timestamp, E)] {
        &self.current
    }

    /// How much of the current slot is left after the first of its events that is such.
    pub(crate) fn left_after(&self, such: impl Fn(&E) -> bool) -> Option<Duration> {
        let &(at, _) = self.current.iter().rev().find(|(_, event)| such(event))?;
        let end = (self.slot + 1) << SLOT_BITS;
        Some(Duration::from_nanos(end.saturating_sub(at.as_nanos())))
    }

    #[inline]
    fn file(&mut self, slot: u64, at: Timestamp, event: E) {
        let list = slot as usize % SLOTS;
        let node = Node { at, event, next: self.lists[list] };
        let index = if self.free == NONE {
            self.nodes.push(node);
            (self.nodes.len() - 1) as u32
        } else {
            let index = self.free;
            let place = &mut self.nodes[index as usize];
            self.free = place.next;
            *place = node;
            index
        };
        self.lists[list] = index;
        self.map[list / WORD] |= 1 << (list % WORD);
        self.summary[list / WORD / WORD] |= 1 << (list / WORD % WORD);
    }

    /// The next slot with something in it.
    fn next_slot(&self) -> Option<u64> {
        let here = self.slot as usize % SLOTS;
        let found = self.list_from(here + 1).or_else(|| self.list_from(0));
        match found {
            Some(list) => {
                let ahead = (list + SLOTS - here) % SLOTS;
                Some(self.slot + ahead as u64)
            }
            None => self.far.peek().map(|far| slot_of(far.at)),
        }
    }

    /// The first list from `first` on that is not empty.
    fn list_from(&self, first: usize) -> Option<usize> {
        let rest = self.map.get(first / WORD)? >> (first % WORD);
        if rest != 0 {
            return Some(first + rest.trailing_zeros() as usize);
        }
        let mut word = first / WORD + 1;
        while word < WORDS {
            let rest = self.summary[word / WORD] >> (word % WORD);
            if rest != 0 {
                word += rest.trailing_zeros() as usize;
                return Some(word * WORD + self.map[word].trailing_zeros() as usize);
            }
            word = (word / WORD + 1) * WORD;
        }
        None
    }

    /// Makes the list of the current slot the current events, and lets far ones in for which there
    /// is a slot: before any other event can be put there, so that the order stays right.
    fn open(&mut self) {
        while let Some(far) = self.far.peek() {
            let slot = slot_of(far.at);
            if slot - self.slot >= SLOTS as u64 {
                break;
            }
            if let Some(Far { at, event, .. }) = self.far.pop() {
                self.file(slot, at, event);
            }
        }
        let list = self.slot as usize % SLOTS;
        let mut index = core::mem::replace(&mut self.lists[list], NONE);
        self.map[list / WORD] &= !(1 << (list % WORD));
        if self.map[list / WORD] == 0 {
            self.summary[list / WORD / WORD] &= !(1 << (list / WORD % WORD));
        }
        while let Some(node) = self.nodes.get_mut(index as usize) {
            self.current.push((node.at, node.event));
            let next = core::mem::replace(&mut node.next, self.free);
            self.free = index;
            index = next;
        }
        // Newest first to begin with, and the sort is stable: of one moment, the oldest is last.
        self.current.sort_by(|(a, _), (b, _)| b.cmp(a));
    }
}

/// The number of the slot that `at` lies in.
#[inline]
const fn slot_of(at: Timestamp) -> u64 {
    at.as_nanos() >> SLOT_BITS
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Steps from one event to another: within a slot, within the slots, beyond them, for ever.
    fn step() -> impl Strategy<Value = u64> {
        prop_oneof![
            Just(0),
            0_u64..4,
            0_u64..5_000,
            0_u64..40_000_000,
            (SLOTS as u64 - 2) << SLOT_BITS..(SLOTS as u64 + 2) << SLOT_BITS,
            0_u64..100_000_000_000,
            Just(u64::MAX),
        ]
    }

    proptest! {
        /// Against a list that is searched for the least time, the first of equals.
        #[test]
        fn events_come_by_time_and_then_by_turn(
            steps in proptest::collection::vec((step(), 0_usize..4), 1..400),
        ) {
            let mut queue = EventQueue::new();
            let mut list: Vec<(Timestamp, usize)> = Vec::new();
            let mut now = 0_u64;
            for (number, (ahead, pops)) in steps.into_iter().enumerate() {
                let at = Timestamp::from_nanos(now.saturating_add(ahead));
                queue.push(at, number);
                list.push((at, number));
                for _ in 0..pops {
                    let least = (0..list.len()).min_by_key(|&i| list[i]);
                    let expected = least.map(|i| list.remove(i));
                    prop_assert_eq!(queue.pop(), expected);
                    now = expected.map_or(now, |(at, _)| now.max(at.as_nanos()));
                }
            }
            list.sort();
            for expected in list {
                prop_assert_eq!(queue.pop(), Some(expected));
            }
            prop_assert_eq!(queue.pop(), None);
        }
    }

    #[test]
    fn what_is_overdue_comes_at_once() {
        let mut queue = EventQueue::new();
        queue.push(Timestamp::from_secs(5), 'a');
        queue.push(Timestamp::from_secs(9), 'd');
        assert_eq!(queue.pop(), Some((Timestamp::from_secs(5), 'a')));
        queue.push(Timestamp::from_secs(5), 'c');
        queue.push(Timestamp::from_secs(1), 'b');
        let rest: Vec<char> = core::iter::from_fn(|| queue.pop()).map(|(_, e)| e).collect();
        assert_eq!(rest, ['b', 'c', 'd']);
    }

    #[test]
    fn memory_is_bounded_by_what_waits() {
        let mut queue = EventQueue::new();
        for i in 0..100_000_u64 {
            queue.push(Timestamp::from_nanos(i * 700 + 3_000), i);
            if i >= 10 {
                queue.pop();
            }
        }
        assert!(queue.nodes.len() <= 12, "{}", queue.nodes.len());
    }
}
