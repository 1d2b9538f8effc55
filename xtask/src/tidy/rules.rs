//! The rules, each with its reason. To add one, write a function and name it in [`RULES`].

use super::code::{code_only, is_word};
use std::fmt;

/// Long enough for a table of formulas, short enough for two windows side by side.
const COLUMNS_MAX: usize = 100;

/// A module past this has a second idea inside. Tests in a file of their own may be longer.
const LINES_MAX: usize = 700;

/// Files in which `unsafe` is allowed. The workspace forbids it, so whoever adds one has to allow
/// it twice, and say at each block why it is sound.
const UNSAFE_ALLOWED: &[&str] = &[
    "crates/meter/src/current.rs",
    "crates/meter/src/lend.rs",
    "crates/meter/src/sys/rseq.rs",
    "crates/meter/src/sys/rseq/tests.rs",
    "crates/meter/src/sys/tsc.rs",
];

/// The one manifest with lints of its own: what the workspace forbids (`unsafe`) no crate can allow
/// while it inherits, so the crate with the files above repeats the workspace's lints with that one
/// denied instead.
const OWN_LINTS: &str = "crates/meter/Cargo.toml";

/// Where gates live, and the one file of it that may name atomics and locks by their true names.
const CORE: &str = "crates/core/src/";
const CORE_SYNC: &str = "crates/core/src/sync.rs";

/// A file to be checked.
pub(super) struct Source<'a> {
    path: &'a str,
    text: &'a str,
    /// For Rust: the text without comments and literals, line by line. Empty for other files.
    code: String,
}

impl<'a> Source<'a> {
    pub(super) fn new(path: &'a str, text: &'a str) -> Self {
        let code = if is_rust(path) { code_only(text) } else { String::new() };
        Self { path, text, code }
    }

    fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or(self.path)
    }

    fn extension(&self) -> &str {
        self.file_name().rsplit_once('.').map_or("", |(_, extension)| extension)
    }

    /// Written by a program, for programs.
    fn is_generated(&self) -> bool {
        self.path.split('/').any(|part| part == "generated")
    }

    fn is_written_rust(&self) -> bool {
        is_rust(self.path) && !self.is_generated()
    }
}

fn is_rust(path: &str) -> bool {
    path.rsplit_once('.').is_some_and(|(_, extension)| extension == "rs")
}

