//! Where the work is done, if that is another program.
//!
//! A task decides by what it sees of the work: how much is in flight, how much CPU it uses, whether
//! it waits. In a service all this is in the process itself. A proxy lets requests in for a program
//! that it cannot see into; [`Workplace`] is what can be seen from outside: the CPU that the
//! program's process or control group has used, and how many CPUs there are for it.
//!
//! From that and what is in flight the task works out whether work waits
//! ([`outside`](tidegate_core::admission::outside)) and what a request of each customer and method
//! costs ([`attribution`](tidegate_core::attribution)). A program that answers with ORCA reports
//! says both itself, and is believed.
//!
//! Where nothing is known (a program on another machine, or of another user), what is in flight and
//! how long it takes have to do.

use crate::signals::linux::Reader;
use core::sync::atomic::{AtomicU64, Ordering};
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_core::attribution::{CLASSES, Classes};
use tidegate_core::counters::Counters;
use tidegate_wire::orca::OrcaLoadReport;

/// What can be seen of a program. Asked once a tick, by the thread that looks at the signals: it
/// must not wait for anything.
pub trait Workplace: Send {
    /// CPU time that it has used so far; nothing if that is not known. One that falls is another
    /// program's.
    fn cpu_time(&mut self) -> Option<Duration>;

    /// For how long it could have run so far and somebody else did, all its threads together; zero
    /// if nobody knows.
    fn waited(&mut self) -> Duration {
        Duration::ZERO
    }

    /// How many CPUs it may use, if that is known.
    fn cpus(&mut self) -> Option<f64>;
}

impl<W: Workplace + ?Sized> Workplace for Box<W> {
    fn cpu_time(&mut self) -> Option<Duration> {
        (**self).cpu_time()
    }

    fn waited(&mut self) -> Duration {
        (**self).waited()
    }

    fn cpus(&mut self) -> Option<f64> {
        (**self).cpus()
    }
}

/// A program of which nothing is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Unseen;

impl Workplace for Unseen {
    fn cpu_time(&mut self) -> Option<Duration> {
        None
    }

    fn cpus(&mut self) -> Option<f64> {
        None
    }
}

/// A process or control group of this machine.
impl Workplace for Reader {
    fn cpu_time(&mut self) -> Option<Duration> {
        Self::cpu_time(self).ok()
    }

    fn waited(&mut self) -> Duration {
        self.run_delay().unwrap_or_default()
    }

    fn cpus(&mut self) -> Option<f64> {
        Self::cpus(self).ok().map(|cpus| cpus.cpus)
    }
}

/// Cells that threads count into.
pub(crate) mod cells {
    use super::CLASSES;

    /// Came in, by class.
    pub(crate) const CAME: usize = 0;
    /// Done, by class.
    pub(crate) const DONE: usize = CLASSES;
    /// Done, and said what it has cost.
    pub(crate) const SAID: usize = 2 * CLASSES;
    /// What they said, in nanoseconds.
    pub(crate) const SAID_COST: usize = 3 * CLASSES;
    pub(crate) const COUNT: usize = SAID_COST + 1;
}

/// What a task with a workplace keeps of it.
#[derive(Debug)]
pub(crate) struct Remote {
    pub(crate) classes: Arc<Classes>,
    pub(crate) counting: Arc<Counters>,
    /// The program's own word on its utilization, in thousandths, and when it gave it.
    said: [AtomicU64; 2],
}

impl Remote {
    pub(crate) fn new() -> Self {
        Self {
            classes: Classes::new(),
            counting: Counters::new(cells::COUNT),
            said: [AtomicU64::new(0), AtomicU64::new(0)],
        }
    }

    /// The program says how full it is.
    pub(crate) fn says(&self, report: &OrcaLoadReport, now: Timestamp) {
        let own = report.application_utilization;
        if own > 0.0 {
            self.said[0].store((own * 1e3) as u64, Ordering::Relaxed);
            self.said[1].store(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// How full it has said to be since `since`.
    pub(crate) fn said_since(&self, since: Timestamp) -> Option<f64> {
        let at = self.said[1].load(Ordering::Relaxed);
        (at > since.as_nanos()).then(|| self.said[0].load(Ordering::Relaxed) as f64 / 1e3)
    }
}
