//! What the layer costs a server that does nothing else: CPU per request of hello-world in axum and
//! in tonic, bare, behind a layer that does nothing, behind tower's `LoadShed` and
//! `ConcurrencyLimit`, and behind a task's layer.
//!
//! The servers are those of `overload` without the work, each a process of its own on one core. A
//! few callers on another core ask again as soon as they are answered, one server after the other,
//! round by round; what counts is the CPU time of the server's process, its sampler's included,
//! over the answers of the round. Where a process happens to lie in memory makes it some percent
//! quicker or slower for as long as it lives, so all of them are started anew every few rounds.
//!
//! **Where it is wrong.** The slower the callers, the more often the server sleeps between two
//! requests, and the more of its time is the kernel's: ratios come nearer to one. What a round is
//! worth is told by how busy the server was in it.

use crate::Outcome;
use crate::measure::{Cpus, median, pin};
use crate::overload::load::Load;
use crate::overload::server::{App, Contender, Server, Setup};
use clap::Args;
use serde_json::{Map, Value, json};
use std::time::Duration;
use tokio::time::Instant;

/// Without the work there is nothing to yield for.
const CONTENDERS: [Contender; 4] =
    [Contender::Nothing, Contender::Layer, Contender::Tower, Contender::Tidegate];

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How often the servers are started anew.
    #[arg(long, default_value_t = 10)]
    starts: u32,
    /// Rounds of each start. Medians are over the rounds of all.
    #[arg(long, default_value_t = 2)]
    rounds: u32,
    /// How long each server is asked in a round.
    #[arg(long, default_value_t = 0.4)]
    seconds: f64,
    /// Only servers that are made with this.
    #[arg(long, value_enum)]
    app: Option<App>,
    /// How many ask at a time. They are fewer than tower's limit, which so refuses nobody.
    #[arg(long, default_value_t = 16)]
    callers: usize,
}

/// What was found of a contender, by round.
struct Found {
    contender: Contender,
    /// Microseconds of CPU time for each request.
    micros: Vec<f64>,
    /// CPUs in use.
    busy: Vec<f64>,
    answers: u64,
    /// Answers that were not 200.
    refused: u64,
}

impl Found {
    const fn new(contender: Contender) -> Self {
        Self { contender, micros: Vec::new(), busy: Vec::new(), answers: 0, refused: 0 }
    }

    fn median_micros(&self) -> f64 {
        median(self.micros.iter().copied())
    }

    /// The median over the rounds of this one's CPU time over the other's, round by round.
    fn ratio_to(&self, other: &Self) -> f64 {
        median(self.micros.iter().zip(&other.micros).map(|(mine, theirs)| mine / theirs))
    }
}

pub(crate) fn run(options: &Options) -> Outcome {
    let cpus = Cpus::new();
    let pinned = pin(cpus.nth(1));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut object = Map::new();
    for app in App::ALL.into_iter().filter(|&app| options.app.is_none_or(|only| only == app)) {
        let setup = Setup { app, rounds: 0, event_interval: 61, cpu: cpus.nth(0) };
        let found = runtime.block_on(measure(options, setup))?;
        if options.json {
            object.insert(app.name().to_owned(), as_json(&found));
        } else {
            print(app, &found);
        }
    }
    if options.json {
        object.insert("pinned".to_owned(), pinned.into());
        println!("{}", Value::from(object));
    } else {
        let pinned = if pinned { "on cores of their own" } else { "NOT pinned" };
        println!(
            "Medians of {} rounds; the servers and the callers {pinned}.",
            options.starts.max(1) * options.rounds.max(1)
        );
    }
    Ok(())
}

/// The server that others are compared with.
fn the(contender: Contender, found: &[Found]) -> &Found {
    let the = found.iter().find(|found| found.contender == contender);
    the.unwrap_or_else(|| unreachable!("all are measured"))
}

fn as_json(found: &[Found]) -> Value {
    let [bare, layer, tower] = [Contender::Nothing, Contender::Layer, Contender::Tower]
        .map(|contender| the(contender, found));
    let by_name = |figure: &dyn Fn(&Found) -> f64| {
        let of = |f: &Found| (f.contender.name().to_owned(), json!(round(figure(f))));
        found.iter().map(of).collect::<Map<_, _>>()
    };
    json!({
        "cpu_us_per_request": by_name(&Found::median_micros),
        "over_bare": by_name(&|found| found.ratio_to(bare)),
        "over_layer": by_name(&|found| found.ratio_to(layer)),
        "over_tower": by_name(&|found| found.ratio_to(tower)),
        "server_cpus": by_name(&|found| median(found.busy.iter().copied())),
        "refused": by_name(&|found| found.refused as f64 / found.answers as f64),
    })
}

fn print(app: App, found: &[Found]) {
    println!(
        "{:<10} {:>11} {:>10} {:>11} {:>11} {:>6} {:>9} {:>9}",
        app.name(),
        "CPU us/req",
        "over bare",
        "over layer",
        "over tower",
        "CPUs",
        "requests",
        "refused"
    );
    let [bare, layer, tower] = [Contender::Nothing, Contender::Layer, Contender::Tower]
        .map(|contender| the(contender, found));
    for each in found {
        println!(
            "{:<10} {:>11.2} {:>10.3} {:>11.3} {:>11.3} {:>6.2} {:>9} {:>9}",
            each.contender.name(),
            each.median_micros(),
            each.ratio_to(bare),
            each.ratio_to(layer),
            each.ratio_to(tower),
            median(each.busy.iter().copied()),
            each.answers,
            each.refused,
        );
    }
    println!();
}

async fn measure(options: &Options, setup: Setup) -> Outcome<Vec<Found>> {
    let mut found = CONTENDERS.map(Found::new);
    for _ in 0..options.starts.max(1) {
        let mut servers = Vec::new();
        for contender in CONTENDERS {
            let server = Server::start(contender, setup)?;
            let load = Load::new(setup.app, server.address, options.callers).await?;
            servers.push((server, load));
        }
        // The first round warms up and is not counted.
        for round in 0..=options.rounds.max(1) {
            for ((server, load), found) in servers.iter().zip(&mut found) {
                let counts = round > 0;
                measure_once(options, server, load, counts.then_some(found)).await?;
            }
        }
        for (_, load) in &servers {
            load.close();
        }
    }
    Ok(found.into())
}

async fn measure_once(
    options: &Options,
    server: &Server,
    load: &Load,
    found: Option<&mut Found>,
) -> Outcome {
    let (start, used) = (Instant::now(), server.cpu_seconds()?);
    let answers = load.closed(options.callers, Duration::from_secs_f64(options.seconds)).await?;
    let used = server.cpu_seconds()? - used;
    let all = answers.good + answers.others;
    if let Some(found) = found {
        found.micros.push(used * 1e6 / all as f64);
        found.busy.push(used / start.elapsed().as_secs_f64());
        found.answers += all;
        found.refused += answers.others;
    }
    Ok(())
}

/// Four digits after the point.
fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}
