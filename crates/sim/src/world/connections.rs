//! What connections cost: handshakes, idle peers, and questions for health.
//!
//! A request to a backend without a connection first makes one: a round trip, and CPU time of the
//! backend. Who has one and does not use it drops it (`IdlePolicy`) and asks for health now and
//! then instead, at the pace that the backend tells (`HealthPacer`). A backend may take only so
//! many connections at once or a second (`ConnectionGate`).
//!
//! A link holds a few words, and at most two events: when to look whether it is idle, and when to
//! ask for health next. Nothing here is done request by request where a service has no
//! [`ConnectionSpec`].

use super::record::ConnectionSecond;
use super::spec::{ConnectionSpec, HealthSpec, WorldError};
use super::{Event, Reply, World};
use crate::dice;
use crate::slab::Key;
use core::time::Duration;
use tidegate_core::Timestamp;
use tidegate_core::balance::BackendId;
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_core::connection::idle::{HealthAnswer, HealthPacer, IdleVerdict};
use tidegate_core::rng::Rng;

/// One client task's way to one backend.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Link {
    /// Since when requests can be sent, if there is a connection.
    ready: Option<Timestamp>,
    last_used: Timestamp,
    /// When the last question for health reached the backend, and after how long the next one is
    /// due.
    asked: Option<Timestamp>,
    wait: Duration,
    active: u32,
    /// Whether an event will look whether it is idle, or ask for health.
    watched: bool,
    asking: bool,
}

impl Link {
    pub(crate) const fn is_open(&self) -> bool {
        self.ready.is_some()
    }

    pub(crate) fn on_start(&mut self, now: Timestamp) {
        self.active += 1;
        self.last_used = now;
    }

    pub(crate) fn on_end(&mut self, now: Timestamp) {
        self.active = self.active.saturating_sub(1);
        self.last_used = now;
    }
}

/// The connections of one service.
#[derive(Debug)]
pub(super) struct Connections {
    spec: ConnectionSpec,
    /// By task.
    gates: Vec<ConnectionGate>,
    pacers: Vec<HealthPacer>,
    /// The second that is under way.
    second: ConnectionSecond,
    /// Open ones, by task.
    open: Vec<u32>,
}

impl Connections {
    pub(super) const fn is_eager(&self) -> bool {
        self.spec.eager
    }
}

/// How long a client that connects at the start waits after a refusal.
const AGAIN: Duration = Duration::from_secs(1);

impl World {
    pub(super) fn make_connections(&mut self) -> Result<(), WorldError> {
        for of in &self.spec.services {
            let Some(spec) = of.connections.clone() else {
                self.connections.push(None);
                continue;
            };
            let (mut gates, mut pacers) = (Vec::new(), Vec::new());
            for _ in &of.tasks {
                if let Some(limits) = spec.limits {
                    gates.push(ConnectionGate::new(limits)?);
                }
                if let Some(HealthSpec::Paced(config)) = spec.health {
                    pacers.push(HealthPacer::new(config, Timestamp::ZERO)?);
                }
            }
            let second = ConnectionSecond::default();
            let open = vec![0; of.tasks.len()];
            let connections = Connections { spec, gates, pacers, second, open };
            self.connections.push(Some(Box::new(connections)));
        }
        for stack in 0..self.stacks.len() {
            let service = self.stacks[stack].service;
            let Some(connections) = &self.connections[service] else { continue };
            let eager = connections.spec.eager;
            let members = self.stacks[stack].members.len();
            self.stacks[stack].links = vec![Link::default(); members].into();
            for member in 0..self.stacks[stack].members.len() {
                let (stack, member) = (stack as u32, member as u32);
                if eager {
                    let at = Timestamp::ZERO + dice::seconds(self.network.dice.unit());
                    self.queue.push(at, Event::Open { stack, member });
                } else {
                    self.ask_for_health(stack, member);
                }
            }
        }
        Ok(())
    }

