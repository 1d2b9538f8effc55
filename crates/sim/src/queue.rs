//! What happens next.
//!
//! A discrete-event world spends much of its time here. Nearly all events lie a few milliseconds
//! ahead, so the near future is cut into slots of some microseconds: putting an event in is adding
//! it to what its slot has, and taking one out is taking the last of the current slot, which is
//! sorted when its time comes. With some events a slot neither depends on how many there are in
//! all. Empty slots are skipped by a map of bits. What lies beyond the last slot waits in a heap,
//! and moves over as soon as there is a slot for it.
//!
//! The events of a slot lie in chunks of ten, close together: they are last seen when they are put
//! in, so each line of memory is waited for, and in a list of single events one after the other.
//! Chunks are used again, so memory is bounded by what waits and one chunk for every slot. What is
//! sorted is not the events but eight bytes for each.
//!
//! Events come out by time; those of the same moment in the order in which they were put in. An
//! event of a moment that is over comes at once.

use core::time::Duration;
use std::collections::BinaryHeap;
use tidegate_core::Timestamp;

/// A slot lasts 2^14 ns: a world of a thousand by a thousand tasks has three to eight dozen events
/// in each. That is still little to sort, and enough for their reads to be waited for together:
/// with half as many a calm run takes a sixteenth longer.
const SLOT_BITS: u32 = 14;
/// Slots: 67 ms, which is longer than the period of a controller, or than most requests take.
const SLOTS: usize = 1 << 12;
/// Slots for which one word of the map stands, and words for which one word of its summary does.
const WORD: usize = 64;
const WORDS: usize = SLOTS / WORD;

/// Events of a chunk: with 24 bytes for each, four lines of memory.
const CHUNK: usize = 10;
/// No chunk.
const NONE: u32 = u32::MAX;

/// Some events of one slot, in the order in which they were put in, each with its time since the
/// slot began.
#[derive(Debug)]
#[repr(C, align(64))]
struct Chunk<E> {
    events: [(u32, E); CHUNK],
    /// Of a slot's last chunk: its first, else the next. Of a free one: the next that is free.
    next: u32,
}

/// The last chunk of a slot, and in the lowest bits how many events it has; those before it are
/// full. It lies apart from the chunk, so that putting an event in only writes to that and waits
/// for nothing.
#[derive(Debug, Clone, Copy)]
struct Last(u32);

impl Last {
    const LEN_BITS: u32 = 4;
    /// No chunk has this number, and no event fits in.
    const NONE: Self = Self(u32::MAX);

    #[inline]
    const fn chunk(self) -> usize {
        (self.0 >> Self::LEN_BITS) as usize
    }

    #[inline]
    const fn len(self) -> usize {
        (self.0 % (1 << Self::LEN_BITS)) as usize
    }
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

/// Where an event of the current slot stands: the time since the slot began in the upper half, the
/// number of the event in the lower.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Turn(u64);

impl Turn {
    #[inline]
    const fn new(offset: u32, number: usize) -> Self {
        Self((offset as u64) << 32 | number as u64)
    }

    #[inline]
    const fn offset(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    const fn number(self) -> usize {
        self.0 as u32 as usize
    }
}

/// Events by time, earliest first.
#[derive(Debug)]
pub(crate) struct EventQueue<E> {
    /// The turns of the current slot's events that are left, the next one last.
    turns: Vec<Turn>,
    /// The current slot's events in the order in which they were put in, also those that are over.
    events: Vec<E>,
    /// Times and numbers of what was put in for a moment before the current slot, the next one
    /// last.
    overdue: Vec<(Timestamp, usize)>,
    /// The number of the current slot, counted from the epoch.
    slot: u64,
    /// The last chunk of each later slot, by number modulo the number of slots.
    lasts: Box<[Last; SLOTS]>,
    /// Which slots have any, and which words of that are not zero.
    map: [u64; WORDS],
    summary: [u64; WORDS / WORD],
    chunks: Vec<Chunk<E>>,
    free: u32,
    far: BinaryHeap<Far<E>>,
    /// How many have gone to the far ones.
    number: u64,
}

impl<E: Copy> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self {
            turns: Vec::new(),
            events: Vec::new(),
            overdue: Vec::new(),
            slot: 0,
            lasts: Box::new([Last::NONE; SLOTS]),
            map: [0; WORDS],
            summary: [0; WORDS / WORD],
            chunks: Vec::new(),
            free: NONE,
            far: BinaryHeap::new(),
            number: 0,
        }
    }

