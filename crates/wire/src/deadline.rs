//! How long whoever asked will wait.
//!
//! `grpc-timeout` is at most eight digits and a unit (`H M S m u n`); Envoy's
//! `x-envoy-expected-rq-timeout-ms` is whole milliseconds. Both are times that remain, so that
//! clocks need not agree. Where both are there the shorter counts: a retrying Envoy says how long
//! it waits for this try, `grpc-timeout` may be its client's whole wait, and work that outlives
//! either is for nobody.
//!
//! A `grpc-timeout` of zero is a deadline that has passed: clients write that. An Envoy never
//! writes zero milliseconds, as zero is its way to say no deadline, so that is
//! [`Fault::BadDeadline`] and counts as absent: taken at its word it would fail every request.

use crate::faults::{Fault, Faults};
use crate::headers::{GRPC_TIMEOUT, X_ENVOY_EXPECTED_RQ_TIMEOUT_MS};
use crate::protocol::Protocol;
use crate::text::{number, trim};
use core::time::Duration;
use http::{HeaderMap, HeaderValue};
use std::fmt::Write;

/// gRPC's limit on the digits of a timeout.
const DIGITS_MAX: usize = 8;

/// The first value with a digit too many.
const VALUE_END: u128 = 10_u128.pow(DIGITS_MAX as u32);

/// The units of gRPC, finest first, in nanoseconds.
const UNITS: [(u8, u64); 6] = [
    (b'n', 1),
    (b'u', 1_000),
    (b'm', 1_000_000),
    (b'S', 1_000_000_000),
    (b'M', 60_000_000_000),
    (b'H', 3_600_000_000_000),
];

/// Reads a `grpc-timeout`.
pub fn parse_grpc(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = trim(value).split_last()?;
    if digits.len() > DIGITS_MAX || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let value = number(digits)?;
    let (_, nanos) = UNITS.into_iter().find(|&(name, _)| name == unit)?;
    // A hundred million hours are more nanoseconds than 64 bits hold.
    let nanos = u128::from(value) * u128::from(nanos);
    Some(Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32))
}

/// Reads an `x-envoy-expected-rq-timeout-ms`.
pub fn parse_envoy(value: &[u8]) -> Option<Duration> {
    number(value).filter(|&millis| millis > 0).map(Duration::from_millis)
}

/// Gathers what a request says about its deadline.
#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    shortest: Option<Duration>,
    grpc: Option<Duration>,
    envoy: Option<Duration>,
    faults: Faults,
}

impl Deadlines {
    pub(crate) fn grpc(&mut self, value: &[u8]) {
        merge(&mut self.grpc, parse_grpc(value), &mut self.faults);
        self.shortest = shorter(self.shortest, self.grpc);
    }

    pub(crate) fn envoy(&mut self, value: &[u8]) {
        merge(&mut self.envoy, parse_envoy(value), &mut self.faults);
        self.shortest = shorter(self.shortest, self.envoy);
    }

    pub(crate) const fn finish(self) -> (Option<Duration>, Faults) {
        (self.shortest, self.faults)
    }
}

/// The two headers may well differ; one that differs from itself is odd.
fn merge(slot: &mut Option<Duration>, read: Option<Duration>, faults: &mut Faults) {
    if read.is_none() {
        return faults.add(Fault::BadDeadline);
    }
    faults.add_if(slot.is_some() && *slot != read, Fault::Contradictory);
    *slot = shorter(*slot, read);
}

fn shorter(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}

/// How long `headers` say that the caller waits, and what in them made no sense.
pub fn read(headers: &HeaderMap) -> (Option<Duration>, Faults) {
    let mut deadlines = Deadlines::default();
    for value in headers.get_all(&GRPC_TIMEOUT) {
        deadlines.grpc(value.as_bytes());
    }
    for value in headers.get_all(&X_ENVOY_EXPECTED_RQ_TIMEOUT_MS) {
        deadlines.envoy(value.as_bytes());
    }
    deadlines.finish()
}

/// Makes `headers` say that we wait for `remaining`.
///
/// gRPC gets the finest unit that has room, rounded down: whoever works for us stops no later than
/// we do. Milliseconds are rounded down too, but not to zero, which would mean no deadline.
pub fn write(headers: &mut HeaderMap, protocol: Protocol, remaining: Duration) {
    strip(headers);
    match protocol {
        Protocol::Grpc => headers.insert(&GRPC_TIMEOUT, grpc_value(remaining)),
        Protocol::Http => {
            let millis = u64::try_from(remaining.as_millis()).unwrap_or(u64::MAX).max(1);
            headers.insert(&X_ENVOY_EXPECTED_RQ_TIMEOUT_MS, HeaderValue::from(millis))
        }
    };
}

