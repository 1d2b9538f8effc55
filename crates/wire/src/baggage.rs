//! W3C baggage: a list of `name=value;properties`, in one header or several.
//!
//! Criticality travels here because every OpenTelemetry SDK hands baggage on, so it survives
//! services that know nothing of tidegate. All other members belong to others: reading skips them,
//! writing keeps each of them byte for byte.
//!
//! ```text
//! baggage: userId=alice , criticality=CRITICAL_PLUS;by=edge, isProduction=false
//!          └── member ──┘ └─ name ──┘└── value ──┘└─property
//! ```
//!
//! Names are compared as they stand (W3C makes them case-sensitive); values are percent-decoded;
//! properties are skipped. W3C asks everyone to carry 64 members and 8,192 bytes. Reading stops
//! there, so that a flood of members costs no more than that, and says
//! [`Fault::OversizedBaggage`]. Writing puts our member first, where nobody cuts it off, and cuts
//! nothing off itself.

use crate::faults::{Fault, Faults};
use crate::headers::BAGGAGE;
use crate::text::{percent_decoded, split_once, trim};
use http::{HeaderMap, HeaderName, HeaderValue};

/// How many members W3C asks everyone to carry.
pub const MEMBERS_MAX: usize = 64;

/// How many bytes W3C asks everyone to carry: all members, and the commas between them.
pub const BYTES_MAX: usize = 8_192;

/// A `name=value` of the baggage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member<'a> {
    /// The name, as it stands.
    pub name: &'a [u8],
    /// The value, still percent-encoded, without its properties.
    pub value: &'a [u8],
}

impl<'a> Member<'a> {
    /// Reads what stands between two commas. Nothing if there is no name or no `=`.
    pub fn parse(segment: &'a [u8]) -> Option<Self> {
        let pair = split_once(segment, b';').map_or(segment, |(pair, _)| pair);
        let (name, value) = split_once(pair, b'=')?;
        let (name, value) = (trim(name), trim(value));
        (!name.is_empty() && name.iter().all(|&b| is_token(b))).then_some(Self { name, value })
    }
}

