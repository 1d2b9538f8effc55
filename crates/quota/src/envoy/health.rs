//! `grpc.health.v1` of a quota server: whether it leads.
//!
//! Envoys cannot be sent from one server to another, so they are given all of them and have to find
//! the one that leads: it is the only one that says `SERVING`. Whoever does not lead is no less
//! well, but nothing can be had from it by those who ask for health. A leader whose lease is over
//! stops saying so by its own clock, as it stops everything else.

use crate::server::Inner;
use crate::server::seat::Seat;
use core::pin::Pin;
use core::time::Duration;
use futures_util::stream::{self, Stream};
use std::sync::Arc;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_server::{Health, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep;
use tonic::{Request, Response, Status};

/// Who watches looks so often: a change is seen in a fraction of the shortest lease.
const LOOK: Duration = Duration::from_millis(250);
/// Streams that watch; Envoy asks again and again instead.
const STREAMS_MAX: usize = 1_024;

/// Says whether this server leads.
#[derive(Debug)]
pub(crate) struct Answers {
    seat: Arc<Seat>,
    streams: Arc<Semaphore>,
}

pub(crate) fn service(inner: &Arc<Inner>) -> HealthServer<Answers> {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    HealthServer::new(Answers { seat: Arc::clone(&inner.seat), streams })
}

fn status(seat: &Seat) -> ServingStatus {
    if seat.check().is_ok() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

const fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

/// Who leads does so for all services, and all protocols.
fn is_whole(service: &str) -> Result<(), Status> {
    if service.is_empty() {
        return Ok(());
    }
    Err(Status::not_found("no such service: ask for the whole server, by no name"))
}

#[tonic::async_trait]
impl Health for Answers {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        is_whole(&request.get_ref().service)?;
        Ok(Response::new(response(status(&self.seat))))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        is_whole(&request.get_ref().service)?;
        let permit = Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many watch already"))?;
        let watch = Watch { seat: Arc::clone(&self.seat), told: None, _permit: permit };
        let stream = stream::unfold(watch, |mut watch| async {
            let status = watch.next().await;
            Some((Ok(response(status)), watch))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// One who watches.
struct Watch {
    seat: Arc<Seat>,
    told: Option<ServingStatus>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    async fn next(&mut self) -> ServingStatus {
        loop {
            let found = status(&self.seat);
            if self.told.replace(found) != Some(found) {
                return found;
            }
            sleep(LOOK).await;
        }
    }
}
