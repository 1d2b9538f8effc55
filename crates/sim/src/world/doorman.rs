//! Clients whose rate is leased to them.
//!
//! Every task of such a group asks a server (`tidegate_core::doorman`) for what it wants, sends no
//! more than its lease, asks again after the refresh interval, and falls back to the safe capacity
//! when its lease has ended unrefreshed. The world begins with a master that has learned; another
//! one that takes over has to learn first.

use super::record::DoormanSecond;
use super::spec::{DoormanSpec, WorldError};
use super::{Event, World};
use crate::dice;
use core::time::Duration;
use tidegate_core::Timestamp;
use tidegate_core::doorman::{
    AlgorithmDraft, Draft, Lease, Repository, Request, Resource, Template,
};
use tidegate_core::rng::Rng;

/// The most clients of a server.
const CLIENTS_MAX: usize = 1 << 20;
/// Requests that a client may save up, at the least; else a second's worth. With one alone, and
/// twice as much wanted as leased, a third of the lease would go unused: `1 / (1/r + 1/2r)`.
const BURST_MIN: f64 = 5.0;

#[derive(Debug)]
pub(super) struct Server {
    spec: DoormanSpec,
    resource: Resource,
    lost: bool,
}

/// One client task of a server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tenant {
    lease: Option<Lease>,
    /// Requests a second when there is no lease; below zero is any number.
    safe: f64,
    /// What the server has answered and the client has yet to hear.
    coming: Option<(Lease, f64)>,
    tokens: f64,
    last: Timestamp,
}

impl Tenant {
    const NEW: Self =
        Self { lease: None, safe: 0.0, coming: None, tokens: 0.0, last: Timestamp::ZERO };

    /// Earns what the time since the last look is worth, and says at which rate.
    fn earn(&mut self, now: Timestamp) -> f64 {
        let rate = self.leased(now).unwrap_or(self.safe);
        let earned = now.since(self.last).as_secs_f64() * rate.max(0.0);
        self.last = now;
        self.tokens = (self.tokens + earned).min(rate.max(BURST_MIN));
        rate
    }

    fn leased(&self, now: Timestamp) -> Option<f64> {
        self.lease.filter(|lease| now < lease.expiry).map(|lease| lease.capacity)
    }

    /// Whether it may send a request.
    pub(super) fn allows(&mut self, now: Timestamp) -> bool {
        if self.earn(now) < 0.0 {
            return true;
        }
        let allowed = self.tokens >= 1.0;
        if allowed {
            self.tokens -= 1.0;
        }
        allowed
    }
}

fn template(spec: &DoormanSpec, learning: Option<i64>) -> Result<Template, WorldError> {
    let algorithm = AlgorithmDraft {
        learning_mode_duration: learning,
        ..AlgorithmDraft::new(spec.kind, spec.lease_length, spec.refresh_interval)
    };
    let mut draft = Draft::new("*", spec.capacity).with_algorithm(algorithm);
    draft.safe_capacity = spec.safe_capacity;
    Ok(Repository::new(&[draft])?.find("rate").clone())
}

impl World {
    pub(super) fn make_doormen(&mut self) -> Result<(), WorldError> {
        for spec in &self.spec.doormen {
            // Checked now, so that an election cannot fail.
            template(spec, spec.learning)?;
            let resource = Resource::new(template(spec, Some(-1))?, Timestamp::ZERO, CLIENTS_MAX);
            self.doormen.push(Server { spec: *spec, resource, lost: false });
        }
        self.record.doormen = vec![Vec::new(); self.doormen.len()];
        for group in 0..self.groups.len() {
            let client = &self.spec.clients[group];
            let Some(server) = client.doorman.and_then(|server| self.doormen.get(server)) else {
                continue;
            };
            let interval = server.spec.refresh_interval as f64;
            self.groups[group].tenants = vec![Tenant::NEW; client.tasks as usize];
            for task in 0..client.tasks {
                // Everyone asks at once, as after a power cut, and later spread out.
                let first = Timestamp::ZERO + dice::seconds(interval * self.asking.dice().unit());
                self.queue.push(first, Event::Lease { group: group as u32, task });
            }
        }
        Ok(())
    }

    /// A client's request for a lease has reached its server.
    pub(super) fn lease(&mut self, group: u32, task: u32) {
        let client = &self.spec.clients[group as usize];
        let Some(server) = client.doorman.and_then(|server| self.doormen.get_mut(server)) else {
            return;
        };
        let refresh = server.resource.template().algorithm().refresh_interval();
        if server.lost {
            self.queue.push(self.now + refresh, Event::Lease { group, task });
            return;
        }
        let state = &mut self.groups[group as usize];
        let wants = state.rate / f64::from(client.tasks.max(1));
        let tenant = &mut state.tenants[task as usize];
        let request = Request::client(wants, 1).with_has(tenant.lease);
        // There is room for a million clients.
        if let Ok(lease) = server.resource.decide(&format!("{group}/{task}"), &request, self.now) {
            tenant.coming = Some((lease, server.resource.safe_capacity()));
            self.queue.push(self.now + server.spec.latency, Event::Leased { group, task });
        }
    }

    pub(super) fn leased(&mut self, group: u32, task: u32) {
        let client = &self.spec.clients[group as usize];
        let tenant = &mut self.groups[group as usize].tenants[task as usize];
        let Some((lease, safe)) = tenant.coming.take() else { return };
        // What was earned before was earned at the rate before.
        tenant.earn(self.now);
        (tenant.lease, tenant.safe) = (Some(lease), safe);
        let latency = client.doorman.map_or(Duration::ZERO, |s| self.spec.doormen[s].latency);
        self.queue.push(self.now + lease.refresh_interval + latency, Event::Lease { group, task });
    }

    pub(super) fn doorman_lost(&mut self, server: usize, lost: bool) {
        if let Some(server) = self.doormen.get_mut(server) {
            server.lost = lost;
        }
    }

    pub(super) fn doorman_election(&mut self, server: usize) {
        if let Some(server) = self.doormen.get_mut(server)
            && let Ok(template) = template(&server.spec, server.spec.learning)
        {
            server.resource = Resource::new(template, self.now, CLIENTS_MAX);
        }
    }

    pub(super) fn doorman_capacity(&mut self, server: usize, capacity: f64) {
        if let Some(server) = self.doormen.get_mut(server) {
            server.spec.capacity = capacity;
            server.resource.set_capacity(capacity);
        }
    }

    pub(super) fn doorman_second(&mut self) {
        for (index, server) in self.doormen.iter().enumerate() {
            let mut second =
                DoormanSecond { capacity: server.spec.capacity as f32, ..DoormanSecond::default() };
            for (group, client) in self.groups.iter().zip(&self.spec.clients) {
                if client.doorman == Some(index) {
                    second.wanted += group.rate as f32;
                    let leases = group.tenants.iter().filter_map(|t| t.leased(self.now));
                    second.leased += leases.sum::<f64>() as f32;
                }
            }
            self.record.doormen[index].push(second);
        }
    }
}
