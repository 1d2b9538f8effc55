//! The same counters in Redis: an `INCRBY` for each line, all lines of a report in one pipeline.

use super::server::Process;
use super::{Figures, INTERVAL, Options};
use crate::Outcome;
use bytes::Bytes;
use std::cell::RefCell;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tidegate_core::rng::{Rng as _, SeededRng};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::LocalSet;
use tokio::time::{MissedTickBehavior, interval_at};

/// Before anything is measured every task has counted a few times.
const WARM_UP: Duration = Duration::from_secs(4);

/// Where it is, or a word to whoever looks that it is left out.
pub(super) fn find() -> Option<PathBuf> {
    let program = PathBuf::from("/usr/bin/redis-server");
    if !program.is_file() {
        eprintln!("redis is not there and is left out; `apt install redis-server` gets it");
        return None;
    }
    Some(program)
}

pub(super) fn measure(options: &Options, program: &Path, cpu: Option<usize>) -> Outcome<Figures> {
    // Somebody else may take it before Redis does; then it is not reached, and says so.
    let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.unwrap_or(0).to_string()).arg(program);
    command.args(["--port", &address.port().to_string(), "--bind", "127.0.0.1"]);
    // No files: what is counted is gone with the process, as with ours.
    command.args(["--save", "", "--appendonly", "no", "--dir", "/tmp"]);
    command.args(["--maxclients", &(options.tasks + 100).to_string()]);
    let server = Process::start(command.stdout(Stdio::null()))?;
    for _ in 0..500 {
        if std::net::TcpStream::connect(address).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, follow(options, &server, address))
}

#[derive(Default)]
struct Seen {
    lines: u64,
    answered: Vec<f64>,
    failed: Option<String>,
}

async fn follow(options: &Options, server: &Process, address: SocketAddr) -> Outcome<Figures> {
    let pipelines: Rc<Vec<Bytes>> = Rc::new(write(options));
    let seen = Rc::new(RefCell::new(Seen::default()));
    let (end, ends) = watch::channel(false);
    let mut connections = Vec::new();
    for _ in 0..options.tasks {
        let io = TcpStream::connect(address).await?;
        io.set_nodelay(true)?;
        connections.push(io);
    }
    let empty = server.resident()?;
    for (number, io) in connections.into_iter().enumerate() {
        let (seen, mut ends) = (Rc::clone(&seen), ends.clone());
        let (pipelines, active, tasks) = (Rc::clone(&pipelines), options.active, options.tasks);
        tokio::task::spawn_local(async move {
            let ended = tokio::select! {
                ended = count(number, tasks, io, &pipelines, active, &seen) => ended,
                _ = ends.changed() => Ok(()),
            };
            if let Err(error) = ended {
                seen.borrow_mut().failed.get_or_insert(format!("task {number}: {error}"));
            }
        });
    }
    tokio::time::sleep(WARM_UP).await;
    seen.borrow_mut().answered.clear();
    let lines = seen.borrow().lines;
    let (cpu, start) = (server.cpu_seconds()?, Instant::now());
    tokio::time::sleep(Duration::from_secs(options.seconds)).await;
    let cpu_seconds = server.cpu_seconds()? - cpu;
    let seconds = start.elapsed().as_secs_f64();
    let full = server.resident()?;
    let _ = end.send(true);
    let seen = seen.borrow();
    if let Some(failed) = &seen.failed {
        return Err(failed.clone().into());
    }
    Ok(Figures {
        lines: seen.lines - lines,
        seconds,
        cpu_seconds,
        answered: seen.answered.clone(),
        // It has one counter a customer, whatever the number of tasks.
        bytes_per_pair: (full - empty).max(0.0) / (options.tasks * options.active) as f64,
    })
}

/// Pipelines of some sets of customers.
fn write(options: &Options) -> Vec<Bytes> {
    let mut dice = SeededRng::new(1);
    let mut pipeline = || {
        let mut text = String::new();
        for _ in 0..options.active {
            let key = format!("customer-{}", dice.below(options.customers as u64));
            let amount = (20_000_000 + dice.below(60_000_000)).to_string();
            // Writing to a string cannot fail.
            let _ = write!(text, "*3\r\n$6\r\nINCRBY\r\n${}\r\n{key}\r\n", key.len());
            let _ = write!(text, "${}\r\n{amount}\r\n", amount.len());
        }
        Bytes::from(text)
    };
    (0..50).map(|_| pipeline()).collect()
}

/// One task: a pipeline an interval.
async fn count(
    number: usize,
    tasks: usize,
    mut io: TcpStream,
    pipelines: &[Bytes],
    active: usize,
    seen: &RefCell<Seen>,
) -> Outcome {
    let first = Instant::now() + INTERVAL.mul_f64(number as f64 / tasks as f64);
    let mut ticks = interval_at(first.into(), INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
    let mut part = vec![0; 16_384];
    loop {
        ticks.tick().await;
        let sent = Instant::now();
        io.write_all(&pipelines[number % pipelines.len()]).await?;
        let mut replies = 0;
        while replies < active {
            let length = io.read(&mut part).await?;
            if length == 0 || part[..length].contains(&b'-') {
                return Err("redis refuses to count".into());
            }
            replies += part[..length].split(|byte| *byte == b'\n').count() - 1;
        }
        let mut seen = seen.borrow_mut();
        seen.lines += active as u64;
        seen.answered.push(sent.elapsed().as_secs_f64());
    }
}
