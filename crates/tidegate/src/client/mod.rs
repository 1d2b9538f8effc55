//! The client's side: not asking in vain, asking again within bounds, asking the right one.
//!
//! [`Layer`] goes around anything that sends `http::Request`s: a tonic channel, a client of
//! hyper-util, reqwest, a [`Balancer`], a service in a test. It throttles what the backend would
//! most likely refuse, retries what another task may take, and lets each request say how much it
//! matters, until when it is wanted and which try it is. It understands what any server says:
//! 503 and 429, `retry-after`, `UNAVAILABLE`, `RESOURCE_EXHAUSTED`, pushback.
//!
//! | for | one line |
//! |---|---|
//! | any tower service | `Layer::new("inventory").layer(client)` |
//! | tonic | `tonic::protect("inventory", channel)` |
//! | reqwest | `reqwest::Client::new("inventory", client)` |
//! | hyper-util, balanced | `hyper::balancer(Discovery::dns("inventory:80"))` |
//!
//! ```
//! use bytes::Bytes;
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tidegate::client::{Balancer, Discovery, Endpoint, Layer, Throttled};
//! use tower::{ServiceExt, service_fn};
//! use tower_layer::Layer as _;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! // How to talk to one endpoint: here, without a network.
//! let make = |endpoint: &Endpoint| {
//!     let name = Bytes::from(endpoint.to_string());
//!     let answer = move |_: Request<Full<Bytes>>| {
//!         let answer = Response::new(Full::new(name.clone()));
//!         async { Ok::<_, std::convert::Infallible>(answer) }
//!     };
//!     Ok::<_, std::convert::Infallible>(service_fn(answer))
//! };
//! let balancer = Balancer::builder(Discovery::list(["a:80", "b:80"]), make).build()?;
//! let inventory = Layer::new("inventory").layer(balancer);
//!
//! let request = Request::new(Full::from("how many?"));
//! match inventory.oneshot(request).await {
//!     Ok(answer) => assert_eq!(answer.status(), 200),
//!     Err(error) => match Throttled::find(&*error) {
//!         Some(throttled) => println!("held back: {throttled}"),
//!         None => return Err(error),
//!     },
//! }
//! # Ok::<(), tidegate::client::BoxError>(()) }).unwrap();
//! ```
//!
//! When it is wrong: a backend that answers 503 for reasons of its own is throttled like one that
//! is overloaded. What it does not hear of it cannot count: a caller that drops a request before
//! the timeout of the layer has learnt nothing about the backend.

mod balancer;
mod body;
mod error;
#[cfg(feature = "hyper-util")]
pub mod hyper;
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
    Attempt, Backend, Balance, Balanced, Balancer, BalancerBuilder, BalancerCounts, Change,
    Discovery, Endpoint, HttpProber, METRIC_LATENCY, METRIC_RIF, Prober, Reporter, Reports, Spill,
    Subset,
};
pub use body::Watched;
pub use error::{BoxError, NoEndpoint, Throttled, TimedOut, Unsent};
pub use layer::{Builder, Layer, Repeat};
pub use replay::{Recording, Replay, RequestBody};
pub use service::{Body, ResponseFuture, Service, Verdict};
pub use shared::Counts;
