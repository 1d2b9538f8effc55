//! A client of Doorman with a rate limiter, for whoever wants its cooperative leases.
//!
//! ```no_run
//! # async fn run() -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate_quota::doorman::Client;
//!
//! let client = Client::builder(["http://doorman:7300"]).id("crawler-7").start()?;
//! let limiter = client.resource("database", 100.0, 1);
//! limiter.acquire().await; // as often as the lease allows
//! # Ok(())
//! # }
//! ```
//!
//! A thread of its own asks for all resources at once, as often as the server wants to be asked,
//! and goes to the master if it is told who that is. When a lease ends unrefreshed the client falls
//! back to the safe capacity that came with it; before the first answer there is none, and nothing
//! is let through. What it has is released when the client is dropped.

use super::line::{self, Line, pause};
use super::pacer::Pacer;
use crate::link::{Link, LinkError, Route};
use core::time::Duration;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_core::rng::SeededRng;
use tidegate_tls::ClientOptions;
use tidegate_wire::proto::doorman as wire;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// A server cannot ask to be asked more often, nor more rarely.
const REFRESH_MIN: Duration = Duration::from_secs(1);
const REFRESH_MAX: Duration = Duration::from_secs(3_600);
/// How long a client that ends waits for its release to be heard.
const FAREWELL: Duration = Duration::from_millis(500);

/// Why a client cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// There is nobody to ask.
    #[error("there are no addresses of servers; at least one, such as http://doorman:7300")]
    NoAddress,
    /// An address or certificates are wrong.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No thread.
    #[error("the thread that talks to the server cannot start")]
    Thread(#[source] io::Error),
}

/// Sets a [`Client`] up.
#[derive(Debug, Clone)]
#[must_use = "nothing is asked before `start`"]
pub struct Builder {
    addresses: Vec<String>,
    id: Option<String>,
    clock: Clock,
    tls: Option<ClientOptions>,
}

impl Builder {
    /// What the client is called: no two have the same. Host and process if not said.
    pub fn id(mut self, id: impl Into<String>) -> Self {
        self.id = Some(id.into());
        self
    }

    /// The clock of leases; the system's if not said.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = clock;
        self
    }

    /// Shows this certificate to servers, whose addresses have to be `https://host:port`, and
    /// believes servers by these roots. Files are read again when they change; as long as they are
    /// wrong the old ones are used. Without it `https://` believes the system's roots and shows
    /// nothing.
    pub fn tls(mut self, options: ClientOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Begins to ask, as soon as there is something to ask for.
    pub fn start(self) -> Result<Client, StartError> {
        let link = Link::new(self.tls, |_| {})?;
        let mut dice = SeededRng::new(RandomState::new().hash_one(0));
        let route = Route::new(link, &self.addresses, &mut dice)?;
        let line = Line::new(route.ok_or(StartError::NoAddress)?);
        let shared = Arc::new(Shared {
            id: self.id.unwrap_or_else(crate::client::own_name),
            clock: self.clock,
            limiters: Mutex::default(),
            news: Notify::new(),
        });
        let (stop, stopped) = watch::channel(false);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(StartError::Thread)?;
        let thread = std::thread::Builder::new().name("tidegate-doorman".to_owned());
        let asking = ask(Arc::clone(&shared), line, dice, stopped);
        let thread = thread.spawn(move || runtime.block_on(asking)).map_err(StartError::Thread)?;
        Ok(Client { shared, stop, thread: Some(thread) })
    }
}

#[derive(Debug)]
struct Shared {
    id: String,
    clock: Clock,
    limiters: Mutex<BTreeMap<String, Arc<Inner>>>,
    /// Somebody wants something else.
    news: Notify,
}

/// A client of Doorman. Ends, and releases what it has, when it is dropped.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// A client of the servers at these addresses (`http://host:port`, or `https://`), which are
    /// tried in turn.
    pub fn builder<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Builder {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Builder { addresses, id: None, clock: Clock::monotonic(), tls: None }
    }

    /// Asks for `wants` of a resource a second, by this priority (1 is as everyone's). Asked for
    /// again, it is the same limiter, which wants that from now on.
    pub fn resource(&self, name: &str, wants: f64, priority: i64) -> Limiter {
        let mut limiters = self.shared.limiters();
        let inner = limiters.entry(name.to_owned()).or_insert_with(|| {
            let pacer = Pacer::new(self.shared.clock.now());
            let state = State { wants, priority, pacer, refresh: REFRESH_MIN };
            Arc::new(Inner { state: Mutex::new(state) })
        });
        let limiter = Limiter { inner: Arc::clone(inner), shared: Arc::clone(&self.shared) };
        drop(limiters);
        limiter.set_wants(wants, priority);
        limiter
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // It panicked at worst, and there is nothing to clean up.
            let _ = thread.join();
        }
    }
}

