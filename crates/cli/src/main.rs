//! The command line of tidegate.

mod check;
mod dashboards;
mod demo;
mod envoy_config;
mod explain;
mod html;
mod load;
mod plot;
mod proxy;
mod quota;
mod remote;
mod schema;
mod sim;
mod top;

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
    /// Offer a service up to ten times what it can do, bare and behind tidegate
    ///
    /// Starts a real service twice, as processes of their own on loopback, finds out what it can
    /// do, and drives both with the same arrivals. Everything shown is measured.
    Demo(demo::Options),
    /// The service of the demo, which starts it
    #[command(hide = true)]
    DemoService(demo::service::Options),
    /// Offer a server load that does not wait for answers, and say what came of it
    ///
    /// Speaks HTTP/1.1, HTTP/2 and gRPC. Requests start at times that were drawn beforehand, and
    /// latency counts from then: a server that stalls is seen to stall.
    Load(Box<load::Options>),
    /// Protect a service in any language: a proxy beside it
    ///
    /// Lets in what the program behind it can do, by criticality, deadline, quota and what can be
    /// seen of the program, and refuses the rest. Begins in dark mode: it says what it would
    /// refuse.
    Proxy(Box<proxy::Options>),
    /// Run scenarios in virtual time and check that they show what they should
    ///
    /// A scenario is a YAML file that tells a story of overload and names what must come of it.
    /// Exit code 0 if all checks pass, 1 if one fails, 2 if a file is refused; nothing runs then.
    Sim(sim::Options),
    /// Show what a running part does, in the terminal
    ///
    /// Attaches to the admin router of a service, a proxy or a demo: the sentence that says what it
    /// does and why, rates, latency, signals, customers and the last decisions, once a second.
    Top(top::Options),
    /// Say why a request was refused, by the number in its answer
    ///
    /// What came in, where criticality and customer were taken from, which signal stood where
    /// against which threshold, what was answered, and what would change it. Exit code 1 if nobody
    /// remembers it.
    Explain(explain::Options),
    /// Share a fleet's CPU among customers: the quota server
    ///
    /// Tasks report who uses and wants how much, and are told what each customer may use; the
    /// limits of the file hold for all tasks together. Exit code 2 if the file is refused.
    Quota(quota::Options),
    /// Say whether configuration files can be run, and what is wrong with them
    ///
    /// Exit code 0 if all can, 2 if one is refused.
    Check(check::Options),
    /// Print the JSON Schema of a configuration file, for editors and checks
    Schema(schema::Options),
    /// Print a configuration with which an Envoy takes part in quotas
    EnvoyConfig(envoy_config::Options),
    /// Dashboards for other programs
    Dashboards(dashboards::Options),
}

/// What a command leaves behind.
#[derive(Debug, Default)]
struct Ending {
    out: String,
    err: String,
    code: u8,
}

impl From<String> for Ending {
    fn from(out: String) -> Self {
        Self { out, ..Self::default() }
    }
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
        Command::DemoService(options) => {
            demo::service::run(&options).map(|()| Ending::default()).map_err(|error| Failure {
                what: "could not serve".to_owned(),
                why: error.to_string(),
                next: "this is for `tidegate demo` to start; see its --help",
            })
        }
        Command::Load(options) => load::run(&options),
        Command::Proxy(options) => proxy::run(&options),
        Command::Sim(options) => sim::run(&options),
        Command::Top(options) => top::run(&options),
        Command::Explain(options) => explain::run(&options),
        Command::Quota(options) => quota::run(&options),
        Command::Check(options) => check::run(&options),
        Command::Schema(options) => Ok(schema::run(&options)),
        Command::EnvoyConfig(options) => envoy_config::run(&options),
        Command::Dashboards(options) => dashboards::run(&options).map(Ending::from),
    };
    match outcome.and_then(|ending| print(&ending.out).map(|()| ending)) {
        Ok(ending) => {
            let _ = io::stderr().write_all(ending.err.as_bytes());
            ExitCode::from(ending.code)
        }
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
