//! The one map from a rejection to what goes over the wire.
//!
//! | case | gRPC | HTTP |
//! |---|---|---|
//! | may be retried elsewhere | `UNAVAILABLE` | 503 |
//! | don't retry | `RESOURCE_EXHAUSTED`, pushback -1, stop | 503, stop |
//! | retry after a time | `UNAVAILABLE`, pushback of that time | 503, `retry-after` |
//! | out of quota | `RESOURCE_EXHAUSTED`, pushback -1, stop, details | 429, `retry-after`, stop |
//! | deadline passed | `DEADLINE_EXCEEDED` | 504 |
//! | lame duck | `UNAVAILABLE` | 503, `connection: close` in HTTP/1 |
//!
//! where *stop* is `x-envoy-ratelimited: true`.
//!
//! Pushback is what stops gRPC clients (gRFC A6). Envoy does not look at it: what stops that is
//! `x-envoy-ratelimited`, in gRPC too; `x-envoy-overloaded` stops nobody. A lame duck also tells
//! Envoy to take it out (`x-envoy-immediate-health-check-fail`). Every answer has the code of its
//! reason and the number of the decision, so that whoever is refused can ask why; the grounds
//! themselves, and the customer's name, are told to peers that are trusted and to nobody else.
//!
//! An overloaded task spends itself on answers like these, so bodies and nearly all headers are
//! constants: an answer allocates for the table of headers and for the number of the decision, and
//! more only where a time or the grounds have to be written.

use crate::grpc::{Code, encode_message, quota_details};
use crate::headers::{
    GRPC_MESSAGE, GRPC_RETRY_PUSHBACK_MS, GRPC_STATUS, GRPC_STATUS_DETAILS_BIN,
    X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL, X_ENVOY_RATELIMITED, X_TIDEGATE_CAUSE,
    X_TIDEGATE_DECISION, X_TIDEGATE_REASON,
};
use crate::protocol::Protocol;
use bytes::Bytes;
use core::fmt;
use core::time::Duration;
use http::header::{CONNECTION, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use std::sync::OnceLock;
use tidegate_core::decision::{Advice, Cause, Reason, Rejection};

/// Who is out of quota is not told to wait longer than this. A limit can be raised at any moment,
/// and for one who is blocked the time would be for ever.
const QUOTA_WAIT_MAX: Duration = Duration::from_secs(3_600);

/// Room for all headers of any rejection, so that the table is allocated once.
const HEADERS: usize = 9;

/// The number of a decision, by which events and logs are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DecisionId(pub u64);

impl fmt::Display for DecisionId {
    /// Sixteen hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl DecisionId {
    /// As `x-tidegate-decision` has it. No two are the same, so tables of HTTP/2 are told not to
    /// keep it: their word for that is sensitive.
    pub fn value(self) -> HeaderValue {
        let mut text = [0; 16];
        for (n, digit) in text.iter_mut().enumerate() {
            *digit = b"0123456789abcdef"[(self.0 >> (60 - 4 * n) & 15) as usize];
        }
        let value = HeaderValue::from_bytes(&text);
        let mut value = value.unwrap_or_else(|_| HeaderValue::from_static("0"));
        value.set_sensitive(true);
        value
    }
}

/// What a rejection comes to: the rows of the table above.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Row {
    Elsewhere,
    Dont,
    Later(Duration),
    Quota(Duration),
    DeadlinePassed,
    LameDuck(Advice),
}

impl Row {
    fn of(rejection: &Rejection) -> Self {
        match (rejection.reason, rejection.advice) {
            (Reason::DeadlinePassed, _) => Self::DeadlinePassed,
            (Reason::LameDuck, advice) => Self::LameDuck(advice),
            (Reason::OutOfQuota, advice) => Self::Quota(match (advice, rejection.cause) {
                (Advice::RetryAfter(wait), _) => wait.min(QUOTA_WAIT_MAX),
                (_, Some(Cause::Quota { opens_in })) => opens_in.min(QUOTA_WAIT_MAX),
                _ => Duration::ZERO,
            }),
            (_, Advice::RetryElsewhere) => Self::Elsewhere,
            (_, Advice::DontRetry) => Self::Dont,
            (_, Advice::RetryAfter(wait)) => Self::Later(wait),
        }
    }

