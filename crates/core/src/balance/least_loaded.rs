//! The backend with the fewest requests under way, in turn among equals.
//!
//! ```text
//! load  = active requests of this client + its recent errors there
//! level = load x 16 / step          step: the slow-start share in sixteenths, 16 when warm
//! ```
//!
//! The pick is the lowest level, and among equals the one whose last turn is longest ago. Counting
//! recent errors as active requests keeps a task that fails fast from looking idle and drawing all
//! traffic; as errors are forgotten it is tried again, and if it has recovered it is back at once.
//!
//! A cold backend's load counts as larger, and after each turn it is put back so far in the queue
//! that among equals it gets `step/16` of a full share: a client whose backends are all idle would
//! otherwise notice no difference between a load of none and none.
//!
//! Backends stand in a heap by (level, turn): a pick, a start, a completion and a forgotten error
//! each cost O(log n). A bitmap or a list per level would make that O(1), and a cold backend's
//! fractional level would have no place in it.
//!
//! A single owner picks through [`LeastLoaded`] itself. Where many threads send, each does so
//! through a [`LeastLoadedLane`](super::LeastLoadedLane), which looks at a few backends rather than
//! at the top of the heap.
//!
//! What it cannot see: how fast a backend is, and what other clients send it. In large services
//! the most loaded task still uses twice the CPU of the least loaded; see
//! [`Weighted`](super::Weighted).

use super::errors::{MEMORY, RecentErrors};
use super::heap::Heap;
use super::least_loaded_lane::LeastLoadedLanes;
use super::loads::LoadBooks;
use super::roster::Roster;
use super::slow_start::{STEPS, SlowStart};
use super::{BackendId, Join, Pick, PickReason, Standing};
use crate::outcome::Outcome;
use crate::units::Timestamp;
use core::time::Duration;
use std::collections::BTreeSet;

/// How least-loaded counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LeastLoadedConfig {
    /// How many backends there can be, and the end of their numbers: 1,024. Lanes share 128 bytes
    /// for each.
    pub backends_max: usize,
    /// How long an error counts as an active request: 5 s. Zero counts none, which invites
    /// sinkholes. A task that fails everything gets about as many requests in this time as the
    /// others have active ones.
    pub error_memory: Duration,
    /// How cold backends ramp up.
    pub slow_start: SlowStart,
}

impl Default for LeastLoadedConfig {
    fn default() -> Self {
        Self { backends_max: 1_024, error_memory: MEMORY, slow_start: SlowStart::default() }
    }
}

/// Least-loaded round robin.
#[derive(Debug)]
pub struct LeastLoaded {
    config: LeastLoadedConfig,
    slow_start: SlowStart,
    roster: Roster,
    errors: RecentErrors,
    /// Those that serve, by level and turn.
    queue: Heap<(u64, u64)>,
    turns: u64,
    /// Those that still ramp up, and when to look at them again.
    cold: BTreeSet<BackendId>,
    next_ramp: Timestamp,
    /// The latest time seen: a clock that steps back stands still here.
    now: Timestamp,
    /// Once there are lanes.
    lanes: Option<LoadBooks>,
}

impl LeastLoaded {
    /// A policy without backends.
    pub fn new(mut config: LeastLoadedConfig) -> Self {
        config.backends_max = config.backends_max.min(BackendId::LIMIT as usize);
        Self {
            config,
            slow_start: config.slow_start,
            roster: Roster::new(config.backends_max),
            errors: RecentErrors::new(config.error_memory),
            queue: Heap::new(),
            turns: 0,
            cold: BTreeSet::new(),
            next_ramp: Timestamp::ZERO,
            now: Timestamp::ZERO,
            lanes: None,
        }
    }

