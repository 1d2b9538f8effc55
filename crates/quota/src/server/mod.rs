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
pub(crate) mod stream;

pub use reload::{Reload, ReloadError, follow};

pub(crate) use reload::Origin;

use crate::access::Access;
use crate::client::zone::Zone;
use crate::client::{Client, Flags, Prepared};
use crate::config::{Config, Own, Parent, Service};
use crate::doorman::{self, grpc::Master, uplink::Above};
use crate::election::fence::Fence;
use crate::election::{Election, ElectionError};
use crate::envoy::desk::Desk;
use crate::envoy::{health, rlqs, rls};
use crate::link::LinkError;
use arc_swap::ArcSwap;
use book::Book;
use owner::Owner;
use seat::{NotLeader, Seat};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate::clock::Clock;
use tidegate_core::Timestamp;
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
    /// To the server above, if this one is of Doorman's tree and not its root.
    _doorman_uplink: Option<doorman::uplink::Uplink>,
    /// Who may do what.
    pub(crate) access: Arc<ArcSwap<Access>>,
    /// Those that have been asked about, by service.
    desks: Mutex<BTreeMap<String, Desk>>,
    /// To the server above, by service, if this one is a zone's.
    uplinks: Mutex<BTreeMap<String, Uplink>>,
    /// What is run; held by whoever reloads.
    running: tokio::sync::Mutex<Running>,
    /// What is wrong with the file and the limits that are there now.
    refused: Mutex<BTreeMap<Origin, String>>,
    /// What is wrong with the election.
    trouble: Mutex<Option<String>>,
}

