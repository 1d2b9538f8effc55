//! A plain server on tonic, spoken to by generated clients.

use super::{generous, ticks};
use core::pin::Pin;
use futures_util::{Stream, StreamExt, stream};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tidegate::client::{self, Balance, Discovery, Layer};
use tidegate_core::Criticality;
use tidegate_core::balance::{PickReason, WeightedConfig};
use tidegate_wire::orca::OrcaLoadReport;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tidegate_wire::proto::xds::service::orca::v3::OrcaLoadReportRequest;
use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_server::{
    OpenRcaService, OpenRcaServiceServer,
};
use tokio::net::TcpListener;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Response, Status};
use tower_layer::Layer as _;

type Messages<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Refuses the first call for each name in the way that the name says.
#[derive(Clone, Default)]
struct Backend {
    /// By name, which attempt each call said that it was.
    calls: Arc<Mutex<BTreeMap<String, Vec<String>>>>,
    utilization: f64,
}

impl Backend {
    fn note(&self, request: &Request<HealthCheckRequest>) -> usize {
        let attempt = request.metadata().get("grpc-previous-rpc-attempts");
        let attempt = attempt.map_or("none", |value| value.to_str().unwrap()).to_owned();
        assert_eq!(request.metadata().get("x-criticality").unwrap(), "SHEDDABLE_PLUS");
        let mut calls = self.calls.lock().unwrap();
        let calls = calls.entry(request.get_ref().service.clone()).or_default();
        calls.push(attempt);
        calls.len()
    }

    fn calls(&self, name: &str) -> Vec<String> {
        self.calls.lock().unwrap().get(name).cloned().unwrap_or_default()
    }
}

fn refusal(name: &str) -> Option<Status> {
    let pushback = |mut status: Status, value: &'static str| {
        status.metadata_mut().insert("grpc-retry-pushback-ms", value.parse().unwrap());
        status
    };
    Some(match name {
        "busy" | "always-busy" => Status::unavailable("try another"),
        "exhausted" => Status::resource_exhausted("quota"),
        "pushback" => pushback(Status::resource_exhausted("later"), "1"),
        "dont" => pushback(Status::unavailable("don't"), "-1"),
        "internal" => Status::internal("bug"),
        _ => return None,
    })
}

#[tonic::async_trait]
impl Health for Backend {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let visit = self.note(&request);
        let name = &request.get_ref().service;
        match refusal(name) {
            Some(status) if visit == 1 || name.starts_with("always") => Err(status),
            _ => Ok(Response::new(HealthCheckResponse { status: 1 })),
        }
    }

    type WatchStream = Messages<HealthCheckResponse>;

    /// One message, and then a refusal in the trailers.
    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        self.note(&request);
        let first = Ok(HealthCheckResponse { status: 1 });
        let end = refusal(&request.get_ref().service).map(Err);
        Ok(Response::new(stream::iter([Some(first), end].into_iter().flatten()).boxed()))
    }
}

#[tonic::async_trait]
impl OpenRcaService for Backend {
    type StreamCoreMetricsStream = Messages<OrcaLoadReport>;

    async fn stream_core_metrics(
        &self,
        _: Request<OrcaLoadReportRequest>,
    ) -> Result<Response<Self::StreamCoreMetricsStream>, Status> {
        let report = OrcaLoadReport {
            rps_fractional: 100.0,
            application_utilization: self.utilization,
            ..OrcaLoadReport::default()
        };
        Ok(Response::new(stream::iter([Ok(report)]).chain(stream::pending()).boxed()))
    }
}

async fn serve(backend: Backend) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = stream::unfold(listener, |listener| async {
        let accepted = listener.accept().await.map(|(stream, _)| stream);
        Some((accepted, listener))
    });
    let server = tonic::transport::Server::builder()
        .add_service(HealthServer::new(backend.clone()))
        .add_service(OpenRcaServiceServer::new(backend));
    tokio::spawn(async move { server.serve_with_incoming(incoming).await });
    address
}

fn ask(name: &str) -> Request<HealthCheckRequest> {
    let mut request = Request::new(HealthCheckRequest { service: name.to_owned() });
    request.extensions_mut().insert(Criticality::SheddablePlus);
    request
}

#[tokio::test]
async fn a_generated_client_retries_as_it_is_told() {
    let backend = Backend::default();
    let address = serve(backend.clone()).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let layer = generous("health");
    let mut client = HealthClient::new(layer.layer(channel));
    client.check(ask("fine")).await.unwrap();
    ticks().await;
    for (name, code, attempts) in [
        ("busy", Code::Ok, &["none", "1"][..]),
        ("pushback", Code::Ok, &["none", "1"]),
        ("exhausted", Code::ResourceExhausted, &["none"]),
        ("dont", Code::Unavailable, &["none"]),
        ("internal", Code::Internal, &["none"]),
        ("always-busy", Code::Unavailable, &["none", "1", "2"]),
    ] {
        let found = client.check(ask(name)).await.map_or_else(|status| status.code(), |_| Code::Ok);
        assert_eq!(found, code, "{name}");
        assert_eq!(backend.calls(name), attempts, "{name}");
    }
    assert_eq!(layer.counts().retries.retries, 4);
}

