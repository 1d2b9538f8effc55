//! The chores of this repository, as `cargo xtask COMMAND`.
//!
//! Continuous integration and people run the same thing, `cargo xtask test`, and it is a program
//! rather than a script so that the checks can be tested themselves. It uses nothing but the
//! standard library: the first command that a newcomer types should not begin with a long build.
#![allow(clippy::print_stdout, reason = "telling people what happens is what this program is for")]

mod command;
mod install;
mod layering;
mod steps;
mod supply;
mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  test                       run every check there is; the one test command
  test --only STEP[,STEP]    run only these steps
  steps                      list the steps
  fix                        let clippy and rustfmt mend what they can";

fn main() -> ExitCode {
    if let Err(error) = std::env::set_current_dir(root()) {
        eprintln!("cannot enter {}: {error}", root().display());
        return ExitCode::FAILURE;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments.as_slice() {
        ["test"] => steps::run(&steps::all()),
        ["test", "--only", names] => match steps::named(names) {
            Ok(chosen) => steps::run(&chosen),
            Err(unknown) => return refuse(&unknown),
        },
        ["steps"] => {
            steps::list();
            Ok(())
        }
        ["fix"] => fix(),
        ["help" | "--help" | "-h"] => {
            println!("{USAGE}");
            Ok(())
        }
        [] => return refuse("which command?"),
        other => return refuse(&format!("`{}` is not a command", other.join(" "))),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("\n{message}");
            ExitCode::FAILURE
        }
    }
}

fn refuse(message: &str) -> ExitCode {
    eprintln!("{message}\n\n{USAGE}");
    ExitCode::from(2)
}

fn fix() -> Result<(), String> {
    let clippy = "clippy --fix --workspace --all-targets --allow-dirty --allow-staged";
    command::run(&mut command::cargo(clippy))?;
    command::run(&mut command::cargo("fmt --all"))
}

/// The root of the repository, wherever the command was typed.
fn root() -> PathBuf {
    let manifest = std::env::var_os("CARGO_MANIFEST_DIR");
    let xtask = manifest.map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    xtask.parent().unwrap_or(Path::new(".")).to_path_buf()
}
