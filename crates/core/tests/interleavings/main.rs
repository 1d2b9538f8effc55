//! Every interleaving of the gates' threads, and every value that the memory model lets them see.
//!
//! ```text
//! cargo xtask test --only interleavings
//! ```
//!
//! Models are small, two or three threads of one to three steps, since the number of interleavings
//! explodes with the number of steps.
#![cfg(feature = "loom")]

mod admission;
mod balance;
mod client;
mod connection;
mod cost;
mod counters;
mod quota;

/// Runs `body` under every interleaving with at most three preemptions, unless the environment
/// (`LOOM_MAX_PREEMPTIONS`) says otherwise. A race that is lost takes one or two.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    // A table of picks has dozens of slots, each a step of whoever publishes it.
    builder.max_branches = 10_000;
    builder.check(body);
}

fn join<T>(thread: loom::thread::JoinHandle<T>) -> T {
    thread.join().expect("the thread panicked")
}
