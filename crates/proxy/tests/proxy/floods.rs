//! Floods and drips: nothing crashes, memory stays bounded, others are served.
//!
//! Each test has a process of its own, so what it takes is what the proxy and its client take.

use crate::support::{Running, client, config, echo, program, text};
use bytes::Bytes;
use core::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use core::time::Duration;
use http::{Request, Response};
use http_body_util::Full;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate_proxy::Config;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// `GET http://x/` as HPACK has it, by its static table.
const GET: &[u8] = &[0x82, 0x86, 0x84, 0x41, 0x01, b'x'];
const POST: &[u8] = &[0x83, 0x86, 0x84, 0x41, 0x01, b'x'];

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A connection of HTTP/2 that is written by hand, and whose answers nobody reads but this.
async fn raw_h2(address: SocketAddr) -> TcpStream {
    let mut io = TcpStream::connect(address).await.unwrap();
    io.write_all(PREFACE).await.unwrap();
    io.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
    io
}

/// Writes all that the peer takes; true if it has had enough before `count` were written.
async fn flood(io: TcpStream, count: usize, mut next: impl FnMut(usize) -> Vec<u8>) -> bool {
    let (mut reads, mut writes) = io.into_split();
    // What comes back is thrown away, so that the peer never waits for us.
    let reader = tokio::spawn(async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(1..) = reads.read(&mut buffer).await {}
    });
    for n in 0..count {
        if reader.is_finished() || writes.write_all(&next(n)).await.is_err() {
            return true;
        }
    }
    let _ = writes.shutdown().await;
    let _ = reader.await;
    false
}

/// Bytes that this process has in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: usize = statm.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * 4_096
}

/// Somebody else asks, again and again while `attack` goes on, and is always answered.
async fn beside<T>(address: SocketAddr, attack: impl Future<Output = T>) -> T {
    let mut honest = client(address).await;
    let mut attack = core::pin::pin!(attack);
    loop {
        let request = Request::get("/honest").header("host", "x").body(Full::<Bytes>::default());
        honest.ready().await.unwrap();
        let asked = honest.send_request(request.unwrap());
        let mut asked = core::pin::pin!(asked);
        let (over, answer) = tokio::select! {
            over = &mut attack => (Some(over), asked.await),
            answer = &mut asked => (None, answer),
        };
        assert!(text(answer.unwrap()).await.starts_with("GET /honest"));
        if let Some(over) = over {
            return over;
        }
    }
}

/// What all of these come to: at most so many bytes more than before.
const GROWTH_MAX: usize = 64 << 20;

