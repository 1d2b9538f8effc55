//! Backends in memory.

use crate::client::{BoxError, Layer, RequestBody, Service};
use bytes::Bytes;
use core::task::{Context, Poll};
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use tokio::time::Instant;
use tower::ServiceExt;
use tower_layer::Layer as _;

pub(super) type Answer = Response<Full<Bytes>>;

/// What a backend has seen of an attempt.
#[derive(Debug, Clone)]
pub(super) struct Seen {
    pub(super) headers: HeaderMap,
    pub(super) at: Instant,
}

type Say = dyn Fn(&Seen, usize) -> Result<Answer, BoxError> + Send + Sync;

/// A backend that does as `answer` says, and remembers what it saw.
#[derive(Clone)]
pub(super) struct Backend {
    answer: Arc<Say>,
    pub(super) seen: Arc<Mutex<Vec<Seen>>>,
}

impl Backend {
    /// Answers attempt number `n`, from 0, with `answer(.., n)`.
    pub(super) fn new(
        answer: impl Fn(&Seen, usize) -> Result<Answer, BoxError> + Send + Sync + 'static,
    ) -> Self {
        Self { answer: Arc::new(answer), seen: Arc::default() }
    }

    /// Gives these answers, the last one for ever.
    pub(super) fn script(answers: Vec<Answer>) -> Self {
        Self::new(move |_, n| Ok(answers[n.min(answers.len() - 1)].clone()))
    }

    pub(super) fn count(&self) -> usize {
        self.seen.lock().unwrap().len()
    }

    pub(super) fn attempts(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }
}

impl<B> tower_service::Service<Request<B>> for Backend {
    type Response = Answer;
    type Error = BoxError;
    type Future = Ready<Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let seen = Seen { headers: request.headers().clone(), at: Instant::now() };
        let number = {
            let mut all = self.seen.lock().unwrap();
            all.push(seen.clone());
            all.len() - 1
        };
        ready((self.answer)(&seen, number))
    }
}

/// An answer with this status and these headers.
pub(super) fn answer(status: u16, headers: &[(&'static str, &str)]) -> Answer {
    let mut builder = Response::builder().status(status);
    for (name, value) in headers {
        builder = builder.header(*name, *value);
    }
    builder.body(Full::from("")).unwrap()
}

pub(super) fn request() -> Request<Full<Bytes>> {
    Request::new(Full::from("hello"))
}

pub(super) fn grpc() -> Request<Full<Bytes>> {
    Request::builder()
        .method("POST")
        .header("content-type", "application/grpc")
        .body(Full::from("hello"))
        .unwrap()
}

/// Sends one request through.
pub(super) async fn send<S, B, RB>(
    service: &Service<S>,
    request: Request<B>,
) -> Result<Response<Bytes>, BoxError>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: RequestBody,
    RB: http_body::Body<Data = Bytes> + Send + 'static,
    RB::Error: Into<BoxError>,
{
    let (parts, body) = service.clone().oneshot(request).await?.into_parts();
    let body = body.collect().await.map_err(Into::into)?.to_bytes();
    Ok(Response::from_parts(parts, body))
}

/// A layer with seeded dice around `backend`.
pub(super) fn protected<S>(backend: S) -> (Layer, Service<S>) {
    let layer = Layer::builder("backend").seed(7).build();
    let service = layer.layer(backend);
    (layer, service)
}

/// Sends so many requests that there is credit for `retries` of them.
pub(super) async fn earn(service: &Service<Backend>, retries: usize) {
    for _ in 0..10 * retries {
        send(service, request()).await.unwrap();
    }
    tokio::time::sleep(super::super::keeper::PERIOD * 2).await;
}
