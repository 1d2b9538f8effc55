//! The resources of a master, and their leases.
//!
//! A resource comes to be when somebody asks for it, by the template that fits its name, and goes
//! when nobody has a lease of it and its place is needed. Where templates are those of a server
//! above, a resource also goes when it would be asked for there and nobody wants it.
//!
//! Times on the wire are seconds since 1970; leases are kept by the clock that never goes back, so
//! setting the other one ends none of them.
//!
//! **Bounds.** Names have 1,024 bytes, there are so many resources and so many clients of each;
//! whoever comes on top is refused and keeps its safe capacity.

use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::Timestamp;
use tidegate_core::doorman::{Algorithm, AlgorithmDraft, Ask, Band, Kind, Lease, Provision};
use tidegate_core::doorman::{Repository, Request, Resource};
use tidegate_wire::proto::doorman as wire;
use tonic::Status;

/// A thousand times what the largest installations had.
const RESOURCES_MAX: usize = 1 << 14;
/// Clients of one resource: each has some 200 bytes.
const CLIENTS_MAX: usize = 1 << 16;
const NAME_MAX: usize = 1_024;
/// Resources that are asked for at once: with the longest names and all priorities that is within
/// what a master reads.
const ASKS_MAX: usize = 512;
/// A lease that somebody says to have for longer is a mistake, or a clock that is wrong.
const HAS_MAX: Duration = Duration::from_secs(86_400);

/// Now, by both clocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) now: Timestamp,
    /// Seconds since 1970.
    pub(crate) wall: i64,
}

impl Moment {
    fn read(self, lease: &wire::Lease) -> Lease {
        let left = u64::try_from(lease.expiry_time.saturating_sub(self.wall)).unwrap_or(0);
        Lease {
            expiry: self.now + Duration::from_secs(left).min(HAS_MAX),
            refresh_interval: seconds(lease.refresh_interval),
            capacity: lease.capacity,
        }
    }

    fn write(self, lease: &Lease) -> wire::Lease {
        let secs = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
        wire::Lease {
            expiry_time: self.wall.saturating_add(secs(lease.expiry.since(self.now))),
            refresh_interval: secs(lease.refresh_interval),
            capacity: lease.capacity,
        }
    }
}

fn seconds(span: i64) -> Duration {
    Duration::from_secs(u64::try_from(span).unwrap_or(0))
}

/// Who says how resources are shared out.
#[derive(Debug)]
enum Source {
    Nobody,
    Templates(Repository),
    /// The server above.
    Above,
}

/// What to ask the server above.
#[derive(Debug, Default)]
pub(crate) struct Asks {
    /// Since when this server has been the master of those who want it.
    since: Timestamp,
    /// When it is asked.
    at: Timestamp,
    pub(crate) resources: Vec<wire::ServerCapacityResourceRequest>,
    /// What nobody wants any more.
    pub(crate) gone: Vec<String>,
}

/// All resources of a master.
#[derive(Debug)]
pub(crate) struct Book {
    source: Source,
    since: Timestamp,
    resources: BTreeMap<String, Resource>,
}

impl Book {
    /// That of a server which is the master from `since` on.
    pub(crate) fn new(templates: Option<Repository>, since: Timestamp) -> Self {
        let source = templates.map_or(Source::Nobody, Source::Templates);
        Self { source, since, resources: BTreeMap::new() }
    }

    /// The same of one that is below another.
    pub(crate) fn below(since: Timestamp) -> Self {
        Self { source: Source::Above, since, resources: BTreeMap::new() }
    }

    /// The server is the master from `since` on, and has to learn all leases.
    pub(crate) fn begin(&mut self, since: Timestamp) {
        self.since = since;
        self.resources.clear();
    }

    /// Other templates from now on; leases stay. Those of a server above are no affair of the file.
    pub(crate) fn reload(&mut self, templates: Option<Repository>) {
        if matches!(self.source, Source::Above) {
            return;
        }
        let source = templates.map_or(Source::Nobody, Source::Templates);
        match &source {
            Source::Nobody | Source::Above => self.resources.clear(),
            Source::Templates(templates) => {
                for (name, resource) in &mut self.resources {
                    let template = templates.find(name);
                    if resource.template() != template {
                        resource.reconfigure(template.clone());
                    }
                }
            }
        }
        self.source = source;
    }

