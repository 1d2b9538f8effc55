//! However a request ends, its permit comes back, once.
//!
//! Each test lets requests end in one way, again and again, and waits until nothing is in flight.
//! A permit that were lost would keep a test waiting; one that came back twice would show in the
//! count of what was done.

use crate::support::{Client, VERSIONS, Version, hello, idle, serve};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use http_body_util::BodyExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::Task;
use tokio::sync::Notify;

const ROUNDS: u64 = 5;

fn request(version: Version) -> http::request::Builder {
    let uri = if version == Version::H2c { "http://localhost/" } else { "/" };
    http::Request::get(uri).header("host", "localhost")
}

async fn all_back(task: &Task, expected: u64) {
    while task.gate().counts().completed() < expected {
        tokio::task::yield_now().await;
    }
    idle(task).await;
    assert_eq!(task.gate().counts().completed(), expected);
}

#[tokio::test]
async fn answers_with_and_without_a_body() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        let router = Router::new()
            .route("/", get(|| async { "something" }))
            .route("/nothing", get(|| async {}))
            .layer(task.layer());
        let mut client = Client::connect(serve(router).await, version).await;
        for _ in 0..ROUNDS {
            assert_eq!(client.get("/", &[]).await.body(), "something");
            assert_eq!(client.get("/nothing", &[]).await.body(), "");
        }
        all_back(&task, 2 * ROUNDS).await;
    }
}

#[tokio::test]
async fn a_handler_that_panics() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        let panics = get(|| async {
            tokio::task::yield_now().await;
            std::panic::resume_unwind(Box::new("on purpose"));
            #[expect(unreachable_code, reason = "gives the handler its type")]
            ""
        });
        let address = serve(Router::new().route("/", panics).layer(task.layer())).await;
        for _ in 0..ROUNDS {
            let client = Client::connect(address, version).await;
            assert!(client.try_send(request(version)).await.is_err());
        }
        all_back(&task, ROUNDS).await;
        assert_eq!(task.snapshot().failed, ROUNDS);
    }
}

/// A panic is a failure as well where somebody catches it before the connection ends, where the
/// handler is called, and where its body is read.
#[tokio::test]
async fn a_panic_is_a_failure_wherever_it_comes_from() {
    use futures_util::FutureExt;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    let panics = || -> Body { resume_unwind(Box::new("on purpose")) };
    let body = move || {
        let parts = futures_util::stream::poll_fn(move |_| {
            drop(panics());
            std::task::Poll::Ready(Some(Ok::<_, std::convert::Infallible>(Bytes::new())))
        });
        Body::from_stream(parts)
    };
    let task = Task::builder("test").build().unwrap();
    let layer = task.layer();
    let service = tower::service_fn(move |request: http::Request<Body>| {
        let path = request.uri().path().to_owned();
        if path == "/call" {
            drop(panics());
        }
        async move {
            tokio::task::yield_now().await;
            let body = if path == "/poll" { panics() } else { body() };
            Ok::<_, std::convert::Infallible>(http::Response::new(body))
        }
    });
    let mut service = tower::Layer::layer(&layer, service);
    for (path, failed) in [("/call", 1), ("/poll", 2), ("/body", 3)] {
        let request = http::Request::get(path).body(Body::empty()).unwrap();
        let call = catch_unwind(AssertUnwindSafe(|| tower::Service::call(&mut service, request)));
        if let Ok(call) = call
            && let Ok(answer) = AssertUnwindSafe(call).catch_unwind().await
        {
            let read = AssertUnwindSafe(answer.unwrap().into_body().collect()).catch_unwind();
            assert!(read.await.is_err());
        }
        let snapshot = task.snapshot();
        assert_eq!((snapshot.failed, snapshot.requests.completed()), (failed, failed), "{path}");
        assert_eq!(snapshot.good.iter().sum::<u64>(), 0, "{path}");
    }
}

