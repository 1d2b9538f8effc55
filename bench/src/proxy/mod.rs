//! What a request costs the proxy, beside nginx, `HAProxy` and Envoy.
//!
//! Each proxy is a process with one thread, alone on one core; on the other are the load (wrk for
//! HTTP/1.1, h2load for HTTP/2; 64 connections, or 8 of 8 streams) and a cheap server behind. The
//! figure is the CPU time that the kernel has counted for the proxy between the first request and
//! the last, over the answers. Rounds are interleaved, and each gives a ratio to nginx.
//!
//! | case | is |
//! |---|---|
//! | `h1` | a small answer, HTTP/1.1 on both sides |
//! | `h1-16k` | an answer of 16 KiB |
//! | `h1-refuse` | refused: a `return 503`, or a customer without quota |
//! | `h2` | a small answer, HTTP/2 on both sides, as gRPC has it |
//! | `h2-h1` | the same, with HTTP/1.1 behind |
//! | `h2-refuse` | refused over HTTP/2 |
//!
//! Beside each figure of ours stands what it may be at most, of nginx, `HAProxy` or Envoy, and
//! whether it is.
//!
//! Ours has all checks of the inbound role on: criticality, deadline, quota, the program's CPU. The
//! server behind is asked for all that it can do, which is more than it should: so that nothing is
//! refused where forwarding is measured, ours decides there and lets in all the same (dark mode).
//! Who is not installed is left out, and said so.

mod counts;
pub(crate) mod crowd;
mod files;
mod idle;
mod latency;
pub(crate) mod storm;
pub(crate) mod surge;

use crate::Outcome;
use crate::load::Server;
use crate::measure::{Cpus, median, pin};
use crate::peers::{Peer, Running, Told, raise_file_limit};
use clap::{Args, ValueEnum};
use files::{envoy, haproxy, nginx};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tidegate::Criticality;
use tidegate::serve::Limits as Bounds;
use tidegate_core::CostRate;
use tidegate_core::connection::gate::ConnectionLimits;
use tidegate_core::fleet::Limits;
use tidegate_proxy::{Config, Protocol, Proxy, Role, Upstream};

#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are words of the command line")]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How often each proxy runs in each case.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// For how long, each time.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Only these cases.
    #[arg(long, value_enum)]
    case: Vec<Case>,
    /// Count instructions and allocations of ours under callgrind instead.
    #[arg(long)]
    counts: bool,
    /// What connections take of memory that nobody uses, instead.
    #[arg(long)]
    idle: bool,
    /// How many of them; and workers of a batch.
    #[arg(long, default_value_t = 10_000)]
    crowd: usize,
    /// What those who are there feel of new connections, instead.
    #[arg(long)]
    connections: bool,
    /// What interactive callers feel of a batch, instead.
    #[arg(long)]
    batch: bool,
    /// What each proxy adds to the latency at half of what it can do, instead.
    #[arg(long)]
    latency: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    H1,
    #[value(name = "h1-16k")]
    H1Large,
    H1Refuse,
    H2,
    #[value(name = "h2-h1")]
    H2Http1,
    H2Refuse,
}

impl Case {
    const fn name(self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H1Large => "h1-16k",
            Self::H1Refuse => "h1-refuse",
            Self::H2 => "h2",
            Self::H2Http1 => "h2-h1",
            Self::H2Refuse => "h2-refuse",
        }
    }

    /// In front.
    const fn is_http2(self) -> bool {
        matches!(self, Self::H2 | Self::H2Http1 | Self::H2Refuse)
    }

    const fn is_http2_behind(self) -> bool {
        matches!(self, Self::H2)
    }

    const fn refuses(self) -> bool {
        matches!(self, Self::H1Refuse | Self::H2Refuse)
    }

    const fn path(self) -> &'static str {
        if matches!(self, Self::H1Large) { "/16k" } else { "/" }
    }

    /// At most so many times what these take.
    const fn bars(self) -> &'static [(Peer, f64)] {
        match self {
            Self::H1 => &[(Peer::Nginx, 1.2), (Peer::Haproxy, 1.0), (Peer::Envoy, 0.35)],
            Self::H1Large => &[(Peer::Nginx, 1.15), (Peer::Envoy, 0.35)],
            Self::H1Refuse => &[(Peer::Nginx, 1.1), (Peer::Envoy, 0.35)],
            Self::H2 => &[(Peer::Nginx, 0.7)],
            Self::H2Http1 => &[],
            Self::H2Refuse => &[(Peer::Nginx, 0.5)],
        }
    }
}

/// Figures of one proxy in one case, by round.
#[derive(Default)]
struct Figures {
    micros: Vec<f64>,
    rates: Vec<f64>,
}