#[derive(Debug)]
struct Running {
    services: BTreeMap<String, Service>,
    /// What is of this server only, and does not change.
    own: Own,
    /// That which was won, and the fence of the reign.
    election: Option<(Election, Fence)>,
    /// The process ends: whatever comes is only noted.
    stopped: bool,
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
    /// The server above in Doorman's tree cannot be spoken to.
    #[error("the server above cannot be asked for Doorman's resources")]
    DoormanParent(#[source] LinkError),
    /// What it should remember cannot be written.
    #[error(transparent)]
    Election(#[from] ElectionError),
    /// It was told to stop.
    #[error("the server was stopped")]
    Stopped,
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
        let uplinks = Uplink::prepare_all(config.parent.as_ref(), &owners, &election, &clock)?;
        // All that can fail comes before that which is remembered.
        let server = Self::stand(config, clock)?;
        election.lead_here(config.services.keys())?;
        *server.inner.uplinks() = Uplink::begin_all(uplinks);
        server.inner.owners.store(owners.into());
        server.inner.seat.lead(epoch, fence.clone());
        // Nobody else has it yet.
        if let Ok(mut running) = server.inner.running.try_lock() {
            running.election = Some((election, fence));
        }
        Ok(server)
    }

    /// Follows until it is [elected](crate::election::Candidate).
    pub fn stand(config: &Config, clock: Clock) -> Result<Self, StartError> {
        let now = clock.now();
        let (book, above) = match &config.doorman_parent {
            None => (doorman::book::Book::new(config.doorman.clone(), now), None),
            Some(_) => (doorman::book::Book::below(now), Some(Above::new())),
        };
        let seat = Arc::new(Seat::new(clock.clone()));
        let access = Arc::new(ArcSwap::from_pointee(Access::of(config)));
        let (services, own) = (config.services.clone(), Own::of(config));
        let doorman = Master::new(
            book,
            Arc::clone(&seat),
            &config.advertise,
            Arc::clone(&access),
            above.clone(),
        );
        let doorman_uplink = match (&config.doorman_parent, above) {
            (Some(parent), Some(above)) => {
                let uplink = doorman::uplink::Uplink::start(doorman.clone(), above, parent);
                Some(uplink.map_err(StartError::DoormanParent)?)
            }
            _ => None,
        };
        let inner = Inner {
            desks: Mutex::default(),
            doorman,
            _doorman_uplink: doorman_uplink,
            access,
            clock,
            seat,
            owners: ArcSwap::default(),
            uplinks: Mutex::default(),
            running: Running { services, own, election: None, stopped: false }.into(),
            refused: Mutex::default(),
            trouble: Mutex::new(None),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Leads from now on, for as long as the fence is open.
    pub(crate) async fn lead(
        &self,
        mut election: Election,
        fence: Fence,
    ) -> Result<(), StartError> {
        let inner = &self.inner;
        let mut running = inner.running.lock().await;
        if running.stopped {
            return Err(StartError::Stopped);
        }
        let epoch = election.epoch();
        let owners = own_all(&running.services, &election, &fence, &inner.clock)?;
        let parent = running.own.parent.as_ref();
        let uplinks = Uplink::prepare_all(parent, &owners, &election, &inner.clock)?;
        election.lead(running.services.keys()).await?;
        *inner.uplinks() = Uplink::begin_all(uplinks);
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
            self.inner.end_all().await;
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
            .add_service(health::service(&self.inner))
    }

    /// The same for [`tidegate::serve()`], to be merged with others.
    pub fn router(&self) -> axum::Router {
        self.routes().into_axum_router()
    }

    /// Ends all streams, for a process that ends: tasks go on with what they have, and look for
    /// another server. Waits for a reload that is under way; what comes later begins nothing.
    pub async fn stop(&self) {
        let step_down = || {
            if self.inner.seat.check().is_ok() {
                self.inner.seat.follow(None);
            }
        };
        step_down();
        let mut running = self.inner.running.lock().await;
        // Once more: whoever held the lock may have begun to lead.
        step_down();
        (running.election, running.stopped) = (None, true);
        self.inner.end_all().await;
    }

    /// The services that it leads, or would: by its file, or by the limits in etcd.
    pub async fn services(&self) -> Vec<String> {
        self.inner.running.lock().await.services.keys().cloned().collect()
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

/// One service of a zone at the server above. That keeps the place when it is dropped, for a lease:
/// whoever leads the zone next takes it.
#[derive(Debug)]
struct Uplink {
    client: Option<Client>,
    flags: Arc<Flags>,
    /// Tasks are let in from then on, whether it has or not.
    opens: Timestamp,
}

/// An [`Uplink`] of which nobody above has heard.
struct Link {
    prepared: Prepared,
    flags: Arc<Flags>,
    opens: Timestamp,
}

impl Uplink {
    /// All that can fail of those of a zone, for owners that have none yet; nothing if this is no
    /// zone. Nobody above hears of them before they begin. To be called before these services count
    /// as led, which tells whether somebody has led them before.
    fn prepare_all(
        parent: Option<&Parent>,
        owners: &BTreeMap<String, Owner>,
        election: &Election,
        clock: &Clock,
    ) -> Result<BTreeMap<String, Link>, StartError> {
        let Some(parent) = parent else { return Ok(BTreeMap::new()) };
        let prepare = |(name, owner): (&String, &Owner)| {
            Ok((name.clone(), Self::prepare(parent, name, owner, election, clock)?))
        };
        owners.iter().map(prepare).collect()
    }

    fn begin_all(links: BTreeMap<String, Link>) -> BTreeMap<String, Self> {
        let begin = |(name, Link { prepared, flags, opens })| {
            (name, Self { client: Some(Prepared::begin(prepared)), flags, opens })
        };
        links.into_iter().map(begin).collect()
    }

    fn prepare(
        parent: &Parent,
        name: &str,
        owner: &Owner,
        election: &Election,
        clock: &Clock,
    ) -> Result<Link, StartError> {
        let wrong = |source: Box<dyn std::error::Error + Send + Sync>| StartError::Parent {
            service: name.to_owned(),
            source,
        };
        let zone = Zone::new(name, &owner.service, clock.clone());
        let zone = zone.map_err(|error| wrong(error.into()))?;
        let mut client = Client::builder(&parent.servers).weight(parent.weight);
        if let Some(name) = &parent.name {
            client = client.name(name);
        }
        if let Some(tls) = &parent.tls {
            client = client.tls(tls.clone());
        }
        let flags = Arc::<Flags>::default();
        let prepared = client.stand_for(zone, owner.clone(), election.epoch(), Arc::clone(&flags));
        let prepared = prepared.map_err(|error| wrong(error.into()))?;
        // Whoever holds something of a leader before would be told to make do with what the file
        // says. After a lease it has nothing left of that.
        let learns = election.was_led(name);
        let lease = owner.service.fleet.silence.lease();
        let opens = if learns { clock.now() + lease } else { Timestamp::ZERO };
        Ok(Link { prepared, flags, opens })
    }

    fn is_open(&self, now: Timestamp) -> bool {
        self.flags.heard.load(Ordering::Acquire) || now >= self.opens
    }

    /// Nobody in the zone uses anything of it: the server above need not keep the place.
    fn leave(&self) {
        self.flags.leaves.store(true, Ordering::Release);
    }
}

impl Drop for Uplink {
    fn drop(&mut self) {
        // It waits for its thread, which may wait for an owner on this one.
        let client = self.client.take();
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
    let book = book.elected(election.is_by_etcd());
    Ok(Owner::start(name.to_owned(), book, service, fence.clone(), clock.clone()))
}

impl Inner {
    /// Ends everything that is led; for whoever holds `running`.
    async fn end_all(&self) {
        self.desks().clear();
        self.uplinks().clear();
        for owner in self.owners.swap(Arc::default()).values() {
            owner.stop().await;
        }
    }

    /// The owner of a service of which somebody wants to know.
    pub(crate) fn known(&self, service: &str) -> Result<Owner, Status> {
        self.seat.check().map_err(|elsewhere: NotLeader| elsewhere.status())?;
        let owners = self.owners.load();
        owners.get(service).cloned().ok_or_else(|| {
            Status::not_found(format!(
                "service {service:?} is not configured here; there are: {}",
                owners.keys().cloned().collect::<Vec<_>>().join(", ")
            ))
        })
    }

    /// The same for who takes part in it.
    pub(crate) fn owner(&self, service: &str) -> Result<Owner, Status> {
        let owner = self.known(service)?;
        let now = self.clock.now();
        if self.uplinks().get(service).is_some_and(|uplink| !uplink.is_open(now)) {
            let what = "this server leads its zone anew, and has yet to hear what that may use";
            return Err(Status::unavailable(what));
        }
        Ok(owner)
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

    /// What is wrong with what there is to read now, line by line.
    fn complaints(&self) -> String {
        self.refused().values().cloned().collect::<Vec<_>>().join("\n")
    }

    fn refused(&self) -> MutexGuard<'_, BTreeMap<Origin, String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn status(&self, of: impl Fn(&str) -> bool) -> wire::StatusResponse {
        let owners = self.owners.load_full();
        let mut services = Vec::new();
        for (_, owner) in owners.iter().filter(|(name, _)| of(name)) {
            services.extend(owner.status().await);
        }
        let refused = self.complaints();
        let trouble = self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let below = self.doorman.trouble().map(|trouble| format!("doorman: {trouble}"));
        let trouble = trouble.into_iter().chain(below).collect::<Vec<_>>().join("; ");
        let (leads, epoch, leader) = match self.seat.check() {
            Ok(epoch) => (true, epoch, String::new()),
            Err(elsewhere) => (false, 0, elsewhere.leader.unwrap_or_default()),
        };
        wire::StatusResponse { epoch, services, refused, leads, leader, trouble }
    }
}
