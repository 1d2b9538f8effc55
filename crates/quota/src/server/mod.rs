//! The quota server: adds up what customers use across a fleet, and divides what they may.
//!
//! ```text
//! task ──stream──► grpc (checks) ──orders──► owner ── book ── tidegate_core::fleet
//!      ◄──stream── one message a round ◄──────┘      one for each service
//! ```
//!
//! Services share nothing, so each has an owner. What is known is soft: a server that starts again
//! learns from its tasks what they hold, and cuts nobody off meanwhile.
//!
//! **When it is down** tasks go on with what they have, and fade to their safe shares. When it is
//! **wrong** (a mistake in the configuration), the file is refused with its line and the limits
//! before still hold; [`Server::status`] says so.

pub(crate) mod book;
pub(crate) mod grpc;
mod history;
pub(crate) mod owner;
mod reload;
pub(crate) mod seat;

pub use reload::{Reload, ReloadError, follow};

use crate::access::Access;
use crate::client::Client;
use crate::client::zone::Zone;
use crate::config::{Config, Own, Parent, Service};
use crate::doorman::{self, grpc::Master};
use crate::election::fence::Fence;
use crate::election::{Election, ElectionError};
use crate::envoy::desk::Desk;
use crate::envoy::{rlqs, rls};
use arc_swap::ArcSwap;
use book::Book;
use owner::Owner;
use seat::{NotLeader, Seat};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::clock::Clock;
use tidegate_core::fleet::FleetConfigError;
use tidegate_wire::proto::tidegate::quota::v1 as wire;
use tonic::Status;
use tonic::service::Routes;

/// A running quota server. Cheap to clone; when the last clone and all routes are gone, it ends.
#[derive(Debug, Clone)]
pub struct Server {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) clock: Clock,
    pub(crate) seat: Arc<Seat>,
    owners: ArcSwap<BTreeMap<String, Owner>>,
    doorman: Master,
    /// Who may do what.
    pub(crate) access: Arc<ArcSwap<Access>>,
    /// Those that have been asked about, by service.
    desks: Mutex<BTreeMap<String, Desk>>,
    /// To the server above, by service, if this one is a zone's.
    uplinks: Mutex<BTreeMap<String, Uplink>>,
    /// What is run; held by whoever reloads.
    running: tokio::sync::Mutex<Running>,
    /// What is wrong with the file that is there now.
    refused: Mutex<Option<String>>,
    /// What is wrong with the election.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Running {
    services: BTreeMap<String, Service>,
    /// What is of this server only, and does not change.
    own: Own,
    parent: Option<Parent>,
    /// That which was won, and the fence of the reign.
    election: Option<(Election, Fence)>,
}