#[derive(Debug)]
struct Inner {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    wants: f64,
    priority: i64,
    pacer: Pacer,
    refresh: Duration,
}

/// Lets through as much as the lease of a resource allows. Cheap to clone; clones share the lease.
#[derive(Debug, Clone)]
pub struct Limiter {
    inner: Arc<Inner>,
    shared: Arc<Shared>,
}

impl Limiter {
    /// Wants so much from now on.
    pub fn set_wants(&self, wants: f64, priority: i64) {
        let mut state = self.inner.state();
        (state.wants, state.priority) = (wants, priority);
        drop(state);
        self.shared.news.notify_one();
    }

    /// What may be used a second: the lease, or the safe capacity when it has ended. Infinite if
    /// anything is safe.
    pub fn capacity(&self) -> f64 {
        let rate = self.inner.state().pacer.rate(self.shared.clock.now());
        if rate < 0.0 { f64::INFINITY } else { rate }
    }

    /// Takes one if there is one.
    pub fn try_acquire(&self) -> bool {
        self.take().is_ok()
    }

    /// Waits for one.
    pub async fn acquire(&self) {
        while let Err(wait) = self.take() {
            tokio::time::sleep(wait).await;
        }
    }

    fn take(&self) -> Result<(), Duration> {
        self.inner.state().pacer.take(self.shared.clock.now())
    }
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn limiters(&self) -> MutexGuard<'_, BTreeMap<String, Arc<Inner>>> {
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn request(&self) -> wire::GetCapacityRequest {
        let (now, wall) = (self.clock.now(), wall());
        let limiters = self.limiters();
        let resource = limiters.iter().map(|(name, inner)| {
            let state = inner.state();
            let has = state.pacer.lease(now).map(|(capacity, expiry)| wire::Lease {
                expiry_time: wall.saturating_add(seconds(expiry.since(now))),
                refresh_interval: seconds(state.refresh),
                capacity,
            });
            let (priority, wants) = (state.priority, state.wants);
            wire::ResourceRequest { resource_id: name.clone(), priority, has, wants }
        });
        wire::GetCapacityRequest { client_id: self.id.clone(), resource: resource.collect() }
    }

    /// Takes leases over. Returns in how long to ask again.
    fn take(&self, answer: &wire::GetCapacityResponse) -> Duration {
        let (now, wall) = (self.clock.now(), wall());
        let limiters = self.limiters();
        let mut next = REFRESH_MAX;
        for response in &answer.response {
            let Some(inner) = limiters.get(&response.resource_id) else { continue };
            let lease = &response.gets;
            let span = |secs: i64| Duration::from_secs(u64::try_from(secs).unwrap_or(0));
            let left = span(lease.expiry_time.saturating_sub(wall)).min(REFRESH_MAX * 24);
            let refresh = span(lease.refresh_interval).clamp(REFRESH_MIN, REFRESH_MAX);
            let safe = response.safe_capacity.unwrap_or(0.0);
            let mut state = inner.state();
            state.pacer.grant(lease.capacity, now + left, safe, now);
            state.refresh = refresh;
            next = next.min(refresh);
        }
        next
    }
}

fn seconds(span: Duration) -> i64 {
    i64::try_from(span.as_secs()).unwrap_or(i64::MAX)
}

fn wall() -> i64 {
    seconds(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// Asks until it is stopped.
async fn ask(
    shared: Arc<Shared>,
    mut line: Line,
    mut dice: SeededRng,
    stopped: watch::Receiver<bool>,
) {
    let stop = async |mut stopped: watch::Receiver<bool>| {
        let _ = stopped.wait_for(|stopped| *stopped).await;
    };
    loop {
        let wait = tokio::select! {
            wait = once(&shared, &mut line) => wait,
            () = stop(stopped.clone()) => break,
        };
        tokio::select! {
            () = tokio::time::sleep(wait.unwrap_or_else(|| pause(&mut dice))) => {}
            // A server that does not answer is not asked more often for it.
            () = shared.news.notified(), if wait.is_some() => {}
            () = stop(stopped.clone()) => break,
        }
    }
    if let Some(master) = line.master() {
        let resource_id = shared.limiters().keys().cloned().collect();
        let client_id = shared.id.clone();
        let release = wire::ReleaseCapacityRequest { client_id, resource_id };
        let _ = timeout(FAREWELL, master.release_capacity(release)).await;
    }
}

/// Asks once. Returns in how long to ask again, if somebody has answered.
async fn once(shared: &Shared, line: &mut Line) -> Option<Duration> {
    let request = shared.request();
    if request.resource.is_empty() {
        return Some(REFRESH_MAX);
    }
    let question = async |master: &mut line::Master| master.get_capacity(request).await;
    let answer = line.ask(question, |answer| answer.mastership.as_ref()).await;
    answer.ok().map(|answer| shared.take(&answer))
}
