//! Whether those who are there feel those who come.
//!
//! **New connections.** Requests at half of what the proxy can do, by schedule on connections that
//! stay, alone; and beside two thousand new connections a second, of which every other one makes a
//! request and all close at once. What a busy machine does to the latency is not what the proxy
//! does: so there is a third, in which as many connections come to *another* proxy on the same
//! core. Rounds are interleaved, and of each the p99 counts from when a request was due.
//!
//! **A batch.** Ten thousand workers are connected to a proxy in the batch role, and start
//! together. Beside them interactive callers ask the backend behind it itself, a server with the
//! library in it, at three tenths of what it can do. Their p99 before and while the batch is worked
//! off, and how many connections the backend has of whom; and the same without the proxy, where
//! workers go to the backend themselves, by HTTP's word for it as important as anybody.
//!
//! ```sh
//! cargo run --release -p tidegate-bench -- proxy --connections
//! cargo run --release -p tidegate-bench -- proxy --batch
//! ```

use super::crowd::{self, Crowd};
use crate::Outcome;
use crate::load::Server;
use crate::measure::{Cpus, median, pin};
use crate::overload::server::{App, Contender, Server as Backend, Setup, rounds_in};
use crate::peers::{Peer, Running, Told, raise_file_limit};
use clap::Args;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tidegate_load::report::Spans;
use tidegate_load::{Load, Plan, Rate, Report, Run, Stage, Stats, Target};
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

/// New connections a second.
const STORM: u32 = 2_000;
/// Addresses that they come from in turn: each has the ports for ten seconds, and a port is not
/// used again for a minute.
const SOURCES: usize = 20;
/// What the backend of a batch does for a request, in CPU seconds: a small one.
const WORK: f64 = 0.001;
/// Of what it can do, for interactive callers: most backends idle more than that.
const INTERACTIVE: f64 = 0.3;
const BEFORE: Duration = Duration::from_secs(10);
/// A batch that takes longer is not waited for.
const DURING: Duration = Duration::from_secs(120);

/// Requests to `address`, as `load` says.
fn ask(address: SocketAddr, rate: f64, seconds: u64) -> Outcome<Report> {
    Ok(Run::start(plan(address, rate, Duration::from_secs(seconds)))?.finish(|_| {})?)
}

fn plan(address: SocketAddr, rate: f64, duration: Duration) -> Plan {
    let stages = vec![Stage::constant(Rate(rate), duration)];
    let mut plan = Plan::new(Target::loopback(address), stages, 1);
    plan.connections_max = plan.connections;
    if rate == 0.0 {
        plan.course.load = Load::Closed { duration };
    }
    plan
}

fn proxy(cpu: Option<usize>, upstream: SocketAddr, role: &str) -> Outcome<Running> {
    let program = Peer::Tidegate.found().ok_or("no program")?;
    Running::start(Peer::Tidegate, &program, cpu, |address, _| {
        let words = ["proxy-server", &address.to_string(), &upstream.to_string(), role, "--crowd"];
        Told::Arguments(words.map(str::to_owned).to_vec())
    })
}

/// How new connections come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storm {
    None,
    Elsewhere,
    Here,
}

