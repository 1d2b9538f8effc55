//! Connections to the program: how many, and for how long.

use crate::support::{ANY, Running, client, client_h2, config, echo, text};
use bytes::Bytes;
use core::time::Duration;
use http::Request;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_proxy::Protocol;
use tokio::net::TcpListener;
use tokio::sync::Barrier;

fn get() -> Request<Full<Bytes>> {
    Request::builder().uri("http://x/").header("host", "x").body(Full::default()).unwrap()
}

/// Connections that a program has had, and has.
#[derive(Debug, Default)]
struct Connections {
    all: AtomicUsize,
    open: AtomicUsize,
}

impl Connections {
    fn all(&self) -> usize {
        self.all.load(Ordering::Relaxed)
    }

    /// Waits until so many are open.
    async fn fall_to(&self, count: usize) {
        while self.open.load(Ordering::Relaxed) != count {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A program that allows so many streams on a connection, and answers when `together` ask.
async fn program(streams: u32, together: usize) -> (SocketAddr, Arc<Connections>) {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    let connections = Arc::new(Connections::default());
    let (counted, barrier) = (Arc::clone(&connections), Arc::new(Barrier::new(together)));
    tokio::spawn(async move {
        while let Ok((io, _)) = listener.accept().await {
            counted.all.fetch_add(1, Ordering::Relaxed);
            counted.open.fetch_add(1, Ordering::Relaxed);
            let (counted, barrier) = (Arc::clone(&counted), Arc::clone(&barrier));
            tokio::spawn(async move {
                let service = service_fn(move |request| {
                    let barrier = Arc::clone(&barrier);
                    async move {
                        barrier.wait().await;
                        Ok::<_, Infallible>(echo(request).await)
                    }
                });
                let mut http = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new());
                http.http2().max_concurrent_streams(streams);
                let _ = http.serve_connection(TokioIo::new(io), service).await;
                counted.open.fetch_sub(1, Ordering::Relaxed);
            });
        }
    });
    (address, connections)
}

#[tokio::test]
async fn there_are_more_connections_when_all_streams_are_taken_and_fewer_again_later() {
    // Seven at once over connections of three streams: fewer than three and nobody is answered.
    let (address, connections) = program(3, 7).await;
    let mut config = config(address);
    config.pool.protocol = Protocol::Http2;
    config.pool.idle_max = Duration::from_millis(50);
    let proxy = Running::start(config);
    let client = client_h2(proxy.address()).await;
    for _ in 0..3 {
        let asked: Vec<_> = (0..7)
            .map(|_| {
                let mut client = client.clone();
                tokio::spawn(async move { client.send_request(get()).await.unwrap().status() })
            })
            .collect();
        for answer in asked {
            assert_eq!(answer.await.unwrap(), 200);
        }
        // The first stays for the next request; the others go although nobody asks.
        connections.fall_to(1).await;
    }
    // Three, and then two more in each of the other rounds.
    assert_eq!(connections.all(), 7, "{connections:?}");
}

#[tokio::test]
async fn of_http2_all_are_closed_when_nobody_has_asked_for_long() {
    let (address, connections) = program(3, 7).await;
    let mut config = config(address);
    config.pool.protocol = Protocol::Http2;
    config.pool.idle_max = Duration::from_millis(50);
    config.pool.shared_idle_max = Duration::from_millis(100);
    let proxy = Running::start(config);
    let client = client_h2(proxy.address()).await;
    let asked = (0..7).map(|_| {
        let mut client = client.clone();
        tokio::spawn(async move { client.send_request(get()).await.unwrap().status() })
    });
    for answer in asked.collect::<Vec<_>>() {
        assert_eq!(answer.await.unwrap(), 200);
    }
    connections.fall_to(0).await;
}

#[tokio::test]
async fn idle_connections_are_closed_though_nobody_asks() {
    let (address, connections) = program(3, 4).await;
    let mut config = config(address);
    config.pool.idle_max = Duration::from_millis(50);
    let proxy = Running::start(config);
    let mut asked = Vec::new();
    for _ in 0..4 {
        let mut client = client(proxy.address()).await;
        asked.push(tokio::spawn(async move {
            let answer = client.send_request(get()).await.unwrap();
            text(answer).await;
            client
        }));
    }
    for answer in asked {
        answer.await.unwrap();
    }
    assert_eq!(connections.all(), 4);
    connections.fall_to(0).await;
}

#[tokio::test]
async fn callers_that_ask_and_leave_leave_only_so_much_behind() {
    let (address, connections) = program(3, 1_000_000).await;
    let mut config = config(address);
    config.dark = true;
    config.alone_max = 5;
    let proxy = Running::start(config);
    for round in 0..20 {
        let mut client = client(proxy.address()).await;
        let asked = tokio::spawn(async move { client.send_request(get()).await });
        while connections.all() <= round {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        asked.abort();
    }
    connections.fall_to(5).await;
}

#[tokio::test]
async fn what_was_not_sent_when_its_caller_left_is_never_sent() {
    // Nobody takes connections here: once the queue of the system is full, they are on their way.
    let listener = std::net::TcpListener::bind(ANY).unwrap();
    let address = listener.local_addr().unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let mut queued = vec![std::net::TcpStream::connect(address).unwrap()];
    let soon = Duration::from_millis(200);
    while let Ok(one) = std::net::TcpStream::connect_timeout(&address, soon) {
        queued.push(one);
    }
    let mut config = config(address);
    config.pool.connect_timeout = Duration::from_secs(600);
    let proxy = Running::start(config);
    let counts = || proxy.get().task().gate().counts();
    for round in 1..=3 {
        let mut client = client(proxy.address()).await;
        let asked = tokio::spawn(async move { client.send_request(get()).await });
        while counts().inflight() == 0 {
            tokio::task::yield_now().await;
        }
        asked.abort();
        while counts().completed() < round {
            tokio::task::yield_now().await;
        }
    }
    assert_eq!(counts().inflight(), 0);
}
