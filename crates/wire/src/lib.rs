//! What tidegate says on the wire, and what it understands.
//!
//! Decisions are worth nothing if the other side does not hear them, or hears something else. So
//! the names and numbers of every convention stand here once, over the types of `http`: no
//! connection, no runtime, no clock.
//!
//! | on the way in | |
//! |---|---|
//! | everything a request says about itself, in one pass | [`incoming`] |
//! | how much it matters, which try it is, how long its caller waits | [`criticality`], [`attempt`], [`deadline`], [`priority`] |
//! | who sent it, for whom, and what that one may claim | [`customer`] |
//! | what made no sense | [`faults`] |
//! | forget what strangers say about themselves | [`edge`] |
//!
//! | on the way out | |
//! |---|---|
//! | what travels with a request | [`outgoing`] |
//! | a rejection, as HTTP and as gRPC | [`reject`] |
//! | what any server's answer means | [`answer`] |
//! | load reports, both ways | [`orca`] |
//! | protobuf of others, and their services with the feature `grpc` | [`proto`] |
//!
//! Three rules hold throughout. Nonsense counts as absent and is counted, it is never an error: a
//! broken header must not fail a request that would have been served without it. A claim is
//! believed only from those allowed to make it. And reading allocates nothing.
//!
//! ```
//! use http::HeaderMap;
//! use tidegate_core::Criticality;
//! use tidegate_wire::incoming::Incoming;
//! use tidegate_wire::protocol::Protocol;
//!
//! let mut headers = HeaderMap::new();
//! headers.insert("baggage", "user=7, criticality=SHEDDABLE;by=edge".parse()?);
//! headers.insert("x-envoy-attempt-count", "two".parse()?);
//! let incoming = Incoming::read(&headers, Protocol::of(&headers));
//! assert_eq!(incoming.criticality, Some(Criticality::Sheddable));
//! assert_eq!(incoming.attempt, 1);
//! assert_eq!(incoming.faults.to_string(), "bad_attempt");
//! # Ok::<(), http::header::InvalidHeaderValue>(())
//! ```

pub mod answer;
pub mod attempt;
pub mod baggage;
pub mod criticality;
pub mod customer;
pub mod date;
pub mod deadline;
pub mod edge;
pub mod faults;
pub mod grpc;
pub mod grpc_web;
pub mod headers;
pub mod health;
pub mod incoming;
pub mod orca;
pub mod outgoing;
pub mod priority;
pub mod proto;
pub mod protocol;
pub mod reject;
mod text;
