//! tonic: one line around a channel.
//!
//! ```no_run
//! use tidegate::client;
//! use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
//! // One address.
//! let channel = tonic::transport::Endpoint::from_static("http://inventory:50051").connect_lazy();
//! let health = HealthClient::new(client::tonic::protect("inventory", channel));
//!
//! // Whatever the name resolves to, balanced.
//! let discovery = client::Discovery::dns("inventory:50051");
//! let balancer = client::tonic::balancer(discovery, |endpoint| endpoint).build()?;
//! let health = HealthClient::new(client::tonic::protect("inventory", balancer));
//! # Ok(())
//! # }
//! ```
//!
//! What the layer refuses arrives at callers as the `tonic::Status` that a backend would have
//! refused it with.

use super::balancer::{BalancerBuilder, Discovery, Endpoint, Reporter, Reports};
use super::error::{BoxError, Throttled};
use super::layer::Layer;
use super::replay::recorded;
use super::service::Service;
use ::tonic::body::Body;
use ::tonic::client::GrpcService;
use ::tonic::transport::{self, Channel};
use bytes::Bytes;
use core::time::Duration;
use futures_util::future::BoxFuture;
use http::Version;
use tidegate_wire::proto::xds::service::orca::v3::OrcaLoadReportRequest;
use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_client::OpenRcaServiceClient;
use tidegate_wire::protocol::Protocol;
use tower_layer::Layer as _;

recorded!(Body, Body::new, []);

/// Throttle, retries and propagation around `channel`, for the backend service of this name.
pub fn protect<C>(service: &str, channel: C) -> Service<C> {
    Layer::new(service).layer(channel)
}

/// A balancer over lazy channels to whatever `discovery` finds. Addresses without a scheme are
/// spoken to in plain HTTP/2; `configure` has a last word on each (TLS, origin, windows).
pub fn balancer(
    discovery: Discovery,
    configure: impl Fn(transport::Endpoint) -> transport::Endpoint + Send + Sync + 'static,
) -> BalancerBuilder<Channel> {
    super::Balancer::builder(discovery, move |endpoint: &Endpoint| {
        let address = endpoint.address();
        let uri =
            if address.contains("://") { address.to_owned() } else { format!("http://{address}") };
        let endpoint = transport::Endpoint::from_shared(uri)?;
        Ok::<_, transport::Error>(configure(endpoint).connect_lazy())
    })
}

impl From<&Throttled> for ::tonic::Status {
    /// What a backend would have said.
    fn from(throttled: &Throttled) -> Self {
        let answer = throttled.respond(Protocol::Grpc, Version::HTTP_2);
        Self::from_header_map(answer.headers())
            .unwrap_or_else(|| Self::resource_exhausted(throttled.to_string()))
    }
}

/// Asks each endpoint for its load reports on a stream (`OpenRcaService`), besides those that come
/// with answers.
#[derive(Debug, Clone, Copy)]
pub struct StreamReporter {
    interval: Duration,
}

impl StreamReporter {
    /// A report in every interval. Weights are made anew every second; servers may report less
    /// often than asked.
    pub const fn every(interval: Duration) -> Self {
        Self { interval }
    }
}

impl Default for StreamReporter {
    /// Every ten seconds: a client that sends more than a request in that time hears more from the
    /// answers anyway.
    fn default() -> Self {
        Self::every(Duration::from_secs(10))
    }
}

impl<S> Reporter<S> for StreamReporter
where
    S: GrpcService<Body> + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    S::ResponseBody: http_body::Body<Data = Bytes> + Send + 'static,
    <S::ResponseBody as http_body::Body>::Error: Into<BoxError> + Send,
{
    fn watch(&self, _: &Endpoint, service: S, reports: Reports) -> BoxFuture<'static, ()> {
        let mut client = OpenRcaServiceClient::new(service);
        let request = OrcaLoadReportRequest {
            report_interval: self.interval.try_into().ok(),
            ..OrcaLoadReportRequest::default()
        };
        Box::pin(async move {
            let Ok(stream) = client.stream_core_metrics(request).await else { return };
            let mut stream = stream.into_inner();
            while let Ok(Some(report)) = stream.message().await {
                reports.put(&report);
            }
        })
    }
}
