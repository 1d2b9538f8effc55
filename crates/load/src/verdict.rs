//! How an attempt ended.
//!
//! What an answer means is told by `tidegate-wire`, which reads any server's. Here it becomes
//! whether it was OK, which is stricter: a 404 was served, but nobody is happy with it.

use core::fmt;
use http::{HeaderMap, StatusCode};
use std::io;
use std::time::SystemTime;
use tidegate_core::Outcome;
use tidegate_core::decision::{Advice, Reason};
use tidegate_wire::answer;
use tidegate_wire::grpc;
use tidegate_wire::headers::GRPC_STATUS;
use tidegate_wire::protocol::Protocol;

/// The number in an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Code {
    /// A status of HTTP.
    Http(u16),
    /// A status of gRPC.
    Grpc(u8),
}

/// The names of gRPC's statuses, by number.
const GRPC: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Http(status) => write!(f, "{status}"),
            Self::Grpc(code) => f.write_str(GRPC.get(usize::from(*code)).unwrap_or(&"UNKNOWN")),
        }
    }
}

/// An answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub(crate) code: Code,
    pub(crate) ok: bool,
    pub(crate) outcome: Outcome,
    pub(crate) advice: Option<Advice>,
    pub(crate) reason: Option<Reason>,
}

impl Verdict {
    /// Of a status that needs no second look.
    fn served(status: u16) -> Self {
        Self {
            code: Code::Http(status),
            ok: status < 400,
            outcome: Outcome::Served,
            advice: None,
            reason: None,
        }
    }

    pub(crate) fn of_http(status: u16, headers: &HeaderMap) -> Self {
        if status < 500 && status != 429 {
            return Self::served(status);
        }
        let code = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let answer = answer::read(code, headers, None, Protocol::Http, SystemTime::now);
        Self { code: Code::Http(status), ok: false, ..Self::of_answer(&answer) }
    }

    pub(crate) fn of_grpc(
        status: StatusCode,
        headers: &HeaderMap,
        trailers: Option<&HeaderMap>,
    ) -> Self {
        let told = trailers.and_then(|trailers| trailers.get(&GRPC_STATUS));
        let told = told.or_else(|| headers.get(&GRPC_STATUS));
        let code = told.map(|value| grpc::Code::parse(value.as_bytes()));
        let answer = answer::read(status, headers, trailers, Protocol::Grpc, SystemTime::now);
        Self {
            code: match code {
                Some(code) => Code::Grpc(code as u8),
                // A stream that ended without a status was cut off.
                None if status == StatusCode::OK => Code::Grpc(grpc::Code::Unknown as u8),
                None => Code::Http(status.as_u16()),
            },
            ok: code == Some(grpc::Code::Ok),
            ..Self::of_answer(&answer)
        }
    }

    fn of_answer(answer: &answer::Answer) -> Self {
        Self {
            code: Code::Http(0),
            ok: false,
            outcome: answer.outcome,
            advice: answer.advice,
            reason: answer.reason,
        }
    }
}

macro_rules! kinds {
    ($($(#[$about:meta])* $kind:ident = $code:literal;)*) => {
        /// Why there was no answer.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum ErrorKind {
            $($(#[$about])* $kind,)*
        }

        impl ErrorKind {
            /// All, for tables of counters.
            pub const ALL: &[Self] = &[$(Self::$kind,)*];

            /// The code that stands in reports.
            pub const fn code(self) -> &'static str {
                match self { $(Self::$kind => $code,)* }
            }
        }
    };
}

kinds! {
    /// Nobody listens there.
    ConnectionRefused = "connection_refused";
    /// There is no way there.
    Unreachable = "unreachable";
    /// The server broke the connection off.
    ConnectionReset = "connection_reset";
    /// The server closed the connection before it had answered.
    ConnectionClosed = "connection_closed";
    /// The server ended this stream of a connection.
    StreamReset = "stream_reset";
    /// No answer within the time that callers wait.
    Timeout = "timeout";
    /// No encrypted connection came about.
    Tls = "tls";
    /// The server does not speak the protocol, by its own account (ALPN).
    Alpn = "alpn";
    /// What came was no answer.
    Malformed = "malformed";
    /// This process may not open more files.
    OutOfFiles = "out_of_files";
    /// This machine has no port left to connect from.
    OutOfPorts = "out_of_ports";
    /// Something else that the system says.
    Io = "io";
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl ErrorKind {
    pub(crate) fn of(error: &io::Error) -> Self {
        use rustix::io::Errno;
        match error.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::MFILE | Errno::NFILE) => return Self::OutOfFiles,
            Some(Errno::ADDRNOTAVAIL) => return Self::OutOfPorts,
            _ => {}
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused => Self::ConnectionRefused,
            io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted => {
                Self::ConnectionReset
            }
            io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof => Self::ConnectionClosed,
            io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Self::Unreachable,
            io::ErrorKind::TimedOut => Self::Timeout,
            io::ErrorKind::InvalidData => Self::Tls,
            _ => Self::Io,
        }
    }
}

/// An attempt without an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Failed {
    pub(crate) kind: ErrorKind,
    /// Whether the server may have seen the request.
    pub(crate) sent: bool,
}

impl Failed {
    pub(crate) const fn unsent(kind: ErrorKind) -> Self {
        Self { kind, sent: false }
    }

    pub(crate) const fn sent(kind: ErrorKind) -> Self {
        Self { kind, sent: true }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|&(name, value)| (name.parse().unwrap(), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn answers_by_the_table() {
        for (status, pairs, ok, outcome) in [
            (200, &[][..], true, Outcome::Served),
            (302, &[], true, Outcome::Served),
            (404, &[], false, Outcome::Served),
            (500, &[], false, Outcome::Failed),
            (503, &[], false, Outcome::Refused(Advice::RetryElsewhere)),
            (503, &[("x-envoy-ratelimited", "true")], false, Outcome::Refused(Advice::DontRetry)),
            (429, &[], false, Outcome::Refused(Advice::DontRetry)),
            (504, &[], false, Outcome::NoAnswer),
        ] {
            let verdict = Verdict::of_http(status, &headers(pairs));
            assert_eq!((verdict.ok, verdict.outcome), (ok, outcome), "{status}");
            assert_eq!(verdict.code, Code::Http(status));
        }
        let reason = headers(&[("x-tidegate-reason", "overloaded")]);
        assert_eq!(Verdict::of_http(503, &reason).reason, Some(Reason::Overloaded));
    }

    #[test]
    fn grpc_by_the_table() {
        let of = |status: u16, pairs: &[_], trailers: Option<&[_]>| {
            let trailers = trailers.map(headers);
            let status = StatusCode::from_u16(status).unwrap();
            Verdict::of_grpc(status, &headers(pairs), trailers.as_ref())
        };
        let good = of(200, &[], Some(&[("grpc-status", "0")]));
        assert!(good.ok && good.code == Code::Grpc(0));
        let refused = of(200, &[("grpc-status", "14")], None);
        assert_eq!(refused.code.to_string(), "UNAVAILABLE");
        assert_eq!(refused.outcome, Outcome::Refused(Advice::RetryElsewhere));
        let cut_off = of(200, &[], None);
        assert_eq!((cut_off.ok, cut_off.outcome), (false, Outcome::Failed));
        assert_eq!(of(503, &[], None).code, Code::Http(503));
        // What the server says has the numbers of the list above.
        for (number, code) in grpc::Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, number);
        }
    }
}
