//! Which Envoy is which: places among the tasks of a service that outlive streams.
//!
//! An Envoy whose stream is cut goes on with what it was told, so what it holds has to count, and
//! when it comes back it has to be the same task, or its part would count twice and it would begin
//! anew. It proves who it is by its certificate at most, and many of one fleet have the same. So it
//! may say a name of its own in the metadata [`KEY`], which `tidegate envoy-config` has it do; else
//! its address counts.
//!
//! Several may have one name by mistake, as two on one machine. They are numbered: whoever comes
//! takes the first place that is free, and nobody throws another out. If they are exchanged by that
//! the fleet is right all the same, as parts follow demand.
//!
//! **Bounds.** Places are forgotten when there are too many; whoever then comes back is a new task,
//! and what it held counts until its lease ends. A customer that speaks for itself only has few.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_wire::proto::tidegate::quota::v1::TaskId;
use tokio::task::AbortHandle;
use tonic::metadata::MetadataMap;

/// The key of metadata by which an Envoy says its name.
const KEY: &str = "x-tidegate-envoy";
/// Bytes of a name, which is that of a host.
const NAME_MAX: usize = 128;
/// Names that are remembered; as many as there may be tasks by default.
const NAMES_MAX: usize = 16_384;
/// Envoys by one name: a fleet behind one address.
pub(super) const OF_NAME_MAX: usize = 1_024;
/// Streams of a customer that speaks for itself only.
pub(super) const OF_CUSTOMER_MAX: usize = 16;

/// Service and name.
type Key = (String, String);

/// Names of Envoys. Cheap to clone; clones share them.
#[derive(Debug, Clone, Default)]
pub(super) struct Names {
    inner: Arc<Mutex<BTreeMap<Key, Vec<Place>>>>,
}

#[derive(Debug, Default)]
struct Place {
    taken: bool,
    /// Which task had it last.
    task: Option<TaskId>,
    /// What will give up what that one holds.
    farewell: Option<AbortHandle>,
}

/// The place of one Envoy, free again when this is dropped.
#[derive(Debug)]
pub(super) struct Name {
    names: Names,
    key: Key,
    place: usize,
}

impl Names {
    /// A place by this name, if fewer than `most` have it.
    pub(super) fn take(&self, service: &str, name: &str, most: usize) -> Option<Name> {
        let mut inner = self.lock();
        let key = (service.to_owned(), name.to_owned());
        if inner.len() >= NAMES_MAX && !inner.contains_key(&key) {
            inner.retain(|_, places| places.iter().any(|place| place.taken));
        }
        let places = inner.entry(key.clone()).or_default();
        let free = places.iter().position(|place| !place.taken);
        let place = free.unwrap_or(places.len());
        if place >= most {
            return None;
        }
        if free.is_none() {
            places.push(Place::default());
        }
        places[place].taken = true;
        if let Some(farewell) = places[place].farewell.take() {
            farewell.abort();
        }
        drop(inner);
        Some(Name { names: self.clone(), key, place })
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Key, Vec<Place>>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Name {
    /// What it is called among tasks.
    pub(super) fn task(&self) -> String {
        format!("rlqs {} {}", self.key.1, self.place)
    }

    /// Which task had the place last.
    pub(super) fn resumes(&self) -> Option<TaskId> {
        self.with(|place| place.task)
    }

    pub(super) fn joined(&self, task: Option<TaskId>) {
        self.with(|place| place.task = task);
    }

    /// Frees the place, and has `farewell` end when somebody takes it.
    pub(super) fn leave(self, farewell: AbortHandle) {
        self.with(|place| place.farewell = Some(farewell));
    }

    fn with<T: Default>(&self, act: impl FnOnce(&mut Place) -> T) -> T {
        let mut inner = self.names.lock();
        let place = inner.get_mut(&self.key).and_then(|places| places.get_mut(self.place));
        place.map(act).unwrap_or_default()
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        self.with(|place| place.taken = false);
    }
}

/// What an Envoy calls itself, if it does.
pub(super) fn said(metadata: &MetadataMap) -> Option<&str> {
    let name = metadata.get(KEY)?.to_str().ok()?;
    (!name.is_empty() && name.len() <= NAME_MAX).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_back_has_its_place_and_two_of_one_name_have_two() {
        let names = Names::default();
        let take = |most| names.take("search", "edge", most);
        let id = |epoch| Some(TaskId { epoch, ..TaskId::default() });
        let (first, second) = (take(3).unwrap(), take(3).unwrap());
        assert_eq!((first.task(), second.task()), ("rlqs edge 0".into(), "rlqs edge 1".into()));
        first.joined(id(7));
        assert!(take(2).is_none(), "there may be no more");
        drop(first);
        let again = take(2).unwrap();
        assert_eq!((again.task(), again.resumes()), ("rlqs edge 0".into(), id(7)));
        assert_eq!(names.take("ads", "edge", 1).unwrap().resumes(), None);
    }

    #[test]
    fn names_are_forgotten_when_there_are_too_many_but_not_those_that_are_in_use() {
        let names = Names::default();
        let kept = names.take("search", "kept", 1).unwrap();
        for n in 0..2 * NAMES_MAX {
            drop(names.take("search", &n.to_string(), 1));
        }
        assert!(names.lock().len() <= NAMES_MAX);
        assert!(names.take("search", "kept", 1).is_none());
        drop(kept);
        assert!(names.take("search", "kept", 1).is_some());
    }
}
