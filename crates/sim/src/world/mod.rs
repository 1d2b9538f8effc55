//! Clients, services, machines and the network between them, in virtual time.
//!
//! A request is a **call** at whoever asks and a **job** at whoever answers. A call lives until its
//! caller has an answer or gives up; the job that it caused may live longer, and its work is then
//! wasted, as in life. A job that needs other services makes calls of its own.
//!
//! Every decision is `tidegate-core`'s; the world only carries messages and shares CPUs.

pub(crate) mod backend;
mod changes;
pub mod cpu;
pub mod record;
pub mod spec;
mod stack;
#[cfg(test)]
mod tests;

use crate::dice;
use crate::queue::EventQueue;
use crate::slab::{Key, Slab};
use backend::{Backend, TICK, Welcome};
use core::time::Duration;
use record::{Record, column};
use spec::WorldSpec;
use stack::{Fate, Stack};
use tidegate_core::admission::Permit;
use tidegate_core::balance::BackendId;
use tidegate_core::decision::Advice;
use tidegate_core::fleet::Limits;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{CostRate, Criticality, CustomerId, Timestamp};

/// Who waits for a call.
#[derive(Debug, Clone, Copy)]
enum Parent {
    Group(u32),
    Job(Key),
}

#[derive(Debug)]
struct Call {
    parent: Parent,
    stack: u32,
    criticality: Criticality,
    customer: CustomerId,
    asked: Timestamp,
    deadline: Timestamp,
    attempt: u8,
    member: BackendId,
    backend: u32,
}

#[derive(Debug)]
struct Job {
    call: Key,
    attempt: u8,
    backend: u32,
    permit: Option<Permit>,
    criticality: Criticality,
    customer: CustomerId,
    deadline: Timestamp,
    work: Duration,
    degraded: bool,
    /// The next of the service's calls.
    next: u8,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A group asks. Stale if the group's rate has changed since.
    Ask {
        group: u32,
        version: u32,
    },
    /// An attempt reaches its backend.
    Reach {
        call: Key,
        attempt: u8,
    },
    /// A backend may have finished a job.
    Cpu {
        backend: u32,
    },
    /// An answer reaches the caller.
    Reply {
        call: Key,
        attempt: u8,
        reply: Reply,
    },
    /// A caller has waited long enough for an attempt.
    Timeout {
        call: Key,
        attempt: u8,
    },
    /// A caller tries again.
    Again {
        call: Key,
    },
    /// A backend's controller looks.
    Tick {
        backend: u32,
    },
    /// A probe reaches a backend, then its answer the client.
    Probe {
        stack: u32,
        member: u32,
        backend: u32,
    },
    Probed {
        stack: u32,
        member: u32,
        inflight: u32,
        micros: u32,
    },
    /// Something changes.
    Change {
        index: u32,
    },
    /// Busy time is written down.
    Second,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reply {
    Ok,
    Degraded,
    Overloaded,
    DontRetry,
    Failed,
    /// The connection was refused or reset.
    Gone,
}

#[derive(Debug)]
struct Group {
    first_stack: u32,
    rate: f64,
    version: u32,
}

/// A world that runs.
#[derive(Debug)]
pub struct World {
    spec: WorldSpec,
    now: Timestamp,
    queue: EventQueue<Event>,
    calls: Slab<Call>,
    jobs: Slab<Job>,
    backends: Vec<Backend>,
    /// The number of each service's first backend.
    firsts: Vec<u32>,
    stacks: Vec<Stack>,
    /// The first stack of each backend's own calls.
    own_stacks: Vec<u32>,
    groups: Vec<Group>,
    cost_factor: Vec<f64>,
    record: Record,
    inflight: usize,
    arrivals: SeededRng,
    machines: SeededRng,
    network: SeededRng,
    decisions: SeededRng,
}

impl World {
    /// Sets the world up; nothing has happened yet.
    pub fn new(spec: WorldSpec) -> Result<Self, InvalidNumber> {
        let mut dice = SeededRng::new(spec.seed);
        let customers = spec.customers.len().max(1);
        let tasks: Vec<usize> = spec.services.iter().map(|s| s.tasks.len()).collect();
        let mut world = Self {
            now: Timestamp::ZERO,
            queue: EventQueue::new(),
            calls: Slab::new(),
            jobs: Slab::new(),
            backends: Vec::new(),
            firsts: Vec::new(),
            stacks: Vec::new(),
            own_stacks: Vec::new(),
            groups: Vec::new(),
            cost_factor: vec![1.0; spec.services.len()],
            record: Record::new(spec.clients.len(), &tasks, spec.lasts, customers),
            inflight: 0,
            arrivals: dice.fork(),
            machines: dice.fork(),
            network: dice.fork(),
            decisions: dice.fork(),
            spec,
        };
        world.make_backends(customers)?;
        world.make_stacks()?;
        for (index, (at, _)) in world.spec.changes.iter().enumerate() {
            world.queue.push(*at, Event::Change { index: index as u32 });
        }
        world.queue.push(Timestamp::from_secs(1), Event::Second);
        Ok(world)
    }

