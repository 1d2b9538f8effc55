//! Requests, written beforehand as far as they can be.
//!
//! All that a request says is known before a run, but for its number of attempts and the time left:
//! a route, a criticality and an attempt have one head each. For HTTP/1.1 it is bytes, and sending
//! copies three or four pieces into a buffer that is there already. For HTTP/2 it is a map of
//! headers, as its compression depends on what the connection has sent before.

use crate::mix::{Choice, Route, Weighted};
use crate::plan::{Course, Protocol, Retry};
use crate::target::Target;
use bytes::Bytes;
use core::time::Duration;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, TE};
use http::{HeaderMap, HeaderValue, Method, Request, Uri};
use tidegate_core::Criticality;
use tidegate_core::retry::RetryPolicy;
use tidegate_wire::headers::{X_CUSTOMER, X_ENVOY_EXPECTED_RQ_TIMEOUT_MS};
use tidegate_wire::outgoing::Outgoing;

/// One attempt at a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ask {
    pub(crate) choice: Choice,
    /// From 1.
    pub(crate) attempt: u32,
    /// How long its caller still waits, where it says so.
    pub(crate) remaining: Option<Duration>,
}

/// All requests of a course.
#[derive(Debug)]
pub(crate) struct Requests {
    routes: Vec<Prepared>,
    attempts_max: u32,
    protocol: Protocol,
}

#[derive(Debug)]
struct Prepared {
    method: Method,
    uri: Uri,
    /// By criticality and attempt.
    heads: Vec<Head>,
    customers: Vec<Option<HeaderValue>>,
    bodies: Vec<Body>,
}

#[derive(Debug)]
struct Head {
    /// HTTP/2.
    headers: HeaderMap,
    /// HTTP/1.1: from the first line on.
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Body {
    bytes: Bytes,
    /// HTTP/1.1: the header with its length, the empty line, and itself.
    framed: Vec<u8>,
}

/// Why requests cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RequestError(pub(crate) String);

/// How often a request is tried at most.
pub(crate) fn attempts_max(retry: Retry) -> u32 {
    match retry {
        Retry::None => 1,
        Retry::Naive(attempts) => attempts.get(),
        Retry::Budgeted => RetryPolicy::default().attempts_max.get(),
    }
}

impl Requests {
    pub(crate) fn new(
        course: &Course,
        target: &Target,
        protocol: Protocol,
    ) -> Result<Self, RequestError> {
        let attempts_max = attempts_max(course.retry);
        let routes = course.routes.items().iter();
        let routes = routes.map(|route| Prepared::new(route, target, protocol, attempts_max));
        Ok(Self { routes: routes.collect::<Result<_, _>>()?, attempts_max, protocol })
    }

    fn parts(&self, ask: &Ask) -> (&Prepared, &Head, &Body) {
        let route = &self.routes[ask.choice.route as usize];
        let attempt = ask.attempt.clamp(1, self.attempts_max) - 1;
        let place = ask.choice.criticality.index() * self.attempts_max as usize + attempt as usize;
        (route, &route.heads[place], &route.bodies[ask.choice.body as usize])
    }

    pub(crate) fn method(&self, choice: &Choice) -> &Method {
        &self.routes[choice.route as usize].method
    }

    /// The bytes of an attempt, after what `out` has.
    pub(crate) fn write(&self, ask: &Ask, out: &mut Vec<u8>) {
        let (route, head, body) = self.parts(ask);
        out.extend_from_slice(&head.bytes);
        if let Some(customer) = &route.customers[ask.choice.customer as usize] {
            push_header(out, X_CUSTOMER.as_str(), customer.as_bytes());
        }
        if let Some(remaining) = ask.remaining {
            let mut digits = [0; 20];
            let millis =
                decimal(remaining.as_millis().clamp(1, u64::MAX.into()) as u64, &mut digits);
            push_header(out, X_ENVOY_EXPECTED_RQ_TIMEOUT_MS.as_str(), millis);
        }
        out.extend_from_slice(&body.framed);
    }

