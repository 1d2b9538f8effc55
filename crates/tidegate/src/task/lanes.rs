//! Each thread's own access to the gates of a task.
//!
//! Gates count and lease per thread, so each thread that serves requests has a [`Lane`]. They stand
//! in a thread-local list: a process has one task and the list one entry, so finding it is one
//! comparison. A lane is made at a thread's first request, under a lock, and never on the way of
//! others. Those of tasks that are gone are dropped when the next one is made.
//!
//! Where there is no list any more (a thread that is ending drops a future) a lane is made for the
//! one call and dropped after it; that takes locks, and is right all the same.

use super::Inner;
use super::methods::{Finder, Method};
use crate::signals::{Paced, Pacer};
use crate::workplace::cells;
use core::time::Duration;
use std::cell::RefCell;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::{Arc, Weak};
use tidegate_core::admission::{self, Decision, Permit, Request};
use tidegate_core::attribution::ClassId;
use tidegate_core::cost::{CostLane, MethodId};
use tidegate_core::counters::Writer;
#[cfg(feature = "tokio")]
use tidegate_core::quota::QuotaLane;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Cost, Criticality, CustomerId, Timestamp};
use tidegate_wire::reject::DecisionId;

/// One thread's access to a task.
#[derive(Debug)]
pub(crate) struct Lane {
    gate: admission::Lane,
    costs: CostLane,
    counts: Writer,
    methods: Finder,
    rng: SeededRng,
    /// What has come since the look of this number, which asks for the next.
    come: Cost,
    look: u32,
    /// Once it has let anything in.
    paced: Option<Paced>,
    /// Where the work is done elsewhere.
    remote: Option<Writer>,
    /// For work that goes on after its request is done; most threads never need it.
    #[cfg(feature = "tokio")]
    late: Option<QuotaLane>,
}

impl Lane {
    fn new(task: &Inner) -> Self {
        Self {
            gate: task.gate.lane(),
            costs: task.costs.lane(),
            counts: task.counting.writer(),
            methods: task.methods.finder(),
            // Draws have to differ between threads and tasks, or all would shed in step.
            rng: SeededRng::new(RandomState::new().build_hasher().finish()),
            come: Cost::ZERO,
            // None that there was.
            look: u32::MAX,
            paced: None,
            remote: task.remote.as_ref().map(|remote| remote.counting.writer()),
            #[cfg(feature = "tokio")]
            late: None,
        }
    }

    #[inline]
    pub(crate) fn method(&mut self, name: &str) -> Method {
        self.methods.find(name)
    }

    #[inline]
    pub(crate) fn estimate(
        &self,
        customer: CustomerId,
        method: MethodId,
        criticality: Criticality,
    ) -> Cost {
        self.costs.estimate(customer, method.answering(self.gate.degrades(criticality)))
    }

    #[inline]
    pub(crate) fn admit(&mut self, request: &Request, now: Timestamp) -> Decision {
        self.gate.admit(request, now, &mut self.rng)
    }

    /// So much work has come: asks `pacer` for a look once it is enough.
    #[inline]
    pub(crate) fn pace(&mut self, pacer: &Arc<Pacer>, cost: Cost) {
        let look = pacer.looks();
        if look != self.look {
            (self.look, self.come) = (look, Cost::ZERO);
            self.paced.get_or_insert_with(|| pacer.join());
        }
        self.come += cost;
        if self.come >= pacer.worth() {
            self.come = Cost::ZERO;
            pacer.ask();
        }
    }

    /// A request is done.
    #[inline]
    pub(crate) fn complete(
        &mut self,
        permit: Permit,
        method: MethodId,
        actual: Cost,
        now: Timestamp,
    ) {
        self.costs.record(permit.customer(), method.answering(permit.degrade()), actual);
        crate::metrics::count_cost(&mut self.counts, actual);
        self.gate.complete(permit, actual, now);
    }

    /// A request is done that nobody had to work for: nothing is to be learnt from it, and it
    /// counts as what was thought.
    pub(crate) fn spare(&mut self, permit: Permit, now: Timestamp) {
        let thought = permit.charged();
        crate::metrics::count_cost(&mut self.counts, thought);
        self.gate.complete(permit, thought, now);
    }

    /// A request is done that was never served: it has cost nothing, and nothing is to be learnt
    /// from it.
    #[cold]
    pub(crate) fn release(&mut self, permit: Permit, now: Timestamp) {
        crate::metrics::count_cost(&mut self.counts, Cost::ZERO);
        self.gate.complete(permit, Cost::ZERO, now);
    }

    /// A request that began so long ago is done, and was good if it counts as anything.
    #[inline]
    pub(crate) fn ended(&mut self, took: Duration, good: Option<Criticality>) {
        crate::metrics::count_latency(&mut self.counts, took);
        if let Some(criticality) = good {
            crate::metrics::count_good(&mut self.counts, criticality);
        }
    }

    /// A request of `class` goes to where the work is done.
    #[inline]
    pub(crate) fn came(&mut self, class: ClassId) {
        if let Some(counts) = &mut self.remote {
            counts.add(cells::CAME + class.index(), 1);
        }
    }

    /// It is done there, and has said what it cost, or not.
    #[inline]
    pub(crate) fn done(&mut self, class: ClassId, said: Option<Cost>) {
        let Some(counts) = &mut self.remote else { return };
        match said {
            None => counts.add(cells::DONE + class.index(), 1),
            Some(cost) => {
                counts.add(cells::SAID + class.index(), 1);
                counts.add(cells::SAID_COST, cost.as_nanos());
            }
        }
    }

    /// Work for a request that was done before.
    #[cfg(feature = "tokio")]
    #[cold]
    pub(crate) fn charge_late(
        &mut self,
        customer: CustomerId,
        criticality: Criticality,
        cost: Cost,
        now: Timestamp,
    ) {
        crate::metrics::count_late(&mut self.counts, cost);
        let quota = self.gate.gate().quota();
        let late = self.late.get_or_insert_with(|| quota.lane());
        // What was charged is what it cost: there is nothing to settle.
        let _charge = late.charge(customer, criticality, cost, now);
    }

    #[inline]
    pub(crate) fn count(&mut self, cell: usize) {
        self.counts.add(cell, 1);
    }

    /// The number of a decision. By chance, so that threads need not agree on a next one.
    #[inline]
    pub(crate) fn decision(&mut self) -> DecisionId {
        DecisionId(self.rng.next_u64())
    }
}

struct Entry {
    id: u64,
    task: Weak<Inner>,
    lane: Lane,
}

thread_local! {
    static LANES: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

impl Inner {
    /// Calls `work` with the calling thread's lane.
    #[inline]
    pub(crate) fn with_lane<R>(self: &Arc<Self>, work: impl FnOnce(&mut Lane) -> R) -> R {
        if LANES.try_with(|_| ()).is_err() {
            return work(&mut Lane::new(self));
        }
        LANES.with(|lanes| match lanes.try_borrow_mut() {
            Ok(mut lanes) => {
                if let Some(entry) = lanes.iter_mut().find(|entry| entry.id == self.id) {
                    return work(&mut entry.lane);
                }
                work(self.join(&mut lanes))
            }
            Err(_) => work(&mut Lane::new(self)),
        })
    }

    #[cold]
    fn join<'a>(self: &Arc<Self>, lanes: &'a mut Vec<Entry>) -> &'a mut Lane {
        lanes.retain(|entry| entry.task.strong_count() > 0);
        let (task, lane) = (Arc::downgrade(self), Lane::new(self));
        let last = lanes.len();
        lanes.push(Entry { id: self.id, task, lane });
        &mut lanes[last].lane
    }
}
