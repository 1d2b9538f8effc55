//! Any of the policies, behind one surface.

use super::{
    BackendId, Join, Lanes, LeastLoaded, LoadReport, Pick, Prequal, Probes, ReportFate, RoundRobin,
    Standing, Weighted,
};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::Timestamp;
use core::time::Duration;

/// A balancing policy. Shells feed every fact they have; each policy uses what it can.
///
/// ```
/// use tidegate_core::balance::{BackendId, Join, LeastLoaded, Policy};
/// use tidegate_core::{Outcome, Timestamp, rng::SeededRng};
///
/// let mut policy = Policy::from(LeastLoaded::new(Default::default()));
/// let (now, mut rng) = (Timestamp::ZERO, SeededRng::new(1));
/// for id in 0..3 {
///     policy.add(BackendId(id), Join::Warm, now);
/// }
/// let pick = policy.pick(now, &mut rng).unwrap();
/// policy.on_start(pick.backend, now);
/// // … the request is sent, and answered …
/// policy.on_complete(pick.backend, Outcome::Served, now);
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum Policy {
    /// Each in turn.
    RoundRobin(Box<RoundRobin>),
    /// The fewest active requests.
    LeastLoaded(Box<LeastLoaded>),
    /// In proportion to reported capability.
    Weighted(Box<Weighted>),
    /// By probes of requests in flight and latency.
    Prequal(Box<Prequal>),
}

impl From<RoundRobin> for Policy {
    fn from(policy: RoundRobin) -> Self {
        Self::RoundRobin(Box::new(policy))
    }
}

impl From<LeastLoaded> for Policy {
    fn from(policy: LeastLoaded) -> Self {
        Self::LeastLoaded(Box::new(policy))
    }
}

impl From<Weighted> for Policy {
    fn from(policy: Weighted) -> Self {
        Self::Weighted(Box::new(policy))
    }
}

impl From<Prequal> for Policy {
    fn from(policy: Prequal) -> Self {
        Self::Prequal(Box::new(policy))
    }
}

