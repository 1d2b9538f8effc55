//! Connections that become something else.

use crate::support::{ANY, Running, config, program, read_answer};
use bytes::Bytes;
use core::time::Duration;
use http::{Response, StatusCode};
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use tidegate_proxy::EdgeConfig;
use tidegate_proxy::edge::Allowance;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const ASK: &[u8] = b"GET /chat HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: echo\r\n\r\n";

/// A program that says all again in capitals, once the protocol is changed.
async fn loud() -> SocketAddr {
    program(|mut request| async move {
        assert_eq!(request.headers()["upgrade"], "echo");
        let upgraded = hyper::upgrade::on(&mut request);
        tokio::spawn(async move {
            let mut io = TokioIo::new(upgraded.await.unwrap());
            let mut buffer = [0; 1024];
            while let Ok(read @ 1..) = io.read(&mut buffer).await {
                io.write_all(&buffer[..read].to_ascii_uppercase()).await.unwrap();
            }
        });
        let mut response = Response::new(Full::<Bytes>::default());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        response.headers_mut().insert("upgrade", "echo".parse().unwrap());
        response.headers_mut().insert("connection", "upgrade".parse().unwrap());
        response
    })
    .await
}

#[tokio::test]
async fn what_follows_an_upgrade_passes_both_ways() {
    let proxy = Running::start(config(loud().await));
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(ASK).await.unwrap();
    let head = read_answer(&mut io).await.to_lowercase();
    assert!(head.starts_with("http/1.1 101"), "{head}");
    assert!(head.contains("upgrade: echo") && head.contains("connection: upgrade"), "{head}");
    for word in ["hello", "again"] {
        io.write_all(word.as_bytes()).await.unwrap();
        let mut echoed = vec![0; word.len()];
        io.read_exact(&mut echoed).await.unwrap();
        assert_eq!(echoed, word.to_ascii_uppercase().as_bytes());
    }
    // It is no request any more.
    assert_eq!(proxy.get().task().gate().counts().inflight(), 0);
}

/// Whether somebody is let in at `address`: asked again until it is as it should be, as places are
/// given back a moment after their connections have ended.
async fn is_let_in(address: SocketAddr, should: bool) -> bool {
    let mut found = !should;
    for _ in 0..200 {
        let mut answer = Vec::new();
        // Who is not let in is cut off, be it while it connects, writes or reads.
        if let Ok(mut io) = TcpStream::connect(address).await {
            let ask = b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
            let _ = io.write_all(ask).await;
            let _ = io.read_to_end(&mut answer).await;
        }
        found = answer.starts_with(b"HTTP/1.1");
        if found == should {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    found
}

/// What is no HTTP any more is a connection all the same: without its place, whoever asks for an
/// upgrade could have any number of them.
#[tokio::test]
async fn a_tunnel_keeps_its_place() {
    for edge in [false, true] {
        let mut config = config(loud().await);
        if edge {
            let mut strangers = EdgeConfig::default();
            strangers.connections = Allowance::at_once(1);
            config.edge = Some(strangers);
        } else {
            config.connections.open_max = 1;
        }
        let proxy = Running::start(config);
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(ASK).await.unwrap();
        assert!(read_answer(&mut io).await.starts_with("HTTP/1.1 101"));
        let mut echoed = [0; 2];
        io.write_all(b"hi").await.unwrap();
        io.read_exact(&mut echoed).await.unwrap();
        for _ in 0..10 {
            assert!(!is_let_in(proxy.address(), false).await, "edge: {edge}");
        }
        drop(io);
        assert!(is_let_in(proxy.address(), true).await, "edge: {edge}");
    }
}

#[tokio::test]
async fn a_program_that_does_not_want_to_may_just_answer() {
    let proxy = Running::start(config(program(crate::support::echo).await));
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(ASK).await.unwrap();
    let answer = read_answer(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn nobody_is_upgraded_who_did_not_ask() {
    let listener = TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 1024];
        let _ = io.read(&mut buffer).await;
        let answer =
            b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n";
        io.write_all(answer).await.unwrap();
        let _ = io.read(&mut buffer).await;
    });
    let proxy = Running::start(config(address));
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    let answer = read_answer(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 502"), "{answer}");
}