    /// A request for a new connection has reached a backend, or a request that found it made.
    pub(super) fn connect(&mut self, key: Key, attempt: u8) {
        let Some(call) = self.calls.get_mut(key).filter(|call| call.attempt == attempt) else {
            return;
        };
        let (stack, member, number) = (call.stack, call.member, call.backend);
        if self.backends[number as usize].down {
            return self.answer(number, key, attempt, Reply::Gone);
        }
        let criticality = call.criticality;
        let Some(ready) = self.open(stack, member.0, Some(criticality)) else {
            return self.answer(number, key, attempt, Reply::Overloaded);
        };
        let to = self.backends[number as usize].spec.datacenter;
        let from = self.stacks[stack as usize].datacenter as usize;
        let travel = self.network.latency(from, to);
        let reach = Event::Reach { call: key, attempt, backend: number };
        self.queue.push(ready.max(self.now) + travel, reach);
    }

    /// A client connects at the start.
    pub(super) fn open_early(&mut self, stack: u32, member: u32) {
        if self.open(stack, member, None).is_none() {
            self.queue.push(self.now + AGAIN, Event::Open { stack, member });
        }
    }

    /// A backend is asked for a connection. When it can be used, if it was made.
    fn open(
        &mut self,
        stack: u32,
        member: u32,
        peer: Option<tidegate_core::Criticality>,
    ) -> Option<Timestamp> {
        let client = &mut self.stacks[stack as usize];
        let number = client.members[member as usize];
        let link = &mut client.links[member as usize];
        if let Some(ready) = link.ready {
            return Some(ready);
        }
        let backend = &mut self.backends[number as usize];
        let connections = self.connections[client.service].as_mut()?;
        if backend.down {
            return None;
        }
        let gate = connections.gates.get(backend.index);
        if let Some(gate) = gate
            && gate.accept(None, self.now).is_err()
        {
            connections.second.refused += 1;
            return None;
        }
        let cost = connections.spec.connect_cost;
        backend.cpu.chore(cost, self.now);
        connections.second.cpu += cost.as_secs_f64() as f32;
        // The handshake has told who it is.
        if let (Some(gate), Some(criticality)) = (gate, peer)
            && gate.confirm(criticality).is_err()
        {
            gate.release();
            connections.second.refused += 1;
            return None;
        }
        connections.second.connects += 1;
        connections.second.open += 1;
        connections.open[backend.index] += 1;
        let (from, to) = (backend.spec.datacenter, client.datacenter as usize);
        let ready = self.now + cost + self.network.latency(from, to);
        link.ready = Some(ready);
        link.last_used = self.now;
        if let Some(policy) = connections.spec.idle.filter(|_| !link.watched) {
            link.watched = true;
            self.queue.push(self.now + policy.drop_after, Event::Idle { stack, member });
        }
        if matches!(connections.spec.health, Some(HealthSpec::Fixed(_))) {
            self.ask_for_health(stack, member);
        }
        Some(ready)
    }

    /// Looks whether a connection is idle.
    pub(super) fn idle(&mut self, stack: u32, member: u32) {
        let client = &mut self.stacks[stack as usize];
        let link = &mut client.links[member as usize];
        link.watched = false;
        let Some(connections) = self.connections[client.service].as_mut() else { return };
        let Some(policy) = connections.spec.idle else { return };
        if !link.is_open() {
            return;
        }
        // A connection with a request on it is in use.
        let last_used = if link.active > 0 { self.now } else { link.last_used };
        match policy.verdict(last_used, self.now) {
            IdleVerdict::KeepUntil(until) => {
                link.watched = true;
                self.queue.push(until, Event::Idle { stack, member });
            }
            IdleVerdict::Drop => self.close(stack, member),
        }
    }

