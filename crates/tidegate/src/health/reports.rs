//! Load reports on a stream: `xds.service.orca.v3.OpenRcaService`.
//!
//! A client says how often it wants a report and which costs in it. How often is bounded from
//! below, or a thousand clients that ask for a report every millisecond are a load of their own.
//! The first report comes at once. A report with a number that is none is left out: gRPC and Envoy
//! would drop it, and what they had before with it. Streams end when the task drains.

use super::STREAMS_MAX;
use crate::life::{Life, Phase};
use core::fmt;
use core::pin::Pin;
use core::time::Duration;
use futures_util::stream::{self, Stream};
use std::collections::BTreeSet;
use std::sync::Arc;
use tidegate_wire::orca::OrcaLoadReport;
use tidegate_wire::proto::xds::service::orca::v3::OrcaLoadReportRequest;
use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_server::{
    OpenRcaService, OpenRcaServiceServer,
};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

/// Weights are computed once a second (gRPC A58), so whoever hears more often learns nothing.
const INTERVAL_MIN: Duration = Duration::from_secs(1);

/// How many names of costs one client may ask for: what a report has is a handful.
const NAMES_MAX: usize = 64;

type Report = Arc<dyn Fn() -> OrcaLoadReport + Send + Sync>;

/// Streams of load reports.
#[derive(Clone)]
pub struct LoadReports {
    life: Life,
    report: Report,
    interval_min: Duration,
    streams: Arc<Semaphore>,
}

impl fmt::Debug for LoadReports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { interval_min, streams, .. } = self;
        f.debug_struct("LoadReports")
            .field("interval_min", interval_min)
            .field("streams_left", &streams.available_permits())
            .finish_non_exhaustive()
    }
}

impl LoadReports {
    /// Reports of the task that lives this life.
    pub fn new(life: Life, report: impl Fn() -> OrcaLoadReport + Send + Sync + 'static) -> Self {
        Self {
            life,
            report: Arc::new(report),
            interval_min: INTERVAL_MIN,
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }

    /// No client gets reports more often than this; a second if not said. It is also what clients
    /// get that do not say how often.
    #[must_use]
    pub const fn interval_min(mut self, interval_min: Duration) -> Self {
        self.interval_min = interval_min;
        self
    }

    /// How many streams there may be at once; 10,000 if not said.
    #[must_use]
    pub fn streams_max(mut self, streams_max: usize) -> Self {
        self.streams = Arc::new(Semaphore::new(streams_max.min(Semaphore::MAX_PERMITS)));
        self
    }

    /// As a service, for tonic's `Routes` and `Server`.
    pub fn into_service(self) -> OpenRcaServiceServer<Self> {
        OpenRcaServiceServer::new(self)
    }
}

#[tonic::async_trait]
impl OpenRcaService for LoadReports {
    type StreamCoreMetricsStream =
        Pin<Box<dyn Stream<Item = Result<OrcaLoadReport, Status>> + Send + 'static>>;

    async fn stream_core_metrics(
        &self,
        request: Request<OrcaLoadReportRequest>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        let request = request.into_inner();
        if request.request_cost_names.len() > NAMES_MAX {
            return Err(Status::invalid_argument("more than 64 names of costs"));
        }
        let permit = Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many streams of load reports"))?;
        // A negative interval is none.
        let wanted = request.report_interval.and_then(|wanted| Duration::try_from(wanted).ok());
        let reporting = Reporting {
            life: self.life.clone(),
            report: Arc::clone(&self.report),
            interval: wanted.unwrap_or_default().max(self.interval_min),
            costs: request.request_cost_names.into_iter().collect(),
            begun: false,
            _permit: permit,
        };
        let stream = stream::unfold(reporting, |mut reporting| async {
            let report = reporting.next().await?;
            Some((Ok(report), reporting))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// One who listens.
struct Reporting {
    life: Life,
    report: Report,
    interval: Duration,
    /// Which costs to tell; all if there are none.
    costs: BTreeSet<String>,
    begun: bool,
    _permit: OwnedSemaphorePermit,
}

impl Reporting {
    async fn next(&mut self) -> Option<OrcaLoadReport> {
        loop {
            if self.begun {
                // Not by ticks: one who reads slowly is to get fewer reports, not a burst of them.
                let wait = tokio::time::sleep(self.interval);
                tokio::select! {
                    () = wait => {}
                    () = self.life.draining() => return None,
                }
            } else if self.life.phase() >= Phase::Draining {
                return None;
            }
            self.begun = true;
            let mut report = (self.report)();
            if !self.costs.is_empty() {
                report.request_cost.retain(|name, _| self.costs.contains(name));
            }
            if report.check().is_ok() {
                return Some(report);
            }
        }
    }
}
