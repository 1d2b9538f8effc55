//! Takes part in the election, and tells the server what it is.
//!
//! One loop asks etcd what the [`Elector`] wants to know and hands it the answers. When it is told
//! that it leads, it first enters its office: it reads its epoch and which services were led
//! before, and writes down those it will lead. Only then does the server begin.
//!
//! The loop decides nothing, and nothing depends on how fast it is: what a leader may do is checked
//! by its [`Fence`] whenever it is done.

use super::fence::Fence;
use super::limits;
use super::office::{self, Keys, Office};
use super::{Election, ElectionError};
use crate::config::{Config, EtcdElection};
use crate::etcd::{Etcd, EtcdError};
use crate::server::{Reload, Server};
use core::time::Duration;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate::clock::Clock;
use tidegate_core::Timestamp;
use tidegate_core::election::{Ask, Elector, Holder, LeaseId, Role};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// How long a server that ends waits until its lease is given back: the next leader is there so
/// much sooner.
const FAREWELL: Duration = Duration::from_millis(800);
/// How long until the same trouble is said again.
const TROUBLE_EVERY: Duration = Duration::from_secs(60);
/// Troubles that are remembered for that: etcd has few members, each in trouble of its own.
const TROUBLES_MAX: usize = 16;

/// What becomes of a server.
#[derive(Debug)]
#[non_exhaustive]
pub enum Change {
    /// It leads.
    Leads {
        /// By this election.
        epoch: u64,
    },
    /// It does not: somebody else does, or nobody of whom it knows.
    Follows {
        /// By host and port.
        leader: Option<String>,
    },
    /// The limits in etcd have changed.
    Reload(Reload),
    /// Something is wrong with etcd, or with what it is shown. The same is not said again for a
    /// minute.
    Trouble(String),
}

/// A server's part in the election, until it resigns or this is dropped.
#[derive(Debug)]
pub struct Candidate {
    stop: watch::Sender<bool>,
    running: JoinHandle<()>,
    others: Vec<JoinHandle<()>>,
}

impl Candidate {
    /// Takes part for `server`, which was [made to](Server::stand) by the same configuration, on
    /// the current runtime. Tells `said` what becomes of it.
    pub fn start(
        server: &Server,
        config: &Config,
        election: &EtcdElection,
        said: impl Fn(Change) + Send + Sync + 'static,
    ) -> Result<Self, EtcdError> {
        let (tls, user) = (election.tls.clone(), election.user.clone());
        let etcd = Etcd::secured(&election.endpoints, tls, user)?;
        Ok(Self::with(&etcd, server, config, election, Arc::new(said)))
    }

    pub(crate) fn with(
        etcd: &Etcd,
        server: &Server,
        config: &Config,
        election: &EtcdElection,
        said: Arc<dyn Fn(Change) + Send + Sync>,
    ) -> Self {
        let keys = Keys::under(&election.prefix);
        let (stop, stopped) = watch::channel(false);
        let (eligible, may_lead) = watch::channel(!election.limits);
        let (wake, look) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let clock = server.clock();
        let elector = Elector::new(election.ttl, clock.now());
        let pause = elector.patience() * 2;
        let campaign = Campaign {
            etcd: etcd.clone(),
            keys: keys.clone(),
            name: config.advertise.clone(),
            ttl: election.ttl,
            clock,
            server: server.clone(),
            elector,
            errands: FuturesUnordered::new(),
            reign: None,
            told: Told::Leader(None),
            troubles: Troubles::default(),
            said: Arc::clone(&said),
        };
        let running = tokio::spawn(campaign.run(Arc::clone(&wake), may_lead, stopped));
        let woken = {
            let (etcd, look, prefix) = (etcd.clone(), Arc::clone(&look), keys.prefix.clone());
            async move {
                let wake = || {
                    wake.notify_one();
                    look.notify_one();
                };
                etcd.watch(&prefix, pause, wake).await;
            }
        };
        let mut others = vec![tokio::spawn(woken)];
        if election.limits {
            let follow = limits::Follow {
                etcd: etcd.clone(),
                key: keys.config,
                server: server.clone(),
                eligible,
                wake: look,
                within: pause,
            };
            others.push(tokio::spawn(follow.run(said)));
        }
        Self { stop, running, others }
    }

    /// Leads no more, and gives the lease back, so that another can lead at once.
    pub async fn resign(mut self) {
        let _ = self.stop.send(true);
        let _ = timeout(FAREWELL * 2, &mut self.running).await;
    }
}

