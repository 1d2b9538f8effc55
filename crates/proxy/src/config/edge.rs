//! The edge, as people write it.
//!
//! ```yaml
//! edge:
//!   default_criticality: SHEDDABLE_PLUS
//!   rules:
//!     - { path: /checkout/**, methods: [POST], criticality: CRITICAL_PLUS }
//!     - { identity: spiffe://partner/till, ceiling: CRITICAL }
//!   client: { connections: 100, requests: 50, rate: 20 }
//!   body: { max: 1048576 }
//! ```

use super::Wrong;
use super::text::{Level, Place, RIGHT, Span, Switch};
use crate::edge::{Allowance, EdgeConfig, PathPattern, Rule};
use core::num::NonZeroU32;
use core::str::FromStr;
use http::{HeaderName, HeaderValue, Method};
use serde::Deserialize;
use tidegate::serve::Limits;
use tidegate_wire::customer::IdentityPattern;
use tidegate_wire::edge::is_claim;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Edge {
    default_criticality: Option<Level>,
    #[serde(default)]
    rules: Vec<Written>,
    deadline_max: Option<Span>,
    forwarded: Option<Switch>,
    #[serde(default)]
    client: Client,
    #[serde(default)]
    connection: Pace,
    #[serde(default)]
    body: Body,
    #[serde(default)]
    headers: Headers,
}

/// Of one address.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Client {
    connections: Option<u32>,
    connects_per_second: Option<u32>,
    requests: Option<u32>,
    rate: Option<u32>,
    burst: Option<NonZeroU32>,
}

/// Of one connection.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Pace {
    rate: Option<u32>,
    burst: Option<NonZeroU32>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    max: Option<u64>,
    rate_min: Option<u32>,
    stall: Option<Span>,
    #[serde(default)]
    streams: Vec<Place<PathPattern>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Headers {
    bytes: Option<u32>,
    count: Option<usize>,
}

/// A rule that makes sense, or an error where it stands.
#[derive(Debug, Deserialize)]
#[serde(try_from = "RawRule")]
struct Written(Rule);

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RawRule {
    host: Option<String>,
    path: Option<Place<PathPattern>>,
    #[serde(default)]
    methods: Vec<Place<Verb>>,
    header: Option<Place<Header>>,
    identity: Option<Place<Who>>,
    criticality: Option<Level>,
    ceiling: Option<Level>,
}

impl TryFrom<RawRule> for Written {
    type Error = String;

    fn try_from(raw: RawRule) -> Result<Self, String> {
        let mut rule = Rule::new();
        rule.host = raw.host.map(|host| host.to_ascii_lowercase());
        rule.path = raw.path.map(|path| path.0);
        rule.methods = raw.methods.into_iter().map(|method| method.0.0).collect();
        rule.header = raw.header.map(|header| (header.0.name, header.0.value));
        rule.identity = raw.identity.map(|who| who.0.0);
        rule.criticality = raw.criticality.map(|level| level.0);
        rule.ceiling = raw.ceiling.map(|level| level.0);
        match rule.fault() {
            None => Ok(Self(rule)),
            Some((what, right)) => Err(format!("this rule {what}{RIGHT}{right}")),
        }
    }
}

#[derive(Debug, Clone)]
struct Verb(Method);

impl FromStr for Verb {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let upper = !text.is_empty() && text.bytes().all(|b| b.is_ascii_uppercase() || b == b'-');
        let method = text.parse().ok().filter(|_| upper);
        method.map(Self).ok_or_else(|| format!("`{text}` is no method{RIGHT}such as GET or POST"))
    }
}

/// `name`, or `name=value`.
#[derive(Debug, Clone)]
struct Header {
    name: HeaderName,
    value: Option<HeaderValue>,
}

impl FromStr for Header {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no header{RIGHT}NAME, or NAME=VALUE");
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim())),
            None => (text, None),
        };
        let name: HeaderName = name.parse().map_err(|_| wrong())?;
        if is_claim(&name) || name == "baggage" {
            return Err(format!("`{name}` is never believed of itself{RIGHT}ceiling, for claims"));
        }
        let value = value.map(HeaderValue::from_str).transpose().map_err(|_| wrong())?;
        Ok(Self { name, value })
    }
}

#[derive(Debug, Clone)]
struct Who(IdentityPattern);

impl FromStr for Who {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = |rule| {
            let right = "spiffe://DOMAIN/PATH, where * fits one part and ** the rest, or dns:NAME";
            format!("{rule}{RIGHT}{right}")
        };
        IdentityPattern::parse(text).map(Self).map_err(wrong)
    }
}

impl Edge {
    /// `shown` says whether callers show certificates. Limits of headers go into `limits`.
    pub(super) fn resolve(self, shown: bool, limits: &mut Limits) -> Result<EdgeConfig, Wrong> {
        let rules = self.rules.into_iter().map(|rule| rule.0).collect();
        let mut config = EdgeConfig { rules, ..EdgeConfig::default() };
        if !shown && config.rules.iter().any(|rule| rule.identity.is_some()) {
            let what = "edge.rules has an identity, and callers are not asked for certificates";
            return Err((what.to_owned(), "tls with client_ca".to_owned()));
        }
        if let Some(level) = self.default_criticality {
            config.criticality = level.0;
        }
        if let Some(max) = self.deadline_max {
            config.deadline_max = Some(max.0).filter(|max| !max.is_zero());
        }
        if let Some(forwarded) = self.forwarded {
            config.forwarded = forwarded.0;
        }
        let Client { connections, connects_per_second, requests, rate, burst } = self.client;
        let at_once = |told: Option<u32>, default: Option<u32>| match told {
            Some(0) => None,
            Some(count) => Some(count),
            None => default,
        };
        config.connections.at_once = at_once(connections, config.connections.at_once);
        config.connections.per_second = connects_per_second.filter(|rate| *rate > 0);
        config.requests.at_once = at_once(requests, config.requests.at_once);
        pace(&mut config.requests, rate, burst, "edge.client")?;
        pace(
            &mut config.each_connection,
            self.connection.rate,
            self.connection.burst,
            "edge.connection",
        )?;
        config.body.bytes_max = self.body.max.filter(|max| *max > 0);
        if let Some(rate) = self.body.rate_min {
            config.body.rate_min = Some(rate).filter(|rate| *rate > 0);
        }
        if let Some(stall) = self.body.stall {
            config.body.stall_max = Some(stall.0).filter(|stall| !stall.is_zero());
        }
        config.streams = self.body.streams.into_iter().map(|path| path.0).collect();
        if let Some(bytes) = self.headers.bytes {
            limits.h1_buffer_max = usize::try_from(bytes).unwrap_or(usize::MAX);
            limits.h2_header_list_max = bytes;
        }
        limits.h1_headers_max = self.headers.count.or(limits.h1_headers_max);
        Ok(config)
    }
}

fn pace(
    allowance: &mut Allowance,
    rate: Option<u32>,
    burst: Option<NonZeroU32>,
    key: &str,
) -> Result<(), Wrong> {
    allowance.per_second = rate.filter(|rate| *rate > 0);
    allowance.burst = burst.map(NonZeroU32::get);
    if allowance.burst.is_some() && allowance.per_second.is_none() {
        return Err((format!("{key}.burst without {key}.rate"), format!("{key}.rate: NUMBER")));
    }
    Ok(())
}
