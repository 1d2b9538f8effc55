//! What Linux knows, as signals.
//!
//! Counters of time become rates by [`Slope`], smoothed over a second: they are read ten times a
//! second, and the kernel itself updates some of them only every few milliseconds.
//!
//! But for memory they only confirm an overload ([`Role::Confirming`]). CPU time is as high in
//! health; what others take of the CPU (run delay, pressure, throttling) makes a task slower, but
//! whether it is overloaded depends on what it is asked to do, and its queue tells.

use super::{Reader, Throttling, Unknown};
use crate::signals::{Role, Signal};
use core::time::Duration;
use std::path::PathBuf;
use tidegate_core::average::Average;
use tidegate_core::signal::Slope;
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Timestamp, Utilization};

/// Ten reads in the time that they are smoothed over.
const PERIOD: Duration = Duration::from_millis(100);
/// Long against a tick of the kernel and a period of quotas (100 ms), short against a surge.
const TAU: Duration = Duration::from_secs(1);
/// Memory changes slowly, and its files are the slowest to read.
const MEMORY_PERIOD: Duration = Duration::from_secs(1);

/// Quotas are changed by people and by autoscalers, and to count CPUs takes longer than all else
/// that is read of them.
const CPUS_PERIOD: Duration = Duration::from_secs(1);

/// How many CPUs there are, as it was last looked up.
#[derive(Debug, Default)]
struct Counted(Option<(f64, Timestamp)>);

impl Counted {
    fn cpus(&mut self, reader: &mut Reader, now: Timestamp) -> Result<f64, Unknown> {
        if let Some((cpus, at)) = self.0
            && now.since(at) < CPUS_PERIOD
        {
            return Ok(cpus);
        }
        let cpus = reader.cpus()?.certain()?;
        self.0 = Some((cpus, now));
        Ok(cpus)
    }
}

/// Those that can be read here: what is missing from the start will hardly come.
pub fn all(reader: &Reader) -> Vec<Box<dyn Signal>> {
    let mut probe = reader.clone();
    let mut all: Vec<Box<dyn Signal>> = Vec::new();
    if probe.memory().is_ok() {
        all.push(Box::new(MemoryUse::new(reader.clone())));
    }
    if probe.pressure().is_ok() {
        all.push(Box::new(Pressure::new(reader.clone())));
    }
    if matches!(probe.throttling(), Ok(Some(_))) {
        all.push(Box::new(Throttled::new(reader.clone())));
    }
    if probe.cpus().is_ok() {
        if probe.cpu_time().is_ok() {
            all.push(Box::new(CpuTime::new(reader.clone())));
        }
        if probe.run_delay().is_ok() {
            all.push(Box::new(RunDelay::new(reader.clone())));
        }
    }
    all
}

/// What the signals have in common: where they read, and what went wrong the last time.
#[derive(Debug)]
struct Source {
    reader: Reader,
    target: f64,
    trouble: Option<String>,
}

impl Source {
    const fn new(reader: Reader, target: f64) -> Self {
        Self { reader, target, trouble: None }
    }

    /// Keeps in mind why `value` is not known.
    fn note<T>(&mut self, value: Result<T, Unknown>) -> Option<T> {
        match value {
            Ok(value) => {
                self.trouble = None;
                Some(value)
            }
            Err(unknown) => {
                self.trouble = Some(unknown.to_string());
                None
            }
        }
    }
}

/// The growth of a counter of time, of so much that is reserved. The reservation may change, and
/// the counter may become another's: then it starts over.
#[derive(Debug, Default)]
struct Growth {
    slope: Option<Slope>,
    reserved: f64,
    moves: u64,
}

impl Growth {
    fn record(
        &mut self,
        counter: Duration,
        reserved: f64,
        moves: u64,
        now: Timestamp,
    ) -> Option<Utilization> {
        if self.slope.is_none() || self.reserved != reserved || self.moves != moves {
            self.slope = Slope::new(TAU, reserved).ok();
            (self.reserved, self.moves) = (reserved, moves);
        }
        Utilization::new(self.slope.as_mut()?.record(counter, now)?).ok()
    }
}

/// CPU time used, of the CPUs there are.
#[derive(Debug)]
pub struct CpuTime {
    source: Source,
    reserved: Option<f64>,
    counted: Counted,
    growth: Growth,
}

impl CpuTime {
    /// Above it there is no reserve for the next burst. It is reached in health as well.
    pub const TARGET: f64 = 0.9;

