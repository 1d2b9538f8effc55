//! `tidegate demo`: the same surge against a bare service and against one behind tidegate, on real
//! processes.
//!
//! [`service`] is the service, a process of its own; [`company`] starts and ends them, [`cpus`]
//! says where. [`script`] says what happens, [`drive`] does it to one side and [`show`] to both,
//! [`record`] keeps what was measured. [`report`] sums it up; [`text`], [`page`] and [`chart`] tell
//! it. While it goes on, [`plain`] prints lines, [`live`] fills a terminal, and [`window`] is for
//! browsers.
//!
//! Everything is measured, so no two runs are the same; the arrivals are, by seed and capacity.
//!
//! **When it ends.** At its end, by Ctrl-C, SIGTERM or `q`, or because something failed: in every
//! case the services are ended and waited for before this process goes.

mod chart;
mod company;
mod cpus;
mod drive;
mod live;
mod page;
mod plain;
mod record;
mod report;
mod script;
pub(crate) mod service;
mod show;
mod text;
mod window;

use crate::{Ending, Failure};
use cpus::{Places, Turns};
use report::Report;
use show::Show;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What may fail in the demo. Most of it is the system's.
type Outcome<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// The exit code of a program that was interrupted: 128 and the number of SIGINT.
const INTERRUPTED: u8 = 130;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Names the dice: the same seed gives the same arrivals, as multiples of the capacity
    #[arg(long, default_value_t = 7, value_name = "N")]
    seed: u64,
    /// How many seconds all of it lasts, from 10 to 3600
    // Below, phases would have too few requests for shares to mean anything.
    #[arg(
        long,
        default_value_t = 60,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(10..=3_600),
    )]
    seconds: u32,
    /// Print lines, also to a terminal that could show more
    #[arg(long)]
    headless: bool,
    /// Print one JSON object at the end instead of the table
    #[arg(long)]
    json: bool,
    /// Whether both sides are driven at the same time
    #[arg(long, value_enum, default_value = "auto")]
    sides: Turns,
    /// CPU time of a request in milliseconds, from 1 to 100
    #[arg(
        long,
        default_value_t = script::WORK_MS,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=100),
    )]
    work_ms: u32,
    /// The port of the protected service; the bare one has the next. Any that are free if not said
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Where to write the page with the plots; to a new file in the temporary folder if not said,
    /// and nowhere with --json
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Draw goodput over time as an SVG, too
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
}

/// How the demo came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// As planned.
    Whole,
    /// The user has seen enough.
    Quit,
    /// By a signal, or Ctrl-C.
    Interrupted,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs both sides and gives what is to be printed.
pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let interrupted = interrupts()?;
    service::raise_file_limit();
    let live = live::wanted(options.headless || options.json);
    let places = Places::find(options.sides, live.is_ok());
    let show = Show::new(options, places);
    let player = {
        let show = show.clone();
        std::thread::spawn(move || show.play())
    };
    cpus::give_way();
    // Whoever wants a number only does not look at pages.
    let page = if options.json { None } else { window(&show) };
    let watched = match live {
        Ok(()) => live::watch(&show, &player, &interrupted),
        Err(why) => Ok(plain::watch(&show, &player, &interrupted, why)),
    };
    // Whatever happened: first of all nothing stays behind.
    let dismissed = show.company.dismiss();
    // It may wait for an answer of a service: now there is none to wait for.
    drop(page);
    let end = watched.map_err(|error| failure(&*error))?;
    if end == End::Whole {
        let outcome = player.join().unwrap_or_else(|_| Err("the demo panicked".into()));
        outcome.map_err(|error| failure(&*error))?;
    }
    finish(options, &show, end, dismissed)
}

/// Opens the dashboard. Without one the demo is the same.
fn window(show: &Show) -> Option<tidegate::admin::Page> {
    let page = window::open(show);
    let mut board = lock(&show.board);
    match page {
        Ok(page) => {
            board.window = Some(format!("http://{}/", page.address()));
            Some(page)
        }
        Err(error) => {
            board.notices.push(format!("there is no dashboard: {error}"));
            None
        }
    }
}

