//! The fuse between batch jobs and everyone else.
//!
//! A batch job starts ten thousand workers at once, and none of them minds waiting. Let loose on
//! the backends they hurt those who do mind. So they talk to a batch proxy: it holds few
//! connections to the backends, keeps work in a bounded [`queue`], and hands on only as much as the
//! backends take ([`pace`]).
//!
//! Work goes on by criticality, and within one by deadline, earliest first. When the queue is full
//! it says so at once, to the least critical: a newcomer displaces the newest item of the lowest
//! criticality if that is below its own, and is refused otherwise. So nobody is refused for want of
//! room while someone less critical waits, and what has waited long is not thrown away for what has
//! not.
//!
//! # Deadlines
//!
//! In a lasting overload the earliest deadline is always the one that is about to pass. To send
//! that item is in vain, and with all others it would be the same: every answer would come too
//! late. So an item is given back when no answer can be expected in time, and refused at once when
//! too many wait before it:
//!
//! ```text
//! given back    deadline <= now + time to an answer
//! refused       deadline <= next release + items before it x spacing + time to an answer
//! ```
//!
//! with the spacing and the time to an answer that [`pace`] has seen. The spacing counts only once
//! the pace is known: while it grows fast, nobody can say how long a queue takes. The time to an
//! answer counts only where another item waits that may be better off. A lone item is sent even if
//! it looks too late, or a proxy that once was slow would never learn that it no longer is.
//!
//! # Who does what
//!
//! The controller neither waits nor retries. The shell offers, asks for a release, sends, and tells
//! what came back; [`BatchProxy::next_deadline`] says when to ask again if nothing happens before.
//! Refused work is the worker's to retry, after the time it was told. A worker that went away has
//! its item taken back with [`BatchProxy::cancel`].
//!
//! # Many threads
//!
//! An order by criticality and deadline needs one owner: a thread or an async task that alone has
//! the [`BatchProxy`]. Threads that hold workers' connections
//!
//! 1. ask the [`BatchGate`], which is one load: a full queue refuses right there;
//! 2. hand the item over in a bounded channel, with a place for the answer; a channel that is full
//!    is a full queue to them;
//! 3. hand results and cancellations over the same way.
//!
//! The owner takes in what has come, releases until there is nothing, and sleeps until a message
//! comes or [`BatchProxy::next_deadline`]. So the hand-over is the only place where threads meet,
//! and it is not on any path that minds: batch work waits by design.

pub mod gate;
pub mod pace;
pub mod queue;
#[cfg(test)]
mod tests;

use crate::criticality::Criticality;
use crate::decision::{Advice, Reason, Rejection};
use crate::outcome::Outcome;
use crate::units::{InvalidNumber, Timestamp, nanos};
use core::time::Duration;
use gate::BatchGate;
use pace::{Pace, PaceConfig};
use queue::{Queue, Queued, Ticket};
use std::sync::Arc;

/// How [`BatchProxy`] behaves.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct BatchConfig {
    /// Items that may wait. Each waits for all before it, so more than the backends take within
    /// the deadlines is in vain; too few leave the backends without work between two requests of
    /// a worker. Above a hundred thousand or so, deadlines in no order make it slow.
    pub queue_max: usize,
    /// How work is handed on.
    pub pace: PaceConfig,
}

impl Default for BatchConfig {
    fn default() -> Self {
        Self { queue_max: 10_000, pace: PaceConfig::default() }
    }
}

/// What became of an offered item.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Offer<T> {
    /// It waits. The ticket takes it back.
    Queued(Ticket),
    /// It waits, and an earlier item had to make room.
    Displaced {
        /// Takes the offered item back.
        ticket: Ticket,
        /// The earlier item.
        item: T,
        /// What to tell whoever sent that.
        rejection: Rejection,
    },
    /// It does not wait.
    Refused {
        /// The item that was offered.
        item: T,
        /// What to tell whoever sent it.
        rejection: Rejection,
    },
}

