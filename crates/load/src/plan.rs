//! All that a run needs to know, in types that cannot be wrong.

use crate::mix::{Mix, Route, Weighted};
use crate::schedule::{Spacing, Stage};
use crate::target::Target;
use crate::text::Unreadable;
use crate::tls::Trust;
use bytes::Bytes;
use core::num::NonZeroU32;
use core::str::FromStr;
use core::time::Duration;
use http::{HeaderMap, Method};

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Protocol {
    /// HTTP/1.1, one request at a time on each connection.
    #[default]
    Http1,
    /// HTTP/2, with prior knowledge where there is no TLS.
    H2,
    /// Unary gRPC over HTTP/2. Bodies are messages.
    Grpc,
}

impl Protocol {
    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http1 => "http1",
            Self::H2 => "h2",
            Self::Grpc => "grpc",
        }
    }

    pub(crate) const fn alpn(self) -> &'static [u8] {
        match self {
            Self::Http1 => b"http/1.1",
            Self::H2 | Self::Grpc => b"h2",
        }
    }

    pub(crate) const fn wire(self) -> tidegate_wire::protocol::Protocol {
        match self {
            Self::Http1 | Self::H2 => tidegate_wire::protocol::Protocol::Http,
            Self::Grpc => tidegate_wire::protocol::Protocol::Grpc,
        }
    }
}

impl FromStr for Protocol {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match text {
            "http1" | "http/1.1" | "h1" => Ok(Self::Http1),
            "h2" | "http2" | "http/2" => Ok(Self::H2),
            "grpc" => Ok(Self::Grpc),
            _ => Err(Unreadable::new(format!("`{text}` is no protocol"), "http1, h2 or grpc")),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Protocol {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parsed(deserializer)
    }
}

/// What callers do when an attempt fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Retry {
    /// Nothing.
    #[default]
    None,
    /// So many attempts in all, at once, whatever the failure was and whatever the server said.
    /// Each attempt waits for as long as the first: this is what makes storms.
    Naive(NonZeroU32),
    /// As tidegate's own clients do: at most three attempts, at most a tenth of all requests,
    /// and never against the server's advice.
    Budgeted,
}

/// Enough to make a storm; more attempts only take longer.
const ATTEMPTS_MAX: u32 = 10;

impl FromStr for Retry {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let naive = |attempts: &str| {
            let attempts: u32 = attempts.parse().ok()?;
            NonZeroU32::new(attempts).filter(|_| (2..=ATTEMPTS_MAX).contains(&attempts))
        };
        match text {
            "none" => Some(Self::None),
            "budgeted" => Some(Self::Budgeted),
            "naive" => naive("3").map(Self::Naive),
            _ => text.strip_prefix("naive:").and_then(naive).map(Self::Naive),
        }
        .ok_or_else(|| {
            let right = "none, budgeted, or naive:3 for three attempts in all (2 to 10)";
            Unreadable::new(format!("`{text}` is no retry behaviour"), right)
        })
    }
}

impl core::fmt::Display for Retry {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Naive(attempts) => write!(f, "naive:{attempts}"),
            Self::Budgeted => f.write_str("budgeted"),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Retry {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parsed(deserializer)
    }
}

/// When requests start.
#[derive(Debug, Clone, PartialEq)]
pub enum Load {
    /// At times that were drawn beforehand, whatever becomes of the ones before.
    Open {
        /// One after the other.
        stages: Vec<Stage>,
        /// How they lie around what is expected.
        spacing: Spacing,
    },
    /// Each connection, or stream of one, asks again as soon as it is answered. For finding out
    /// what a server can do; its latencies leave out what slow answers keep from being asked.
    Closed {
        /// For how long.
        duration: Duration,
    },
}

impl Load {
    /// How long it lasts.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Open { stages, .. } => stages.iter().map(Stage::duration).sum(),
            Self::Closed { duration } => *duration,
        }
    }
}