    /// An attempt for HTTP/2, and its body.
    pub(crate) fn build(&self, ask: &Ask) -> (Request<()>, Bytes) {
        let (route, head, body) = self.parts(ask);
        let mut request = Request::new(());
        *request.method_mut() = route.method.clone();
        *request.uri_mut() = route.uri.clone();
        let mut headers = head.headers.clone();
        if let Some(customer) = &route.customers[ask.choice.customer as usize] {
            headers.insert(&X_CUSTOMER, customer.clone());
        }
        if let Some(remaining) = ask.remaining {
            tidegate_wire::deadline::write(&mut headers, self.protocol.wire(), remaining);
        }
        *request.headers_mut() = headers;
        (request, body.bytes.clone())
    }
}

impl Prepared {
    fn new(
        route: &Route,
        target: &Target,
        protocol: Protocol,
        attempts_max: u32,
    ) -> Result<Self, RequestError> {
        let scheme = if target.tls { "https" } else { "http" };
        let text = format!("{scheme}://{}{}", target.authority, route.path);
        let uri: Uri = text.parse().map_err(|error| {
            RequestError(format!("`{}` is no path: {error}; right: /path?query", route.path))
        })?;
        let mut base = route.headers.clone();
        if protocol == Protocol::Grpc {
            base.entry(CONTENT_TYPE).or_insert(HeaderValue::from_static("application/grpc"));
            base.insert(TE, HeaderValue::from_static("trailers"));
        }
        let mut heads = Vec::new();
        for criticality in Criticality::ALL {
            for attempt in 1..=attempts_max {
                let mut headers = base.clone();
                let outgoing = Outgoing::new(criticality).attempt(attempt);
                outgoing.write(&mut headers, protocol.wire());
                let bytes = first_bytes(route, target, &headers);
                heads.push(Head { headers, bytes });
            }
        }
        let customers = route.mix.customer.items().iter();
        let customers = customers.map(|customer| {
            customer.as_deref().and_then(|customer| HeaderValue::from_str(customer).ok())
        });
        Ok(Self {
            method: route.method.clone(),
            uri,
            heads,
            customers: customers.collect(),
            bodies: bodies(&route.bodies, &route.method, protocol),
        })
    }
}

/// From the first line to the last header that is known.
fn first_bytes(route: &Route, target: &Target, headers: &HeaderMap) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(route.method.as_str().as_bytes());
    bytes.extend_from_slice(b" ");
    bytes.extend_from_slice(route.path.as_bytes());
    bytes.extend_from_slice(b" HTTP/1.1\r\n");
    if !headers.contains_key(HOST) {
        push_header(&mut bytes, "host", target.authority.as_bytes());
    }
    for (name, value) in headers.iter().filter(|(name, _)| *name != CONTENT_LENGTH) {
        push_header(&mut bytes, name.as_str(), value.as_bytes());
    }
    bytes
}

fn bodies(bodies: &Weighted<Bytes>, method: &Method, protocol: Protocol) -> Vec<Body> {
    let one = |body: &Bytes| {
        let mut framed = Vec::new();
        let expected =
            *method == Method::POST || *method == Method::PUT || *method == Method::PATCH;
        if expected || !body.is_empty() {
            push_header(&mut framed, "content-length", body.len().to_string().as_bytes());
        }
        framed.extend_from_slice(b"\r\n");
        framed.extend_from_slice(body);
        let bytes = if protocol == Protocol::Grpc { grpc_frame(body) } else { body.clone() };
        Body { bytes, framed }
    };
    bodies.items().iter().map(one).collect()
}

/// A message behind its prefix: not compressed, and its length.
fn grpc_frame(message: &[u8]) -> Bytes {
    let mut frame = Vec::with_capacity(5 + message.len());
    frame.push(0);
    frame.extend_from_slice(&(message.len() as u32).to_be_bytes());
    frame.extend_from_slice(message);
    frame.into()
}

fn push_header(bytes: &mut Vec<u8>, name: &str, value: &[u8]) {
    bytes.extend_from_slice(name.as_bytes());
    bytes.extend_from_slice(b": ");
    bytes.extend_from_slice(value);
    bytes.extend_from_slice(b"\r\n");
}

