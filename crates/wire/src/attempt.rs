//! Which try of a request this is.
//!
//! ```text
//! attempt = max(x-envoy-attempt-count, grpc-previous-rpc-attempts + 1, 1)
//! ```
//!
//! The highest, because Envoy sets its header anew at every hop: a third attempt may arrive with a
//! count of 1. A task keeps a histogram of these numbers to tell whether others are full too, so a
//! number without sense must not get in: it counts as absent.

use crate::faults::{Fault, Faults};
use crate::headers::{GRPC_PREVIOUS_RPC_ATTEMPTS, X_ENVOY_ATTEMPT_COUNT};
use crate::protocol::Protocol;
use crate::text::number;
use http::{HeaderMap, HeaderValue};

/// Nobody tries a request a thousand times: more is a mistake, or mischief.
pub const ATTEMPT_MAX: u32 = 1_000;

/// Reads an `x-envoy-attempt-count`, which begins at 1.
pub fn parse_count(value: &[u8]) -> Option<u32> {
    let count = number(value)?;
    (1..=u64::from(ATTEMPT_MAX)).contains(&count).then_some(count as u32)
}

/// Reads a `grpc-previous-rpc-attempts`, as the number of the attempt that carries it.
pub fn parse_previous(value: &[u8]) -> Option<u32> {
    let previous = number(value)?;
    (previous < u64::from(ATTEMPT_MAX)).then(|| previous as u32 + 1)
}

/// Gathers what a request says about its attempts.
#[derive(Debug, Default)]
pub(crate) struct Attempts {
    count: Option<u32>,
    previous: Option<u32>,
    faults: Faults,
}

impl Attempts {
    pub(crate) fn count(&mut self, value: &[u8]) {
        merge(&mut self.count, parse_count(value), &mut self.faults);
    }

    pub(crate) fn previous(&mut self, value: &[u8]) {
        merge(&mut self.previous, parse_previous(value), &mut self.faults);
    }

    pub(crate) fn finish(self) -> (u32, Faults) {
        (self.count.max(self.previous).unwrap_or(1), self.faults)
    }
}

/// The two headers may well differ; one that differs from itself is odd.
fn merge(slot: &mut Option<u32>, read: Option<u32>, faults: &mut Faults) {
    let Some(read) = read else { return faults.add(Fault::BadAttempt) };
    faults.add_if(slot.is_some_and(|before| before != read), Fault::Contradictory);
    *slot = (*slot).max(Some(read));
}

/// Which try `headers` say this is, from 1, and what in them made no sense.
pub fn read(headers: &HeaderMap) -> (u32, Faults) {
    let mut attempts = Attempts::default();
    for value in headers.get_all(&X_ENVOY_ATTEMPT_COUNT) {
        attempts.count(value.as_bytes());
    }
    for value in headers.get_all(&GRPC_PREVIOUS_RPC_ATTEMPTS) {
        attempts.previous(value.as_bytes());
    }
    attempts.finish()
}

/// Makes `headers` say that this is try number `attempt`: in gRPC how many were before, which is
/// absent on the first; in HTTP the number itself. Zero counts as 1.
pub fn write(headers: &mut HeaderMap, protocol: Protocol, attempt: u32) {
    let attempt = attempt.clamp(1, ATTEMPT_MAX);
    strip(headers);
    match protocol {
        Protocol::Http => _ = headers.insert(&X_ENVOY_ATTEMPT_COUNT, value(attempt)),
        Protocol::Grpc if attempt > 1 => {
            headers.insert(&GRPC_PREVIOUS_RPC_ATTEMPTS, value(attempt - 1));
        }
        Protocol::Grpc => {}
    }
}

/// Makes `headers` say nothing about attempts.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(&X_ENVOY_ATTEMPT_COUNT);
    headers.remove(&GRPC_PREVIOUS_RPC_ATTEMPTS);
}

/// Three attempts are the most that our own policy makes, and need no allocation.
fn value(number: u32) -> HeaderValue {
    match number {
        1 => HeaderValue::from_static("1"),
        2 => HeaderValue::from_static("2"),
        3 => HeaderValue::from_static("3"),
        more => HeaderValue::from(more),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_highest_that_makes_sense_counts() {
        const ENVOY: &str = "x-envoy-attempt-count";
        const GRPC: &str = "grpc-previous-rpc-attempts";
        for (pairs, attempt, faults) in [
            (&[][..], 1, &[][..]),
            (&[(ENVOY, "1")], 1, &[]),
            (&[(ENVOY, "3")], 3, &[]),
            (&[(GRPC, "1")], 2, &[]),
            (&[(GRPC, "0")], 1, &[]),
            // Envoy's own count began anew at its hop.
            (&[(ENVOY, "1"), (GRPC, "2")], 3, &[]),
            (&[(ENVOY, "5"), (GRPC, "2")], 5, &[]),
            (&[(ENVOY, "0")], 1, &[Fault::BadAttempt]),
            (&[(ENVOY, "-1"), (GRPC, "1")], 2, &[Fault::BadAttempt]),
            (&[(ENVOY, "1000")], 1_000, &[]),
            (&[(ENVOY, "1001")], 1, &[Fault::BadAttempt]),
            (&[(GRPC, "999")], 1_000, &[]),
            (&[(GRPC, "1000")], 1, &[Fault::BadAttempt]),
            (&[(GRPC, "4294967295")], 1, &[Fault::BadAttempt]),
            (&[(GRPC, "99999999999999999999")], 1, &[Fault::BadAttempt]),
            (&[(ENVOY, "two")], 1, &[Fault::BadAttempt]),
            (&[(ENVOY, "2"), (ENVOY, "3")], 3, &[Fault::Contradictory]),
        ] {
            let expected = (attempt, faults.iter().copied().collect());
            assert_eq!(read(&map(pairs)), expected, "{pairs:?}");
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for protocol in [Protocol::Http, Protocol::Grpc] {
            for (written, arrives) in [(0, 1), (1, 1), (2, 2), (3, 3), (4, 4), (5_000, 1_000)] {
                let mut headers = map(&[("x-envoy-attempt-count", "7")]);
                write(&mut headers, protocol, written);
                assert_eq!(read(&headers), (arrives, Faults::NONE));
            }
        }
        let mut headers = HeaderMap::new();
        write(&mut headers, Protocol::Grpc, 1);
        assert!(headers.is_empty());
    }
}
