//! The server and its clients over real sockets.

#![allow(clippy::unwrap_used)]

mod authority;
mod clients;
mod health;
mod leases;
mod nonsense;
mod reloads;
mod rig;
mod secure;
mod tree;
mod zones;
