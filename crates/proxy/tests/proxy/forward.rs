//! Requests and answers pass as they should.

use crate::support::{Running, client, client_h2, config, echo, exchange, program, text};
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;
use http::{Request, Response, StatusCode, Version};
use http_body_util::{BodyExt, Full};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;

fn get(path: &str) -> Request<Full<Bytes>> {
    Request::builder().uri(path).header("host", "shop").body(Full::default()).unwrap()
}

#[tokio::test]
async fn a_request_arrives_as_it_was_sent() {
    let proxy = Running::start(config(program(echo).await));
    let request = "POST /a?b=c HTTP/1.1\r\nhost: shop\r\nx-a: 1\r\nconnection: close, x-b\r\n\
                   x-b: 2\r\ncontent-length: 5\r\n\r\nhello";
    let answer = exchange(proxy.address(), request.as_bytes()).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let expected =
        "POST /a?b=c HTTP/1.1\ncontent-length: 5\nhost: shop\nvia: 1.1 tidegate\nx-a: 1\n\nhello";
    assert_eq!(body, expected);
}

#[tokio::test]
async fn http2_in_front_and_http1_behind() {
    let proxy = Running::start(config(program(echo).await));
    let mut client = client_h2(proxy.address()).await;
    let request = Request::builder().uri("http://shop/x").body(Full::from("body")).unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.version(), Version::HTTP_2);
    let text = text(response).await;
    assert!(text.starts_with("GET /x HTTP/1.1\n"), "{text}");
    assert!(text.contains("\nhost: shop\n") && text.ends_with("\n\nbody"), "{text}");
}

#[tokio::test]
async fn http1_in_front_and_http2_behind() {
    let mut config = config(program(echo).await);
    config.pool.protocol = tidegate_proxy::Protocol::Http2;
    let proxy = Running::start(config);
    let mut client = client(proxy.address()).await;
    for _ in 0..3 {
        let text = text(client.send_request(get("/x")).await.unwrap()).await;
        assert!(text.starts_with("GET http://shop/x HTTP/2.0\n"), "{text}");
    }
}

#[tokio::test]
async fn connections_to_the_program_are_used_again() {
    let connections = Arc::new(AtomicUsize::new(0));
    let listener = TcpListener::bind(crate::support::ANY).await.unwrap();
    let (address, counted) = (listener.local_addr().unwrap(), Arc::clone(&connections));
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            counted.fetch_add(1, Ordering::SeqCst);
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while let Ok(1..) = tokio::io::AsyncReadExt::read(&mut io, &mut buffer).await {
                    io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.unwrap();
                }
            });
        }
    });
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    for _ in 0..20 {
        client.ready().await.unwrap();
        let response = client.send_request(get("/")).await.unwrap();
        assert_eq!(text(response).await, "ok");
    }
    assert_eq!(connections.load(Ordering::SeqCst), 1);
}

