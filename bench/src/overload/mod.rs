//! A server that is offered ten times what it can do, with and without protection.
//!
//! A server in axum or tonic whose handler uses some milliseconds of CPU, alone on one core; the
//! load is on another. The load goes from calm to twice and ten times the capacity and back,
//! without a pause. Each contender is a process of its own, and before each the capacity is found
//! again with the bare server: four callers who ask without a pause.
//!
//! With `--proxy` the server is one of Python, which cannot protect itself, and what is compared
//! are proxies in front of it: see [`front`].
//!
//! **Where it is wrong.** Whoever else uses the server's core takes from the capacity, from one
//! moment to the next: 0.7x is then no calm, and goodput may be above one. `CPUs` tells how much of
//! the core the server got in overload, and `useful` what share of that became good answers.

pub(crate) mod callers;
mod figures;
mod front;
pub(crate) mod grpc;
pub(crate) mod load;
pub(crate) mod server;

use crate::Outcome;
use crate::measure::{Cpus, pin};
use clap::Args;
use figures::{Figures, Phase, good_by_phase};
use front::Front;
use load::{Answer, CONNECTIONS, Load};
use serde_json::json;
use server::{App, Contender, Counted, Server, Setup, rounds_in};
use std::net::SocketAddr;
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
    /// What the server is made with.
    #[arg(long, value_enum, default_value = "axum")]
    app: App,
    /// Only this contender.
    #[arg(long, value_enum, conflicts_with = "proxy")]
    only: Option<Contender>,
    /// Proxies in front of a server of Python.
    #[arg(long, conflicts_with = "app")]
    proxy: bool,
    /// Only these proxies.
    #[arg(long, value_enum, requires = "proxy")]
    front: Vec<Front>,
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
    let rounds = if options.proxy {
        front::rounds_in(options.work_ms)?
    } else {
        rounds_in(options.work_ms / 1e3)
    };
    let setup =
        Setup { app: options.app, rounds, event_interval: options.event_interval, cpu: serving };
    let pinned = pin(asking) && pinned;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let rows = runtime.block_on(async {
        if options.proxy {
            proxies(options, rounds, serving, asking).await
        } else {
            servers(options, setup).await
        }
    })?;
    if options.json {
        let app = if options.proxy { "python" } else { options.app.name() };
        let report = json!({ "seed": options.seed, "app": app, "pinned": pinned, "phases": rows });
        println!("{report}");
    } else {
        figures::print(&rows);
        if !pinned || !cpus.are_two() {
            println!("The server and the load were NOT on cores of their own.");
        }
    }
    Ok(())
}

/// Servers that protect themselves.
async fn servers(options: &Options, setup: Setup) -> Outcome<Vec<Figures>> {
    let mut rows = Vec::new();
    for contender in Contender::IN_OVERLOAD {
        if options.only.is_none_or(|only| only == contender) {
            let capacity = capacity(Server::start(Contender::Nothing, setup)?, setup.app).await?;
            let server = Server::start(contender, setup)?;
            let (name, address) = (contender.name(), server.address);
            let trial = Trial { name, capacity, app: setup.app, server, address };
            rows.extend(trial.run(options).await?);
        }
    }
    Ok(rows)
}

/// Proxies in front of one that cannot.
async fn proxies(
    options: &Options,
    rounds: u64,
    serving: Option<usize>,
    beside: Option<usize>,
) -> Outcome<Vec<Figures>> {
    let mut rows = Vec::new();
    for front in Front::ALL {
        if !options.front.is_empty() && !options.front.contains(&front) {
            continue;
        }
        let bare = || front::server(rounds, serving);
        let capacity = capacity(bare()?, App::Axum).await?;
        let server = bare()?;
        let running = match front.start(server.address, beside)? {
            front::Started::Running(running) => Some(running),
            front::Started::Needless => None,
            front::Started::NotThere => continue,
        };
        let address = running.as_ref().map_or(server.address, |running| running.address);
        let trial = Trial { name: front.name(), capacity, app: App::Axum, server, address };
        rows.extend(trial.run(options).await?);
    }
    Ok(rows)
}

/// Requests a second that a bare server can answer.
async fn capacity(server: Server, app: App) -> Outcome<f64> {
    let load = Load::new(app, server.address, CALLERS).await?;
    // Caches, and the clock of the core.
    load.closed(CALLERS, CALIBRATION / 4).await?;
    let start = Instant::now();
    let answers = load.closed(CALLERS, CALIBRATION).await?.good as f64;
    load.close();
    Ok(answers / start.elapsed().as_secs_f64())
}

/// One contender, through all phases.
struct Trial {
    name: &'static str,
    capacity: f64,
    app: App,
    server: Server,
    /// Where to ask: the server, or what is in front of it.
    address: SocketAddr,
}

impl Trial {
    async fn run(mut self, options: &Options) -> Outcome<Vec<Figures>> {
        let load = Load::new(self.app, self.address, CONNECTIONS).await?;
        let mut rng = SeededRng::new(options.seed);
        let mut phases: Vec<(f64, f64, Vec<JoinHandle<Answer>>)> = Vec::new();
        let mut begin = Instant::now();
        let mut used = self.server.cpu_seconds()?;
        for multiple in PHASES {
            let rate = self.capacity * multiple;
            let answers = load.open(rate, options.seconds, begin, &mut rng).await;
            self.server.ask()?;
            let now = self.server.cpu_seconds()?;
            phases.push((multiple, now - used, answers));
            used = now;
            begin += Duration::from_secs_f64(options.seconds);
        }
        let mut answers = Vec::with_capacity(phases.len());
        for (.., waiting) in &mut phases {
            let mut those = Vec::with_capacity(waiting.len());
            for answer in waiting {
                those.push(answer.await?);
            }
            answers.push(those);
        }
        load.close();
        let good = good_by_phase(&answers, options.seconds);
        let mut rows = Vec::new();
        let mut before = Counted::default();
        for ((&(multiple, cpu_seconds, _), answers), good) in phases.iter().zip(&answers).zip(good)
        {
            let counted = self.server.answer()?;
            let handled = (counted.handled - before.handled) as f64;
            let phase = Phase {
                contender: self.name,
                load: multiple,
                seconds: options.seconds,
                capacity: self.capacity,
                good,
                handler: (counted.used - before.used) / handled,
                cpu_seconds,
                counted: counted.task.clone(),
            };
            rows.push(phase.figures(answers));
            before = counted;
        }
        Ok(rows)
    }
}
