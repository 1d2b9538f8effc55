//! In memory and in virtual time.
#![allow(clippy::unwrap_used)]

mod balancer;
mod layer;
mod support;