    pub(super) fn close(&mut self, stack: u32, member: u32) {
        let client = &mut self.stacks[stack as usize];
        let number = client.members[member as usize];
        client.links[member as usize].ready = None;
        let Some(connections) = self.connections[client.service].as_mut() else { return };
        connections.second.open = connections.second.open.saturating_sub(1);
        let index = self.backends[number as usize].index;
        connections.open[index] = connections.open[index].saturating_sub(1);
        if let Some(gate) = connections.gates.get(index) {
            gate.release();
        }
        self.ask_for_health(stack, member);
    }

    /// A backend is gone, and all connections to it.
    pub(super) fn close_all(&mut self, number: u32) {
        let service = self.backends[number as usize].service;
        if self.connections[service].is_none() {
            return;
        }
        for stack in 0..self.stacks.len() {
            let client = &self.stacks[stack];
            if client.service == service
                && let Some(member) = client.members.iter().position(|&m| m == number)
                && client.links[member].is_open()
            {
                self.close(stack as u32, member as u32);
            }
        }
    }

    /// A client begins to ask for health, somewhen within the first interval.
    pub(super) fn ask_for_health(&mut self, stack: u32, member: u32) {
        let client = &mut self.stacks[stack as usize];
        let link = &mut client.links[member as usize];
        let Some(connections) = &self.connections[client.service] else { return };
        let base = match connections.spec.health {
            Some(HealthSpec::Paced(config)) => config.base,
            Some(HealthSpec::Fixed(interval)) => interval,
            None => return,
        };
        if link.asking {
            return;
        }
        (link.asking, link.asked, link.wait) = (true, None, base);
        let first = dice::seconds(base.as_secs_f64() * self.network.dice.unit());
        self.queue.push(self.now + first, Event::Health { stack, member });
    }

    /// A question for health has reached a backend.
    pub(super) fn health(&mut self, stack: u32, member: u32) {
        let client = &mut self.stacks[stack as usize];
        let number = client.members[member as usize];
        let link = &mut client.links[member as usize];
        let backend = &mut self.backends[number as usize];
        let Some(connections) = self.connections[client.service].as_mut() else { return };
        let paced = matches!(connections.spec.health, Some(HealthSpec::Paced(_)));
        if paced && link.is_open() {
            link.asking = false;
            return;
        }
        let now = self.now;
        let waited = link.asked.replace(now).map(|asked| now.since(asked));
        let answer = if backend.down {
            HealthAnswer::Drop
        } else {
            match connections.pacers.get_mut(backend.index) {
                Some(pacer) => pacer.on_check(waited, now, &mut self.network.dice),
                None => HealthAnswer::AskAgainAfter(link.wait),
            }
        };
        let wait = match answer {
            HealthAnswer::AskAgainAfter(wait) => {
                let cost = connections.spec.health_cost;
                backend.cpu.chore(cost, now);
                connections.second.health_checks += 1;
                connections.second.cpu += cost.as_secs_f64() as f32;
                wait
            }
            HealthAnswer::Drop if paced => {
                connections.second.health_dropped += 1;
                link.wait.saturating_mul(2).min(Duration::from_secs(3_600))
            }
            HealthAnswer::Drop => link.wait,
        };
        link.wait = wait;
        let (from, to) = (backend.spec.datacenter, client.datacenter as usize);
        let travel = self.network.latency(from, to) * 2;
        let travel = if paced { travel } else { Duration::ZERO };
        self.queue.push(now + travel + wait, Event::Health { stack, member });
    }

    pub(super) fn connection_second(&mut self) {
        for (service, connections) in self.connections.iter_mut().enumerate() {
            let Some(connections) = connections else { continue };
            let open = connections.second.open;
            self.record.connections[service].push(connections.second);
            self.record.connected[service].push(connections.open.clone());
            connections.second = ConnectionSecond { open, ..ConnectionSecond::default() };
        }
    }

    /// Whether an attempt has to make a connection first.
    #[inline]
    pub(super) fn is_unconnected(&self, stack: u32, member: BackendId) -> bool {
        let links = &self.stacks[stack as usize].links;
        links.get(member.0 as usize).is_some_and(|link| !link.is_open())
    }
}
