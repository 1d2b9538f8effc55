//! How many tasks want the CPU.
//!
//! CPU percent reads the same at 1x and at 3x. What tells an overload from a full house is how many
//! tasks are running or ready to run: it grows without bound as soon as more work comes than gets
//! done, within some 20 ms. Runtimes do not say it, but it can be counted from outside, as every
//! task has to be woken before it is polled. [`Executor::track`] wraps a future so that
//!
//! ```text
//! its waker            marks it ready (once, until it is polled)
//! its poll             marks it running, and idle again when it ends
//! load               = running + ready
//! delay              = from wake to poll, of some of them
//! ```
//!
//! This costs 50 ns a poll where an uncontended atomic add takes 9 (a busy machine), one allocation
//! for a task that waits and none for one that is done within its first poll, and no lock.
//!
//! **What to wrap.** The future of each connection, and what hyper spawns for it (streams of
//! HTTP/2), by giving hyper this as its executor. Request futures as well: those that run inside a
//! connection which is counted cost two nanoseconds and count nothing, since a task is in one place
//! of the run queue however many futures it is made of. Where the connections are out of reach
//! (`axum::serve` spawns them itself) the requests alone are counted, which misses connections that
//! wait for their first byte to be read and streams that were never polled; then give the sampler
//! the runtime too, whose queue fills the gap ([`Watch::runtime`]).
//!
//! **When it is wrong.** A task that does many things by itself (`join_all`, `FuturesUnordered`)
//! counts as one: spawn what should count. One that gives way by `tokio::task::yield_now` is ready
//! only when the runtime comes back to it, which is up to 61 polls later. A blocking call counts as
//! running, though it does not use the CPU. A future that is woken and held without being polled
//! counts as ready until it is polled or dropped.

#[cfg(feature = "hyper")]
mod hyper;
mod probes;
mod state;
mod tally;
mod thread;
mod tracked;
mod waiting;
mod watch;

#[cfg(all(test, not(feature = "loom")))]
mod tests;

pub(crate) use tracked::InPlace;
pub use tracked::Tracked;
pub(crate) use waiting::Waiting;
pub use watch::{Load, Watch};

use crate::clock::Clock;
use probes::Probes;
use state::Ready;
use std::sync::Arc;
use tally::Tally;

/// Counts the tasks that are tracked by it or by a clone of it.
#[derive(Debug, Clone)]
pub struct Executor {
    shared: Arc<Shared>,
    /// Whether anybody looks at the count.
    counted: bool,
}

#[derive(Debug)]
struct Shared {
    tally: Tally,
    probes: Probes,
}

impl Executor {
    /// For tasks that run on as many threads as there are CPUs.
    pub fn new(clock: Clock) -> Self {
        let threads = std::thread::available_parallelism().map_or(1, usize::from);
        Self::builder(clock).threads(threads).build()
    }

    /// For a runtime that runs its tasks on one thread.
    pub fn single_threaded(clock: Clock) -> Self {
        Self::builder(clock).threads(1).build()
    }

    /// For tasks whose load nobody looks at, such as those of a proxy: what they wait for is not
    /// here. Counts nothing, and costs nothing.
    pub fn uncounted(clock: Clock) -> Self {
        Self { counted: false, ..Self::single_threaded(clock) }
    }

    /// For tasks that run on this runtime.
    #[cfg(feature = "tokio")]
    pub fn for_runtime(clock: Clock, runtime: &tokio::runtime::Handle) -> Self {
        Self::builder(clock).threads(runtime.metrics().num_workers()).build()
    }

    /// To set more about it.
    pub const fn builder(clock: Clock) -> Builder {
        Builder { clock, threads: 1, one_in: Builder::ONE_IN }
    }

    /// Counts `future`, which is about to be spawned: it is ready from now on, since it waits for
    /// its first poll.
    pub fn track<F>(&self, future: F) -> Tracked<F> {
        let ready = self.counted.then(|| Ready::new(&self.shared));
        Tracked::new(self, ready, future)
    }

    /// Counts `future`, which is polled by whoever makes it: it counts from its first poll on.
    #[inline]
    pub fn track_in_place<F>(&self, future: F) -> Tracked<F> {
        Tracked::new(self, None, future)
    }

    /// Somebody would run now if there were a CPU, and waits outside of the runtime's queue.
    pub(crate) fn wait(&self) -> Waiting {
        Waiting::new(Arc::clone(&self.shared))
    }

    /// Spawns `future` on the runtime of the caller, counted.
    #[cfg(feature = "tokio")]
    pub fn spawn<F>(&self, future: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future + Send + 'static,
        F::Output: Send + 'static,
    {
        tokio::spawn(self.track(future))
    }

    /// How many tasks are running or ready to run at this moment.
    pub fn active(&self) -> u64 {
        self.shared.tally.active()
    }

    /// Reads it from tick to tick. Lows are reported to whoever asks first: one watch at a time.
    pub fn watch(&self) -> Watch {
        Watch::new(Arc::clone(&self.shared))
    }

    /// Futures that were woken and then held for 10 s without being polled, while others were: a
    /// sign of code that forgets them.
    pub fn forgotten(&self) -> u64 {
        self.shared.probes.lost()
    }
}

/// Makes an [`Executor`].
#[derive(Debug, Clone)]
#[must_use]
pub struct Builder {
    clock: Clock,
    threads: usize,
    one_in: u32,
}

impl Builder {
    /// Timing a wait takes about 100 ns, so a sixteenth of them costs 6 ns a poll. Where a thousand
    /// tasks are woken in a second, that is a wait every 16 ms.
    const ONE_IN: u32 = 16;

    /// On how many threads tasks are woken and polled; 1 if not said. Too few make threads contend
    /// for one cache line, too many hide the least load between two looks.
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// One wake in so many is timed, rounded up to a power of two; 16 if not said.
    pub const fn timed_one_in(mut self, one_in: u32) -> Self {
        self.one_in = one_in;
        self
    }

    /// The executor.
    pub fn build(self) -> Executor {
        let tally = Tally::new(self.threads);
        let probes = Probes::new(self.clock, self.one_in);
        Executor { shared: Arc::new(Shared { tally, probes }), counted: true }
    }
}
