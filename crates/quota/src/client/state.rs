//! How a task stands with the quota server, for those who ask.

use std::sync::{Mutex, PoisonError};
use tidegate_core::fleet::Standing;

/// How a task stands with the quota server.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct State {
    /// The server that the stream leads to; nothing if there is no stream.
    pub server: Option<String>,
    /// By which election it leads, or the last one did; 0 if none was ever heard of.
    pub epoch: u64,
    /// The leader is new: the task keeps what it has.
    pub learning: bool,
    /// The worst of all customers; nothing before the server was heard of.
    pub standing: Option<Standing>,
    /// What went wrong last, if there is no stream.
    pub trouble: Option<Trouble>,
    /// What is wrong with certificates that have changed; the old ones are shown until then.
    pub certificates: Option<String>,
    /// How many streams there were.
    pub streams: u64,
}

/// Why there is no stream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{server}: {what}")]
#[non_exhaustive]
pub struct Trouble {
    /// With whom.
    pub server: String,
    /// What is wrong.
    pub what: String,
}

#[derive(Debug, Default)]
pub(super) struct Shared(Mutex<State>);

impl Shared {
    pub(super) fn get(&self) -> State {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
