//! Bodies that can be sent twice.
//!
//! A request that was refused may be sent again only if its body can be. Some bodies are cheap to
//! copy. The others are recorded while they are sent, up to a limit: what has gone out is kept, and
//! a retry sends that first and goes on with what is left. A recording that outgrows the limit is
//! thrown away, and the request is not retried: a stream of a gigabyte is not kept in memory for
//! the sake of a retry that is made in one request of ten at the most.
//!
//! The recording travels with the body. When the attempt is over its body is dropped, and the
//! recording comes back through a channel: nothing is locked, and nobody else has it meanwhile. A
//! connection may hold on to a body for a moment after the answer has come; a retry waits for that
//! moment ([`RETURN_WAIT`]), and is not made if it takes longer.

use bytes::{Buf, Bytes};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::combinators::{BoxBody, UnsyncBoxBody};
use http_body_util::{Empty, Full};
use tokio::sync::oneshot;

/// How long a retry waits for the body of the attempt before it. A connection lets go of it as soon
/// as it has written that the attempt is over, within a turn of its task; a tenth of a second is
/// longer than a runtime that is worth retrying on keeps a task waiting.
const RETURN_WAIT: Duration = Duration::from_millis(100);

/// A request's body, as the client layer needs it.
///
/// Implemented for the bodies that clients have in common. For a body of your own, wrap it in a
/// [`Replay`]: `request.map(Replay::new)`.
pub trait RequestBody: Sized + Send + 'static {
    /// What is kept for a retry.
    type Kept: Send + 'static;

    /// The body to send, and what is kept of it: no more than `limit` bytes.
    fn keep(self, limit: usize) -> (Self, Self::Kept);

    /// Whether it is already certain that it cannot be sent again.
    fn is_lost(kept: &mut Self::Kept) -> bool;

    /// The same body once more, after the one before it was dropped; nothing if it cannot be.
    fn again(kept: Self::Kept) -> impl Future<Output = Option<(Self, Self::Kept)>> + Send;
}

macro_rules! copied {
    ($($body:ty),+) => {$(
        impl<D: Buf + Clone + Send + 'static> RequestBody for $body {
            type Kept = Self;

            fn keep(self, _limit: usize) -> (Self, Self) {
                (self.clone(), self)
            }

            fn is_lost(_kept: &mut Self) -> bool {
                false
            }

            async fn again(kept: Self) -> Option<(Self, Self)> {
                Some((kept.clone(), kept))
            }
        }
    )+};
}

copied!(Full<D>, Empty<D>);

/// For bodies that can hold any body: a recording is put in the place of the original.
macro_rules! recorded {
    ($body:ty, $wrap:expr, [$($generics:tt)*]) => {
        impl<$($generics)*> $crate::client::RequestBody for $body {
            type Kept = $crate::client::replay::Recording<Self>;

            fn keep(self, limit: usize) -> (Self, Self::Kept) {
                let (body, kept) = $crate::client::replay::record(self, limit);
                ($wrap(body), kept)
            }

            fn is_lost(kept: &mut Self::Kept) -> bool {
                kept.is_lost()
            }

            async fn again(kept: Self::Kept) -> Option<(Self, Self::Kept)> {
                let (body, kept) = kept.again().await?;
                Some(($wrap(body), kept))
            }
        }
    };
}
#[cfg(any(feature = "reqwest", feature = "tonic"))]
pub(super) use recorded;

