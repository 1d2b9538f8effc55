use super::*;
use tidegate_core::Criticality;
use tidegate_core::decision::{SignalId, Thousandths};

fn rejection(reason: Reason, advice: Advice, cause: Option<Cause>) -> Rejection {
    Rejection { reason, advice, criticality: Criticality::Critical, cause }
}

fn sorted(response: &Response<Bytes>) -> Vec<(String, String)> {
    let text = |value: &HeaderValue| value.to_str().unwrap().to_owned();
    let pairs = response.headers().iter().map(|(name, value)| (name.to_string(), text(value)));
    let mut pairs: Vec<_> = pairs.filter(|(name, _)| !name.starts_with("x-tidegate-")).collect();
    pairs.sort();
    pairs
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
}

const SECONDS: Duration = Duration::from_millis(2_001);

type Headers<'a> = &'a [(&'a str, &'a str)];
type Row<'a> = (Reason, Advice, Option<Cause>, u16, Headers<'a>);

#[test]
fn the_table_in_http() {
    const JSON: (&str, &str) = ("content-type", "application/problem+json");
    const STOP: (&str, &str) = ("x-envoy-ratelimited", "true");
    const DUCK: (&str, &str) = ("x-envoy-immediate-health-check-fail", "true");
    let opens_in = |opens_in| Some(Cause::Quota { opens_in });
    let rows: &[Row<'_>] = &[
        (Reason::Overloaded, Advice::RetryElsewhere, None, 503, &[JSON]),
        (Reason::Overloaded, Advice::DontRetry, None, 503, &[JSON, STOP]),
        (Reason::TooManyConnections, Advice::RetryElsewhere, None, 503, &[JSON]),
        (Reason::Throttled, Advice::DontRetry, None, 503, &[JSON, STOP]),
        (Reason::QueueFull, Advice::RetryAfter(SECONDS), None, 503, &[JSON, ("retry-after", "3")]),
        (
            Reason::OutOfQuota,
            Advice::DontRetry,
            opens_in(SECONDS),
            429,
            &[JSON, ("retry-after", "3"), STOP],
        ),
        (Reason::OutOfQuota, Advice::DontRetry, None, 429, &[JSON, ("retry-after", "1"), STOP]),
        (
            Reason::OutOfQuota,
            Advice::DontRetry,
            opens_in(Duration::MAX),
            429,
            &[JSON, ("retry-after", "3600"), STOP],
        ),
        (Reason::DeadlinePassed, Advice::DontRetry, None, 504, &[JSON]),
        (
            Reason::LameDuck,
            Advice::RetryElsewhere,
            None,
            503,
            &[("connection", "close"), JSON, DUCK],
        ),
        (
            Reason::LameDuck,
            Advice::DontRetry,
            None,
            503,
            &[("connection", "close"), JSON, DUCK, STOP],
        ),
    ];
    for &(reason, advice, cause, status, headers) in rows {
        let rejection = rejection(reason, advice, cause);
        let reject = Reject::new(&rejection, DecisionId(7));
        let response = reject.respond(Protocol::Http, Version::HTTP_11);
        assert_eq!(response.status(), status, "{rejection}");
        assert_eq!(sorted(&response), owned(headers), "{rejection}");
        assert_eq!(response.headers()["x-tidegate-reason"], reason.code());
        assert_eq!(response.headers()["x-tidegate-decision"], "0000000000000007");
        // What HTTP/2 forbids is not there, and nothing else is missing.
        let newer = reject.respond(Protocol::Http, Version::HTTP_2);
        let allowed: Vec<_> =
            owned(headers).into_iter().filter(|(name, _)| name != "connection").collect();
        assert_eq!(sorted(&newer), allowed, "{rejection}");
        let body: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
        assert_eq!(body["status"], status);
        assert_eq!(body["title"], super::Row::of(&rejection).message());
        assert!(response.body().len() < 100);
    }
}

