//! What metering costs, and how near it comes to the truth.
//!
//! Bars: 25 ns a poll, and each request within 5 % of the thread clock at p99: on a quiet machine,
//! beside threads that hog every CPU, and under thousands of preemptions a second. The thread clock
//! around a scope is not always the truth about it, as the row `thread_clock` shows, which is that
//! clock compared with itself. So two errors have to be within the bar: that of the requests of
//! which the truth is known to 1 % (`settled`), and of all requests what is beyond anything the
//! thread clock allows for (`beyond`). See [`accuracy`].
//!
//! Both are printed beside the bar taken by the letter, which is the error of all requests: in JSON
//! as `p99_error_of_all` and `p99_error_of_known`, for each condition and kind of meter, and again
//! under `bars` for the meter that this machine uses, with what the thread clock makes of itself.

mod accuracy;
mod cost;

use crate::measure::{Contender, Cpus, interleave};
use accuracy::{Condition, Findings, Speed};
use clap::Args;
use serde_json::{Map, Value, json};
use tidegate_meter::{Kind, Meter};

/// What metering may add to a poll, in nanoseconds.
const NANOS_MAX: f64 = 25.0;

/// What a request's account may be off by, at p99.
const ERROR_MAX: f64 = 0.05;

/// Of how many requests at least the clock has to know the truth: what is found of fewer than half
/// of them is not found of requests.
const SETTLED_MIN: f64 = 0.5;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds to take medians of the cost over.
    #[arg(long, default_value_t = 101)]
    rounds: u32,
    /// Polls in each measurement of the cost.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Rounds of requests, each with every kind of meter.
    #[arg(long, default_value_t = 10)]
    request_rounds: u32,
    /// Requests in each of those.
    #[arg(long, default_value_t = 400)]
    requests: u32,
    /// What the requests are drawn from.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(options: &Options) {
    let mut cpus = Cpus::new();
    let mut contenders = cost::contenders();
    interleave(&mut contenders, options.rounds, options.operations, &mut cpus);
    let table = findings(options, &cpus);
    if options.json {
        println!("{}", as_json(&contenders, &table));
    } else {
        print_costs(&contenders);
        print_errors(&table);
        println!(
            "\nCost: medians of {} rounds of {} polls, {}.\n\
             Requests: seed {}, {} rounds of {} each. This machine meters by {}.",
            options.rounds,
            options.operations,
            cpus.describe(),
            options.seed,
            options.request_rounds,
            options.requests,
            Meter::probe().best().name()
        );
    }
}

/// By condition, and by kind as in [`Kind::ALL`].
type Table = Vec<(Condition, Vec<(Kind, Findings)>)>;

fn findings(options: &Options, cpus: &Cpus) -> Table {
    let speed = Speed::measure();
    let under = |condition: Condition| {
        let mut kinds: Vec<_> =
            Kind::ALL.into_iter().map(|kind| (kind, Findings::default())).collect();
        let disturbance = condition.begin(cpus, speed);
        for round in 0..options.request_rounds {
            let seed = options.seed.wrapping_add(u64::from(round));
            for (kind, findings) in &mut kinds {
                accuracy::round(*kind, options.requests, seed, speed, findings);
            }
        }
        disturbance.end();
        (condition, kinds)
    };
    Condition::ALL.into_iter().map(under).collect()
}

