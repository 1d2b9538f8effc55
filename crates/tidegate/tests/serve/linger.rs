//! Who closes first goes on reading for a while, so that the peer is not reset.

use crate::common::{Client, Server, soon, until};
use crate::http2::{self, END_STREAM_AND_HEADERS, GET, HEADERS, WINDOW_UPDATE, frame};
use axum::Router;
use axum::routing::get;
use core::time::Duration;
use std::io;
use std::sync::atomic::Ordering::Relaxed;
use tidegate::life::Phase;
use tidegate::serve::Limits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const CLOSE: &str = "GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n";

/// Nobody lingers for so long, nor sends so much.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.discard_timeout = Duration::from_secs(3_600);
    limits
}

async fn start() -> Server {
    let router = Router::new().route("/", get(|| async { "hello" }));
    Server::with(router, |serve| serve.limits(limits())).await
}

/// All that comes until the server says that there is no more.
async fn rest(io: &mut TcpStream) -> Vec<u8> {
    let mut all = Vec::new();
    soon(io.read_to_end(&mut all)).await.unwrap();
    all
}

/// A socket that is closed answers the first of these by a reset, and that fails one of those that
/// follow. The pauses give a server the time to close it, if it does.
async fn says_more(io: &mut TcpStream, more: &[u8]) -> io::Result<()> {
    for _ in 0..16 {
        soon(io.write_all(more)).await?;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut byte = [0];
    assert_eq!(soon(io.read(&mut byte)).await?, 0);
    Ok(())
}

/// A connection of HTTP/2 that was answered and has ended for the server.
async fn answered(server: &Server) -> TcpStream {
    let mut io = http2::connect(server).await;
    let request = frame(HEADERS, END_STREAM_AND_HEADERS, 1, GET);
    soon(io.write_all(&request)).await.unwrap();
    http2::next(&mut io, HEADERS).await.unwrap();
    // Nonsense ends it at once: a window of a connection cannot grow by nothing.
    soon(io.write_all(&frame(WINDOW_UPDATE, 0, 0, &[0; 4]))).await.unwrap();
    rest(&mut io).await;
    io
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_may_be_opened_after_the_end() {
    let server = start().await;
    let mut io = answered(&server).await;
    let window = frame(WINDOW_UPDATE, 0, 0, &[0, 0, 1, 0]);
    says_more(&mut io, &window).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_may_follow_the_one_that_was_the_last() {
    let server = start().await;
    let mut client = server.connect().await;
    client.send(CLOSE).await;
    let answer = client.answer().await.unwrap();
    assert!(answer.has("connection: close"));
    assert!(rest(&mut client.io).await.is_empty());
    says_more(&mut client.io, CLOSE.as_bytes()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_goes_on_for_long_is_not_listened_to() {
    let server = start().await;
    for mut io in [answered(&server).await, closed(&server).await.io] {
        let much = vec![0; 64 * 1024];
        // As much as is thrown away, and more than sockets hold.
        let ended = soon(async {
            loop {
                if let Err(error) = io.write_all(&much).await {
                    break error;
                }
            }
        })
        .await;
        let kinds = [io::ErrorKind::ConnectionReset, io::ErrorKind::BrokenPipe];
        assert!(kinds.contains(&ended.kind()), "{ended:?}");
    }
}

async fn closed(server: &Server) -> Client {
    let mut client = server.connect().await;
    client.send(CLOSE).await;
    client.answer().await.unwrap();
    assert!(rest(&mut client.io).await.is_empty());
    client
}

/// It counts as closed, and the end of the drain does not wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_lingers_is_neither_waited_for_nor_cut() {
    let server = start().await;
    let kept = (answered(&server).await, closed(&server).await);
    server.life.stop();
    assert_eq!(server.life.hasten(), Phase::Draining);
    assert_eq!(server.life.hasten(), Phase::Gone);
    let counters = std::sync::Arc::clone(&server.counters);
    server.ended().await.unwrap();
    assert_eq!(counters.cut.load(Relaxed), 0);
    drop(kept);
}

/// Ten thousand that were idle are closed without a look back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn those_that_rest_are_closed_at_once() {
    let mut limits = limits();
    limits.rest_after = Some(Duration::from_millis(1));
    let router = Router::new().route("/", get(|| async { "hello" }));
    let server = Server::with(router, |serve| serve.limits(limits)).await;
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    until(|| server.counters.rested.load(Relaxed) > 0).await;
    server.life.stop();
    server.life.hasten();
    let counters = std::sync::Arc::clone(&server.counters);
    // The client is still there, and the drain has an hour.
    server.ended().await.unwrap();
    assert_eq!(counters.cut.load(Relaxed), 0);
    drop(client);
}
