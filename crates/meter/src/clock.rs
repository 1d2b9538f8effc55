//! A thread's CPU time for the price of the time-stamp counter.
//!
//! While a thread runs, its CPU time and the counter advance together. So one exact reading of both
//! (the *anchor*) tells the CPU time for as long as the thread has not been switched out since:
//!
//! ```text
//! CPU time now = anchor's CPU time + (ticks - anchor's ticks) x nanos a tick
//! ```
//!
//! and a piece of work that began and ends with the same anchor takes nothing but the difference
//! of its ticks.
//!
//! An anchor is trusted while
//!
//! 1. rseq has not shown a switch since (see `sys::rseq`), and
//! 2. it is not too old, as there are switches that rseq does not show.
//!
//! Otherwise the clock *settles*: it takes a new anchor with a system call, and the reading is the
//! anchor itself. The order of the two readings matters, both ways:
//!
//! - For a reading, first the counter and then the look at rseq. A switch before the look is seen;
//!   a switch after it does not matter to a counter that has been read.
//! - For an anchor, first arm, then read CPU time, then the counter. A switch between the last two
//!   does no harm: no CPU time of ours passes meanwhile, so the pair still belongs together.
//!
//! The counter is read some 100 ns after the kernel has looked at its clock. That is the same for
//! every anchor, so it is in no difference.
//!
//! # Two ages
//!
//! In a scope an anchor may be [`AGE_MAX`] old. That much, at most, is charged wrongly when
//! something unseen (a hypervisor, or a wait inside a system call) takes the thread off its CPU.
//!
//! Between scopes a thread of a runtime waits for work, in a system call. Kernels after 6.18 do not
//! show that through rseq, and without rseq nothing does. Readings would then be ahead of the
//! truth, and the first scope that settles would pay for it: it would have begun in the future and
//! be charged nothing. So where waits are not shown, a scope that follows on no other one begins
//! with an anchor that is at most [`GAP_AGE_MAX`] old.
//!
//! # When it is wrong
//!
//! After something unseen the clock was ahead, and settling sets it back. The piece that ends there
//! is worth that much less, and nothing rather than less than nothing: what was charged is not
//! taken back. A counter that jumps or goes backwards makes an age that is too great: the clock
//! settles.

use std::cell::Cell;

/// The oldest anchor, in nanoseconds. A system call of 200 ns every millisecond is 0.02 % of the
/// CPU; and a millisecond is less than what a scheduler takes a thread off its CPU for, so little
/// of what is unseen fits in.
pub(crate) const AGE_MAX: u64 = 1_000_000;

/// The oldest anchor to begin with where waits are not shown, in nanoseconds. The system call is
/// 0.4 % of it, and a twentieth of a millisecond is about what a worker of a runtime waits before
/// it counts as idle: more than the gaps between polls, less than a wait that is worth sleeping.
pub(crate) const GAP_AGE_MAX: u64 = 50_000;

/// What a clock is made of; a fake in tests.
pub(crate) trait Hardware {
    /// Called once, by the first reading.
    fn set_up(&self) -> Rate;
    /// The counter. Only called if [`Rate::Ticks`] came out of [`set_up`](Self::set_up).
    fn ticks(&self) -> u64;
    /// The exact time, in nanoseconds.
    fn nanos(&self) -> u64;
    /// From now on tell of switches.
    fn arm(&self);
    /// Whether no switch has been seen since.
    fn is_armed(&self) -> bool;
}

/// How the counter relates to time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Rate {
    /// There is no counter: every reading is exact, and a system call.
    None,
    Ticks {
        /// Nanoseconds a tick, times 2^32.
        nanos_x32: u64,
        /// Whether waits in system calls are shown.
        shows_waits: bool,
    },
}

/// The stop-watch of one thread.
#[derive(Debug)]
pub(crate) struct Clock<H> {
    hardware: H,
    /// Where the running piece began: in ticks, or in nanoseconds without a counter.
    since: Cell<u64>,
    anchor_ticks: Cell<u64>,
    anchor_nanos: Cell<u64>,
    nanos_x32: Cell<u64>,
    /// In ticks; zero without a counter and before it is set up.
    age_max: Cell<u64>,
    gap_age_max: Cell<u64>,
    is_set_up: Cell<bool>,
}

