//! Too many connections, or too fast.

use crate::common::{Server, soon, until};
use crate::drain::slow;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::clock::Clock;
use tidegate::serve::{Limits, Listener};
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tidegate_core::{Criticality, Ratio, Timestamp};
use tokio::net::{TcpSocket, TcpStream};

fn gate(open_max: u64, accepts_per_second: u32, burst: u32, room: [u32; 4]) -> Arc<ConnectionGate> {
    let mut limits = ConnectionLimits::default();
    limits.open_max = open_max;
    limits.accepts_per_second = accepts_per_second;
    limits.burst = burst;
    limits.room = room.map(Ratio::percent);
    Arc::new(ConnectionGate::new(limits).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_too_many_is_refused_until_another_has_gone() {
    let gate = gate(3, 1_000, 1_000, [100; 4]);
    let server = Server::with(slow().0, |serve| serve.connections(Arc::clone(&gate))).await;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = server.connect().await;
        assert_eq!(client.get("/").await.status, 200);
        clients.push(client);
    }
    for _ in 0..10 {
        if let Ok(mut client) = server.try_connect().await {
            client.closed().await;
        }
    }
    assert_eq!(server.counters.refused_open.load(Relaxed), 10);
    // Those who were there first do not feel it.
    for client in &mut clients {
        assert_eq!(client.get("/").await.status, 200);
    }
    clients.pop();
    until(|| gate.open() == 2).await;
    assert_eq!(server.connect().await.get("/").await.status, 200);
    drop(clients);
    until(|| gate.open() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_is_taken_as_far_as_it_may_go_and_then_a_few_a_second() {
    let (clock, hand) = Clock::manual();
    hand.set(Timestamp::from_secs(100));
    let gate = gate(1_000, 5, 20, [100; 4]);
    let server =
        Server::with(slow().0, |serve| serve.connections(Arc::clone(&gate)).clock(clock)).await;
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let mut open = Vec::new();
    // The bucket has 20; in the second after that it gets 5.
    for (seconds, accepted, refused) in [(0, 20, 80), (1, 25, 175), (10, 45, 255)] {
        hand.advance(Duration::from_secs(seconds));
        for _ in 0..100 {
            open.extend(server.try_connect().await);
        }
        let counters = &server.counters;
        until(|| count(&counters.accepted) + count(&counters.refused_rate) == accepted + refused)
            .await;
        assert_eq!(count(&counters.accepted), accepted, "after {seconds} s");
    }
    assert_eq!(gate.open(), 45);
    assert_eq!(open[0].get("/").await.status, 200);
}

/// Nobody is turned away for coming too fast who may wait, and nobody is taken before their turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_patient_wait_for_their_turn() {
    let (clock, hand) = Clock::manual();
    let gate = gate(1_000, 5, 20, [100, 100, 100, 100]);
    let set = |serve: tidegate::serve::Serve<_, _>| {
        serve.connections(Arc::clone(&gate)).clock(clock).patient(true)
    };
    let server = Server::with(slow().0, set).await;
    let count = |counter: &AtomicU64| counter.load(Relaxed);
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(server.connect().await);
    }
    for client in &mut open {
        client.send("GET / HTTP/1.1\r\nhost: a\r\n\r\n").await;
    }
    // 20 at once and 5 a second from then on: the last has its turn after 16 seconds.
    for (answered, client) in open.iter_mut().enumerate() {
        if answered >= 20 && answered % 5 == 0 {
            until(|| count(&server.counters.accepted) == answered as u64).await;
            hand.advance(Duration::from_secs(1));
        }
        assert_eq!(client.answer().await.unwrap().status, 200, "{answered}");
    }
    assert_eq!(count(&server.counters.accepted), 100);
    assert_eq!(count(&server.counters.refused_rate), 0);
}

/// A connection from this address of the loopback network.
async fn connect_from(from: &str, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(from.parse().unwrap()).unwrap();
    soon(socket.connect(to)).await
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn peers_of_a_higher_class_find_room_where_strangers_do_not() {
    // Room for 2 of the lowest, and for 4 of the highest.
    let gate = gate(4, 1_000, 1_000, [50, 50, 50, 100]);
    let friend: SocketAddr = "127.0.0.2:0".parse().unwrap();
    let classify =
        move |peer: SocketAddr| (peer.ip() == friend.ip()).then_some(Criticality::CriticalPlus);
    let set = |serve: tidegate::serve::Serve<_, _>| {
        serve.connections(Arc::clone(&gate)).classify(classify)
    };
    let server = Server::with(slow().0, set).await;
    let mut open = Vec::new();
    for (from, taken, refused) in [
        ("127.0.0.1:0", 1, 0),
        ("127.0.0.1:0", 2, 0),
        ("127.0.0.1:0", 2, 1),
        ("127.0.0.2:0", 3, 1),
        ("127.0.0.1:0", 3, 2),
        ("127.0.0.2:0", 4, 2),
        ("127.0.0.2:0", 4, 3),
    ] {
        open.extend(connect_from(from, server.address).await);
        let counters = &server.counters;
        until(|| {
            (counters.accepted.load(Relaxed), counters.refused_open.load(Relaxed))
                == (taken, refused)
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_nobody_uses_or_that_are_old_are_closed() {
    let mut patient = Limits::default();
    patient.header_timeout = Duration::from_secs(3_600);
    let (mut idle, mut old) = (patient, patient);
    idle.idle_max = Some(Duration::from_millis(50));
    old.age_max = Some(Duration::from_millis(50));
    for limits in [idle, old] {
        let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
        server.connect().await.closed().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_connection_is_not_idle() {
    let (clock, hand) = Clock::manual();
    let mut limits = Limits::default();
    limits.idle_max = Some(Duration::from_millis(20));
    let (router, mut begins, gate) = slow();
    let server = Server::with(router, |serve| serve.limits(limits).clock(clock)).await;
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/").await.status, 200);
    let mut busy = server.connect().await;
    busy.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n").await;
    soon(begins.recv()).await.unwrap();
    // Hours pass, until one of them is seen to be idle.
    let hours = async {
        loop {
            hand.advance(Duration::from_secs(3_600));
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = hours => {}
        () = idle.closed() => {}
    }
    gate.add_permits(1);
    assert_eq!(busy.answer().await.unwrap().status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_is_taken_slowly_is_given_in_full() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    // More than the buffers of both ends hold.
    const LENGTH: usize = 16 * 1024 * 1024;
    let (clock, hand) = Clock::manual();
    let mut limits = Limits::default();
    limits.idle_max = Some(Duration::from_millis(20));
    let large = axum::routing::get(|| async { vec![b'x'; LENGTH] });
    let router = axum::Router::new().route("/", large);
    let server = Server::with(router, |serve| serve.limits(limits).clock(clock)).await;
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let mut io = soon(socket.connect(server.address)).await.unwrap();
    soon(io.write_all(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")).await.unwrap();
    // Hours pass between one piece and the next.
    let (mut taken, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    loop {
        match soon(io.read(&mut piece)).await.unwrap_or(0) {
            0 => break,
            length => taken.extend_from_slice(&piece[..length]),
        }
        hand.advance(Duration::from_secs(3_600));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // It was idle after that, and is closed.
    let head = taken.windows(4).position(|window| window == b"\r\n\r\n").unwrap() + 4;
    assert_eq!(taken.len() - head, LENGTH);
}

/// A listener that has run out of file descriptors.
struct Exhausted(Arc<AtomicU64>);

impl Listener for Exhausted {
    type Io = TcpStream;

    async fn accept(&mut self) -> io::Result<(TcpStream, Option<SocketAddr>)> {
        self.0.fetch_add(1, Relaxed);
        // EMFILE.
        Err(io::Error::from_raw_os_error(24))
    }
}

#[tokio::test(start_paused = true)]
async fn without_file_descriptors_it_waits_and_does_not_spin() {
    let tries = Arc::new(AtomicU64::new(0));
    let life = crate::common::patient();
    let make = slow().0.into_make_service();
    let serve = tidegate::serve(Exhausted(Arc::clone(&tries)), make).life(life.clone());
    let counters = serve.counters();
    let running = tokio::spawn(serve.into_future());
    // Virtual time: 5 ms doubling to 640 ms are 8 tries and 1.275 s; from there on one a second.
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tried = tries.load(Relaxed);
    assert!((8 + 58..=8 + 60).contains(&tried), "{tried} tries in a minute");
    assert_eq!(counters.accept_errors.load(Relaxed), tried);
    // And it can still be ended.
    life.stop();
    life.hasten();
    running.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_connections_do_is_counted_as_work() {
    let executor = tidegate::executor::Executor::new(Clock::monotonic());
    let inside = executor.clone();
    let count = axum::routing::get(move || async move { inside.active().to_string() });
    let router = axum::Router::new().route("/", count);
    let server = Server::with(router, |serve| serve.executor(executor.clone())).await;
    // The task that runs the handler is running.
    let running: u64 = server.connect().await.get("/").await.body.parse().unwrap();
    assert!(running >= 1);
    until(|| executor.active() == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handlers_learn_the_address_of_the_peer_as_with_axum() {
    use axum::extract::ConnectInfo;
    let who = |ConnectInfo(peer): ConnectInfo<SocketAddr>| async move { peer.to_string() };
    let router = axum::Router::new().route("/", axum::routing::get(who));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let make = router.into_make_service_with_connect_info::<SocketAddr>();
    let life = crate::common::patient();
    let running = tokio::spawn(tidegate::serve(listener, make).life(life.clone()).into_future());
    let mut client = crate::common::Client::new(soon(TcpStream::connect(address)).await.unwrap());
    assert_eq!(client.get("/").await.body, client.io.local_addr().unwrap().to_string());
    life.stop();
    life.hasten();
    soon(running).await.unwrap().unwrap();
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_socket_of_the_file_system_does_as_well() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let path = std::env::temp_dir().join(format!("tidegate-{}.socket", std::process::id()));
    let _ = std::fs::remove_file(&path);
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    let life = crate::common::patient();
    let serve = tidegate::serve(listener, tidegate::serve::each(slow().0)).life(life.clone());
    let running = tokio::spawn(serve.into_future());
    let mut io = soon(tokio::net::UnixStream::connect(&path)).await.unwrap();
    io.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    soon(io.read_to_string(&mut answer)).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("hello"), "{answer}");
    life.stop();
    life.hasten();
    soon(running).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_server_that_could_serve_nobody_says_so() {
    let mut limits = Limits::default();
    limits.h2_streams_max = 0;
    let server = Server::with(slow().0, |serve| serve.limits(limits)).await;
    let error = server.ended().await.unwrap_err();
    assert_eq!(error.to_string(), "the limit `h2_streams_max` has to be one or more");
}
