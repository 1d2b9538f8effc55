//! What an outgoing request takes over from the one that is being served.
//!
//! A handler's calls matter as much as the request that they are made for, and are wanted no longer
//! than that. And if one of them is refused, and nothing more can be done here, the handler's own
//! caller should not try again either. The request's context follows it from poll to poll as the
//! account that is charged for it; here it is asked, and told.

use core::time::Duration;
use std::sync::atomic::{AtomicBool, Ordering};
use tidegate_core::Criticality;
use tidegate_meter::Account;
use tokio::time::Instant;

/// The request on whose behalf a call is made.
#[derive(Debug, Clone, Default)]
pub(super) struct Caller(Option<Account>);

impl Caller {
    /// Whoever this thread works for at the moment.
    pub(super) fn current() -> Self {
        Self(tidegate_meter::current())
    }

    /// How much the call matters, if the caller knows.
    pub(super) fn criticality(&self) -> Option<Criticality> {
        self.given()?.criticality
    }

    /// How long the answer is wanted, if the caller knows.
    pub(super) fn remaining(&self) -> Option<Duration> {
        Some(self.given()?.deadline?.saturating_duration_since(Instant::now()))
    }

    /// A call below was refused as overloaded, here or there, and is not tried again.
    pub(super) fn gave_up(&self) {
        if let Some(given) = self.given() {
            given.gave_up.store(true, Ordering::Relaxed);
        }
    }

    fn given(&self) -> Option<&Given> {
        self.0.as_ref()?.context()
    }
}

/// What is known of a request that is being served.
#[derive(Debug, Default)]
pub(super) struct Given {
    pub(super) criticality: Option<Criticality>,
    pub(super) deadline: Option<Instant>,
    pub(super) gave_up: AtomicBool,
}