async fn proxy(change: impl FnOnce(&mut Config)) -> Running {
    let mut config = config(program(echo).await);
    change(&mut config);
    Running::start(config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn continuations_without_end() {
    let proxy = proxy(|_| {}).await;
    let io = raw_h2(proxy.address()).await;
    let before = resident();
    // A header of 16 KiB in each, and never the last: a GiB if nobody stops it.
    let part = vec![0; 16_000];
    let stopped = beside(
        proxy.address(),
        flood(io, 65_536, |n| match n {
            0 => frame(HEADERS, 0, 1, GET),
            _ => frame(CONTINUATION, 0, 1, &part),
        }),
    )
    .await;
    assert!(stopped);
    assert!(resident() < before + GROWTH_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_without_data() {
    let proxy = proxy(|_| {}).await;
    let io = raw_h2(proxy.address()).await;
    let before = resident();
    let empty: Vec<u8> = (0..1_000).flat_map(|_| frame(DATA, 0, 1, &[])).collect();
    // A million of them; whether it ends the connection is its own business.
    beside(
        proxy.address(),
        flood(io, 1_000, |n| match n {
            0 => frame(HEADERS, END_HEADERS, 1, POST),
            _ => empty.clone(),
        }),
    )
    .await;
    assert!(resident() < before + GROWTH_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pings_and_settings_without_end() {
    let proxy = proxy(|_| {}).await;
    let before = resident();
    for (kind, payload) in [(PING, &[0; 8][..]), (SETTINGS, &[])] {
        let io = raw_h2(proxy.address()).await;
        let many: Vec<u8> = (0..1_000).flat_map(|_| frame(kind, 0, 0, payload)).collect();
        beside(proxy.address(), flood(io, 200, |_| many.clone())).await;
    }
    assert!(resident() < before + GROWTH_MAX);
}

/// Streams that are opened and reset at once: the program behind must not be buried in them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn streams_that_are_reset_at_once() {
    let inside = Arc::new(AtomicUsize::new(0));
    let entered = Arc::clone(&inside);
    // All but the honest wait here for ever.
    let address = program(move |request| {
        let entered = Arc::clone(&entered);
        async move {
            if request.uri().path() == "/honest" {
                return Response::new(Full::from("GET /honest"));
            }
            entered.fetch_add(1, SeqCst);
            core::future::pending().await
        }
    })
    .await;
    let mut config = config(address);
    // In the dark nobody is refused: what bounds it is the number that may go on alone.
    config.dark = true;
    config.alone_max = 50;
    let proxy = Running::start(config);
    let before = resident();
    for _ in 0..5 {
        let io = raw_h2(proxy.address()).await;
        beside(
            proxy.address(),
            flood(io, 10_000, |n| {
                let stream = 2 * u32::try_from(n).unwrap() + 1;
                let mut both = frame(HEADERS, END_HEADERS | END_STREAM, stream, GET);
                both.extend(frame(RST_STREAM, 0, stream, &8_u32.to_be_bytes()));
                both
            }),
        )
        .await;
    }
    assert!(resident() < before + GROWTH_MAX);
    // What goes on without a caller is bounded; the connections are over, so all others are gone.
    let inflight = || proxy.get().task().gate().counts().inflight();
    while inflight() > 50 {
        tokio::task::yield_now().await;
    }
    println!("{} came to the program", inside.load(SeqCst));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_that_blow_up() {
    let proxy = proxy(|_| {}).await;
    let before = resident();
    // HTTP/2: an entry of 4 KiB in the dynamic table, then named ten thousand times by one byte.
    let mut bomb = GET.to_vec();
    bomb.extend([0x40, 0x01, b'a', 0x7f, 0x80, 0x1e]);
    bomb.extend(vec![b'b'; 3_967]);
    bomb.extend(vec![0xbe; 10_000]);
    for _ in 0..50 {
        let io = raw_h2(proxy.address()).await;
        let (first, rest) = bomb.split_at(10_000);
        let (first, rest) = (first.to_vec(), rest.to_vec());
        beside(
            proxy.address(),
            flood(io, 2, |n| match n {
                0 => frame(HEADERS, END_STREAM, 1, &first),
                _ => frame(CONTINUATION, END_HEADERS, 1, &rest),
            }),
        )
        .await;
    }
    // HTTP/1: one that never ends, and very many.
    for unit in [&b"a"[..], b"x: y\r\n"] {
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nx: ").await.unwrap();
        let many = unit.repeat(10_000);
        let stopped = beside(proxy.address(), flood(io, 10_000, |_| many.clone())).await;
        assert!(stopped);
    }
    assert!(resident() < before + GROWTH_MAX);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_drip() {
    let proxy = proxy(|config| config.limits.header_timeout = Duration::from_millis(200)).await;
    let mut slow = Vec::new();
    for n in 0..200 {
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        let head = &b"GET / HTTP/1.1\r\nhost: x\r\nx-a: "[..if n % 2 == 0 { 1 } else { 20 }];
        io.write_all(head).await.unwrap();
        slow.push(io);
    }
    // All of them are cut off.
    let all_cut = async {
        for io in &mut slow {
            let mut rest = Vec::new();
            let _ = io.read_to_end(&mut rest).await;
        }
    };
    beside(proxy.address(), all_cut).await;
}

/// Requests whose clients have said that no more will come, and connections that are reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_end_in_the_middle() {
    let proxy = proxy(|_| {}).await;
    let address = proxy.address();
    let attack = async {
        for n in 0..300 {
            let mut io = TcpStream::connect(address).await.unwrap();
            let request = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n01234";
            let _ = io.write_all(&request[..request.len().min(1 + n % 60)]).await;
            match n % 3 {
                0 => _ = io.shutdown().await,
                1 => _ = io.set_zero_linger(),
                _ => {}
            }
        }
    };
    beside(address, attack).await;
    let counts = || proxy.get().task().gate().counts();
    while counts().inflight() > 0 {
        tokio::task::yield_now().await;
    }
}

/// Streams whose windows are never opened: none of them keeps its request, and the connection is
/// good for others all the while.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn windows_that_stay_shut() {
    const STREAMS: u32 = 100;
    let proxy = proxy(|config| config.limits.stall_max = Some(Duration::from_millis(300))).await;
    let before = resident();
    let mut io = TcpStream::connect(proxy.address()).await.unwrap();
    io.write_all(PREFACE).await.unwrap();
    // SETTINGS_INITIAL_WINDOW_SIZE is 0.
    io.write_all(&frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])).await.unwrap();
    for n in 0..STREAMS {
        let open = frame(HEADERS, END_STREAM | END_HEADERS, 2 * n + 1, GET);
        io.write_all(&open).await.unwrap();
    }
    let all_reset = async {
        let mut reset = 0;
        while reset < STREAMS {
            let mut head = [0; 9];
            io.read_exact(&mut head).await.unwrap();
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
            let mut payload = vec![0; length as usize];
            io.read_exact(&mut payload).await.unwrap();
            reset += u32::from(head[3] == RST_STREAM);
        }
    };
    beside(proxy.address(), all_reset).await;
    let counts = || proxy.get().task().gate().counts();
    while counts().inflight() > 0 {
        tokio::task::yield_now().await;
    }
    assert!(resident() < before + GROWTH_MAX);
}
