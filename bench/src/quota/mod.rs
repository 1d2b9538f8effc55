//! What a line of a report costs the quota server, and whether one core takes a large fleet.
//!
//! The server is a process of its own, alone on one core. On the other is a fleet: tasks with a
//! connection each, of which every one reports once a second what its active customers use and
//! want, acknowledges what it is granted, and changes its demand each time, so that limits move.
//! A fifth of the customers wants more than it may use.
//!
//! | figure | is |
//! |---|---|
//! | CPU each | CPU time that the kernel has counted for the server, over the lines it was sent |
//! | core | the share of its core that it used |
//! | answered | time from a report to the message that answers it, which comes with new limits |
//! | bytes a pair | what the server grew by when all tasks had reported, over tasks times customers |
//!
//! Beside it, as what one would use instead: the same counters in Redis, one `INCRBY` a line, all
//! lines of a report in one pipeline, over as many connections. That is less: it adds up one number
//! where a line has eight, divides nothing and tells nobody.
//!
//! Rounds are interleaved. Who is not installed is left out, and said so.

mod fleet;
mod redis;
mod server;

pub(crate) use server::{ServerOptions, serve};

use crate::Outcome;
use crate::measure::{Cpus, median, pin};
use crate::peers::raise_file_limit;
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How many tasks there are.
    #[arg(long, default_value_t = 10_000)]
    tasks: usize,
    /// How many customers each of them serves.
    #[arg(long, default_value_t = 100)]
    active: usize,
    /// How many customers there are.
    #[arg(long, default_value_t = 1_000)]
    customers: usize,
    /// For how long each is measured.
    #[arg(long, default_value_t = 10)]
    seconds: u64,
    /// How often.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
}

/// Tasks report once in so long.
const INTERVAL: Duration = Duration::from_secs(1);

/// What was seen of a server.
#[derive(Debug, Clone, Default)]
struct Figures {
    /// Lines that were answered.
    lines: u64,
    seconds: f64,
    cpu_seconds: f64,
    /// How long answers took, in seconds.
    answered: Vec<f64>,
    bytes_per_pair: f64,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let cpus = Cpus::new();
    let (theirs, ours) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(ours) && cpus.are_two();
    raise_file_limit(2 * options.tasks as u64 + 1_000);
    let redis = redis::find();
    let mut figures = [Vec::new(), Vec::new()];
    for _ in 0..options.rounds {
        figures[0].push(fleet::measure(options, theirs)?);
        if let Some(program) = &redis {
            figures[1].push(redis::measure(options, program, theirs)?);
        }
    }
    let rows: Vec<Value> = ["tidegate quota", "redis, INCRBY"]
        .into_iter()
        .zip(&figures)
        .filter(|(_, figures)| !figures.is_empty())
        .map(|(name, found)| row(name, found, &figures[1], options))
        .collect();
    if options.json {
        let Options { tasks, active, customers, rounds, .. } = options;
        let fleet = json!({ "tasks": tasks, "active": active, "customers": customers });
        println!("{}", json!({ "pinned": pinned, "rounds": rounds, "fleet": fleet, "rows": rows }));
        return Ok(());
    }
    print(&rows);
    if !pinned {
        println!("The server and the fleet were NOT on cores of their own.");
    }
    Ok(())
}

fn row(name: &str, figures: &[Figures], redis: &[Figures], options: &Options) -> Value {
    let micros = |of: &Figures| of.cpu_seconds * 1e6 / of.lines.max(1) as f64;
    let over = figures.iter().zip(redis).map(|(ours, its)| micros(ours) / micros(its));
    let mut answered: Vec<f64> = figures.iter().flat_map(|of| of.answered.clone()).collect();
    answered.sort_by(f64::total_cmp);
    let at = |share: f64| {
        let place = (answered.len() as f64 * share) as usize;
        answered.get(place.min(answered.len().saturating_sub(1))).copied().unwrap_or(f64::NAN)
    };
    let lines = median(figures.iter().map(|of| of.lines as f64 / of.seconds));
    let wanted = (options.tasks * options.active) as f64 / INTERVAL.as_secs_f64();
    let core = median(figures.iter().map(|of| of.cpu_seconds / of.seconds));
    json!({
        "server": name,
        "cpu_us_per_line": median(figures.iter().map(micros)),
        "lines_per_second": lines,
        "core": core,
        "answered_ms_p50": at(0.5) * 1e3,
        "answered_ms_p99": at(0.99) * 1e3,
        "answered_ms_max": at(1.0) * 1e3,
        "bytes_per_pair": median(figures.iter().map(|of| of.bytes_per_pair)),
        "over_redis": median(over),
        // A core that is full would show in how long answers take, the last as well.
        "within_bar": lines >= 0.99 * wanted && at(1.0) <= INTERVAL.as_secs_f64(),
    })
}

fn print(rows: &[Value]) {
    println!(
        "{:<16} {:>12} {:>10} {:>6} {:>13} {:>9} {:>9} {:>12} {:>11}",
        "server",
        "CPU µs each",
        "lines/s",
        "core",
        "answered p50",
        "p99",
        "max",
        "bytes a pair",
        "over redis"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<16} {:>12.3} {:>10.0} {:>6.2} {:>10.0} ms {:>6.0} ms {:>6.0} ms {:>12.0} {:>11.2}",
            row["server"].as_str().unwrap_or_default(),
            number("cpu_us_per_line"),
            number("lines_per_second"),
            number("core"),
            number("answered_ms_p50"),
            number("answered_ms_p99"),
            number("answered_ms_max"),
            number("bytes_per_pair"),
            number("over_redis"),
        );
    }
}
