//! The report for people: a table, goodput over time, and what to make of it.
//!
//! Everything fits into 80 columns, so that no width has to be asked for.

use super::report::{PhaseReport, Report, Side};
use std::fmt::Write as _;

/// Characters of goodput for each phase.
const SPARKS: usize = 16;
/// From nothing to all that the machine can do.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// Over the columns of [`row`].
const HEADS: [&str; 2] = [
    "              goodput     p50     p99       C+     C    S+     S    refused",
    "                    %      ms      ms      answered in time, %",
];

/// How to set words off from each other.
#[derive(Debug, Clone, Copy)]
pub(super) enum Style {
    /// Words alone.
    Plain,
    /// With the escape codes of terminals.
    Coloured,
}

impl Style {
    /// The style for a terminal that shows `colours`, or for something else.
    pub(super) const fn of_terminal(colours: bool) -> Self {
        if colours { Self::Coloured } else { Self::Plain }
    }

    fn paint(self, code: &str, words: &str) -> String {
        match self {
            Self::Plain => words.to_owned(),
            Self::Coloured => format!("\u{1b}[{code}m{words}\u{1b}[0m"),
        }
    }

    fn heading(self, words: &str) -> String {
        self.paint("1", words)
    }

    fn side(self, name: &str, words: &str) -> String {
        self.paint(if name == "bare" { "31" } else { "32" }, words)
    }
}

/// All of it.
pub(super) fn text(report: &Report, style: Style) -> String {
    let parts = [
        introduction(report, style),
        table(report, style),
        sparklines(report, style),
        verdict(report, style),
        again(report),
    ];
    parts.join("\n")
}

fn introduction(report: &Report, style: Style) -> String {
    let machine = &report.machine;
    let [critical_plus, critical, sheddable_plus, sheddable] =
        report.mix.descending().map(|share| format!("{:.0} %", share * 100.0));
    format!(
        "{}\n\
         Virtual time: the decisions are tidegate-core's own, the machine is simulated.\n\n\
         machine  {} core, {} ms a request: {} req/s; refusing one takes {} µs;\n         \
                  one queue, in order of arrival, without a limit\n\
         callers  come at random, give up after {} ms, do not retry\n\
         mix      {critical_plus} CRITICAL_PLUS (C+), {critical} CRITICAL (C),\n         \
                  {sheddable_plus} SHEDDABLE_PLUS (S+), {sheddable} SHEDDABLE (S)\n",
        style.heading("The same surge, bare and behind tidegate"),
        machine.cores,
        machine.work_ms,
        machine.capacity_per_second,
        machine.refusal_us,
        machine.patience_ms,
    )
}

fn table(report: &Report, style: Style) -> String {
    let mut text = String::new();
    for head in HEADS {
        line(&mut text, &style.heading(head));
    }
    let [bare, tidegate] = [&report.sides.bare, &report.sides.tidegate].map(|side| &side.phases);
    for (bare, tidegate) in bare.iter().zip(tidegate) {
        let offered = format!("{:.0} req/s", bare.offered_per_second);
        line(&mut text, &format!("{}, {}", style.heading(&title(bare)), offered));
        for (name, phase) in [("bare", bare), ("tidegate", tidegate)] {
            line(&mut text, &row(name, phase, style));
        }
    }
    text
}

fn title(phase: &PhaseReport) -> String {
    format!("{} {}x", phase.name, phase.load)
}

fn row(name: &str, phase: &PhaseReport, style: Style) -> String {
    let name = style.side(name, &format!("{name:<8}"));
    let millis = |ms: Option<f64>| ms.map_or("-".to_owned(), |ms| format!("{ms:.0}"));
    let mut row = format!(
        "  {name}  {:>9}{:>8}{:>8}   ",
        percent(phase.goodput),
        millis(phase.p50_ms),
        millis(phase.p99_ms),
    );
    for share in phase.success.descending() {
        let _ = write!(row, "{:>6}", percent(share));
    }
    let _ = write!(row, "{:>11}", phase.refused);
    row
}

fn sparklines(report: &Report, style: Style) -> String {
    let mut text = String::new();
    line(
        &mut text,
        &style.heading("Goodput over time, from nothing to all that the machine can do"),
    );
    for (name, side) in report.sides.named() {
        let sparks: Vec<String> = side.phases.iter().map(spark).collect();
        let sparks = style.side(name, &sparks.join("│"));
        line(&mut text, &format!("  {name:<8}│{sparks}│"));
    }
    let titles = report.sides.bare.phases.iter().map(|phase| format!("{:<16}", title(phase)));
    line(&mut text, &format!("           {}", titles.collect::<Vec<_>>().join(" ")));
    text
}

