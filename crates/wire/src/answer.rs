//! What an answer means, whoever gave it.
//!
//! The server at the other end may be ours, an Envoy, or anything. So what counts is what all of
//! them say: the status, `retry-after`, gRPC's pushback, `x-envoy-ratelimited`. In HTTP:
//!
//! | status | outcome |
//! |---|---|
//! | 503, 429 with `x-envoy-ratelimited` | refused: don't retry |
//! | 503, 429 with `retry-after` | refused: retry after exactly that |
//! | 503 | refused: retry elsewhere |
//! | 429 | refused: don't retry, as another task would count the same quota |
//! | 504 | no answer |
//! | other 5xx | failed |
//! | the rest | served: an error that the request is to blame for is an answer too |
//!
//! In gRPC, by `grpc-status`; where there is none because a proxy answered, by the above:
//!
//! | status | outcome |
//! |---|---|
//! | `UNAVAILABLE`, `RESOURCE_EXHAUSTED` with pushback | refused: retry after exactly that; negative or no number: don't |
//! | `UNAVAILABLE` | refused: retry elsewhere |
//! | `RESOURCE_EXHAUSTED` | refused: don't retry |
//! | `DEADLINE_EXCEEDED` | no answer |
//! | `CANCELLED` | abandoned |
//! | `UNKNOWN`, `INTERNAL`, `DATA_LOSS`, none at all | failed |
//! | the rest | served |
//!
//! A pushback on any other failure is advice as well, though the attempt was no refusal. Advice
//! that cannot be understood is [`Fault::BadAdvice`]: for pushback gRPC has it mean "don't", a
//! `retry-after` counts as absent.

use crate::faults::{Fault, Faults};
use crate::grpc::Code;
use crate::headers::{
    GRPC_RETRY_PUSHBACK_MS, GRPC_STATUS, X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL, X_ENVOY_RATELIMITED,
    X_TIDEGATE_REASON,
};
use crate::protocol::Protocol;
use crate::text::{number, trim};
use core::time::Duration;
use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use std::time::SystemTime;
use tidegate_core::Outcome;
use tidegate_core::decision::{Advice, Reason};

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Answer {
    /// How the attempt ended.
    pub outcome: Outcome,
    /// What the server says about trying again; none if it says nothing. A refusal always has it.
    pub advice: Option<Advice>,
    /// Whether the task is on its way out and wants no more requests.
    pub lame_duck: bool,
    /// Why a tidegate at the other end refused.
    pub reason: Option<Reason>,
    /// What made no sense.
    pub faults: Faults,
}

/// Whether the headers of a response tell how it ended. A gRPC call that went well so far tells
/// only in its trailers.
pub fn is_final(status: StatusCode, headers: &HeaderMap, protocol: Protocol) -> bool {
    protocol == Protocol::Http || status != StatusCode::OK || headers.contains_key(&GRPC_STATUS)
}

/// Reads an answer: its status, headers, and in gRPC its trailers once they are there.
///
/// `protocol` is that of the request. `now` is asked only for a `retry-after` that is a date. For
/// the request path; a success costs two or three look-ups.
///
/// ```
/// use http::{HeaderMap, StatusCode};
/// use std::time::{Duration, SystemTime};
/// use tidegate_core::Outcome;
/// use tidegate_core::decision::Advice;
/// use tidegate_wire::answer;
/// use tidegate_wire::protocol::Protocol;
///
/// let mut headers = HeaderMap::new();
/// headers.insert("retry-after", "2".parse()?);
/// let status = StatusCode::SERVICE_UNAVAILABLE;
/// let answer = answer::read(status, &headers, None, Protocol::Http, SystemTime::now);
/// let advice = Advice::RetryAfter(Duration::from_secs(2));
/// assert_eq!(answer.outcome, Outcome::Refused(advice));
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
pub fn read(
    status: StatusCode,
    headers: &HeaderMap,
    trailers: Option<&HeaderMap>,
    protocol: Protocol,
    now: impl FnOnce() -> SystemTime,
) -> Answer {
    let parts = Parts { headers, trailers };
    let mut faults = Faults::NONE;
    let (outcome, advice) = parts.outcome(status, protocol, now, &mut faults);
    let reason = match outcome {
        Outcome::Served => None,
        _ => parts.get(&X_TIDEGATE_REASON).and_then(parse_reason),
    };
    let lame_duck = reason == Some(Reason::LameDuck)
        || parts.get(&X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL).is_some();
    Answer { outcome, advice, lame_duck, reason, faults }
}

/// Whether an answer of ours with these headers, or trailers, is a failure: as
/// [`Outcome::is_failure`] of what [`read`] finds.
///
/// For the request path; costs a look-up in gRPC, and none in HTTP if it went well.
pub fn is_failure(status: StatusCode, headers: &HeaderMap, protocol: Protocol) -> bool {
    if protocol == Protocol::Http && !(status.is_server_error() || status.is_client_error()) {
        return false;
    }
    let parts = Parts { headers, trailers: None };
    // Without a date, as what it says about trying again does not matter.
    let epoch = || SystemTime::UNIX_EPOCH;
    let (outcome, _) = parts.outcome(status, protocol, epoch, &mut { Faults::NONE });
    outcome.is_failure() == Some(true)
}

