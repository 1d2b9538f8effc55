//! A stale answer instead of none.
//!
//! A program that is overloaded, or gone, could often have been spared: what it would have said a
//! minute ago is good enough for many callers, and answers say so themselves (`stale-if-error`,
//! `stale-while-revalidate`). So the proxy keeps copies of answers that may be kept, and gives them
//! out in three cases, each with `x-tidegate-degraded` and why:
//!
//! | | a copy that may be given out |
//! |---|---|
//! | the gate refuses a request, as the program has too much to do | fresh or stale, instead of 503 |
//! | the program does not answer, or with 500, 502, 503 or 504 | fresh or stale, instead of that |
//! | the gate asks for degraded answers | fresh, or stale while one request asks anew |
//!
//! It is no cache: while all is well, every request goes to the program. Refusals for other reasons
//! (quota, deadline, lame duck) stay refusals, as they are not for want of the program's time.
//!
//! What may be kept and given out is decided in `policy`, without a clock; what there is room for
//! in `store`. A body is copied while it passes, and kept only if it has come to its end.
//!
//! **When it is wrong.** A copy is only as right as the answer's own headers. A program that allows
//! what it should not, or forgets `vary`, gives one caller what was another's, as behind any cache.

mod directives;
mod policy;
mod store;

use bytes::{Bytes, BytesMut};
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::task::{Context, Poll};
use core::time::Duration;
use http::header::{
    AGE, CONTENT_LENGTH, CONTENT_LOCATION, ETAG, HOST, HeaderValue, IF_NONE_MATCH, LOCATION,
    TRANSFER_ENCODING,
};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use policy::{Freshness, Moment, Occasion, Verdict, is_unsafe, may_have_copy, may_keep, selected};
use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use store::{Copy, Store};
use tidegate::metrics::Copies;
use tidegate_core::decision::Reason;
use tidegate_wire::headers::{
    ENDPOINT_LOAD_METRICS, ENDPOINT_LOAD_METRICS_BIN, X_TIDEGATE_DEGRADED, X_TIDEGATE_REASON,
};

/// How copies are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StaleConfig {
    /// Bytes that all copies may take together, a quarter of them those that are being made.
    pub memory: usize,
    /// Bytes that the body of one may have.
    pub copy_max: usize,
    /// How stale one may be when the program fails, where its answer does not say.
    pub if_error: Duration,
}

impl Default for StaleConfig {
    fn default() -> Self {
        Self {
            // Less than the connections that there may be take.
            memory: 64 * 1024 * 1024,
            // Most pages and all answers of APIs are smaller, and 256 of these fit.
            copy_max: 256 * 1024,
            // Stale answers are for the program to allow, or for whoever knows it.
            if_error: Duration::ZERO,
        }
    }
}

/// How many marks there are for what was changed. Targets share them by chance, and a copy that is
/// not kept for a stranger's sake is only one that cannot help.
const MARKS: usize = 1_024;

/// The part of the memory that is for copies which are being made: readers may be slow, and hold
/// them for as long as they like.
const MAKING: usize = 4;

/// The copies of a proxy.
#[derive(Debug)]
pub(crate) struct Stale {
    config: StaleConfig,
    store: Mutex<Store>,
    /// How often any of the targets that share a mark was changed. Whoever asked before does not
    /// know what the answer was made of.
    changed: Box<[AtomicU64]>,
    hasher: RandomState,
    /// Bytes of copies that are being made.
    making: AtomicUsize,
    counts: Counts,
    /// Targets that somebody asks for anew.
    asked: Mutex<HashSet<String>>,
}

/// What became of copies so far.
#[derive(Debug, Default)]
struct Counts {
    kept: AtomicU64,
    /// Targets that were changed.
    forgotten: AtomicU64,
    /// Given out where the gate has refused, the program has failed, or was to be spared.
    refused: AtomicU64,
    failed: AtomicU64,
    spared: AtomicU64,
}

