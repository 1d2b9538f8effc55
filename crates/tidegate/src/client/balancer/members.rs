//! The keeper's side: who is in, who is out, and what the policies hear.

use super::super::keeper::Nudge;
use super::Backend;
use super::builder::{Maker, Subset};
use super::discovery::{Change, Discovery, Endpoint};
use super::food::{Reporter, Reports};
use super::gates::{Gates, Member};
use super::spill::Spilling;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_core::balance::{BackendId, Join, Policy, ReportFate};
use tidegate_core::rng::{SeededRng, shuffle};
use tidegate_core::subset::subset;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

/// A client that has known its endpoints for less than this knows nothing of who is new: all join
/// warm. Afterwards newcomers have most likely just been started.
const BEGINNING: Duration = Duration::from_secs(10);

/// How long after its end a stream of reports is asked for again. Some backends do not know the
/// service, and should not be asked all the time.
const REPORTS_AGAIN: Duration = Duration::from_secs(10);

/// What requests find at a backend's number.
pub(super) struct Slot<S> {
    pub(super) member: Arc<Member>,
    pub(super) endpoint: Endpoint,
    pub(super) service: S,
}

/// Endpoints by number.
pub(super) type Table<S> = Vec<Option<Arc<Slot<S>>>>;

/// What the keeper knows of an endpoint.
struct Known<S> {
    slot: Arc<Slot<S>>,
    report_seen: u64,
    standing: Standing,
    reports: Option<Task>,
}

/// What the policy has heard of an endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Standing {
    Serves,
    /// Its own answer said that it shuts down.
    LameUntil(Timestamp),
    /// Discovery said so, and has to take it back.
    LameUntilAdded,
    /// Health checks say that it does not serve, and have to take it back.
    Unwell,
}

/// Ends with what it belongs to.
struct Task(JoinHandle<()>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}

pub(super) struct Members<S> {
    pub(super) parts: Parts<S>,
    /// All that discovery has named, in its order.
    named: Vec<Endpoint>,
    known: Vec<Option<Known<S>>>,
    began: Option<Timestamp>,
    /// Endpoints for which no service could be made, or for which there was no room.
    pub(super) left_out: u64,
}

/// What the members are made of.
pub(super) struct Parts<S> {
    pub(super) discovery: Discovery,
    pub(super) make: Box<Maker<S>>,
    pub(super) subset: Option<Subset>,
    pub(super) policies: Vec<Policy>,
    pub(super) spilling: Option<Spilling>,
    pub(super) reporter: Option<Arc<dyn Reporter<S>>>,
    pub(super) lame_duck_wait: Duration,
    pub(super) gates: Arc<Gates>,
    pub(super) nudge: Arc<Nudge>,
    pub(super) rng: SeededRng,
}

