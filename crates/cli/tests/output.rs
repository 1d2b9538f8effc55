//! Where the output goes, whatever the command: `main` prints for all of them.

#![allow(clippy::unwrap_used)]

use std::process::{Command, Output, Stdio};

fn export(to: impl Into<Stdio>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(["dashboards", "export"]).stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(to).spawn().unwrap().wait_with_output().unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn a_reader_who_left_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = export(writer);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_a_failure_that_says_so() {
    let full = std::fs::File::create("/dev/full").unwrap();
    let output = export(full);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("could not write the output"), "{}", stderr(&output));
}