pub(crate) fn run(options: &Options) -> Outcome {
    let cases = match options.case.as_slice() {
        [] => Case::value_variants().to_vec(),
        some => some.to_vec(),
    };
    if options.counts {
        return counts::run(&cases, options.json);
    }
    if options.idle {
        return idle::run(options.crowd, options.json);
    }
    if options.connections {
        return storm::connections(options.rounds, options.seconds, options.json);
    }
    if options.batch {
        return surge::batch(options.crowd, options.json);
    }
    if options.latency {
        return latency::run(options.rounds, options.seconds, options.json);
    }
    let found = Peer::ALL.into_iter().filter_map(|peer| Some((peer, peer.found()?)));
    let contenders: Vec<(Peer, PathBuf)> = found.collect();
    let cpus = Cpus::new();
    let (front, behind) = (cpus.nth(0), cpus.nth(1));
    let pinned = pin(behind) && cpus.are_two();
    let server = Server::start(behind)?;
    let mut rows = Vec::new();
    for case in cases {
        let mut figures: Vec<Figures> = contenders.iter().map(|_| Figures::default()).collect();
        for round in 0..=options.rounds {
            for ((contender, program), figures) in contenders.iter().zip(&mut figures) {
                let seconds = if round == 0 { 1 } else { options.seconds };
                let running = Running::start(*contender, program, front, |address, directory| {
                    told(*contender, case, address, server.address, directory)
                })?;
                let (micros, rate) = measure(&running, case, seconds)?;
                // The first round warms up.
                if round > 0 {
                    figures.micros.push(micros);
                    figures.rates.push(rate);
                }
            }
        }
        let by_peer: Vec<(Peer, Figures)> =
            contenders.iter().map(|(peer, _)| *peer).zip(figures).collect();
        rows.extend(by_peer.iter().map(|(peer, own)| row(case, *peer, own, &by_peer)));
    }
    if options.json {
        println!("{}", json!({ "pinned": pinned, "rounds": options.rounds, "rows": rows }));
        return Ok(());
    }
    println!(
        "{:<10} {:<9} {:>12} {:>11} {:>11}  at most",
        "case", "proxy", "CPU µs each", "answers/s", "over nginx"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let bars: Vec<String> = row["bars"].as_array().into_iter().flatten().map(bar).collect();
        println!(
            "{:<10} {:<9} {:>12.2} {:>11.0} {:>11.2}  {}",
            text("case"),
            text("proxy"),
            number("cpu_us_per_request"),
            number("requests_per_second"),
            number("over_nginx"),
            bars.join(", "),
        );
    }
    if !pinned {
        println!("The proxies and the load were NOT on cores of their own.");
    }
    Ok(())
}

/// A bar in words.
fn bar(bar: &Value) -> String {
    let number = |key: &str| bar[key].as_f64().unwrap_or(f64::NAN);
    let word = if bar["within"] == true { "kept" } else { "MISSED" };
    let of = bar["of"].as_str().unwrap_or_default();
    format!("{:.2} of {of}'s ({:.2}, {word})", number("at_most"), number("is"))
}

/// What `peer` took in a case, beside what others took in the same rounds.
fn row(case: Case, peer: Peer, own: &Figures, all: &[(Peer, Figures)]) -> Value {
    let over = |of: Peer| {
        let (_, others) = all.iter().find(|(peer, _)| *peer == of)?;
        Some(median(own.micros.iter().zip(&others.micros).map(|(own, other)| own / other)))
    };
    let mut row = Map::new();
    row.insert("case".to_owned(), case.name().into());
    row.insert("proxy".to_owned(), peer.name().into());
    row.insert("cpu_us_per_request".to_owned(), median(own.micros.iter().copied()).into());
    row.insert("requests_per_second".to_owned(), median(own.rates.iter().copied()).into());
    row.insert("over_nginx".to_owned(), over(Peer::Nginx).into());
    if peer == Peer::Tidegate {
        let bars = case.bars().iter().filter_map(|(of, at_most)| {
            let is = over(*of)?;
            let within = is <= *at_most;
            Some(json!({ "of": of.name(), "at_most": at_most, "is": is, "within": within }))
        });
        row.insert("bars".to_owned(), bars.collect());
    }
    Value::Object(row)
}

fn told(
    peer: Peer,
    case: Case,
    address: SocketAddr,
    upstream: SocketAddr,
    directory: &Path,
) -> Told {
    match peer {
        Peer::Nginx => Told::File(nginx(case, address, upstream, directory)),
        Peer::Haproxy => Told::File(haproxy(case, address, upstream)),
        Peer::Envoy => Told::File(envoy(case, address, upstream)),
        Peer::Tidegate => {
            let mut arguments =
                vec!["proxy-server".to_owned(), address.to_string(), upstream.to_string()];
            arguments.push(if case.refuses() { "--refuse" } else { "--dark" }.to_owned());
            arguments.extend(case.is_http2_behind().then(|| "--http2".to_owned()));
            Told::Arguments(arguments)
        }
    }
}

