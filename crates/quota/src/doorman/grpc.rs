//! The four RPCs of Doorman.
//!
//! All are unary and quick: the book is held for microseconds, by a lock. Only the master answers,
//! which is the leader; any other says who that is, as far as it knows.

use super::book::{Book, Moment};
use crate::access::{Access, Caller};
use crate::server::seat::{NotLeader, Seat};
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_server::{Capacity, CapacityServer};
use tonic::{Request, Response, Status};

/// A client with thousands of resources has some 100 KB.
const MESSAGE_MAX: usize = 1 << 20;

/// Answers clients.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    book: Arc<Mutex<Book>>,
    seat: Arc<Seat>,
    /// Where this server is.
    address: Arc<str>,
    access: Arc<ArcSwap<Access>>,
}

impl Master {
    pub(crate) fn new(
        book: Book,
        seat: Arc<Seat>,
        address: &str,
        access: Arc<ArcSwap<Access>>,
    ) -> Self {
        Self { book: Arc::new(Mutex::new(book)), seat, address: address.into(), access }
    }

    /// Is the master from now on, and knows of no leases.
    pub(crate) fn begin(&self) {
        let now = self.seat.clock.now();
        self.book().begin(now);
    }

    pub(crate) fn service(&self) -> CapacityServer<Self> {
        CapacityServer::new(self.clone()).max_decoding_message_size(MESSAGE_MAX)
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn moment(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(wall.as_secs()).unwrap_or(i64::MAX);
        Moment { now: self.seat.clock.now(), wall }
    }

    /// Who the master is, if it is another.
    fn elsewhere(&self) -> Option<wire::Mastership> {
        let NotLeader { leader } = self.seat.check().err()?;
        Some(wire::Mastership { master_address: leader })
    }
}

#[tonic::async_trait]
impl Capacity for Master {
    async fn discovery(
        &self,
        _: Request<wire::DiscoveryRequest>,
    ) -> Result<Response<wire::DiscoveryResponse>, Status> {
        let elsewhere = self.elsewhere();
        let is_master = elsewhere.is_none();
        let master_address = Some(self.address.to_string());
        let mastership = elsewhere.unwrap_or(wire::Mastership { master_address });
        Ok(Response::new(wire::DiscoveryResponse { mastership, is_master }))
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
        if let mastership @ Some(_) = self.elsewhere() {
            let response = Vec::new();
            return Ok(Response::new(wire::GetCapacityResponse { response, mastership }));
        }
        let (caller, moment) = (Caller::of(&request), self.moment());
        let request = request.get_ref();
        let access = self.access.load();
        for wanted in &request.resource {
            access.lease(&caller, &wanted.resource_id, false)?;
        }
        self.book().get(request, &caller, moment).map(Response::new)
    }

    async fn get_server_capacity(
        &self,
        request: Request<wire::GetServerCapacityRequest>,
    ) -> Result<Response<wire::GetServerCapacityResponse>, Status> {
        if let mastership @ Some(_) = self.elsewhere() {
            let response = Vec::new();
            return Ok(Response::new(wire::GetServerCapacityResponse { response, mastership }));
        }
        let (caller, moment) = (Caller::of(&request), self.moment());
        let request = request.get_ref();
        let access = self.access.load();
        for wanted in &request.resource {
            access.lease(&caller, &wanted.resource_id, true)?;
        }
        self.book().get_for_server(request, &caller, moment).map(Response::new)
    }

    async fn release_capacity(
        &self,
        request: Request<wire::ReleaseCapacityRequest>,
    ) -> Result<Response<wire::ReleaseCapacityResponse>, Status> {
        let mastership = self.elsewhere();
        if mastership.is_none() {
            let (caller, access) = (Caller::of(&request), self.access.load());
            for resource in &request.get_ref().resource_id {
                access.lease(&caller, resource, false)?;
            }
            self.book().release(request.get_ref(), &Caller::of(&request));
        }
        Ok(Response::new(wire::ReleaseCapacityResponse { mastership }))
    }
}
