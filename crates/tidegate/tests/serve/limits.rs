//! Peers that send too little, or too much.

use crate::common::Server;
use crate::drain::slow;
use core::time::Duration;
use tidegate::serve::Limits;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_does_not_finish_its_headers_is_cut_off() {
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_millis(50);
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    for beginning in [
        // Nothing at all, before it is known which protocol it is.
        "",
        // The beginning of HTTP/2, which may yet become HTTP/1.
        "P",
        "PRI * HTTP/2.0\r\n\r\nSM\r\n",
        // A head without an end.
        "GET / HTTP/1.1\r\nhost: a\r\n",
        // A connection that was good before.
        "GET / HTTP/1.1\r\nhost: a\r\n\r\nGET /",
    ] {
        let mut client = server.connect().await;
        client.send(beginning).await;
        client.closed().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_byte_now_and_then_does_not_help() {
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_millis(200);
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    let mut client = server.connect().await;
    let (mut read, mut write) = client.io.split();
    let drip = async {
        use tokio::io::AsyncWriteExt;
        // Far more bytes, and more time, than it will be given. The pause is what the attack is
        // made of; nothing depends on how long it really is.
        for byte in b"GET / HTTP/1.1\r\nx: ".iter().chain(std::iter::repeat_n(&b'y', 100_000)) {
            if write.write_all(&[*byte]).await.is_err() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        panic!("it was never cut off");
    };
    let closed = async {
        use tokio::io::AsyncReadExt;
        while read.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
    };
    crate::common::soon(async {
        tokio::select! {
            () = drip => {}
            () = closed => {}
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_are_too_many_or_too_large_are_refused() {
    let server = Server::start(slow().0).await;
    for (lines, length, status) in [(90, 10, 200), (101, 1, 431), (1, 60 * 1024, 200)] {
        let header = format!("x: {}\r\n", "y".repeat(length)).repeat(lines);
        let mut client = server.connect().await;
        client.send(&format!("GET / HTTP/1.1\r\n{header}\r\n")).await;
        let answer = client.answer().await.unwrap();
        assert_eq!(answer.status, status, "{lines} lines of {length}");
    }
    // Too large, and still coming: the answer comes before the end of it.
    let mut client = server.connect().await;
    client.send(&format!("GET / HTTP/1.1\r\nx: {}", "y".repeat(70 * 1024))).await;
    assert_eq!(client.answer().await.map(|answer| answer.status), Some(431));
}
