//! The body of an answer, and the connection that it comes on.

use super::Lease;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;

/// The connection goes back to its pool when all of the body was read. If it is dropped before, or
/// fails, so does the connection: the rest of an answer is nothing for the next request to find.
#[derive(Debug)]
pub(crate) struct Leased<B> {
    incoming: Incoming,
    /// None after the end.
    lease: Option<Lease<B>>,
}

impl<B: Send + 'static> Leased<B> {
    pub(super) fn new(incoming: Incoming, lease: Lease<B>) -> Self {
        let mut leased = Self { incoming, lease: Some(lease) };
        if leased.incoming.is_end_stream() {
            leased.end();
        }
        leased
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }
}

// Nothing in it is pinned.
impl<B> Unpin for Leased<B> {}

impl<B: Send + 'static> Body for Leased<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if frame.is_trailers() || self.incoming.is_end_stream() {
                    self.end();
                }
            }
            None => self.end(),
            Some(Err(_)) => self.lease = None,
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.size_hint()
    }
}