    /// Where threads get lanes, to pick and to tell outcomes without this controller's owner. What
    /// goes through a lane does not go through the controller. Call [`LeastLoaded::on_deadline`]
    /// when it is due, or errors that lanes saw are never forgotten.
    pub fn lanes(&mut self) -> LeastLoadedLanes {
        let LeastLoadedConfig { backends_max, error_memory, .. } = self.config;
        let new = || LoadBooks::new(backends_max, true, error_memory);
        let books = self.lanes.get_or_insert_with(new);
        books.publish(&self.roster, self.slow_start, self.now);
        LeastLoadedLanes::new(books.loads())
    }

    /// `id` joins, or comes back; one that joins cold has no errors. Whether it is in now: not if
    /// its number is not below [`LeastLoadedConfig::backends_max`].
    pub fn add(&mut self, id: BackendId, join: Join, now: Timestamp) -> bool {
        self.advance(now);
        let known = self.roster.serves(id);
        let absent = self.roster.standing(id) == Standing::Absent;
        if id.index() >= self.config.backends_max || !self.roster.join(id, join, self.now) {
            return false;
        }
        if let Some(lanes) = self.lanes.as_mut().filter(|_| absent || join == Join::Cold) {
            lanes.replace(id);
        }
        if join == Join::Cold {
            self.errors.clear(id);
            if self.cold.insert(id) {
                self.next_ramp = self.next_ramp.min(self.now + self.slow_start.tick());
            }
        }
        if known {
            self.rekey(id);
        } else {
            self.take_turn(id);
        }
        if !known || join == Join::Cold {
            self.publish();
        }
        true
    }

    /// `id` asks for no new requests. Whether it is in the set.
    pub fn lame_duck(&mut self, id: BackendId) -> bool {
        self.queue.remove(id);
        let served = self.roster.serves(id);
        let known = self.roster.lame_duck(id);
        if served {
            self.publish();
        }
        known
    }

    /// `id` is gone, and with it its errors. Whether it was in the set.
    pub fn remove(&mut self, id: BackendId) -> bool {
        self.queue.remove(id);
        self.errors.clear(id);
        let known = self.roster.leave(id);
        if known {
            if let Some(lanes) = &mut self.lanes {
                lanes.replace(id);
            }
            self.publish();
        }
        known
    }

    /// The least loaded backend, of what went through this controller.
    pub fn pick(&mut self, now: Timestamp) -> Option<Pick> {
        self.advance(now);
        let Some((_, backend)) = self.queue.top() else { return self.roster.pick_lame() };
        self.take_turn(backend);
        Some(Pick { backend, reason: PickReason::LeastLoaded })
    }

    /// An attempt on `id` begins.
    pub fn on_start(&mut self, id: BackendId, now: Timestamp) {
        self.advance(now);
        self.roster.on_start(id);
        self.rekey(id);
    }

    /// An attempt on `id` has ended.
    pub fn on_complete(&mut self, id: BackendId, outcome: Outcome, now: Timestamp) {
        self.advance(now);
        self.roster.on_complete(id);
        if outcome.is_failure() == Some(true) && self.roster.standing(id) != Standing::Absent {
            self.errors.record(id);
        }
        self.rekey(id);
    }

    /// Whether `id` takes requests.
    pub fn standing(&self, id: BackendId) -> Standing {
        self.roster.standing(id)
    }

    /// When [`LeastLoaded::on_deadline`] wants to be called next: never without lanes.
    pub fn next_deadline(&self) -> Option<Timestamp> {
        let lanes = self.lanes.as_ref()?;
        let ramp = (!self.cold.is_empty()).then_some(self.next_ramp);
        [lanes.next_look(), ramp].into_iter().flatten().min()
    }

    /// Forgets old errors of lanes and lets cold backends have more, if that is due.
    pub fn on_deadline(&mut self, now: Timestamp) {
        self.advance(now);
        if let Some(lanes) = &mut self.lanes {
            lanes.look(self.now);
        }
    }

    /// Attempts on `id` that have begun and not ended, lanes included.
    pub fn active(&self, id: BackendId) -> u32 {
        let on_lanes = self.lanes.as_ref().map_or(0, |lanes| lanes.loads().active(id));
        self.roster.active(id).saturating_add(on_lanes)
    }

