//! Which datacenter a client location's traffic goes to.
//!
//! Traffic belongs in the nearest datacenter, up to what that one can do. A count of requests is no
//! measure of that: requests get dearer with a release, and connections and batch jobs load a
//! datacenter without any request. So demand, capacity and what is taken already are all
//! [`Resources`], and whichever resource runs out first decides.
//!
//! [`assign`] says where everything should go. It looks at the pairs of location and datacenter,
//! closest first, and places as much as fits:
//!
//! ```text
//! room  = capacity - load from elsewhere - placed so far
//! fits  = min over resources of  room / need per unit of demand
//! place = min(fits, demand left)
//! ```
//!
//! Room only ever shrinks on the way, from which three things follow: no datacenter gets more than
//! it can do; a location goes further only when everything nearer is full for it; and demand is
//! left unplaced only when all it can reach is full. It does not find the least total distance;
//! that would be a linear program whose answer jumps when a number moves a little.
//!
//! [`Spillover`] says where things should go *now*. Two datacenters near their limits would else
//! throw traffic at each other with every report. Leaving is immediate, as what does not fit must
//! go; coming back to a nearer datacenter is slow, at most a given share of a location's demand
//! each second. It leads to where [`assign`] leads, and until then keeps the first and the third
//! promise, not the second.
//!
//! A location that asks for nothing has no shares, but its next request needs a place. It goes to
//! the nearest datacenter with room; if the location had shares not long ago, by those, since
//! nothing measured may just mean that nobody measured. For the same reason a location that is
//! missing from a plan, or idle in it, is remembered for as long as bringing everything back takes,
//! and then comes back as slowly as if it had never been away.
//!
//! When it is wrong: demand that is reported too low overfills a datacenter, which then sheds; its
//! own utilization reports then count the excess as load from elsewhere
//! ([`Datacenter::with_measured_use`]), and the next plan places less there.

mod pick;
mod placing;
#[cfg(test)]
mod tests;

pub use pick::PickTable;

use crate::units::{CostRate, NANOS, Ratio, Timestamp, nanos};
use core::time::Duration;
use placing::Placing;
use std::collections::BTreeMap;

/// A place that clients send from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocationId(pub u32);

/// A place that backends run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DatacenterId(pub u32);

/// An amount of everything that can run out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub struct Resources {
    /// CPU time per second.
    pub cpu: CostRate,
    /// Memory in bytes.
    pub memory: u64,
}

impl Resources {
    /// Nothing of either.
    pub const ZERO: Self = Self { cpu: CostRate::ZERO, memory: 0 };

    /// CPU only. A demand that names no memory is never held up by it.
    pub const fn cpu(cpu: CostRate) -> Self {
        Self { cpu, memory: 0 }
    }

    /// The same with `bytes` of memory.
    #[must_use]
    pub const fn with_memory(self, bytes: u64) -> Self {
        Self { memory: bytes, ..self }
    }

    fn plus(self, other: Self) -> Self {
        Self { cpu: self.cpu + other.cpu, memory: self.memory.saturating_add(other.memory) }
    }

    fn minus(self, other: Self) -> Self {
        Self { cpu: self.cpu - other.cpu, memory: self.memory.saturating_sub(other.memory) }
    }
}

/// What a datacenter can do, and how much of that is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datacenter {
    /// Which one.
    pub id: DatacenterId,
    /// What it can do; nothing when it is lost.
    pub capacity: Resources,
    /// What something other than the planned demand takes of it: connections, batch jobs,
    /// neighbours.
    pub load: Resources,
}

impl Datacenter {
    /// A datacenter with nothing else on it.
    pub const fn new(id: DatacenterId, capacity: Resources) -> Self {
        Self { id, capacity, load: Resources::ZERO }
    }

    /// The same with `load` from elsewhere.
    #[must_use]
    pub const fn with_load(self, load: Resources) -> Self {
        Self { load, ..self }
    }

    /// The same with load from elsewhere as seen from outside: what is `used` in all, less what
    /// was `planned` to be there. This is how load from connections becomes visible.
    #[must_use]
    pub fn with_measured_use(self, used: Resources, planned: Resources) -> Self {
        self.with_load(used.minus(planned))
    }
}

