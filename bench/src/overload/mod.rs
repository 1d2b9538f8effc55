//! A server that is offered ten times what it can do, with and without protection.
//!
//! An axum server whose handler uses some milliseconds of CPU, alone on one core; the load is on
//! another. The load goes from calm to twice and ten times the capacity and back, without a pause.
//! Each contender is a process of its own, and before each the capacity is found again with the
//! bare server: four callers who ask without a pause.
//!
//! **Where it is wrong.** Whoever else uses the server's core takes from the capacity, from one
//! moment to the next: 0.7x is then no calm. `CPUs` tells how much of the core the server got in
//! overload, and `per CPU` is held against what it did with a CPU-second in the closed loop.

mod figures;
pub(crate) mod load;
pub(crate) mod server;

use crate::Outcome;
use crate::measure::{Cpus, pin};
use clap::Args;
use figures::{Figures, Phase};
use load::{Answer, CONNECTIONS, Load};
use serde_json::json;
use server::{Contender, Server, Setup, rounds_in};
use std::time::Duration;
use tidegate_core::rng::SeededRng;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Multiples of the capacity, one after the other.
const PHASES: [f64; 4] = [0.7, 2.0, 10.0, 0.7];

/// As few as leave no gap between two requests, so that nothing waits long.
const CALLERS: usize = 4;
const CALIBRATION: Duration = Duration::from_secs(2);

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How long each phase lasts.
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Only this contender.
    #[arg(long, value_enum)]
    only: Option<Contender>,
    /// CPU time of a request, in milliseconds.
    #[arg(long, default_value_t = 5.0)]
    work_ms: f64,
    /// After how many polls the server's runtime looks for what has arrived; tokio's default.
    #[arg(long, default_value_t = 61)]
    event_interval: u32,
    /// What times and criticalities are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let cpus = Cpus::new();
    let (serving, asking) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(serving);
    let rounds = rounds_in(options.work_ms / 1e3);
    let setup = Setup { rounds, event_interval: options.event_interval, cpu: serving };
    let pinned = pin(asking) && pinned;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut rows = Vec::new();
    for contender in Contender::ALL {
        if options.only.is_none_or(|only| only == contender) {
            rows.extend(runtime.block_on(contend(options, contender, setup))?);
        }
    }
    if options.json {
        println!("{}", json!({ "seed": options.seed, "pinned": pinned, "phases": rows }));
    } else {
        figures::print(&rows);
        if !pinned || !cpus.are_two() {
            println!("The server and the load were NOT on cores of their own.");
        }
    }
    Ok(())
}

/// What a server can do.
struct Capacity {
    /// Requests a second.
    rate: f64,
    /// Requests to a CPU-second.
    per_cpu: f64,
}

async fn capacity(setup: Setup) -> Outcome<Capacity> {
    let server = Server::start(Contender::Nothing, setup)?;
    let load = Load::new(server.address, CALLERS).await?;
    // Caches, and the clock of the core.
    load.closed(CALLERS, CALIBRATION / 4).await?;
    let (start, used) = (Instant::now(), server.cpu_seconds()?);
    let answers = load.closed(CALLERS, CALIBRATION).await?.good as f64;
    let rate = answers / start.elapsed().as_secs_f64();
    let per_cpu = answers / (server.cpu_seconds()? - used);
    load.close();
    Ok(Capacity { rate, per_cpu })
}

async fn contend(options: &Options, contender: Contender, setup: Setup) -> Outcome<Vec<Figures>> {
    let capacity = capacity(setup).await?;
    let mut server = Server::start(contender, setup)?;
    let load = Load::new(server.address, CONNECTIONS).await?;
    let mut rng = SeededRng::new(options.seed);
    let mut phases: Vec<(f64, f64, Vec<JoinHandle<Answer>>)> = Vec::new();
    let mut begin = Instant::now();
    let mut used = server.cpu_seconds()?;
    for multiple in PHASES {
        let rate = capacity.rate * multiple;
        let answers = load.open(rate, options.seconds, begin, &mut rng).await;
        server.ask()?;
        let now = server.cpu_seconds()?;
        phases.push((multiple, now - used, answers));
        used = now;
        begin += Duration::from_secs_f64(options.seconds);
    }
    let mut rows = Vec::new();
    for (multiple, cpu_seconds, waiting) in phases {
        let mut answers = Vec::with_capacity(waiting.len());
        for answer in waiting {
            answers.push(answer.await?);
        }
        let phase = Phase {
            contender: contender.name(),
            load: multiple,
            seconds: options.seconds,
            capacity: capacity.rate,
            per_cpu: capacity.per_cpu,
            cpu_seconds,
            counted: server.answer()?,
        };
        rows.push(phase.figures(&answers));
    }
    load.close();
    Ok(rows)
}
