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

/// A store whose memory is bounded by the most that was ever in it at once.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new() }
    }

    pub(crate) fn insert(&mut self, thing: T) -> Key {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.turn = place.turn.wrapping_add(1);
            place.thing = Some(thing);
            return Key { index, turn: place.turn };
        }
        let index = u32::try_from(self.places.len()).unwrap_or(u32::MAX);
        self.places.push(Place { turn: 0, thing: Some(thing) });
        Key { index, turn: 0 }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key.index as usize) {
            Some(place) if place.turn == key.turn => place.thing.as_mut(),
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        match self.places.get_mut(key.index as usize) {
            Some(place) if place.turn == key.turn => {
                let thing = place.thing.take()?;
                self.free.push(key.index);
                Some(thing)
            }
            _ => None,
        }
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
        assert_eq!(slab.places.len(), 1);
    }
}
