//! Probing for requests in flight and latency.
//!
//! CPU utilization is an average over a second or more; what makes a request slow is what its
//! backend is doing right now. Prequal ("Load is not what you should balance", NSDI 2024) asks a
//! few backends with each request, keeps the answers in a small pool for the requests after it, and
//! picks from the pool:
//!
//! - A backend is *hot* if its requests in flight (RIF) exceed the `hot_quantile` of the RIFs that
//!   probes lately found, else *cold*.
//! - Of the cold ones, the lowest latency. If all are hot, the lowest RIF. RIF foretells trouble,
//!   latency shows it; so RIF is a limit, and within the limit latency decides.
//!
//! Answers go stale, so each leaves the pool when
//!
//! ```text
//! it is older than `probe_age_max`
//! it has been used reuse times   reuse = (1 + slack) / ((1 - pool/backends) x probes - removals)
//! a request drops it             `removals_per_request`, in turn the oldest and the worst
//! the pool is full or it is answered anew
//! ```
//!
//! The worst is the highest RIF of the hot ones, or the highest latency if all are cold. Dropping
//! it keeps the pool from filling up with backends that nobody wants. Every use adds one to the
//! answer's RIF, since this client's own request is now in flight there as well.
//!
//! A task that fails fast has few requests in flight and a splendid latency. Recent errors of this
//! client there are added to its RIF, and multiply its latency by one more each. The RIF of a cold
//! backend counts as larger while it ramps up.
//!
//! With fewer than two answers at hand there is nothing to choose from, and the pick is by chance.
//! A client that sends a request every other second would always be there, since answers live for
//! one. So a client that has been idle for half the age of an answer asks without a request, again
//! and again until one comes: [`Prequal::next_deadline`] says when, [`Prequal::on_deadline`] makes
//! [`Prequal::probes_wanted`] ask. That is six probes a second by default, for every idle client.
//!
//! These are the paper's rules and its defaults, equation 1 for reuse included. Three things are
//! our own: the fraction of a use is carried over where the paper draws it by chance, no answer is
//! used more than 16 times (the equation has no bound where the pool is as large as the set), and
//! errors and slow start count. The paper's text was not at hand: rules and numbers were checked
//! against its abstract and a public list of how another implementation departs from it
//! (`sathwick-p/prequal`, `paper-divergences.md`). Its other mode, which probes and waits before
//! each request, is not here.
//!
//! A single owner probes and picks through [`Prequal`] itself. Where many threads send, each does
//! so through a [`PrequalLane`](super::PrequalLane) with a pool of its own.

use super::errors::{MEMORY, RecentErrors};
use super::loads::{LoadBooks, State};
use super::prequal_lane::PrequalLanes;
use super::prequal_pool::{Pool, Probes, View};
use super::roster::Roster;
use super::slow_start::SlowStart;
use super::{BackendId, Join, Pick, Standing};
use crate::outcome::Outcome;
use crate::rng::Rng;
use crate::units::{InvalidNumber, Ratio, Timestamp};
use core::time::Duration;

/// How Prequal probes and picks.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct PrequalConfig {
    /// How many backends there can be, and the end of their numbers: 1,024. Lanes share 128 bytes
    /// for each.
    pub backends_max: usize,
    /// Answers kept: 16. More are staler, fewer give less choice.
    pub pool_size: usize,
    /// Probes per request: 3, at most 8; fractions are carried over.
    pub probes_per_request: f64,
    /// Answers dropped per request: 1; fractions are carried over.
    pub removals_per_request: f64,
    /// The oldest answer that is used: 1 s, and at least a millisecond.
    pub probe_age_max: Duration,
    /// Whether to go on probing while no requests are sent. Without, the first request after a
    /// pause goes anywhere.
    pub idle_probes: bool,
    /// How many more uses than needed answers get, so that the pool does not run dry: 1, that is
    /// twice as many.
    pub reuse_slack: f64,
    /// Which part of the RIFs counts as cold: 84 % (2^-1/4). Less heeds latency less.
    pub hot_quantile: Ratio,
    /// How long an error counts as a request in flight: 5 s.
    pub error_memory: Duration,
    /// How cold backends ramp up.
    pub slow_start: SlowStart,
}