/// What a location asks for, and how far it is from each datacenter.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Demand {
    /// Whose.
    pub location: LocationId,
    /// How much. Without CPU there is nothing to place.
    pub needs: Resources,
    /// The datacenters it can reach and their round-trip times, in any order.
    pub distances: Vec<(DatacenterId, Duration)>,
}

impl Demand {
    /// `needs` from `location`, which can reach `distances`.
    pub const fn new(
        location: LocationId,
        needs: Resources,
        distances: Vec<(DatacenterId, Duration)>,
    ) -> Self {
        Self { location, needs, distances }
    }

    fn cpu(&self) -> u64 {
        self.needs.cpu.as_nanos_per_sec()
    }

    /// How much of this demand, in CPU, fits into `room`.
    fn fitting(&self, room: Resources) -> u64 {
        let by_cpu = room.cpu.as_nanos_per_sec();
        if self.needs.memory == 0 {
            return by_cpu;
        }
        let by_memory =
            u128::from(room.memory) * u128::from(self.cpu()) / u128::from(self.needs.memory);
        by_cpu.min(u64::try_from(by_memory).unwrap_or(u64::MAX))
    }

    /// What `cpu` of this demand takes in all; memory is rounded up.
    fn taken_by(&self, cpu: u64) -> Resources {
        let memory = (u128::from(cpu) * u128::from(self.needs.memory))
            .div_ceil(u128::from(self.cpu().max(1)));
        Resources {
            cpu: CostRate::from_nanos_per_sec(cpu),
            memory: u64::try_from(memory).unwrap_or(u64::MAX),
        }
    }
}

/// Where a location's demand goes.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assignment {
    /// Whose.
    pub location: LocationId,
    /// How much of it goes where, nearest first; none of them is zero.
    pub placed: Vec<(DatacenterId, CostRate)>,
    /// What no datacenter in reach has room for. It is to be refused at the source.
    pub unplaced: CostRate,
    /// Without any demand: the shares in which requests go that come all the same, nearest first.
    /// Empty where there is demand, and where all in reach are full.
    pub idle: Vec<(DatacenterId, Ratio)>,
}

impl Assignment {
    /// The share of the demand that goes to `datacenter`.
    pub fn share(&self, datacenter: DatacenterId) -> Ratio {
        let here = self.placed.iter().find(|(id, _)| *id == datacenter);
        let whole = self.placed.iter().map(|(_, rate)| *rate).sum::<CostRate>() + self.unplaced;
        here.map_or(Ratio::ZERO, |(_, rate)| {
            Ratio::of(rate.as_nanos_per_sec(), whole.as_nanos_per_sec())
        })
    }

    /// The table that a shell picks by, request by request.
    pub fn table(&self) -> PickTable {
        PickTable::new(self)
    }
}

/// Where all demand should go, by distance and capacity alone: one assignment for each demand, in
/// the same order.
///
/// Of two pairs equally far apart, the one with the lower location goes first, then the one
/// with the lower datacenter. A datacenter or location named twice counts as its last mention.
///
/// ```
/// use std::time::Duration;
/// use tidegate_core::CostRate;
/// use tidegate_core::spillover::{Datacenter, DatacenterId, Demand, LocationId, Resources, assign};
///
/// let cpus = |n| CostRate::from_cpus(n).map(Resources::cpu);
/// let (near, far) = (DatacenterId(0), DatacenterId(1));
/// let plan = assign(
///     &[Demand::new(
///         LocationId(0),
///         cpus(120.0)?,
///         vec![(near, Duration::from_millis(5)), (far, Duration::from_millis(40))],
///     )],
///     &[Datacenter::new(near, cpus(100.0)?), Datacenter::new(far, cpus(100.0)?)],
/// );
/// let [full, rest] = [CostRate::from_cpus(100.0)?, CostRate::from_cpus(20.0)?];
/// assert_eq!(plan[0].placed, [(near, full), (far, rest)]);
/// # Ok::<(), tidegate_core::units::InvalidNumber>(())
/// ```
pub fn assign(demands: &[Demand], datacenters: &[Datacenter]) -> Vec<Assignment> {
    let mut work = Placing::new(demands, datacenters);
    work.place(|_, _| u64::MAX);
    work.finish(|_| None)
}

