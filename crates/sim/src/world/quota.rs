//! The quota server and what its tasks tell it, letter by letter.
//!
//! Each protected service is a fleet of its own: a customer's limits hold for its tasks together.
//! Tasks report use and demand, the server (`tidegate_core::fleet`) divides, grants travel back,
//! and `FailStatic` at each task says what to enforce, whatever becomes of the server.
//!
//! The world begins with a server that has led for a while and tasks that hold equal parts, as if
//! granted by the leader before: a story is about what changes, not about how a fleet starts.

use super::spec::{QuotaServerSpec, WorldError, WorldSpec};
use super::{Event, World};
use crate::slab::{Key, Slab};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::{Change, FailStatic, Fleet, Generation, Limits, TaskId, Usage};
use tidegate_core::quota::UsageMeter;
use tidegate_core::rng::Rng;
use tidegate_core::{CostRate, CustomerId, Timestamp};

/// How long the first leader has led after it learned: several reports of every task.
const WARM_UP: Duration = Duration::from_secs(10);

/// What travels between tasks and the server.
#[derive(Debug)]
enum Letter {
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

/// One service's fleet.
#[derive(Debug)]
struct Book {
    fleet: Fleet,
    backends: BTreeMap<TaskId, u32>,
    /// Tasks have to be told anew what they may use without a grant.
    news: bool,
}

impl Book {
    fn unseen(&self, customers: usize) -> Vec<Limits> {
        (0..customers).map(|customer| self.fleet.unseen(CustomerId(customer as u32))).collect()
    }
}

#[derive(Debug)]
pub(super) struct QuotaServer {
    spec: QuotaServerSpec,
    lost: bool,
    epoch: u64,
    /// By service; none where nobody would enforce anything.
    books: Vec<Option<Book>>,
    /// By backend.
    members: Vec<Option<Member>>,
    letters: Slab<Letter>,
    limits: Vec<Limits>,
    scratch: Vec<Change>,
}

impl QuotaServer {
    /// The server's clock runs ahead by what happened before the world began.
    fn clock(&self, now: Timestamp) -> Timestamp {
        now + self.spec.fleet.learning + WARM_UP
    }

    /// What happened before the world began: the first leader learned that everyone has an equal
    /// part of every limit, and granted that much to those who use it all.
    fn warm_up(&mut self) {
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
                let _ = book.fleet.report(id, member.acked, &usages, clock);
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

    fn book(&self, since: Timestamp) -> Result<Book, WorldError> {
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

    fn elect(&mut self, now: Timestamp) -> Result<(), WorldError> {
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

    fn break_streams(&mut self) {
        for member in self.members.iter_mut().flatten() {
            member.broken = true;
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

    /// A task reports, and enforces what is now right.
    pub(super) fn report(&mut self, number: u32) {
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
    pub(super) fn letter(&mut self, key: Key) {
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
    pub(super) fn quota_round(&mut self) {
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

/// A contender: so many requests a second for each customer, whatever they cost.
#[derive(Debug)]
pub(super) struct RequestLimits {
    /// Tokens, and the rate at which they come.
    buckets: Vec<(f64, f64)>,
    last: Vec<Timestamp>,
}

impl RequestLimits {
    /// One task's part of the limits of a service.
    pub(super) fn new(spec: &WorldSpec, service: usize) -> Option<Self> {
        let of = &spec.services[service];
        if of.qps_limits.is_empty() {
            return None;
        }
        let part = |rate: &f64| rate / of.tasks.len().max(1) as f64;
        let buckets: Vec<_> = of.qps_limits.iter().map(part).map(|r| (r.max(1.0), r)).collect();
        Some(Self { last: vec![Timestamp::ZERO; buckets.len()], buckets })
    }

    /// Whether another request of `customer` is within its limit. A second's worth may come at
    /// once.
    pub(super) fn admit(&mut self, customer: CustomerId, now: Timestamp) -> bool {
        let Some((tokens, rate)) = self.buckets.get_mut(customer.index()) else { return true };
        let last = &mut self.last[customer.index()];
        *tokens = (*tokens + now.since(*last).as_secs_f64() * *rate).min(rate.max(1.0));
        *last = now;
        let admitted = *tokens >= 1.0;
        if admitted {
            *tokens -= 1.0;
        }
        admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::spec::{Change, ServiceSpec, TaskSpec};
    use tidegate_core::rng::SeededRng;

    /// Every task uses without a grant what its leader says, and all of them no more than that.
    fn is_told(world: &World, places: u64) -> bool {
        let server = world.quota.as_ref().unwrap();
        let set_aside = server.limits[1].whole().as_nanos_per_sec() / 100;
        server.members.iter().flatten().all(|member| {
            let told = Limits::total(CostRate::from_nanos_per_sec(set_aside / places));
            let mut grant = member.held[1].grant;
            grant.set_unseen(told);
            grant == member.held[1].grant
        })
    }

    fn run_until(world: &mut World, seconds: u64) {
        while let Some((at, event)) = world.queue.pop() {
            world.now = at;
            world.happen(event);
            if at >= Timestamp::from_secs(seconds) {
                break;
            }
        }
    }

    #[test]
    fn tasks_are_told_what_they_may_use_without_a_grant() {
        // Of 6.4 CPU, 64 ms a second are set aside: for 40 tasks, among 128 places.
        let cpus = |cpus| Limits::total(CostRate::from_cpus(cpus).unwrap());
        let mut spec = WorldSpec { lasts: Duration::from_secs(60), ..WorldSpec::default() };
        let tasks = vec![TaskSpec::default(); 40];
        let admission = Some(crate::world::spec::AdmissionSpec::default());
        spec.services.push(ServiceSpec { tasks, admission, ..ServiceSpec::default() });
        spec.customers = vec![Limits::UNLIMITED, cpus(6.4)];
        spec.quota_server = Some(QuotaServerSpec::default());
        spec.changes = vec![
            (Timestamp::from_secs(5), Change::Limits { customer: 1, limits: cpus(12.8) }),
            (Timestamp::from_secs(10), Change::QuotaServer { lost: true }),
            (Timestamp::from_secs(15), Change::Limits { customer: 1, limits: cpus(3.2) }),
            (Timestamp::from_secs(20), Change::QuotaServer { lost: false }),
            (Timestamp::from_secs(30), Change::QuotaElection),
        ];
        let mut world = World::new(spec).unwrap();
        assert!(is_told(&world, 128), "at the start");
        for (second, told) in [(7, true), (19, false), (23, true), (35, true)] {
            run_until(&mut world, second);
            assert_eq!(is_told(&world, 128), told, "after {second} s");
        }
    }

    #[test]
    fn requests_are_counted_whatever_they_cost() {
        let mut spec = WorldSpec::default();
        spec.services.push(ServiceSpec { qps_limits: vec![10.0], ..ServiceSpec::default() });
        let mut limits = RequestLimits::new(&spec, 0).unwrap();
        // A second's worth at once, then ten a second: 10 + 20 in two seconds.
        let mut rng = SeededRng::new(1);
        let mut at: Vec<u64> = (0..1_000).map(|_| rng.below(2_000_000_000)).collect();
        at.sort_unstable();
        let admit = |at: u64| limits.admit(CustomerId(0), Timestamp::from_nanos(at));
        let admitted = at.into_iter().map(admit).filter(|&a| a).count();
        assert!((28..=30).contains(&admitted), "{admitted}");
        assert!(limits.admit(CustomerId(7), Timestamp::ZERO), "no limit");
    }
}
