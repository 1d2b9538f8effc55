//! What callers do when a server says no.

use crate::support::{Reply, Server, run};
use std::num::NonZeroU32;
use tidegate_load::{Protocol, Retry};

const NAIVE: Retry = Retry::Naive(NonZeroU32::MIN.saturating_add(2));

#[test]
fn attempts_by_behaviour() {
    for (protocol, refusal) in [
        (Protocol::Http1, Reply::status(503, &[])),
        (Protocol::H2, Reply::status(503, &[])),
        (Protocol::Grpc, Reply::grpc("14", &[])),
    ] {
        let server = Server::start(move |_, _| refusal.clone());
        let mut seen = 0;
        for retry in [Retry::None, NAIVE, Retry::Budgeted] {
            let mut plan = server.plan(&["500 for 600ms"]);
            plan.protocol = protocol;
            plan.course.retry = retry;
            let report = run(plan);
            let total = &report.total;
            assert_eq!((total.offered, total.failed), (total.sent, total.sent), "{report:?}");
            let arrived = server.asked().len() as u64 - seen;
            seen += arrived;
            assert_eq!(arrived, total.attempts, "{retry}");
            match retry {
                Retry::None => assert_eq!(total.attempts, total.sent),
                Retry::Naive(_) => assert_eq!(total.attempts, 3 * total.sent),
                Retry::Budgeted => {
                    let retries = total.attempts - total.sent;
                    assert!(retries > 0 && 10 * retries <= total.sent, "{retries}");
                    assert!(report.given_up["budget_exhausted"] > 0, "{:?}", report.given_up);
                }
            }
        }
        let attempts: Vec<u32> = server.asked().iter().map(|asked| asked.said().attempt).collect();
        assert_eq!(attempts.iter().max(), Some(&3));
    }
}

#[test]
fn a_budget_obeys_advice_and_naive_callers_do_not() {
    for (protocol, refusal) in [
        (Protocol::Http1, Reply::status(503, &[("x-envoy-ratelimited", "true")])),
        (Protocol::Grpc, Reply::grpc("8", &[("grpc-retry-pushback-ms", "-1")])),
    ] {
        let server = Server::start(move |_, _| refusal.clone());
        for (retry, times) in [(Retry::Budgeted, 1), (NAIVE, 3)] {
            let mut plan = server.plan(&["500 for 300ms"]);
            plan.protocol = protocol;
            plan.course.retry = retry;
            let report = run(plan);
            assert_eq!(report.total.attempts, times * report.total.sent, "{retry}");
            if retry == Retry::Budgeted {
                assert_eq!(report.given_up["advised"], report.total.failed);
            }
        }
    }
}

#[test]
fn a_pushback_is_waited_for_and_the_retry_counts_from_the_first_start() {
    // Every first attempt is refused, and told to come back in 60 ms.
    let server = Server::start(|_, asked| match asked.said().attempt {
        1 => Reply::grpc("14", &[("grpc-retry-pushback-ms", "60")]),
        _ => Reply::grpc("0", &[]),
    });
    let mut plan = server.plan(&["300 for 800ms"]);
    plan.protocol = Protocol::Grpc;
    plan.course.retry = Retry::Budgeted;
    let report = run(plan);
    assert!(report.total.ok > 0, "{report:?}");
    assert_eq!(report.total.ok, report.total.attempts - report.total.sent);
    let (latency, service) = (report.latency_ms.unwrap(), report.service_ms.unwrap());
    // The histogram's three digits round down.
    assert!(latency.min >= 59.9, "{latency:?}");
    assert!(service.min < latency.min, "{service:?}");
}

#[test]
fn a_throttle_holds_back_what_would_be_refused() {
    let server = Server::start(|_, _| Reply::status(503, &[]));
    let mut plan = server.plan(&["1000 for 1s"]);
    plan.course.throttle = true;
    let report = run(plan);
    assert!(report.total.throttled > 0, "{report:?}");
    assert_eq!(report.total.failed, server.asked().len() as u64);
    assert_eq!(report.total.offered, report.total.failed + report.total.throttled);

    let server = Server::start(|_, _| Reply::ok());
    let mut plan = server.plan(&["500 for 500ms"]);
    plan.course.throttle = true;
    let report = run(plan);
    assert_eq!((report.total.throttled, report.total.ok), (0, report.total.offered));
}