/// An item that leaves the queue.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub enum Release<T> {
    /// Send it, and report back with [`BatchProxy::on_result`].
    Send {
        /// The item.
        item: T,
        /// What it counts as.
        criticality: Criticality,
    },
    /// Nobody waits for it any more, or nobody would by the time of an answer.
    Expired {
        /// The item.
        item: T,
        /// What to tell whoever sent it.
        rejection: Rejection,
    },
}

/// Queues batch work and releases it at the pace of the backends.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::{Criticality, Outcome, Timestamp};
/// use tidegate_core::batch::{BatchConfig, BatchProxy, Offer, Release};
///
/// let mut proxy = BatchProxy::new(BatchConfig::default())?;
/// let now = Timestamp::ZERO;
/// let offer = proxy.offer("work", Criticality::Sheddable, None, now);
/// assert!(matches!(offer, Offer::Queued(_)));
/// let sent = proxy.release(now);
/// assert_eq!(sent, Some(Release::Send { item: "work", criticality: Criticality::Sheddable }));
/// let later = Timestamp::from_millis(12);
/// proxy.on_result(Outcome::Served, Duration::from_millis(12), later);
/// assert_eq!(proxy.outstanding(), 0);
/// # Ok::<(), tidegate_core::units::InvalidNumber>(())
/// ```
#[derive(Debug)]
pub struct BatchProxy<T> {
    queue: Queue<T>,
    pace: Pace,
    gate: Arc<BatchGate>,
}

impl<T> BatchProxy<T> {
    /// The shortest and longest time after which the refused may try again. Below a second
    /// ten thousand workers are themselves a load; a minute is little to a batch job.
    const RETRY_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

    /// A proxy with nothing in it.
    pub fn new(config: BatchConfig) -> Result<Self, InvalidNumber> {
        let queue = Queue::new(config.queue_max);
        let gate = Arc::new(BatchGate::new(at_most_u32(config.queue_max)));
        let proxy = Self { queue, pace: Pace::new(config.pace)?, gate };
        proxy.publish();
        Ok(proxy)
    }

    /// Where threads that do not own this proxy ask whether to come at all.
    pub fn gate(&self) -> Arc<BatchGate> {
        Arc::clone(&self.gate)
    }

    /// Takes `item` into the queue, if there is room or someone who has to make room, and time
    /// enough. Without a deadline it may wait for ever.
    pub fn offer(
        &mut self,
        item: T,
        criticality: Criticality,
        deadline: Option<Timestamp>,
        now: Timestamp,
    ) -> Offer<T> {
        if let Some(rejection) =
            deadline.and_then(|deadline| self.too_late(criticality, deadline, now))
        {
            return Offer::Refused { item, rejection };
        }
        let displaced = if self.queue.is_full() { self.make_room(criticality, now) } else { None };
        let pushed = self.queue.push(Queued { item, criticality, deadline });
        self.publish();
        match (pushed, displaced) {
            (Ok(ticket), None) => Offer::Queued(ticket),
            (Ok(ticket), Some((item, rejection))) => Offer::Displaced { ticket, item, rejection },
            (Err(new), _) => Offer::Refused { item: new.item, rejection: self.full(criticality) },
        }
    }

    /// Takes an item back whose worker went away. None if it has left the queue: one that was sent
    /// is the shell's to stop, and to report as [`Outcome::Abandoned`].
    pub fn cancel(&mut self, ticket: Ticket) -> Option<T> {
        let queued = self.queue.remove(ticket)?;
        self.publish();
        Some(queued.item)
    }

    /// The next item that leaves the queue, if any does at `now`. Ask until there is none.
    pub fn release(&mut self, now: Timestamp) -> Option<Release<T>> {
        let by = now + self.head_start(1);
        if let Some(Queued { item, criticality, .. }) = self.queue.pop_due(by) {
            self.publish();
            return Some(Release::Expired { item, rejection: expired(criticality) });
        }
        if !self.pace.may_release(now) {
            return None;
        }
        let Queued { item, criticality, .. } = self.queue.pop()?;
        self.pace.on_release(now);
        self.publish();
        Some(Release::Send { item, criticality })
    }

    /// No more than this are outstanding from now on, whatever the backends would take: where
    /// connections are few, and how many backends there are changes.
    pub fn set_window_max(&mut self, window_max: u32) {
        self.pace.set_window_max(window_max);
    }

