//! Clients that mean no good, and programs that break off.

use crate::support::{ANY, Running, config, echo, exchange, program};
use core::sync::atomic::{AtomicUsize, Ordering};
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

/// Requests of which one end could see one and the other two. Each is refused, or reaches the
/// program as exactly one.
const SMUGGLED: &[&str] = &[
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\ntransfer-encoding: chunked\r\n\r\n\
     0\r\n\r\nG",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 4\r\n\r\n\
     5c\r\nGPOST / HTTP/1.1\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhelloG",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5, 6\r\n\r\nhelloG",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: +5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0x5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length : 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding : chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding:\u{b}chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ntransfer-encoding: x\r\n\r\n\
     0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5;a=b\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n\
     ffffffffffffffff1\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 0\r\n\r\n\
     4\r\nabcd\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 3\r\ntransfer-encoding:\tchunked\r\n\r\n\
     0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: CHUNKED\r\ncontent-length: 4\r\n\r\n\
     0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: identity\r\ncontent-length: 4\r\n\r\nabcd",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: \"chunked\"\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nx: y\rtransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nx: y\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5\ncontent-length: 0\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5 \r\ncontent-length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1_0\r\n\r\n0123456789",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length:\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 18446744073709551617\r\n\r\nx",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n-1\r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5 \r\nhello\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\nhello\n0\n\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhelloX\r\n0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n3\r\nabcXX0\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\nhost: y\r\n\r\n",
    "POST / HTTP/1.1\r\nhost: x\r\nconnection: content-length\r\ncontent-length: 5\r\n\r\nhello",
    "POST / HTTP/1.1\r\nhost: x\r\nconnection: transfer-encoding\r\n\
     transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 4\r\n\r\n",
    "GET http://y/ HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET / HTTP/1.1 x\r\nhost: x\r\n\r\n",
    "GET\t/ HTTP/1.1\r\nhost: x\r\n\r\n",
    "\r\n\r\nGET / HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\n: empty\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nno-colon\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\n\
     http2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "GET / HTTP/1.1\r\n host: x\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nx-a: 1\r\n y: 2\r\n\r\n",
    "GET / HTTP/1.1\r\nhost: x\r\nx\u{0}a: 1\r\n\r\n",
    "GET / HTTP/1.1\nhost: x\ncontent-length: 0\n\n",
    "GET / HTTP/1.0\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "GET /\u{1} HTTP/1.1\r\nhost: x\r\n\r\n",
    "GET / HTTP/3.7\r\nhost: x\r\n\r\n",
    "CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n",
];

#[tokio::test]
async fn nothing_is_smuggled() {
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    let address = program(move |request| {
        counted.fetch_add(1, Ordering::SeqCst);
        echo(request)
    })
    .await;
    let proxy = Running::start(config(address));
    let mut answers = 0;
    for smuggled in SMUGGLED {
        // Whatever is left over is another request to us, and not to the program unseen by us.
        let close = format!("{smuggled}ET /next HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
        let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(close.as_bytes()).await.unwrap();
        io.shutdown().await.unwrap();
        let mut answer = Vec::new();
        let _ = io.read_to_end(&mut answer).await;
        answers += String::from_utf8_lossy(&answer).matches("HTTP/1.1 ").count();
        // The proxy is as well as before.
        let well = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        let well = exchange(proxy.address(), well).await;
        assert!(well.starts_with("HTTP/1.1 200"), "{smuggled:?}: {well}");
        answers += 1;
        // All until now, as what broke off midway may come to the program after its answer.
        let requests = seen.load(Ordering::SeqCst);
        assert!(requests <= answers, "{requests} requests, {answers} answers: {smuggled:?}");
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("GPOST") && !text.contains(" GET /next"), "{smuggled:?}: {text}");
    }
}

