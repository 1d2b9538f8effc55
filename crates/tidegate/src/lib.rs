//! Overload protection for axum, tonic, hyper and reqwest services.

#[cfg(feature = "tokio")]
pub mod client;
pub mod clock;
pub mod executor;
pub mod signals;
mod sync;