impl Drop for Candidate {
    fn drop(&mut self) {
        self.running.abort();
        for other in &self.others {
            other.abort();
        }
    }
}

/// An answer of etcd's.
enum Answer {
    Seen(Result<Option<Holder>, EtcdError>),
    Granted(Timestamp, Result<LeaseId, EtcdError>),
    Renewed(LeaseId, Timestamp, Result<bool, EtcdError>),
    Revoked,
    Entered(u64, Result<(u64, BTreeSet<String>), ElectionError>),
}

/// The reign of this server.
struct Reign {
    revision: u64,
    fence: Fence,
    stage: Stage,
    /// Before the next attempt to enter its office.
    pause: Duration,
}

#[derive(PartialEq)]
enum Told {
    Nothing,
    Leader(Option<String>),
}

/// What an answer says of etcd.
enum News {
    /// Nothing new.
    None,
    Well,
    Trouble(String),
}

#[derive(PartialEq)]
enum Stage {
    /// Not in office, and nobody is on the way there.
    Elected,
    Entering,
    Leads,
}

struct Campaign {
    etcd: Etcd,
    keys: Keys,
    name: String,
    ttl: Duration,
    clock: Clock,
    server: Server,
    elector: Elector,
    errands: FuturesUnordered<BoxFuture<'static, Answer>>,
    reign: Option<Reign>,
    /// Whether anybody was told who leads, and whom.
    told: Told,
    troubles: Troubles,
    said: Arc<dyn Fn(Change) + Send + Sync>,
}

/// What was said to be wrong of late, and when.
#[derive(Debug, Default)]
struct Troubles(Vec<(String, Timestamp)>);

impl Troubles {
    /// Whether this has to be said; then it counts as said.
    fn is_news(&mut self, what: &str, now: Timestamp) -> bool {
        self.0.retain(|(_, at)| now.since(*at) < TROUBLE_EVERY);
        let news = self.0.len() < TROUBLES_MAX && self.0.iter().all(|(said, _)| said != what);
        if news {
            self.0.push((what.to_owned(), now));
        }
        news
    }
}

impl Campaign {
    async fn run(
        mut self,
        wake: Arc<Notify>,
        mut may_lead: watch::Receiver<bool>,
        mut stopped: watch::Receiver<bool>,
    ) {
        loop {
            if *may_lead.borrow() {
                self.elector.set_eligible();
            }
            while let Some(ask) = self.elector.next(self.clock.now()) {
                self.errands.push(self.errand(ask));
            }
            self.settle().await;
            let now = self.clock.now();
            let wait = self.elector.next_deadline().map_or(self.ttl, |due| due.since(now));
            tokio::select! {
                Some(answer) = self.errands.next() => self.hear(answer).await,
                // Not at once again if it is late.
                () = sleep(wait.max(Duration::from_millis(1))) => {}
                () = wake.notified() => self.elector.wake(self.clock.now()),
                Ok(()) = may_lead.changed() => {}
                _ = stopped.changed() => break,
            }
        }
        self.elector.resign();
        self.settle().await;
        if let Some(Ask::Revoke(lease)) = self.elector.next(self.clock.now()) {
            let _ = self.etcd.revoke(lease, FAREWELL).await;
        }
    }

