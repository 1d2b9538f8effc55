//! Bodies of requests that nobody wants to read.
//!
//! A server that refuses a request while its body is still coming has three ways. It can close the
//! connection: the client is in the middle of writing, gets an error for it, and never looks for
//! the answer. It can read the body to its end, which is what the refusal was to spare it. Or it
//! can answer at once and throw away what comes, up to a limit: most bodies are smaller, the client
//! reads its answer, and the connection can be used again. This does the third.
//!
//! The body is thrown away by a task of its own, while the answer is on its way. In HTTP/2 none of
//! this is needed, as a stream can be reset without harm to the others. A client that asked first
//! (`expect: 100-continue`) is not told to go on.

use super::connection::Shared;
use super::stall::Stall;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use thiserror::Error;

/// Why a body does not come to its end.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BodyError {
    /// The connection has ended, or what came is not HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Nothing of it came for too long.
    #[error("the client has stopped sending the body")]
    Stalled,
}

/// The body of a request that came in by [`serve`](super::serve).
#[derive(Debug)]
pub struct RequestBody {
    incoming: Option<Incoming>,
    /// What to do with the rest of it; nothing if it can just be dropped.
    discard: Option<Arc<Shared>>,
    /// Whether the client waits to be told to send it.
    held_back: bool,
    stall: Stall,
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, discard: Option<Arc<Shared>>, held_back: bool) -> Self {
        let stall_max = discard.as_ref().and_then(|shared| shared.limits.stall_max);
        Self { incoming: Some(incoming), discard, held_back, stall: Stall::new(stall_max) }
    }
}

impl RequestBody {
    /// Nobody will read the rest, and it is not worth waiting for.
    fn give_up(&mut self) {
        if let (Some(_), Some(shared)) = (self.incoming.take(), &self.discard) {
            shared.given_up.store(true, Relaxed);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let this = self.get_mut();
        this.held_back = false;
        let Some(incoming) = &mut this.incoming else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(context) else {
            ready!(this.stall.poll_waiting(context));
            this.give_up();
            return Poll::Ready(Some(Err(BodyError::Stalled)));
        };
        this.stall.moved();
        if !matches!(frame, Some(Ok(_))) {
            this.incoming = None;
        }
        Poll::Ready(frame.map(|frame| frame.map_err(BodyError::Http)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or(SizeHint::with_exact(0), Incoming::size_hint)
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        let (Some(incoming), Some(shared)) = (self.incoming.take(), self.discard.take()) else {
            return;
        };
        if incoming.is_end_stream() {
            return;
        }
        // Until the end of the body is seen.
        shared.given_up.store(true, Relaxed);
        if self.held_back {
            return;
        }
        // Outside of a runtime it is too late for politeness.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let executor = shared.executor.clone();
            runtime.spawn(executor.track(discard(incoming, shared)));
        }
    }
}

/// Reads on until the end or the limit. If that is met, hyper closes the connection after the
/// answer, and the transport lingers.
async fn discard(mut incoming: Incoming, shared: Arc<Shared>) {
    let mut left = shared.limits.discard_max;
    let to_the_end = async {
        while let Some(Ok(frame)) = incoming.frame().await {
            let length = frame.data_ref().map_or(0, |data| data.len() as u64);
            match left.checked_sub(length) {
                Some(rest) => left = rest,
                None => return false,
            }
        }
        true
    };
    let done = tokio::time::timeout(shared.limits.discard_timeout, to_the_end).await;
    if done == Ok(true) {
        shared.given_up.store(false, Relaxed);
    }
}
