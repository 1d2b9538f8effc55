//! What an operator looks at when it burns: a page, metrics and explanations, read-only.
//!
//! ```no_run
//! # fn run(task: tidegate::Task) -> Result<(), Box<dyn std::error::Error>> {
//! use tidegate::admin::Admin;
//!
//! let page = Admin::new(&task).spawn("127.0.0.1:9900")?;
//! # drop(page);
//! # Ok(())
//! # }
//! ```
//!
//! or [`Admin::serve`] on a listener, or [`Admin::router`] for a server of one's own. On a port
//! apart from the service's, so that the page is there when the service has no room, and is not
//! there for the world.
//!
//! | path | is |
//! |---|---|
//! | `/` | the page; `docs/dashboard.md` tells how to read it |
//! | `/api/stream` | server-sent events: fifteen minutes at once, then once a second; `?part=`, or `?parts=all` in one stream |
//! | `/api/snapshot`, `/api/events` | how things stand, and the last decisions; `?part=` |
//! | `/api/explain/{decision}` | why: by the number in `x-tidegate-decision` |
//! | `/api/config` | what it runs by, if it was told ([`Admin::config`]) |
//! | `/metrics` | for Prometheus: the list of [`metrics`](crate::metrics) |
//! | `/livez`, `/readyz` | [`health`](crate::health) of the life that was given; without one `/readyz` says so, and 200 |
//!
//! **Who may look.** Whoever sits at this machine; with a token ([`Admin::token`]) whoever has
//! that, and nobody else. A router that is not told where requests come from serves nobody without
//! one: serve it by [`Admin::serve`], by [`serve`](crate::serve()), or by axum's
//! `into_make_service_with_connect_info::<SocketAddr>()`. It may be nested: with
//! `.nest("/tidegate", router)` the page is at `/tidegate`.
//!
//! **What it costs.** A thread looks at the task once a second. Requests pay for two counts more
//! (how long they took, whether they were good), which are there without this router, too.
//!
//! **When it is wrong.** Rates are those of the last second, quantiles are read off buckets and a
//! fifth too low to a quarter too high, and goodput is what the task saw: an answer that was cut
//! off is not good, one that its caller had stopped waiting for without hanging up or telling a
//! deadline is, and so is one that was lost after the server had taken all of it.

pub mod api;
mod explain;
mod guard;
mod history;
mod http;
mod hub;
mod look;
mod setup;
mod state;
#[cfg(all(test, not(feature = "loom")))]
mod tests;
mod text;

pub use guard::InvalidToken;
pub use setup::InvalidSetup;

use crate::client;
use crate::clock::Clock;
use crate::health::Health;
use crate::life::{Life, LifeConfig, Phase};
use crate::metrics::{Calls, Collector, Copies, EdgeCounts, InvalidCalls, PageCollector, Queue};
use crate::serve::{Listener, ServeError};
use crate::task::Task;
use axum::Router;
use core::fmt;
use guard::Token;
use hub::Hub;
use look::Look;
use prometheus_client::registry::Registry;
use std::borrow::Cow;
use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

/// Where something that is shown comes from, besides tasks of this process.
pub trait Source: Send {
    /// How it stands, and what was decided since the last look. Asked once a second, on a thread
    /// that may wait, but that shows nothing else meanwhile. If it panics the part is shown as
    /// failed, and asked again.
    fn look(&mut self) -> (api::Snapshot, Vec<api::Event>);

    /// Why it was decided, if it is one of its decisions and known.
    fn explain(&self, _decision: &str) -> Option<api::Explanation> {
        None
    }
}

/// Any function that knows how something stands.
impl<F: FnMut() -> api::Snapshot + Send> Source for F {
    fn look(&mut self) -> (api::Snapshot, Vec<api::Event>) {
        (self(), Vec::new())
    }
}

/// The page and all that belongs to it, to be set up and served.
#[must_use = "nothing is served before `serve`, or `router`"]
pub struct Admin {
    parts: Vec<(String, Shown)>,
    token: Option<Token>,
    life: Option<Life>,
    config: Option<Config>,
    /// The first thing that was set up wrong.
    fault: Option<InvalidSetup>,
}

/// Tells what it runs by.
type Config = Box<dyn Fn() -> String + Send + Sync>;

enum Shown {
    Task(Task, Calls),
    Other(Box<dyn Source>),
}

impl fmt::Debug for Admin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.parts.iter().map(|(name, _)| name.as_str()).collect();
        f.debug_struct("Admin").field("parts", &names).finish_non_exhaustive()
    }
}

