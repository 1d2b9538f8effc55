//! What metering costs, and how near it comes to the truth.
mod cost;
use crate::measure::{Cpus, interleave};
use clap::Args;

#[derive(Args)]
pub(crate) struct Options {
    /// Print one JSON object instead of a table.
    #[arg(long)]
    json: bool,
    /// Rounds to take medians over.
    #[arg(long, default_value_t = 101)]
    rounds: u32,
}
pub(crate) fn run(options: &Options) {
    let mut contenders = cost::contenders();
    let mut cpus = Cpus::new();
    interleave(&mut contenders, options.rounds, 20_000, &mut cpus);
    for c in &contenders {
        println!("{:45} {:8.2}", c.name, c.median_nanos());
    }
    println!("{:?}", tidegate_meter::Meter::probe());
}
