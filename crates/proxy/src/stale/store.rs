//! Copies of answers, in bounded memory.
//!
//! By target, and for each target one for each choice of what its answer varies by. When there is
//! no room, those go first that have not been looked at for the longest. What a copy takes is
//! counted with its headers and what it takes to find it.

use super::directives::Directives;
use super::policy::{
    Freshness, Moment, Occasion, Selected, Verdict, is_selected, may_keep, selected,
};
use bytes::Bytes;
use core::time::Duration;
use http::header::{AGE, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG};
use http::{HeaderMap, StatusCode};
use std::collections::{BTreeMap, HashMap};
use tidegate_wire::headers::{ENDPOINT_LOAD_METRICS, ENDPOINT_LOAD_METRICS_BIN};

/// How many choices of one target are kept. `vary: user-agent` makes any number of them.
const CHOICES_MAX: usize = 16;

/// Places in maps, names and allocations of a copy, generously.
const OVERHEAD: usize = 512;

/// An answer that was kept.
#[derive(Debug, Clone)]
pub(super) struct Copy {
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) freshness: Freshness,
    pub(super) selected: Selected,
}

impl Copy {
    fn size(&self, target: &str) -> usize {
        let fields: usize =
            self.headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 32).sum();
        let selected: usize = self.selected.iter().map(|(_, value)| value.len() + 64).sum();
        // The target stands in both maps.
        OVERHEAD + fields + selected + self.body.len() + 2 * target.len()
    }
}

#[derive(Debug)]
struct Kept {
    copy: Copy,
    size: usize,
    /// Its place in the order of use.
    used: u64,
}

/// All copies.
#[derive(Debug)]
pub(super) struct Store {
    size_max: usize,
    size: usize,
    uses: u64,
    copies: HashMap<String, Vec<Kept>>,
    /// Targets by when one of their copies was used last.
    order: BTreeMap<u64, String>,
}

impl Store {
    pub(super) fn new(size_max: usize) -> Self {
        Self { size_max, size: 0, uses: 0, copies: HashMap::new(), order: BTreeMap::new() }
    }

    /// How many there are, and what they take.
    pub(super) fn extent(&self) -> (usize, usize) {
        (self.order.len(), self.size)
    }

    /// The copy for a request, if there is one that may be given out.
    pub(super) fn find(
        &mut self,
        target: &str,
        request: &HeaderMap,
        on: Occasion,
        now: Moment,
    ) -> Option<(Copy, Verdict)> {
        let caller = Directives::of(request);
        // The last that came is the last of its choices.
        let choices = self.copies.get_mut(target)?;
        let kept =
            choices.iter_mut().rev().find(|kept| is_selected(request, &kept.copy.selected))?;
        let verdict = kept.copy.freshness.verdict(&caller, on, now);
        if verdict == Verdict::No {
            return None;
        }
        self.order.remove(&kept.used);
        kept.used = self.uses;
        self.order.insert(self.uses, target.to_owned());
        self.uses += 1;
        Some((kept.copy.clone(), verdict))
    }

    /// Keeps a copy in place of the one that `request` would have chosen so far.
    pub(super) fn insert(&mut self, target: &str, request: &HeaderMap, copy: Copy) {
        self.remove(target, |kept| is_selected(request, &kept.selected));
        let size = copy.size(target);
        if size > self.size_max {
            return;
        }
        if let Some(oldest) = self.copies.get(target).filter(|all| all.len() >= CHOICES_MAX) {
            let used = oldest.first().map(|kept| kept.used);
            if let Some(used) = used {
                self.evict(used);
            }
        }
        while self.size + size > self.size_max {
            let Some((&used, _)) = self.order.first_key_value() else { return };
            self.evict(used);
        }
        let kept = Kept { copy, size, used: self.uses };
        self.order.insert(self.uses, target.to_owned());
        self.uses += 1;
        self.size += size;
        self.copies.entry(target.to_owned()).or_default().push(kept);
    }

