//! A heap of backends whose keys can be changed: the least key is at the top, and setting or
//! removing any backend's key costs O(log n), without allocating once it has grown.

use super::BackendId;

const NOWHERE: usize = usize::MAX;

#[derive(Debug, Clone)]
pub(super) struct Heap<K> {
    entries: Vec<(K, BackendId)>,
    /// Where each backend stands in `entries`, by number.
    places: Vec<usize>,
}

impl<K: Ord + Copy> Heap<K> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), places: Vec::new() }
    }

    pub(super) fn top(&self) -> Option<(K, BackendId)> {
        self.entries.first().copied()
    }

    pub(super) fn key(&self, id: BackendId) -> Option<K> {
        let place = *self.places.get(id.index())?;
        self.entries.get(place).map(|(key, _)| *key)
    }

    /// Gives `id` this key, whether it was in or not.
    pub(super) fn set(&mut self, id: BackendId, key: K) {
        if self.places.len() <= id.index() {
            self.places.resize(id.index() + 1, NOWHERE);
        }
        let mut place = self.places[id.index()];
        if place == NOWHERE {
            place = self.entries.len();
            self.entries.push((key, id));
            self.places[id.index()] = place;
        } else {
            self.entries[place].0 = key;
        }
        self.settle(place);
    }

    pub(super) fn remove(&mut self, id: BackendId) {
        let Some(place) = self.places.get(id.index()).copied().filter(|&p| p != NOWHERE) else {
            return;
        };
        self.places[id.index()] = NOWHERE;
        self.entries.swap_remove(place);
        if let Some(&(_, moved)) = self.entries.get(place) {
            self.places[moved.index()] = place;
            self.settle(place);
        }
    }

    fn settle(&mut self, mut place: usize) {
        while place > 0 && self.entries[place].0 < self.entries[(place - 1) / 2].0 {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        loop {
            let (left, right) = (2 * place + 1, 2 * place + 2);
            let mut least = place;
            for child in [left, right] {
                if child < self.entries.len() && self.entries[child].0 < self.entries[least].0 {
                    least = child;
                }
            }
            if least == place {
                return;
            }
            self.swap(place, least);
            place = least;
        }
    }

    fn swap(&mut self, a: usize, b: usize) {
        self.entries.swap(a, b);
        self.places[self.entries[a].1.index()] = a;
        self.places[self.entries[b].1.index()] = b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn the_top_is_the_least_of_a_plain_map(
            steps in proptest::collection::vec(
                (0_u32..20, proptest::option::of(0_u32..50)),
                1..200,
            ),
        ) {
            let mut heap = Heap::new();
            let mut map = BTreeMap::new();
            for (id, key) in steps {
                if let Some(key) = key {
                    heap.set(BackendId(id), key);
                    map.insert(id, key);
                } else {
                    heap.remove(BackendId(id));
                    map.remove(&id);
                }
                prop_assert_eq!(heap.top().map(|(key, _)| key), map.values().min().copied());
                for id in 0..20 {
                    prop_assert_eq!(heap.key(BackendId(id)), map.get(&id).copied());
                }
            }
        }
    }
}