    /// Whether the server above has yet to say how one of these is shared out.
    pub(crate) fn is_unheard<'a>(&self, mut names: impl Iterator<Item = &'a str>) -> bool {
        names.any(|name| self.resources.get(name).is_some_and(|found| !found.is_heard()))
    }

    /// When to ask the server above, if there is anything to ask for.
    pub(crate) fn next_ask(&self) -> Option<Timestamp> {
        self.resources.values().filter_map(Resource::next_ask).min()
    }

    /// What to ask it for now: what has been due for longest, so that none waits behind others that
    /// are asked for in vain.
    pub(crate) fn asks(&mut self, moment: Moment) -> Asks {
        let mut asks = Asks { since: self.since, at: moment.now, ..Asks::default() };
        let due = self.resources.iter().filter_map(|(name, resource)| {
            let at = resource.next_ask().filter(|at| *at <= moment.now)?;
            Some((at, name.clone()))
        });
        let mut due: Vec<(Timestamp, String)> = due.collect();
        due.sort_unstable();
        due.truncate(ASKS_MAX);
        for (_, name) in due {
            let Some(resource) = self.resources.get_mut(&name) else { continue };
            let Ask { has, bands } = resource.ask(moment.now);
            if resource.clients() == 0 {
                self.resources.remove(&name);
                asks.gone.push(name);
                continue;
            }
            let wants = bands.into_iter().map(|band| wire::PriorityBandAggregate {
                priority: band.priority,
                num_clients: i64::try_from(band.clients).unwrap_or(i64::MAX),
                wants: band.wants,
            });
            asks.resources.push(wire::ServerCapacityResourceRequest {
                resource_id: name,
                has: has.map(|has| moment.write(&has)),
                wants: wants.collect(),
            });
        }
        asks
    }

    /// What it has answered. Resources of which it says nothing are asked for again.
    pub(crate) fn hear(
        &mut self,
        asked: &Asks,
        answer: &wire::GetServerCapacityResponse,
        moment: Moment,
    ) {
        if asked.since != self.since {
            return;
        }
        for response in &answer.response {
            if let Some(resource) = self.resources.get_mut(&response.resource_id) {
                resource.hear(&provision(response, asked.at, moment), moment.now);
            }
        }
    }

    /// Resources that are refused are left out of the answer: many are asked for at once, and the
    /// others are not to end over one. If none is left, whoever asks hears why.
    pub(crate) fn get(
        &mut self,
        request: &wire::GetCapacityRequest,
        lessee: &str,
        moment: Moment,
    ) -> Result<wire::GetCapacityResponse, Status> {
        check_name("client_id", &request.client_id)?;
        let mut refused = None;
        let mut response = Vec::with_capacity(request.resource.len());
        for wanted in &request.resource {
            let has = wanted.has.as_ref().map(|has| moment.read(has));
            let asked = Request::client(wanted.wants, wanted.priority).with_has(has);
            match self.lease(&wanted.resource_id, lessee, &asked, moment) {
                Ok((resource, gets)) => response.push(wire::ResourceResponse {
                    resource_id: wanted.resource_id.clone(),
                    gets,
                    safe_capacity: resource.is_heard().then(|| resource.safe_capacity()),
                }),
                Err(status) => {
                    refused.get_or_insert(status);
                }
            }
        }
        match refused {
            Some(status) if response.is_empty() => Err(status),
            _ => Ok(wire::GetCapacityResponse { response, mastership: None }),
        }
    }

    /// The same for a server, which asks for many clients.
    pub(crate) fn get_for_server(
        &mut self,
        request: &wire::GetServerCapacityRequest,
        lessee: &str,
        moment: Moment,
    ) -> Result<wire::GetServerCapacityResponse, Status> {
        check_name("server_id", &request.server_id)?;
        let mut refused = None;
        let mut response = Vec::with_capacity(request.resource.len());
        for wanted in &request.resource {
            let has = wanted.has.as_ref().map(|has| moment.read(has));
            let bands = wanted.wants.iter().map(|band| Band {
                priority: band.priority,
                clients: u64::try_from(band.num_clients).unwrap_or(0),
                wants: band.wants,
            });
            let asked = Request::server(bands).with_has(has);
            let leased = self.lease(&wanted.resource_id, lessee, &asked, moment);
            let (resource, lease) = match leased {
                Ok(leased) => leased,
                Err(status) => {
                    refused.get_or_insert(status);
                    continue;
                }
            };
            let algorithm = resource.template().algorithm();
            let secs = |span: Duration| i64::try_from(span.as_secs()).unwrap_or(i64::MAX);
            response.push(wire::ServerCapacityResourceResponse {
                resource_id: wanted.resource_id.clone(),
                gets: lease,
                algorithm: Some(wire::Algorithm {
                    kind: algorithm.kind().number(),
                    lease_length: secs(algorithm.lease_length()),
                    refresh_interval: secs(algorithm.refresh_interval()),
                    parameters: Vec::new(),
                    learning_mode_duration: Some(secs(algorithm.learning_duration())),
                }),
                safe_capacity: resource.is_heard().then(|| resource.safe_capacity()),
            });
        }
        match refused {
            Some(status) if response.is_empty() => Err(status),
            _ => Ok(wire::GetServerCapacityResponse { response, mastership: None }),
        }
    }

    /// Old clients release resources without a name, and what they never had: that is fine.
    pub(crate) fn release(&mut self, name: &str, lessee: &str) {
        if let Some(resource) = self.resources.get_mut(name) {
            resource.release(lessee);
        }
    }

    /// A lease of a resource, for somebody who may.
    fn lease(
        &mut self,
        name: &str,
        lessee: &str,
        asked: &Request,
        moment: Moment,
    ) -> Result<(&Resource, wire::Lease), Status> {
        let resource = self.resource(name, moment.now)?;
        let lease = resource.decide(lessee, asked, moment.now);
        let lease = lease.map_err(|full| Status::resource_exhausted(full.to_string()))?;
        Ok((resource, moment.write(&lease)))
    }

    fn resource(&mut self, name: &str, now: Timestamp) -> Result<&mut Resource, Status> {
        if matches!(self.source, Source::Nobody) {
            return Err(Status::unimplemented("there is no `doorman` in the server's file"));
        }
        check_name("resource_id", name)?;
        if !self.resources.contains_key(name) {
            if self.resources.len() >= RESOURCES_MAX {
                self.resources.retain(|_, resource| {
                    resource.expire(now);
                    resource.clients() > 0
                });
            }
            if self.resources.len() >= RESOURCES_MAX {
                let what = format!("there are {RESOURCES_MAX} resources with leases already");
                return Err(Status::resource_exhausted(what));
            }
        }
        let new = || match &self.source {
            Source::Templates(templates) => {
                Resource::new(templates.find(name).clone(), self.since, CLIENTS_MAX)
            }
            Source::Above | Source::Nobody => Resource::below(self.since, CLIENTS_MAX),
        };
        Ok(self.resources.entry(name.to_owned()).or_insert_with(new))
    }
}

