//! May this request in?
//!
//! A task that is offered more than it can do must refuse the rest, cheaply, and the right part of
//! it. The checks, in this order, with the first that fails giving the reason:
//!
//! 1. **lame duck**: the task is on its way out;
//! 2. **deadline**: nobody waits for the answer any more;
//! 3. **quota**: the customer is over its limit ([`crate::quota`]);
//! 4. **utilization**: the task is overloaded, and this criticality is among those to be shed.
//!
//! An [`AdmissionGate`] answers on the request path through one [`Lane`] per thread. A
//! [`Controller`] looks at the gate's counts and the task's signals every few milliseconds
//! and publishes what the gate is to do; its decision is [`shed`]'s.
//!
//! In **dark mode** everything is decided and counted, and nothing is refused.

mod gate;
mod level;
pub mod outside;
pub mod pace;
mod room;
mod seen;
pub mod shed;
#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub use gate::{AdmissionGate, Controller, Counts, Lane};
pub use level::Refusal;
pub use seen::Seen;

use crate::attempts::AttemptHistogram;
use crate::criticality::Criticality;
use crate::customer::CustomerId;
use crate::decision::Reason;
use crate::quota::Charge;
use crate::units::{Cost, Timestamp};
use core::num::NonZeroU64;

/// What a decision needs to know of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// How much it matters, after ceilings.
    pub criticality: Criticality,
    /// Whom it is charged to.
    pub customer: CustomerId,
    /// What it will probably cost.
    pub cost: Cost,
    /// When its caller stops waiting.
    pub deadline: Timestamp,
    /// Earlier tries: none, one, or two and more.
    tries: u8,
}

impl Request {
    /// A first attempt for the default customer, without a deadline.
    pub const fn new(criticality: Criticality, cost: Cost) -> Self {
        Self {
            criticality,
            customer: CustomerId::DEFAULT,
            cost,
            deadline: Timestamp::MAX,
            tries: 0,
        }
    }

    /// Whom it is charged to.
    #[must_use]
    pub const fn customer(mut self, customer: CustomerId) -> Self {
        self.customer = customer;
        self
    }

    /// When its caller stops waiting.
    #[must_use]
    pub const fn deadline(mut self, deadline: Timestamp) -> Self {
        self.deadline = deadline;
        self
    }

    /// Which try this is, the first being 1.
    #[must_use]
    pub const fn attempt(mut self, attempt: u8) -> Self {
        self.tries = AttemptHistogram::slot(attempt as u32) as u8;
        self
    }

    /// All but the deadline.
    #[inline]
    const fn charged(&self) -> Charged {
        let Self { criticality, customer, cost, tries, .. } = *self;
        Charged { cost, customer, criticality, tries }
    }

    /// The cell of the attempt histogram.
    #[inline]
    const fn tries(&self) -> usize {
        self.tries as usize
    }
}

/// What is left to know of a [`Request`] whose deadline was looked at: small enough to travel in
/// two registers.
#[derive(Debug, Clone, Copy)]
struct Charged {
    cost: Cost,
    customer: CustomerId,
    criticality: Criticality,
    tries: u8,
}

impl From<Charged> for Request {
    fn from(charged: Charged) -> Self {
        let Charged { cost, customer, criticality, tries } = charged;
        Self { criticality, customer, cost, deadline: Timestamp::MAX, tries }
    }
}

/// The answer to a request.
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub enum Decision {
    /// Serve it, and give the permit back when it is done.
    Admit(Permit),
    /// Refuse it.
    Reject(Refusal),
}

impl Decision {
    /// Whether the request is to be served.
    pub const fn is_admitted(&self) -> bool {
        matches!(self, Self::Admit(_))
    }
}

/// A request that is being served. It goes back to [`Lane::complete`] when it is done, however it
/// ended; a permit that is lost counts as in flight for ever.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "an admitted request is in flight until its permit goes to `complete`"]
pub struct Permit {
    charged: Cost,
    /// Everything else in one word, so that a permit travels in two registers. From the top: the
    /// customer (32 bits), the tag of its limits (16), one more than the index of the dark reason
    /// (8), degrading (4), criticality (4). The highest bit of those for degrading is always set,
    /// so that whoever may have a permit or not needs no third word.
    about: NonZeroU64,
}

const NEVER_ZERO: NonZeroU64 = NonZeroU64::new(1 << 7).unwrap();
/// Where degrading stands.
const DEGRADE_AT: u32 = 4;
const DEGRADE: u64 = 1 << DEGRADE_AT;

impl Permit {
    /// `degrade` is one or nothing.
    #[inline]
    fn new(
        customer: CustomerId,
        criticality: Criticality,
        charge: Charge,
        degrade: u64,
        dark: Option<Reason>,
    ) -> Self {
        let dark = dark.map_or(0, |reason| 1 + reason as u64);
        let flags = dark << 8 | degrade << DEGRADE_AT | criticality as u64;
        let about = u64::from(customer.0) << 32 | u64::from(charge.tag) << 16 | flags;
        Self { charged: charge.cost, about: NEVER_ZERO | about }
    }

    #[inline]
    const fn charge(&self) -> Charge {
        Charge { cost: self.charged, tag: (self.about.get() >> 16) as u16 }
    }

    /// Whether a cheaper answer would help: the task is close to shedding.
    pub const fn degrade(&self) -> bool {
        self.about.get() & DEGRADE != 0
    }

    /// The answer was a full one all the same: what it has cost says nothing of degraded ones.
    #[inline]
    pub fn in_full(mut self) -> Self {
        self.about = NEVER_ZERO | self.about.get() & !DEGRADE;
        self
    }

    /// Why it would have been refused if this were not dark mode.
    pub fn would_reject(&self) -> Option<Reason> {
        let dark = (self.about.get() >> 8) as u8;
        Reason::ALL.into_iter().find(|&reason| reason as u8 + 1 == dark)
    }

    /// What the request counts as.
    #[inline]
    pub const fn criticality(&self) -> Criticality {
        // Not by a table: this way it is two bits of the word.
        match self.about.get() % Criticality::COUNT as u64 {
            0 => Criticality::Sheddable,
            1 => Criticality::SheddablePlus,
            2 => Criticality::Critical,
            _ => Criticality::CriticalPlus,
        }
    }

    /// Whom it is charged to.
    #[inline]
    pub const fn customer(&self) -> CustomerId {
        CustomerId((self.about.get() >> 32) as u32)
    }

    /// What was charged for it in advance.
    #[inline]
    pub const fn charged(&self) -> Cost {
        self.charged
    }
}