type Figure = (&'static str, fn(&Findings) -> f64);

/// What is published of findings, by name. Errors are shares of the truth by the thread clock: of
/// all requests; of those of which it is known to 1 %, which are the share `known`; and of all,
/// what is beyond anything that the clock allows for.
const FIGURES: [Figure; 8] = [
    ("sum_over_true", Findings::sum_over_true),
    ("p50_error_of_all", |findings| findings.error(0.50)),
    ("p99_error_of_all", |findings| findings.error(0.99)),
    ("p99_error_of_known", |findings| findings.settled(0.99)),
    ("known", Findings::settled_share),
    ("p99_beyond", |findings| findings.beyond(0.99)),
    ("switches_per_second", Findings::switches_per_second),
    ("requests", |findings| findings.requests() as f64),
];

fn as_json(contenders: &[Contender<'_>], table: &Table) -> Value {
    let mut object = Map::new();
    let costs = (0..contenders.len()).map(|n| {
        (cost::key(contenders[n].name).to_owned(), json!(round(cost::added(contenders, n))))
    });
    object.insert("ns_per_poll".to_owned(), costs.collect::<Map<_, _>>().into());
    for (condition, kinds) in table {
        for (name, figure) in FIGURES {
            let by_kind = kinds
                .iter()
                .map(|(kind, findings)| (kind.name().to_owned(), json!(round(figure(findings)))));
            let key = format!("{name}_{}", condition.name());
            object.insert(key, by_kind.collect::<Map<_, _>>().into());
        }
    }
    object.insert("bars".to_owned(), bars(contenders, table));
    let unattributed =
        of(table, Condition::Quiet, Meter::probe().best()).map(Findings::unattributed);
    object.insert("unattributed_quiet".to_owned(), json!(unattributed.map(round)));
    object.insert("meter".to_owned(), Meter::probe().best().name().into());
    object.into()
}

/// What is held against the bars, of the meter that this machine uses.
fn bars(contenders: &[Contender<'_>], table: &Table) -> Value {
    let mut object = Map::new();
    let best = Meter::probe().best();
    let rseq = contenders.iter().position(|contender| contender.name == cost::RSEQ);
    let nanos = rseq.map(|rseq| round(cost::added(contenders, rseq)));
    object.insert("ns_per_poll".to_owned(), json!({ "rseq": nanos, "max": NANOS_MAX }));
    for (condition, _) in table {
        let error = |kind, figure: fn(&Findings) -> f64| {
            of(table, *condition, kind).map(|findings| round(figure(findings)))
        };
        let bar = json!({
            "p99_error_of_all": error(best, |findings| findings.error(0.99)),
            "p99_error_of_known": error(best, |findings| findings.settled(0.99)),
            "p99_beyond": error(best, |findings| findings.beyond(0.99)),
            "thread_clock_p99_error_of_all":
                error(Kind::ThreadClock, |findings| findings.error(0.99)),
            "max": ERROR_MAX,
        });
        object.insert(condition.name().to_owned(), bar);
    }
    object.into()
}

fn of(table: &Table, condition: Condition, kind: Kind) -> Option<&Findings> {
    let (_, kinds) = table.iter().find(|(found, _)| *found == condition)?;
    kinds.iter().find(|(found, _)| *found == kind).map(|(_, findings)| findings)
}

fn print_costs(contenders: &[Contender<'_>]) {
    println!("{:36} {:>10} {:>10}", "ns a poll", "in all", "added");
    for (n, contender) in contenders.iter().enumerate() {
        let (all, added) = (contender.median_nanos(), cost::added(contenders, n));
        let missed = contender.name == cost::RSEQ && added > NANOS_MAX;
        let verdict = if missed { "  missed: at most 25" } else { "" };
        println!("{:36} {all:10.1} {added:10.1}{verdict}", contender.name);
    }
}

fn print_errors(table: &Table) {
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    println!(
        "\n{:12} {:14} {:>10} {:>9} {:>9} {:>9} {:>9} {:>9} {:>11} {:>8}",
        "",
        "meter",
        "sum / true",
        "p50",
        "p99 error",
        "settled",
        "of all",
        "beyond",
        "switches/s",
        "requests"
    );
    for (condition, kinds) in table {
        for (kind, findings) in kinds {
            let (settled, beyond) = (findings.settled(0.99), findings.beyond(0.99));
            // Not a number where no request is settled, which is no pass.
            let kept = settled <= ERROR_MAX && beyond <= ERROR_MAX;
            let missed = *kind == Meter::probe().best()
                && !(kept && findings.settled_share() >= SETTLED_MIN);
            println!(
                "{:12} {:14} {:10.4} {:>9} {:>9} {:>9} {:>9} {:>9} {:11.0} {:8}{}",
                condition.name(),
                kind.name(),
                findings.sum_over_true(),
                percent(findings.error(0.50)),
                percent(findings.error(0.99)),
                percent(settled),
                percent(findings.settled_share()),
                percent(beyond),
                findings.switches_per_second(),
                findings.requests(),
                if missed { "  missed: at most 5 %" } else { "" }
            );
        }
    }
    if let Some(findings) = of(table, Condition::Quiet, Meter::probe().best()) {
        println!("\nCharged to nobody, quiet: {}", percent(findings.unattributed()));
    }
}

/// Four digits after the point tell errors of a hundredth of a percent.
fn round(value: f64) -> f64 {
    (value * 10_000.0).round() / 10_000.0
}
