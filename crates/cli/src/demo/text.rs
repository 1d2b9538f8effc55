//! The verdict for people: a table, goodput over time, and what to make of it.
//!
//! Everything fits into 80 columns, so that no width has to be asked for.

use super::report::{Figures, PhaseReport, Report, SideReport};
use super::script::{PHASES, RECOVERY, WORST};
use super::service::Side;
use std::fmt::Write as _;

/// Characters of goodput for each phase: five of them, and bars between, fit beside a name.
const SPARKS: usize = 12;
/// From nothing to all that the service can do.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Over the columns of [`row`].
const HEADS: [&str; 2] = [
    "               goodput    p50    p99      C+    C   S+    S   attempts   refused",
    "                     %     ms     ms   answered in time, %   a request",
];

/// With the escape codes of terminals, or words alone.
#[derive(Debug, Clone, Copy)]
struct Paint(bool);

impl Paint {
    fn with(self, code: &str, words: &str) -> String {
        if self.0 { format!("\u{1b}[{code}m{words}\u{1b}[0m") } else { words.to_owned() }
    }

    fn heading(self, words: &str) -> String {
        self.with("1", words)
    }

    fn side(self, side: Side, words: &str) -> String {
        self.with(if side == Side::Bare { "31" } else { "32" }, words)
    }
}

/// All of it, for a run of so many seconds.
pub(super) fn verdict(report: &Report, seconds: u32, colours: bool) -> String {
    let paint = Paint(colours);
    let mut parts = vec![introduction(report, paint)];
    if !report.bare.phases.is_empty() {
        parts.extend([table(report, paint), sparklines(report, paint), findings(report, paint)]);
    }
    parts.push(closing(report, seconds));
    parts.join("\n")
}

/// What Ctrl-C leaves behind.
pub(super) fn interrupted(report: &Report, dismissed: usize) -> String {
    let services = match dismissed {
        0 => "no service was running".to_owned(),
        1 => "its service is ended".to_owned(),
        count => format!("its {count} services are ended"),
    };
    let mut text = format!("\ninterrupted: {services}, nothing is left behind\n");
    match &report.report {
        Some(path) => {
            let _ = writeln!(text, "what was measured until then: {path}");
        }
        None => text.push_str("no report was written\n"),
    }
    text
}

fn introduction(report: &Report, paint: Paint) -> String {
    let share = |share: Option<f64>| format!("{:.0} %", share.unwrap_or_default() * 100.0);
    let [critical_plus, critical, sheddable_plus, sheddable] = report.mix.descending().map(share);
    let mut text = format!(
        "{}\n\
         Real processes on loopback; everything is measured at the client.\n\n\
         service  {} ms of CPU a request: {:.0} requests a second\n\
         places   {}\n\
         callers  come at random, give up after {} ms\n\
         mix      {critical_plus} CRITICAL_PLUS (C+), {critical} CRITICAL (C),\n         \
                  {sheddable_plus} SHEDDABLE_PLUS (S+), {sheddable} SHEDDABLE (S)\n",
        paint.heading("The same surge, bare and behind tidegate"),
        report.work_ms,
        report.capacity_rps,
        wrapped(&report.places, 71, "\n         "),
        report.deadline_ms,
    );
    for notice in &report.notices {
        let _ = writeln!(text, "note     {}", wrapped(notice, 71, "\n         "));
    }
    text
}

/// Words in lines of at most `width`, joined by `between`.
fn wrapped(words: &str, width: usize, between: &str) -> String {
    let mut lines: Vec<String> = Vec::new();
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(between)
}

fn table(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    for head in HEADS {
        line(&mut text, &paint.heading(head));
    }
    for phase in &PHASES {
        let find = |side: &'_ SideReport| {
            side.phases.iter().find(|found| found.name == phase.name).cloned()
        };
        let sides = Side::ALL.map(|side| (side, find(report.side(side))));
        let Some(first) = sides.iter().find_map(|(_, found)| found.as_ref()) else { continue };
        let mut title = format!("{}, {:.0} a second", phase.name, first.all.offered_rps);
        if phase.retries {
            title.push_str(", naive retries");
        }
        if sides.iter().any(|(_, found)| found.as_ref().is_some_and(|found| !found.complete)) {
            title.push_str(", cut short");
        }
        if first.changed {
            title.push_str(", changed by keys");
        }
        line(&mut text, &paint.heading(&title));
        for (side, found) in &sides {
            if let Some(found) = found {
                rows(&mut text, *side, found, report.capacity_rps, paint);
            }
        }
    }
    text
}

