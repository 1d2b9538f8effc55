//! `tidegate sim`: runs scenarios and says whether they show what they should.
//!
//! All files are read before anything runs, so that a slip in the last one costs no time. [`jobs`]
//! runs them, [`text`], [`compare`], [`json`] and [`page`] tell what came of it, with curves by
//! [`spark`] and [`plot`](crate::plot). The same files, seed and options give the same bytes: runs
//! are spread over cores, but what is printed does not depend on who was first.

mod compare;
mod jobs;
mod json;
mod page;
mod spark;
mod text;

use crate::{Ending, Failure};
use jobs::Told;
use std::fmt::Write as _;
use std::path::PathBuf;
use tidegate_sim::scenario::Scenario;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Scenario files; docs/scenarios.md says how to write one
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Names the dice, instead of the seed that the file names
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// Run this many seeds, from the first one on, and show how far results spread
    #[arg(
        long,
        default_value_t = 1,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..=10_000),
    )]
    seeds: u64,
    /// Show two variants side by side; the file as it is written is called `base`
    #[arg(long, value_name = "A,B", value_parser = pair)]
    compare: Option<(String, String)>,
    /// Print one JSON object instead of text
    #[arg(long)]
    json: bool,
    /// Write a page with plots, too, that needs nothing else
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once(',') {
        Some((a, b)) if !a.trim().is_empty() && !b.trim().is_empty() && !b.contains(',') => {
            Ok((a.trim().to_owned(), b.trim().to_owned()))
        }
        _ => Err("expected two variants with a comma between, such as base,bare".to_owned()),
    }
}

/// The exit code for checks that failed.
const FAILED: u8 = 1;
/// The exit code for files that were refused.
const REFUSED: u8 = 2;

/// Reads and runs the scenarios.
pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let scenarios = match read(options) {
        Ok(scenarios) => scenarios,
        Err(refused) => return Ok(Ending { err: refused, code: REFUSED, ..Ending::default() }),
    };
    let told = jobs::tell(&scenarios, options.seed, options.seeds);
    if let Some(path) = &options.report {
        std::fs::write(path, page::html(&told)).map_err(|error| Failure {
            what: format!("could not write the report to {}", path.display()),
            why: error.to_string(),
            next: "give --report a file in a folder that exists and that you may write to",
        })?;
    }
    let out = if options.json {
        json::text(&told)?
    } else {
        text::verdicts(&told, options.compare.as_ref(), crate::demo::colours())
    };
    let code = if told.iter().all(Told::passed) { 0 } else { FAILED };
    Ok(Ending { out, code, ..Ending::default() })
}

/// All files, or everything that is wrong with any of them.
fn read(options: &Options) -> Result<Vec<(String, Scenario)>, String> {
    let mut scenarios = Vec::new();
    let mut refused = String::new();
    for path in &options.files {
        let file = path.display().to_string();
        let scenario = match std::fs::read_to_string(path) {
            Ok(text) => Scenario::parse(&file, &text).map_err(|error| error.to_string()),
            Err(error) => Err(format!("{file}: {error}\n  right: a file of text that is there")),
        };
        match scenario.and_then(|scenario| compared(&file, scenario, options)) {
            Ok(scenario) => scenarios.push((file, scenario)),
            Err(error) => {
                let _ = writeln!(refused, "{error}");
            }
        }
    }
    if refused.is_empty() { Ok(scenarios) } else { Err(refused) }
}

/// The scenario, if it has the variants that are to be compared.
fn compared(file: &str, scenario: Scenario, options: &Options) -> Result<Scenario, String> {
    let names: Vec<&str> = scenario.variants.iter().map(|v| v.name.as_str()).collect();
    for wanted in options.compare.iter().flat_map(|(a, b)| [a, b]) {
        if !names.contains(&wanted.as_str()) {
            let known = names.join(", ");
            return Err(format!("{file}: there is no variant `{wanted}`\n  right: two of {known}"));
        }
    }
    Ok(scenario)
}
