//! Tasks for peers to talk to.

use axum::Router;
use axum::body::Body;
use axum::routing::get;
use futures_util::stream::BoxStream;
use http::{StatusCode, Version};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};
use tidegate::life::Life;
use tidegate::report::LoadReports;
use tidegate::{Task, context, health, signals};
use tidegate_core::Criticality;
use tidegate_core::admission::Controller;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_core::levels::Levels;
use tidegate_core::signal::Reading;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::{DecisionId, Reject};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::{Request, Response, Status};

/// What a handler that refuses by itself tells its caller to wait.
pub(crate) const WAIT: Duration = Duration::from_millis(300);

/// How a task reports its load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reports {
    Never,
    WithAnswers,
    OnAStream,
}

/// A task that serves.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) task: Task,
    pub(crate) address: SocketAddr,
    /// When handlers were called.
    pub(crate) calls: Arc<Mutex<Vec<Instant>>>,
    /// What a request takes of the task's one CPU, in microseconds, as far as anybody is told.
    cost: Arc<AtomicU64>,
}

/// Its controller is the test, and its gate is open.
fn idle() -> Task {
    Task::builder("peer").build().unwrap()
}

/// Its utilization is what its requests would take of a CPU, if they took `cost` each.
fn working(reports: Reports, cost: &Arc<AtomicU64>) -> Task {
    let itself = Arc::new(OnceLock::<Task>::new());
    let (task, cost) = (Arc::clone(&itself), Arc::clone(cost));
    let work = signals::from_fn("work", 1.0, move |_| {
        let served = task.get()?.load_report().rps_fractional;
        Some(served * cost.load(Relaxed) as f64 / 1e6)
    });
    let answers = match reports {
        Reports::WithAnswers => LoadReports::default(),
        Reports::Never | Reports::OnAStream => LoadReports::NEVER,
    };
    // With so many CPUs the executor's own load is nothing beside it, however busy the machine.
    let task = Task::builder("peer").system_signals(false).cpus(1_000.0);
    let task = task.load_reports(answers).signal(work).start().unwrap();
    itself.set(task.clone()).unwrap();
    task
}

impl Backend {
    async fn bind(task: Task, cost: Arc<AtomicU64>) -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (Self { task, address, calls: Arc::default(), cost }, listener)
    }

    /// A server of tonic.
    pub(crate) async fn grpc() -> Self {
        Self::tonic(idle(), Arc::default(), false).await
    }

    /// A server of tonic that reports its load; a request takes so many microseconds.
    pub(crate) async fn grpc_reporting(reports: Reports, cost: u64) -> Self {
        let cost = Arc::new(AtomicU64::new(cost));
        Self::tonic(working(reports, &cost), cost, reports == Reports::OnAStream).await
    }

    async fn tonic(task: Task, cost: Arc<AtomicU64>, stream: bool) -> Self {
        let (backend, listener) = Self::bind(task, cost).await;
        let task = backend.task.clone();
        let reports = stream.then(|| {
            let (life, task) = (Life::default(), task.clone());
            life.ready();
            health::LoadReports::new(life, move || task.load_report())
                .interval_min(Duration::from_millis(50))
                .into_service()
        });
        let health = HealthServer::new(Told { calls: Arc::clone(&backend.calls) });
        let server = Server::builder().layer(task.layer()).add_service(health);
        let server = server.add_optional_service(reports);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
        backend
    }

    /// A server of axum, for HTTP/1.1 and h2c.
    pub(crate) async fn http() -> Self {
        Self::axum(idle(), Arc::default()).await
    }

    /// A server of axum that reports its load; a request takes so many microseconds.
    pub(crate) async fn http_reporting(reports: Reports, cost: u64) -> Self {
        let cost = Arc::new(AtomicU64::new(cost));
        Self::axum(working(reports, &cost), cost).await
    }

    async fn axum(task: Task, cost: Arc<AtomicU64>) -> Self {
        let (backend, listener) = Self::bind(task, cost).await;
        let calls = Arc::clone(&backend.calls);
        let router = Router::new()
            .route("/", get(|| async { "hello" }))
            .route("/busy", get(|| async { StatusCode::TOO_MANY_REQUESTS }))
            .route(
                "/below",
                get(|| async {
                    context::overloaded_below();
                    StatusCode::BAD_GATEWAY
                }),
            )
            .route(
                "/later",
                get(move || async move {
                    calls.lock().unwrap().push(Instant::now());
                    refusal(Protocol::Http, WAIT).map(Body::from)
                }),
            )
            .layer(backend.task.layer());
        tokio::spawn(async move { axum::serve(listener, router).await });
        backend
    }

    /// Refuses everything from now on: another task may take it.
    pub(crate) fn shut(&self) {
        self.task.gate().set_levels(Levels::CLOSED);
    }

    /// As [`Backend::shut`], and lets a controller see what comes until it is asked what it makes
    /// of it.
    pub(crate) fn shut_and_watch(&self) -> Watching<'_> {
        let (gate, now) = (self.task.gate(), self.task.clock().now());
        let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
        let controller = Controller::new(shed, attempts, gate, now);
        self.shut();
        Watching { backend: self, controller }
    }

    /// First, second, and third or later attempts.
    pub(crate) fn attempts(&self) -> [u64; 3] {
        self.task.snapshot().requests.attempts()
    }

    /// How many were refused as the task is overloaded.
    pub(crate) fn refused(&self) -> u64 {
        let counts = self.task.snapshot().requests;
        Criticality::ALL.map(|level| counts.rejected(Reason::Overloaded, level)).iter().sum()
    }

    pub(crate) fn served(&self) -> u64 {
        self.task.gate().counts().completed()
    }

    pub(crate) fn set_cost(&self, cost: u64) {
        self.cost.store(cost, Relaxed);
    }
}

/// A task that is shut, and its controller.
pub(crate) struct Watching<'a> {
    backend: &'a Backend,
    controller: Controller,
}

impl Watching<'_> {
    /// From now on refusals carry the advice that follows from what has come.
    pub(crate) fn advise(&mut self) {
        let (gate, now) = (self.backend.task.gate(), self.backend.task.clock().now());
        self.controller.tick(gate, Reading::IDLE, now);
        // The tick has opened it, as nothing was ever full.
        self.backend.shut();
    }
}

/// As of a queue that is full for the moment.
fn refusal(protocol: Protocol, wait: Duration) -> http::Response<bytes::Bytes> {
    let rejection = Rejection {
        reason: Reason::QueueFull,
        advice: Advice::RetryAfter(wait),
        criticality: Criticality::Critical,
        cause: None,
    };
    Reject::new(&rejection, DecisionId(0)).respond(protocol, Version::HTTP_2)
}

fn status(refusal: &http::Response<bytes::Bytes>) -> Status {
    Status::from_header_map(refusal.headers()).unwrap()
}

/// Answers as it is told to by the name of the service that it is asked about.
struct Told {
    calls: Arc<Mutex<Vec<Instant>>>,
}

#[tonic::async_trait]
impl Health for Told {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        self.calls.lock().unwrap().push(Instant::now());
        match request.into_inner().service.as_str() {
            "later" => Err(status(&refusal(Protocol::Grpc, WAIT))),
            "at once" => Err(status(&refusal(Protocol::Grpc, Duration::ZERO))),
            "exhausted" => Err(Status::resource_exhausted("without a word on retries")),
            "below" => {
                context::overloaded_below();
                Err(Status::unavailable("they said no"))
            }
            _ => Ok(Response::new(HealthCheckResponse { status: 1 })),
        }
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask"))
    }
}