/// A side in a phase: all requests, or where there is a bad customer, the others and it.
fn rows(text: &mut String, side: Side, phase: &PhaseReport, capacity: f64, paint: Paint) {
    let (Some(others), Some(bad)) = (&phase.others, &phase.bad_customer) else {
        return line(text, &row(side, side.name(), &phase.all, capacity, paint));
    };
    line(text, &row(side, side.name(), others, capacity, paint));
    line(text, &row(side, "  the bad one", bad, capacity, paint));
}

fn row(side: Side, name: &str, figures: &Figures, capacity: f64, paint: Paint) -> String {
    let name = paint.side(side, &format!("{name:<13}"));
    let millis = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
    let mut row = format!(
        "  {name}{:>7}{:>7}{:>7}   ",
        percent(figures.goodput_rps / capacity),
        millis(figures.p50_ms),
        millis(figures.p99_ms),
    );
    for share in figures.success.descending() {
        let share = share.map_or("-".to_owned(), |share| format!("{:.0}", share * 100.0));
        let _ = write!(row, "{share:>5}");
    }
    let _ = write!(row, "{:>11.2}{:>10}", figures.amplification, figures.refused);
    row
}

fn sparklines(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    line(&mut text, &paint.heading("Goodput over time, from nothing to all that it can do"));
    for side in Side::ALL {
        let name = side.name();
        let sparks: Vec<String> =
            (0..PHASES.len()).map(|phase| spark(report, report.side(side), phase)).collect();
        line(&mut text, &format!("  {name:<9}│{}│", paint.side(side, &sparks.join("│"))));
    }
    let titles = PHASES.iter().map(|phase| format!("{:<SPARKS$}", phase.name));
    line(&mut text, &format!("            {}", titles.collect::<Vec<_>>().join(" ")));
    text
}

fn spark(report: &Report, side: &SideReport, phase: usize) -> String {
    let Some(found) = side.phase(phase) else { return " ".repeat(SPARKS) };
    let top = (BLOCKS.len() - 1) as f64;
    let shares = side.stretches(found, SPARKS);
    let block =
        |rate: f64| BLOCKS[(rate / report.capacity_rps * top).round().clamp(0.0, top) as usize];
    shares.into_iter().map(block).collect()
}

fn findings(report: &Report, paint: Paint) -> String {
    let mut text = String::new();
    line(&mut text, &paint.heading("At 10x"));
    for side in Side::ALL {
        let Some(worst) = report.side(side).phase(WORST) else { continue };
        let goodput = percent(worst.all.goodput_rps / report.capacity_rps);
        let plus = worst.all.success.critical_plus.map_or("-".to_owned(), percent);
        let name = paint.side(side, &format!("{:<9}", side.name()));
        let words = format!("goodput {goodput} % of capacity, CRITICAL_PLUS success {plus} %");
        line(&mut text, &format!("  {name}  {words}"));
    }
    line(&mut text, &paint.heading("After the surge"));
    for side in Side::ALL {
        let Some(watched) = report.recovery_watched(side) else { continue };
        let name = paint.side(side, &format!("{:<9}", side.name()));
        let words = match report.recovery(side) {
            Some(seconds) => format!("well again after {seconds:.1} s"),
            None => format!("not well again in the {watched:.1} s that it was watched"),
        };
        line(&mut text, &format!("  {name}  {words}"));
    }
    line(&mut text, "  (well: of what ends in a second, 95 % is OK and in time, which is at least");
    line(&mut text, "   80 % of what is asked in it)");
    let limits = limits(report);
    if !limits.is_empty() {
        line(&mut text, &paint.heading("Limits that show here"));
        for limit in limits {
            line(&mut text, &format!("  {}", wrapped(&limit, 76, "\n    ")));
        }
    }
    text
}

