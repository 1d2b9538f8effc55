//! A service with a page: one that works, asks others, and can be overrun.

use axum::Router;
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper_util::rt::TokioIo;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tidegate::admin::{Admin, Page};
use tidegate::client::{Balance, Balancer, Discovery, Endpoint, Layer};
use tidegate::server::PeerIdentity;
use tidegate::{Criticality, Task};
use tidegate_core::CostRate;
use tidegate_core::balance::WeightedConfig;
use tidegate_core::fleet::Limits;
use tidegate_wire::customer::Identities;
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer as _, ServiceExt, service_fn};

/// Who calls: one who may speak for customers, and claim all.
const EDGE: &str = "spiffe://d/ns/edge/sa/gateway";
/// Callers in all; how many of them call is to be chosen.
const CALLERS: usize = 96;
/// In calm.
pub(crate) const CALM: usize = 6;
/// Many times what one CPU can do.
pub(crate) const SURGE: usize = CALLERS;

/// A service at work.
pub(crate) struct Stage {
    pub(crate) task: Task,
    inventory: Layer,
    balancer: Balancer<Backend>,
    callers: Arc<AtomicUsize>,
}

type Backend = tower::util::BoxCloneSyncService<
    http::Request<Full<Bytes>>,
    http::Response<Full<Bytes>>,
    std::convert::Infallible,
>;

impl Stage {
    /// Begins to serve, and to be called in calm. It goes on until the test ends.
    pub(crate) fn begin() -> Self {
        let (sender, receiver) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let task = task();
                let inventory = Layer::new("inventory");
                let balancer = balancer();
                let app = app(&task, &inventory, &balancer);
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                let address = listener.local_addr().unwrap();
                sender.send((task, inventory, balancer, address)).unwrap();
                axum::serve(listener, app).await.unwrap();
            });
        });
        let (task, inventory, balancer, address) = receiver.recv().unwrap();
        let callers = Arc::new(AtomicUsize::new(CALM));
        let active = Arc::clone(&callers);
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            runtime.unwrap().block_on(async move {
                let calls = (0..CALLERS).map(|n| tokio::spawn(call(address, n, active.clone())));
                for call in calls.collect::<Vec<_>>() {
                    let _ = call.await;
                }
            });
        });
        Self { task, inventory, balancer, callers }
    }

    /// So many call from now on.
    pub(crate) fn callers(&self, count: usize) {
        self.callers.store(count, Ordering::Relaxed);
    }

    /// Its page, at this port.
    pub(crate) fn page(&self, port: u16) -> Page {
        let admin = Admin::new(&self.task).client(&self.inventory);
        admin.balancer("inventory", &self.balancer).spawn(("127.0.0.1", port)).unwrap()
    }
}

fn task() -> Task {
    let identities = Identities::default().delegator(EDGE).unwrap();
    let identities = identities.ceiling(EDGE, Criticality::CriticalPlus).unwrap();
    let limit = |cpus| Limits::total(CostRate::from_cpus(cpus).unwrap());
    Task::builder("checkout")
        .cpus(1.0)
        .identities(identities)
        .customer("shop", limit(0.6))
        .customer("partner", limit(0.3))
        .customer("reports", limit(0.05))
        .start()
        .unwrap()
}

/// Three endpoints without a network, one of which is often full.
fn balancer() -> Balancer<Backend> {
    let discovery = Discovery::list(["10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"]);
    let make = |endpoint: &Endpoint| {
        let full = endpoint.address() == "10.0.0.3:80";
        let asked = Arc::new(AtomicU64::new(0));
        let backend = service_fn(move |_: http::Request<Full<Bytes>>| {
            let n = asked.fetch_add(1, Ordering::Relaxed);
            let status = if full && n.is_multiple_of(2) { 503 } else { 200 };
            let load = if full { "0.9" } else { "0.4" };
            let report = format!("TEXT application_utilization={load},rps_fractional=100");
            let answer = http::Response::builder().status(status);
            let answer = answer.header("endpoint-load-metrics", report);
            async move { Ok::<_, std::convert::Infallible>(answer.body(Full::default()).unwrap()) }
        });
        Ok::<_, std::convert::Infallible>(Backend::new(backend))
    };
    let policy = Balance::Weighted(WeightedConfig::default());
    Balancer::builder(discovery, make).balance(policy).build().unwrap()
}

fn app(task: &Task, inventory: &Layer, balancer: &Balancer<Backend>) -> Router {
    let edge = task.peer(Some(EDGE));
    let known = move |mut request: Request, next: Next| {
        let edge: PeerIdentity = edge.clone();
        async move {
            request.extensions_mut().insert(edge);
            next.run(request).await
        }
    };
    let client = inventory.layer(balancer.clone());
    let work = move || {
        let client = client.clone();
        async move {
            let until = Instant::now() + Duration::from_millis(2);
            while Instant::now() < until {
                std::hint::spin_loop();
            }
            let _ = client.oneshot(http::Request::new(Full::default())).await;
            "done\n"
        }
    };
    Router::new().route("/", axum::routing::get(work)).layer(task.layer()).layer(from_fn(known))
}

/// One caller of many. What was refused is tried once more.
async fn call(address: SocketAddr, n: usize, active: Arc<AtomicUsize>) -> Option<()> {
    let io = TokioIo::new(TcpStream::connect(address).await.ok()?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(io).await.ok()?;
    tokio::spawn(connection);
    let criticality = match n % 8 {
        0 => "CRITICAL_PLUS",
        1 | 2 => "CRITICAL",
        3 | 4 => "SHEDDABLE_PLUS",
        _ => "SHEDDABLE",
    };
    let customer = ["shop", "shop", "partner", "somebody", "reports"][n % 5];
    let mut attempt = 1;
    loop {
        if n >= active.load(Ordering::Relaxed) {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        }
        sender.ready().await.ok()?;
        let request = http::Request::get("/").header("host", "localhost");
        let request = request.header("x-criticality", criticality).header("x-customer", customer);
        let request = request.header("x-envoy-attempt-count", attempt.to_string());
        let answer = sender.send_request(request.body(Empty::<Bytes>::new()).ok()?).await.ok()?;
        let served = answer.status().is_success();
        answer.into_body().collect().await.ok()?;
        attempt = if served || attempt == 2 { 1 } else { 2 };
        let pause = if criticality == "CRITICAL_PLUS" { 60 } else { 25 };
        tokio::time::sleep(Duration::from_millis(pause)).await;
    }
}
