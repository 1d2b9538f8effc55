//! In memory and in virtual time.
#![allow(clippy::unwrap_used)]

mod balancer;
mod body;
mod layer;
mod support;
