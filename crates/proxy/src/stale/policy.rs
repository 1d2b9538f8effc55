//! What may be kept, and when a copy may be given out: RFC 9111 for a cache that is shared, and
//! RFC 5861.
//!
//! ```text
//! age       = max(came - date, age it came with + how long it took) + how long it is here
//! lifetime  = s-maxage, else max-age, else expires - date, else nothing
//! fresh     while age < lifetime
//! stale by  age - lifetime
//! ```
//!
//! A stale copy is given out only where that was allowed: by the answer (`stale-if-error`,
//! `stale-while-revalidate`), by the caller (`max-stale`, `stale-if-error`), or by whoever runs the
//! proxy; and never where the answer forbids it (`must-revalidate`, `proxy-revalidate`, `s-maxage`,
//! which has the same meaning: RFC 9111, 4.2.4 and 5.2.2.10). Lifetimes are not guessed.
//!
//! We are stricter than we would have to be in a few things, as a copy that is not kept is only one
//! that cannot help: only whole answers to GET with status 200 are kept; none that sets cookies, or
//! is about some fields only private or uncached.

use super::directives::{Directives, seconds};
use http::header::{
    AGE, AUTHORIZATION, CONTENT_RANGE, CONTENT_TYPE, DATE, EXPIRES, IF_MATCH, IF_RANGE,
    IF_UNMODIFIED_SINCE, SET_COOKIE, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime};

/// A moment by both clocks. Dates in headers are the wall's; how long a copy has lain here is not
/// to be told by a clock that somebody may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Moment {
    pub(super) wall: SystemTime,
    /// Since some moment that is the same for all.
    pub(super) here: Duration,
}

impl Moment {
    pub(super) fn now() -> Self {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        let start = *START;
        Self { wall: SystemTime::now(), here: start.elapsed() }
    }
}

/// Why a copy is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Occasion {
    /// The program has failed, or the request was refused before it came to it.
    Failed,
    /// The program has much to do, and a cheaper answer would help.
    Busy,
}

/// Whether a copy may be given out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It is as good as the answer.
    Fresh,
    /// It may be, in place of an answer.
    Stale,
    /// It may be, if somebody asks for another meanwhile.
    Revalidate,
    No,
}

/// How long an answer is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Freshness {
    /// When it came, and how old it was then.
    came: Duration,
    age: u64,
    lifetime: u64,
    /// For how long after that it may be given out, if at all.
    if_error: u64,
    while_revalidate: u64,
    /// Whether a caller may have it stale that wants it so.
    stale: bool,
}

impl Freshness {
    /// Of an answer that was asked for and came at these times. `if_error` is what whoever runs the
    /// proxy allows where the answer does not say.
    pub(super) fn of(answer: &HeaderMap, asked: Moment, came: Moment, if_error: Duration) -> Self {
        let said = Directives::of(answer);
        let date = date(answer, &DATE).unwrap_or(came.wall);
        let delay = came.here.saturating_sub(asked.here).as_secs();
        let apparent = came.wall.duration_since(date).unwrap_or_default().as_secs();
        let old = answer.get(AGE).and_then(|age| seconds(age.to_str().ok()?.trim())).unwrap_or(0);
        let expires = || {
            let value = answer.get(EXPIRES)?;
            // `0`, and whatever else is no date, is in the past.
            let expires = tidegate_wire::date::parse(value.as_bytes());
            Some(expires.and_then(|at| at.duration_since(date).ok()).unwrap_or_default().as_secs())
        };
        let lifetime = said.s_maxage.or(said.max_age).or_else(expires).unwrap_or(0);
        let checked = said.must_revalidate || said.proxy_revalidate;
        let stale = !checked && said.s_maxage.is_none();
        let only_if = |seconds: u64| if stale { seconds } else { 0 };
        Self {
            came: came.here,
            age: apparent.max(old.saturating_add(delay)),
            lifetime,
            if_error: only_if(said.if_error.unwrap_or(if_error.as_secs())),
            while_revalidate: only_if(said.while_revalidate.unwrap_or(0)),
            stale,
        }
    }

    /// Whether there will be any moment in which it may be given out.
    fn is_any_good(&self) -> bool {
        self.lifetime > self.age || self.if_error > 0 || self.while_revalidate > 0
    }

    /// In seconds.
    pub(super) fn age(&self, now: Moment) -> u64 {
        let here = now.here.saturating_sub(self.came).as_secs();
        self.age.saturating_add(here)
    }