impl Admin {
    /// Shows `task`, by the name of its service.
    pub fn new(task: &Task) -> Self {
        Self::empty().part(task.service(), task)
    }

    /// Shows nothing yet.
    pub const fn empty() -> Self {
        Self { parts: Vec::new(), token: None, life: None, config: None, fault: None }
    }

    /// Shows `task` as well. The page has all parts side by side.
    pub fn part(mut self, name: impl Into<String>, task: &Task) -> Self {
        self.parts.push((name.into(), Shown::Task(task.clone(), Calls::default())));
        self
    }

    /// Shows what `source` knows as well: another process, say, or what a caller has seen.
    pub fn source(mut self, name: impl Into<String>, source: impl Source + 'static) -> Self {
        self.parts.push((name.into(), Shown::Other(Box::new(source))));
        self
    }

    /// Shows what the last task asks of the service of `layer`.
    pub fn client(self, layer: &client::Layer) -> Self {
        self.asking("client", layer.service(), |calls| calls.client(layer))
    }

    /// Shows whom the last task asks by `balancer`, for a service of this name.
    pub fn balancer<S: Clone + Send + Sync + 'static>(
        self,
        service: impl Into<String>,
        balancer: &client::Balancer<S>,
    ) -> Self {
        let service = service.into();
        self.asking("balancer", &service, |calls| calls.balancer(&*service, balancer))
    }

    /// Shows the queue before the service of this name, by which the last task asks.
    pub fn queue(
        self,
        service: impl Into<String>,
        read: impl Fn() -> Queue + Send + Sync + 'static,
    ) -> Self {
        let service = service.into();
        self.asking("queue", &service, |calls| calls.queue(&*service, read))
    }

    /// Shows what the edge before the last task has done.
    pub fn edge(self, read: impl Fn() -> EdgeCounts + Send + Sync + 'static) -> Self {
        self.asking("edge", "all", |calls| Ok(calls.edge(read)))
    }

    /// Shows what becomes of copies of answers, before the last task.
    pub fn copies(self, read: impl Fn() -> Copies + Send + Sync + 'static) -> Self {
        self.asking("copies", "all", |calls| Ok(calls.copies(read)))
    }

    /// Shows how often the health of the last task was asked for by datagram.
    pub fn datagrams(self, read: impl Fn() -> EdgeCounts + Send + Sync + 'static) -> Self {
        self.asking("datagrams", "all", |calls| Ok(calls.datagrams(read)))
    }

    /// What it runs by, at `/api/config`: text for people, without what only some of them may know.
    pub fn config(mut self, read: impl Fn() -> String + Send + Sync + 'static) -> Self {
        self.config = Some(Box::new(read));
        self
    }

    /// Adds to what the last part asks of others.
    fn asking(
        mut self,
        what: &'static str,
        service: &str,
        add: impl FnOnce(Calls) -> Result<Calls, InvalidCalls>,
    ) -> Self {
        let added = match self.parts.last_mut() {
            Some((_, Shown::Task(_, calls))) => match add(core::mem::take(calls)) {
                Ok(added) => {
                    *calls = added;
                    Ok(())
                }
                Err(error) => Err(error.into()),
            },
            _ => Err(InvalidSetup::NoTask { what, service: service.to_owned() }),
        };
        self.fault = self.fault.or(added.err());
        self
    }

    /// Lets in whoever has this token, from anywhere, and nobody else: also those who sit at this
    /// machine need it then.
    pub fn token(mut self, token: impl Into<String>) -> Result<Self, InvalidToken> {
        self.token = Some(Token::new(token.into())?);
        Ok(self)
    }

    /// The life that `/readyz` tells of, and with which streams end.
    pub fn life(mut self, life: Life) -> Self {
        self.life = Some(life);
        self
    }

    /// The router. A thread looks at the parts for as long as it is there. Fails if that cannot be
    /// started, and if something was set up wrong.
    pub fn router(self) -> Result<Router, AdminError> {
        self.router_of(None)
    }

    /// The router of a server that lives this life.
    fn router_of(self, server: Option<Life>) -> Result<Router, AdminError> {
        if let Some(fault) = self.fault {
            return Err(fault.into());
        }
        setup::names(self.parts.iter().map(|(name, _)| name.as_str()))?;
        let mut registry = Registry::default();
        let tasks = self.parts.iter().filter(|(_, shown)| matches!(shown, Shown::Task(..)));
        let alone = tasks.count() <= 1;
        let mut sources = Vec::new();
        for (name, shown) in self.parts {
            let source: Box<dyn Source> = match shown {
                Shown::Other(source) => source,
                Shown::Task(task, calls) => {
                    let collector = Box::new(Collector::new(&task).calls(calls.clone()));
                    // Two tasks have the same metrics.
                    if alone {
                        registry.register_collector(collector);
                    } else {
                        let label = (Cow::Borrowed("part"), Cow::Owned(name.clone()));
                        registry.sub_registry_with_label(label).register_collector(collector);
                    }
                    Box::new(Look::new(&task, calls))
                }
            };
            sources.push((name, source));
        }
        let hub = Arc::new(Hub::new(sources));
        let looks = Arc::downgrade(&hub);
        let panics = move || looks.upgrade().map(|hub| hub.panics()).unwrap_or_default();
        registry.register_collector(Box::new(PageCollector::new(panics)));
        hub.start()?;
        Ok(http::router(Arc::new(http::Shared {
            hub,
            registry,
            token: self.token,
            config: self.config,
            lives: self.life.iter().cloned().chain(server).collect(),
            health: self.life.map(Health::new),
            streams: AtomicUsize::new(0),
        })))
    }

    /// Serves it on `listener` until the task drains, if its life was given; without, for as long
    /// as this is awaited.
    pub async fn serve<L: Listener>(self, listener: L) -> Result<(), AdminError> {
        // Of its own, as the task is not ready because its page is.
        let own = Life::new(LifeConfig::default(), Clock::default());
        let task = self.life.clone();
        let router = self.router_of(Some(own.clone()))?;
        Ok(serve_until(listener, router, task, own).await?)
    }

    /// Serves it at `address` on a thread of its own, so that the page moves on whatever the
    /// runtime of the service is busy with, until what is returned is dropped.
    ///
    /// ```
    /// # fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use tidegate::Task;
    /// use tidegate::admin::Admin;
    ///
    /// let task = Task::builder("shop").start()?;
    /// let page = Admin::new(&task).spawn("127.0.0.1:0")?;
    /// println!("http://{}", page.address());
    /// # Ok(())
    /// # }
    /// # run().unwrap();
    /// ```
    pub fn spawn(self, address: impl ToSocketAddrs) -> Result<Page, AdminError> {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        self.spawn_on(address, || tokio::net::TcpListener::from_std(listener))
    }

    /// As [`Admin::spawn`], on a listener that somebody else has, and that is opened within the
    /// runtime of the page. `address` is where it is.
    pub fn spawn_on<L: Listener>(
        self,
        address: SocketAddr,
        open: impl FnOnce() -> io::Result<L>,
    ) -> Result<Page, AdminError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let listener = {
            let _entered = runtime.enter();
            open()?
        };
        let own = Life::new(LifeConfig::default(), Clock::default());
        let (life, task) = (own.clone(), self.life.clone());
        let router = self.router_of(Some(own.clone()))?;
        let run = move || {
            // It ends when it is told to; before that there is nothing that it could fail at.
            let _ = runtime.block_on(serve_until(listener, router, task, life));
        };
        let thread = std::thread::Builder::new().name("tidegate-page".to_owned()).spawn(run)?;
        Ok(Page { address, life: own, thread: Some(thread) })
    }
}