/// A request that may be answered with a copy, or whose answer may become one.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    stale: Arc<Stale>,
    method: Method,
    target: String,
    headers: HeaderMap,
    asked: Moment,
    /// What the mark of its target was then.
    mark: u64,
    /// Whether it has no body.
    plain: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it is right whoever has panicked, as nothing here does.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stale {
    pub(crate) fn new(config: StaleConfig) -> Arc<Self> {
        let store = Mutex::new(Store::new(config.memory - config.memory / MAKING));
        Arc::new(Self {
            config,
            store,
            changed: (0..MARKS).map(|_| AtomicU64::new(0)).collect(),
            hasher: RandomState::new(),
            making: AtomicUsize::new(0),
            counts: Counts::default(),
            asked: Mutex::default(),
        })
    }

    /// How they stand, and what became of them.
    pub(crate) fn counts(&self) -> Copies {
        let (count, bytes) = lock(&self.store).extent();
        let mut copies = Copies::default();
        copies.count = count as u64;
        copies.bytes = (bytes + self.making.load(Relaxed)) as u64;
        copies.events = [
            ("kept", &self.counts.kept),
            ("forgotten", &self.counts.forgotten),
            ("refused", &self.counts.refused),
            ("failed", &self.counts.failed),
            ("spared", &self.counts.spared),
        ]
        .map(|(event, count)| (event, count.load(Relaxed)))
        .to_vec();
        copies
    }

    fn mark(&self, target: &str) -> &AtomicU64 {
        let hash = self.hasher.hash_one(target) as usize;
        &self.changed[hash % self.changed.len()]
    }

    /// Forgets what there is of a target, and what is on its way.
    fn invalidate(&self, store: &mut Store, target: &str) {
        self.mark(target).fetch_add(1, Relaxed);
        self.counts.forgotten.fetch_add(1, Relaxed);
        store.invalidate(target);
    }

    /// What has to be remembered of a request, before it is handed on.
    pub(crate) fn question<B: Body>(self: &Arc<Self>, request: &Request<B>) -> Option<Question> {
        let target = target(request.uri(), request.headers())?;
        Some(Question {
            stale: Arc::clone(self),
            method: request.method().clone(),
            mark: self.mark(&target).load(Relaxed),
            target,
            headers: request.headers().clone(),
            asked: Moment::now(),
            plain: request.body().is_end_stream(),
        })
    }
}

/// Whose answer it is: the host, and what it is asked for.
fn target(uri: &Uri, headers: &HeaderMap) -> Option<String> {
    let named = || headers.get(HOST)?.to_str().ok()?.parse::<Authority>().ok();
    let authority = uri.authority().cloned().or_else(named)?;
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    Some(place(&authority, path))
}

/// Host and path, which cannot be taken for one another: neither has a line's end in it.
fn place(authority: &Authority, path: &str) -> String {
    // A user is none of the host's names.
    let host = authority.as_str().rsplit('@').next().unwrap_or_default();
    format!("{}\n{path}", host.to_ascii_lowercase())
}

impl Question {
    /// An answer in place of a refusal, if it is one for want of the program's time.
    pub(crate) fn instead_of(&self, refusal: &Response<Bytes>) -> Option<Response<Bytes>> {
        let overloaded = Reason::Overloaded.code();
        let reason = refusal.headers().get(&X_TIDEGATE_REASON)?;
        let (copy, _) =
            (reason == overloaded).then(|| self.copy(Occasion::Failed, overloaded)).flatten()?;
        self.stale.counts.refused.fetch_add(1, Relaxed);
        Some(copy)
    }

    /// An answer that spares the program, and whether this request is to ask it nevertheless, so
    /// that there is a newer one.
    pub(crate) fn spared(&self) -> Option<(Response<Bytes>, Option<Anew>)> {
        let (answer, verdict) = self.copy(Occasion::Busy, Reason::Overloaded.code())?;
        self.stale.counts.spared.fetch_add(1, Relaxed);
        let anew = (verdict == Verdict::Revalidate && self.method == Method::GET && self.plain)
            .then(|| Anew::of(self))
            .flatten();
        Some((answer, anew))
    }

