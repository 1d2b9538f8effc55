//! Things that come and go, by small numbers that are used again.
//!
//! A number alone could mean a thing that is long gone and another that took its place, so every
//! place also counts how often it was taken, and a [`Key`] knows which time it means.

/// Names one thing in a [`Slab`], and never another that comes later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    index: u32,
    turn: u32,
}

impl Key {
    /// As one number, for those who keep numbers.
    pub(crate) const fn to_bits(self) -> u64 {
        (self.turn as u64) << 32 | self.index as u64
    }

    pub(crate) const fn from_bits(bits: u64) -> Self {
        Self { index: bits as u32, turn: (bits >> 32) as u32 }
    }
}

/// On lines of its own: things that were put in long ago are waited for line by line.
#[derive(Debug)]
#[repr(align(64))]
struct Place<T> {
    turn: u32,
    thing: Option<T>,
}

/// Places of one block: 256 KiB, which is little beside what a world needs anyway.
const BLOCK: usize = 1 << 12;

/// A store whose memory is bounded by the most that was ever in it at once. It grows block by
/// block: one vector that doubles would for a moment need half as much again.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    blocks: Vec<Box<[Place<T>; BLOCK]>>,
    /// Places that were never taken are those from here on.
    fresh: u32,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { blocks: Vec::new(), fresh: 0, free: Vec::new() }
    }

    #[inline]
    pub(crate) fn insert(&mut self, thing: T) -> Key {
        let index = self.free.pop().unwrap_or_else(|| self.grow());
        let place = &mut self.blocks[index as usize / BLOCK][index as usize % BLOCK];
        place.turn = place.turn.wrapping_add(1);
        place.thing = Some(thing);
        Key { index, turn: place.turn }
    }

    /// A place that was never taken.
    #[cold]
    fn grow(&mut self) -> u32 {
        if self.fresh as usize == self.blocks.len() * BLOCK {
            let block: Vec<Place<T>> = (0..BLOCK).map(|_| Place { turn: 0, thing: None }).collect();
            self.blocks.extend(block.try_into().ok());
        }
        let index = self.fresh;
        self.fresh += 1;
        index
    }

    #[inline]
    fn place(&mut self, key: Key) -> Option<&mut Place<T>> {
        let block = self.blocks.get_mut(key.index as usize / BLOCK)?;
        Some(&mut block[key.index as usize % BLOCK]).filter(|place| place.turn == key.turn)
    }

    /// The thing that has this key's place, whichever that is by now.
    #[inline]
    pub(crate) fn at(&self, key: Key) -> Option<&T> {
        self.blocks.get(key.index as usize / BLOCK)?[key.index as usize % BLOCK].thing.as_ref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        self.place(key)?.thing.as_mut()
    }

    #[inline]
    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let thing = self.place(key)?.thing.take()?;
        self.free.push(key.index);
        Some(thing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_never_means_a_later_thing() {
        let mut slab = Slab::new();
        let first = slab.insert('a');
        assert_eq!(slab.remove(first), Some('a'));
        let second = slab.insert('b');
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.remove(first), None);
        assert_eq!(slab.get_mut(second), Some(&mut 'b'));
        assert_eq!(slab.fresh, 1);
    }

    #[test]
    fn things_are_found_in_every_block() {
        let mut slab = Slab::new();
        let keys: Vec<Key> = (0..3 * BLOCK).map(|thing| slab.insert(thing)).collect();
        assert_eq!(slab.blocks.len(), 3);
        for (thing, key) in keys.iter().enumerate() {
            assert_eq!(slab.at(*key), Some(&thing));
            assert_eq!(slab.get_mut(*key).copied(), Some(thing));
        }
        for (thing, key) in keys.into_iter().enumerate() {
            assert_eq!(slab.remove(key), Some(thing));
            assert_eq!(slab.at(key), None);
        }
        for thing in 0..3 * BLOCK {
            slab.insert(thing);
        }
        assert_eq!(slab.blocks.len(), 3);
    }
}
