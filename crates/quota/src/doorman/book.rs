//! The resources of a master, and their leases.
//!
//! A resource comes to be when somebody asks for it, by the template that fits its name, and goes
//! when nobody has a lease of it and its place is needed. Times on the wire are seconds since 1970;
//! leases are kept by the clock that never goes back, so setting the other one ends none of them.
//!
//! **Bounds.** Names have 1,024 bytes, there are so many resources and so many clients of each;
//! whoever comes on top is refused and keeps its safe capacity.

use crate::access::Caller;
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::Timestamp;
use tidegate_core::doorman::{Band, Lease, Repository, Request, Resource};
use tidegate_wire::proto::doorman as wire;
use tonic::Status;

/// A thousand times what the largest installations had.
const RESOURCES_MAX: usize = 1 << 14;
/// Clients of one resource: each has some 200 bytes.
const CLIENTS_MAX: usize = 1 << 16;
const NAME_MAX: usize = 1_024;
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
            refresh_interval: Duration::ZERO,
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

/// All resources of a master.
#[derive(Debug)]
pub(crate) struct Book {
    templates: Option<Repository>,
    since: Timestamp,
    resources: BTreeMap<String, Resource>,
}

impl Book {
    /// That of a server which is the master from `since` on.
    pub(crate) fn new(templates: Option<Repository>, since: Timestamp) -> Self {
        Self { templates, since, resources: BTreeMap::new() }
    }

    /// The server is the master from `since` on, and has to learn all leases.
    pub(crate) fn begin(&mut self, since: Timestamp) {
        self.since = since;
        self.resources.clear();
    }

    /// Other templates from now on; leases stay.
    pub(crate) fn reload(&mut self, templates: Option<Repository>) {
        match &templates {
            None => self.resources.clear(),
            Some(templates) => {
                for (name, resource) in &mut self.resources {
                    let template = templates.find(name);
                    if resource.template() != template {
                        resource.reconfigure(template.clone());
                    }
                }
            }
        }
        self.templates = templates;
    }

    pub(crate) fn get(
        &mut self,
        request: &wire::GetCapacityRequest,
        caller: &Caller,
        moment: Moment,
    ) -> Result<wire::GetCapacityResponse, Status> {
        check_name("client_id", &request.client_id)?;
        let lessee = caller.lessee(&request.client_id);
        let mut response = Vec::with_capacity(request.resource.len());
        for wanted in &request.resource {
            let has = wanted.has.as_ref().map(|has| moment.read(has));
            let asked = Request::client(wanted.wants, wanted.priority).with_has(has);
            let resource = self.resource(&wanted.resource_id, moment.now)?;
            let lease = decide(resource, &lessee, &asked, moment)?;
            response.push(wire::ResourceResponse {
                resource_id: wanted.resource_id.clone(),
                gets: lease,
                safe_capacity: Some(resource.safe_capacity()),
            });
        }
        Ok(wire::GetCapacityResponse { response, mastership: None })
    }

    pub(crate) fn get_for_server(
        &mut self,
        request: &wire::GetServerCapacityRequest,
        caller: &Caller,
        moment: Moment,
    ) -> Result<wire::GetServerCapacityResponse, Status> {
        check_name("server_id", &request.server_id)?;
        let lessee = caller.lessee(&request.server_id);
        let mut response = Vec::with_capacity(request.resource.len());
        for wanted in &request.resource {
            let has = wanted.has.as_ref().map(|has| moment.read(has));
            let bands = wanted.wants.iter().map(|band| Band {
                priority: band.priority,
                clients: u64::try_from(band.num_clients).unwrap_or(0),
                wants: band.wants,
            });
            let asked = Request::server(bands).with_has(has);
            let resource = self.resource(&wanted.resource_id, moment.now)?;
            let lease = decide(resource, &lessee, &asked, moment)?;
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
                safe_capacity: Some(resource.safe_capacity()),
            });
        }
        Ok(wire::GetServerCapacityResponse { response, mastership: None })
    }

    /// Old clients release resources without a name, and what they never had: that is fine.
    pub(crate) fn release(&mut self, request: &wire::ReleaseCapacityRequest, caller: &Caller) {
        let lessee = caller.lessee(&request.client_id);
        for name in &request.resource_id {
            if let Some(resource) = self.resources.get_mut(name) {
                resource.release(&lessee);
            }
        }
    }

    fn resource(&mut self, name: &str, now: Timestamp) -> Result<&mut Resource, Status> {
        let Some(templates) = &self.templates else {
            return Err(Status::unimplemented("there is no `doorman` in the server's file"));
        };
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
        let new = || Resource::new(templates.find(name).clone(), self.since, CLIENTS_MAX);
        Ok(self.resources.entry(name.to_owned()).or_insert_with(new))
    }
}

fn decide(
    resource: &mut Resource,
    client: &str,
    request: &Request,
    moment: Moment,
) -> Result<wire::Lease, Status> {
    let lease = resource.decide(client, request, moment.now);
    let lease = lease.map_err(|full| Status::resource_exhausted(full.to_string()))?;
    Ok(moment.write(&lease))
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
