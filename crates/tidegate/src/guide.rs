//! How to put it to work, task by task. Nothing here but text that compiles.
//!
//! 1. [`serving`]: protect an axum or a tonic service, and serve it safely
//! 2. [`calling`]: call others by reqwest, tonic or hyper-util
//! 3. [`criticality`]: say what matters, and who may say so
//! 4. [`quotas`]: who may use how much
//! 5. [`degrading`]: cheaper answers before none
//! 6. [`signals`]: tell what else can be full
//! 7. [`leaving`]: start warm, go without failing a request
//! 8. [`watching`]: metrics, spans, events, and what to look for
//!
//! Features turn on what a service needs: `axum`, `tonic`, `reqwest`, `hyper-util` for the library
//! that it is written with, and `tls`, `prometheus`, `opentelemetry`, `tracing` and `admin`.

/// Protect a service.
///
/// # axum
///
/// Start a task inside the runtime that serves, and put its layer around the routes. What is added
/// after the layer is not behind it: do so with metrics and health, which have to answer when all
/// else is refused.
///
/// ```
/// use axum::{Router, routing::get};
/// use tidegate::Task;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let task = Task::builder("shop").start()?;
/// let app: Router = Router::new()
///     .route("/items/{id}", get(|| async { "an item" }))
///     .layer(task.layer())
///     .route("/metrics", get(|| async { "numbers" }));
/// # let _ = app;
/// # Ok(())
/// # }
/// ```
///
/// # tonic
///
/// The same layer; it answers gRPC by gRPC's own statuses.
///
/// ```
/// # use tidegate::health::Health;
/// # use tidegate::life::Life;
/// use tidegate::Task;
/// use tonic::transport::Server;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let service = Health::new(Life::default()).grpc();
/// let task = Task::builder("inventory").start()?;
/// let server = Server::builder().layer(task.layer()).add_service(service);
/// # drop(server);
/// # Ok(())
/// # }
/// ```
///
/// # Served safely
///
/// A layer sees requests, and connections cost, too. [`tidegate::serve`](crate::serve()) is hyper
/// with every limit set; give it the task's executor, so that the load average sees what
/// connections do. It serves axum's routers, and tonic's by `Routes::into_axum_router`.
///
/// ```no_run
/// # use tidegate::Task;
/// # async fn run(task: Task, app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
/// let listener = tokio::net::TcpListener::bind("[::]:8080").await?;
/// tidegate::serve(listener, app.into_make_service()).executor(task.executor().clone()).await?;
/// # Ok(())
/// # }
/// ```
///
/// Work that a handler starts elsewhere belongs to its request if it is started by
/// [`tidegate::spawn`](crate::spawn()) or [`tidegate::spawn_blocking`](crate::spawn_blocking): it
/// is charged for it, and its calls inherit criticality and deadline.
pub mod serving {}

/// Call others.
///
/// One layer for each service that is called, shared by all who call it: throttle and retry budget
/// are worth as much as they have seen.
///
/// ```
/// use bytes::Bytes;
/// use http_body_util::Full;
/// use tidegate::client::{self, Discovery, Layer};
/// use tower_layer::Layer as _;
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// // reqwest:
/// let prices = client::reqwest::Client::new("prices", reqwest::Client::new());
/// // tonic; goes where a channel goes, `SearchClient::new(channel)`:
/// let channel = tonic::transport::Endpoint::from_static("http://search:50051").connect_lazy();
/// let channel = client::tonic::protect("search", channel);
/// // hyper-util, over all tasks that a name stands for:
/// let tasks = client::hyper::balancer::<Full<Bytes>>(Discovery::dns("inventory:80")).build()?;
/// let inventory = Layer::new("inventory").layer(tasks);
/// # drop((prices, channel, inventory));
/// # Ok(())
/// # }
/// ```
///
/// Do not retry on top of it, nor below it (`reqwest::ClientBuilder::retry`): three tries at each
/// of three layers are 27. An answer that refuses is handed on as it came; what was not even sent
/// is an error, and says so:
///
/// ```
/// use tidegate::client::{BoxError, Throttled};
///
/// fn explain(error: &BoxError) -> String {
///     match Throttled::find(&**error) {
///         Some(throttled) => format!("held back, {}", throttled.reason()),
///         None => error.to_string(),
///     }
/// }
/// # assert_eq!(explain(&"refused".into()), "refused");
/// ```
///
/// A handler that fails because a call was refused for overload need not say so: its own answer
/// becomes "overloaded; don't retry". Towards hosts that are not yours, turn off
/// [`Builder::propagate`](crate::client::Builder::propagate).
pub mod calling {}

