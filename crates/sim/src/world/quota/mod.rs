//! The quota server and what its tasks tell it, letter by letter.
//!
//! Each protected service is a fleet of its own: a customer's limits hold for its tasks together.
//! Tasks report use and demand, the server (`tidegate_core::fleet`) divides, grants travel back,
//! and `FailStatic` at each task says what to enforce, whatever becomes of the server.
//!
//! The world begins with a server that has led for a while and tasks that hold equal parts, as if
//! granted by the leader before: a story is about what changes, not about how a fleet starts.

mod letters;
mod server;
#[cfg(test)]
mod tests;

pub(super) use server::QuotaServer;

use super::spec::WorldError;
use super::{Event, World};
use crate::slab::Slab;
use core::time::Duration;
use tidegate_core::fleet::{FailStatic, Generation, Limits, TaskId};
use tidegate_core::quota::UsageMeter;
use tidegate_core::rng::Rng;
use tidegate_core::{CostRate, CustomerId, Timestamp};

/// The quota of one customer at one task.
#[derive(Debug)]
struct Held {
    grant: FailStatic,
    /// What the gate has been told.
    enforced: Limits,
    /// The server has forgotten that the task has to do with the customer.
    revoked: bool,
}

/// A task's end of its stream.
#[derive(Debug)]
struct Member {
    service: usize,
    id: Option<TaskId>,
    broken: bool,
    acked: Option<Generation>,
    meter: UsageMeter,
    held: Vec<Held>,
    /// When it sent the last report that the server answered, as the server knows it.
    answered: Timestamp,
}

impl Member {
    fn learn_unseen(&mut self, unseen: &[Limits]) {
        for (held, unseen) in self.held.iter_mut().zip(unseen) {
            held.grant.set_unseen(*unseen);
        }
    }
}

impl World {
    pub(super) fn make_quota_server(&mut self) -> Result<(), WorldError> {
        let Some(spec) = self.spec.quota_server.clone() else { return Ok(()) };
        let mut server = QuotaServer {
            spec,
            lost: false,
            epoch: 1,
            books: Vec::new(),
            members: Vec::new(),
            letters: Slab::new(),
            limits: self.spec.customers.clone(),
            scratch: Vec::new(),
        };
        for of in &self.spec.services {
            let book = of.admission.as_ref().map(|_| server.book(Timestamp::ZERO));
            server.books.push(book.transpose()?);
        }
        for number in 0..self.backends.len() {
            let member = self.quota_member(&server, number, true);
            if member.is_some() {
                let every = server.spec.report_every.as_nanos() as u64;
                // The first report is of a whole interval: a rate over less says little.
                let first = Duration::from_nanos(every + self.machines.below(every));
                let report = Event::Report { backend: number as u32 };
                self.queue.push(Timestamp::ZERO + first, report);
            }
            server.members.push(member);
        }
        server.warm_up();
        self.queue.push(Timestamp::ZERO + server.spec.round_every, Event::QuotaRound);
        self.record.quota = vec![Vec::new(); server.limits.len()];
        self.quota = Some(Box::new(server));
        for number in 0..self.backends.len() {
            self.enforce(number as u32);
        }
        Ok(())
    }

    /// A task that has just begun to talk to the server; `known` if it has done so before this
    /// world began.
    fn quota_member(&self, server: &QuotaServer, number: usize, known: bool) -> Option<Member> {
        let backend = &self.backends[number];
        let gate = backend.gate()?;
        let book = server.books[backend.service].as_ref()?;
        let silence = server.spec.fleet.silence;
        let tasks = self.spec.services[backend.service].tasks.len() as u64;
        let held = |customer: usize| {
            let unseen = book.fleet.unseen(CustomerId(customer as u32));
            let mut grant = FailStatic::new(silence, unseen);
            if known {
                let part = equal_part(server.limits[customer], tasks);
                let safe = server.spec.fleet.safe;
                let safe = Limits::clamped(part.as_array().map(|rate| match rate {
                    CostRate::MAX => rate,
                    _ => CostRate::from_nanos_per_sec(safe.share_of(rate.as_nanos_per_sec())),
                }));
                let before = Generation { epoch: 0, number: 1 };
                grant.grant(before, part, safe, self.now, self.now);
            }
            let enforced = grant.enforced(self.now);
            gate.quota().set_limits(CustomerId(customer as u32), enforced, self.now);
            Held { grant, enforced, revoked: !known }
        };
        Some(Member {
            service: backend.service,
            id: None,
            broken: false,
            acked: None,
            meter: UsageMeter::new(gate.quota(), self.now),
            held: (0..server.limits.len()).map(held).collect(),
            answered: self.now,
        })
    }

    /// A task was restarted: the server has yet to hear of it.
    pub(super) fn quota_restart(&mut self, number: u32) {
        let Some(mut server) = self.quota.take() else { return };
        server.members[number as usize] = self.quota_member(&server, number as usize, false);
        self.quota = Some(server);
    }

    pub(super) fn quota_lost(&mut self, lost: bool) {
        if let Some(server) = &mut self.quota {
            server.lost = lost;
            server.break_streams();
        }
    }

    pub(super) fn quota_election(&mut self) {
        if let Some(server) = &mut self.quota {
            // The configuration was checked when the world was made.
            let _ = server.elect(self.now);
        }
    }

    pub(super) fn quota_limits(&mut self, customer: usize, limits: Limits) {
        let Some(server) = &mut self.quota else { return };
        let Some(place) = server.limits.get_mut(customer) else { return };
        *place = limits;
        for book in server.books.iter_mut().flatten() {
            book.news = true;
            if customer == 0 {
                book.fleet.set_default(limits);
            } else {
                let _ = book.fleet.set_customer(&format!("c{customer}"), limits);
            }
        }
    }

    /// Tells a task's gate what to enforce, where that has changed.
    fn enforce(&mut self, number: u32) {
        let Some(server) = &mut self.quota else { return };
        let (Some(gate), Some(member)) =
            (self.backends[number as usize].gate(), &mut server.members[number as usize])
        else {
            return;
        };
        for (customer, held) in member.held.iter_mut().enumerate() {
            let limits = held.grant.enforced(self.now);
            if limits != held.enforced {
                held.enforced = limits;
                gate.quota().set_limits(CustomerId(customer as u32), limits, self.now);
            }
        }
    }

    /// Writes down who may use how much, for all services together.
    pub(super) fn quota_second(&mut self) {
        let Some(server) = &self.quota else { return };
        for (customer, column) in self.record.quota.iter_mut().enumerate() {
            let mut second = super::record::QuotaSecond {
                limit: server.limits[customer].whole().as_cpus() as f32,
                ..Default::default()
            };
            let cpus = |rates: [CostRate; 4]| rates.iter().map(|r| r.as_cpus()).sum::<f64>() as f32;
            for book in server.books.iter().flatten() {
                if let Some(status) = book.fleet.status(CustomerId(customer as u32)) {
                    second.used += cpus(status.used);
                    second.demand += cpus(status.demand);
                }
            }
            for member in server.members.iter().flatten() {
                second.enforced += member.held[customer].enforced.whole().as_cpus() as f32;
            }
            column.push(second);
        }
    }
}

/// One of `tasks` equal parts; no limit has no parts.
pub(super) fn equal_part(limits: Limits, tasks: u64) -> Limits {
    Limits::clamped(limits.as_array().map(|rate| match rate {
        CostRate::MAX => rate,
        _ => CostRate::from_nanos_per_sec(rate.as_nanos_per_sec() / tasks.max(1)),
    }))
}
