//! Side-by-side measurements: tidegate and what a user would pick instead, in one run.
//!
//! Every figure is a ratio to a peer measured in the same round, so that a noisy machine moves
//! both. Rounds are interleaved, threads are pinned where that is allowed, medians are reported.
#![allow(clippy::print_stdout)]

mod admission;
mod controllers;
mod decisions;
mod measure;
mod metering;
mod sim;

use clap::{Parser, Subcommand};
use tidegate_sim::world::spec::WorldError;

/// The allocator that the binaries use.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[derive(Parser)]
#[command(name = "tidegate-bench", about = "Measures tidegate beside its peers")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// What one decision costs: an atomic add, governor, tower and ours.
    Decisions(decisions::Options),
    /// Admission controllers beside each other, in virtual time.
    Controllers(controllers::Options),
    /// What metering a poll costs, and how near it comes to the thread's CPU clock.
    Metering(metering::Options),
    /// How many requests a second the simulator runs on one core.
    Sim(sim::Options),
}

fn main() -> Result<(), WorldError> {
    match Arguments::parse().command {
        Command::Decisions(options) => decisions::run(&options),
        Command::Controllers(options) => controllers::run(&options)?,
        Command::Metering(options) => metering::run(&options),
        Command::Sim(options) => sim::run(&options),
    }
    Ok(())
}
