//! `tidegate demo`: the same surge against a bare backend and against one behind tidegate.
//!
//! [`scene`] says what happens and runs it, [`report`] sums up what came of it, [`table`] and
//! [`chart`] draw that. Nothing here depends on the machine, the terminal's width or the time of
//! day: the same arguments give the same bytes.

mod chart;
mod report;
mod scene;
mod table;

use crate::Failure;
use std::io::{self, IsTerminal as _};
use std::path::PathBuf;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Names the dice: the same seed gives the same run
    #[arg(long, default_value_t = 7, value_name = "N")]
    seed: u64,
    /// How many seconds of virtual time each of the four phases lasts, from 2 to 600
    // At least as long as the averages that sum a phase up; at most what the queue of the bare
    // backend, about 2,000 requests for each second, leaves room for in any memory.
    #[arg(
        long,
        default_value_t = 10,
        value_name = "N",
        value_parser = clap::value_parser!(u64).range(2..=600),
    )]
    seconds: u64,
    /// Print one JSON object instead of the table
    #[arg(long)]
    json: bool,
    /// Draw goodput over time as an SVG, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// Runs both sides and gives what is to be printed.
pub(crate) fn run(options: &Options) -> Result<String, Failure> {
    let report = scene::run(options.seed, options.seconds).map_err(|error| Failure {
        what: "could not set up the demo".to_owned(),
        why: error.to_string(),
        next: "this is a fault of tidegate: please report it with the command that you ran",
    })?;
    if let Some(path) = &options.svg {
        std::fs::write(path, chart::svg(&report)).map_err(|error| Failure {
            what: format!("could not write the chart to {}", path.display()),
            why: error.to_string(),
            next: "give --svg a file in a folder that exists and that you may write to",
        })?;
    }
    if !options.json {
        return Ok(table::text(&report, table::Style::of_terminal(colours())));
    }
    let mut json = serde_json::to_string(&report).map_err(|error| Failure {
        what: "could not write the report as JSON".to_owned(),
        why: error.to_string(),
        next: "this is a fault of tidegate: please report it; the table works without --json",
    })?;
    json.push('\n');
    Ok(json)
}

/// Colours are for people at a terminal who have not said that they want none (no-color.org).
pub(crate) fn colours() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}
