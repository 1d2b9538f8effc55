//! A plan as it is written, on the command line or in a file, and what it means.
//!
//! Both fill in the same draft, and what the command line says goes over what the file says. Words
//! are read where they stand, so a slip in a file is reported with its line; what does not fit
//! together is found when the draft becomes a plan.

use crate::mix::{self, Mix, Route, Weighted};
use crate::plan::{BACKLOG, Course, Load, Plan, Protocol, Retry, STREAMS, TIMEOUT};
use crate::schedule::{Spacing, Stage};
use crate::target::{Target, TargetError};
use crate::text::{Span, Unreadable, WeightedList, parsed};
use crate::tls::Trust;
use bytes::Bytes;
use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A plan that was refused, before anything was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct PlanError {
    /// File, line and column, if it stands in one.
    pub place: Option<(String, u64, u64)>,
    /// What is wrong.
    pub what: String,
    /// What would be right.
    pub right: String,
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((file, line, column)) = &self.place {
            write!(f, "{file}:{line}:{column}: ")?;
        }
        write!(f, "{}\n  right: {}", self.what, self.right)
    }
}

impl From<Unreadable> for PlanError {
    fn from(Unreadable { what, right }: Unreadable) -> Self {
        Self { place: None, what, right }
    }
}

impl PlanError {
    fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Unreadable::new(what, right).into()
    }
}

/// `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match text {
            "on" | "true" => Ok(Self(true)),
            "off" | "false" => Ok(Self(false)),
            _ => Err(Unreadable::new(format!("`{text}` is no switch"), "on or off")),
        }
    }
}

impl<'de> Deserialize<'de> for Switch {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

/// `POST /path`, or a path alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouteText {
    method: Option<Method>,
    path: String,
}

impl FromStr for RouteText {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let wrong = || {
            let right = "a method and a path that begins with /, such as GET /search?q=tide";
            Unreadable::new(format!("`{text}` is no route"), right)
        };
        let (method, path) = match text.trim().split_once(' ') {
            None => (None, text.trim()),
            Some((method, path)) => (Some(method), path.trim()),
        };
        let method = method.map(method_of).transpose()?;
        let plain = path.bytes().all(|b| b.is_ascii_graphic());
        if !path.starts_with('/') || !plain || path.parse::<http::uri::PathAndQuery>().is_err() {
            return Err(wrong());
        }
        Ok(Self { method, path: path.to_owned() })
    }
}

impl<'de> Deserialize<'de> for RouteText {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

fn method_of(text: &str) -> Result<Method, Unreadable> {
    let method = Method::from_bytes(text.as_bytes()).ok().filter(|method| {
        // A tunnel is no request, and small letters are a slip.
        *method != Method::CONNECT && text.bytes().all(|b| b.is_ascii_uppercase())
    });
    method.ok_or_else(|| {
        Unreadable::new(format!("`{text}` is no method"), "GET, POST or another in capital letters")
    })
}

/// `name: value`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderText(HeaderName, HeaderValue);

impl FromStr for HeaderText {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let wrong = || {
            let right = "a name, a colon and a value, such as 'accept: text/plain'";
            Unreadable::new(format!("`{text}` is no header"), right)
        };
        let (name, value) = text.split_once(':').ok_or_else(wrong)?;
        let name: HeaderName = name.trim().parse().map_err(|_| wrong())?;
        let value = HeaderValue::from_str(value.trim()).map_err(|_| wrong())?;
        let framing = ["content-length", "transfer-encoding", "connection", "expect", "upgrade"];
        if framing.contains(&name.as_str()) {
            let right = "leave it out: it follows from the body and the connection";
            return Err(Unreadable::new(format!("`{name}` is not for you to set"), right));
        }
        Ok(Self(name, value))
    }
}

/// One kind of request of a plan file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "docs/load.md has each key")]
pub struct RouteDraft {
    pub route: RouteText,
    #[serde(default = "one")]
    pub weight: u32,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    pub body: Option<WeightedList>,
    pub criticality: Option<WeightedList>,
    pub customer: Option<WeightedList>,
    pub deadline: Option<WeightedList>,
}

impl RouteDraft {
    /// Reads `GET /a:3,POST /b` as routes with weights.
    pub fn list(list: &WeightedList) -> Result<Vec<Self>, PlanError> {
        let mut routes = Vec::new();
        for (text, weight) in &list.0 {
            routes.push(Self::new(text.parse()?, *weight));
        }
        Ok(routes)
    }

    fn new(route: RouteText, weight: u32) -> Self {
        Self {
            route,
            weight,
            headers: BTreeMap::new(),
            body: None,
            criticality: None,
            customer: None,
            deadline: None,
        }
    }
}

