//! The least first, in few cache lines.
//!
//! A backend's jobs are last looked at long ago when the next of them is done, and every line of
//! memory that the look needs is waited for. With entries of sixteen bytes and four children to a
//! node, the children of one node take a line or two, and there are half as many steps down as in a
//! binary heap.

const CHILDREN: usize = 4;

/// Things by a number; those with the same number by themselves.
#[derive(Debug)]
pub(crate) struct Heap<T> {
    entries: Vec<(f64, T)>,
}

impl<T: Copy + Ord> Heap<T> {
    pub(crate) const fn new() -> Self {
        Self { entries: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The least number.
    #[inline]
    pub(crate) fn least(&self) -> Option<f64> {
        self.entries.first().map(|&(number, _)| number)
    }

    /// The thing with the least number.
    #[inline]
    pub(crate) fn first(&self) -> Option<T> {
        self.entries.first().map(|&(_, thing)| thing)
    }

    #[inline]
    pub(crate) fn push(&mut self, number: f64, thing: T) {
        let entry = (number, thing);
        let mut hole = self.entries.len();
        self.entries.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / CHILDREN;
            if !before(&entry, &self.entries[parent]) {
                break;
            }
            self.entries[hole] = self.entries[parent];
            hole = parent;
        }
        self.entries[hole] = entry;
    }

    /// Takes out the thing with the least number.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<T> {
        let last = self.entries.pop()?;
        let Some(&(_, first)) = self.entries.first() else { return Some(last.1) };
        let mut hole = 0;
        loop {
            let from = hole * CHILDREN + 1;
            let until = (from + CHILDREN).min(self.entries.len());
            let Some(children) = self.entries.get(from..until) else { break };
            let mut least = last;
            let mut place = hole;
            for (child, &entry) in (from..).zip(children) {
                if before(&entry, &least) {
                    (least, place) = (entry, child);
                }
            }
            if place == hole {
                break;
            }
            self.entries[hole] = least;
            hole = place;
        }
        self.entries[hole] = last;
        Some(first)
    }
}

/// What is not a number comes last.
#[inline]
fn before<T: Ord>(a: &(f64, T), b: &(f64, T)) -> bool {
    a.0 < b.0 || (a.0 == b.0 && a.1 < b.1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a list that is sorted.
        #[test]
        fn the_least_comes_first(
            steps in proptest::collection::vec((0_u32..20, any::<u8>(), 0_usize..3), 0..200),
        ) {
            let mut heap = Heap::new();
            let mut list = Vec::new();
            for (number, thing, pops) in steps {
                heap.push(f64::from(number), thing);
                list.push((number, thing));
                list.sort_by(|a, b| b.cmp(a));
                for _ in 0..pops {
                    prop_assert_eq!(heap.least(), list.last().map(|&(n, _)| f64::from(n)));
                    prop_assert_eq!(heap.pop(), list.pop().map(|(_, thing)| thing));
                }
            }
            prop_assert_eq!(heap.len(), list.len());
        }
    }
}
