//! How soon a sampler looks again.
//!
//! When a look is due is decided by [`Pace`]; here is what it takes to obey: whoever makes the
//! plans says after each look how long to wait for work, and whoever lets requests in tells when
//! enough of it has come. Telling takes a call of the system, and happens once from look to look,
//! and not at all while the sampler looks as often as it may.

use core::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use core::time::Duration;
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use tidegate_core::Cost;
use tidegate_core::admission::pace::Pace;

/// Between a sampler and those who know when it should look.
#[derive(Debug)]
pub(crate) struct Pacer {
    pace: Pace,
    /// Nanoseconds from the last look to the next, if nobody asks for one before.
    rest: AtomicU64,
    /// What has to come on one thread before it asks for a look, in nanoseconds of cost.
    worth: AtomicU64,
    /// Threads that let work in.
    threads: AtomicU32,
    /// How often it has looked. Wraps.
    looks: AtomicU32,
    asked: AtomicBool,
    sampler: OnceLock<Thread>,
}

impl Pacer {
    pub(crate) fn new(pace: Pace) -> Self {
        Self {
            pace,
            rest: AtomicU64::new(nanos(pace.tick())),
            worth: AtomicU64::new(nanos(pace.worth(1.0, 1))),
            threads: AtomicU32::new(0),
            looks: AtomicU32::new(0),
            asked: AtomicBool::new(false),
            sampler: OnceLock::new(),
        }
    }

    pub(crate) const fn pace(&self) -> &Pace {
        &self.pace
    }

    /// After this look, waits so long.
    pub(crate) fn set_rest(&self, rest: Duration) {
        self.rest.store(nanos(rest), Ordering::SeqCst);
    }

    pub(super) fn rest(&self) -> Duration {
        Duration::from_nanos(self.rest.load(Ordering::SeqCst))
    }

    /// After this look, so much work on one thread is worth another.
    pub(crate) fn set_worth(&self, worth: Cost) {
        self.worth.store(worth.as_nanos(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn worth(&self) -> Cost {
        Cost::from_nanos(self.worth.load(Ordering::Relaxed))
    }

    /// How many threads let work in.
    pub(crate) fn threads(&self) -> u32 {
        self.threads.load(Ordering::Relaxed)
    }

    /// The calling thread is one of them for as long as it has this.
    #[cold]
    pub(crate) fn join(self: &Arc<Self>) -> Paced {
        self.threads.fetch_add(1, Ordering::Relaxed);
        Paced(Arc::clone(self))
    }

    /// The number of the last look: what was counted before it does not matter any more.
    #[inline]
    pub(crate) fn looks(&self) -> u32 {
        self.looks.load(Ordering::Relaxed)
    }

    /// Enough has come since the last look. Says whether that woke the sampler.
    #[cold]
    pub(crate) fn ask(&self) -> bool {
        // Either it sees that it is asked, or here is seen how long it rests.
        if self.asked.swap(true, Ordering::SeqCst) || self.rest() <= self.pace.tick() {
            return false;
        }
        let sampler = self.sampler.get();
        sampler.inspect(|sampler| sampler.unpark()).is_some()
    }

    /// The sampler runs on this thread.
    pub(super) fn begin(&self) {
        // It was empty, or is this very thread's.
        let _ = self.sampler.set(std::thread::current());
    }

    /// It looks now.
    pub(crate) fn looked(&self) {
        self.asked.store(false, Ordering::Release);
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::SeqCst)
    }
}

/// A thread that lets work in.
#[derive(Debug)]
pub(crate) struct Paced(Arc<Pacer>);

impl Drop for Paced {
    fn drop(&mut self) {
        self.0.threads.fetch_sub(1, Ordering::Relaxed);
    }
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    /// To wake it is a call of the system, which is for nothing if it looks as soon as it may.
    #[test]
    fn a_sampler_is_woken_once_and_only_out_of_a_long_rest() {
        let tick = Duration::from_millis(10);
        let pacer = Pacer::new(Pace::new(tick));
        pacer.begin();
        assert_eq!([pacer.ask(), pacer.is_asked()], [false, true]);
        pacer.looked();
        pacer.set_rest(tick * Pace::CALM);
        assert_eq!([pacer.is_asked(), pacer.ask(), pacer.ask()], [false, true, false]);
        pacer.looked();
        pacer.set_rest(tick);
        assert_eq!([pacer.ask(), pacer.is_asked()], [false, true]);
    }
}