/// What a server above has said of a resource. Who leaves the algorithm out means what its lease
/// says, shared out fairly. It may have begun as soon as it was asked for, and lasts no longer than
/// it says from then on, however far the two servers are apart in what they take the time for.
fn provision(
    response: &wire::ServerCapacityResourceResponse,
    asked_at: Timestamp,
    moment: Moment,
) -> Provision {
    let gets = &response.gets;
    let left = gets.expiry_time.saturating_sub(moment.wall);
    let unsaid = AlgorithmDraft::new(Kind::FairShare, left, gets.refresh_interval);
    let said = response.algorithm.as_ref().map(|said| {
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == said.kind);
        AlgorithmDraft {
            kind: kind.unwrap_or(Kind::FairShare),
            lease_length: said.lease_length,
            refresh_interval: said.refresh_interval,
            learning_mode_duration: said.learning_mode_duration,
        }
    });
    let algorithm = Algorithm::from_above(said.unwrap_or(unsaid));
    let mut lease = moment.read(gets);
    lease.expiry = lease.expiry.min(asked_at + algorithm.lease_length());
    Provision { lease, algorithm, safe: response.safe_capacity }
}

fn check_name(what: &str, name: &str) -> Result<(), Status> {
    if (1..=NAME_MAX).contains(&name.len()) {
        return Ok(());
    }
    let found = name.len();
    Err(Status::invalid_argument(format!("{what} has {found} bytes: 1 to {NAME_MAX} are right")))
}

#[cfg(test)]
mod tests;
