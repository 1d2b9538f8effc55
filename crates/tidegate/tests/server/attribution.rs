//! What requests cost is charged to them, wherever it is spent.

use crate::support::{Client, Version, burn, idle, serve};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use tidegate::Task;
use tidegate::task::Machine;
use tidegate_core::machine::MachineFactor;

const ROUNDS: u64 = 21;

/// Ten parts of work: in the handler, in a child and its child, on a blocking thread, and in the
/// body.
async fn dear() -> Body {
    burn(2);
    let child = tidegate::spawn(async {
        burn(1);
        let grandchild = tidegate::spawn(async { burn(1) });
        grandchild.await.unwrap();
    });
    child.await.unwrap();
    tidegate::spawn_blocking(|| burn(4)).await.unwrap();
    Body::from_stream(futures_util::stream::iter(0..2).map_to_work())
}

trait MapToWork: Sized {
    fn map_to_work(self) -> futures_util::stream::BoxStream<'static, Result<Bytes, String>>;
}

impl MapToWork for futures_util::stream::Iter<std::ops::Range<u64>> {
    fn map_to_work(self) -> futures_util::stream::BoxStream<'static, Result<Bytes, String>> {
        use futures_util::StreamExt;
        self.map(|_| {
            burn(1);
            Ok(Bytes::from_static(b"part"))
        })
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_times_the_work_costs_ten_times_as_much() {
    let task = Task::builder("test").build().unwrap();
    let router = Router::new()
        .route("/cheap", get(|| async { burn(1).to_string() }))
        .route("/dear", get(dear))
        .layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    let worked = || task.gate().counts().worked().as_secs_f64();
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        // One right after the other, as a machine that others use is faster or slower by half from
        // one moment to the next.
        let mut costs = [0.0; 2];
        for (cost, path) in costs.iter_mut().zip(["/cheap", "/dear"]) {
            let before = worked();
            assert_eq!(client.get(path, &[]).await.status(), 200);
            idle(&task).await;
            *cost = worked() - before;
        }
        ratios.push(costs[1] / costs[0]);
    }
    ratios.sort_by(f64::total_cmp);
    // A tenth of the work left out would be 9, the body 8, the blocking part 6. What the machine
    // itself does not do twice in the same time is left as the tolerance.
    let median = ratios[ratios.len() / 2];
    assert!((8.2..12.0).contains(&median), "{ratios:?}");
    let snapshot = task.snapshot();
    let counted: u64 = snapshot.costs.buckets.iter().map(|(_, count)| count).sum();
    assert_eq!(counted, 2 * ROUNDS);
    assert_eq!(snapshot.costs.sum, task.gate().counts().worked());
}

#[tokio::test]
async fn costs_are_those_of_the_reference_machine() {
    let mut costs = Vec::new();
    for factor in [1.0, 50.0] {
        let machine = Machine::Fixed(MachineFactor::new(factor).unwrap());
        let task = Task::builder("test").machine(machine).build().unwrap();
        let router = Router::new().route("/", get(|| async { burn(1).to_string() }));
        let address = serve(router.layer(task.layer())).await;
        let mut client = Client::connect(address, Version::Http1).await;
        for _ in 0..ROUNDS {
            client.get("/", &[]).await;
        }
        idle(&task).await;
        costs.push(task.gate().counts().worked().as_secs_f64());
    }
    let ratio = costs[1] / costs[0];
    assert!((25.0..100.0).contains(&ratio), "{costs:?}");
}
