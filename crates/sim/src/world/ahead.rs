//! Reading ahead.
//!
//! A world of a thousand by a thousand tasks is larger than a cache, and an event is mostly waiting
//! for memory: for the call, then for the task that the call names, then for what that task points
//! to. Events are handled one after the other, and so are their waits. But what the events of one
//! slot will read is known when the slot begins, and reads of different events do not depend on
//! each other. So they are made beforehand, all of one step before those of the next, and a
//! processor waits for a dozen of them at once.
//!
//! Nothing is decided or changed here: a wrong guess (an event that comes too late to matter, a
//! request of another client than foreseen) costs a read that was not needed.

use super::arrivals::Ask;
use super::stack::Stack;
use super::{Event, World};
use crate::slab::Key;
use core::hint::black_box;

/// Fewer events than this have little to wait for together.
const EVENTS_MIN: usize = 4;

/// The events of a slot that have more to read than what they name, kind by kind: a processor
/// that cannot foresee of which kind the next one is reads nothing ahead of it.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Calls and backends.
    reaches: Vec<(Key, u32)>,
    /// Calls and stacks.
    replies: Vec<(Key, u32)>,
    /// Backends.
    cpus: Vec<u32>,
    ticks: Vec<u32>,
}

impl Ahead {
    fn clear(&mut self) {
        let Self { reaches, replies, cpus, ticks } = self;
        reaches.clear();
        replies.clear();
        cpus.clear();
        ticks.clear();
    }
}

impl World {
    /// Reads what the events of the current slot will need.
    pub(super) fn read_ahead(&mut self) {
        if self.queue.current().len() < EVENTS_MIN {
            return;
        }
        self.look();
        let mut ahead = core::mem::take(&mut self.ahead);
        ahead.clear();
        let word = self.touch_first(&mut ahead) ^ self.touch_second(&ahead);
        black_box(word ^ self.touch_third(&ahead));
        self.ahead = ahead;
    }

    /// What events name.
    fn touch_first(&self, ahead: &mut Ahead) -> u64 {
        let mut word = 0;
        for event in self.queue.current() {
            match *event {
                Event::Reach { call, backend, .. } => {
                    ahead.reaches.push((call, backend));
                    word ^= self.touch_call(call) ^ self.backends[backend as usize].touch();
                }
                Event::Reply { call, stack, backend, .. } => {
                    ahead.replies.push((call, stack));
                    word ^= self.touch_call(call) ^ self.reports[backend as usize].rps.to_bits();
                    word ^= self.stacks[stack as usize].touch_first();
                }
                Event::Cpu { backend } => {
                    ahead.cpus.push(backend);
                    word ^= self.backends[backend as usize].touch();
                }
                Event::Tick { backend } => {
                    ahead.ticks.push(backend);
                    word ^= self.backends[backend as usize].touch();
                }
                _ => {}
            }
        }
        for ask in self.asking.ahead() {
            word ^= self.asked(ask).touch(ask.what.criticality);
        }
        word
    }

    /// What that names.
    fn touch_second(&self, ahead: &Ahead) -> u64 {
        let mut word = 0;
        for &backend in &ahead.cpus {
            let job = self.backends[backend as usize].cpu.next().map(Key::from_bits);
            let job = job.and_then(|job| self.jobs.at(job));
            word ^= job.map_or(0, |job| job.deadline.as_nanos());
        }
        for &(call, backend) in &ahead.reaches {
            if let Some(call) = self.calls.at(call) {
                let backend = &self.backends[backend as usize];
                word ^= backend.touch_guard(call.customer, call.criticality);
            }
        }
        for &(call, stack) in &ahead.replies {
            if let Some(call) = self.calls.at(call) {
                word ^= self.stacks[stack as usize].touch_end(call.member, call.criticality);
            }
        }
        for ask in self.asking.ahead() {
            word ^= self.asked(ask).touch_pick();
        }
        for &backend in &ahead.ticks {
            word ^= self.backends[backend as usize].touch_control();
        }
        word
    }

    /// And what lies behind.
    fn touch_third(&self, ahead: &Ahead) -> u64 {
        let mut word = 0;
        for &backend in &ahead.cpus {
            let backend = &self.backends[backend as usize];
            let job = backend.cpu.next().and_then(|bits| self.jobs.at(Key::from_bits(bits)));
            if let Some(job) = job {
                word ^= self.touch_call(job.call) ^ backend.touch_guard_end(job.customer);
            }
        }
        for ask in self.asking.ahead() {
            word ^= self.asked(ask).touch_picked();
        }
        for &backend in &ahead.ticks {
            word ^= self.backends[backend as usize].touch_signals();
        }
        word
    }

    #[inline]
    fn touch_call(&self, call: Key) -> u64 {
        self.calls.at(call).map_or(0, |call| call.asked.as_nanos())
    }

    /// The stack of one that will ask, where one group asks alone.
    #[inline]
    fn asked(&self, ask: &Ask) -> &Stack {
        &self.stacks[(self.groups[0].first_stack + ask.task) as usize]
    }

    /// Draws the asks of the current slot, where one group asks alone.
    fn look(&mut self) {
        let ([state], [client]) = (self.groups.as_slice(), self.spec.clients.as_slice()) else {
            return;
        };
        let next = |event: &Event| matches!(event, Event::Ask { .. });
        let Some(left) = self.queue.left_after(next) else { return };
        if state.spread.is_none() && client.burst <= 1 && client.batch.is_none() {
            self.asking.look(client, state.rate, left);
        }
    }
}