    /// Puts an event in.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "an event that is passed on is written in pieces and read as a whole, for which a \
                  processor waits"
    )]
    pub(crate) fn push(&mut self, at: Timestamp, event: E) {
        let slot = slot_of(at);
        let list = slot as usize % SLOTS;
        let last = self.lasts[list];
        if slot == self.slot {
            let number = self.events.len();
            self.events.push(event);
            self.take_turn(Turn::new(offset_of(at), number));
        } else if slot.wrapping_sub(self.slot) < SLOTS as u64 && last.len() < CHUNK {
            self.chunks[last.chunk()].events[last.len()] = (offset_of(at), event);
            self.lasts[list].0 += 1;
        } else {
            self.push_odd(slot, at, event);
        }
    }

    /// An event of the current slot takes its place in the order: after those of the same moment,
    /// as its number is the highest.
    #[inline(never)]
    fn take_turn(&mut self, turn: Turn) {
        let place = self.turns.partition_point(|&other| other > turn);
        self.turns.insert(place, turn);
    }

    /// Puts in what needs a chunk, or is for a time before the current slot or beyond the last.
    #[inline(never)]
    fn push_odd(&mut self, slot: u64, at: Timestamp, event: E) {
        if slot < self.slot {
            let place = self.overdue.partition_point(|&(other, _)| other > at);
            self.overdue.insert(place, (at, self.events.len()));
            self.events.push(event);
        } else if slot - self.slot < SLOTS as u64 {
            self.file(slot, at, event);
        } else {
            self.number += 1;
            self.far.push(Far { at, number: self.number, event });
        }
    }

    /// Takes the next event out: its time, and its number among those of the current slot. An
    /// event itself is larger than a register, and is copied from where it lies to where it is used
    /// and nowhere else.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<(Timestamp, usize)> {
        if !self.overdue.is_empty() {
            return self.overdue.pop();
        }
        self.turn();
        let turn = self.turns.pop()?;
        let nanos = (self.slot << SLOT_BITS) + u64::from(turn.offset());
        Some((Timestamp::from_nanos(nanos), turn.number()))
    }

    /// The event that was last taken out with this number.
    #[inline]
    pub(crate) fn event(&self, number: usize) -> E {
        self.events[number]
    }

    /// Goes on to the next slot if the current one is used up. Whether it did.
    #[inline]
    pub(crate) fn turn(&mut self) -> bool {
        self.turns.is_empty() && self.overdue.is_empty() && self.advance()
    }

    /// The events of the current slot that were there when it began, and those that came since; in
    /// no order that means anything.
    pub(crate) fn current(&self) -> &[E] {
        &self.events
    }

    /// How much of the current slot is left after the first of its events that is such.
    pub(crate) fn left_after(&self, such: impl Fn(&E) -> bool) -> Option<Duration> {
        let first = self.turns.iter().rev().find(|turn| such(&self.events[turn.number()]))?;
        Some(Duration::from_nanos((1 << SLOT_BITS) - u64::from(first.offset())))
    }

    /// Adds an event to what its slot has.
    fn file(&mut self, slot: u64, at: Timestamp, event: E) {
        let entry = (offset_of(at), event);
        let list = slot as usize % SLOTS;
        let last = &mut self.lasts[list];
        if last.len() < CHUNK {
            self.chunks[last.chunk()].events[last.len()] = entry;
            last.0 += 1;
        } else {
            self.begin(list, entry);
        }
    }

    /// Gives a slot its first chunk, or one more.
    fn begin(&mut self, list: usize, entry: (u32, E)) {
        let index = if self.free == NONE { self.chunks.len() as u32 } else { self.free };
        let next = match self.chunks.get_mut(self.lasts[list].chunk()) {
            Some(last) => core::mem::replace(&mut last.next, index),
            None => index,
        };
        match self.chunks.get_mut(index as usize) {
            Some(chunk) => {
                self.free = core::mem::replace(&mut chunk.next, next);
                chunk.events[0] = entry;
            }
            // What lies in the places beyond the length is never looked at.
            None => self.chunks.push(Chunk { events: [entry; CHUNK], next }),
        }
        self.lasts[list] = Last((index << Last::LEN_BITS) + 1);
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

    /// Goes on to the next slot with something in it, if there is one.
    fn advance(&mut self) -> bool {
        let Some(slot) = self.next_slot() else { return false };
        self.slot = slot;
        self.let_in();
        self.open();
        true
    }

    /// Files far events for which there is a slot: before any other can be put there, so that the
    /// order stays right.
    fn let_in(&mut self) {
        while let Some(far) = self.far.peek() {
            let slot = slot_of(far.at);
            if slot - self.slot >= SLOTS as u64 {
                break;
            }
            if let Some(Far { at, event, .. }) = self.far.pop() {
                self.file(slot, at, event);
            }
        }
    }

    /// Makes what the current slot has the current events.
    fn open(&mut self) {
        self.events.clear();
        let list = self.slot as usize % SLOTS;
        let last = core::mem::replace(&mut self.lasts[list], Last::NONE);
        self.map[list / WORD] &= !(1 << (list % WORD));
        if self.map[list / WORD] == 0 {
            self.summary[list / WORD / WORD] &= !(1 << (list / WORD % WORD));
        }
        let first = self.chunks.get(last.chunk()).map(|chunk| chunk.next);
        let Some(mut index) = first else { return };
        loop {
            let is_last = index as usize == last.chunk();
            let chunk = &mut self.chunks[index as usize];
            let events = &chunk.events[..if is_last { last.len() } else { CHUNK }];
            let numbers = self.events.len()..;
            self.turns.extend(numbers.zip(events).map(|(n, &(offset, _))| Turn::new(offset, n)));
            self.events.extend(events.iter().map(|&(_, event)| event));
            let next = core::mem::replace(&mut chunk.next, self.free);
            self.free = index;
            if is_last {
                break;
            }
            index = next;
        }
        self.turns.sort_unstable_by(|a, b| b.cmp(a));
    }
}

