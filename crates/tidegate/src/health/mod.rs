//! Whether this task is alive, and whether to send it requests.
//!
//! | asked by | answers | says no |
//! |---|---|---|
//! | `/livez` | whether the process runs | never: to restart a task because it is overloaded makes the overload worse |
//! | `/readyz` | whether to send it requests | while it starts, and from lame duck on; never because of load, which admission is for |
//! | `grpc.health.v1` Check | as `/readyz` | |
//! | `grpc.health.v1` Watch | as `/readyz`, and again whenever that changes | |
//!
//! A task that says that it is not ready because it is overloaded sends its load to the others,
//! until they say so too.
//!
//! Every answer carries the load report, if [`Health::task`] or [`Health::load`] was given one:
//! whoever only asks for health, because it has sent nothing for a while, then knows the load as
//! well, and whoever probes how many requests are in flight. In gRPC that is a
//! trailer, where its clients look for it. Those who want reports more often than they ask can have
//! a stream of them: `LoadReports`, with the feature `tonic`.
//!
//! ```
//! use tidegate::health::Health;
//! use tidegate::life::Life;
//!
//! let life = Life::default();
//! let health = Health::new(life.clone());
//! let status = |path| health.answer(path).map(|answer| answer.status().as_u16());
//! assert_eq!((status("/livez"), status("/readyz"), status("/"), ), (Some(200), Some(503), None));
//! life.ready();
//! assert_eq!((status("/livez"), status("/readyz")), (Some(200), Some(200)));
//! life.stop();
//! assert_eq!((status("/livez"), status("/readyz")), (Some(200), Some(503)));
//! ```

#[cfg(feature = "tonic")]
mod grpc;
#[cfg(feature = "tonic")]
mod reports;
#[cfg(feature = "tonic")]
mod trailer;

#[cfg(feature = "tonic")]
pub use grpc::Grpc;
#[cfg(feature = "tonic")]
pub use reports::LoadReports;
#[cfg(feature = "tonic")]
pub use trailer::WithLoad;

use crate::life::Life;
use crate::task::Task;
use bytes::Bytes;
use core::convert::Infallible;
use core::fmt;
use core::future::{Ready, ready};
use core::task::{Context, Poll};
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use std::sync::Arc;
use tidegate_wire::headers::X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL;
use tidegate_wire::orca::{self, Format};
use tower_service::Service;

/// The path of [`Health`] that asks whether the process runs.
pub const LIVEZ: &str = "/livez";

/// The path of [`Health`] that asks whether to send requests.
pub const READYZ: &str = "/readyz";

/// As many streams of health, and of reports, as there may be connections by default.
#[cfg(feature = "tonic")]
const STREAMS_MAX: usize = 10_000;

type LoadHeader = Arc<dyn Fn() -> Option<(HeaderName, HeaderValue)> + Send + Sync>;

/// Answers whoever asks for the health of this task. Cheap to clone.
///
/// It is also a `tower::Service` that answers every other path by 404.
#[derive(Clone)]
pub struct Health {
    life: Life,
    load: Option<LoadHeader>,
    services: Arc<[Box<str>]>,
}

impl fmt::Debug for Health {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { life, services, .. } = self;
        f.debug_struct("Health")
            .field("life", life)
            .field("services", services)
            .finish_non_exhaustive()
    }
}

impl Health {
    /// Of the task that lives this life.
    pub fn new(life: Life) -> Self {
        Self { life, load: None, services: Arc::default() }
    }

    /// Where the load report comes from, as the header that `tidegate_wire::orca::encode` makes of
    /// it. Nothing while there is none.
    #[must_use]
    pub fn load(
        mut self,
        load: impl Fn() -> Option<(HeaderName, HeaderValue)> + Send + Sync + 'static,
    ) -> Self {
        self.load = Some(Arc::new(load));
        self
    }

    /// The load report is that of `task`, with what probes want to know: see
    /// [`Task::probe_report`].
    #[must_use]
    pub fn task(self, task: &Task) -> Self {
        let task = task.clone();
        self.load(move || orca::encode(&task.probe_report(), Format::Binary).ok())
    }

    /// The names of services that gRPC's health may be asked for, besides the whole task (which has
    /// no name). All are as healthy as the task.
    #[must_use]
    pub fn services<I>(mut self, names: I) -> Self
    where
        I: IntoIterator<Item: Into<Box<str>>>,
    {
        self.services = names.into_iter().map(Into::into).collect();
        self
    }

    /// The answer to whoever asks for `path`; nothing if that is none of ours.
    pub fn answer(&self, path: &str) -> Option<Response<Bytes>> {
        let phase = self.life.phase();
        let (status, text) = match path {
            LIVEZ => (StatusCode::OK, "alive"),
            READYZ if phase.is_ready() => (StatusCode::OK, phase.name()),
            READYZ => (StatusCode::SERVICE_UNAVAILABLE, phase.name()),
            _ => return None,
        };
        let mut response = Response::new(Bytes::from_static(text.as_bytes()));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if phase.is_leaving() {
            let yes = HeaderValue::from_static("true");
            headers.insert(&X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL, yes);
        }
        self.report(headers);
        Some(response)
    }

    fn report(&self, headers: &mut HeaderMap) {
        if let Some((name, value)) = self.load.as_ref().and_then(|load| load()) {
            headers.insert(name, value);
        }
    }

    /// `/livez` and `/readyz`, to be merged into a router. Merge it after the layers that refuse
    /// requests, so that health is answered whatever the load.
    #[cfg(feature = "axum")]
    pub fn router<S: Clone + Send + Sync + 'static>(self) -> axum::Router<S> {
        axum::Router::new().route_service(LIVEZ, self.clone()).route_service(READYZ, self)
    }

    /// `grpc.health.v1.Health`, for tonic's `Routes` and `Server`. Add it outside of layers that
    /// refuse requests.
    #[cfg(feature = "tonic")]
    pub fn grpc(self) -> Grpc {
        grpc::service(self)
    }
}

impl<B> Service<Request<B>> for Health {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let bare = |status| {
            let mut response = Response::new(Bytes::new());
            *response.status_mut() = status;
            response
        };
        let response = match *request.method() {
            // The server leaves the body out of an answer to HEAD.
            Method::GET | Method::HEAD => {
                self.answer(request.uri().path()).unwrap_or_else(|| bare(StatusCode::NOT_FOUND))
            }
            _ => bare(StatusCode::METHOD_NOT_ALLOWED),
        };
        ready(Ok(response.map(Full::new)))
    }
}

#[cfg(test)]
mod tests;
