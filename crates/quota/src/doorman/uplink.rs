//! A server of the tree asks the one above for its clients.
//!
//! One loop looks what has to be asked for (`tidegate_core::doorman` says when), asks, and hands
//! the answers to the book. It asks only while this server leads, of several: before it asks, and
//! again before it believes an answer. What was asked for by a leader before is not mixed up with
//! that, as the book has begun anew.
//!
//! **When the server above is away** it is tried again every second or so, and others in turn;
//! leases run out meanwhile, and what happens then is not decided here.

use super::grpc::Master;
use super::line::{self, Line, NoAnswer, pause};
use crate::config::DoormanParent;
use crate::link::{Link, LinkError, Route};
use core::time::Duration;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, PoisonError};
use tidegate_core::rng::{Rng as _, SeededRng};
use tidegate_wire::proto::doorman as wire;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a server that does not lead, or that nobody has asked for anything, sleeps at most: a
/// leader that is new asks within so long, and whoever wants something wakes it.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// How long to wait until a release was heard, which nobody depends on.
const RELEASE_WITHIN: Duration = Duration::from_millis(500);

/// What those who answer clients know of the server above.
#[derive(Debug, Clone)]
pub(crate) struct Above(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// Somebody wants something new.
    wanted: Notify,
    /// Counts answers.
    heard: watch::Sender<u64>,
    trouble: Mutex<Option<String>>,
}

impl Above {
    pub(crate) fn new() -> Self {
        let (heard, _) = watch::channel(0);
        Self(Arc::new(Inner { wanted: Notify::new(), heard, trouble: Mutex::new(None) }))
    }

    /// Has the server above asked, and waits for answers until it is `enough`; for no longer than
    /// `most`, and not at all if that one is away.
    pub(crate) async fn wait(&self, most: Duration, enough: impl Fn() -> bool) {
        let mut heard = self.0.heard.subscribe();
        self.0.wanted.notify_one();
        let _ = timeout(most, async {
            while !enough() && self.trouble().is_none() && heard.changed().await.is_ok() {}
        })
        .await;
    }

    /// What is wrong with it.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn told(&self, trouble: Option<String>) {
        *self.0.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
        self.0.heard.send_modify(|count| *count = count.wrapping_add(1));
    }
}

/// Asks the server above until it is dropped.
#[derive(Debug)]
pub(crate) struct Uplink(JoinHandle<()>);

impl Uplink {
    /// For the clients of `master`, on the current runtime.
    pub(crate) fn start(
        master: Master,
        above: Above,
        parent: &DoormanParent,
    ) -> Result<Self, LinkError> {
        let mut dice = SeededRng::new(RandomState::new().hash_one(0));
        let link = Link::new(parent.tls.clone(), |_| {})?;
        // A file that names nobody was refused.
        let Some(route) = Route::new(link, &parent.servers, &mut dice)? else {
            return Ok(Self(tokio::spawn(async {})));
        };
        let name = parent.name.clone().unwrap_or_else(|| unnamed(&mut dice));
        let asking = Asking { master, above, name, line: Line::new(route), dice };
        Ok(Self(tokio::spawn(asking.run())))
    }
}

/// What a server is called above that was given no name. A lease there belongs to a name, and in
/// containers host and process number may be those of another, so there is something by chance.
fn unnamed(dice: &mut SeededRng) -> String {
    format!("{}:{:016x}", crate::client::own_name(), dice.next_u64())
}

impl Drop for Uplink {
    fn drop(&mut self) {
        self.0.abort();
    }
}

struct Asking {
    master: Master,
    above: Above,
    name: String,
    line: Line,
    dice: SeededRng,
}

impl Asking {
    async fn run(mut self) {
        loop {
            let due = self.master.book().next_ask().filter(|_| self.master.leads().is_some());
            let now = self.master.moment().now;
            let wait = due.map_or(LOOK_EVERY, |due| due.since(now).min(LOOK_EVERY));
            let _ = timeout(wait, self.above.0.wanted.notified()).await;
            match self.once().await {
                Ok(false) => {}
                Ok(true) => self.above.told(None),
                Err(NoAnswer::Elsewhere { .. }) => sleep(pause(&mut self.dice)).await,
                Err(failed) => {
                    self.above.told(Some(failed.to_string()));
                    sleep(pause(&mut self.dice)).await;
                }
            }
        }
    }

    /// Asks for what is due. Returns whether there was anything.
    async fn once(&mut self) -> Result<bool, NoAnswer> {
        let Some(reign) = self.master.leads() else { return Ok(false) };
        let mut asks = self.master.book().asks(self.master.moment());
        if !asks.gone.is_empty() {
            self.release(core::mem::take(&mut asks.gone)).await;
        }
        if asks.resources.is_empty() {
            return Ok(false);
        }
        let server_id = self.name.clone();
        let resource = core::mem::take(&mut asks.resources);
        let request = wire::GetServerCapacityRequest { server_id, resource };
        let question = async |master: &mut line::Master| master.get_server_capacity(request).await;
        let answer = self.line.ask(question, |answer| answer.mastership.as_ref()).await?;
        if self.master.leads() == Some(reign) {
            self.master.book().hear(&asks, &answer, self.master.moment());
        }
        Ok(true)
    }

    /// Gives back what nobody wants any more.
    async fn release(&mut self, resource_id: Vec<String>) {
        let client_id = self.name.clone();
        let release = wire::ReleaseCapacityRequest { client_id, resource_id };
        if let Some(master) = self.line.master() {
            let _ = timeout(RELEASE_WITHIN, master.release_capacity(release)).await;
        }
    }
}
