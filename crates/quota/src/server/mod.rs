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

pub use reload::{Reload, ReloadError, follow};

use crate::access::Access;
use crate::client::Client;
use crate::client::zone::Zone;
use crate::config::{Config, Parent, Service};
use crate::doorman::{self, grpc::Master};
use crate::election::{Election, ElectionError};
use crate::envoy::desk::Desk;
use crate::envoy::{rlqs, rls};
use arc_swap::ArcSwap;
use book::Book;
use owner::Owner;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::clock::Clock;
use tidegate_core::fleet::FleetConfigError;
use tidegate_tls::ServerOptions;
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
    epoch: u64,
    pub(crate) clock: Clock,
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
}

#[derive(Debug)]
struct Running {
    services: BTreeMap<String, Service>,
    tls: Option<ServerOptions>,
    parent: Option<Parent>,
    election: Election,
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
    /// Starts to lead. The owners run on the current runtime, which has to have a timer.
    pub fn start(
        config: &Config,
        mut election: Election,
        clock: Clock,
    ) -> Result<Self, StartError> {
        let mut owners = BTreeMap::new();
        for (name, service) in &config.services {
            owners.insert(name.clone(), own(name, service, &election, &clock)?);
        }
        election.lead(config.services.keys())?;
        let mut uplinks = BTreeMap::new();
        for (name, owner) in owners.iter().filter(|_| config.parent.is_some()) {
            uplinks.insert(name.clone(), Uplink::start(config, name, owner, &clock)?);
        }
        let book = doorman::book::Book::new(config.doorman.clone(), clock.now());
        let access = Arc::new(ArcSwap::from_pointee(Access::of(config)));
        let inner = Inner {
            epoch: election.epoch(),
            desks: Mutex::default(),
            uplinks: Mutex::new(uplinks),
            doorman: Master::new(book, clock.clone(), &config.advertise, Arc::clone(&access)),
            access,
            clock,
            owners: ArcSwap::from_pointee(owners),
            running: Running {
                services: config.services.clone(),
                tls: config.tls.clone(),
                parent: config.parent.clone(),
                election,
            }
            .into(),
            refused: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Which election it leads by.
    pub fn epoch(&self) -> u64 {
        self.inner.epoch
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
    clock: &Clock,
) -> Result<Owner, StartError> {
    let learns = election.was_led(name);
    let book = Book::new(service.clone(), election.epoch(), learns, clock.now())
        .map_err(|source| StartError::Fleet { service: name.to_owned(), source })?;
    Ok(Owner::start(name.to_owned(), book, service, clock.clone()))
}

impl Inner {
    pub(crate) fn owner(&self, service: &str) -> Result<Owner, Status> {
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
        if let Some(desk) = desks.get(service) {
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
        wire::StatusResponse { epoch: self.epoch, services, refused }
    }
}
