//! The client layer over real sockets, to servers that know nothing of tidegate; and under real
//! concurrency.
#![allow(clippy::unwrap_used)]

mod budget;
mod faults;
mod http;
mod ours;
mod tonic;

use core::time::Duration;
use tidegate::client::{Builder, Layer};
use tidegate_core::Ratio;
use tidegate_core::retry::BudgetConfig;

/// A layer that has credit from the start of its second tick on: one request in ten is not the
/// point here.
fn generous(service: &str) -> Layer {
    generous_builder(service).build()
}

fn generous_builder(service: &str) -> Builder {
    let mut budget = BudgetConfig::default();
    budget.ratio = Ratio::ONE;
    budget.retries_min_per_second = 1_000;
    Layer::builder(service).budget(budget).seed(1)
}

/// Lets the keeper tick. The clock stands still only while no connection has anything to wait for,
/// and then goes on.
async fn ticks() {
    tokio::time::pause();
    for _ in 0..3 {
        tokio::time::advance(Duration::from_millis(150)).await;
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
    }
    tokio::time::resume();
}
