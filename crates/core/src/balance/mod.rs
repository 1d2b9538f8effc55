//! Which backend task gets the request.
//!
//! A client that spreads its requests badly overloads one task while another idles: the service
//! then fails at a fraction of what it could do. Four policies, from the least that is known about
//! the backends to the most:
//!
//! | policy | knows | a pick costs | goes wrong when |
//! |---|---|---|---|
//! | [`RoundRobin`] | the set | O(1) | requests or machines differ: twice the load on some |
//! | [`LeastLoaded`] | its own active requests and recent errors | O(log n), on a lane 4 looks | machines differ, or others use the backends too |
//! | [`Weighted`] | reported rate, errors and utilization | O(1) | reports are missing: falls back to round robin |
//! | [`Prequal`] | probed requests in flight and latency | O(pool) | probes are missing: falls back to chance |
//!
//! A single owner calls a [`Policy`] itself. Where many threads send, each has a [`Lane`] of it
//! ([`Policy::lanes`]), on which picks, starts and ends take no lock; the owner goes on to say who
//! joins and leaves, and does what is due. What goes through lanes does not go through the policy.
//! Retries are picked like any new request. [`ProbeState`] is the other side: what a backend
//! answers to probes.
//!
//! All share the same life of a backend: it joins (cold ones ramp up, see [`slow_start`]), may
//! become a lame duck, may come back, and leaves. A lame duck is out of every policy at once; the
//! requests that it still works on stay counted. When *every* backend is a lame duck, picks go to
//! them in turn and say so ([`PickReason::AllLameDuck`]): a lame duck still serves while it drains,
//! so a request there may succeed, and failing it here certainly would not. With no backends at all
//! there is nothing to pick.
//!
//! Ties and first turns go by the order in which backends joined. Clients that add the same
//! backends in the same order all start with the same one, so shells shuffle first, as subsetting
//! does anyway.

mod any_lane;
mod correction;
mod errors;
mod gate;
mod heap;
mod lane;
mod least_loaded;
mod least_loaded_lane;
mod loads;
mod order;
mod policy;
mod prequal;
mod prequal_lane;
mod prequal_pool;
mod probe;
mod roster;
mod round_robin;
mod schedule;
pub mod slow_start;
mod weight;
mod weighted;

#[cfg(test)]
mod lane_tests;
#[cfg(test)]
mod tests;

pub use any_lane::{Lane, Lanes};
pub use gate::PickGate;
pub use lane::{WeightedLane, WeightedLanes};
pub use least_loaded::{LeastLoaded, LeastLoadedConfig};
pub use least_loaded_lane::{LeastLoadedLane, LeastLoadedLanes};
pub use policy::Policy;
pub use prequal::{Prequal, PrequalConfig};
pub use prequal_lane::{PrequalLane, PrequalLanes};
pub use prequal_pool::Probes;
pub use probe::{Arrival, ProbeAnswer, ProbeState};
pub use round_robin::RoundRobin;
pub use slow_start::SlowStart;
pub use weight::{LoadReport, ReportFate};
pub use weighted::{Weighted, WeightedConfig};

use core::fmt;

/// A backend task, by the small number that the shell gave it.
///
/// Numbers index tables, so they are to be small: a shell gives out the lowest that is free. A
/// number may be given to another task later. What was learnt about the former one goes with it;
/// requests to it that are still under way stay counted on the number until they end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendId(pub u32);

impl BackendId {
    /// Numbers from here on are refused. Sixty-five thousand backends are far beyond what one
    /// client should connect to (that is what subsetting is for), and a table of that size is
    /// still only a few megabytes.
    pub const LIMIT: u32 = 1 << 16;

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "t{}", self.0)
    }
}

/// How a backend joins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Join {
    /// It has just started: caches are empty, code is not compiled, connections are not open.
    /// Its share ramps up.
    Cold,
    /// It has been running, and is new only to this client; or the client itself has just started
    /// and knows nothing. It gets its full share at once.
    Warm,
}

/// Whether a backend takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// Not in the set.
    Absent,
    /// Takes requests.
    Serving,
    /// Asked for no new requests.
    LameDuck,
}

/// The backend for a request, and why that one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pick {
    /// Where to send it.
    pub backend: BackendId,
    /// Why there.
    pub reason: PickReason,
}

/// Why a backend was picked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PickReason {
    /// It was its turn.
    RoundRobin,
    /// It was its turn among those with the fewest active requests and recent errors.
    LeastLoaded,
    /// It was its turn, and turns come in proportion to reported capability.
    Weighted,
    /// It was its turn; fewer than two backends have a weight that can be used.
    TooFewWeights,
    /// It had the lowest latency of the probed backends that have few requests in flight.
    LowestLatency,
    /// All probed backends have many requests in flight; it had the fewest.
    FewestInFlight,
    /// By chance: fewer than two probe answers are at hand.
    TooFewProbes,
    /// Every backend is a lame duck; it was this one's turn.
    AllLameDuck,
}

impl PickReason {
    /// All reasons, for tables of counters.
    pub const ALL: [Self; 8] = [
        Self::RoundRobin,
        Self::LeastLoaded,
        Self::Weighted,
        Self::TooFewWeights,
        Self::LowestLatency,
        Self::FewestInFlight,
        Self::TooFewProbes,
        Self::AllLameDuck,
    ];

    /// The code that stands in metrics and events.
    pub const fn code(self) -> &'static str {
        match self {
            Self::RoundRobin => "round_robin",
            Self::LeastLoaded => "least_loaded",
            Self::Weighted => "weighted",
            Self::TooFewWeights => "too_few_weights",
            Self::LowestLatency => "lowest_latency",
            Self::FewestInFlight => "fewest_in_flight",
            Self::TooFewProbes => "too_few_probes",
            Self::AllLameDuck => "all_lame_duck",
        }
    }
}

impl fmt::Display for PickReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}
