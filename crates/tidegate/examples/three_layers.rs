//! Three services that call each other, and what an overload of the last does to the first.
//!
//! ```text
//! callers ──► A (pages) ──► B (search) ──► C (index, one CPU)
//! ```
//!
//! `cargo run -p tidegate --example three_layers` serves all three on sockets of their own, asks A
//! for more than C can do, and tells what became of it. Each of them has the server layer around
//! its routes and the client layer around its client; no handler knows of criticality, overload or
//! retries.
//!
//! Three tasks in one process would each take the CPU time of all for their own, so only C is
//! started: A and B do next to nothing, and their gates stay open.

use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use std::net::SocketAddr;
use std::time::{Duration, Instant};
use tidegate::client::{BoxError, Layer, reqwest::Client};
use tidegate::{Criticality, Task, context};
use tidegate_core::decision::Reason;
use tidegate_wire::customer::Identities;
use tokio::net::TcpListener;

/// How long C is overrun, each time.
const SURGE: Duration = Duration::from_millis(1_500);
/// Who asks at once for what may be shed. C takes one at a time.
const CALLERS: usize = 40;
/// After a refusal a caller waits this long before it asks for something else.
const PAUSE: Duration = Duration::from_millis(10);

/// The service below, and how to ask it.
#[derive(Clone)]
struct Below {
    client: Client,
    layer: Layer,
    http: reqwest::Client,
    address: SocketAddr,
}

impl Below {
    fn new(name: &str, address: SocketAddr) -> Self {
        let (layer, http) = (Layer::new(name), reqwest::Client::new());
        let client = Client::with_layer(&layer, http.clone());
        Self { client, layer, http, address }
    }

    /// The answer of the service below. If there is none, fails as any handler would.
    async fn ask(&self, path: &str) -> Result<String, StatusCode> {
        let request = self.http.get(format!("http://{}{path}", self.address));
        let answer = self.client.send(request).await.map_err(|_| StatusCode::BAD_GATEWAY)?;
        let answer = answer.error_for_status().map_err(|_| StatusCode::BAD_GATEWAY)?;
        answer.text().await.map_err(|_| StatusCode::BAD_GATEWAY)
    }
}

fn task(name: &str) -> tidegate::task::Builder {
    // Everybody in this process may claim to matter most: there are no certificates.
    let identities = Identities::default().unidentified(Criticality::CriticalPlus);
    Task::builder(name).identities(identities)
}

fn page(task: &Task, search: Below) -> Router {
    let strict = async |State(search): State<Below>| {
        let found = search.ask("/search").await?;
        Ok::<_, StatusCode>(format!("A as {}, {found}", context::criticality()))
    };
    let lenient = async |State(search): State<Below>| {
        let found = search.ask("/search/lenient").await?;
        Ok::<_, StatusCode>(format!("A as {}, {found}", context::criticality()))
    };
    let routes = Router::new().route("/", get(strict)).route("/lenient", get(lenient));
    routes.with_state(search).layer(task.layer())
}

fn search(task: &Task, index: Below) -> Router {
    let strict = async |State(index): State<Below>| {
        let found = index.ask("/").await?;
        Ok::<_, StatusCode>(format!("B as {}, {found}", context::criticality()))
    };
    // Makes do without C.
    let lenient = async |State(index): State<Below>| match index.ask("/").await {
        Ok(found) => format!("B as {}, {found}", context::criticality()),
        Err(_) => format!("B as {}, from memory", context::criticality()),
    };
    let routes = Router::new().route("/search", get(strict));
    routes.route("/search/lenient", get(lenient)).with_state(index).layer(task.layer())
}

/// Uses the CPU for five milliseconds, on a machine that does nothing else.
async fn look_up() -> String {
    let until = Instant::now() + Duration::from_millis(5);
    while Instant::now() < until {
        std::hint::spin_loop();
    }
    format!("C as {} found it", context::criticality())
}

/// Serves C on a thread of its own.
fn serve_index() -> Result<(Task, SocketAddr), BoxError> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || -> Result<(), BoxError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let task = task("index").cpus(1.0).start()?;
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            sender.send((task.clone(), listener.local_addr()?))?;
            let router = Router::new().route("/", get(look_up)).layer(task.layer());
            Ok(axum::serve(listener, router).await?)
        })
    });
    Ok(receiver.recv()?)
}

async fn serve(router: Router) -> Result<SocketAddr, BoxError> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move { axum::serve(listener, router).await });
    Ok(address)
}

/// An A and a B, and where A is.
struct Stack {
    a: Task,
    b: Task,
    /// By which B asks C.
    layer: Layer,
    pages: String,
}

