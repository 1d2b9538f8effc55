//! Overload protection for axum, tonic, hyper and reqwest services.

#[cfg(feature = "tokio")]
pub mod client;
pub mod clock;
pub mod context;
pub mod executor;
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

#[cfg(feature = "hyper")]
pub use serve::serve;
#[cfg(feature = "tokio")]
pub use spawn::{spawn, spawn_blocking};
pub use task::Task;
pub use tidegate_core::{Cost, Criticality};
