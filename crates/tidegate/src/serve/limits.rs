//! The limits of a connection.

use core::time::Duration;
use thiserror::Error;
use tidegate_core::Ratio;

/// The limits of a connection, safe as they are. How many connections there may be is for the
/// [`ConnectionGate`](tidegate_core::connection::gate::ConnectionGate).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// How long the headers of a request may take to come, from their first byte, or up to a
    /// quarter longer; those of the first request from when there is a connection. Too short breaks
    /// slow phones and makes clients reconnect; too long lets someone who sends a byte a second
    /// hold connections cheaply.
    pub header_timeout: Duration,
    /// How many bytes the headers of an HTTP/1 request may have: what most servers take at most is
    /// 8 to 64 KiB. It is also how much of a body is read at once. At least 8 KiB.
    pub h1_buffer_max: usize,
    /// How many headers an HTTP/1 request may have; nothing means hyper's 100, which it reads
    /// without allocating.
    pub h1_headers_max: Option<usize>,
    /// How large the headers of an HTTP/2 request may be, uncompressed and with 32 bytes for each.
    pub h2_header_list_max: u32,
    /// How many streams a connection may have at once. 100 is the least that RFC 9113 recommends;
    /// twice that is more than most clients use, and few enough for one connection not to fill a
    /// task by itself.
    pub h2_streams_max: u32,
    /// How many streams a client may open and reset before they were looked at (rapid reset).
    pub h2_resets_max: usize,
    /// How many streams may be reset for being wrong before the connection is ended.
    pub h2_errors_max: usize,
    /// How often to ask whether the peer of an HTTP/2 connection is there; nothing for never.
    pub h2_ping_interval: Option<Duration>,
    /// How long it may take to answer.
    pub h2_ping_timeout: Duration,
    /// How long a peer may neither take any of an answer that is there for it nor, in HTTP/1, send
    /// any of a body that it has announced; nothing for as long as it likes. A request in such
    /// hands is in flight and does not end. In HTTP/2 that is seen for each answer by itself, whose
    /// stream is reset; bodies of requests are left alone, since calls of gRPC may be silent for
    /// long.
    pub stall_max: Option<Duration>,
    /// How long a connection may go without a request; nothing for as long as it likes. Clients
    /// that were idle for longer reconnect, or are watched over UDP.
    pub idle_max: Option<Duration>,
    /// How long a connection of HTTP/1 has to be unused before nothing but its transport is kept,
    /// or up to twice that; nothing for never. To make HTTP again when the next request comes takes
    /// a few microseconds; to keep it takes 30 KiB.
    pub rest_after: Option<Duration>,
    /// How old a connection may become before it is asked to end; nothing for as old as it likes.
    /// Connections that live for ever keep the tasks that were there first busier than those that
    /// came later.
    pub age_max: Option<Duration>,
    /// By what share of `age_max` the age of one connection may differ from that of the next, so
    /// that connections that came together do not come back together.
    pub age_jitter: Ratio,
    /// How much of a body is read and thrown away that nobody wants, so that the client comes to
    /// read the answer and can use the connection again. HTTP/1 only; HTTP/2 can say stop. Also how
    /// much is read of what comes on a connection, of both, after this end has closed it, unless it
    /// is the rest of a body.
    pub discard_max: u64,
    /// How long that may take, and how long a connection waits after its last answer for its peer
    /// to close it too: who closes with bytes that nobody has read resets the connection, and the
    /// answer with it.
    pub discard_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            header_timeout: Duration::from_secs(20),
            h1_buffer_max: 64 * 1024,
            h1_headers_max: None,
            h2_header_list_max: 64 * 1024,
            h2_streams_max: 200,
            // As many as there may be streams by default would still be a lot to throw away; this
            // is what hyper and h2 take.
            h2_resets_max: 20,
            h2_errors_max: 1_024,
            // Middleboxes forget connections after a minute or more.
            h2_ping_interval: Some(Duration::from_secs(30)),
            h2_ping_timeout: Duration::from_secs(20),
            // As nginx has it.
            stall_max: Some(Duration::from_secs(60)),
            idle_max: Some(Duration::from_secs(300)),
            // Who asks every second pays a few millionths of a core for it, and ten thousand who
            // do not need no more than they did before they asked.
            rest_after: Some(Duration::from_secs(1)),
            age_max: None,
            age_jitter: Ratio::percent(10),
            // At 1 MiB a new connection costs less than reading on. nginx keeps connections whose
            // refused bodies have 256 KiB, so that is well within.
            discard_max: 1024 * 1024,
            discard_timeout: Duration::from_secs(5),
        }
    }
}

/// A limit that would shut everybody out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the limit `{name}` has to be {right}")]
#[non_exhaustive]
pub struct InvalidLimit {
    /// Which one.
    pub name: &'static str,
    /// What it should be.
    pub right: &'static str,
}

impl Limits {
    /// hyper panics below this.
    const BUFFER_MIN: usize = 8 * 1024;

    /// Whether anybody can be served at all.
    pub fn check(&self) -> Result<(), InvalidLimit> {
        let none = Some(Duration::ZERO);
        let more = "more than zero, or nothing";
        for (wrong, name, right) in [
            (self.header_timeout.is_zero(), "header_timeout", "more than zero"),
            (self.h1_buffer_max < Self::BUFFER_MIN, "h1_buffer_max", "8 KiB or more"),
            (self.h1_headers_max == Some(0), "h1_headers_max", "one or more, or nothing"),
            (self.h2_header_list_max == 0, "h2_header_list_max", "one or more"),
            (self.h2_streams_max == 0, "h2_streams_max", "one or more"),
            (self.h2_ping_interval == none, "h2_ping_interval", more),
            (self.h2_ping_timeout.is_zero(), "h2_ping_timeout", "more than zero"),
            (self.stall_max == none, "stall_max", more),
            (self.idle_max == none, "idle_max", more),
            (self.rest_after == none, "rest_after", more),
            (self.age_max == none, "age_max", more),
        ] {
            if wrong {
                return Err(InvalidLimit { name, right });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_that_let_nobody_in_are_refused() {
        let good = Limits::default();
        assert_eq!(good.check(), Ok(()));
        let zero = Duration::ZERO;
        for (limits, name) in [
            (Limits { header_timeout: zero, ..good }, "header_timeout"),
            (Limits { h1_buffer_max: 8_191, ..good }, "h1_buffer_max"),
            (Limits { h1_headers_max: Some(0), ..good }, "h1_headers_max"),
            (Limits { h2_header_list_max: 0, ..good }, "h2_header_list_max"),
            (Limits { h2_streams_max: 0, ..good }, "h2_streams_max"),
            (Limits { h2_ping_interval: Some(zero), ..good }, "h2_ping_interval"),
            (Limits { h2_ping_timeout: zero, ..good }, "h2_ping_timeout"),
            (Limits { stall_max: Some(zero), ..good }, "stall_max"),
            (Limits { idle_max: Some(zero), ..good }, "idle_max"),
            (Limits { rest_after: Some(zero), ..good }, "rest_after"),
            (Limits { age_max: Some(zero), ..good }, "age_max"),
        ] {
            assert_eq!(limits.check().map_err(|error| error.name), Err(name));
        }
        let least = Limits { h1_buffer_max: 8_192, ..good };
        assert_eq!(least.check(), Ok(()));
    }
}
