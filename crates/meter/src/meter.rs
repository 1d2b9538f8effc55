//! Which clock a thread meters with.

use crate::clock::{Clock, Hardware, Rate};
use crate::ledger::{Host, Ledger};
use crate::probe::Probe;
use crate::sys::{cpu, rseq::Watch, tsc};
use crate::totals;
use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// Ways to measure CPU time, from the last resort to the best. Each needs what the one before it
/// needs, and more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum Kind {
    /// Time that passes, whoever runs. For systems without a clock of a thread's CPU time, and to
    /// compare with.
    Wall,
    /// The thread's CPU clock, at both ends of each poll: exact, 420 ns.
    ThreadClock,
    /// The time-stamp counter, settled with the thread's CPU clock every millisecond. Wrong by what
    /// others take in that millisecond: for single requests by half of what they cost, beside
    /// threads that wake up often.
    Anchor,
    /// The same, and settled whenever rseq shows that the thread was switched out.
    Rseq,
}

impl Kind {
    /// From the last resort to the best.
    pub const ALL: [Self; 4] = [Self::Wall, Self::ThreadClock, Self::Anchor, Self::Rseq];

    fn from_number(number: u8) -> Self {
        Self::ALL.into_iter().find(|kind| *kind as u8 == number).unwrap_or(Self::Wall)
    }

    /// In one word, for metrics and logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wall => "wall",
            Self::ThreadClock => "thread_clock",
            Self::Anchor => "anchor",
            Self::Rseq => "rseq",
        }
    }
}

/// What threads meter with. Nothing needs to be set up; but the first question of a process takes
/// some milliseconds (see [`Probe`]), and [`Meter::probe`] at start has them over with.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub struct Meter;

impl Meter {
    /// What the calling thread meters with.
    pub fn kind() -> Kind {
        LEDGER.with(|ledger| {
            let clock = &ledger.host().0;
            clock.ready();
            clock.hardware().kind.get()
        })
    }

    /// What was found out about this machine.
    #[inline]
    pub fn probe() -> &'static Probe {
        static FOUND: OnceLock<Probe> = OnceLock::new();
        FOUND.get_or_init(Probe::of_this_machine)
    }

    /// The time-stamp counter as it is, where it is trusted. It counts at
    /// [`Probe::tsc_hertz`], whoever runs.
    #[inline]
    pub fn ticks() -> Option<u64> {
        Self::probe().nanos_x32.map(|_| tsc::read())
    }

    /// At most `kind` for threads that have not metered yet, for comparisons and in case of doubt.
    /// Nothing better than the machine has.
    pub fn limit_to(kind: Kind) {
        LIMIT.store(kind as u8, Ordering::Relaxed);
    }

    /// At most `kind` for the calling thread, from here on. Returns what it got. In a scope, what
    /// ran of it up to here is charged first.
    pub fn limit_here(kind: Kind) -> Kind {
        LEDGER.with(|ledger| {
            ledger.cut();
            let clock = &ledger.host().0;
            clock.hardware().limit.set(Some(kind));
            clock.reset();
        });
        Self::kind()
    }
}

static LIMIT: AtomicU8 = AtomicU8::new(Kind::Rseq as u8);

thread_local! {
    /// Without a destructor, so that reaching it is one instruction and works until the very end.
    pub(crate) static LEDGER: Ledger<Thread> =
        const { Ledger::new(Thread(Clock::new(Machine::new()))) };
}

/// The calling thread, as the host of its ledger.
#[derive(Debug)]
pub(crate) struct Thread(Clock<Machine>);

impl Host for Thread {
    #[inline]
    fn begin(&self) {
        self.0.begin();
    }

    #[inline]
    fn lap(&self) -> u64 {
        self.0.lap()
    }

    #[inline]
    fn charged(&self, nanos: u64) {
        totals::add(nanos);
    }
}

/// The real thing, as one thread sees it.
#[derive(Debug)]
struct Machine {
    limit: Cell<Option<Kind>>,
    kind: Cell<Kind>,
    watch: Cell<Watch>,
}

impl Machine {
    const fn new() -> Self {
        Self { limit: Cell::new(None), kind: Cell::new(Kind::Wall), watch: Cell::new(Watch::BLIND) }
    }
}

impl Hardware for Machine {
    fn set_up(&self) -> Rate {
        totals::join();
        let probe = Meter::probe();
        let limit = self.limit.get();
        let limit = limit.unwrap_or_else(|| Kind::from_number(LIMIT.load(Ordering::Relaxed)));
        let watch = if limit >= Kind::Rseq && probe.best() >= Kind::Rseq {
            // A thread that the C library does not know may have none.
            Watch::here()
        } else {
            None
        };
        let most = if watch.is_some() { Kind::Rseq } else { Kind::Anchor };
        self.watch.set(watch.unwrap_or(Watch::BLIND));
        self.kind.set(limit.min(probe.best()).min(most));
        let shows_waits = match self.kind.get() {
            Kind::ThreadClock => return Rate::None,
            Kind::Wall => true,
            Kind::Anchor => false,
            Kind::Rseq => probe.rseq_shows_waits,
        };
        probe.nanos_x32.map_or(Rate::None, |nanos_x32| Rate::Ticks { nanos_x32, shows_waits })
    }

    #[inline]
    fn ticks(&self) -> u64 {
        tsc::read()
    }

    #[inline]
    fn nanos(&self) -> u64 {
        match self.kind.get() {
            Kind::Wall => wall(),
            _ => cpu::thread().unwrap_or_else(wall),
        }
    }

    fn arm(&self) {
        self.watch.get().arm();
    }

    #[inline]
    fn is_armed(&self) -> bool {
        self.watch.get().is_armed()
    }
}

fn wall() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

#[cfg(test)]
mod tests;
