//! Answers of the proxy's own, when there is none of the program.
//!
//! | what happened | HTTP | gRPC | may it be tried elsewhere |
//! |---|---|---|---|
//! | nobody answers at the program's place | 502 | `UNAVAILABLE` | yes: it did not begin |
//! | the program hung up before it answered | 502 | `UNKNOWN` | nobody knows what it has done |
//! | the caller's deadline, or our own limit, has passed | 504 | `DEADLINE_EXCEEDED` | nobody waits |
//! | the request cannot be handed on | 400, 405 | `INTERNAL` | no |
//! | there is no endpoint to send it to | 503 | `UNAVAILABLE` | yes: it did not begin |

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::{Response, StatusCode};
use tidegate_wire::grpc::Code;
use tidegate_wire::headers::{GRPC_MESSAGE, GRPC_STATUS, X_TIDEGATE_REASON};
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
}

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
                "upstream_broken",
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
        }
    }

    pub(crate) fn respond(self, protocol: Protocol) -> Response<Bytes> {
        let (status, code, reason, words) = self.words();
        let mut response = Response::new(Bytes::new());
        let headers = response.headers_mut();
        headers.insert(&X_TIDEGATE_REASON, HeaderValue::from_static(reason));
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
