//! One service over many endpoints.
//!
//! ```text
//! request ─► datacenter ─► lane of its policy ─► endpoint ─► its service ─► answer
//!                ▲               ▲    └── turned down: lame duck, or refused this request before
//!             spillover     policy ◄── joins, leaves, reports, deadlines ◄── keeper ◄── discovery
//! ```
//!
//! Requests pick on their thread's lane, without a lock, from a table that the keeper replaces.
//! The keeper alone owns the policies. What answers tell (outcome, load report, lame duck) goes to
//! lanes and cells, from where the keeper takes it; a request is active until the last byte of its
//! answer.
//!
//! An endpoint whose service is not ready, or whose connection fails, is one that does not answer:
//! an error, that counts against it. With all endpoints lame ducks, requests still go to them; with
//! no endpoint at all they fail with [`NoEndpoint`], but wait for discovery's first word.

mod builder;
mod discovery;
mod food;
mod gates;
mod members;
mod spill;

pub use builder::{Balance, BalancerBuilder, Subset};
pub use discovery::{Change, Discovery, Endpoint};
pub use food::{HttpProber, METRIC_LATENCY, METRIC_RIF, Prober, Reporter, Reports};
pub use gates::Attempt;
pub use spill::Spill;

use super::body::{Along, Watched};
use super::error::{BoxError, NoEndpoint, Throttled};
use super::keeper::{self, Kept, Time, Watch};
use super::service::ResponseFuture;
use super::trail::Trail;
use arc_swap::ArcSwap;
use core::fmt;
use core::future::poll_fn;
use core::task::{Context, Poll};
use core::time::Duration;
use gates::{Gates, Local};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use members::{Members, Slot, Table};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;
use tidegate_core::balance::{LoadReport, PickReason, Probes};
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_core::rng::Rng;
use tidegate_core::spillover::{Datacenter, DatacenterId, PickTable};
use tidegate_core::{Criticality, Outcome, Timestamp};
use tidegate_wire::answer;
use tidegate_wire::headers::ENDPOINT_LOAD_METRICS_FORMAT;
use tidegate_wire::orca;
use tidegate_wire::protocol::Protocol;
use tokio::runtime::Handle;
use tokio::sync::watch;

/// How often a lane is asked for another pick when the first is to be avoided. After that the table
/// is searched: policies that like the one to be avoided best would name it again and again.
const PICKS_MAX: usize = 4;

/// How long a probe's answer is waited for. Prequal uses no answer that is older than a second.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// A service over many endpoints. Clones are the same one.
pub struct Balancer<S> {
    shared: Arc<Shared<S>>,
}

struct Shared<S> {
    table: ArcSwap<Table<S>>,
    /// None where there is but one datacenter, or no plan yet.
    spill: ArcSwap<Option<PickTable>>,
    /// The datacenters by group.
    places: Vec<DatacenterId>,
    gates: Arc<Gates>,
    /// Only the keeper's.
    members: Mutex<Members<S>>,
    watch: Watch,
    /// Whether discovery has said anything.
    found: watch::Sender<bool>,
    prober: Option<Arc<dyn Prober<S>>>,
    wants_reports: bool,
}

/// What a balancer has done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct BalancerCounts {
    /// Picks by reason, in the order of [`PickReason::ALL`].
    pub picks: [u64; PickReason::ALL.len()],
    /// Picks turned down: a lame duck, or one that the request had been to.
    pub avoided: u64,
    /// Requests for which no datacenter had room.
    pub no_room: u64,
    /// Load reports dropped because they made no sense.
    pub reports_dropped: u64,
    /// Times that discovery failed.
    pub discovery_failures: u64,
    /// Endpoints for which no service could be made, or for which there was no room.
    pub endpoints_left_out: u64,
    /// Endpoints at present.
    pub endpoints: usize,
}

/// What a balancer knows of an endpoint.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Backend {
    /// Where it is.
    pub endpoint: Endpoint,
    /// Its share of the picks, in proportion to the others'; nothing where the policy has none.
    pub weight: Option<f64>,
    /// Attempts that have begun and not ended.
    pub active: u32,
    /// How full it says it is, if it has said.
    pub utilization: Option<f64>,
    /// Requests a second that it says it serves, if it has said.
    pub rps: Option<f64>,
    /// Whether it has asked for no new requests.
    pub lame_duck: bool,
}

