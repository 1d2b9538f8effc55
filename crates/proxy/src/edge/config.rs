//! How an edge is set up.

use super::clients::Allowance;
use super::rules::{PathPattern, Rule};
use core::time::Duration;
use http::header::{HOST, HeaderName};
use http::{HeaderMap, HeaderValue, Request};
use std::net::SocketAddr;
use tidegate::serve::BodyLimits;
use tidegate_core::Criticality;
use tidegate_wire::edge::names_sender;

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
static X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
static X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");

/// What strangers may do.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct EdgeConfig {
    /// What requests count as; the first that fits.
    pub rules: Vec<Rule>,
    /// What requests count as that no rule fits.
    pub criticality: Criticality,
    /// The longest that a stranger's deadline may be; as long as it likes if not said.
    pub deadline_max: Option<Duration>,
    /// Connections of one address.
    pub connections: Allowance,
    /// Requests of one address.
    pub requests: Allowance,
    /// Requests of one connection.
    pub each_connection: Allowance,
    /// What a body may be.
    pub body: BodyLimits,
    /// Where bodies are streams, which may be slow and silent: of `body` they only have the length.
    pub streams: Vec<PathPattern>,
    /// Whether programs behind us are told who asks, by `x-forwarded-for` and the like, in the
    /// place of what the stranger says of itself. What it says stays if not.
    pub forwarded: bool,
}

impl Default for EdgeConfig {
    fn default() -> Self {
        let mut body = BodyLimits::default();
        // What Kestrel asks for: a modem does ten times as much, and a request of a kilobyte is
        // held for ten seconds at most.
        body.rate_min = Some(240);
        body.stall_max = Some(Duration::from_secs(60));
        Self {
            rules: Vec::new(),
            criticality: Criticality::Critical,
            // As long as the head of an answer may take if nobody says.
            deadline_max: Some(Duration::from_secs(60)),
            // A tenth of all: one address cannot shut the others out, and an office fits.
            connections: Allowance::at_once(1_000),
            requests: Allowance::at_once(1_000),
            each_connection: Allowance::UNLIMITED,
            body,
            streams: Vec::new(),
            forwarded: true,
        }
    }
}

/// Takes out by what a caller may have said who it is.
pub(super) fn forget_senders(headers: &mut HeaderMap) {
    if headers.keys().any(names_sender) {
        let names: Vec<HeaderName> = headers.keys().filter(|n| names_sender(n)).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}

/// Says who asks, and forgets what it said of itself.
pub(super) fn forwarded<B>(request: &mut Request<B>, from: Option<SocketAddr>, secure: bool) {
    let authority = request.uri().authority();
    let host = match authority.and_then(|host| HeaderValue::from_str(host.as_str()).ok()) {
        Some(host) => Some(host),
        None => request.headers().get(HOST).cloned(),
    };
    let headers = request.headers_mut();
    forget_senders(headers);
    let from = from.map(|from| from.ip().to_canonical().to_string());
    if let Some(from) = from.and_then(|from| HeaderValue::try_from(from).ok()) {
        headers.insert(&X_FORWARDED_FOR, from);
    }
    if let Some(host) = host {
        headers.insert(&X_FORWARDED_HOST, host);
    }
    let scheme = HeaderValue::from_static(if secure { "https" } else { "http" });
    headers.insert(&X_FORWARDED_PROTO, scheme);
}
