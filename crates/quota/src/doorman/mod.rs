//! Doorman's own protocol, so that its old clients work unchanged.
//!
//! Doorman hands out leases of opaque capacity: a client says what it wants and has, gets so much
//! until then, and asks again. It is cooperative, for clients that limit themselves, beside the
//! quotas in CPU time which tasks enforce. The decisions are `tidegate_core::doorman`; this is the
//! shell: the table of resources, the four RPCs of the server, and a client with a rate limiter.
//!
//! | question | module |
//! |---|---|
//! | who has which lease | `book` |
//! | how is it asked | `grpc` |
//! | whom does a server ask that is not the root | `uplink` |
//! | how is the master found | `line` |
//! | how does a client keep to it | [`client`] |
//!
//! Templates stand in the server's file under `doorman`, in the format of Doorman's own; or there
//! is the address of a server that has them.

pub(crate) mod book;
pub mod client;

pub(crate) mod grpc;
mod line;
mod pacer;
pub(crate) mod uplink;

pub use client::{Client, Limiter};
