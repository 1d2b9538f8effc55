//! The server, in a process of its own: its CPU time is then nobody else's, and nothing of the load
//! generator shares its core.
//!
//! It prints its port. Each line that it reads is answered by one line of what it has counted, and
//! it ends when there are no more.

use crate::Outcome;
use crate::measure::{cpu_seconds, median, pin};
use axum::Router;
use axum::error_handling::HandleErrorLayer;
use axum::routing::get;
use clap::{Args, ValueEnum};
use http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tidegate::{Criticality, Task};
use tidegate_core::decision::Reason;
use tidegate_wire::customer::Identities;
use tokio::net::TcpListener;
use tower::ServiceBuilder;
use tower::layer::util::Identity;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower_resilience_adaptive::{AdaptiveLimiterLayer, Aimd};

/// Set by hand, as tower has it: a fifth of the deadline at 5 ms each. More would be later answers,
/// fewer would refuse calm traffic.
pub(super) const LIMIT: usize = 40;

/// What is between the load and the handler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Contender {
    /// The handler alone.
    Nothing,
    /// tower's `LoadShed` around its `ConcurrencyLimit`.
    Tower,
    /// The same, and the handler waits once before it works. Without that it is done within one
    /// poll, and there is never more than one in flight to be counted.
    TowerYielding,
    /// `tower-resilience`'s limit, which follows latency (AIMD), behind `LoadShed`; the handler
    /// waits once here too.
    Adaptive,
    /// A layer that does nothing: what having any costs.
    Layer,
    /// A `Task` with its defaults.
    Tidegate,
}

impl Contender {
    /// Those who do something about it, and who does nothing.
    pub(crate) const IN_OVERLOAD: [Self; 5] =
        [Self::Nothing, Self::Tower, Self::TowerYielding, Self::Adaptive, Self::Tidegate];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nothing => "nothing",
            Self::Tower => "tower",
            Self::TowerYielding => "tower-yielding",
            Self::Adaptive => "adaptive",
            Self::Layer => "layer",
            Self::Tidegate => "tidegate",
        }
    }
}

/// What the server is made with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum App {
    /// axum over HTTP/1.1.
    Axum,
    /// tonic: unary gRPC over HTTP/2.
    Tonic,
}

impl App {
    pub(crate) const ALL: [Self; 2] = [Self::Axum, Self::Tonic];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Axum => "axum",
            Self::Tonic => "tonic",
        }
    }
}

#[derive(Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    pub(super) contender: Contender,
    #[arg(value_enum)]
    app: App,
    /// Rounds of work in a request.
    rounds: u64,
    /// After how many polls the runtime looks for what has arrived.
    event_interval: u32,
    /// The CPU to stay on.
    cpu: Option<usize>,
}

impl Options {
    /// A server that does nothing.
    pub(crate) const fn hello_world(contender: Contender, app: App) -> Self {
        Self { contender, app, rounds: 0, event_interval: 61, cpu: None }
    }
}

/// Work that the compiler cannot leave out, in registers: through memory it would take longer or
/// shorter by where a process happens to have its stack.
fn work(rounds: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (0..black_box(rounds)).fold(1, |sum, n| (sum ^ n).wrapping_mul(ODD).rotate_left(7))
}

/// How many rounds take `seconds` of CPU time, about: what a server can do is found by asking
/// it.
pub(crate) fn rounds_in(seconds: f64) -> u64 {
    const PROBE: u64 = 2_000_000;
    let probes = (0..21).map(|_| {
        let start = cpu_seconds();
        black_box(work(black_box(PROBE)));
        cpu_seconds() - start
    });
    (PROBE as f64 * seconds / median(probes)) as u64
}

/// What handlers have used of the CPU, and how many they were.
static USED_NANOS: AtomicU64 = AtomicU64::new(0);
static HANDLED: AtomicU64 = AtomicU64::new(0);