#[tokio::test]
async fn a_stream_that_fails_in_its_trailers_is_counted_and_not_retried() {
    let backend = Backend::default();
    let address = serve(backend.clone()).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let layer = generous("health");
    let mut client = HealthClient::new(layer.layer(channel));
    client.check(ask("fine")).await.unwrap();
    ticks().await;
    let counts = || layer.counts().attempts[Criticality::SheddablePlus.index()];
    let mut stream = client.watch(ask("busy")).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    assert_eq!((counts().accepted, counts().refused), (1, 0));
    assert_eq!(stream.message().await.unwrap_err().code(), Code::Unavailable);
    assert_eq!((counts().accepted, counts().refused), (1, 1));
    assert_eq!(backend.calls("busy"), ["none"]);
}

/// What is throttled arrives as the status that the backend would have given, and the backend hears
/// nothing of it.
#[tokio::test]
async fn a_throttled_call_is_a_status() {
    let backend = Backend::default();
    let address = serve(backend.clone()).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect_lazy();
    let layer = Layer::builder("health").seed(2).build();
    let mut client = HealthClient::new(layer.layer(channel));
    for _ in 0..200 {
        client.check(ask("always-busy")).await.unwrap_err();
    }
    ticks().await;
    let mut local = 0;
    for _ in 0..100 {
        let before = backend.calls("always-busy").len();
        let status = client.check(ask("always-busy")).await.unwrap_err();
        if status.code() == Code::ResourceExhausted {
            local += 1;
            assert_eq!(status.metadata().get("grpc-retry-pushback-ms").unwrap(), "-1");
            assert_eq!(status.metadata().get("x-tidegate-reason").unwrap(), "throttled");
            assert_eq!(backend.calls("always-busy").len(), before);
        }
    }
    // 200 requests, nothing accepted, 20 allowed: p = 180/201.
    assert!((75..=99).contains(&local), "{local}");
}

#[tokio::test]
async fn a_balancer_of_channels_passes_over_the_dead() {
    let backends = [Backend::default(), Backend::default()];
    let closed = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut addresses = vec![closed.local_addr().unwrap()];
    drop(closed);
    for backend in &backends {
        addresses.push(serve(backend.clone()).await);
    }
    let balancer = client::tonic::balancer(Discovery::list(addresses), |endpoint| endpoint);
    let layer = generous("health");
    let mut client = HealthClient::new(layer.layer(balancer.seed(3).build().unwrap()));
    let _ = client.check(ask("fine")).await;
    ticks().await;
    for _ in 0..50 {
        client.check(ask("fine")).await.unwrap();
    }
    let calls = backends.map(|backend| backend.calls("fine").len());
    assert!(calls.iter().all(|&n| n >= 15), "{calls:?}");
}

/// Weights come from the stream alone: answers carry no reports.
#[tokio::test]
async fn reports_come_on_a_stream() {
    let backends = [0.25, 0.75].map(|utilization| Backend { utilization, ..Backend::default() });
    let mut addresses = Vec::new();
    for backend in &backends {
        addresses.push(serve(backend.clone()).await);
    }
    let mut config = WeightedConfig::default();
    config.blackout = Duration::ZERO;
    let balancer = client::tonic::balancer(Discovery::list(addresses), |endpoint| endpoint)
        .balance(Balance::Weighted(config))
        .reporter(client::tonic::StreamReporter::default())
        .build()
        .unwrap();
    let mut client = HealthClient::new(generous("health").layer(balancer.clone()));
    let weighted = || balancer.counts().picks[PickReason::Weighted as usize];
    // Each turn is some requests and half a second of the keeper's; the stream needs a few.
    for _ in 0..100 {
        client.check(ask("fine")).await.unwrap();
        if weighted() > 0 {
            break;
        }
        ticks().await;
    }
    let before = backends.each_ref().map(|backend| backend.calls("fine").len());
    for _ in 0..40 {
        client.check(ask("fine")).await.unwrap();
    }
    let after = backends.each_ref().map(|backend| backend.calls("fine").len());
    // 100/0.25 to 100/0.75: three to one.
    let got = [after[0] - before[0], after[1] - before[1]];
    assert!(weighted() >= 40 && (29..=31).contains(&got[0]), "{got:?}");
}