fn failure(error: &(dyn std::error::Error + Send + Sync)) -> Failure {
    Failure {
        what: "the demo came to no end; its services are ended".to_owned(),
        why: error.to_string(),
        next: "look at what the system lets you have: processes, open files, ports of loopback",
    }
}

/// Writes and tells what was measured.
fn finish(options: &Options, show: &Show, end: End, dismissed: usize) -> Result<Ending, Failure> {
    let mut report = {
        let board = lock(&show.board);
        let [bare, protected] = show.records.each_ref().map(|record| lock(record));
        let found = (show.seed, board.capacity.unwrap_or_default());
        let notices = board.notices.clone();
        Report::new(found, show, [&*bare, &*protected], notices)
    };
    report.interrupted |= end != End::Whole;
    let measured = !report.bare.phases.is_empty();
    if measured && let Some(path) = page_path(options) {
        // Nobody else's file is written over, nor one that a link of somebody else leads to.
        let new = options.report.is_none();
        write(&path, &page::html(&report), "--report", new)?;
        report.report = Some(path.display().to_string());
    }
    if measured && let Some(path) = &options.svg {
        write(path, &chart::svg(&report), "--svg", false)?;
    }
    if end == End::Interrupted {
        let err = text::interrupted(&report, dismissed);
        return Ok(Ending { err, code: INTERRUPTED, ..Ending::default() });
    }
    if !options.json {
        return Ok(Ending::from(text::verdict(&report, options.seconds, colours())));
    }
    let json = serde_json::to_string(&report).map_err(|error| Failure {
        what: "could not write the report as JSON".to_owned(),
        why: error.to_string(),
        next: "this is a fault of tidegate: please report it; the table works without --json",
    })?;
    Ok(Ending::from(json + "\n"))
}

/// Where the page goes.
fn page_path(options: &Options) -> Option<PathBuf> {
    let default = || {
        let name = format!("tidegate-demo-{}-{}.html", options.seed, std::process::id());
        (!options.json).then(|| std::env::temp_dir().join(name))
    };
    options.report.clone().or_else(default)
}

fn write(path: &Path, what: &str, option: &str, new: bool) -> Result<(), Failure> {
    let mut how = std::fs::OpenOptions::new();
    how.write(true).truncate(!new).create(!new).create_new(new);
    let written = how.open(path).and_then(|mut file| file.write_all(what.as_bytes()));
    written.map_err(|error| Failure {
        what: format!("could not write {}", path.display()),
        why: error.to_string(),
        next: match option {
            "--svg" => "give --svg a file in a folder that exists and that you may write to",
            _ => "give --report a file in a folder that exists and that you may write to",
        },
    })
}

/// Set as soon as somebody wants the demo to end: SIGINT, SIGTERM, or the terminal is gone.
fn interrupts() -> Result<Arc<AtomicBool>, Failure> {
    use tokio::signal::unix::{SignalKind, signal};
    let failure = |error: io::Error| Failure {
        what: "could not listen for Ctrl-C".to_owned(),
        why: error.to_string(),
        next: "look at the limits of this process: threads and open files",
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(failure)?;
    let flag = Arc::new(AtomicBool::new(false));
    let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
    for kind in kinds {
        let flag = Arc::clone(&flag);
        let mut stream = {
            let _entered = runtime.enter();
            signal(kind).map_err(failure)?
        };
        runtime.spawn(async move {
            while stream.recv().await.is_some() {
                flag.store(true, Ordering::Release);
            }
        });
    }
    let forever = move || runtime.block_on(std::future::pending::<()>());
    std::thread::Builder::new().name("interrupt".to_owned()).spawn(forever).map_err(failure)?;
    Ok(flag)
}

/// Colours are for people at a terminal who have not said that they want none (no-color.org).
pub(crate) fn colours() -> bool {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    io::stdout().is_terminal() && !set("NO_COLOR") && !dumb
}

#[cfg(test)]
impl Options {
    /// For reports that are made up.
    fn example() -> Self {
        Self {
            seed: 7,
            seconds: 20,
            headless: true,
            json: false,
            sides: Turns::InTurn,
            work_ms: script::WORK_MS,
            port: None,
            report: None,
            svg: None,
        }
    }
}
