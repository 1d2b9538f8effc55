//! Criticality on the wire.
//!
//! Read from the first of these that names one of the four, in any case:
//!
//! 1. the member `criticality` of the baggage,
//! 2. `x-criticality`,
//! 3. `x-request-criticality`,
//! 4. in gRPC, the metadata `criticality`.
//!
//! A text that is none of the four counts as absent, and as [`Fault::BadCriticality`]. Sources that
//! disagree are [`Fault::Contradictory`], and the first wins. A source that is there twice and
//! disagrees with itself (a proxy may have appended to what a client sent, or the other way round)
//! counts as the lower one: nobody gains by repeating himself.
//!
//! Written to the first two. What is read is a claim and no more:
//! [`Peer::criticality`](crate::customer::Peer::criticality) holds it against the sender's ceiling.

use crate::baggage;
use crate::faults::{Fault, Faults};
use crate::headers::{BAGGAGE, CRITICALITY, X_CRITICALITY, X_REQUEST_CRITICALITY};
use crate::protocol::Protocol;
use crate::text::{percent_decoded, trim};
use http::{HeaderMap, HeaderValue};
use tidegate_core::Criticality;

/// The name of our member in the baggage.
pub const MEMBER: &str = "criticality";

/// The criticality that these bytes name.
pub fn parse(text: &[u8]) -> Option<Criticality> {
    // As it is nearly always written.
    match text {
        b"CRITICAL" => return Some(Criticality::Critical),
        b"CRITICAL_PLUS" => return Some(Criticality::CriticalPlus),
        b"SHEDDABLE" => return Some(Criticality::Sheddable),
        b"SHEDDABLE_PLUS" => return Some(Criticality::SheddablePlus),
        _ => {}
    }
    let text = trim(text);
    Criticality::ALL.into_iter().find(|c| c.name().as_bytes().eq_ignore_ascii_case(text))
}

/// As [`parse`], of a value in baggage.
pub fn parse_member(value: &[u8]) -> Option<Criticality> {
    if !value.contains(&b'%') {
        return parse(value);
    }
    let same = |c: &Criticality| {
        let name = c.name().bytes();
        name.eq(percent_decoded(value).map(|b| b.to_ascii_uppercase()))
    };
    Criticality::ALL.into_iter().find(same)
}

/// Gathers what a request says about its criticality, header by header, in any order.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// What each source says, the first to be believed first.
    sources: [Option<Criticality>; 4],
    baggage: baggage::Reader,
    faults: Faults,
}

/// Sources in the order in which they are believed.
#[derive(Clone, Copy)]
pub(crate) enum Source {
    Baggage,
    XCriticality,
    XRequestCriticality,
    Metadata,
}

impl Claims {
    pub(crate) fn baggage(&mut self, value: &[u8]) {
        let Self { sources, baggage, faults } = self;
        baggage.read(value, |member| {
            if member.name == MEMBER.as_bytes() {
                claim(sources, faults, Source::Baggage, parse_member(member.value));
            }
        });
    }

    pub(crate) fn header(&mut self, source: Source, value: &[u8]) {
        claim(&mut self.sources, &mut self.faults, source, parse(value));
    }

    pub(crate) fn finish(self) -> (Option<Criticality>, Faults) {
        let mut faults = self.faults.union(self.baggage.faults());
        let mut said = self.sources.into_iter().flatten();
        let first = said.next();
        faults.add_if(said.any(|other| Some(other) != first), Fault::Contradictory);
        (first, faults)
    }
}

fn claim(
    sources: &mut [Option<Criticality>; 4],
    faults: &mut Faults,
    source: Source,
    read: Option<Criticality>,
) {
    let Some(read) = read else { return faults.add(Fault::BadCriticality) };
    let slot = &mut sources[source as usize];
    faults.add_if(slot.is_some_and(|before| before != read), Fault::Contradictory);
    *slot = Some(slot.map_or(read, |before| before.min(read)));
}

/// What `headers` claim, and what in them made no sense.
///
/// For requests of which nothing else is wanted;
/// [`Incoming::read`](crate::incoming::Incoming::read) has this and everything else in one pass.
pub fn read(headers: &HeaderMap, protocol: Protocol) -> (Option<Criticality>, Faults) {
    let mut claims = Claims::default();
    for value in headers.get_all(&BAGGAGE) {
        claims.baggage(value.as_bytes());
    }
    for (name, source) in [
        (&X_CRITICALITY, Source::XCriticality),
        (&X_REQUEST_CRITICALITY, Source::XRequestCriticality),
        (&CRITICALITY, Source::Metadata),
    ] {
        if matches!(source, Source::Metadata) && protocol != Protocol::Grpc {
            continue;
        }
        for value in headers.get_all(name) {
            claims.header(source, value.as_bytes());
        }
    }
    claims.finish()
}

