//! Rounds, pinning and medians.
//!
//! Time is the CPU time of the measuring threads: what others do on a busy machine then costs
//! cache misses at most, not milliseconds.

use rustix::time::{ClockId, clock_gettime};
use std::sync::Barrier;

/// Pins the calling thread to one CPU, so that it is not moved between two readings of the clock.
/// Returns whether that worked: a machine with one CPU has no second.
pub(crate) fn pin(cpu: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

/// A thing to measure: does its operation the given number of times.
pub(crate) type Operation<'a> = Box<dyn FnMut(u64) + Send + 'a>;

/// Something that is measured in every round.
pub(crate) struct Contender<'a> {
    pub(crate) name: &'static str,
    /// One for each thread that takes part.
    threads: Vec<Operation<'a>>,
    /// Nanoseconds per operation, by round.
    pub(crate) nanos: Vec<f64>,
}

impl<'a> Contender<'a> {
    pub(crate) fn alone(name: &'static str, operation: impl FnMut(u64) + Send + 'a) -> Self {
        Self { name, threads: vec![Box::new(operation)], nanos: Vec::new() }
    }

    /// Two threads at once, on two CPUs where there are two.
    pub(crate) fn contended(
        name: &'static str,
        first: impl FnMut(u64) + Send + 'a,
        second: impl FnMut(u64) + Send + 'a,
    ) -> Self {
        Self { name, threads: vec![Box::new(first), Box::new(second)], nanos: Vec::new() }
    }

    fn round(&mut self, operations: u64) {
        let threads = self.threads.len();
        let barrier = Barrier::new(threads);
        let elapsed: Vec<f64> = std::thread::scope(|scope| {
            let workers: Vec<_> = self
                .threads
                .iter_mut()
                .enumerate()
                .map(|(cpu, operation)| {
                    let barrier = &barrier;
                    scope.spawn(move || {
                        pin(cpu);
                        barrier.wait();
                        let start = cpu_seconds();
                        operation(operations);
                        cpu_seconds() - start
                    })
                })
                .collect();
            workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
        });
        let mean = elapsed.iter().sum::<f64>() / threads as f64;
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
pub(crate) fn interleave(contenders: &mut [Contender<'_>], rounds: u32, operations: u64) {
    for round in 0..=rounds {
        for contender in contenders.iter_mut() {
            contender.round(operations);
            if round == 0 {
                contender.nanos.clear();
            }
        }
    }
}

/// CPU time of the calling thread.
fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
