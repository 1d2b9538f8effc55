//! What tasks and the server tell each other.

use super::limits::Limits;
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::units::CostRate;

const LEVELS: usize = Criticality::COUNT;

/// A position in a leader's sequence of grants. Those of a later leader come after all of an
/// earlier one, so that an old leader which has not noticed yet cannot undo the new one's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Generation {
    /// Which leader: the revision of its election.
    pub epoch: u64,
    /// Its how manieth grant, from 1.
    pub number: u64,
}

/// A process that joined. No two have the same, not even at different leaders, so that one which
/// is gone is never mistaken for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    epoch: u64,
    number: u64,
}

impl TaskId {
    /// The rest, 44 bits, counts joins: a thousand a second for five hundred years.
    const SLOT_BITS: u32 = 20;
    /// The most tasks a leader can have: a million.
    pub const COUNT_MAX: usize = 1 << Self::SLOT_BITS;

    /// The id that was sent as these numbers. One that nobody was given is nobody's.
    pub const fn from_parts(epoch: u64, number: u64) -> Self {
        Self { epoch, number }
    }

    /// Which leader gave it: the revision of its election.
    pub const fn epoch(self) -> u64 {
        self.epoch
    }

    /// What tells it from the others of that leader.
    pub const fn number(self) -> u64 {
        self.number
    }

    /// The id of the `join`th process to join, which has this slot.
    pub(super) const fn new(epoch: u64, join: u64, slot: usize) -> Self {
        Self { epoch, number: (join << Self::SLOT_BITS) | slot as u64 }
    }

    /// A small number that no two tasks of a leader have at the same time.
    pub const fn slot(self) -> usize {
        (self.number & (Self::COUNT_MAX as u64 - 1)) as usize
    }
}

/// What a task reports of one customer. A report names every customer with use or demand; those
/// it leaves out have none. Several lines of one customer are added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Usage {
    /// Whose.
    pub customer: CustomerId,
    /// What was admitted, by criticality.
    pub used: [CostRate; LEVELS],
    /// What was asked for: admitted and refused.
    pub demand: [CostRate; LEVELS],
    /// What the task holds, as [`FailStatic::holds`](super::FailStatic::holds) says. Needed in the
    /// first reports after a join, ignored later. It is believed as far as it can be true.
    pub has: Option<Limits>,
}

/// What became of a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Answer {
    /// Whether to answer the task, which renews its lease. If not, it does not take in its grants:
    /// close the stream without an answer. Grants that are pushed later go with the last report
    /// that did renew it.
    pub renewed: bool,
    /// Lines that were left out, as the task has too many customers.
    pub dropped: usize,
    /// What is granted takes all of the report into account once
    /// [`Fleet::divided`](super::Fleet::divided) has come so far.
    pub due: u64,
}

/// A new grant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// To whom.
    pub task: TaskId,
    /// For whose requests.
    pub customer: CustomerId,
    /// Its place in the sequence, to be acknowledged.
    pub generation: Generation,
    /// What the task may admit.
    pub limits: Limits,
    /// What it falls back to in silence.
    pub safe: Limits,
    /// The task can forget the customer: these are the limits of one it never heard of.
    pub revoked: bool,
}

/// What a round did besides the changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Round {
    /// Customers looked at.
    pub customers: usize,
    /// Pairs of task and customer looked at.
    pub pairs: usize,
    /// Tasks whose lease ended.
    pub lost: usize,
    /// Tasks that were forgotten.
    pub forgotten: usize,
    /// The fleet has grown or shrunk so much that every task has to be told anew what it may admit
    /// of customers for which it has no grant: [`Fleet::unseen`](super::Fleet::unseen).
    pub unseen: bool,
}

/// One customer across the fleet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CustomerStatus {
    /// What it may use.
    pub limits: Limits,
    /// What it uses, by criticality.
    pub used: [CostRate; LEVELS],
    /// What it asks for, by criticality.
    pub demand: [CostRate; LEVELS],
    /// The most that its tasks may be enforcing together; nested, as limits are.
    pub counted: [CostRate; LEVELS],
    /// How many tasks have to do with it.
    pub tasks: usize,
}

/// Whoever opens a stream by a name, as far as that decides whose place it may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Speaker<'a> {
    /// By which election it stands for others; 0 if for itself.
    pub reign: u64,
    /// Who it is, if callers have to prove that.
    pub identity: Option<&'a str>,
    /// It may stand for others by any name.
    pub named: bool,
}

/// A name is that of somebody who stands for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Taken {
    /// They have elected another since.
    #[error("it has another leader by now: that of election {known}, and this is {found}")]
    Later {
        /// By which election that one stands for them.
        known: u64,
        /// And whoever asks.
        found: u64,
    },
    /// It is not that one who asks.
    #[error("somebody else stands for others by that name")]
    Another,
}

/// The task is not known (any more), or another process has its name: it has to join first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the task is not known, or its lease has ended: it has to join")]
pub struct NotJoined;

/// A table is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("there are {max} {what} already: raise {what}_max, or wait until one is forgotten")]
#[non_exhaustive]
pub struct Full {
    /// Of what.
    pub what: &'static str,
    /// The most there can be.
    pub max: usize,
}
