//! Baggage as the SDK's own propagator writes and reads it: a service between two others hands it
//! on, as instrumented services do, and only our member changes on the way.

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::Request;
use http::{HeaderMap, Response};
use http_body_util::Full;
use opentelemetry::Context;
use opentelemetry::baggage::{BaggageExt, KeyValueMetadata};
use opentelemetry::propagation::{Extractor, Injector, TextMapPropagator};
use opentelemetry_sdk::propagation::BaggagePropagator;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use tidegate::client::Layer;
use tidegate::{Criticality, Task, context};
use tidegate_wire::faults::Fault;
use tower::{ServiceExt, service_fn};
use tower_layer::Layer as _;

struct Headers<'a>(&'a mut HeaderMap);

impl Injector for Headers<'_> {
    fn set(&mut self, key: &str, value: String) {
        let key = http::HeaderName::try_from(key).unwrap();
        self.0.insert(key, value.parse().unwrap());
    }
}

struct Carrier<'a>(&'a HeaderMap);

impl Extractor for Carrier<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}

fn inject(context: &Context, headers: &mut HeaderMap) {
    BaggagePropagator::new().inject_context(context, &mut Headers(headers));
}

fn extract(headers: &HeaderMap) -> Context {
    BaggagePropagator::new().extract_with_context(&Context::new(), &Carrier(headers))
}

/// Values and properties by name.
fn members(headers: &HeaderMap) -> BTreeMap<String, (String, String)> {
    let context = extract(headers);
    let members = context.baggage().iter().map(|(name, (value, properties))| {
        (name.to_string(), (value.to_string(), properties.to_string()))
    });
    members.collect()
}

/// A service that the SDK instruments: what came as baggage goes out as baggage. Returns what the
/// service below it receives.
async fn pass(task: &Task, headers: HeaderMap, says: Option<Criticality>) -> HeaderMap {
    let below: Arc<Mutex<HeaderMap>> = Arc::default();
    let received = Arc::clone(&below);
    let client =
        Layer::new("below").layer(service_fn(move |request: http::Request<Full<Bytes>>| {
            *received.lock().unwrap() = request.headers().clone();
            async { Ok::<_, Infallible>(Response::new(Body::empty())) }
        }));
    let handler = move |request: Request| async move {
        let mut call = http::Request::new(Full::default());
        inject(&extract(request.headers()), call.headers_mut());
        let call = client.oneshot(call);
        let answer = match says {
            Some(criticality) => context::with_criticality(criticality, call).await,
            None => call.await,
        };
        answer.unwrap().status()
    };
    let router = Router::new().route("/", axum::routing::get(handler)).layer(task.layer());
    let mut request = Request::new(Body::empty());
    *request.headers_mut() = headers;
    assert_eq!(router.oneshot(request).await.unwrap().status(), 200);
    std::mem::take(&mut *below.lock().unwrap())
}

fn baggage(criticality: &'static str) -> HeaderMap {
    let context = Context::new().with_baggage([
        KeyValueMetadata::new("user", "Zoë, \"the\" 100 % = new; one", ""),
        KeyValueMetadata::new("tenant", "a/b", "ttl=60;secure"),
        KeyValueMetadata::new("criticality", criticality, "by=edge"),
        KeyValueMetadata::new("criticality-of-others", "SHEDDABLE", ""),
    ]);
    let mut headers = HeaderMap::new();
    inject(&context, &mut headers);
    headers
}

#[tokio::test]
async fn our_member_is_read_and_replaced_and_all_others_survive() {
    for (claimed, says, counts_as, leaves_as) in [
        ("SHEDDABLE", None, Criticality::Sheddable, "SHEDDABLE"),
        ("SHEDDABLE_PLUS", None, Criticality::SheddablePlus, "SHEDDABLE_PLUS"),
        ("CRITICAL", Some(Criticality::Sheddable), Criticality::Critical, "SHEDDABLE"),
        // Strangers may not claim so much, and it is not handed on either.
        ("CRITICAL_PLUS", None, Criticality::Critical, "CRITICAL"),
    ] {
        let task = Task::builder("test").build().unwrap();
        let sent = baggage(claimed);
        let mut expected = members(&sent);
        assert_eq!(expected.len(), 4, "{sent:?}");
        expected.insert("criticality".to_owned(), (leaves_as.to_owned(), String::new()));
        let received = pass(&task, sent, says).await;
        assert_eq!(members(&received), expected, "{claimed} {received:?}");
        let snapshot = task.snapshot();
        assert_eq!(snapshot.requests.admitted(counts_as), 1, "{claimed}");
        let lowered = u64::from(claimed == "CRITICAL_PLUS");
        assert_eq!(snapshot.fault(Fault::AboveCeiling), lowered);
        assert_eq!(snapshot.faults.iter().map(|(_, n)| n).sum::<u64>(), lowered, "{claimed}");
    }
}

/// A service that knows nothing of us and hands on what it got keeps criticality for the next.
#[tokio::test]
async fn criticality_survives_those_who_do_not_know_it() {
    let sent = baggage("SHEDDABLE_PLUS");
    let mut between = HeaderMap::new();
    inject(&extract(&sent), &mut between);
    let task = Task::builder("test").build().unwrap();
    let received = pass(&task, between, None).await;
    assert_eq!(members(&received)["criticality"].0, "SHEDDABLE_PLUS");
    assert_eq!(task.snapshot().requests.admitted(Criticality::SheddablePlus), 1);
}