    fn copy(&self, on: Occasion, why: &'static str) -> Option<(Response<Bytes>, Verdict)> {
        // What is in a body may be what is asked for.
        if !self.plain || !may_have_copy(&self.method, &self.headers) {
            return None;
        }
        let now = Moment::now();
        let found = lock(&self.stale.store).find(&self.target, &self.headers, on, now);
        let (copy, verdict) = found?;
        let age = copy.freshness.age(now);
        let Copy { mut headers, body, .. } = copy;
        headers.insert(AGE, age.into());
        headers.insert(&X_TIDEGATE_DEGRADED, HeaderValue::from_static(why));
        let known = self
            .headers
            .get_all(IF_NONE_MATCH)
            .iter()
            .any(|tags| headers.get(ETAG).is_some_and(|etag| has_tag(tags, etag)));
        let status = if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK };
        let body = if known || self.method == Method::HEAD {
            if known {
                headers.remove(CONTENT_LENGTH);
            }
            Bytes::new()
        } else {
            body
        };
        let mut answer = Response::new(body);
        *answer.status_mut() = status;
        *answer.headers_mut() = headers;
        Some((answer, verdict))
    }

    /// The answer has come, from the program or in its place.
    pub(crate) fn settle<B: Body<Data = Bytes>>(
        self,
        answer: Response<B>,
        ours: impl FnOnce(Bytes) -> B,
    ) -> Response<Recorded<B>> {
        if let Some(why) = failed(&answer) {
            return match self.copy(Occasion::Failed, why) {
                Some((copy, _)) => {
                    self.stale.counts.failed.fetch_add(1, Relaxed);
                    copy.map(|body| Recorded::plain(ours(body)))
                }
                None => answer.map(Recorded::plain),
            };
        }
        if is_unsafe(&self.method) {
            self.invalidate(&answer);
            return answer.map(Recorded::plain);
        }
        if self.method != Method::GET || !self.plain {
            return answer.map(Recorded::plain);
        }
        self.keep(answer)
    }

    fn keep<B: Body<Data = Bytes>>(self, answer: Response<B>) -> Response<Recorded<B>> {
        let (head, body) = answer.into_parts();
        let config = &self.stale.config;
        let freshness = Freshness::of(&head.headers, self.asked, Moment::now(), config.if_error);
        if head.status == StatusCode::NOT_MODIFIED {
            let mut store = lock(&self.stale.store);
            let times = (self.asked, Moment::now(), config.if_error);
            if self.is_of_now() {
                store.refresh(&self.target, &self.headers, &head.headers, times);
            }
        }
        let large = body.size_hint().lower() > config.copy_max as u64;
        if large || !may_keep(&self.headers, head.status, &head.headers, &freshness) {
            return Response::from_parts(head, Recorded::plain(body));
        }
        let mut headers = head.headers.clone();
        for name in [&AGE, &ENDPOINT_LOAD_METRICS, &ENDPOINT_LOAD_METRICS_BIN] {
            headers.remove(name);
        }
        let selected = selected(&self.headers, &headers).unwrap_or_default();
        let recording = Recording {
            copy: Copy { headers, body: Bytes::new(), freshness, selected },
            bytes: BytesMut::new(),
            room: Room { stale: Arc::clone(&self.stale), bytes: 0 },
            question: self,
        };
        if body.is_end_stream() {
            recording.done();
            return Response::from_parts(head, Recorded::plain(body));
        }
        let body = Recorded { body, recording: Some(Box::new(recording)) };
        Response::from_parts(head, body)
    }

    /// Whether nothing has changed its target since it was asked. To be asked under the lock of the
    /// store, as changes are made.
    fn is_of_now(&self) -> bool {
        self.stale.mark(&self.target).load(Relaxed) == self.mark
    }

    /// What it has changed is not what there are copies of (RFC 9111, section 4.4).
    fn invalidate<B>(&self, answer: &Response<B>) {
        if !(answer.status().is_success() || answer.status().is_redirection()) {
            return;
        }
        let mut store = lock(&self.stale.store);
        self.stale.invalidate(&mut store, &self.target);
        let host = self.target.split('\n').next().unwrap_or_default();
        for name in [LOCATION, CONTENT_LOCATION] {
            let named = answer.headers().get(name).and_then(|value| value.to_str().ok());
            let Some(uri) = named.and_then(|text| text.parse::<Uri>().ok()) else { continue };
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            // Of other hosts it knows nothing.
            if uri.authority().is_none_or(|named| named.as_str().eq_ignore_ascii_case(host)) {
                self.stale.invalidate(&mut store, &format!("{host}\n{path}"));
            }
        }
    }
}

