//! Lines on standard error while the demo goes on, for whoever has no terminal or wants no picture.

use super::record::BIN;
use super::report::Figures;
use super::script::{LAST_ANSWERS, PHASES, Who};
use super::service::Side;
use super::show::{Show, Stage};
use super::{End, Outcome, lock};
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often to look: what a person takes for at once.
const LOOK: Duration = Duration::from_millis(50);

/// What was told so far.
#[derive(Debug, Default)]
struct Told {
    stage: Stage,
    capacity: bool,
    notices: usize,
    /// Phases that have begun, by side.
    begun: [usize; 2],
    /// Phases that are over, by side.
    over: [usize; 2],
}

/// Prints lines until the player is done or somebody interrupts.
pub(super) fn watch(
    show: &Show,
    player: &JoinHandle<Outcome>,
    interrupted: &AtomicBool,
    why_plain: Option<String>,
) -> End {
    if let Some(why) = why_plain {
        say(&why);
    }
    say(&format!("seed {}; {}", show.seed, show.places.describe()));
    if let Some(url) = &lock(&show.board).window {
        say(&format!("dashboard with both sides: {url}"));
    }
    let mut told = Told::default();
    loop {
        let done = player.is_finished();
        for line in told.news(show) {
            say(&line);
        }
        if interrupted.load(Ordering::Acquire) {
            return End::Interrupted;
        }
        if done {
            return End::Whole;
        }
        std::thread::sleep(LOOK);
    }
}

/// Nobody has to listen.
fn say(line: &str) {
    let _ = writeln!(std::io::stderr(), "{line}");
}

impl Told {
    fn news(&mut self, show: &Show) -> Vec<String> {
        let mut lines = Vec::new();
        {
            let board = lock(&show.board);
            if board.stage != self.stage {
                self.stage = board.stage;
                if board.stage == Stage::Calibrating {
                    lines.push("finding out what the service can do".to_owned());
                }
            }
            if let Some(capacity) = board.capacity.filter(|_| !self.capacity) {
                self.capacity = true;
                lines.push(format!("capacity {capacity:.0} requests a second"));
            }
            lines.extend(board.notices[self.notices..].iter().cloned());
            self.notices = board.notices.len();
        }
        for side in Side::ALL {
            let record = lock(&show.records[side.index()]);
            let (begun, over) = (&mut self.begun[side.index()], &mut self.over[side.index()]);
            let bins = record.bins.len() as u32;
            while *over < record.over {
                let phase = *over;
                // The last answers to a phase come in the next.
                let settled = show.timing.ends()[phase] + LAST_ANSWERS <= BIN * bins;
                if record.phase.is_some() && !settled {
                    break;
                }
                *over += 1;
                if let Some(stats) = record.stats(phase, Who::Everyone) {
                    let figures = Figures::of(stats, show.timing.lasts(phase).as_secs_f64());
                    lines.push(summary(side, phase, &figures));
                }
            }
            if let Some(phase) = record.phase.filter(|phase| *phase >= *begun) {
                *begun = phase + 1;
                let phase = &PHASES[phase];
                lines.push(format!("{}: {}: {}", side.name(), phase.name, phase.why));
            }
        }
        lines
    }
}

fn summary(side: Side, phase: usize, figures: &Figures) -> String {
    let p99 = figures.p99_ms.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
    let plus = figures.success.critical_plus;
    let plus = plus.map_or("-".to_owned(), |share| format!("{:.0} %", share * 100.0));
    format!(
        "{}: {}: goodput {:.0} of {:.0} offered, p99 {p99}, CRITICAL_PLUS {plus}",
        side.name(),
        PHASES[phase].name,
        figures.goodput_rps,
        figures.offered_rps
    )
}
