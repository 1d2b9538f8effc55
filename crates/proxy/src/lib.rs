//! The same protection for services in any language: a proxy beside them.
//!
//! It lets in what the program behind it can do, by criticality, deadline, quota and what can be
//! seen of the program from outside, and refuses the rest at the cost of a web server's error page.
//!
//! ```text
//! clients --> [ listener | gate | forward ] --> pool --> the program
//!                            ^                              |
//!                            |     CPU used, ORCA reports   |
//!                            +------------------------------+
//! ```
//!
//! One thread a core, each with a runtime, a listener and a pool of its own, so that a request
//! never leaves its core. What the gate decides is `tidegate`'s; the protocols are hyper's; what is
//! here is what stands between: which headers pass ([`hop`]), where a request goes ([`pool`]), what
//! becomes of its answer, and what can be seen of a program ([`watch`]).
//!
//! That is the inbound role. In the outbound role the proxy stands beside a client, and calls go
//! out through `tidegate`'s client layer and balancer ([`outbound`]). Before either there may be an
//! [`edge`], for callers who are strangers. In the batch role calls wait in a queue before they go
//! out, at the pace of those they go to.

mod batch;
pub mod config;
pub mod edge;
mod exchange;
pub mod handover;
pub mod hop;
mod inbound;
mod muster;
pub mod outbound;
mod own;
pub mod pool;
mod prewarm;
mod quota;
mod refuse;
mod responder;
mod run;
mod sockets;
pub mod stale;
pub mod tls;
pub mod watch;

pub use config::{Config, ConfigError, Role};
pub use edge::EdgeConfig;
pub use outbound::{OutboundConfig, ServiceConfig};
pub use own::{SignalConfig, Source, WhenStale};
pub use pool::{Protocol, Upstream};
pub use prewarm::PrewarmConfig;
pub use quota::QuotaConfig;
pub use responder::Datagrams;
pub use run::{Incumbent, Proxy, ProxyError};
pub use sockets::Legacy;
pub use stale::StaleConfig;
pub use tls::{Target, UpstreamTls};
pub use watch::Watch;
