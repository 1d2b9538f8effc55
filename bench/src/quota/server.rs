//! The quota server, in a process of its own, and what the kernel says of processes.

use crate::Outcome;
use crate::measure::pin;
use crate::peers::raise_file_limit;
use clap::Args;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::SystemTime;
use tidegate::clock::Clock;
use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
use tidegate_quota::{Config, Election, Server};
use tokio::net::TcpListener;

/// What the service is called.
pub(super) const SERVICE: &str = "bench";

#[derive(Args)]
pub(crate) struct ServerOptions {
    tasks: usize,
    customers: usize,
    /// The CPU to stay on.
    cpu: Option<usize>,
}

/// What customer number `n` may use, in CPUs: a fifth of them less than it will want.
fn limit(n: usize) -> usize {
    if n.is_multiple_of(5) { 20 } else { 2_000 }
}

pub(crate) fn serve(options: &ServerOptions) -> Outcome {
    pin(options.cpu);
    raise_file_limit(options.tasks as u64 + 1_000);
    let mut text = String::from("quota:\n  services:\n    bench:\n      default: 10\n");
    let tasks = options.tasks + 1;
    let _ =
        writeln!(text, "      sizes: {{ tasks: {tasks}, customers: {} }}", options.customers + 2);
    let _ = writeln!(text, "      customers:");
    for n in 0..options.customers {
        let _ = writeln!(text, "        customer-{n}: {}", limit(n));
    }
    let config = Config::parse("bench.yaml", &text)?;
    let state = std::env::temp_dir().join(format!("tidegate-bench-{}", std::process::id()));
    let election = Election::alone(Some(&state), SystemTime::now())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(async {
        let server = Server::start(&config, election, Clock::monotonic())?;
        let mut limits = ConnectionLimits::default();
        limits.open_max = 2 * options.tasks as u64 + 1_000;
        (limits.accepts_per_second, limits.burst) = (1_000_000, 1_000_000);
        let gate = Arc::new(ConnectionGate::new(limits)?);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        println!("{}", listener.local_addr()?);
        let router = server.router().into_make_service();
        tidegate::serve(listener, router).connections(gate).await?;
        Ok(())
    });
    let _ = std::fs::remove_file(&state);
    ended
}

/// A process that is looked at, and ends with this.
pub(super) struct Process {
    child: Child,
}

impl Process {
    pub(super) fn start(command: &mut Command) -> Outcome<Self> {
        Ok(Self { child: command.spawn()? })
    }

    /// Ours, and where it listens.
    pub(super) fn quota(
        tasks: usize,
        customers: usize,
        cpu: Option<usize>,
    ) -> Outcome<(Self, SocketAddr)> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["quota-server", &tasks.to_string(), &customers.to_string()]);
        command.args(cpu.map(|cpu| cpu.to_string())).stdout(Stdio::piped());
        let mut process = Self::start(&mut command)?;
        let output = process.child.stdout.take().ok_or("the server has no output")?;
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        Ok((process, line.trim().parse()?))
    }

    /// CPU time so far, of all its threads: fields 14 and 15 of `stat`, in hundredths of a second.
    pub(super) fn cpu_seconds(&self) -> Outcome<f64> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))?;
        // After the name in brackets comes field 3.
        let fields: Vec<&str> =
            stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        let ticks = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<f64>().ok());
        let (user, system) = ticks(14).zip(ticks(15)).ok_or("no times of the server")?;
        Ok((user + system) / 100.0)
    }

    /// What it has in memory, in bytes.
    pub(super) fn resident(&self) -> Outcome<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
        Ok(kilobytes.ok_or("no memory of the server")? * 1_024.0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