const fn one() -> u32 {
    1
}

/// A plan as it is written. Everything may be left out but the target.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[expect(missing_docs, reason = "docs/load.md has each key")]
pub struct Draft {
    pub target: Option<String>,
    pub protocol: Option<Protocol>,
    pub rate: Option<String>,
    pub duration: Option<Span>,
    pub stages: Option<Vec<Stage>>,
    pub arrivals: Option<Spacing>,
    pub seed: Option<u64>,
    pub warmup: Option<Span>,
    pub connections: Option<u32>,
    pub connections_max: Option<u32>,
    pub streams: Option<u32>,
    pub threads: Option<u32>,
    pub backlog: Option<u32>,
    pub timeout: Option<Span>,
    pub attempt_timeout: Option<Span>,
    pub wait_past_deadline: Option<Switch>,
    pub retry: Option<Retry>,
    pub throttle: Option<Switch>,
    pub cacert: Option<PathBuf>,
    pub insecure: Option<Switch>,
    pub headers: BTreeMap<String, String>,
    pub criticality: Option<WeightedList>,
    pub customer: Option<WeightedList>,
    pub deadline: Option<WeightedList>,
    pub body: Option<WeightedList>,
    pub method: Option<String>,
    pub requests: Vec<RouteDraft>,
}

/// What is asked of a server that nobody has named a rate for: enough to see something, and too
/// little to hurt.
const RATE: &str = "100";
const DURATION: Duration = Duration::from_secs(10);

impl Draft {
    /// Reads a plan file.
    pub fn parse(file: &str, text: &str) -> Result<Self, PlanError> {
        let options = serde_saphyr::options! {
            // `on` and `off` are words of ours.
            strict_booleans: true,
            with_snippet: false,
        };
        serde_saphyr::from_str_with_options(text, options).map_err(|error| {
            let error = error.without_snippet();
            let (line, column) = error.location().map_or((1, 1), |at| (at.line(), at.column()));
            let (what, right) = explained(&error.to_string());
            PlanError { place: Some((file.to_owned(), line.max(1), column.max(1))), what, right }
        })
    }

    /// What this says, and what `under` says where this says nothing.
    #[must_use]
    pub fn over(self, under: Self) -> Self {
        let timed = self.rate.is_some() || self.stages.is_some();
        let asked = !self.requests.is_empty();
        let mut headers = under.headers;
        headers.extend(self.headers);
        Self {
            target: self.target.or(under.target),
            protocol: self.protocol.or(under.protocol),
            rate: if timed { self.rate } else { under.rate },
            stages: if timed { self.stages } else { under.stages },
            duration: self.duration.or(under.duration),
            arrivals: self.arrivals.or(under.arrivals),
            seed: self.seed.or(under.seed),
            warmup: self.warmup.or(under.warmup),
            connections: self.connections.or(under.connections),
            connections_max: self.connections_max.or(under.connections_max),
            streams: self.streams.or(under.streams),
            threads: self.threads.or(under.threads),
            backlog: self.backlog.or(under.backlog),
            timeout: self.timeout.or(under.timeout),
            attempt_timeout: self.attempt_timeout.or(under.attempt_timeout),
            wait_past_deadline: self.wait_past_deadline.or(under.wait_past_deadline),
            retry: self.retry.or(under.retry),
            throttle: self.throttle.or(under.throttle),
            cacert: self.cacert.or(under.cacert),
            insecure: self.insecure.or(under.insecure),
            headers,
            criticality: self.criticality.or(under.criticality),
            customer: self.customer.or(under.customer),
            deadline: self.deadline.or(under.deadline),
            body: self.body.or(under.body),
            method: self.method.or(under.method),
            requests: if asked { self.requests } else { under.requests },
        }
    }

