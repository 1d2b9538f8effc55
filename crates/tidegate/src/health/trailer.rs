//! The load report as a trailer.
//!
//! gRPC's clients look for load reports in the trailers of a call, and tonic has no way to add any
//! to a call that went well. So they are put in where they pass.

use super::{Health, LoadHeader};
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::{HeaderMap, Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tidegate_wire::headers::GRPC_STATUS;
use tonic::server::NamedService;
use tower_service::Service;

/// A service of gRPC whose answers carry the load report. Made by [`Health::grpc`].
#[derive(Debug, Clone)]
pub struct WithLoad<S> {
    inner: S,
    health: Health,
}

impl<S> WithLoad<S> {
    pub(super) const fn new(inner: S, health: Health) -> Self {
        Self { inner, health }
    }
}

impl<S: NamedService> NamedService for WithLoad<S> {
    const NAME: &'static str = S::NAME;
}

impl<S, R> Service<Request<R>> for WithLoad<S>
where
    S: Service<Request<R>, Response = Response<tonic::body::Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Answering<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<R>) -> Self::Future {
        Answering { future: self.inner.call(request), load: self.health.load.clone() }
    }
}

pin_project! {
    /// An answer in the making.
    pub struct Answering<F> {
        #[pin]
        future: F,
        load: Option<LoadHeader>,
    }
}

impl<F, E> Future for Answering<F>
where
    F: Future<Output = Result<Response<tonic::body::Body>, E>>,
{
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let mut response = ready!(this.future.poll(context))?;
        let Some(load) = this.load.take() else { return Poll::Ready(Ok(response)) };
        // A call that failed at once has its trailers in front.
        if response.headers().contains_key(&GRPC_STATUS) {
            insert(response.headers_mut(), &load);
            return Poll::Ready(Ok(response));
        }
        Poll::Ready(Ok(response.map(|body| tonic::body::Body::new(Reporting { body, load }))))
    }
}

fn insert(headers: &mut HeaderMap, load: &LoadHeader) {
    if let Some((name, value)) = load() {
        headers.insert(name, value);
    }
}

pin_project! {
    struct Reporting {
        #[pin]
        body: tonic::body::Body,
        load: LoadHeader,
    }
}

impl Body for Reporting {
    type Data = Bytes;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, tonic::Status>>> {
        let this = self.project();
        let mut frame = ready!(this.body.poll_frame(context));
        if let Some(Ok(frame)) = &mut frame
            && let Some(trailers) = frame.trailers_mut()
        {
            insert(trailers, this.load);
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