fn decimal(mut number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let mut place = digits.len();
    loop {
        place -= 1;
        digits[place] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &digits[place..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mix::{Mix, customers};
    use crate::plan::Plan;
    use proptest::prelude::*;
    use tidegate_wire::incoming::Incoming;

    fn course(retry: Retry, body: &'static str, method: Method) -> (Course, Target) {
        let target = Target::loopback(([127, 0, 0, 1], 81).into());
        let mut course = Plan::new(target.clone(), Vec::new(), 1).course;
        course.retry = retry;
        let mut headers = HeaderMap::new();
        headers.insert("baggage", HeaderValue::from_static("a=b"));
        course.routes = Weighted::only(Route {
            method,
            path: "/x?y=1".to_owned(),
            headers,
            bodies: Weighted::only(Bytes::from_static(body.as_bytes())),
            mix: Mix { customer: customers(&"alice".parse().unwrap()).unwrap(), ..Mix::default() },
        });
        (course, target)
    }

    fn ask(criticality: Criticality, attempt: u32, remaining: Option<Duration>) -> Ask {
        let choice = Choice { route: 0, body: 0, customer: 0, criticality, deadline: remaining };
        Ask { choice, attempt, remaining }
    }

    #[test]
    fn bytes_by_hand() {
        let (course, target) = course(Retry::None, "hi", Method::POST);
        let requests = Requests::new(&course, &target, Protocol::Http1).unwrap();
        let mut out = Vec::new();
        let ask = ask(Criticality::Sheddable, 1, Some(Duration::from_micros(1_250_900)));
        requests.write(&ask, &mut out);
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "POST /x?y=1 HTTP/1.1\r\nhost: 127.0.0.1:81\r\nbaggage: criticality=SHEDDABLE,a=b\r\n\
             x-criticality: SHEDDABLE\r\nx-envoy-attempt-count: 1\r\nx-customer: alice\r\n\
             x-envoy-expected-rq-timeout-ms: 1250\r\ncontent-length: 2\r\n\r\nhi"
        );
    }

    proptest! {
        #[test]
        fn a_server_reads_what_was_meant(
            level in 0..4_usize,
            attempt in 1..4_u32,
            millis in prop::option::of(1..100_000_u64),
            protocol in prop::sample::select(vec![Protocol::Http1, Protocol::H2, Protocol::Grpc]),
        ) {
            let (course, target) = course(Retry::Budgeted, "", Method::GET);
            let requests = Requests::new(&course, &target, protocol).unwrap();
            let remaining = millis.map(Duration::from_millis);
            let ask = ask(Criticality::ALL[level], attempt, remaining);
            let headers = if protocol == Protocol::Http1 {
                let mut out = Vec::new();
                requests.write(&ask, &mut out);
                let mut headers = [httparse::EMPTY_HEADER; 16];
                let mut request = httparse::Request::new(&mut headers);
                prop_assert_eq!(request.parse(&out), Ok(httparse::Status::Complete(out.len())));
                prop_assert_eq!(request.path, Some("/x?y=1"));
                request.headers.iter().map(|header| {
                    let name: http::HeaderName = header.name.parse().unwrap();
                    (name, HeaderValue::from_bytes(header.value).unwrap())
                }).collect::<HeaderMap>()
            } else {
                let (request, body) = requests.build(&ask);
                let empty: &[u8] = if protocol == Protocol::Grpc { &[0; 5] } else { &[] };
                prop_assert_eq!(&body[..], empty);
                prop_assert_eq!(request.uri().to_string(), "http://127.0.0.1:81/x?y=1");
                request.headers().clone()
            };
            let found = Incoming::read(&headers, protocol.wire());
            prop_assert_eq!(found.criticality, Some(Criticality::ALL[level]));
            prop_assert_eq!(found.attempt, attempt);
            prop_assert_eq!(found.deadline, remaining);
            prop_assert_eq!(headers["x-customer"].as_bytes(), b"alice");
        }
    }
}