/// Say what matters.
///
/// Set it once, at the edge, by `baggage: criticality=SHEDDABLE` or `x-criticality`. What a handler
/// calls inherits it; what it does on the side may matter less:
///
/// ```
/// use tidegate::{Criticality, context};
///
/// async fn handler() -> String {
///     let page = load().await;
///     // May go first: nobody waits for it.
///     context::with_criticality(Criticality::Sheddable, prefetch()).await;
///     page
/// }
/// # async fn load() -> String { context::criticality().to_string() }
/// # async fn prefetch() { assert_eq!(context::criticality(), Criticality::Sheddable); }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert_eq!(runtime.block_on(handler()), "CRITICAL");
/// ```
///
/// Requests that do not say are `CRITICAL`, or what their route is by default. Nobody is believed
/// to be `CRITICAL_PLUS` who was not granted it by name:
///
/// ```
/// use tidegate::{Criticality, Task};
/// use tidegate_wire::customer::Identities;
///
/// let identities = Identities::default()
///     .ceiling("spiffe://prod/ns/edge/sa/gateway", Criticality::CriticalPlus)?
///     .ceiling("spiffe://prod/ns/batch/**", Criticality::Sheddable)?;
/// let task = Task::builder("shop")
///     .identities(identities)
///     .route("/suggestions", Criticality::SheddablePlus)
///     .build()?;
/// # drop(task);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub mod criticality {}

/// Who may use how much, in CPU time.
///
/// Customers are told apart by the certificates of their connections, which
/// [`tidegate::serve`](crate::serve()) checks (feature `tls`). A gateway that serves many may name
/// them by `x-customer`, if it is a delegator.
///
/// ```
/// use tidegate::Task;
/// use tidegate_core::{CostRate, fleet::Limits};
/// use tidegate_wire::customer::Identities;
///
/// let cpus = CostRate::from_cpus;
/// let identities = Identities::default()
///     .customer("spiffe://prod/ns/{customer}/sa/*")?
///     .delegator("spiffe://prod/ns/edge/sa/gateway")?;
/// let task = Task::builder("search")
///     .identities(identities)
///     .customer("shop", Limits::total(cpus(2.0)?))
///     .everyone_else(Limits::total(cpus(0.5)?))
///     .build()?;
/// // At any time, for connections to come and those that are open:
/// task.set_limits("shop", Limits::total(cpus(3.0)?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Only who is over is refused, what matters least first. Limits may add up to more than there is.
pub mod quotas {}

/// Cheaper answers before none.
///
/// Shortly before a task sheds it asks for them. A handler that has one looks:
///
/// ```
/// use tidegate::context;
///
/// async fn search() -> &'static str {
///     if context::degrade() { "the best ten, from memory" } else { "all of them, ranked" }
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert_eq!(runtime.block_on(search()), "all of them, ranked");
/// ```
///
/// And one whose dependency is overloaded may make do without: an answer that is no failure stands.
///
/// ```
/// # async fn rank() -> Result<String, tidegate::client::BoxError> { Err("held back".into()) }
/// async fn page() -> String {
///     rank().await.unwrap_or_else(|_| "in no particular order".to_owned())
/// }
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # assert_eq!(runtime.block_on(page()), "in no particular order");
/// ```
pub mod degrading {}