/// Makes `headers` say `criticality`, wherever they said anything else. Other baggage stays as it
/// is, byte for byte.
///
/// Allocates only if there is other baggage.
pub fn write(headers: &mut HeaderMap, criticality: Criticality) {
    let member = match criticality {
        Criticality::Sheddable => "criticality=SHEDDABLE",
        Criticality::SheddablePlus => "criticality=SHEDDABLE_PLUS",
        Criticality::Critical => "criticality=CRITICAL",
        Criticality::CriticalPlus => "criticality=CRITICAL_PLUS",
    };
    baggage::set(headers, MEMBER, member);
    headers.insert(&X_CRITICALITY, HeaderValue::from_static(criticality.name()));
    headers.remove(&X_REQUEST_CRITICALITY);
    headers.remove(&CRITICALITY);
}

/// Makes `headers` say nothing about criticality. Other baggage stays.
pub fn strip(headers: &mut HeaderMap) {
    baggage::remove(headers, MEMBER);
    for name in [&X_CRITICALITY, &X_REQUEST_CRITICALITY, &CRITICALITY] {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
    use Fault::{BadBaggage, BadCriticality, Contradictory};

    fn map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    type Case<'a> = (&'a [(&'static str, &'a str)], Option<Criticality>, &'a [Fault]);

    #[test]
    fn the_first_source_that_makes_sense_wins() {
        let cases: &[Case<'_>] = &[
            (&[], None, &[]),
            (&[("baggage", "criticality=CRITICAL_PLUS")], Some(CriticalPlus), &[]),
            (&[("baggage", "a=b, criticality = critical%5fplus ;x=y")], Some(CriticalPlus), &[]),
            (&[("baggage", "a=b"), ("baggage", "criticality=SHEDDABLE")], Some(Sheddable), &[]),
            (&[("x-criticality", "sheddable_plus")], Some(SheddablePlus), &[]),
            (&[("x-request-criticality", "CRITICAL")], Some(Critical), &[]),
            (&[("criticality", "Critical")], Some(Critical), &[]),
            (
                &[("x-criticality", "CRITICAL"), ("baggage", "criticality=SHEDDABLE")],
                Some(Sheddable),
                &[Contradictory],
            ),
            (
                &[("x-criticality", "SHEDDABLE"), ("baggage", "criticality=SHEDDABLE")],
                Some(Sheddable),
                &[],
            ),
            (
                &[("baggage", "criticality=HIGH"), ("x-criticality", "CRITICAL")],
                Some(Critical),
                &[BadCriticality],
            ),
            (&[("x-criticality", "")], None, &[BadCriticality]),
            (&[("x-criticality", "CRITICAL, CRITICAL_PLUS")], None, &[BadCriticality]),
            (
                &[("x-criticality", "CRITICAL"), ("x-criticality", "CRITICAL_PLUS")],
                Some(Critical),
                &[Contradictory],
            ),
            (
                &[("baggage", "criticality=CRITICAL_PLUS,criticality=SHEDDABLE")],
                Some(Sheddable),
                &[Contradictory],
            ),
            (&[("baggage", "Criticality=CRITICAL")], None, &[]),
            (&[("baggage", "criticality")], None, &[BadBaggage]),
            (&[("baggage", "criticality=%43RITICAL%")], None, &[BadCriticality]),
        ];
        for &(pairs, criticality, faults) in cases {
            let found = read(&map(pairs), Protocol::Grpc);
            assert_eq!(found, (criticality, faults.iter().copied().collect()), "{pairs:?}");
        }
    }

    #[test]
    fn metadata_is_of_grpc_only() {
        let headers = map(&[("criticality", "CRITICAL_PLUS")]);
        assert_eq!(read(&headers, Protocol::Http), (None, Faults::NONE));
    }

    #[test]
    fn what_is_written_is_read_and_nothing_else() {
        for criticality in Criticality::ALL {
            let mut headers = map(&[
                ("baggage", "a=1;p , criticality=CRITICAL"),
                ("baggage", "b=2"),
                ("x-request-criticality", "CRITICAL_PLUS"),
                ("criticality", "CRITICAL_PLUS"),
            ]);
            write(&mut headers, criticality);
            assert_eq!(read(&headers, Protocol::Grpc), (Some(criticality), Faults::NONE));
            let expected = format!("criticality={criticality},a=1;p ,b=2");
            assert_eq!(headers["baggage"].to_str().unwrap(), expected);
            assert_eq!(headers["x-criticality"].to_str().unwrap(), criticality.name());
            strip(&mut headers);
            assert_eq!(headers.len(), 1);
            assert_eq!(headers["baggage"], "a=1;p ,b=2");
        }
    }
}
