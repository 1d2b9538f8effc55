//! `tidegate sim`: runs scenarios and says whether they show what they should.
//!
//! [`run`] reads all files before anything runs, so that a slip in the last one costs no time. The
//! same files, seed and options give the same bytes: runs are spread over cores, but what is printed
//! does not depend on who was first.

mod jobs;
mod text;

use crate::{Ending, Failure};
use jobs::Told;
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
}

/// The exit code for checks that failed.
const FAILED: u8 = 1;
/// The exit code for files that were refused.
const REFUSED: u8 = 2;

/// Reads and runs the scenarios.
pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let mut scenarios = Vec::new();
    let mut refused = String::new();
    for path in &options.files {
        let file = path.display().to_string();
        match std::fs::read_to_string(path) {
            Ok(text) => match Scenario::parse(&file, &text) {
                Ok(scenario) => scenarios.push((file, scenario)),
                Err(error) => refused.push_str(&format!("{error}\n")),
            },
            Err(error) => {
                refused.push_str(&format!("{file}: {error}\n  right: a file that can be read\n"));
            }
        }
    }
    if !refused.is_empty() {
        return Ok(Ending { err: refused, code: REFUSED, ..Ending::default() });
    }
    let told: Vec<Told<'_>> = jobs::tell(&scenarios, options.seed);
    let passed = told.iter().all(Told::passed);
    let out = text::verdicts(&told);
    Ok(Ending { out, code: if passed { 0 } else { FAILED }, ..Ending::default() })
}
