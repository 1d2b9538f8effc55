//! Whether endpoints serve, asked rather than found out by calls that fail.
//!
//! Each endpoint is asked in an interval of its own, over the same kind of connection as calls. So
//! many bad answers in a row take it out, so many good ones take it back in; what is between
//! changes nothing, as one lost answer is chance. An endpoint that is out gets no calls; if all are
//! out they get them all the same, since checks that fail everywhere say more about the checks.
//!
//! **When it is wrong.** A check that is answered by something other than what serves calls tells
//! of that. Checks begin with the first call, and each proxy makes its own: a thousand clients with
//! an interval of 5 s ask each endpoint two hundred times a second. Subsets keep that down.

use super::asking;
use super::at::{At, Content, Sent};
use super::config::Voice;
use super::probe::Addressed;
use crate::pool::Protocol;
use bytes::{BufMut, Bytes, BytesMut};
use core::num::NonZeroU32;
use core::time::Duration;
use futures_util::future::BoxFuture;
use http::header::{CONTENT_TYPE, TE};
use http::uri::PathAndQuery;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use tidegate::client::{Endpoint, Replay, Reporter, Reports};
use tidegate_wire::headers::{GRPC_STATUS, X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL};
use tower_service::Service;

/// More than this nobody needs to say how they are; the connection is closed on those who do.
const ANSWER_MAX: usize = 64 * 1_024;

/// How to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Check {
    /// A path; 2xx is good.
    Http(PathAndQuery),
    /// `grpc.health.v1`, for the service of this name; empty for the whole server.
    Grpc(String),
    /// A datagram, to the port that the endpoint serves at or to another.
    Udp(Option<u16>),
}

/// How health is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthConfig {
    /// How to ask.
    pub check: Check,
    /// How long from an answer to the next question: 5 s, as most balancers do.
    pub interval: Duration,
    /// How long an answer may take: 1 s. Longer is bad.
    pub timeout: Duration,
    /// Bad answers in a row that take an endpoint out: 2.
    pub fall: NonZeroU32,
    /// Good answers in a row that take it back in: 2.
    pub rise: NonZeroU32,
}

impl HealthConfig {
    /// By this check.
    pub const fn new(check: Check) -> Self {
        const TWO: NonZeroU32 = NonZeroU32::MIN.saturating_add(1);
        let (interval, timeout) = (Duration::from_secs(5), Duration::from_secs(1));
        Self { check, interval, timeout, fall: TWO, rise: TWO }
    }
}

/// What answers so far come to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    well: bool,
    /// Answers in a row that say otherwise.
    against: u32,
}

impl Standing {
    /// Nobody is taken out before they were asked.
    pub(super) const fn new() -> Self {
        Self { well: true, against: 0 }
    }

    /// Takes in an answer; whether it serves, if that has changed.
    pub(super) fn on_answer(&mut self, good: bool, config: &HealthConfig) -> Option<bool> {
        if good == self.well {
            self.against = 0;
            return None;
        }
        self.against += 1;
        let enough = if self.well { config.fall } else { config.rise };
        if self.against < enough.get() {
            return None;
        }
        *self = Self { well: good, against: 0 };
        Some(good)
    }

    /// Whether it is well, and the last answer said so.
    pub(super) const fn is_settled(self) -> bool {
        self.well && self.against == 0
    }
}

/// Asks the endpoints of a service.
#[derive(Debug)]
pub(super) struct Checker {
    pub(super) config: HealthConfig,
    pub(super) protocol: Protocol,
    pub(super) about: String,
    pub(super) voice: Voice,
}

impl Reporter<At> for Checker {
    fn watch(&self, endpoint: &Endpoint, at: At, reports: Reports) -> BoxFuture<'static, ()> {
        let http2 = matches!(
            (&self.config.check, self.protocol),
            (Check::Grpc(_), _) | (_, Protocol::Http2)
        );
        let mut addressed = Addressed::new(at, endpoint, http2);
        let (config, voice) = (self.config.clone(), self.voice.clone());
        let about = format!("{}: {endpoint}", self.about);
        if let Check::Udp(port) = config.check {
            return Box::pin(asking::watch(endpoint.clone(), port, config, about, voice, reports));
        }
        Box::pin(async move {
            let mut standing = Standing::new();
            loop {
                let asked = ask(&mut addressed, &config.check);
                let good = tokio::time::timeout(config.timeout, asked).await == Ok(true);
                if let Some(serves) = standing.on_answer(good, &config) {
                    reports.serves(serves);
                    let words = if serves { "is well again" } else { "fails its health checks" };
                    voice.say(&format!("{about} {words}"));
                }
                tokio::time::sleep(config.interval).await;
            }
        })
    }
}

