//! What travels between tasks and the server: reports up, answers, grants and news down.

use crate::slab::Key;
use crate::world::{Event, World};
use tidegate_core::fleet::{Change, FailStatic, Generation, Limits, TaskId, Usage};
use tidegate_core::{CostRate, CustomerId, Timestamp};

/// What travels between tasks and the server.
#[derive(Debug)]
pub(super) enum Letter {
    Report {
        backend: u32,
        sent: Timestamp,
        /// The stream broke since the last one.
        resumes: bool,
        id: Option<TaskId>,
        acked: Option<Generation>,
        usages: Vec<Usage>,
    },
    Answer {
        backend: u32,
        sent: Timestamp,
        id: TaskId,
        /// The task joined anew with this report.
        joined: bool,
        /// With the first answer on a stream: what it may use without a grant, by customer.
        unseen: Option<Vec<Limits>>,
    },
    Grant {
        backend: u32,
        change: Change,
        answered: Timestamp,
    },
    Unseen {
        backend: u32,
        unseen: Vec<Limits>,
    },
}

impl World {
    /// A task reports, and enforces what is now right.
    pub(in crate::world) fn report(&mut self, number: u32) {
        let Some(server) = &mut self.quota else { return };
        self.queue.push(self.now + server.spec.report_every, Event::Report { backend: number });
        let backend = &self.backends[number as usize];
        let (Some(gate), Some(member)) = (backend.gate(), &mut server.members[number as usize])
        else {
            return;
        };
        if backend.down {
            return;
        }
        let mut usages: Vec<Usage> = Vec::new();
        member.meter.collect(gate.quota(), self.now, |customer, usage| {
            usages.push(Usage { customer, used: usage.used, demand: usage.wanted, has: None });
        });
        for (customer, held) in member.held.iter().enumerate() {
            // What this leader granted it knows.
            let known = held.grant.generation().map(|generation| generation.epoch);
            if held.revoked || known == Some(server.epoch) {
                continue;
            }
            let id = CustomerId(customer as u32);
            let has = Some(held.grant.holds(self.now));
            match usages.iter_mut().find(|usage| usage.customer == id) {
                Some(usage) => usage.has = has,
                None => usages.push(Usage {
                    customer: id,
                    used: [CostRate::ZERO; 4],
                    demand: [CostRate::ZERO; 4],
                    has,
                }),
            }
        }
        usages.sort_by_key(|usage| usage.customer);
        let letter = Letter::Report {
            backend: number,
            sent: self.now,
            resumes: core::mem::take(&mut member.broken),
            id: member.id,
            acked: member.acked,
            usages,
        };
        let letter = server.letters.insert(letter);
        self.queue.push(self.now + server.spec.latency, Event::Letter { letter });
        self.enforce(number);
    }

    /// A letter arrives.
    pub(in crate::world) fn letter(&mut self, key: Key) {
        let Some(server) = &mut self.quota else { return };
        let Some(letter) = server.letters.remove(key) else { return };
        if server.lost {
            if let Letter::Report { backend, .. } = letter
                && let Some(member) = &mut server.members[backend as usize]
            {
                member.broken = true;
            }
            return;
        }
        let now = self.now;
        match letter {
            Letter::Report { backend, sent, resumes, id, acked, usages } => {
                let service = self.backends[backend as usize].service;
                let clock = server.clock(now);
                let Some(book) = &mut server.books[service] else { return };
                let fleet = &mut book.fleet;
                let known = id.filter(|&id| !resumes || fleet.resume(id, clock).is_ok());
                let mut joined = false;
                let customers = server.limits.len();
                let mut report = known.map(|id| (id, fleet.report(id, acked, &usages, clock)));
                if !matches!(report, Some((_, Ok(_)))) {
                    joined = true;
                    report = fleet
                        .join(&format!("t{backend}"), 1, clock)
                        .ok()
                        .map(|id| (id, fleet.report(id, None, &usages, clock)));
                }
                let Some((id, Ok(answer))) = report else { return };
                book.backends.insert(id, backend);
                if !answer.renewed {
                    return;
                }
                if let Some(member) = &mut server.members[backend as usize] {
                    member.answered = member.answered.max(sent);
                }
                let unseen = (resumes || joined).then(|| book.unseen(customers));
                let answer = Letter::Answer { backend, sent, id, joined, unseen };
                let letter = server.letters.insert(answer);
                self.queue.push(now + server.spec.latency, Event::Letter { letter });
            }
            Letter::Answer { backend, sent, id, joined, unseen } => {
                let Some(member) = &mut server.members[backend as usize] else { return };
                member.id = Some(id);
                member.learn_unseen(unseen.as_deref().unwrap_or_default());
                for held in &mut member.held {
                    if joined {
                        held.grant.rejoin(id.epoch());
                    }
                    held.grant.renew(sent, now);
                }
                self.enforce(backend);
            }
            Letter::Grant { backend, change, answered } => {
                let silence = server.spec.fleet.silence;
                let Some(member) = &mut server.members[backend as usize] else { return };
                let Change { customer, generation, limits, safe, revoked, .. } = change;
                if let Some(held) = member.held.get_mut(customer.index())
                    && held.grant.grant(generation, limits, safe, answered, now)
                {
                    held.revoked = revoked;
                    if revoked {
                        held.grant = FailStatic::new(silence, limits);
                    }
                }
                member.acked = member.acked.max(Some(generation));
                self.enforce(backend);
            }
            Letter::Unseen { backend, unseen } => {
                let Some(member) = &mut server.members[backend as usize] else { return };
                member.learn_unseen(&unseen);
                self.enforce(backend);
            }
        }
    }

    /// The server divides.
    pub(in crate::world) fn quota_round(&mut self) {
        let Some(server) = &mut self.quota else { return };
        self.queue.push(self.now + server.spec.round_every, Event::QuotaRound);
        let (clock, arrival) = (server.clock(self.now), self.now + server.spec.latency);
        for book in server.books.iter_mut().flatten() {
            let round = book.fleet.tick(clock, &mut server.scratch);
            for change in server.scratch.drain(..) {
                let Some(&backend) = book.backends.get(&change.task) else { continue };
                let Some(member) = &server.members[backend as usize] else { continue };
                let letter = Letter::Grant { backend, change, answered: member.answered };
                let letter = server.letters.insert(letter);
                self.queue.push(arrival, Event::Letter { letter });
            }
            if round.unseen | core::mem::take(&mut book.news) {
                let unseen = book.unseen(server.limits.len());
                for &backend in book.backends.values() {
                    let letter = Letter::Unseen { backend, unseen: unseen.clone() };
                    let letter = server.letters.insert(letter);
                    self.queue.push(arrival, Event::Letter { letter });
                }
            }
            // Names of processes that are gone.
            if book.backends.len() > 2 * server.members.len() + 16 {
                let members = &server.members;
                book.backends.retain(|id, backend| {
                    members[*backend as usize].as_ref().is_some_and(|m| m.id == Some(*id))
                });
            }
        }
    }
}
