//! Where the inside begins and ends.
//!
//! On the way in, whatever a stranger says about criticality, attempts, deadlines and customers is
//! forgotten; the edge then writes its own ([`Outgoing`](crate::outgoing::Outgoing)). On the way
//! out to hosts that are not ours, the same headers would tell them how we work. Other baggage is
//! none of our business and stays, both ways.

use crate::headers::X_CUSTOMER;
use crate::{attempt, criticality, deadline, orca};
use http::HeaderMap;

/// Takes everything out of a request from outside that a request may say about itself.
///
/// Read it first: a deadline that a stranger gives is still worth to be obeyed, and it is gone
/// afterwards.
pub fn strip_request(headers: &mut HeaderMap) {
    criticality::strip(headers);
    attempt::strip(headers);
    deadline::strip(headers);
    headers.remove(&X_CUSTOMER);
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
        strip_request(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["baggage"], "a=b");
        let nothing = Incoming::read(&HeaderMap::new(), Protocol::Grpc);
        assert_eq!(Incoming::read(&headers, Protocol::Grpc), nothing);
    }

    #[test]
    fn hosts_that_are_not_ours_do_not_learn_how_we_work() {
        let mut headers = all();
        strip_egress(&mut headers);
        let left: Vec<&str> = headers.keys().map(http::HeaderName::as_str).collect();
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
