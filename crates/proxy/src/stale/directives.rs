//! `cache-control`, of requests and of answers (RFC 9111, section 5.2; RFC 5861).
//!
//! Whatever is said twice counts as the stricter of both, and a time that is none counts as no time
//! at all: a copy that is thrown away too soon costs a request, one that is kept too long is wrong.

use http::HeaderMap;
use http::header::{CACHE_CONTROL, PRAGMA};

/// Longer than any copy lives (RFC 9111, section 1.2.2).
const SECONDS_MAX: u64 = 1 << 31;

/// What is said, in seconds where it is a time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "they are as many words of the header")]
pub(super) struct Directives {
    pub(super) no_store: bool,
    pub(super) no_cache: bool,
    pub(super) private: bool,
    pub(super) public: bool,
    pub(super) must_revalidate: bool,
    /// The same for copies that are shared, but it allows nobody to share one.
    pub(super) proxy_revalidate: bool,
    pub(super) max_age: Option<u64>,
    pub(super) s_maxage: Option<u64>,
    pub(super) min_fresh: Option<u64>,
    /// How stale a caller takes it.
    pub(super) max_stale: Option<u64>,
    pub(super) if_error: Option<u64>,
    pub(super) while_revalidate: Option<u64>,
}

impl Directives {
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let mut found = Self::default();
        for value in headers.get_all(CACHE_CONTROL) {
            // What is not text may say anything.
            match value.to_str() {
                Ok(text) => members(text).for_each(|member| found.add(member)),
                Err(_) => found.no_store = true,
            }
        }
        // For callers that know nothing newer (RFC 9111, section 5.4).
        if !headers.contains_key(CACHE_CONTROL) {
            let mut pragmas = headers.get_all(PRAGMA).iter();
            found.no_cache |= pragmas.any(|value| {
                value.to_str().is_ok_and(|text| {
                    members(text).any(|(name, _)| name.eq_ignore_ascii_case("no-cache"))
                })
            });
        }
        found
    }

    fn add(&mut self, (name, value): (&str, Option<&str>)) {
        let time = || seconds(value.unwrap_or_default()).unwrap_or(0);
        let stricter = |time: Option<u64>, other: u64| Some(time.map_or(other, |t| t.min(other)));
        match name.to_ascii_lowercase().as_str() {
            "no-store" => self.no_store = true,
            // With names of fields it is about those alone; that is not worth telling apart.
            "no-cache" => self.no_cache = true,
            "private" => self.private = true,
            "public" => self.public = true,
            "must-revalidate" => self.must_revalidate = true,
            "proxy-revalidate" => self.proxy_revalidate = true,
            "max-age" => self.max_age = stricter(self.max_age, time()),
            "s-maxage" => self.s_maxage = stricter(self.s_maxage, time()),
            "min-fresh" => {
                let least = seconds(value.unwrap_or_default()).unwrap_or(SECONDS_MAX);
                self.min_fresh = self.min_fresh.max(Some(least));
            }
            "max-stale" => {
                let most = value.map_or(SECONDS_MAX, |value| seconds(value).unwrap_or(0));
                self.max_stale = stricter(self.max_stale, most);
            }
            "stale-if-error" => self.if_error = stricter(self.if_error, time()),
            "stale-while-revalidate" => {
                self.while_revalidate = stricter(self.while_revalidate, time());
            }
            _ => {}
        }
    }
}

/// Whole seconds; more than there can be are as many as there can be.
pub(super) fn seconds(text: &str) -> Option<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| text.parse().map_or(SECONDS_MAX, |seconds: u64| seconds.min(SECONDS_MAX)))
}

/// Names, each with its value, quoted or not.
fn members(text: &str) -> impl Iterator<Item = (&str, Option<&str>)> {
    let mut rest = text;
    core::iter::from_fn(move || {
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if rest.is_empty() {
                return None;
            }
            let mut quoted = false;
            let end = rest.find(|c: char| {
                quoted ^= c == '"';
                c == ',' && !quoted
            });
            let (member, after) = rest.split_at(end.unwrap_or(rest.len()));
            rest = after;
            let (name, value) = match member.split_once('=') {
                Some((name, value)) => (name.trim(), Some(value.trim().trim_matches('"'))),
                None => (member.trim(), None),
            };
            if !name.is_empty() {
                return Some((name, value));
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn of(text: &str) -> Directives {
        let mut headers = HeaderMap::new();
        headers.insert(CACHE_CONTROL, HeaderValue::from_str(text).unwrap());
        Directives::of(&headers)
    }

    #[test]
    fn by_the_table() {
        let none = Directives::default();
        let age = |seconds| Directives { max_age: Some(seconds), ..none };
        for (text, expected) in [
            ("", none),
            (", ,", none),
            ("max-age=60", age(60)),
            ("MAX-AGE=60", age(60)),
            ("max-age=\"60\"", age(60)),
            ("max-age = 60", age(60)),
            ("max-age=60, max-age=10", age(10)),
            ("max-age=-5", age(0)),
            ("max-age=soon", age(0)),
            ("max-age", age(0)),
            ("max-age=99999999999999999999", age(SECONDS_MAX)),
            ("x=\"max-age=5, no-store\"", none),
            (
                "private=\"a, no-store\", no-cache",
                Directives { private: true, no_cache: true, ..none },
            ),
            ("no-store", Directives { no_store: true, ..none }),
            ("public,must-revalidate", Directives { public: true, must_revalidate: true, ..none }),
            ("proxy-revalidate", Directives { proxy_revalidate: true, ..none }),
            ("s-maxage=7", Directives { s_maxage: Some(7), ..none }),
            ("max-stale", Directives { max_stale: Some(SECONDS_MAX), ..none }),
            ("max-stale=3", Directives { max_stale: Some(3), ..none }),
            ("max-stale=x", Directives { max_stale: Some(0), ..none }),
            ("min-fresh=x", Directives { min_fresh: Some(SECONDS_MAX), ..none }),
            // RFC 5861, section 3.1 and 4.1.
            (
                "max-age=600, stale-while-revalidate=30",
                Directives { while_revalidate: Some(30), ..age(600) },
            ),
            ("max-age=600, stale-if-error=1200", Directives { if_error: Some(1200), ..age(600) }),
        ] {
            assert_eq!(of(text), expected, "{text}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(PRAGMA, HeaderValue::from_static("no-cache"));
        assert!(Directives::of(&headers).no_cache);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("max-age=5"));
        assert!(!Directives::of(&headers).no_cache, "what is newer counts");
        headers.append(CACHE_CONTROL, HeaderValue::from_bytes(b"\xff").unwrap());
        assert!(Directives::of(&headers).no_store);
    }

    proptest! {
        /// Any text is read to its end, and nothing that was said is less strict for what is added.
        #[test]
        fn more_words_never_allow_more(text in "[ -~]{0,60}", seconds in 0_u64..1_000) {
            let alone = of(&format!("max-age={seconds}"));
            let more = of(&format!("max-age={seconds}, {text}"));
            prop_assert!(more.max_age <= alone.max_age);
        }
    }
}
