//! tonic, with a real client.

use crate::support::{self, Client, Version, hello, idle, say_dont_retry};
use futures_util::StreamExt;
use futures_util::stream::BoxStream;
use std::net::SocketAddr;
use tidegate::report::{LoadReports, When};
use tidegate::{Criticality, Task, context};
use tidegate_core::fleet::Limits;
use tidegate_core::levels::Levels;
use tidegate_wire::orca;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tonic::metadata::MetadataMap;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

/// Answers as it is told to by the name of the service that it is asked about.
struct Told;

#[tonic::async_trait]
impl Health for Told {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        match request.into_inner().service.as_str() {
            "fail" => Err(Status::internal("broken")),
            "below" => {
                context::overloaded_below();
                Err(Status::unavailable("they said no"))
            }
            "panic" => std::panic::resume_unwind(Box::new("on purpose")),
            "forever" => std::future::pending().await,
            _ => Ok(Response::new(HealthCheckResponse { status: context::criticality() as i32 })),
        }
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let below = request.into_inner().service == "below";
        let stream = futures_util::stream::repeat_with(move || {
            assert!(context::is_request(), "a stream is part of its request");
            Ok(HealthCheckResponse { status: 1 })
        });
        if below {
            let refused = futures_util::stream::once(async {
                context::overloaded_below();
                Err(Status::unavailable("they said no"))
            });
            return Ok(Response::new(stream.take(2).chain(refused).boxed()));
        }
        Ok(Response::new(stream.boxed()))
    }
}

async fn serve(task: &Task) -> HealthClient<Channel> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address: SocketAddr = listener.local_addr().unwrap();
    let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener);
    let server = Server::builder().layer(task.layer()).add_service(HealthServer::new(Told));
    tokio::spawn(server.serve_with_incoming(incoming));
    let endpoint = Endpoint::from_shared(format!("http://{address}")).unwrap();
    HealthClient::new(endpoint.connect().await.unwrap())
}

fn ask(service: &str) -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest { service: service.to_owned() })
}

fn pushback(status: &Status) -> Option<&str> {
    status.metadata().get("grpc-retry-pushback-ms").map(|value| value.to_str().unwrap())
}

fn report(metadata: &MetadataMap) -> orca::OrcaLoadReport {
    orca::read(&metadata.clone().into_headers()).unwrap().expect("a report")
}

#[tokio::test]
async fn calls_are_served_with_their_criticality_and_a_report() {
    let task = Task::builder("test").build().unwrap();
    let mut client = serve(&task).await;
    let mut request = ask("");
    request.metadata_mut().insert("baggage", "criticality=SHEDDABLE".parse().unwrap());
    let answer = client.check(request).await.unwrap();
    assert_eq!(answer.get_ref().status, Criticality::Sheddable as i32);
    assert!(report(answer.metadata()).request_cost["cpu"] > 0.0);
    idle(&task).await;
    assert_eq!(task.gate().counts().completed(), 1);
}

#[tokio::test]
async fn what_a_call_has_cost_may_be_for_those_who_ask() {
    let reports = LoadReports::default().cost(When::Asked);
    let task = Task::builder("test").load_reports(reports).build().unwrap();
    let mut client = serve(&task).await;
    let answer = client.check(ask("")).await.unwrap();
    assert!(report(answer.metadata()).request_cost.is_empty());
    let mut request = ask("");
    request.metadata_mut().insert("endpoint-load-metrics-format", "BIN".parse().unwrap());
    let answer = client.check(request).await.unwrap();
    assert!(report(answer.metadata()).request_cost["cpu"] > 0.0);
}

