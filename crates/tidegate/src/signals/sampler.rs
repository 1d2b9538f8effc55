//! A thread that looks at the signals as often as it matters.
//!
//! It is a thread of the system and not a task: in overload, a task that should notice the overload
//! would wait in the very queue that it is to measure. It sleeps nearly all the time, which makes
//! the kernel let it run soon when it wakes.
//!
//! ```text
//! every look:    executor load and delay, signals of the service   -> Seen -> the controller
//! every 100 ms:  CPU time, run delay, pressure, throttling
//! every 1 s:     memory                                        every 10 s: how many CPUs there are
//! ```
//!
//! Looks are a tick (10 ms) apart. That of a task is paced: while little work comes and nothing is
//! near its target it looks every 50 ms, or once a quarter of what its CPUs do in a tick has come
//! (see [`tidegate_core::admission::pace`]), but as often as the signals of the service ask for.

use super::linux::{self, Reader};
use super::pacer::Pacer;
use super::sampling::{Board, CpuCount, Executors, Health, Sampling, Source, Tick};
use super::{Combine, Role, Signal};
use crate::clock::Clock;
use crate::executor::{Executor, Watch};
use core::time::Duration;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Instant;
use tidegate_core::average::Average;
use tidegate_core::decision::SignalId;
use tidegate_core::signal::{LoadAverage, Signals};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Timestamp, Utilization, signal};

/// Why a sampler cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A signal's target or weight, or a number of CPUs, makes no sense.
    #[error("{0}")]
    Number(#[from] InvalidNumber),
    /// There are too many signals.
    #[error("there are more than {} signals: leave `{name}` out", Signals::COUNT_MAX)]
    TooMany {
        /// The first that does not fit.
        name: String,
    },
    /// The ticks are too close together.
    #[error("a tick of {found:?} leaves no time between two: it has to be 1 ms or more")]
    Tick {
        /// What was asked for.
        found: Duration,
    },
    /// The system does not give us a thread.
    #[error("the sampler's thread cannot be started: {0}")]
    Thread(#[from] io::Error),
}

/// Sets up what to look at, and starts it.
#[must_use = "nothing is sampled before `start`"]
pub struct Sampler {
    clock: Clock,
    tick: Duration,
    combine: Combine,
    confirm_from: Utilization,
    cpus: Option<f64>,
    load_target: f64,
    delay_target: Duration,
    watches: Vec<Watch>,
    signals: Vec<Box<dyn Signal>>,
    pacer: Option<Arc<Pacer>>,
}

impl core::fmt::Debug for Sampler {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let names: Vec<&str> = self.signals.iter().map(Signal::name).collect();
        f.debug_struct("Sampler")
            .field("tick", &self.tick)
            .field("signals", &names)
            .finish_non_exhaustive()
    }
}

impl Sampler {
    /// A surge of ten times brings a tenth of a second of work between two looks; with fewer looks
    /// the queue is longer before anything is done about it, with more the looks cost.
    pub const TICK: Duration = Duration::from_millis(10);

    /// Shorter ticks than this are mostly overhead.
    const TICK_MIN: Duration = Duration::from_millis(1);

    /// Running or ready per CPU. Calm traffic at 0.8 of the capacity reads 3, and 16 is a queue
    /// that a request of a millisecond waits 16 ms in.
    pub const LOAD_TARGET: f64 = 16.0;

    /// Calm traffic at 0.8 of the capacity waits less than a millisecond; ten requests of 5 ms
    /// ahead are no calm any more.
    pub const DELAY_TARGET: Duration = Duration::from_millis(50);

    /// Looks at nothing yet.
    pub fn new(clock: Clock) -> Self {
        Self {
            clock,
            tick: Self::TICK,
            combine: Combine::default(),
            confirm_from: Utilization::new(Signals::CONFIRM_FROM).unwrap_or(Utilization::FULL),
            cpus: None,
            load_target: Self::LOAD_TARGET,
            delay_target: Self::DELAY_TARGET,
            watches: Vec::new(),
            signals: Vec::new(),
            pacer: None,
        }
    }

    /// Looks when `pacer` says, no more often than every tick.
    pub(crate) fn paced(mut self, pacer: Arc<Pacer>) -> Self {
        self.pacer = Some(pacer);
        self
    }

    /// How often to look; [`Sampler::TICK`] if not said.
    pub const fn tick(mut self, tick: Duration) -> Self {
        self.tick = tick;
        self
    }