    fn make_backends(&mut self, customers: usize) -> Result<(), InvalidNumber> {
        for (service, of) in self.spec.services.iter().enumerate() {
            self.firsts.push(self.backends.len() as u32);
            for index in 0..of.tasks.len() {
                let backend = Backend::new(service, index, of, customers)?;
                if let Some(gate) = backend.gate() {
                    for (customer, limits) in self.spec.customers.iter().enumerate() {
                        let part = |rate: CostRate| match rate {
                            CostRate::MAX => rate,
                            _ => CostRate::from_nanos_per_sec(
                                rate.as_nanos_per_sec() / of.tasks.len() as u64,
                            ),
                        };
                        let limits = Limits::clamped(limits.as_array().map(part));
                        let customer = CustomerId(customer as u32);
                        gate.quota().set_limits(customer, limits, Timestamp::ZERO);
                    }
                }
                // Controllers do not all look at the same moment.
                let offset = Duration::from_nanos(self.machines.below(TICK.as_nanos() as u64));
                let number = self.backends.len() as u32;
                self.queue.push(Timestamp::ZERO + offset, Event::Tick { backend: number });
                self.backends.push(backend);
            }
        }
        Ok(())
    }

    fn make_stacks(&mut self) -> Result<(), InvalidNumber> {
        for (group, client) in self.spec.clients.iter().enumerate() {
            let first_stack = self.stacks.len() as u32;
            let tasks = self.spec.services[client.service].tasks.len() as u32;
            for task in 0..client.tasks {
                let place = client.datacenter;
                let first = self.firsts[client.service];
                self.stacks.push(Stack::new(&client.stack, place, task.into(), first, tasks)?);
            }
            self.groups.push(Group { first_stack, rate: 0.0, version: 0 });
            let first = dice::exponential(1.0 / client.rate, &mut self.arrivals);
            self.groups[group].rate = client.rate;
            if client.rate > 0.0 {
                let ask = Event::Ask { group: group as u32, version: 0 };
                self.queue.push(Timestamp::ZERO + first, ask);
            }
        }
        for number in 0..self.backends.len() {
            let backend = &self.backends[number];
            self.own_stacks.push(self.stacks.len() as u32);
            for call in &self.spec.services[backend.service].calls {
                let place = backend.spec.datacenter;
                let tasks = self.spec.services[call.service].tasks.len() as u32;
                let first = self.firsts[call.service];
                let client = backend.index as u64;
                self.stacks.push(Stack::new(&call.stack, place, client, first, tasks)?);
            }
        }
        Ok(())
    }

    /// Runs to the end and gives what was written down.
    pub fn run(mut self) -> Record {
        let end = Timestamp::ZERO + self.spec.lasts;
        while let Some((at, event)) = self.queue.pop() {
            if at > end {
                break;
            }
            self.now = at;
            self.record.events += 1;
            self.happen(event);
        }
        self.record
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask { group, version } => self.ask(group, version),
            Event::Reach { call, attempt } => self.reach(call, attempt),
            Event::Cpu { backend } => self.cpu(backend),
            Event::Reply { call, attempt, reply } => self.reply(call, attempt, reply),
            Event::Timeout { call, attempt } => self.fate(call, attempt, Fate::NoAnswer, false),
            Event::Again { call } => self.attempt(call),
            Event::Tick { backend } => {
                self.backends[backend as usize].tick(self.now);
                self.queue.push(self.now + TICK, Event::Tick { backend });
            }
            Event::Probe { stack, member, backend } => self.probe(stack, member, backend),
            Event::Probed { stack, member, inflight, micros } => {
                let latency = Duration::from_micros(micros.into());
                let stack = &mut self.stacks[stack as usize];
                stack.on_probe(BackendId(member), inflight, latency, self.now);
            }
            Event::Change { index } => self.change(index as usize),
            Event::Second => self.second(),
        }
    }