/// Why there is no answer of use, if there is none (RFC 5861, section 4).
fn failed<B>(answer: &Response<B>) -> Option<&'static str> {
    if !matches!(answer.status().as_u16(), 500 | 502 | 503 | 504) {
        return None;
    }
    let reason = answer.headers().get(&X_TIDEGATE_REASON).map(HeaderValue::as_bytes);
    Some(match reason {
        Some(b"upstream_unreachable") => "upstream_unreachable",
        Some(b"upstream_broken") => "upstream_broken",
        Some(b"upstream_timeout") => "upstream_timeout",
        _ => "upstream_error",
    })
}

/// Whether a list of tags has this one, strong or weak.
fn has_tag(tags: &HeaderValue, etag: &HeaderValue) -> bool {
    let plain = |tag: &str| tag.trim().trim_start_matches("W/").to_owned();
    let (Ok(tags), Ok(etag)) = (tags.to_str(), etag.to_str()) else { return false };
    tags.trim() == "*" || tags.split(',').any(|tag| plain(tag) == plain(etag))
}

/// The one that asks for a target anew, until this is dropped.
#[derive(Debug)]
pub(crate) struct Anew {
    stale: Arc<Stale>,
    target: String,
}

impl Anew {
    /// Nothing if there is one.
    fn of(question: &Question) -> Option<Self> {
        let stale = &question.stale;
        let first = lock(&stale.asked).insert(question.target.clone());
        first.then(|| Self { stale: Arc::clone(stale), target: question.target.clone() })
    }
}

impl Drop for Anew {
    fn drop(&mut self) {
        lock(&self.stale.asked).remove(&self.target);
    }
}

/// An answer's body that may be copied while it passes.
#[derive(Debug)]
pub(crate) struct Recorded<B> {
    body: B,
    recording: Option<Box<Recording>>,
}

#[derive(Debug)]
struct Recording {
    question: Question,
    copy: Copy,
    bytes: BytesMut,
    room: Room,
}

/// Bytes of a copy that is being made, until this is dropped.
#[derive(Debug)]
struct Room {
    stale: Arc<Stale>,
    bytes: usize,
}

impl Room {
    /// So many in all, if there is room for them.
    fn is_enough_for(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        self.bytes += more;
        let before = self.stale.making.fetch_add(more, Relaxed);
        before.saturating_add(more) <= self.stale.config.memory / MAKING
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.stale.making.fetch_sub(self.bytes, Relaxed);
    }
}

impl Recording {
    fn done(mut self) {
        // Of its own, so that it keeps no larger buffer alive.
        self.copy.body = Bytes::copy_from_slice(&self.bytes);
        let length = self.copy.body.len();
        self.copy.headers.remove(TRANSFER_ENCODING);
        self.copy.headers.insert(CONTENT_LENGTH, length.into());
        let question = &self.question;
        let mut store = lock(&question.stale.store);
        if question.is_of_now() {
            question.stale.counts.kept.fetch_add(1, Relaxed);
            store.insert(&question.target, &question.headers, self.copy);
        }
    }
}

impl<B> Recorded<B> {
    pub(crate) const fn plain(body: B) -> Self {
        Self { body, recording: None }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Recorded<B> {
    #[cold]
    fn record(&mut self, frame: Option<&Result<Frame<Bytes>, B::Error>>) {
        let Some(mut recording) = self.recording.take() else { return };
        match frame {
            Some(Ok(frame)) => {
                // Trailers cannot be kept.
                let Some(data) = frame.data_ref() else { return };
                let max = recording.question.stale.config.copy_max;
                if recording.bytes.len() + data.len() > max {
                    return;
                }
                recording.bytes.extend_from_slice(data);
                if !recording.room.is_enough_for(recording.bytes.capacity()) {
                    return;
                }
                if self.body.is_end_stream() {
                    recording.done();
                } else {
                    self.recording = Some(recording);
                }
            }
            Some(Err(_)) => {}
            None => recording.done(),
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for Recorded<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let (Poll::Ready(frame), true) = (&polled, self.recording.is_some()) {
            self.record(frame.as_ref());
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests;
