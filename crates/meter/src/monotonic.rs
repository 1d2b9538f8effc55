//! The system's monotonic clock for half of what a reading of it costs.
//!
//! A call into the vDSO takes 20 to 30 ns, reading the time-stamp counter 10. What the counter
//! lacks is an origin and a rate that is exact for days; it needs neither for a millisecond. So
//! each thread has an anchor, the clock and the counter at one moment, and
//!
//! ```text
//! now = clock at the anchor + ticks since x rate        for a millisecond, then a new anchor
//! ```
//!
//! The rate is right to 0.003 % (see `probe`), so that a reading is off by 30 ns when its anchor is
//! oldest, and by the tens of nanoseconds between the two readings of an anchor. On one thread it
//! never goes back. Two threads may differ by a tenth of a microsecond, as clocks do that are read
//! one after the other.
//!
//! **When it is wrong.** A thread that is taken off its CPU between the readings of an anchor would
//! be wrong by as long for a millisecond. That shows in the counter, which is read on both sides of
//! the clock: then the clock is right and there is no anchor. Where the counter is not trusted
//! there never is one. A counter whose rate changes (a virtual machine that moves) is wrong by that
//! ratio, for a millisecond.

use crate::meter::Meter;
use crate::sys::tsc;
use std::cell::Cell;

/// How old an anchor may be, in nanoseconds: one reading in hundreds is a call, where there are
/// enough for it to matter.
const AGE_MAX: u64 = 1_000_000;

/// The readings of an anchor are no further apart: ten times what they take.
const APART_MAX: u64 = 500;

/// Nanoseconds of the system's clock that never goes back, from whatever it counts from.
#[inline]
pub fn monotonic() -> u64 {
    ANCHOR.with(|anchor| anchor.now(tsc::read, system))
}

/// `Instant` is the same clock, but every difference of two of them is checked and converted: half
/// as much again as the reading.
#[cfg(all(target_os = "linux", not(miri)))]
fn system() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // Seconds since the machine was started fill 64 bits of nanoseconds after 584 years.
    (time.tv_sec as u64).wrapping_mul(1_000_000_000).wrapping_add(time.tv_nsec as u64)
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn system() -> u64 {
    static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    START.get_or_init(std::time::Instant::now).elapsed().as_nanos() as u64
}

thread_local! {
    static ANCHOR: Anchor = const { Anchor::new() };
}

/// The clock and the counter at one moment.
#[derive(Debug)]
struct Anchor {
    ticks: Cell<u64>,
    nanos: Cell<u64>,
    /// In ticks; zero where there is no anchor.
    age_max: Cell<u64>,
    nanos_x32: Cell<u64>,
    /// What was told last.
    last: Cell<u64>,
}

impl Anchor {
    const fn new() -> Self {
        let [ticks, nanos, age_max, nanos_x32, last] = [const { Cell::new(0) }; 5];
        Self { ticks, nanos, age_max, nanos_x32, last }
    }

    #[inline]
    fn now(&self, ticks: impl Fn() -> u64, system: impl Fn() -> u64) -> u64 {
        let age_max = self.age_max.get();
        if age_max > 0 {
            let age = ticks().wrapping_sub(self.ticks.get());
            if age < age_max {
                let now = self.nanos.get() + ((age * self.nanos_x32.get()) >> 32);
                return self.told(now);
            }
        }
        let rate = Meter::probe().nanos_x32;
        self.settle(rate, ticks, system)
    }

    #[inline]
    fn told(&self, now: u64) -> u64 {
        let now = now.max(self.last.get());
        self.last.set(now);
        now
    }

