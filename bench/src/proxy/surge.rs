//! Whether interactive callers feel a batch.
//!
//! Ten thousand workers are connected to a proxy in the batch role, and start
//! together. Beside them interactive callers ask the backend behind it itself, a server with the
//! library in it, at three tenths of what it can do. Their p99 before and while the batch is worked
//! off, and how many connections the backend has of whom; and the same without the proxy, where
//! workers go to the backend themselves, by HTTP's word for it as important as anybody.
//!
//! ```sh
//! cargo run --release -p tidegate-bench -- proxy --batch
//! ```

use super::crowd::Crowd;
use crate::Outcome;
use crate::measure::{Cpus, pin};
use crate::overload::server::{App, Contender, Server as Backend, Setup, rounds_in};
use crate::peers::{Peer, Running, Told};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tidegate_load::report::Spans;
use tidegate_load::{Load, Plan, Rate, Report, Run, Stage, Stats, Target};

/// What the backend of a batch does for a request, in CPU seconds: a small one.
const WORK: f64 = 0.001;
/// Of what it can do, for interactive callers: most backends idle more than that.
const INTERACTIVE: f64 = 0.3;
const BEFORE: Duration = Duration::from_secs(10);
/// A batch that takes longer is not waited for.
const DURING: Duration = Duration::from_secs(120);

/// Requests to `address`, as `load` says.
pub(super) fn ask(address: SocketAddr, rate: f64, seconds: u64) -> Outcome<Report> {
    Ok(Run::start(plan(address, rate, Duration::from_secs(seconds)))?.finish(|_| {})?)
}

pub(super) fn plan(address: SocketAddr, rate: f64, duration: Duration) -> Plan {
    let stages = vec![Stage::constant(Rate(rate), duration)];
    let mut plan = Plan::new(Target::loopback(address), stages, 1);
    plan.connections_max = plan.connections;
    if rate == 0.0 {
        plan.course.load = Load::Closed { duration };
    }
    plan
}

pub(super) fn proxy(cpu: Option<usize>, upstream: SocketAddr, role: &str) -> Outcome<Running> {
    let program = Peer::Tidegate.found().ok_or("no program")?;
    Running::start(Peer::Tidegate, &program, cpu, |address, _| {
        let words = ["proxy-server", &address.to_string(), &upstream.to_string(), role, "--crowd"];
        Told::Arguments(words.map(str::to_owned).to_vec())
    })
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
