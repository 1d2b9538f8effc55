//! Clients, services, machines and the network between them, in virtual time.
//!
//! A request is a **call** at whoever asks and a **job** at whoever answers. A call lives until its
//! caller has an answer or gives up; the job that it caused may live longer, and its work is then
//! wasted, as in life. A job that needs other services makes calls of its own.
//!
//! Every decision is `tidegate-core`'s; the world only carries messages and shares CPUs.

mod ahead;
mod arrivals;
pub(crate) mod backend;
mod batch;
mod calls;
mod changes;
mod connections;
pub mod contender;
pub mod cpu;
mod datacenters;
mod doorman;
mod envoy;
mod jobs;
mod join;
pub mod log;
mod network;
mod quota;
pub mod record;
mod request_limits;
pub mod spec;
mod stack;
#[cfg(test)]
mod tests;

use crate::queue::EventQueue;
use crate::slab::{Key, Slab};
use ahead::Ahead;
use arrivals::{Asking, Wish};
use backend::{Backend, Looked};
use batch::{Batch, Item};
use connections::Connections;
use core::time::Duration;
use datacenters::{Planner, Spread};
use doorman::Tenant;
use network::Network;
use quota::QuotaServer;
use record::Record;
use request_limits::RequestLimits;
use spec::{Arrivals, Change, WorldError, WorldSpec};
use stack::{Fate, Stack, Way};
use tidegate_core::admission::Permit;
use tidegate_core::balance::{BackendId, LoadReport};
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};

/// Who waits for a call.
#[derive(Debug, Clone, Copy)]
enum Parent {
    Group(u32),
    Job(Key),
    /// A worker of a batch job.
    Worker {
        group: u32,
        worker: u32,
    },
    /// A batch proxy, for a worker.
    Item(Key),
}

/// The group of clients that a call was made for, unless it is a service's own.
#[inline]
fn group_of(parent: Parent, items: &mut Slab<Item>) -> Option<u32> {
    match parent {
        Parent::Group(group) | Parent::Worker { group, .. } => Some(group),
        Parent::Job(_) => None,
        Parent::Item(key) => items.get_mut(key).map(|item| item.group),
    }
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
    /// Where the caller is, and whether it waits for an attempt as long as for the call.
    datacenter: u32,
    patient: bool,
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
    work: Cost,
    degraded: bool,
    /// The next of the service's calls.
    next: u8,
    /// Calls that it waits for.
    pending: u32,
}