    /// Errors of `id` that count as active requests, as of the last call that had a time, lanes
    /// included.
    pub fn recent_errors(&self, id: BackendId) -> u32 {
        let on_lanes = self.lanes.as_ref().map_or(0, |lanes| lanes.loads().errors(id));
        self.errors.count(id).saturating_add(on_lanes)
    }

    fn publish(&mut self) {
        if let Some(lanes) = &mut self.lanes {
            lanes.publish(&self.roster, self.slow_start, self.now);
        }
    }

    /// Brings what time changes up to date: errors that are forgotten, ramps that go on.
    fn advance(&mut self, now: Timestamp) {
        self.now = self.now.max(now);
        while let Some(id) = self.errors.forget_next(self.now) {
            self.rekey(id);
        }
        if self.cold.is_empty() {
            // Whoever joins next sets the time.
            self.next_ramp = Timestamp::MAX;
        } else if self.now >= self.next_ramp {
            self.next_ramp = self.now + self.slow_start.tick();
            let mut cold = core::mem::take(&mut self.cold);
            cold.retain(|&id| {
                let ramping = self.step(id) < STEPS;
                if !ramping {
                    self.roster.warm(id);
                }
                self.rekey(id);
                ramping
            });
            self.cold = cold;
            self.publish();
        }
    }

    fn step(&self, id: BackendId) -> u32 {
        self.slow_start.step(self.roster.cold_since(id), self.now)
    }

    fn level(&self, id: BackendId) -> u64 {
        let load = u64::from(self.roster.active(id)) + u64::from(self.errors.count(id));
        load * u64::from(STEPS) / u64::from(self.step(id))
    }

    /// Its load has changed, its turn has not.
    fn rekey(&mut self, id: BackendId) {
        if let Some((_, turn)) = self.queue.key(id) {
            self.queue.set(id, (self.level(id), turn));
        }
    }