#[tokio::test]
async fn a_caller_who_hangs_up_while_the_handler_waits() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        let reached = Arc::new(Notify::new());
        let here = Arc::clone(&reached);
        let waits = get(move || async move {
            here.notify_one();
            std::future::pending::<&str>().await
        });
        let address = serve(Router::new().route("/", waits).layer(task.layer())).await;
        for _ in 0..ROUNDS {
            let client = Client::connect(address, version).await;
            let call = tokio::spawn(client.try_send(request(version)));
            reached.notified().await;
            // Drops the connection (HTTP/1.1), or resets the stream (h2).
            call.abort();
        }
        all_back(&task, ROUNDS).await;
    }
}

/// A body without end, and how much of it was asked for.
fn endless(asked: &Arc<AtomicU64>) -> Body {
    let asked = Arc::clone(asked);
    Body::from_stream(futures_util::stream::repeat_with(move || {
        asked.fetch_add(1, Ordering::Relaxed);
        Ok::<_, std::convert::Infallible>(Bytes::from_static(&[7; 1_024]))
    }))
}

#[tokio::test]
async fn a_caller_who_hangs_up_in_the_middle_of_the_body() {
    for version in VERSIONS {
        let task = Task::builder("test").build().unwrap();
        let asked = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&asked);
        let streams = get(move || async move { endless(&counted) });
        let address = serve(Router::new().route("/", streams).layer(task.layer())).await;
        for _ in 0..ROUNDS {
            let mut client = Client::connect(address, version).await;
            let mut answer = client.send(request(version)).await;
            for _ in 0..3 {
                assert!(answer.body_mut().frame().await.unwrap().is_ok());
            }
            assert_eq!(task.gate().counts().inflight(), 1, "a body is part of its request");
        }
        all_back(&task, ROUNDS).await;
        assert!(asked.load(Ordering::Relaxed) >= 3 * ROUNDS);
    }
}

#[tokio::test]
async fn streams_that_are_reset_while_others_go_on() {
    let task = Task::builder("test").build().unwrap();
    let streams = get(|| async { endless(&Arc::default()) });
    let router = Router::new().route("/", streams).route("/hello", get(|| async { "hello" }));
    let address = serve(router.layer(task.layer())).await;
    let mut client = Client::connect(address, Version::H2c).await;
    let mut held = Vec::new();
    for _ in 0..ROUNDS {
        let mut answer = client.send(request(Version::H2c)).await;
        assert!(answer.body_mut().frame().await.unwrap().is_ok());
        held.push(answer);
    }
    assert_eq!(task.gate().counts().inflight(), ROUNDS);
    drop(held);
    assert_eq!(client.get("/hello", &[]).await.body(), "hello");
    all_back(&task, ROUNDS + 1).await;
}

#[tokio::test]
async fn a_body_that_fails() {
    let task = Task::builder("test").build().unwrap();
    let fails = get(|| async {
        let parts = [Ok(Bytes::from_static(b"so far")), Err("so good")];
        Body::from_stream(futures_util::stream::iter(parts))
    });
    let address = serve(Router::new().route("/", fails).layer(task.layer())).await;
    for _ in 0..ROUNDS {
        let client = Client::connect(address, Version::Http1).await;
        // The connection may break before the head of the answer was written.
        if let Ok(answer) = client.try_send(request(Version::Http1)).await {
            assert!(answer.into_body().collect().await.is_err());
        }
    }
    all_back(&task, ROUNDS).await;
    assert_eq!(task.snapshot().failed, ROUNDS);
}

/// A body of these parts which does not say how long it is.
fn parts<const N: usize>(parts: [Result<&'static str, &'static str>; N]) -> Body {
    Body::from_stream(futures_util::stream::iter(parts.map(|part| part.map(Bytes::from))))
}