    /// Counts the tasks of `executor`: signals `executor_load`, per CPU, and `wake_delay`, in
    /// seconds. Of several executors (one to a core) loads are added up, and the longest delay
    /// counts.
    pub fn executor(self, executor: &Executor) -> Self {
        self.watch(executor.watch())
    }

    /// As [`Sampler::executor`], with a watch that knows its runtime.
    pub fn watch(mut self, watch: Watch) -> Self {
        self.watches.push(watch);
        self
    }

    /// What `executor_load` should not exceed; [`Sampler::LOAD_TARGET`] if not said.
    pub const fn load_target(mut self, per_cpu: f64) -> Self {
        self.load_target = per_cpu;
        self
    }

    /// What `wake_delay` should not exceed; [`Sampler::DELAY_TARGET`] if not said.
    pub const fn delay_target(mut self, delay: Duration) -> Self {
        self.delay_target = delay;
        self
    }

    /// Looks at `signal`.
    pub fn signal(mut self, signal: impl Signal + 'static) -> Self {
        self.signals.push(Box::new(signal));
        self
    }

    /// Looks at all that the system knows about this process.
    pub fn system(mut self) -> Self {
        self.signals.extend(linux::all(&Reader::default()));
        self
    }

    /// How many CPUs the task may use. If not said the system is asked, now and then.
    pub const fn cpus(mut self, cpus: f64) -> Self {
        self.cpus = Some(cpus);
        self
    }

    /// How signals become one; the highest decides if not said.
    pub const fn combine(mut self, combine: Combine) -> Self {
        self.combine = combine;
        self
    }

    /// From which level of a leading signal on confirming ones count; see
    /// [`Signals::confirm_from`].
    pub const fn confirm_from(mut self, level: Utilization) -> Self {
        self.confirm_from = level;
        self
    }

    /// All of it without a thread, for whoever calls [`Sampling::tick`] himself.
    pub fn build(self) -> Result<Sampling, StartError> {
        let now = self.clock.now();
        let (cpus, count) = self.count_cpus(now)?;
        let mut registry = Registry {
            signals: Signals::new(self.combine).confirm_from(self.confirm_from),
            board: Board::default(),
        };
        let executors = if self.watches.is_empty() {
            None
        } else {
            let (load, delay) = (self.load_target, self.delay_target.as_secs_f64());
            let tau = LoadAverage::TAU_DEFAULT;
            Some(Executors {
                load_id: registry.add("executor_load", load, Role::Leading, 1.0, true)?,
                delay_id: registry.add("wake_delay", delay, Role::Leading, 1.0, true)?,
                watches: self.watches,
                average: LoadAverage::new(tau, 1.0, now)?,
                delay: Average::starting_at(tau, 0.0, now),
            })
        };
        let mut sources = Vec::with_capacity(self.signals.len());
        for signal in self.signals {
            let (target, role, weight) = (signal.target(), signal.role(), signal.weight());
            let id = registry.add(signal.name(), target, role, weight, signal.is_of_cpu())?;
            let period = signal.period();
            sources.push(Source { signal: Some(signal), id, period, due: now });
        }
        let Registry { signals, board } = registry;
        Ok(Sampling { signals, sources, executors, cpus, count, board })
    }

    fn count_cpus(&self, now: Timestamp) -> Result<(f64, CpuCount), InvalidNumber> {
        if let Some(cpus) = self.cpus {
            // Refuses what is no number of CPUs.
            LoadAverage::new(Duration::ZERO, cpus, now)?;
            return Ok((cpus, CpuCount::Fixed));
        }
        let cpus = std::thread::available_parallelism().map_or(1.0, |cpus| cpus.get() as f64);
        Ok((cpus, CpuCount::Read { reader: Box::default(), due: now }))
    }

    /// Starts the thread, which calls `on_tick` every time it has looked. Stops when the handle is
    /// dropped. A panic of `on_tick` is counted, and it is called again at the next tick.
    pub fn start(self, on_tick: impl FnMut(Tick) + Send + 'static) -> Result<Handle, StartError> {
        if self.tick < Self::TICK_MIN {
            return Err(StartError::Tick { found: self.tick });
        }
        let (clock, tick, pacer) = (self.clock.clone(), self.tick, self.pacer.clone());
        let most = self.signals.iter().map(Signal::period).min();
        let most = most.unwrap_or(Duration::MAX).max(tick);
        let sampling = self.build()?;
        let shared = Arc::new(Shared { board: sampling.board.clone(), ..Shared::default() });
        let pauses = Pauses { tick, most, pacer };
        let runner = Runner { clock, pauses, sampling, shared: Arc::clone(&shared), on_tick };
        let thread = std::thread::Builder::new()
            .name("tidegate-sampler".to_owned())
            .spawn(move || runner.run())?;
        Ok(Handle { shared, thread: Some(thread) })
    }
}

