//! One look at all signals.
//!
//! Fast ones (the executor, what a service counts itself) are read at every tick, slow ones when
//! their period is over. A signal that is not known keeps its last value until that is too old
//! ([`tidegate_core::signal::Signals::STALE_AFTER`]) and then is left out. One that panics is not
//! asked again: its thread is everybody's.

use super::linux::Reader;
use super::{Role, Signal};
use crate::executor::{Load, Watch};
use core::time::Duration;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tidegate_core::Timestamp;
use tidegate_core::admission::Seen;
use tidegate_core::average::Average;
use tidegate_core::decision::SignalId;
use tidegate_core::signal::{LoadAverage, Signals};

/// Quotas are changed by people and by autoscalers, both slower than this.
const CPUS_PERIOD: Duration = Duration::from_secs(10);

/// What was seen at a tick.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Tick {
    /// For the admission controller.
    pub seen: Seen,
    /// How many CPUs the task may use.
    pub cpus: f64,
    /// From wake to poll, where an executor is watched.
    pub delay: Option<Duration>,
    /// When.
    pub now: Timestamp,
}

/// How a signal is doing.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Health {
    /// What it is called.
    pub name: String,
    /// Its number in readings and rejections.
    pub id: SignalId,
    /// What it should not exceed.
    pub target: f64,
    /// Whether it may declare overload by itself.
    pub role: Role,
    /// Where it stood when it was last known, in its own unit, and when that was.
    pub last: Option<(f64, Timestamp)>,
    /// How often it was known.
    pub known: u64,
    /// How often it was not.
    pub unknown: u64,
    /// Why it was not known the last time.
    pub trouble: Option<String>,
    /// Whether it has panicked, and is not asked any more.
    pub dead: bool,
}

/// What others can see of a sampler.
#[derive(Debug, Clone, Default)]
pub(super) struct Board(Arc<Mutex<Vec<Health>>>);

impl Board {
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<Health>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A source of a signal.
pub(super) struct Source {
    /// Nothing once it has panicked.
    pub(super) signal: Option<Box<dyn Signal>>,
    pub(super) id: SignalId,
    pub(super) period: Duration,
    pub(super) due: Timestamp,
}

/// Where the number of CPUs comes from.
pub(super) enum CpuCount {
    Fixed,
    Read { reader: Box<Reader>, due: Timestamp },
}

/// What is made of the executors' loads.
pub(super) struct Executors {
    pub(super) watches: Vec<Watch>,
    /// Of the number of tasks; divided by the CPUs of the moment.
    pub(super) average: LoadAverage,
    pub(super) delay: Average,
    pub(super) load_id: SignalId,
    pub(super) delay_id: SignalId,
}

/// Reads all signals of a task. A [`Sampler`](super::Sampler) runs it; in tests, call
/// [`Sampling::tick`] yourself.
pub struct Sampling {
    pub(super) signals: Signals,
    pub(super) sources: Vec<Source>,
    pub(super) executors: Option<Executors>,
    pub(super) cpus: f64,
    pub(super) count: CpuCount,
    pub(super) board: Board,
}

impl core::fmt::Debug for Sampling {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Sampling").field("signals", &self.signals).finish_non_exhaustive()
    }
}

impl Sampling {
    /// How the signals are doing, in the order of their numbers.
    pub fn health(&self) -> Vec<Health> {
        self.board.lock().clone()
    }

    /// Reads what is due.
    pub fn tick(&mut self, now: Timestamp) -> Tick {
        self.count_cpus(now);
        for index in 0..self.sources.len() {
            self.sample(index, now);
        }
        let load = self.load(now);
        let mut seen =
            Seen::new(self.signals.reading(now)).beyond_cpu(self.signals.beyond_cpu(now));
        if let Some(load) = load {
            seen = seen.load(load.active as f64 / self.cpus);
            if let Some(least) = load.least {
                seen = seen.load_least(least as f64 / self.cpus);
            }
        }
        Tick { seen, cpus: self.cpus, delay: load.and_then(|load| load.delay), now }
    }

    fn count_cpus(&mut self, now: Timestamp) {
        let CpuCount::Read { reader, due } = &mut self.count else { return };
        if now < *due {
            return;
        }
        *due = now + CPUS_PERIOD;
        // What is not known stays as it was.
        if let Ok(cpus) = reader.cpus().and_then(super::linux::Cpus::certain) {
            self.cpus = cpus;
        }
    }

    fn sample(&mut self, index: usize, now: Timestamp) {
        let source = &mut self.sources[index];
        let Some(signal) = source.signal.as_mut().filter(|_| now >= source.due) else { return };
        source.due = now + source.period;
        let asked = catch_unwind(AssertUnwindSafe(|| {
            let value = signal.sample(now).map(|value| (value, signal.instant().unwrap_or(value)));
            let trouble = if value.is_none() { signal.trouble() } else { None };
            (value.map(|(value, instant)| (value.get(), instant.get())), trouble)
        }));
        let id = source.id;
        if let Ok((value, trouble)) = asked {
            self.record(id, value, trouble, now);
        } else {
            // Its destructor may panic as well.
            let broken = source.signal.take();
            let _ = catch_unwind(AssertUnwindSafe(move || drop(broken)));
            self.record(id, None, Some("it panicked".to_owned()), now);
            if let Some(health) = self.board.lock().get_mut(usize::from(id.0)) {
                health.dead = true;
            }
        }
    }

    /// The loads of all executors together.
    fn load(&mut self, now: Timestamp) -> Option<Load> {
        let executors = self.executors.as_mut()?;
        let loads: Vec<Load> = executors.watches.iter_mut().map(|w| w.read(now)).collect();
        let load = together(&loads)?;
        let smoothed = executors.average.record(load.active, now) / self.cpus;
        let delay = load.delay.map(|delay| {
            let instant = delay.as_secs_f64();
            executors.delay.record(instant, now);
            (executors.delay.get().unwrap_or(instant), instant)
        });
        let (load_id, delay_id) = (executors.load_id, executors.delay_id);
        self.record(load_id, Some((smoothed, load.active as f64 / self.cpus)), None, now);
        // A tick in which no wait was timed says nothing, and is no trouble.
        if delay.is_some() {
            self.record(delay_id, delay, None, now);
        }
        Some(load)
    }

    fn record(
        &mut self,
        id: SignalId,
        value: Option<(f64, f64)>,
        trouble: Option<String>,
        now: Timestamp,
    ) {
        let taken = value.filter(|&(smoothed, instant)| {
            self.signals.record_smoothed(id, smoothed, instant, now)
        });
        if let Some(health) = self.board.lock().get_mut(usize::from(id.0)) {
            if let Some((smoothed, _)) = taken {
                health.known += 1;
                health.last = Some((smoothed, now));
                health.trouble = None;
            } else {
                health.unknown += 1;
                health.trouble = trouble;
            }
        }
    }
}

/// Of executors that have their own CPUs each. One whose CPU idles has idled, however long the
/// queue of another is: so the least of all is that of the emptiest, times their number, which is
/// no more than the sum.
fn together(loads: &[Load]) -> Option<Load> {
    let (first, rest) = loads.split_first()?;
    let mut all = *first;
    for load in rest {
        all.active = all.active.saturating_add(load.active);
        all.least = all.least.zip(load.least).map(|(a, b)| a.min(b));
        all.delay = all.delay.max(load.delay);
    }
    all.least = all.least.map(|least| least.saturating_mul(loads.len() as u64));
    Some(all)
}
