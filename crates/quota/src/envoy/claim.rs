//! What a desk has, by its own account, when it begins under a leader that learns.
//!
//! The desk of the leader before is gone, and what it held with it. A leader that learns lets tasks
//! keep what they say they have, and a desk that says nothing would have next to nothing until that
//! is over: everyone would be refused by the election. So it begins on its own:
//!
//! ```text
//! for GRACE intervals     enforces all of each customer's limit, and counts
//! then joins, and says    has = HEADROOM x what was used and refused, by customer
//! until it was granted    enforces as before
//! ```
//!
//! It says so once and late, as what is said after the first grant does not count any more. Where
//! all requests of a service come by RLS the desk is the only task, and nobody gets too much by
//! this. Where others hold parts of the same limits a customer may use up to twice its limit until
//! the leader was told; then all that is held together is cut to the limit, as always.

use crate::message::write_usages;
use tidegate::Task;
use tidegate_core::fleet::{Limits, Usage};
use tidegate_core::quota::UsageMeter;
use tidegate_core::{CostRate, CustomerId};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};

/// For how many reports it counts. One would be chance, and Envoys of this leader have to find it.
pub(super) const GRACE: u32 = 5;
/// What a customer wants wavers, and until the leader has learned nobody gets more.
const HEADROOM: u64 = 2;

/// Counts from now on.
#[derive(Debug)]
pub(super) struct Claim(UsageMeter);

impl Claim {
    /// Has `task` enforce limits of its own, until it is told others.
    pub(super) fn begin<'a>(
        task: &Task,
        default: Limits,
        customers: impl Iterator<Item = (&'a String, &'a Limits)>,
    ) -> Self {
        task.set_default_limits(default);
        let customers: Vec<_> = customers.map(|(name, limits)| (name.as_str(), *limits)).collect();
        task.set_limits_of(&customers);
        Self(UsageMeter::new(task.gate().quota(), task.clock().now()))
    }

    /// The first report, by the numbers of `directory`.
    pub(super) fn report(mut self, task: &Task, directory: wire::Directory) -> wire::Usages {
        let numbers = directory.customers.into_iter();
        let mut numbers: Vec<_> =
            numbers.map(|customer| (task.customer(&customer.name), customer.number)).collect();
        numbers.sort_unstable();
        let mut lines = Vec::new();
        self.0.collect(task.gate().quota(), task.clock().now(), |id, usage| {
            if let Ok(place) = numbers.binary_search_by_key(&id, |(id, _)| *id) {
                let (used, demand) = (usage.used, usage.wanted);
                let customer = CustomerId(numbers[place].1);
                lines.push(Usage { customer, used, demand, has: Some(nested(demand, HEADROOM)) });
            }
        });
        lines.sort_unstable_by_key(|line| line.customer);
        write_usages(1, lines)
    }
}

/// Limits that allow for so many times as much of each criticality, as each counts towards those
/// above it.
pub(super) fn nested(rates: [CostRate; 4], times: u64) -> Limits {
    let mut sum = 0_u64;
    Limits::clamped(rates.map(|rate| {
        sum = sum.saturating_add(rate.as_nanos_per_sec().saturating_mul(times));
        CostRate::from_nanos_per_sec(sum)
    }))
}

/// The welcome of a stream and what came after it, as one message: whoever hears it goes from what
/// it enforces to what it was granted, with nothing in between.
pub(super) fn join(welcome: &mut ServerMessage, next: ServerMessage) {
    welcome.grants = next.grants;
    welcome.answers = next.answers;
    welcome.learning = next.learning;
    welcome.acknowledge = next.acknowledge;
    welcome.gone.extend(next.gone);
    if next.places > 0 {
        welcome.places = next.places;
    }
    // Directories that follow each other are one.
    let both = [core::mem::take(&mut welcome.directory), next.directory];
    welcome.directory = both.concat().into();
}
