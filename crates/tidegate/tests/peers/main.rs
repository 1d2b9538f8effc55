//! Programs of others against servers of ours: what they do with what we say.
//!
//! A header means what those make of it who read it. So a client by grpcio and a real Envoy, each
//! told to retry and to balance by load reports, speak over sockets to tonic and axum behind our
//! layer, and what counts is what arrives. Nothing burns CPU and nothing is timed from above:
//! refusals come from gates that are shut, utilization from a signal of the service's own, and all
//! that is said about time is that somebody waited for at least as long as told. And a kernel of
//! its own limits us, so that what we read of limits is what kernels write.
//!
//! `cargo xtask test` installs the peers and names their place in `TIDEGATE_PEERS`. Where that is
//! not set these tests say that they were left out; where it is, a peer that is missing fails them.
#![cfg(not(feature = "loom"))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod backend;
mod chromium;
mod dashboard;
mod envoy;
mod envoy_balances;
mod envoy_retries;
mod grpcio_balances;
mod grpcio_retries;
mod kernel;
mod peer;
mod shares;
mod stage;

/// Those who run tests by nextest see nothing of tests that pass, but for this one.
#[test]
fn the_peers_are_those_that_are_named() {
    if let Some(peers) = peer::Peers::find() {
        peers.check();
    } else if std::env::var_os("NEXTEST").is_some() {
        peer::list_left_out();
    }
}