/// Signals as they get their numbers.
struct Registry {
    signals: Signals,
    board: Board,
}

impl Registry {
    fn add(
        &mut self,
        name: &str,
        target: f64,
        role: Role,
        weight: f64,
        of_cpu: bool,
    ) -> Result<SignalId, StartError> {
        let described = signal::Signal::new(name, target)?.role(role).of_cpu(of_cpu);
        let described = described.weight(weight)?;
        let too_many = || StartError::TooMany { name: name.to_owned() };
        let id = self.signals.register(described).ok_or_else(too_many)?;
        let (name, last, trouble, dead) = (name.to_owned(), None, None, false);
        let (known, unknown) = (0, 0);
        let health = Health { name, id, target, role, last, known, unknown, trouble, dead };
        self.board.lock().push(health);
        Ok(id)
    }
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    board: Board,
    ticks: AtomicU64,
    late: AtomicU64,
    panics: AtomicU64,
}

/// From one look to the next.
struct Pauses {
    tick: Duration,
    /// As a signal asks to be read.
    most: Duration,
    pacer: Option<Arc<Pacer>>,
}

impl Pauses {
    /// The longest.
    fn longest(&self) -> Duration {
        let rest = self.pacer.as_ref().map_or(self.tick, |pacer| pacer.rest());
        rest.clamp(self.tick, self.most)
    }

    /// Whether somebody wants it to be the shortest.
    fn is_asked(&self) -> bool {
        self.pacer.as_ref().is_some_and(|pacer| pacer.is_asked())
    }
}

struct Runner<F> {
    clock: Clock,
    pauses: Pauses,
    sampling: Sampling,
    shared: Arc<Shared>,
    on_tick: F,
}

impl<F: FnMut(Tick)> Runner<F> {
    fn run(mut self) {
        if let Some(pacer) = &self.pauses.pacer {
            pacer.begin();
        }
        let mut due = Instant::now();
        while !self.shared.stop.load(Ordering::Acquire) {
            if let Some(pacer) = &self.pauses.pacer {
                pacer.looked();
            }
            let tick = self.sampling.tick(self.clock.now());
            let on_tick = &mut self.on_tick;
            if catch_unwind(AssertUnwindSafe(|| on_tick(tick))).is_err() {
                self.shared.panics.fetch_add(1, Ordering::Relaxed);
            }
            self.shared.ticks.fetch_add(1, Ordering::Relaxed);
            let pause = self.pauses.longest();
            if due + pause < Instant::now() {
                // What was missed is not made up for: nothing has happened at those times.
                self.shared.late.fetch_add(1, Ordering::Relaxed);
                due = Instant::now();
            }
            due = self.rest(due + self.pauses.tick, due + pause);
        }
    }

    /// Until `last`, or after `first` as soon as somebody asks, or until it is to stop. Returns
    /// when the look was due.
    fn rest(&self, first: Instant, last: Instant) -> Instant {
        loop {
            let now = Instant::now();
            let asked = self.pauses.is_asked();
            let until = if asked { first } else { last };
            if now >= until || self.shared.stop.load(Ordering::Acquire) {
                return if asked { now } else { last };
            }
            std::thread::park_timeout(until - now);
        }
    }
}

/// A sampler at work. It stops when this is dropped.
#[derive(Debug)]
#[must_use = "the sampler stops when its handle is dropped"]
pub struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Handle {
    /// How the signals are doing, in the order of their numbers.
    pub fn health(&self) -> Vec<Health> {
        self.shared.board.lock().clone()
    }

    /// How often it has looked.
    pub fn ticks(&self) -> u64 {
        self.shared.ticks.load(Ordering::Relaxed)
    }

    /// How often it was late by a whole tick: the machine is busy, or a signal is slow.
    pub fn late(&self) -> u64 {
        self.shared.late.load(Ordering::Relaxed)
    }

    /// How often `on_tick` has panicked. (Signals that have are dead in [`Handle::health`].)
    pub fn panics(&self) -> u64 {
        self.shared.panics.load(Ordering::Relaxed)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // Whoever drops it from `on_tick` is that thread, and cannot wait for himself.
        if thread.thread().id() != std::thread::current().id() {
            // It ends by returning: what could panic is caught.
            let _ = thread.join();
        }
    }
}