impl Stack {
    async fn serve(index_at: SocketAddr) -> Result<Self, BoxError> {
        let (a, b) = (task("pages").build()?, task("search").build()?);
        let index = Below::new("index", index_at);
        let layer = index.layer.clone();
        let search_at = serve(search(&b, index)).await?;
        let pages_at = serve(page(&a, Below::new("search", search_at))).await?;
        Ok(Self { a, b, layer, pages: format!("http://{pages_at}") })
    }
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "that is what it is for")]
async fn main() -> Result<(), BoxError> {
    let (c, index_at) = serve_index()?;
    let Stack { a, b, layer, pages } = Stack::serve(index_at).await?;

    println!("Criticality is said once, and inherited:");
    let request = reqwest::Client::new().get(&pages).header("x-criticality", "SHEDDABLE_PLUS");
    println!("  {}", request.send().await?.text().await?);

    println!("\nC is offered more than it can do, and refuses what may be shed:");
    let before = [&a, &b, &c].map(received);
    let seen = overrun(&pages, "/").await?;
    println!("  {:<14}{:>7}{:>9}{:>27}", "at A", "asked", "served", "\"overloaded; don't retry\"");
    for (criticality, seen) in [Criticality::CriticalPlus, Criticality::Sheddable].iter().zip(seen)
    {
        let Seen { asked, served, dont_retry, .. } = seen;
        println!("  {criticality:<14}{asked:>7}{served:>9}{dont_retry:>27}");
        if asked != served + dont_retry {
            return Err("there were other answers".into());
        }
    }

    println!("\nOnly B, right above C, tries again, and only within its budget:");
    let after = [&a, &b, &c].map(received);
    let [at_a, at_b, at_c] = [0, 1, 2].map(|n| after[n] - before[n]);
    let counts = layer.counts();
    let held_back: u64 = counts.attempts.iter().map(|counts| counts.throttled).sum();
    let again = counts.retries.retries;
    println!("  A received {at_a}, B {at_b}, C {at_c}, {again} of them a second or third time");
    println!("  B held {held_back} tries back that C would most likely have refused");
    let ratio = at_c as f64 / at_a as f64;
    println!("  {ratio:.2} tries at C for a request at A; three at each layer would be 9");

    println!("\nThe same, with a B that makes do without C:");
    let stack = Stack::serve(index_at).await?;
    let seen = overrun(&stack.pages, "/lenient").await?;
    let sum = |count: fn(&Seen) -> u64| seen.iter().map(count).sum::<u64>();
    let (asked, served, degraded) = (sum(|s| s.asked), sum(|s| s.served), sum(|s| s.degraded));
    println!("  {asked} asked, {served} answered, {degraded} of them from memory");
    Ok(())
}

/// How many requests have reached a task, retries and refused ones too.
fn received(task: &Task) -> u64 {
    task.gate().counts().attempts().iter().sum()
}

/// What callers of one criticality saw.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    asked: u64,
    served: u64,
    degraded: u64,
    dont_retry: u64,
}

/// Many callers with what may be shed, and one with what must not.
async fn overrun(pages: &str, path: &str) -> Result<[Seen; 2], BoxError> {
    let until = Instant::now() + SURGE;
    let http = reqwest::Client::new();
    let mut callers = Vec::new();
    for n in 0..=CALLERS {
        let (http, url) = (http.clone(), format!("{pages}{path}"));
        let level = usize::from(n > 0);
        callers.push(tokio::spawn(async move {
            let mut seen = Seen::default();
            let criticality = ["CRITICAL_PLUS", "SHEDDABLE"][level];
            while Instant::now() < until {
                let answer = http.get(&url).header("x-criticality", criticality).send().await?;
                let headers = answer.headers();
                seen.asked += 1;
                if answer.status().is_success() {
                    seen.served += 1;
                    seen.degraded += u64::from(answer.text().await?.ends_with("from memory"));
                } else {
                    // What B made of C's answer, and A of B's.
                    let reason = headers.get("x-tidegate-reason").and_then(|v| v.to_str().ok());
                    let overloaded = reason == Some(Reason::Overloaded.code());
                    let stop = headers.get("x-envoy-ratelimited").is_some_and(|v| v == "true");
                    seen.dont_retry += u64::from(overloaded && stop);
                }
                tokio::time::sleep(PAUSE).await;
            }
            Ok::<_, BoxError>((level, seen))
        }));
    }
    let mut seen = [Seen::default(); 2];
    for caller in callers {
        let (level, one) = caller.await??;
        let sum = &mut seen[level];
        sum.asked += one.asked;
        sum.served += one.served;
        sum.degraded += one.degraded;
        sum.dont_retry += one.dont_retry;
    }
    Ok(seen)
}
