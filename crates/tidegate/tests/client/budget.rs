//! The budget under real concurrency.

use bytes::Bytes;
use core::convert::Infallible;
use http::{Request, Response};
use http_body_util::Empty;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tidegate::client::Layer;
use tidegate_core::Ratio;
use tidegate_core::retry::BudgetConfig;
use tower::ServiceExt;
use tower_layer::Layer as _;

proptest! {
    // Each waits for a few ticks of the real clock.
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Threads send as fast as they can to a backend that refuses one in `refuses`, until many
    /// retries were granted. Never, in whatever order, were there more than the share. Fewer than
    /// half are refused, so that none are held back before the budget is asked.
    #[test]
    fn threads_together_stay_within_the_budget(
        threads in 2_usize..5,
        tasks in 2_usize..9,
        refuses in 3_u64..6,
        percent in 1_u32..30,
    ) {
        let mut budget = BudgetConfig::default();
        budget.ratio = Ratio::percent(percent);
        let layer = Layer::builder("backend").budget(budget).build();
        let attempts = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&attempts);
        let backend = tower::service_fn(move |_: Request<Empty<Bytes>>| {
            let refused = seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(refuses);
            let status = if refused { 503 } else { 200 };
            let response = Response::builder().status(status).body(Empty::<Bytes>::new()).unwrap();
            async move { Ok::<_, Infallible>(response) }
        });
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads).enable_time().build().unwrap();
        runtime.block_on(async {
            let mut running = tokio::task::JoinSet::new();
            for _ in 0..tasks {
                let (layer, service) = (layer.clone(), layer.layer(backend.clone()));
                running.spawn(async move {
                    while layer.counts().retries.retries < 200 {
                        for _ in 0..50 {
                            service.clone().oneshot(Request::new(Empty::new())).await.unwrap();
                        }
                        tokio::task::yield_now().await;
                    }
                });
            }
            running.join_all().await;
        });
        let counts = layer.counts().retries;
        prop_assert!(counts.retries >= 200);
        prop_assert!(counts.retries * 100 <= counts.requests * u64::from(percent), "{:?}", counts);
        prop_assert_eq!(attempts.load(Ordering::Relaxed), counts.requests + counts.retries);
    }
}
