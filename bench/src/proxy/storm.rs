//! Whether those who are there feel those who come.
//!
//! Requests at half of what the proxy can do, by schedule on connections that stay, alone; and
//! beside two thousand new connections a second, of which every other one makes a request and all
//! close at once. The p99 counts from when a request was due.
//!
//! What a busy machine does to the latency is not what the proxy does. Two more arms tell how much
//! that is: in one as many connections come to *another* proxy on the same core, so that the core
//! and the machine have the same to do; and the first is run *again*, so that one sees how far two
//! runs of the same differ. All four come in each round, in another order each time, and what is
//! compared is each with the first of its own round: the median over all rounds, and the quartiles,
//! as a noise that comes and goes is in some rounds and not in others.
//!
//! **When it is wrong.** The load, the server behind and whoever makes the connections share the
//! other core. Making them takes a part of it, which the load feels in both arms with a storm; so
//! the storm yields to all others (it has the lowest priority), and says how late it was at worst.
//!
//! ```sh
//! cargo run --release -p tidegate-bench -- proxy --connections --rounds 9
//! ```

use super::crowd;
use super::surge::{ask, proxy};
use crate::Outcome;
use crate::load::Server;
use crate::measure::{Cpus, median, pin};
use crate::peers::{Running, raise_file_limit};
use clap::Args;
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use tokio::task::LocalSet;
use tokio::time::{Instant, sleep_until};

/// New connections a second.
const STORM: u32 = 2_000;
/// Addresses that they come from in turn: each has the ports for ten seconds, and a port is not
/// used again for a minute.
const SOURCES: usize = 20;

/// Where new connections come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Arm {
    Alone,
    Again,
    Elsewhere,
    Here,
}

impl Arm {
    const ALL: [Self; 4] = [Self::Alone, Self::Again, Self::Elsewhere, Self::Here];

    const fn words(self) -> &'static str {
        match self {
            Self::Alone => "none",
            Self::Again => "none, once more",
            Self::Elsewhere => "to another proxy on the core",
            Self::Here => "to this one",
        }
    }
}

/// What one arm of one round was.
#[derive(Debug, Clone)]
struct Figure {
    p50: f64,
    p99: f64,
    /// Of the proxy that was asked, as a share of its core.
    cpu: f64,
    came: Value,
}

/// The quartile `part` of some numbers.
fn quartile(numbers: &[f64], part: usize) -> f64 {
    let mut sorted = numbers.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get((sorted.len().saturating_sub(1)) * part / 4).copied().unwrap_or(f64::NAN)
}

pub(super) fn connections(rounds: u32, seconds: u64, as_json: bool) -> Outcome {
    let cpus = Cpus::new();
    let (front, behind) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(behind) && cpus.are_two();
    let server = Server::start(behind)?;
    let (one, other) =
        (proxy(front, server.address, "--dark")?, proxy(front, server.address, "--dark")?);
    let capacity = ask(one.address, 0.0, 3)?.ok_rps;
    let mut figures: [Vec<Figure>; 4] = Default::default();
    for round in 0..rounds as usize {
        for place in (0..Arm::ALL.len()).map(|n| (n + round) % Arm::ALL.len()) {
            let figure = measure(Arm::ALL[place], &one, &other, capacity / 2.0, seconds)?;
            figures[place].push(figure);
        }
    }
    let rows: Vec<Value> = Arm::ALL
        .iter()
        .zip(&figures)
        .map(|(arm, own)| {
            let ratios: Vec<f64> =
                own.iter().zip(&figures[0]).map(|(own, alone)| own.p99 / alone.p99).collect();
            json!({
                "new_connections": arm.words(),
                "p50_ms": median(own.iter().map(|figure| figure.p50)),
                "p99_ms": median(own.iter().map(|figure| figure.p99)),
                "p99_over_none": median(ratios.iter().copied()),
                "p99_over_none_quartiles": [quartile(&ratios, 1), quartile(&ratios, 3)],
                "cpu": median(own.iter().map(|figure| figure.cpu)),
                "p99_ms_by_round": own.iter().map(|figure| figure.p99).collect::<Vec<_>>(),
                "came": own.iter().map(|figure| figure.came.clone()).collect::<Vec<_>>(),
            })
        })
        .collect();
    if as_json {
        let run = json!({ "pinned": pinned, "requests_per_second": capacity / 2.0, "rows": rows });
        println!("{run}");
    } else {
        print(&rows, capacity, pinned);
    }
    Ok(())
}

fn print(rows: &[Value], capacity: f64, pinned: bool) {
    println!("{:.0} requests a second, half of what it does", capacity / 2.0);
    let title = format!("{STORM} new connections a second");
    println!(
        "{title:<32} {:>8} {:>8} {:>10} {:>13} {:>6}",
        "p50, ms", "p99, ms", "over none", "quartiles", "CPU"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let quartiles = &row["p99_over_none_quartiles"];
        let part = |place: usize| quartiles[place].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<32} {:>8.3} {:>8.3} {:>10.2} {:>6.2}-{:<6.2} {:>6.2}",
            row["new_connections"].as_str().unwrap_or_default(),
            number("p50_ms"),
            number("p99_ms"),
            number("p99_over_none"),
            part(0),
            part(1),
            number("cpu"),
        );
    }
    if !pinned {
        println!("The proxies and the load were NOT on cores of their own.");
    }
}

fn measure(arm: Arm, one: &Running, other: &Running, rate: f64, seconds: u64) -> Outcome<Figure> {
    let storm = match arm {
        Arm::Alone | Arm::Again => None,
        Arm::Elsewhere => Some(Blowing::start(other.address, seconds)?),
        Arm::Here => Some(Blowing::start(one.address, seconds)?),
    };
    let before = one.cpu_seconds()?;
    let report = ask(one.address, rate, seconds)?;
    let cpu = (one.cpu_seconds()? - before) / seconds as f64;
    let came = storm.map_or(Ok(Value::Null), Blowing::end)?;
    let spans = report.latency_ms.ok_or("nothing was answered")?;
    if report.total.failed > 0 {
        return Err(format!("{} were not admitted", report.total.failed).into());
    }
    Ok(Figure { p50: spans.p50, p99: spans.p99, cpu, came })
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
    // If that is refused it is as the others are.
    let _ = rustix::process::nice(19);
    let counts: Arc<[AtomicUsize; 3]> = Arc::default();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut late = Duration::ZERO;
    LocalSet::new().block_on(&runtime, async {
        let (start, address) = (Instant::now(), options.address);
        for number in 0..u64::from(options.rate) * options.seconds {
            let due = Duration::from_secs(1).mul_f64(number as f64 / f64::from(options.rate));
            sleep_until(start + due).await;
            late = late.max(start.elapsed().saturating_sub(due));
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
    let late = late.as_secs_f64() * 1e3;
    println!("{}", json!({ "asked": asked, "silent": silent, "failed": failed, "late_ms": late }));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_are_of_what_there_is() {
        let numbers = [5.0, 1.0, 4.0, 2.0, 3.0];
        let words = |part| quartile(&numbers, part).to_string();
        assert_eq!([1, 2, 3].map(words), ["2", "3", "4"]);
        assert_eq!(quartile(&[7.0], 3).to_string(), "7");
        assert!(quartile(&[], 1).is_nan());
    }
}
