//! Fitting demand into room, closest first.

use super::{Assignment, Datacenter, DatacenterId, Demand, LocationId, Resources};
use crate::units::{CostRate, Ratio};
use core::time::Duration;
use std::collections::BTreeMap;

/// A plan in the making.
pub(super) struct Placing<'a> {
    demands: &'a [Demand],
    /// Every pair in reach, closest first: (round-trip time, demand, datacenter).
    pairs: Vec<(Duration, usize, DatacenterId)>,
    room: BTreeMap<DatacenterId, Resources>,
    left: Vec<u64>,
    placed: Vec<BTreeMap<(Duration, DatacenterId), u64>>,
}

impl<'a> Placing<'a> {
    pub(super) fn new(demands: &'a [Demand], datacenters: &[Datacenter]) -> Self {
        let room = datacenters.iter().map(|d| (d.id, d.capacity.minus(d.load))).collect();
        let last_mention: BTreeMap<LocationId, usize> =
            demands.iter().enumerate().map(|(i, d)| (d.location, i)).collect();
        let mut pairs: Vec<(Duration, LocationId, DatacenterId, usize)> = last_mention
            .values()
            .filter_map(|&i| demands.get(i).map(|d| (i, d)))
            .flat_map(|(i, d)| {
                // A datacenter named twice counts once.
                let reach: BTreeMap<DatacenterId, Duration> = d.distances.iter().copied().collect();
                reach.into_iter().map(move |(id, rtt)| (rtt, d.location, id, i))
            })
            .collect();
        pairs.sort_unstable();
        let counts = |(i, d): (usize, &Demand)| {
            if last_mention.get(&d.location) == Some(&i) { d.cpu() } else { 0 }
        };
        Self {
            demands,
            pairs: pairs.into_iter().map(|(rtt, _, id, i)| (rtt, i, id)).collect(),
            room,
            left: demands.iter().enumerate().map(counts).collect(),
            placed: vec![BTreeMap::new(); demands.len()],
        }
    }

    /// Places what is left, closest pairs first, no more at a pair than `allowed` says.
    pub(super) fn place(&mut self, allowed: impl Fn(&Demand, (DatacenterId, Duration)) -> u64) {
        for &(rtt, i, id) in &self.pairs {
            let (Some(demand), Some(room), Some(left), Some(placed)) = (
                self.demands.get(i),
                self.room.get_mut(&id),
                self.left.get_mut(i),
                self.placed.get_mut(i),
            ) else {
                continue;
            };
            let before = placed.get(&(rtt, id)).copied().unwrap_or(0);
            // Reckoned from all that is placed at this pair, or rounding would count twice.
            let all_room = room.plus(demand.taken_by(before));
            let fits = demand.fitting(all_room).saturating_sub(before);
            let amount = fits.min(*left).min(allowed(demand, (id, rtt)));
            if amount > 0 {
                *room = all_room.minus(demand.taken_by(before + amount));
                *left -= amount;
                placed.insert((rtt, id), before + amount);
            }
        }
    }

    /// The plan. Idle locations go by the shares they had, if `had` knows any.
    pub(super) fn finish<'b>(
        self,
        had: impl Fn(LocationId) -> Option<&'b BTreeMap<DatacenterId, u64>>,
    ) -> Vec<Assignment> {
        let mut open = vec![Vec::new(); self.demands.len()];
        for &(_, i, id) in &self.pairs {
            if let (Some(demand), Some(room), Some(open)) =
                (self.demands.get(i), self.room.get(&id), open.get_mut(i))
                && demand.cpu() == 0
                && room.cpu > CostRate::ZERO
                && (room.memory > 0 || demand.needs.memory == 0)
            {
                open.push(id);
            }
        }
        self.demands
            .iter()
            .zip(self.left)
            .zip(self.placed)
            .zip(open)
            .map(|(((demand, left), placed), open)| Assignment {
                location: demand.location,
                placed: placed
                    .into_iter()
                    .map(|((_, id), cpu)| (id, CostRate::from_nanos_per_sec(cpu)))
                    .collect(),
                unplaced: CostRate::from_nanos_per_sec(left),
                idle: idle_shares(&open, had(demand.location)),
            })
            .collect()
    }
}

/// The shares of a location without demand, for which `open` have room, nearest first.
fn idle_shares(
    open: &[DatacenterId],
    had: Option<&BTreeMap<DatacenterId, u64>>,
) -> Vec<(DatacenterId, Ratio)> {
    let kept = |id: &DatacenterId| had.and_then(|had| had.get(id)).copied().unwrap_or(0);
    let whole = open.iter().fold(0_u64, |sum, id| sum.saturating_add(kept(id)));
    if whole == 0 {
        return open.first().map(|&id| (id, Ratio::ONE)).into_iter().collect();
    }
    let shares = open.iter().map(|id| (*id, Ratio::of(kept(id), whole)));
    shares.filter(|(_, share)| *share > Ratio::ZERO).collect()
}
