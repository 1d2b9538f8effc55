//! What all threads of a client know about its backends: requests under way, recent errors, who
//! serves.
//!
//! Policies that go by load need it as of this moment, from every thread: two threads that each
//! knew only their own requests would both find the same backend idle. So each backend has one word
//! on a cache line of its own, which requests add to when they start and end:
//!
//! ```text
//! word = active requests << 32 | recent errors        load = active + errors
//! ```
//!
//! An error moves one from the left to the right in a single add. It costs a contended add only
//! where two threads meet on one backend at one moment.
//!
//! Nobody on the request path has a clock, so nobody there forgets errors. The controller looks
//! every eighth of the memory, notes how many have come, and takes them away again when they are as
//! old as the memory: an error counts for the memory and up to an eighth more.
//!
//! Who may be picked is in a [`PickGate`]'s table; how far a backend has ramped up, and how often
//! its number has been given to another task, beside its word.
//!
//! **When it is wrong.** A caller that ends what it has not started makes the count negative, which
//! reads as none. One that never ends what it started leaves a backend looking busier than it is.

use super::gate::{PickGate, Shape};
use super::order::Order;
use super::roster::Roster;
use super::slow_start::{STEPS, SlowStart};
use super::{BackendId, PickReason};
use crate::outcome::Outcome;
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::units::{Timestamp, nanos};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::Arc;

const ACTIVE: u64 = 1 << 32;
/// The memory of errors is cut into so many, as with a single owner.
const TICKS: u32 = 8;
/// The step takes the low bits of the state, the number of the task the others.
const STEP_BITS: u32 = 8;

/// One backend, alone on its cache line.
#[derive(Debug)]
#[repr(align(64))]
struct Cell {
    load: AtomicU64,
    state: AtomicU32,
}

/// What a backend is at the moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct State {
    /// How far it has ramped up, 1 to 16; 0 if it takes no requests.
    pub(super) step: u32,
    /// Which of the tasks that have had its number it is.
    pub(super) task: u32,
}

/// The gate: one word for each backend, and a table of those that may be picked.
#[derive(Debug)]
pub(super) struct Loads {
    cells: Box<[Cell]>,
    table: Arc<PickGate>,
    /// What a failure adds to a word: nothing where errors are not remembered, as then nobody would
    /// take it away again.
    error: u64,
}

impl Loads {
    fn cell(&self, id: BackendId) -> Option<&Cell> {
        self.cells.get(id.index())
    }

    #[inline]
    pub(super) fn on_start(&self, id: BackendId) {
        if let Some(cell) = self.cell(id) {
            cell.load.fetch_add(ACTIVE, Ordering::Relaxed);
        }
    }

    #[inline]
    pub(super) fn on_complete(&self, id: BackendId, outcome: Outcome) {
        let error = if outcome.is_failure() == Some(true) { self.error } else { 0 };
        if let Some(cell) = self.cell(id) {
            cell.load.fetch_add(error.wrapping_sub(ACTIVE), Ordering::Relaxed);
        }
    }

    fn word(&self, id: BackendId) -> u64 {
        self.cell(id).map_or(0, |cell| cell.load.load(Ordering::Relaxed))
    }

    pub(super) fn active(&self, id: BackendId) -> u32 {
        active_of(self.word(id))
    }

    pub(super) fn errors(&self, id: BackendId) -> u32 {
        self.word(id) as u32
    }

    /// Active requests and recent errors, as many times more as the backend has to go until it
    /// has ramped up.
    #[inline]
    pub(super) fn level(&self, id: BackendId) -> u64 {
        let word = self.word(id);
        let load = u64::from(active_of(word)) + u64::from(word as u32);
        load * u64::from(STEPS) / u64::from(self.state(id).step.max(1))
    }

    #[inline]
    pub(super) fn state(&self, id: BackendId) -> State {
        let state = self.cell(id).map_or(0, |cell| cell.state.load(Ordering::Relaxed));
        State { step: state & ((1 << STEP_BITS) - 1), task: state >> STEP_BITS }
    }

    /// How many may be picked, and why; then [`Loads::entry`] gives each.
    #[inline]
    pub(super) fn shape(&self) -> Shape {
        self.table.shape()
    }

    #[inline]
    pub(super) fn entry(&self, shape: Shape, entry: u32) -> Option<BackendId> {
        self.table.entry(shape, entry)
    }
}

