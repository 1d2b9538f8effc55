//! Overload protection for axum, tonic, hyper and reqwest services.

pub mod clock;
pub mod context;
pub mod executor;
pub mod metrics;
pub mod report;
pub mod server;
pub mod signals;
#[cfg(feature = "tokio")]
mod spawn;
mod sync;
pub mod task;

#[cfg(feature = "tokio")]
pub use spawn::{spawn, spawn_blocking};
pub use task::Task;
pub use tidegate_core::{Cost, Criticality};
