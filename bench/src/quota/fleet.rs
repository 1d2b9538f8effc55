//! A fleet of tasks that report, as cheaply as they can: the core that they are on is not measured.
//!
//! Reports differ by their number only, so all lines are written once: some sets of customers, with
//! some variants each, which every task goes through. Answers are read for what a task would take
//! from them: which report they answer, and the last grant, which is acknowledged at once.

use super::server::{Process, SERVICE};
use super::{Figures, INTERVAL, Options};
use crate::Outcome;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use h2::client::SendRequest;
use h2::{RecvStream, SendStream};
use http::Request;
use prost::Message as _;
use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidegate_core::rng::{Rng as _, SeededRng};
use tidegate_wire::proto::tidegate::quota::v1 as wire;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval_at};

/// Sets of customers: enough that each customer is at tasks of many kinds.
const SETS: usize = 50;
/// Demand changes from one report to the next, and is back after so many.
const VARIANTS: usize = 4;
/// Before anything is measured every task has been answered so often: by then it has grants, and
/// has been told of all customers.
const REPORTS_BEFORE: usize = 4;
/// A server that takes longer takes for ever.
const WARM_UP_MAX: Duration = Duration::from_secs(120);
/// Connections that are made at once.
const CONNECTING: usize = 64;

/// What all tasks have seen.
#[derive(Default)]
struct Seen {
    welcomed: usize,
    answers: u64,
    answered: Vec<f64>,
    grants: u64,
    failed: Option<String>,
}

/// What tasks do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Connect,
    Report,
    End,
}

pub(super) fn measure(options: &Options, cpu: Option<usize>) -> Outcome<Figures> {
    let (server, address) = Process::quota(options.tasks, options.customers, cpu)?;
    let lines = write_lines(options);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, follow(options, &server, address, lines))
}

