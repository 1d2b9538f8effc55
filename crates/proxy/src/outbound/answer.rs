//! What the program gets: the backend's answer, or why there is none.
//!
//! | what happened | HTTP | gRPC | may the program try again |
//! |---|---|---|---|
//! | throttled here, never sent | 503 | `UNAVAILABLE` | no: it would be held back as well |
//! | no datacenter has room | 503 | `RESOURCE_EXHAUSTED` | no |
//! | its deadline has passed, or our own limit | 504 | `DEADLINE_EXCEEDED` | nobody waits |
//! | the rest | see [`refuse`](crate::refuse) | | |

use crate::pool::{Failure, Unfinished};
use crate::refuse::Refusal;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::{Response, Version};
use http_body::{Body, Frame, SizeHint};
use std::error::Error;
use tidegate::client::{BoxError, NoEndpoint, Throttled, TimedOut};
use tidegate_core::decision::Reason;
use tidegate_wire::grpc::Code;
use tidegate_wire::headers::GRPC_STATUS;
use tidegate_wire::protocol::Protocol;

/// The answer to a call that ended in `error`.
pub(crate) fn refused(error: &BoxError, protocol: Protocol, version: Version) -> Response<Bytes> {
    let error: &(dyn Error + 'static) = &**error;
    if let Some(throttled) = Throttled::find(error) {
        let mut response = throttled.respond(protocol, version);
        // The backend is not exhausted: we guess that it would refuse. Pushback says not to retry.
        if throttled.reason() == Reason::Throttled && protocol == Protocol::Grpc {
            response.headers_mut().insert(&GRPC_STATUS, Code::Unavailable.value());
        }
        return response;
    }
    let refusal = if TimedOut::find(error).is_some() {
        Refusal::TooLate
    } else if find::<NoEndpoint>(error).is_some() {
        Refusal::NoEndpoint
    } else {
        match find::<Failure>(error) {
            Some(Failure::Connect(_) | Failure::ConnectTimeout | Failure::Unsent(_)) => {
                Refusal::Unreachable
            }
            _ => Refusal::Broken,
        }
    };
    refusal.respond(protocol)
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref() {
            return Some(found);
        }
        next = error.source();
    }
    None
}

/// The backend's body, which knows its end.
///
/// Whoever watches a body wants to be polled once more after its last byte, and so lets it end no
/// earlier. A server that has written as much as was promised does not poll again: for us such a
/// call would have been abandoned. What is left is zero by then, unless trailers follow, which over
/// HTTP/1 they cannot where a length was promised.
#[derive(Debug)]
pub(crate) struct Whole<B> {
    inner: Pin<Box<B>>,
    http1: bool,
    begun: bool,
}

impl<B> Whole<B> {
    pub(crate) fn new(body: B, version: Version) -> Self {
        Self { inner: Box::pin(body), http1: version != Version::HTTP_2, begun: false }
    }
}

impl<B: Body<Data = Bytes, Error = Unfinished>> Body for Whole<B> {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let frame = ready!(self.inner.as_mut().poll_frame(context));
        self.begun = true;
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        let nothing_left = || self.inner.size_hint().exact() == Some(0);
        self.inner.is_end_stream() || ((self.http1 || !self.begun) && nothing_left())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
