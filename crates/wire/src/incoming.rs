//! Everything that a request says about itself, in one pass over its headers.
//!
//! A dozen headers matter. A dozen look-ups would hash a dozen names, most of which are not there;
//! going over the headers once costs a compare of lengths each. Nothing is allocated and nothing
//! is believed yet: who may claim what is for [`customer`](crate::customer).

use crate::attempt::Attempts;
use crate::criticality::{Claims, Source};
use crate::customer::Peer;
use crate::deadline::Deadlines;
use crate::faults::{Fault, Faults};
use crate::grpc_web::is_grpc_web;
use crate::headers::CRITICALITY;
use crate::orca::Format;
use crate::priority::{self, Urgency};
use crate::protocol::Protocol;
use core::time::Duration;
use http::HeaderMap;
use tidegate_core::Criticality;

/// What a request says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Incoming {
    /// How it wants to be answered.
    pub protocol: Protocol,
    /// Whether it is gRPC for browsers, whose answers have their trailers in the body.
    pub grpc_web: bool,
    /// The criticality that it claims.
    pub criticality: Option<Criticality>,
    /// Which try it is, from 1.
    pub attempt: u32,
    /// How much longer its caller waits, counted from the moment it was read.
    pub deadline: Option<Duration>,
    /// How urgent it finds itself, 0 to 7; for the edge.
    pub urgency: Option<u8>,
    /// Whether it names a customer; whom, and whether that is believed, says [`Peer::delegated`].
    pub names_customer: bool,
    /// How it wants the task's load to be written, if it asks for that over HTTP.
    pub load_format: Option<Format>,
    /// What made no sense.
    pub faults: Faults,
}

impl Incoming {
    /// Reads all headers of a request whose protocol is told by its content type, as
    /// [`Protocol::of`] does.
    ///
    /// For the request path: a few nanoseconds for each header, more for baggage by its length.
    pub fn of(headers: &HeaderMap) -> Self {
        Self::pass(headers, None)
    }

    /// Reads all headers of a request that is answered by `protocol`.
    pub fn read(headers: &HeaderMap, protocol: Protocol) -> Self {
        Self::pass(headers, Some(protocol))
    }

    fn pass(headers: &HeaderMap, protocol: Option<Protocol>) -> Self {
        let mut claims = Claims::default();
        let mut attempts = Attempts::default();
        let mut deadlines = Deadlines::default();
        let mut faults = Faults::NONE;
        let (mut urgency, mut names_customer, mut metadata) = (None, false, false);
        let (mut content_type, mut load_format) = (None, None);
        for (name, value) in headers {
            let value = value.as_bytes();
            match name.as_str() {
                "baggage" => claims.baggage(value),
                "x-criticality" => claims.header(Source::XCriticality, value),
                "x-request-criticality" => claims.header(Source::XRequestCriticality, value),
                "criticality" => metadata = true,
                "x-envoy-attempt-count" => attempts.count(value),
                "grpc-previous-rpc-attempts" => attempts.previous(value),
                "grpc-timeout" => deadlines.grpc(value),
                "x-envoy-expected-rq-timeout-ms" => deadlines.envoy(value),
                "x-customer" => names_customer = true,
                // Of these two the first counts.
                "content-type" => content_type = content_type.or(Some(value)),
                "endpoint-load-metrics-format" => load_format = load_format.or(Some(value)),
                // Fields of the same name are one list, and in a list the last counts.
                "priority" => match priority::parse(value) {
                    Urgency::Is(found) => urgency = Some(found),
                    Urgency::Nonsense => faults.add(Fault::BadPriority),
                    Urgency::Absent => {}
                },
                _ => {}
            }
        }
        let grpc_web = content_type.is_some_and(is_grpc_web);
        let protocol = protocol
            .unwrap_or_else(|| content_type.map_or(Protocol::Http, Protocol::of_content_type));
        // What the metadata say counts in gRPC, which may not be known before the last header.
        if metadata && protocol == Protocol::Grpc {
            for value in headers.get_all(&CRITICALITY) {
                claims.header(Source::Metadata, value.as_bytes());
            }
        }
        let (criticality, bad_claims) = claims.finish();
        let (attempt, bad_attempts) = attempts.finish();
        let (deadline, bad_deadlines) = deadlines.finish();
        let faults = faults.union(bad_claims).union(bad_attempts).union(bad_deadlines);
        let load_format = load_format.and_then(Format::asked);
        Self {
            protocol,
            grpc_web,
            criticality,
            attempt,
            deadline,
            urgency,
            names_customer,
            load_format,
            faults,
        }
    }

    /// What the request counts as coming from `peer`, on a route whose default is `default`. A
    /// claim that had to be lowered is added to the faults.
    pub fn criticality_from(&mut self, peer: &Peer, default: Criticality) -> Criticality {
        let clamped = peer.criticality(self.criticality, default);
        self.faults.add_if(clamped.lowered, Fault::AboveCeiling);
        clamped.criticality
    }

