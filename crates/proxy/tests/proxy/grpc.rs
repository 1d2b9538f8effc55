//! gRPC through the proxy, with trailers and streams.

use crate::support::{ANY, Running, config};
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming};

struct Service;

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "none" => Err(Status::not_found("no such service")),
            _ => Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() })),
        }
    }

    type WatchStream = tokio_stream::Iter<std::vec::IntoIter<Result<HealthCheckResponse, Status>>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let answer = HealthCheckResponse { status: ServingStatus::Serving.into() };
        let mut answers = vec![Ok(answer); 100];
        answers.push(Err(Status::aborted("enough")));
        Ok(Response::new(tokio_stream::iter(answers)))
    }
}

async fn connect() -> (Running, HealthClient<tonic::transport::Channel>) {
    let listener = tokio::net::TcpListener::bind(ANY).await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tonic::transport::Server::builder().add_service(HealthServer::new(Service));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let proxy = Running::start(config(address));
    let channel = tonic::transport::Channel::from_shared(format!("http://{}", proxy.address()));
    (proxy, HealthClient::new(channel.unwrap().connect().await.unwrap()))
}

#[tokio::test]
async fn calls_and_their_statuses_pass() {
    let (proxy, mut client) = connect().await;
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    // Our word on how the program is doing rides along.
    assert!(answer.metadata().get_bin("endpoint-load-metrics-bin").is_some());
    assert_eq!(answer.into_inner().status(), ServingStatus::Serving);
    let none = HealthCheckRequest { service: "none".to_owned() };
    let status = client.check(none).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "no such service"));
    let snapshot = proxy.get().task().snapshot();
    assert_eq!((snapshot.requests.completed(), snapshot.failed), (2, 0));
}

#[tokio::test]
async fn streams_pass_to_their_last_word() {
    let (proxy, mut client) = connect().await;
    let mut stream: Streaming<HealthCheckResponse> =
        client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    let mut count = 0;
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => count += 1,
            Ok(None) => panic!("it ends with a status"),
            Err(status) => break status,
        }
    };
    assert_eq!((count, status.code(), status.message()), (100, Code::Aborted, "enough"));
    assert_eq!(proxy.get().task().gate().counts().inflight(), 0);
}

#[tokio::test]
async fn a_lame_duck_says_unavailable() {
    let (proxy, mut client) = connect().await;
    client.check(HealthCheckRequest::default()).await.unwrap();
    proxy.get().task().set_lame_duck(true);
    let status = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(status.metadata().get("x-tidegate-reason").unwrap(), "lame_duck");
}
