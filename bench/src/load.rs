//! What a request costs the load generator, beside wrk, h2load and oha.
//!
//! A hyper server that says hello, alone on one core; one generator at a time on the other, with
//! one thread and the same number of connections, asking again as soon as it is answered. All of
//! them are processes of their own, and the figure is the CPU time that the kernel has counted for
//! the process, from its start to its end, over the answers that it got. Rounds are interleaved and
//! each round gives a ratio.
//!
//! A generator that is ahead of the server finds several answers at each wake-up, and pays less for
//! each: the figures are for a server that is as fast as this one. `at a rate` is ours at half of
//! what it did, by schedule: that is what an open loop costs, as it has to wake up on time.
//!
//! Who is not installed is left out, and said so. oha comes from crates.io: `--install` has cargo
//! build it, with its default features, which are rustls.

use crate::Outcome;
use crate::measure::{Cpus, median, pin};
use bytes::Bytes;
use clap::Args;
use http::Response;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use serde_json::{Value, json};
use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_load::{Load, Plan, Protocol, Rate, Run, Stage, Target};
use tokio::net::TcpListener;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// How often each generator runs.
    #[arg(long, default_value_t = 7)]
    rounds: u32,
    /// For how long, each time.
    #[arg(long, default_value_t = 2)]
    seconds: u64,
    /// Have cargo install oha first, if it is not there.
    #[arg(long)]
    install: bool,
}

/// A generator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tool {
    Wrk,
    H2load,
    Oha,
    Tidegate,
    /// Ours, at half the rate that it reached.
    TidegateAtRate,
}

impl Tool {
    const fn name(self) -> &'static str {
        match self {
            Self::Wrk => "wrk",
            Self::H2load => "h2load",
            Self::Oha => "oha",
            Self::Tidegate => "tidegate load",
            Self::TidegateAtRate => "tidegate load, at a rate",
        }
    }

    /// How to get it; nothing of what is always there.
    const fn source(self) -> Option<&'static str> {
        match self {
            Self::Wrk => Some("`apt install wrk`"),
            Self::H2load => Some("`apt install nghttp2-client`"),
            Self::Oha => Some("`cargo install --locked oha`, which `--install` runs"),
            Self::Tidegate | Self::TidegateAtRate => None,
        }
    }

    fn is_there(self) -> bool {
        let mut command = Command::new(self.name());
        command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null());
        self.source().is_none() || command.status().is_ok()
    }
}

/// Has cargo build oha. What it says goes to where errors go, as the output is figures.
fn install_oha() -> Outcome {
    let mut command = Command::new("cargo");
    command.args(["install", "--locked", "oha"]).stdin(Stdio::null());
    // Its own figures are not to suffer from flags that are for ours.
    command.env_remove("RUSTFLAGS").env_remove("CARGO_TARGET_DIR");
    let status = command.stdout(std::io::stderr()).status()?;
    if !status.success() {
        return Err(format!("`cargo install --locked oha` ended with {status}").into());
    }
    if !Tool::Oha.is_there() {
        return Err("oha was installed, and is not found: is ~/.cargo/bin in PATH?".into());
    }
    Ok(())
}

/// One way to ask.
struct Contender {
    tool: Tool,
    protocol: Protocol,
    /// CPU microseconds for each answer, by round.
    micros: Vec<f64>,
    /// Answers a second, by round.
    rates: Vec<f64>,
}

/// What all of them send.
const HEADERS: [&str; 3] =
    ["baggage: criticality=CRITICAL", "x-criticality: CRITICAL", "x-envoy-attempt-count: 1"];

/// Connections of HTTP/1.1; of HTTP/2 an eighth, with eight streams each.
const CONNECTIONS: u32 = 64;
const STREAMS: u32 = 8;

/// What the bar is: no other tool makes more requests a second for its CPU by more than this.
const BAR: f64 = 1.5;

