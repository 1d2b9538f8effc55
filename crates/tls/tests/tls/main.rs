//! TLS over real sockets, with certificates that are made here.

#![allow(clippy::unwrap_used)]

mod authority;
mod handshakes;
mod identities;
mod renewal;
mod wrong;
