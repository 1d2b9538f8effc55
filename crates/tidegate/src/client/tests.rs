//! In memory and in virtual time.
#![allow(clippy::unwrap_used)]

mod layer;
mod support;
