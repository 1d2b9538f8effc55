//! The server in tonic. Of the services whose code is at hand, that of gRPC's health checks is the
//! simplest: `Check` does the work.

use super::server::{Contender, Handler, LIMIT, Options, aimd};
use crate::Outcome;
use futures_util::Stream;
use futures_util::stream::Pending;
use std::hint::black_box;
use tidegate::Task;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;
use tonic::transport::server::Connected;
use tonic::{Request, Response, Status};
use tower::layer::util::Identity;
use tower::limit::GlobalConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::{BoxError, ServiceBuilder};

#[tonic::async_trait]
impl Health for Handler {
    async fn check(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        black_box(self.handle().await);
        let status = ServingStatus::Serving.into();
        Ok(Response::new(HealthCheckResponse { status }))
    }

    type WatchStream = Pending<Result<HealthCheckResponse, Status>>;

    async fn watch(
        &self,
        _: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        Err(Status::unimplemented("nobody watches"))
    }
}

pub(super) async fn serve(options: &Options, task: Option<Task>, listener: TcpListener) -> Outcome {
    serve_all(options, task, TcpListenerStream::new(listener)).await
}

/// Serves connections of any kind.
pub(crate) async fn serve_all<I>(
    options: &Options,
    task: Option<Task>,
    incoming: impl Stream<Item = std::io::Result<I>>,
) -> Outcome
where
    I: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
{
    let service = HealthServer::new(options.handler());
    let server = Server::builder().tcp_nodelay(true);
    let refused = |_: BoxError| BoxError::from(Status::unavailable("overloaded"));
    let shed = ServiceBuilder::new().map_err(refused).layer(LoadShedLayer::new());
    match (options.contender, task) {
        (_, Some(task)) => {
            let mut server = server.layer(task.layer());
            server.add_service(service).serve_with_incoming(incoming).await?;
        }
        (Contender::Tower | Contender::TowerYielding, _) => {
            let mut server = server.layer(shed.layer(GlobalConcurrencyLimitLayer::new(LIMIT)));
            server.add_service(service).serve_with_incoming(incoming).await?;
        }
        (Contender::Adaptive, _) => {
            let mut server = server.layer(shed.layer(aimd()?));
            server.add_service(service).serve_with_incoming(incoming).await?;
        }
        (Contender::Nothing | Contender::Layer | Contender::Tidegate, _) => {
            let mut server = server.layer(Identity::new());
            server.add_service(service).serve_with_incoming(incoming).await?;
        }
    }
    Ok(())
}
