//! The body of an answer, and the connection that it comes on.
//!
//! **Silence.** The head of an answer has a limit, and so has what follows: a program that hangs in
//! the middle of a body would else hold its request, and the connection, until the caller leaves. A
//! timer is made when the body has to be waited for, and looks when it rings whether anything has
//! come since: what moves costs no more than that, and silence is found out after once to twice the
//! limit. Time in which nobody asks for the body is the caller's and not the program's. Calls of
//! gRPC may be silent for long, and say themselves how long they may take.

use super::Lease;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::Response;
use http_body::{Body, Frame, SizeHint};
use hyper::body::Incoming;
use tidegate_wire::protocol::Protocol;
use tokio::time::{Instant, Sleep, sleep};

/// Why the body of an answer does not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum Unfinished {
    /// The connection has ended, or what came is not HTTP.
    #[error(transparent)]
    Http(#[from] hyper::Error),
    /// Nothing of it came for too long.
    #[error("the program has stopped sending its answer")]
    Silent,
}

/// The connection goes back to its pool when all of the body was read. If it is dropped before, or
/// fails, so does the connection: the rest of an answer is nothing for the next request to find.
#[derive(Debug)]
pub(crate) struct Leased<B> {
    /// None after it has failed.
    incoming: Option<Incoming>,
    /// None after the end.
    lease: Option<Lease<B>>,
    silence: Silence,
}

/// How long nothing has come.
#[derive(Debug)]
struct Silence {
    max: Option<Duration>,
    /// Whether something came since the timer was set.
    heard: bool,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Silence {
    const fn new(max: Option<Duration>) -> Self {
        Self { max, heard: false, timer: None }
    }

    /// Nothing is there. Ready if that has been so for too long.
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Some(max) = self.max else { return Poll::Pending };
        let timer = self.timer.get_or_insert_with(|| {
            self.heard = false;
            Box::pin(sleep(max))
        });
        loop {
            ready!(timer.as_mut().poll(context));
            if !core::mem::take(&mut self.heard) {
                return Poll::Ready(());
            }
            timer.as_mut().reset(Instant::now() + max);
        }
    }
}

impl<B: Send + 'static> Leased<B> {
    /// The body of `response`, of which pieces may be `read_timeout` apart.
    pub(super) fn of(
        response: Response<Incoming>,
        lease: Lease<B>,
        read_timeout: Option<Duration>,
    ) -> Response<Self> {
        let limit = read_timeout.filter(|_| Protocol::of(response.headers()) != Protocol::Grpc);
        response.map(|incoming| {
            let over = incoming.is_end_stream();
            let silence = Silence::new(limit);
            let mut leased = Self { incoming: Some(incoming), lease: Some(lease), silence };
            if over {
                leased.end();
            }
            leased
        })
    }

    fn end(&mut self) {
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
    }

    /// What is left of it, and its connection, is of no use to anybody.
    fn fail(&mut self) {
        (self.incoming, self.lease) = (None, None);
    }
}

// Nothing in it is pinned.
impl<B> Unpin for Leased<B> {}

impl<B: Send + 'static> Body for Leased<B> {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let Some(incoming) = &mut self.incoming else { return Poll::Ready(None) };
        let Poll::Ready(frame) = Pin::new(incoming).poll_frame(context) else {
            ready!(self.silence.poll(context));
            self.fail();
            return Poll::Ready(Some(Err(Unfinished::Silent)));
        };
        self.silence.heard = true;
        match &frame {
            Some(Ok(frame)) => {
                if frame.is_trailers() || self.is_end_stream() {
                    self.end();
                }
            }
            None => self.end(),
            Some(Err(_)) => self.lease = None,
        }
        Poll::Ready(frame.map(|frame| frame.map_err(Unfinished::Http)))
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_some_and(Incoming::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, Incoming::size_hint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::poll_fn;

    #[tokio::test(start_paused = true)]
    async fn only_what_was_waited_for_in_vain_is_silence() {
        let limit = Duration::from_secs(10);
        let mut silence = Silence::new(Some(limit));
        let start = Instant::now();
        // Asked at 0, heard of at 9: looked at when it rings at 10, and again at 20.
        assert!(poll_fn(|context| Poll::Ready(silence.poll(context))).await.is_pending());
        tokio::time::advance(Duration::from_secs(9)).await;
        silence.heard = true;
        poll_fn(|context| silence.poll(context)).await;
        assert_eq!(start.elapsed(), 2 * limit);
        let mut none = Silence::new(None);
        assert!(poll_fn(|context| Poll::Ready(none.poll(context))).await.is_pending());
        assert!(none.timer.is_none());
    }
}