/// The work of a request, with its CPU time taken: it depends on what else the machine does.
fn handle(rounds: u64) -> u64 {
    let start = cpu_seconds();
    let sum = work(rounds);
    USED_NANOS.fetch_add(((cpu_seconds() - start) * 1e9) as u64, Ordering::Relaxed);
    HANDLED.fetch_add(1, Ordering::Relaxed);
    sum
}

/// What a request does, whatever brought it. Without rounds it does nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Handler {
    rounds: u64,
    yields: bool,
}

impl Handler {
    pub(super) async fn handle(self) -> u64 {
        if self.yields {
            tokio::task::yield_now().await;
        }
        // Hello-world is not to pay for clocks.
        if self.rounds == 0 { 1 } else { handle(self.rounds) }
    }
}

/// The child's side.
pub(crate) fn serve(options: &Options) -> Outcome {
    // Threads that are started later inherit it.
    pin(options.cpu);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().event_interval(options.event_interval).build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let port = listener.local_addr()?.port();
        let task = match options.contender {
            Contender::Tidegate => Some(task()?),
            _ => None,
        };
        let counting = task.clone();
        println!("{port}");
        std::thread::spawn(move || {
            for _ in std::io::stdin().lines().map_while(Result::ok) {
                let task = counting.as_ref().map_or(Value::Null, counted);
                let used = USED_NANOS.load(Ordering::Relaxed) as f64 / 1e9;
                let handled = HANDLED.load(Ordering::Relaxed);
                println!("{}", json!({ "used": used, "handled": handled, "task": task }));
            }
            std::process::exit(0);
        });
        match options.app {
            App::Axum => Ok(axum::serve(listener, app(options, task)?).await?),
            App::Tonic => super::grpc::serve(options, task, listener).await,
        }
    })
}

impl Options {
    pub(super) fn handler(&self) -> Handler {
        let yields = matches!(self.contender, Contender::TowerYielding | Contender::Adaptive);
        Handler { rounds: self.rounds, yields }
    }
}

/// The load may claim what it wants.
pub(crate) fn task() -> Outcome<Task> {
    let identities = Identities::default().unidentified(Criticality::CriticalPlus);
    Ok(Task::builder("overload").identities(identities).start()?)
}

/// As far from the calm latency as tower's limit is.
pub(super) fn aimd() -> Outcome<AdaptiveLimiterLayer<Aimd>> {
    let aimd = Aimd::builder()
        .initial_limit(LIMIT)
        .min_limit(1)
        .max_limit(1_000)
        .latency_threshold(Duration::from_millis(100));
    Ok(AdaptiveLimiterLayer::new(aimd.build()?))
}

pub(crate) fn app(options: &Options, task: Option<Task>) -> Outcome<Router> {
    let handler = options.handler();
    let router = Router::new()
        .route("/", get(move || async move { format!("{:x}\n", handler.handle().await) }));
    let overloaded = |_: axum::BoxError| async { StatusCode::SERVICE_UNAVAILABLE };
    let shed =
        ServiceBuilder::new().layer(HandleErrorLayer::new(overloaded)).layer(LoadShedLayer::new());
    Ok(match (options.contender, task) {
        (_, Some(task)) => router.layer(task.layer()),
        // axum makes a stack for each connection, and this one limit counts for all.
        (Contender::Tower | Contender::TowerYielding, _) => {
            router.layer(shed.layer(GlobalConcurrencyLimitLayer::new(LIMIT)))
        }
        (Contender::Adaptive, _) => router.layer(shed.layer(aimd()?)),
        (Contender::Layer, _) => router.layer(Identity::new()),
        (Contender::Nothing | Contender::Tidegate, _) => router,
    })
}

/// By criticality, highest first.
pub(crate) fn by_criticality<T>(of: impl FnMut(Criticality) -> T) -> Vec<T> {
    Criticality::ALL.into_iter().rev().map(of).collect()
}

