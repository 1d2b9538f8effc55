//! Another configuration while the server runs.
//!
//! The file is read again whenever its text has changed, which is looked at once a second: that
//! finds every way in which files are replaced, also by links, and costs nothing. A file that is
//! refused changes nothing, and neither does one that needs a restart; both are said once, and in
//! [`Server::status`] for as long as the file is like that.

use super::{Server, StartError, Uplink, own};
use crate::access::Access;
use crate::config::{Config, Refused};
use core::time::Duration;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::{fs, io};
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
    #[error("`parent` is another, or new or gone: restart the server, or set it back")]
    Parent,
    /// A service that is new cannot be led.
    #[error(transparent)]
    Start(#[from] StartError),
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

impl Server {
    /// Other services, customers and limits. All of it or, on an error, nothing.
    pub async fn reload(&self, config: &Config) -> Result<(), ReloadError> {
        let inner = &self.inner;
        let mut running = inner.running.lock().await;
        if running.own.tls != config.tls {
            return Err(ReloadError::Tls);
        }
        if running.parent != config.parent {
            return Err(ReloadError::Parent);
        }
        let before = inner.owners.load_full();
        for (name, service) in &config.services {
            if running.services.get(name).is_some_and(|before| !service.fits(before)) {
                return Err(ReloadError::NeedsRestart { service: name.clone() });
            }
        }
        let mut owners = BTreeMap::new();
        // Who does not lead only takes notes.
        if let Some((election, fence)) = &mut running.election {
            for (name, service) in &config.services {
                let owner = match before.get(name) {
                    Some(owner) => owner.clone(),
                    None => own(name, service, election, fence, &inner.clock)?,
                };
                owners.insert(name.clone(), owner);
            }
            election.lead(config.services.keys()).await.map_err(StartError::Election)?;
        }
        for (name, owner) in before.iter() {
            match config.services.get(name) {
                None => owner.stop().await,
                Some(service) if running.services.get(name) == Some(service) => {}
                // Its customers and limits come from above.
                Some(_) if config.parent.is_some() => {}
                Some(service) => owner.reload(service.clone()).await,
            }
        }
        if config.parent.is_some() {
            let mut uplinks = inner.uplinks();
            uplinks.retain(|name, _| config.services.contains_key(name));
            for (name, owner) in &owners {
                if !uplinks.contains_key(name) {
                    let uplink = Uplink::start(config, name, owner, &inner.clock)?;
                    uplinks.insert(name.clone(), uplink);
                }
            }
        }
        inner.desks().retain(|name, _| config.services.contains_key(name));
        inner.doorman.book().reload(config.doorman.clone());
        inner.access.store(Access::of(config).into());
        inner.owners.store(owners.into());
        running.services.clone_from(&config.services);
        Ok(())
    }

    async fn reload_text(&self, file: &str, text: &str) -> Reload {
        let parsed = Config::parse(file, text);
        if let Ok(config) = &parsed
            && self.inner.running.lock().await.own.election != config.election
        {
            return Reload::Unfit(ReloadError::Election);
        }
        self.reload_parsed(parsed).await
    }

    /// The same with what is not of one server only.
    pub(crate) async fn reload_limits(&self, file: &str, text: &str) -> Reload {
        let own = self.inner.running.lock().await.own.clone();
        self.reload_parsed(Config::parse_limits(file, text, &own)).await
    }

    async fn reload_parsed(&self, parsed: Result<Config, Refused>) -> Reload {
        match parsed {
            Err(refused) => Reload::Refused(refused),
            Ok(config) => match self.reload(&config).await {
                Ok(()) => Reload::Done(Box::new(config)),
                Err(error) => Reload::Unfit(error),
            },
        }
    }

    /// Has the status say what came of it.
    pub(crate) fn note(&self, file: &str, reload: &Reload) {
        self.set_refused(match reload {
            Reload::Done(_) => None,
            Reload::Refused(refused) => Some(refused.to_string()),
            Reload::Unfit(error) => Some(error.to_string()),
            Reload::Unreadable(error) => Some(format!("{file} cannot be read: {error}")),
        });
    }

    #[cfg(test)]
    pub(crate) fn refused(&self) -> Option<String> {
        self.inner.refused().clone()
    }

    pub(crate) fn set_refused(&self, refused: Option<String>) {
        *self.inner.refused() = refused;
    }
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
    loop {
        let _ = tokio::time::timeout(period, wake.notified()).await;
        let read = fs::read_to_string(&path);
        if seen.as_ref().ok() == read.as_ref().ok()
            && seen.as_ref().err().copied() == read.as_ref().err().map(io::Error::kind)
        {
            continue;
        }
        seen = read.as_ref().map(Clone::clone).map_err(io::Error::kind);
        let reload = match read {
            Ok(text) => server.reload_text(&file, &text).await,
            Err(error) => Reload::Unreadable(error),
        };
        server.note(&file, &reload);
        said(reload);
    }
}
