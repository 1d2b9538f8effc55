//! The body of an answer.

use super::serving::Serving;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context as Waking, Poll};
use http_body::{Frame, SizeHint};

pin_project_lite::pin_project! {
    /// The body of an answer: that of the inner service, charged to the request, or the short one
    /// of a refusal.
    #[derive(Debug)]
    pub struct Body<RB> {
        #[pin]
        kind: Kind<RB>,
    }
}

pin_project_lite::pin_project! {
    #[project = KindProjection]
    #[derive(Debug)]
    enum Kind<RB> {
        Ours { bytes: Option<Bytes> },
        Within { #[pin] body: RB },
        Theirs { #[pin] metered: Metered<RB> },
    }
}

impl<RB> Body<RB> {
    pub(super) fn ours(bytes: Bytes) -> Self {
        Self { kind: Kind::Ours { bytes: Some(bytes).filter(|bytes| !bytes.is_empty()) } }
    }

    /// A body with nothing in it, of a request that is done with it.
    pub(super) fn ended(mut serving: Serving) -> Self {
        serving.finish();
        Self::ours(Bytes::new())
    }

    /// A body of a request that somebody else looks after.
    pub(super) const fn within(body: RB) -> Self {
        Self { kind: Kind::Within { body } }
    }

    pub(super) const fn theirs(body: RB, serving: Serving) -> Self {
        Self { kind: Kind::Theirs { metered: Metered { body: Some(body), serving } } }
    }
}

pin_project_lite::pin_project! {
    /// A body each poll of which is charged to its request, which is done when the body is.
    #[project = Projection]
    #[derive(Debug)]
    struct Metered<RB> {
        #[pin]
        body: Option<RB>,
        serving: Serving,
    }

    impl<RB> PinnedDrop for Metered<RB> {
        fn drop(this: Pin<&mut Self>) {
            this.end();
        }
    }
}

impl<RB> Metered<RB> {
    /// Drops the body at the cost of the request, and ends that.
    fn end(self: Pin<&mut Self>) {
        let mut this = self.project();
        if this.body.is_some() {
            this.serving.dropped();
            this.serving.run(|| this.body.set(None));
        }
        this.serving.finish();
    }
}

impl<RB: http_body::Body<Data = Bytes>> Metered<RB> {
    fn poll_frame(
        self: Pin<&mut Self>,
        waking: &mut Waking<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RB::Error>>> {
        let Projection { mut body, serving } = self.project();
        if body.is_none() {
            return Poll::Ready(None);
        }
        // What is left of the body goes at the cost of the request, too.
        let mut frame = serving.run(|| {
            let mut polled = body.as_mut().as_pin_mut()?;
            let frame = polled.as_mut().poll_frame(waking);
            let over = match &frame {
                Poll::Pending => false,
                Poll::Ready(Some(Ok(frame))) => frame.is_trailers() || polled.is_end_stream(),
                Poll::Ready(_) => true,
            };
            if over {
                body.set(None);
            }
            Some(frame)
        });
        match &mut frame {
            Some(Poll::Ready(Some(Ok(frame)))) => {
                if let Some(data) = frame.data_ref() {
                    serving.taken(data);
                } else if let Some(trailers) = frame.trailers_mut() {
                    serving.trailers(trailers);
                }
            }
            Some(Poll::Ready(Some(Err(_)))) => serving.failed(),
            _ => {}
        }
        if body.is_none() {
            serving.finish();
        }
        frame.unwrap_or(Poll::Ready(None))
    }
}

impl<RB: http_body::Body<Data = Bytes>> http_body::Body for Body<RB> {
    type Data = Bytes;
    type Error = RB::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        waking: &mut Waking<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, RB::Error>>> {
        match self.project().kind.project() {
            KindProjection::Ours { bytes } => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            KindProjection::Within { body } => body.poll_frame(waking),
            KindProjection::Theirs { metered } => metered.poll_frame(waking),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Ours { bytes } => bytes.is_none(),
            Kind::Within { body } => body.is_end_stream(),
            // Trailers may come after the last byte.
            Kind::Theirs { metered } => match (&metered.body, metered.serving.left()) {
                (None, _) => true,
                (Some(_), Some(1..)) => false,
                (Some(body), _) => body.is_end_stream(),
            },
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Ours { bytes } => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Within { body } => body.size_hint(),
            Kind::Theirs { metered } => match (&metered.body, metered.serving.left()) {
                (None, _) => SizeHint::with_exact(0),
                (Some(_), Some(left)) => SizeHint::with_exact(left),
                (Some(body), None) => body.size_hint(),
            },
        }
    }
}
