//! An Envoy with client-side weighted round robin sends by our load reports.

use crate::backend::{Backend, Reports};
use crate::envoy::{Config, Protocol};
use crate::peer::{Envoy, Peers};
use crate::shares::{self, COSTS, PER_SECOND, SHARES};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::MissedTickBehavior;

/// Weights count at once and follow every report, so that tests need not wait for them.
const WEIGHTED: &str = "{ name: weighted, typed_config: { '@type': \
     type.googleapis.com/envoy.extensions.load_balancing_policies.\
     client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin, \
     blackout_period: 0s, weight_update_period: 0.1s } }";
/// The same, with reports on a stream.
const WEIGHTED_BY_STREAM: &str = "{ name: weighted, typed_config: { '@type': \
     type.googleapis.com/envoy.extensions.load_balancing_policies.\
     client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin, \
     blackout_period: 0s, weight_update_period: 0.1s, \
     enable_oob_load_report: true, oob_reporting_period: 0.1s } }";
/// Tasks report over HTTP to those who ask.
const ASKING: &str = "[{ header: { key: endpoint-load-metrics-format, value: BIN } }]";

fn weighted(protocol: Protocol, policy: &'static str) -> Config {
    Config { policy, ..Config::new(protocol) }
}

async fn http(reports: Reports) -> Vec<Backend> {
    let mut backends = Vec::new();
    for cost in COSTS {
        backends.push(Backend::http_reporting(reports, cost).await);
    }
    backends
}

async fn grpc(reports: Reports) -> Vec<Backend> {
    let mut backends = Vec::new();
    for cost in COSTS {
        backends.push(Backend::grpc_reporting(reports, cost).await);
    }
    backends
}

/// Requests over HTTP/1.1, so many a second, until the test ends.
fn flow(envoy: &Arc<Envoy>) -> JoinHandle<()> {
    let mut pace = tokio::time::interval(Duration::from_secs(1) / PER_SECOND);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let envoy = Arc::clone(envoy);
    tokio::spawn(async move {
        loop {
            pace.tick().await;
            let answer = envoy.get("/").await;
            assert_eq!(answer.status(), 200);
        }
    })
}

/// The shares are as the costs say, and turn with them.
async fn follow(backends: &[Backend]) {
    shares::settle(&SHARES, backends).await;
    for (backend, cost) in backends.iter().zip(COSTS.into_iter().rev()) {
        backend.set_cost(cost);
    }
    let turned: Vec<_> = SHARES.into_iter().rev().collect();
    shares::settle(&turned, backends).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_reports_in_headers() {
    let Some(peers) = Peers::find() else { return };
    for protocol in [Protocol::Http1, Protocol::Http2] {
        let backends = http(Reports::WithAnswers).await;
        let config = Config { add: ASKING, ..weighted(protocol, WEIGHTED) };
        let envoy = Arc::new(config.start(&peers, &backends).await);
        let flow = flow(&envoy);
        follow(&backends).await;
        assert!(!flow.is_finished());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_reports_in_trailers() {
    let Some(peers) = Peers::find() else { return };
    let backends = grpc(Reports::WithAnswers).await;
    let envoy = weighted(Protocol::Http2, WEIGHTED).start(&peers, &backends).await;
    let mut flow = peers.flow(&envoy.address.to_string(), "{}", PER_SECOND);
    follow(&backends).await;
    flow.is_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_reports_on_a_stream() {
    let Some(peers) = Peers::find() else { return };
    let backends = grpc(Reports::OnAStream).await;
    let envoy = weighted(Protocol::Http2, WEIGHTED_BY_STREAM).start(&peers, &backends).await;
    let mut flow = peers.flow(&envoy.address.to_string(), "{}", PER_SECOND);
    follow(&backends).await;
    flow.is_running();
}

/// Over HTTP nobody is told who does not ask, and Envoy does not by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_reports_shares_are_even() {
    let Some(peers) = Peers::find() else { return };
    let backends = http(Reports::WithAnswers).await;
    let config = weighted(Protocol::Http1, WEIGHTED);
    let envoy = Arc::new(config.start(&peers, &backends).await);
    let flow = flow(&envoy);
    shares::settle(&[1.0 / 3.0; 3], &backends).await;
    assert!(!flow.is_finished());
}