impl Policy {
    /// `id` joins or comes back; a backend that serves already and joins cold has been restarted.
    /// Whether it is in now: not if its number is too large or the set is full.
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        match self {
            Self::RoundRobin(p) => p.add(id, join, now),
            Self::LeastLoaded(p) => p.add(id, join, now),
            Self::Weighted(p) => p.add(id, join, now),
            Self::Prequal(p) => p.add(id, join, now),
        }
    }

    /// `id` asks for no new requests and is out at once. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId, now: Timestamp) -> bool {
        match self {
            Self::RoundRobin(p) => p.lame_duck(id),
            Self::LeastLoaded(p) => p.lame_duck(id),
            Self::Weighted(p) => p.lame_duck(id, now),
            Self::Prequal(p) => p.lame_duck(id),
        }
    }

    /// `id` is gone. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId, now: Timestamp) -> bool {
        match self {
            Self::RoundRobin(p) => p.remove(id),
            Self::LeastLoaded(p) => p.remove(id),
            Self::Weighted(p) => p.remove(id, now),
            Self::Prequal(p) => p.remove(id),
        }
    }

    /// The backend for an attempt, and why; nothing if the set is empty.
    pub fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<Pick> {
        match self {
            Self::RoundRobin(p) => p.pick(now),
            Self::LeastLoaded(p) => p.pick(now),
            Self::Weighted(p) => p.pick(now),
            Self::Prequal(p) => p.pick(now, rng),
        }
    }

    /// Whom the next pick will probably give, where that can be told ahead: for a shell that reads
    /// beforehand what it will need.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn peek(&self) -> Option<BackendId> {
        match self {
            Self::RoundRobin(p) => p.peek(),
            Self::Weighted(p) => p.peek(),
            // Their picks look at more than can be told ahead.
            Self::LeastLoaded(_) | Self::Prequal(_) => None,
        }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch), for the start of an attempt on `id`.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch_start(&self, id: BackendId) -> u64 {
        match self {
            Self::Weighted(p) => p.touch_start(id),
            _ => self.active(id).into(),
        }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch), for the end of an attempt on `id`.
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub fn touch_end(&self, id: BackendId) -> u64 {
        match self {
            Self::Weighted(p) => p.touch_end(id),
            _ => self.active(id).into(),
        }
    }

    /// Where threads get lanes to pick and to tell outcomes without this policy's owner. What goes
    /// through a lane does not go through the policy. Its owner goes on to tell it who joins and
    /// leaves and what backends report, and calls [`Policy::on_deadline`] when it is due.
    pub fn lanes(&mut self) -> Lanes {
        match self {
            Self::RoundRobin(p) => Lanes::RoundRobin(p.gate()),
            Self::LeastLoaded(p) => Lanes::LeastLoaded(p.lanes()),
            Self::Weighted(p) => Lanes::Weighted(p.lanes()),
            Self::Prequal(p) => Lanes::Prequal(Box::new(p.lanes())),
        }
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId, now: Timestamp) {
        match self {
            Self::RoundRobin(p) => p.on_start(id),
            Self::LeastLoaded(p) => p.on_start(id, now),
            Self::Weighted(p) => p.on_start(id),
            Self::Prequal(p) => p.on_start(id),
        }
    }

    /// An attempt on `id` has ended. To be called once for each start, also for backends that have
    /// left since.
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome, now: Timestamp) {
        match self {
            Self::RoundRobin(p) => p.on_complete(id, outcome),
            Self::LeastLoaded(p) => p.on_complete(id, outcome, now),
            Self::Weighted(p) => p.on_complete(id, outcome, now),
            Self::Prequal(p) => p.on_complete(id, outcome, now),
        }
    }

    /// `id` reports its load.
    pub fn on_report(&mut self, id: BackendId, report: &LoadReport, now: Timestamp) -> ReportFate {
        match self {
            Self::Weighted(p) => p.on_report(id, report, now),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Prequal(_) => ReportFate::Unused,
        }
    }

    /// Whom to probe along with a request, or after a deadline; nothing for policies that do not
    /// probe.
    pub fn probes_wanted(&mut self, rng: &mut impl Rng) -> Option<Probes> {
        match self {
            Self::Prequal(p) => Some(p.probes_wanted(rng)),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => None,
        }
    }

    /// A probe of `id` was answered. Whether that is of use.
    pub fn on_probe(&mut self, id: BackendId, rif: u32, latency: Duration, now: Timestamp) -> bool {
        match self {
            Self::Prequal(p) => p.on_probe(id, rif, latency, now),
            Self::RoundRobin(_) | Self::LeastLoaded(_) | Self::Weighted(_) => false,
        }
    }

    /// When [`Policy::on_deadline`] wants to be called next, if at all. Owners who pick through the
    /// policy itself can do without: a pick does what is due. Only probes while no requests are
    /// sent come from nowhere else.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match self {
            Self::RoundRobin(p) => p.next_deadline(),
            Self::Weighted(p) => Some(p.next_deadline()),
            Self::Prequal(p) => p.next_deadline(),
            Self::LeastLoaded(p) => p.next_deadline(),
        }
    }

    /// Does what is due, for those who pick at the gate. Then ask [`Policy::probes_wanted`], as
    /// with a request.
    pub fn on_deadline(&mut self, now: Timestamp) {
        match self {
            Self::RoundRobin(p) => p.on_deadline(now),
            Self::Weighted(p) => p.on_deadline(now),
            Self::Prequal(p) => p.on_deadline(now),
            Self::LeastLoaded(p) => p.on_deadline(now),
        }
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        match self {
            Self::RoundRobin(p) => p.standing(id),
            Self::LeastLoaded(p) => p.standing(id),
            Self::Weighted(p) => p.standing(id),
            Self::Prequal(p) => p.standing(id),
        }
    }

    /// Attempts on `id` that have begun and not ended.
    pub fn active(&self, id: BackendId) -> u32 {
        match self {
            Self::RoundRobin(p) => p.active(id),
            Self::LeastLoaded(p) => p.active(id),
            Self::Weighted(p) => p.active(id),
            Self::Prequal(p) => p.active(id),
        }
    }
}
