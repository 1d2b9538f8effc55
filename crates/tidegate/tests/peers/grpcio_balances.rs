//! A client by grpcio with `weighted_round_robin` sends by our load reports.

use crate::backend::{Backend, Reports};
use crate::peer::Peers;
use crate::shares::{self, COSTS, PER_SECOND, SHARES};

/// Weights count at once and follow every report, so that tests need not wait for them.
fn weighted(out_of_band: bool) -> String {
    format!(
        r#"{{"loadBalancingConfig": [{{"weighted_round_robin": {{
            "blackoutPeriod": "0s", "weightUpdatePeriod": "0.1s",
            "enableOobLoadReport": {out_of_band}, "oobReportingPeriod": "0.1s"
        }}}}]}}"#
    )
}

async fn backends(reports: Reports) -> Vec<Backend> {
    let mut backends = Vec::new();
    for cost in COSTS {
        backends.push(Backend::grpc_reporting(reports, cost).await);
    }
    backends
}

fn addresses(backends: &[Backend]) -> String {
    let all: Vec<_> = backends.iter().map(|backend| backend.address.to_string()).collect();
    all.join(",")
}

/// The shares are as the costs say, and turn with them.
async fn follows(reports: Reports) {
    let Some(peers) = Peers::find() else { return };
    let backends = backends(reports).await;
    let config = weighted(reports == Reports::OnAStream);
    let mut flow = peers.flow(&addresses(&backends), &config, PER_SECOND);
    shares::settle(&SHARES, &backends).await;
    for (backend, cost) in backends.iter().zip(COSTS.into_iter().rev()) {
        backend.set_cost(cost);
    }
    let turned: Vec<_> = SHARES.into_iter().rev().collect();
    shares::settle(&turned, &backends).await;
    flow.is_running();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_reports_in_trailers() {
    follows(Reports::WithAnswers).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_reports_on_a_stream() {
    follows(Reports::OnAStream).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_reports_shares_are_even() {
    let Some(peers) = Peers::find() else { return };
    let backends = backends(Reports::Never).await;
    let _flow = peers.flow(&addresses(&backends), &weighted(false), PER_SECOND);
    shares::settle(&[1.0 / 3.0; 3], &backends).await;
}
