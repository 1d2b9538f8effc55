//! The four RPCs of Doorman.
//!
//! All are unary and quick: the book is held for microseconds, by a lock. Only the master answers,
//! which is the leader; any other says who that is, as far as it knows.
//!
//! Below another server, who asks for a resource of which that one has not said anything waits for
//! a moment until it has. If it does not, whoever has a lease is told to keep it, and whoever has
//! none is told nothing: a lease of nothing would be worse.

use super::book::{Book, Moment};
use super::uplink::Above;
use crate::access::{Access, Caller};
use crate::server::seat::{NotLeader, Seat};
use arc_swap::ArcSwap;
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_wire::proto::doorman as wire;
use tidegate_wire::proto::doorman::capacity_server::{Capacity, CapacityServer};
use tonic::{Request, Response, Status};

/// A client with thousands of resources has some 100 KB.
const MESSAGE_MAX: usize = 1 << 20;
/// How long to wait for a server above: long enough for one that is there, and much less than
/// clients have patience.
const HEAR_WITHIN: Duration = Duration::from_secs(2);

/// Answers clients.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    book: Arc<Mutex<Book>>,
    seat: Arc<Seat>,
    /// Where this server is.
    address: Arc<str>,
    access: Arc<ArcSwap<Access>>,
    /// Nothing if it has templates of its own.
    above: Option<Above>,
}

impl Master {
    pub(crate) fn new(
        book: Book,
        seat: Arc<Seat>,
        address: &str,
        access: Arc<ArcSwap<Access>>,
        above: Option<Above>,
    ) -> Self {
        Self { book: Arc::new(Mutex::new(book)), seat, address: address.into(), access, above }
    }

    /// Whether it leads, by which election.
    pub(super) fn leads(&self) -> Option<u64> {
        self.seat.check().ok()
    }

    /// What is wrong with the server above, if anything.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.above.as_ref()?.trouble()
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

    pub(super) fn moment(&self) -> Moment {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let wall = i64::try_from(wall.as_secs()).unwrap_or(i64::MAX);
        Moment { now: self.seat.clock.now(), wall }
    }

    /// Has `answer` find answers for these resources: again, if the server above had something to
    /// say first. `empty` says which answers are of no use to anybody.
    async fn answer<'a, T>(
        &self,
        names: impl Iterator<Item = &'a str> + Clone,
        answer: impl Fn(&mut Book, Moment) -> Result<T, Status>,
        empty: impl Fn(&T) -> bool,
    ) -> Result<T, Status> {
        let first = answer(&mut self.book(), self.moment())?;
        let Some(above) = &self.above else { return Ok(first) };
        if !self.book().is_unheard(names.clone()) {
            return Ok(first);
        }
        above.wait(HEAR_WITHIN, || !self.book().is_unheard(names.clone())).await;
        // It may have been replaced meanwhile.
        self.seat.check().map_err(|elsewhere| elsewhere.status())?;
        let second = answer(&mut self.book(), self.moment())?;
        if self.book().is_unheard(names) && empty(&second) {
            let trouble = above.trouble().unwrap_or_else(|| "it was not heard of yet".to_owned());
            let what = format!("the server above has to say how this is shared out: {trouble}");
            return Err(Status::unavailable(what));
        }
        Ok(second)
    }

    /// Who the master is, if it is another.
    fn elsewhere(&self) -> Option<wire::Mastership> {
        let NotLeader { leader } = self.seat.check().err()?;
        Some(wire::Mastership { master_address: leader })
    }
}

/// Strikes out what is refused. If that is all there is, whoever asks hears why.
fn keep_allowed<T>(
    resources: &mut Vec<T>,
    check: impl Fn(&T) -> Result<(), Status>,
) -> Result<(), Status> {
    let mut refused = None;
    resources.retain(|resource| match check(resource) {
        Ok(()) => true,
        Err(status) => {
            refused.get_or_insert(status);
            false
        }
    });
    match refused {
        Some(status) if resources.is_empty() => Err(status),
        _ => Ok(()),
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
        let (caller, access) = (Caller::of(&request), self.access.load_full());
        let mut request = request.into_inner();
        keep_allowed(&mut request.resource, |wanted| {
            access.lease(&caller, &wanted.resource_id, false)
        })?;
        let lessee = access.lessee(&caller, &request.client_id, false);
        let names = request.resource.iter().map(|wanted| wanted.resource_id.as_str());
        let answer = |book: &mut Book, moment| book.get(&request, &lessee, moment);
        let empty = |answer: &wire::GetCapacityResponse| {
            answer.response.iter().all(|response| response.gets.capacity == 0.0)
        };
        self.answer(names, answer, empty).await.map(Response::new)
    }

    async fn get_server_capacity(
        &self,
        request: Request<wire::GetServerCapacityRequest>,
    ) -> Result<Response<wire::GetServerCapacityResponse>, Status> {
        if let mastership @ Some(_) = self.elsewhere() {
            let response = Vec::new();
            return Ok(Response::new(wire::GetServerCapacityResponse { response, mastership }));
        }
        let (caller, access) = (Caller::of(&request), self.access.load_full());
        let mut request = request.into_inner();
        keep_allowed(&mut request.resource, |wanted| {
            access.lease(&caller, &wanted.resource_id, true)
        })?;
        let lessee = access.lessee(&caller, &request.server_id, true);
        let names = request.resource.iter().map(|wanted| wanted.resource_id.as_str());
        let answer = |book: &mut Book, moment| book.get_for_server(&request, &lessee, moment);
        let empty = |answer: &wire::GetServerCapacityResponse| {
            answer.response.iter().all(|response| response.gets.capacity == 0.0)
        };
        self.answer(names, answer, empty).await.map(Response::new)
    }

    async fn release_capacity(
        &self,
        request: Request<wire::ReleaseCapacityRequest>,
    ) -> Result<Response<wire::ReleaseCapacityResponse>, Status> {
        let mastership = self.elsewhere();
        if mastership.is_none() {
            let (caller, access) = (Caller::of(&request), self.access.load());
            let mut request = request.into_inner();
            keep_allowed(&mut request.resource_id, |name| access.lease(&caller, name, false))?;
            // Nobody says whether it had it for itself, or for clients of its own.
            for for_many in [false, true] {
                let lessee = access.lessee(&caller, &request.client_id, for_many);
                let mut book = self.book();
                request.resource_id.iter().for_each(|name| book.release(name, &lessee));
            }
        }
        Ok(Response::new(wire::ReleaseCapacityResponse { mastership }))
    }
}
