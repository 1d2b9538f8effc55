//! Response bodies that tell how they ended.
//!
//! The outcome of a gRPC call stands in its trailers, and a backend is busy with a request until
//! its last byte. So whoever counts outcomes or active requests goes along with the body: it hears
//! of the trailers, the end, an error, or that it was dropped before any of these.

use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};

/// Goes along with a body. Dropped with it; before any end, the caller did not want the rest.
pub(super) trait Along {
    fn on_trailers(&mut self, trailers: &HeaderMap);
    /// It ended as it should, with or without trailers.
    fn on_end(&mut self);
    fn on_error(&mut self);
}

pin_project_lite::pin_project! {
    /// A response's body, with someone who watches how it ends.
    #[derive(Debug)]
    pub struct Watched<B, A> {
        // None: nothing follows the headers.
        #[pin]
        inner: Option<B>,
        along: Option<A>,
    }
}

impl<B, A> Watched<B, A> {
    pub(super) const fn new(inner: Option<B>, along: Option<A>) -> Self {
        Self { inner, along }
    }
}

impl<B: Body, A: Along> Body for Watched<B, A> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let Some(inner) = this.inner.as_pin_mut() else { return Poll::Ready(None) };
        let frame = ready!(inner.poll_frame(cx));
        if let Some(along) = this.along {
            let ended = match &frame {
                Some(Ok(frame)) => match frame.trailers_ref() {
                    Some(trailers) => {
                        along.on_trailers(trailers);
                        along.on_end();
                        true
                    }
                    None => false,
                },
                Some(Err(_)) => {
                    along.on_error();
                    true
                }
                None => {
                    along.on_end();
                    true
                }
            };
            if ended {
                *this.along = None;
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        // Whoever hears that nothing follows does not poll again, and the end would go unseen. So
        // as long as someone waits for it there is more to poll for.
        self.inner.as_ref().is_none_or(|inner| self.along.is_none() && inner.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.as_ref().map_or_else(|| SizeHint::with_exact(0), Body::size_hint)
    }
}
