//! Asks endpoints by datagram how they are, while there is no connection to them.
//!
//! Each question carries a nonce that nobody can guess, and goes out over a socket that takes
//! datagrams from that endpoint only. What comes back counts if it carries the nonce of the
//! question that is open; an answer to an earlier one, or of somebody who has not seen it, is
//! passed over.
//!
//! The endpoint says when to ask again, as it knows how many there are who do.
//!
//! **Silence.** An endpoint answers as many questions as it can afford, whoever asks them: a flood
//! of them from addresses that are not the sender's own leaves ours unanswered, and says nothing
//! about the endpoint. So silence is no answer. It counts as a bad one only if a connection cannot
//! be made either, which no datagram of a stranger's can bring about, and who was taken out for
//! that alone is well again when one can. With each question in a row that is not answered by one
//! who is there the wait for the next doubles, as all who ask too much of it should.

use super::config::{self, Voice};
use super::health::{HealthConfig, Standing};
use crate::pool::Upstream;
use core::time::Duration;
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use tidegate::client::{Endpoint, METRIC_RIF, Reports};
use tidegate_wire::health::{Answer, Nonce, Question, SIZE, State};
use tidegate_wire::orca::OrcaLoadReport;
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::Instant;

/// The longest wait that is believed: somebody who can see our questions could else have us never
/// ask again.
const WAIT_MAX: Duration = Duration::from_secs(3_600);

/// The longest wait after silence: an endpoint that has come back is noticed within a minute.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// How long to wait after so many questions in a row that were not answered.
fn after_silence(interval: Duration, silent: u32) -> Duration {
    let doubled = 2_u32.saturating_pow(silent.saturating_sub(1));
    interval.saturating_mul(doubled).min(SILENCE_MAX.max(interval))
}

/// Asks `endpoint`, at `port` or that which it serves at, for as long as this is awaited.
pub(super) async fn watch(
    endpoint: Endpoint,
    port: Option<u16>,
    config: HealthConfig,
    about: String,
    voice: Voice,
    reports: Reports,
) {
    let mut standing = Standing::new();
    let mut nonces = Nonces::default();
    let mut asked: Option<Instant> = None;
    let mut silent = 0_u32;
    // Nothing but that no connection could be made speaks against it.
    let mut unreachable = false;
    loop {
        let question =
            Question { nonce: nonces.next(), waited: asked.map(|asked| asked.elapsed()) };
        asked = Some(Instant::now());
        let exchange = exchange(&endpoint, port, &question);
        let answer = tokio::time::timeout(config.timeout, exchange).await;
        let answer = answer.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).ok();
        let there = answer.is_some() || is_there(&endpoint, config.timeout).await;
        let good = match &answer {
            Some(answer) => Some(answer.state == State::Serving),
            None if there => unreachable.then_some(true),
            None => Some(false),
        };
        unreachable = answer.is_none() && (unreachable || !there);
        if let Some(serves) = good.and_then(|good| standing.on_answer(good, &config)) {
            reports.serves(serves);
            let words = if serves { "is well again" } else { "fails its health checks" };
            voice.say(&format!("{about} {words}"));
        }
        silent = if answer.is_none() && there { silent.saturating_add(1) } else { 0 };
        let mut wait = after_silence(config.interval, silent);
        if let Some(answer) = answer {
            reports.put(&report(&answer));
            // Until it is known to be well, or not to be, as often as is allowed.
            if standing.is_settled() {
                wait = answer.again.clamp(config.interval, WAIT_MAX.max(config.interval));
            }
        }
        tokio::time::sleep(wait).await;
    }
}

fn report(answer: &Answer) -> OrcaLoadReport {
    let mut report = OrcaLoadReport {
        application_utilization: answer.application_utilization,
        cpu_utilization: answer.cpu_utilization,
        rps_fractional: answer.rps,
        eps: answer.eps,
        ..OrcaLoadReport::default()
    };
    report.named_metrics.insert(METRIC_RIF.to_owned(), answer.rif.into());
    report
}

/// One question and its answer, over a socket of their own: an endpoint that is asked once in
/// minutes needs none in between, and one that is there for a moment is hard to write to.
async fn exchange(
    endpoint: &Endpoint,
    port: Option<u16>,
    question: &Question,
) -> io::Result<Answer> {
    let mut address = address(endpoint).await?;
    if let Some(port) = port {
        address.set_port(port);
    }
    let any: SocketAddr = match address {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).await?;
    socket.connect(address).await?;
    socket.send(&question.encode()).await?;
    let mut buffer = [0; SIZE + 1];
    loop {
        let length = socket.recv(&mut buffer).await?;
        let answer = Answer::decode(buffer.get(..length).unwrap_or_default());
        if let Ok(answer) = answer
            && answer.nonce == question.nonce
        {
            return Ok(answer);
        }
    }
}

/// Whether a connection to it can be made.
async fn is_there(endpoint: &Endpoint, timeout: Duration) -> bool {
    let connecting = async { TcpStream::connect(address(endpoint).await?).await };
    tokio::time::timeout(timeout, connecting).await.is_ok_and(|connected| connected.is_ok())
}

async fn address(endpoint: &Endpoint) -> io::Result<SocketAddr> {
    match config::upstream(endpoint).map_err(io::Error::other)? {
        Upstream::Address(address) => Ok(address),
        Upstream::Name(name) => {
            let found = tokio::net::lookup_host(name).await?.next();
            found.ok_or_else(|| io::ErrorKind::NotFound.into())
        }
        Upstream::Unix(_) => Err(io::Error::other("sockets in the file system have no datagrams")),
    }
}

/// Numbers that nobody can guess who has not seen the one in question: a count, hashed with keys
/// that the system has drawn.
#[derive(Default)]
struct Nonces {
    keys: [RandomState; 2],
    count: u64,
}

impl Nonces {
    fn next(&mut self) -> Nonce {
        self.count += 1;
        let [high, low] = [0, 1].map(|n| self.keys[n].hash_one(self.count).to_be_bytes());
        let mut nonce = Nonce::default();
        nonce[..8].copy_from_slice(&high);
        nonce[8..].copy_from_slice(&low);
        nonce
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn silence_is_asked_less_and_less() {
        let waits =
            [0, 1, 2, 3, 4, 5, 6].map(|n| after_silence(Duration::from_secs(5), n).as_secs());
        assert_eq!(waits, [5, 5, 10, 20, 40, 60, 60]);
        assert_eq!(after_silence(Duration::from_secs(90), 3), Duration::from_secs(90));
        assert_eq!(after_silence(Duration::MAX, u32::MAX), Duration::MAX);
    }

    #[test]
    fn nonces_do_not_come_twice() {
        let (mut one, mut other) = (Nonces::default(), Nonces::default());
        let all: BTreeSet<Nonce> = (0..1_000).flat_map(|_| [one.next(), other.next()]).collect();
        assert_eq!(all.len(), 2_000);
    }
}