/// Makes `headers` say nothing about deadlines.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(&GRPC_TIMEOUT);
    headers.remove(&X_ENVOY_EXPECTED_RQ_TIMEOUT_MS);
}

fn grpc_value(remaining: Duration) -> HeaderValue {
    let nanos = remaining.as_nanos();
    let fits = |&&(_, unit): &&(u8, u64)| nanos / u128::from(unit) < VALUE_END;
    let Some(&(name, unit)) = UNITS.iter().find(fits) else {
        return HeaderValue::from_static("99999999H");
    };
    let mut text = String::with_capacity(DIGITS_MAX + 1);
    // A string takes whatever it is given.
    _ = write!(text, "{}{}", nanos / u128::from(unit), char::from(name));
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("0n"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn all_six_units_and_nothing_else() {
        for (text, nanos) in [
            ("1n", Some(1)),
            ("2u", Some(2_000)),
            ("3m", Some(3_000_000)),
            ("4S", Some(4_000_000_000)),
            ("5M", Some(300_000_000_000)),
            ("6H", Some(21_600_000_000_000)),
            ("0n", Some(0)),
            ("99999999H", Some(359_999_996_400_000_000_000)),
            ("00000001S", Some(1_000_000_000)),
            ("100000000n", None),
            ("000000001n", None),
            ("1", None),
            ("S", None),
            ("", None),
            ("1s", None),
            ("1h", None),
            ("-1S", None),
            ("+1S", None),
            ("1.5S", None),
            ("1 S", None),
        ] {
            let found = parse_grpc(text.as_bytes()).map(|d| d.as_nanos());
            assert_eq!(found, nanos, "{text:?}");
        }
        for (text, millis) in [("15000", Some(15_000)), ("0", None), ("1.5", None), ("-1", None)] {
            assert_eq!(parse_envoy(text.as_bytes()), millis.map(Duration::from_millis), "{text:?}");
        }
    }

    #[test]
    fn the_shorter_counts() {
        const GRPC: &str = "grpc-timeout";
        const ENVOY: &str = "x-envoy-expected-rq-timeout-ms";
        for (pairs, millis, faults) in [
            (&[][..], None, &[][..]),
            (&[(GRPC, "1S")], Some(1_000), &[]),
            (&[(ENVOY, "250")], Some(250), &[]),
            (&[(GRPC, "1S"), (ENVOY, "250")], Some(250), &[]),
            (&[(GRPC, "100m"), (ENVOY, "250")], Some(100), &[]),
            (&[(GRPC, "soon"), (ENVOY, "250")], Some(250), &[Fault::BadDeadline]),
            (&[(ENVOY, "0")], None, &[Fault::BadDeadline]),
            (&[(GRPC, "2S"), (GRPC, "1S")], Some(1_000), &[Fault::Contradictory]),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in pairs {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let expected = (millis.map(Duration::from_millis), faults.iter().copied().collect());
            assert_eq!(read(&headers), expected, "{pairs:?}");
        }
    }

    #[test]
    fn written_in_the_finest_unit_that_has_room() {
        for (remaining, text) in [
            (Duration::ZERO, "0n"),
            (Duration::from_nanos(99_999_999), "99999999n"),
            (Duration::from_nanos(100_000_001), "100000u"),
            (Duration::from_secs(1), "1000000u"),
            (Duration::from_secs(100), "100000m"),
            (Duration::from_secs(100_000), "100000S"),
            // A hundred million minutes have a digit too many.
            (Duration::from_secs(6_000_000_001), "1666666H"),
            (Duration::MAX, "99999999H"),
        ] {
            assert_eq!(grpc_value(remaining).to_str().unwrap(), text);
        }
    }

    proptest! {
        #[test]
        fn written_is_read_and_never_later(
            secs in 0_u64..350_000_000_000,
            nanos in 0_u32..1_000_000_000,
        ) {
            let remaining = Duration::new(secs, nanos);
            let mut headers = HeaderMap::new();
            write(&mut headers, Protocol::Grpc, remaining);
            let (found, faults) = read(&headers);
            prop_assert_eq!(faults, Faults::NONE);
            let found = found.unwrap();
            prop_assert!(found <= remaining);
            // The next finer unit would have had nine digits, and the next coarser one is at most a
            // thousand times as long: five digits are left, and one unit of the last is lost.
            let lost = remaining.checked_sub(found).unwrap().as_nanos();
            prop_assert!(lost * 100_000 <= remaining.as_nanos(), "{lost}");
            write(&mut headers, Protocol::Http, remaining);
            let found = read(&headers).0.unwrap();
            prop_assert_eq!(found.as_millis(), remaining.as_millis().max(1));
        }
    }
}