    /// Of all the CPUs that the reader's target may use.
    pub fn new(reader: Reader) -> Self {
        let source = Source::new(reader, Self::TARGET);
        Self { source, reserved: None, counted: Counted::default(), growth: Growth::default() }
    }

    /// Of so many CPUs that are set aside for it, where that is less than it may use.
    pub fn reserved(mut self, cpus: f64) -> Result<Self, InvalidNumber> {
        self.reserved = Some(positive("reserved CPUs", cpus)?);
        Ok(self)
    }

    /// What it should not exceed; [`CpuTime::TARGET`] if not said.
    #[must_use]
    pub const fn target(mut self, target: f64) -> Self {
        self.source.target = target;
        self
    }
}

impl Signal for CpuTime {
    fn name(&self) -> &'static str {
        "cpu"
    }
    fn target(&self) -> f64 {
        self.source.target
    }
    fn role(&self) -> Role {
        Role::Confirming
    }
    fn is_of_cpu(&self) -> bool {
        true
    }
    fn period(&self) -> Duration {
        PERIOD
    }
    fn trouble(&self) -> Option<String> {
        self.source.trouble.clone()
    }
    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let reader = &mut self.source.reader;
        let used = reader.cpu_time();
        let counted = &mut self.counted;
        let reserved = self.reserved.map_or_else(|| counted.cpus(reader, now), Ok);
        let both = used.and_then(|used| Ok((used, reserved?)));
        let (used, reserved) = self.source.note(both)?;
        self.growth.record(used, reserved, self.source.reader.moves(), now)
    }
}

/// Memory used, of what there is: see [`Reader::memory`].
#[derive(Debug)]
pub struct MemoryUse {
    source: Source,
    reserved: Option<u64>,
}

impl MemoryUse {
    /// Low enough that requests in flight can still be finished, high enough for a cache that fills
    /// what it is given.
    pub const TARGET: f64 = 0.9;

    /// Of the limit of its control group, or of the memory of the machine.
    pub const fn new(reader: Reader) -> Self {
        Self { source: Source::new(reader, Self::TARGET), reserved: None }
    }

    /// Of so many bytes that are set aside for it: then its own memory counts, not its group's.
    #[must_use]
    pub const fn reserved(mut self, bytes: core::num::NonZeroU64) -> Self {
        self.reserved = Some(bytes.get());
        self
    }

    /// What it should not exceed; [`MemoryUse::TARGET`] if not said.
    #[must_use]
    pub const fn target(mut self, target: f64) -> Self {
        self.source.target = target;
        self
    }
}

impl Signal for MemoryUse {
    fn name(&self) -> &'static str {
        "memory"
    }
    fn target(&self) -> f64 {
        self.source.target
    }
    fn period(&self) -> Duration {
        MEMORY_PERIOD
    }
    fn trouble(&self) -> Option<String> {
        self.source.trouble.clone()
    }
    fn sample(&mut self, _: Timestamp) -> Option<Utilization> {
        let reader = &mut self.source.reader;
        let memory = match self.reserved {
            Some(reserved) => reader.memory_used().map(|used| super::Memory::new(used, reserved)),
            None => reader.memory(),
        };
        Utilization::new(self.source.note(memory)?.utilization()).ok()
    }
}

/// Time that threads waited for a CPU while they could have run, per CPU: 0.5 is half a CPU's worth
/// of threads always waiting on each. Tells that others take the CPU; work that waits inside the
/// runtime does not show.
#[derive(Debug)]
pub struct RunDelay {
    source: Source,
    counted: Counted,
    growth: Growth,
}

impl RunDelay {
    /// A quiet machine reads 0.02 to 0.06, one with others on it 0.3 to 2.
    pub const TARGET: f64 = 0.25;

    /// Of the reader's target.
    pub fn new(reader: Reader) -> Self {
        let source = Source::new(reader, Self::TARGET);
        Self { source, counted: Counted::default(), growth: Growth::default() }
    }

    /// What it should not exceed; [`RunDelay::TARGET`] if not said.
    #[must_use]
    pub const fn target(mut self, target: f64) -> Self {
        self.source.target = target;
        self
    }
}

