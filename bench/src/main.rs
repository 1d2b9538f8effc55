//! Side-by-side measurements: tidegate and what a user would pick instead, in one run.
//!
//! Every figure is a ratio to a peer measured in the same round, so that a noisy machine moves
//! both. Rounds are interleaved, threads are pinned where that is allowed, medians are reported.
#![allow(clippy::print_stdout)]

mod admission;
mod controllers;
mod decisions;
mod inside;
mod library;
mod load;
mod measure;
mod metering;
mod overload;
mod peers;
mod proxy;
mod quota;
mod sim;

use clap::{Parser, Subcommand};
use std::error::Error;

/// What may fail does so for people to read.
type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

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
    /// Answers requests in one process without sockets, for profilers to count.
    Inside(inside::Options),
    /// What the layer costs a server that does nothing else.
    Library(library::Options),
    /// What a request costs the load generator, beside wrk, h2load and oha.
    Load(load::Options),
    /// The generator of `load`.
    #[command(hide = true)]
    LoadGenerator(load::GeneratorOptions),
    /// The server of `load`.
    #[command(hide = true)]
    LoadServer(load::ServerOptions),
    /// What metering a poll costs, and how near it comes to the thread's CPU clock.
    Metering(metering::Options),
    /// A real server beside its peers, offered up to ten times what it can do.
    Overload(overload::Options),
    /// The server of `overload`.
    #[command(hide = true)]
    OverloadServer(overload::server::Options),
    /// What a request costs the proxy, beside nginx, `HAProxy` and Envoy.
    Proxy(proxy::Options),
    /// Those who connect in `proxy`.
    #[command(hide = true)]
    ProxyCrowd(proxy::crowd::Options),
    /// New connections in `proxy`.
    #[command(hide = true)]
    ProxyStorm(proxy::storm::StormOptions),
    /// The proxy of `proxy`.
    #[command(hide = true)]
    ProxyServer(proxy::ServerOptions),
    /// What a line of a report costs the quota server, beside Redis.
    Quota(quota::Options),
    /// The server of `quota`.
    #[command(hide = true)]
    QuotaServer(quota::ServerOptions),
    /// How many requests a second the simulator runs on one core.
    Sim(sim::Options),
}

fn main() -> Outcome {
    match Arguments::parse().command {
        Command::Decisions(options) => decisions::run(&options),
        Command::Controllers(options) => controllers::run(&options)?,
        Command::Inside(options) => inside::run(&options)?,
        Command::Library(options) => library::run(&options)?,
        Command::Load(options) => load::run(&options)?,
        Command::LoadGenerator(options) => load::generate(&options)?,
        Command::LoadServer(options) => load::serve(&options)?,
        Command::Metering(options) => metering::run(&options),
        Command::Overload(options) => overload::run(&options)?,
        Command::OverloadServer(options) => overload::server::serve(&options)?,
        Command::Proxy(options) => proxy::run(&options)?,
        Command::ProxyCrowd(options) => proxy::crowd::run(&options)?,
        Command::ProxyStorm(options) => proxy::storm::storm(&options)?,
        Command::ProxyServer(options) => proxy::serve(&options)?,
        Command::Quota(options) => quota::run(&options)?,
        Command::QuotaServer(options) => quota::serve(&options)?,
        Command::Sim(options) => sim::run(&options),
    }
    Ok(())
}
