//! The quota server itself: a book for each service, and its streams.

use super::letters::Letter;
use super::{Held, Member};
use crate::slab::Slab;
use crate::world::spec::{QuotaServerSpec, WorldError};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::{Change, Fleet, Limits, TaskId, Usage};
use tidegate_core::{CostRate, CustomerId, Timestamp};

/// How long the first leader has led after it learned: several reports of every task.
const WARM_UP: Duration = Duration::from_secs(10);

/// One service's fleet.
#[derive(Debug)]
pub(super) struct Book {
    pub(super) fleet: Fleet,
    pub(super) backends: BTreeMap<TaskId, u32>,
    /// Tasks have to be told anew what they may use without a grant.
    pub(super) news: bool,
}

impl Book {
    pub(super) fn unseen(&self, customers: usize) -> Vec<Limits> {
        (0..customers).map(|customer| self.fleet.unseen(CustomerId(customer as u32))).collect()
    }
}

/// A quota server and everyone who talks to it.
#[derive(Debug)]
pub(in crate::world) struct QuotaServer {
    pub(super) spec: QuotaServerSpec,
    pub(super) lost: bool,
    pub(super) epoch: u64,
    /// By service; none where nobody would enforce anything.
    pub(super) books: Vec<Option<Book>>,
    /// By backend.
    pub(super) members: Vec<Option<Member>>,
    pub(super) letters: Slab<Letter>,
    pub(super) limits: Vec<Limits>,
    pub(super) scratch: Vec<Change>,
}

impl QuotaServer {
    /// The server's clock runs ahead by what happened before the world began.
    pub(super) fn clock(&self, now: Timestamp) -> Timestamp {
        now + self.spec.fleet.learning + WARM_UP
    }

    /// What happened before the world began: the first leader learned that everyone has an equal
    /// part of every limit, and granted that much to those who use it all.
    pub(super) fn warm_up(&mut self) {
        let Self { spec, books, members, scratch, .. } = self;
        let mut clock = Timestamp::ZERO;
        let end = clock + spec.fleet.learning + WARM_UP;
        while clock < end {
            for (number, member) in members.iter_mut().enumerate() {
                let Some(member) = member else { continue };
                let Some(book) = &mut books[member.service] else { continue };
                let id = match member.id {
                    Some(id) => id,
                    None => match book.fleet.join(&format!("t{number}"), 1, clock) {
                        Ok(id) => id,
                        Err(_) => continue,
                    },
                };
                member.id = Some(id);
                book.backends.insert(id, number as u32);
                let usage = |(customer, held): (usize, &Held)| {
                    let part = held.grant.holds(Timestamp::ZERO);
                    // Of the lowest criticality, which counts towards the limits of all: caps of
                    // levels that nobody wants anything of would be low.
                    let mut wants = [CostRate::ZERO; 4];
                    wants[0] = if part.whole() == CostRate::MAX { wants[0] } else { part.whole() };
                    let customer = CustomerId(customer as u32);
                    Usage { customer, used: wants, demand: wants, has: Some(part) }
                };
                let usages: Vec<Usage> = member.held.iter().enumerate().map(usage).collect();
                let _ = book.fleet.report(id, member.acked, usages, clock);
            }
            for book in books.iter_mut().flatten() {
                book.fleet.tick(clock, scratch);
                for change in scratch.drain(..) {
                    let number = book.backends.get(&change.task).copied();
                    let member = number.and_then(|n| members[n as usize].as_mut());
                    let Some(member) = member else { continue };
                    let Change { customer, generation, limits, safe, revoked, .. } = change;
                    let zero = Timestamp::ZERO;
                    if let Some(held) = member.held.get_mut(customer.index()) {
                        held.grant.grant(generation, limits, safe, zero, zero);
                        held.revoked = revoked;
                    }
                    member.acked = member.acked.max(Some(generation));
                }
            }
            clock += spec.report_every;
        }
        for member in members.iter_mut().flatten() {
            if let Some(book) = &books[member.service] {
                member.learn_unseen(&book.unseen(member.held.len()));
            }
        }
    }

    pub(super) fn book(&self, since: Timestamp) -> Result<Book, WorldError> {
        let default = self.limits.first().copied().unwrap_or(Limits::UNLIMITED);
        let mut config = self.spec.fleet.clone();
        config.customers_max = config.customers_max.max(self.limits.len());
        let mut fleet = Fleet::new(config, self.epoch, default, since)?;
        for (customer, limits) in self.limits.iter().enumerate().skip(1) {
            // There is room for all: the configuration was made so.
            let _ = fleet.set_customer(&format!("c{customer}"), *limits);
        }
        Ok(Book { fleet, backends: BTreeMap::new(), news: false })
    }

    pub(super) fn elect(&mut self, now: Timestamp) -> Result<(), WorldError> {
        self.epoch += 1;
        let since = self.clock(now);
        for service in 0..self.books.len() {
            if self.books[service].is_some() {
                self.books[service] = Some(self.book(since)?);
            }
        }
        self.break_streams();
        Ok(())
    }

    pub(super) fn break_streams(&mut self) {
        for member in self.members.iter_mut().flatten() {
            member.broken = true;
        }
    }
}
