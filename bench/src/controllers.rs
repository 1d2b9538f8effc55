//! Which admission controller is best: every contender on every machine, over many seeds.

use clap::Args;
use serde::Serialize;
use tidegate_sim::contest::contenders::{CoDel, Gradient, Pi, Queue, Thresholds};
use tidegate_sim::contest::{Entrant, Trial, Verdict, held_out, run as run_trial, trials};
use tidegate_sim::world::contender::Contender;
use tidegate_sim::world::spec::WorldError;

#[derive(Args)]
pub(crate) struct Options {
    /// Seeds to run each trial with
    #[arg(long, default_value_t = 10)]
    seeds: u64,
    /// Only this contender, with every machine
    #[arg(long)]
    only: Option<String>,
    /// On machines for which no constant was chosen
    #[arg(long)]
    held_out: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

type Make = fn(&Trial) -> Result<Entrant, WorldError>;

/// Load per core at which the plain contenders aim: what tidegate's queue comes to on one core.
const TARGET: f64 = 7.0;

const CONTENDERS: [(&str, Make); 7] = [
    ("bare", |_| Ok(Entrant::Bare)),
    ("thresholds", |trial| {
        let from = [0.85, 0.9, 0.95, 1.0].map(|threshold| threshold * TARGET);
        Ok(entrant(Thresholds::new(trial.cores, from)?))
    }),
    ("PI cut", |trial| Ok(entrant(Pi::new(trial.cores, TARGET)))),
    ("CoDel", |trial| Ok(entrant(CoDel::new(trial.cores)))),
    ("gradient", |trial| Ok(entrant(Gradient::new(trial.cores)))),
    ("short queue", |trial| Ok(entrant(Queue::new(trial.cores, TARGET as usize)))),
    ("tidegate", |_| Ok(Entrant::Tidegate)),
];

fn entrant(contender: impl Contender + 'static) -> Entrant {
    Entrant::Contender(Box::new(contender))
}

/// What came of all trials of one kind.
#[derive(Serialize, Default)]
struct Row {
    contender: String,
    machine: String,
    surge: Option<f64>,
    /// Useful work over what the machine can do.
    goodput: f64,
    /// Seconds with less than two thirds of the work done, of all after the first.
    starved: f64,
    /// Median over seeds of p99 in the surge over p99 in calm.
    p99_ratio: f64,
    /// Trials in which that is at most two.
    p99_kept: f64,
    /// Share of calm traffic that was refused.
    calm_refused: f64,
    /// Share lost of criticalities that fit; not a number where none does.
    fitting_lost: f64,
    /// Share of answers that went to a lower criticality while a higher one went without.
    inverted: f64,
    /// Trials that were calm again within two seconds.
    recovered: f64,
}

pub(crate) fn run(options: &Options) -> Result<(), WorldError> {
    let mut rows = Vec::new();
    let wanted = |name: &str| options.only.as_deref().is_none_or(|only| only == name);
    for (name, make) in CONTENDERS.into_iter().filter(|(name, _)| wanted(name)) {
        let trials = if options.held_out { held_out } else { trials };
        let kinds = trials(1).len();
        let mut verdicts: Vec<Vec<(Trial, Verdict)>> = vec![Vec::new(); kinds];
        for seed in 1..=options.seeds {
            for (kind, trial) in trials(seed).into_iter().enumerate() {
                let verdict = run_trial(&trial, make(&trial)?)?;
                verdicts[kind].push((trial, verdict));
            }
        }
        if options.only.is_some() {
            rows.extend(verdicts.iter().map(|kind| row(name, kind, false)));
        } else {
            rows.push(row(name, &verdicts.concat(), true));
        }
    }
    if options.json {
        println!("{}", serde_json::to_string_pretty(&rows).unwrap_or_default());
    } else {
        print(&rows, options);
    }
    Ok(())
}

fn row(contender: &str, all: &[(Trial, Verdict)], whole: bool) -> Row {
    let mean = |f: &dyn Fn(&(Trial, Verdict)) -> Option<f64>| {
        let values: Vec<f64> = all.iter().filter_map(f).collect();
        values.iter().sum::<f64>() / values.len() as f64
    };
    let is = |yes: bool| Some(if yes { 1.0 } else { 0.0 });
    let mut ratios: Vec<f64> = all.iter().map(|(_, v)| v.p99_ratio).collect();
    ratios.sort_by(f64::total_cmp);
    let (refused, offered) = all.iter().fold((0, 0), |(refused, offered), (_, v)| {
        (refused + v.calm_refused.0, offered + v.calm_refused.1)
    });
    let first = all.first().map(|(trial, _)| trial.clone());
    Row {
        contender: contender.to_owned(),
        machine: first.as_ref().filter(|_| !whole).map_or("all", |t| t.name).to_owned(),
        surge: first.filter(|_| !whole).map(|t| t.surge),
        goodput: mean(&|(_, v)| Some(v.goodput)),
        starved: mean(&|(_, v)| Some(v.starved)),
        p99_ratio: ratios.get(ratios.len() / 2).copied().unwrap_or(f64::NAN),
        p99_kept: mean(&|(_, v)| is(v.p99_ratio <= 2.0)),
        calm_refused: f64::from(refused) / f64::from(offered.max(1)),
        fitting_lost: mean(&|(_, v)| v.fitting_lost),
        inverted: mean(&|(_, v)| Some(v.inverted)),
        recovered: mean(&|(_, v)| is(v.recovery <= 2.0)),
    }
}

fn print(rows: &[Row], options: &Options) {
    let what = if options.only.is_some() { "machine and surge" } else { "contender" };
    let columns = "goodput | starved | p99 / calm | kept <= 2 | calm refused | fitting lost";
    println!("| {what} | {columns} | inverted | back in 2 s |");
    println!("|---|---|---|---|---|---|---|---|---|");
    for row in rows {
        let name = match row.surge {
            Some(surge) => format!("{}, {surge}x", row.machine),
            None => row.contender.clone(),
        };
        let fitting_lost = match row.fitting_lost {
            lost if lost.is_nan() => "-".to_owned(),
            lost => format!("{:.2} %", lost * 100.0),
        };
        println!(
            "| {name} | {:.1} % | {:.1} % | {:.2} | {:.0} % | {:.3} % | {fitting_lost} | {:.1} % \
             | {:.0} % |",
            row.goodput * 100.0,
            row.starved * 100.0,
            row.p99_ratio,
            row.p99_kept * 100.0,
            row.calm_refused * 100.0,
            row.inverted * 100.0,
            row.recovered * 100.0,
        );
    }
    println!("\n{} seeds, virtual time; the same again:", options.seeds);
    let held_out = if options.held_out { " --held-out" } else { "" };
    let seeds = options.seeds;
    println!("  cargo run --release -p tidegate-bench -- controllers --seeds {seeds}{held_out}");
}