fn spark(phase: &PhaseReport) -> String {
    let top = (BLOCKS.len() - 1) as f64;
    let block = |share: f64| BLOCKS[(share * top).round().clamp(0.0, top) as usize];
    phase.stretches(SPARKS).into_iter().map(block).collect()
}

fn verdict(report: &Report, style: Style) -> String {
    let mut text = String::new();
    line(&mut text, &style.heading(&format!("At {}x", report.sides.bare.worst().load)));
    for (name, side) in report.sides.named() {
        let (goodput, success) = (side.worst().goodput, side.worst().success.critical_plus);
        let name = style.side(name, &format!("{name:<8}"));
        let (goodput, success) = (percent(goodput), percent(success));
        let words =
            format!("goodput {goodput} % of capacity, success of CRITICAL_PLUS {success} %");
        line(&mut text, &format!("  {name}  {words}"));
    }
    line(&mut text, &style.heading("After the surge"));
    for (name, side) in report.sides.named() {
        let name = style.side(name, &format!("{name:<8}"));
        line(&mut text, &format!("  {name}  {}", calm(side)));
    }
    line(&mut text, "  (calm: of the requests of a second, 99 % are answered in time)");
    line(&mut text, &style.heading("Limits that show here"));
    for limit in limits(report) {
        line(&mut text, &format!("  {limit}"));
    }
    text
}

fn calm(side: &Side) -> String {
    match side.calm_after_seconds {
        Some(seconds) => format!("calm again after {seconds:.1} s"),
        None => format!("not calm again within {:.0} s", side.watched_seconds),
    }
}

/// What the figures of the protected side show that one might wish were better.
fn limits(report: &Report) -> Vec<String> {
    let side = &report.sides.tidegate;
    let mut limits = Vec::new();
    for phase in &side.phases {
        let title = title(phase);
        let demand = phase.load * report.mix.critical_plus;
        let lost = 1.0 - phase.success.critical_plus;
        if phase.load < 1.0 && phase.refused > 0 {
            let (refused, offered) = (phase.refused, phase.offered);
            limits
                .push(format!("{title}: refused {refused} of {offered} that it could have served"));
        }
        if phase.load > 1.0 && demand <= 1.0 && lost > 0.0 {
            let (demand, lost) = (demand * 100.0, percent(lost));
            let busy = phase.refused * report.machine.refusal_us;
            let busy = percent(busy as f64 / 1e6 / report.seconds as f64);
            limits.push(format!("{title}: lost {lost} % of CRITICAL_PLUS, which alone asks for"));
            limits.push(format!("  {demand:.0} % of capacity, while refusing takes {busy} %"));
        }
    }
    if let (Some(calm), Some(worst)) = (side.phases[0].p99_ms, side.worst().p99_ms) {
        let (title, times) = (title(side.worst()), worst / calm);
        limits.push(format!("{title}: p99 is {times:.1} times that of the calm before"));
    }
    limits
}

fn again(report: &Report) -> String {
    format!(
        "Seed {}. The same again:\n  cargo run --release -- demo --seed {} --seconds {}\n",
        report.seed, report.seed, report.seconds
    )
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

#[cfg(test)]
mod tests {
    use super::super::scene;
    use super::*;

    #[test]
    fn every_line_fits_into_80_columns() {
        for (seed, seconds) in [(7, 2), (u64::MAX, 3)] {
            let report = scene::run(seed, seconds).unwrap();
            for line in text(&report, Style::Plain).lines() {
                assert!(line.chars().count() <= 80, "seed {seed}: {line}");
            }
        }
    }

    #[test]
    fn colours_change_nothing_but_colours() {
        let report = scene::run(7, 2).unwrap();
        let coloured = text(&report, Style::Coloured);
        assert!(coloured.contains("\u{1b}[31m"));
        let bleached = ["1", "31", "32", "0"]
            .iter()
            .fold(coloured, |text, code| text.replace(&format!("\u{1b}[{code}m"), ""));
        assert_eq!(bleached, text(&report, Style::Plain));
    }

    #[test]
    fn only_all_and_nothing_are_without_a_decimal() {
        let table = [(0.0, "0"), (1.0, "100"), (0.9999, "100.0"), (0.0004, "0.0"), (0.868, "86.8")];
        for (share, expected) in table {
            assert_eq!(percent(share), expected);
        }
    }
}
