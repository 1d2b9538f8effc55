//! The layer as a tower service, without a server.

use axum::body::Body;
use http::{Request, Response};
use http_body_util::BodyExt;
use std::convert::Infallible;
use std::sync::Arc;
use tidegate::Task;
use tidegate_core::levels::Levels;
use tokio::sync::Notify;
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

async fn bytes_of<B>(body: B) -> Vec<u8>
where
    B: BodyExt,
    B::Error: std::fmt::Debug,
{
    body.collect().await.unwrap().to_bytes().to_vec()
}

/// The inner service takes one at a time and is taken. Who is refused is told so all the same; who
/// is admitted waits for it.
#[tokio::test]
async fn a_refusal_does_not_wait_for_the_inner_service() {
    let task = Task::builder("test").build().unwrap();
    let release = Arc::new(Notify::new());
    let held = Arc::clone(&release);
    let handler = service_fn(move |_: Request<Body>| {
        let held = Arc::clone(&held);
        async move {
            held.notified().await;
            Ok::<_, Infallible>(Response::new(Body::from("done")))
        }
    });
    let limited = ConcurrencyLimitLayer::new(1).layer(handler);
    let mut service = task.layer().layer(limited);

    let first = service.ready().await.unwrap().call(Request::new(Body::empty()));
    let first = tokio::spawn(first);
    let second = service.ready().await.unwrap().call(Request::new(Body::empty()));
    let second = tokio::spawn(second);
    tokio::task::yield_now().await;
    assert_eq!(task.gate().counts().inflight(), 2);

    task.gate().set_levels(Levels::CLOSED);
    let refused = service.ready().await.unwrap().call(Request::new(Body::empty())).await.unwrap();
    assert_eq!(refused.status(), 503);
    assert!(!first.is_finished() && !second.is_finished());

    for call in [first, second] {
        release.notify_one();
        let answer = call.await.unwrap().unwrap();
        assert_eq!(bytes_of(answer.into_body()).await, b"done");
    }
    assert_eq!(task.gate().counts().inflight(), 0);
    assert_eq!(task.gate().counts().completed(), 2);
}

#[tokio::test]
async fn errors_of_the_inner_service_are_passed_on() {
    let task = Task::builder("test").build().unwrap();
    let handler = service_fn(|_: Request<Body>| async { Err::<Response<Body>, _>("broken") });
    let service = task.layer().layer(handler);
    assert_eq!(service.oneshot(Request::new(Body::empty())).await.unwrap_err(), "broken");
    assert_eq!(task.gate().counts().completed(), 1);
    assert_eq!(task.snapshot().failed, 1);
}
