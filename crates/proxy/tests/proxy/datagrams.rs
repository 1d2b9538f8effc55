//! Health by datagram, over real sockets.

use crate::support::{ANY, Running, client, config, echo, outbound, program, service, text};
use bytes::Bytes;
use core::time::Duration;
use http::Request;
use http_body_util::Full;
use std::num::NonZeroU32;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::SeqCst};
use tidegate_proxy::EdgeConfig;
use tidegate_proxy::outbound::{Check, HealthConfig};
use tidegate_wire::health::{Answer, Question, SIZE, State};
use tokio::net::UdpSocket;

async fn asker(to: std::net::SocketAddr) -> UdpSocket {
    let socket = UdpSocket::bind(ANY).await.unwrap();
    socket.connect(to).await.unwrap();
    socket
}

/// The next answer. Everything is on one machine: what was sent first comes first.
async fn answer(socket: &UdpSocket) -> Answer {
    let mut bytes = [0; 2 * SIZE];
    let length = socket.recv(&mut bytes).await.unwrap();
    assert_eq!(length, SIZE, "no longer than the question");
    Answer::decode(&bytes[..length]).unwrap()
}

#[tokio::test]
async fn questions_are_answered_and_nothing_else_is() {
    let mut config = config(program(echo).await);
    config.health_udp = Some(ANY.parse().unwrap());
    let proxy = Running::start(config);
    let (address, counts) = proxy.get().datagrams().unwrap();
    let socket = asker(address).await;
    let question = Question { nonce: *b"0123456789abcdef", waited: None };
    let right = question.encode();
    let mut later = right;
    later[3] = b'2';
    let garbage: [&[u8]; 6] = [
        b"",
        b"how are you?",
        &right[..SIZE - 1],
        &[right.as_slice(), b"x"].concat(),
        &later,
        &Answer {
            nonce: question.nonce,
            state: State::Serving,
            again: Duration::ZERO,
            application_utilization: 0.0,
            cpu_utilization: 0.0,
            rps: 0.0,
            eps: 0.0,
            rif: 0,
        }
        .encode(),
    ];
    for bytes in garbage {
        socket.send(bytes).await.unwrap();
    }
    proxy.get().life().reached(tidegate::life::Phase::Serving).await;
    socket.send(&right).await.unwrap();
    let first = answer(&socket).await;
    assert_eq!((first.nonce, first.state), (question.nonce, State::Serving));
    assert!(first.again >= Duration::from_secs(5), "{first:?}");
    assert_eq!((counts.garbage.load(SeqCst), counts.answered.load(SeqCst)), (6, 1));
    // The same question again is the same to us: who asks has to draw another.
    socket.send(&right).await.unwrap();
    assert_eq!(answer(&socket).await.nonce, question.nonce);
    proxy.get().life().stop();
    socket.send(&Question { nonce: [7; 16], waited: Some(first.again) }.encode()).await.unwrap();
    let last = answer(&socket).await;
    assert_eq!((last.nonce, last.state), ([7; 16], State::LameDuck));
}

/// Strangers are told that somebody serves, and not how busy.
#[tokio::test]
async fn in_front_of_strangers_nothing_is_said_of_the_load() {
    for (edge, known) in [(None, 1), (Some(EdgeConfig::default()), 0)] {
        let mut config = config(program(|_| core::future::pending()).await);
        config.health_udp = Some(ANY.parse().unwrap());
        config.edge = edge;
        let proxy = Running::start(config);
        let mut client = client(proxy.address()).await;
        let request = Request::get("/").header("host", "x").body(Full::<Bytes>::default());
        let asked = tokio::spawn(client.send_request(request.unwrap()));
        while proxy.get().task().snapshot().requests.inflight() == 0 {
            tokio::task::yield_now().await;
        }
        let socket = asker(proxy.get().datagrams().unwrap().0).await;
        socket.send(&Question { nonce: [7; 16], waited: None }.encode()).await.unwrap();
        let answer = answer(&socket).await;
        assert_eq!((answer.state, answer.rif), (State::Serving, known));
        asked.abort();
    }
}

/// Answers questions at a port as it is told, after something that should not be believed.
struct Fake {
    state: Arc<AtomicU8>,
    asked: Arc<AtomicU64>,
}

const SERVING: u8 = 1;
const LAME_DUCK: u8 = 2;
const SILENT: u8 = 3;

