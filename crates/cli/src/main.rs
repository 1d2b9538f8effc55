//! The command line of tidegate.

mod demo;

use clap::{Parser, Subcommand};
use std::io::{self, Write as _};
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "tidegate", version, about = "Overload protection for RPC and HTTP services")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Offer a backend up to ten times what it can do, bare and behind tidegate
    ///
    /// Runs in virtual time: the decisions are those of tidegate-core, the machine and its callers
    /// are simulated. The same arguments print the same bytes.
    Demo(demo::Options),
}

/// What went wrong, and what to do about it. Arguments that make no sense are clap's, with exit
/// code 2; this is exit code 1.
#[derive(Debug)]
struct Failure {
    what: String,
    why: String,
    next: &'static str,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().command {
        Command::Demo(options) => demo::run(&options),
    };
    match outcome.and_then(|text| print(&text)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure { what, why, next }) => {
            // If nobody reads that either, the exit code has to do.
            let _ = writeln!(io::stderr(), "error: {what}\n  why:  {why}\n  next: {next}");
            ExitCode::FAILURE
        }
    }
}

/// Whoever closes the pipe has seen enough: that is no failure.
fn print(text: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(Failure {
            what: "could not write the output".to_owned(),
            why: error.to_string(),
            next: "look at where standard output goes: is that disk full?",
        }),
        _ => Ok(()),
    }
}
