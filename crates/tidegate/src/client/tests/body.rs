//! Bodies that are sent twice, and answers that end in trailers.

use super::support::{Answer, Backend, answer, earn, request, send};
use crate::client::{BoxError, Layer, Replay, RequestBody, Service};
use bytes::Bytes;
use core::task::{Context, Poll};
use futures_util::future::BoxFuture;
use futures_util::stream;
use http::{HeaderMap, Request, Response};
use http_body::{Body as _, Frame};
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use proptest::prelude::*;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tidegate_core::Criticality;
use tower::ServiceExt;
use tower_layer::Layer as _;

type Boxed = UnsyncBoxBody<Bytes, Infallible>;

/// A body of these pieces, and trailers.
fn pieces(pieces: Vec<&'static str>) -> Boxed {
    let mut trailers = HeaderMap::new();
    trailers.insert("x-end", "yes".parse().unwrap());
    let frames = pieces.into_iter().map(|piece| Frame::data(Bytes::from_static(piece.as_bytes())));
    let frames = frames.chain([Frame::trailers(trailers)]).map(Ok);
    StreamBody::new(stream::iter(frames)).boxed_unsync()
}

/// Reads some frames of a request's body, then answers: 503 the first times.
#[derive(Clone)]
struct Reader {
    refusals: usize,
    frames: usize,
    read: Arc<Mutex<Vec<String>>>,
}

impl tower_service::Service<Request<Boxed>> for Reader {
    type Response = Answer;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Answer, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Boxed>) -> Self::Future {
        let Self { refusals, frames, read } = self.clone();
        Box::pin(async move {
            let first = read.lock().unwrap().len() < refusals;
            let (mut text, mut body) = (String::new(), request.into_body());
            let limit = if first { frames } else { usize::MAX };
            for _ in 0..limit {
                let Some(Ok(frame)) = body.frame().await else { break };
                match frame.into_data() {
                    Ok(data) => text.push_str(std::str::from_utf8(&data).unwrap()),
                    Err(frame) => {
                        assert_eq!(frame.into_trailers().unwrap()["x-end"], "yes");
                        text.push('.');
                    }
                }
            }
            read.lock().unwrap().push(text);
            Ok(answer(if first { 503 } else { 200 }, &[]))
        })
    }
}

/// A layer with credit for some retries, around `inner`.
async fn with_credit<S>(inner: S, limit: usize) -> (Layer, Service<S>) {
    let layer = Layer::builder("reader").kept_bytes_max(limit).seed(1).build();
    let earner = layer.layer(Backend::script(vec![answer(200, &[])]));
    earn(&earner, 3).await;
    (layer.clone(), layer.layer(inner))
}

