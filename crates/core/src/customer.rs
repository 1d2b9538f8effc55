//! Customers by name, and by the small number that stands for it on the request path.
//!
//! Looking a name up costs fifty nanoseconds, so a shell does it once per connection. Names come
//! from the configuration; a stranger cannot make the table grow.

use std::collections::{BTreeMap, BTreeSet};

/// Whom the work is charged to, as an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CustomerId(pub u32);

impl CustomerId {
    /// Everyone who has no limit of their own.
    pub const DEFAULT: Self = Self(0);

    /// The customer at `index` of a table; whoever is beyond four billion shares the last.
    pub(crate) const fn new(index: usize) -> Self {
        Self(if index > u32::MAX as usize { u32::MAX } else { index as u32 })
    }

    /// The index into tables of customers.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The names of the customers who have limits of their own.
///
/// A number outlives its name. When [`Customers::remove`] takes the name away, tables still hold
/// what was counted under the number, connections may still carry it, and its limits still stand.
/// Given to another name at once, it would charge the newcomer for what the other one used. So it
/// waits until the caller says with [`Customers::reuse`] that all this is dealt with; a caller who
/// never does has one customer less.
#[derive(Debug, Clone, Default)]
pub struct Customers {
    ids: BTreeMap<String, CustomerId>,
    /// Without a name, and not to be given out yet.
    removed: BTreeSet<CustomerId>,
    /// To be given out again.
    free: BTreeSet<CustomerId>,
    /// The default one included.
    max: usize,
}

impl Customers {
    /// Room for `customers_max` customers, the default one included.
    pub const fn new(customers_max: usize) -> Self {
        Self {
            ids: BTreeMap::new(),
            removed: BTreeSet::new(),
            free: BTreeSet::new(),
            max: customers_max,
        }
    }

    /// The number for `name`, new if need be; nothing if the table is full.
    pub fn register(&mut self, name: &str) -> Option<CustomerId> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        let id = self.free.pop_first().or_else(|| self.unused())?;
        self.ids.insert(name.to_owned(), id);
        Some(id)
    }

    /// Forgets `name` and says which number it had; nothing if it had none. From now on it is one
    /// of everyone else, and if it comes back it gets another number.
    pub fn remove(&mut self, name: &str) -> Option<CustomerId> {
        let id = self.ids.remove(name)?;
        self.removed.insert(id);
        Some(id)
    }

    /// Lets the number of a removed customer be given to a later name: its counts were taken over,
    /// its limits were set anew, and nobody makes requests under it any more. Returns whether
    /// there was such a number.
    pub fn reuse(&mut self, id: CustomerId) -> bool {
        let removed = self.removed.remove(&id);
        if removed {
            self.free.insert(id);
        }
        removed
    }

    /// A number that no name ever had. Those given out are the lowest, so their count is the next.
    fn unused(&self) -> Option<CustomerId> {
        let given = self.ids.len() + self.removed.len() + self.free.len();
        let next = u32::try_from(given + 1).ok()?;
        ((next as usize) < self.max).then_some(CustomerId(next))
    }

    /// The number for `name`, or that of everyone else.
    pub fn lookup(&self, name: &str) -> CustomerId {
        self.ids.get(name).copied().unwrap_or(CustomerId::DEFAULT)
    }

    /// All that have a number of their own, by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, CustomerId)> {
        self.ids.iter().map(|(name, &id)| (name.as_str(), id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_number_is_given_again_only_when_it_is_said_to_be_free() {
        let mut names = Customers::new(3);
        let [first, second] = [CustomerId(1), CustomerId(2)];
        assert_eq!(names.register("gmail"), Some(first));
        assert_eq!(names.register("calendar"), Some(second));
        assert_eq!(names.remove("gmail"), Some(first));
        assert_eq!(names.remove("gmail"), None);
        assert_eq!(names.lookup("gmail"), CustomerId::DEFAULT);
        assert_eq!(names.register("android"), None);
        assert!(names.reuse(first));
        assert!(!names.reuse(first));
        assert!(!names.reuse(second), "it has a name");
        assert_eq!(names.register("android"), Some(first));
        assert_eq!(names.register("gmail"), None);
        assert_eq!(names.lookup("calendar"), second);
    }

    #[derive(Debug, Clone)]
    enum Operation {
        Register(u8),
        Remove(u8),
        Reuse(u32),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            (0..12_u8).prop_map(Operation::Register),
            (0..12_u8).prop_map(Operation::Remove),
            (0..10_u32).prop_map(Operation::Reuse),
        ]
    }

    proptest! {
        #[test]
        fn no_two_names_share_a_number_and_none_is_lost(
            operations in proptest::collection::vec(operation(), 0..200),
        ) {
            const MAX: usize = 8;
            let mut names = Customers::new(MAX);
            let mut waiting = BTreeSet::new();
            for operation in operations {
                match operation {
                    Operation::Register(name) => {
                        let room = names.iter().count() + waiting.len() < MAX - 1;
                        let known = names.lookup(&name.to_string()) != CustomerId::DEFAULT;
                        let id = names.register(&name.to_string());
                        prop_assert_eq!(id.is_some(), known || room);
                        prop_assert!(id.is_none_or(|id| !waiting.contains(&id)));
                    }
                    Operation::Remove(name) => waiting.extend(names.remove(&name.to_string())),
                    Operation::Reuse(id) => {
                        let id = CustomerId(id);
                        prop_assert_eq!(names.reuse(id), waiting.remove(&id));
                    }
                }
                let ids: BTreeSet<_> = names.iter().map(|(_, id)| id).collect();
                prop_assert_eq!(ids.len(), names.iter().count());
                prop_assert!(ids.iter().all(|id| (1..MAX).contains(&id.index())));
            }
        }
    }
}
