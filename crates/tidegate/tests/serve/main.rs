//! The server over real sockets.
//!
//! Every wait is for an event and bounded by [`common::SOON`], which is far longer than any of them
//! takes: it ends a test that hangs, and decides nothing else.

#![allow(clippy::unwrap_used, reason = "all of this is tests, also what is not marked as such")]

mod bodies;
mod common;
mod connections;
mod drain;
mod grpc;
mod http2;
mod identity;
mod limits;
mod linger;
mod rest;
mod signals;
mod tls;
