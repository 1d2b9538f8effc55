//! Our client before our own server: what policies live on has to come over the wire.

use axum::Router;
use axum::routing::get;
use core::time::Duration;
use http::{Request, StatusCode};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::Task;
use tidegate::client::{Balance, Balancer, Discovery, Endpoint, HttpProber, Prober, hyper};
use tidegate::health::Health;
use tidegate::life::Life;
use tidegate_core::balance::{PickReason, PrequalConfig, ProbeAnswer, WeightedConfig};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tower::ServiceExt;

type Empties = Empty<bytes::Bytes>;

/// A task that says that it is so full.
fn task(utilization: f64) -> Task {
    Task::builder("test")
        .cpus(2.0)
        .system_signals(false)
        .signal(tidegate::signals::from_fn("fixed", 1.0, move |_| Some(utilization)))
        .start()
        .unwrap()
}

async fn serve(router: Router) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await });
    address
}

/// Serves `/`, which says hello, and `/wait`, which does not answer before it is told to.
async fn start(task: &Task, go_on: &Arc<Semaphore>) -> SocketAddr {
    let life = Life::default();
    life.ready();
    let (health, go_on) = (Health::new(life).task(task), Arc::clone(go_on));
    let wait = get(move || async move { drop(go_on.acquire().await) });
    let router = Router::new().route("/", get(|| async { "hello" })).route("/wait", wait);
    serve(router.layer(task.layer()).merge(health.router())).await
}

fn client() -> Client<HttpConnector, Empties> {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A request that is in flight until the server may go on.
fn wait_at(address: SocketAddr) -> JoinHandle<StatusCode> {
    let request = Request::get(format!("http://{address}/wait")).body(Empties::new()).unwrap();
    let call = client().request(request);
    tokio::spawn(async move { call.await.unwrap().status() })
}

async fn ask(balancer: &Balancer<hyper::At<Empties>>) {
    let request = Request::get("http://inventory/").body(Empties::new()).unwrap();
    let response = balancer.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(response.into_body().collect().await.unwrap().to_bytes(), "hello");
}

/// Nobody tells the client to ask for load reports, and nobody tells the servers to send them. A
/// test that waits in vain for weights is ended by its runner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weights_are_those_that_our_servers_report_over_http() {
    let go_on = Arc::new(Semaphore::new(0));
    let (idle, full) = (task(0.1), task(0.6));
    let addresses = [start(&idle, &go_on).await, start(&full, &go_on).await];
    let mut config = WeightedConfig::default();
    config.blackout = Duration::ZERO;
    config.update_period = Duration::from_millis(10);
    let balancer = hyper::balancer::<Empties>(Discovery::list(addresses));
    let balancer = balancer.balance(Balance::Weighted(config)).seed(3).build().unwrap();
    let weight = |address: SocketAddr| {
        let backends = balancer.backends();
        let at = backends.iter().find(|b| b.endpoint == Endpoint::from(address));
        at.and_then(|backend| backend.weight).unwrap_or(0.0)
    };
    let by_weight = || balancer.counts().picks[PickReason::Weighted as usize];
    let served = |task: &Task| task.gate().counts().completed();
    // Reports of a server's first moments tell of no rate yet.
    while by_weight() == 0 || weight(addresses[0]) <= 2.0 * weight(addresses[1]) {
        ask(&balancer).await;
    }
    let before = (by_weight(), served(&idle), served(&full));
    while by_weight() < before.0 + 200 {
        ask(&balancer).await;
    }
    let (first, second) = (served(&idle) - before.1, served(&full) - before.2);
    assert!(first > second, "{first} {second}");
}

/// What answers a probe is the health of a task.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn our_servers_answer_probes() {
    let go_on = Arc::new(Semaphore::new(0));
    let task = task(0.1);
    let address = start(&task, &go_on).await;
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(wait_at(address));
    }
    while task.gate().counts().inflight() < 3 {
        tokio::task::yield_now().await;
    }
    let client = client();
    let prober = HttpProber::<Empties>::new(format!("http://{address}/readyz").parse().unwrap());
    let endpoint = Endpoint::from(address);
    let probe = async || prober.probe(&endpoint, client.clone()).await.expect("an answer");
    assert_eq!(probe().await.rif, 3);
    go_on.close();
    for call in waiting {
        assert_eq!(call.await.unwrap(), 200);
    }
    // How long they took shows after the next look.
    let seen = loop {
        let ProbeAnswer { rif, latency } = probe().await;
        if rif == 0 && latency > Duration::ZERO {
            break latency;
        }
    };
    let all = task.snapshot().latencies;
    assert!(seen <= all.sum, "{seen:?} {all:?}");
}

/// All of it together: a balancer that probes finds the server that has nothing to do. On one
/// thread, as answers to probes are for the thread on which they arrive.
#[tokio::test]
async fn a_prequal_balancer_finds_the_idle_one_of_our_servers() {
    let go_on = Arc::new(Semaphore::new(0));
    let (idle, busy) = (task(0.1), task(0.1));
    let addresses = [start(&idle, &go_on).await, start(&busy, &go_on).await];
    let mut waiting = Vec::new();
    for _ in 0..20 {
        waiting.push(wait_at(addresses[1]));
    }
    while busy.gate().counts().inflight() < 20 {
        tokio::task::yield_now().await;
    }
    let balancer = hyper::balancer::<Empties>(Discovery::list(addresses))
        .balance(Balance::Prequal(PrequalConfig::default()))
        .prober(HttpProber::new("http://inventory/readyz".parse().unwrap()))
        .seed(5)
        .build()
        .unwrap();
    let probed = || {
        let picks = balancer.counts().picks;
        picks[PickReason::LowestLatency as usize] + picks[PickReason::FewestInFlight as usize]
    };
    while probed() < 50 {
        ask(&balancer).await;
    }
    go_on.close();
    for call in waiting {
        assert_eq!(call.await.unwrap(), 200);
    }
    let served = |task: &Task| task.gate().counts().completed();
    assert!(served(&idle) > served(&busy) - 20, "{} {}", served(&idle), served(&busy));
}
