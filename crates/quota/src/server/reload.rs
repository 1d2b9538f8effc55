//! Another configuration while the server runs.
//!
//! The file is read again whenever its text has changed, which is looked at once a second: that
//! finds every way in which files are replaced, also by links, and costs nothing. A file that is
//! refused changes nothing, and neither does one that needs a restart; both are said once, and in
//! [`Server::status`] for as long as the file is like that. What fails for a reason outside the
//! file (nobody remembers what is led, a certificate cannot be read) is tried again at every look.

use super::{Running, Server, StartError, Uplink, own};
use crate::access::Access;
use crate::config::{Config, Own, Refused};
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};
use tidegate_wire::proto::tidegate::quota::v1::{CustomerStatus, ServiceStatus};
use tokio::sync::Notify;

/// Why a configuration cannot take the place of another while the server runs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReloadError {
    /// Tasks and server have to agree on it.
    #[error(
        "service `{service}` has another `hit`, or other `reports`, `silence`, `shares` or \
         `sizes`, on which tasks and server have to agree: restart the server, or set them back"
    )]
    NeedsRestart {
        /// Which.
        service: String,
    },
    /// It is part of everything in the server.
    #[error("`{key}` is another, or new or gone: restart the server, or set it back")]
    Fixed {
        /// Which key of the file.
        key: &'static str,
    },
    /// The port is open, and is what it is.
    #[error("`tls` has other files, or is new or gone: restart the server, or set it back")]
    Tls,
    /// Servers have to agree on it, and on where limits are.
    #[error(
        "`election` is another, or new or gone, or there are no services, which would have limits \
         come from etcd: restart the server, or set it back"
    )]
    Election,
    /// It is another zone's, or none.
    #[error(
        "`parent`, or that of `doorman`, is another, or new or gone: restart the server, or set it \
         back"
    )]
    Parent,
    /// A service that is new cannot be led.
    #[error(transparent)]
    Start(#[from] StartError),
}

/// Where a configuration comes from. A server may have two at once, and what is wrong with one is
/// not mended by the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// The server's own file.
    File,
    /// The limits in etcd.
    Etcd,
}

/// What came of a file that has changed.
#[derive(Debug)]
#[non_exhaustive]
pub enum Reload {
    /// It holds now.
    Done(Box<Config>),
    /// It makes no sense.
    Refused(Refused),
    /// It cannot take the place of the one before.
    Unfit(ReloadError),
    /// It cannot be read.
    Unreadable(io::Error),
}

impl Reload {
    /// Whether the same text may do better later: what is in the way is not in the text.
    pub(crate) const fn may_do_better(&self) -> bool {
        matches!(self, Self::Unfit(ReloadError::Start(_)))
    }
}

impl Server {
    /// Other services, customers and limits. All of it or, on an error, nothing.
    pub async fn reload(&self, config: &Config) -> Result<(), ReloadError> {
        let mut running = self.inner.running.lock().await;
        self.reload_with(&mut running, config).await
    }

    async fn reload_with(&self, running: &mut Running, config: &Config) -> Result<(), ReloadError> {
        let inner = &self.inner;
        if let Some(key) = running.own.fixed.difference(&config.fixed) {
            return Err(ReloadError::Fixed { key });
        }
        if running.own.tls != config.tls {
            return Err(ReloadError::Tls);
        }
        let above = (&running.own.parent, &running.own.doorman_parent);
        if above != (&config.parent, &config.doorman_parent) {
            return Err(ReloadError::Parent);
        }
        let before = inner.owners.load_full();
        for (name, service) in &config.services {
            if running.services.get(name).is_some_and(|before| !service.fits(before)) {
                return Err(ReloadError::NeedsRestart { service: name.clone() });
            }
        }
        let (mut fresh, mut uplinks) = (BTreeMap::new(), BTreeMap::new());
        // Who does not lead only takes notes.
        if let Some((election, fence)) = &mut running.election {
            for (name, service) in &config.services {
                if !before.contains_key(name) {
                    let owner = own(name, service, election, fence, &inner.clock)?;
                    fresh.insert(name.clone(), owner);
                }
            }
            let parent = config.parent.as_ref();
            uplinks = Uplink::prepare_all(parent, &fresh, election, &inner.clock)?;
            // The last that can fail. Nobody has heard of anything new before it.
            election.lead(config.services.keys()).await.map_err(StartError::Election)?;
        }
        let kept = before.iter().filter(|(name, _)| config.services.contains_key(*name));
        let kept = kept.map(|(name, owner)| (name.clone(), owner.clone()));
        let owners: BTreeMap<_, _> = kept.chain(fresh).collect();
        for (name, owner) in before.iter() {
            match config.services.get(name) {
                None => {
                    // What its tasks hold is in use until they have let go, wherever they are; and
                    // until it has ended more may come.
                    if owner.stop().await.is_some_and(|status| is_unused(&status)) {
                        inner.uplinks().get(name).iter().for_each(|uplink| uplink.leave());
                    }
                }
                Some(service) if running.services.get(name) == Some(service) => {}
                Some(service) => owner.reload(service.clone()).await,
            }
        }
        if config.parent.is_some() {
            let mut linked = inner.uplinks();
            linked.retain(|name, _| config.services.contains_key(name));
            linked.extend(Uplink::begin_all(uplinks));
        }
        inner.desks().retain(|name, _| config.services.contains_key(name));
        inner.doorman.book().reload(config.doorman.clone());
        inner.access.store(Access::of(config).into());
        inner.owners.store(owners.into());
        running.services.clone_from(&config.services);
        Ok(())
    }