impl<S: Clone + Send + Sync + 'static> Members<S> {
    pub(super) fn new(parts: Parts<S>) -> Self {
        let (named, known) = (Vec::new(), Vec::new());
        Self { parts, named, known, began: None, left_out: 0 }
    }

    /// Takes in what discovery has to say. The new table, if there is one.
    pub(super) fn discover(&mut self, now: Timestamp) -> Option<Table<S>> {
        let waker = Waker::from(Arc::clone(&self.parts.nudge));
        let mut cx = Context::from_waker(&waker);
        let mut changed = false;
        while let Poll::Ready(change) = self.parts.discovery.poll(&mut cx, Instant::now()) {
            changed = true;
            self.began.get_or_insert(now);
            self.note(change, now);
        }
        if !changed {
            return None;
        }
        let leaving = self.match_wanted(now);
        let table = self.known.iter().map(|k| k.as_ref().map(|k| Arc::clone(&k.slot))).collect();
        drop(leaving);
        Some(table)
    }

    fn note(&mut self, change: Change, now: Timestamp) {
        match change {
            Change::Set(endpoints) => {
                self.named.clear();
                for endpoint in endpoints {
                    self.name(endpoint);
                }
            }
            Change::Add(endpoint) => {
                let lame = |k: &&mut Known<S>| {
                    k.slot.endpoint.address() == endpoint.address() && k.slot.member.is_lame()
                };
                if let Some(known) = self.known.iter_mut().flatten().find(lame) {
                    known.standing = Standing::LameUntil(now);
                }
                self.name(endpoint);
            }
            Change::Remove(address) => self.named.retain(|e| e.address() != address),
            Change::LameDuck(address) => {
                let is = |k: &&mut Known<S>| k.slot.endpoint.address() == address;
                if let Some(known) = self.known.iter_mut().flatten().find(is) {
                    known.slot.member.lame_duck();
                    let Member { id, group, .. } = *known.slot.member;
                    self.parts.policies[group].lame_duck(id, now);
                    known.standing = Standing::LameUntilAdded;
                }
            }
        }
    }

    /// Each address counts once: as it was named last, where it was named first.
    fn name(&mut self, endpoint: Endpoint) {
        match self.named.iter_mut().find(|e| e.address() == endpoint.address()) {
            Some(known) => *known = endpoint,
            None => self.named.push(endpoint),
        }
    }

    /// Those of the named that this client connects to.
    fn wanted(&mut self) -> Vec<Endpoint> {
        let mut wanted: Vec<Endpoint> = match self.parts.subset {
            None => self.named.clone(),
            Some(Subset { policy, client, size }) => {
                let all = u32::try_from(self.named.len()).unwrap_or(u32::MAX);
                let chosen = subset(policy, client, all, size);
                chosen.into_iter().filter_map(|n| self.named.get(n as usize).cloned()).collect()
            }
        };
        // Else every client would begin with the same endpoint.
        shuffle(&mut wanted, &mut self.parts.rng);
        wanted
    }

    /// Lets go of who is not wanted any more, and takes on who is new. Gives back who left, to be
    /// dropped once requests cannot find them any more.
    fn match_wanted(&mut self, now: Timestamp) -> Vec<Known<S>> {
        let wanted = self.wanted();
        let mut left = Vec::new();
        for place in &mut self.known {
            let gone = place.as_ref().is_some_and(|k| !wanted.contains(&k.slot.endpoint));
            if let Some(known) = place.take_if(|_| gone) {
                let Member { id, group, .. } = *known.slot.member;
                self.parts.policies[group].remove(id, now);
                left.push(known);
            }
        }
        let beginning = self.began.is_none_or(|began| now.since(began) < BEGINNING);
        let join = if beginning { Join::Warm } else { Join::Cold };
        for endpoint in wanted {
            let is = |k: &Known<S>| k.slot.endpoint == endpoint;
            if !self.known.iter().flatten().any(is) {
                self.take_on(endpoint, join, now);
            }
        }
        left
    }

    fn take_on(&mut self, endpoint: Endpoint, join: Join, now: Timestamp) {
        let free = self.known.iter().position(Option::is_none).unwrap_or(self.known.len());
        let id = BackendId(u32::try_from(free).unwrap_or(u32::MAX));
        let group = self.group_of(&endpoint);
        let Ok(service) = (self.parts.make)(&endpoint) else {
            self.left_out += 1;
            return;
        };
        if !self.parts.policies[group].add(id, join, now) {
            self.left_out += 1;
            return;
        }
        let member =
            Member::new(id, group, Arc::clone(&self.parts.gates), Arc::clone(&self.parts.nudge));
        let slot = Arc::new(Slot { member: Arc::new(member), endpoint, service });
        let known = Known { slot, report_seen: 0, standing: Standing::Serves, reports: None };
        match self.known.get_mut(free) {
            Some(place) => *place = Some(known),
            None => self.known.push(Some(known)),
        }
    }

    fn group_of(&self, endpoint: &Endpoint) -> usize {
        let spilling = self.parts.spilling.as_ref();
        let datacenter = endpoint.datacenter();
        spilling
            .and_then(|s| s.distances.iter().position(|(id, _)| Some(*id) == datacenter))
            .unwrap_or(0)
    }

    /// What is known of each endpoint.
    pub(super) fn backends(&self) -> Vec<Backend> {
        let look = |known: &Known<S>| {
            let Member { id, group, .. } = *known.slot.member;
            let policy = &self.parts.policies[group];
            let weight = match policy {
                Policy::Weighted(weighted) => {
                    weighted.weights().iter().find(|(of, _)| *of == id).map(|(_, weight)| *weight)
                }
                _ => None,
            };
            // Those who say nothing of the application say how busy the CPU is.
            let report = known.slot.member.report.take(&mut { 0 });
            let utilization = report.map(|report| {
                let of_application = report.application_utilization;
                if of_application > 0.0 { of_application } else { report.cpu_utilization }
            });
            Backend {
                endpoint: known.slot.endpoint.clone(),
                weight,
                active: policy.active(id),
                utilization,
                rps: report.map(|report| report.rps),
                lame_duck: known.standing != Standing::Serves || known.slot.member.is_lame(),
            }
        };
        self.known.iter().flatten().map(look).collect()
    }

    /// Everything else that is due.
    pub(super) fn tick(&mut self, now: Timestamp) {
        self.lame_ducks(now);
        self.reports(now);
        for policy in &mut self.parts.policies {
            if policy.next_deadline().is_some_and(|due| due <= now) {
                policy.on_deadline(now);
            }
        }
    }

    fn lame_ducks(&mut self, now: Timestamp) {
        for known in self.known.iter_mut().flatten() {
            let member = &known.slot.member;
            match known.standing {
                Standing::Serves if member.is_unwell() => {
                    self.parts.policies[member.group].lame_duck(member.id, now);
                    known.standing = Standing::Unwell;
                }
                Standing::Unwell if !member.is_unwell() => {
                    known.standing = Standing::Serves;
                    self.parts.policies[member.group].add(member.id, Join::Cold, now);
                }
                Standing::LameUntil(until) if until <= now && member.is_unwell() => {
                    known.standing = Standing::Unwell;
                    member.forgive();
                }
                Standing::Serves if member.is_lame() => {
                    self.parts.policies[member.group].lame_duck(member.id, now);
                    known.standing = Standing::LameUntil(now + self.parts.lame_duck_wait);
                }
                Standing::LameUntil(until) if until <= now => {
                    // Whatever answers at this address by now has been started since.
                    known.standing = Standing::Serves;
                    member.forgive();
                    self.parts.policies[member.group].add(member.id, Join::Cold, now);
                }
                _ => {}
            }
        }
    }

    fn reports(&mut self, now: Timestamp) {
        for known in self.known.iter_mut().flatten() {
            let member = &known.slot.member;
            if let Some(report) = member.report.take(&mut known.report_seen) {
                let fate = self.parts.policies[member.group].on_report(member.id, &report, now);
                if fate == ReportFate::Invalid {
                    member.bad_report();
                }
            }
            let (Some(reporter), Ok(runtime)) = (&self.parts.reporter, Handle::try_current())
            else {
                continue;
            };
            if known.reports.as_ref().is_none_or(|task| task.0.is_finished()) {
                let (slot, reporter) = (Arc::clone(&known.slot), Arc::clone(reporter));
                known.reports = Some(Task(runtime.spawn(async move {
                    let reports = Reports::new(Arc::clone(&slot.member));
                    reporter.watch(&slot.endpoint, slot.service.clone(), reports).await;
                    sleep(REPORTS_AGAIN).await;
                })));
            }
        }
    }
}
