//! `tidegate quota`: the server that divides a fleet's CPU among customers, and how it stands.

mod page;
mod serve;
mod status;

use crate::{Ending, Failure};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The exit code for files that were refused; nothing was served.
const REFUSED: u8 = 2;

/// What the user may choose.
#[derive(Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Options {
    #[command(subcommand)]
    command: Option<Command>,
    /// Who may use how much; docs/quota.md has every key. Followed while the server runs
    #[arg(long, value_name = "FILE", required = true)]
    config: Option<PathBuf>,
    /// Where to listen, instead of where the file says
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Where to show its page; nowhere if not said
    #[arg(long, value_name = "ADDRESS")]
    page: Option<SocketAddr>,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Say who uses, wants and may use how much, across the fleet
    Status(status::Options),
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    match (&options.command, &options.config) {
        (Some(Command::Status(options)), _) => status::run(options),
        (None, Some(file)) => serve::run(file, options.listen, options.page),
        // clap asks for one of them.
        (None, None) => Ok(Ending::default()),
    }
}