pub(crate) fn run(options: &Options) -> Outcome {
    // Before anything is pinned, as a build wants all CPUs.
    if options.install && !Tool::Oha.is_there() {
        install_oha()?;
    }
    for tool in [Tool::Wrk, Tool::H2load, Tool::Oha] {
        if let Some(source) = tool.source().filter(|_| !tool.is_there()) {
            eprintln!("{} is not there and is left out; {source} gets it", tool.name());
        }
    }
    let cpus = Cpus::new();
    let server = Server::start(cpus.nth(0))?;
    // Children inherit it.
    let pinned = pin(cpus.nth(1)) && cpus.are_two();
    let mut contenders = Vec::new();
    for (tool, protocol) in [
        (Tool::Wrk, Protocol::Http1),
        (Tool::H2load, Protocol::Http1),
        (Tool::Oha, Protocol::Http1),
        (Tool::Tidegate, Protocol::Http1),
        (Tool::TidegateAtRate, Protocol::Http1),
        (Tool::H2load, Protocol::H2),
        (Tool::Oha, Protocol::H2),
        (Tool::Tidegate, Protocol::H2),
        (Tool::TidegateAtRate, Protocol::H2),
    ] {
        if tool.is_there() {
            contenders.push(Contender { tool, protocol, micros: Vec::new(), rates: Vec::new() });
        }
    }
    for round in 0..=options.rounds {
        let mut reached = 0.0;
        for contender in &mut contenders {
            let seconds = if round == 0 { 1 } else { options.seconds };
            let (micros, rate) = contender.run(server.address, seconds, reached / 2.0)?;
            reached = rate;
            // The first round warms up.
            if round > 0 {
                contender.micros.push(micros);
                contender.rates.push(rate);
            }
        }
    }
    let rows: Vec<Value> = contenders.iter().map(|one| one.row(&contenders)).collect();
    if options.json {
        println!("{}", json!({ "pinned": pinned, "rounds": options.rounds, "rows": rows }));
    } else {
        print(&rows);
        if !pinned {
            println!("The server and the generators were NOT on cores of their own.");
        }
    }
    Ok(())
}

impl Contender {
    /// CPU microseconds for each answer, and answers a second.
    fn run(&self, address: SocketAddr, seconds: u64, rate: f64) -> Outcome<(f64, f64)> {
        let before = children_cpu()?;
        let start = Instant::now();
        let output = self.command(address, seconds, rate)?.stderr(Stdio::null()).output()?;
        let wall = start.elapsed().as_secs_f64();
        let cpu = children_cpu()? - before;
        let text = String::from_utf8_lossy(&output.stdout);
        let answers = self.answers(&text).filter(|&answers| answers > 0.0);
        let answers = answers.ok_or_else(|| format!("{} said: {text}", self.tool.name()))?;
        Ok((cpu * 1e6 / answers, answers / wall))
    }

    fn command(&self, address: SocketAddr, seconds: u64, rate: f64) -> Outcome<Command> {
        let url = format!("http://{address}/");
        let h2 = self.protocol == Protocol::H2;
        let connections = if h2 { CONNECTIONS / STREAMS } else { CONNECTIONS };
        let mut command = match self.tool {
            Tool::Wrk => {
                let mut command = Command::new("wrk");
                command.args(["-t1", &format!("-c{connections}"), &format!("-d{seconds}s")]);
                command
            }
            Tool::H2load => {
                let mut command = Command::new("h2load");
                command.args(["-t1", &format!("-c{connections}"), &format!("-D{seconds}")]);
                let streams = format!("-m{STREAMS}");
                command.arg(if h2 { &streams } else { "--h1" });
                command
            }
            Tool::Oha => {
                let mut command = Command::new("oha");
                command.args(["--no-tui", "--output-format", "json"]);
                command.args(["--worker-threads", "1", "-z", &format!("{seconds}s")]);
                command.args(["-c", &connections.to_string()]);
                if h2 {
                    command.args(["--http2", "-p", &STREAMS.to_string()]);
                }
                command
            }
            Tool::Tidegate | Tool::TidegateAtRate => {
                let mut command = Command::new(std::env::current_exe()?);
                let rate = if self.tool == Tool::TidegateAtRate { rate } else { 0.0 };
                command.args(["load-generator", &address.to_string(), self.protocol.name()]);
                command.args([seconds.to_string(), rate.to_string()]);
                return Ok(command);
            }
        };
        for header in HEADERS {
            command.args(["-H", header]);
        }
        command.arg(url);
        Ok(command)
    }

