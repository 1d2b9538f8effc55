//! The service: a process of its own, whose requests each use a fixed amount of CPU.
//!
//! `tidegate demo-service` is started twice, once [bare](Side::Bare) and once
//! [behind tidegate](Side::Protected). Both are the same axum router with the same handler on one
//! thread; the only difference is the layer.
//!
//! It prints one line with its port ([`Hello`]) and answers each line that it reads by one
//! ([`Status`]): `status`, `dark on`, `dark off`. It ends when there is nothing more to read, so
//! that nothing stays behind even if whoever started it was killed.
//!
//! **Work, not time.** A request spins a fixed number of rounds. If it span for a time, a core that
//! others take from would do as much as one of its own, and there would be no overload.

use super::Outcome;
use super::cpus::{self, Seat};
use axum::routing::get;
use axum::{Extension, Router};
use rustix::process::{Resource, getrlimit, setrlimit};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::io::Write as _;
use std::net::Ipv4Addr;
use tidegate::Task;
use tidegate::admin::Admin;
use tidegate_core::fleet::Limits;
use tidegate_core::units::CostRate;
use tidegate_core::{Cost, Criticality};
use tidegate_wire::customer::Identities;
use tokio::net::TcpListener;

/// With tidegate or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, clap::ValueEnum)]
pub(crate) enum Side {
    /// The handler alone.
    Bare,
    /// A `Task` with its defaults around it.
    Protected,
}

impl Side {
    pub(super) const ALL: [Self; 2] = [Self::Bare, Self::Protected];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Bare => "bare",
            Self::Protected => "protected",
        }
    }

    pub(super) const fn index(self) -> usize {
        self as usize
    }
}

/// What the parent says.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    #[arg(value_enum)]
    side: Side,
    /// Rounds of work in a request
    rounds: u64,
    /// The CPU to stay on
    #[arg(long)]
    cpu: Option<usize>,
    /// Where to go if it cannot be
    #[arg(long, value_delimiter = ',')]
    all: Vec<usize>,
    /// How much of that CPU is its own
    #[arg(long, default_value_t = 1.0)]
    share: f64,
    /// The port to listen on; another one if it is taken
    #[arg(long)]
    port: Option<u16>,
    /// The quota server that says what customers may use
    #[arg(long, value_name = "URL")]
    quota: Option<String>,
    /// What it is called there
    #[arg(long, value_name = "NAME", requires = "quota")]
    name: Option<String>,
}

/// The first line of a service.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) port: u16,
    /// Where it runs.
    pub(super) seat: Seat,
    /// Whether the wanted port was taken.
    pub(super) port_taken: bool,
    /// Where its dashboard is, if it has one.
    pub(super) dashboard: Option<String>,
}

/// What a service says about itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Status {
    /// Whether it refuses nobody.
    pub(super) dark: bool,
    /// What it does, and why.
    pub(super) sentence: String,
}

/// The customer who asks for more than it may.
pub(super) const BAD_CUSTOMER: &str = "greedy";
/// The others, alike.
pub(super) const CUSTOMERS: [&str; 4] = ["north", "east", "south", "west"];

/// What each customer may use of a CPU. The four that behave ask for 0.175 each in calm, and about
/// 0.25 of each is served in a surge, as there is one CPU: they do not meet it. All together may
/// use twice of what there is.
const CUSTOMER_CPUS: f64 = 0.5;
/// What the bad one may use: with the calm of the others it leaves a fifth of the CPU, of which
/// refusing the rest of it takes the better part.
const BAD_CUSTOMER_CPUS: f64 = 0.1;

/// Who calls: a gateway that may say for whom.
const GATEWAY: &str = "spiffe://demo/gateway";

/// Work that the compiler cannot leave out, in registers: through memory it would take longer or
/// shorter by where a process happens to have its stack.
fn work(rounds: u64) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    (0..black_box(rounds)).fold(1, |sum, n| (sum ^ n).wrapping_mul(ODD).rotate_left(7))
}

