//! Runs against real servers on this machine.
#![allow(clippy::unwrap_used)]

mod bounds;
mod protocols;
mod retries;
mod schedule;
mod support;
mod tls;
