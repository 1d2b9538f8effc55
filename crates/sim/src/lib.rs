//! The decisions of tidegate in virtual time.
//!
//! One backend task with some cores serves requests in the order in which they came; clients offer
//! it more or less than it can do, and do not care. Everything that decides is `tidegate-core`'s
//! own code. The same seed gives the same run, to the byte.

pub mod story;
pub mod task;

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