    async fn reload_text(&self, file: &str, text: &str) -> Reload {
        let mut running = self.inner.running.lock().await;
        let parsed = Config::parse(file, text);
        if let Ok(config) = &parsed {
            if running.own.election != config.election {
                return Reload::Unfit(ReloadError::Election);
            }
            if config.election.as_ref().is_some_and(|election| election.limits) {
                return self.reload_own(&mut running, config);
            }
        }
        self.reload_parsed(&mut running, parsed).await
    }

    /// What is of this server only; its limits are in etcd.
    fn reload_own(&self, running: &mut Running, config: &Config) -> Reload {
        if let Some(key) = running.own.fixed.difference(&config.fixed) {
            return Reload::Unfit(ReloadError::Fixed { key });
        }
        if running.own.tls != config.tls {
            return Reload::Unfit(ReloadError::Tls);
        }
        if running.own.parent != config.parent {
            return Reload::Unfit(ReloadError::Parent);
        }
        running.own = Own::of(config);
        let access = self.inner.access.load().with_operators(&config.operators);
        self.inner.access.store(access.into());
        Reload::Done(Box::new(config.clone()))
    }

    /// The same with what is not of one server only.
    pub(crate) async fn reload_limits(&self, file: &str, text: &str) -> Reload {
        let mut running = self.inner.running.lock().await;
        let parsed = Config::parse_limits(file, text, &running.own);
        self.reload_parsed(&mut running, parsed).await
    }

    async fn reload_parsed(
        &self,
        running: &mut Running,
        parsed: Result<Config, Refused>,
    ) -> Reload {
        match parsed {
            Err(refused) => Reload::Refused(refused),
            Ok(config) => match self.reload_with(running, &config).await {
                Ok(()) => Reload::Done(Box::new(config)),
                Err(error) => Reload::Unfit(error),
            },
        }
    }

    /// Has the status say what came of it.
    pub(crate) fn note(&self, of: Origin, file: &str, reload: &Reload) {
        let refused = match reload {
            Reload::Done(_) => None,
            Reload::Refused(refused) => Some(refused.to_string()),
            Reload::Unfit(error) => Some(error.to_string()),
            Reload::Unreadable(error) => Some(format!("{file} cannot be read: {error}")),
        };
        self.set_refused(of, refused);
    }

    #[cfg(test)]
    pub(crate) fn refused(&self) -> Option<String> {
        Some(self.inner.complaints()).filter(|complaints| !complaints.is_empty())
    }

    pub(crate) fn set_refused(&self, of: Origin, refused: Option<String>) {
        let mut all = self.inner.refused();
        match refused {
            Some(refused) => _ = all.insert(of, refused),
            None => _ = all.remove(&of),
        }
    }
}

/// Whether no task of a service may be using anything that it was granted. What counts is added up
/// before a round hands out more, so that those count who have to do with a customer at all.
fn is_unused(status: &ServiceStatus) -> bool {
    let idle = |customer: &CustomerStatus| customer.tasks == 0;
    !status.learning && status.tasks == 0 && status.customers.iter().all(idle)
}

