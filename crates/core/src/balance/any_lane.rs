//! Lanes of any policy, behind one surface.

use super::{
    BackendId, LeastLoadedLane, LeastLoadedLanes, Pick, PickGate, PrequalLane, PrequalLanes,
    Probes, WeightedLane, WeightedLanes,
};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::Timestamp;
use core::time::Duration;
use std::sync::Arc;

/// Where threads get lanes to pick, and to tell outcomes, without the policy's owner.
///
/// ```
/// use tidegate_core::balance::{BackendId, Join, LeastLoaded, Policy};
/// use tidegate_core::{Outcome, Timestamp, rng::SeededRng};
///
/// let mut policy = Policy::from(LeastLoaded::new(Default::default()));
/// policy.add(BackendId(3), Join::Warm, Timestamp::ZERO);
/// let lanes = policy.lanes();
/// // On each thread:
/// let (mut rng, now) = (SeededRng::new(1), Timestamp::from_secs(1));
/// let mut lane = lanes.lane(&mut rng);
/// let pick = lane.pick(now, &mut rng).unwrap();
/// lane.on_start(pick.backend);
/// // … the request is sent, and answered …
/// lane.on_complete(pick.backend, Outcome::Served);
/// // On the owner's, when it is due:
/// policy.on_deadline(now);
/// ```
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Lanes {
    /// Each in turn: picks are all there is.
    RoundRobin(Arc<PickGate>),
    /// The fewest active requests of a few.
    LeastLoaded(LeastLoadedLanes),
    /// In proportion to reported capability.
    Weighted(WeightedLanes),
    /// By probes. Boxed, as a pool is large.
    Prequal(Box<PrequalLanes>),
}

impl Lanes {
    /// A lane for one thread. May take a lock: once per thread, not per request.
    pub fn lane(&self, rng: &mut impl Rng) -> Lane {
        match self {
            Self::RoundRobin(gate) => Lane::RoundRobin(Arc::clone(gate)),
            Self::LeastLoaded(lanes) => Lane::LeastLoaded(lanes.lane(rng.next_u64() as u32)),
            Self::Weighted(lanes) => Lane::Weighted(lanes.lane()),
            Self::Prequal(lanes) => Lane::Prequal(Box::new(lanes.lane(rng.next_u64() as u32))),
        }
    }
}

/// One thread's way to pick, and to tell what became of it. No lock, no allocation, no clock.
#[derive(Debug)]
#[non_exhaustive]
pub enum Lane {
    /// Each in turn.
    RoundRobin(Arc<PickGate>),
    /// The fewest active requests of a few.
    LeastLoaded(LeastLoadedLane),
    /// In proportion to reported capability.
    Weighted(WeightedLane),
    /// By probes.
    Prequal(Box<PrequalLane>),
}

impl Lane {
    /// The backend for an attempt, and why; nothing if the set is empty.
    #[inline]
    pub fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<Pick> {
        match self {
            Self::RoundRobin(gate) => gate.pick(),
            Self::LeastLoaded(lane) => lane.pick(rng),
            Self::Weighted(lane) => lane.pick(),
            Self::Prequal(lane) => lane.pick(now, rng),
        }
    }

    /// An attempt on `id` begins.
    #[inline]
    pub fn on_start(&mut self, id: BackendId) {
        match self {
            Self::RoundRobin(_) => {}
            Self::LeastLoaded(lane) => lane.on_start(id),
            Self::Weighted(lane) => lane.on_start(id),
            Self::Prequal(lane) => lane.on_start(id),
        }
    }

    /// An attempt that began on a lane, this one or another, has ended. To be called once for each
    /// start, also for backends that have left since.
    #[inline]
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome) {
        match self {
            Self::RoundRobin(_) => {}
            Self::LeastLoaded(lane) => lane.on_complete(id, outcome),
            Self::Weighted(lane) => lane.on_complete(id, outcome),
            Self::Prequal(lane) => lane.on_complete(id, outcome),
        }
    }

    /// Whom to probe along with a request, or after a deadline; nothing for policies that do not
    /// probe.
    pub fn probes_wanted(&mut self, rng: &mut impl Rng) -> Option<Probes> {
        match self {
            Self::Prequal(lane) => Some(lane.probes_wanted(rng)),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => None,
        }
    }

    /// A probe of `id` that this lane wanted was answered. Whether that is of use.
    pub fn on_probe(&mut self, id: BackendId, rif: u32, latency: Duration, now: Timestamp) -> bool {
        match self {
            Self::Prequal(lane) => lane.on_probe(id, rif, latency, now),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => false,
        }
    }

    /// When a thread that sends nothing should call [`Lane::on_deadline`] and probe, if at all.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match self {
            Self::Prequal(lane) => lane.next_deadline(),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => None,
        }
    }

    /// Does what is due. Then ask [`Lane::probes_wanted`], as with a request.
    pub fn on_deadline(&mut self, now: Timestamp) {
        match self {
            Self::Prequal(lane) => lane.on_deadline(now),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => {}
        }
    }
}