    /// Takes the next item out without sending it, whatever the pace: at the end, when nobody will.
    pub fn give_back(&mut self) -> Option<(T, Criticality)> {
        let Queued { item, criticality, .. } = self.queue.pop()?;
        self.publish();
        Some((item, criticality))
    }

    /// A released item came back after `latency`, with this outcome.
    pub fn on_result(&mut self, outcome: Outcome, latency: Duration, now: Timestamp) {
        let backlog = !self.queue.is_empty();
        self.pace.on_result(outcome, latency, backlog, now);
        self.publish();
    }

    /// An answer carried a load report: the utilization of the backend that it came from.
    pub fn on_load(&mut self, utilization: f64, now: Timestamp) {
        self.pace.on_load(utilization, now);
    }

    /// When [`BatchProxy::release`] may give something, if nothing is offered and nothing comes
    /// back before; none if only that can change anything.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        if self.queue.is_empty() {
            return None;
        }
        let given_back = self.queue.earliest_deadline().map(|d| d - self.head_start(1));
        [given_back, self.pace.ready_at()].into_iter().flatten().min()
    }

    /// How many items wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// How many items were released and have not come back.
    pub fn outstanding(&self) -> u64 {
        self.pace.outstanding()
    }

    /// The pace, for those who watch it.
    pub const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// How long before its deadline an item has to be sent, if more than `others` items wait.
    fn head_start(&self, others: usize) -> Duration {
        if self.queue.len() > others { self.pace.answer_time() } else { Duration::ZERO }
    }

    /// Why a new item would not be answered in time, if so.
    fn too_late(
        &self,
        criticality: Criticality,
        deadline: Timestamp,
        now: Timestamp,
    ) -> Option<Rejection> {
        let send_by = deadline - self.head_start(0);
        if send_by <= now {
            return Some(expired(criticality));
        }
        let ahead = self.queue.ahead_of(criticality, deadline);
        let time = send_by.since(now.max(self.pace.due()));
        let spacing = if self.pace.is_known() { self.pace.spacing() } else { Duration::ZERO };
        if spacing.saturating_mul(at_most_u32(ahead)) < time {
            return None;
        }
        // How many can be sent before, so that one after them is still in time.
        let limit = nanos(time).div_ceil(nanos(spacing).max(1));
        Some(self.try_later(criticality, ahead, usize::try_from(limit).unwrap_or(usize::MAX)))
    }

    /// Takes out an item that is worth less than one of `criticality`.
    fn make_room(&mut self, criticality: Criticality, now: Timestamp) -> Option<(T, Rejection)> {
        if let Some(old) = self.queue.pop_due(now + self.head_start(0)) {
            return Some((old.item, expired(old.criticality)));
        }
        let rejection = self.full(criticality);
        let old = self.queue.pop_newest_below(criticality)?;
        Some((old.item, Rejection { criticality: old.criticality, ..rejection }))
    }

    fn full(&self, criticality: Criticality) -> Rejection {
        self.try_later(criticality, self.queue.len(), self.queue.max())
    }

    /// Too much is queued: to be tried again when about all of that is done.
    fn try_later(&self, criticality: Criticality, queued: usize, limit: usize) -> Rejection {
        let (queued, limit) = (at_most_u32(queued), at_most_u32(limit));
        gate::refused(criticality, self.wait(queued), queued, limit)
    }

    fn wait(&self, queued: u32) -> Duration {
        let [shortest, longest] = Self::RETRY_AFTER;
        self.pace.spacing().saturating_mul(queued).clamp(shortest, longest)
    }

    fn publish(&self) {
        let room = match self.queue.lowest() {
            _ if !self.queue.is_full() => 0,
            Some(lowest) => lowest.index() + 1,
            // A queue for nothing.
            None => Criticality::COUNT,
        };
        let queued = at_most_u32(self.queue.len());
        self.gate.publish(room, self.wait(queued), queued);
    }
}

fn at_most_u32(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

const fn expired(criticality: Criticality) -> Rejection {
    Rejection {
        reason: Reason::DeadlinePassed,
        advice: Advice::DontRetry,
        criticality,
        cause: None,
    }
}
