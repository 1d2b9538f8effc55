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
use super::{Call, Event, World};
use crate::slab::Key;
use core::hint::black_box;

/// Fewer events than this have little to wait for together.
const EVENTS_MIN: usize = 4;

impl World {
    /// Reads what the events of the current slot will need.
    pub(super) fn read_ahead(&mut self) {
        if self.queue.current().len() < EVENTS_MIN {
            return;
        }
        self.look();
        let events = self.queue.current();
        let stack = |ask: &Ask| &self.stacks[(self.groups[0].first_stack + ask.task) as usize];
        let mut word = 0;
        for (_, event) in events {
            word ^= self.touch_first(*event);
        }
        for ask in self.asking.ahead() {
            word ^= stack(ask).touch(ask.what.criticality);
        }
        for (_, event) in events {
            word ^= self.touch_second(*event);
        }
        for ask in self.asking.ahead() {
            word ^= stack(ask).touch_pick();
        }
        for (_, event) in events {
            word ^= self.touch_third(*event);
        }
        black_box(word);
    }

    /// What an event names.
    #[inline]
    fn touch_first(&self, event: Event) -> u64 {
        match event {
            Event::Reach { call, .. } | Event::Reply { call, .. } => {
                self.calls.at(call).map_or(0, |call| call.backend.into())
            }
            Event::Cpu { backend } | Event::Tick { backend } => {
                self.backends[backend as usize].touch()
            }
            _ => 0,
        }
    }

    /// What that names.
    #[inline]
    fn touch_second(&self, event: Event) -> u64 {
        match event {
            Event::Reach { call, .. } => {
                let backend = |call: &Call| self.backends[call.backend as usize].touch();
                self.calls.at(call).map_or(0, backend)
            }
            Event::Reply { call, .. } => self.calls.at(call).map_or(0, |call| {
                let report = self.reports[call.backend as usize].rps.to_bits();
                report ^ self.stacks[call.stack as usize].touch(call.criticality)
            }),
            Event::Cpu { backend } => {
                let job = self.backends[backend as usize].cpu.next().map(Key::from_bits);
                job.and_then(|job| self.jobs.at(job)).map_or(0, |job| job.deadline.as_nanos())
            }
            Event::Tick { backend } => self.backends[backend as usize].touch_control(),
            _ => 0,
        }
    }

    /// And what lies behind.
    #[inline]
    fn touch_third(&self, event: Event) -> u64 {
        match event {
            Event::Reach { call, .. } => self.calls.at(call).map_or(0, |call| {
                let backend = &self.backends[call.backend as usize];
                backend.touch_guard(call.customer, call.criticality)
            }),
            Event::Reply { call, .. } => self
                .calls
                .at(call)
                .map_or(0, |call| self.stacks[call.stack as usize].touch_end(call.member)),
            Event::Cpu { backend } => {
                let backend = &self.backends[backend as usize];
                let job = backend.cpu.next().and_then(|bits| self.jobs.at(Key::from_bits(bits)));
                job.map_or(0, |job| {
                    let asked = self.calls.at(job.call).map_or(0, |call| call.asked.as_nanos());
                    asked ^ backend.touch_guard(job.customer, job.criticality)
                })
            }
            _ => 0,
        }
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