    const fn status(self) -> StatusCode {
        match self {
            Self::Quota(_) => StatusCode::TOO_MANY_REQUESTS,
            Self::DeadlinePassed => StatusCode::GATEWAY_TIMEOUT,
            Self::Elsewhere | Self::Dont | Self::Later(_) | Self::LameDuck(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    const fn code(self) -> Code {
        match self {
            Self::Dont | Self::Quota(_) => Code::ResourceExhausted,
            Self::DeadlinePassed => Code::DeadlineExceeded,
            Self::Elsewhere | Self::Later(_) | Self::LameDuck(_) => Code::Unavailable,
        }
    }

    const fn advice(self) -> Option<Advice> {
        match self {
            Self::Dont | Self::Quota(_) => Some(Advice::DontRetry),
            Self::Later(wait) => Some(Advice::RetryAfter(wait)),
            Self::Elsewhere => Some(Advice::RetryElsewhere),
            Self::LameDuck(advice) => Some(advice),
            Self::DeadlinePassed => None,
        }
    }

    /// How long to wait, if that is said.
    const fn wait(self) -> Option<Duration> {
        match self {
            Self::Quota(wait) | Self::Later(wait) | Self::LameDuck(Advice::RetryAfter(wait)) => {
                Some(wait)
            }
            _ => None,
        }
    }

    const fn message(self) -> &'static str {
        match self {
            Self::Elsewhere => "this task cannot take it; another may",
            Self::Dont => "overloaded; don't retry",
            Self::Later(_) => "overloaded; retry later",
            Self::Quota(_) => "out of quota",
            Self::DeadlinePassed => "the deadline has passed",
            Self::LameDuck(_) => "this task is shutting down",
        }
    }

    const fn body(self) -> &'static [u8] {
        match self {
            Self::Elsewhere => br#"{"title":"this task cannot take it; another may","status":503}"#,
            Self::Dont => br#"{"title":"overloaded; don't retry","status":503}"#,
            Self::Later(_) => br#"{"title":"overloaded; retry later","status":503}"#,
            Self::Quota(_) => br#"{"title":"out of quota","status":429}"#,
            Self::DeadlinePassed => br#"{"title":"the deadline has passed","status":504}"#,
            Self::LameDuck(_) => br#"{"title":"this task is shutting down","status":503}"#,
        }
    }
}

/// A rejection on its way out.
///
/// ```
/// use http::Version;
/// use tidegate_core::Criticality;
/// use tidegate_core::decision::{Advice, Reason, Rejection};
/// use tidegate_wire::protocol::Protocol;
/// use tidegate_wire::reject::{DecisionId, Reject};
///
/// let rejection = Rejection {
///     reason: Reason::Overloaded,
///     advice: Advice::DontRetry,
///     criticality: Criticality::Sheddable,
///     cause: None,
/// };
/// let reject = Reject::new(&rejection, DecisionId(17));
///
/// let http = reject.respond(Protocol::Http, Version::HTTP_11);
/// assert_eq!(http.status(), 503);
/// assert_eq!(http.headers()["x-envoy-ratelimited"], "true");
/// assert_eq!(http.headers()["x-tidegate-reason"], "overloaded");
/// assert_eq!(http.headers()["x-tidegate-decision"], "0000000000000011");
///
/// let grpc = reject.respond(Protocol::Grpc, Version::HTTP_2);
/// assert_eq!(grpc.status(), 200);
/// assert_eq!(grpc.headers()["grpc-status"], "8");
/// assert_eq!(grpc.headers()["grpc-retry-pushback-ms"], "-1");
/// assert!(grpc.body().is_empty());
/// ```
#[derive(Debug, Clone, Copy)]
#[must_use]
pub struct Reject<'a> {
    rejection: &'a Rejection,
    decision: DecisionId,
    trusted: bool,
    customer: Option<&'a str>,
}

impl<'a> Reject<'a> {
    /// For a peer of whom nothing is known: it is told the reason and what to do, no more.
    pub const fn new(rejection: &'a Rejection, decision: DecisionId) -> Self {
        Self { rejection, decision, trusted: false, customer: None }
    }

    /// For a peer that may know the grounds, and whose quota it is.
    pub const fn trusted(mut self, customer: Option<&'a str>) -> Self {
        self.trusted = true;
        self.customer = customer;
        self
    }