    #[cold]
    #[inline(never)]
    fn settle(
        &self,
        nanos_x32: Option<u64>,
        ticks: impl Fn() -> u64,
        system: impl Fn() -> u64,
    ) -> u64 {
        // 10 GHz to 4 MHz: no counter is outside, and a millisecond of what is inside fits.
        let Some(rate) = nanos_x32.filter(|rate| (1 << 28..1 << 40).contains(rate)) else {
            return self.told(system());
        };
        let (before, nanos, after) = (ticks(), system(), ticks());
        let in_ticks = |nanos: u64| (nanos << 32) / rate;
        let is_close = after.wrapping_sub(before) <= in_ticks(APART_MAX);
        self.ticks.set(after);
        self.nanos.set(nanos);
        self.nanos_x32.set(rate);
        self.age_max.set(if is_close { in_ticks(AGE_MAX) } else { 0 });
        self.told(nanos)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two ticks a nanosecond.
    const RATE: Option<u64> = Some(1 << 31);

    #[test]
    fn it_goes_by_the_counter_for_a_millisecond_and_then_by_the_clock() {
        let (anchor, ticks, clock) = (Anchor::new(), Cell::new(1_000), Cell::new(5_000));
        let calls = Cell::new(0);
        let system = || {
            calls.set(calls.get() + 1);
            clock.get()
        };
        assert_eq!(anchor.settle(RATE, || ticks.get(), system), 5_000);
        for (later, told) in [(0, 5_000), (1, 5_000), (2, 5_001), (1_999_999, 1_004_999)] {
            ticks.set(1_000 + later);
            assert_eq!(anchor.now(|| ticks.get(), system), told, "{later} ticks later");
        }
        assert_eq!(calls.get(), 1);
        // A clock that was set to go slower is followed, but not backwards.
        for (nanos, told) in [(1_004_000, 1_004_999), (1_006_000, 1_006_000)] {
            clock.set(nanos);
            assert_eq!(anchor.settle(RATE, || ticks.get(), system), told);
        }
    }

    #[test]
    fn a_thread_that_is_held_up_within_an_anchor_has_none() {
        let (anchor, ticks) = (Anchor::new(), Cell::new(0_u64));
        // 600 ns from one reading to the next.
        let held_up = || ticks.replace(ticks.get() + 1_200);
        assert_eq!(anchor.settle(RATE, held_up, || 7_000), 7_000);
        assert_eq!(anchor.age_max.get(), 0);
        let brief = || ticks.replace(ticks.get() + 1_000);
        assert_eq!(anchor.settle(RATE, brief, || 8_000), 8_000);
        assert_eq!(anchor.age_max.get(), 2_000_000);
    }

    #[test]
    fn without_a_counter_it_is_the_clock() {
        let (anchor, clock) = (Anchor::new(), Cell::new(3));
        let read = || unreachable!("it cannot be read");
        for rate in [None, Some(0), Some(1 << 27), Some(1 << 40)] {
            clock.set(clock.get() + 1);
            assert_eq!(anchor.settle(rate, read, || clock.get()), clock.get());
        }
    }

    #[test]
    fn it_is_the_system_s_clock() {
        for _ in 0..1_000 {
            let (before, now, after) = (system(), monotonic(), system());
            // A percent of a millisecond is 300 times the rate's error, and 20 times an anchor's.
            assert!(before <= now + 10_000 && now <= after + 10_000, "{before} {now} {after}");
        }
    }

    proptest! {
        #[test]
        fn it_never_goes_back(
            steps in proptest::collection::vec((0_u64..3_000_000, 0_i64..2_000), 1..200),
        ) {
            let (anchor, ticks, skew) = (Anchor::new(), Cell::new(0_u64), Cell::new(0_i64));
            let mut last = anchor.settle(RATE, || ticks.get(), || 0);
            for (passed, off) in steps {
                ticks.set(ticks.get() + passed);
                skew.set(off);
                let system = || (ticks.get() / 2).saturating_add_signed(-skew.get());
                let age = ticks.get().wrapping_sub(anchor.ticks.get());
                let now = if age < anchor.age_max.get() {
                    anchor.now(|| ticks.get(), system)
                } else {
                    anchor.settle(RATE, || ticks.get(), system)
                };
                prop_assert!(now >= last);
                prop_assert!(now.abs_diff(ticks.get() / 2) <= 4_000);
                last = now;
            }
        }
    }
}