impl Fake {
    async fn at(address: std::net::SocketAddr, state: u8) -> Self {
        let fake = Self { state: Arc::new(AtomicU8::new(state)), asked: Arc::default() };
        let (state, asked) = (Arc::clone(&fake.state), Arc::clone(&fake.asked));
        let socket = UdpSocket::bind(address).await.unwrap();
        tokio::spawn(async move {
            let stranger = UdpSocket::bind(ANY).await.unwrap();
            let mut last: Option<Answer> = None;
            loop {
                let mut bytes = [0; 2 * SIZE];
                let (length, from) = socket.recv_from(&mut bytes).await.unwrap();
                let question = Question::decode(&bytes[..length]).unwrap();
                asked.fetch_add(1, SeqCst);
                let now = state.load(SeqCst);
                let say = |nonce, serving: bool| Answer {
                    nonce,
                    state: if serving { State::Serving } else { State::LameDuck },
                    again: Duration::ZERO,
                    application_utilization: 0.5,
                    cpu_utilization: 0.5,
                    rps: 1.0,
                    eps: 0.0,
                    rif: 1,
                };
                let lie = now != SERVING;
                // A nonce that was guessed, an answer of before, one from elsewhere, and garbage.
                let guessed = say([9; 16], lie).encode();
                let _ = socket.send_to(&guessed, from).await;
                if let Some(last) = last {
                    let replayed = Answer { state: say([0; 16], lie).state, ..last };
                    let _ = socket.send_to(&replayed.encode(), from).await;
                }
                let _ = stranger.send_to(&say(question.nonce, lie).encode(), from).await;
                let _ = socket.send_to(b"garbage", from).await;
                let right = say(question.nonce, now == SERVING);
                if now != SILENT {
                    let _ = socket.send_to(&right.encode(), from).await;
                }
                last = Some(right);
            }
        });
        fake
    }
}

/// A program that counts, and its health at the same port.
async fn endpoint(state: u8) -> (std::net::SocketAddr, Arc<AtomicU64>, Fake) {
    let calls = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&calls);
    let address = program(move |request| {
        counted.fetch_add(1, SeqCst);
        echo(request)
    })
    .await;
    (address, calls, Fake::at(address, state).await)
}

/// Calls until none of so many in a row went to the one that `calls` counts.
async fn until_left_alone(proxy: &Running, calls: &AtomicU64) {
    let mut client = client(proxy.address()).await;
    let mut quiet = 0;
    while quiet < 20 {
        let before = calls.load(SeqCst);
        client.ready().await.unwrap();
        let request = Request::builder().uri("/").header("host", "x");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        text(client.send_request(request).await.unwrap()).await;
        quiet = if calls.load(SeqCst) == before { quiet + 1 } else { 0 };
    }
}

#[tokio::test]
async fn only_the_right_answer_to_the_last_question_is_believed() {
    let (good, good_calls, good_health) = endpoint(SERVING).await;
    let (bad, bad_calls, bad_health) = endpoint(LAME_DUCK).await;
    let mut service = service(&[good, bad]);
    let mut health = HealthConfig::new(Check::Udp(None));
    (health.interval, health.timeout) = (Duration::from_millis(5), Duration::from_millis(500));
    (health.fall, health.rise) = (NonZeroU32::MIN, NonZeroU32::MIN);
    service.health = Some(health);
    let proxy = Running::start(outbound(service));
    until_left_alone(&proxy, &bad_calls).await;
    // They change places; lies go the other way round as well.
    bad_health.state.store(SERVING, SeqCst);
    good_health.state.store(LAME_DUCK, SeqCst);
    until_left_alone(&proxy, &good_calls).await;
    assert!(good_health.asked.load(SeqCst) > 0 && bad_health.asked.load(SeqCst) > 1);
}

/// What a flood of strangers' questions does: ours are not answered, and calls go on as before.
#[tokio::test]
async fn silence_alone_takes_nobody_out() {
    let (silent, calls, health) = endpoint(SILENT).await;
    let (good, _, _good_health) = endpoint(SERVING).await;
    let mut service = service(&[silent, good]);
    let mut check = HealthConfig::new(Check::Udp(None));
    (check.interval, check.timeout) = (Duration::from_millis(1), Duration::from_millis(20));
    service.health = Some(check);
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    let mut call = async || {
        client.ready().await.unwrap();
        let request = Request::builder().uri("/").header("host", "x");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        text(client.send_request(request).await.unwrap()).await;
    };
    // Far more questions in vain than take one out that is gone.
    while health.asked.load(SeqCst) < 6 {
        call().await;
    }
    let before = calls.load(SeqCst);
    for _ in 0..100 {
        call().await;
    }
    assert!(calls.load(SeqCst) > before, "it is left alone");
}

#[tokio::test]
async fn a_proxy_beside_a_client_asks_a_proxy_beside_a_program() {
    let mut inbound = config(program(echo).await);
    inbound.health_udp = Some(ANY.parse().unwrap());
    let inbound = Running::start(inbound);
    let (health, counts) = inbound.get().datagrams().unwrap();
    let mut service = service(&[inbound.address()]);
    service.health = Some(HealthConfig::new(Check::Udp(Some(health.port()))));
    let proxy = Running::start(outbound(service));
    let mut client = client(proxy.address()).await;
    while counts.answered.load(SeqCst) == 0 {
        client.ready().await.unwrap();
        let request = Request::builder().uri("/").header("host", "x");
        let request = request.body(Full::<Bytes>::default()).unwrap();
        assert_eq!(client.send_request(request).await.unwrap().status(), 200);
    }
}