impl Signal for RunDelay {
    fn name(&self) -> &'static str {
        "run_delay"
    }
    fn target(&self) -> f64 {
        self.source.target
    }
    fn role(&self) -> Role {
        Role::Confirming
    }
    fn is_of_cpu(&self) -> bool {
        true
    }
    fn period(&self) -> Duration {
        PERIOD
    }
    fn trouble(&self) -> Option<String> {
        self.source.trouble.clone()
    }
    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let reader = &mut self.source.reader;
        let counted = &mut self.counted;
        let both = reader.run_delay();
        let both = both.and_then(|delay| Ok((delay, counted.cpus(reader, now)?)));
        let (delay, cpus) = self.source.note(both)?;
        self.growth.record(delay, cpus, self.source.reader.moves(), now)
    }
}

/// Share of the time in which some thread waited for a CPU (PSI). Tells what [`RunDelay`] tells,
/// for a whole control group, in one file.
#[derive(Debug)]
pub struct Pressure {
    source: Source,
    growth: Growth,
    /// Where it was read the last time; another file has another counter.
    file: PathBuf,
}

impl Pressure {
    /// A quiet machine reads 0.04, one with others on it 0.65.
    pub const TARGET: f64 = 0.5;

    /// Of the group of the reader's target.
    pub fn new(reader: Reader) -> Self {
        let source = Source::new(reader, Self::TARGET);
        Self { source, growth: Growth::default(), file: PathBuf::new() }
    }

    /// What it should not exceed; [`Pressure::TARGET`] if not said.
    #[must_use]
    pub const fn target(mut self, target: f64) -> Self {
        self.source.target = target;
        self
    }
}

impl Signal for Pressure {
    fn name(&self) -> &'static str {
        "cpu_pressure"
    }
    fn target(&self) -> f64 {
        self.source.target
    }
    fn role(&self) -> Role {
        Role::Confirming
    }
    fn is_of_cpu(&self) -> bool {
        true
    }
    fn period(&self) -> Duration {
        PERIOD
    }
    fn trouble(&self) -> Option<String> {
        self.source.trouble.clone()
    }
    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let waited = self.source.reader.pressure();
        let waited = self.source.note(waited)?;
        if self.file != self.source.reader.pressure_file() {
            self.file = self.source.reader.pressure_file().to_owned();
            self.growth = Growth::default();
        }
        self.growth.record(waited, 1.0, 0, now)
    }
}

/// Share of the periods of its CPU quota in which a control group used it up and stood still.
#[derive(Debug)]
pub struct Throttled {
    source: Source,
    last: Option<(Throttling, u64)>,
    share: Average,
}

impl Throttled {
    /// Every fourth period: from here on requests of any length are held up by it.
    pub const TARGET: f64 = 0.25;

    /// Of the group of the reader's target.
    pub const fn new(reader: Reader) -> Self {
        let source = Source::new(reader, Self::TARGET);
        Self { source, last: None, share: Average::new(TAU) }
    }

    /// What it should not exceed; [`Throttled::TARGET`] if not said.
    #[must_use]
    pub const fn target(mut self, target: f64) -> Self {
        self.source.target = target;
        self
    }
}

impl Signal for Throttled {
    fn name(&self) -> &'static str {
        "cpu_throttled"
    }
    fn target(&self) -> f64 {
        self.source.target
    }
    fn role(&self) -> Role {
        Role::Confirming
    }
    fn is_of_cpu(&self) -> bool {
        true
    }
    fn period(&self) -> Duration {
        PERIOD
    }
    fn trouble(&self) -> Option<String> {
        self.source.trouble.clone()
    }
    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let throttling = self.source.reader.throttling();
        // Whoever has no quota is not held up by it.
        let throttling = self.source.note(throttling)?.unwrap_or_default();
        let moves = self.source.reader.moves();
        let (last, moved) = self.last.replace((throttling, moves))?;
        let [periods, throttled] =
            [(throttling.periods, last.periods), (throttling.throttled, last.throttled)]
                .map(|(now, before)| now.checked_sub(before));
        if let (Some(periods), Some(throttled)) = (periods, throttled)
            && moved == moves
        {
            // No period has begun: nobody wanted to run.
            self.share.record(throttled as f64 / periods.max(1) as f64, now);
        }
        Utilization::new(self.share.get()?).ok()
    }
}

fn positive(quantity: &'static str, value: f64) -> Result<f64, InvalidNumber> {
    let fine = value.is_finite() && value > 0.0;
    if fine {
        Ok(value)
    } else {
        Err(InvalidNumber::new(quantity, "more than zero, and finite", value))
    }
}