#[test]
fn the_table_in_grpc() {
    const TYPE: (&str, &str) = ("content-type", "application/grpc");
    const STOP: (&str, &str) = ("x-envoy-ratelimited", "true");
    const DUCK: (&str, &str) = ("x-envoy-immediate-health-check-fail", "true");
    let rows: &[(Reason, Advice, Headers<'_>)] = &[
        (Reason::Overloaded, Advice::RetryElsewhere, &[TYPE, ("grpc-status", "14")]),
        (
            Reason::Overloaded,
            Advice::DontRetry,
            &[TYPE, ("grpc-retry-pushback-ms", "-1"), ("grpc-status", "8"), STOP],
        ),
        (
            Reason::QueueFull,
            Advice::RetryAfter(Duration::from_micros(1_500_001)),
            &[TYPE, ("grpc-retry-pushback-ms", "1501"), ("grpc-status", "14")],
        ),
        (
            Reason::QueueFull,
            Advice::RetryAfter(Duration::ZERO),
            &[TYPE, ("grpc-retry-pushback-ms", "1"), ("grpc-status", "14")],
        ),
        (
            Reason::QueueFull,
            Advice::RetryAfter(Duration::MAX),
            &[TYPE, ("grpc-retry-pushback-ms", "2147483647"), ("grpc-status", "14")],
        ),
        (
            Reason::OutOfQuota,
            Advice::DontRetry,
            &[TYPE, ("grpc-retry-pushback-ms", "-1"), ("grpc-status", "8"), STOP],
        ),
        (Reason::DeadlinePassed, Advice::DontRetry, &[TYPE, ("grpc-status", "4")]),
        (Reason::LameDuck, Advice::RetryElsewhere, &[TYPE, ("grpc-status", "14"), DUCK]),
    ];
    for &(reason, advice, headers) in rows {
        let rejection = rejection(reason, advice, None);
        let response =
            Reject::new(&rejection, DecisionId(u64::MAX)).respond(Protocol::Grpc, Version::HTTP_2);
        assert_eq!(response.status(), 200);
        assert!(response.body().is_empty());
        assert!(!response.headers()["grpc-message"].is_empty());
        let quota = response.headers().contains_key("grpc-status-details-bin");
        assert_eq!(quota, reason == Reason::OutOfQuota);
        let mut found = sorted(&response);
        found.retain(|(name, _)| name != "grpc-message" && name != "grpc-status-details-bin");
        assert_eq!(found, owned(headers), "{rejection}");
        assert_eq!(response.headers()["x-tidegate-decision"], "ffffffffffffffff");
    }
}

#[test]
fn strangers_do_not_learn_the_grounds() {
    let cause = Cause::Signal {
        signal: SignalId(0),
        utilization: Thousandths(1_500),
        threshold: Thousandths(850),
    };
    let quota = Cause::Quota { opens_in: Duration::from_micros(7) };
    for (reason, cause, grounds) in [
        (Reason::Overloaded, cause, "signal 0 at 1.500, over 0.850"),
        (Reason::OutOfQuota, quota, "quota opens in 7%C2%B5s"),
    ] {
        let rejection = rejection(reason, Advice::DontRetry, Some(cause));
        for protocol in [Protocol::Http, Protocol::Grpc] {
            let stranger =
                Reject::new(&rejection, DecisionId(1)).respond(protocol, Version::HTTP_2);
            assert!(!stranger.headers().contains_key("x-tidegate-cause"));
            let trusted = Reject::new(&rejection, DecisionId(1))
                .trusted(Some("maps"))
                .respond(protocol, Version::HTTP_2);
            assert_eq!(trusted.headers()["x-tidegate-cause"], grounds);
            let details = |response: &Response<Bytes>| {
                response.headers().get("grpc-status-details-bin").map(HeaderValue::len)
            };
            // The customer's name is in the details of the trusted only.
            if details(&stranger).is_some() {
                assert!(details(&stranger) < details(&trusted));
            }
        }
    }
}

#[test]
fn one_table_is_enough_for_every_rejection() {
    let advices = [Advice::RetryElsewhere, Advice::DontRetry, Advice::RetryAfter(SECONDS)];
    for reason in Reason::ALL {
        for advice in advices {
            let cause = Cause::Quota { opens_in: SECONDS };
            let rejection = rejection(reason, advice, Some(cause));
            let reject = Reject::new(&rejection, DecisionId(1)).trusted(Some("maps"));
            for protocol in [Protocol::Http, Protocol::Grpc] {
                let response = reject.respond(protocol, Version::HTTP_11);
                assert!(response.headers().len() <= HEADERS, "{response:?}");
                // It has not grown since it was made.
                let room = HeaderMap::<HeaderValue>::with_capacity(HEADERS).capacity();
                assert_eq!(response.headers().capacity(), room);
            }
        }
    }
}

/// They are copies of one table but for these.
#[test]
fn each_refusal_has_its_own_number_and_time() {
    for (reason, advice) in [
        (Reason::Overloaded, Advice::RetryElsewhere),
        (Reason::Overloaded, Advice::DontRetry),
        (Reason::QueueFull, Advice::RetryAfter(SECONDS)),
        (Reason::QueueFull, Advice::RetryAfter(SECONDS * 2)),
        (Reason::OutOfQuota, Advice::RetryAfter(SECONDS)),
        (Reason::OutOfQuota, Advice::RetryAfter(SECONDS * 3)),
        (Reason::Throttled, Advice::RetryElsewhere),
    ] {
        for number in [1, 2] {
            let rejection = rejection(reason, advice, None);
            let reject = Reject::new(&rejection, DecisionId(number));
            let found = reject.respond(Protocol::Http, Version::HTTP_2);
            let written =
                reject.headers(super::Row::of(&rejection), Protocol::Http, Version::HTTP_2);
            assert_eq!(*found.headers(), written, "{reason:?} {advice:?}");
            assert_eq!(found.headers()["x-tidegate-decision"], DecisionId(number).to_string());
        }
    }
}
