//! Methods by name, and by the small number that the cost model knows them by.
//!
//! The name is the path of a gRPC call, the route that axum matched, or else the HTTP method. Paths
//! come from outside, so the table must not grow by what strangers make up: a name is looked up
//! when a request comes and entered only when the service has answered it (not with "no such
//! method"). Until then, and when the table is full, it is "other".
//!
//! Looking up is one load and one hash, without a lock. Entering copies the table, which happens as
//! often as there are methods.

use arc_swap::ArcSwap;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::Criticality;
use tidegate_core::cost::MethodId;

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

#[derive(Debug)]
pub(crate) struct Methods {
    table: ArcSwap<HashMap<Box<str>, Method>>,
    entering: Mutex<()>,
    max: usize,
}

impl Methods {
    /// With room for `max`, of which `routes` are known from the start.
    pub(super) fn new(max: usize, routes: &[(String, Criticality)]) -> Self {
        let methods = Self { table: ArcSwap::default(), entering: Mutex::new(()), max };
        for (name, criticality) in routes {
            methods.insert(name, Some(*criticality));
        }
        methods
    }

    #[inline]
    pub(crate) fn find(&self, name: &str) -> Method {
        let table = self.table.load();
        let other = || Method { id: OTHER, criticality: None, is_new: table.len() < self.max };
        table.get(name).copied().unwrap_or_else(other)
    }

    /// The service knows `name`: it gets an entry, if there is room.
    #[cold]
    pub(crate) fn enter(&self, name: &str) {
        self.insert(name, None);
    }

    fn insert(&self, name: &str, criticality: Option<Criticality>) {
        let _one = self.entering.lock().unwrap_or_else(PoisonError::into_inner);
        let mut table = HashMap::clone(&self.table.load());
        if table.contains_key(name) || table.len() >= self.max {
            return;
        }
        let id = MethodId(u32::try_from(table.len() + 1).unwrap_or(OTHER.0));
        table.insert(name.into(), Method { id, criticality, is_new: false });
        self.table.store(Arc::new(table));
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_no_entry_before_it_was_answered_and_none_when_the_table_is_full() {
        let batch = ("/batch".to_owned(), Criticality::Sheddable);
        let methods = Methods::new(2, &[batch]);
        let known = methods.find("/batch");
        assert_eq!((known.id, known.criticality), (MethodId(1), Some(Criticality::Sheddable)));
        let unknown = methods.find("/a");
        assert_eq!((unknown.id, unknown.is_new), (OTHER, true));
        assert_eq!(methods.find("/a"), unknown, "looking up enters nothing");
        methods.enter("/a");
        methods.enter("/a");
        assert_eq!(methods.find("/a").id, MethodId(2));
        methods.enter("/b");
        let full = methods.find("/b");
        assert_eq!((full.id, full.is_new), (OTHER, false));
    }
}