/// Tell what else can be full.
///
/// Executor, CPU, memory and control groups are looked at anyway. A pool, a queue, a disk that the
/// service knows of is a number with a target; above it, the task sheds.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::{Task, signals};
/// use tokio::sync::Semaphore;
///
/// let pool = Arc::new(Semaphore::new(50));
/// let seen = Arc::clone(&pool);
/// // Forty-five of fifty in use is as full as it should be.
/// let in_use = move |_| Some(50.0 - seen.available_permits() as f64);
/// let in_use = signals::from_fn("pool", 45.0, in_use);
/// let task = Task::builder("shop").signal(in_use).start()?;
/// assert!(task.signals().iter().any(|signal| signal.name == "pool"));
/// # Ok::<(), tidegate::task::BuildError>(())
/// ```
///
/// A good one rises before callers notice and falls when less is let in. One that shedding does not
/// help keeps a task shedding for nothing: let it be
/// [`Role::Confirming`](crate::signals::Role::Confirming), or leave it out.
pub mod signals {}

/// Start warm, go without failing a request.
///
/// A life that has the task's gate keeps requests out while it warms up and when it drains. Between
/// SIGTERM and that it is a lame duck: health says "not serving", and it serves whoever has not
/// heard yet.
///
/// ```no_run
/// use tidegate::clock::Clock;
/// use tidegate::health::Health;
/// use tidegate::life::{Life, LifeConfig};
///
/// # async fn fill_caches() -> Result<(), std::io::Error> { Ok(()) }
/// # use tidegate::Task;
/// # async fn run(task: Task, app: axum::Router) -> Result<(), Box<dyn std::error::Error>> {
/// let life = Life::with_gate(LifeConfig::default(), Clock::monotonic(), task.gate().clone());
/// life.stop_on_signals()?;
/// // /livez and /readyz, and gRPC's by `Health::grpc`.
/// let app = app.merge(Health::new(life.clone()).router());
/// let listener = tokio::net::TcpListener::bind("[::]:8080").await?;
/// tidegate::serve(listener, app.into_make_service())
///     .executor(task.executor().clone())
///     .life(life)
///     .prewarm(fill_caches())
///     .await?;
/// # Ok(())
/// # }
/// ```
///
/// Its drain delay has to be longer than it takes until everybody has asked for its health.
/// [`life`](crate::life) tells how to do this with `axum::serve` and tonic's own server.
pub mod leaving {}

/// See what it does.
///
/// Begin in dark mode ([`Builder::dark`](crate::task::Builder::dark)): everything is decided and
/// counted, nobody is refused.
///
/// - **The dashboard**: with the feature `admin`, `Admin::new(&task).spawn("127.0.0.1:9900")` has
///   a page about the task, `/metrics`, and explanations of decisions; `tidegate top` shows the
///   same in a terminal.
/// - **Metrics**: [`metrics`](crate::metrics) lists them. `Collector` for prometheus-client,
///   `observe` for OpenTelemetry, [`Task::snapshot`](crate::Task::snapshot) for anything else.
/// - **Spans**: with the feature `tracing` each request has a span with what was decided, and each
///   refusal is an event, at the level of debugging and with the target `tidegate`.
/// - **Events**: [`Task::events`](crate::Task::events) has the last changes (began to shed, and
///   why)
///   and a sample of refusals; find one by the number in its `x-tidegate-decision`.
/// - **Load reports** go out with answers whose callers ask for them; see
///   [`report`](crate::report).
///
/// | look at | it should | if not |
/// |---|---|---|
/// | `tidegate_requests_total{decision="reject"}` of `CRITICAL` | be zero | the task is too small for what matters, or everything claims to matter |
/// | `tidegate_unattributed_cpu_ratio` | be low | work is started by plain `tokio::spawn` or on threads of its own, and nobody pays for it |
/// | `tidegate_attempts_total{attempt="3+"}` | be near zero | somebody above retries without a budget |
/// | `tidegate_overloaded_below_requests_total` | be zero | a dependency is what is overloaded, not this task |
/// | `tidegate_header_faults_total` | not grow | somebody sends nonsense, or claims what he may not |
/// | `tidegate_sampler_late_ticks_total` | not grow | the machine starves the task's own thread: it decides late |
///
/// Alert on what callers see (refusals of what matters, latency), not on utilization: a task that
/// is full and sheds what may be shed does what it should.
pub mod watching {}