pub(super) fn connections(rounds: u32, seconds: u64, as_json: bool) -> Outcome {
    let cpus = Cpus::new();
    let (front, behind) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(behind) && cpus.are_two();
    let server = Server::start(behind)?;
    let (one, other) =
        (proxy(front, server.address, "--dark")?, proxy(front, server.address, "--dark")?);
    let capacity = ask(one.address, 0.0, 3)?.ok_rps;
    let arms = [Storm::None, Storm::Elsewhere, Storm::Here];
    let mut figures: Vec<Vec<(f64, f64, Value)>> = vec![Vec::new(); arms.len()];
    for round in 0..rounds as usize {
        for arm in (0..arms.len()).map(|n| (n + round) % arms.len()) {
            let storm = match arms[arm] {
                Storm::None => None,
                Storm::Elsewhere => Some(Blowing::start(other.address, seconds)?),
                Storm::Here => Some(Blowing::start(one.address, seconds)?),
            };
            let report = ask(one.address, capacity / 2.0, seconds)?;
            let came = storm.map_or(Ok(Value::Null), Blowing::end)?;
            let spans = report.latency_ms.ok_or("nothing was answered")?;
            if report.total.failed > 0 {
                return Err(format!("{} were not admitted", report.total.failed).into());
            }
            figures[arm].push((spans.p50, spans.p99, came));
        }
    }
    let rows: Vec<Value> = arms
        .iter()
        .zip(&figures)
        .map(|(arm, figures)| {
            json!({
                "new_connections": match arm {
                    Storm::None => "none",
                    Storm::Elsewhere => "to another proxy on the core",
                    Storm::Here => "to this one",
                },
                "p50_ms": median(figures.iter().map(|(p50, ..)| *p50)),
                "p99_ms": median(figures.iter().map(|(_, p99, _)| *p99)),
                "p99_ms_by_round": figures.iter().map(|(_, p99, _)| *p99).collect::<Vec<_>>(),
                "came": figures.iter().map(|(.., came)| came.clone()).collect::<Vec<_>>(),
            })
        })
        .collect();
    if as_json {
        let run = json!({ "pinned": pinned, "requests_per_second": capacity / 2.0, "rows": rows });
        println!("{run}");
        return Ok(());
    }
    println!("{:.0} requests a second, half of what it does", capacity / 2.0);
    println!(
        "{:<32} {:>8} {:>8}",
        format!("{STORM} new connections a second"),
        "p50, ms",
        "p99, ms"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let who = row["new_connections"].as_str().unwrap_or_default();
        println!("{who:<32} {:>8.3} {:>8.3}", number("p50_ms"), number("p99_ms"));
    }
    if !pinned {
        println!("The proxies and the load were NOT on cores of their own.");
    }
    Ok(())
}

/// New connections, in a process of their own.
#[derive(Args)]
pub(crate) struct StormOptions {
    address: SocketAddr,
    /// A second.
    rate: u32,
    seconds: u64,
}

/// The child's side. Connections come on time, whatever became of those before.
pub(crate) fn storm(options: &StormOptions) -> Outcome {
    raise_file_limit(u64::MAX);
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let (start, address) = (Instant::now(), options.address);
        for number in 0..u64::from(options.rate) * options.seconds {
            let due = Duration::from_secs(1).mul_f64(number as f64 / f64::from(options.rate));
            sleep_until(start + due).await;
            let counts = Arc::clone(&counts);
            drop(tokio::task::spawn_local(async move {
                let outcome = async {
                    let mut io = crowd::connect(address, 1 + number as usize % SOURCES).await?;
                    if number % 2 == 0 {
                        crowd::once(&mut io).await?;
                    }
                    Outcome::Ok(number % 2 == 0)
                };
                let place = match outcome.await {
                    Ok(true) => 0,
                    Ok(false) => 1,
                    Err(_) => 2,
                };
                counts[place].fetch_add(1, Relaxed);
            }));
        }
        // The last ones have a moment.
        tokio::time::sleep(Duration::from_millis(500)).await;
    });
    let [asked, silent, failed] = [0, 1, 2].map(|place: usize| counts[place].load(Relaxed));
    println!("{}", json!({ "asked": asked, "silent": silent, "failed": failed }));
    Ok(())
}

/// The parent's side.
struct Blowing(Child);

impl Blowing {
    fn start(address: SocketAddr, seconds: u64) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["proxy-storm", &address.to_string(), &STORM.to_string()]);
        command.arg(seconds.to_string());
        Ok(Self(command.stdout(Stdio::piped()).spawn()?))
    }

    fn end(self) -> Outcome<Value> {
        let output = self.0.wait_with_output()?;
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// Where a batch is.
const WAITS: u8 = 0;
const RUNS: u8 = 1;
const DONE: u8 = 2;

pub(super) fn batch(count: usize, as_json: bool) -> Outcome {
    let cpus = Cpus::new();
    let (behind, front) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(front) && cpus.are_two();
    let rounds = rounds_in(WORK);
    let setup = Setup { app: App::Axum, rounds, event_interval: 61, cpu: behind };
    let mut rows = Vec::new();
    for through in [true, false] {
        let backend = Backend::start(Contender::Tidegate, setup)?;
        let capacity = ask(backend.address, 0.0, 3)?.ok_rps;
        let fuse = proxy(front, backend.address, "--batch")?;
        let to = if through { fuse.address } else { backend.address };
        rows.push(beside(&backend, to, capacity, count, through)?);
    }
    if as_json {
        println!("{}", json!({ "pinned": pinned, "rows": rows }));
        return Ok(());
    }
    println!(
        "{:<22} {:>8} {:>12} {:>12} {:>12} {:>12} {:>12}",
        "workers go to",
        "workers",
        "p99 before",
        "p99 during",
        "served then",
        "connections",
        "took, s"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<22} {:>8} {:>9.1} ms {:>9.1} ms {:>10.1} % {:>12} {:>12.1}",
            row["workers_go_to"].as_str().unwrap_or_default(),
            number("workers"),
            number("before_p99_ms"),
            number("during_p99_ms"),
            number("during_served") * 100.0,
            number("batch_connections_max"),
            number("batch_seconds"),
        );
    }
    if !pinned {
        println!("The backend and the rest were NOT on cores of their own.");
    }
    Ok(())
}

