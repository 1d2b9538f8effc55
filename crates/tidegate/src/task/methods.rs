//! Methods by name, and by the small number that the cost model knows them by.
//!
//! The name is the path of a gRPC call, the route that axum matched, or else the HTTP method. Paths
//! come from outside, so the table must not grow by what strangers make up: a name is looked up
//! when a request comes and entered only when the service has answered it (not with "no such
//! method"). Until then, and when the table is full, it is "other".
//!
//! Looking up is one hash, in a table that each thread holds for as long as it is the newest.
//! Entering copies the table, which happens as often as there are methods. What is in the table is
//! the service's own, so a stranger cannot fill it with names of one hash, and a cheap one will do.

use arc_swap::{ArcSwap, Cache};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::Criticality;
use tidegate_core::cost::MethodId;
use tidegate_core::rng::mix;

/// What all methods without an entry are together.
const OTHER: MethodId = MethodId(0);

/// Services have dozens of methods; a thousand estimates of ten customers are 160 KB.
pub(super) const METHODS_MAX: usize = 1_000;

/// A method as far as it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) id: MethodId,
    /// What its requests count as if they do not say.
    pub(crate) criticality: Option<Criticality>,
    /// Whether it has no entry, and there is room for one.
    pub(crate) is_new: bool,
}

/// Eight bytes at a time.
#[derive(Debug, Clone, Copy, Default)]
struct Cheap(u64);

impl Hasher for Cheap {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.write_u64(u64::from_le_bytes(*word));
        }
        let rest = rest.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        self.write_u64(rest);
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        self.0 ^= u64::from(byte);
    }

    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = mix(self.0 ^ word);
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

#[derive(Debug)]
struct Table {
    methods: HashMap<Box<str>, Method, BuildHasherDefault<Cheap>>,
    /// What those are that have no entry.
    other: Method,
}

impl Table {
    fn new(methods: HashMap<Box<str>, Method, BuildHasherDefault<Cheap>>, max: usize) -> Self {
        let other = Method { id: OTHER, criticality: None, is_new: methods.len() < max };
        Self { methods, other }
    }
}

/// A thread's own access to [`Methods`].
#[derive(Debug)]
pub(crate) struct Finder(Cache<Arc<ArcSwap<Table>>, Arc<Table>>);

impl Finder {
    #[inline]
    pub(crate) fn find(&mut self, name: &str) -> Method {
        let table = self.0.load();
        table.methods.get(name).copied().unwrap_or(table.other)
    }
}

#[derive(Debug)]
pub(crate) struct Methods {
    table: Arc<ArcSwap<Table>>,
    entering: Mutex<()>,
    max: usize,
}

impl Methods {
    /// With room for `max`, of which `routes` are known from the start.
    pub(super) fn new(max: usize, routes: &[(String, Criticality)]) -> Self {
        let table = Arc::new(ArcSwap::from_pointee(Table::new(HashMap::default(), max)));
        let methods = Self { table, entering: Mutex::new(()), max };
        for (name, criticality) in routes {
            methods.insert(name, Some(*criticality));
        }
        methods
    }

    pub(crate) fn finder(&self) -> Finder {
        Finder(Cache::new(Arc::clone(&self.table)))
    }

    /// The service knows `name`: it gets an entry, if there is room.
    #[cold]
    pub(crate) fn enter(&self, name: &str) {
        self.insert(name, None);
    }

    fn insert(&self, name: &str, criticality: Option<Criticality>) {
        let _one = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        let mut methods = self.table.load().methods.clone();
        if methods.contains_key(name) || methods.len() >= self.max {
            return;
        }
        let id = MethodId(u32::try_from(methods.len() + 1).unwrap_or(OTHER.0));
        methods.insert(name.into(), Method { id, criticality, is_new: false });
        self.table.store(Arc::new(Table::new(methods, self.max)));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_entry_before_it_was_answered_and_none_when_the_table_is_full() {
        let batch = ("/batch".to_owned(), Criticality::Sheddable);
        let methods = Methods::new(2, &[batch]);
        let mut finder = methods.finder();
        let known = finder.find("/batch");
        assert_eq!((known.id, known.criticality), (MethodId(1), Some(Criticality::Sheddable)));
        let unknown = finder.find("/a");
        assert_eq!((unknown.id, unknown.is_new), (OTHER, true));
        assert_eq!(finder.find("/a"), unknown, "looking up enters nothing");
        methods.enter("/a");
        methods.enter("/a");
        assert_eq!(finder.find("/a").id, MethodId(2));
        methods.enter("/b");
        let full = finder.find("/b");
        assert_eq!((full.id, full.is_new), (OTHER, false));
    }
}