impl Default for PrequalConfig {
    fn default() -> Self {
        Self {
            backends_max: 1_024,
            pool_size: 16,
            probes_per_request: 3.0,
            removals_per_request: 1.0,
            probe_age_max: Duration::from_secs(1),
            idle_probes: true,
            reuse_slack: 1.0,
            hot_quantile: Ratio::percent(84),
            error_memory: MEMORY,
            slow_start: SlowStart::default(),
        }
    }
}

/// Picks by probes.
#[derive(Debug)]
pub struct Prequal {
    config: PrequalConfig,
    backends: Backends,
    pool: Pool,
    /// Once there are lanes.
    lanes: Option<LoadBooks>,
    /// Whether a backend of the lanes still ramps up, and when to tell them that it has gone on.
    next_ramp: Option<Timestamp>,
}

/// What a single owner knows of the backends.
#[derive(Debug, Clone)]
struct Backends {
    roster: Roster,
    errors: RecentErrors,
    slow_start: SlowStart,
    /// The latest time seen.
    now: Timestamp,
}

impl View for Backends {
    fn serving(&self) -> usize {
        self.roster.serving().len()
    }

    fn backend(&self, place: usize) -> Option<BackendId> {
        self.roster.serving().get(place).copied()
    }

    fn state(&self, id: BackendId) -> State {
        let cold_since = self.roster.cold_since(id);
        let serves = self.roster.serves(id);
        // Answers of a task that is gone are dropped at once, so all are of the present one.
        State { step: if serves { self.slow_start.step(cold_since, self.now) } else { 0 }, task: 0 }
    }

    fn errors(&self, id: BackendId) -> u32 {
        self.errors.count(id)
    }
}

impl Prequal {
    /// A policy without backends.
    pub fn new(mut config: PrequalConfig) -> Result<Self, InvalidNumber> {
        config.backends_max = config.backends_max.min(BackendId::LIMIT as usize);
        let backends = Backends {
            roster: Roster::new(config.backends_max),
            errors: RecentErrors::new(config.error_memory),
            slow_start: config.slow_start,
            now: Timestamp::ZERO,
        };
        Ok(Self { config, backends, pool: Pool::new(config)?, lanes: None, next_ramp: None })
    }

    /// Where threads get lanes, each with a pool of its own, to probe, to pick and to tell outcomes
    /// without this controller's owner. What goes through a lane does not go through the
    /// controller. Call [`Prequal::on_deadline`] when it is due, or errors that lanes saw are never
    /// forgotten.
    pub fn lanes(&mut self) -> PrequalLanes {
        let PrequalConfig { backends_max, error_memory, .. } = self.config;
        let new = || LoadBooks::new(backends_max, false, error_memory);
        let loads = self.lanes.get_or_insert_with(new).loads();
        let lanes = PrequalLanes::new(loads, &self.pool);
        self.publish();
        lanes
    }