impl<S: Clone + Send + Sync + 'static> Balancer<S> {
    /// Over whatever `discovery` finds. `make` makes the service of each endpoint, without waiting
    /// for a connection: a lazy channel of tonic, a client of hyper-util. An endpoint for which it
    /// fails is left out.
    ///
    /// ```
    /// use tidegate::client::{Balancer, Discovery, Endpoint};
    /// # #[derive(Clone)] struct Client;
    /// # fn connect(_: &str) -> Result<Client, std::io::Error> { Ok(Client) }
    /// let balancer = Balancer::builder(
    ///     Discovery::list(["10.0.0.1:80", "10.0.0.2:80"]),
    ///     |endpoint: &Endpoint| connect(endpoint.address()),
    /// )
    /// .build()?;
    /// # Ok::<(), tidegate_core::units::InvalidNumber>(())
    /// ```
    pub fn builder<E: Into<BoxError>>(
        discovery: Discovery,
        make: impl Fn(&Endpoint) -> Result<S, E> + Send + Sync + 'static,
    ) -> BalancerBuilder<S> {
        BalancerBuilder::new(discovery, make)
    }

    /// What it has done so far. For metrics; takes locks that no request takes.
    pub fn counts(&self) -> BalancerCounts {
        let counted = self.shared.gates.counts();
        let members = self.shared.members();
        BalancerCounts {
            picks: counted.picks,
            avoided: counted.avoided,
            no_room: counted.no_room,
            reports_dropped: counted.bad_reports,
            discovery_failures: members.parts.discovery.failures(),
            endpoints_left_out: members.left_out,
            endpoints: self.shared.table.load().iter().flatten().count(),
        }
    }

    /// The endpoints at present.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let table = self.shared.table.load();
        table.iter().flatten().map(|slot| slot.endpoint.clone()).collect()
    }

    /// The endpoints at present, with what is known of each. For metrics; takes locks that no
    /// request takes.
    pub fn backends(&self) -> Vec<Backend> {
        self.shared.members().backends()
    }

    /// What the datacenters can do, and how much of it is gone, from the next plan on.
    pub fn set_datacenters(&self, datacenters: Vec<Datacenter>) {
        if let Some(spilling) = &mut self.shared.members().parts.spilling {
            spilling.datacenters = datacenters;
        }
    }
}

impl<S> Clone for Balancer<S> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<S> fmt::Debug for Balancer<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let table = self.shared.table.load();
        let endpoints = table.iter().flatten().map(|slot| &slot.endpoint);
        f.debug_list().entries(endpoints).finish()
    }
}

impl<S> Shared<S> {
    fn members(&self) -> MutexGuard<'_, Members<S>> {
        // A keeper that panicked left a set that is at worst a tick old.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a request goes; nothing if there is nowhere.
    fn pick(&self, trail: Option<&Trail>, now: Timestamp) -> Result<Picked<S>, PickError> {
        let (table, spill) = (self.table.load(), self.spill.load());
        self.gates.lane(|lane| {
            let group = match &**spill {
                None => 0,
                Some(spill) => match spill.pick(&mut lane.rng) {
                    None => {
                        lane.count_no_room();
                        return Err(PickError::NoRoom);
                    }
                    Some(id) => self.places.iter().position(|place| *place == id).unwrap_or(0),
                },
            };
            let slot = pick_in(&table, lane, group, trail, now).ok_or(PickError::Nobody)?;
            let probes = match &self.prober {
                Some(_) => lane.groups[group].probes_wanted(&mut lane.rng),
                None => None,
            };
            Ok(Picked { slot, probes })
        })
    }
}

struct Picked<S> {
    slot: Arc<Slot<S>>,
    probes: Option<Probes>,
}

enum PickError {
    /// No endpoint.
    Nobody,
    /// No datacenter has room.
    NoRoom,
}

