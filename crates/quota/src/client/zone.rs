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
//! **Another leader.** A zone's server that was started anew, or elected after another, says by
//! which election it leads, and takes the place that its predecessor has by the same name: the
//! global server tells it what the zone has. Tasks of the zone are not let in before that, and go
//! on with what they hold. Until they are back nobody can know what they want, and the zone wants
//! as much of the global server as it has. A predecessor that was paused says nothing more, as the
//! fence of its reign is shut; what was on its way is refused, as its election is the earlier one.
//!
//! **When it is wrong.** What cannot be reached in a zone may then be in use twice, for a lease at
//! most. Two servers of a zone by different names are two tasks: what the first held counts until
//! its lease ends, and the second gets what that leaves. If the global server is new as well, it
//! knows of nothing that the zone has, and the zone has next to nothing until both have learned.

use super::member::Member;
use crate::config::Service;
use crate::message::{limits, rates};
use crate::server::book::{Provided, Rounds};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate::Task;
use tidegate::clock::Clock;
use tidegate::task::BuildError;
use tidegate_core::fleet::Limits;
use tidegate_core::quota::{QuotaConfig, QuotaLane};
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{ServiceStatus, TaskMessage};

/// After so many reports to the global server a cut counts as arrived, whoever has not heard of it:
/// half of what that one waits for.
const PATIENCE: u32 = 5;
/// Numbers for customers, of which those that were removed keep theirs.
const CUSTOMERS_MIN: usize = 1_024;

/// Demand that is enough to keep these limits: those of a level hold for it and all below.
fn keep(demand: &mut [CostRate; Criticality::COUNT], limits: Limits) {
    let mut below = CostRate::ZERO;
    for level in Criticality::ALL {
        let own = &mut demand[level.index()];
        if limits[level] != CostRate::MAX {
            *own = (*own).max(limits[level] - below);
        }
        below = below + *own;
    }
}

/// One service of a zone, as a task of the global server.
#[derive(Debug)]
pub(crate) struct Zone {
    task: Task,
    lane: QuotaLane,
    /// For how long tasks keep their limits without a server.
    hold: Duration,
    counted: Timestamp,
    /// What the zone had when the global server was first heard of, and when that was.
    began: Option<(BTreeMap<String, Limits>, Timestamp)>,
}

impl Zone {
    pub(crate) fn new(name: &str, file: &Service, clock: Clock) -> Result<Self, BuildError> {
        let mut quota = QuotaConfig::default();
        quota.customers_max = file.fleet.customers_max.max(CUSTOMERS_MIN);
        let counted = clock.now();
        let task = Task::builder(name).clock(clock).quota(quota).system_signals(false).build()?;
        let lane = task.gate().quota().lane();
        Ok(Self { task, lane, hold: file.fleet.silence.hold, counted, began: None })
    }

    /// The task that it is.
    pub(crate) const fn task(&self) -> &Task {
        &self.task
    }

    /// What customers of the zone use and want, since this was asked last.
    pub(crate) fn count(&mut self, status: &ServiceStatus) {
        let now = self.task.clock().now();
        let span = now.since(core::mem::replace(&mut self.counted, now));
        // Tasks join at a pace, and some of their machines are slow to find the leader gone. Who is
        // not back when its limits have ceased to hold wants nothing that is known of.
        let had = self.began.as_ref().filter(|(_, since)| now.since(*since) < self.hold);
        let had = had.filter(|_| status.learning).map(|(had, _)| had);
        for customer in &status.customers {
            let id = self.task.customer(&customer.name);
            // They are four or none, as they were written by a book.
            let (used, demand) = (rates(&customer.used), rates(&customer.demand));
            let (Some(used), Some(mut demand)) = (used, demand) else { continue };
            if let Some(had) = had.and_then(|had| had.get(&customer.name)) {
                keep(&mut demand, *had);
            }
            for level in Criticality::ALL {
                let (used, demand) = (used[level.index()], demand[level.index()]);
                let over = |rate: CostRate| {
                    let nanos = u128::from(rate.as_nanos_per_sec()) * span.as_nanos();
                    Cost::from_nanos(u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX))
                };
                if used > CostRate::ZERO {
                    let _ = self.lane.charge(id, level, over(used), now);
                }
                if demand > used {
                    self.lane.refuse(id, level, over(demand - used));
                }
            }
        }
    }

    /// What the zone's book may hand out; nothing before the global server was heard of, and before
    /// it has told what the zone has already.
    pub(crate) fn provided(&mut self, member: &Member) -> Option<Provided> {
        if member.awaits() {
            return None;
        }
        let mut customers: BTreeMap<String, Limits> = member.enforced().collect();
        if self.began.is_none() && customers.contains_key("") {
            self.began = Some((customers.clone(), self.task.clock().now()));
        }
        let default = customers.remove("")?;
        Some(Provided { default, customers })
    }

    /// Says which cuts have arrived, by how things stand in the zone after so many rounds. The
    /// zone's book has what [`Zone::provided`] says by then. While that learns nobody knows what
    /// its tasks hold, and cuts take as long as they may.
    pub(crate) fn settle(
        member: &mut Member,
        status: &ServiceStatus,
        rounds: Rounds,
    ) -> Option<TaskMessage> {
        let counted: BTreeMap<&str, Limits> = status
            .customers
            .iter()
            .filter_map(|customer| Some((customer.name.as_str(), limits(&customer.counted)?)))
            .collect();
        // Those who are not back yet may hold anything.
        let unknown = status.learning.then_some(Limits::UNLIMITED);
        let counted =
            |name: &str| unknown.or_else(|| counted.get(name).copied()).unwrap_or(Limits::ZERO);
        let patience = member.interval().saturating_mul(PATIENCE);
        member.settle(counted, rounds, patience)
    }
}
