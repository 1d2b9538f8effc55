//! An Envoy that retries everything does what refusals say.

use crate::backend::Backend;
use crate::envoy::{Config, Protocol, RETRY_ALL};
use crate::peer::Peers;
use std::time::Duration;
use tidegate_core::fleet::Limits;

const HTTP: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];

fn retrying(protocol: Protocol) -> Config {
    Config { retry: RETRY_ALL, ..Config::new(protocol) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_task_is_retried_until_its_histogram_says_dont() {
    let Some(peers) = Peers::find() else { return };
    for protocol in HTTP {
        let backends = [Backend::http().await];
        let [backend] = &backends;
        let envoy = retrying(protocol).start(&peers, &backends).await;
        let mut watching = backend.shut_and_watch();
        for _ in 0..40 {
            assert_eq!(envoy.get("/").await.status(), 503);
        }
        assert_eq!(backend.attempts(), [40, 40, 40], "{protocol:?}");
        watching.advise();
        for _ in 0..10 {
            let answer = envoy.get("/").await;
            assert_eq!(answer.status(), 503);
            assert_eq!(answer.headers()["x-tidegate-reason"], "overloaded");
        }
        assert_eq!(backend.attempts(), [50, 40, 40], "{protocol:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_grpc_too() {
    let Some(peers) = Peers::find() else { return };
    let backends = [Backend::grpc().await];
    let [backend] = &backends;
    let envoy = retrying(Protocol::Http2).start(&peers, &backends).await;
    let mut watching = backend.shut_and_watch();
    let ends = peers.calls(envoy.address, "{}", 40, "").await;
    assert_eq!(ends, vec!["UNAVAILABLE"; 40]);
    assert_eq!(backend.attempts(), [40, 40, 40]);
    watching.advise();
    let ends = peers.calls(envoy.address, "{}", 10, "").await;
    assert_eq!(ends, vec!["RESOURCE_EXHAUSTED"; 10]);
    assert_eq!(backend.attempts(), [50, 40, 40]);
}

/// What an answer has to be for Envoy to leave it: a handler's own is retried, ours is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_our_header_that_stops_retries() {
    let Some(peers) = Peers::find() else { return };
    for (protocol, path, status, attempts) in [
        (Protocol::Http1, "/busy", 429, [1, 1, 1]),
        (Protocol::Http2, "/busy", 429, [1, 1, 1]),
        (Protocol::Http1, "/below", 503, [1, 0, 0]),
        (Protocol::Http2, "/below", 503, [1, 0, 0]),
    ] {
        let backends = [Backend::http().await];
        let envoy = retrying(protocol).start(&peers, &backends).await;
        assert_eq!(envoy.get(path).await.status(), status, "{path}");
        assert_eq!(backends[0].attempts(), attempts, "{path} {protocol:?}");
    }
    for (about, attempts) in [("exhausted", [1, 1, 1]), ("below", [1, 0, 0])] {
        let backends = [Backend::grpc().await];
        let envoy = retrying(Protocol::Http2).start(&peers, &backends).await;
        let ends = peers.calls(envoy.address, "{}", 1, about).await;
        assert_eq!(ends, ["RESOURCE_EXHAUSTED"], "{about}");
        assert_eq!(backends[0].attempts(), attempts, "{about}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_out_of_quota_is_not_retried() {
    let Some(peers) = Peers::find() else { return };
    for protocol in HTTP {
        let backends = [Backend::http().await];
        let envoy = retrying(protocol).start(&peers, &backends).await;
        backends[0].task.set_default_limits(Limits::ZERO);
        assert_eq!(envoy.get("/").await.status(), 429);
        assert_eq!(backends[0].attempts(), [1, 0, 0], "{protocol:?}");
    }
    let backends = [Backend::grpc().await];
    let envoy = retrying(Protocol::Http2).start(&peers, &backends).await;
    backends[0].task.set_default_limits(Limits::ZERO);
    assert_eq!(peers.calls(envoy.address, "{}", 1, "").await, ["RESOURCE_EXHAUSTED"]);
    assert_eq!(backends[0].attempts(), [1, 0, 0]);
}

/// What "another may take it" is for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn retries_go_elsewhere_and_are_served() {
    const ELSEWHERE: &str = "{ num_retries: 2, retry_on: '5xx', \
         retry_back_off: { base_interval: 0.001s, max_interval: 0.001s }, \
         host_selection_retry_max_attempts: 5, \
         retry_host_predicate: [{ name: previous_hosts, typed_config: { '@type': \
         type.googleapis.com/envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate \
         } }] }";
    let Some(peers) = Peers::find() else { return };
    for shut in [Backend::shut, |backend: &Backend| backend.task.set_lame_duck(true)] {
        let backends = [Backend::http().await, Backend::http().await];
        let config = Config { retry: ELSEWHERE, ..Config::new(Protocol::Http1) };
        let envoy = config.start(&peers, &backends).await;
        shut(&backends[0]);
        for _ in 0..20 {
            assert_eq!(envoy.get("/").await.status(), 200);
        }
        let [full, other] = backends.each_ref().map(Backend::attempts);
        assert_eq!(other[0] + full[0], 20);
        assert_eq!((other[1], full[1]), (full[0], 0), "each that was refused came to the other");
        assert!(full[0] >= 5, "{full:?}");
    }
}

/// Envoy waits as long as `retry-after` says if it is told to look; seconds are the least.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_wait_counts_if_envoy_is_told_to_look() {
    const LOOKING: &str = "{ num_retries: 1, retry_on: '5xx', rate_limited_retry_back_off: \
         { reset_headers: [{ name: retry-after, format: SECONDS }] } }";
    let Some(peers) = Peers::find() else { return };
    let backends = [Backend::http().await];
    let config = Config { retry: LOOKING, ..Config::new(Protocol::Http1) };
    let envoy = config.start(&peers, &backends).await;
    assert_eq!(envoy.get("/later").await.status(), 503);
    let calls = backends[0].calls.lock().unwrap();
    assert_eq!(calls.len(), 2);
    assert!(calls[1] - calls[0] >= Duration::from_secs(1), "{:?}", calls[1] - calls[0]);
}