    /// How many answers a tool says it got.
    fn answers(&self, text: &str) -> Option<f64> {
        let before = |words: &str| {
            let line = text.lines().find(|line| line.contains(words))?;
            let words = line.split(words).next()?.trim().rsplit([' ', ',']).next()?;
            words.parse::<f64>().ok()
        };
        match self.tool {
            Tool::Wrk => before(" requests in "),
            Tool::H2load => before(" succeeded"),
            Tool::Oha => {
                let json: Value = serde_json::from_str(text).ok()?;
                let counts = json["statusCodeDistribution"].as_object()?;
                counts.get("200")?.as_f64()
            }
            Tool::Tidegate | Tool::TidegateAtRate => text.trim().parse().ok(),
        }
    }

    fn row(&self, all: &[Self]) -> Value {
        let ours = all
            .iter()
            .find(|one| one.tool == Tool::Tidegate && one.protocol == self.protocol)
            .unwrap_or(self);
        let ratio = median(ours.micros.iter().zip(&self.micros).map(|(ours, its)| ours / its));
        json!({
            "tool": self.tool.name(),
            "protocol": self.protocol.name(),
            "cpu_us_per_request": median(self.micros.iter().copied()),
            "requests_per_second": median(self.rates.iter().copied()),
            "ours_over_this": ratio,
            "within_bar": ratio <= BAR,
        })
    }
}

fn print(rows: &[Value]) {
    println!(
        "{:<9} {:<26} {:>12} {:>12} {:>14}",
        "protocol", "tool", "CPU µs each", "answers/s", "ours over this"
    );
    for row in rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        println!(
            "{:<9} {:<26} {:>12.2} {:>12.0} {:>14.2}",
            row["protocol"].as_str().unwrap_or_default(),
            row["tool"].as_str().unwrap_or_default(),
            number("cpu_us_per_request"),
            number("requests_per_second"),
            number("ours_over_this"),
        );
    }
}

/// CPU time of children that have ended, in seconds: fields 16 and 17 of `stat`, in hundredths.
fn children_cpu() -> Outcome<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit(')').next().ok_or("no fields")?;
    // After the name in brackets comes field 3.
    let fields: Vec<&str> = fields.split_whitespace().collect();
    let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
    let ticks = ticks(16).zip(ticks(17)).ok_or("no times of children")?;
    Ok((ticks.0 + ticks.1) / 100.0)
}

/// Ours, in a process of its own.
#[derive(Args)]
pub(crate) struct GeneratorOptions {
    address: SocketAddr,
    protocol: Protocol,
    seconds: u64,
    /// Zero is a closed loop.
    rate: f64,
}

pub(crate) fn generate(options: &GeneratorOptions) -> Outcome {
    let duration = Duration::from_secs(options.seconds);
    let stages = vec![Stage::constant(Rate(options.rate), duration)];
    let mut plan = Plan::new(Target::loopback(options.address), stages, 1);
    plan.protocol = options.protocol;
    plan.connections = match options.protocol {
        Protocol::Http1 => CONNECTIONS,
        Protocol::H2 | Protocol::Grpc => CONNECTIONS / STREAMS,
    };
    plan.connections_max = plan.connections;
    plan.streams = STREAMS;
    if options.rate == 0.0 {
        plan.course.load = Load::Closed { duration };
    }
    let report = Run::start(plan)?.finish(|_| {})?;
    println!("{}", report.total.ok);
    Ok(())
}

/// The server, in a process of its own.
#[derive(Args)]
pub(crate) struct ServerOptions {
    /// The CPU to stay on.
    cpu: Option<usize>,
}

pub(crate) fn serve(options: &ServerOptions) -> Outcome {
    pin(options.cpu);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?);
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            tokio::spawn(async move {
                let hello = service_fn(|request: http::Request<hyper::body::Incoming>| {
                    let large = request.uri().path() == "/16k";
                    let body: &'static [u8] =
                        if large { &[b'x'; 16_384] } else { b"Hello, world!" };
                    let body = Full::new(Bytes::from_static(body));
                    async { Ok::<_, Infallible>(Response::new(body)) }
                });
                let builder = Builder::new(TokioExecutor::new());
                // Generators close their connections as they like.
                let _ = builder.serve_connection(TokioIo::new(stream), hello).await;
            });
        }
    })
}

/// A server that says hello, in a process of its own.
pub(crate) struct Server {
    child: Child,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(cpu: Option<usize>) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("load-server").args(cpu.map(|cpu| cpu.to_string()));
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok(Self { child, address: line.trim().parse()? })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