    fn ask(&mut self, group: u32, version: u32) {
        let state = &self.groups[group as usize];
        if state.version != version || state.rate <= 0.0 {
            return;
        }
        let next = dice::exponential(1.0 / state.rate, &mut self.arrivals);
        self.queue.push(self.now + next, Event::Ask { group, version });

        let client = &self.spec.clients[group as usize];
        let task = self.arrivals.below(client.tasks.into()) as u32;
        let criticality = Criticality::ALL[choose(&client.mix, &mut self.arrivals)];
        let customer = choose(&client.customers, &mut self.arrivals);
        let stack = state.first_stack + task;
        let deadline = self.now + client.deadline;
        self.record.requests += 1;
        let bin = self.record.client(group as usize, self.now);
        bin.offered[criticality.index()] += 1;
        if let Some(counts) = bin.customers.get_mut(customer) {
            counts[0] += 1;
        }
        let customer = CustomerId(customer as u32);
        self.call(Parent::Group(group), stack, criticality, customer, deadline);
    }

    /// Somebody wants an answer.
    fn call(
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
        });
        self.inflight += 1;
        self.record.inflight_max = self.record.inflight_max.max(self.inflight);
        self.attempt(call);
    }

    /// A call is sent, for the first time or again.
    fn attempt(&mut self, key: Key) {
        let Some(call) = self.calls.get_mut(key) else { return };
        let stack = &mut self.stacks[call.stack as usize];
        let datacenter = stack.datacenter;
        if !stack.allows(call.criticality, self.now, &mut self.decisions) {
            if let Parent::Group(group) = call.parent {
                self.record.client(group as usize, self.now).throttled += 1;
            }
            return self.end(key, Reply::DontRetry);
        }
        let Some((member, backend)) = stack.pick(self.now, &mut self.decisions) else {
            return self.end(key, Reply::Failed);
        };
        call.attempt += 1;
        (call.member, call.backend) = (member, backend);
        let attempt = call.attempt;
        let timeout = stack.attempt_timeout.map(|t| (self.now + t).min(call.deadline));
        if let Parent::Group(group) = call.parent {
            self.record.client(group as usize, self.now).attempts += 1;
        }
        let deadline = call.deadline;
        for (member, target) in stack.probes(&mut self.decisions) {
            let at = self.now
                + latency(&self.spec, &mut self.network, datacenter, {
                    self.backends[target as usize].spec.datacenter
                });
            let probe = Event::Probe { stack: call.stack, member: member.0, backend: target };
            self.queue.push(at, probe);
        }
        let to = self.backends[backend as usize].spec.datacenter;
        let travel = latency(&self.spec, &mut self.network, datacenter, to);
        if self.lost() {
            self.queue.push(timeout.unwrap_or(deadline), Event::Timeout { call: key, attempt });
            return;
        }
        self.queue.push(self.now + travel, Event::Reach { call: key, attempt });
        if let Some(at) = timeout {
            self.queue.push(at, Event::Timeout { call: key, attempt });
        }
    }

    fn lost(&mut self) -> bool {
        self.spec.loss > 0.0 && self.network.unit() < self.spec.loss
    }

    /// An attempt reaches its backend.
    fn reach(&mut self, key: Key, attempt: u8) {
        // A caller that has given up meanwhile has told the network nothing: its request arrives
        // all the same, but nobody in this world can know of it any more. What matters, the work
        // wasted on it, is counted for those who give up after it arrived.
        let Some(call) = self.calls.get_mut(key).filter(|call| call.attempt == attempt) else {
            return;
        };
        let (criticality, customer, deadline) = (call.criticality, call.customer, call.deadline);
        let number = call.backend;
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
        match backend.welcome(criticality, customer, attempt, deadline, now, rng) {
            Welcome::Refused(rejection) => {
                bin.rejected[criticality.index()] += 1;
                bin.reasons[column(rejection.reason)] += 1;
                let dont = rejection.advice == Advice::DontRetry;
                bin.dont_retry += u32::from(dont);
                backend.cpu.chore(of.reject_cost, now);
                self.schedule(number);
                let reply = if dont { Reply::DontRetry } else { Reply::Overloaded };
                self.answer(number, key, attempt, reply);
            }
            Welcome::Admitted { permit, degrade } => {
                bin.admitted += 1;
                let full = of.work.draw(&mut self.machines).mul_f64(self.cost_factor[service]);
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
                    work,
                    degraded: share.is_some(),
                    next: 0,
                });
                let backend = &mut self.backends[number as usize];
                backend.cpu.start(job.to_bits(), work, now);
                backend.sample(now);
                self.schedule(number);
            }
        }
    }

    /// Sees to it that the world looks when the next job is done.
    fn schedule(&mut self, number: u32) {
        let backend = &mut self.backends[number as usize];
        if let Some(at) = backend.cpu.next_finish()
            && at < backend.scheduled
        {
            backend.scheduled = at;
            self.queue.push(at, Event::Cpu { backend: number });
        }
    }

    fn cpu(&mut self, number: u32) {
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
    }

    /// A job has done its own work, or one of its calls has ended well: on to the next call, or to
    /// the answer.
    fn proceed(&mut self, key: Key) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let service = self.backends[job.backend as usize].service;
        if usize::from(job.next) < self.spec.services[service].calls.len() {
            let stack = self.own_stacks[job.backend as usize] + u32::from(job.next);
            job.next += 1;
            let (criticality, customer, deadline) = (job.criticality, job.customer, job.deadline);
            return self.call(Parent::Job(key), stack, criticality, customer, deadline);
        }
        let reply = if job.degraded { Reply::Degraded } else { Reply::Ok };
        self.done(key, reply);
    }

    /// A job ends with an answer.
    fn done(&mut self, key: Key, reply: Reply) {
        let Some(job) = self.jobs.remove(key) else { return };
        let backend = &mut self.backends[job.backend as usize];
        backend.complete(job.permit, job.customer, job.work, self.now);
        let waited = self.calls.get_mut(job.call).is_some_and(|call| call.attempt == job.attempt);
        if !waited || self.now > job.deadline {
            self.record.service(backend.service, self.now).wasted += 1;
        }
        self.answer(job.backend, job.call, job.attempt, reply);
    }

    /// A backend sends an answer.
    fn answer(&mut self, number: u32, call: Key, attempt: u8, reply: Reply) {
        let backend = &mut self.backends[number as usize];
        backend.answered(!matches!(reply, Reply::Ok | Reply::Degraded));
        let from = backend.spec.datacenter;
        let Some(waiting) = self.calls.get_mut(call).filter(|c| c.attempt == attempt) else {
            return;
        };
        let deadline = waiting.deadline;
        let stack = &self.stacks[waiting.stack as usize];
        let (to, timeout) = (stack.datacenter, stack.attempt_timeout);
        let travel = latency(&self.spec, &mut self.network, from, to);
        if self.lost() {
            // Without a timeout of its own the caller waits until its deadline.
            if timeout.is_none() {
                self.queue.push(deadline.max(self.now), Event::Timeout { call, attempt });
            }
            return;
        }
        self.queue.push(self.now + travel, Event::Reply { call, attempt, reply });
    }

    fn reply(&mut self, key: Key, attempt: u8, reply: Reply) {
        let fate = match reply {
            Reply::Ok | Reply::Degraded => {
                if let Some(call) = self.calls.get_mut(key).filter(|c| c.attempt == attempt) {
                    let backend = &self.backends[call.backend as usize];
                    let stack = &mut self.stacks[call.stack as usize];
                    let report = Some(backend.report());
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
    fn fate(&mut self, key: Key, attempt: u8, fate: Fate, reported: bool) {
        let Some(call) = self.calls.get_mut(key).filter(|c| c.attempt == attempt) else { return };
        let stack = &mut self.stacks[call.stack as usize];
        let report = reported.then(|| self.backends[call.backend as usize].report());
        stack.on_fate(call.member, call.criticality, fate, report, self.now);
        let remaining = call.deadline.since(self.now);
        match stack.retry(attempt, fate, remaining, self.now) {
            Some(after) if !after.is_zero() => {
                self.queue.push(self.now + after, Event::Again { call: key });
            }
            Some(_) => self.attempt(key),
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
    fn end(&mut self, key: Key, reply: Reply) {
        let Some(call) = self.calls.remove(key) else { return };
        self.inflight -= 1;
        match call.parent {
            Parent::Group(group) => self.answered(group, &call, reply),
            Parent::Job(job) => match reply {
                Reply::Ok | Reply::Degraded => self.proceed(job),
                _ => self.without(job, reply),
            },
        }
    }

    /// A job has to do without one of its calls: a degraded answer if it has one, else it tells its
    /// own caller not to retry, as it has itself seen to all the retrying there was to do.
    fn without(&mut self, key: Key, reply: Reply) {
        let Some(job) = self.jobs.get_mut(key) else { return };
        let service = self.backends[job.backend as usize].service;
        if self.spec.services[service].degraded.is_some() {
            job.degraded = true;
            return self.proceed(key);
        }
        let reply = if reply == Reply::Failed { Reply::Failed } else { Reply::DontRetry };
        self.done(key, reply);
    }

    fn answered(&mut self, group: u32, call: &Call, reply: Reply) {
        let good = matches!(reply, Reply::Ok | Reply::Degraded) && self.now <= call.deadline;
        if !good {
            return;
        }
        let group = group as usize;
        let bin = self.record.client(group, self.now);
        bin.answers += 1;
        bin.degraded += u32::from(reply == Reply::Degraded);
        let asked = self.record.client(group, call.asked);
        asked.served[call.criticality.index()] += 1;
        if let Some(counts) = asked.customers.get_mut(call.customer.index()) {
            counts[1] += 1;
        }
        self.record.latency(group, call.asked, self.now.since(call.asked));
    }

    fn probe(&mut self, stack: u32, member: u32, number: u32) {
        let backend = &self.backends[number as usize];
        if backend.down {
            return;
        }
        let active = backend.cpu.active() as u32;
        // What a request of mean size would take among those that are there.
        let of = &self.spec.services[backend.service];
        let crowd = ((f64::from(active) + 1.0) / backend.spec.cores).max(1.0);
        let micros = (of.work.mean() * crowd / backend.spec.speed * 1e6) as u32;
        let to = self.stacks[stack as usize].datacenter;
        let travel = latency(&self.spec, &mut self.network, backend.spec.datacenter, to);
        let answer = Event::Probed { stack, member, inflight: active, micros };
        self.queue.push(self.now + travel, answer);
    }

    fn second(&mut self) {
        for backend in &mut self.backends {
            let busy = backend.cpu.busy(self.now);
            let column = &mut self.record.busy[backend.service][backend.index];
            column.push((busy - backend.busy_written) as f32);
            backend.busy_written = busy;
        }
        self.queue.push(self.now + Duration::from_secs(1), Event::Second);
    }
}

/// How long a message takes.
fn latency(spec: &WorldSpec, rng: &mut SeededRng, from: usize, to: usize) -> Duration {
    let distance = spec.distance.get(from).and_then(|row| row.get(to)).copied().unwrap_or_default();
    if spec.jitter > 0.0 {
        distance + dice::exponential(distance.as_secs_f64() * spec.jitter, rng)
    } else {
        distance
    }
}

/// An index, each as likely as its weight.
fn choose(weights: &[f64], rng: &mut SeededRng) -> usize {
    if weights.len() <= 1 {
        return 0;
    }
    let mut draw = rng.unit() * weights.iter().sum::<f64>();
    for (index, weight) in weights.iter().enumerate() {
        if draw < *weight {
            return index;
        }
        draw -= weight;
    }
    weights.len() - 1
}
