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
use core::task::{Context, Poll};
use core::time::Duration;
use http::header::{
    AGE, CONTENT_LENGTH, CONTENT_LOCATION, ETAG, HOST, HeaderValue, IF_NONE_MATCH, LOCATION,
    TRANSFER_ENCODING,
};
use http::uri::Authority;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri};
use http_body::{Body, Frame, SizeHint};
use policy::{Freshness, Occasion, Verdict, is_unsafe, may_have_copy, may_keep, selected};
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use store::{Copy, Store};
use tidegate_core::decision::Reason;
use tidegate_wire::headers::{
    ENDPOINT_LOAD_METRICS, ENDPOINT_LOAD_METRICS_BIN, X_TIDEGATE_DEGRADED, X_TIDEGATE_REASON,
};

/// How copies are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct StaleConfig {
    /// Bytes that all copies may take together.
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

/// The copies of a proxy.
#[derive(Debug)]
pub(crate) struct Stale {
    config: StaleConfig,
    store: Mutex<Store>,
    /// Targets that somebody asks for anew.
    asked: Mutex<HashSet<String>>,
}

/// A request that may be answered with a copy, or whose answer may become one.
#[derive(Debug, Clone)]
pub(crate) struct Question {
    stale: Arc<Stale>,
    method: Method,
    target: String,
    headers: HeaderMap,
    asked: SystemTime,
    /// Whether it has no body.
    plain: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What is in it is right whoever has panicked, as nothing here does.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Stale {
    pub(crate) fn new(config: StaleConfig) -> Arc<Self> {
        let store = Mutex::new(Store::new(config.memory));
        Arc::new(Self { config, store, asked: Mutex::default() })
    }

    /// What has to be remembered of a request, before it is handed on.
    pub(crate) fn question<B: Body>(self: &Arc<Self>, request: &Request<B>) -> Option<Question> {
        let target = target(request.uri(), request.headers())?;
        Some(Question {
            stale: Arc::clone(self),
            method: request.method().clone(),
            target,
            headers: request.headers().clone(),
            asked: SystemTime::now(),
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
        (reason == overloaded)
            .then(|| self.copy(Occasion::Failed, overloaded))?
            .map(|(copy, _)| copy)
    }

    /// An answer that spares the program, and whether this request is to ask it nevertheless, so
    /// that there is a newer one.
    pub(crate) fn spared(&self) -> Option<(Response<Bytes>, Option<Anew>)> {
        let (answer, verdict) = self.copy(Occasion::Busy, Reason::Overloaded.code())?;
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
        let now = SystemTime::now();
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
                Some((copy, _)) => copy.map(|body| Recorded::plain(ours(body))),
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
        let freshness =
            Freshness::of(&head.headers, self.asked, SystemTime::now(), config.if_error);
        if head.status == StatusCode::NOT_MODIFIED {
            let mut store = lock(&self.stale.store);
            let times = (self.asked, SystemTime::now(), config.if_error);
            store.refresh(&self.target, &self.headers, &head.headers, times);
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
            question: self,
        };
        if body.is_end_stream() {
            recording.done();
            return Response::from_parts(head, Recorded::plain(body));
        }
        let body = Recorded { body, recording: Some(Box::new(recording)) };
        Response::from_parts(head, body)
    }

    /// What it has changed is not what there are copies of (RFC 9111, section 4.4).
    fn invalidate<B>(&self, answer: &Response<B>) {
        if !(answer.status().is_success() || answer.status().is_redirection()) {
            return;
        }
        let mut store = lock(&self.stale.store);
        store.invalidate(&self.target);
        let host = self.target.split('\n').next().unwrap_or_default();
        for name in [LOCATION, CONTENT_LOCATION] {
            let named = answer.headers().get(name).and_then(|value| value.to_str().ok());
            let Some(uri) = named.and_then(|text| text.parse::<Uri>().ok()) else { continue };
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            // Of other hosts it knows nothing.
            if uri.authority().is_none_or(|named| named.as_str().eq_ignore_ascii_case(host)) {
                store.invalidate(&format!("{host}\n{path}"));
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
}

impl Recording {
    fn done(mut self) {
        // Of its own, so that it keeps no larger buffer alive.
        self.copy.body = Bytes::copy_from_slice(&self.bytes);
        let length = self.copy.body.len();
        self.copy.headers.remove(TRANSFER_ENCODING);
        self.copy.headers.insert(CONTENT_LENGTH, length.into());
        let Question { stale, target, headers, .. } = self.question;
        lock(&stale.store).insert(&target, &headers, self.copy);
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