/// How many rounds take `seconds` of CPU time, about: what a service can do is found by asking it.
pub(super) fn rounds_in(seconds: f64) -> u64 {
    const PROBE: u64 = 400_000;
    let cpu = || {
        let time = clock_gettime(ClockId::ThreadCPUTime);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let mut probes: Vec<f64> = (0..21)
        .map(|_| {
            let start = cpu();
            black_box(work(black_box(PROBE)));
            cpu() - start
        })
        .collect();
    probes.sort_by(f64::total_cmp);
    (PROBE as f64 * seconds / probes[probes.len() / 2]) as u64
}

/// As many files as the system lets us open: callers that have given up leave connections behind.
pub(crate) fn raise_file_limit() {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    // With less there are fewer connections, and what finds none is counted as not sent.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// The service itself.
pub(crate) fn run(options: &Options) -> Outcome {
    // Threads that are started later inherit it.
    let seat = cpus::sit(options.cpu, &options.all);
    raise_file_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (router, task) = app(options)?;
        let quota = task.as_ref().zip(options.quota.as_ref()).map(|(task, url)| {
            let client = tidegate_quota::Client::builder([url]);
            match &options.name {
                Some(name) => client.name(name).attach(task),
                None => client.attach(task),
            }
        });
        // It reports for as long as it is held.
        let _quota = quota.transpose()?;
        let (listener, port_taken) = listen(options.port).await?;
        let port = listener.local_addr()?.port();
        // Without one the service is the same.
        let page = task.as_ref().and_then(|task| Admin::new(task).spawn("127.0.0.1:0").ok());
        let dashboard = page.as_ref().map(|page| format!("http://{}/", page.address()));
        say(&Hello { port, seat, port_taken, dashboard })?;
        std::thread::Builder::new().name("orders".to_owned()).spawn(move || obey(task.as_ref()))?;
        Ok(axum::serve(listener, router).await?)
    })
}

/// The wanted port, or any; and whether the wanted one was taken.
async fn listen(port: Option<u16>) -> std::io::Result<(TcpListener, bool)> {
    if let Some(port) = port {
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)).await {
            Err(error) if error.kind() == std::io::ErrorKind::AddrInUse => {}
            listener => return Ok((listener?, false)),
        }
    }
    Ok((TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?, port.is_some()))
}

fn app(options: &Options) -> Outcome<(Router, Option<Task>)> {
    let rounds = options.rounds;
    let handler = move || async move { format!("{:x}\n", work(rounds)) };
    let router = Router::new().route("/", get(handler));
    if options.side == Side::Bare {
        return Ok((router, None));
    }
    let identities =
        Identities::default().delegator(GATEWAY)?.ceiling(GATEWAY, Criticality::CriticalPlus)?;
    let limits = |cpus: f64| -> Outcome<Limits> {
        Ok(Limits::total(CostRate::from_cpus(cpus * options.share)?))
    };
    let mut builder = Task::builder("demo").identities(identities);
    if options.quota.is_none() {
        for customer in CUSTOMERS {
            builder = builder.customer(customer, limits(CUSTOMER_CPUS)?);
        }
        builder = builder.customer(BAD_CUSTOMER, limits(BAD_CUSTOMER_CPUS)?);
    }
    let task = builder.start()?;
    // Loopback proves no identity, so every connection counts as the gateway's.
    let gateway = task.peer(Some(GATEWAY));
    Ok((router.layer(task.layer()).layer(Extension(gateway)), Some(task)))
}

/// Does as it is told until nobody is there to tell.
fn obey(task: Option<&Task>) {
    let mut dark = false;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        if let Some(word) = line.strip_prefix("dark ") {
            dark = word == "on";
            if let Some(task) = task {
                task.set_dark(dark);
            }
        }
        let sentence = task.map_or_else(|| "takes whatever comes".to_owned(), sentence);
        if say(&Status { dark, sentence }).is_err() {
            break;
        }
    }
    std::process::exit(0);
}

/// What the task does, and why.
fn sentence(task: &Task) -> String {
    let Some(plan) = task.snapshot().plan else { return "has just begun".to_owned() };
    let asked = if plan.capacity > 0.0 { plan.offered / plan.capacity } else { 0.0 };
    match plan.cut {
        Some(cut) => format!(
            "sheds {} and below: offered {asked:.1}x of what it can do, {:.0} ms in flight",
            cut.name(),
            plan.inflight.as_secs_f64() * 1e3
        ),
        None if plan.refused > Cost::ZERO => "had no room for a short burst".to_owned(),
        None => format!("admits everyone within quota: offered {asked:.1}x of what it can do"),
    }
}

fn say(what: &impl Serialize) -> Outcome {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, what)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}
