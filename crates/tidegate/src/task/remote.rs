//! Ticks of a task whose work is done elsewhere.
//!
//! See [`workplace`](crate::workplace): what can be seen of the program becomes what the controller
//! has to know, and what requests were found to cost.

use super::Inner;
use crate::signals::Signal;
use crate::workplace::{Workplace, cells};
use core::time::Duration;
use std::sync::{Arc, Weak};
use tidegate_core::admission::Seen;
use tidegate_core::admission::outside::Outside;
use tidegate_core::attribution::{Attribution, CLASSES};
use tidegate_core::signal::{Answers, LatencyGradient};
use tidegate_core::{Cost, Timestamp, Utilization};

/// Quotas are changed by people and by autoscalers, both slower than this.
const CPUS_PERIOD: Duration = Duration::from_secs(10);
/// A word that is older than this is no word any more.
const SAID_MAX: Duration = Duration::from_secs(3);
/// How long answers take is looked at over this long: at a hundred requests a second that is ten.
const LATENCY_PERIOD: Duration = Duration::from_millis(100);

/// What a task with a workplace does every ten milliseconds.
pub(super) struct RemoteTicker {
    place: Box<dyn Workplace>,
    outside: Outside,
    attribution: Attribution,
    cpus: Option<f64>,
    fixed: bool,
    cpus_due: Timestamp,
    cpu_time: Option<Duration>,
    waited: Duration,
    /// Since the last look.
    used: Option<Duration>,
    at: Timestamp,
    counts: Box<[u64; cells::COUNT]>,
}

impl core::fmt::Debug for RemoteTicker {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("RemoteTicker").field("cpus", &self.cpus).finish_non_exhaustive()
    }
}

impl RemoteTicker {
    /// `cpus` if somebody has said.
    pub(super) fn new(place: Box<dyn Workplace>, cpus: Option<f64>, now: Timestamp) -> Self {
        Self {
            place,
            outside: Outside::new(),
            attribution: Attribution::new(now),
            cpus,
            fixed: cpus.is_some(),
            cpus_due: now,
            cpu_time: None,
            waited: Duration::ZERO,
            used: None,
            at: now,
            counts: Box::new([0; cells::COUNT]),
        }
    }

    /// How many CPUs the program may use, if that is known.
    pub(super) const fn cpus(&self) -> Option<f64> {
        self.cpus
    }

    /// CPU time that it has used between the last two looks.
    pub(super) const fn used(&self) -> Option<Duration> {
        self.used
    }

    /// What is seen of the program, beside what signals say.
    pub(super) fn look(&mut self, task: &Inner, mut seen: Seen, now: Timestamp) -> Seen {
        if now >= self.cpus_due && !self.fixed {
            self.cpus_due = now + CPUS_PERIOD;
            self.cpus = self.place.cpus().filter(|cpus| cpus.is_finite() && *cpus > 0.0);
        }
        let elapsed = now.since(core::mem::replace(&mut self.at, now));
        let time = self.place.cpu_time();
        let before = core::mem::replace(&mut self.cpu_time, time);
        self.used = time.zip(before).and_then(|(now, before)| now.checked_sub(before));
        let Some(used) = self.used else { return seen };
        if let Some(cpus) = self.cpus {
            let inside = task.gate.counts().inflight();
            let waited = self.place.waited();
            let held_up = waited.saturating_sub(core::mem::replace(&mut self.waited, waited));
            let busy = used.saturating_add(held_up);
            if let Some(load) = self.outside.observe(inside, busy, cpus, elapsed, now) {
                seen = seen.load(load.load).load_least(load.least);
            }
        }
        let cost = task.factor.cost_of(used);
        self.attribute(task, cost, now);
        seen.used(cost)
    }

    fn attribute(&mut self, task: &Inner, used: Cost, now: Timestamp) {
        let Some(remote) = &task.remote else { return };
        let mut counts = [0; cells::COUNT];
        remote.counting.read(&mut counts);
        let before = core::mem::replace(&mut *self.counts, counts);
        let since = |cell: usize| counts[cell].wrapping_sub(before[cell]);
        // Those who say what they cost are not to be found out.
        let came: [u64; CLASSES] = core::array::from_fn(|class| {
            since(cells::CAME + class).saturating_sub(since(cells::SAID + class))
        });
        let done: [u64; CLASSES] = core::array::from_fn(|class| since(cells::DONE + class));
        let said = Cost::from_nanos(since(cells::SAID_COST));
        self.attribution.observe(&remote.classes, &came, &done, used - said, now);
    }
}

/// The program's own word on how full it is: `application_utilization` of its ORCA reports.
pub(super) struct Said(Weak<Inner>);

impl Said {
    pub(super) fn new(task: &Arc<Inner>) -> Self {
        Self(Arc::downgrade(task))
    }
}

impl Signal for Said {
    fn name(&self) -> &'static str {
        "application_utilization"
    }

    fn target(&self) -> f64 {
        1.0
    }

    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let task = self.0.upgrade()?;
        let since = Timestamp::from_nanos(now.since(Timestamp::ZERO + SAID_MAX).as_nanos() as u64);
        Utilization::new(task.remote.as_ref()?.said_since(since)?).ok()
    }

    fn period(&self) -> Duration {
        LATENCY_PERIOD
    }

    fn trouble(&self) -> Option<String> {
        Some("the program sends no load reports".to_owned())
    }
}

/// How long answers take, over what they take at best.
pub(super) struct Latency {
    task: Weak<Inner>,
    gradient: LatencyGradient,
}

impl Latency {
    pub(super) fn new(task: &Arc<Inner>) -> Self {
        Self { task: Arc::downgrade(task), gradient: LatencyGradient::new() }
    }
}

impl Signal for Latency {
    fn name(&self) -> &'static str {
        "latency"
    }

    fn target(&self) -> f64 {
        LatencyGradient::TARGET
    }

    fn sample(&mut self, now: Timestamp) -> Option<Utilization> {
        let answers = self.task.upgrade()?.counting.answers();
        let answers = Answers { count: answers.done, nanos: answers.nanos };
        Utilization::new(self.gradient.record(answers, now)?).ok()
    }

    // Once it is known what can be done, what is in flight says the same, and sooner.
    fn is_of_cpu(&self) -> bool {
        true
    }

    fn period(&self) -> Duration {
        LATENCY_PERIOD
    }

    fn trouble(&self) -> Option<String> {
        Some("there were too few answers".to_owned())
    }
}
