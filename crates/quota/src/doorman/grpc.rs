//! The four RPCs of Doorman.
//!
//! All are unary and quick: the book is held for microseconds, by a lock. Only the master answers,
//! and a single server is the master; it therefore never says who else is.

use super::book::{Book, Moment};
use crate::access::{Access, Caller};
use arc_swap::ArcSwap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate::clock::Clock;
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_server::{Capacity, CapacityServer};
use tonic::{Request, Response, Status};

/// A client with thousands of resources has some 100 KB.
const MESSAGE_MAX: usize = 1 << 20;

/// Answers clients.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    book: Arc<Mutex<Book>>,
    clock: Clock,
    /// Where the master is, for whoever asks any server.
    address: Arc<str>,
    access: Arc<ArcSwap<Access>>,
}

impl Master {
    pub(crate) fn new(
        book: Book,
        clock: Clock,
        address: &str,
        access: Arc<ArcSwap<Access>>,
    ) -> Self {
        Self { book: Arc::new(Mutex::new(book)), clock, address: address.into(), access }
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
        Moment { now: self.clock.now(), wall }
    }
}

#[tonic::async_trait]
impl Capacity for Master {
    async fn discovery(
        &self,
        _: Request<wire::DiscoveryRequest>,
    ) -> Result<Response<wire::DiscoveryResponse>, Status> {
        let master_address = Some(self.address.to_string());
        let mastership = wire::Mastership { master_address };
        Ok(Response::new(wire::DiscoveryResponse { mastership, is_master: true }))
    }

    async fn get_capacity(
        &self,
        request: Request<wire::GetCapacityRequest>,
    ) -> Result<Response<wire::GetCapacityResponse>, Status> {
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
        // What others have, it cannot name.
        self.book().release(request.get_ref(), &Caller::of(&request));
        Ok(Response::new(wire::ReleaseCapacityResponse { mastership: None }))
    }
}
