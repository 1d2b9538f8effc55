//! Batch jobs: thousands of workers that start at once, each with its requests one after the other.
//!
//! A worker asks the backends itself, or a batch proxy (`tidegate_core::batch`) that keeps the work
//! and hands it on at the pace of the backends. What comes to nothing is tried again after a pause,
//! or after what the proxy said.

use super::record::BatchSecond;
use super::spec::WorldError;
use super::{Event, Parent, Reply, Wish, World};
use crate::dice;
use crate::slab::Key;
use core::time::Duration;
use tidegate_core::batch::{BatchProxy, Offer, Release};
use tidegate_core::decision::{Advice, Rejection};
use tidegate_core::outcome::Outcome;
use tidegate_core::rng::Rng;
use tidegate_core::{Criticality, CustomerId, Timestamp};

/// A worker's request on its way through a proxy.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) group: u32,
    worker: u32,
    proxy: u32,
    criticality: Criticality,
    customer: CustomerId,
    asked: Timestamp,
    deadline: Timestamp,
    sent: Timestamp,
    /// How long to wait before it is tried again, if the proxy said so.
    again: Option<Duration>,
}

/// A batch job as it runs.
#[derive(Debug)]
pub(super) struct Batch {
    /// Requests that each worker still has to have answered.
    left: Vec<u32>,
    workers_left: u32,
    done: u32,
    proxies: Vec<Proxy>,
}

#[derive(Debug)]
struct Proxy {
    core: BatchProxy<Key>,
    /// When the world will ask for a release.
    scheduled: Timestamp,
}

impl World {
    pub(super) fn make_batches(&mut self) -> Result<(), WorldError> {
        for (group, client) in self.spec.clients.iter().enumerate() {
            let Some(spec) = &client.batch else { continue };
            let mut proxies = Vec::new();
            for _ in 0..spec.proxy.map_or(0, |proxy| proxy.tasks.max(1)) {
                let config = spec.proxy.unwrap_or_default().config;
                let core = BatchProxy::new(config)?;
                proxies.push(Proxy { core, scheduled: Timestamp::MAX });
            }
            let left = vec![spec.requests; client.tasks as usize];
            let batch = Batch { left, workers_left: client.tasks, done: 0, proxies };
            self.groups[group].batch = Some(Box::new(batch));
            self.queue.push(spec.start, Event::BatchStart { group: group as u32 });
        }
        Ok(())
    }

    pub(super) fn batch_start(&mut self, group: u32) {
        for worker in 0..self.spec.clients[group as usize].tasks {
            self.work(group, worker);
        }
    }

    /// A worker makes its next request, or the same again.
    pub(super) fn work(&mut self, group: u32, worker: u32) {
        let Some(batch) = &self.groups[group as usize].batch else { return };
        if batch.left[worker as usize] == 0 {
            return;
        }
        let proxies = batch.proxies.len() as u32;
        let client = &self.spec.clients[group as usize];
        let Wish { criticality, customer } = Wish::draw(client, self.asking.dice());
        let deadline = self.now + client.deadline;
        let place = client.datacenter;
        self.record.ask(group as usize, criticality, customer, self.now);
        let customer = CustomerId(customer as u32);
        if proxies > 0 {
            let travel = self.network.latency(place, place);
            let item = self.items.insert(Item {
                group,
                worker,
                proxy: worker % proxies,
                criticality,
                customer,
                asked: self.now,
                deadline,
                sent: self.now,
                again: None,
            });
            self.queue.push(self.now + travel, Event::Offer { item });
            return;
        }
        let Some(stack) = self.place(group, worker, true) else {
            self.record.client(group as usize, self.now).unplaced += 1;
            return self.worked(group, worker, false, None);
        };
        self.call(Parent::Worker { group, worker }, stack, criticality, customer, deadline);
    }

    /// A worker knows what came of its request.
    pub(super) fn worked(&mut self, group: u32, worker: u32, good: bool, wait: Option<Duration>) {
        let client = &self.spec.clients[group as usize];
        let (Some(batch), Some(spec)) = (&mut self.groups[group as usize].batch, &client.batch)
        else {
            return;
        };
        let mut next = self.now;
        if good {
            batch.done += 1;
            let left = &mut batch.left[worker as usize];
            *left = left.saturating_sub(1);
            if *left == 0 {
                batch.workers_left -= 1;
                if batch.workers_left == 0 {
                    self.record.batch_finished[group as usize] = Some(self.now);
                }
                return;
            }
        } else {
            // Workers that were refused together should not come back together.
            let wait = wait.unwrap_or(spec.pause).as_secs_f64();
            next = self.now + dice::seconds(wait * (0.5 + self.asking.dice().unit()));
        }
        self.queue.push(next, Event::Work { group, worker });
    }

