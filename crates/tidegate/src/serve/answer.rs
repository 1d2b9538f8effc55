//! An answer, until its last byte has left.
//!
//! A connection is busy while a request of it is served, and it must not be ended for being idle
//! while an answer is on its way. The body of an answer is over when its last piece was taken from
//! it: HTTP/1 writes that piece before it does anything else, but HTTP/2 keeps it until the peer's
//! windows have let all of it through, minutes later if the peer is slow. So the last piece takes
//! the mark with it, and gives it up where HTTP/2 drops it: when all of it was written.
//!
//! **When it is wrong.** A body that does not know which piece is its last (it says that it is over
//! only when it is asked for more) gives its mark up with the body. hyper asks for more only when
//! the windows have let all before it through, so that it is written by then or held up in the
//! transport, where it is seen.

use super::connection::Shared;
use super::stream::{self, Moved};
use bytes::{Buf, Bytes};
use core::pin::Pin;
use core::task::{Context, Poll};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// A request that is being served, or whose body still comes, or the last piece of its answer.
#[derive(Debug)]
pub(super) struct Busy {
    shared: Arc<Shared>,
    /// Whether all that is left of it is that piece.
    owed: bool,
}

impl core::ops::Deref for Busy {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Busy {
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        shared.activity.begin();
        Self { shared: Arc::clone(shared), owed: false }
    }

    /// The last piece of its answer is on its way.
    fn owed(mut self) -> Self {
        self.shared.activity.owe();
        self.owed = true;
        self
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let activity = &self.shared.activity;
        if self.owed { activity.settled() } else { activity.end() }
    }
}

/// A piece of an answer.
#[derive(Debug)]
pub(super) struct Piece<D> {
    data: D,
    /// Of the last one.
    owed: Option<Busy>,
    /// Of a large one.
    moved: Option<Moved>,
}

impl<D: Buf> Buf for Piece<D> {
    #[inline]
    fn remaining(&self) -> usize {
        self.data.remaining()
    }

    #[inline]
    fn chunk(&self) -> &[u8] {
        self.data.chunk()
    }

    #[inline]
    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        self.data.chunks_vectored(into)
    }

    #[inline]
    fn advance(&mut self, count: usize) {
        self.moved();
        self.data.advance(count);
    }

    #[inline]
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.moved();
        self.data.copy_to_bytes(count)
    }
}

impl<D> Piece<D> {
    #[inline]
    fn moved(&self) {
        if let Some(owed) = &self.owed {
            owed.activity.paid();
        }
        if let Some(moved) = &self.moved {
            moved.store(true, Relaxed);
        }
    }
}

pin_project! {
    /// The body of an answer. The connection is busy for as long as there is one.
    #[derive(Debug)]
    pub(super) struct Counted<B> {
        #[pin]
        body: B,
        busy: Option<Busy>,
        http2: bool,
        // Of all pieces from the first large one on: hyper asks for the next one while the last is
        // still on its way.
        moved: Option<Moved>,
    }
}

impl<B> Counted<B> {
    pub(super) const fn new(body: B, busy: Option<Busy>, http2: bool) -> Self {
        Self { body, busy, http2, moved: None }
    }
}

impl<B: Body> Body for Counted<B> {
    type Data = Piece<B::Data>;
    type Error = B::Error;

    #[inline]
    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Piece<B::Data>>, B::Error>>> {
        let mut this = self.project();
        let Poll::Ready(frame) = this.body.as_mut().poll_frame(context) else {
            if *this.http2 {
                stream::is_ours();
            }
            return Poll::Pending;
        };
        let data = frame.as_ref().and_then(|frame| frame.as_ref().ok()?.data_ref());
        let last = data.is_some() && this.body.is_end_stream();
        if *this.http2 {
            if data.is_some_and(|data| data.remaining() > stream::LARGE) {
                this.moved.get_or_insert_default();
            }
            stream::is_the_peers(this.moved.clone());
        }
        let moved = this.moved.clone();
        let owed = this.busy.take_if(|_| last).map(Busy::owed);
        let piece = |data| Piece { data, owed, moved };
        Poll::Ready(frame.map(|frame| frame.map(|frame| frame.map_data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::convert::Infallible;
    use core::task::Waker;

    /// So many large pieces.
    struct Pieces(u8);

    impl Body for Pieces {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
        ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
            self.0 = self.0.saturating_sub(1);
            let piece = Bytes::from(vec![0; stream::LARGE + 1]);
            Poll::Ready((self.0 > 0).then(|| Ok(Frame::data(piece))))
        }
    }

    /// hyper asks for the next piece while the last is on its way, and that one is seen to move all
    /// the same.
    #[test]
    fn a_piece_that_moves_is_seen_though_the_next_was_asked_for() {
        let mut body = Counted::new(Pieces(3), None, true);
        let mut next = || {
            let mut context = Context::from_waker(Waker::noop());
            let Poll::Ready(Some(Ok(frame))) = Pin::new(&mut body).poll_frame(&mut context) else {
                panic!("there is another piece")
            };
            frame.into_data().unwrap()
        };
        let (mut first, second) = (next(), next());
        first.advance(1);
        assert!(second.moved.unwrap().load(Relaxed));
    }
}