/// Whether it says that it is well.
async fn ask(addressed: &mut Addressed, check: &Check) -> bool {
    let Ok(response) = addressed.call(question(check)).await else { return false };
    let (head, body) = response.into_parts();
    // Read to its end, so that the connection can be used again.
    let Ok(body) = Limited::new(body, ANSWER_MAX).collect().await else { return false };
    if head.headers.contains_key(&X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL) {
        return false;
    }
    match check {
        Check::Http(_) | Check::Udp(_) => head.status.is_success(),
        Check::Grpc(_) => {
            let none = HeaderMap::new();
            let trailers = body.trailers().unwrap_or(&none);
            let status = trailers.get(&GRPC_STATUS).or_else(|| head.headers.get(&GRPC_STATUS));
            let ok = head.status == StatusCode::OK && status.is_some_and(|status| status == "0");
            ok && is_serving(&body.to_bytes())
        }
    }
}

fn question(check: &Check) -> Request<Sent> {
    match check {
        Check::Http(path) => {
            let mut request = Request::new(Sent::default());
            *request.uri_mut() = Uri::from(path.clone());
            request
        }
        // Those are asked otherwise.
        Check::Udp(_) => Request::new(Sent::default()),
        Check::Grpc(service) => {
            let mut request = Request::new(Replay::new(Content::Ours(Some(message(service)))));
            *request.method_mut() = Method::POST;
            *request.uri_mut() = Uri::from_static("/grpc.health.v1.Health/Check");
            let headers = request.headers_mut();
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(TE, HeaderValue::from_static("trailers"));
            request
        }
    }
}

/// `HealthCheckRequest{string service=1}` behind its prefix: not compressed, so many bytes.
fn message(service: &str) -> Bytes {
    let mut request = BytesMut::new();
    if !service.is_empty() {
        request.put_u8(1 << 3 | 2);
        let mut length = service.len();
        while length >= 0x80 {
            request.put_u8(length as u8 | 0x80);
            length >>= 7;
        }
        request.put_u8(length as u8);
        request.put_slice(service.as_bytes());
    }
    let mut message = BytesMut::with_capacity(5 + request.len());
    message.put_u8(0);
    message.put_u32(request.len() as u32);
    message.put_slice(&request);
    message.freeze()
}

/// Whether it is a `HealthCheckResponse{ServingStatus status=1}` that says `SERVING = 1`.
fn is_serving(answer: &[u8]) -> bool {
    answer.get(5..).is_some_and(|message| message.starts_with(&[1 << 3, 1]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_in_a_row() {
        let mut config = HealthConfig::new(Check::Grpc(String::new()));
        config.rise = NonZeroU32::new(3).unwrap();
        let mut standing = Standing::new();
        let mut say = |good| standing.on_answer(good, &config);
        for (good, news) in [
            (true, None),
            (false, None),
            (true, None),
            (false, None),
            (false, Some(false)),
            (false, None),
            (true, None),
            (true, None),
            (false, None),
            (true, None),
            (true, None),
            (true, Some(true)),
            (false, None),
        ] {
            assert_eq!(say(good), news);
        }
    }

    #[test]
    fn messages_of_grpc() {
        assert_eq!(&message("")[..], b"\0\0\0\0\0");
        assert_eq!(&message("ab")[..], b"\0\0\0\0\x04\x0a\x02ab");
        let long = message(&"x".repeat(300));
        assert_eq!(&long[..8], b"\0\0\0\x01\x2f\x0a\xac\x02");
        assert!(is_serving(b"\0\0\0\0\x02\x08\x01"));
        for other in [&b""[..], b"\0\0\0\0\0", b"\0\0\0\0\x02\x08\x02"] {
            assert!(!is_serving(other));
        }
    }
}
