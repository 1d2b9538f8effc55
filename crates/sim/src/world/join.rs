//! Tasks that were not there at the beginning.
//!
//! Every client of the service works out its subset again (`tidegate_core::subset` decides), drops
//! the connections to those who are no longer in it and connects to those who are new. What it has
//! under way at the former it still hears of.

use super::connections::Link;
use super::{Event, World};
use crate::dice;
use core::ops::Range;
use tidegate_core::rng::Rng;

impl World {
    pub(super) fn join(&mut self, service: usize, tasks: Range<usize>) {
        let first = self.firsts[service];
        self.each(service, tasks.clone(), |world, number| {
            let backend = &mut world.backends[number as usize];
            (backend.absent, backend.down) = (false, false);
        });
        let newcomers = first + tasks.start as u32..first + tasks.end as u32;
        for stack in 0..self.stacks.len() {
            if self.stacks[stack].service != service {
                continue;
            }
            let tasks = self.members(service, self.stacks[stack].place);
            for (member, number) in self.stacks[stack].moves(&tasks) {
                self.unlink(stack as u32, member);
                let is_new = newcomers.contains(&number);
                self.stacks[stack].replace(member, number, is_new, self.now);
                self.link(stack as u32, member);
            }
        }
    }

    /// Drops the connection to a member that leaves, if there is one.
    fn unlink(&mut self, stack: u32, member: usize) {
        let links = &self.stacks[stack as usize].links;
        if links.get(member).is_some_and(Link::is_open) {
            self.close(stack, member as u32);
        }
    }

    /// Connects to a member that is new, now or when it is first asked.
    fn link(&mut self, stack: u32, member: usize) {
        let client = &mut self.stacks[stack as usize];
        let Some(connections) = &self.connections[client.service] else { return };
        let eager = connections.is_eager();
        let missing = client.members.len().saturating_sub(client.links.len());
        let links = client.links.iter().copied();
        client.links = links.chain(core::iter::repeat_n(Link::default(), missing)).collect();
        let member = member as u32;
        if eager {
            let at = self.now + dice::seconds(self.network.dice.unit());
            self.queue.push(at, Event::Open { stack, member });
        } else {
            self.ask_for_health(stack, member);
        }
    }
}
