//! What policies live on besides outcomes: load reports on a stream, and probes.
//!
//! Reports come with answers anyway. A client that sends little hears little, and weighs its
//! backends by old news; then a [`Reporter`] asks for reports on a stream. Prequal asks a few
//! backends along with every request how much they have to do, by a [`Prober`].

use super::Endpoint;
use super::gates::Member;
use core::fmt;
use core::future::poll_fn;
use core::marker::PhantomData;
use core::time::Duration;
use futures_util::future::BoxFuture;
use http::{Request, Response};
use std::sync::Arc;
use tidegate_core::balance::{LoadReport, ProbeAnswer};
use tidegate_wire::orca;

pub use crate::report::{METRIC_LATENCY, METRIC_RIF};

/// Takes reports of one endpoint.
#[derive(Clone)]
pub struct Reports(Arc<Member>);

impl Reports {
    pub(super) const fn new(member: Arc<Member>) -> Self {
        Self(member)
    }

    /// The endpoint reports this. The newest counts. A report with a number that is none is
    /// dropped and counted.
    pub fn put(&self, report: &orca::OrcaLoadReport) {
        if report.check().is_ok() {
            self.0.report.put(&LoadReport::from(report));
        } else {
            self.0.bad_report();
        }
    }

    /// Whether the endpoint serves, as health checks say. One that does not gets no requests, as if
    /// it were a lame duck, until it does; with no other left it gets them all the same.
    pub fn serves(&self, serves: bool) {
        self.0.set_unwell(!serves);
    }
}

impl fmt::Debug for Reports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reports").field(&self.0.id).finish()
    }
}

/// Gets load reports, or checks health, out of band.
pub trait Reporter<S>: Send + Sync + 'static {
    /// Tells `reports` whatever `endpoint` reports, for as long as that goes well. It is called
    /// again a while after it has ended, and dropped when the endpoint leaves.
    fn watch(&self, endpoint: &Endpoint, service: S, reports: Reports) -> BoxFuture<'static, ()>;
}

/// Asks an endpoint how much it has to do.
pub trait Prober<S>: Send + Sync + 'static {
    /// What `endpoint` answers; nothing if it does not.
    fn probe(&self, endpoint: &Endpoint, service: S) -> BoxFuture<'static, Option<ProbeAnswer>>;
}

/// Probes by a `GET`, best of something that costs the backend next to nothing: `/readyz`. `B` is
/// the type of request bodies that the endpoints' services take; probes have an empty one.
///
/// The answer is read from the load report that it carries: its named metrics [`METRIC_RIF`] and
/// [`METRIC_LATENCY`]. An answer without the first is none. Where a tidegate serves, `/readyz` has
/// them once [`Health::task`](crate::health::Health::task) has said of which task.
#[derive(Debug)]
pub struct HttpProber<B> {
    uri: http::Uri,
    body: PhantomData<fn() -> B>,
}

impl<B: Default> HttpProber<B> {
    /// Asks for `uri`. The endpoint's service has to know where to send it.
    pub const fn new(uri: http::Uri) -> Self {
        Self { uri, body: PhantomData }
    }
}

impl<S, B, RB> Prober<S> for HttpProber<B>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    B: Default + Send + 'static,
    RB: Send + 'static,
{
    fn probe(&self, _: &Endpoint, mut service: S) -> BoxFuture<'static, Option<ProbeAnswer>> {
        let mut request = Request::new(B::default());
        *request.uri_mut() = self.uri.clone();
        super::ask_for_report(request.headers_mut());
        Box::pin(async move {
            poll_fn(|cx| service.poll_ready(cx)).await.ok()?;
            let response = service.call(request).await.ok()?;
            answer(&orca::read(response.headers()).ok()??)
        })
    }
}

fn answer(report: &orca::OrcaLoadReport) -> Option<ProbeAnswer> {
    let metric = |name| report.named_metrics.get(name).copied();
    let latency = metric(METRIC_LATENCY).unwrap_or(0.0);
    Some(ProbeAnswer {
        // Saturates; a report's numbers are finite and not negative.
        rif: metric(METRIC_RIF)? as u32,
        latency: Duration::try_from_secs_f64(latency).ok()?,
    })
}
