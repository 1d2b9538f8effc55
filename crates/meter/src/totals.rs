//! How much CPU time was charged to anybody, and how much to nobody.
//!
//! ```text
//! unattributed = 1 - charged / CPU time of the process        both since the last look
//! ```
//!
//! Each thread adds to a counter of its own, which only it writes: a plain load and store. Whoever
//! wants the sum walks over them. A thread that ends leaves its counter, with what is in it, to the
//! next thread that starts: there are as many counters as there ever were threads at one time, and
//! the sum forgets nothing.

use crate::sys::cpu;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A thread's counter, on cache lines of its own. Two, as processors fetch them in pairs.
#[derive(Debug)]
#[repr(align(128))]
struct Counter(AtomicU64);

struct Counters {
    all: Vec<&'static Counter>,
    free: Vec<&'static Counter>,
}

static COUNTERS: Mutex<Counters> = Mutex::new(Counters { all: Vec::new(), free: Vec::new() });

/// For threads that run destructors at a request's cost after they have given their counter away.
/// It is added to like the others, so when two such threads meet, one of the two adds may be lost.
static LATE: Counter = Counter(AtomicU64::new(0));

fn counters() -> std::sync::MutexGuard<'static, Counters> {
    // Nothing in here panics half-way.
    COUNTERS.lock().unwrap_or_else(PoisonError::into_inner)
}

fn take() -> &'static Counter {
    let mut counters = counters();
    if let Some(counter) = counters.free.pop() {
        return counter;
    }
    let counter: &Counter = Box::leak(Box::new(Counter(AtomicU64::new(0))));
    counters.all.push(counter);
    counter
}

/// Gives the counter back when its thread ends.
struct Lease(&'static Counter);

impl Drop for Lease {
    fn drop(&mut self) {
        MINE.set(&LATE);
        counters().free.push(self.0);
    }
}

thread_local! {
    /// Without a destructor, so that reaching it is one instruction.
    static MINE: Cell<&'static Counter> = const { Cell::new(&LATE) };
    static LEASE: Lease = Lease(take());
}

/// Gives this thread a counter. To be called before it charges anything.
pub(crate) fn join() {
    // A thread that is ending has had one.
    let _ = LEASE.try_with(|lease| MINE.set(lease.0));
}

/// This thread has charged so much more.
#[inline]
pub(crate) fn add(nanos: u64) {
    let Counter(mine) = MINE.get();
    mine.store(mine.load(Ordering::Relaxed).wrapping_add(nanos), Ordering::Relaxed);
}

/// CPU time up to a moment: of the process, and of what was charged to accounts.
///
/// ```
/// use tidegate_meter::Totals;
///
/// let before = Totals::now();
/// // Some time later:
/// let share = Totals::now().unattributed_since(&before);
/// assert!(share.is_none_or(|share| (0.0..=1.0).contains(&share)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Charged to accounts, by all threads since the process began. Polls that are running come in
    /// when they end.
    pub attributed: Duration,
    /// CPU time of the whole process, if the system counts it.
    pub process: Option<Duration>,
}

impl Totals {
    /// The totals up to now. Takes a microsecond or so: one system call, one load a thread.
    pub fn now() -> Self {
        // In this order, as the first is a part of the second.
        let late = LATE.0.load(Ordering::Relaxed);
        let nanos = counters()
            .all
            .iter()
            .fold(late, |sum, counter| sum.wrapping_add(counter.0.load(Ordering::Relaxed)));
        Self { attributed: Duration::from_nanos(nanos), process: cpu::process() }
    }

    /// The share, 0 to 1, of the CPU time since `earlier` that was charged to nobody. None if there
    /// was no CPU time, or nobody counts it.
    ///
    /// Polls that began before `earlier` are counted when they end: over less than a second or so,
    /// long polls make it rough.
    pub fn unattributed_since(&self, earlier: &Self) -> Option<f64> {
        let process = self.process?.checked_sub(earlier.process?)?;
        let attributed = self.attributed.saturating_sub(earlier.attributed);
        let share = attributed.as_nanos() as f64 / process.as_nanos() as f64;
        (!process.is_zero()).then(|| (1.0 - share).clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn totals(attributed: u64, process: Option<u64>) -> Totals {
        Totals {
            attributed: Duration::from_millis(attributed),
            process: process.map(Duration::from_millis),
        }
    }

    #[test]
    fn the_share_is_of_what_passed_between() {
        let before = totals(100, Some(200));
        for (after, share) in [
            (totals(175, Some(300)), Some(0.25)),
            (totals(100, Some(300)), Some(1.0)),
            // More than there was: polls that had begun before.
            (totals(250, Some(300)), Some(0.0)),
            (totals(100, Some(200)), None),
            (totals(100, Some(100)), None),
            (totals(175, None), None),
        ] {
            assert_eq!(after.unattributed_since(&before), share, "{after:?}");
        }
    }

    /// Other tests charge meanwhile, so the sum is at least what is added here.
    #[test]
    fn what_threads_leave_behind_stays_in_the_sum() {
        let before = Totals::now().attributed;
        for _ in 0..100 {
            let charge = || {
                join();
                add(1_000_000_000);
            };
            std::thread::spawn(charge).join().unwrap();
        }
        let passed = Totals::now().attributed.saturating_sub(before);
        assert!(passed >= Duration::from_secs(100), "{passed:?}");
    }

    #[test]
    fn counters_are_used_again() {
        for _ in 0..300 {
            std::thread::spawn(join).join().unwrap();
        }
        // One at a time: each finds the counter of the one before, or of another test's.
        assert!(counters().all.len() < 100, "{}", counters().all.len());
    }

    #[test]
    fn a_thread_that_is_ending_still_counts() {
        struct Last;
        impl Drop for Last {
            fn drop(&mut self) {
                add(7_000_000_000);
            }
        }
        thread_local! {
            static LAST: Last = const { Last };
        }
        let before = Totals::now().attributed;
        // Set up first and so destroyed last, after the lease.
        let end = || {
            LAST.with(|_| {});
            join();
        };
        std::thread::spawn(end).join().unwrap();
        let passed = Totals::now().attributed.saturating_sub(before);
        assert!(passed >= Duration::from_secs(7), "{passed:?}");
    }
}
