//! A job: what an attempt causes at the backend that it reaches.

use super::backend::Welcome;
use super::log::{Attempt, Ending};
use super::record::column;
use super::request_limits::RequestLimits;
use super::{Event, Job, Parent, Reply, World, group_of};
use crate::slab::Key;
use core::time::Duration;
use tidegate_core::decision::{Advice, Reason};
use tidegate_core::{Cost, Timestamp};

impl World {
    /// An attempt reaches its backend.
    pub(super) fn reach(&mut self, key: Key, attempt: u8) {
        // A caller that has given up meanwhile has told the network nothing: its request arrives
        // all the same, but nobody in this world can know of it any more. What matters, the work
        // wasted on it, is counted for those who give up after it arrived.
        let Some(call) = self.calls.get_mut(key).filter(|call| call.attempt == attempt) else {
            return;
        };
        let (criticality, customer, deadline) = (call.criticality, call.customer, call.deadline);
        let (number, parent) = (call.backend, call.parent);
        let backend = &mut self.backends[number as usize];
        let service = backend.service;
        let bin = self.record.service(service, self.now);
        bin.arrived += 1;
        if backend.down {
            return self.answer(number, key, attempt, Reply::Gone);
        }
        let of = &self.spec.services[service];
        if backend.fails {
            backend.cpu.chore(of.reject_cost, self.now);
            return self.answer(number, key, attempt, Reply::Failed);
        }
        let (now, rng) = (self.now, &mut self.decisions);
        let over = |limits: &mut RequestLimits| !limits.admit(customer, now);
        let contender = if self.request_limits[number as usize].as_mut().is_some_and(over) {
            Some((Reason::OutOfQuota, Reply::DontRetry))
        } else if of.active_limit.is_some_and(|most| backend.cpu.active() >= most as usize) {
            Some((Reason::Overloaded, Reply::Overloaded))
        } else {
            None
        };
        if let Some((reason, reply)) = contender {
            bin.rejected[criticality.index()] += 1;
            bin.reasons[column(reason)] += 1;
            backend.cpu.chore(of.reject_cost, now);
            self.schedule(number);
            self.note(key, Ending::Refused { cause: None });
            return self.answer(number, key, attempt, reply);
        }
        let (welcome, look) = backend.welcome(criticality, customer, attempt, deadline, now, rng);
        if let Some(at) = look {
            self.queue.push(at, Event::Tick { backend: number });
        }
        match welcome {
            Welcome::Refused(rejection) => {
                bin.rejected[criticality.index()] += 1;
                bin.reasons[column(rejection.reason)] += 1;
                let dont = rejection.advice == Advice::DontRetry;
                bin.dont_retry += u32::from(dont);
                backend.cpu.chore(of.reject_cost, now);
                self.schedule(number);
                self.note(key, Ending::Refused { cause: rejection.cause });
                let reply = if dont { Reply::DontRetry } else { Reply::Overloaded };
                self.answer(number, key, attempt, reply);
            }
            Welcome::Admitted { permit, degrade } => {
                bin.admitted += 1;
                if let Some(log) = &mut self.record.log {
                    let would_refuse = permit.as_ref().is_some_and(|p| p.would_reject().is_some());
                    log.would_refuse += u64::from(would_refuse);
                }
                let group = group_of(parent, &mut self.items);
                let own = group.and_then(|group| self.spec.clients[group as usize].work.as_ref());
                let spread = own.unwrap_or(&of.work);
                let drawn = spread.draw(&mut self.machines);
                let factor = self.cost_factor[service];
                let full = if factor == 1.0 { drawn } else { drawn.mul_f64(factor) };
                let share = of.degraded.filter(|_| degrade);
                let work = share.map_or(full, |share| full.mul_f64(share));
                let job = self.jobs.insert(Job {
                    call: key,
                    attempt,
                    backend: number,
                    permit,
                    criticality,
                    customer,
                    deadline,
                    work: cost_of(work),
                    degraded: share.is_some(),
                    next: 0,
                    pending: 0,
                });
                let backend = &mut self.backends[number as usize];
                if !of.waits.is_zero() {
                    self.queue.push(now + of.waits, Event::Ready { job });
                } else if backend.has_contender() {
                    self.ready(job);
                } else {
                    backend.cpu.start(job.to_bits(), work, now);
                    backend.sample(now);
                    self.schedule(number);
                }
            }
        }
    }

    /// A job is ready for the CPU.
    pub(super) fn ready(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let (number, criticality) = (job.backend, job.criticality);
        if !self.backends[number as usize].holds(key.to_bits(), criticality) {
            self.start(key);
        }
        if self.backends[number as usize].has_contender() {
            self.release(number);
        }
    }

    /// A job takes its place on the CPU.
    pub(super) fn start(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let (number, work) = (job.backend, Duration::from_nanos(job.work.as_nanos()));
        let backend = &mut self.backends[number as usize];
        if backend.down {
            return self.done(key, Reply::Gone);
        }
        backend.cpu.start(key.to_bits(), work, self.now);
        backend.sample(self.now);
        self.schedule(number);
    }

    /// Writes down how an attempt ended at its task, if there is a log.
    #[inline]
    pub(super) fn note(&mut self, call: Key, ending: Ending) {
        let Some(log) = &mut self.record.log else { return };
        let Some(call) = self.calls.get_mut(call) else { return };
        let (asked, criticality) = (call.asked, call.criticality);
        log.attempts.push(Attempt { asked, ended: self.now, criticality, ending });
    }

    /// Sees to it that the world looks when the next job is done.
    pub(super) fn schedule(&mut self, number: u32) {
        let backend = &mut self.backends[number as usize];
        if let Some(at) = backend.cpu.next_finish()
            && at < backend.scheduled
        {
            backend.scheduled = at;
            self.queue.push(at, Event::Cpu { backend: number });
        }
    }

