//! Overload protection for axum, tonic, hyper and reqwest services.

pub mod clock;
pub mod executor;
#[cfg(feature = "hyper")]
pub mod health;
#[cfg(feature = "tokio")]
pub mod life;
#[cfg(feature = "hyper")]
pub mod serve;
pub mod signals;
mod sync;

#[cfg(feature = "hyper")]
pub use serve::serve;
