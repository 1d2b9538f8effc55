//! Requests that are refused while their body is still coming.

use crate::common::{Client, Server, soon};
use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use core::time::Duration;
use tidegate::serve::Limits;
use tokio::io::AsyncWriteExt;

/// Refuses every post without a look at its body.
fn refusing() -> Router {
    Router::new()
        .route("/", get(|| async { "hello" }))
        .route("/", post(|| async { StatusCode::SERVICE_UNAVAILABLE }))
}

/// Sends the whole request before it looks for an answer, as simple clients do.
async fn post_all(client: &mut Client, length: usize) -> std::io::Result<()> {
    client.send(&format!("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n")).await;
    let chunk = vec![b'x'; 16 * 1024];
    for _ in 0..length / chunk.len() {
        soon(client.io.write_all(&chunk)).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_a_quarter_of_a_mebibyte_sees_the_refusal_and_goes_on() {
    let server = Server::start(refusing()).await;
    let mut client = server.connect().await;
    for _ in 0..20 {
        post_all(&mut client, 256 * 1024).await.unwrap();
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.status, 503);
        assert!(!answer.has("connection: close"), "{}", answer.head);
    }
    assert_eq!(client.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_with_more_than_that_sees_it_too_and_has_to_reconnect() {
    let mut limits = Limits::default();
    limits.discard_max = 64 * 1024;
    limits.discard_timeout = Duration::from_secs(60);
    let server = Server::with(refusing(), |serve| serve.limits(limits)).await;
    let mut client = server.connect().await;
    post_all(&mut client, 16 * 1024 * 1024).await.unwrap();
    assert_eq!(client.answer().await.unwrap().status, 503);
    client.closed().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_is_dropped_half_read_is_discarded_as_well() {
    use http_body_util::BodyExt;
    let half = |mut body: axum::body::Body| async move {
        body.frame().await.unwrap().unwrap();
        StatusCode::INSUFFICIENT_STORAGE
    };
    let server = Server::start(Router::new().route("/", post(half))).await;
    let mut client = server.connect().await;
    for _ in 0..2 {
        post_all(&mut client, 256 * 1024).await.unwrap();
        assert_eq!(client.answer().await.unwrap().status, 507);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_asks_first_is_not_told_to_go_on() {
    let server = Server::start(refusing()).await;
    let mut client = server.connect().await;
    let head = "POST / HTTP/1.1\r\nhost: a\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n";
    client.send(head).await;
    // The first answer of all, and no 100 before it.
    assert_eq!(client.answer().await.unwrap().status, 503);
}

/// How long nothing may move, in the tests below.
fn impatient() -> Limits {
    let mut limits = Limits::default();
    limits.stall_max = Some(Duration::from_millis(50));
    limits
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let read = |body: axum::body::Body| async {
        match axum::body::to_bytes(body, usize::MAX).await {
            Ok(_) => (StatusCode::OK, String::new()),
            Err(error) => (StatusCode::REQUEST_TIMEOUT, error.to_string()),
        }
    };
    let router = Router::new().route("/", post(read));
    let server = Server::with(router, |serve| serve.limits(impatient())).await;
    let mut client = server.connect().await;
    client.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\n1234").await;
    let answer = client.answer().await.unwrap();
    assert_eq!(answer.status, 408);
    assert_eq!(answer.body, "the client has stopped sending the body");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_nobody_reads_is_not_in_flight_for_ever() {
    // More than all buffers on the way hold.
    let (begun, mut begins) = tokio::sync::mpsc::unbounded_channel();
    let large = move || async move {
        begun.send(()).unwrap();
        vec![0_u8; 64 << 20]
    };
    let router = Router::new().route("/", get(large));
    let server = Server::with(router, |serve| serve.limits(impatient())).await;
    let mut client = server.connect().await;
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    soon(begins.recv()).await.unwrap();
    server.life.stop();
    server.life.hasten();
    // It would wait for the answer to be read.
    server.ended().await.unwrap();
    drop(client);
}
