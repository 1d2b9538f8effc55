//! `tidegate demo` as a user runs it.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output};

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    tidegate(arguments).output().unwrap()
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

/// What a user sees. `UPDATE_GOLDEN=1` accepts a change; the README shows the same text.
#[test]
fn golden_table() {
    let output = run(&["demo", "--seed", "7"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/demo.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &output.stdout).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    assert_eq!(stdout(&output), golden, "UPDATE_GOLDEN=1 accepts the change");
    let readme = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md");
    let readme = std::fs::read_to_string(readme).unwrap();
    assert!(readme.contains(&golden), "README.md shows another run: paste {path} there");
}

#[test]
fn the_committed_chart_is_that_of_the_default_run() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let path = folder.join("chart.svg");
    let output = run(&["demo", "--svg", path.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/demo.svg");
    let drawn = std::fs::read_to_string(path).unwrap();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&committed, &drawn).unwrap();
    }
    assert_eq!(drawn, std::fs::read_to_string(committed).unwrap());
}

#[test]
fn the_same_seed_prints_the_same_bytes_and_another_seed_others() {
    for format in [&[][..], &["--json"]] {
        let run = |seed| {
            let arguments = [&["demo", "--seconds", "2", "--seed", seed], format].concat();
            run(&arguments).stdout
        };
        assert!(run("3") == run("3"));
        assert!(run("3") != run("4"));
    }
}

#[test]
fn text_for_a_file_has_no_escape_codes() {
    let output = run(&["demo", "--seconds", "2"]);
    assert!(output.status.success());
    assert!(!output.stdout.contains(&0x1b));
}

#[test]
fn json_is_one_object_with_a_report_for_each_side_and_phase() {
    let output = run(&["demo", "--seconds", "2", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["virtual_time"], true);
    assert_eq!(report["seed"], 7);
    assert_eq!(report["machine"]["capacity_per_second"], 200.0);
    for side in ["bare", "tidegate"] {
        let side = &report["sides"][side];
        assert!(side["calm_after_seconds"].is_number());
        let phases = side["phases"].as_array().unwrap();
        let loads: Vec<f64> = phases.iter().map(|phase| phase["load"].as_f64().unwrap()).collect();
        assert_eq!(loads, [0.7, 2.0, 10.0, 0.7]);
        for phase in phases {
            let number = |key: &str| phase[key].as_f64().unwrap_or_else(|| panic!("{key}"));
            assert!(number("goodput") <= 1.2);
            assert!(number("refused") + number("late") <= number("offered"));
            assert_eq!(number("offered_per_second"), number("offered") / 2.0);
            assert_eq!(phase["curve"].as_array().unwrap().len(), 20);
            for name in ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"] {
                let success = phase["success"][name].as_f64().unwrap();
                assert!((0.0..=1.0).contains(&success));
            }
        }
    }
}

/// What the demo is there to show, for other dice than those of the README, too.
#[test]
fn the_bare_side_collapses_and_the_other_holds() {
    for seed in ["1", "2", "3"] {
        let output = run(&["demo", "--seconds", "4", "--json", "--seed", seed]);
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let [bare, tidegate] = ["bare", "tidegate"].map(|side| &report["sides"][side]);
        let goodput = |side: &serde_json::Value| side["phases"][2]["goodput"].as_f64().unwrap();
        assert!(goodput(bare) < 0.05, "seed {seed}: {}", goodput(bare));
        assert!(goodput(tidegate) > 0.95, "seed {seed}: {}", goodput(tidegate));
        let calm = |side: &serde_json::Value| side["calm_after_seconds"].as_f64().unwrap();
        assert!(calm(bare) > 60.0, "seed {seed}: {}", calm(bare));
        assert!(calm(tidegate) <= 2.0, "seed {seed}: {}", calm(tidegate));
    }
}

#[test]
fn help_and_version_are_there() {
    let help = run(&["demo", "--help"]);
    assert!(help.status.success());
    for word in ["virtual time", "--seed", "--seconds", "--json", "--svg"] {
        assert!(stdout(&help).contains(word), "{word} in {}", stdout(&help));
    }
    let version = run(&["--version"]);
    assert_eq!(stdout(&version), concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn bad_arguments_are_named_and_exit_with_2() {
    let table: [(&[&str], &str); 6] = [
        (&[], "Usage"),
        (&["demonstrate"], "demonstrate"),
        (&["demo", "--seed", "dice"], "--seed"),
        (&["demo", "--seconds", "1"], "2..=600"),
        (&["demo", "--seconds", "601"], "2..=600"),
        (&["demo", "--width", "3"], "--width"),
    ];
    for (arguments, word) in table {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn a_chart_that_cannot_be_written_says_why_and_what_next() {
    let output = run(&["demo", "--seconds", "2", "--svg", "no/such/folder/chart.svg"]);
    assert_eq!(output.status.code(), Some(1));
    for word in ["no/such/folder/chart.svg", "why:", "next:", "folder that exists"] {
        assert!(stderr(&output).contains(word), "{word} in {}", stderr(&output));
    }
    assert!(output.stdout.is_empty());
}

#[test]
fn a_reader_who_left_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = tidegate(&["demo", "--seconds", "2"]);
    let output = command.stdout(writer).stderr(std::process::Stdio::piped()).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure_that_says_so() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = tidegate(&["demo", "--seconds", "2"]).stdout(full).output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("could not write the output"), "{}", stderr(&output));
}