/// What was cut off is no good answer, whatever its head has promised.
#[tokio::test]
async fn an_answer_is_good_if_all_of_it_was_taken() {
    let long = [("content-length", "5")];
    let router = Router::new()
        .route("/whole", get(|| async { "whole" }))
        .route("/empty", get(|| async {}))
        .route("/streamed", get(|| async { parts([Ok("so "), Ok("far")]) }))
        .route("/failing", get(|| async { parts([Ok("so far"), Err("so good")]) }))
        .route("/endless", get(|| async { endless(&Arc::default()) }))
        .route("/204", get(|| async { (http::StatusCode::NO_CONTENT, endless(&Arc::default())) }))
        .route("/304", get(|| async { (http::StatusCode::NOT_MODIFIED, endless(&Arc::default())) }))
        // As long as it says, and then it does not say that it is over.
        .route("/told", get(move || async move { (long, then_silent("12345")) }))
        .route("/short", get(move || async move { (long, then_silent("123")) }));
    for version in VERSIONS {
        for (method, path, good) in [
            ("GET", "/whole", 1),
            ("GET", "/empty", 1),
            ("GET", "/streamed", 1),
            ("GET", "/failing", 0),
            ("GET", "/endless", 0),
            ("GET", "/204", 1),
            ("GET", "/304", 1),
            ("HEAD", "/whole", 1),
            ("HEAD", "/streamed", 1),
            ("HEAD", "/endless", 1),
            ("GET", "/told", 1),
            ("GET", "/short", 0),
        ] {
            let task = Task::builder("test").build().unwrap();
            let address = serve(router.clone().layer(task.layer())).await;
            let client = Client::connect(address, version).await;
            let uri = if version == Version::H2c {
                format!("http://localhost{path}")
            } else {
                path.to_owned()
            };
            let request = http::Request::builder().method(method).uri(uri);
            // The connection may break before the head of the answer was written.
            if let Ok(mut answer) = client.try_send(request.header("host", "localhost")).await {
                let bytes = if path == "/short" { 3 } else { 5 };
                let mut read = 0;
                while read < bytes
                    && let Some(Ok(frame)) = answer.body_mut().frame().await
                {
                    read += frame.into_data().map_or(0, |data| data.len());
                }
                // Whoever is at the end of it reads that as well; others hang up.
                if matches!(path, "/whole" | "/streamed") {
                    while answer.body_mut().frame().await.is_some() {}
                }
            }
            all_back(&task, 1).await;
            let found: u64 = task.snapshot().good.iter().sum();
            assert_eq!(found, good, "{method} {path} over {version:?}");
        }
    }
}

/// A body that is neither over nor goes on.
fn then_silent(text: &'static str) -> Body {
    let first = futures_util::stream::iter([Ok::<_, std::convert::Infallible>(text)]);
    Body::from_stream(futures_util::StreamExt::chain(first, futures_util::stream::pending()))
}

#[tokio::test]
async fn a_permit_comes_back_on_a_thread_that_never_served() {
    let task = Task::builder("test").build().unwrap();
    let router = hello(&task);
    let call = tower::ServiceExt::oneshot(router, http::Request::new(Body::empty()));
    let answer = call.await.unwrap();
    assert_eq!(task.gate().counts().inflight(), 1, "its body was not read");
    std::thread::spawn(move || drop(answer)).join().unwrap();
    assert_eq!(task.gate().counts().inflight(), 0);
    assert_eq!(task.gate().counts().completed(), 1);
}

/// The permit goes back when the answer is out; what the child uses after that is charged late.
#[tokio::test]
async fn a_child_that_outlives_its_request() {
    let task = Task::builder("test").build().unwrap();
    let go_on = Arc::new(Notify::new());
    let waits = Arc::clone(&go_on);
    let (sender, mut ended) = tokio::sync::mpsc::unbounded_channel();
    let leaves = get(move || async move {
        let (waits, sender) = (Arc::clone(&waits), sender.clone());
        tidegate::spawn(async move {
            waits.notified().await;
            let spent = tidegate::context::cost_so_far();
            crate::support::burn(2);
            sender.send(tidegate::context::cost_so_far() - spent).unwrap();
        });
        "bye"
    });
    let router = Router::new().route("/", leaves).layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    assert_eq!(client.get("/", &[]).await.body(), "bye");
    all_back(&task, 1).await;
    let worked = task.gate().counts().worked();
    assert_eq!(task.snapshot().late.as_nanos(), 0);
    go_on.notify_one();
    let spent = ended.recv().await.unwrap();
    while task.snapshot().late.as_nanos() == 0 {
        tokio::task::yield_now().await;
    }
    assert!(task.snapshot().late >= spent);
    assert_eq!(task.gate().counts().worked(), worked);
    assert_eq!(task.gate().counts().completed(), 1);
}
