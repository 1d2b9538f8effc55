//! The reference of configuration keys names all of them.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Structs that a user fills in, beside those whose name ends in `Config`.
const ALSO: [&str; 7] = [
    "AlgorithmDraft",
    "ConnectionLimits",
    "Draft",
    "IdlePolicy",
    "RetryPolicy",
    "Silence",
    "SlowStart",
];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else {
            found.push(path);
        }
    }
}

fn is_filled_in(name: &str) -> bool {
    name.ends_with("Config") || ALSO.contains(&name)
}

/// Every field of a struct that a user fills in, public or not, and every setter, as
/// `Struct::field`.
fn keys(source: &str) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    let mut current = None;
    for (line, next) in source.lines().zip(source.lines().skip(1).chain([""])) {
        let opened = ["pub struct ", "impl "].map(|start| line.strip_prefix(start));
        if let Some(name) = opened.into_iter().flatten().find_map(|l| l.strip_suffix(" {")) {
            current = Some(name).filter(|name| is_filled_in(name));
        } else if line == "}" {
            current = None;
        } else if let Some((name, line)) = current.zip(line.strip_prefix("    ")) {
            keys.extend(setter(line, next).or_else(|| field(line)).map(|f| format!("{name}::{f}")));
        }
    }
    keys
}

fn field(line: &str) -> Option<&str> {
    let name = line.split_once(": ")?.0.trim_start_matches("pub ");
    name.chars().all(|c| c.is_ascii_lowercase() || "_0123456789".contains(c)).then_some(name)
}

/// The name of a method that takes a configuration and gives it back changed.
fn setter<'a>(line: &'a str, next: &str) -> Option<&'a str> {
    let (name, arguments) = line.strip_prefix("pub ")?.split_once('(')?;
    let first = if arguments.is_empty() { next.trim_start() } else { arguments };
    let name = name.trim_start_matches("const ").strip_prefix("fn ")?;
    first.starts_with("mut self").then(|| name.trim_start_matches("with_"))
}

/// What the tables name: `Struct::field`, or `field` in a table whose head names the struct.
fn documented(reference: &str) -> BTreeSet<String> {
    let mut documented = BTreeSet::new();
    let mut head = "";
    for (line, next) in reference.lines().zip(reference.lines().skip(1)) {
        let first = line.split('|').nth(1).unwrap_or_default();
        let names = first.split('`').skip(1).step_by(2);
        if next.starts_with("|---") {
            head = names.last().unwrap_or_default();
        } else if line.starts_with('|') {
            documented.extend(names.map(|name| {
                if name.contains("::") { name.to_owned() } else { format!("{head}::{name}") }
            }));
        }
    }
    documented
}

#[test]
fn fields_and_setters_are_keys() {
    let source = "\
/// Says: nothing.
pub struct TideConfig {
    /// Default: 1.
    pub public: u32,
    private: u32,
}

impl TideConfig {
    pub fn public(mut self, value: u32) -> Self {
        self
    }

    pub const fn with_setter_alone(
        mut self,
        value: Duration,
    ) -> Self {
        self
    }

    pub fn reader(&self, other: u32) -> u32 {
    }
}

pub struct Tide {
    pub water: u32,
}
";
    let expected = ["private", "public", "setter_alone"].map(|key| format!("TideConfig::{key}"));
    assert_eq!(keys(source), expected.into());
}

#[test]
fn every_key_of_the_core_has_its_row_and_no_row_has_lost_its_key() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("crates/core/src"), &mut files);
    let keys: BTreeSet<String> =
        files.iter().flat_map(|file| keys(&std::fs::read_to_string(file).unwrap())).collect();
    assert!(keys.len() >= 70, "only {} keys found: has the layout changed?", keys.len());
    let reference = std::fs::read_to_string(root.join("docs/decisions.md")).unwrap();
    let documented = documented(&reference);
    let missing: Vec<_> = keys.difference(&documented).collect();
    assert!(missing.is_empty(), "docs/decisions.md has no row for {missing:?}");
    let gone: Vec<_> = documented
        .difference(&keys)
        .filter(|key| key.split_once("::").is_some_and(|(name, _)| is_filled_in(name)))
        .collect();
    assert!(gone.is_empty(), "docs/decisions.md has a row for {gone:?}, which nobody can set");
}