/// Why a server cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A fleet cannot be run like this.
    #[error("service `{service}` cannot be led")]
    Fleet {
        /// Which.
        service: String,
        /// Why.
        #[source]
        source: FleetConfigError,
    },
    /// The server above a zone's cannot be spoken to.
    #[error("the server above cannot be asked for service `{service}`")]
    Parent {
        /// Which.
        service: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// What it should remember cannot be written.
    #[error(transparent)]
    Election(#[from] ElectionError),
}

impl Server {
    /// Starts to lead, alone. The owners run on the current runtime, which has to have a timer.
    pub fn start(
        config: &Config,
        mut election: Election,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let (epoch, fence) = (election.epoch(), Fence::never());
        let owners = own_all(&config.services, &election, &fence, &clock)?;
        election.lead_here(config.services.keys())?;
        let server = Self::stand(config, clock);
        server.inner.owners.store(owners.into());
        server.inner.seat.lead(epoch, fence.clone());
        // Nobody else has it yet.
        if let Ok(mut running) = server.inner.running.try_lock() {
            running.election = Some((election, fence));
        }
        if config.parent.is_some() {
            let owners = server.inner.owners.load_full();
            for (name, owner) in owners.iter() {
                let uplink = Uplink::start(config, name, owner, &server.inner.clock)?;
                server.inner.uplinks().insert(name.clone(), uplink);
            }
        }
        Ok(server)
    }

    /// Follows until it is [elected](crate::election::Candidate).
    pub fn stand(config: &Config, clock: Clock) -> Self {
        let book = doorman::book::Book::new(config.doorman.clone(), clock.now());
        let seat = Arc::new(Seat::new(clock.clone()));
        let access = Arc::new(ArcSwap::from_pointee(Access::of(config)));
        let (services, own) = (config.services.clone(), Own::of(config));
        let inner = Inner {
            desks: Mutex::default(),
            doorman: Master::new(book, Arc::clone(&seat), &config.advertise, Arc::clone(&access)),
            access,
            clock,
            seat,
            owners: ArcSwap::default(),
            uplinks: Mutex::default(),
            running: Running { services, own, parent: config.parent.clone(), election: None }
                .into(),
            refused: Mutex::new(None),
            trouble: Mutex::new(None),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Leads from now on, for as long as the fence is open.
    pub(crate) async fn lead(
        &self,
        mut election: Election,
        fence: Fence,
    ) -> Result<(), StartError> {
        let inner = &self.inner;
        let mut running = inner.running.lock().await;
        let epoch = election.epoch();
        let owners = own_all(&running.services, &election, &fence, &inner.clock)?;
        election.lead(running.services.keys()).await?;
        running.election = Some((election, fence.clone()));
        inner.doorman.begin();
        inner.owners.store(owners.into());
        inner.seat.lead(epoch, fence);
        Ok(())
    }

    /// Leads no more; `leader` does, if anybody is known to.
    pub(crate) async fn follow(&self, leader: Option<String>) {
        self.inner.seat.follow(leader);
        let mut running = self.inner.running.lock().await;
        if running.election.take().is_some() {
            self.stop().await;
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.inner.clock.clone()
    }

    /// What is wrong with the election, if anything.
    pub(crate) fn set_trouble(&self, trouble: Option<String>) {
        *self.inner.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
    }

    /// Which election it leads by; 0 if it does not lead.
    pub fn epoch(&self) -> u64 {
        self.inner.seat.check().unwrap_or(0)
    }

    /// Its services of gRPC.
    pub fn routes(&self) -> Routes {
        Routes::new(grpc::service(self))
            .add_service(self.inner.doorman.service())
            .add_service(rls::service(&self.inner))
            .add_service(rlqs::service(&self.inner))
    }

    /// The same for [`tidegate::serve()`], to be merged with others.
    pub fn router(&self) -> axum::Router {
        self.routes().into_axum_router()
    }

    /// Ends all streams, for a process that ends: tasks go on with what they have, and look for
    /// another server.
    pub async fn stop(&self) {
        self.inner.desks().clear();
        self.inner.uplinks().clear();
        for owner in self.inner.owners.swap(Arc::default()).values() {
            owner.stop().await;
        }
    }

    /// How things stand.
    pub async fn status(&self) -> wire::StatusResponse {
        self.inner.status(|_| true).await
    }
}

fn own_all(
    services: &BTreeMap<String, Service>,
    election: &Election,
    fence: &Fence,
    clock: &Clock,
) -> Result<BTreeMap<String, Owner>, StartError> {
    let own =
        |(name, service)| Ok((String::clone(name), own(name, service, election, fence, clock)?));
    services.iter().map(own).collect()
}

/// One service of a zone at the server above. Takes leave when it is dropped.
#[derive(Debug)]
struct Uplink(Option<Client>);

impl Uplink {
    fn start(
        config: &Config,
        name: &str,
        owner: &Owner,
        clock: &Clock,
    ) -> Result<Self, StartError> {
        let Some(parent) = &config.parent else { return Ok(Self(None)) };
        let wrong = |source: Box<dyn std::error::Error + Send + Sync>| StartError::Parent {
            service: name.to_owned(),
            source,
        };
        let zone = Zone::new(name, (*owner.service).clone(), clock.clone());
        let zone = zone.map_err(|error| wrong(error.into()))?;
        let mut client = Client::builder(&parent.servers).weight(parent.weight);
        if let Some(name) = &parent.name {
            client = client.name(name);
        }
        if let Some(tls) = &parent.tls {
            client = client.tls(tls.clone());
        }
        let client = client.stand_for(zone, owner.clone());
        client.map(|client| Self(Some(client))).map_err(|error| wrong(error.into()))
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // It waits for its thread, which may wait for an owner on this one.
        let client = self.0.take();
        std::thread::spawn(move || drop(client));
    }
}

fn own(
    name: &str,
    service: &Service,
    election: &Election,
    fence: &Fence,
    clock: &Clock,
) -> Result<Owner, StartError> {
    let learns = election.was_led(name);
    let book = Book::new(service.clone(), election.epoch(), learns, clock.now())
        .map_err(|source| StartError::Fleet { service: name.to_owned(), source })?;
    Ok(Owner::start(name.to_owned(), book, service, fence.clone(), clock.clone()))
}

impl Inner {
    pub(crate) fn owner(&self, service: &str) -> Result<Owner, Status> {
        self.seat.check().map_err(|elsewhere: NotLeader| elsewhere.status())?;
        let owners = self.owners.load();
        owners.get(service).cloned().ok_or_else(|| {
            Status::not_found(format!(
                "service {service:?} is not configured here; there are: {}",
                owners.keys().cloned().collect::<Vec<_>>().join(", ")
            ))
        })
    }

    /// The desk of a service, open from now on.
    pub(crate) fn desk(&self, service: &str) -> Result<Desk, Status> {
        let owner = self.owner(service)?;
        let mut desks = self.desks();
        if let Some(desk) = desks.get(service).filter(|desk| desk.is_open()) {
            return Ok(desk.clone());
        }
        let desk = Desk::open(service, &owner.service, owner.clone(), self.clock.clone());
        let desk = desk.map_err(|error| Status::internal(error.to_string()))?;
        desks.insert(service.to_owned(), desk.clone());
        Ok(desk)
    }

    fn desks(&self) -> MutexGuard<'_, BTreeMap<String, Desk>> {
        self.desks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn uplinks(&self) -> MutexGuard<'_, BTreeMap<String, Uplink>> {
        self.uplinks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn refused(&self) -> MutexGuard<'_, Option<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn status(&self, of: impl Fn(&str) -> bool) -> wire::StatusResponse {
        let owners = self.owners.load_full();
        let mut services = Vec::new();
        for (_, owner) in owners.iter().filter(|(name, _)| of(name)) {
            services.extend(owner.status().await);
        }
        let refused = self.refused().clone().unwrap_or_default();
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let trouble = trouble.unwrap_or_default();
        let (leads, epoch, leader) = match self.seat.check() {
            Ok(epoch) => (true, epoch, String::new()),
            Err(elsewhere) => (false, 0, elsewhere.leader.unwrap_or_default()),
        };
        wire::StatusResponse { epoch, services, refused, leads, leader, trouble }
    }
}
