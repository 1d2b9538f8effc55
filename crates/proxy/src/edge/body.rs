//! The body of an answer to a stranger: a request of its client until its end.

use super::Guard;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll};
use http_body::{Body, Frame, SizeHint};

/// The role's body, or a short one of ours.
#[derive(Debug)]
pub(crate) enum EdgeBody<B> {
    Ours(Option<Bytes>),
    Theirs { body: B, _held: Option<Guard> },
}

impl<B: Body<Data = Bytes> + Unpin> Body for EdgeBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match &mut *self {
            Self::Ours(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Self::Theirs { body, .. } => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Ours(bytes) => bytes.is_none(),
            Self::Theirs { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Ours(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Theirs { body, .. } => body.size_hint(),
        }
    }
}