    /// To the end of the queue of its level; a cold backend so much further that the others have
    /// `16/step` turns until its next.
    fn take_turn(&mut self, id: BackendId) {
        self.turns += 1;
        let others = self.roster.serving().len() as u64;
        let step = u64::from(self.step(id));
        let further = (u64::from(STEPS) - step) * others / step;
        self.queue.set(id, (self.level(id), self.turns.saturating_add(further)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warm(backends: u32) -> LeastLoaded {
        let mut policy = LeastLoaded::new(LeastLoadedConfig::default());
        for id in 0..backends {
            policy.add(BackendId(id), Join::Warm, Timestamp::ZERO);
        }
        policy
    }

    fn send(policy: &mut LeastLoaded, now: Timestamp) -> u32 {
        let id = policy.pick(now).unwrap().backend;
        policy.on_start(id, now);
        id.0
    }

    /// The worked example of the SRE book, chapter 20.
    #[test]
    fn the_books_ten_tasks() {
        let mut policy = warm(10);
        let now = Timestamp::ZERO;
        for (id, active) in [2, 1, 0, 0, 1, 0, 2, 0, 0, 1].into_iter().enumerate() {
            for _ in 0..active {
                policy.on_start(BackendId(id as u32), now);
            }
        }
        assert_eq!(send(&mut policy, now), 2);
        assert_eq!([(); 4].map(|()| send(&mut policy, now)), [3, 5, 7, 8]);
        let table: Vec<u32> = (0..10).map(|id| policy.active(BackendId(id))).collect();
        assert_eq!(table, [2, 1, 1, 1, 1, 1, 2, 1, 1, 1]);
        policy.on_complete(BackendId(4), Outcome::Served, now);
        assert_eq!(send(&mut policy, now), 4);
        // All but t0 and t6, each once, those first whose turn is longest ago.
        let next = [(); 8].map(|()| send(&mut policy, now));
        assert_eq!(next, [1, 9, 2, 3, 5, 7, 8, 4]);
    }

    #[test]
    fn an_error_counts_as_a_request_for_five_seconds() {
        let mut policy = warm(2);
        let failed = send(&mut policy, Timestamp::ZERO);
        policy.on_complete(BackendId(failed), Outcome::Failed, Timestamp::ZERO);
        assert_eq!(failed, 0);
        for ms in (0..4_990).step_by(10) {
            let now = Timestamp::from_millis(ms);
            assert_eq!(send(&mut policy, now), 1, "at {ms} ms");
            policy.on_complete(BackendId(1), Outcome::Served, now);
        }
        assert_eq!(send(&mut policy, Timestamp::from_secs(5)), 0);
        // What the caller gave up says nothing.
        policy.on_complete(BackendId(0), Outcome::Abandoned, Timestamp::from_secs(5));
        assert_eq!(policy.recent_errors(BackendId(0)), 0);
    }

    /// One request at a time over ten backends, one of which is cold: its share of the requests
    /// follows the ramp, though no load is ever seen.
    #[test]
    fn a_cold_backend_of_an_idle_client_gets_its_ramp() {
        let mut policy = warm(9);
        policy.add(BackendId(9), Join::Cold, Timestamp::ZERO);
        for (secs, step) in [(0, 2), (15, 9), (31, 16)] {
            let now = Timestamp::from_secs(secs);
            let mut cold = 0;
            for _ in 0..1_600 {
                let id = send(&mut policy, now);
                cold += u32::from(id == 9);
                policy.on_complete(BackendId(id), Outcome::Served, now);
            }
            // A full share is 160.
            assert!(cold.abs_diff(10 * step) <= 10, "{cold} at {secs} s");
        }
    }

    /// Requests pile up everywhere: the cold one holds its part of what a warm one holds.
    #[test]
    fn a_cold_backend_of_a_busy_client_holds_few() {
        let mut policy = warm(9);
        policy.add(BackendId(9), Join::Cold, Timestamp::ZERO);
        for _ in 0..9 * 40 {
            send(&mut policy, Timestamp::ZERO);
        }
        let (warm, cold) = (policy.active(BackendId(0)), policy.active(BackendId(9)));
        assert!((39..=40).contains(&warm) && (4..=6).contains(&cold), "{warm} {cold}");
    }

    /// Another task has the number, or the same one has been restarted: what failed before says
    /// nothing about it. A lame duck that comes back is the same task.
    #[test]
    fn errors_end_with_the_task_they_were_of() {
        let now = Timestamp::from_secs(1);
        let failed = || {
            let mut policy = warm(3);
            for id in [0, 1] {
                for _ in 0..100 {
                    policy.on_start(BackendId(id), now);
                    policy.on_complete(BackendId(id), Outcome::Failed, now);
                }
            }
            policy
        };
        let mut gone = failed();
        gone.remove(BackendId(0));
        gone.add(BackendId(0), Join::Warm, now);
        let mut restarted = failed();
        restarted.add(BackendId(0), Join::Cold, now);
        let mut lame = failed();
        lame.lame_duck(BackendId(0));
        lame.add(BackendId(0), Join::Warm, now);
        for (policy, errors) in [(&mut gone, 0), (&mut restarted, 0), (&mut lame, 100)] {
            assert_eq!(policy.recent_errors(BackendId(0)), errors);
            assert_eq!(policy.recent_errors(BackendId(1)), 100, "nobody else's");
            let picks = [(); 4].map(|()| send(policy, now));
            assert_eq!(picks.contains(&0), errors == 0, "{picks:?}");
        }
    }

    #[test]
    fn a_fleet_that_is_cold_together_is_not_held_back() {
        let mut policy = LeastLoaded::new(LeastLoadedConfig::default());
        for id in 0..4 {
            policy.add(BackendId(id), Join::Cold, Timestamp::ZERO);
        }
        let order = [(); 8].map(|()| send(&mut policy, Timestamp::ZERO));
        assert_eq!(order, [0, 1, 2, 3, 0, 1, 2, 3]);
    }
}