    fn errand(&self, ask: Ask) -> BoxFuture<'static, Answer> {
        let (etcd, keys, name) = (self.etcd.clone(), self.keys.clone(), self.name.clone());
        let (within, sent, ttl) = (self.elector.patience(), self.clock.now(), self.ttl);
        Box::pin(async move {
            match ask {
                Ask::Look => Answer::Seen(office::look(&etcd, &keys, within).await),
                Ask::Grant => Answer::Granted(sent, etcd.grant(ttl.as_secs(), within).await),
                Ask::Claim(lease) => {
                    Answer::Seen(office::claim(&etcd, &keys, &name, lease, within).await)
                }
                Ask::Renew(lease) => {
                    Answer::Renewed(lease, sent, etcd.keep_alive(lease, within).await)
                }
                Ask::Revoke(lease) => {
                    // One that is not given back ends by itself.
                    let _ = etcd.revoke(lease, within).await;
                    Answer::Revoked
                }
            }
        })
    }

    async fn hear(&mut self, answer: Answer) {
        let now = self.clock.now();
        let news = match answer {
            Answer::Seen(Ok(holder)) => {
                self.elector.seen(holder, now);
                News::Well
            }
            Answer::Granted(sent, Ok(lease)) => {
                self.elector.granted(lease, sent, now);
                News::None
            }
            Answer::Renewed(lease, sent, Ok(there)) => {
                self.elector.renewed(lease, there, sent, now);
                News::None
            }
            Answer::Seen(Err(error)) | Answer::Granted(_, Err(error)) => {
                self.elector.unanswered(now);
                News::Trouble(error.to_string())
            }
            Answer::Renewed(lease, _, Err(error)) => {
                self.elector.not_renewed(lease, now);
                News::Trouble(error.to_string())
            }
            Answer::Revoked => News::None,
            Answer::Entered(revision, entered) => self.entered(revision, entered).await,
        };
        match news {
            News::None => {}
            // Whatever is shown to etcd, there may be something newer that cannot be.
            News::Well => self.note(self.etcd.refused_files()),
            News::Trouble(what) => self.note(Some(what)),
        }
    }

    /// Has the status say what is wrong, if anything, and tells whoever listens.
    fn note(&mut self, trouble: Option<String>) {
        self.server.set_trouble(trouble.clone());
        if let Some(trouble) = trouble
            && self.troubles.is_news(&trouble, self.clock.now())
        {
            (self.said)(Change::Trouble(trouble));
        }
    }

    /// Has the server be what it is.
    async fn settle(&mut self) {
        let now = self.clock.now();
        match self.elector.role(now) {
            Role::Leads { revision, until } => {
                let same = self.reign.as_ref().is_some_and(|reign| reign.revision == revision);
                if same {
                    self.reign.iter().for_each(|reign| reign.fence.move_to(until));
                } else {
                    self.end_reign().await;
                    let (fence, pause) = (Fence::until(until), Duration::ZERO);
                    self.reign = Some(Reign { revision, fence, stage: Stage::Elected, pause });
                }
                self.enter();
            }
            // Its fence is shut by the time.
            Role::Suspended { .. } => {}
            Role::Follows(holder) => {
                let leader = holder.map(|holder| holder.name.clone());
                self.end_reign().await;
                let told = Told::Leader(leader.clone());
                if self.told != told {
                    self.told = told;
                    self.server.follow(leader.clone()).await;
                    (self.said)(Change::Follows { leader });
                }
            }
        }
    }

    async fn end_reign(&mut self) {
        if let Some(reign) = self.reign.take() {
            reign.fence.shut();
            self.told = Told::Nothing;
            self.server.follow(None).await;
        }
    }

    /// On the way to the office, if nobody is yet.
    fn enter(&mut self) {
        let within = self.elector.patience();
        let Some(reign) = self.reign.as_mut().filter(|reign| reign.stage == Stage::Elected) else {
            return;
        };
        reign.stage = Stage::Entering;
        let (revision, pause) = (reign.revision, reign.pause);
        reign.pause = within / 2;
        let office = Office::new(&self.etcd, &self.keys, revision, within);
        self.errands.push(Box::pin(async move {
            sleep(pause).await;
            Answer::Entered(revision, office.enter().await)
        }));
    }

    async fn entered(
        &mut self,
        revision: u64,
        entered: Result<(u64, BTreeSet<String>), ElectionError>,
    ) -> News {
        let within = self.elector.patience();
        let reign = self.reign.as_mut().filter(|reign| reign.revision == revision);
        let Some(reign) = reign else { return News::None };
        // Until it has led, whoever finds it still elected tries again.
        reign.stage = Stage::Elected;
        let fence = reign.fence.clone();
        let led = match entered {
            Ok((epoch, led)) => {
                let office = Office::new(&self.etcd, &self.keys, revision, within);
                let election = Election::of(office, epoch, led);
                self.server.lead(election, fence).await.map(|()| epoch)
            }
            Err(error) => Err(error.into()),
        };
        match led {
            Ok(epoch) => {
                reign.stage = Stage::Leads;
                (self.said)(Change::Leads { epoch });
                News::Well
            }
            Err(error) => News::Trouble(error.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_trouble_is_said_once_a_minute_and_not_too_many_at_all() {
        let mut troubles = Troubles::default();
        let at = Timestamp::from_secs;
        for (second, what, news) in [
            (1, "etcd-1 is silent", true),
            (2, "etcd-2 is silent", true),
            (3, "etcd-1 is silent", false),
            (60, "etcd-2 is silent", false),
            (61, "etcd-1 is silent", true),
            (62, "etcd-2 is silent", true),
        ] {
            assert_eq!(troubles.is_news(what, at(second)), news, "{second} s: {what}");
        }
        let said = (0..1_000).filter(|n| troubles.is_news(&n.to_string(), at(63))).count();
        assert_eq!(said, TROUBLES_MAX - 2);
    }
}
