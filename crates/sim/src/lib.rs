//! The decisions of tidegate in virtual time. Everything that decides is `tidegate-core`'s own
//! code; the same seed gives the same run, to the byte.
//!
//! - [`world`]: clients, services that call each other, machines and the network between them;
//! - [`scenario`]: files that tell a story of such a world and say what it must show;
//! - [`contest`]: admission controllers beside each other in front of one task of such a world.

pub mod contest;
mod dice;
mod heap;
mod queue;
pub mod scenario;
mod slab;
pub mod world;

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
