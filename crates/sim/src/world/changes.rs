//! What changes while a world runs: surges, antagonists, releases, failures.

use super::spec::Change;
use super::{Event, Reply, World};
use crate::dice;
use crate::slab::Key;
use tidegate_core::Timestamp;

impl World {
    pub(super) fn change(&mut self, index: usize) {
        let change = self.spec.changes[index].1.clone();
        match change {
            Change::Rate { client, rate } => {
                let group = &mut self.groups[client];
                group.version += 1;
                group.rate = rate;
                if rate > 0.0 {
                    let next = dice::exponential(1.0 / rate, &mut self.arrivals);
                    let ask = Event::Ask { group: client as u32, version: group.version };
                    self.queue.push(self.now + next, ask);
                }
            }
            Change::Speed { service, tasks, factor } => {
                self.each(service, tasks, |world, number| {
                    let backend = &mut world.backends[number as usize];
                    backend.cpu.set_speed(backend.spec.speed * factor, world.now);
                    backend.scheduled = Timestamp::MAX;
                    world.schedule(number);
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
            Change::QuotaServer { lost } => self.quota_lost(lost),
            Change::QuotaElection => self.quota_election(),
            Change::Limits { customer, limits } => self.quota_limits(customer, limits),
            _ => {}
        }
    }

    fn each(
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

    fn set_down(&mut self, number: u32, down: bool) {
        let backend = &mut self.backends[number as usize];
        backend.down = down;
        if down {
            let lost: Vec<u64> = backend.cpu.clear(self.now).collect();
            for bits in lost {
                self.done(Key::from_bits(bits), Reply::Gone);
            }
        }
    }
}