    /// Whether it may be given to a caller who says this.
    pub(super) fn verdict(&self, caller: &Directives, on: Occasion, now: Moment) -> Verdict {
        let age = self.age(now);
        // One who wants nothing stored is given nothing that was.
        if caller.no_cache || caller.no_store || caller.max_age.is_some_and(|max| age > max) {
            return Verdict::No;
        }
        let left = self.lifetime.saturating_sub(age);
        if caller.min_fresh.is_some_and(|least| left < least) {
            return Verdict::No;
        }
        if left > 0 {
            return Verdict::Fresh;
        }
        let by = age - self.lifetime;
        if self.stale && caller.max_stale.is_some_and(|most| by <= most) {
            return Verdict::Stale;
        }
        // Who names an age wants it fresh (RFC 9111, 5.2.1.1).
        if !self.stale || caller.max_age.is_some() {
            return Verdict::No;
        }
        let if_error = self.if_error.max(caller.if_error.unwrap_or(0));
        // What was not said is no window, not one of no length.
        let within = |window: u64| window > 0 && by <= window;
        match on {
            Occasion::Failed if within(if_error.max(self.while_revalidate)) => Verdict::Stale,
            Occasion::Busy if within(self.while_revalidate) => Verdict::Revalidate,
            _ => Verdict::No,
        }
    }
}

fn date(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    tidegate_wire::date::parse(headers.get(name)?.as_bytes())
}

/// Whether the answer to a request may be kept (RFC 9111, section 3).
pub(super) fn may_keep(
    request: &HeaderMap,
    status: StatusCode,
    answer: &HeaderMap,
    freshness: &Freshness,
) -> bool {
    let (asked, said) = (Directives::of(request), Directives::of(answer));
    let shared = said.public || said.must_revalidate || said.s_maxage.is_some();
    let grpc = |value: &HeaderValue| value.as_bytes().starts_with(b"application/grpc");
    status == StatusCode::OK
        && !(asked.no_store || said.no_store || said.no_cache || said.private)
        && (shared || !request.contains_key(AUTHORIZATION))
        && !answer.contains_key(SET_COOKIE)
        && !answer.contains_key(CONTENT_RANGE)
        && !answer.get(CONTENT_TYPE).is_some_and(grpc)
        && selected(request, answer).is_some()
        && freshness.is_any_good()
}

/// Whether a request may be answered with a copy, if there is one. Those that want something only
/// if the program has it in some state are for the program.
pub(super) fn may_have_copy(method: &Method, request: &HeaderMap) -> bool {
    let conditions = [&IF_MATCH, &IF_UNMODIFIED_SINCE, &IF_RANGE];
    matches!(*method, Method::GET | Method::HEAD)
        && !conditions.into_iter().any(|name| request.contains_key(name))
}

/// Whether a request of this method, if it went well, makes copies of its target wrong.
pub(super) const fn is_unsafe(method: &Method) -> bool {
    !matches!(*method, Method::GET | Method::HEAD | Method::OPTIONS | Method::TRACE)
}

/// Fields by which an answer was chosen, as this request has them; nothing if it depends on what
/// nobody can see (`vary: *`).
pub(super) type Selected = Vec<(HeaderName, Vec<u8>)>;

pub(super) fn selected(request: &HeaderMap, answer: &HeaderMap) -> Option<Selected> {
    let mut names = Vec::new();
    for value in answer.get_all(VARY) {
        for name in value.to_str().ok()?.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            // `*` is no name of a field, but may be one of a header.
            if name == "*" {
                return None;
            }
            names.push(HeaderName::from_bytes(name.as_bytes()).ok()?);
        }
    }
    names.sort_unstable_by(|a, b| a.as_str().cmp(b.as_str()));
    names.dedup();
    Some(names.into_iter().map(|name| (name.clone(), field(request, &name))).collect())
}

/// Whether a request chooses the same answer.
pub(super) fn is_selected(request: &HeaderMap, selected: &Selected) -> bool {
    selected.iter().all(|(name, value)| field(request, name) == *value)
}

/// All values of a field as one, without the spaces between them (RFC 9111, section 4.1).
fn field(headers: &HeaderMap, name: &HeaderName) -> Vec<u8> {
    let mut all = Vec::new();
    for value in headers.get_all(name) {
        for part in value.as_bytes().split(|byte| *byte == b',') {
            all.extend_from_slice(part.trim_ascii());
            all.push(b',');
        }
    }
    all
}

#[cfg(test)]
mod tests;