#[tokio::test]
async fn each_reason_has_its_status() {
    type Case<'a> = (&'a str, &'a dyn Fn(&Task), Code, Option<&'a str>, &'a str);
    let shut = |task: &Task| task.gate().set_levels(Levels::CLOSED);
    let cases: [Case<'_>; 4] = [
        ("elsewhere", &shut, Code::Unavailable, None, "overloaded"),
        ("don't", &say_dont_retry, Code::ResourceExhausted, Some("-1"), "overloaded"),
        (
            "quota",
            &|task| task.set_default_limits(Limits::ZERO),
            Code::ResourceExhausted,
            Some("-1"),
            "out_of_quota",
        ),
        ("lame duck", &|task| task.set_lame_duck(true), Code::Unavailable, None, "lame_duck"),
    ];
    for (name, set, code, push, reason) in cases {
        let task = Task::builder("test").build().unwrap();
        let mut client = serve(&task).await;
        set(&task);
        let status = client.check(ask("")).await.unwrap_err();
        assert_eq!((status.code(), pushback(&status)), (code, push), "{name}");
        assert_eq!(status.metadata().get("x-tidegate-reason").unwrap(), reason, "{name}");
        assert_eq!(status.details().is_empty(), reason != "out_of_quota", "{name}");
        // The connection is as good as before.
        task.set_lame_duck(false);
        task.set_default_limits(Limits::UNLIMITED);
        task.gate().set_levels(Levels::OPEN);
        assert!(client.check(ask("")).await.is_ok(), "{name}");
    }
}

/// Without tonic, which has timers of its own for deadlines, in its client and its server.
#[tokio::test]
async fn a_deadline_that_has_passed_is_said_so() {
    let task = Task::builder("test").build().unwrap();
    let mut client = Client::connect(support::serve(hello(&task)).await, Version::H2c).await;
    let headers = [("content-type", "application/grpc"), ("grpc-timeout", "0m")];
    let answer = client.get("/", &headers).await;
    assert_eq!((answer.status().as_u16(), answer.body().as_str()), (200, ""));
    for (name, value) in [
        ("content-type", "application/grpc"),
        ("grpc-status", "4"),
        ("x-tidegate-reason", "deadline_passed"),
    ] {
        assert_eq!(answer.headers()[name], value);
    }
}

#[tokio::test]
async fn failures_are_counted_and_those_from_below_become_dont_retry() {
    let task = Task::builder("test").build().unwrap();
    let mut client = serve(&task).await;
    let status = client.check(ask("fail")).await.unwrap_err();
    assert_eq!((status.code(), pushback(&status)), (Code::Internal, None));
    assert!(orca::read(&status.metadata().clone().into_headers()).unwrap().is_some());
    let status = client.check(ask("below")).await.unwrap_err();
    assert_eq!((status.code(), pushback(&status)), (Code::ResourceExhausted, Some("-1")));
    assert_eq!(status.message(), "they said no");
    idle(&task).await;
    let snapshot = task.snapshot();
    assert_eq!((snapshot.failed, snapshot.overloaded_below), (1, 1));

    // In the trailers of a stream that had begun.
    let mut stream = client.watch(ask("below")).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    assert!(stream.message().await.unwrap().is_some());
    let status = stream.message().await.unwrap_err();
    assert_eq!((status.code(), pushback(&status)), (Code::ResourceExhausted, Some("-1")));
    idle(&task).await;
    assert_eq!(task.snapshot().overloaded_below, 2);
}

#[tokio::test]
async fn however_a_call_ends_its_permit_comes_back_once() {
    let task = Task::builder("test").build().unwrap();
    let mut client = serve(&task).await;
    for _ in 0..3 {
        // A stream that nobody reads to its end is reset.
        let mut stream = client.watch(ask("")).await.unwrap().into_inner();
        assert!(stream.message().await.unwrap().is_some());
        assert_eq!(task.gate().counts().inflight(), 1);
        drop(stream);
        idle(&task).await;
        let mut other = client.clone();
        let call = tokio::spawn(async move { other.check(ask("forever")).await });
        while task.gate().counts().inflight() == 0 {
            tokio::task::yield_now().await;
        }
        call.abort();
        idle(&task).await;
        assert!(client.check(ask("panic")).await.is_err());
        idle(&task).await;
        assert!(client.check(ask("")).await.is_ok());
        idle(&task).await;
    }
    assert_eq!(task.gate().counts().completed(), 12);
}