/// Follows the file at `path`, whose text is `text` at the start, for ever: looks every `period`
/// and when `wake` is notified, and tells `said` what came of each change.
pub async fn follow(
    server: Server,
    path: PathBuf,
    text: String,
    period: Duration,
    wake: Arc<Notify>,
    mut said: impl FnMut(Reload) + Send,
) {
    let file = path.display().to_string();
    let mut seen = Ok::<_, io::ErrorKind>(text);
    // What was said of an attempt that failed and is repeated.
    let mut failing = None;
    loop {
        let _ = tokio::time::timeout(period, wake.notified()).await;
        let read = fs::read_to_string(&path);
        let same = seen.as_ref().ok() == read.as_ref().ok()
            && seen.as_ref().err().copied() == read.as_ref().err().map(io::Error::kind);
        if same && failing.is_none() {
            continue;
        }
        if !same {
            failing = None;
        }
        seen = read.as_ref().map(Clone::clone).map_err(io::Error::kind);
        let reload = match read {
            Ok(text) => server.reload_text(&file, &text).await,
            Err(error) => Reload::Unreadable(error),
        };
        server.note(Origin::File, &file, &reload);
        let again = match &reload {
            Reload::Unfit(error) if reload.may_do_better() => Some(error.to_string()),
            _ => None,
        };
        if again.is_none() || again != failing {
            said(reload);
        }
        failing = again;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::election::Election;
    use crate::election::fence::Fence;
    use crate::message::write_usages;
    use crate::server::book::Book;
    use crate::server::stream::{BACKLOG, Said};
    use tidegate::clock::Clock;
    use tidegate_core::fleet::Usage;
    use tidegate_core::{CostRate, CustomerId, Timestamp};
    use tidegate_wire::proto::tidegate::quota::v1 as wire;
    use tokio::sync::mpsc;

    const LIMITS: &str = "\
quota:
  services:
    search: { default: 1, tasks: ['spiffe://prod/ns/search/**'] }
";

    /// A server's own file where limits are in etcd.
    fn own(operator: &str) -> String {
        format!(
            "quota:\n  tls: {{ cert: c.pem, key: k.pem, client_ca: ca.pem }}\n  operators: \
             [{operator}]\n  election: {{ etcd: ['http://[::1]:2379'], prefix: /q }}\n"
        )
    }

    fn access(operator: &str, limits: &str) -> Access {
        let own = Own::of(&Config::parse("quota.yaml", &own(operator)).unwrap());
        Access::of(&Config::parse_limits("etcd:/q/config", limits, &own).unwrap())
    }

    /// What is handed out is added up by the next round only.
    #[test]
    fn a_task_that_was_granted_something_and_is_away_may_be_using_it() {
        let text = "quota: { services: { search: { default: 1 } } }";
        let service = Config::parse("quota.yaml", text).unwrap().services.remove("search").unwrap();
        let now = Timestamp::from_secs(1);
        let mut book = Book::new(service, 7, false, now).unwrap();
        assert!(is_unused(&book.status("search")));
        let (out, mut told) = mpsc::channel(BACKLOG);
        let hello = wire::Hello { task: "t".to_owned(), ..wire::Hello::default() };
        let id = book.open(&hello, out, now).unwrap();
        assert!(!is_unused(&book.status("search")), "it is there");
        let demand = [CostRate::from_cpus(1.0).unwrap(); 4];
        let used = [CostRate::ZERO; 4];
        let line = Usage { customer: CustomerId::DEFAULT, used, demand, has: None };
        let report = Some(write_usages(1, [line]));
        book.hear(id, &Said { report, ..Said::default() }, now);
        book.tick(now, 0);
        while let Ok(Ok(message)) = told.try_recv() {
            if message.grants.is_some() {
                book.close(id);
            }
        }
        assert_eq!(book.status("search").tasks, 0);
        assert!(!is_unused(&book.status("search")));
    }

    /// A reload that is under way begins services; nothing may begin them after the end.
    #[tokio::test]
    async fn a_server_that_stops_waits_for_a_reload_and_then_leads_nothing() {
        let text = |name: &str| format!("quota: {{ services: {{ {name}: {{ default: 1 }} }} }}");
        let config = |name: &str| Config::parse("quota.yaml", &text(name)).unwrap();
        let election = || Election::alone(None, std::time::SystemTime::now()).unwrap();
        let server = Server::start(&config("search"), election(), Clock::monotonic()).unwrap();
        assert!(server.epoch() > 0);
        let reloading = server.inner.running.lock().await;
        let stop = tokio::spawn({
            let server = server.clone();
            async move { server.stop().await }
        });
        while server.epoch() > 0 {
            tokio::task::yield_now().await;
        }
        assert!(!stop.is_finished());
        drop(reloading);
        stop.await.unwrap();
        assert!(matches!(server.reload_text("quota.yaml", &text("ads")).await, Reload::Done(_)));
        let led = server.lead(election(), Fence::never()).await;
        assert!(matches!(led, Err(StartError::Stopped)), "{led:?}");
        let status = server.status().await;
        assert!(!status.leads && status.services.is_empty(), "{status:?}");
    }

    #[tokio::test]
    async fn operators_change_while_limits_are_in_etcd_and_the_rest_stays() {
        let config = Config::parse("quota.yaml", &own("dns:a.example.org")).unwrap();
        let server = Server::stand(&config, Clock::monotonic()).unwrap();
        let found = || (*server.inner.access.load_full()).clone();
        let done = |reload: Reload| assert!(matches!(reload, Reload::Done(_)), "{reload:?}");
        done(server.reload_limits("etcd:/q/config", LIMITS).await);
        assert_eq!(found(), access("dns:a.example.org", LIMITS));
        done(server.reload_text("quota.yaml", &own("dns:b.example.org")).await);
        assert_eq!(found(), access("dns:b.example.org", LIMITS));
        // Limits that come later know of it, and so does one who takes over.
        let more = LIMITS.replace("tasks:", "envoys: [dns:edge], tasks:");
        done(server.reload_limits("etcd:/q/config", &more).await);
        assert_eq!(found(), access("dns:b.example.org", &more));
        let services = server.inner.running.lock().await.services.clone();
        assert_eq!(services.keys().collect::<Vec<_>>(), ["search"]);

        for (text, what) in [
            (own("dns:c.example.org").replace("k.pem", "other.pem"), "`tls` has other files"),
            (own("dns:c.example.org").replace("/q", "/r"), "`election` is another"),
            (own("c.example.org"), "is no pattern"),
            (own("dns:c.example.org") + "  listen: 127.0.0.1:7301\n", "`listen` is another"),
            (own("dns:c.example.org") + "  advertise: quota-2:7300\n", "`advertise` is another"),
        ] {
            let reload = server.reload_text("quota.yaml", &text).await;
            server.note(Origin::File, "quota.yaml", &reload);
            assert!(server.refused().unwrap().contains(what), "{:?}", server.refused());
            assert_eq!(found(), access("dns:b.example.org", &more), "what held before holds");
        }
        // What is wrong with the file is not mended by limits that are in order, nor the other way
        // round.
        let wrong = server.reload_limits("etcd:/q/config", "quota: {}").await;
        server.note(Origin::Etcd, "etcd:/q/config", &wrong);
        let both = server.status().await.refused;
        assert!(both.contains("`advertise` is") && both.contains("etcd:/q/config"), "{both}");
        let right = server.reload_limits("etcd:/q/config", &more).await;
        server.note(Origin::Etcd, "etcd:/q/config", &right);
        assert!(server.refused().unwrap().contains("`advertise` is"), "{:?}", server.refused());
        let right = server.reload_text("quota.yaml", &own("dns:b.example.org")).await;
        server.note(Origin::File, "quota.yaml", &right);
        assert_eq!(server.refused(), None);
    }

    /// The file is held against the file: where the command line has the server listen is no
    /// change of it.
    #[tokio::test]
    async fn what_a_server_is_once_and_for_all_is_not_changed_by_a_file() {
        let file = |own: &str| format!("quota:\n{own}  services: {{ search: {{ default: 1 }} }}\n");
        let before = file("  listen: 127.0.0.1:7301\n  state: /tmp/state\n");
        let mut config = Config::parse("quota.yaml", &before).unwrap();
        config.listen_at("127.0.0.1:0".parse().unwrap()).unwrap();
        config.advertise = "127.0.0.1:40000".to_owned();
        let election = Election::alone(None, std::time::SystemTime::now()).unwrap();
        let server = Server::start(&config, election, Clock::monotonic()).unwrap();
        for (text, key) in [
            (before.replace("7301", "7302"), "listen"),
            (before.replace("  listen: 127.0.0.1:7301\n", ""), "listen"),
            (before.replace("  state", "  advertise: a:1\n  state"), "advertise"),
            (before.replace("/tmp/state", "/tmp/other"), "state"),
            (before.replace("  state", "  trust_network: true\n  state"), "trust_network"),
        ] {
            let found = server.reload_text("quota.yaml", &text).await;
            let Reload::Unfit(ReloadError::Fixed { key: found }) = found else {
                panic!("{key}: {found:?}")
            };
            assert_eq!(found, key);
        }
        let more = before.replace("default: 1", "default: 2");
        let found = server.reload_text("quota.yaml", &more).await;
        assert!(matches!(found, Reload::Done(_)), "{found:?}");
    }
}
