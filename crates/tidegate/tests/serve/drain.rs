//! The end of a task.

use crate::common::{Client, Server, soon, until};
use axum::Router;
use axum::routing::get;
use std::sync::Arc;
use tidegate::life::Phase;
use tokio::sync::{Semaphore, mpsc};

/// A router whose `/slow` tells when it has begun, and ends when it is let.
pub(crate) fn slow() -> (Router, mpsc::UnboundedReceiver<()>, Arc<Semaphore>) {
    let (begun, begins) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let handler = move || async move {
        begun.send(()).unwrap();
        held.acquire().await.unwrap().forget();
        "done"
    };
    let router = Router::new().route("/slow", get(handler)).route("/", get(|| async { "hello" }));
    (router, begins, gate)
}

async fn begin_slow(server: &Server, begins: &mut mpsc::UnboundedReceiver<()>) -> Client {
    let mut client = server.connect().await;
    client.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    soon(begins.recv()).await.unwrap();
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lame_duck_serves_and_says_goodbye_and_then_finishes() {
    let (router, mut begins, gate) = slow();
    let server = Server::start(router).await;
    let mut idle = server.connect().await;
    let answer = idle.get("/").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
    assert!(!answer.has("connection: close"), "{}", answer.head);
    let mut busy = begin_slow(&server, &mut begins).await;

    assert_eq!(server.life.stop(), Phase::LameDuck);
    // A request may be on its way on an idle connection, and whoever comes now is served as well.
    let answer = idle.get("/").await;
    assert!(answer.status == 200 && answer.has("connection: close"), "{}", answer.head);
    idle.closed().await;
    let mut unused = server.connect().await;
    let mut late = server.connect().await;
    let answer = late.get("/").await;
    assert_eq!(answer.status, 200);
    assert!(answer.has("connection: close"), "{}", answer.head);
    assert!(answer.has("x-envoy-immediate-health-check-fail: true"), "{}", answer.head);
    late.closed().await;

    assert_eq!(server.life.hasten(), Phase::Draining);
    unused.closed().await;
    let address = server.address;
    // The listener is closed some time after.
    soon(async {
        while tokio::net::TcpStream::connect(address).await.is_ok() {
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert!(!server.running.is_finished());
    gate.add_permits(1);
    let answer = busy.answer().await.unwrap();
    assert_eq!((answer.status, answer.body.as_str()), (200, "done"));
    assert!(answer.has("connection: close"), "{}", answer.head);
    let life = server.life.clone();
    server.ended().await.unwrap();
    assert_eq!(life.phase(), Phase::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_finish_is_cut() {
    let (router, mut begins, _gate) = slow();
    let server = Server::start(router).await;
    let mut stuck = begin_slow(&server, &mut begins).await;
    server.life.stop();
    assert_eq!(server.life.hasten(), Phase::Draining);
    assert_eq!(server.life.hasten(), Phase::Gone);
    assert!(stuck.answer().await.is_none());
    let counters = Arc::clone(&server.counters);
    server.ended().await.unwrap();
    assert_eq!(counters.cut.load(std::sync::atomic::Ordering::Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_ready_when_it_is_warm() {
    let (warm, warmed) = tokio::sync::oneshot::channel::<()>();
    let server = Server::with(slow().0, |serve| serve.prewarm(warmed)).await;
    // It listens, but is not ready.
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(server.life.phase(), Phase::Starting);
    warm.send(()).unwrap();
    until(|| server.life.phase() == Phase::Serving).await;
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_ends_if_it_cannot_warm_up() {
    let server = Server::with(slow().0, |serve| serve.prewarm(async { Err("no database") })).await;
    let life = server.life.clone();
    let error = server.ended().await.unwrap_err();
    assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "no database");
    assert_eq!(life.phase(), Phase::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_servers_of_one_task_wait_for_each_other() {
    let life = crate::common::patient();
    let (router, mut begins, gate) = slow();
    let busy = Server::with(router, |serve| serve.life(life.clone())).await;
    let idle = Server::with(slow().0, |serve| serve.life(life.clone())).await;
    let mut client = begin_slow(&busy, &mut begins).await;
    until(|| life.phase() == Phase::Serving).await;
    life.stop();
    life.hasten();
    idle.ended().await.unwrap();
    assert_eq!(life.phase(), Phase::Draining);
    gate.add_permits(1);
    assert_eq!(client.answer().await.unwrap().body, "done");
    busy.ended().await.unwrap();
    assert_eq!(life.phase(), Phase::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_is_replaced_does_not_ask_to_be_left_alone() {
    let server = Server::start(slow().0).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    assert_eq!(server.life.replaced(), Phase::LameDuck);
    let answer = client.get("/").await;
    assert!(answer.has("connection: close"), "{}", answer.head);
    assert!(!answer.has("x-envoy-immediate-health-check-fail: true"), "{}", answer.head);
    client.closed().await;
    server.life.hasten();
    server.ended().await.unwrap();
}
