//! Where the output goes, whatever the command: `main` prints for all of them.

#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A story of a second, so that its output is all that matters.
const STORY: &str = "\
name: short
story: A service is asked for half of what it can do.
lasts: 1s
services: { api: { tasks: 1, work: 5ms } }
clients: { web: { service: api, load: 0.5 } }
checks: [{ success: web, at_least: 100% }]
";

fn run(arguments: &[&str], to: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(to).spawn().unwrap().wait_with_output().unwrap()
}

/// Commands that print: one a file that was made beforehand, the others what has just run.
fn commands() -> Vec<Vec<String>> {
    let story = Path::new(env!("CARGO_TARGET_TMPDIR")).join("output.yaml");
    std::fs::write(&story, STORY).unwrap();
    let story = story.to_str().unwrap().to_owned();
    let command = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect();
    vec![
        command(&["dashboards", "export"]),
        command(&["sim", &story]),
        command(&["sim", &story, "--seeds", "3"]),
        command(&["sim", &story, "--json"]),
    ]
}

/// Every command with its output gone to `to`.
fn each(to: impl Fn() -> Stdio) -> Vec<(String, Output)> {
    let output = |words: Vec<String>| {
        let arguments: Vec<&str> = words.iter().map(String::as_str).collect();
        (words.join(" "), run(&arguments, to()))
    };
    commands().into_iter().map(output).collect()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_reader_who_left_is_no_failure() {
    let gone = || {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        writer.into()
    };
    for (command, output) in each(gone) {
        assert!(output.status.success(), "{command}: {}", stderr(&output));
        assert_eq!(stderr(&output), "", "{command}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure_that_says_so() {
    let full = || std::fs::File::create("/dev/full").unwrap().into();
    for (command, output) in each(full) {
        assert_eq!(output.status.code(), Some(1), "{command}");
        let text = stderr(&output);
        assert!(text.contains("could not write the output"), "{command}: {text}");
        assert!(text.contains("\n  why:  ") && text.contains("\n  next: "), "{command}: {text}");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_report_that_finds_the_disk_full_says_which() {
    let commands = commands();
    let output = run(&["sim", &commands[1][1], "--report", "/dev/full"], Stdio::piped());
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("could not write the report to /dev/full"), "{text}");
    assert!(text.contains("\n  why:  ") && text.contains("\n  next: "), "{text}");
}

/// What a reader has seen of it does not change what it says of the checks.
#[test]
fn a_check_that_fails_is_told_by_the_exit_code_though_nobody_reads() {
    let story = Path::new(env!("CARGO_TARGET_TMPDIR")).join("output_fails.yaml");
    std::fs::write(&story, STORY.replace("at_least: 100%", "at_most: 1%")).unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = run(&["sim", story.to_str().unwrap()], writer);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
}