/// CPU microseconds for each answer, and answers a second.
fn measure(running: &Running, case: Case, seconds: u64) -> Outcome<(f64, f64)> {
    // What starting takes is not what requests take.
    let _ = load(running.address, case, 1)?;
    let before = running.cpu_seconds()?;
    let answers = load(running.address, case, seconds)?;
    let cpu = running.cpu_seconds()? - before;
    Ok((cpu * 1e6 / answers, answers / seconds as f64))
}

fn load(address: SocketAddr, case: Case, seconds: u64) -> Outcome<f64> {
    let url = format!("http://{address}{}", case.path());
    let mut command = if case.is_http2() {
        let mut command = Command::new("h2load");
        command.args(["-t1", "-c8", "-m8", &format!("-D{seconds}")]);
        command
    } else {
        let mut command = Command::new("wrk");
        command.args(["-t1", "-c64", &format!("-d{seconds}s")]);
        command
    };
    let output = command.arg(url).stderr(Stdio::null()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let words = if case.is_http2() { " done" } else { " requests in " };
    let line = text.lines().find(|line| line.contains(words));
    let count = line.and_then(|line| line.split(words).next()?.trim().rsplit([' ', ',']).next());
    let count = count.and_then(|count| count.parse::<f64>().ok()).filter(|count| *count > 0.0);
    let good = good(&text, case.is_http2());
    match count {
        // What was in flight at the end is nobody's failure.
        Some(count) if case.refuses() == good.is_none_or(|good| good < count * 0.99) => Ok(count),
        Some(_) => Err(format!("answers are not what they should be: {text}").into()),
        None => Err(format!("no answers: {text}").into()),
    }
}

/// How many answers were a success, as wrk (which tells of others if there are any) or h2load says.
fn good(text: &str, http2: bool) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<f64>().ok();
    if http2 {
        let line = text.lines().find_map(|line| line.strip_prefix("status codes: "))?;
        return number(line.split(" 2xx").next()?);
    }
    let all = text.lines().find_map(|line| number(line.split(" requests in ").next()?))?;
    let bad = text.lines().find_map(|line| line.split("3xx responses:").nth(1).and_then(number));
    Some(all - bad.unwrap_or(0.0))
}

/// Ours, in a process of its own.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are words of the command line")]
pub(crate) struct ServerOptions {
    listen: SocketAddr,
    upstream: SocketAddr,
    /// Nobody has any quota.
    #[arg(long)]
    refuse: bool,
    /// Decide, and let everybody in.
    #[arg(long)]
    dark: bool,
    /// Callers may claim what they want.
    #[arg(long)]
    trust: bool,
    /// As many connections as there are descriptors, as fast as they come, for as long as they
    /// like.
    #[arg(long)]
    crowd: bool,
    /// In the batch role.
    #[arg(long)]
    batch: bool,
    /// The program speaks HTTP/2.
    #[arg(long)]
    http2: bool,
}

pub(crate) fn serve(options: &ServerOptions) -> Outcome {
    if options.crowd {
        raise_file_limit(u64::MAX);
    }
    let proxy = Proxy::start(options.role()?)?;
    println!("{}", proxy.address());
    std::io::stdout().flush()?;
    let life = proxy.life().clone();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        if let Ok(runtime) = runtime {
            runtime.block_on(async {
                let _ = life.stop_on_signals();
                core::future::pending::<()>().await;
            });
        }
    });
    Ok(proxy.join()?)
}

impl ServerOptions {
    fn role(&self) -> Outcome<Role> {
        if self.batch {
            let (listen, endpoint) = (self.listen, self.upstream);
            let text = format!(
                "role: batch\nworkers: 1\nservices:\n  - name: bench\n    listen: {listen}\n    \
                 endpoints: [\"{endpoint}\"]\n"
            );
            let mut role = Role::parse("bench", &text)?;
            if let Role::Batch(config) = &mut role {
                self.welcome(&mut config.connections, &mut config.limits);
            }
            return Ok(role);
        }
        let mut config = Config::new(self.listen, Upstream::Address(self.upstream));
        config.workers = NonZeroUsize::new(1);
        config.dark = self.dark;
        if self.http2 {
            config.pool.protocol = Protocol::Http2;
        }
        if self.refuse {
            config.everyone_else = Limits::total(CostRate::ZERO);
        }
        if self.trust {
            config.ceiling = Criticality::CriticalPlus;
        }
        self.welcome(&mut config.connections, &mut config.limits);
        Ok(config.into())
    }

    /// Lets a crowd in.
    fn welcome(&self, connections: &mut ConnectionLimits, limits: &mut Bounds) {
        if self.crowd {
            connections.open_max = u64::MAX;
            (connections.accepts_per_second, connections.burst) = (u32::MAX, u32::MAX);
            limits.header_timeout = Duration::from_secs(3_600);
        }
    }
}