    /// The program has said that what it sent before is still right (RFC 9111, 4.3.4).
    pub(super) fn refresh(
        &mut self,
        target: &str,
        request: &HeaderMap,
        said: &HeaderMap,
        (asked, came, if_error): (Moment, Moment, Duration),
    ) {
        let Some(etag) = said.get(ETAG).filter(|etag| !etag.as_bytes().starts_with(b"W/")) else {
            return;
        };
        let same = |kept: &&mut Kept| {
            is_selected(request, &kept.copy.selected) && kept.copy.headers.get(ETAG) == Some(etag)
        };
        let Some(kept) =
            self.copies.get_mut(target).and_then(|all| all.iter_mut().rev().find(same))
        else {
            return;
        };
        let mut copy = kept.copy.clone();
        for name in said.keys() {
            // What is about the bytes is as it was.
            if [CONTENT_LENGTH, CONTENT_TYPE, CONTENT_ENCODING, CONTENT_RANGE].contains(name) {
                continue;
            }
            // Nor is how we are doing a part of it.
            if [&ENDPOINT_LOAD_METRICS, &ENDPOINT_LOAD_METRICS_BIN].contains(&name) {
                continue;
            }
            copy.headers.remove(name);
            for value in said.get_all(name) {
                copy.headers.append(name, value.clone());
            }
        }
        copy.freshness = Freshness::of(&copy.headers, asked, came, if_error);
        copy.headers.remove(AGE);
        // What the program now says may forbid to keep it: it may be for this caller alone.
        let kept = may_keep(request, StatusCode::OK, &copy.headers, &copy.freshness);
        let Some(selected) = selected(request, &copy.headers).filter(|_| kept) else {
            return self.invalidate(target);
        };
        copy.selected = selected;
        self.insert(target, request, copy);
    }

    /// Forgets all copies of a target.
    pub(super) fn invalidate(&mut self, target: &str) {
        self.remove(target, |_| true);
    }

    fn remove(&mut self, target: &str, which: impl Fn(&Copy) -> bool) {
        let Some(choices) = self.copies.get_mut(target) else { return };
        for kept in choices.extract_if(.., |kept| which(&kept.copy)) {
            self.order.remove(&kept.used);
            self.size -= kept.size;
        }
        if choices.is_empty() {
            self.copies.remove(target);
        }
    }

    fn evict(&mut self, used: u64) {
        let Some(target) = self.order.remove(&used) else { return };
        let Some(choices) = self.copies.get_mut(&target) else { return };
        for kept in choices.extract_if(.., |kept| kept.used == used) {
            self.size -= kept.size;
        }
        if choices.is_empty() {
            self.copies.remove(&target);
        }
    }

    #[cfg(test)]
    pub(super) fn check(&self) {
        let sizes: usize = self.copies.values().flatten().map(|kept| kept.size).sum();
        assert_eq!(self.size, sizes);
        assert!(self.size <= self.size_max);
        assert_eq!(self.order.len(), self.copies.values().map(Vec::len).sum::<usize>());
        for (used, target) in &self.order {
            assert!(self.copies[target].iter().any(|kept| kept.used == *used));
        }
        assert!(self.copies.values().all(|all| (1..=CHOICES_MAX).contains(&all.len())));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stale::policy::selected;
    use core::time::Duration;
    use http::{HeaderName, HeaderValue};
    use proptest::prelude::*;
    use std::time::SystemTime;

    fn headers(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        fields.iter().map(field).collect()
    }

    fn at(seconds: u64) -> Moment {
        let wall = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds);
        Moment { wall, here: Duration::from_secs(seconds) }
    }

    fn copy(request: &HeaderMap, answer: &[(&str, &str)], body: &str, came: u64) -> Copy {
        let headers = headers(answer);
        let freshness = Freshness::of(&headers, at(came), at(came), Duration::ZERO);
        let selected = selected(request, &headers).unwrap();
        Copy { headers, body: Bytes::copy_from_slice(body.as_bytes()), freshness, selected }
    }

    fn body(store: &mut Store, target: &str, request: &HeaderMap, now: u64) -> Option<Bytes> {
        let found = store.find(target, request, Occasion::Failed, at(now));
        store.check();
        found.map(|(copy, _)| copy.body)
    }

    #[test]
    fn one_copy_for_each_choice() {
        let mut store = Store::new(1 << 20);
        let (de, en) =
            (headers(&[("accept-language", "de")]), headers(&[("accept-language", "en")]));
        let answer = [("vary", "accept-language"), ("cache-control", "max-age=60")];
        store.insert("a/", &de, copy(&de, &answer, "gut", 0));
        store.insert("a/", &en, copy(&en, &answer, "good", 0));
        store.insert("a/", &de, copy(&de, &answer, "besser", 0));
        assert_eq!(body(&mut store, "a/", &de, 1).unwrap(), "besser");
        assert_eq!(body(&mut store, "a/", &en, 1).unwrap(), "good");
        assert_eq!(body(&mut store, "a/", &HeaderMap::new(), 1), None);
        assert_eq!(body(&mut store, "b/", &de, 1), None);
        assert_eq!(body(&mut store, "a/", &de, 60), None, "not fresh any more");
        store.invalidate("a/");
        assert_eq!(body(&mut store, "a/", &de, 1), None);
        assert_eq!(store.size, 0);
    }

