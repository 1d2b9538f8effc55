//! Servers on loopback that report fast, tasks, and patience.

use core::time::Duration;
use std::net::SocketAddr;
use std::time::SystemTime;
use tidegate::Task;
use tidegate::clock::Clock;
use tidegate::life::{Life, LifeConfig};
use tidegate::serve::Tls;
use tidegate_core::fleet::Limits;
use tidegate_core::{Cost, CostRate, Criticality};
use tidegate_quota::{Config, Election, Server};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

/// Two services whose tasks report a hundred times as often as they would by default.
pub(crate) const CONFIG: &str = "\
quota:
  services:
    search:
      default: 1
      customers: { good: 3, bad: 2 }
      reports: { every: 20ms, round: 5ms }
    ads:
      default: 1
      reports: { every: 20ms, round: 5ms }
";

pub(crate) fn config(text: &str) -> Config {
    Config::parse("test.yaml", text).unwrap()
}

pub(crate) fn cpus(n: f64) -> CostRate {
    CostRate::from_cpus(n).unwrap()
}

/// What is served on a port until it is dropped.
pub(crate) struct Served {
    pub(crate) address: SocketAddr,
    life: Life,
    running: Option<tokio::task::JoinHandle<()>>,
}

impl Served {
    pub(crate) async fn at(address: &str, router: axum::Router) -> Self {
        Self::secured(address, router, None).await
    }

    /// The same with TLS.
    pub(crate) async fn secured(address: &str, router: axum::Router, tls: Option<Tls>) -> Self {
        Self::on(TcpListener::bind(address).await.unwrap(), router, tls)
    }

    /// The same on a port that is open.
    pub(crate) fn on(listener: TcpListener, router: axum::Router, tls: Option<Tls>) -> Self {
        let address = listener.local_addr().unwrap();
        let mut config = LifeConfig::default();
        (config.drain_delay, config.drain_max) = (Duration::ZERO, Duration::from_millis(200));
        let life = Life::new(config, Clock::monotonic());
        let mut serve = tidegate::serve(listener, router.into_make_service()).life(life.clone());
        if let Some(tls) = tls {
            serve = serve.tls(tls);
        }
        let running = tokio::spawn(async move { serve.await.unwrap() });
        Self { address, life, running: Some(running) }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Ends, and frees the port.
    pub(crate) async fn stop(mut self) {
        self.life.stop();
        self.running.take().unwrap().await.unwrap();
    }
}

/// A port where nobody is at home yet: whoever calls is hung up on.
pub(crate) struct Closed {
    pub(crate) address: SocketAddr,
    open: oneshot::Sender<()>,
    listener: tokio::task::JoinHandle<TcpListener>,
}

impl Closed {
    pub(crate) async fn new() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (open, mut opened) = oneshot::channel();
        let listener = tokio::spawn(async move {
            loop {
                tokio::select! {
                    _ = &mut opened => return listener,
                    call = listener.accept() => drop(call),
                }
            }
        });
        Self { address, open, listener }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// For somebody who will be there from now on.
    pub(crate) async fn open(self) -> TcpListener {
        let _ = self.open.send(());
        self.listener.await.unwrap()
    }
}

/// A server that has nothing to learn, as nobody led before.
pub(crate) async fn quota(epoch: u64) -> (Server, Served) {
    quota_at("127.0.0.1:0", epoch, false).await
}

pub(crate) async fn quota_at(address: &str, epoch: u64, learns: bool) -> (Server, Served) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_millis(epoch);
    let state = std::env::temp_dir().join(format!(
        "tidegate-quota-{}-{epoch}-{:?}",
        std::process::id(),
        std::thread::current().id()
    ));
    let _ = std::fs::remove_file(&state);
    let state_or_none = (!learns).then_some(state.as_path());
    let election = Election::alone(state_or_none, time).unwrap();
    let server = Server::start(&config(CONFIG), election, Clock::monotonic()).unwrap();
    let _ = std::fs::remove_file(&state);
    let served = Served::at(address, server.router()).await;
    (server, served)
}

/// A task that has asked the gate for nothing yet.
pub(crate) fn task(service: &str) -> Task {
    Task::builder(service).build().unwrap()
}

/// Asks for requests of 1 ms each, as many as are `due`; how many were served.
pub(crate) fn ask(task: &Task, customer: &str, due: usize) -> usize {
    let mut lane = task.gate().quota().lane();
    let customer = task.customer(customer);
    let cost = Cost::from_millis(1);
    let mut served = 0;
    for _ in 0..due {
        let now = task.clock().now();
        if lane.gate().check(customer, Criticality::Critical, now).is_ok() {
            let _ = lane.charge(customer, Criticality::Critical, cost, now);
            served += 1;
        } else {
            lane.refuse(customer, Criticality::Critical, cost);
        }
    }
    served
}

/// Waits until it holds; half a minute is for ever.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let mut patience = 6_000;
    while !holds() {
        patience -= 1;
        assert!(patience > 0, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Whether a task has limits of a customer that are no more than the fleet's.
pub(crate) fn is_limited(task: &Task, customer: &str) -> bool {
    task.limits(customer) != Limits::UNLIMITED
}
