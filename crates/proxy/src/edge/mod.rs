//! Where the outside ends: what strangers may say, and how much of us they may use.
//!
//! Behind the edge everybody believes what a request says about itself. So nobody outside may say
//! it. The edge stands before the decision of either role, inbound or outbound:
//!
//! ```text
//! stranger --> [ limits | read | rules | strip ] --> the role, which decides --> program, service
//!                                                       |
//! stranger <-- [ load reports and grounds out ] <-------+
//! ```
//!
//! | of a request | |
//! |---|---|
//! | criticality, in any header and in baggage | taken out; `rules` say what it counts as |
//! | attempt | taken out: what a stranger has tried before is no sign of our load |
//! | deadline | obeyed, up to a limit |
//! | `x-customer`, `x-tidegate-*`, `x-envoy-*`, questions for load reports | taken out |
//! | `x-forwarded-*`, `forwarded`, `x-real-ip` and their kin | replaced by what we see, or left alone |
//! | other baggage, `priority`, all else | stays |
//!
//! The same goes for trailers. The role is told the criticality beside the request (`Told`), so
//! that no header can be mistaken for it, and writes it into what it sends.
//!
//! **Slow and hostile clients.** Headers, idle times, streams and connections are limited for all
//! roles (`tidegate::serve`). What comes on top is for strangers: limits for each address
//! (`clients`) and each connection, and bodies that are too long or come too slowly.
//!
//! **When it is wrong.** A limit that is met by an honest client is a 429, 413 or 408 for it, with
//! the reason in `x-tidegate-reason`; all are counted.

mod body;
mod clients;
mod config;
mod rules;
mod screen;

pub use clients::Allowance;
pub use config::EdgeConfig;
pub use rules::{InvalidPath, PathPattern, Rule};
pub(crate) use screen::{Bare, Make, Meet};

use clients::{Client, Clients, Guard};
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use http::Request;
use rules::{About, Known, Rules, in_disguise};
use std::any::Any;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::clock::Clock;
use tidegate::metrics::EdgeCounts;
use tidegate::serve::BodyLimits;
use tidegate_core::Criticality;
use tidegate_core::units::InvalidNumber;
use tidegate_wire::incoming::Incoming;
use tidegate_wire::{deadline, edge};

/// What a request from outside counts as, in its extensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Told(pub(crate) Criticality);

/// An edge, one for the whole process.
#[derive(Debug)]
pub(crate) struct Edge {
    rules: Rules,
    config: EdgeConfig,
    clients: Clients,
    clock: Clock,
    counts: Counts,
}

/// What it has done so far.
#[derive(Debug, Default)]
struct Counts {
    /// Headers that strangers may not send, and sent.
    stripped: AtomicU64,
    /// Requests beyond what an address may have at once, or a second.
    refused_client: AtomicU64,
    /// Requests beyond what a connection may have a second.
    refused_connection: AtomicU64,
    /// Connections beyond what an address may have.
    connections_refused: AtomicU64,
    too_long: AtomicU64,
    too_slow: AtomicU64,
}

impl Edge {
    pub(crate) fn new(config: EdgeConfig, clock: Clock) -> Result<Arc<Self>, InvalidNumber> {
        let clients = Clients::new(config.connections, config.requests)?;
        // Whether it can be had is found out here, and not with the first connection.
        config.each_connection.gate()?;
        let rules = Rules::new(config.rules.clone(), config.criticality);
        Ok(Arc::new(Self { rules, config, clients, clock, counts: Counts::default() }))
    }

    /// What it has done so far, by name.
    pub(crate) fn counts(&self) -> EdgeCounts {
        let counts = &self.counts;
        [
            ("stripped_header", &counts.stripped),
            ("client_limit", &counts.refused_client),
            ("connection_limit", &counts.refused_connection),
            ("connection_refused", &counts.connections_refused),
            ("body_too_long", &counts.too_long),
            ("body_too_slow", &counts.too_slow),
        ]
        .map(|(event, count)| (event, count.load(Relaxed)))
        .to_vec()
    }

    /// Whether an address may have one more connection; it has it until what is returned is
    /// dropped.
    pub(crate) fn welcome(&self, address: SocketAddr) -> Option<Box<dyn Any + Send + Sync>> {
        let guard = self.clients.connection(address, self.clock.now());
        if guard.is_none() {
            self.counts.connections_refused.fetch_add(1, Relaxed);
        }
        guard.map(|guard| Box::new(guard) as _)
    }

    /// Takes out what a stranger may not say, and says what the request counts as.
    fn screen<B>(
        &self,
        request: &mut Request<B>,
        known: &Known,
        from: Option<SocketAddr>,
        secure: bool,
    ) {
        let said = Incoming::of(request.headers());
        let level = {
            let uri = request.uri();
            let named = || request.headers().get(http::header::HOST)?.to_str().ok();
            let host = uri.authority().map(http::uri::Authority::as_str).or_else(named);
            // Who asks is no part of it.
            let host = host.map(|host| host.rsplit_once('@').map_or(host, |(_, host)| host));
            let (method, headers) = (request.method(), request.headers());
            self.rules.judge(&About { method, host, path: uri.path(), headers, known }, &said)
        };
        let headers = request.headers_mut();
        let stripped = edge::strip_request(headers);
        if stripped > 0 {
            self.counts.stripped.fetch_add(stripped as u64, Relaxed);
        }
        if let Some(asked) = said.deadline {
            let left = self.config.deadline_max.map_or(asked, |max| asked.min(max));
            deadline::write(headers, said.protocol, left);
        }
        if self.config.forwarded {
            config::forwarded(request, from, secure);
        }
        request.extensions_mut().insert(Told(level));
    }

    /// What a body may be. Streams may be long, and silent for long; which requests are streams is
    /// for those to say who serve them, and not for strangers.
    fn body_limits(&self, path: &str) -> Option<BodyLimits> {
        let mut limits = self.config.body;
        if self.config.streams.iter().any(|stream| stream.fits(path)) && !in_disguise(path) {
            (limits.rate_min, limits.stall_max) = (None, None);
        }
        (limits != BodyLimits::default()).then_some(limits)
    }
}

#[cfg(test)]
mod tests;