    /// The whole answer. In gRPC it is headers only: whoever sends it must end the stream with
    /// them.
    ///
    /// For the request path.
    pub fn respond(&self, protocol: Protocol, version: Version) -> Response<Bytes> {
        let row = Row::of(self.rejection);
        let (status, body) = match protocol {
            Protocol::Http => (row.status(), Bytes::from_static(row.body())),
            Protocol::Grpc => (StatusCode::OK, Bytes::new()),
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        *response.headers_mut() = match self.template(row, protocol) {
            Some(template) => self.filled(template, row),
            None => self.headers(row, protocol, version),
        };
        response
    }

    /// What is the same in all refusals of a kind that come in floods: put together once, as a copy
    /// of a table costs a third of what it takes to fill one.
    fn template(&self, row: Row, protocol: Protocol) -> Option<&'static HeaderMap> {
        static TEMPLATES: [[OnceLock<HeaderMap>; 4]; Reason::ALL.len()] =
            [const { [const { OnceLock::new() }; 4] }; Reason::ALL.len()];
        if self.trusted || protocol != Protocol::Http {
            return None;
        }
        let kind = match row {
            Row::Elsewhere => 0,
            Row::Dont => 1,
            Row::Later(_) => 2,
            Row::Quota(_) => 3,
            // These differ by version, or are few.
            Row::DeadlinePassed | Row::LameDuck(_) => return None,
        };
        let reason = Reason::ALL.iter().position(|known| *known == self.rejection.reason)?;
        let make = || self.headers(row, protocol, Version::HTTP_11);
        Some(TEMPLATES.get(reason)?.get(kind)?.get_or_init(make))
    }

    /// A copy with what is this refusal's own.
    fn filled(&self, template: &HeaderMap, row: Row) -> HeaderMap {
        let mut headers = template.clone();
        if let Some(value) = headers.get_mut(&X_TIDEGATE_DECISION) {
            *value = self.decision.value();
        }
        if let (Some(wait), Some(value)) = (row.wait(), headers.get_mut(RETRY_AFTER)) {
            *value = HeaderValue::from(whole_seconds(wait));
        }
        headers
    }

    fn headers(&self, row: Row, protocol: Protocol, version: Version) -> HeaderMap {
        let mut headers = HeaderMap::with_capacity(HEADERS);
        let reason = self.rejection.reason;
        headers.insert(&X_TIDEGATE_REASON, HeaderValue::from_static(reason.code()));
        headers.insert(&X_TIDEGATE_DECISION, self.decision.value());
        match protocol {
            Protocol::Http => http_headers(&mut headers, row, version),
            Protocol::Grpc => self.grpc_headers(&mut headers, row),
        }
        if matches!(row, Row::LameDuck(_)) {
            let yes = HeaderValue::from_static("true");
            headers.insert(&X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL, yes);
        }
        if let Some(cause) = self.rejection.cause.filter(|_| self.trusted) {
            headers.insert(&X_TIDEGATE_CAUSE, encode_message(&cause.to_string()));
        }
        headers
    }

    fn grpc_headers(&self, headers: &mut HeaderMap, row: Row) {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(&GRPC_STATUS, row.code().value());
        headers.insert(&GRPC_MESSAGE, HeaderValue::from_static(row.message()));
        match row.advice() {
            Some(Advice::DontRetry) => {
                headers.insert(&GRPC_RETRY_PUSHBACK_MS, HeaderValue::from_static("-1"));
                headers.insert(&X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
            }
            Some(Advice::RetryAfter(wait)) => {
                let pushback = HeaderValue::from(pushback_millis(wait));
                headers.insert(&GRPC_RETRY_PUSHBACK_MS, pushback);
            }
            Some(Advice::RetryElsewhere) | None => {}
        }
        if let Row::Quota(wait) = row {
            let details = quota_details(row.message(), wait, self.customer);
            headers.insert(&GRPC_STATUS_DETAILS_BIN, details);
        }
    }
}

fn http_headers(headers: &mut HeaderMap, row: Row, version: Version) {
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
    if row.advice() == Some(Advice::DontRetry) {
        headers.insert(&X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
    }
    if let Some(wait) = row.wait() {
        headers.insert(RETRY_AFTER, HeaderValue::from(whole_seconds(wait)));
    }
    // In HTTP/2 and 3 the header is forbidden; there the connection itself says it.
    if matches!(row, Row::LameDuck(_)) && version <= Version::HTTP_11 {
        headers.insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// Rounded up, as nobody should come too early, and at least one: zero would mean at once.
fn whole_seconds(wait: Duration) -> u64 {
    wait.as_secs().saturating_add(u64::from(wait.subsec_nanos() > 0)).max(1)
}

/// Rounded up, and as long as 32 bits with a sign can say. At least one: told to wait for none,
/// grpcio 1.85 waits until its deadline.
fn pushback_millis(wait: Duration) -> i32 {
    i32::try_from(wait.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX).max(1)
}

#[cfg(test)]
mod tests;