#[tokio::test]
async fn header_bombs_are_refused() {
    let proxy = Running::start(config(program(echo).await));
    let long = format!("GET / HTTP/1.1\r\nhost: x\r\nx-a: {}\r\n\r\n", "a".repeat(200_000));
    let many = "x-a: 1\r\n".repeat(500);
    let many = format!("GET / HTTP/1.1\r\nhost: x\r\n{many}\r\n");
    for bomb in [long, many] {
        let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        // It may be refused before it is all there.
        let _ = io.write_all(bomb.as_bytes()).await;
        let mut answer = Vec::new();
        let _ = io.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431"), "{answer}");
    }
    let well = exchange(proxy.address(), b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    assert!(well.await.starts_with("HTTP/1.1 200"));
}

/// A program that announces more than it sends.
#[tokio::test]
async fn an_answer_that_is_cut_short_is_seen_to_be() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            let _ = io.read(&mut buffer).await;
            let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf").await;
        }
    });
    let proxy = Running::start(config(address));
    let request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    // We close, as the announced length can be kept no more.
    let answer = exchange(proxy.address(), request).await;
    assert!(answer.ends_with("half"), "{answer}");
    let snapshot = proxy.get().task().snapshot();
    assert_eq!(snapshot.good, [0; 4]);
    assert_eq!((snapshot.failed, snapshot.requests.inflight()), (1, 0));
}

/// It has failed twice, and counts once.
#[tokio::test]
async fn an_error_that_breaks_off_is_one_failure() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let mut buffer = [0; 1024];
            let _ = io.read(&mut buffer).await;
            let _ = io.write_all(b"HTTP/1.1 500 No\r\ncontent-length: 100\r\n\r\nhalf").await;
        }
    });
    let proxy = Running::start(config(address));
    let answer = exchange(proxy.address(), b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(answer.starts_with("HTTP/1.1 500 ") && answer.ends_with("half"), "{answer}");
    assert_eq!(proxy.get().task().snapshot().failed, 1);
}

/// A program that answers before it has the body, and a client that never sends it.
#[tokio::test]
async fn nobody_waits_for_the_body_of_a_stranger() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 1024];
                while let Ok(1..) = io.read(&mut buffer).await {
                    let answer = b"HTTP/1.1 413 Too Large\r\ncontent-length: 2\r\n\r\nno";
                    let _ = io.write_all(answer).await;
                }
            });
        }
    });
    let proxy = Running::start(config(address));
    let mut slow = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    slow.write_all(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n").await.unwrap();
    let answer = crate::support::read_answer(&mut slow).await;
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    for _ in 0..3 {
        let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let answer = crate::support::read_answer(&mut io).await;
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
    drop(slow);
}

/// Most programs do not look whether anybody still waits; what they do is in flight until they have
/// done it.
#[tokio::test]
async fn what_the_program_does_for_a_client_that_left_is_in_flight() {
    let (asked, mut is_asked) = tokio::sync::mpsc::channel(1);
    let (answer, mut may_answer) = tokio::sync::mpsc::channel::<()>(1);
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1024];
        loop {
            let _ = io.read(&mut buffer).await;
            asked.send(()).await.unwrap();
            may_answer.recv().await.unwrap();
            io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
        }
    });
    let proxy = Running::start(config(address));
    let counts = || proxy.get().task().gate().counts();
    let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    is_asked.recv().await.unwrap();
    drop(io);
    // One whose deadline passes is told so at once, and in flight all the same.
    let mut late = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let deadline = b"GET / HTTP/1.1\r\nhost: x\r\nx-envoy-expected-rq-timeout-ms: 1\r\n\r\n";
    late.write_all(deadline).await.unwrap();
    let told = crate::support::read_answer(&mut late).await;
    assert!(told.starts_with("HTTP/1.1 504"), "{told}");
    assert!(counts().inflight() >= 1, "{:?}", counts());
    answer.send(()).await.unwrap();
    while counts().completed() == 0 {
        tokio::task::yield_now().await;
    }
}
