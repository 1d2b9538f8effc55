//! Customers by name, and by the small number that stands for it on the request path.
//!
//! Looking a name up costs fifty nanoseconds, so a shell does it once per connection. Names come
//! from the configuration; a stranger cannot make the table grow.

use std::collections::BTreeMap;

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
#[derive(Debug, Clone, Default)]
pub struct Customers {
    ids: BTreeMap<String, CustomerId>,
    customers_max: usize,
}

impl Customers {
    /// Room for `customers_max` customers, the default one included.
    pub const fn new(customers_max: usize) -> Self {
        Self { ids: BTreeMap::new(), customers_max }
    }

    /// The number for `name`, new if need be; nothing if the table is full.
    pub fn register(&mut self, name: &str) -> Option<CustomerId> {
        if let Some(&id) = self.ids.get(name) {
            return Some(id);
        }
        let next = u32::try_from(self.ids.len() + 1).ok()?;
        if next as usize >= self.customers_max {
            return None;
        }
        self.ids.insert(name.to_owned(), CustomerId(next));
        Some(CustomerId(next))
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