/// An endpoint of `group` if it has any, of another if not.
fn pick_in<S>(
    table: &Table<S>,
    lane: &mut Local,
    group: usize,
    trail: Option<&Trail>,
    now: Timestamp,
) -> Option<Arc<Slot<S>>> {
    let been = |slot: &Slot<S>| trail.is_some_and(|trail| trail.has(slot.member.id));
    let groups = lane.groups.len();
    let mut second_best = None;
    for group in (0..groups).map(|n| (group + n) % groups) {
        for _ in 0..PICKS_MAX {
            let Local { groups, rng, .. } = lane;
            let Some(pick) = groups[group].pick(now, rng) else { break };
            // One that has just left may still be picked.
            let Some(slot) = table.get(pick.backend.0 as usize).and_then(Option::as_ref) else {
                continue;
            };
            let lame = slot.member.is_lame() && pick.reason != PickReason::AllLameDuck;
            if !lame && !been(slot) {
                lane.count_pick(pick.reason);
                return Some(Arc::clone(slot));
            }
            lane.count_avoided();
            second_best = Some((Arc::clone(slot), pick.reason));
        }
        let start = lane.rng.below(table.len() as u64) as usize;
        let around = table.iter().cycle().skip(start).take(table.len()).flatten();
        let fine = |slot: &&Arc<Slot<S>>| {
            slot.member.group == group && !slot.member.is_lame() && !been(slot)
        };
        if let Some(slot) = around.into_iter().find(fine) {
            lane.count_pick(second_best.as_ref().map_or(PickReason::RoundRobin, |(_, r)| *r));
            return Some(Arc::clone(slot));
        }
    }
    let (slot, reason) = second_best?;
    lane.count_pick(reason);
    Some(slot)
}

impl<S: Clone + Send + Sync + 'static> Kept for Shared<S> {
    fn watch(&self) -> &Watch {
        &self.watch
    }

    fn time(&self) -> Time {
        self.gates.time
    }

    fn tick(self: &Arc<Self>, now: Timestamp) {
        let mut members = self.members();
        if let Some(table) = members.discover(now) {
            self.table.store(Arc::new(table));
            self.found.send_replace(true);
        }
        members.tick(now);
        if let Some(spilling) = &mut members.parts.spilling
            && let Some(table) = spilling.tick(|| self.gates.counts().demand(), now)
        {
            self.spill.store(Arc::new(Some(table)));
        }
    }
}

impl<S, B, RB> tower_service::Service<Request<B>> for Balancer<S>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone + Send + Sync + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: Send + 'static,
    RB: Send + 'static,
{
    type Response = Response<Watched<RB, Balanced>>;
    type Error = BoxError;
    type Future = ResponseFuture<Self::Response>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        // Whether an endpoint is ready is known once there is a request to pick one for.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(send(Arc::clone(&self.shared), request))
    }
}

async fn send<S, B, RB>(
    shared: Arc<Shared<S>>,
    mut request: Request<B>,
) -> Result<Response<Watched<RB, Balanced>>, BoxError>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone + Send + Sync + 'static,
    S::Error: Into<BoxError>,
{
    let now = shared.gates.time.now();
    keeper::ensure(&shared, now);
    let trail = request.extensions().get::<Trail>().cloned();
    let tried = trail.as_ref().filter(|trail| !trail.is_empty());
    let mut picked = shared.pick(tried, now);
    if let Err(PickError::Nobody) = picked {
        // Picks again also where discovery has spoken before: it may have done so since the pick.
        // The sender lives as long as `shared`.
        let _ = shared.found.subscribe().wait_for(|found| *found).await;
        picked = shared.pick(tried, now);
    }
    let Picked { slot, probes } = match picked {
        Ok(picked) => picked,
        Err(PickError::NoRoom) => return Err(Box::new(Throttled::new(no_room(&request)))),
        Err(PickError::Nobody) => return Err(Box::new(NoEndpoint)),
    };
    if let Some(trail) = &trail {
        trail.mark(slot.member.id);
    }
    if let Some(probes) = probes {
        probe(&shared, &probes);
    }
    let protocol = Protocol::of(request.headers());
    // Over gRPC they come unasked.
    if shared.wants_reports && protocol == Protocol::Http {
        ask_for_report(request.headers_mut());
    }
    let mut attempt = slot.member.begin(trail);
    // Whatever goes wrong from here on, there is no answer.
    let mut service = slot.service.clone();
    let response = async {
        poll_fn(|cx| service.poll_ready(cx)).await?;
        service.call(request).await
    };
    let response = response.await.map_err(|error| {
        attempt.outcome = Outcome::NoAnswer;
        error.into()
    })?;
    let (status, headers) = (response.status(), response.headers());
    let is_final = answer::is_final(status, headers, protocol);
    let mut balanced = Balanced { attempt, wants_reports: shared.wants_reports, is_final };
    balanced.hear(status, headers, None, protocol);
    Ok(response.map(|body| Watched::new(Some(body), Some(balanced))))
}

