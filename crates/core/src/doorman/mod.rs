//! Cooperative leases of a shared resource, as Doorman's clients know them.
//!
//! A client says what it `wants` and what it `has`, and gets a lease: so much, until then, ask
//! again after so long. When the lease ends unrefreshed it falls back to its safe capacity, and
//! what it had goes to others. Units are opaque; amounts are floats, because the protocol's are.
//!
//! | part | module |
//! |---|---|
//! | which resource is shared out how | [`config`], [`glob`] |
//! | who has how much of it | [`resource`] |
//! | who is served first | `demand` |
//! | what a server has that is below another | [`above`] |
//! | the fair level itself | [`share`](crate::share) |
//!
//! Differences to the Go server, on purpose: fair share is exact (the two-round original can grant
//! more than was asked), `priority` decides who is served first and reaches the tree of servers
//! instead of being dropped, and nothing that is not a number gets into a sum.

pub mod above;
pub mod config;
mod demand;
pub mod glob;
pub mod resource;

pub use above::{Ask, Provision};
pub use config::{Algorithm, AlgorithmDraft, ConfigError, Draft, Kind, Repository, Template};
pub use glob::Glob;
pub use resource::{Band, Lease, Request, Resource, TooManyClients};
