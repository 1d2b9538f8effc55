//! The verdict for people: the story, curves, checks. Everything fits into 80 columns.

use super::compare;
use super::jobs::Told;
use super::spark;
use std::fmt::Write as _;
use tidegate_sim::scenario::{Judged, written};

const WIDTH: usize = 80;

/// How to set words off from each other.
#[derive(Debug, Clone, Copy)]
pub(super) struct Paint {
    colours: bool,
}

impl Paint {
    fn with(self, code: &str, words: &str) -> String {
        if self.colours { format!("\u{1b}[{code}m{words}\u{1b}[0m") } else { words.to_owned() }
    }

    pub(super) fn heading(self, words: &str) -> String {
        self.with("1", words)
    }

    fn verdict(self, passed: bool) -> String {
        if passed { self.with("32", "PASS") } else { self.with("31", "FAIL") }
    }
}

/// All scenarios, one after the other, and a table if there are several.
pub(super) fn verdicts(
    told: &[Told<'_>],
    compared: Option<&(String, String)>,
    colours: bool,
) -> String {
    let paint = Paint { colours };
    let mut text = String::new();
    for told in told {
        introduction(&mut text, told, paint);
        match compared {
            Some((a, b)) => compare::table(&mut text, told, (a, b), paint),
            None => curves(&mut text, told, paint),
        }
        checks(&mut text, told, paint);
        text.push('\n');
    }
    if told.len() > 1 {
        summary(&mut text, told, paint);
    }
    total(&mut text, told);
    text
}

fn introduction(text: &mut String, told: &Told<'_>, paint: Paint) {
    let lasts = told.scenario.lasts.as_secs();
    let name = paint.heading(&told.scenario.name);
    let seeds = match told.verdicts.len() as u64 {
        1 => format!("seed {}", told.seed),
        count => format!("seeds {} to {}", told.seed, told.seed.wrapping_add(count - 1)),
    };
    line(text, &format!("{name}: {}, {seeds}, {lasts} s of virtual time", told.file));
    for row in wrapped(&told.scenario.story, WIDTH - 2) {
        line(text, &format!("  {row}"));
    }
    text.push('\n');
}

fn curves(text: &mut String, told: &Told<'_>, paint: Paint) {
    for (variant, curves) in told.scenario.variants.iter().zip(spark::lines(told)) {
        line(text, &format!("  {}", paint.heading(&variant.name)));
        for (name, curve, scale) in curves {
            line(text, &format!("    {name:<8} │{curve}│ {scale}"));
        }
    }
    let marks = spark::marks(&told.scenario.windows, told.scenario.lasts);
    if !marks.trim().is_empty() {
        line(text, &format!("              {marks}"));
    }
    text.push('\n');
}

fn checks(text: &mut String, told: &Told<'_>, paint: Paint) {
    let many = told.verdicts.len() > 1;
    for (index, judged) in told.checks().iter().enumerate() {
        if many {
            swept(text, told, index, paint);
        } else {
            let word = paint.verdict(judged.passed);
            let figure = judged.measured_text();
            check(text, &word, &format!("{figure:>9}  {:<9}", judged.bounds()), &judged.what);
        }
    }
}

/// A check over several seeds: how many passed, and from where to where it went.
fn swept(text: &mut String, told: &Told<'_>, index: usize, paint: Paint) {
    let judged: &Judged = &told.checks()[index];
    let spread = told.spread(index);
    let passed = spread.seeds - spread.failed_seeds.len();
    let word = paint.verdict(spread.failed_seeds.is_empty());
    let passed = format!("{passed} of {}", spread.seeds);
    let figures = format!("{passed:>9}  {:<9}", judged.bounds());
    check(text, &word, &figures, &judged.what);
    let value = |value: Option<f64>| {
        value.map_or_else(|| "nothing".to_owned(), |value| written(value, judged.unit))
    };
    let [min, median, max] = [spread.min, spread.median, spread.max].map(value);
    line(text, &format!("          from {min} to {max}, median {median}"));
    if !spread.failed_seeds.is_empty() {
        // Enough to try again with.
        let seeds: Vec<String> = spread.failed_seeds.iter().take(8).map(u64::to_string).collect();
        line(text, &format!("          failed with --seed {}", seeds.join(", ")));
    }
}

/// One line if it fits, else as many as it takes.
fn check(text: &mut String, word: &str, figures: &str, what: &str) {
    let indent = 2 + 4 + 2 + figures.chars().count() + 2;
    let room = WIDTH.saturating_sub(indent);
    if what.chars().count() <= room {
        return line(text, &format!("  {word}  {figures}  {what}"));
    }
    line(text, &format!("  {word}  {figures}"));
    for row in wrapped(what, WIDTH - 10) {
        line(text, &format!("          {row}"));
    }
}

fn summary(text: &mut String, told: &[Told<'_>], paint: Paint) {
    let longest = told.iter().map(|t| t.scenario.name.chars().count()).max().unwrap_or_default();
    for told in told {
        let (passed, all) = counts(told);
        let word = paint.verdict(told.passed());
        let name = &told.scenario.name;
        line(text, &format!("  {word}  {name:<longest$}  {passed} of {all} checks"));
    }
    text.push('\n');
}

/// Checks that passed with every seed, and all of them.
fn counts(told: &Told<'_>) -> (usize, usize) {
    let all = told.checks().len();
    let passed = (0..all).filter(|&check| told.spread(check).failed_seeds.is_empty()).count();
    (passed, all)
}

fn total(text: &mut String, told: &[Told<'_>]) {
    let (passed, all) =
        told.iter().map(counts).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    let scenarios =
        if told.len() == 1 { "1 scenario".to_owned() } else { format!("{} scenarios", told.len()) };
    let failed = all - passed;
    line(text, &format!("{scenarios}, {all} checks: {passed} passed, {failed} failed"));
}

/// `words` in rows of at most `width`.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    let mut rows: Vec<String> = Vec::new();
    for word in words.split_whitespace() {
        match rows.last_mut() {
            Some(row) if row.chars().count() + 1 + word.chars().count() <= width => {
                let _ = write!(row, " {word}");
            }
            _ => rows.push(word.to_owned()),
        }
    }
    rows
}

pub(super) fn line(text: &mut String, words: &str) {
    text.push_str(words.trim_end());
    text.push('\n');
}