    /// The plan, with names looked up and files read. `seed` is for a draft that names none.
    pub fn resolve(&self, allow_remote: bool, seed: u64) -> Result<Plan, PlanError> {
        let Some(url) = &self.target else {
            return Err(PlanError::new(
                "there is no target",
                "a URL such as http://127.0.0.1:8080/",
            ));
        };
        let target = Target::resolve(url, allow_remote).map_err(target_error)?;
        let protocol = self.protocol.unwrap_or_default();
        let routes = self.routes(&target, protocol)?;
        let connections = within("connections", self.connections, 1..=65_536)?;
        let connections = connections.unwrap_or(protocol.connections());
        let connections_max = within("connections_max", self.connections_max, 1..=65_536)?;
        let connections_max = match (connections_max, self.connections) {
            (Some(max), _) if max < connections => {
                let right = format!("at least {connections}, as many as there are from the start");
                return Err(PlanError::new(format!("connections_max is {max}"), right));
            }
            (Some(max), _) => max,
            (None, _) => protocol.connections_max().max(connections),
        };
        let trust = match (&self.cacert, self.insecure) {
            (Some(_), Some(Switch(true))) => {
                let right = "one of them: with `insecure` no certificate is looked at";
                return Err(PlanError::new("both `cacert` and `insecure` are given", right));
            }
            (Some(file), _) => Trust::File(file.clone()),
            (None, Some(Switch(true))) => Trust::Anybody,
            (None, _) => Trust::System,
        };
        Ok(Plan {
            trust,
            course: Course {
                load: self.load()?,
                seed: self.seed.unwrap_or(seed),
                routes,
                retry: self.retry.unwrap_or_default(),
                throttle: self.throttle.is_some_and(|on| on.0),
                timeout: some_time("timeout", self.timeout)?.unwrap_or(TIMEOUT),
                attempt_timeout: some_time("attempt_timeout", self.attempt_timeout)?,
                wait_past_deadline: self.wait_past_deadline.is_some_and(|on| on.0),
            },
            warmup: self.warmup.map_or(Duration::ZERO, |span| span.0),
            connections,
            connections_max,
            streams: within("streams", self.streams, 1..=10_000)?.unwrap_or(STREAMS),
            backlog: within("backlog", self.backlog, 1..=10_000_000)?.unwrap_or(BACKLOG),
            threads: within("threads", self.threads, 1..=256)?.unwrap_or(1),
            interval: Duration::from_secs(1),
            target,
            protocol,
        })
    }

    fn load(&self) -> Result<Load, PlanError> {
        let duration = some_time("duration", self.duration)?;
        let spacing = self.arrivals.unwrap_or_default();
        match (&self.rate, &self.stages) {
            (Some(_), Some(_)) => Err(PlanError::new(
                "both a rate and stages are given",
                "one of them; a stage is `500 for 10s` or `100..500 for 30s`",
            )),
            (_, Some(_)) if duration.is_some() => Err(PlanError::new(
                "stages have a duration of their own",
                "leave `duration` out, or give a rate instead of stages",
            )),
            (None, Some(stages)) if stages.is_empty() => {
                Err(PlanError::new("there are no stages", "at least one, such as `500 for 10s`"))
            }
            (None, Some(stages)) => Ok(Load::Open { stages: stages.clone(), spacing }),
            (Some(rate), None) if rate == "max" => {
                if self.arrivals.is_some() {
                    let right = "leave `arrivals` out: with `max` answers say when the next goes";
                    return Err(PlanError::new("`max` has no arrivals", right));
                }
                Ok(Load::Closed { duration: duration.unwrap_or(DURATION) })
            }
            (rate, None) => {
                let rate = rate.as_deref().unwrap_or(RATE);
                let stage = Stage::parse(rate, duration.unwrap_or(DURATION))?;
                Ok(Load::Open { stages: vec![stage], spacing })
            }
        }
    }

    fn routes(&self, target: &Target, protocol: Protocol) -> Result<Weighted<Route>, PlanError> {
        let common = self.mix(&Mix::default())?;
        let headers = header_map(&self.headers)?;
        let method = self.method.as_deref().map(method_of).transpose()?;
        let only = RouteDraft::new(RouteText { method: None, path: target.path.clone() }, 1);
        let alone = std::slice::from_ref(&only);
        let drafts = if self.requests.is_empty() { alone } else { &self.requests };
        let mut routes = Vec::new();
        for draft in drafts {
            let mut all = headers.clone();
            all.extend(header_map(&draft.headers)?.into_iter().filter_map(|(n, v)| Some((n?, v))));
            let body = draft.body.as_ref().or(self.body.as_ref());
            let method = draft.route.method.clone().or_else(|| method.clone());
            let method = match (method, protocol, body) {
                (Some(method), Protocol::Http1 | Protocol::H2, _) => method,
                (None, Protocol::Http1 | Protocol::H2, None) => Method::GET,
                (_, Protocol::Grpc, _) | (None, _, Some(_)) => Method::POST,
            };
            // A body that is meant for all goes to those that take one.
            let takes = protocol == Protocol::Grpc
                || draft.body.is_some()
                || drafts.len() == 1
                || matches!(method, Method::POST | Method::PUT | Method::PATCH);
            let bodies = body.filter(|_| takes).map_or(Ok(Weighted::only(Bytes::new())), bodies)?;
            let own = Self {
                criticality: draft.criticality.clone(),
                customer: draft.customer.clone(),
                deadline: draft.deadline.clone(),
                ..Self::default()
            };
            let mix = own.mix(&common)?;
            let path = draft.route.path.clone();
            routes.push((Route { method, path, headers: all, bodies, mix }, draft.weight));
        }
        Weighted::new(routes).ok_or_else(|| {
            PlanError::new("all requests have weight 0", "at least one with a weight above 0")
        })
    }

