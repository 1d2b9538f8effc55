//! Reading the load, from tick to tick.
//!
//! **The least load** tells bursts with pauses between them from work that waits all the time: the
//! controller learns what the task is capable of only while no CPU idles. One thread knows its low
//! (see `tally`). For several there is a witness: a worker of tokio that finds nothing to do parks,
//! and parks are counted. If none did between two looks there was work for each of them all the
//! time; if one did, at most the others had some. Without either, the least is not known.
//!
//! **The runtime's queue** (`global_queue_depth`) counts what was woken from outside the runtime or
//! did not fit into a worker's own queue of 256, whether it is tracked or not. Like the count of
//! what is tracked it is never above the truth, so the higher of the two is closer to it. (The
//! number of tasks that are alive is of no use here: it counts connections that are idle.)

use super::Shared;
use super::probes::Ended;
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::Timestamp;

/// What was seen between two looks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Load {
    /// Tasks running or ready to run, at the second look.
    pub active: u64,
    /// The least of it between the two, where it is known.
    pub least: Option<u64>,
    /// From wake to poll; nothing if tasks ran, but none of those that are timed. Those who still
    /// wait are counted, too.
    pub delay: Option<Duration>,
}

/// Reads the load of an [`Executor`](super::Executor), again and again.
#[derive(Debug)]
pub struct Watch {
    shared: Arc<Shared>,
    ended: Ended,
    active: u64,
    #[cfg(feature = "tokio")]
    runtime: Option<Runtime>,
}

impl Watch {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            ended: shared.probes.ended(),
            active: shared.tally.active(),
            shared,
            #[cfg(feature = "tokio")]
            runtime: None,
        }
    }

    /// The tasks run on this runtime: asks it, too, how much waits and whether its workers idled.
    #[cfg(feature = "tokio")]
    #[must_use]
    pub fn runtime(mut self, runtime: &tokio::runtime::Handle) -> Self {
        let metrics = runtime.metrics();
        self.runtime = Some(Runtime { parks: parks(&metrics), metrics });
        self
    }

    /// Looks. Lows and waits are those since the last look, or since the watch was made.
    pub fn read(&mut self, now: Timestamp) -> Load {
        let before = self.active;
        let (active, least) = self.look();
        let least = least.map(|least| least.min(before).min(active));
        self.active = active;
        let delay = self.delay(now).or((active == 0).then_some(Duration::ZERO));
        Load { active, least, delay }
    }

    fn look(&mut self) -> (u64, Option<u64>) {
        let tally = &self.shared.tally;
        let (active, least) = (tally.active(), tally.take_least());
        #[cfg(feature = "tokio")]
        if let Some(runtime) = &mut self.runtime {
            // What is not tracked keeps workers busy as well, and only they know.
            let least = runtime.most_if_parked().unwrap_or(u64::MAX);
            return (active.max(runtime.queued()), Some(least));
        }
        (active, least)
    }

    fn delay(&mut self, now: Timestamp) -> Option<Duration> {
        let ended = self.shared.probes.ended();
        let earlier = core::mem::replace(&mut self.ended, ended);
        ended.mean_since(earlier).max(self.shared.probes.outstanding(now))
    }
}

#[cfg(feature = "tokio")]
#[derive(Debug)]
struct Runtime {
    metrics: tokio::runtime::RuntimeMetrics,
    /// How often workers have parked, as far as was seen.
    parks: u64,
}

#[cfg(feature = "tokio")]
impl Runtime {
    fn queued(&self) -> u64 {
        self.metrics.global_queue_depth() as u64
    }

    /// How many could be active when a worker parked; nothing if none did since the last look.
    fn most_if_parked(&mut self) -> Option<u64> {
        let parks = parks(&self.metrics);
        let parked = core::mem::replace(&mut self.parks, parks) != parks;
        parked.then(|| (self.metrics.num_workers() as u64).saturating_sub(1))
    }
}

#[cfg(feature = "tokio")]
fn parks(metrics: &tokio::runtime::RuntimeMetrics) -> u64 {
    let each = (0..metrics.num_workers()).map(|worker| metrics.worker_park_count(worker));
    each.fold(0, u64::wrapping_add)
}
