//! The client's side: not asking in vain, asking again within bounds, asking the right one.
//!
//! [`Layer`] goes around anything that sends `http::Request`s: a tonic channel, a client of
//! hyper-util, reqwest, a [`Balancer`], a service in a test. It throttles what the backend would
//! most likely refuse, retries what another task may take, and lets each request say how much it
//! matters, until when it is wanted and which try it is. It understands what any server says:
//! 503 and 429, `retry-after`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED`, pushback.
//!
//! When it is wrong: a backend that answers 503 for reasons of its own is throttled like one that
//! is overloaded. What it does not hear of it cannot count: a caller that drops a request before
//! the timeout of the layer has learnt nothing about the backend.

mod balancer;
mod body;
mod error;
#[cfg(feature = "hyper-util")]
pub mod hyper;
mod inherit;
mod keeper;
mod lanes;
mod layer;
pub(crate) mod replay;
#[cfg(feature = "reqwest")]
pub mod reqwest;
mod service;
mod shared;
#[cfg(test)]
mod tests;
#[cfg(feature = "tonic")]
pub mod tonic;
mod trail;

pub use balancer::{
    Attempt, Balance, Balanced, Balancer, BalancerBuilder, BalancerCounts, Change, Discovery,
    Endpoint, HttpProber, METRIC_LATENCY, METRIC_RIF, Prober, Reporter, Reports, Spill, Subset,
};
pub use body::Watched;
pub use error::{BoxError, NoEndpoint, Throttled, TimedOut};
pub use layer::{Builder, Layer, Repeat};
pub use replay::{Recording, Replay, RequestBody};
pub use service::{Body, ResponseFuture, Service, Verdict};
pub use shared::Counts;
