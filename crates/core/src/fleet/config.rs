//! How a fleet is run, and what would be wrong.

use super::allocate::Levels;
use super::fail_static::Silence;
use super::ledger::{limits, part};
use super::limits::Limits;
use super::message::TaskId;
use super::unseen::unseen_part;
use crate::units::{CostRate, Ratio};
use core::time::Duration;

/// How a fleet is run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct FleetConfig {
    /// What the fleet can do. Only to tell by how much it is oversubscribed.
    pub capacity: CostRate,
    /// How long tasks bear silence.
    pub silence: Silence,
    /// How long a new leader learns; at least a lease.
    pub learning: Duration,
    /// How long after its lease a silent task still counts, with its safe shares.
    pub forget: Duration,
    /// How long grants may go without an acknowledgement before the task is given up.
    pub ack_timeout: Duration,
    /// After how long without demand a task is no longer counted among a customer's.
    pub idle: Duration,
    /// Share of each limit that is divided equally, whatever the demand.
    pub floor: Ratio,
    /// Share of each limit that is set aside for tasks which have no grant of the customer yet, or
    /// one of next to nothing. More than 0.
    pub unseen: Ratio,
    /// Share of its limits that a task falls back to in silence.
    pub safe: Ratio,
    /// Changes smaller than this share of a task's limits are not pushed as long as nobody lacks
    /// anything.
    pub deadband: Ratio,
    /// The same for changes smaller than this share of the task's room to grow.
    pub room_band: Ratio,
    /// The most tasks that one of them may stand for; a higher weight is lowered to it. Any task
    /// can call itself a zone's server, and takes as many shares as it says it is.
    pub weight_max: u32,
    /// The most tasks, counting those of which nobody knows whether they still run.
    pub tasks_max: usize,
    /// The most customers, the default one included.
    pub customers_max: usize,
    /// The most customers of one task.
    pub customers_per_task_max: usize,
}

impl Default for FleetConfig {
    fn default() -> Self {
        let silence = Silence::default();
        Self {
            capacity: CostRate::MAX,
            silence,
            learning: silence.lease(),
            // Longer than partitions usually last, shorter than anyone waits for capacity.
            forget: Duration::from_secs(600),
            // Ten reports.
            ack_timeout: Duration::from_secs(10),
            idle: Duration::from_secs(60),
            // Both are lost to a customer that is over its limit: together 3 % of it.
            floor: Ratio::percent(2),
            unseen: Ratio::percent(1),
            // Half: enough to live on, and half of what a dead task had is free before it is
            // forgotten.
            safe: Ratio::percent(50),
            // Demand wavers by more than that from second to second, and limits that follow every
            // wave would cost more than they are worth: half of the room is room enough.
            deadband: Ratio::percent(2),
            room_band: Ratio::percent(50),
            // Everyone stands for itself: who has zones' servers knows how large they are.
            weight_max: 1,
            tasks_max: 1 << 14,
            customers_max: 1 << 16,
            customers_per_task_max: 1 << 12,
        }
    }
}

/// What is wrong with a [`FleetConfig`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FleetConfigError {
    /// Grants of the old leader would still be in use, unknown.
    #[error("learning must last at least as long as a lease ({lease:?}), but it lasts {found:?}")]
    Learning {
        /// What was given.
        found: Duration,
        /// The least that is right.
        lease: Duration,
    },
    /// Too little would be left to go by demand.
    #[error("floor and unseen must be at most half of the limit together, but they are {found}")]
    Reserves {
        /// Both together, at most one.
        found: Ratio,
    },
    /// Tasks would be without limits that they can live on.
    #[error("safe must be more than 0")]
    Safe,
    /// A task without a grant would refuse the customer, for as long as there is no server.
    #[error("unseen must be more than 0")]
    Unseen,
    /// No table has this size.
    #[error("{what} must be between 1 and {most}, but it is {found}")]
    Size {
        /// Which.
        what: &'static str,
        /// What was given.
        found: usize,
        /// The most that is right.
        most: usize,
    },
}

impl FleetConfig {
    /// What is set aside of these limits for tasks without a grant.
    pub(super) fn aside(&self, levels: Levels) -> Limits {
        limits(part(self.unseen, levels))
    }

    /// What a task may admit of a customer with these limits for whom it has no grant, if what is
    /// set aside for that is divided by `places`.
    pub(super) fn unseen_of(&self, levels: Levels, places: u64) -> Limits {
        unseen_part(self.aside(levels), places)
    }

    /// Whether a fleet can be run like this.
    pub fn check(&self) -> Result<(), FleetConfigError> {
        let lease = self.silence.lease();
        if self.learning < lease {
            return Err(FleetConfigError::Learning { found: self.learning, lease });
        }
        let reserves = u64::from(self.floor.billionths()) + u64::from(self.unseen.billionths());
        let found = Ratio::of(reserves, u64::from(Ratio::WHOLE));
        if found > Ratio::percent(50) {
            return Err(FleetConfigError::Reserves { found });
        }
        if self.safe == Ratio::ZERO {
            return Err(FleetConfigError::Safe);
        }
        if self.unseen == Ratio::ZERO {
            return Err(FleetConfigError::Unseen);
        }
        for (what, found, most) in [
            ("weight_max", self.weight_max as usize, TaskId::COUNT_MAX),
            ("tasks_max", self.tasks_max, TaskId::COUNT_MAX),
            ("customers_max", self.customers_max, 1 << 24),
            ("customers_per_task_max", self.customers_per_task_max, 1 << 24),
        ] {
            if !(1..=most).contains(&found) {
                return Err(FleetConfigError::Size { what, found, most });
            }
        }
        Ok(())
    }
}
