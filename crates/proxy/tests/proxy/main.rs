//! The proxy over real sockets, in front of real servers.

#![allow(clippy::unwrap_used)]

mod admin;
mod authority;
mod batch;
mod conformance;
mod connections;
mod datagrams;
mod edge;
mod floods;
mod forward;
mod grpc;
mod hostile;
mod life;
mod outbound;
mod outbound_discovery;
mod outbound_grpc;
mod own;
mod secure;
mod shed;
mod stale;
mod succession;
mod support;
mod upgrade;