    /// `id` joins, or comes back; one that joins cold has neither errors nor answers. Whether it is
    /// in now: not if its number is not below [`PrequalConfig::backends_max`].
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        self.advance(now);
        let Backends { roster, errors, now, .. } = &mut self.backends;
        let (absent, known) = (roster.standing(id) == Standing::Absent, roster.serves(id));
        if id.index() >= self.config.backends_max || !roster.join(id, join, *now) {
            return false;
        }
        if join == Join::Cold {
            errors.clear(id);
            self.pool.forget(id);
        }
        if let Some(lanes) = self.lanes.as_mut().filter(|_| absent || join == Join::Cold) {
            lanes.replace(id);
        }
        if !known || join == Join::Cold {
            self.publish();
        }
        true
    }

    /// `id` asks for no new requests. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId) -> bool {
        self.pool.forget(id);
        let served = self.backends.roster.serves(id);
        let known = self.backends.roster.lame_duck(id);
        if served {
            self.publish();
        }
        known
    }

    /// `id` is gone, and with it its errors and answers. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId) -> bool {
        self.backends.errors.clear(id);
        self.pool.forget(id);
        let known = self.backends.roster.leave(id);
        if known {
            if let Some(lanes) = &mut self.lanes {
                lanes.replace(id);
            }
            self.publish();
        }
        known
    }

    /// Whom to probe along with the request that is being sent, or because a deadline has passed.
    /// Call it once for each of those; backends are drawn by chance, each at most once.
    pub fn probes_wanted(&mut self, rng: &mut impl Rng) -> Probes {
        self.pool.probes_wanted(&self.backends, rng)
    }

    /// A probe of `id` was answered: so many requests in flight, and so long would one more take.
    /// Whether the answer is kept: not from backends that do not serve.
    pub fn on_probe(&mut self, id: BackendId, rif: u32, latency: Duration, now: Timestamp) -> bool {
        self.advance(now);
        self.pool.on_probe(&self.backends, id, rif, latency, self.backends.now)
    }

    /// The backend for a request.
    pub fn pick(&mut self, now: Timestamp, rng: &mut impl Rng) -> Option<Pick> {
        self.advance(now);
        let pick = self.pool.pick(&self.backends, self.backends.now, rng);
        pick.or_else(|| self.backends.roster.pick_lame())
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId) {
        self.backends.roster.on_start(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome, now: Timestamp) {
        self.advance(now);
        let Backends { roster, errors, .. } = &mut self.backends;
        roster.on_complete(id);
        if outcome.is_failure() == Some(true) && roster.standing(id) != Standing::Absent {
            errors.record(id);
        }
    }

    /// When [`Prequal::on_deadline`] wants to be called next. Without lanes that is when a client
    /// that sends nothing should probe: never, if that is turned off or there is nothing to choose
    /// from. With lanes that is theirs to say, and the controller forgets and ramps.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        match &self.lanes {
            Some(lanes) => [lanes.next_look(), self.next_ramp].into_iter().flatten().min(),
            None => self.pool.next_deadline(self.backends.serving()),
        }
    }

    /// Does what is due. Without lanes: if the deadline has passed, the next
    /// [`Prequal::probes_wanted`] is to be asked now, without waiting for a request.
    pub fn on_deadline(&mut self, now: Timestamp) {
        self.advance(now);
        let now = self.backends.now;
        let Some(lanes) = &mut self.lanes else {
            self.pool.on_deadline(self.backends.serving(), now);
            return;
        };
        lanes.look(now);
        if self.next_ramp.is_some_and(|at| at <= now) {
            self.publish();
        }
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        self.backends.roster.standing(id)
    }

    /// Attempts on `id` that have begun and not ended, lanes included.
    pub fn active(&self, id: BackendId) -> u32 {
        let on_lanes = self.lanes.as_ref().map_or(0, |lanes| lanes.loads().active(id));
        self.backends.roster.active(id).saturating_add(on_lanes)
    }

    /// How many answers are in the pool.
    pub fn pool_len(&self) -> usize {
        self.pool.len()
    }

    fn advance(&mut self, now: Timestamp) {
        self.pool.advance(now);
        self.backends.now = self.pool.now();
        self.backends.errors.forget(self.backends.now);
    }

    /// Tells lanes who serves, and how far each has ramped up.
    fn publish(&mut self) {
        let Backends { roster, slow_start, now, .. } = &self.backends;
        if let Some(lanes) = &mut self.lanes {
            lanes.publish(roster, *slow_start, *now);
            let ramps = |&id: &BackendId| {
                roster.cold_since(id).is_some_and(|start| now.since(start) < slow_start.window)
            };
            let ramping = roster.serving().iter().any(ramps);
            // Not at the end of time, where it would always be due.
            self.next_ramp = ramping.then(|| *now + slow_start.tick()).filter(|at| at > now);
        }
    }
}

#[cfg(test)]
mod tests;
