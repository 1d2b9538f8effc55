//! What reading and answering cost, roughly.
//!
//! ```sh
//! cargo run --release -p tidegate-wire --example timing
//! ```
//!
//! The best of many rounds, so that what else the machine does counts least.
#![allow(clippy::print_stdout, reason = "it is what this is for")]

use http::{HeaderMap, StatusCode, Version};
use std::hint::black_box;
use std::time::{Instant, SystemTime};
use tidegate_core::Criticality;
use tidegate_core::decision::{Advice, Cause, Reason, Rejection};
use tidegate_wire::incoming::Incoming;
use tidegate_wire::outgoing::Outgoing;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::{DecisionId, Reject};
use tidegate_wire::{answer, orca};

const ROUNDS: usize = 200;
const CALLS: u32 = 2_000;

fn time<T>(what: &str, mut call: impl FnMut() -> T) {
    let round = |call: &mut dyn FnMut() -> T| {
        let start = Instant::now();
        for _ in 0..CALLS {
            black_box(call());
        }
        start.elapsed() / CALLS
    };
    let best = (0..ROUNDS).map(|_| round(&mut call)).min().unwrap_or_default();
    println!("{what:<44} {:>6} ns", best.as_nanos());
}

fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        headers.append(*name, http::HeaderValue::from_static(value));
    }
    headers
}

fn main() {
    let plain = map(&[
        ("host", "example.org"),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64)"),
        ("accept", "text/html,application/xhtml+xml"),
        ("accept-encoding", "gzip, br"),
        ("accept-language", "en"),
        ("cookie", "session=0123456789abcdef"),
        ("cache-control", "no-cache"),
        ("x-forwarded-for", "203.0.113.7"),
        ("x-request-id", "5f0c0c2e-7e0e-4c56-a2f0-3b0b8f1b7f55"),
        ("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),
    ]);
    let mut full = plain.clone();
    full.extend(map(&[
        ("baggage", "userId=alice,serverNode=DF%2028,criticality=CRITICAL_PLUS,isProduction=false"),
        ("x-criticality", "CRITICAL_PLUS"),
        ("x-envoy-attempt-count", "1"),
        ("grpc-previous-rpc-attempts", "1"),
        ("grpc-timeout", "250m"),
        ("x-envoy-expected-rq-timeout-ms", "15000"),
        ("priority", "u=1, i"),
    ]));
    time("read 10 headers, none of them ours", || Incoming::read(&plain, Protocol::Http));
    time("read 17 headers, 7 of them ours", || Incoming::read(&full, Protocol::Grpc));
    time("clone 17 headers, for the next line", || full.clone());
    time("clone and write criticality, attempt, deadline", || {
        let mut headers = full.clone();
        let deadline = Some(std::time::Duration::from_millis(200));
        Outgoing::new(Criticality::Critical)
            .attempt(2)
            .deadline(deadline)
            .write(&mut headers, Protocol::Grpc);
        headers
    });

    let rejection = |reason, cause| Rejection {
        reason,
        advice: Advice::DontRetry,
        criticality: Criticality::Sheddable,
        cause,
    };
    let shed = rejection(Reason::Overloaded, None);
    let opens_in = std::time::Duration::from_millis(300);
    let quota = rejection(Reason::OutOfQuota, Some(Cause::Quota { opens_in }));
    for (what, rejection) in [("overloaded", &shed), ("out of quota", &quota)] {
        let reject = Reject::new(rejection, DecisionId(17));
        time(&format!("reject as HTTP: {what}"), || {
            reject.respond(Protocol::Http, Version::HTTP_11)
        });
        time(&format!("reject as gRPC: {what}"), || {
            reject.respond(Protocol::Grpc, Version::HTTP_2)
        });
    }

    let ok =
        map(&[("grpc-status", "0"), ("endpoint-load-metrics-bin", "CQAAAAAAAOA/MQAAAAAAAFRA")]);
    time("understand an answer", || {
        answer::read(StatusCode::OK, &HeaderMap::new(), Some(&ok), Protocol::Grpc, SystemTime::now)
    });
    time("read a load report", || orca::read(&ok));
}
