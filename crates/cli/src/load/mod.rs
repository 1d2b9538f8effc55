//! `tidegate load`: offers a server load and says what came of it.
//!
//! [`options`] turns arguments into a draft of a plan, `tidegate-load` does the work, [`progress`]
//! shows it while it goes on, [`summary`] afterwards.

mod options;
mod progress;
mod summary;

use crate::{Ending, Failure};
pub(crate) use options::Options;
use std::io::{IsTerminal as _, Write as _};
use std::path::Path;
use std::time::Duration;
use tidegate_load::{Draft, Handle, HistogramFormat, PlanError, Report, Run, write_histogram};

/// The exit code for plans that were refused; nothing was sent.
const REFUSED: u8 = 2;
/// The exit code for runs in which nothing ended well.
const FRUITLESS: u8 = 1;

/// How often the bar moves.
const BAR: Duration = Duration::from_millis(250);

/// Reads the plan and runs it.
pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let plan = read(options).and_then(|draft| draft.resolve(options.allow_remote, random_seed()));
    let mut plan = match plan {
        Ok(plan) => plan,
        Err(refused) => {
            let err = format!("error: {refused}\n");
            return Ok(Ending { err, code: REFUSED, ..Ending::default() });
        }
    };
    let shown = std::io::stderr().is_terminal() && !options.quiet;
    if shown {
        plan.interval = BAR;
    }
    let total = plan.warmup + plan.course.load.duration();
    let failure = |error: tidegate_load::RunError| Failure {
        what: "could not run the load".to_owned(),
        why: error.to_string(),
        next: "see tidegate load --help, and docs/load.md",
    };
    let bar = progress::Bar::new(shown, total, plan.warmup);
    let run = Run::start(plan.clone()).map_err(failure)?;
    end_on_interrupt(run.handle())?;
    let report = run.finish(|interval| bar.show(interval)).map_err(failure)?;
    bar.finish();
    if let Some(path) = &options.histogram {
        save(&report, path)?;
    }
    let code = if report.total.ok == 0 && report.total.offered > 0 { FRUITLESS } else { 0 };
    let out = if options.json {
        let json = serde_json::to_string(&report).map_err(|error| Failure {
            what: "could not write the report as JSON".to_owned(),
            why: error.to_string(),
            next: "this is a fault of tidegate: please report it",
        })?;
        json + "\n"
    } else {
        summary::text(&plan, &report, crate::demo::colours())
    };
    Ok(Ending { out, code, ..Ending::default() })
}

fn read(options: &Options) -> Result<Draft, PlanError> {
    let draft = options.draft()?;
    let Some(path) = &options.plan else { return Ok(draft) };
    let file = path.display().to_string();
    let text = std::fs::read_to_string(path).map_err(|error| {
        PlanError::from(tidegate_load::Unreadable::new(
            format!("{file} cannot be read: {error}"),
            "a plan file that is there; docs/load.md shows how to write one",
        ))
    })?;
    Ok(draft.over(Draft::parse(&file, &text)?))
}

/// Another one each time; it is printed.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    // Four digits are easy to type again, and enough for nobody to meet the same twice.
    std::collections::hash_map::RandomState::new().build_hasher().finish() % 10_000
}

/// The first Ctrl-C ends the run in good order, the second at once.
fn end_on_interrupt(handle: Handle) -> Result<(), Failure> {
    let failure = |error: std::io::Error| Failure {
        what: "could not listen for Ctrl-C".to_owned(),
        why: error.to_string(),
        next: "look at the limits of this process: threads and open files",
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failure)?;
    let listen = move || {
        runtime.block_on(async {
            if tokio::signal::ctrl_c().await.is_ok() {
                let _ =
                    writeln!(std::io::stderr(), "\nending: waiting for answers, up to a second");
                handle.stop();
            }
            if tokio::signal::ctrl_c().await.is_ok() {
                std::process::exit(130);
            }
        });
    };
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(listen).map_err(failure)?;
    Ok(())
}

fn save(report: &Report, path: &Path) -> Result<(), Failure> {
    let failure = |why: String| Failure {
        what: format!("could not write the histogram to {}", path.display()),
        why,
        next: "give --histogram a file in a folder that exists and that you may write to",
    };
    let file = std::fs::File::create(path).map_err(|error| failure(error.to_string()))?;
    let mut out = std::io::BufWriter::new(file);
    let length = Duration::try_from_secs_f64(report.seconds).unwrap_or_default();
    write_histogram(&report.stats, length, HistogramFormat::of(path), &mut out)
        .map_err(|error| failure(error.to_string()))?;
    out.flush().map_err(|error| failure(error.to_string()))
}