/// Serves until `task` drains, or `own` ends.
async fn serve_until<L: Listener>(
    listener: L,
    router: Router,
    task: Option<Life>,
    own: Life,
) -> Result<(), ServeError> {
    let serve = crate::serve(listener, router.into_make_service()).life(own.clone());
    let mut serve = serve.into_future();
    if let Some(task) = task {
        tokio::select! {
            ended = &mut serve => return ended,
            _ = task.reached(Phase::Draining) => end(&own),
        }
    }
    serve.await
}

/// No more pages, and no wait for the streams of those that are open.
fn end(life: &Life) {
    life.stop();
    life.hasten();
}

/// A page that is served. It is gone when this is dropped.
#[derive(Debug)]
#[must_use = "the page is gone when this is dropped"]
pub struct Page {
    address: SocketAddr,
    life: Life,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Page {
    /// Where it is.
    pub const fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        end(&self.life);
        // Twice is at once.
        self.life.hasten();
        if let Some(thread) = self.thread.take() {
            // It has nothing to tell.
            let _ = thread.join();
        }
    }
}

/// Why the page is not served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AdminError {
    /// It was set up in a way that makes no sense.
    #[error(transparent)]
    Setup(#[from] InvalidSetup),
    /// The address is taken, or a thread could not be started.
    #[error("the page cannot be served: {0}")]
    Start(#[from] io::Error),
    /// The server has ended.
    #[error(transparent)]
    Serve(#[from] ServeError),
}
