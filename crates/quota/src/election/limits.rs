//! Limits from etcd: one place for all servers, whoever leads.
//!
//! The key has what would stand in a server's file: `quota`, with `services` and `doorman` only. It
//! is read when a watch says that something has changed, and from time to time. What is refused
//! changes nothing, and neither does a key that is gone or cannot be read; the status says so.
//!
//! A server without limits does not stand for election: it would have nothing to lead.

use super::candidate::Change;
use crate::etcd::Etcd;
use crate::server::{Origin, Reload, Server};
use core::time::Duration;
use std::sync::Arc;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

/// How often to look without being told to.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The same while there are no limits, or etcd does not answer.
const LOOK_SOON: Duration = Duration::from_secs(1);

pub(super) struct Follow {
    pub(super) etcd: Etcd,
    pub(super) key: String,
    pub(super) server: Server,
    /// Whether the server has anything to lead.
    pub(super) eligible: watch::Sender<bool>,
    pub(super) wake: Arc<Notify>,
    pub(super) within: Duration,
}

impl Follow {
    pub(super) async fn run(self, said: Arc<dyn Fn(Change) + Send + Sync>) {
        let file = format!("etcd:{}", self.key);
        let mut seen: Option<Vec<u8>> = None;
        // What was said of an attempt that failed and is repeated.
        let mut failing = None;
        loop {
            let every = match self.etcd.get(&self.key, self.within).await {
                Ok(Some(found)) if seen.as_ref() == Some(&found.value) => LOOK_EVERY,
                Ok(Some(found)) => {
                    let text = String::from_utf8_lossy(&found.value).into_owned();
                    let reload = self.server.reload_limits(&file, &text).await;
                    self.server.note(Origin::Etcd, &file, &reload);
                    if matches!(reload, Reload::Done(_)) {
                        self.eligible.send_replace(true);
                    }
                    let again = match &reload {
                        Reload::Unfit(error) if reload.may_do_better() => Some(error.to_string()),
                        _ => None,
                    };
                    if again.is_none() || again != failing {
                        said(Change::Reload(reload));
                    }
                    seen = again.is_none().then_some(found.value);
                    let every = if again.is_some() { LOOK_SOON } else { LOOK_EVERY };
                    failing = again;
                    every
                }
                Ok(None) => {
                    seen = None;
                    let what = format!("{file}: there is no such key; put the limits there");
                    self.server.set_refused(Origin::Etcd, Some(what));
                    LOOK_SOON
                }
                // The election says that etcd does not answer.
                Err(_) => LOOK_SOON,
            };
            let _ = timeout(every, self.wake.notified()).await;
        }
    }
}
