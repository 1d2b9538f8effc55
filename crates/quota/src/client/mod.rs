//! A task's connection to the quota server.
//!
//! ```no_run
//! # fn run() -> Result<(), Box<dyn std::error::Error>> {
//! let task = tidegate::Task::builder("search").start()?;
//! let quota = tidegate_quota::Client::builder(["http://quota-1:7300", "http://quota-2:7300"])
//!     .attach(&task)?;
//! # drop(quota);
//! # Ok(())
//! # }
//! ```
//!
//! A thread of its own reports once an interval and sets the task's limits by what it is told.
//! Requests never wait for it, and it goes on when the task's runtime has no time for anything. The
//! task keeps no more than it was given (`member`), however long the server is away:
//!
//! | the server | the task |
//! |---|---|
//! | was never there | enforces what it was built with |
//! | is there | enforces what it is told, from the next round on |
//! | is away | tries all addresses in turn, with pauses that grow; its limits hold, then fade to the safe share |
//! | was restarted | says what it holds, and keeps it until the server has learned |
//! | is not the leader | goes where it is told |
//! | leads by an old epoch | is not listened to |
//!
//! When the handle is dropped the task leaves, and what it held is free for others.

pub(crate) mod member;
mod run;
mod state;
pub(crate) mod zone;

pub use member::Nonsense;
pub use state::{State, Trouble};

pub(crate) use run::{Flags, explain};

use crate::link::{Link, LinkError, Route, refusal};
use crate::server::owner::Owner;
use member::Member;
use run::{Line, Post, Start};
use state::Shared;
use std::hash::{BuildHasher, RandomState};
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;
use tidegate::Task;
use tidegate_core::rng::SeededRng;
use tidegate_tls::ClientOptions;
use tokio::sync::watch;
use zone::Zone;

/// Why a task cannot be attached.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AttachError {
    /// There is nobody to ask.
    #[error("there are no addresses of quota servers; at least one, such as http://quota:7300")]
    NoAddress,
    /// An address or certificates are wrong.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// The server would not take it.
    #[error("`{name}` cannot be the name of a {what}: 1 to 128 printable ASCII characters")]
    Name {
        /// Of a task or a service.
        what: &'static str,
        /// What was given.
        name: String,
    },
    /// No thread.
    #[error("the thread that talks to the quota server cannot start")]
    Thread(#[source] io::Error),
}

/// Sets a [`Client`] up.
#[derive(Debug, Clone)]
#[must_use = "nothing is reported before `attach`"]
pub struct Builder {
    addresses: Vec<String>,
    service: Option<String>,
    name: Option<String>,
    weight: u32,
    tls: Option<ClientOptions>,
}

impl Builder {
    /// What the task is called, among those of its service: host and process if not said. A name
    /// that stays the same when the process is started again (a pod's of a stateful set) lets its
    /// successor take over what it held.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// What the task's service is called at the server, if not as the task calls it.
    pub fn service(mut self, service: impl Into<String>) -> Self {
        self.service = Some(service.into());
        self
    }

    /// For how many tasks this one stands; 1 if not said. The server has to allow more.
    pub const fn weight(mut self, weight: u32) -> Self {
        self.weight = weight;
        self
    }

    /// Shows this certificate to servers, whose addresses have to be `https://host:port`, and
    /// believes servers by these roots. Files are read again when they change. Without it
    /// `https://` believes the system's roots and shows nothing.
    pub fn tls(mut self, options: ClientOptions) -> Self {
        self.tls = Some(options);
        self
    }

    /// Begins to report for `task`, and to set its limits.
    pub fn attach(self, task: &Task) -> Result<Client, AttachError> {
        let name = self.name.clone().unwrap_or_else(own_name);
        let service = self.service.as_deref().unwrap_or(task.service());
        check_name("service", service)?;
        check_name("task", &name)?;
        let member = Member::new(task.clone(), name, self.weight).of(service);
        self.prepare(member, None).map(Prepared::begin)
    }

    /// Whether addresses and names are such, as far as they were said. Certificates are not looked
    /// at.
    pub fn check(&self) -> Result<(), AttachError> {
        if self.addresses.is_empty() {
            return Err(AttachError::NoAddress);
        }
        let link = Link::scheme(self.tls.is_some());
        for address in &self.addresses {
            link.endpoint(address)?;
        }
        for (what, name) in [("service", &self.service), ("task", &self.name)] {
            name.as_deref().map_or(Ok(()), |name| check_name(what, name))?;
        }
        Ok(())
    }

    /// The same for a zone's server, whose tasks share what it is told, by the election `reign`; it
    /// waits to be begun.
    pub(crate) fn stand_for(
        self,
        zone: Zone,
        owner: Owner,
        reign: u64,
        flags: Arc<Flags>,
    ) -> Result<Prepared, AttachError> {
        let name = self.name.clone().unwrap_or_else(own_name);
        check_name("task", &name)?;
        let member = Member::for_others(zone.task().clone(), name, self.weight, reign);
        self.prepare(member, Some(Post { zone, owner, told: None, flags }))
    }

    /// All that can fail.
    fn prepare(self, member: Member, post: Option<Post>) -> Result<Prepared, AttachError> {
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let link = Link::new(self.tls, move |news| {
            told.change(|state| state.certificates = refusal(&news));
        })?;
        let mut dice = SeededRng::new(RandomState::new().hash_one(0));
        let route = Route::new(link, &self.addresses, &mut dice)?;
        let route = route.ok_or(AttachError::NoAddress)?;
        let (stop, stopped) = watch::channel(false);
        let line = Line { member, route, shared: Arc::clone(&shared), dice, post };
        let (start, thread) = run::start(line, stopped).map_err(AttachError::Thread)?;
        Ok(Prepared { client: Client { stop, shared, thread: Some(thread) }, start })
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), AttachError> {
    if crate::name::is_name(name) {
        return Ok(());
    }
    Err(AttachError::Name { what, name: name.to_owned() })
}

/// What a task is called if nobody says: host and process.
pub fn own_name() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy().replace(|c: char| !c.is_ascii_graphic(), "-");
    format!("{host}:{}", std::process::id())
}

/// A client that has said nothing to anybody yet, and says nothing if this is dropped.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Goes first: the client waits for its thread, and that for this.
    start: Start,
    client: Client,
}

impl Prepared {
    /// Begins to report. Nothing can fail here that is not tried again.
    pub(crate) fn begin(self) -> Client {
        self.start.now();
        self.client
    }
}

/// A task's connection to the quota server. The task leaves when this is dropped.
#[derive(Debug)]
pub struct Client {
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Client {
    /// A client of the quota servers at these addresses (`http://host:port`, or `https://`), which
    /// are tried in turn.
    pub fn builder<A: Into<String>>(addresses: impl IntoIterator<Item = A>) -> Builder {
        let addresses = addresses.into_iter().map(Into::into).collect();
        Builder { addresses, service: None, name: None, weight: 1, tls: None }
    }

    /// How the task stands with the server.
    pub fn state(&self) -> State {
        self.shared.get()
    }

    /// Leaves, and waits until the server was told, or for a moment if it does not listen.
    pub fn leave(mut self) {
        self.end();
    }

    fn end(&mut self) {
        let _ = self.stop.send(true);
        if let Some(thread) = self.thread.take() {
            // It panicked at worst, and there is nothing to clean up.
            let _ = thread.join();
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}