    pub(super) fn cpu(&mut self, number: u32) {
        let backend = &mut self.backends[number as usize];
        // An earlier look was scheduled after this one.
        if backend.scheduled != self.now {
            return;
        }
        backend.scheduled = Timestamp::MAX;
        while let Some(bits) = self.backends[number as usize].cpu.finish(self.now) {
            self.backends[number as usize].sample(self.now);
            self.proceed(Key::from_bits(bits));
        }
        self.schedule(number);
        if self.backends[number as usize].has_contender() {
            self.release(number);
        }
    }

    /// A job has done its own work, or one of its calls has ended well: on to the next call, or to
    /// the answer.
    pub(super) fn proceed(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let backend = &self.backends[job.backend as usize];
        if backend.down {
            return self.done(key, Reply::Gone);
        }
        if let Some(call) = self.spec.services[backend.service].calls.get(usize::from(job.next)) {
            let stack = self.own_stacks[job.backend as usize] + u32::from(job.next);
            let fanout = call.fanout.max(1);
            job.next += 1;
            job.pending = fanout;
            let (criticality, customer, deadline) = (job.criticality, job.customer, job.deadline);
            for _ in 0..fanout {
                self.call(Parent::Job(key), stack, criticality, customer, deadline);
                // A call that was refused at once may have been the end of it.
                if fanout > 1 && self.jobs.get_mut(key).is_none() {
                    break;
                }
            }
            return;
        }
        let reply = if job.degraded { Reply::Degraded } else { Reply::Ok };
        self.done(key, reply);
    }

    /// One of the calls that a job waits for has ended well, or can be done without.
    pub(super) fn part(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        job.pending = job.pending.saturating_sub(1);
        if job.pending == 0 {
            self.proceed(key);
        }
    }

    /// A job ends with an answer.
    pub(super) fn done(&mut self, key: Key, reply: Reply) {
        let Some(job) = self.jobs.remove(key) else { return };
        let backend = &mut self.backends[job.backend as usize];
        let asked = self.calls.get_mut(job.call).filter(|call| call.attempt == job.attempt);
        let asked = asked.map(|call| call.asked);
        // Who has no degraded answers gives full ones, whatever is asked for.
        let degrades = self.spec.services[backend.service].degraded.is_some();
        let permit = job.permit.map(|permit| if degrades { permit } else { permit.in_full() });
        backend.complete(permit, job.customer, job.work, asked, self.now);
        if let Some(planner) = &mut self.planners[backend.service] {
            planner.work += Duration::from_nanos(job.work.as_nanos());
            planner.jobs += 1;
        }
        let in_time = self.now <= job.deadline;
        if asked.is_none() || !in_time {
            self.record.service(backend.service, self.now).wasted += 1;
        }
        if matches!(reply, Reply::Ok | Reply::Degraded) {
            self.note(job.call, Ending::Done { work: job.work, in_time });
        }
        self.answer(job.backend, job.call, job.attempt, reply);
    }

    /// A backend sends an answer.
    pub(super) fn answer(&mut self, number: u32, call: Key, attempt: u8, reply: Reply) {
        let backend = &mut self.backends[number as usize];
        backend.answered(!matches!(reply, Reply::Ok | Reply::Degraded));
        let from = backend.datacenter as usize;
        let Some(waiting) = self.calls.get_mut(call).filter(|c| c.attempt == attempt) else {
            return;
        };
        let (deadline, patient) = (waiting.deadline, waiting.patient);
        let arrival = self.network.arrival(from, waiting.datacenter as usize, self.now);
        if self.network.loses() {
            // Without a timeout of its own the caller waits until its deadline.
            if patient {
                self.queue.push(deadline.max(self.now), Event::Timeout { call, attempt });
            }
            return;
        }
        let (stack, backend) = (waiting.stack, number);
        let reply = Event::Reply { call, attempt, reply, stack, backend };
        self.queue.push(arrival, reply);
    }

    /// A job has to do without one of its calls: a degraded answer if it has one, else it tells its
    /// own caller not to retry, as it has itself seen to all the retrying there was to do.
    pub(super) fn without(&mut self, key: Key, reply: Reply) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let backend = &self.backends[job.backend as usize];
        if backend.down {
            return self.done(key, Reply::Gone);
        }
        let service = backend.service;
        if self.spec.services[service].degraded.is_some() {
            job.degraded = true;
            return self.part(key);
        }
        let reply = if reply == Reply::Failed { Reply::Failed } else { Reply::DontRetry };
        self.done(key, reply);
    }

    pub(super) fn probe(&mut self, stack: u32, member: u32, number: u32) {
        let backend = &self.backends[number as usize];
        if backend.down {
            return;
        }
        let active = backend.cpu.active() as u32;
        // What a request of mean size would take among those that are there, on the machine as it
        // is now: that is what the latencies of the last requests tell a real task.
        let work = self.spec.services[backend.service].work.mean();
        let work = work * self.cost_factor[backend.service];
        let crowd = ((f64::from(active) + 1.0) / backend.spec.cores).max(1.0);
        let micros = (work * crowd / backend.cpu.speed() * 1e6) as u32;
        let to = self.stacks[stack as usize].datacenter as usize;
        let travel = self.network.latency(backend.spec.datacenter, to);
        let answer = Event::Probed { stack, member, inflight: active, micros };
        self.queue.push(self.now + travel, answer);
    }
}

/// What a request costs that needs so much work.
fn cost_of(work: Duration) -> Cost {
    Cost::from_nanos(u64::try_from(work.as_nanos()).unwrap_or(u64::MAX))
}
