//! A service that burns the CPU and is offered far more than it can do.
//!
//! The server has one thread, and so one CPU. Some forty callers want as much `SHEDDABLE` work as
//! they can get; those that are refused come back a little later, as all of this runs on the same
//! machine. One caller wants `CRITICAL_PLUS`, and so little of it that it fits: a tenth of a CPU.
//! What is asserted is who was served, never how fast.

use crate::support::{Client, Version, burn};
use axum::Router;
use axum::routing::get;
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use tidegate::{Criticality, Task};
use tidegate_core::decision::Reason;
use tidegate_wire::customer::Identities;

const CALLERS: usize = 40;
const IMPORTANT: u64 = 30;
/// Ten times what a request takes.
const PAUSE: Duration = Duration::from_millis(20);

/// Whose the connections are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Served {
    /// They are counted.
    Counted,
    /// axum has them.
    ByAxum,
    /// axum has them, on a runtime of several threads.
    ByAxumOnWorkers,
}

/// A server on a thread of its own.
fn start(served: Served) -> (Task, SocketAddr) {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = match served {
            Served::ByAxumOnWorkers => tokio::runtime::Builder::new_multi_thread(),
            _ => tokio::runtime::Builder::new_current_thread(),
        };
        let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let task = Task::builder("busy")
                .cpus(1.0)
                // What others take of the CPU is no business of this test.
                .system_signals(false)
                .identities(Identities::default().unidentified(Criticality::CriticalPlus))
                .start()
                .unwrap();
            let work = get(|| async { burn(2).to_string() });
            let router = Router::new().route("/", work).layer(task.layer());
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send((task.clone(), listener.local_addr().unwrap())).unwrap();
            if served != Served::Counted {
                return axum::serve(listener, router).await.unwrap();
            }
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let service = TowerToHyperService::new(router.clone());
                let connection = hyper::server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                task.executor().spawn(connection);
            }
        });
    });
    receiver.recv().unwrap()
}

#[tokio::test]
async fn what_matters_most_is_served_where_connections_are_counted() {
    what_matters_most_is_served_while_the_rest_is_refused(Served::Counted).await;
}

#[tokio::test]
async fn what_matters_most_is_served_by_axum() {
    what_matters_most_is_served_while_the_rest_is_refused(Served::ByAxum).await;
}

#[tokio::test]
async fn what_matters_most_is_served_by_axum_on_workers() {
    what_matters_most_is_served_while_the_rest_is_refused(Served::ByAxumOnWorkers).await;
}

async fn what_matters_most_is_served_while_the_rest_is_refused(served: Served) {
    let (task, address) = start(served);
    let stop = Arc::new(AtomicBool::new(false));
    let refused = Arc::new(AtomicU64::new(0));
    let mut callers = Vec::new();
    for _ in 0..CALLERS {
        let (stop, refused) = (Arc::clone(&stop), Arc::clone(&refused));
        callers.push(tokio::spawn(async move {
            let mut client = Client::connect(address, Version::Http1).await;
            while !stop.load(Ordering::Relaxed) {
                let answer = client.get("/", &[("x-criticality", "SHEDDABLE")]).await;
                if answer.status() == 503 {
                    assert_eq!(answer.headers()["x-tidegate-reason"], "overloaded");
                    refused.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }));
    }
    // The surge is on: something is being refused.
    while refused.load(Ordering::Relaxed) < 100 {
        tokio::task::yield_now().await;
    }
    let before = task.gate().counts();
    let mut client = Client::connect(address, Version::Http1).await;
    for _ in 0..IMPORTANT {
        let answer = client.get("/", &[("x-criticality", "CRITICAL_PLUS")]).await;
        assert_eq!(answer.status(), 200);
        tokio::time::sleep(PAUSE).await;
    }
    stop.store(true, Ordering::Relaxed);
    for caller in callers {
        caller.await.unwrap();
    }
    let counts = task.gate().counts();
    assert_eq!(counts.admitted(Criticality::CriticalPlus), IMPORTANT);
    assert_eq!(counts.rejected(Reason::Overloaded, Criticality::CriticalPlus), 0);
    let since =
        |count: fn(&tidegate_core::admission::Counts) -> u64| count(&counts) - count(&before);
    let shed = since(|counts| counts.rejected(Reason::Overloaded, Criticality::Sheddable));
    assert!(shed > 0, "nothing was refused");
}
