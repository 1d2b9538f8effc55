//! The throttle of a client with many threads.
//!
//! Each thread has a [`ThrottleLane`]: it checks one published word and counts in cells of its own.
//! The [`ThrottleController`] adds the cells up on every tick, feeds the differences to the same
//! [`Throttle`] that a single owner would ask, and publishes the four shares it arrives at.
//!
//! Between ticks the shares stand still. Against a window of two minutes a tick of 100 ms is
//! nothing: it can move `p` by a tenth of a percent, except in the very first seconds.

use super::{Throttle, ThrottleConfig, ThrottleCounts, throttled_locally};
use crate::counters::{Counters, Writer};
use crate::criticality::Criticality;
use crate::decision::Rejection;
use crate::levels::{LevelGate, Levels};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::Timestamp;
use std::sync::Arc;

/// Cells per criticality: the four fields of [`ThrottleCounts`], in this order.
const FATES: usize = 4;
const ACCEPTED: usize = 0;
const REFUSED: usize = 1;
const UNANSWERED: usize = 2;
const THROTTLED: usize = 3;
const CELLS: usize = FATES * Criticality::COUNT;

const fn cell(criticality: Criticality, fate: usize) -> usize {
    criticality.index() * FATES + fate
}

/// What a throttle's threads and its controller share.
#[derive(Debug)]
pub struct ThrottleGate {
    levels: LevelGate,
    counters: Arc<Counters>,
}

impl ThrottleGate {
    /// A lane for one thread. Takes a lock: once per thread, not per request.
    pub fn lane(self: &Arc<Self>) -> ThrottleLane {
        ThrottleLane { gate: Arc::clone(self), writer: self.counters.writer() }
    }

    /// The shares that get through at present.
    pub fn levels(&self) -> Levels {
        self.levels.levels()
    }

    /// What has become of all attempts so far, by criticality, lowest first. Wraps at 2^64.
    ///
    /// Takes a lock that only lanes being made or dropped contend for. For ticks and metrics.
    pub fn counts(&self) -> [ThrottleCounts; Criticality::COUNT] {
        let mut cells = [0; CELLS];
        self.counters.read(&mut cells);
        Criticality::ALL.map(|criticality| ThrottleCounts {
            accepted: cells[cell(criticality, ACCEPTED)],
            refused: cells[cell(criticality, REFUSED)],
            unanswered: cells[cell(criticality, UNANSWERED)],
            throttled: cells[cell(criticality, THROTTLED)],
        })
    }
}

/// One thread's way through the gate.
#[derive(Debug)]
pub struct ThrottleLane {
    gate: Arc<ThrottleGate>,
    writer: Writer,
}

impl ThrottleLane {
    /// Whether the next attempt may be sent. A refusal is counted here; an attempt that is sent
    /// counts when [`ThrottleLane::on_response`] hears of it.
    ///
    /// For the shell's request path: one load and a compare, a draw where a level is touched, and
    /// a store of this thread's own when refusing. No lock, no allocation, no clock.
    #[inline]
    pub fn decide(
        &mut self,
        criticality: Criticality,
        rng: &mut impl Rng,
    ) -> Result<(), Rejection> {
        let levels = self.gate.levels.levels();
        if levels.admits(criticality, rng) {
            Ok(())
        } else {
            self.writer.add(cell(criticality, THROTTLED), 1);
            Err(throttled_locally(criticality, 1.0 - levels.share(criticality)))
        }
    }

    /// An attempt that was sent came out like this. Once per attempt, on whichever lane is at hand.
    ///
    /// For the shell's request path: one store of this thread's own.
    #[inline]
    pub fn on_response(&mut self, criticality: Criticality, outcome: Outcome) {
        let fate = match outcome {
            Outcome::Served | Outcome::Failed => ACCEPTED,
            Outcome::Refused(_) => REFUSED,
            Outcome::NoAnswer => UNANSWERED,
            Outcome::Abandoned => return,
        };
        self.writer.add(cell(criticality, fate), 1);
    }
}

/// Keeps the books of a [`ThrottleGate`] and tells it what to let through.
#[derive(Debug)]
pub struct ThrottleController {
    throttle: Throttle,
    gate: Arc<ThrottleGate>,
    seen: [ThrottleCounts; Criticality::COUNT],
}

impl ThrottleController {
    /// A throttle that has seen nothing, with a gate that lets everything through.
    pub fn new(config: ThrottleConfig) -> Self {
        let gate =
            Arc::new(ThrottleGate { levels: LevelGate::new(), counters: Counters::new(CELLS) });
        let seen = [ThrottleCounts::default(); Criticality::COUNT];
        Self { throttle: Throttle::new(config), gate, seen }
    }

    /// The gate, from which threads get their lanes.
    pub fn gate(&self) -> &Arc<ThrottleGate> {
        &self.gate
    }

    /// Takes in what the lanes counted since the last tick and publishes what follows.
    ///
    /// Off the request path, about every 100 ms. Costs a lock that no request takes and a load per
    /// cell and lane.
    pub fn tick(&mut self, now: Timestamp) -> Levels {
        let counts = self.gate.counts();
        for ((criticality, all), seen) in
            Criticality::ALL.into_iter().zip(counts).zip(&mut self.seen)
        {
            let new = ThrottleCounts {
                accepted: all.accepted.wrapping_sub(seen.accepted),
                refused: all.refused.wrapping_sub(seen.refused),
                unanswered: all.unanswered.wrapping_sub(seen.unanswered),
                throttled: all.throttled.wrapping_sub(seen.throttled),
            };
            self.throttle.record(criticality, new, now);
            *seen = all;
        }
        let levels = self.throttle.levels(now);
        self.gate.levels.publish(levels);
        levels
    }

    /// The probability with which a request is refused locally, as of the last tick's counts.
    pub fn probability(&mut self, criticality: Criticality, now: Timestamp) -> f64 {
        self.throttle.probability(criticality, now)
    }
}