/// Headers, and trailers where there are any.
struct Parts<'a> {
    headers: &'a HeaderMap,
    trailers: Option<&'a HeaderMap>,
}

impl<'a> Parts<'a> {
    /// Trailers first: they were written last.
    fn get(&self, name: &HeaderName) -> Option<&'a HeaderValue> {
        self.trailers.and_then(|trailers| trailers.get(name)).or_else(|| self.headers.get(name))
    }

    fn outcome(
        &self,
        status: StatusCode,
        protocol: Protocol,
        now: impl FnOnce() -> SystemTime,
        faults: &mut Faults,
    ) -> (Outcome, Option<Advice>) {
        let code = match protocol {
            Protocol::Http => None,
            Protocol::Grpc => self.get(&GRPC_STATUS).map(|value| Code::parse(value.as_bytes())),
        };
        match (protocol, code) {
            (_, Some(code)) => of_grpc(code, self, faults),
            // A stream that ended without a status was cut off.
            (Protocol::Grpc, None) if status == StatusCode::OK => (Outcome::Failed, None),
            (_, None) => of_http(status, self.headers, now, faults),
        }
    }
}

fn of_grpc(code: Code, parts: &Parts<'_>, faults: &mut Faults) -> (Outcome, Option<Advice>) {
    if code == Code::Ok {
        return (Outcome::Served, None);
    }
    let pushback = parts.get(&GRPC_RETRY_PUSHBACK_MS).map(|value| {
        let advice = parse_pushback(value.as_bytes());
        faults.add_if(advice.is_none(), Fault::BadAdvice);
        advice.unwrap_or(Advice::DontRetry)
    });
    let refused = |default| {
        let advice = pushback.unwrap_or(default);
        (Outcome::Refused(advice), Some(advice))
    };
    match code {
        Code::Unavailable => refused(Advice::RetryElsewhere),
        Code::ResourceExhausted => refused(Advice::DontRetry),
        Code::DeadlineExceeded => (Outcome::NoAnswer, pushback),
        Code::Cancelled => (Outcome::Abandoned, pushback),
        Code::Unknown | Code::Internal | Code::DataLoss => (Outcome::Failed, pushback),
        _ => (Outcome::Served, pushback),
    }
}

fn of_http(
    status: StatusCode,
    headers: &HeaderMap,
    now: impl FnOnce() -> SystemTime,
    faults: &mut Faults,
) -> (Outcome, Option<Advice>) {
    let default = match status {
        StatusCode::SERVICE_UNAVAILABLE => Advice::RetryElsewhere,
        StatusCode::TOO_MANY_REQUESTS => Advice::DontRetry,
        StatusCode::GATEWAY_TIMEOUT => return (Outcome::NoAnswer, None),
        _ if status.is_server_error() => return (Outcome::Failed, None),
        _ => return (Outcome::Served, None),
    };
    let stop = headers
        .get(&X_ENVOY_RATELIMITED)
        .is_some_and(|value| trim(value.as_bytes()).eq_ignore_ascii_case(b"true"));
    let advice = match headers.get(RETRY_AFTER) {
        _ if stop => Advice::DontRetry,
        None => default,
        Some(value) => {
            let wait = parse_retry_after(value.as_bytes(), now);
            faults.add_if(wait.is_none(), Fault::BadAdvice);
            wait.map_or(default, Advice::RetryAfter)
        }
    };
    (Outcome::Refused(advice), Some(advice))
}

/// Reads a `grpc-retry-pushback-ms`, a signed number of 32 bits. Nothing if it is none, which gRPC
/// has mean "don't".
pub fn parse_pushback(value: &[u8]) -> Option<Advice> {
    let text = core::str::from_utf8(trim(value)).ok()?;
    let millis: i32 = text.parse().ok()?;
    Some(match u64::try_from(millis) {
        Ok(millis) => Advice::RetryAfter(Duration::from_millis(millis)),
        Err(_) => Advice::DontRetry,
    })
}

/// Reads a `retry-after`: seconds, or a date, for which `now` is asked. A date that has passed
/// means at once.
pub fn parse_retry_after(value: &[u8], now: impl FnOnce() -> SystemTime) -> Option<Duration> {
    let value = trim(value);
    if let Some(secs) = number(value) {
        return Some(Duration::from_secs(secs));
    }
    let date = crate::date::parse(value)?;
    Some(date.duration_since(now()).unwrap_or_default())
}

fn parse_reason(value: &HeaderValue) -> Option<Reason> {
    Reason::ALL.into_iter().find(|reason| reason.code().as_bytes() == value.as_bytes())
}

#[cfg(test)]
mod tests;
