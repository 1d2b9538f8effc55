//! A zone's server is one task of the global one: what all its tasks do is what it does.
//!
//! ```text
//! tasks ──► book of the zone ──use and demand, added up──► book of the global server
//!       ◄── divides its part ◄──────grants for the zone───┘
//! ```
//!
//! The zone takes part by the gate and the member of any task. Nothing passes that gate: what
//! customers use and want in the zone is charged to it once an interval, and what it may admit are
//! the limits of the zone's book. So a lost global server is what it is to any task: the zone's
//! limits hold, then fade to their safe shares.
//!
//! **Cuts.** A task holds to a smaller grant as soon as it was told. A zone does when its tasks do,
//! so it says that a cut has arrived when the most that they may be enforcing together is within
//! it. If that takes too long, as one of them cannot be reached, it says so all the same: its book
//! takes what that one may hold from the others, and a zone that never answered would lose its
//! lease over it.
//!
//! **When it is wrong.** What cannot be reached in a zone may then be in use twice, for a lease at
//! most. A zone's server that was started anew has forgotten which task of the global one it was:
//! its predecessor's grants count until that lease ends, and it gets what they leave.

use super::member::Member;
use crate::config::Service;
use crate::message::{limits, rates};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate::Task;
use tidegate::clock::Clock;
use tidegate::task::BuildError;
use tidegate_core::fleet::Limits;
use tidegate_core::quota::{QuotaConfig, QuotaLane};
use tidegate_core::{Cost, Criticality, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{ServiceStatus, TaskMessage};

/// After so long a cut counts as arrived, whoever has not heard of it: half of what the global
/// server waits for.
const PATIENCE: Duration = Duration::from_secs(5);
/// Numbers for customers, of which those that were removed keep theirs.
const CUSTOMERS_MIN: usize = 1_024;

/// One service of a zone, as a task of the global server.
#[derive(Debug)]
pub(crate) struct Zone {
    task: Task,
    lane: QuotaLane,
    /// As the zone's file has it.
    file: Service,
    counted: Timestamp,
}

impl Zone {
    pub(crate) fn new(name: &str, file: Service, clock: Clock) -> Result<Self, BuildError> {
        let mut quota = QuotaConfig::default();
        quota.customers_max = file.fleet.customers_max.max(CUSTOMERS_MIN);
        let counted = clock.now();
        let task = Task::builder(name).clock(clock).quota(quota).system_signals(false).build()?;
        let lane = task.gate().quota().lane();
        Ok(Self { task, lane, file, counted })
    }

    /// The task that it is.
    pub(crate) const fn task(&self) -> &Task {
        &self.task
    }

    /// What customers of the zone use and want, since this was asked last.
    pub(crate) fn count(&mut self, status: &ServiceStatus) {
        let now = self.task.clock().now();
        let span = now.since(core::mem::replace(&mut self.counted, now));
        for customer in &status.customers {
            let id = self.task.customer(&customer.name);
            // They are four or none, as they were written by a book.
            let (used, demand) = (rates(&customer.used), rates(&customer.demand));
            let (Some(used), Some(demand)) = (used, demand) else { continue };
            for level in Criticality::ALL {
                let (used, demand) = (used[level.index()], demand[level.index()]);
                let over = |rate: tidegate_core::CostRate| {
                    let nanos = u128::from(rate.as_nanos_per_sec()) * span.as_nanos();
                    Cost::from_nanos(u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX))
                };
                if used > tidegate_core::CostRate::ZERO {
                    let _ = self.lane.charge(id, level, over(used), now);
                }
                if demand > used {
                    self.lane.refuse(id, level, over(demand - used));
                }
            }
        }
    }

    /// The service that the zone's book is to have; nothing before the global server was heard of.
    pub(crate) fn service(&self, member: &Member) -> Option<Service> {
        let mut customers: BTreeMap<String, Limits> = member.enforced().collect();
        let default = customers.remove("")?;
        Some(Service { default, customers, ..self.file.clone() })
    }

    /// Says which cuts have arrived, by how things stand in the zone after so many rounds. The
    /// zone's book has what [`Zone::service`] says by then.
    pub(crate) fn settle(
        member: &mut Member,
        status: &ServiceStatus,
        rounds: u64,
    ) -> Option<TaskMessage> {
        let counted: BTreeMap<&str, Limits> = status
            .customers
            .iter()
            .filter_map(|customer| Some((customer.name.as_str(), limits(&customer.counted)?)))
            .collect();
        let counted = |name: &str| counted.get(name).copied().unwrap_or(Limits::ZERO);
        member.settle(counted, rounds, PATIENCE)
    }
}