fn counted(task: &Task) -> Value {
    let snapshot = task.snapshot();
    let requests = &snapshot.requests;
    let rejected = Reason::ALL.into_iter().filter_map(|reason| {
        let counts = by_criticality(|criticality| requests.rejected(reason, criticality));
        counts.iter().any(|&count| count > 0).then(|| (format!("{reason:?}"), json!(counts)))
    });
    let signals = snapshot.signals.iter();
    let signals = signals.map(|signal| (signal.name.clone(), json!(signal.last.map(|l| l.0))));
    let plan = snapshot.plan.map(|plan| {
        json!({
            "capacity": plan.capacity,
            "offered": plan.offered,
            "utilization": plan.reading.utilization.get(),
            "peak": plan.peak.get(),
            "cut": plan.cut.map(Criticality::name),
            "inflight_ms": plan.inflight.as_secs_f64() * 1e3,
            "limit_ms": plan.limit.map(|limit| limit.as_secs_f64() * 1e3),
        })
    });
    json!({
        "admitted": by_criticality(|criticality| requests.admitted(criticality)),
        "rejected": rejected.collect::<Map<_, _>>(),
        "completed": requests.completed(),
        "cost_ms": snapshot.costs.sum.as_secs_f64() * 1e3 / requests.completed().max(1) as f64,
        "plan": plan,
        "signals": signals.collect::<Map<_, _>>(),
        "cpus": snapshot.cpus,
        "wake_delay_ms": snapshot.wake_delay.map(|delay| delay.as_secs_f64() * 1e3),
        "unattributed": snapshot.unattributed,
        "ticks": [snapshot.ticks, snapshot.ticks_late],
    })
}

/// What a server has counted since it began.
#[derive(Debug, Clone, Default, Deserialize)]
pub(crate) struct Counted {
    /// CPU time of handlers, in seconds.
    pub(crate) used: f64,
    /// How many they were.
    pub(crate) handled: u64,
    /// What the task says, where there is one.
    pub(crate) task: Value,
}

/// How every server of a run is set up.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Setup {
    pub(crate) app: App,
    pub(crate) rounds: u64,
    pub(crate) event_interval: u32,
    pub(crate) cpu: Option<usize>,
}

/// The parent's side.
pub(crate) struct Server {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(crate) address: SocketAddr,
}

impl Server {
    pub(crate) fn start(contender: Contender, setup: Setup) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["overload-server", contender.name(), setup.app.name()]);
        command.arg(setup.rounds.to_string());
        command.arg(setup.event_interval.to_string());
        command.args(setup.cpu.map(|cpu| cpu.to_string()));
        Self::spawn(command)
    }

    /// Runs a program that prints its port and answers lines as ours does.
    pub(crate) fn spawn(mut command: Command) -> Outcome<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("the server has no input")?;
        let output = child.stdout.take().ok_or("the server has no output")?;
        let mut output = BufReader::new(output);
        let mut port = String::new();
        output.read_line(&mut port)?;
        let address = (Ipv4Addr::LOCALHOST, port.trim().parse::<u16>()?).into();
        Ok(Self { child, input, output, address })
    }

    /// Asks what it has counted, and does not wait for the answer.
    pub(crate) fn ask(&mut self) -> Outcome {
        Ok(self.input.write_all(b"\n")?)
    }

    /// The next answer.
    pub(crate) fn answer(&mut self) -> Outcome<Counted> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// CPU time that the threads of the process have used, in seconds. None of them ends before
    /// the process does.
    pub(crate) fn cpu_seconds(&self) -> Outcome<f64> {
        let mut nanos = 0;
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let times = std::fs::read_to_string(thread?.path().join("schedstat"))?;
            let running = times.split_whitespace().next().ok_or("a thread without times")?;
            nanos += running.parse::<u64>()?;
        }
        Ok(nanos as f64 / 1e9)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
