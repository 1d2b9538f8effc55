//! Whether a request is gRPC.
//!
//! The two speak differently about the same things: a gRPC client ignores a 503 and looks for
//! `grpc-status`, an HTTP client knows nothing of trailers. What tells them apart is the content
//! type. It is the sender's word, and harmless: who lies gets an answer it cannot read.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// How the peer wants to be spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Protocol {
    /// HTTP, of any version.
    #[default]
    Http,
    /// gRPC, and gRPC for browsers, which understands an answer without a body alike.
    Grpc,
}

const GRPC: &[u8] = b"application/grpc";

impl Protocol {
    /// By the content type in `headers`: `application/grpc`, whatever follows.
    ///
    /// For the request path; costs one look-up.
    pub fn of(headers: &HeaderMap) -> Self {
        headers
            .get(CONTENT_TYPE)
            .map_or(Self::Http, |value| Self::of_content_type(value.as_bytes()))
    }

    /// By the value of a content type. Media types have no case.
    pub fn of_content_type(value: &[u8]) -> Self {
        let grpc = value.split_at_checked(GRPC.len()).is_some_and(|(start, rest)| {
            let ends = matches!(rest.first(), None | Some(b'+' | b';' | b'-' | b' ' | b'\t'));
            ends && start.eq_ignore_ascii_case(GRPC)
        });
        if grpc { Self::Grpc } else { Self::Http }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    #[test]
    fn grpc_is_told_by_its_content_type() {
        let mut headers = HeaderMap::new();
        assert_eq!(Protocol::of(&headers), Protocol::Http);
        for (value, protocol) in [
            ("application/grpc", Protocol::Grpc),
            ("application/grpc+proto", Protocol::Grpc),
            ("Application/gRPC; charset=utf-8", Protocol::Grpc),
            ("application/grpc-web+proto", Protocol::Grpc),
            ("application/grpcish", Protocol::Http),
            ("application/grp", Protocol::Http),
            ("application/json", Protocol::Http),
            ("", Protocol::Http),
        ] {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(value));
            assert_eq!(Protocol::of(&headers), protocol, "{value:?}");
        }
    }
}
