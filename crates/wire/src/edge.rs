//! Where the inside begins and ends.
//!
//! On the way in, whatever a stranger says about criticality, attempts, deadlines and customers is
//! forgotten; the edge then writes its own ([`Outgoing`](crate::outgoing::Outgoing)). On the way
//! out to hosts that are not ours, the same headers would tell them how we work. Other baggage is
//! none of our business and stays, both ways.
//!
//! **Spellings.** What we read is not all that counts: services behind us read what they like, and
//! hand it on as their libraries write it. CGI and its heirs take `x_criticality` for
//! `x-criticality`; OpenTelemetry for JavaScript decodes names in baggage, so that
//! `%63riticality=…` goes in and `criticality=…` comes out; other tracers carry baggage in headers
//! of their own (`uberctx-criticality`, `ot-baggage-criticality`, `jaeger-baggage`), and translate.
//! So a stranger's header is taken out if its name is one of ours but for punctuation, or has
//! `criticality` anywhere in it, and so is a member of its baggage whose name comes to
//! `criticality` once it is decoded, in any case and whatever stands around it.

use crate::headers::X_CUSTOMER;
use crate::{baggage, criticality, orca};
use http::{HeaderMap, HeaderName};

/// Names that are ours whole; the prefixes have the rest.
const NAMES: [&str; 3] = ["x-customer", "grpc-timeout", "grpc-previous-rpc-attempts"];

/// What names of ours and of Envoy begin with. Load reports are for answers, and to ask for one is
/// for callers that we know.
const PREFIXES: [&str; 3] = ["x-tidegate-", "x-envoy-", "endpoint-load-metrics"];

/// Names by which proxies tell programs who asks, and what programs believe of them.
const SENDERS: [&str; 6] = [
    "forwarded",
    "x-real-ip",
    "x-client-ip",
    "x-cluster-client-ip",
    "true-client-ip",
    "x-original-forwarded-for",
];

/// Who asks, where, by which scheme and at which port: `x-forwarded-for` and its kin.
const SENDER_PREFIX: &str = "x-forwarded-";

/// Whether `name` begins with `with`, punctuation being all the same.
fn begins(name: &[u8], with: &str) -> bool {
    let same = |a: &u8, b: &u8| a == b || !a.is_ascii_alphanumeric() && !b.is_ascii_alphanumeric();
    name.len() >= with.len() && name.iter().zip(with.as_bytes()).all(|(a, b)| same(a, b))
}

fn is_alike(name: &[u8], ours: &str) -> bool {
    name.len() == ours.len() && begins(name, ours)
}

/// Whether a header of this name says something that a stranger is not to say, however it is
/// spelled.
pub fn is_claim(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    let member = criticality::MEMBER.as_bytes();
    PREFIXES.iter().any(|prefix| begins(name, prefix))
        || NAMES.iter().any(|ours| is_alike(name, ours))
        || name.windows(member.len()).any(|part| part == member)
}

/// Whether a header of this name says who asks, however it is spelled: an edge that tells it itself
/// lets nobody else do so.
pub fn names_sender(name: &HeaderName) -> bool {
    let name = name.as_str().as_bytes();
    begins(name, SENDER_PREFIX) || SENDERS.iter().any(|theirs| is_alike(name, theirs))
}

/// Takes everything out of a request from outside (or its trailers) that a request may say about
/// itself. Returns how many headers that were; baggage with our member in it is one.
///
/// Read it first: a deadline that a stranger gives is still worth to be obeyed, and it is gone
/// afterwards.
pub fn strip_request(headers: &mut HeaderMap) -> usize {
    let mut stripped = 0;
    let found = headers.keys().any(is_claim);
    if found {
        let names: Vec<HeaderName> =
            headers.keys().filter(|name| is_claim(name)).cloned().collect();
        for name in names {
            if let http::header::Entry::Occupied(entry) = headers.entry(name) {
                stripped += entry.remove_entry_mult().1.count();
            }
        }
    }
    stripped + baggage::remove_alike(headers, criticality::MEMBER)
}

/// Takes out of a request to a host that is not ours what is for ours only. How long we wait, and
/// that we try again, it may know.
pub fn strip_egress(headers: &mut HeaderMap) {
    criticality::strip(headers);
    headers.remove(&X_CUSTOMER);
}

