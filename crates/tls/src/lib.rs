//! TLS for servers and clients of tidegate: rustls with aws-lc-rs, certificates in PEM files.
//!
//! Certificates that live for a day are the rule where machines issue them, and a process lives for
//! longer. So files are looked at again and again ([`Server::watch`], [`Client::watch`]), and what
//! has changed counts from the next handshake on; connections that are there stay. Files that are
//! wrong change nothing, and it is said what is wrong with which of them.
//!
//! | | |
//! |---|---|
//! | [`Server`] | certificate chain and key; no, optional or required certificates of clients; `h2` before `http/1.1` |
//! | [`Client`] | the system's roots or a file's; a certificate of its own if it has one; what to speak by ALPN |
//! | [`identity`] | who a peer is by its certificate: `spiffe://…`, or else `dns:…` |
//!
//! TLS 1.2 and 1.3. The provider is named and not the process's default, which others may have set,
//! or nobody. Handshakes have a time limit, as a peer that does not finish one would hold its place
//! for ever.
//!
//! **When it is wrong.** A certificate that has expired is served until somebody renews the file:
//! its dates are the clients' to check. Revocation is not looked at; short lives are.

mod client;
mod error;
mod identity;
mod live;
mod pem;
mod roots;
mod server;

pub use client::{Client, ClientOptions, ConnectError, Identity, Offer};
pub use error::InvalidTls;
pub use identity::identity;
pub use live::News;
pub use pem::Pem;
pub use roots::Roots;
pub use server::{AcceptError, Clients, Server, ServerOptions};

pub use rustls;
pub use tokio_rustls;

use core::time::Duration;

/// How often files are looked at, if nobody says: a change is picked up within seconds, and to read
/// three small files costs nothing.
pub const PERIOD: Duration = Duration::from_secs(2);

/// How long a handshake may take, if nobody says. It takes two round trips and a millisecond of
/// CPU; ten seconds is what slow networks and busy peers need.
pub const HANDSHAKE_MAX: Duration = Duration::from_secs(10);