/// What RFC 9110 allows in a token, which a name has to be.
fn is_token(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

/// Reads baggage header by header, up to the limits of W3C over all of them.
#[derive(Debug, Default)]
pub struct Reader {
    members: usize,
    bytes: usize,
    faults: Faults,
}

impl Reader {
    /// Hands every member of `value` to `each`.
    pub fn read<'a>(&mut self, value: &'a [u8], mut each: impl FnMut(Member<'a>)) {
        for segment in value.split(|&b| b == b',') {
            self.bytes = self.bytes.saturating_add(segment.len() + 1);
            if trim(segment).is_empty() {
                continue;
            }
            self.members += 1;
            // The last member has no comma behind it.
            if self.members > MEMBERS_MAX || self.bytes > BYTES_MAX + 1 {
                self.faults.add(Fault::OversizedBaggage);
                return;
            }
            match Member::parse(segment) {
                Some(member) => each(member),
                None => self.faults.add(Fault::BadBaggage),
            }
        }
    }

    /// What made no sense.
    pub const fn faults(&self) -> Faults {
        self.faults
    }
}

/// The segments of all baggage headers that are not members called `name`, as they stand.
fn others<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a [u8]> {
    let segments =
        headers.get_all(&BAGGAGE).iter().flat_map(|v| v.as_bytes().split(|&b| b == b','));
    segments.filter(move |segment| {
        !trim(segment).is_empty()
            && Member::parse(segment).is_none_or(|member| member.name != name.as_bytes())
    })
}

/// Puts `member` (`name=value`) in the place of every member called `name`, first, and leaves the
/// others as they are, in one header.
///
/// `member` has to be proper baggage: it is a constant of whoever calls. Allocates once if there
/// are others, not at all if there are none.
pub(crate) fn set(headers: &mut HeaderMap, name: &str, member: &'static str) {
    let length: usize = others(headers, name).map(|segment| segment.len() + 1).sum();
    let value = if length == 0 {
        HeaderValue::from_static(member)
    } else {
        join(
            member.len() + length,
            core::iter::once(member.as_bytes()).chain(others(headers, name)),
        )
        .unwrap_or_else(|| HeaderValue::from_static(member))
    };
    headers.insert(&BAGGAGE, value);
}

/// Takes every member called `name` out, and leaves the others as they are.
pub(crate) fn remove(headers: &mut HeaderMap, name: &str) {
    let there = |value: &HeaderValue| {
        let mut segments = value.as_bytes().split(|&b| b == b',');
        segments.any(|segment| Member::parse(segment).is_some_and(|m| m.name == name.as_bytes()))
    };
    if !headers.get_all(&BAGGAGE).iter().any(there) {
        return;
    }
    let length: usize = others(headers, name).map(|segment| segment.len() + 1).sum();
    match join(length, others(headers, name)).filter(|_| length > 0) {
        Some(value) => headers.insert(&BAGGAGE, value),
        None => headers.remove(&BAGGAGE),
    };
}

/// Headers in which some tracer carries baggage.
static CARRIERS: [HeaderName; 2] =
    [HeaderName::from_static("baggage"), HeaderName::from_static("jaeger-baggage")];

/// Takes out every member whose name somebody may read as `name`: decoded, in any case, and
/// whatever stands around it. Leaves the others as they are; returns how many headers had such a
/// member in them, all of one name being one.
pub(crate) fn remove_alike(headers: &mut HeaderMap, name: &str) -> usize {
    let is_alike = |segment: &&[u8]| alike(segment, name);
    let mut changed = 0;
    for carrier in &CARRIERS {
        let values = headers.get_all(carrier);
        let mut segments = values.iter().flat_map(|v| v.as_bytes().split(|&b| b == b','));
        if !segments.any(|segment| is_alike(&segment)) {
            continue;
        }
        changed += 1;
        let segments = values.iter().flat_map(|v| v.as_bytes().split(|&b| b == b','));
        let kept: Vec<&[u8]> =
            segments.filter(|segment| !trim(segment).is_empty() && !is_alike(segment)).collect();
        let length = kept.iter().map(|segment| segment.len() + 1).sum();
        match join(length, kept.into_iter()).filter(|value| !value.is_empty()) {
            Some(value) => headers.insert(carrier, value),
            None => headers.remove(carrier),
        };
    }
    changed
}

fn alike(segment: &[u8], name: &str) -> bool {
    let pair = split_once(segment, b';').map_or(segment, |(pair, _)| pair);
    let key = split_once(pair, b'=').map_or(pair, |(key, _)| key);
    let mut decoded = percent_decoded(key).skip_while(|b| !b.is_ascii_alphanumeric());
    let named = name.bytes().all(|b| decoded.next().is_some_and(|d| d.eq_ignore_ascii_case(&b)));
    named && !decoded.any(|b| b.is_ascii_alphanumeric())
}

/// Joins by commas. Nothing comes of it only if a segment cannot stand in a header, and these
/// segments came out of headers.
fn join<'a>(capacity: usize, segments: impl Iterator<Item = &'a [u8]>) -> Option<HeaderValue> {
    let mut joined = Vec::with_capacity(capacity);
    for (n, segment) in segments.enumerate() {
        if n > 0 {
            joined.push(b',');
        }
        joined.extend_from_slice(segment);
    }
    HeaderValue::from_maybe_shared(bytes::Bytes::from(joined)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(&BAGGAGE, value.parse().unwrap());
        }
        headers
    }

    fn all(headers: &HeaderMap) -> Vec<&str> {
        headers.get_all(&BAGGAGE).iter().map(|v| v.to_str().unwrap()).collect()
    }

    #[test]
    fn members_by_hand() {
        for (segment, member) in [
            ("a=b", Some(("a", "b"))),
            (" a\t=  b ", Some(("a", "b"))),
            ("a=b;p=1;q", Some(("a", "b"))),
            ("a=b=c", Some(("a", "b=c"))),
            ("a=", Some(("a", ""))),
            ("a ;p=1", None),
            ("=b", None),
            ("a", None),
            ("a b=c", None),
            ("", None),
        ] {
            let found = Member::parse(segment.as_bytes());
            let expected = member.map(|(n, v)| (n.as_bytes(), v.as_bytes()));
            assert_eq!(found.map(|m| (m.name, m.value)), expected, "{segment:?}");
        }
    }

    #[test]
    fn limits_hold_over_all_headers() {
        let member = |n: usize| format!("k{n}=v");
        let list = |n: std::ops::Range<usize>| n.map(member).collect::<Vec<_>>().join(",");
        let read = |values: &[&str]| {
            let (mut reader, mut seen) = (Reader::default(), 0);
            for value in values {
                reader.read(value.as_bytes(), |_| seen += 1);
            }
            (seen, reader.faults())
        };
        assert_eq!(read(&[&list(0..64)]), (64, Faults::NONE));
        assert_eq!(read(&[&list(0..65)]), (64, Fault::OversizedBaggage.into()));
        assert_eq!(read(&[&list(0..40), &list(40..70)]), (64, Fault::OversizedBaggage.into()));
        let long = |n: usize| format!("a={}", "x".repeat(n - 2));
        assert_eq!(read(&[&long(8_192)]), (1, Faults::NONE));
        assert_eq!(read(&[&long(8_193)]), (0, Fault::OversizedBaggage.into()));
        assert_eq!(read(&[&long(8_188), "b=c"]), (2, Faults::NONE));
        assert_eq!(read(&[&long(8_189), "b=c"]), (1, Fault::OversizedBaggage.into()));
        assert_eq!(read(&["a=b,nonsense, ,c=d"]), (2, Fault::BadBaggage.into()));
    }

    #[test]
    fn others_stay_byte_for_byte() {
        for (before, after) in [
            (&[][..], "x=1"),
            (&["x=0"], "x=1"),
            (&["a=b"], "x=1,a=b"),
            (&[" a = b ;p=%20 ,x=0;q, nonsense"], "x=1, a = b ;p=%20 , nonsense"),
            (&["a=b,x=0", "x=2,c=d"], "x=1,a=b,c=d"),
            (&["X=0,xx=0"], "x=1,X=0,xx=0"),
        ] {
            let mut headers = map(before);
            set(&mut headers, "x", "x=1");
            assert_eq!(all(&headers), [after], "{before:?}");
        }
    }

    #[test]
    fn removing_leaves_the_rest() {
        for (before, after) in [
            (&[][..], &[][..]),
            (&["x=0"], &[]),
            (&["a=b"], &["a=b"]),
            (&["a=b", "c=d"], &["a=b", "c=d"]),
            (&["a=b, x=0 ;p", "c=d"], &["a=b,c=d"]),
        ] {
            let mut headers = map(before);
            remove(&mut headers, "x");
            assert_eq!(all(&headers), after, "{before:?}");
        }
    }
}
