//! One who is ready to run and waits outside of the runtime's queue.

use super::Shared;
use super::state::Ready;
use std::sync::Arc;

/// Counts as ready to run until it is served or dropped. Made by [`super::Executor::wait`].
#[derive(Debug)]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    ready: Option<Ready>,
}

impl Waiting {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let ready = Some(Ready::new(&shared));
        Self { shared, ready }
    }

    /// Its wait is over, and what it runs is counted as it runs.
    pub(crate) fn served(mut self) {
        if let Some(ready) = self.ready.take() {
            ready.served(&self.shared);
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(ready) = self.ready.take() {
            ready.forget(&self.shared);
        }
    }
}
