//! The proxy over real sockets, in front of real servers.

#![allow(clippy::unwrap_used)]

mod forward;
mod grpc;
mod hostile;
mod life;
mod shed;
mod support;
mod upgrade;
