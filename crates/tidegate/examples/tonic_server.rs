//! A tonic server behind a gate, and a client that sees its answers.
//!
//! `cargo run -p tidegate --example tonic_server` serves gRPC's health service, calls it, and shows
//! what is on the wire: the load report of an answer, a refusal that may be retried, and what
//! becomes of a failure for which a dependency is to blame.
//!
//! ```text
//! served:   Serving, request_cost.cpu = 0.000112 s
//! refused:  Unavailable, overloaded, pushback none
//! below:    ResourceExhausted, overloaded, pushback -1
//! ```

use futures_util::stream::BoxStream;
use std::error::Error;
use tidegate::{Task, context};
use tidegate_core::levels::Levels;
use tidegate_wire::orca;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_client::HealthClient;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Request, Response, Status};

struct Service;

#[tonic::async_trait]
impl Health for Service {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if request.get_ref().service == "dependency" {
            // A client layer says this when it gives up on a backend. The handler does not have to
            // know, and fails as it always would.
            context::overloaded_below();
            return Err(Status::unavailable("the dependency said no"));
        }
        Ok(Response::new(HealthCheckResponse { status: ServingStatus::Serving.into() }))
    }

    type WatchStream = BoxStream<'static, Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("ask"))
    }
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "that is what it is for")]
async fn main() -> Result<(), Box<dyn Error>> {
    let task = Task::builder("example").build()?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr()?))?;
    let server = Server::builder().layer(task.layer()).add_service(HealthServer::new(Service));
    tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let mut client = HealthClient::new(endpoint.connect().await?);

    let answer = client.check(HealthCheckRequest::default()).await?;
    let report = orca::read(&answer.metadata().clone().into_headers())?.unwrap_or_default();
    let cost = report.request_cost.get("cpu").copied().unwrap_or_default();
    println!("served:   {:?}, request_cost.cpu = {cost:.6} s", answer.get_ref().status());

    task.gate().set_levels(Levels::CLOSED);
    print("refused: ", client.check(HealthCheckRequest::default()).await);
    task.gate().set_levels(Levels::OPEN);
    print("below:   ", ask_dependency(&mut client).await);
    Ok(())
}

async fn ask_dependency(
    client: &mut HealthClient<Channel>,
) -> Result<Response<HealthCheckResponse>, Status> {
    client.check(HealthCheckRequest { service: "dependency".to_owned() }).await
}

#[expect(clippy::print_stdout, reason = "that is what it is for")]
fn print(what: &str, answer: Result<Response<HealthCheckResponse>, Status>) {
    let Err(status) = answer else { return println!("{what} served") };
    let text = |name| {
        let value = status.metadata().get(name).and_then(|value| value.to_str().ok());
        value.unwrap_or("none")
    };
    let (reason, pushback) = (text("x-tidegate-reason"), text("grpc-retry-pushback-ms"));
    println!("{what} {:?}, {reason}, pushback {pushback}", status.code());
}