/// What callers do: exchanged as a whole while a run goes on ([`Handle::switch`]).
///
/// [`Handle::switch`]: crate::Handle::switch
#[derive(Debug, Clone)]
pub struct Course {
    /// When requests start.
    pub load: Load,
    /// Names the dice.
    pub seed: u64,
    /// What they ask for.
    pub routes: Weighted<Route>,
    /// What callers do when an attempt fails.
    pub retry: Retry,
    /// Whether clients hold back what a server would most likely refuse.
    pub throttle: bool,
    /// How long callers wait for an answer, from when the request should have started.
    pub timeout: Duration,
    /// How long they wait for a single attempt; no longer than for the request.
    pub attempt_timeout: Option<Duration>,
    /// Whether they wait until the timeout even if the deadline that they named has passed.
    pub wait_past_deadline: bool,
}

/// All that a run needs to know.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Whom to ask.
    pub target: Target,
    /// In which language.
    pub protocol: Protocol,
    /// Whose certificates to believe.
    pub trust: Trust,
    /// What callers do.
    pub course: Course,
    /// Requests that should start in this time are sent, and not counted. The rate is that of the
    /// beginning.
    pub warmup: Duration,
    /// Connections that are there from the start.
    pub connections: u32,
    /// How many there may be when all are busy.
    pub connections_max: u32,
    /// Requests at once on a connection of HTTP/2.
    pub streams: u32,
    /// How many requests may wait for a connection; the next one is not sent.
    pub backlog: u32,
    /// Threads that send.
    pub threads: u32,
    /// How often what has happened is told.
    pub interval: Duration,
}

/// How long callers wait by default: longer than any answer that is worth waiting for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// What may wait for a connection by default: ten thousand are some megabytes.
pub(crate) const BACKLOG: u32 = 10_000;

impl Protocol {
    /// Connections by default. On HTTP/1.1 each carries one request, and 64 are what a hundred
    /// milliseconds at 640 a second need; on HTTP/2 four carry hundreds.
    pub(crate) const fn connections(self) -> u32 {
        match self {
            Self::Http1 => 64,
            Self::H2 | Self::Grpc => 4,
        }
    }

    /// How many there may be by default: about what a process may have open (1,024 files), and as
    /// many requests on HTTP/2.
    pub(crate) const fn connections_max(self) -> u32 {
        match self {
            Self::Http1 => 960,
            Self::H2 | Self::Grpc => 16,
        }
    }
}

/// Streams by default: what servers commonly allow at once.
pub(crate) const STREAMS: u32 = 100;

impl Plan {
    /// `GET` of the target's path, by HTTP/1.1, at what `stages` say.
    pub fn new(target: Target, stages: Vec<Stage>, seed: u64) -> Self {
        let protocol = Protocol::default();
        let route = Route {
            method: Method::GET,
            path: target.path.clone(),
            headers: HeaderMap::new(),
            bodies: Weighted::only(Bytes::new()),
            mix: Mix::default(),
        };
        Self {
            target,
            protocol,
            trust: Trust::default(),
            course: Course {
                load: Load::Open { stages, spacing: Spacing::default() },
                seed,
                routes: Weighted::only(route),
                retry: Retry::default(),
                throttle: false,
                timeout: TIMEOUT,
                attempt_timeout: None,
                wait_past_deadline: false,
            },
            warmup: Duration::ZERO,
            connections: protocol.connections(),
            connections_max: protocol.connections_max(),
            streams: STREAMS,
            backlog: BACKLOG,
            threads: 1,
            interval: Duration::from_secs(1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_by_the_table() {
        let three = NonZeroU32::new(3).unwrap();
        for (text, retry) in [
            ("none", Some(Retry::None)),
            ("budgeted", Some(Retry::Budgeted)),
            ("naive", Some(Retry::Naive(three))),
            ("naive:3", Some(Retry::Naive(three))),
            ("naive:1", None),
            ("naive:11", None),
            ("always", None),
        ] {
            assert_eq!(text.parse().ok(), retry, "{text}");
            if let Some(retry) = retry {
                assert_eq!(retry.to_string().parse(), Ok(retry));
            }
        }
        for protocol in [Protocol::Http1, Protocol::H2, Protocol::Grpc] {
            assert_eq!(protocol.name().parse(), Ok(protocol));
        }
        assert!("http3".parse::<Protocol>().is_err());
    }
}
