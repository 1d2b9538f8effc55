//! Others who could stand in front of a task in the place of tidegate, to be measured beside it.
//!
//! A contender decides when a request arrives, and may hold it back once more when it is ready for
//! the CPU, in a queue of its own. [`World::with_contender`] puts one in front of a task; ordinary
//! worlds have none, and pay nothing for that one could be there.

use super::backend::Guard;
use super::log::Ending;
use super::record::column;
use super::{Reply, World};
use crate::slab::Key;
use core::fmt;
use core::time::Duration;
use tidegate_core::decision::Reason;
use tidegate_core::rng::SeededRng;
use tidegate_core::{Criticality, Timestamp};

/// Who decides in the place of tidegate.
pub trait Contender: fmt::Debug {
    /// May a request in that arrives now?
    fn offer(&mut self, criticality: Criticality, now: Timestamp, rng: &mut SeededRng) -> bool;
    /// So many requests are running or ready from now on.
    fn sample(&mut self, _active: usize, _now: Timestamp) {}
    /// Time has passed.
    fn tick(&mut self, _active: usize, _now: Timestamp) {}
    /// A request is done, having used `work` of CPU and taken `took` altogether, if anybody still
    /// waited.
    fn done(&mut self, _work: Duration, _took: Option<Duration>, _now: Timestamp) {}
    /// A request is ready for the CPU. True puts it into the contender's own queue.
    fn hold(&mut self, _id: u64, _criticality: Criticality) -> bool {
        false
    }
    /// With so many running or ready: which of those in the queue are to start, and which are to be
    /// refused after all?
    fn release(&mut self, _active: usize, _start: &mut Vec<u64>, _refuse: &mut Vec<u64>) {}
}

impl World {
    /// Puts a contender in front of a task, in the place of whatever protects it.
    #[must_use]
    pub fn with_contender(
        mut self,
        service: usize,
        task: usize,
        contender: Box<dyn Contender>,
    ) -> Self {
        let number = self.firsts[service] as usize + task;
        self.backends[number].guard = Guard::Contender(contender);
        self
    }

    /// A contender looks at its queue.
    #[cold]
    pub(super) fn release(&mut self, number: u32) {
        let backend = &mut self.backends[number as usize];
        let active = backend.cpu.active();
        let Guard::Contender(contender) = &mut backend.guard else { return };
        let (mut start, mut refuse) = (Vec::new(), Vec::new());
        contender.release(active, &mut start, &mut refuse);
        for bits in start {
            self.start(Key::from_bits(bits));
        }
        for bits in refuse {
            self.evict(Key::from_bits(bits));
        }
    }

    /// A job that was let in is refused after all.
    fn evict(&mut self, key: Key) {
        let Some(job) = self.jobs.remove(key) else { return };
        let backend = &mut self.backends[job.backend as usize];
        let service = backend.service;
        let bin = self.record.service(service, self.now);
        bin.rejected[job.criticality.index()] += 1;
        bin.reasons[column(Reason::Overloaded)] += 1;
        backend.cpu.chore(self.spec.services[service].reject_cost, self.now);
        self.schedule(job.backend);
        self.note(job.call, Ending::Refused { cause: None });
        self.answer(job.backend, job.call, job.attempt, Reply::Overloaded);
    }
}
