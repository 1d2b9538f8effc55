//! Connections of HTTP/1 that nobody uses, and of which nothing but the transport is kept.

use crate::common::{Client, Server, soon, until};
use crate::drain::slow;
use crate::tls::{Authority, client_config, server_tls};
use axum::Router;
use axum::routing::{get, post};
use core::time::Duration;
use http::header::{CONNECTION, UPGRADE};
use http::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tidegate::serve::{Limits, Serve};
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tidegate_core::rng::{Rng, SeededRng};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

type MakeRouter = axum::routing::IntoMakeService<Router>;

/// As soon as there is nothing to do.
fn soon_tired() -> Limits {
    let mut limits = Limits::default();
    limits.rest_after = Some(Duration::from_millis(1));
    limits
}

async fn start(router: Router) -> Server {
    with(router, |serve| serve).await
}

async fn with(
    router: Router,
    set: impl FnOnce(Serve<TcpListener, MakeRouter>) -> Serve<TcpListener, MakeRouter>,
) -> Server {
    Server::with(router, |serve| set(serve.limits(soon_tired()))).await
}

/// Waits until connections have rested so many times.
async fn rested(server: &Server, times: u64) {
    until(|| server.counters.rested.load(Relaxed) >= times).await;
}

/// A client that has asked once, and rests.
async fn resting(server: &Server) -> Client {
    let before = server.counters.rested.load(Relaxed);
    let mut client = server.connect().await;
    assert_eq!(client.get("/").await.status, 200);
    rested(server, before + 1).await;
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_wakes_up_as_often_as_it_is_spoken_to() {
    let server = start(slow().0).await;
    let mut client = server.connect().await;
    for time in 1..=5 {
        let answer = client.get("/").await;
        assert_eq!((answer.status, answer.body.as_str()), (200, "hello"));
        rested(&server, time).await;
    }
    assert_eq!(server.counters.accepted.load(Relaxed), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_head_rests_and_is_not_lost() {
    let server = start(slow().0).await;
    for (first, second) in [
        ("G", "ET / HTTP/1.1\r\nhost: a\r\n\r\n"),
        ("GET / HTTP/1.1\r\nhost: a\r\n\r", "\n"),
        ("\r\n", "GET / HTTP/1.1\r\nhost: a\r\n\r\n"),
    ] {
        // On a connection that was used, and as part of what came with the request before.
        let mut client = resting(&server).await;
        let before = server.counters.rested.load(Relaxed);
        client.send(&format!("GET / HTTP/1.1\r\nhost: a\r\n\r\n{first}")).await;
        assert_eq!(client.answer().await.unwrap().status, 200);
        rested(&server, before + 1).await;
        client.send(second).await;
        assert_eq!(client.answer().await.unwrap().body, "hello", "{first:?}");
    }
}

/// Requests that are cut anywhere and come at any moment, some with the next, on connections that
/// rest whenever they can: every one is answered, in order, with its own body.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_comes_in_the_very_moment_is_not_lost() {
    const ROUNDS: u64 = 60;
    let router = Router::new().route("/", post(|body: String| async { body }));
    let server = start(router).await;
    let client = async |seed: u64| {
        let mut dice = SeededRng::new(seed);
        let mut io = server.connect().await;
        io.io.set_nodelay(true).unwrap();
        for round in 0..ROUNDS {
            let bodies: Vec<String> = (0..=dice.below(3))
                .map(|n| format!("{seed} {round} {n} {}", "GET / \r\n\r\n".repeat(n as usize)))
                .collect();
            let mut text = String::new();
            for body in &bodies {
                let length = body.len();
                text += "POST / HTTP/1.1\r\nhost: a\r\n";
                text += "content-length: ";
                text += &length.to_string();
                text += "\r\n\r\n";
                text += body;
            }
            let mut rest = text.as_str();
            while !rest.is_empty() {
                let cut = 1 + dice.below(rest.len() as u64) as usize;
                let (piece, later) = rest.split_at(cut);
                io.send(piece).await;
                rest = later;
                // About as long as it takes to get tired.
                tokio::time::sleep(Duration::from_micros(dice.below(4_000))).await;
            }
            for body in bodies {
                assert_eq!(io.answer().await.expect("an answer").body, body);
            }
        }
    };
    let clients = (0..8).map(client);
    futures_util::future::join_all(clients).await;
    assert!(server.counters.rested.load(Relaxed) > ROUNDS, "nobody has rested");
}

/// Nor does it rest again before the other part has come.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_part_of_a_head_that_rests_is_waited_for_when_a_task_drains() {
    let server = start(slow().0).await;
    let mut client = resting(&server).await;
    let before = server.counters.rested.load(Relaxed);
    client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HT").await;
    assert_eq!(client.answer().await.unwrap().status, 200);
    rested(&server, before + 1).await;
    server.life.stop();
    server.life.hasten();
    // Many times what it would take to rest.
    tokio::time::sleep(Duration::from_millis(200)).await;
    client.send("TP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(client.answer().await.expect("an answer").body, "hello");
    client.closed().await;
}

/// One thread, so that what is told to all is heard in order: when the last has closed, all know.
#[tokio::test]
async fn a_part_of_a_head_that_does_not_rest_is_waited_for_as_well() {
    let mut limits = Limits::default();
    limits.rest_after = None;
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    let mut half = server.connect().await;
    half.send("GET / HTTP/1.1\r\nhost: a\r\n\r\nGET / HT").await;
    assert_eq!(half.answer().await.unwrap().status, 200);
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/").await.status, 200);
    server.life.stop();
    server.life.hasten();
    assert!(idle.answer().await.is_none(), "nothing has come on it");
    half.send("TP/1.1\r\nhost: a\r\n\r\n").await;
    assert_eq!(half.answer().await.expect("an answer").body, "hello");
    half.closed().await;
    assert_eq!(server.counters.rested.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_rests_is_served_by_a_lame_duck_and_closed_by_the_drain() {
    let server = start(slow().0).await;
    let (mut late, mut idle) = (resting(&server).await, resting(&server).await);
    server.life.stop();
    let answer = late.get("/").await;
    assert!(answer.status == 200 && answer.has("connection: close"), "{}", answer.head);
    late.closed().await;
    server.life.hasten();
    assert!(idle.answer().await.is_none());
    let counters = Arc::clone(&server.counters);
    server.ended().await.unwrap();
    assert_eq!(counters.cut.load(Relaxed), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_is_being_served_does_not_rest() {
    let (router, mut begins, gate) = slow();
    let server = start(router).await;
    let mut busy = server.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    soon(begins.recv()).await.unwrap();
    // Others come and rest meanwhile.
    for _ in 0..5 {
        resting(&server).await;
    }
    gate.add_permits(1);
    assert_eq!(busy.answer().await.unwrap().body, "done");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn time_for_headers_runs_while_it_rests() {
    let mut limits = soon_tired();
    // Long enough for a request to come and be answered, on any machine.
    limits.header_timeout = Duration::from_secs(3);
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    let mut client = resting(&server).await;
    client.send("GET / HT").await;
    client.closed().await;
}

/// Whoever has asked before may be idle for longer than headers may take.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_is_not_late() {
    let mut limits = soon_tired();
    limits.header_timeout = Duration::from_secs(3);
    limits.idle_max = Some(Duration::from_secs(3_600));
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    let mut idle = resting(&server).await;
    let mut begun = resting(&server).await;
    begun.send("GET / HT").await;
    begun.closed().await;
    assert_eq!(idle.get("/").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_keeps_its_place_and_gives_it_back() {
    let mut limits = ConnectionLimits::default();
    limits.open_max = 1;
    let gate = Arc::new(ConnectionGate::new(limits).unwrap());
    let held = Arc::clone(&gate);
    let server = with(slow().0, |serve| serve.connections(held)).await;
    let first = resting(&server).await;
    assert_eq!(gate.open(), 1);
    if let Ok(mut second) = server.try_connect().await {
        second.closed().await;
    }
    assert_eq!(server.counters.refused_open.load(Relaxed), 1);
    // Nobody has to say anything for it to be seen that the peer has gone.
    drop(first);
    until(|| gate.open() == 0).await;
    resting(&server).await;
}

/// Says that it goes on with another protocol, and says back all that comes then.
async fn echo(mut request: Request<axum::body::Body>) -> Response<axum::body::Body> {
    tokio::spawn(async move {
        let upgraded = hyper::upgrade::on(&mut request).await.unwrap();
        let (mut read, mut write) = tokio::io::split(TokioIo::new(upgraded));
        tokio::io::copy(&mut read, &mut write).await.unwrap();
    });
    Response::builder()
        .status(StatusCode::SWITCHING_PROTOCOLS)
        .header(CONNECTION, "upgrade")
        .header(UPGRADE, "echo")
        .body(axum::body::Body::empty())
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_can_still_become_something_else() {
    let router = slow().0.route("/echo", get(echo));
    let server = start(router).await;
    let mut client = resting(&server).await;
    // What comes with the request is part of the other protocol.
    client.send("GET /echo HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\n").await;
    client.send("upgrade: echo\r\n\r\nearly").await;
    assert_eq!(client.answer().await.unwrap().status, 101);
    let mut said = [0; 5];
    // The answer may have been read together with the first words.
    let mut rest = client.left();
    while rest.len() < 5 {
        let length = soon(client.io.read(&mut said)).await.unwrap();
        assert!(length > 0, "it has ended");
        rest.extend_from_slice(&said[..length]);
    }
    assert_eq!(rest, b"early");
    // It is not put to rest: others come and go.
    for _ in 0..3 {
        resting(&server).await;
    }
    client.send("later").await;
    soon(client.io.read_exact(&mut said)).await.unwrap();
    assert_eq!(&said, b"later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn encrypted_connections_rest_as_well() {
    let (servers, clients) = (Authority::new(), Authority::new());
    let tls = server_tls(&servers, &clients, false);
    let server = with(slow().0, |serve| serve.tls(tls)).await;
    let io = soon(TcpStream::connect(server.address)).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = TlsConnector::from(client_config(&servers, None));
    let mut io = soon(connector.connect(name, io)).await.unwrap();
    for time in 1..=4 {
        // In two records, the second of which may come when it is tired.
        soon(io.write_all(b"GET / HTTP/1.1\r\nhost: a")).await.unwrap();
        soon(io.flush()).await.unwrap();
        rested(&server, 2 * time - 1).await;
        soon(io.write_all(b"\r\n\r\n")).await.unwrap();
        let mut text = Vec::new();
        while !text.ends_with(b"hello") {
            let mut piece = [0; 1024];
            let length = soon(io.read(&mut piece)).await.unwrap();
            assert!(length > 0, "it has ended");
            text.extend_from_slice(&piece[..length]);
        }
        rested(&server, 2 * time).await;
    }
    // It ends as TLS does, with a word.
    server.life.stop();
    server.life.hasten();
    assert_eq!(soon(io.read(&mut [0; 1])).await.unwrap(), 0);
}

/// HTTP/2 does not rest, and is told apart by its greeting however that is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn http2_is_known_by_its_greeting_however_it_comes() {
    let server = start(slow().0).await;
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    let greeting = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    for cut in [1, 3, 14, 23, 24] {
        let mut io = soon(TcpStream::connect(server.address)).await.unwrap();
        io.set_nodelay(true).unwrap();
        soon(io.write_all(&greeting[..cut])).await.unwrap();
        // Others come and rest meanwhile.
        resting(&server).await;
        soon(io.write_all(&greeting[cut..])).await.unwrap();
        soon(io.write_all(&settings)).await.unwrap();
        let mut head = [0; 9];
        soon(io.read_exact(&mut head)).await.unwrap();
        assert_eq!(head[3], 4, "settings are the first that is said");
    }
}
