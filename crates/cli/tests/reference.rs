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

/// Every field of a struct that a user fills in, as `Struct::field`.
fn keys(source: &str) -> Vec<String> {
    let mut keys = Vec::new();
    let mut current = None;
    for line in source.lines() {
        if let Some(name) = line.strip_prefix("pub struct ").and_then(|l| l.strip_suffix(" {")) {
            current = (name.ends_with("Config") || ALSO.contains(&name)).then_some(name);
        } else if line == "}" {
            current = None;
        } else if let (Some(name), Some((field, _))) =
            (current, line.strip_prefix("    ").and_then(|l| l.split_once(": ")))
            && !field.starts_with("//")
        {
            keys.push(format!("{name}::{}", field.trim_start_matches("pub ")));
        }
    }
    keys
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
fn every_key_of_the_core_has_its_row() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut files = Vec::new();
    sources(&root.join("crates/core/src"), &mut files);
    let keys: Vec<String> =
        files.iter().flat_map(|file| keys(&std::fs::read_to_string(file).unwrap())).collect();
    let reference = std::fs::read_to_string(root.join("docs/decisions.md")).unwrap();
    let documented = documented(&reference);
    let missing: Vec<_> = keys.iter().filter(|&key| !documented.contains(key)).collect();
    assert!(missing.is_empty(), "docs/decisions.md has no row for {missing:?}");
    assert!(keys.len() >= 70, "only {} keys found: has the layout changed?", keys.len());
}