#[derive(Debug, Clone, Copy)]
enum Event {
    /// A group asks. Stale if the group's rate has changed since.
    Ask {
        group: u32,
        version: u32,
    },
    /// An attempt reaches its backend. That is named so that it can be read ahead, as in an answer.
    Reach {
        call: Key,
        attempt: u8,
        backend: u32,
    },
    /// A job has waited for others and is ready for the CPU.
    Ready {
        job: Key,
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
        stack: u32,
        backend: u32,
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
    /// A task reports to the quota server.
    Report {
        backend: u32,
    },
    /// A letter between a task and the quota server arrives.
    Letter {
        letter: Key,
    },
    /// The quota server divides.
    QuotaRound,
    /// A request for a connection reaches a backend, the request itself behind it.
    Connect {
        call: Key,
        attempt: u8,
    },
    /// A client connects without a request.
    Open {
        stack: u32,
        member: u32,
    },
    /// A client looks whether a connection is idle.
    Idle {
        stack: u32,
        member: u32,
    },
    /// A question for health reaches a backend.
    Health {
        stack: u32,
        member: u32,
    },
    /// A batch job starts; a worker asks; its work reaches a proxy, is let go, and comes back.
    BatchStart {
        group: u32,
    },
    Work {
        group: u32,
        worker: u32,
    },
    Offer {
        item: Key,
    },
    Pump {
        group: u32,
        proxy: u32,
    },
    Told {
        item: Key,
        reply: Reply,
    },
    /// A client asks for a lease, and hears of it.
    Lease {
        group: u32,
        task: u32,
    },
    Leased {
        group: u32,
        task: u32,
    },
    /// A service's traffic is divided among datacenters.
    Plan {
        service: u32,
    },
    /// Something changes, or takes its next step.
    Change {
        index: u32,
    },
    Step {
        index: u32,
        step: u32,
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
    spread: Option<Spread>,
    batch: Option<Box<Batch>>,
    /// Its tasks as clients of a server of leases.
    tenants: Vec<Tenant>,
}

/// Shares of its speed that a task has.
#[derive(Debug, Clone, Copy)]
struct Factors {
    machine: f64,
    warmth: f64,
    place: f64,
}

/// A world that runs.
#[derive(Debug)]
pub struct World {
    spec: WorldSpec,
    now: Timestamp,
    queue: EventQueue<Event>,
    calls: Slab<Call>,
    jobs: Slab<Job>,
    items: Slab<Item>,
    backends: Vec<Backend>,
    /// The datacenter of each backend. It lies apart, as clients ask for it with every request and
    /// for nothing else of a backend.
    datacenters: Vec<usize>,
    /// What goes with every answer of each backend.
    reports: Vec<LoadReport>,
    /// The number of each service's first backend.
    firsts: Vec<u32>,
    stacks: Vec<Stack>,
    /// The first stack of each backend's own calls.
    own_stacks: Vec<u32>,
    groups: Vec<Group>,
    quota: Option<Box<QuotaServer>>,
    doormen: Vec<doorman::Server>,
    /// By service.
    connections: Vec<Option<Box<Connections>>>,
    planners: Vec<Option<Planner>>,
    /// What slows each backend down: antagonists, a cold start, its datacenter.
    factors: Vec<Factors>,
    /// By backend.
    request_limits: Vec<Option<RequestLimits>>,
    cost_factor: Vec<f64>,
    record: Record,
    inflight: usize,
    ahead: Ahead,
    asking: Asking,
    machines: SeededRng,
    network: Network,
    decisions: SeededRng,
}

impl World {
    /// Sets the world up; nothing has happened yet.
    pub fn new(spec: WorldSpec) -> Result<Self, WorldError> {
        let mut dice = SeededRng::new(spec.seed);
        let customers = spec.customers.len().max(1);
        let tasks: Vec<usize> = spec.services.iter().map(|s| s.tasks.len()).collect();
        let mut world = Self {
            now: Timestamp::ZERO,
            queue: EventQueue::new(),
            calls: Slab::new(),
            jobs: Slab::new(),
            items: Slab::new(),
            backends: Vec::new(),
            datacenters: Vec::new(),
            reports: Vec::new(),
            firsts: Vec::new(),
            stacks: Vec::new(),
            own_stacks: Vec::new(),
            groups: Vec::new(),
            quota: None,
            doormen: Vec::new(),
            connections: Vec::new(),
            planners: Vec::new(),
            factors: Vec::new(),
            request_limits: Vec::new(),
            cost_factor: vec![1.0; spec.services.len()],
            record: Record::new(spec.clients.len(), &tasks, spec.lasts, customers).log(spec.log),
            inflight: 0,
            ahead: Ahead::default(),
            asking: Asking::new(dice.fork()),
            machines: dice.fork(),
            network: Network::new(&spec, dice.fork()),
            decisions: dice.fork(),
            spec,
        };
        world.make_backends(customers)?;
        world.make_quota_server()?;
        world.make_stacks()?;
        world.make_planners();
        world.make_connections()?;
        world.make_batches()?;
        world.make_doormen()?;
        // Changes of the same moment happen in the order in which they stand.
        world.spec.changes.sort_by_key(|(at, _)| *at);
        world.queue_change(0);
        world.queue.push(Timestamp::from_secs(1), Event::Second);
        Ok(world)
    }

    fn make_backends(&mut self, customers: usize) -> Result<(), WorldError> {
        for (service, of) in self.spec.services.iter().enumerate() {
            self.firsts.push(self.backends.len() as u32);
            for index in 0..of.tasks.len() {
                let mut backend = Backend::new(service, index, of, customers)?;
                let joins = |change: &Change| {
                    matches!(change, Change::Join { service: of, tasks }
                        if *of == service && tasks.contains(&index))
                };
                backend.absent = self.spec.changes.iter().any(|(_, change)| joins(change));
                backend.down = backend.absent;
                if let Some(gate) = backend.gate() {
                    for (customer, limits) in self.spec.customers.iter().enumerate() {
                        let limits = quota::equal_part(*limits, of.tasks.len() as u64);
                        let customer = CustomerId(customer as u32);
                        gate.quota().set_limits(customer, limits, Timestamp::ZERO);
                    }
                }
                // Controllers do not all look at the same moment.
                let offset = self.machines.below(of.look_every.as_nanos() as u64);
                let (first, number) = (Timestamp::from_nanos(offset), self.backends.len() as u32);
                backend.first_look(first);
                self.queue.push(first, Event::Tick { backend: number });
                self.factors.push(Factors { machine: 1.0, warmth: 1.0, place: 1.0 });
                self.request_limits.push(RequestLimits::new(&self.spec, service));
                self.reports.push(LoadReport::default());
                self.datacenters.push(backend.spec.datacenter);
                self.backends.push(backend);
            }
        }
        Ok(())
    }

    fn make_stacks(&mut self) -> Result<(), WorldError> {
        let mut starts = Vec::new();
        for (group, client) in self.spec.clients.iter().enumerate() {
            let first_stack = self.stacks.len() as u32;
            let places = self.places(client.service);
            // The workers of a batch proxy have no way of their own.
            let proxy = client.batch.as_ref().and_then(|batch| batch.proxy);
            for task in 0..proxy.map_or(client.tasks, |proxy| proxy.tasks.max(1)) {
                let everywhere = places.is_none().then_some(None);
                for place in places.iter().flatten().map(|&place| Some(place)).chain(everywhere) {
                    let way = self.way(client.service, place, client.datacenter, task.into());
                    self.stacks.push(Stack::new(&client.stack, way)?);
                }
            }
            let rate = if client.batch.is_some() { 0.0 } else { client.rate };
            self.groups.push(Group {
                first_stack,
                rate,
                version: 0,
                spread: None,
                batch: None,
                tenants: Vec::new(),
            });
            starts.push(group as u32);
        }
        for group in starts {
            self.start_asking(group);
        }
        for number in 0..self.backends.len() {
            let backend = &self.backends[number];
            self.own_stacks.push(self.stacks.len() as u32);
            for call in &self.spec.services[backend.service].calls {
                let (from, client) = (backend.spec.datacenter, backend.index as u64);
                let way = self.way(call.service, None, from, client);
                self.stacks.push(Stack::new(&call.stack, way)?);
            }
        }
        Ok(())
    }

    fn way(&self, service: usize, place: Option<usize>, from: usize, client: u64) -> Way {
        let here = |task: &&spec::TaskSpec| place.is_none_or(|place| task.datacenter == place);
        Way {
            client,
            datacenter: from,
            service,
            place,
            tasks: self.members(service, place),
            tasks_max: self.spec.services[service].tasks.iter().filter(here).count(),
        }
    }

    /// The numbers of a service's tasks that are there, all or those in one datacenter.
    fn members(&self, service: usize, place: Option<usize>) -> Vec<u32> {
        let tasks = self.spec.services[service].tasks.iter().enumerate();
        tasks
            .filter(|(_, task)| place.is_none_or(|place| task.datacenter == place))
            .map(|(index, _)| self.firsts[service] + index as u32)
            .filter(|&number| !self.backends[number as usize].absent)
            .collect()
    }

    /// Runs to the end and gives what was written down.
    pub fn run(mut self) -> Record {
        let end = Timestamp::ZERO + self.spec.lasts;
        loop {
            if self.queue.turn() {
                self.read_ahead();
            }
            let Some((at, number)) = self.queue.pop() else { break };
            if at > end {
                break;
            }
            self.now = at;
            self.record.events += 1;
            self.happen(self.queue.event(number));
        }
        self.record
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Ask { group, version } => self.ask(group, version),
            Event::Reach { call, attempt, .. } => self.reach(call, attempt),
            Event::Ready { job } => self.ready(job),
            Event::Cpu { backend } => self.cpu(backend),
            Event::Reply { call, attempt, reply, .. } => self.reply(call, attempt, reply),
            Event::Timeout { call, attempt } => self.fate(call, attempt, Fate::NoAnswer, false),
            Event::Again { call } => self.again(call),
            Event::Tick { backend } => self.tick(backend),
            Event::Probe { stack, member, backend } => self.probe(stack, member, backend),
            Event::Probed { stack, member, inflight, micros } => {
                let latency = Duration::from_micros(micros.into());
                let stack = &mut self.stacks[stack as usize];
                stack.on_probe(BackendId(member), inflight, latency, self.now);
            }
            Event::Report { backend } => self.report(backend),
            Event::Letter { letter } => self.letter(letter),
            Event::QuotaRound => self.quota_round(),
            Event::Connect { call, attempt } => self.connect(call, attempt),
            Event::Open { stack, member } => self.open_early(stack, member),
            Event::Idle { stack, member } => self.idle(stack, member),
            Event::Health { stack, member } => self.health(stack, member),
            Event::BatchStart { group } => self.batch_start(group),
            Event::Work { group, worker } => self.work(group, worker),
            Event::Offer { item } => self.offer(item),
            Event::Pump { group, proxy } => self.pump(group, proxy),
            Event::Told { item, reply } => self.told(item, reply),
            Event::Lease { group, task } => self.lease(group, task),
            Event::Leased { group, task } => self.leased(group, task),
            Event::Plan { service } => self.plan(service),
            Event::Change { index } => self.change(index as usize),
            Event::Step { index, step } => self.step(index, step),
            Event::Second => self.second(),
        }
    }

    /// A group asks from now on, at the rate that it has.
    fn start_asking(&mut self, group: u32) {
        let state = &self.groups[group as usize];
        if state.rate > 0.0 && self.spec.clients[group as usize].batch.is_none() {
            let ask = Event::Ask { group, version: state.version };
            let client = &self.spec.clients[group as usize];
            let dice = self.asking.dice();
            let mut first = arrivals::pause(client, state.rate, dice);
            if client.arrivals == Arrivals::Even {
                first = first.mul_f64(dice.unit());
            }
            self.queue.push(self.now + first, ask);
        }
    }

    fn ask(&mut self, group: u32, version: u32) {
        let state = &self.groups[group as usize];
        if state.version != version || state.rate <= 0.0 {
            return;
        }
        let client = &self.spec.clients[group as usize];
        let ask = self.asking.next(client, state.rate);
        self.queue.push(self.now + ask.pause, Event::Ask { group, version });
        let burst = client.burst;
        self.request(group, ask.task, ask.what);
        for _ in 1..burst {
            let client = &self.spec.clients[group as usize];
            let what = Wish::draw(client, self.asking.dice());
            self.request(group, ask.task, what);
        }
    }

    /// A task of a group makes a request.
    fn request(&mut self, group: u32, task: u32, what: Wish) {
        let Wish { criticality, customer } = what;
        let deadline = self.now + self.spec.clients[group as usize].deadline;
        self.record.ask(group as usize, criticality, customer, self.now);
        if let Some(tenant) = self.groups[group as usize].tenants.get_mut(task as usize)
            && !tenant.allows(self.now)
        {
            self.record.client(group as usize, self.now).throttled += 1;
            return;
        }
        let customer = CustomerId(customer as u32);
        let Some(stack) = self.place(group, task, true) else {
            self.record.client(group as usize, self.now).unplaced += 1;
            return;
        };
        self.call(Parent::Group(group), stack, criticality, customer, deadline);
    }

    /// A backend's controller looks.
    fn tick(&mut self, number: u32) {
        let backend = &mut self.backends[number as usize];
        // Work that came since has made it due before.
        if !backend.is_due(self.now) {
            return;
        }
        let Looked { report, look, next } = backend.tick(number, self.now);
        self.reports[number as usize] = report;
        self.queue.push(next, Event::Tick { backend: number });
        if let (Some(log), Some(look)) = (&mut self.record.log, look) {
            log.looks.push(look);
        }
        if backend.has_contender() {
            self.release(number);
        }
    }

    fn second(&mut self) {
        for backend in &mut self.backends {
            let busy = backend.cpu.busy(self.now);
            let column = &mut self.record.busy[backend.service][backend.index];
            column.push((busy - backend.busy_written) as f32);
            backend.busy_written = busy;
        }
        self.quota_second();
        self.connection_second();
        self.batch_second();
        self.doorman_second();
        self.queue.push(self.now + Duration::from_secs(1), Event::Second);
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
