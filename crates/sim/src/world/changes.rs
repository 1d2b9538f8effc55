//! What changes while a world runs: surges, antagonists, releases, failures.

use super::spec::Change;
use super::stack::Stand;
use super::{Event, Factors, Reply, World};
use crate::slab::Key;
use core::time::Duration;
use tidegate_core::Timestamp;

/// The steps of a restart.
const LAME_DUCK: u32 = 0;
const TOLD: u32 = 1;
const GONE: u32 = 2;
const BACK: u32 = 3;
/// A straight line in so many steps: each is small against the noise of a load.
const WARM_STEPS: u32 = 16;

impl World {
    pub(super) fn queue_change(&mut self, index: usize) {
        if let Some((at, _)) = self.spec.changes.get(index) {
            self.queue.push(*at, Event::Change { index: index as u32 });
        }
    }

    pub(super) fn change(&mut self, index: usize) {
        self.queue_change(index + 1);
        let change = self.spec.changes[index].1.clone();
        match change {
            Change::Rate { client, rate } => {
                let group = &mut self.groups[client];
                group.version += 1;
                group.rate = rate;
                self.start_asking(client as u32);
            }
            Change::Speed { service, tasks, factor } => {
                self.each(service, tasks, |world, number| {
                    world.factors[number as usize].machine = factor;
                    world.set_speed(number);
                });
            }
            Change::Cost { service, factor } => self.cost_factor[service] = factor,
            Change::FailFast { service, tasks, fails } => {
                self.each(service, tasks, |world, number| {
                    world.backends[number as usize].fails = fails;
                });
            }
            Change::Down { service, tasks, down } => {
                self.each(service, tasks, |world, number| world.set_down(number, down));
            }
            Change::Restart { .. } => self.step(index as u32, 0),
            Change::Join { service, tasks } => self.join(service, tasks),
            Change::QuotaServer { lost } => self.quota_lost(lost),
            Change::QuotaElection => self.quota_election(),
            Change::Limits { customer, limits } => self.quota_limits(customer, limits),
            Change::Datacenter { datacenter, lost } => self.set_datacenter(datacenter, lost),
            Change::DatacenterSpeed { datacenter, factor } => {
                self.set_datacenter_speed(datacenter, factor);
            }
            Change::Doorman { server, lost } => self.doorman_lost(server, lost),
            Change::DoormanElection { server } => self.doorman_election(server),
            Change::DoormanCapacity { server, capacity } => self.doorman_capacity(server, capacity),
        }
    }

    /// Takes the next step of a restart: lame duck, gone, back and cold, warmer, and warm.
    pub(super) fn step(&mut self, index: u32, step: u32) {
        let Change::Restart { service, ref tasks, lame_duck, down_for, cold_for, cold_speed } =
            self.spec.changes[index as usize].1
        else {
            return;
        };
        let tasks = tasks.clone();
        let wait = match step {
            LAME_DUCK if lame_duck.is_zero() => return self.step(index, GONE),
            LAME_DUCK => {
                self.each(service, tasks, |world, number| {
                    if let Some(gate) = world.backends[number as usize].gate() {
                        gate.set_lame_duck(true);
                    }
                });
                // Clients are told, and know one message later.
                self.distance_inside(service).min(lame_duck)
            }
            TOLD => {
                self.each(service, tasks, |world, number| world.stand(number, Stand::LameDuck));
                lame_duck.saturating_sub(self.distance_inside(service))
            }
            GONE => {
                self.each(service, tasks, |world, number| {
                    world.set_down(number, true);
                    world.stand(number, Stand::Gone);
                });
                down_for
            }
            BACK => {
                self.each(service, tasks, |world, number| {
                    world.set_down(number, false);
                    if let Some(gate) = world.backends[number as usize].gate() {
                        gate.set_lame_duck(false);
                    }
                    world.quota_restart(number);
                    world.factors[number as usize].warmth = cold_speed;
                    world.set_speed(number);
                    world.stand(number, Stand::Back);
                });
                cold_for / WARM_STEPS
            }
            step => {
                let done = f64::from(step - BACK) / f64::from(WARM_STEPS);
                let warmth = cold_speed + (1.0 - cold_speed) * done;
                self.each(service, tasks, |world, number| {
                    world.factors[number as usize].warmth = warmth;
                    world.set_speed(number);
                });
                if step >= BACK + WARM_STEPS {
                    return;
                }
                cold_for / WARM_STEPS
            }
        };
        self.queue.push(self.now + wait, Event::Step { index, step: step + 1 });
    }

    fn distance_inside(&self, service: usize) -> Duration {
        let place = self.spec.services[service].tasks.first().map_or(0, |task| task.datacenter);
        self.spec.distance.get(place).and_then(|row| row.get(place)).copied().unwrap_or_default()
    }

    /// Every balancer that knows the task hears how it stands.
    fn stand(&mut self, number: u32, stand: Stand) {
        for stack in &mut self.stacks {
            stack.stand(number, stand, self.now);
        }
    }

    pub(super) fn set_speed(&mut self, number: u32) {
        let Factors { machine, warmth, place } = self.factors[number as usize];
        let backend = &mut self.backends[number as usize];
        backend.cpu.set_speed(backend.spec.speed * machine * warmth * place, self.now);
        backend.scheduled = Timestamp::MAX;
        self.schedule(number);
    }

    pub(super) fn each(
        &mut self,
        service: usize,
        tasks: core::ops::Range<usize>,
        mut action: impl FnMut(&mut Self, u32),
    ) {
        let count = self.spec.services[service].tasks.len();
        for task in tasks.start.min(count)..tasks.end.min(count) {
            action(self, self.firsts[service] + task as u32);
        }
    }

    pub(super) fn set_down(&mut self, number: u32, down: bool) {
        let backend = &mut self.backends[number as usize];
        backend.down = down;
        if down {
            let lost: Vec<u64> = backend.cpu.clear(self.now).collect();
            for bits in lost {
                self.done(Key::from_bits(bits), Reply::Gone);
            }
            self.close_all(number);
        }
    }
}
