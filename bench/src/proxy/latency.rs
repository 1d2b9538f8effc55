//! What a proxy adds to the latency, at half of what it can do.
//!
//! Each proxy is alone on one core, as where its CPU time is measured (HTTP/1.1, a small answer).
//! What it can do is found first, by asking as fast as it answers. Then requests come by schedule,
//! at half of that, through the proxy and straight to the server behind it, one after the other;
//! what the first has more at the p99 is what was added. Latency counts from when a request was
//! due, so that who is held up is not forgiven those that wait behind.
//!
//! All proxies come in each round. The figures are medians over rounds, of the differences too: the
//! load and the server share the other core, and what that adds is in both and taken away.
//!
//! **When it is wrong.** A slow proxy is asked for less, and so is the server behind it. Beside the
//! same rate for all that favours nobody: the slowest would be at its end where the fastest idles.
//!
//! ```sh
//! cargo run --release -p tidegate-bench -- proxy --latency
//! ```

use super::surge::ask;
use super::{Case, told};
use crate::Outcome;
use crate::load::Server;
use crate::measure::{Cpus, median, pin};
use crate::peers::{Peer, Running};
use serde_json::{Value, json};
use std::net::SocketAddr;

/// How long a proxy is asked for all that it can do, in seconds.
const FINDING: u64 = 2;

/// Milliseconds.
#[derive(Debug, Clone, Copy)]
struct Spans {
    p50: f64,
    p99: f64,
}

/// What was seen of one proxy.
#[derive(Default)]
struct Figures {
    rates: Vec<f64>,
    through: Vec<Spans>,
    straight: Vec<Spans>,
}

impl Figures {
    fn row(&self, peer: Peer) -> Value {
        let of = |spans: &[Spans], part: fn(&Spans) -> f64| median(spans.iter().map(part));
        let added = |part: fn(&Spans) -> f64| {
            let both = self.through.iter().zip(&self.straight);
            median(both.map(|(through, straight)| part(through) - part(straight)))
        };
        json!({
            "proxy": peer.name(),
            "requests_per_second": median(self.rates.iter().copied()),
            "p50_ms": of(&self.through, |spans| spans.p50),
            "p99_ms": of(&self.through, |spans| spans.p99),
            "added_p50_ms": added(|spans| spans.p50),
            "added_p99_ms": added(|spans| spans.p99),
        })
    }
}

pub(super) fn run(rounds: u32, seconds: u64, as_json: bool) -> Outcome {
    let cpus = Cpus::new();
    let (front, behind) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(behind) && cpus.are_two();
    let server = Server::start(behind)?;
    let mut peers = Vec::new();
    for peer in Peer::ALL {
        let Some(program) = peer.found() else { continue };
        let running = Running::start(peer, &program, front, |address, directory| {
            told(peer, Case::H1, address, server.address, directory)
        })?;
        peers.push((peer, running, Figures::default()));
    }
    for _ in 0..rounds {
        for (_, running, figures) in &mut peers {
            let rate = ask(running.address, 0.0, FINDING)?.ok_rps / 2.0;
            figures.rates.push(rate);
            figures.through.push(spans(running.address, rate, seconds)?);
            figures.straight.push(spans(server.address, rate, seconds)?);
        }
    }
    let rows: Vec<Value> = peers.iter().map(|(peer, _, figures)| figures.row(*peer)).collect();
    if as_json {
        println!("{}", json!({ "pinned": pinned, "rounds": rounds, "rows": rows }));
    } else {
        print(&rows, pinned);
    }
    Ok(())
}

fn spans(address: SocketAddr, rate: f64, seconds: u64) -> Outcome<Spans> {
    let report = ask(address, rate, seconds)?;
    let spans = report.latency_ms.ok_or("nothing was answered")?;
    Ok(Spans { p50: spans.p50, p99: spans.p99 })
}

fn print(rows: &[Value], pinned: bool) {
    println!(
        "{:<9} {:>11} {:>8} {:>8} {:>10} {:>10}",
        "proxy", "requests/s", "p50, ms", "p99, ms", "added p50", "added p99"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<9} {:>11.0} {:>8.3} {:>8.3} {:>10.3} {:>10.3}",
            row["proxy"].as_str().unwrap_or_default(),
            number("requests_per_second"),
            number("p50_ms"),
            number("p99_ms"),
            number("added_p50_ms"),
            number("added_p99_ms"),
        );
    }
    if !pinned {
        println!("The proxies and the load were NOT on cores of their own.");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_added_is_told_by_round() {
        let spans = |p99: f64| Spans { p50: 1.0, p99 };
        let figures = Figures {
            rates: vec![10.0, 30.0, 20.0],
            through: [5.0, 9.0, 4.0].map(spans).to_vec(),
            straight: [1.0, 8.0, 2.0].map(spans).to_vec(),
        };
        let row = figures.row(Peer::Nginx);
        let number = |key: &str| row[key].as_f64().unwrap();
        assert_eq!(number("requests_per_second"), 20.0);
        assert_eq!(number("p99_ms"), 5.0);
        // The median of 4, 1 and 2, which is not the difference of the medians.
        assert_eq!(number("added_p99_ms"), 2.0);
        assert_eq!(number("added_p50_ms"), 0.0);
    }
}