/// Interactive callers before and beside a batch of `count` workers that go `to` somewhere.
fn beside(
    backend: &Backend,
    to: SocketAddr,
    capacity: f64,
    count: usize,
    through: bool,
) -> Outcome<Value> {
    let mut crowd = Crowd::start(to, count, false)?;
    let rate = capacity * INTERACTIVE;
    let plan = plan(backend.address, rate, BEFORE + DURING);
    let callers = plan.connections as usize;
    let state = Arc::new(AtomicU8::new(WAITS));
    let most = Arc::new(AtomicUsize::new(0));
    let run = Run::start(plan)?;
    let handle = run.handle();
    let looking = {
        let (state, most, port) = (Arc::clone(&state), Arc::clone(&most), backend.address.port());
        // Those who have not begun to work are connected to somebody all the same.
        std::thread::spawn(move || {
            while state.load(Relaxed) != DONE {
                most.fetch_max(established(port).saturating_sub(callers), Relaxed);
                std::thread::sleep(Duration::from_millis(50));
            }
        })
    };
    let working = {
        let state = Arc::clone(&state);
        std::thread::spawn(move || -> Outcome<Value> {
            std::thread::sleep(BEFORE);
            state.store(RUNS, Relaxed);
            crowd.tell("rush")?;
            let came = crowd.answer();
            state.store(DONE, Relaxed);
            handle.stop();
            came
        })
    };
    let (mut before, mut during) = (Stats::default(), Stats::default());
    run.finish(|interval| match state.load(Relaxed) {
        WAITS => before.add(interval.stats),
        RUNS => during.add(interval.stats),
        _ => {}
    })?;
    let came = working.join().map_err(|_| "the batch panicked")??;
    looking.join().map_err(|_| "who counts connections panicked")?;
    let spans = |stats: &Stats| Spans::of(&stats.latency()).map(|spans| (spans.p50, spans.p99));
    let served = |stats: &Stats| {
        stats.sum(|level| level.good) as f64 / stats.sum(|level| level.offered).max(1) as f64
    };
    let (before_spans, during_spans) = (spans(&before), spans(&during));
    Ok(json!({
        "workers_go_to": if through { "a proxy in between" } else { "the backend itself" },
        "workers": count,
        "interactive_per_second": rate,
        "before_p50_ms": before_spans.map(|spans| spans.0),
        "before_p99_ms": before_spans.map(|spans| spans.1),
        "before_served": served(&before),
        "during_p50_ms": during_spans.map(|spans| spans.0),
        "during_p99_ms": during_spans.map(|spans| spans.1),
        "during_served": served(&during),
        "batch_connections_max": most.load(Relaxed),
        "batch_statuses": came["statuses"],
        "batch_asked_again": came["again"],
        "batch_seconds": came["seconds"],
    }))
}

/// Connections to this port that somebody has taken or may take.
fn established(port: u16) -> usize {
    let text = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let suffix = format!(":{port:04X}");
    let mut count = 0;
    for line in text.lines().skip(1) {
        let mut words = line.split_whitespace().skip(1);
        let (local, _, state) = (words.next(), words.next(), words.next());
        count += usize::from(local.is_some_and(|a| a.ends_with(&suffix)) && state == Some("01"));
    }
    count
}
