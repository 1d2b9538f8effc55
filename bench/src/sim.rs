//! How fast the simulator runs.
//!
//! The worlds are ordinary ones: 1,000 client tasks, each connected to 30 of 1,000 backend tasks.
//! A backend has four cores and a request needs 5 ms of one, exponentially spread: a backend does
//! 800 a second, the fleet 800,000. That is a small container with a cheap handler. Dearer requests
//! would mean fewer of them between two looks of each backend's controller (every 10 ms in all but
//! idle ones), and so more work of the simulator for each; cheaper ones fewer.
//!
//! Time is CPU time of the one thread that runs a world. Setting it up is left out, and told beside
//! it. Worlds take turns, round by round, and medians are reported. What a world remembers must not
//! grow with the time that it runs, only with what is in flight at once: the growth of resident
//! memory while it runs is told, and what it wrote down is part of that.

use crate::measure::{Cpus, cpu_seconds, median};
use clap::Args;
use serde_json::json;
use std::time::Duration;
use tidegate_core::balance::WeightedConfig;
use tidegate_core::retry::BudgetConfig;
use tidegate_core::subset::SubsetPolicy;
use tidegate_core::throttle::ThrottleConfig;
use tidegate_sim::world::World;
use tidegate_sim::world::spec::{
    AdmissionSpec, BalanceSpec, ClientSpec, RetrySpec, ServiceSpec, StackSpec, TaskSpec, WorkSpec,
    WorldSpec,
};

const SUBSET: u32 = 30;
const CORES: f64 = 4.0;
const WORK: Duration = Duration::from_millis(5);

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds to take medians over.
    #[arg(long, default_value_t = 5)]
    rounds: u32,
    /// Seconds of virtual time that each world lasts. Three are six times the memory of the slowest
    /// average that admission steers by, and twice what weights wait for their first reports.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Client tasks, and as many backend tasks.
    #[arg(long, default_value_t = 1_000)]
    tasks: u32,
    /// Only the worlds whose key contains this.
    #[arg(long, default_value = "")]
    only: String,
}

/// One of the worlds.
struct Case {
    key: &'static str,
    name: &'static str,
    /// Offered load as a multiple of what the backends can do.
    load: f64,
    admission: bool,
    full_stack: bool,
}

/// The whole stack, whose rate is the headline.
const FULL: &str = "full_stack_2x";

const CASES: [Case; 4] = [
    Case {
        key: "round_robin_0_7x",
        name: "round robin, bare, 0.7x",
        load: 0.7,
        admission: false,
        full_stack: false,
    },
    Case {
        key: "protected_0_7x",
        name: "round robin, admission, 0.7x",
        load: 0.7,
        admission: true,
        full_stack: false,
    },
    Case {
        key: "protected_2x",
        name: "round robin, admission, 2x",
        load: 2.0,
        admission: true,
        full_stack: false,
    },
    Case {
        key: FULL,
        name: "weighted, throttle, budget, admission, 2x",
        load: 2.0,
        admission: true,
        full_stack: true,
    },
];

impl Case {
    fn stack(&self) -> StackSpec {
        let mut stack =
            StackSpec { subset: Some((SubsetPolicy::default(), SUBSET)), ..StackSpec::default() };
        if self.full_stack {
            let mut weighted = WeightedConfig::default();
            // Else the run would be over before the first weight counts.
            weighted.blackout = Duration::from_millis(1_500);
            stack.balance = BalanceSpec::Weighted(weighted);
            stack.throttle = Some(ThrottleConfig::default());
            stack.retries = RetrySpec::Budget(BudgetConfig::default());
        }
        stack
    }

    fn world(&self, seed: u64, options: &Options) -> WorldSpec {
        let tasks = options.tasks;
        let service = ServiceSpec {
            name: "service".to_owned(),
            tasks: vec![TaskSpec { datacenter: 0, cores: CORES, speed: 1.0 }; tasks as usize],
            work: WorkSpec::Exponential(WORK),
            reject_cost: Duration::from_micros(20),
            admission: self.admission.then(AdmissionSpec::default),
            ..ServiceSpec::default()
        };
        let clients = ClientSpec {
            name: "clients".to_owned(),
            datacenter: 0,
            tasks,
            service: 0,
            rate: self.load * f64::from(tasks) * CORES / WORK.as_secs_f64(),
            mix: [0.2, 0.3, 0.4, 0.1],
            stack: self.stack(),
            ..ClientSpec::default()
        };
        WorldSpec {
            seed,
            lasts: Duration::from_secs(options.seconds),
            distance: vec![vec![Duration::from_micros(250)]],
            jitter: 0.2,
            services: vec![service],
            clients: vec![clients],
            ..WorldSpec::default()
        }
    }
}

