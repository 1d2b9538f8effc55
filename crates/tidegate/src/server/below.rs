//! An overload answer from below.
//!
//! Only the layer right above a rejection retries. A handler whose dependency has said "overloaded;
//! don't retry" and that fails for it must say the same to its own caller, or each layer of a deep
//! stack tries three times. Handlers do not think of this: they answer 500, 502 or 503, or pass the
//! status on. So if a call below was refused that way (see [`context`](crate::context)) and the
//! answer is a failure, it becomes
//!
//! ```text
//! HTTP:  503 + x-envoy-ratelimited: true
//! gRPC:  RESOURCE_EXHAUSTED + grpc-retry-pushback-ms: -1 + x-envoy-ratelimited: true
//! ```
//!
//! with the handler's own body and message. An answer that is none (a degraded one, an error that
//! the request is to blame for) stands as it is.

use http::header::RETRY_AFTER;
use http::{HeaderMap, HeaderValue, StatusCode};
use tidegate_core::decision::Reason;
use tidegate_wire::grpc::Code;
use tidegate_wire::headers::{
    GRPC_RETRY_PUSHBACK_MS, GRPC_STATUS, GRPC_STATUS_DETAILS_BIN, X_ENVOY_RATELIMITED,
    X_TIDEGATE_REASON,
};
use tidegate_wire::protocol::Protocol;

/// Turns a failure into "overloaded; don't retry" and says with which status to answer; nothing if
/// it is no failure. `headers` are those of the answer, or its trailers.
pub(super) fn turn(
    status: StatusCode,
    headers: &mut HeaderMap,
    protocol: Protocol,
) -> Option<StatusCode> {
    let code = match protocol {
        Protocol::Http => None,
        Protocol::Grpc => headers.get(&GRPC_STATUS).map(|value| Code::parse(value.as_bytes())),
    };
    let status = match code {
        Some(code) if is_failure(code) => {
            headers.insert(&GRPC_STATUS, Code::ResourceExhausted.value());
            headers.insert(&GRPC_RETRY_PUSHBACK_MS, HeaderValue::from_static("-1"));
            headers.insert(&X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
            // They tell of another status.
            headers.remove(&GRPC_STATUS_DETAILS_BIN);
            status
        }
        None if status.is_server_error() => {
            headers.insert(&X_ENVOY_RATELIMITED, HeaderValue::from_static("true"));
            headers.remove(RETRY_AFTER);
            StatusCode::SERVICE_UNAVAILABLE
        }
        _ => return None,
    };
    let reason = HeaderValue::from_static(Reason::Overloaded.code());
    headers.insert(&X_TIDEGATE_REASON, reason);
    Some(status)
}

/// What handlers make of a dependency's failure.
const fn is_failure(code: Code) -> bool {
    matches!(code, Code::Unavailable | Code::ResourceExhausted | Code::Internal | Code::Unknown)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn failures_over_http_become_dont_retry() {
        for status in [500, 502, 503, 504] {
            let mut headers = HeaderMap::new();
            headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            let status = StatusCode::from_u16(status).unwrap();
            let turned = turn(status, &mut headers, Protocol::Http);
            assert_eq!(turned, Some(StatusCode::SERVICE_UNAVAILABLE));
            assert_eq!(headers["x-envoy-ratelimited"], "true");
            assert_eq!(headers["x-tidegate-reason"], "overloaded");
            assert!(!headers.contains_key(RETRY_AFTER));
        }
        for status in [200, 204, 302, 404, 429] {
            let mut headers = HeaderMap::new();
            let status = StatusCode::from_u16(status).unwrap();
            assert_eq!(turn(status, &mut headers, Protocol::Http), None);
            assert!(headers.is_empty());
        }
    }

    #[test]
    fn failures_over_grpc_become_dont_retry() {
        for (code, turns) in [
            (Code::Ok, false),
            (Code::Unavailable, true),
            (Code::ResourceExhausted, true),
            (Code::Internal, true),
            (Code::Unknown, true),
            (Code::NotFound, false),
            (Code::DeadlineExceeded, false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(&GRPC_STATUS, code.value());
            let turned = turn(StatusCode::OK, &mut headers, Protocol::Grpc);
            assert_eq!(turned, turns.then_some(StatusCode::OK), "{code:?}");
            assert_eq!(headers.contains_key("grpc-retry-pushback-ms"), turns, "{code:?}");
            assert_eq!(headers.contains_key("x-envoy-ratelimited"), turns, "{code:?}");
            assert_eq!(headers["grpc-status"] == "8", turns, "{code:?}");
        }
    }
}