#[tokio::test(start_paused = true)]
async fn a_body_is_sent_again_however_much_of_it_was_read() {
    for (frames, first) in [(0, ""), (1, "ab"), (2, "abcd"), (3, "abcd."), (9, "abcd.")] {
        let reader = Reader { refusals: 2, frames, read: Arc::default() };
        let (_, service) = with_credit(reader.clone(), 4).await;
        let response = send(&service, Request::new(pieces(vec!["ab", "cd"]))).await.unwrap();
        assert_eq!(response.status(), 200);
        assert_eq!(*reader.read.lock().unwrap(), [first, first, "abcd."]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_body_that_is_too_long_is_not_sent_again() {
    let reader = Reader { refusals: 1, frames: 2, read: Arc::default() };
    let (layer, service) = with_credit(reader.clone(), 3).await;
    let response = send(&service, Request::new(pieces(vec!["ab", "cd"]))).await.unwrap();
    assert_eq!(response.status(), 503);
    assert_eq!(*reader.read.lock().unwrap(), ["abcd"]);
    assert_eq!((layer.counts().unrepeatable, layer.counts().retries.retries), (1, 0));
    // What was refused before it had sent too much is.
    let reader = Reader { refusals: 1, frames: 1, read: Arc::default() };
    let (_, service) = with_credit(reader.clone(), 3).await;
    send(&service, Request::new(pieces(vec!["ab", "cd"]))).await.unwrap();
    assert_eq!(*reader.read.lock().unwrap(), ["ab", "abcd."]);
}

/// A service that answers and keeps the body all the same.
#[tokio::test(start_paused = true)]
async fn a_body_that_does_not_come_back_is_not_waited_for_long() {
    let kept: Arc<Mutex<Vec<Boxed>>> = Arc::default();
    let keeps = Arc::clone(&kept);
    let keeper = tower::service_fn(move |request: Request<Boxed>| {
        keeps.lock().unwrap().push(request.into_body());
        async { Ok::<_, BoxError>(answer(503, &[("x-why", "busy")])) }
    });
    let (layer, service) = with_credit(keeper, 100).await;
    let response = send(&service, Request::new(pieces(vec!["ab"]))).await.unwrap();
    // The refusal as it came, but for its body, which was given up for the retry.
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-why"]),
        (503, &"busy".parse().unwrap())
    );
    assert_eq!(kept.lock().unwrap().len(), 1);
    assert_eq!(layer.counts().unrepeatable, 1);
}

proptest! {
    /// However a body comes in pieces and wherever attempts stop, each attempt sends its beginning,
    /// and the last one all of it, if the limit allows.
    #[test]
    fn a_replay_is_the_same_body(
        lengths in proptest::collection::vec(0_usize..5, 0..6),
        stops in proptest::collection::vec(0_usize..8, 1..4),
        limit in 0_usize..20,
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut letters = "abcdefghijklmnopqrstuvwxyz".chars();
            let parts: Vec<String> =
                lengths.iter().map(|&n| letters.by_ref().take(n).collect()).collect();
            let whole: String = parts.concat();
            let frames = parts.into_iter().map(|part| Frame::data(Bytes::from(part)));
            let frames = frames.map(Ok::<_, Infallible>);
            let source = StreamBody::new(stream::iter(frames));
            let (mut body, mut kept) = Replay::new(source).keep(limit);
            let mut most = 0;
            for stop in stops {
                let mut sent = 0;
                for n in 0..stop {
                    match body.frame().await {
                        Some(frame) => {
                            let data = frame.unwrap().into_data().unwrap();
                            let expected = &whole.as_bytes()[sent..sent + data.len()];
                            assert_eq!(expected, &data[..], "{n}");
                            sent += data.len();
                        }
                        None => assert_eq!(sent, whole.len()),
                    }
                }
                most = most.max(sent);
                assert!(body.size_hint().lower() <= (whole.len() - sent) as u64);
                drop(body);
                let fits = most <= limit;
                let again = kept.again().await;
                assert_eq!(again.is_some(), fits);
                let Some(next) = again else { return };
                (body, kept) = next;
            }
            assert_eq!(body.collect().await.unwrap().to_bytes(), whole.as_bytes());
        });
    }
}

/// Answers a gRPC call with a message and these trailers.
fn streaming(
    status: &'static str,
) -> impl Clone
+ tower_service::Service<
    Request<Full<Bytes>>,
    Response = Response<Boxed>,
    Error = BoxError,
    Future: Send,
> {
    tower::service_fn(move |_: Request<Full<Bytes>>| async move {
        let mut trailers = HeaderMap::new();
        trailers.insert("grpc-status", status.parse().unwrap());
        let frames = [Frame::data(Bytes::from_static(b"half")), Frame::trailers(trailers)].map(Ok);
        Ok(Response::new(StreamBody::new(stream::iter(frames)).boxed_unsync()))
    })
}

/// What fails after its first message is counted when the trailers tell, and never retried.
#[tokio::test(start_paused = true)]
async fn trailers_are_counted_when_they_come() {
    for (status, expected) in
        [("0", [1, 0, 0]), ("13", [1, 0, 0]), ("14", [0, 1, 0]), ("4", [0, 0, 1]), ("1", [0, 0, 0])]
    {
        let layer = Layer::new("streams");
        let service = layer.layer(streaming(status));
        let fates = || {
            let counts = layer.counts().attempts[Criticality::Critical.index()];
            [counts.accepted, counts.refused, counts.unanswered]
        };
        let response = service.clone().oneshot(super::support::grpc()).await.unwrap();
        assert_eq!(fates(), [0; 3]);
        let mut body = response.into_body();
        assert!(!body.is_end_stream());
        body.frame().await.unwrap().unwrap();
        assert_eq!(fates(), [0; 3]);
        body.frame().await.unwrap().unwrap();
        assert_eq!(fates(), expected, "{status}");
        assert!(body.frame().await.is_none());
        drop(body);
        assert_eq!(fates(), expected, "{status}");
        // Who does not want the rest says nothing about the backend.
        let half = service.clone().oneshot(super::support::grpc()).await.unwrap();
        drop(half);
        assert_eq!(fates(), expected);
        assert_eq!(layer.counts().retries.retries, 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_in_plain_http_is_judged_by_its_head() {
    let layer = Layer::new("plain");
    let service = layer.layer(Backend::script(vec![answer(500, &[])]));
    let response = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(layer.counts().attempts[Criticality::Critical.index()].accepted, 1);
    drop(response);
    assert_eq!(layer.counts().attempts[Criticality::Critical.index()].requests(), 1);
}
