//! A call: from somebody's wish to the answer, or to the moment when nobody waits any more.

use super::stack::Fate;
use super::{Call, Event, Parent, Reply, World, group_of};
use crate::slab::Key;
use tidegate_core::balance::BackendId;
use tidegate_core::decision::Advice;
use tidegate_core::{Criticality, CustomerId, Timestamp};

impl World {
    /// Somebody wants an answer.
    pub(super) fn call(
        &mut self,
        parent: Parent,
        stack: u32,
        criticality: Criticality,
        customer: CustomerId,
        deadline: Timestamp,
    ) {
        self.stacks[stack as usize].on_request(self.now);
        let call = self.calls.insert(Call {
            parent,
            stack,
            criticality,
            customer,
            asked: self.now,
            deadline,
            attempt: 0,
            member: BackendId(0),
            backend: 0,
            datacenter: 0,
            patient: true,
        });
        self.inflight += 1;
        self.record.inflight_max = self.record.inflight_max.max(self.inflight);
        self.attempt(call);
    }

    /// A call is sent again, perhaps to another datacenter.
    pub(super) fn again(&mut self, key: Key) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let stack = call.stack;
        if let Some(group) = group_of(call.parent, &mut self.items) {
            let stack = self.place_again(group, stack);
            if let Some(call) = self.calls.get_mut(key) {
                call.stack = stack;
            }
        }
        self.attempt(key);
    }

    /// A call is sent, for the first time or again.
    pub(super) fn attempt(&mut self, key: Key) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let stack = &mut self.stacks[call.stack as usize];
        let datacenter = stack.datacenter;
        if !stack.allows(call.criticality, self.now, &mut self.decisions) {
            if let Some(group) = group_of(call.parent, &mut self.items) {
                self.record.client(group as usize, self.now).throttled += 1;
            }
            return self.end(key, Reply::DontRetry);
        }
        let Some((member, backend)) = stack.pick(self.now, &mut self.decisions) else {
            return self.end(key, Reply::Failed);
        };
        call.attempt += 1;
        (call.member, call.backend) = (member, backend);
        let timeout = stack.attempt_timeout();
        call.datacenter = datacenter;
        call.patient = timeout.is_none();
        let attempt = call.attempt;
        let timeout = timeout.map(|t| (self.now + t).min(call.deadline));
        if let Some(group) = group_of(call.parent, &mut self.items) {
            self.record.client(group as usize, self.now).attempts += 1;
        }
        let (deadline, way) = (call.deadline, call.stack);
        for (member, target) in stack.probes(&mut self.decisions) {
            let to = self.datacenters[target as usize];
            let at = self.now + self.network.latency(datacenter as usize, to);
            let probe = Event::Probe { stack: call.stack, member: member.0, backend: target };
            self.queue.push(at, probe);
        }
        let to = self.datacenters[backend as usize];
        let arrival = self.network.arrival(datacenter as usize, to, self.now);
        if self.network.loses() {
            self.queue.push(timeout.unwrap_or(deadline), Event::Timeout { call: key, attempt });
            return;
        }
        let reach = if self.is_unconnected(way, member) {
            Event::Connect { call: key, attempt }
        } else {
            Event::Reach { call: key, attempt, backend }
        };
        self.queue.push(arrival, reach);
        if let Some(at) = timeout {
            self.queue.push(at, Event::Timeout { call: key, attempt });
        }
    }

    pub(super) fn reply(&mut self, key: Key, attempt: u8, reply: Reply) {
        let fate = match reply {
            Reply::Ok | Reply::Degraded => {
                if let Some(call) = self.calls.get_mut(key).filter(|c| c.attempt == attempt) {
                    let stack = &mut self.stacks[call.stack as usize];
                    let report = Some(&self.reports[call.backend as usize]);
                    stack.on_fate(call.member, call.criticality, Fate::Answered, report, self.now);
                    self.end(key, reply);
                }
                return;
            }
            Reply::Overloaded => Fate::Refused(Advice::RetryElsewhere),
            Reply::DontRetry => Fate::Refused(Advice::DontRetry),
            Reply::Failed => Fate::Failed,
            Reply::Gone => Fate::NoAnswer,
        };
        self.fate(key, attempt, fate, reply != Reply::Gone);
    }

    /// An attempt came to nothing: try again, or give up.
    pub(super) fn fate(&mut self, key: Key, attempt: u8, fate: Fate, reported: bool) {
        let Some(call) = self.calls.get_mut(key).filter(|c| c.attempt == attempt) else { return };
        let stack = &mut self.stacks[call.stack as usize];
        let report = reported.then(|| &self.reports[call.backend as usize]);
        stack.on_fate(call.member, call.criticality, fate, report, self.now);
        let remaining = call.deadline.since(self.now);
        match stack.retry(attempt, fate, remaining, self.now) {
            Some(after) if !after.is_zero() => {
                self.queue.push(self.now + after, Event::Again { call: key });
            }
            Some(_) => self.again(key),
            None => {
                let reply = match fate {
                    Fate::Refused(_) => Reply::DontRetry,
                    _ => Reply::Failed,
                };
                self.end(key, reply);
            }
        }
    }

    /// A call ends, one way or the other.
    pub(super) fn end(&mut self, key: Key, reply: Reply) {
        let Some(call) = self.calls.remove(key) else { return };
        self.inflight -= 1;
        let good = matches!(reply, Reply::Ok | Reply::Degraded);
        match call.parent {
            Parent::Group(group) => {
                self.answered(group, &call, reply);
            }
            Parent::Job(job) if good => self.part(job),
            Parent::Job(job) => self.without(job, reply),
            Parent::Worker { group, worker } => {
                let good = self.answered(group, &call, reply);
                self.worked(group, worker, good, None);
            }
            Parent::Item(item) => {
                let report = self.reports[call.backend as usize];
                self.returned(item, reply, good.then_some(report.cpu_utilization));
            }
        }
    }

    /// A group has its answer. Whether it is one, and in time.
    fn answered(&mut self, group: u32, call: &Call, reply: Reply) -> bool {
        let good = matches!(reply, Reply::Ok | Reply::Degraded) && self.now <= call.deadline;
        if good {
            let (group, degraded) = (group as usize, reply == Reply::Degraded);
            let (customer, asked) = (call.customer.index(), call.asked);
            self.record.answer(group, call.criticality, customer, asked, degraded, self.now);
        }
        good
    }
}