/// A line that breaks a rule.
#[derive(Debug)]
pub(super) struct Finding {
    path: String,
    /// From 1.
    line: usize,
    rule: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

/// One rule: what to say, and the lines (from 1) that break it.
pub(super) struct Rule {
    say: &'static str,
    broken: fn(&Source<'_>) -> Vec<usize>,
}

impl Rule {
    pub(super) fn check(&self, source: &Source<'_>) -> Vec<Finding> {
        let lines = (self.broken)(source).into_iter();
        let finding = |line| Finding { path: source.path.to_owned(), line, rule: self.say };
        lines.map(finding).collect()
    }
}

pub(super) const RULES: &[Rule] = &[
    Rule { say: "more than 100 columns", broken: long_lines },
    Rule { say: "more than 700 lines: look for the second idea", broken: long_file },
    Rule { say: "a tab character", broken: tabs },
    Rule { say: "unfinished: do it, or leave it out", broken: unfinished },
    Rule { say: "a test that does not run", broken: ignored_tests },
    Rule {
        say: "unsafe code outside the files named in xtask/src/tidy/rules.rs",
        broken: unsafety,
    },
    Rule {
        say: "gates take atomics and locks from crate::sync, where loom can exchange them",
        broken: foreign_sync,
    },
    Rule { say: "a manifest without `[lints] workspace = true`", broken: no_lints },
    Rule { say: "a path that exists on one machine only", broken: machine_paths },
];

fn lines_where(text: &str, broken: impl Fn(&str) -> bool) -> Vec<usize> {
    let numbered = text.lines().zip(1..);
    numbered.filter(|(line, _)| broken(line)).map(|(_, number)| number).collect()
}

fn long_lines(source: &Source<'_>) -> Vec<usize> {
    if !source.is_written_rust() {
        return Vec::new();
    }
    lines_where(source.text, |line| {
        line.chars().count() > COLUMNS_MAX && !line.contains("://") && !is_table_row(line)
    })
}

/// Rows of numbers and rows of a table in a comment cannot be broken without harm.
fn is_table_row(line: &str) -> bool {
    let line = line.trim_start();
    let comment = ["//! ", "/// ", "// "].iter().find_map(|marker| line.strip_prefix(marker));
    comment.is_some_and(|words| words.starts_with('|'))
        || line.chars().all(|c| c.is_ascii_hexdigit() || "x_,.-+()[]{} ".contains(c))
}

fn long_file(source: &Source<'_>) -> Vec<usize> {
    let lines = source.text.lines().count();
    let counts = source.is_written_rust() && source.file_name() != "tests.rs";
    if counts && lines > LINES_MAX { vec![lines] } else { Vec::new() }
}

fn tabs(source: &Source<'_>) -> Vec<usize> {
    let by_hand = ["css", "html", "js", "json", "md", "rs", "sh", "toml", "yaml", "yml"];
    if source.is_generated() || !by_hand.contains(&source.extension()) {
        return Vec::new();
    }
    lines_where(source.text, |line| line.contains('\t'))
}

fn unfinished(source: &Source<'_>) -> Vec<usize> {
    // In two pieces, lest this file break its own rule.
    let marks = [concat!("FIX", "ME"), concat!("X", "XX")];
    if !source.is_written_rust() {
        return Vec::new();
    }
    let macros = ["todo!", "unimplemented!"];
    let any = |line: &str, words: [&str; 2]| words.iter().any(|word| has_word(line, word));
    let mut lines = lines_where(source.text, |line| any(line, marks));
    lines.extend(lines_where(&source.code, |line| any(line, macros)));
    lines
}

fn ignored_tests(source: &Source<'_>) -> Vec<usize> {
    lines_where(&source.code, |line| {
        line.contains("#[ignore") || (line.contains("cfg_attr") && has_word(line, "ignore"))
    })
}

fn unsafety(source: &Source<'_>) -> Vec<usize> {
    if UNSAFE_ALLOWED.contains(&source.path) {
        return Vec::new();
    }
    lines_where(&source.code, |line| has_word(line, "unsafe"))
}

/// An atomic that loom does not know is one whose interleavings nobody visits.
fn foreign_sync(source: &Source<'_>) -> Vec<usize> {
    if !source.path.starts_with(CORE) || source.path == CORE_SYNC {
        return Vec::new();
    }
    let locks = ["Mutex", "RwLock", "Condvar", "Barrier", "Once", "OnceLock", "mpsc"];
    lines_where(&source.code, |line| {
        let atomic = line.contains("sync::atomic");
        let std = line.contains("std::sync");
        atomic || has_word(line, "loom") || (std && locks.iter().any(|lock| has_word(line, lock)))
    })
}

/// Lints of the workspace count only where a crate asks for them.
fn no_lints(source: &Source<'_>) -> Vec<usize> {
    let lines = || source.text.lines().map(str::trim);
    if source.file_name() != "Cargo.toml" || !lines().any(|line| line == "[package]") {
        return Vec::new();
    }
    if source.path == OWN_LINTS && lines().any(|line| line == "unsafe_code = \"deny\"") {
        return Vec::new();
    }
    let inherits = lines()
        .skip_while(|line| *line != "[lints]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .any(|line| line.replace(' ', "") == "workspace=true");
    if inherits { Vec::new() } else { vec![1] }
}

fn machine_paths(source: &Source<'_>) -> Vec<usize> {
    let roots = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];
    // Behind a name it is the end of a longer path, such as that of a URL.
    let begins = |before: &str| {
        before.chars().next_back().is_none_or(|c| !is_word(c) && !".-*}>)".contains(c))
    };
    lines_where(source.text, |line| {
        roots.iter().any(|root| line.match_indices(root).any(|(at, _)| begins(&line[..at])))
    })
}

fn has_word(line: &str, word: &str) -> bool {
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_word) && !line[at + word.len()..].starts_with(is_word)
    })
}

#[cfg(test)]
mod tests;
