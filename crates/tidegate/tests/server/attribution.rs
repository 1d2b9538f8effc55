//! What requests cost is charged to them, wherever it is spent.

use crate::support::{Client, Version, burn, idle, serve};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::get;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tidegate::Task;
use tidegate::task::Machine;
use tidegate_core::machine::MachineFactor;

const ROUNDS: u64 = 21;

/// CPU time of all work, in nanoseconds, by the clock of the thread that did it.
static WORKED: AtomicU64 = AtomicU64::new(0);

/// So many parts of work. A machine that others use is faster or slower by half from one moment to
/// the next, so what they took is looked at, not how many they were.
fn work(parts: u64) {
    let time = || {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).unwrap()
    };
    let before = time();
    burn(parts);
    WORKED.fetch_add(time() - before, Relaxed);
}

/// Ten parts of work: in the handler, in a child and its child, on a blocking thread, and in the
/// body.
async fn dear() -> Body {
    work(2);
    let child = tidegate::spawn(async {
        work(1);
        let grandchild = tidegate::spawn(async { work(1) });
        grandchild.await.unwrap();
    });
    child.await.unwrap();
    tidegate::spawn_blocking(|| work(4)).await.unwrap();
    Body::from_stream(futures_util::stream::iter(0..2).map_to_work())
}

trait MapToWork: Sized {
    fn map_to_work(self) -> futures_util::stream::BoxStream<'static, Result<Bytes, String>>;
}

impl MapToWork for futures_util::stream::Iter<std::ops::Range<u64>> {
    fn map_to_work(self) -> futures_util::stream::BoxStream<'static, Result<Bytes, String>> {
        use futures_util::StreamExt;
        self.map(|_| {
            work(1);
            Ok(Bytes::from_static(b"part"))
        })
        .boxed()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn all_work_is_charged_wherever_it_is_done() {
    let task = Task::builder("test").build().unwrap();
    let router = Router::new()
        .route("/cheap", get(|| async { work(1) }))
        .route("/dear", get(dear))
        .layer(task.layer());
    let mut client = Client::connect(serve(router).await, Version::Http1).await;
    let charged = || task.gate().counts().worked().as_secs_f64();
    let mut ratios = [const { Vec::new() }; 2];
    for _ in 0..ROUNDS {
        for (ratios, path) in ratios.iter_mut().zip(["/cheap", "/dear"]) {
            let before = (charged(), WORKED.load(Relaxed));
            assert_eq!(client.get(path, &[]).await.status(), 200);
            idle(&task).await;
            let worked = (WORKED.load(Relaxed) - before.1) as f64 / 1e9;
            ratios.push((charged() - before.0) / worked);
        }
    }
    let [cheap, dear] = ratios.map(|mut ratios| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    });
    // A child left out would be 0.9, the body 0.8, the blocking part 0.6. What is above one is the
    // way to the work and back, which is a tenth as much of the dear as of the cheap.
    assert!((0.97..1.2).contains(&dear), "{dear}");
    assert!((0.97..2.0).contains(&cheap), "{cheap}");
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