    /// Work has reached a proxy.
    pub(super) fn offer(&mut self, key: Key) {
        let Some(item) = self.items.get_mut(key) else { return };
        let (group, proxy) = (item.group, item.proxy);
        let (criticality, deadline) = (item.criticality, item.deadline);
        let Some(batch) = &mut self.groups[group as usize].batch else { return };
        let core = &mut batch.proxies[proxy as usize].core;
        match core.offer(key, criticality, Some(deadline), self.now) {
            Offer::Queued(_) => {}
            Offer::Displaced { item, rejection, .. } | Offer::Refused { item, rejection } => {
                self.turn_away(item, rejection);
            }
        }
        self.pump(group, proxy);
    }

    fn turn_away(&mut self, key: Key, rejection: Rejection) {
        if let (Advice::RetryAfter(wait), Some(item)) = (rejection.advice, self.items.get_mut(key))
        {
            item.again = Some(wait);
        }
        self.tell(key, Reply::DontRetry);
    }

    /// A proxy lets go of what it may.
    pub(super) fn pump(&mut self, group: u32, number: u32) {
        loop {
            let Some(batch) = &mut self.groups[group as usize].batch else { return };
            let proxy = &mut batch.proxies[number as usize];
            if proxy.scheduled <= self.now {
                proxy.scheduled = Timestamp::MAX;
            }
            let Some(release) = proxy.core.release(self.now) else {
                if let Some(at) = proxy.core.next_deadline()
                    && at < proxy.scheduled
                {
                    // A moment that has passed would come again and again.
                    let at = at.max(self.now + Duration::from_nanos(1));
                    proxy.scheduled = at;
                    self.queue.push(at, Event::Pump { group, proxy: number });
                }
                return;
            };
            match release {
                Release::Expired { item, rejection } => self.turn_away(item, rejection),
                Release::Send { item: key, criticality } => {
                    let now = self.now;
                    let Some(item) = self.items.get_mut(key) else { continue };
                    item.sent = now;
                    let (customer, deadline) = (item.customer, item.deadline);
                    match self.place(group, number, true) {
                        Some(stack) => {
                            self.call(Parent::Item(key), stack, criticality, customer, deadline);
                        }
                        None => self.returned(key, Reply::Failed, None),
                    }
                }
            }
        }
    }

    /// What a proxy sent on has come back, with the utilization of where it was done.
    pub(super) fn returned(&mut self, key: Key, reply: Reply, load: Option<f64>) {
        let Some(item) = self.items.get_mut(key) else { return };
        let (group, proxy, latency) = (item.group, item.proxy, self.now.since(item.sent));
        let outcome = match reply {
            Reply::Ok | Reply::Degraded => Outcome::Served,
            Reply::Overloaded | Reply::DontRetry => Outcome::Refused(Advice::RetryElsewhere),
            Reply::Failed | Reply::Gone => Outcome::NoAnswer,
        };
        if let Some(batch) = &mut self.groups[group as usize].batch {
            let core = &mut batch.proxies[proxy as usize].core;
            if let Some(load) = load {
                core.on_load(load, self.now);
            }
            core.on_result(outcome, latency, self.now);
        }
        self.tell(key, reply);
        // Not from within a release: whoever is asked for the next one is asked anew.
        self.queue.push(self.now, Event::Pump { group, proxy });
    }

    /// A proxy answers a worker.
    fn tell(&mut self, key: Key, reply: Reply) {
        let Some(item) = self.items.get_mut(key) else { return };
        let place = self.spec.clients[item.group as usize].datacenter;
        let travel = self.network.latency(place, place);
        self.queue.push(self.now + travel, Event::Told { item: key, reply });
    }

    pub(super) fn told(&mut self, key: Key, reply: Reply) {
        let Some(item) = self.items.remove(key) else { return };
        let good = matches!(reply, Reply::Ok | Reply::Degraded) && self.now <= item.deadline;
        if good {
            let (group, degraded) = (item.group as usize, reply == Reply::Degraded);
            let customer = item.customer.index();
            self.record.answer(group, item.criticality, customer, item.asked, degraded, self.now);
        }
        self.worked(item.group, item.worker, good, item.again);
    }

    pub(super) fn batch_second(&mut self) {
        for (group, state) in self.groups.iter().enumerate() {
            let Some(batch) = &state.batch else { continue };
            let mut second = BatchSecond {
                done: batch.done,
                workers_left: batch.workers_left,
                ..BatchSecond::default()
            };
            for proxy in &batch.proxies {
                second.queued += proxy.core.queued() as u32;
                second.outstanding += proxy.core.outstanding() as u32;
            }
            self.record.batch[group].push(second);
        }
    }
}