    /// What the request counts as coming from outside: nothing that it claims, the route's default,
    /// or less if it finds itself less urgent.
    pub fn criticality_from_outside(&self, default: Criticality) -> Criticality {
        priority::lower(default, self.urgency).criticality
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::customer::Identities;
    use crate::{attempt, criticality, deadline, headers};
    use http::header::CONTENT_TYPE;
    use proptest::prelude::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn a_request_as_it_comes() {
        let headers = map(&[
            ("host", "example.org"),
            ("content-type", "application/grpc"),
            ("baggage", "user=7,criticality=CRITICAL_PLUS"),
            ("grpc-timeout", "250m"),
            ("grpc-previous-rpc-attempts", "1"),
            ("x-customer", "maps"),
            ("priority", "u=6, i"),
        ]);
        let mut incoming = Incoming::read(&headers, Protocol::of(&headers));
        assert_eq!(
            incoming,
            Incoming {
                protocol: Protocol::Grpc,
                grpc_web: false,
                criticality: Some(Criticality::CriticalPlus),
                attempt: 2,
                deadline: Some(Duration::from_millis(250)),
                urgency: Some(6),
                names_customer: true,
                load_format: None,
                faults: Faults::NONE,
            }
        );
        let peer = Identities::default().peer(None);
        let counts_as = incoming.criticality_from(&peer, Criticality::Sheddable);
        assert_eq!(counts_as, Criticality::Critical);
        assert_eq!(incoming.faults, Fault::AboveCeiling.into());
        let outside = incoming.criticality_from_outside(Criticality::Critical);
        assert_eq!(outside, Criticality::SheddablePlus);
    }

    #[test]
    fn names_in_the_pass_are_those_of_the_constants() {
        for (name, value) in [
            (&headers::BAGGAGE, "nonsense"),
            (&headers::X_CRITICALITY, "nonsense"),
            (&headers::X_REQUEST_CRITICALITY, "nonsense"),
            (&CRITICALITY, "nonsense"),
            (&headers::X_ENVOY_ATTEMPT_COUNT, "nonsense"),
            (&headers::GRPC_PREVIOUS_RPC_ATTEMPTS, "nonsense"),
            (&headers::GRPC_TIMEOUT, "nonsense"),
            (&headers::X_ENVOY_EXPECTED_RQ_TIMEOUT_MS, "nonsense"),
            (&headers::PRIORITY, "u=9"),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(name, value.parse().unwrap());
            let incoming = Incoming::read(&headers, Protocol::Grpc);
            assert!(!incoming.faults.is_empty(), "{name}");
        }
        let mut headers = HeaderMap::new();
        headers.insert(&headers::X_CUSTOMER, "maps".parse().unwrap());
        assert!(Incoming::read(&headers, Protocol::Http).names_customer);
    }

    proptest! {
        #[test]
        fn one_pass_reads_what_the_parts_read(
            pairs in prop::collection::vec(
                (0..11_usize, prop::sample::select(vec![
                    "1", "0", "3", "x", "1S", "20m", "CRITICAL", "sheddable", "a=b",
                    "criticality=CRITICAL_PLUS", "criticality=%", "a=b,criticality=SHEDDABLE;p",
                    "application/grpc", "application/grpc-web", "text/plain", "JSON", "text",
                ])),
                0..14,
            ),
            grpc: bool,
        ) {
            let names = [
                &headers::BAGGAGE, &headers::X_CRITICALITY, &headers::X_REQUEST_CRITICALITY,
                &CRITICALITY, &headers::X_ENVOY_ATTEMPT_COUNT,
                &headers::GRPC_PREVIOUS_RPC_ATTEMPTS, &headers::GRPC_TIMEOUT,
                &headers::X_ENVOY_EXPECTED_RQ_TIMEOUT_MS, &CONTENT_TYPE,
                &headers::ENDPOINT_LOAD_METRICS_FORMAT, &headers::X_CUSTOMER,
            ];
            let mut map = HeaderMap::new();
            for (name, value) in pairs {
                map.append(names[name], value.parse().unwrap());
            }
            let protocol = if grpc { Protocol::Grpc } else { Protocol::Http };
            let incoming = Incoming::read(&map, protocol);
            let (criticality, a) = criticality::read(&map, protocol);
            let (attempt, b) = attempt::read(&map);
            let (deadline, c) = deadline::read(&map);
            prop_assert_eq!(incoming.criticality, criticality);
            prop_assert_eq!(incoming.attempt, attempt);
            prop_assert_eq!(incoming.deadline, deadline);
            prop_assert_eq!(incoming.faults, a.union(b).union(c));
            prop_assert_eq!(incoming.names_customer, map.contains_key(&headers::X_CUSTOMER));
            let format = map.get(&headers::ENDPOINT_LOAD_METRICS_FORMAT);
            let format = format.and_then(|value| Format::asked(value.as_bytes()));
            prop_assert_eq!(incoming.load_format, format);
            let browser = map.get(CONTENT_TYPE).is_some_and(|v| is_grpc_web(v.as_bytes()));
            prop_assert_eq!(incoming.grpc_web, browser);
            let told = Incoming::read(&map, Protocol::of(&map));
            prop_assert_eq!(Incoming::of(&map), told);
        }
    }
}
