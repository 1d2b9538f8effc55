//! Someone has to tick, and nobody waits for it.
//!
//! Controllers take in what lanes have counted every so often. A task on the runtime of whoever
//! sends does that, and ends with what it keeps. Runtimes end too, tests have one each, and a
//! client may outlive the one that it was first used on: so each request compares the clock, which
//! it reads anyway, with when the keeper was last seen, and starts another if that is long ago.
//! Should the old one still be there after all, it finds that it is no longer the one, and ends.
//!
//! Outside of a runtime there is no keeper. Then shares stand still and retries run dry.

use core::pin::pin;
use core::time::Duration;
use futures_util::future::select;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::Wake;
use tidegate_core::Timestamp;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, MissedTickBehavior, interval};

/// How often controllers tick. Against a throttle's window of two minutes it is nothing.
pub(super) const PERIOD: Duration = Duration::from_millis(100);

/// A keeper that was not seen for so long is taken for dead: ten ticks, longer than a runtime that
/// is merely busy keeps a task waiting.
const SILENCE: Duration = Duration::from_secs(1);

/// Time since a client was made, by the runtime's clock, so that tests can stop it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time(Instant);

impl Time {
    pub(super) fn begin() -> Self {
        Self(Instant::now())
    }

    #[inline]
    pub(super) fn now(self) -> Timestamp {
        self.at(Instant::now())
    }

    #[inline]
    pub(super) fn at(self, instant: Instant) -> Timestamp {
        Timestamp::ZERO + instant.saturating_duration_since(self.0)
    }
}

/// What a keeper keeps.
pub(super) trait Kept: Send + Sync + 'static {
    /// Where it is noted that somebody keeps it.
    fn watch(&self) -> &Watch;
    /// The time.
    fn time(&self) -> Time;
    /// Takes in, decides and publishes.
    fn tick(self: &Arc<Self>, now: Timestamp);
}

/// Whether somebody keeps it.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// For what should not wait until the next tick.
    nudge: Arc<Nudge>,
    /// Until when nobody has to look, in nanoseconds.
    until: AtomicU64,
    keepers: AtomicU64,
}

/// Wakes the keeper before its time. As a waker, it does so for whoever was polled in a tick.
#[derive(Debug, Default)]
pub(super) struct Nudge(Notify);

impl Nudge {
    pub(super) fn now(&self) {
        self.0.notify_one();
    }
}

impl Wake for Nudge {
    fn wake(self: Arc<Self>) {
        self.now();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.now();
    }
}

impl Watch {
    pub(super) const fn nudge(&self) -> &Arc<Nudge> {
        &self.nudge
    }
}

/// Makes sure that `kept` ticks.
///
/// For the request path: one load and one compare.
#[inline]
pub(super) fn ensure<K: Kept>(kept: &Arc<K>, now: Timestamp) {
    let until = kept.watch().until.load(Ordering::Relaxed);
    if now.as_nanos() >= until {
        begin(kept, until, now);
    }
}

#[cold]
fn begin<K: Kept>(kept: &Arc<K>, until: u64, now: Timestamp) {
    let watch = kept.watch();
    let Ok(runtime) = Handle::try_current() else { return };
    let next = (now + SILENCE).as_nanos();
    let mine = watch.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed);
    if mine.is_ok() {
        let number = watch.keepers.fetch_add(1, Ordering::Relaxed) + 1;
        let nudge = Arc::clone(&watch.nudge);
        drop(runtime.spawn(keep(Arc::downgrade(kept), number, nudge)));
    }
}

async fn keep<K: Kept>(kept: Weak<K>, number: u64, nudge: Arc<Nudge>) {
    let mut ticks = interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        select(pin!(ticks.tick()), pin!(nudge.0.notified())).await;
        let Some(kept) = kept.upgrade() else { return };
        let watch = kept.watch();
        if watch.keepers.load(Ordering::Relaxed) != number {
            return;
        }
        let now = kept.time().now();
        watch.until.store((now + SILENCE).as_nanos(), Ordering::Relaxed);
        kept.tick(now);
    }
}
