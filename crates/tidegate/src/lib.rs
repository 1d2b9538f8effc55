//! Overload protection for axum, tonic, hyper and reqwest services.

pub mod clock;
pub mod executor;
pub mod signals;
mod sync;