/// Asks for a load report in the answer, unless that was asked for in another format.
fn ask_for_report(headers: &mut HeaderMap) {
    if !headers.contains_key(&ENDPOINT_LOAD_METRICS_FORMAT) {
        // A request that has no room for another header goes without.
        let _ = headers.try_insert(&ENDPOINT_LOAD_METRICS_FORMAT, HeaderValue::from_static("BIN"));
    }
}

/// What does not fit anywhere is refused at the source.
fn no_room<B>(request: &Request<B>) -> Rejection {
    let headers = request.headers();
    let (said, _) = tidegate_wire::criticality::read(headers, Protocol::of(headers));
    Rejection {
        reason: Reason::Overloaded,
        advice: Advice::DontRetry,
        criticality: said.unwrap_or(Criticality::default()),
        cause: None,
    }
}

/// Asks the endpoints that a lane wants to know of. Answers go to the lane of whichever thread they
/// arrive on: its pool is as good a place.
fn probe<S: Clone + Send + Sync + 'static>(shared: &Arc<Shared<S>>, probes: &Probes) {
    let (Some(prober), Ok(runtime)) = (&shared.prober, Handle::try_current()) else { return };
    let table = shared.table.load();
    for id in probes.as_slice() {
        let Some(slot) = table.get(id.0 as usize).and_then(Option::as_ref) else { continue };
        let (shared, slot) = (Arc::clone(shared), Arc::clone(slot));
        let asked = prober.probe(&slot.endpoint, slot.service.clone());
        drop(runtime.spawn(async move {
            if let Ok(Some(answer)) = tokio::time::timeout(PROBE_WAIT, asked).await {
                let (id, group, now) = (slot.member.id, slot.member.group, shared.time().now());
                shared.gates.lane(|lane| {
                    lane.groups[group].on_probe(id, answer.rif, answer.latency, now);
                });
            }
        }));
    }
}

/// Goes along with the body of an answer: the request is active until its end.
pub struct Balanced {
    attempt: Attempt,
    wants_reports: bool,
    is_final: bool,
}

impl Balanced {
    /// Takes in what headers, or trailers, say.
    fn hear(
        &mut self,
        status: StatusCode,
        headers: &HeaderMap,
        trailers: Option<&HeaderMap>,
        protocol: Protocol,
    ) {
        let member = &self.attempt.member;
        let answer = answer::read(status, headers, trailers, protocol, SystemTime::now);
        if answer.lame_duck {
            member.lame_duck();
        }
        if self.is_final || trailers.is_some() {
            self.attempt.outcome = answer.outcome;
        }
        if self.wants_reports {
            match orca::read(trailers.unwrap_or(headers)) {
                Ok(None) => {}
                Ok(Some(report)) => member.report.put(&LoadReport::from(&report)),
                Err(_) => member.bad_report(),
            }
        }
    }
}

impl Along for Balanced {
    fn on_trailers(&mut self, trailers: &HeaderMap) {
        let protocol = if self.is_final { Protocol::Http } else { Protocol::Grpc };
        let outcome = self.attempt.outcome;
        self.hear(StatusCode::OK, &HeaderMap::new(), Some(trailers), protocol);
        if self.is_final {
            // Trailers of an answer whose status has been seen change nothing about it.
            self.attempt.outcome = outcome;
        }
    }

    fn on_end(&mut self) {
        if !self.is_final && self.attempt.outcome == Outcome::Abandoned {
            // A gRPC call without a status was cut off.
            self.attempt.outcome = Outcome::Failed;
        }
    }

    fn on_error(&mut self) {
        self.attempt.outcome = Outcome::Failed;
    }
}

impl fmt::Debug for Balanced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Balanced").field("outcome", &self.attempt.outcome).finish_non_exhaustive()
    }
}
