//! Overload protection for axum, tonic, hyper and reqwest services.
//!
//! Two lines protect a service:
//!
//! ```
//! # async fn search() -> &'static str { "found" }
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let task = tidegate::Task::builder("search").start()?;
//! let app = axum::Router::new().route("/", axum::routing::get(search)).layer(task.layer());
//! # let _: axum::Router = app;
//! # Ok(())
//! # }
//! ```
//!
//! [`Task`] is this process as a backend, [`server`] the layer around its handlers, [`context`]
//! what they can ask. Clients have a layer and a balancer of their own. [`guide`] shows how to put
//! each part to work.

#[cfg(feature = "admin")]
pub mod admin;
#[cfg(feature = "tokio")]
pub mod client;
pub mod clock;
pub mod context;
pub mod events;
pub mod executor;
pub mod guide;
#[cfg(feature = "hyper")]
pub mod health;
#[cfg(feature = "tokio")]
pub mod life;
pub mod metrics;
pub mod report;
#[cfg(feature = "hyper")]
pub mod serve;
pub mod server;
pub mod signals;
#[cfg(feature = "tokio")]
mod spawn;
mod sync;
pub mod task;
pub mod workplace;

#[cfg(feature = "hyper")]
pub use serve::serve;
#[cfg(feature = "tokio")]
pub use spawn::{spawn, spawn_blocking};
pub use task::Task;
pub use tidegate_core::{Cost, Criticality};
