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
//! | `h2` | HTTP/2 in front, HTTP/1.1 behind |
//! | `h2-refuse` | refused over HTTP/2 |
//!
//! Ours has all checks of the inbound role on: criticality, deadline, quota, the program's CPU.
//! Who is not installed is left out, and said so.

use crate::Outcome;
use crate::load::Server;
use crate::measure::{Cpus, median, pin};
use clap::{Args, ValueEnum};
use serde_json::{Map, Value, json};
use std::io::Write as _;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidegate_core::CostRate;
use tidegate_core::fleet::Limits;
use tidegate_proxy::{Config, Proxy, Upstream};

#[derive(Args)]
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
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Case {
    H1,
    #[value(name = "h1-16k")]
    H1Large,
    H1Refuse,
    H2,
    H2Refuse,
}

impl Case {
    const fn name(self) -> &'static str {
        match self {
            Self::H1 => "h1",
            Self::H1Large => "h1-16k",
            Self::H1Refuse => "h1-refuse",
            Self::H2 => "h2",
            Self::H2Refuse => "h2-refuse",
        }
    }

    const fn is_http2(self) -> bool {
        matches!(self, Self::H2 | Self::H2Refuse)
    }

    const fn refuses(self) -> bool {
        matches!(self, Self::H1Refuse | Self::H2Refuse)
    }

    const fn path(self) -> &'static str {
        if matches!(self, Self::H1Large) { "/16k" } else { "/" }
    }

    /// At most so many times nginx.
    const fn bar(self) -> f64 {
        match self {
            Self::H1 => 1.2,
            Self::H1Large => 1.15,
            Self::H1Refuse => 1.1,
            Self::H2 => 0.7,
            Self::H2Refuse => 0.5,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Contender {
    Nginx,
    Haproxy,
    Envoy,
    Tidegate,
}

impl Contender {
    const ALL: [Self; 4] = [Self::Nginx, Self::Haproxy, Self::Envoy, Self::Tidegate];

    const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Tidegate => "tidegate",
        }
    }

    /// Where it is, if it is anywhere.
    fn program(self) -> Option<PathBuf> {
        let found = |path: PathBuf| path.is_file().then_some(path);
        match self {
            Self::Nginx => found("/usr/sbin/nginx".into()),
            Self::Haproxy => found("/usr/sbin/haproxy".into()),
            Self::Envoy => {
                let peers = std::env::var_os("TIDEGATE_PEERS").map(PathBuf::from);
                found(peers.unwrap_or_else(|| "target/peers/venv".into()).join("bin/envoy"))
            }
            Self::Tidegate => std::env::current_exe().ok(),
        }
    }

    const fn source(self) -> &'static str {
        match self {
            Self::Nginx => "`apt install nginx-light`",
            Self::Haproxy => "`apt install haproxy`",
            Self::Envoy => "`cargo xtask test --only install`",
            Self::Tidegate => "",
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
    let mut contenders = Vec::new();
    for contender in Contender::ALL {
        match contender.program() {
            Some(program) => contenders.push((contender, program)),
            None => eprintln!(
                "{} is not there and is left out; {} gets it",
                contender.name(),
                contender.source()
            ),
        }
    }
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
                let stage = Stage::start(*contender, program, case, server.address, front)?;
                let (micros, rate) = stage.measure(case, seconds)?;
                // The first round warms up.
                if round > 0 {
                    figures.micros.push(micros);
                    figures.rates.push(rate);
                }
            }
        }
        for ((contender, _), own) in contenders.iter().zip(&figures) {
            rows.push(row(case, *contender, own, &figures[0]));
        }
    }
    if options.json {
        println!("{}", json!({ "pinned": pinned, "rounds": options.rounds, "rows": rows }));
        return Ok(());
    }
    println!(
        "{:<10} {:<9} {:>12} {:>11} {:>11} {:>6}",
        "case", "proxy", "CPU µs each", "answers/s", "over nginx", "bar"
    );
    for row in &rows {
        let number = |key: &str| row[key].as_f64().unwrap_or(f64::NAN);
        let text = |key: &str| row[key].as_str().unwrap_or_default().to_owned();
        let bar = row["bar"].as_f64().map_or_else(String::new, |bar| format!("{bar:.2}"));
        println!(
            "{:<10} {:<9} {:>12.2} {:>11.0} {:>11.2} {bar:>6}",
            text("case"),
            text("proxy"),
            number("cpu_us_per_request"),
            number("requests_per_second"),
            number("over_nginx"),
        );
    }
    if !pinned {
        println!("The proxies and the load were NOT on cores of their own.");
    }
    Ok(())
}