/// What one run of one world came to.
struct Run {
    per_second: f64,
    setup: f64,
    requests: u64,
    events: u64,
    inflight_max: usize,
    /// MiB that setting up took, and that running took beyond it.
    memory: [f64; 2],
}

fn run_once(case: &Case, seed: u64, options: &Options) -> Run {
    let empty = resident().now;
    let start = cpu_seconds();
    let world = match World::new(case.world(seed, options)) {
        Ok(world) => world,
        Err(error) => unreachable!("{}: {error}", case.name),
    };
    let ready = cpu_seconds();
    let set_up = resident().now;
    forget_peak();
    let record = world.run();
    let spent = cpu_seconds() - ready;
    Run {
        per_second: record.requests as f64 / spent,
        setup: ready - start,
        requests: record.requests,
        events: record.events,
        inflight_max: record.inflight_max,
        memory: [set_up - empty, resident().peak - set_up].map(|mib| mib.max(0.0)),
    }
}

pub(crate) fn run(options: &Options) {
    let mut cpus = Cpus::new();
    cpus.pin_here();
    let cases: Vec<&Case> = CASES.iter().filter(|case| case.key.contains(&options.only)).collect();
    let mut runs: Vec<Vec<Run>> = cases.iter().map(|_| Vec::new()).collect();
    for round in 0..options.rounds.max(1) {
        for (case, runs) in cases.iter().zip(&mut runs) {
            runs.push(run_once(case, u64::from(round), options));
        }
    }
    if options.json {
        let worlds: serde_json::Map<_, _> =
            cases.iter().zip(&runs).map(|(case, runs)| (case.key.to_owned(), line(runs))).collect();
        let headline = worlds.get(FULL).map(|line| line["requests_per_second"].clone());
        let report = json!({
            "requests_per_second": headline,
            "pinned": cpus.are_pinned(),
            "rounds": options.rounds,
            "seconds": options.seconds,
            "tasks": options.tasks,
            "worlds": worlds,
        });
        println!("{report:#}");
        return;
    }
    let tasks = options.tasks;
    println!(
        "{tasks} clients x {tasks} backends of {CORES} cores, subsets of {SUBSET}, {WORK:?} a \
         request, {} s of virtual time;\nmedians of {} rounds, CPU time of one thread, {}\n",
        options.seconds,
        options.rounds,
        if cpus.are_pinned() { "pinned" } else { "NOT pinned" }
    );
    println!(
        "{:42} {:>10} {:>8} {:>10} {:>8} {:>8} {:>9} {:>8}",
        "world", "requests/s", "events", "requests", "most in", "set up", "memory", "growth"
    );
    println!(
        "{:42} {:>10} {:>8} {:>10} {:>8} {:>8} {:>9} {:>8}",
        "", "of CPU", "/request", "", "flight", "s", "MiB", "MiB"
    );
    for (case, runs) in cases.iter().zip(&runs) {
        let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
        println!(
            "{:42} {:>10.0} {:>8.2} {:>10.0} {:>8.0} {:>8.2} {:>9.0} {:>8.0}",
            case.name,
            of(|run| run.per_second),
            of(events_per_request),
            of(|run| run.requests as f64),
            of(|run| run.inflight_max as f64),
            of(|run| run.setup),
            of(|run| run.memory[0]),
            of(|run| run.memory[1]),
        );
    }
}

fn line(runs: &[Run]) -> serde_json::Value {
    let of = |value: fn(&Run) -> f64| median(runs.iter().map(value));
    json!({
        "requests_per_second": of(|run| run.per_second).round(),
        "events_per_request": of(events_per_request),
        "requests": of(|run| run.requests as f64),
        "inflight_max": of(|run| run.inflight_max as f64),
        "setup_seconds": of(|run| run.setup),
        "setup_mib": of(|run| run.memory[0]),
        "growth_mib": of(|run| run.memory[1]),
    })
}

fn events_per_request(run: &Run) -> f64 {
    run.events as f64 / run.requests as f64
}

/// Resident memory in MiB.
struct Resident {
    now: f64,
    peak: f64,
}

/// As the system tells it; nothing where it does not.
fn resident() -> Resident {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let field = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1_024.0
    };
    Resident { now: field("VmRSS:"), peak: field("VmHWM:") }
}

/// Counts the peak of resident memory anew; where that is refused, it is that of all runs so far.
fn forget_peak() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}
