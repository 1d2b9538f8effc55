//! Rounds, pinning and medians.
//!
//! Time is the CPU time of the measuring threads: what others do on a busy machine then costs
//! cache misses at most, not milliseconds.

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use std::sync::Barrier;

/// The CPUs that this process may use. Threads are pinned, so that they are not moved between two
/// readings of the clock.
pub(crate) struct Cpus {
    allowed: Vec<usize>,
    /// Whether every thread so far could be pinned.
    pinned: bool,
}

impl Cpus {
    pub(crate) fn new() -> Self {
        let set = sched_getaffinity(None).unwrap_or_else(|_| CpuSet::new());
        let allowed: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect();
        Self { pinned: !allowed.is_empty(), allowed }
    }

    /// Whether two threads can run at the same time.
    pub(crate) fn are_two(&self) -> bool {
        // Not knowing the CPUs is no reason to think that there is one.
        self.allowed.len() != 1
    }

    pub(crate) fn are_pinned(&self) -> bool {
        self.pinned
    }

    /// Where the threads ran, for people.
    pub(crate) fn describe(&self) -> String {
        match self.allowed[..] {
            [first, second, ..] if self.pinned => format!("threads pinned to {first} and {second}"),
            [only] => format!("all on CPU {only}, so lines of two threads show no contention"),
            _ => "threads NOT pinned, as the system refused it".to_owned(),
        }
    }

    /// Pins the calling thread to the first CPU.
    pub(crate) fn pin_here(&mut self) {
        self.pinned &= pin(self.nth(0));
    }

    /// The CPU for the thread number `thread`.
    pub(crate) fn nth(&self, thread: usize) -> Option<usize> {
        self.allowed.iter().copied().cycle().nth(thread)
    }
}

/// Pins the calling thread to `cpu` and returns whether that worked.
pub(crate) fn pin(cpu: Option<usize>) -> bool {
    cpu.is_some_and(|cpu| {
        let mut set = CpuSet::new();
        set.set(cpu);
        sched_setaffinity(None, &set).is_ok()
    })
}

/// A thing to measure: does its operation the given number of times.
pub(crate) type Operation<'a> = Box<dyn FnMut(u64) + Send + 'a>;

/// How many of its operations a contender counted itself, and how many of them were admitted.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tally {
    pub(crate) admitted: u64,
    pub(crate) decided: u64,
}

/// What a contender's own counts must come to.
struct Check<'a> {
    tally: Box<dyn Fn() -> Tally + 'a>,
    /// The share that is admitted if the line measures what it says.
    share: f64,
}

/// Something that is measured in every round.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    /// One for each thread that takes part.
    threads: Vec<Operation<'a>>,
    /// Nanoseconds per operation, by round.
    pub(crate) nanos: Vec<f64>,
    /// Operations done, by all threads, in all rounds.
    operations: u64,
    check: Option<Check<'a>>,
}

impl<'a> Contender<'a> {
    pub(crate) fn alone(name: &'static str, operation: impl FnMut(u64) + Send + 'a) -> Self {
        Self::new(name, vec![Box::new(operation)])
    }

    /// Two threads at once, on two CPUs where there are two.
    pub(crate) fn contended(
        name: &'static str,
        first: impl FnMut(u64) + Send + 'a,
        second: impl FnMut(u64) + Send + 'a,
    ) -> Self {
        Self::new(name, vec![Box::new(first), Box::new(second)])
    }

    fn new(name: &'static str, threads: Vec<Operation<'a>>) -> Self {
        Self { name, threads, nanos: Vec::new(), operations: 0, check: None }
    }

    pub(crate) fn is_contended(&self) -> bool {
        self.threads.len() > 1
    }

    /// After the run, `tally` has to know of every operation, and `share` of them are admitted.
    pub(crate) fn checked(mut self, share: f64, tally: impl Fn() -> Tally + 'a) -> Self {
        self.check = Some(Check { tally: Box::new(tally), share });
        self
    }

    /// The share that was admitted, where the contender counts that.
    ///
    /// Panics if operations are missing: then something was optimised away, and its time is worth
    /// nothing.
    pub(crate) fn admitted(&self) -> Option<f64> {
        let tally = (self.check.as_ref()?.tally)();
        assert_eq!(tally.decided, self.operations, "{}: operations are missing", self.name);
        Some(tally.admitted as f64 / tally.decided.max(1) as f64)
    }

    /// What should have been admitted, if that is not what was.
    pub(crate) fn strayed_from(&self) -> Option<f64> {
        let wanted = self.check.as_ref()?.share;
        let found = self.admitted()?;
        ((found - wanted).abs() > 0.02).then_some(wanted)
    }

    fn round(&mut self, operations: u64, cpus: &mut Cpus) {
        let threads = self.threads.len();
        let barrier = Barrier::new(threads);
        let elapsed: Vec<(f64, bool)> = std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .threads
                .iter_mut()
                .enumerate()
                .map(|(thread, operation)| {
                    let (barrier, cpu) = (&barrier, cpus.nth(thread));
                    scope.spawn(move || {
                        let pinned = pin(cpu);
                        // The contender before has left its own data in the caches.
                        operation(operations);
                        barrier.wait();
                        let start = cpu_seconds();
                        operation(operations);
                        (cpu_seconds() - start, pinned)
                    })
                })
                .collect();
            workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
        });
        assert_eq!(elapsed.len(), threads, "{}: a thread panicked", self.name);
        cpus.pinned &= elapsed.iter().all(|&(_, pinned)| pinned);
        self.operations += threads as u64 * 2 * operations;
        let mean = elapsed.iter().map(|&(seconds, _)| seconds).sum::<f64>() / threads as f64;
        self.nanos.push(mean * 1e9 / operations as f64);
    }

    pub(crate) fn median_nanos(&self) -> f64 {
        median(self.nanos.iter().copied())
    }

    /// The median over the rounds of this one's time over the other's, round by round.
    pub(crate) fn ratio_to(&self, other: &Self) -> f64 {
        median(self.nanos.iter().zip(&other.nanos).map(|(mine, theirs)| mine / theirs))
    }
}

/// Runs all contenders in turn, `rounds` times. The first round warms up and is not counted.
pub(crate) fn interleave(
    contenders: &mut [Contender<'_>],
    rounds: u32,
    operations: u64,
    cpus: &mut Cpus,
) {
    for round in 0..=rounds {
        for contender in contenders.iter_mut() {
            contender.round(operations, cpus);
            if round == 0 {
                contender.nanos.clear();
            }
        }
    }
}

/// CPU time of the calling thread.
pub(crate) fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

pub(crate) fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