fn row(case: Case, contender: Contender, own: &Figures, first: &Figures) -> Value {
    let mut row = Map::new();
    row.insert("case".to_owned(), case.name().into());
    row.insert("proxy".to_owned(), contender.name().into());
    row.insert("cpu_us_per_request".to_owned(), median(own.micros.iter().copied()).into());
    row.insert("requests_per_second".to_owned(), median(own.rates.iter().copied()).into());
    let ratio = median(own.micros.iter().zip(&first.micros).map(|(own, first)| own / first));
    row.insert("over_nginx".to_owned(), ratio.into());
    if contender == Contender::Tidegate {
        row.insert("bar".to_owned(), case.bar().into());
        row.insert("within_bar".to_owned(), (ratio <= case.bar()).into());
    }
    Value::Object(row)
}

/// A proxy that runs.
struct Stage {
    child: Child,
    address: SocketAddr,
    directory: PathBuf,
}

impl Stage {
    fn start(
        contender: Contender,
        program: &PathBuf,
        case: Case,
        upstream: SocketAddr,
        cpu: Option<usize>,
    ) -> Outcome<Self> {
        let directory = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
        std::fs::create_dir_all(&directory)?;
        // Somebody else may take it before the proxy does; then it is not reached, and says so.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new("taskset");
        command.arg("-c").arg(cpu.unwrap_or(0).to_string()).arg(program);
        let file = directory.join("proxy.conf");
        match contender {
            Contender::Nginx => {
                std::fs::write(&file, nginx(case, address, upstream, &directory))?;
                command.arg("-c").arg(&file).arg("-p").arg(&directory);
            }
            Contender::Haproxy => {
                std::fs::write(&file, haproxy(case, address, upstream))?;
                command.arg("-db").arg("-f").arg(&file);
            }
            Contender::Envoy => {
                std::fs::write(&file, envoy(case, address, upstream))?;
                command.args(["--concurrency", "1", "--log-level", "error"]);
                command.args(["--base-id", &address.port().to_string()]);
                command.arg("--config-yaml").arg(std::fs::read_to_string(&file)?);
            }
            Contender::Tidegate => {
                let arguments = [address.to_string(), upstream.to_string()];
                command.arg("proxy-server").args(arguments);
                if case.refuses() {
                    command.arg("--refuse");
                }
            }
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let stage = Self { child, address, directory };
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return Ok(stage);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{} does not listen at {address}", contender.name()).into())
    }

    /// CPU microseconds for each answer, and answers a second.
    fn measure(&self, case: Case, seconds: u64) -> Outcome<(f64, f64)> {
        // What starting takes is not what requests take.
        let _ = self.load(case, 1)?;
        let before = self.cpu()?;
        let answers = self.load(case, seconds)?;
        let cpu = self.cpu()? - before;
        Ok((cpu * 1e6 / answers, answers / seconds as f64))
    }

    fn load(&self, case: Case, seconds: u64) -> Outcome<f64> {
        let url = format!("http://{}{}", self.address, case.path());
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
        let count =
            line.and_then(|line| line.split(words).next()?.trim().rsplit([' ', ',']).next());
        let count = count.and_then(|count| count.parse::<f64>().ok()).filter(|count| *count > 0.0);
        Ok(count.ok_or_else(|| format!("no answers: {text}"))?)
    }

    /// Of the process and its children, in seconds.
    fn cpu(&self) -> Outcome<f64> {
        let mut ticks = 0.0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let fields = stat.rsplit(')').next().unwrap_or_default();
            let fields: Vec<&str> = fields.split_whitespace().collect();
            // After the name in brackets comes field 3.
            let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
            if pid == self.child.id() || field(4) == Some(f64::from(self.child.id())) {
                ticks += field(14).zip(field(15)).map_or(0.0, |(user, system)| user + system);
            }
        }
        Ok(ticks / 100.0)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // nginx's worker ends with its master only if that is told, not killed.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn nginx(
    case: Case,
    address: SocketAddr,
    upstream: SocketAddr,
    directory: &std::path::Path,
) -> String {
    let http2 = if case.is_http2() { " http2" } else { "" };
    let answer = if case.refuses() { "return 503;" } else { "proxy_pass http://behind;" };
    let directory = directory.display();
    format!(
        "daemon off; worker_processes 1; pid {directory}/nginx.pid; error_log /dev/null crit;
events {{ worker_connections 1024; }}
http {{
  access_log off; keepalive_requests 100000000;
  client_body_temp_path {directory}/a; proxy_temp_path {directory}/b;
  fastcgi_temp_path {directory}/c; uwsgi_temp_path {directory}/d; scgi_temp_path {directory}/e;
  upstream behind {{ server {upstream}; keepalive 64; keepalive_requests 100000000; }}
  server {{
    listen {address}{http2};
    location / {{ proxy_http_version 1.1; proxy_set_header Connection \"\"; {answer} }}
  }}
}}
"
    )
}

fn haproxy(case: Case, address: SocketAddr, upstream: SocketAddr) -> String {
    let http2 = if case.is_http2() { " proto h2" } else { "" };
    let refuse = if case.refuses() { "  http-request return status 503\n" } else { "" };
    format!(
        "global
  nbthread 1
defaults
  mode http
  timeout connect 5s
  timeout client 30s
  timeout server 30s
  http-reuse always
frontend front
  bind {address}{http2}
{refuse}  default_backend behind
backend behind
  server one {upstream}
"
    )
}

/// Where Envoy's filters are.
const TYPES: &str = "type.googleapis.com/envoy.extensions.filters";

fn envoy(case: Case, address: SocketAddr, upstream: SocketAddr) -> String {
    let codec = if case.is_http2() { "HTTP2" } else { "HTTP1" };
    let action = if case.refuses() {
        "direct_response: { status: 503 }"
    } else {
        "route: { cluster: behind }"
    };
    format!(
        "static_resources:
  listeners:
  - address: {{ socket_address: {{ address: 127.0.0.1, port_value: {port} }} }}
    filter_chains:
    - filters:
      - name: http
        typed_config:
          \"@type\": {TYPES}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: front
          codec_type: {codec}
          route_config:
            virtual_hosts:
            - name: all
              domains: ['*']
              routes:
              - match: {{ prefix: / }}
                {action}
          http_filters:
          - name: router
            typed_config:
              \"@type\": {TYPES}.http.router.v3.Router
  clusters:
  - name: behind
    type: STATIC
    circuit_breakers:
      thresholds:
      - {{ max_connections: 4096, max_requests: 100000, max_pending_requests: 100000 }}
    load_assignment:
      cluster_name: behind
      endpoints:
      - lb_endpoints:
        - endpoint:
            address: {{ socket_address: {{ address: 127.0.0.1, port_value: {behind} }} }}
",
        port = address.port(),
        behind = upstream.port(),
    )
}

/// Ours, in a process of its own.
#[derive(Args)]
pub(crate) struct ServerOptions {
    listen: SocketAddr,
    upstream: SocketAddr,
    /// Nobody has any quota.
    #[arg(long)]
    refuse: bool,
}

pub(crate) fn serve(options: &ServerOptions) -> Outcome {
    let mut config = Config::new(options.listen, Upstream::Address(options.upstream));
    config.workers = NonZeroUsize::new(1);
    config.dark = false;
    if options.refuse {
        config.everyone_else = Limits::total(CostRate::ZERO);
    }
    let proxy = Proxy::start(config)?;
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
