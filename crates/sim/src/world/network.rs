//! How long messages take, and which are lost.

use super::spec::WorldSpec;
use crate::dice;
use core::time::Duration;
use tidegate_core::Timestamp;
use tidegate_core::rng::{Rng, SeededRng};

/// From one datacenter to another.
#[derive(Debug, Clone, Copy, Default)]
struct Route {
    /// In nanoseconds, as is the mean of what is added to it.
    distance: u64,
    jitter: f64,
}

/// All routes. What a message needs of the specification is worked out beforehand: there are two
/// messages to a request.
#[derive(Debug)]
pub(super) struct Network {
    routes: Vec<Vec<Route>>,
    jitters: bool,
    loss: f64,
    pub(super) dice: SeededRng,
}

impl Network {
    pub(super) fn new(spec: &WorldSpec, dice: SeededRng) -> Self {
        let route = |&distance: &Duration| Route {
            distance: u64::try_from(distance.as_nanos()).unwrap_or(u64::MAX),
            jitter: distance.as_secs_f64() * spec.jitter * 1e9,
        };
        Self {
            routes: spec.distance.iter().map(|row| row.iter().map(route).collect()).collect(),
            jitters: spec.jitter > 0.0,
            loss: spec.loss,
            dice,
        }
    }

    /// How long a message takes. Places without a distance are close to each other.
    pub(super) fn latency(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_nanos(self.nanos(from, to))
    }

    /// When a message arrives that is sent now.
    pub(super) fn arrival(&mut self, from: usize, to: usize, now: Timestamp) -> Timestamp {
        Timestamp::from_nanos(now.as_nanos().saturating_add(self.nanos(from, to)))
    }

    fn nanos(&mut self, from: usize, to: usize) -> u64 {
        let route = self.routes.get(from).and_then(|row| row.get(to)).copied().unwrap_or_default();
        if self.jitters {
            let jitter = dice::exponential_nanos(route.jitter, &mut self.dice);
            route.distance.saturating_add(jitter)
        } else {
            route.distance
        }
    }

    /// Whether a message is lost.
    pub(super) fn loses(&mut self) -> bool {
        self.loss > 0.0 && self.dice.unit() < self.loss
    }
}
