//! What a caller gets when there is no answer to hand on.
//!
//! An answer of the backend is an answer, a refusal too: it is handed on as it came. These errors
//! are for what never reached the network, or never came back. They travel as [`BoxError`], as
//! everywhere in tower; [`Throttled::find`] and [`TimedOut::find`] find them in any chain.
//!
//! With the feature `tonic` each has a `tonic::Status` as its source. That is where tonic's
//! generated clients look for one, so callers see `RESOURCE_EXHAUSTED` with a pushback of "don't",
//! or `DEADLINE_EXCEEDED`, and need not know of tidegate.

use bytes::Bytes;
use core::fmt;
use core::time::Duration;
use http::{Response, Version};
use std::error::Error;
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_wire::protocol::Protocol;
use tidegate_wire::reject::{DecisionId, Reject};

/// Any error, as tower has it.
pub type BoxError = Box<dyn Error + Send + Sync>;

/// A request that was not sent: the client held it back.
pub struct Throttled {
    rejection: Rejection,
    /// Made when somebody asks: most callers do not.
    #[cfg(feature = "tonic")]
    status: std::sync::OnceLock<tonic::Status>,
}

impl Throttled {
    pub(super) const fn new(rejection: Rejection) -> Self {
        Self {
            rejection,
            #[cfg(feature = "tonic")]
            status: std::sync::OnceLock::new(),
        }
    }

    /// The first of these in `error` and what it was caused by.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }

    /// Why.
    pub const fn reason(&self) -> Reason {
        self.rejection.reason
    }

    /// What to do next. Tell whoever asked you the same.
    pub const fn advice(&self) -> Advice {
        self.rejection.advice
    }

    /// Everything about it, with the numbers behind it.
    pub const fn rejection(&self) -> &Rejection {
        &self.rejection
    }

    /// The answer for our own caller, in its language. A handler that cannot do without this
    /// dependency may return it as it is.
    pub fn respond(&self, protocol: Protocol, version: Version) -> Response<Bytes> {
        Reject::new(&self.rejection, DecisionId(0)).respond(protocol, version)
    }
}

impl fmt::Debug for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Throttled").field(&self.rejection).finish()
    }
}

impl fmt::Display for Throttled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not sent: {}", self.rejection)
    }
}

impl Error for Throttled {
    #[cfg(feature = "tonic")]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(self.status.get_or_init(|| self.into()))
    }
}

/// No answer within the time that there was.
pub struct TimedOut {
    waited: Duration,
    #[cfg(feature = "tonic")]
    status: std::sync::OnceLock<tonic::Status>,
}

impl TimedOut {
    pub(super) const fn new(waited: Duration) -> Self {
        Self {
            waited,
            #[cfg(feature = "tonic")]
            status: std::sync::OnceLock::new(),
        }
    }

    /// The first of these in `error` and what it was caused by.
    pub fn find<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a Self> {
        find(error)
    }

    /// How long the last attempt was waited for.
    pub const fn waited(&self) -> Duration {
        self.waited
    }
}

impl fmt::Debug for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TimedOut").field(&self.waited).finish()
    }
}

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no answer within {:?}", self.waited)
    }
}

impl Error for TimedOut {
    #[cfg(feature = "tonic")]
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        let status = || tonic::Status::deadline_exceeded(self.to_string());
        Some(self.status.get_or_init(status))
    }
}

/// There is nowhere to send to: discovery has named no endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no endpoint to send to")]
pub struct NoEndpoint;

/// The attempt never reached a backend, as whoever was to send it knows: it could not connect, say.
/// Such a request may be sent again whatever it does. For services of one's own below the layer.
#[derive(Debug, thiserror::Error)]
#[error("never sent: {0}")]
pub struct Unsent(#[source] pub BoxError);

/// `error`, what caused it, what caused that.
fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    let mut next = Some(error);
    core::iter::from_fn(move || {
        let error = next?;
        next = error.source();
        Some(error)
    })
}

fn find<'a, E: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a E> {
    chain(error).find_map(<dyn Error>::downcast_ref)
}

/// Whether an attempt that ended in `error` certainly never reached a backend, so that sending it
/// again cannot do anything twice.
pub(super) fn never_sent(error: &(dyn Error + 'static)) -> bool {
    chain(error).any(|error| {
        #[cfg(feature = "tonic")]
        if error.is::<tonic::ConnectError>() {
            return true;
        }
        #[cfg(feature = "hyper-util")]
        if let Some(error) = error.downcast_ref::<hyper_util::client::legacy::Error>() {
            return error.is_connect();
        }
        #[cfg(feature = "reqwest")]
        if let Some(error) = error.downcast_ref::<reqwest::Error>() {
            return error.is_connect();
        }
        let refused = std::io::ErrorKind::ConnectionRefused;
        error.downcast_ref().is_some_and(|e: &std::io::Error| e.kind() == refused)
            || error.is::<NoEndpoint>()
            || error.is::<Unsent>()
    })
}
