//! What connections cost, and how to keep it small.
//!
//! Ten thousand batch workers that start together can overload a backend before they send one
//! request: each handshake costs CPU, each open connection memory, each idle one health checks.
//!
//! - [`gate`]: how many connections there may be, and how many new ones a second; what is too much
//!   is refused before the handshake.
//! - [`idle`]: an unused connection is dropped, and the backend's health is asked over UDP instead,
//!   at a pace that the backend sets by the number of those who ask.

pub mod gate;
pub mod idle;
