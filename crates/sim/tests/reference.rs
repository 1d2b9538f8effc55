//! `docs/scenarios.md` has a row for every key and measure, and none for what does not exist; the
//! file that it shows runs.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidegate_sim::scenario::{KEYS, MEASURES, Scenario};

fn reference() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/scenarios.md");
    std::fs::read_to_string(path).unwrap()
}

/// The names in the first column of every table, by what stands over it.
fn tables(text: &str) -> BTreeMap<&str, BTreeSet<&str>> {
    let mut tables: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    let mut head = "";
    for (line, next) in text.lines().zip(text.lines().skip(1).chain([""])) {
        let first = line.split('|').nth(1).unwrap_or_default().trim();
        if next.starts_with("|---") {
            head = first;
        } else if line.starts_with('|') && !line.starts_with("|---") {
            let names = first.split('`').skip(1).step_by(2);
            tables.entry(head).or_default().extend(names);
        }
    }
    tables
}

#[test]
fn every_key_and_measure_has_its_row_and_no_row_has_lost_its_key() {
    let text = reference();
    let mut documented = tables(&text);
    documented.remove("value");
    let mut known: BTreeMap<String, BTreeSet<&str>> =
        KEYS.iter().map(|keys| (format!("key of {}", keys.of), set(keys.names))).collect();
    known.insert("measure".to_owned(), MEASURES.iter().map(|measure| measure.name).collect());
    for (head, names) in &known {
        assert_eq!(documented.remove(head.as_str()).as_ref(), Some(names), "table `{head}`");
    }
    assert!(documented.is_empty(), "tables of what nobody can set: {documented:?}");
}

fn set(names: &'static [&'static str]) -> BTreeSet<&'static str> {
    names.iter().copied().collect()
}

#[test]
fn the_file_that_is_shown_runs_and_passes() {
    let text = reference();
    let file = text.split("```yaml\n").nth(1).unwrap().split("```").next().unwrap();
    let scenario = Scenario::parse("docs/scenarios.md", file).unwrap();
    for judged in scenario.verdict(scenario.seed) {
        assert!(judged.passed, "{}", judged.line());
    }
}
