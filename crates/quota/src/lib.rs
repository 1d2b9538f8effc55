//! Quotas in CPU time across a fleet: the server that divides them, and its client.
//!
//! A customer may use so many CPU-seconds per second, whichever tasks of a service it calls. Tasks
//! report what each customer uses and wants ([`server`] adds it up and divides the limits), and
//! enforce what they are told by themselves: a request never waits for the server. When the fleet
//! is overloaded, only those who are over their share see errors.
//!
//! | question | module |
//! |---|---|
//! | who may use how much | [`config`] |
//! | who divides it | [`server`] |
//! | who may report and ask | `access` |
//! | which leader counts | [`election`], by [`etcd`] if there are several servers |
//! | how does a task take part | [`client`] |
//! | and clients of Doorman | [`doorman`] |

mod access;
pub mod client;
pub mod config;
pub mod doorman;
pub mod election;
mod envoy;
pub mod etcd;
mod link;
mod message;
mod name;
pub mod server;
mod status;
#[cfg(test)]
mod tests;

pub use client::Client;
pub use config::Config;
pub use election::{Candidate, Election};
pub use link::LinkError;
pub use server::Server;
pub use status::{StatusError, status};
