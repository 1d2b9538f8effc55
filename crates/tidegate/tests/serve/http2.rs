//! HTTP/2, frame by frame.

use crate::common::{Server, patient, soon};
use crate::drain::slow;
use core::convert::Infallible;
use core::time::Duration;
use std::sync::atomic::Ordering::Relaxed;
use tidegate::clock::Clock;
use tidegate::life::Phase;
use tidegate::serve::{Limits, RequestBody};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub(crate) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
pub(crate) const WINDOW_UPDATE: u8 = 8;
pub(crate) const END_STREAM_AND_HEADERS: u8 = 5;
/// `GET http://a/`, in HPACK.
pub(crate) const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 1, b'a'];
const ENHANCE_YOUR_CALM: u32 = 11;

pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

pub(crate) async fn connect(server: &Server) -> TcpStream {
    let mut io = soon(TcpStream::connect(server.address)).await.unwrap();
    let hello = [GREETING, &frame(SETTINGS, 0, 0, &[])].concat();
    soon(io.write_all(&hello)).await.unwrap();
    io
}

/// The payload of the next frame of this kind; nothing if the connection ends before.
pub(crate) async fn next(io: &mut TcpStream, wanted: u8) -> Option<Vec<u8>> {
    loop {
        let mut head = [0; 9];
        soon(io.read_exact(&mut head)).await.ok()?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        soon(io.read_exact(&mut payload)).await.ok()?;
        if head[3] == wanted {
            return Some(payload);
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    u32::from_be_bytes(bytes.try_into().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_told() {
    let server = Server::start(slow().0).await;
    let settings = next(&mut connect(&server).await, SETTINGS).await.unwrap();
    let told = |setting: u8| {
        settings.chunks(6).find(|chunk| chunk[..2] == [0, setting]).map(|chunk| number(&chunk[2..]))
    };
    // SETTINGS_MAX_CONCURRENT_STREAMS and SETTINGS_MAX_HEADER_LIST_SIZE.
    assert_eq!((told(3), told(6)), (Some(200), Some(64 * 1024)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lame_duck_says_goaway_and_finishes() {
    let (router, mut begins, gate) = slow();
    let server = Server::start(router).await;
    let mut idle = connect(&server).await;
    next(&mut idle, SETTINGS).await.unwrap();

    let io = soon(TcpStream::connect(server.address)).await.unwrap();
    let (requests, connection) = soon(h2::client::handshake(io)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut requests = soon(requests.ready()).await.unwrap();
    let request = http::Request::get("http://a/slow").body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    soon(begins.recv()).await.unwrap();

    server.life.stop();
    let goaway = next(&mut idle, GOAWAY).await.unwrap();
    assert_eq!(number(&goaway[4..8]), 0, "no error");
    // Who comes now is served all the same.
    let mut late = connect(&server).await;
    soon(late.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, 1, GET))).await.unwrap();
    assert!(next(&mut late, HEADERS).await.is_some());
    gate.add_permits(1);
    let response = soon(response).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.headers()["x-envoy-immediate-health-check-fail"], "true");
    assert!(!response.headers().contains_key("connection"));
    // The server has nothing more to do on it and closes it, in order.
    soon(connection).await.unwrap().unwrap();

    server.life.hasten();
    assert!(next(&mut late, GOAWAY).await.is_some());
    drop((idle, late));
    let life = server.life.clone();
    server.ended().await.unwrap();
    assert_eq!(life.phase(), Phase::Gone);
}

/// A connection that came before, however long it took until somebody looked after it.
#[tokio::test]
async fn who_came_before_the_lame_duck_hears_of_it() {
    let (asked, mut asks) = tokio::sync::mpsc::unbounded_channel();
    let (let_on, _) = tokio::sync::watch::channel(false);
    let make = {
        let let_on = let_on.clone();
        tower::service_fn(move |_| {
            let (asked, mut let_on) = (asked.clone(), let_on.subscribe());
            async move {
                asked.send(()).unwrap();
                let_on.wait_for(|on| *on).await.unwrap();
                Ok::<_, Infallible>(tower::service_fn(|_: http::Request<RequestBody>| {
                    core::future::ready(Ok::<_, Infallible>(http::Response::new(String::new())))
                }))
            }
        })
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let life = patient();
    let mut limits = Limits::default();
    // One that does not answer a ping would be told to go, too.
    limits.h2_ping_interval = None;
    let serve = tidegate::serve(listener, make).life(life.clone()).limits(limits);
    let running = tokio::spawn(serve.into_future());
    let mut io = soon(TcpStream::connect(address)).await.unwrap();
    let hello = [GREETING, &frame(SETTINGS, 0, 0, &[])].concat();
    soon(io.write_all(&hello)).await.unwrap();
    soon(asks.recv()).await.unwrap();
    life.stop();
    let_on.send_replace(true);
    assert!(next(&mut io, GOAWAY).await.is_some());
    assert_eq!(life.phase(), Phase::LameDuck);
    drop(io);
    life.hasten();
    soon(running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_that_panics_takes_nobody_with_it() {
    let service = tower::service_fn(|request: http::Request<RequestBody>| {
        assert_ne!(request.uri().path(), "/panic", "as it was asked to");
        core::future::ready(Ok::<_, Infallible>(http::Response::new(String::from("hello"))))
    });
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let life = patient();
    let serve = tidegate::serve(listener, tidegate::serve::each(service)).life(life.clone());
    let running = tokio::spawn(serve.into_future());

    let io = soon(TcpStream::connect(address)).await.unwrap();
    let (requests, connection) = soon(h2::client::handshake(io)).await.unwrap();
    tokio::spawn(connection);
    let mut requests = soon(requests.ready()).await.unwrap();
    let mut send = |path: &str| {
        let request = http::Request::get(format!("http://a{path}")).body(()).unwrap();
        requests.send_request(request, true).unwrap().0
    };
    let (panics, other) = (send("/panic"), send("/"));
    assert!(soon(panics).await.unwrap_err().is_reset(), "its stream only");
    assert_eq!(soon(other).await.unwrap().status(), 200);
    life.stop();
    life.hasten();
    soon(running).await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_opened_and_reset_are_a_reason_to_end() {
    let server = Server::start(slow().0).await;
    let mut io = connect(&server).await;
    let flood: Vec<u8> = (0..1_000)
        .flat_map(|n| {
            let stream = 2 * n + 1;
            let open = frame(HEADERS, END_STREAM_AND_HEADERS, stream, GET);
            [open, frame(RST_STREAM, 0, stream, &[0, 0, 0, 8])].concat()
        })
        .collect();
    // The server may have hung up before it has read all of it.
    let _ = soon(io.write_all(&flood)).await;
    let goaway = next(&mut io, GOAWAY).await.unwrap();
    assert_eq!(number(&goaway[4..8]), ENHANCE_YOUR_CALM);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_never_end_do_not_keep_a_connection() {
    let (clock, hand) = Clock::manual();
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(2);
    limits.idle_max = Some(Duration::from_millis(20));
    let server = Server::with(slow().0, |serve| serve.limits(limits).clock(clock)).await;
    let mut io = connect(&server).await;
    next(&mut io, SETTINGS).await.unwrap();
    // No END_HEADERS: a CONTINUATION has to follow.
    soon(io.write_all(&frame(HEADERS, 0, 1, GET))).await.unwrap();
    // Hours pass: it is asked to leave, cannot, and is cut.
    soon(async {
        while server.counters.cut.load(Relaxed) == 0 {
            hand.advance(Duration::from_secs(3_600));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await;
    assert!(next(&mut io, GOAWAY).await.is_some());
    while next(&mut io, SETTINGS).await.is_some() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_waits_for_its_reader_is_not_cut_before_the_end_of_the_drain() {
    // The windows of a connection let 65,535 bytes through until its reader takes some.
    const LENGTH: usize = 1024 * 1024;
    let (clock, hand) = Clock::manual();
    let mut limits = Limits::default();
    limits.header_timeout = Duration::from_secs(1);
    let large = axum::routing::get(|| async { vec![b'x'; LENGTH] });
    let router = axum::Router::new().route("/", large);
    let server = Server::with(router, |serve| serve.limits(limits).clock(clock)).await;
    // One that has nothing coming to it and cannot end by itself shows when it is time to cut.
    let mut silent = connect(&server).await;
    next(&mut silent, SETTINGS).await.unwrap();
    soon(silent.write_all(&frame(HEADERS, 0, 1, GET))).await.unwrap();

    let io = soon(TcpStream::connect(server.address)).await.unwrap();
    let (requests, connection) = soon(h2::client::handshake(io)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut requests = soon(requests.ready()).await.unwrap();
    let request = http::Request::get("http://a/").body(()).unwrap();
    let (response, _) = requests.send_request(request, true).unwrap();
    let mut body = soon(response).await.unwrap().into_body();
    let mut taken = soon(body.data()).await.unwrap().unwrap().len();
    server.life.stop();
    assert_eq!(server.life.hasten(), Phase::Draining);

    // Hours pass until the other one is cut, and as many again.
    let began = tokio::time::Instant::now();
    let hours = async |while_so: &dyn Fn() -> bool| {
        while while_so() {
            hand.advance(Duration::from_secs(3_600));
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    soon(hours(&|| server.counters.cut.load(Relaxed) == 0)).await;
    let as_long = began.elapsed();
    soon(hours(&|| began.elapsed() < 2 * as_long)).await;

    let mut release = taken;
    while taken < LENGTH {
        body.flow_control().release_capacity(release).unwrap();
        release = soon(body.data()).await.unwrap().unwrap().len();
        taken += release;
    }
    assert_eq!(taken, LENGTH);
    drop((body, requests));
    soon(connection).await.unwrap().unwrap();
    let counters = std::sync::Arc::clone(&server.counters);
    server.ended().await.unwrap();
    assert_eq!(counters.cut.load(Relaxed), 1);
}

/// A body of which there is always more, and who holds it.
fn endless(held: &std::sync::Arc<()>) -> axum::Router {
    let held = std::sync::Arc::clone(held);
    let endless = move || async move {
        let piece = |_| Ok::<_, Infallible>(bytes::Bytes::from_static(&[b'x'; 1_024]));
        axum::body::Body::from_stream(futures_util::StreamExt::map(
            futures_util::stream::repeat(held),
            piece,
        ))
    };
    axum::Router::new().route("/", axum::routing::get(endless))
}

/// Of a window that was never opened, and of one that is full, nothing is heard any more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_takes_nothing_is_reset() {
    let mut limits = Limits::default();
    limits.stall_max = Some(Duration::from_millis(100));
    for window in [0_u32, 20_000] {
        let held = std::sync::Arc::new(());
        let server = Server::with(endless(&held), |serve| serve.limits(limits)).await;
        let mut io = soon(TcpStream::connect(server.address)).await.unwrap();
        // SETTINGS_INITIAL_WINDOW_SIZE.
        let windows = [&[0, 4][..], &window.to_be_bytes()].concat();
        let hello = [GREETING, &frame(SETTINGS, 0, 0, &windows)].concat();
        soon(io.write_all(&hello)).await.unwrap();
        soon(io.write_all(&frame(HEADERS, END_STREAM_AND_HEADERS, 1, GET))).await.unwrap();
        let reset = next(&mut io, RST_STREAM).await.expect("the stream only");
        assert_eq!(reset.len(), 4);
        drop(server);
    }
}