impl<H: Hardware> Clock<H> {
    pub(crate) const fn new(hardware: H) -> Self {
        Self {
            hardware,
            since: Cell::new(0),
            anchor_ticks: Cell::new(0),
            anchor_nanos: Cell::new(0),
            nanos_x32: Cell::new(0),
            age_max: Cell::new(0),
            gap_age_max: Cell::new(0),
            is_set_up: Cell::new(false),
        }
    }

    pub(crate) const fn hardware(&self) -> &H {
        &self.hardware
    }

    /// Sets up if that was not done yet.
    pub(crate) fn ready(&self) {
        if !self.is_set_up.get() {
            self.settle_and_begin();
        }
    }

    /// Sets up again, and begins.
    pub(crate) fn reset(&self) {
        self.age_max.set(0);
        self.gap_age_max.set(0);
        self.is_set_up.set(false);
        self.settle_and_begin();
    }

    /// Begins a piece. The thread may have waited since the last one.
    #[inline]
    pub(crate) fn begin(&self) {
        match self.trusted_ticks(self.gap_age_max.get()) {
            Some(ticks) => self.since.set(ticks),
            None => self.settle_and_begin(),
        }
    }

    /// Ends a piece and begins the next one. Returns the CPU time of the one that ended, in
    /// nanoseconds; the part of a nanosecond that is over is dropped.
    #[inline]
    pub(crate) fn lap(&self) -> u64 {
        match self.trusted_ticks(self.age_max.get()) {
            Some(ticks) => self.nanos(ticks.saturating_sub(self.since.replace(ticks))),
            None => self.settle_and_lap(),
        }
    }

    /// The counter, if it says as much about CPU time as the anchor did.
    #[inline]
    fn trusted_ticks(&self, age_max: u64) -> Option<u64> {
        if age_max == 0 {
            return None;
        }
        let ticks = self.hardware.ticks();
        let age = ticks.wrapping_sub(self.anchor_ticks.get());
        (age < age_max && self.hardware.is_armed()).then_some(ticks)
    }

    /// For times that are not longer than an anchor is old: below 2^24 ticks times a factor below
    /// 2^40 (see `set_up`).
    #[inline]
    fn nanos(&self, ticks: u64) -> u64 {
        (ticks * self.nanos_x32.get()) >> 32
    }

    #[cold]
    #[inline(never)]
    fn settle_and_begin(&self) {
        if !self.is_set_up.get() {
            self.set_up();
        }
        self.settle();
    }

    #[cold]
    #[inline(never)]
    fn settle_and_lap(&self) -> u64 {
        let since = self.since.get();
        let began = if self.age_max.get() == 0 {
            since
        } else {
            let after_anchor = since.wrapping_sub(self.anchor_ticks.get());
            self.anchor_nanos.get() + self.nanos(after_anchor.min(self.age_max.get()))
        };
        self.settle().saturating_sub(began)
    }

    /// Takes a new anchor, begins there and returns its time.
    fn settle(&self) -> u64 {
        if self.age_max.get() == 0 {
            let nanos = self.hardware.nanos();
            self.since.set(nanos);
            return nanos;
        }
        self.hardware.arm();
        let nanos = self.hardware.nanos();
        let ticks = self.hardware.ticks();
        self.since.set(ticks);
        self.anchor_ticks.set(ticks);
        self.anchor_nanos.set(nanos);
        nanos
    }

    fn set_up(&self) {
        self.is_set_up.set(true);
        let Rate::Ticks { nanos_x32, shows_waits } = self.hardware.set_up() else { return };
        // 10 GHz to 4 MHz: no counter is outside, and what is inside cannot overflow.
        if !(1 << 28..1 << 40).contains(&nanos_x32) {
            return;
        }
        let ticks = |nanos: u64| (nanos << 32) / nanos_x32;
        self.nanos_x32.set(nanos_x32);
        self.age_max.set(ticks(AGE_MAX));
        self.gap_age_max.set(ticks(if shows_waits { AGE_MAX } else { GAP_AGE_MAX }));
    }
}

#[cfg(test)]
mod tests;
