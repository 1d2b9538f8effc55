//! Answers of the proxy's own, when there is none of the program.
//!
//! | what happened | HTTP | gRPC | may it be tried elsewhere |
//! |---|---|---|---|
//! | nobody answers at the program's place | 502 | `UNAVAILABLE` | yes: it did not begin |
//! | the program hung up before it answered | 502 | `UNKNOWN` | nobody knows what it has done |
//! | the caller's deadline, or our own limit, has passed | 504 | `DEADLINE_EXCEEDED` | nobody waits |
//! | the request cannot be handed on | 400, 405 | `INTERNAL` | no |
//! | there is no endpoint to send it to | 503 | `UNAVAILABLE` | yes: it did not begin |
//! | a stranger asks too much | 429 | `RESOURCE_EXHAUSTED` | after a second |
//! | a stranger's body is too long | 413 | `RESOURCE_EXHAUSTED` | no |
//! | it comes too slowly | 408 | `CANCELLED` | no |

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use tidegate_wire::grpc::Code;
use tidegate_wire::headers::{
    GRPC_MESSAGE, GRPC_RETRY_PUSHBACK_MS, GRPC_STATUS, X_TIDEGATE_REASON,
};
use tidegate_wire::protocol::Protocol;

/// Why the proxy answers itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    Unreachable,
    Broken,
    TooLate,
    BadRequest,
    NoTunnels,
    NoEndpoint,
    TooMany,
    TooFast,
    TooLong,
    TooSlow,
}

/// The reason of [`Refusal::Broken`], by which it is known again.
pub(crate) const BROKEN: &str = "upstream_broken";

impl Refusal {
    const fn words(self) -> (StatusCode, Code, &'static str, &'static str) {
        match self {
            Self::Unreachable => (
                StatusCode::BAD_GATEWAY,
                Code::Unavailable,
                "upstream_unreachable",
                "nobody answers behind the proxy",
            ),
            Self::Broken => (
                StatusCode::BAD_GATEWAY,
                Code::Unknown,
                BROKEN,
                "the program behind the proxy hung up without an answer",
            ),
            Self::TooLate => (
                StatusCode::GATEWAY_TIMEOUT,
                Code::DeadlineExceeded,
                "upstream_timeout",
                "the program behind the proxy did not answer in time",
            ),
            Self::BadRequest => (
                StatusCode::BAD_REQUEST,
                Code::Internal,
                "bad_request",
                "the request has to name one host",
            ),
            Self::NoTunnels => (
                StatusCode::METHOD_NOT_ALLOWED,
                Code::Internal,
                "no_tunnels",
                "CONNECT is not for this proxy",
            ),
            Self::NoEndpoint => (
                StatusCode::SERVICE_UNAVAILABLE,
                Code::Unavailable,
                "no_endpoint",
                "there is no endpoint to send to",
            ),
            Self::TooMany => (
                StatusCode::TOO_MANY_REQUESTS,
                Code::ResourceExhausted,
                "client_limit",
                "too many requests from this address",
            ),
            Self::TooFast => (
                StatusCode::TOO_MANY_REQUESTS,
                Code::ResourceExhausted,
                "connection_limit",
                "too many requests on this connection",
            ),
            Self::TooLong => (
                StatusCode::PAYLOAD_TOO_LARGE,
                Code::ResourceExhausted,
                "body_too_long",
                "the body is longer than it may be",
            ),
            Self::TooSlow => (
                StatusCode::REQUEST_TIMEOUT,
                Code::Cancelled,
                "body_too_slow",
                "the body comes more slowly than it may",
            ),
        }
    }

    pub(crate) fn respond(self, protocol: Protocol) -> Response<Bytes> {
        let (status, code, reason, words) = self.words();
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(&X_TIDEGATE_REASON, HeaderValue::from_static(reason));
        if status == StatusCode::TOO_MANY_REQUESTS {
            // In a second there is room for as many again.
            let (name, wait) = match protocol {
                Protocol::Grpc => (GRPC_RETRY_PUSHBACK_MS.clone(), "1000"),
                Protocol::Http => (RETRY_AFTER, "1"),
            };
            headers.insert(name, HeaderValue::from_static(wait));
        }
        if protocol == Protocol::Grpc {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
            headers.insert(&GRPC_STATUS, code.value());
            headers.insert(&GRPC_MESSAGE, HeaderValue::from_static(words));
            return response;
        }
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        *response.status_mut() = status;
        let body =
            format!(r#"{{"title":"{words}","status":{},"reason":"{reason}"}}"#, status.as_u16());
        *response.body_mut() = body.into();
        response
    }
}