/// Takes load reports out of a response (or its trailers) to someone who does not need them.
pub fn strip_response(headers: &mut HeaderMap) {
    orca::strip(headers);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::incoming::Incoming;
    use crate::protocol::Protocol;

    const ALL: [(&str, &str); 9] = [
        ("baggage", "a=b,criticality=CRITICAL_PLUS"),
        ("x-criticality", "CRITICAL_PLUS"),
        ("x-request-criticality", "CRITICAL_PLUS"),
        ("criticality", "CRITICAL_PLUS"),
        ("x-envoy-attempt-count", "3"),
        ("grpc-previous-rpc-attempts", "2"),
        ("grpc-timeout", "1S"),
        ("x-envoy-expected-rq-timeout-ms", "1000"),
        ("x-customer", "maps"),
    ];

    fn all() -> HeaderMap {
        ALL.iter().map(|(n, v)| (n.parse().unwrap(), v.parse().unwrap())).collect()
    }

    #[test]
    fn nothing_of_a_strangers_claims_is_left() {
        let mut headers = all();
        assert_eq!(strip_request(&mut headers), ALL.len());
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["baggage"], "a=b");
        assert_eq!(strip_request(&mut headers), 0);
        let nothing = Incoming::read(&HeaderMap::new(), Protocol::Grpc);
        assert_eq!(Incoming::read(&headers, Protocol::Grpc), nothing);
    }

    #[test]
    fn names_are_told_by_what_others_make_of_them() {
        for (name, claim) in [
            ("x-criticality", true),
            ("x_criticality", true),
            ("x.criticality", true),
            ("uberctx-criticality", true),
            ("ot-baggage-criticality", true),
            ("criticality-bin", true),
            ("x-customer", true),
            ("x_customer", true),
            ("x-customers", false),
            ("x-customer-id", false),
            ("xcustomer", false),
            ("grpc_timeout", true),
            ("grpc-timeout-bin", false),
            ("x-envoy-anything", true),
            ("x_envoy_attempt_count", true),
            ("x-envoy", false),
            ("x-tidegate-decision", true),
            ("endpoint-load-metrics-format", true),
            ("endpoint_load_metrics", true),
            ("priority", false),
            ("baggage", false),
            ("traceparent", false),
            ("authorization", false),
        ] {
            assert_eq!(is_claim(&HeaderName::from_static(name)), claim, "{name}");
        }
    }

    #[test]
    fn who_asks_is_said_by_many_names() {
        for (name, sender) in [
            ("forwarded", true),
            ("x-forwarded-for", true),
            ("x_forwarded_for", true),
            ("x-forwarded-port", true),
            ("x-forwarded-server", true),
            ("x-real-ip", true),
            ("x_real_ip", true),
            ("true-client-ip", true),
            ("x-forwarded", false),
            ("forwarded-by", false),
            ("x-real-ip-count", false),
            ("host", false),
        ] {
            assert_eq!(names_sender(&HeaderName::from_static(name)), sender, "{name}");
        }
    }

    #[test]
    fn baggage_is_told_by_what_others_make_of_it() {
        for (values, left) in [
            (&["a=b"][..], &["a=b"][..]),
            (&["criticality=CRITICAL"], &[]),
            (&["Criticality=CRITICAL,a=b"], &["a=b"]),
            (&["a=b,%63riticality=CRITICAL", "c=d"], &["a=b,c=d"]),
            (&["%63%72iticality%20 =CRITICAL;p"], &[]),
            (&["\tcriticality\t= X , a = b ;p"], &[" a = b ;p"]),
            (&["\"criticality\"=X"], &[]),
            (&["a=\"b,criticality=X\""], &["a=\"b"]),
            (&["criticality"], &[]),
            (&["criticality;p=1"], &[]),
            (&["criticality==X"], &[]),
            (&["xcriticality=1,criticality2=2"], &["xcriticality=1,criticality2=2"]),
            (&["a=criticality,b=c;criticality=1"], &["a=criticality,b=c;criticality=1"]),
        ] {
            for name in ["baggage", "jaeger-baggage"] {
                let mut headers = HeaderMap::new();
                for value in values {
                    headers.append(name, value.parse().unwrap());
                }
                let stripped = strip_request(&mut headers);
                let found: Vec<_> = headers.get_all(name).iter().collect();
                assert_eq!(found, left, "{values:?}");
                assert_eq!(stripped, usize::from(values != left), "{values:?}");
            }
        }
        // A blank that only Unicode knows, as Latin-1 writes it.
        let mut headers = HeaderMap::new();
        let odd = http::HeaderValue::from_bytes(b"\xa0criticality\xa0=CRITICAL_PLUS").unwrap();
        headers.append("baggage", odd);
        assert_eq!(strip_request(&mut headers), 1);
        assert!(headers.is_empty());
    }

    #[test]
    fn hosts_that_are_not_ours_do_not_learn_how_we_work() {
        let mut headers = all();
        strip_egress(&mut headers);
        let left: Vec<&str> = headers.keys().map(HeaderName::as_str).collect();
        assert_eq!(left.len(), 5, "{left:?}");
        let found = Incoming::read(&headers, Protocol::Grpc);
        assert_eq!((found.criticality, found.names_customer), (None, false));
        let mut answer = HeaderMap::new();
        for name in ["endpoint-load-metrics", "endpoint-load-metrics-bin", "server"] {
            answer.insert(name, "x".parse().unwrap());
        }
        strip_response(&mut answer);
        assert_eq!(answer.len(), 1);
    }
}
