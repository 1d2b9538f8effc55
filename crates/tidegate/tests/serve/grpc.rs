//! gRPC and HTTP in one port.

use crate::common::{Server, patient, soon, until};
use core::time::Duration;
use tidegate::health::{Health, LoadReports};
use tidegate::life::{Life, Phase};
use tidegate_wire::orca::{self, Format, OrcaLoadReport};
use tidegate_wire::proto::grpc::health::v1::HealthCheckRequest;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::xds::service::orca::v3::OrcaLoadReportRequest;
use tidegate_wire::proto::xds::service::orca::v3::open_rca_service_client::OpenRcaServiceClient;
use tonic::Code;
use tonic::service::Routes;
use tonic::transport::{Channel, Endpoint};

fn report() -> OrcaLoadReport {
    OrcaLoadReport { cpu_utilization: 0.5, rps_fractional: 10.0, ..OrcaLoadReport::default() }
}

fn routes(life: &Life) -> axum::Router {
    let health = Health::new(life.clone())
        .services(["shop.Cart"])
        .load(|| orca::encode(&report(), Format::Binary).ok());
    let reports = LoadReports::new(life.clone(), report).interval_min(Duration::from_millis(1));
    Routes::new(health.clone().grpc())
        .add_service(reports.into_service())
        .into_axum_router()
        .merge(health.router())
}

/// A server whose life the services know.
async fn start() -> Server {
    let life = patient();
    let router = routes(&life);
    let mut server = Server::with(router, |serve| serve.life(life.clone())).await;
    server.life = life;
    until(|| server.life.phase() == Phase::Serving).await;
    server
}

async fn channel(server: &Server) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://{}", server.address)).unwrap();
    soon(endpoint.connect()).await.unwrap()
}

fn of(service: &str) -> HealthCheckRequest {
    HealthCheckRequest { service: service.to_owned() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_told_in_one_port_over_both() {
    let server = start().await;
    let mut http = server.connect().await;
    let answer = http.get("/readyz").await;
    assert_eq!((answer.status, answer.body.as_str()), (200, "serving"));
    assert!(answer.head.contains("endpoint-load-metrics-bin: "), "{}", answer.head);

    let mut client = HealthClient::new(channel(&server).await);
    for (service, status) in [
        ("", Ok(ServingStatus::Serving)),
        ("shop.Cart", Ok(ServingStatus::Serving)),
        ("shop.Nothing", Err(Code::NotFound)),
    ] {
        let answer = soon(client.check(of(service))).await;
        let found =
            answer.as_ref().map(|answer| answer.get_ref().status()).map_err(tonic::Status::code);
        assert_eq!(found, status, "{service}");
        // In the trailers, of which tonic makes metadata of the answer.
        let metadata =
            answer.as_ref().map_or_else(tonic::Status::metadata, tonic::Response::metadata);
        let told = metadata.clone().into_headers();
        assert_eq!(orca::read(&told), Ok(Some(report())), "{service}");
    }
    server.life.stop();
    // The channel may meet the GOAWAY first.
    let mut client = HealthClient::new(channel(&server).await);
    let answer = soon(client.check(of(""))).await.unwrap();
    assert_eq!(answer.get_ref().status(), ServingStatus::NotServing);
    let answer = server.connect().await.get("/readyz").await;
    assert_eq!((answer.status, answer.body.as_str()), (503, "lame duck"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_watches_sees_each_change_and_does_not_hold_up_the_end() {
    let server = start().await;
    let mut client = HealthClient::new(channel(&server).await);
    let mut watch = soon(client.watch(of("shop.Cart"))).await.unwrap().into_inner();
    let mut unknown = soon(client.watch(of("shop.Nothing"))).await.unwrap().into_inner();
    let told = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(told.status(), ServingStatus::Serving);
    let told = soon(unknown.message()).await.unwrap().unwrap();
    assert_eq!(told.status(), ServingStatus::ServiceUnknown);
    server.life.stop();
    let told = soon(watch.message()).await.unwrap().unwrap();
    assert_eq!(told.status(), ServingStatus::NotServing);
    server.life.hasten();
    assert_eq!(soon(watch.message()).await.unwrap(), None);
    assert_eq!(soon(unknown.message()).await.unwrap(), None);
    let life = server.life.clone();
    server.ended().await.unwrap();
    assert_eq!(life.phase(), Phase::Gone);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reports_come_on_a_stream_until_the_end() {
    let server = start().await;
    let mut client = OpenRcaServiceClient::new(channel(&server).await);
    let request = OrcaLoadReportRequest::default();
    let mut stream = soon(client.stream_core_metrics(request)).await.unwrap().into_inner();
    for _ in 0..5 {
        assert_eq!(soon(stream.message()).await.unwrap(), Some(report()));
    }
    server.life.stop();
    assert_eq!(soon(stream.message()).await.unwrap(), Some(report()));
    server.life.hasten();
    soon(async { while stream.message().await.unwrap().is_some() {} }).await;
    server.ended().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tonics_own_server_ends_by_the_same_life() {
    let life = patient();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let incoming = tonic::transport::server::TcpIncoming::from(listener);
    life.ready();
    let running = tokio::spawn({
        let life = life.clone();
        async move {
            let server = tonic::transport::Server::builder()
                .add_service(Health::new(life.clone()).grpc())
                .serve_with_incoming_shutdown(incoming, life.draining());
            life.bound(server).await
        }
    });
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(soon(endpoint.connect()).await.unwrap());
    let mut watch = soon(client.watch(of(""))).await.unwrap().into_inner();
    for (act, status) in
        [(None, ServingStatus::Serving), (Some(Life::stop), ServingStatus::NotServing)]
    {
        if let Some(act) = act {
            act(&life);
        }
        assert_eq!(soon(watch.message()).await.unwrap().unwrap().status(), status);
    }
    life.hasten();
    assert_eq!(soon(watch.message()).await.unwrap(), None);
    assert!(soon(running).await.unwrap().unwrap().is_ok());
    assert_eq!(life.phase(), Phase::Gone);
}
