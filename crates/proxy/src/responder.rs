//! Health by datagram, for whoever has no connection to us.
//!
//! Clients that send nothing drop their connections and ask by datagram now and then
//! ([`tidegate_wire::health`]). Answers come from what the gate publishes anyway, and say when to
//! ask again: core's [`HealthPacer`] sees to it that all who ask cost no more than half a percent
//! of a CPU, be it ten or ten thousand.
//!
//! One thread reads and answers. What is no question gets no answer, and what is more than the
//! pacer pays for neither. Reading garbage costs too, so it rests after so many datagrams in a row,
//! and the kernel drops what comes meanwhile.
//!
//! **At a hand-over** both processes have a socket at the address for a moment, and the kernel
//! deals datagrams out to them. Both say that somebody serves here, which is true. What lies unread
//! in the socket that is closed is lost, as any datagram may be, and is asked again.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use tidegate::Task;
use tidegate::life::{Life, Phase};
use tidegate::metrics::EdgeCounts;
use tidegate_core::connection::idle::{HealthAnswer, HealthPacer, HealthPacerConfig};
use tidegate_core::rng::SeededRng;
use tidegate_wire::health::{Answer, Question, SIZE, State};
use tidegate_wire::orca::OrcaLoadReport;

/// How soon it sees that it is to end.
const LOOK: Duration = Duration::from_millis(250);

/// So many in a row, and then a rest: at most 64,000 a second, a tenth of a core.
const ROW: u32 = 64;
const REST: Duration = Duration::from_millis(1);

/// Datagrams so far.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Datagrams {
    /// Questions that were answered.
    pub answered: AtomicU64,
    /// Questions that came too fast for all of them to be answered.
    pub dropped: AtomicU64,
    /// What was no question.
    pub garbage: AtomicU64,
}

impl Datagrams {
    /// By name.
    pub(crate) fn events(&self) -> EdgeCounts {
        [("answered", &self.answered), ("dropped", &self.dropped), ("garbage", &self.garbage)]
            .map(|(event, count)| (event, count.load(Relaxed)))
            .to_vec()
    }
}

/// Who answers at an address.
#[derive(Debug)]
pub(crate) struct Responder {
    pub(crate) address: SocketAddr,
    pub(crate) counts: Arc<Datagrams>,
}

impl Responder {
    /// Answers at `address`. `succeeds` if a predecessor may still do so; `discreet` if those who
    /// ask are strangers, who are told whether somebody serves here and no more.
    pub(crate) fn start(
        address: SocketAddr,
        (succeeds, discreet): (bool, bool),
        task: Task,
        life: Life,
        counts: Arc<Datagrams>,
    ) -> io::Result<Self> {
        // Nobody else's place is shared: one that cannot be had alone is taken.
        if !succeeds && address.port() != 0 {
            drop(bind(address, false)?);
        }
        let socket = bind(address, true)?;
        let address = socket.local_addr()?;
        socket.set_read_timeout(Some(LOOK))?;
        let config = HealthPacerConfig::default();
        let pacer = HealthPacer::new(config, task.clock().now()).map_err(io::Error::other)?;
        let rng = SeededRng::new(RandomState::new().hash_one(0));
        let counted = Arc::clone(&counts);
        let at = At { socket, task, life, discreet, pacer, rng, counts: counted };
        let thread = std::thread::Builder::new().name("tidegate-health".to_owned());
        drop(thread.spawn(move || at.run())?);
        Ok(Self { address, counts })
    }
}

struct At {
    socket: UdpSocket,
    task: Task,
    life: Life,
    discreet: bool,
    pacer: HealthPacer,
    rng: SeededRng,
    counts: Arc<Datagrams>,
}

impl At {
    fn run(mut self) {
        // One more than there may be, so that longer ones are seen to be longer.
        let mut buffer = [0; SIZE + 1];
        let mut row = 0;
        loop {
            if self.life.is_replaced() || self.life.phase() == Phase::Gone {
                return;
            }
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => {
                    let asked = Question::decode(buffer.get(..length).unwrap_or_default());
                    match asked {
                        Ok(question) => self.answer(&question, from),
                        Err(_) => _ = self.counts.garbage.fetch_add(1, Relaxed),
                    }
                    row += 1;
                    if row >= ROW {
                        row = 0;
                        std::thread::sleep(REST);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => row = 0,
                // That an answer found nobody is told by an error of the next call.
                Err(_) => std::thread::sleep(REST),
            }
        }
    }

    fn answer(&mut self, question: &Question, from: SocketAddr) {
        let now = self.task.clock().now();
        let again = match self.pacer.on_check(question.waited, now, &mut self.rng) {
            HealthAnswer::AskAgainAfter(wait) => wait,
            HealthAnswer::Drop => {
                self.counts.dropped.fetch_add(1, Relaxed);
                return;
            }
        };
        let state = match self.life.phase() {
            Phase::Starting => State::Starting,
            Phase::Serving => State::Serving,
            // Here somebody else serves.
            _ if self.life.is_replaced() => State::Serving,
            _ => State::LameDuck,
        };
        let report =
            if self.discreet { OrcaLoadReport::default() } else { self.task.load_report() };
        let inflight = if self.discreet { 0 } else { self.task.snapshot().requests.inflight() };
        let answer = Answer {
            nonce: question.nonce,
            state,
            again,
            application_utilization: report.application_utilization,
            cpu_utilization: report.cpu_utilization,
            rps: report.rps_fractional,
            eps: report.eps,
            rif: u32::try_from(inflight).unwrap_or(u32::MAX),
        };
        // Before it is sent: who has an answer finds it counted.
        self.counts.answered.fetch_add(1, Relaxed);
        // Who cannot be answered asks again.
        let _ = self.socket.send_to(&answer.encode(), from);
    }
}

fn bind(address: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    sockopt::set_socket_reuseport(&socket, shared)?;
    rustix::net::bind(&socket, &address)?;
    Ok(socket.into())
}
