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

use super::answer::Busy;
use super::stall::Stall;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, OnceLock};
use thiserror::Error;
use tokio::time::Instant;

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
    /// It is longer than it may be, or comes too slowly.
    #[error(transparent)]
    Breach(#[from] Breach),
}

/// The body of a request that came in by [`serve`](super::serve).
#[derive(Debug)]
pub struct RequestBody {
    incoming: Option<Incoming>,
    /// What to do with the rest of it; nothing if it can just be dropped.
    discard: Option<Busy>,
    /// Whether the client waits to be told to send it.
    held_back: bool,
    stall: Stall,
    watch: Option<Box<Watch>>,
    trailers: Option<fn(&mut HeaderMap)>,
}

/// What a body may be, from clients of whom nothing is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct BodyLimits {
    /// How many bytes it may have.
    pub bytes_max: Option<u64>,
    /// How many bytes a second have to come while somebody waits for them, after a
    /// [`BodyLimits::GRACE`]. Who sends a byte now and then is never silent for long, and holds a
    /// request for as long as it likes.
    pub rate_min: Option<u32>,
    /// How long none may come, in HTTP/2 too, where it is not limited otherwise.
    pub stall_max: Option<Duration>,
}

impl BodyLimits {
    /// How long a body may take whatever its pace: connections begin slowly, and phones lose theirs
    /// for a moment.
    pub const GRACE: Duration = Duration::from_secs(5);
}

/// Which limit a body has met.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Breach {
    /// It is longer than it may be.
    #[error("the body is longer than it may be")]
    TooLong,
    /// It comes more slowly than it may.
    #[error("the body comes more slowly than it may")]
    TooSlow,
}

/// Tells whoever answers whether a body has met a limit.
#[derive(Debug, Clone, Default)]
pub struct Breached(Arc<OnceLock<Breach>>);

impl Breached {
    /// Which limit it was, if any.
    pub fn get(&self) -> Option<Breach> {
        self.0.get().copied()
    }
}

/// Holds a body against its limits.
#[derive(Debug)]
struct Watch {
    limits: BodyLimits,
    came: u64,
    /// How long its reader has waited for it. Time in which nobody reads is not the client's.
    waited: Duration,
    since: Option<Instant>,
    breached: Breached,
}

impl Watch {
    fn waits(&mut self) {
        if self.limits.rate_min.is_some() {
            self.since.get_or_insert_with(Instant::now);
        }
    }

    fn came(&mut self, bytes: usize) -> Result<(), Breach> {
        self.came = self.came.saturating_add(bytes as u64);
        if self.limits.bytes_max.is_some_and(|max| self.came > max) {
            return Err(Breach::TooLong);
        }
        let (Some(rate), Some(since)) = (self.limits.rate_min, self.since.take()) else {
            return Ok(());
        };
        self.waited += since.elapsed();
        let counted = self.waited.saturating_sub(BodyLimits::GRACE).as_secs_f64();
        if (self.came as f64) < f64::from(rate) * counted {
            return Err(Breach::TooSlow);
        }
        Ok(())
    }
}

impl RequestBody {
    pub(super) fn new(incoming: Incoming, discard: Option<Busy>, held_back: bool) -> Self {
        let stall_max = discard.as_ref().and_then(|shared| shared.limits.stall_max);
        let (incoming, stall) = (Some(incoming), Stall::new(stall_max));
        Self { incoming, discard, held_back, stall, watch: None, trailers: None }
    }

    /// Fails once it meets one of `limits`. Whoever handed the body on hears of it as of any error
    /// of it; what is returned tells which it was.
    pub fn limit(&mut self, limits: BodyLimits) -> Breached {
        if limits.stall_max.is_some() {
            self.stall = Stall::new(limits.stall_max);
        }
        let breached = Breached::default();
        self.watch = Some(Box::new(Watch {
            limits,
            came: 0,
            waited: Duration::ZERO,
            since: None,
            breached: breached.clone(),
        }));
        breached
    }

    /// Lets `change` see the trailers before whoever reads the body does.
    pub fn on_trailers(&mut self, change: fn(&mut HeaderMap)) {
        self.trailers = Some(change);
    }
}

impl RequestBody {
    /// A frame that has come, if it may.
    fn passed(&mut self, mut frame: Frame<Bytes>) -> Result<Frame<Bytes>, BodyError> {
        if let (Some(change), Some(trailers)) = (self.trailers, frame.trailers_mut()) {
            change(trailers);
        }
        if let (Some(watch), Some(data)) = (&mut self.watch, frame.data_ref())
            && let Err(breach) = watch.came(data.len())
        {
            let _ = watch.breached.0.set(breach);
            self.give_up();
            return Err(breach.into());
        }
        Ok(frame)
    }

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
            if let Some(watch) = &mut this.watch {
                watch.waits();
            }
            ready!(this.stall.poll_waiting(context));
            if let Some(watch) = &this.watch {
                let _ = watch.breached.0.set(Breach::TooSlow);
            }
            this.give_up();
            return Poll::Ready(Some(Err(BodyError::Stalled)));
        };
        this.stall.moved();
        match frame {
            Some(Ok(frame)) => Poll::Ready(Some(this.passed(frame))),
            Some(Err(error)) => {
                this.incoming = None;
                Poll::Ready(Some(Err(error.into())))
            }
            None => {
                this.incoming = None;
                Poll::Ready(None)
            }
        }
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
async fn discard(mut incoming: Incoming, shared: Busy) {
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn watch(limits: BodyLimits) -> Watch {
        Watch {
            limits,
            came: 0,
            waited: Duration::ZERO,
            since: None,
            breached: Breached::default(),
        }
    }

    #[test]
    fn so_many_bytes_and_no_more() {
        let mut watch = watch(BodyLimits { bytes_max: Some(10), ..BodyLimits::default() });
        assert_eq!(watch.came(4), Ok(()));
        assert_eq!(watch.came(6), Ok(()));
        assert_eq!(watch.came(0), Ok(()));
        assert_eq!(watch.came(1), Err(Breach::TooLong));
    }

    #[tokio::test(start_paused = true)]
    async fn a_byte_now_and_then_is_too_slow_and_nobody_pays_for_a_slow_reader() {
        let limits = BodyLimits { rate_min: Some(100), ..BodyLimits::default() };
        let second = Duration::from_secs(1);
        let mut drip = watch(limits);
        for n in 1.. {
            drip.waits();
            tokio::time::advance(second).await;
            if let Err(breach) = drip.came(1) {
                // In the sixth second a hundred bytes were to come, beyond the grace.
                assert_eq!((n, breach), (6, Breach::TooSlow));
                break;
            }
        }
        let mut fair = watch(limits);
        for _ in 0..100 {
            fair.waits();
            tokio::time::advance(second).await;
            assert_eq!(fair.came(100), Ok(()));
            // Time in which nobody waits for it.
            tokio::time::advance(100 * second).await;
        }
    }
}
