//! `grpc.health.v1`.
//!
//! Watch tells the status at once and then each change of it. The streams end when the task drains:
//! otherwise they would be in flight until the limit.

use super::trailer::WithLoad;
use super::{Health, STREAMS_MAX};
use crate::life::Phase;
use core::pin::Pin;
use futures_util::stream::{self, Stream};
use std::sync::Arc;
use tidegate_wire::proto::grpc::health::v1::health_check_response::ServingStatus;
use tidegate_wire::proto::grpc::health::v1::health_server::{self, HealthServer};
use tidegate_wire::proto::grpc::health::v1::{HealthCheckRequest, HealthCheckResponse};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tonic::{Request, Response, Status};

/// `grpc.health.v1.Health` as a service. Made by [`Health::grpc`].
pub type Grpc = WithLoad<HealthServer<Answers>>;

pub(super) fn service(health: Health) -> Grpc {
    let streams = Arc::new(Semaphore::new(STREAMS_MAX));
    WithLoad::new(HealthServer::new(Answers { health: health.clone(), streams }), health)
}

/// What gRPC's health says.
#[derive(Debug)]
pub struct Answers {
    health: Health,
    streams: Arc<Semaphore>,
}

impl Answers {
    /// The whole task, or one of its services.
    fn knows(&self, service: &str) -> bool {
        service.is_empty() || self.health.services.iter().any(|known| **known == *service)
    }
}

const fn status_in(phase: Phase) -> ServingStatus {
    if phase.is_ready() { ServingStatus::Serving } else { ServingStatus::NotServing }
}

const fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status as i32 }
}

#[tonic::async_trait]
impl health_server::Health for Answers {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        if !self.knows(&request.get_ref().service) {
            return Err(Status::not_found("no such service"));
        }
        Ok(Response::new(response(status_in(self.health.life.phase()))))
    }

    type WatchStream =
        Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send + 'static>>;

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let permit = Arc::clone(&self.streams)
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many watch already"))?;
        let known = self.knows(&request.get_ref().service);
        let watch = Watch { health: self.health.clone(), known, told: None, _permit: permit };
        let stream = stream::unfold(watch, |mut watch| async {
            let status = watch.next().await?;
            Some((Ok(response(status)), watch))
        });
        Ok(Response::new(Box::pin(stream)))
    }
}

/// One who watches.
struct Watch {
    health: Health,
    known: bool,
    /// What it was told last, and the phase at that time.
    told: Option<(ServingStatus, Phase)>,
    _permit: OwnedSemaphorePermit,
}

impl Watch {
    /// What to tell next; nothing if there is nothing more to tell.
    async fn next(&mut self) -> Option<ServingStatus> {
        loop {
            let phase = match self.told {
                None => self.health.life.phase(),
                Some((_, phase)) => self.health.life.left(phase).await,
            };
            // Who begins to watch a task that drains is told once.
            if self.told.is_some() && phase >= Phase::Draining {
                return None;
            }
            // A service may be added by the next task of this kind, and not by this one.
            let status = if self.known { status_in(phase) } else { ServingStatus::ServiceUnknown };
            let before = self.told.replace((status, phase));
            if before.is_none_or(|(before, _)| before != status) {
                return Some(status);
            }
        }
    }
}