/// The upper half, as a signed number: an end may have been told without its start.
const fn active_of(word: u64) -> u32 {
    let active = (word >> 32) as u32;
    if active.cast_signed() < 0 { 0 } else { active }
}

/// The controller's side.
#[derive(Debug)]
pub(super) struct LoadBooks {
    loads: Arc<Loads>,
    order: Order,
    /// Whether a cold backend comes in fewer entries of the table.
    by_share: bool,
    weights: Vec<(BackendId, f64)>,
    /// Errors that were noted, by number.
    noted: Vec<u32>,
    /// When they came, so many, oldest first.
    queue: VecDeque<(Timestamp, BackendId, u32)>,
    memory: Duration,
    next_look: Timestamp,
}

impl LoadBooks {
    pub(super) fn new(backends_max: usize, by_share: bool, memory: Duration) -> Self {
        let order = Order::new(backends_max);
        let cell = |_| Cell { load: AtomicU64::new(0), state: AtomicU32::new(0) };
        let cells = (0..backends_max).map(cell).collect();
        let error = u64::from(nanos(memory) > 0);
        let loads = Arc::new(Loads { cells, table: Arc::clone(order.gate()), error });
        Self {
            loads,
            order,
            by_share,
            weights: Vec::new(),
            noted: vec![0; backends_max],
            queue: VecDeque::new(),
            memory,
            next_look: Timestamp::ZERO,
        }
    }

    pub(super) fn loads(&self) -> &Arc<Loads> {
        &self.loads
    }

    /// Another task has the number from now on: no errors, no answers of the one before.
    pub(super) fn replace(&mut self, id: BackendId) {
        let Some(cell) = self.loads.cell(id) else { return };
        // Whole tasks in the high bits: the count wraps without touching the step.
        cell.state.fetch_add(1 << STEP_BITS, Ordering::Relaxed);
        let errors = self.loads.errors(id);
        cell.load.fetch_sub(u64::from(errors), Ordering::Relaxed);
        self.noted[id.index()] = 0;
        self.queue.retain(|&(_, of, _)| of != id);
    }

    /// Tells everyone what the roster says.
    pub(super) fn publish(&mut self, roster: &Roster, slow_start: SlowStart, now: Timestamp) {
        let Self { loads, order, weights, .. } = self;
        for (id, cell) in (0..).map(BackendId).zip(&loads.cells) {
            let serves = roster.serves(id);
            let step = if serves { slow_start.step(roster.cold_since(id), now) } else { 0 };
            let state = cell.state.load(Ordering::Relaxed);
            // Nobody else writes it.
            cell.state.store(state >> STEP_BITS << STEP_BITS | step, Ordering::Relaxed);
        }
        if roster.serving().is_empty() {
            order.in_turn(roster.lame(), PickReason::AllLameDuck);
            return;
        }
        let share = |id| slow_start.step(roster.cold_since(id), now);
        weights.clear();
        weights.extend(roster.serving().iter().map(|&id| (id, f64::from(share(id)))));
        let equal = weights.iter().all(|&(_, weight)| weight == weights[0].1);
        if equal || !self.by_share {
            order.in_turn(roster.serving(), PickReason::LeastLoaded);
        } else {
            order.by_weight(weights, PickReason::LeastLoaded);
        }
    }

    /// When errors have to be looked at.
    pub(super) fn next_look(&self) -> Option<Timestamp> {
        (nanos(self.memory) > 0).then_some(self.next_look)
    }

    /// Notes the errors that have come, and takes away those that are too old.
    pub(super) fn look(&mut self, now: Timestamp) {
        if now < self.next_look {
            return;
        }
        self.next_look = now + self.memory / TICKS;
        for (id, (cell, noted)) in
            (0..).map(BackendId).zip(self.loads.cells.iter().zip(&mut self.noted))
        {
            let errors = cell.load.load(Ordering::Relaxed) as u32;
            let new = errors.wrapping_sub(*noted);
            if new > 0 {
                *noted = errors;
                self.queue.push_back((now, id, new));
            }
        }
        while let Some(&(at, id, count)) = self.queue.front()
            && now.since(at) >= self.memory
        {
            self.queue.pop_front();
            self.noted[id.index()] = self.noted[id.index()].wrapping_sub(count);
            if let Some(cell) = self.loads.cell(id) {
                cell.load.fetch_sub(u64::from(count), Ordering::Relaxed);
            }
        }
    }
}