/// What the figures of the protected side show that one might wish were better, and what to doubt.
fn limits(report: &Report) -> Vec<String> {
    let side = &report.protected;
    let mut limits = Vec::new();
    for phase in side.phases.iter().filter(|phase| phase.load < 1.0) {
        let (figures, what) = match &phase.others {
            Some(others) => (others, " of others"),
            None => (&phase.all, ""),
        };
        if figures.refused > 0 {
            let (name, count) = (phase.name, figures.refused);
            let s = if count == 1 { "" } else { "s" };
            limits.push(format!("{name}: refused {count} attempt{s}{what} that would have fitted"));
        }
    }
    if let Some(worst) = side.phase(WORST) {
        let plus = worst.all.success.critical_plus.unwrap_or(1.0);
        let demand = worst.load * report.mix.critical_plus.unwrap_or_default();
        if plus < 0.995 {
            let lost = percent(1.0 - plus);
            let attempts = worst.all.offered_rps * worst.all.amplification / report.capacity_rps;
            limits.push(format!(
                "{}: lost {lost} % of CRITICAL_PLUS, which alone asks for {:.0} % of capacity, \
                 while attempts came at {attempts:.0}x",
                worst.name,
                demand * 100.0
            ));
        }
        let calm = side.phase(0).and_then(|calm| calm.all.p99_ms);
        if let (Some(calm), Some(worst_ms)) = (calm, worst.all.p99_ms) {
            let times = worst_ms / calm;
            limits.push(format!("{}: p99 is {times:.1} times that of the calm", worst.name));
        }
    }
    for side in Side::ALL {
        let report = report.side(side);
        let late = report.generator_late_p99_ms.unwrap_or_default();
        if late > 5.0 {
            let name = side.name();
            limits.push(format!(
                "{name}: the load generator was {late:.0} ms late at times: others use its CPU"
            ));
        }
        let not_sent: u64 = report.phases.iter().map(|phase| phase.all.not_sent).sum();
        if not_sent > 0 {
            let name = side.name();
            limits.push(format!(
                "{name}: {not_sent} requests found none of a thousand connections free"
            ));
        }
    }
    limits
}

fn closing(report: &Report, seconds: u32) -> String {
    let mut text = String::new();
    if let Some(path) = &report.report {
        let _ = writeln!(text, "Plots: {path}");
    }
    if report.interrupted {
        text.push_str("It was ended before its time: figures are of what came until then.\n");
    }
    let _ = writeln!(
        text,
        "Seed {}. The same arrivals again:\n  cargo run --release -- demo --seed {} --seconds {}",
        report.seed, report.seed, seconds
    );
    text
}

/// Percent with a decimal, except where all or nothing is meant exactly.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    if share == 0.0 || share == 1.0 { format!("{percent:.0}") } else { format!("{percent:.1}") }
}

fn line(text: &mut String, words: &str) {
    text.push_str(words.trim_end());
    text.push('\n');
}

const _: () = assert!(RECOVERY + 1 == PHASES.len(), "the recovery is the last phase");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_fits_into_80_columns() {
        let mut report = Report::example();
        report.report = Some("/tmp/a/page.html".to_owned());
        let text = verdict(&report, 3_600, false);
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{line}");
        }
        for words in ["not well again in the", "well again after 0.0 s", "/tmp/a/page.html"] {
            assert!(text.contains(words), "{words} in\n{text}");
        }
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let report = Report::example();
        let coloured = verdict(&report, 60, true);
        assert!(coloured.contains("\u{1b}[31m"));
        let bleached = ["1", "31", "32", "0"]
            .iter()
            .fold(coloured, |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
        assert_eq!(bleached, verdict(&report, 60, false));
    }

    #[test]
    fn only_all_and_nothing_are_without_a_decimal() {
        let table = [(0.0, "0"), (1.0, "100"), (0.9999, "100.0"), (0.0004, "0.0"), (0.868, "86.8")];
        for (share, expected) in table {
            assert_eq!(percent(share), expected);
        }
    }

    #[test]
    fn an_interruption_says_what_is_left() {
        let mut report = Report::example();
        assert!(interrupted(&report, 2).contains("its 2 services are ended"));
        assert!(interrupted(&report, 0).contains("no report was written"));
        report.report = Some("here.html".to_owned());
        assert!(interrupted(&report, 1).contains("here.html"));
    }
}