/// A program that closes each connection after one answer, without saying so.
#[tokio::test]
async fn a_connection_that_was_closed_in_secret_is_nobodys_failure() {
    let listener = TcpListener::bind(crate::support::ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((mut io, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let _ = tokio::io::AsyncReadExt::read(&mut io, &mut buffer).await;
            let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await;
        }
    });
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    for _ in 0..50 {
        client.ready().await.unwrap();
        let response = client.send_request(get("/")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(text(response).await, "ok");
    }
}

#[tokio::test]
async fn bodies_of_many_megabytes_stream_both_ways() {
    let address = program(|request| async move {
        Response::new(Full::new(request.into_body().collect().await.unwrap().to_bytes()))
    })
    .await;
    let proxy = Running::start(config(address));
    let sent: Bytes = (0..20_000_000_u32).map(|n| (n % 251) as u8).collect::<Vec<u8>>().into();
    for http2 in [false, true] {
        let request = |uri| Request::post(uri).header("host", "x").body(Full::new(sent.clone()));
        let response = if http2 {
            let mut client = client_h2(proxy.address()).await;
            client.send_request(request("http://x/").unwrap()).await.unwrap()
        } else {
            let mut client = client(proxy.address()).await;
            client.send_request(request("/").unwrap()).await.unwrap()
        };
        assert_eq!(response.status(), StatusCode::OK);
        assert!(response.into_body().collect().await.unwrap().to_bytes() == sent);
    }
}

#[tokio::test]
async fn answers_without_bodies_keep_their_lengths() {
    let address = program(|request| async move {
        let length = if request.method() == "HEAD" { "1234" } else { "0" };
        let status = if request.uri() == "/304" { 304 } else { 200 };
        let response = Response::builder().status(status).header("content-length", length);
        response.body(Full::default()).unwrap()
    })
    .await;
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    let head = Request::head("/").header("host", "x").body(Full::default()).unwrap();
    let response = client.send_request(head).await.unwrap();
    assert_eq!(response.headers()["content-length"], "1234");
    client.ready().await.unwrap();
    let response = client.send_request(get("/304")).await.unwrap();
    assert_eq!(response.status(), StatusCode::NOT_MODIFIED);
    client.ready().await.unwrap();
    assert_eq!(client.send_request(get("/")).await.unwrap().status(), StatusCode::OK);
}

#[tokio::test]
async fn nobody_behind_is_a_502_that_says_so() {
    let address = TcpListener::bind(crate::support::ANY).await.unwrap().local_addr().unwrap();
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    let response = client.send_request(get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(response.headers()["x-tidegate-reason"], "upstream_unreachable");
    assert!(text(response).await.contains("nobody answers behind the proxy"));
    assert_eq!(proxy.get().task().snapshot().failed, 1);
}

#[tokio::test]
async fn a_program_that_hangs_up_is_a_502_and_one_that_is_late_a_504() {
    let listener = TcpListener::bind(crate::support::ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut late = Vec::new();
        while let Ok((mut io, _)) = listener.accept().await {
            let mut buffer = [0; 4096];
            let read = tokio::io::AsyncReadExt::read(&mut io, &mut buffer).await.unwrap();
            if String::from_utf8_lossy(&buffer[..read]).contains("/late") {
                late.push(io);
            }
        }
    });
    let proxy = Running::start(config(address));
    let mut client = client(proxy.address()).await;
    let response = client.send_request(get("/")).await.unwrap();
    assert_eq!(response.status(), StatusCode::BAD_GATEWAY);
    assert_eq!(response.headers()["x-tidegate-reason"], "upstream_broken");
    let mut late = get("/late");
    late.headers_mut().insert("x-envoy-expected-rq-timeout-ms", "50".parse().unwrap());
    client.ready().await.unwrap();
    let response = client.send_request(late).await.unwrap();
    assert_eq!(response.status(), StatusCode::GATEWAY_TIMEOUT);
    assert_eq!(response.headers()["x-tidegate-reason"], "upstream_timeout");
    // For all we know it is still at work.
    assert_eq!(proxy.get().task().gate().counts().inflight(), 1);
}

/// Each is alone with its wait: by then nobody looks any more for the one before it.
#[tokio::test]
async fn a_program_that_hangs_on_a_warm_connection_is_a_504_by_http2_too() {
    let address = program(|request| async move {
        if request.uri().path() == "/hang" {
            core::future::pending::<()>().await;
        }
        echo(request).await
    })
    .await;
    let limit = Duration::from_millis(100);
    let mut config = config(address);
    config.answer_timeout = Some(limit);
    // Far longer than the pauses below.
    config.pool.idle_max = Duration::from_secs(60);
    let proxy = Running::start(config);
    let mut client = client_h2(proxy.address()).await;
    let request = |path: &str| {
        let uri = format!("http://shop{path}");
        Request::builder().uri(uri).body(Full::<Bytes>::default()).unwrap()
    };
    for _ in 0..2 {
        let warm = client.send_request(request("/")).await.unwrap();
        assert_eq!(warm.status(), StatusCode::OK);
        text(warm).await;
        tokio::time::sleep(limit * 3).await;
        let hung = client.send_request(request("/hang"));
        let hung = tokio::time::timeout(Duration::from_secs(5), hung).await;
        let hung = hung.expect("an answer in the program's place").unwrap();
        assert_eq!(hung.status(), StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(hung.headers()["x-tidegate-reason"], "upstream_timeout");
        tokio::time::sleep(limit * 3).await;
    }
}

#[tokio::test]
async fn a_client_that_asks_first_is_told_to_go_on() {
    let proxy = Running::start(config(program(echo).await));
    let mut io = tokio::net::TcpStream::connect(proxy.address()).await.unwrap();
    let head = "POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n";
    io.write_all(head.as_bytes()).await.unwrap();
    let told = crate::support::read_answer(&mut io).await;
    assert!(told.starts_with("HTTP/1.1 100"), "{told}");
    io.write_all(b"abc").await.unwrap();
    let answer = crate::support::read_answer(&mut io).await;
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("abc"), "{answer}");
    assert!(!answer.contains("expect"), "{answer}");
}

#[tokio::test]
async fn a_socket_in_the_file_system_will_do() {
    let directory = std::env::temp_dir().join(format!("tidegate-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join("program.sock");
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        let (mut io, _) = listener.accept().await.unwrap();
        let mut buffer = [0; 4096];
        let _ = tokio::io::AsyncReadExt::read(&mut io, &mut buffer).await;
        io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nunix").await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
    let mut config = config("127.0.0.1:1".parse().unwrap());
    config.upstream = format!("unix:{}", path.display()).parse().unwrap();
    let proxy = Running::start(config);
    assert!(proxy.get().watched().contains(&std::process::id().to_string()));
    let mut client = client(proxy.address()).await;
    assert_eq!(text(client.send_request(get("/")).await.unwrap()).await, "unix");
    std::fs::remove_dir_all(&directory).unwrap();
}

/// A program that says half of what it has promised, and no more.
async fn hangs(head: &'static str) -> SocketAddr {
    let listener = TcpListener::bind(crate::support::ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((mut io, _)) = listener.accept().await {
            let _ = tokio::io::AsyncReadExt::read(&mut io, &mut [0; 4096]).await;
            io.write_all(head.as_bytes()).await.unwrap();
            io.write_all(b"4\r\nhalf\r\n").await.unwrap();
            kept.push(io);
        }
    });
    address
}

#[tokio::test]
async fn a_program_that_hangs_in_an_answer_does_not_hold_its_request() {
    for head in [
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\n",
    ] {
        let mut config = config(hangs(head).await);
        config.pool.read_timeout = Some(Duration::from_millis(50));
        let proxy = Running::start(config);
        let mut client = client(proxy.address()).await;
        let request = Request::get("/").header("host", "x").body(Full::<Bytes>::default());
        let answer = client.send_request(request.unwrap()).await.unwrap();
        assert_eq!(answer.status(), 200);
        // What came of it comes, and that it is not whole is seen.
        assert!(answer.into_body().collect().await.is_err(), "{head}");
        let counts = || proxy.get().task().gate().counts();
        while counts().inflight() > 0 {
            tokio::task::yield_now().await;
        }
    }
}