/// How [`Spillover`] behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpilloverConfig {
    /// The share of a location's demand that may come back to nearer datacenters in a second.
    /// Higher sends a cold datacenter everything at once and lets two full ones swing; lower
    /// leaves users far away for longer. A twentieth brings all back in twenty seconds, in which
    /// the nearer one's utilization is reported often enough to stop it.
    pub return_per_second: Ratio,
}

impl Default for SpilloverConfig {
    fn default() -> Self {
        Self { return_per_second: Ratio::percent(5) }
    }
}

/// What a location had when it last had any demand.
#[derive(Debug, Clone)]
struct Last {
    whole: u64,
    placed: BTreeMap<DatacenterId, u64>,
    at: Timestamp,
}

/// Moves traffic between datacenters: away at once, back slowly.
#[derive(Debug, Clone, Default)]
pub struct Spillover {
    config: SpilloverConfig,
    /// Where each location's demand went, also of those that are missing or idle for now.
    last: BTreeMap<LocationId, Last>,
    /// The latest time seen: a clock that steps back stands still here.
    now: Timestamp,
}

impl Spillover {
    /// A controller that has placed nothing yet. Its first plan is [`assign`]'s.
    pub const fn new(config: SpilloverConfig) -> Self {
        Self { config, last: BTreeMap::new(), now: Timestamp::ZERO }
    }

    /// Where all demand goes from `now` on, in the order of `demands`.
    ///
    /// Every location first keeps the shares it had, nearest first and as far as they fit, plus
    /// what it may bring back and what had no place; whatever is then left over (demand that just
    /// lost its place) goes to the nearest with room, without limit.
    pub fn plan(
        &mut self,
        demands: &[Demand],
        datacenters: &[Datacenter],
        now: Timestamp,
    ) -> Vec<Assignment> {
        self.now = self.now.max(now);
        self.forget();
        let mut work = Placing::new(demands, datacenters);
        work.place(|demand, pair| self.allowance(demand, pair));
        work.place(|_, _| u64::MAX);
        let plan = work.finish(|location| self.last.get(&location).map(|last| &last.placed));
        let last_mentions: BTreeMap<LocationId, (&Demand, &Assignment)> =
            demands.iter().zip(&plan).map(|pair| (pair.0.location, pair)).collect();
        for (location, (demand, assignment)) in last_mentions {
            if demand.cpu() > 0 {
                let placed = assignment.placed.iter();
                let placed = placed.map(|(id, rate)| (*id, rate.as_nanos_per_sec())).collect();
                let last = Last { whole: demand.cpu(), placed, at: self.now };
                self.last.insert(location, last);
            }
        }
        plan
    }

    /// Forgets locations that have had no demand for so long that all of it could be back.
    fn forget(&mut self) {
        let Self { config, last, now } = self;
        let per_second = u128::from(config.return_per_second.billionths());
        let everything = u128::from(Ratio::WHOLE) * u128::from(NANOS);
        last.retain(|_, last| per_second * u128::from(nanos(now.since(last.at))) < everything);
    }

    /// How much of `demand` may be at `(datacenter, rtt)` if only slow returns are allowed.
    fn allowance(&self, demand: &Demand, (datacenter, rtt): (DatacenterId, Duration)) -> u64 {
        let Some(Last { whole, placed, at }) = self.last.get(&demand.location) else {
            return u64::MAX;
        };
        let had = placed.get(&datacenter).copied().unwrap_or(0);
        // What had no place does not have to come slowly.
        let homeless = placed.values().fold(*whole, |left, here| left.saturating_sub(*here));
        let kept = u128::from(had.saturating_add(homeless)) * u128::from(demand.cpu())
            / u128::from((*whole).max(1));
        // Only what is further away now can come back.
        let something_further = demand
            .distances
            .iter()
            .any(|(id, distance)| (*distance, *id) > (rtt, datacenter) && placed.contains_key(id));
        let back = if something_further {
            let per_second = self.config.return_per_second.share_of(demand.cpu()).max(1);
            let elapsed = nanos(self.now.since(*at));
            // Rounded up, or plans made in quick succession would never bring anything back.
            (u128::from(per_second) * u128::from(elapsed)).div_ceil(u128::from(NANOS))
        } else {
            0
        };
        u64::try_from(kept.saturating_add(back)).unwrap_or(u64::MAX)
    }
}