recorded!(BoxBody<Bytes, E>, BoxBody::new, [E: 'static]);
recorded!(UnsyncBoxBody<Bytes, E>, UnsyncBoxBody::new, [E: 'static]);

/// What has gone out of a body, and what is left of it.
#[derive(Debug)]
struct Tape<B> {
    source: B,
    played: Vec<Bytes>,
    bytes: usize,
    limit: usize,
    trailers: Option<HeaderMap>,
    ended: bool,
}

/// Waits for the recording of a body that is being sent.
#[derive(Debug)]
pub struct Recording<B> {
    back: oneshot::Receiver<Tape<B>>,
    tape: Option<Tape<B>>,
}

/// A body that is recorded while it is sent.
#[derive(Debug)]
pub struct Replay<B> {
    /// None: what was sent is not kept any more, and neither is anything to come.
    back: Option<oneshot::Sender<Tape<B>>>,
    tape: Option<Tape<B>>,
    /// How many pieces of the recording have gone out this time.
    position: usize,
    trailers_sent: bool,
}

/// A recording of `body`.
pub(super) fn record<B>(body: B, limit: usize) -> (Replay<B>, Recording<B>) {
    Replay::new(body).keep_up_to(limit)
}

impl<B> Tape<B> {
    fn play(self) -> (Replay<B>, Recording<B>) {
        let (send, back) = oneshot::channel();
        let replay =
            Replay { back: Some(send), tape: Some(self), position: 0, trailers_sent: false };
        (replay, Recording { back, tape: None })
    }
}

impl<B> Recording<B> {
    pub(super) fn is_lost(&mut self) -> bool {
        match self.back.try_recv() {
            Ok(tape) => {
                self.tape = Some(tape);
                false
            }
            Err(oneshot::error::TryRecvError::Empty) => false,
            Err(oneshot::error::TryRecvError::Closed) => self.tape.is_none(),
        }
    }

    pub(super) async fn again(self) -> Option<(Replay<B>, Self)> {
        let tape = match self.tape {
            Some(tape) => tape,
            None => tokio::time::timeout(RETURN_WAIT, self.back).await.ok()?.ok()?,
        };
        Some(tape.play())
    }
}

impl<B> Replay<B> {
    /// A body to be recorded by the client layer that it is sent through.
    pub const fn new(body: B) -> Self {
        let tape = Tape {
            source: body,
            played: Vec::new(),
            bytes: 0,
            limit: 0,
            trailers: None,
            ended: false,
        };
        Self { back: None, tape: Some(tape), position: 0, trailers_sent: false }
    }

    fn keep_up_to(mut self, limit: usize) -> (Self, Recording<B>) {
        match self.tape.take() {
            Some(tape) => Tape { limit, ..tape }.play(),
            None => unreachable!("a body has its tape until it is dropped"),
        }
    }
}

impl<B: Default> Default for Replay<B> {
    fn default() -> Self {
        Self::new(B::default())
    }
}

impl<B: Send + 'static> RequestBody for Replay<B> {
    type Kept = Recording<B>;

    fn keep(self, limit: usize) -> (Self, Recording<B>) {
        self.keep_up_to(limit)
    }

    fn is_lost(kept: &mut Recording<B>) -> bool {
        kept.is_lost()
    }

    fn again(kept: Recording<B>) -> impl Future<Output = Option<(Self, Recording<B>)>> + Send {
        kept.again()
    }
}

impl<B> Drop for Replay<B> {
    fn drop(&mut self) {
        if let (Some(back), Some(tape)) = (self.back.take(), self.tape.take()) {
            // Nobody waits for it when the request is over.
            let _ = back.send(tape);
        }
    }
}

impl<B> Replay<B> {
    /// What was sent cannot be sent again.
    fn forget(&mut self) {
        self.back = None;
        if let Some(tape) = &mut self.tape {
            tape.played = Vec::new();
        }
        self.position = 0;
    }
}

impl<B: Body + Unpin> Body for Replay<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = &mut *self;
        let Some(tape) = &mut this.tape else { return Poll::Ready(None) };
        if let Some(piece) = tape.played.get(this.position) {
            this.position += 1;
            return Poll::Ready(Some(Ok(Frame::data(piece.clone()))));
        }
        if tape.ended {
            let trailers = tape.trailers.clone().filter(|_| !this.trailers_sent);
            this.trailers_sent = true;
            return Poll::Ready(trailers.map(|trailers| Ok(Frame::trailers(trailers))));
        }
        let frame = match ready!(Pin::new(&mut tape.source).poll_frame(cx)) {
            Some(Ok(frame)) => frame,
            Some(Err(error)) => {
                this.forget();
                return Poll::Ready(Some(Err(error)));
            }
            None => {
                tape.ended = true;
                return Poll::Ready(None);
            }
        };
        let frame = frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
        if let Some(data) = frame.data_ref() {
            if this.back.is_some() {
                tape.bytes = tape.bytes.saturating_add(data.len());
                if tape.bytes > tape.limit {
                    this.forget();
                } else {
                    tape.played.push(data.clone());
                    this.position = tape.played.len();
                }
            }
        } else if let Some(trailers) = frame.trailers_ref() {
            tape.trailers = Some(trailers.clone());
            tape.ended = true;
            this.trailers_sent = true;
        }
        Poll::Ready(Some(Ok(frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.tape.as_ref().is_none_or(|tape| {
            let all_played = self.position >= tape.played.len();
            let trailers = tape.trailers.is_some() && !self.trailers_sent;
            all_played && !trailers && (tape.ended || tape.source.is_end_stream())
        })
    }

    fn size_hint(&self) -> SizeHint {
        let Some(tape) = &self.tape else { return SizeHint::with_exact(0) };
        let kept = tape.played.get(self.position..).unwrap_or(&[]);
        let kept: u64 = kept.iter().map(|piece| piece.len() as u64).sum();
        let rest = if tape.ended { SizeHint::with_exact(0) } else { tape.source.size_hint() };
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(kept));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(kept));
        }
        hint
    }
}
