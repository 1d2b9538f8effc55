//! The decisions of tidegate, and nothing else.
//!
//! Overload protection is a handful of small decisions: may this request in, may that call be
//! retried, which task gets it, whose quota pays. This crate makes all of them. It knows no
//! network, no runtime and no clock, so a proxy, a tower layer, a quota server and a simulator
//! run the very same code.
//!
//! Two shapes recur:
//!
//! - A **controller** is pure: `&mut self`, with `now` and (where needed) `rng` as arguments. It
//!   runs off the request path, on a tick or on a report, and returns small values.
//! - A **gate** holds what a controller published and answers on the request path without
//!   waiting: atomics and per-thread leases, no mutex, no allocation, no clock.
//!
//! Every decision says why, as a value: see [`decision`].
//!
//! | question | module |
//! |---|---|
//! | how much does it matter, and whose is it | [`criticality`], [`customer`] |
//! | what is a cost, a time, a share | [`units`], [`machine`] |
//! | what happened lately | [`window`], [`average`], [`histogram`], [`counters`] |
//! | how full is this task | [`signal`] |
//! | may this request in | [`admission`], by [`levels`] |
//! | has its customer anything left | [`quota`], what will it [`cost`] |
//! | what did it cost, in a program of somebody else | [`attribution`] |
//! | what may each task use of a customer's limit | [`fleet`], [`share`], [`doorman`] |
//! | which of several servers divides it | [`election`] |
//! | would the backend take it at all | [`throttle`], by how attempts ended: [`outcome`] |
//! | may it be tried again | [`retry`], [`attempts`] |
//! | which backend task gets it | [`balance`], out of which [`subset`], in which datacenter [`spillover`] |
//! | may this peer connect, and how often may it ask how we are | [`connection`] |
//! | how fast may batch work go on | [`batch`] |

pub mod admission;
pub mod attempts;
pub mod attribution;
pub mod average;
pub mod balance;
pub mod batch;
pub mod connection;
pub mod cost;
pub mod counters;
pub mod criticality;
pub mod customer;
pub mod decision;
pub mod doorman;
pub mod election;
pub mod fleet;
pub mod histogram;
pub mod levels;
pub mod machine;
pub mod outcome;
pub mod quota;
pub mod retry;
pub mod rng;
pub mod share;
pub mod signal;
pub mod spillover;
pub mod subset;
mod sync;
pub mod throttle;
pub mod units;
pub mod window;

pub use criticality::Criticality;
pub use customer::CustomerId;
pub use outcome::Outcome;
pub use units::{Cost, CostRate, Ratio, Timestamp, Utilization};