async fn follow(
    options: &Options,
    server: &Process,
    address: SocketAddr,
    lines: Vec<[Bytes; VARIANTS]>,
) -> Outcome<Figures> {
    let seen = Rc::new(RefCell::new(Seen::default()));
    let (phase, phases) = watch::channel(Phase::Connect);
    let connecting = Rc::new(Semaphore::new(CONNECTING));
    let lines = Rc::new(lines);
    for number in 0..options.tasks {
        let (seen, phases, lines) = (Rc::clone(&seen), phases.clone(), Rc::clone(&lines));
        let (connecting, tasks) = (Rc::clone(&connecting), options.tasks);
        tokio::task::spawn_local(async move {
            let ended = live(number, tasks, address, &connecting, &lines, phases, &seen).await;
            if let Err(error) = ended {
                seen.borrow_mut().failed.get_or_insert(format!("task {number}: {error}"));
            }
        });
    }
    let check = || seen.borrow().failed.clone().map_or(Ok(()), Err);
    while seen.borrow().welcomed < options.tasks {
        check()?;
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let empty = server.resident()?;
    phase.send(Phase::Report)?;
    let patience = Instant::now() + WARM_UP_MAX;
    while seen.borrow().answers < (REPORTS_BEFORE * options.tasks) as u64 {
        check()?;
        if Instant::now() > patience {
            return Err(format!("{WARM_UP_MAX:?} were not enough to warm up").into());
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let (answers, grants) = (seen.borrow().answers, seen.borrow().grants);
    seen.borrow_mut().answered.clear();
    let (cpu, start) = (server.cpu_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let cpu_seconds = server.cpu_seconds()? - cpu;
    let seconds = start.elapsed().as_secs_f64();
    check()?;
    let full = server.resident()?;
    let _ = phase.send(Phase::End);
    let seen = seen.borrow();
    let answers = seen.answers - answers;
    if seen.grants == grants {
        return Err("no limit has changed: nothing was measured".into());
    }
    Ok(Figures {
        lines: answers * options.active as u64,
        seconds,
        cpu_seconds,
        answered: seen.answered.clone(),
        bytes_per_pair: (full - empty) / (options.tasks * options.active) as f64,
    })
}

/// All lines of a report, for each set of customers.
fn write_lines(options: &Options) -> Vec<[Bytes; VARIANTS]> {
    let mut dice = SeededRng::new(1);
    let mut set = || {
        let mut customers: Vec<u32> = (1..=options.customers as u32).collect();
        for place in 0..options.active {
            let other = place + dice.below((customers.len() - place) as u64) as usize;
            customers.swap(place, other);
        }
        customers.truncate(options.active);
        customers.sort_unstable();
        let mut last = 0;
        let steps =
            customers.iter().map(|customer| customer - core::mem::replace(&mut last, *customer));
        let steps: Vec<u32> = steps.collect();
        core::array::from_fn(|_| {
            // 75 thousandths of a CPU in the mean: with a thousand tasks for each customer that is
            // 75 CPUs, and a fifth of the customers may use 20.
            let mut rate = || 20_000_000 + dice.below(60_000_000);
            let rates = steps.iter().flat_map(|_| [rate() / 2, rate()]).collect();
            // Something is served at the two levels in the middle.
            let levels = vec![0b0110; steps.len()];
            let usages =
                wire::Usages { customers: steps.clone(), levels, rates, ..Default::default() };
            Bytes::from(usages.encode_to_vec())
        })
    };
    (0..SETS).map(|_| set()).collect()
}

/// One task, from its connection to its end.
async fn live(
    number: usize,
    tasks: usize,
    address: SocketAddr,
    connecting: &Semaphore,
    lines: &[[Bytes; VARIANTS]],
    mut phases: watch::Receiver<Phase>,
    seen: &RefCell<Seen>,
) -> Outcome {
    let permit = connecting.acquire().await?;
    let io = TcpStream::connect(address).await?;
    io.set_nodelay(true)?;
    let (requests, connection) = h2::client::handshake(io).await?;
    tokio::task::spawn_local(async move {
        // The server ends it, or the measurement does.
        let _ = connection.await;
    });
    let mut task = Task::open(requests, number).await?;
    drop(permit);
    seen.borrow_mut().welcomed += 1;
    phases.wait_for(|phase| *phase != Phase::Connect).await?;
    let lines = &lines[number % lines.len()];
    // Spread over the interval, as chance would.
    let first = Instant::now() + INTERVAL.mul_f64(number as f64 / tasks as f64);
    let mut ticks = interval_at(first.into(), INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            _ = ticks.tick() => task.report(lines)?,
            heard = task.heard.data() => {
                let Some(data) = heard else {
                    let why = task.heard.trailers().await?;
                    return Err(format!("the server has ended the stream: {why:?}").into());
                };
                task.take(&data?, seen)?;
            }
            changed = phases.changed() => {
                if changed.is_err() || *phases.borrow() == Phase::End {
                    return Ok(());
                }
            }
        }
    }
}

struct Task {
    say: SendStream<Bytes>,
    heard: RecvStream,
    /// What has come of messages that are not whole.
    part: BytesMut,
    number: u64,
    /// Reports that are not answered, and when each was sent.
    sent: VecDeque<(u64, Instant)>,
    epoch: u64,
    acked: u64,
}

impl Task {
    async fn open(requests: SendRequest<Bytes>, number: usize) -> Outcome<Self> {
        let mut requests = requests.ready().await?;
        let request = Request::post("http://quota/tidegate.quota.v1.Quota/Report")
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(())?;
        let (answer, mut say) = requests.send_request(request, false)?;
        let hello = wire::Hello {
            service: SERVICE.to_owned(),
            task: format!("task-{number}"),
            ..wire::Hello::default()
        };
        let hello = wire::TaskMessage { hello: Some(hello), ..wire::TaskMessage::default() };
        say.send_data(frame(&hello.encode_to_vec()), false)?;
        let heard = answer.await?.into_body();
        let (part, sent) = (BytesMut::new(), VecDeque::new());
        let mut task = Self { say, heard, part, number: 0, sent, epoch: 0, acked: 0 };
        while task.epoch == 0 {
            let data = task.heard.data().await.ok_or("no welcome")??;
            task.take(&data, &RefCell::default())?;
        }
        Ok(task)
    }

    /// Says what customers use and want, and what it was granted last.
    fn report(&mut self, lines: &[Bytes; VARIANTS]) -> Outcome {
        self.number += 1;
        let lines = &lines[self.number as usize % VARIANTS];
        let number = wire::Usages { number: self.number, ..Default::default() }.encode_to_vec();
        let acked = self.ack();
        let mut message = BytesMut::with_capacity(lines.len() + 64);
        message.put_slice(&[0; 5]);
        // Field 2, a message.
        message.put_u8(0x12);
        prost::encode_length_delimiter(number.len() + lines.len(), &mut message)?;
        message.put_slice(&number);
        message.put_slice(lines);
        message.put_slice(&acked);
        let length = message.len() as u32 - 5;
        message[1..5].copy_from_slice(&length.to_be_bytes());
        self.sent.push_back((self.number, Instant::now()));
        self.say.send_data(message.freeze(), false)?;
        Ok(())
    }

    fn ack(&self) -> Vec<u8> {
        let acked = wire::Generation { epoch: self.epoch, number: self.acked };
        let acked = (self.acked > 0).then_some(acked);
        wire::TaskMessage { acked, ..wire::TaskMessage::default() }.encode_to_vec()
    }

    /// Takes in what the server said.
    fn take(&mut self, data: &Bytes, seen: &RefCell<Seen>) -> Outcome {
        self.heard.flow_control().release_capacity(data.len())?;
        self.part.extend_from_slice(data);
        while self.part.len() >= 5 {
            let length = u32::from_be_bytes(self.part[1..5].try_into()?) as usize;
            if self.part.len() < 5 + length {
                break;
            }
            self.part.advance(5);
            let message = self.part.split_to(length);
            let mut seen = seen.borrow_mut();
            if self.epoch == 0 {
                let welcome = wire::ServerMessage::decode(&message[..])?.welcome;
                self.epoch = welcome.and_then(|welcome| welcome.task).map_or(0, |task| task.epoch);
            }
            let told = Told::read(&message).ok_or("nonsense")?;
            while let Some(&(number, sent)) = self.sent.front()
                && number <= told.answers
            {
                self.sent.pop_front();
                seen.answers += 1;
                seen.answered.push(sent.elapsed().as_secs_f64());
            }
            seen.grants += told.grants;
            self.acked = self.acked.max(told.last);
            if told.grants > 0 && told.acknowledge {
                self.say.send_data(frame(&self.ack()), false)?;
            }
        }
        Ok(())
    }
}

/// What a task has to know of a message. To read all of it would cost the fleet more than the
/// server.
#[derive(Default)]
struct Told {
    answers: u64,
    grants: u64,
    /// The number of the last of them.
    last: u64,
    /// Whether to say at once that they have arrived.
    acknowledge: bool,
}

impl Told {
    fn read(mut bytes: &[u8]) -> Option<Self> {
        let mut told = Self::default();
        while bytes.has_remaining() {
            let key = varint(&mut bytes)?;
            match (key >> 3, key & 7) {
                (2, 0) => told.answers = varint(&mut bytes)?,
                (9, 0) => told.acknowledge = varint(&mut bytes)? != 0,
                (_, 0) => drop(varint(&mut bytes)?),
                (field, 2) => {
                    let length = usize::try_from(varint(&mut bytes)?).ok()?;
                    let (inner, rest) = bytes.split_at_checked(length)?;
                    bytes = rest;
                    if field == 5 {
                        told.granted(inner)?;
                    }
                }
                _ => return None,
            }
        }
        Some(told)
    }

    /// Reads the last number of some grants, and counts their customers: those given and those
    /// taken back.
    fn granted(&mut self, mut grants: &[u8]) -> Option<()> {
        while grants.has_remaining() {
            let key = varint(&mut grants)?;
            match (key >> 3, key & 7) {
                (1, 0) => self.last = varint(&mut grants)?,
                (field, 2) => {
                    let length = usize::try_from(varint(&mut grants)?).ok()?;
                    let (packed, rest) = grants.split_at_checked(length)?;
                    grants = rest;
                    if field != 3 {
                        // Each number ends with a byte whose highest bit is not set.
                        self.grants += packed.iter().filter(|byte| **byte < 0x80).count() as u64;
                    }
                }
                _ => return None,
            }
        }
        Some(())
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(bytes).ok()
}

/// A message of gRPC.
fn frame(message: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(5 + message.len());
    frame.put_u8(0);
    frame.put_u32(message.len() as u32);
    frame.put_slice(message);
    frame.freeze()
}
