//! The last decisions that mattered, for whoever asks why.
//!
//! Metrics tell how much is refused; these tell why a request was, and since when. There are three
//! kinds:
//!
//! - **changes** of what the task does: it begins to shed a criticality, and on what grounds, asks
//!   for degraded answers, says "don't retry", is a lame duck, is dark. All of them, as the tick
//!   sees them;
//! - **refusals**, with everything that led to them. A sample: of those for one reason and one
//!   criticality, the first in each eighth of a second;
//! - **endings** of requests that were let in and got another answer than their handler's: it
//!   failed as a dependency was overloaded, or its deadline passed. A sample, too.
//!
//! **What it costs.** A request that is refused reads one word, which changes eight times a second,
//! and compares it with its own time. Only the one that is kept goes further: it takes a lock, if
//! that is free, and writes into memory that is there already. A request that is served does
//! nothing. Names (of customers, of signals) are looked up by whoever reads.
//!
//! **When it is wrong.** A refusal that is not in the sample is not here; its number in
//! `x-tidegate-decision` then finds nothing. Changes that last less than a tick are not seen. What
//! the task sheds may change a hundred times a second where demand is about as high as capacity: a
//! rise is kept at once, a fall once it has held for a second.

mod changes;
mod event;
mod source;

pub use event::{Answer, Ended, Ending, Event, Grounds, Refusal, What};
pub use source::{CriticalityFrom, CustomerFrom};

pub(crate) use source::Sources;

use crate::signals::Health;
use crate::task::Inner;
use changes::{Changed, KINDS, Watch};
use core::sync::atomic::{AtomicU64, Ordering};
use http::{HeaderMap, StatusCode};
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use tidegate_core::admission::AdmissionGate;
use tidegate_core::admission::shed::Plan;
use tidegate_core::decision::{Advice, Cause, Reason};
use tidegate_core::{Criticality, CustomerId, Timestamp};
use tidegate_wire::grpc::Code;
use tidegate_wire::headers::GRPC_STATUS;
use tidegate_wire::reject::DecisionId;

const LEVELS: usize = Criticality::COUNT;
/// What a gate refuses for; see [`row`].
const REASONS: usize = 4;
/// What is sampled: refusals by their reason, then what became of those who were let in.
const ROWS: usize = REASONS + Ending::COUNT;
/// A slot is two to the power of this in nanoseconds: an eighth of a second. An eye that reads them
/// as they come wants no more.
const SLOT_BITS: u32 = 27;
/// Sixteen seconds of a task that refuses at all levels for one reason.
const REFUSALS_MAX: usize = 512;
/// Eight seconds of both endings, at one level.
const ENDED_MAX: usize = 128;
/// Changes come a few a second at worst; these reach back through a bad hour of an uneasy task, or
/// weeks of a calm one.
const CHANGES_MAX: usize = 256;

/// What a task remembers.
#[derive(Debug)]
pub(crate) struct Events {
    /// The slot in which each row and criticality was last kept, plus one.
    slots: [[AtomicU64; LEVELS]; ROWS],
    kept: Mutex<Kept>,
}

#[derive(Debug)]
struct Kept {
    refusals: Ring<Sample>,
    ended: Ring<EndedSample>,
    changes: Changes,
    watch: Watch,
}

#[derive(Debug)]
struct Changes {
    ring: Ring<(Timestamp, Changed)>,
    /// The last of each kind, however long ago.
    last: [Option<(Timestamp, Changed)>; KINDS],
}

impl Changes {
    fn push(&mut self, at: Timestamp, change: Changed) {
        self.last[change.kind()] = Some((at, change));
        self.ring.push((at, change));
    }
}

/// The last so many of something, in memory that is there from the start.
#[derive(Debug)]
struct Ring<T> {
    items: VecDeque<T>,
    max: usize,
}

impl<T: Copy> Ring<T> {
    fn new(max: usize) -> Self {
        Self { items: VecDeque::with_capacity(max), max }
    }

    fn push(&mut self, item: T) {
        if self.items.len() == self.max {
            self.items.pop_front();
        }
        self.items.push_back(item);
    }
}

/// A refusal as it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sample {
    pub(crate) at: Timestamp,
    pub(crate) id: DecisionId,
    pub(crate) reason: Reason,
    pub(crate) criticality: Criticality,
    pub(crate) customer: CustomerId,
    pub(crate) sources: Sources,
    pub(crate) attempt: u32,
    pub(crate) cause: Option<Cause>,
    /// Nothing in dark mode: it was let in.
    pub(crate) answer: Option<Answer>,
}

/// How a request ended, as it is kept.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EndedSample {
    pub(crate) at: Timestamp,
    pub(crate) id: DecisionId,
    pub(crate) how: Ending,
    pub(crate) criticality: Criticality,
    pub(crate) customer: CustomerId,
    pub(crate) attempt: u32,
    pub(crate) answer: Answer,
}

/// The row of a reason. Those that no gate gives share the last.
const fn row(reason: Reason) -> usize {
    match reason {
        Reason::LameDuck => 0,
        Reason::DeadlinePassed => 1,
        Reason::OutOfQuota => 2,
        _ => 3,
    }
}

