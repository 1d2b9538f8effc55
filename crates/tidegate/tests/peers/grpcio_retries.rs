//! A client by grpcio that may retry everything does what refusals say.

use crate::backend::{Backend, WAIT};
use crate::peer::Peers;

/// Three attempts, for whatever reason, after a pause of about `backoff`: a fifth more or less, in
/// whole milliseconds. If that comes to none, grpcio 1.85 never tries again.
fn retries(backoff: &str) -> String {
    format!(
        r#"{{"methodConfig": [{{"name": [{{}}], "retryPolicy": {{
            "maxAttempts": 3, "initialBackoff": "{backoff}", "maxBackoff": "{backoff}",
            "backoffMultiplier": 1,
            "retryableStatusCodes": ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
        }}}}]}}"#
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overloaded_task_is_retried_until_its_histogram_says_dont() {
    let Some(peers) = Peers::find() else { return };
    let backend = Backend::grpc().await;
    let mut watching = backend.shut_and_watch();
    let ends = peers.calls(backend.address, &retries("0.02s"), 40, "").await;
    assert_eq!(ends, vec!["UNAVAILABLE"; 40]);
    assert_eq!(backend.attempts(), [40, 40, 40]);
    assert_eq!(backend.refused(), 120);
    // That all are retried looks like a fleet that is full.
    watching.advise();
    let ends = peers.calls(backend.address, &retries("0.02s"), 10, "").await;
    assert_eq!(ends, vec!["RESOURCE_EXHAUSTED"; 10]);
    assert_eq!(backend.attempts(), [50, 40, 40]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn it_is_the_pushback_that_stops_retries() {
    let Some(peers) = Peers::find() else { return };
    for (about, attempts) in [
        // A handler of somebody who does not know of pushback.
        ("exhausted", [1, 1, 1]),
        // A handler that fails as its dependency has said "don't retry".
        ("below", [1, 0, 0]),
    ] {
        let backend = Backend::grpc().await;
        let ends = peers.calls(backend.address, &retries("0.02s"), 1, about).await;
        assert_eq!(ends, ["RESOURCE_EXHAUSTED"], "{about}");
        assert_eq!(backend.attempts(), attempts, "{about}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_is_out_of_quota_is_not_retried() {
    let Some(peers) = Peers::find() else { return };
    let backend = Backend::grpc().await;
    backend.task.set_default_limits(tidegate_core::fleet::Limits::ZERO);
    let ends = peers.calls(backend.address, &retries("0.02s"), 5, "").await;
    assert_eq!(ends, vec!["RESOURCE_EXHAUSTED"; 5]);
    assert_eq!(backend.attempts(), [5, 0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_time_to_wait_counts_instead_of_its_own() {
    let Some(peers) = Peers::find() else { return };
    // Its own would be next to nothing, or longer than the call may take.
    for backoff in ["0.02s", "300s"] {
        let backend = Backend::grpc().await;
        let ends = peers.calls(backend.address, &retries(backoff), 1, "later").await;
        assert_eq!(ends, ["UNAVAILABLE"], "{backoff}");
        assert_eq!(backend.attempts(), [1, 1, 1], "{backoff}");
        let calls = backend.calls.lock().unwrap();
        let waits: Vec<_> = calls.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(waits.iter().all(|&wait| wait >= WAIT), "{backoff}: {waits:?}");
    }
}

/// A pause of no milliseconds would be one without an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_may_retry_at_once_does() {
    let Some(peers) = Peers::find() else { return };
    let backend = Backend::grpc().await;
    let ends = peers.calls(backend.address, &retries("300s"), 1, "at once").await;
    assert_eq!(ends, ["UNAVAILABLE"]);
    assert_eq!(backend.attempts(), [1, 1, 1]);
}