    /// What this says about requests, and what `common` says where this says nothing.
    fn mix(&self, common: &Mix) -> Result<Mix, PlanError> {
        let mut mix = common.clone();
        if let Some(list) = &self.criticality {
            mix.criticality = mix::criticalities(list)?;
        }
        if let Some(list) = &self.customer {
            mix.customer = mix::customers(list)?;
        }
        if let Some(list) = &self.deadline {
            mix.deadline = mix::deadlines(list)?;
        }
        Ok(mix)
    }
}

fn target_error(error: TargetError) -> PlanError {
    let right = match &error {
        TargetError::Unreadable(_) => "",
        TargetError::Unresolved { .. } => "a name that this machine can look up, or an address",
        TargetError::Remote { .. } => {
            "a server on this machine; or --allow-remote, if that one is yours to load"
        }
    };
    match error {
        TargetError::Unreadable(error) => error.into(),
        error => PlanError::new(error.to_string(), right),
    }
}

fn within(
    name: &str,
    number: Option<u32>,
    range: core::ops::RangeInclusive<u32>,
) -> Result<Option<u32>, PlanError> {
    match number {
        Some(number) if !range.contains(&number) => {
            let right = format!("a whole number from {} to {}", range.start(), range.end());
            Err(PlanError::new(format!("{name} is {number}"), right))
        }
        number => Ok(number),
    }
}

fn some_time(name: &str, span: Option<Span>) -> Result<Option<Duration>, PlanError> {
    match span {
        Some(Span(Duration::ZERO)) => {
            Err(PlanError::new(format!("{name} is nothing"), "more than no time, such as 10s"))
        }
        span => Ok(span.map(|span| span.0)),
    }
}

fn header_map(headers: &BTreeMap<String, String>) -> Result<HeaderMap, PlanError> {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        let HeaderText(name, value) = format!("{name}: {value}").parse()?;
        map.append(name, value);
    }
    Ok(map)
}

/// `@file`, `hex=0aff`, `empty`, or the text itself.
fn bodies(list: &WeightedList) -> Result<Weighted<Bytes>, PlanError> {
    let mut bodies = Vec::new();
    for (text, weight) in &list.0 {
        let body: Bytes = if let Some(file) = text.strip_prefix('@') {
            let read = std::fs::read(file).map_err(|error| {
                PlanError::new(
                    format!("the body `{file}` cannot be read: {error}"),
                    "a file that is there",
                )
            });
            read?.into()
        } else if let Some(digits) = text.strip_prefix("hex=") {
            hex(digits)
                .ok_or_else(|| {
                    let right = "two digits for each byte, such as hex=0a05";
                    PlanError::new(format!("`{text}` is not hexadecimal"), right)
                })?
                .into()
        } else if text == "empty" {
            Bytes::new()
        } else {
            text.clone().into()
        };
        bodies.push((body, *weight));
    }
    Weighted::new(bodies).ok_or_else(|| PlanError::new("no body is given", "at least one"))
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Vec<char> = digits.chars().filter(|c| !c.is_whitespace()).collect();
    let pairs = digits.chunks(2).map(|pair| match pair {
        [high, low] => Some((high.to_digit(16)? * 16 + low.to_digit(16)?) as u8),
        _ => None,
    });
    pairs.collect()
}

/// What the YAML reader says, without its place, as what is wrong and what would be right.
fn explained(message: &str) -> (String, String) {
    let message = message.trim_start_matches("error: ");
    if let Some((what, right)) = message.split_once("; right: ") {
        let what = what.split("error: ").last().unwrap_or(what);
        return (what.to_owned(), without_place(right).to_owned());
    }
    let message = without_place(message);
    let message = message.split(", set ").next().unwrap_or_default();
    match message.split_once(", expected ") {
        Some((what, right)) => (what.to_owned(), right.to_owned()),
        None => (message.to_owned(), "YAML, with each key once; docs/load.md shows how".to_owned()),
    }
}

fn without_place(message: &str) -> &str {
    message.split(" at line ").next().unwrap_or(message).trim_end()
}

#[cfg(test)]
mod tests;