impl Events {
    pub(crate) fn new() -> Self {
        let kept = Kept {
            refusals: Ring::new(REFUSALS_MAX),
            ended: Ring::new(ENDED_MAX),
            changes: Changes { ring: Ring::new(CHANGES_MAX), last: [None; KINDS] },
            watch: Watch::default(),
        };
        Self { slots: Default::default(), kept: Mutex::new(kept) }
    }

    /// Whether a refusal is to be kept. For the request path: most often one load.
    #[inline]
    pub(crate) fn wants(&self, reason: Reason, criticality: Criticality, now: Timestamp) -> bool {
        self.is_first(row(reason), criticality, now)
    }

    #[inline]
    fn is_first(&self, row: usize, criticality: Criticality, now: Timestamp) -> bool {
        let slot = (now.as_nanos() >> SLOT_BITS) + 1;
        let cell = &self.slots[row][criticality.index()];
        let last = cell.load(Ordering::Relaxed);
        // Of those who come at once, one gets it.
        last != slot
            && cell.compare_exchange(last, slot, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Keeps a refusal that is wanted; not, if somebody else writes or reads at this moment.
    #[cold]
    pub(crate) fn refused(&self, sample: &Sample) {
        if let Some(mut kept) = self.try_lock() {
            kept.refusals.push(*sample);
        }
    }

    /// A request got another answer than its handler's: keeps it if it is the first of its slot.
    #[cold]
    pub(crate) fn ended(&self, sample: &EndedSample) {
        if self.is_first(REASONS + sample.how as usize, sample.criticality, sample.at)
            && let Some(mut kept) = self.try_lock()
        {
            kept.ended.push(*sample);
        }
    }

    /// Nothing if somebody else writes or reads at this moment.
    fn try_lock(&self) -> Option<MutexGuard<'_, Kept>> {
        match self.kept.try_lock() {
            Ok(kept) => Some(kept),
            Err(TryLockError::Poisoned(kept)) => Some(kept.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Looks at what the task does from this tick on.
    pub(crate) fn tick(&self, gate: &AdmissionGate, plan: &Plan, now: Timestamp) {
        let Kept { changes, watch, .. } = &mut *self.lock();
        watch.plan(plan, now, |change| changes.push(now, change));
        watch.switches(gate, |change| changes.push(now, change));
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All that is remembered and came after `after`, oldest first.
    pub(crate) fn read(
        &self,
        task: &Inner,
        signals: &[Health],
        after: Option<Timestamp>,
    ) -> Vec<Event> {
        let late = |at: Timestamp| after.is_none_or(|after| at > after);
        let (refusals, ended, changes) = {
            let Kept { refusals, ended, changes, watch } = &mut *self.lock();
            let now = task.clock.now();
            // For tasks without ticks.
            watch.switches(&task.gate, |change| changes.push(now, change));
            let refusals = refusals.items.iter().filter(|sample| late(sample.at));
            let changes = changes.ring.items.iter().filter(|(at, _)| late(*at));
            let ended = ended.items.iter().filter(|sample| late(sample.at));
            (
                refusals.copied().collect::<Vec<_>>(),
                ended.copied().collect::<Vec<_>>(),
                changes.copied().collect::<Vec<_>>(),
            )
        };
        let mut events: Vec<Event> = (changes.into_iter())
            .map(|(at, change)| Event { at, what: change.named(signals) })
            .chain(refusals.into_iter().map(|sample| sample.named(task, signals)))
            .chain(ended.into_iter().map(|sample| sample.named(task)))
            .collect();
        events.sort_by_key(|event| event.at);
        events
    }

    /// The last change of each kind, oldest first.
    pub(crate) fn standing(&self, task: &Inner, signals: &[Health]) -> Vec<Event> {
        let mut last: Vec<_> = {
            let Kept { changes, watch, .. } = &mut *self.lock();
            let now = task.clock.now();
            // For tasks without ticks.
            watch.switches(&task.gate, |change| changes.push(now, change));
            changes.last.into_iter().flatten().collect()
        };
        last.sort_by_key(|(at, _)| *at);
        last.into_iter().map(|(at, change)| Event { at, what: change.named(signals) }).collect()
    }
}

impl Sample {
    fn named(self, task: &Inner, signals: &[Health]) -> Event {
        let refusal = Refusal {
            id: self.id,
            reason: self.reason,
            criticality: self.criticality,
            criticality_from: self.sources.criticality,
            lowered: self.sources.lowered,
            customer: task.customer_name(self.customer),
            customer_from: self.sources.customer,
            attempt: self.attempt,
            grounds: self.cause.map(|cause| Grounds::of(cause, signals)),
            answer: self.answer,
        };
        Event { at: self.at, what: What::Refused(refusal) }
    }
}

impl EndedSample {
    fn named(self, task: &Inner) -> Event {
        let Self { id, how, criticality, attempt, answer, .. } = self;
        let customer = task.customer_name(self.customer);
        let ended = Ended { id, how, criticality, customer, attempt, answer };
        Event { at: self.at, what: What::Ended(ended) }
    }
}

impl Answer {
    /// What was answered with this head.
    pub(crate) fn new(status: StatusCode, headers: &HeaderMap, advice: Advice) -> Self {
        let code = headers.get(&GRPC_STATUS).map(|value| Code::parse(value.as_bytes()));
        Self { status, code, advice }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
