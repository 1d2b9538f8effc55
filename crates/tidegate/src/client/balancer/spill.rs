//! Which datacenter, before which endpoint.
//!
//! Each datacenter has endpoints, a policy and lanes of its own. Which of them a request goes to is
//! drawn from a table that the keeper makes once a second of what this client asks for (requests
//! a second times what one costs), what each datacenter can do, and how far it is.

use core::time::Duration;
use tidegate_core::spillover::{
    Assignment, Datacenter, DatacenterId, Demand, LocationId, PickTable, Resources, Spillover,
    SpilloverConfig,
};
use tidegate_core::{Cost, CostRate, Timestamp};

/// How often the table is made: often enough to follow a surge, seldom enough that a second's
/// requests are a rate.
const PERIOD: Duration = Duration::from_secs(1);

/// How a client spills over.
#[derive(Debug, Clone)]
#[must_use]
pub struct Spill {
    pub(super) distances: Vec<(DatacenterId, Duration)>,
    datacenters: Vec<Datacenter>,
    cost: Cost,
    config: SpilloverConfig,
}

impl Spill {
    /// A request costs `cost` of a datacenter's CPU. Capacities are what this client may use.
    pub fn new(cost: Cost) -> Self {
        let config = SpilloverConfig::default();
        Self { distances: Vec::new(), datacenters: Vec::new(), cost, config }
    }

    /// There is this datacenter, so far away.
    pub fn datacenter(mut self, datacenter: Datacenter, round_trip: Duration) -> Self {
        self.distances.push((datacenter.id, round_trip));
        self.datacenters.push(datacenter);
        self
    }

    /// How fast requests come back to a nearer one.
    pub const fn config(mut self, config: SpilloverConfig) -> Self {
        self.config = config;
        self
    }
}

/// The keeper's side.
#[derive(Debug)]
pub(super) struct Spilling {
    spillover: Spillover,
    pub(super) distances: Vec<(DatacenterId, Duration)>,
    pub(super) datacenters: Vec<Datacenter>,
    cost: Cost,
    /// Requests so far, and when.
    seen: Option<(u64, Timestamp)>,
    /// Requests a second, in thousandths.
    rate: u64,
}

impl Spilling {
    pub(super) fn new(spill: Spill) -> Self {
        let Spill { distances, datacenters, cost, config } = spill;
        let spillover = Spillover::new(config);
        Self { spillover, distances, datacenters, cost, seen: None, rate: 0 }
    }

    /// The table from now on, if it is time for one, after so many requests in all.
    pub(super) fn tick(
        &mut self,
        requests: impl FnOnce() -> u64,
        now: Timestamp,
    ) -> Option<PickTable> {
        let elapsed = self.seen.map(|(_, at)| now.since(at));
        if elapsed.is_some_and(|elapsed| elapsed < PERIOD) {
            return None;
        }
        let requests = requests();
        if let (Some((before, _)), Some(elapsed)) = (self.seen, elapsed) {
            let new = u128::from(requests.wrapping_sub(before)) * 1_000_000;
            let rate = u64::try_from(new / elapsed.as_millis().max(1)).unwrap_or(u64::MAX);
            // The mean of this second and of all before, each counting half of the next: chance
            // moves it little, and a surge is seen within two or three.
            self.rate = (self.rate / 2).saturating_add(rate / 2);
        }
        self.seen = Some((requests, now));
        let cpu = u128::from(self.rate) * u128::from(self.cost.as_nanos()) / 1_000;
        let cpu = CostRate::from_nanos_per_sec(u64::try_from(cpu).unwrap_or(u64::MAX));
        let distances = self.distances.clone();
        let demand = Demand::new(LocationId(0), Resources::cpu(cpu), distances);
        let plan = self.spillover.plan(&[demand], &self.datacenters, now);
        plan.first().map(Assignment::table)
    }
}
