//! How long tasks wait between being woken and being polled.
//!
//! Timing every task would take two clock reads a poll, so one wake in some is timed, by chance
//! rather than by turn, as turns may fall in step with what the program does. A timed wake is a
//! **probe**: it takes one of a few slots, which says when it was woken, and gives it back when it
//! is polled. If all slots are taken the wake is not timed.
//!
//! Whoever counts only the waits that are over is blind in overload, when they end late or never.
//! So the slots are looked at as well:
//!
//! ```text
//! delay = max(mean of the waits that ended since the last look, age of the oldest probe)
//! ```
//!
//! A probe that others have overtaken (a later wake was already served) counts only in company: its
//! owner may hold the future without polling it, which says nothing about the executor. Where
//! [`OVERTAKEN_MIN`] have been overtaken the executor is unfair, and the age of the youngest of
//! those counts. One that stays overtaken for [`LOST_AFTER`] is given up, so that slots do not run
//! out.

use super::thread;
use crate::clock::Clock;
use crate::sync::{AtomicU64, Ordering};
use core::time::Duration;
use tidegate_core::Timestamp;

/// Enough to see a queue from several places, few enough to look at all of them every tick.
const SLOTS: usize = 16;

/// A word that stands for a probe: when it was woken, in steps of 128 ns, then the slot (4 bits)
/// and the state of its task (3 bits, see `state`), which is never zero.
const TIME: u64 = !0x7f;
const SLOT_SHIFT: u32 = 3;

/// So many futures will not be forgotten at once.
const OVERTAKEN_MIN: usize = 4;

/// Longer than callers wait.
const LOST_AFTER: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub(super) struct Probes {
    clock: Clock,
    /// A wake is timed if none of these bits of the dice is set.
    mask: u32,
    slots: [AtomicU64; SLOTS],
    /// Nanoseconds that probes have waited, and how many they were. Both wrap.
    waited: AtomicU64,
    ended: AtomicU64,
    /// When the latest was woken among those that were polled.
    served: AtomicU64,
    lost: AtomicU64,
}

impl Probes {
    /// Times one wake in `one_in`, rounded up to a power of two.
    pub(super) fn new(clock: Clock, one_in: u32) -> Self {
        let mask = one_in.clamp(1, 1 << 30).next_power_of_two() - 1;
        Self {
            clock,
            mask,
            slots: core::array::from_fn(|_| AtomicU64::new(0)),
            waited: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            served: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// A task becomes ready. Returns its state with the probe, if this wake is timed; `timed` is
    /// the state that says so.
    #[inline]
    pub(super) fn begin(&self, timed: u64) -> Option<u64> {
        let dice = thread::dice();
        if dice & self.mask == 0 { self.claim(timed, dice >> 24) } else { None }
    }

    #[cold]
    fn claim(&self, timed: u64, place: u32) -> Option<u64> {
        let slot = place as usize % SLOTS;
        // Looked at first: in overload all are taken, and reading is cheaper than trying.
        if self.slots[slot].load(Ordering::Relaxed) != 0 {
            return None;
        }
        let now = self.clock.now().as_nanos();
        let word = now & TIME | (slot as u64) << SLOT_SHIFT | timed;
        let taken =
            self.slots[slot].compare_exchange(0, word, Ordering::Relaxed, Ordering::Relaxed);
        taken.is_ok().then_some(word)
    }

    /// The task is polled.
    #[cold]
    pub(super) fn end(&self, word: u64) {
        self.cancel(word);
        let waited = self.clock.now().since(woken(word)).as_nanos() as u64;
        self.waited.fetch_add(waited, Ordering::Relaxed);
        self.ended.fetch_add(1, Ordering::Relaxed);
        self.served.fetch_max(word & TIME, Ordering::Relaxed);
    }

    /// The task is gone, or was not ready after all.
    #[cold]
    pub(super) fn cancel(&self, word: u64) {
        let slot = (word >> SLOT_SHIFT) as usize % SLOTS;
        // Fails if the probe was given up meanwhile, and the slot is another's.
        let _ = self.slots[slot].compare_exchange(word, 0, Ordering::Relaxed, Ordering::Relaxed);
    }

    pub(super) fn ended(&self) -> Ended {
        let [waited, ended] = [&self.waited, &self.ended].map(|cell| cell.load(Ordering::Relaxed));
        Ended { waited, count: ended }
    }

    /// Probes that were given up.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// How long those have been waiting that still do; nothing if nobody does, or nobody that says
    /// anything about the executor.
    pub(super) fn outstanding(&self, now: Timestamp) -> Option<Duration> {
        let served = Timestamp::from_nanos(self.served.load(Ordering::Relaxed));
        let mut oldest: Option<Duration> = None;
        let mut overtaken = [Duration::ZERO; SLOTS];
        let mut count = 0;
        for slot in &self.slots {
            let word = slot.load(Ordering::Relaxed);
            if word == 0 {
                continue;
            }
            let age = now.since(woken(word));
            if woken(word) >= served {
                oldest = oldest.max(Some(age));
            } else if age >= LOST_AFTER {
                self.cancel(word);
                self.lost.fetch_add(1, Ordering::Relaxed);
            } else {
                overtaken[count] = age;
                count += 1;
            }
        }
        let overtaken = &mut overtaken[..count];
        overtaken.sort_unstable_by(|a, b| b.cmp(a));
        oldest.max(overtaken.get(OVERTAKEN_MIN - 1).copied())
    }
}

/// What probes that are over have waited, since the beginning. Wraps; work with differences.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Ended {
    waited: u64,
    count: u64,
}

impl Ended {
    /// The mean wait of those that ended since `earlier`. The two counts are not read at the same
    /// instant, which moves the mean by no more than the share of one probe.
    pub(super) fn mean_since(self, earlier: Self) -> Option<Duration> {
        let waited = self.waited.wrapping_sub(earlier.waited);
        waited.checked_div(self.count.wrapping_sub(earlier.count)).map(Duration::from_nanos)
    }
}

fn woken(word: u64) -> Timestamp {
    Timestamp::from_nanos(word & TIME)
}