/// The number of the slot that `at` lies in.
#[inline]
const fn slot_of(at: Timestamp) -> u64 {
    at.as_nanos() >> SLOT_BITS
}

/// How long after the beginning of its slot `at` is.
#[inline]
const fn offset_of(at: Timestamp) -> u32 {
    (at.as_nanos() & ((1 << SLOT_BITS) - 1)) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn take<E: Copy>(queue: &mut EventQueue<E>) -> Option<(Timestamp, E)> {
        queue.pop().map(|(at, number)| (at, queue.event(number)))
    }

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
                    prop_assert_eq!(take(&mut queue), expected);
                    now = expected.map_or(now, |(at, _)| now.max(at.as_nanos()));
                }
            }
            list.sort();
            for expected in list {
                prop_assert_eq!(take(&mut queue), Some(expected));
            }
            prop_assert_eq!(take(&mut queue), None);
        }
    }

    #[test]
    fn what_is_overdue_comes_at_once() {
        let mut queue = EventQueue::new();
        queue.push(Timestamp::from_secs(5), 'a');
        queue.push(Timestamp::from_secs(9), 'd');
        assert_eq!(take(&mut queue), Some((Timestamp::from_secs(5), 'a')));
        queue.push(Timestamp::from_secs(5), 'c');
        queue.push(Timestamp::from_secs(1), 'b');
        let rest: Vec<char> = core::iter::from_fn(|| take(&mut queue)).map(|(_, e)| e).collect();
        assert_eq!(rest, ['b', 'c', 'd']);
    }

    #[test]
    fn memory_is_bounded_by_what_waits() {
        let mut queue = EventQueue::new();
        for i in 0..100_000_u64 {
            queue.push(Timestamp::from_nanos(i * 700 + 3_000), i);
            if i >= 10 {
                take(&mut queue);
            }
        }
        assert!(queue.chunks.len() <= 12, "{}", queue.chunks.len());
    }
}