    #[test]
    fn what_was_not_looked_at_for_longest_goes_first() {
        let none = HeaderMap::new();
        let answer = [("cache-control", "max-age=60")];
        let size = copy(&none, &answer, "x", 0).size("1");
        let mut store = Store::new(3 * size);
        for target in ["1", "2", "3"] {
            store.insert(target, &none, copy(&none, &answer, "x", 0));
        }
        assert!(body(&mut store, "1", &none, 1).is_some());
        store.insert("4", &none, copy(&none, &answer, "x", 0));
        let there = ["1", "2", "3", "4"].map(|target| store.copies.contains_key(target));
        assert_eq!(there, [true, false, true, true]);
        store.insert("5", &none, copy(&none, &answer, &"x".repeat(3 * size), 0));
        assert!(!store.copies.contains_key("5"), "larger than all there is room for");
        store.check();
    }

    #[test]
    fn an_answer_that_says_still_right_makes_a_copy_young_again() {
        let none = HeaderMap::new();
        let mut store = Store::new(1 << 20);
        let answer = [("etag", "\"1\""), ("cache-control", "max-age=60"), ("content-type", "a/b")];
        store.insert("a", &none, copy(&none, &answer, "x", 0));
        let again = |store: &mut Store, etag: &str, came: u64| {
            let said = headers(&[
                ("etag", etag),
                ("cache-control", "max-age=90"),
                ("content-type", "c/d"),
            ]);
            store.refresh("a", &none, &said, (at(came), at(came), Duration::ZERO));
        };
        again(&mut store, "\"2\"", 50);
        again(&mut store, "W/\"1\"", 50);
        assert_eq!(body(&mut store, "a", &none, 61), None);
        again(&mut store, "\"1\"", 50);
        assert_eq!(body(&mut store, "a", &none, 139).unwrap(), "x");
        let (copy, _) = store.find("a", &none, Occasion::Failed, at(100)).unwrap();
        assert_eq!(
            (&copy.headers["cache-control"], &copy.headers["content-type"]),
            (&"max-age=90".parse().unwrap(), &"a/b".parse().unwrap())
        );
    }

    /// What a program adds for one caller is nothing for the next.
    #[test]
    fn an_answer_that_is_for_one_caller_ends_a_copy_that_all_may_have() {
        let none = HeaderMap::new();
        let answer = [("etag", "\"1\""), ("cache-control", "max-age=60")];
        for (name, value) in [
            ("set-cookie", "session=7"),
            ("cache-control", "private"),
            ("cache-control", "no-store"),
            ("vary", "*"),
        ] {
            let mut store = Store::new(1 << 20);
            store.insert("a", &none, copy(&none, &answer, "x", 0));
            let said = headers(&[("etag", "\"1\""), (name, value)]);
            store.refresh("a", &none, &said, (at(1), at(1), Duration::ZERO));
            assert_eq!(body(&mut store, "a", &none, 2), None, "{name}: {value}");
        }
    }

    proptest! {
        /// Whatever is kept, looked for and forgotten, memory is bounded and the books are right.
        #[test]
        fn memory_is_bounded(
            operations in proptest::collection::vec(
                (0_u8..4, 0_u8..6, 0_u8..20, 0_usize..4_000), 0..200,
            ),
        ) {
            let mut store = Store::new(10_000);
            for (operation, target, choice, length) in operations {
                let target = target.to_string();
                let request = headers(&[("a", &choice.to_string())]);
                match operation {
                    0 | 1 => {
                        let answer = [("vary", "a"), ("cache-control", "max-age=60")];
                        let copy = copy(&request, &answer, &"x".repeat(length), 0);
                        store.insert(&target, &request, copy);
                    }
                    2 => drop(store.find(&target, &request, Occasion::Busy, at(1))),
                    _ => store.invalidate(&target),
                }
                store.check();
            }
        }
    }
}
