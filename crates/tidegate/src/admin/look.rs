//! One look at a task, and what became of it since the last.
//!
//! Counters only grow; what people want are rates. So a look keeps the numbers of the one before,
//! and what it shows is the difference over the time in between. It is taken once a second on a
//! thread of its own: no request waits for it, and its cost (some tens of microseconds) does not
//! depend on how many there are.

use super::Source;
use super::api;
use super::explain::Decision;
use super::state::{Facts, state};
use crate::client;
use crate::metrics::{Calls, Snapshot};
use crate::task::{Inner, Task};
use core::time::Duration;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Weak};
use std::time::{SystemTime, UNIX_EPOCH};
use tidegate_core::decision::{Reason, SignalId};
use tidegate_core::quota::Usage;
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};

/// Costs of requests are averaged over so many looks: capacity in requests should not jump with
/// the luck of a second.
const COST_LOOKS: usize = 10;
/// As many as fit on a page, and more than one reads.
const CUSTOMERS_MAX: usize = 20;
/// As many decisions as can be explained: two minutes of a task that refuses at all levels for one
/// reason, in about a megabyte.
const DECISIONS_MAX: usize = 4_096;
/// Refusals of two threads may be noted in another order than they were made, but not by so much.
const DISORDER: Duration = Duration::from_secs(1);
/// What everyone is called who has no limits of their own.
const OTHER: &str = "everyone else";

/// Looks at a task, and at what its process asks of others.
pub(super) struct Look {
    task: Weak<Inner>,
    calls: Calls,
    /// What each of its clients had counted at the last look.
    counted: Vec<client::Counts>,
    earlier: Option<(Timestamp, Snapshot)>,
    /// What was done and what it cost, at the last looks.
    costs: VecDeque<(u64, Cost)>,
    kind: Option<(api::Kind, Timestamp)>,
    decisions: VecDeque<Decision>,
    looked: Option<Timestamp>,
}

impl Look {
    pub(super) fn new(task: &Task, calls: Calls) -> Self {
        Self {
            task: Arc::downgrade(&task.inner),
            calls,
            counted: Vec::new(),
            earlier: None,
            costs: VecDeque::new(),
            kind: None,
            decisions: VecDeque::new(),
            looked: None,
        }
    }

    fn look_at(&mut self, task: &Task) -> api::Snapshot {
        let (now, snapshot) = (task.clock().now(), task.snapshot());
        let at_ms = wall_ms();
        let seconds = match &self.earlier {
            Some((at, _)) => now.since(*at).as_secs_f64(),
            None => 0.0,
        };
        let earlier = self.earlier.as_ref().map(|(_, snapshot)| snapshot);
        let rates = Rates { now: &snapshot, earlier, seconds };
        let mut shown = api::Snapshot {
            service: snapshot.service.clone(),
            at_ms,
            work: rates.work(),
            levels: rates.levels(),
            latency: rates.latency(),
            signals: signals(&snapshot),
            thresholds: thresholds(task),
            rejections: rates.rejections(),
            retries: rates.retries(),
            quota: quota(task),
            ..api::Snapshot::default()
        };
        let done = (snapshot.requests.completed(), snapshot.requests.worked());
        let cost = self.cost(done);
        shown.work.cost_ms = cost.map(|seconds| seconds * 1e3);
        shown.work.capacity = match (shown.work.capacity_cpus, cost) {
            (Some(cpus), Some(cost)) if cost > 0.0 => Some(cpus / cost),
            _ => None,
        };
        (shown.customers, shown.customers_left_out) = customers(task, &snapshot);
        self.ask(seconds, &mut shown);
        self.state(task, now, &snapshot, &mut shown);
        // Who stands before a queue wants to know about that first.
        for queue in shown.queues.iter().filter(|queue| queue.queued > 0) {
            shown.state.sentence = format!("{} {}", queue.sentence, shown.state.sentence);
        }
        self.earlier = Some((now, snapshot));
        shown
    }

    /// CPU seconds of a request, lately.
    fn cost(&mut self, done: (u64, Cost)) -> Option<f64> {
        if self.costs.len() > COST_LOOKS {
            self.costs.pop_front();
        }
        self.costs.push_back(done);
        let (count, worked) = self.costs.front().copied()?;
        let requests = done.0.wrapping_sub(count);
        let work = done.1.as_nanos().wrapping_sub(worked.as_nanos());
        (requests > 0).then(|| work as f64 / 1e9 / requests as f64)
    }

    /// What the process asks of others.
    fn ask(&mut self, seconds: f64, shown: &mut api::Snapshot) {
        let counted: Vec<_> = self.calls.clients().iter().map(client::Layer::counts).collect();
        for (n, (layer, counts)) in self.calls.clients().iter().zip(&counted).enumerate() {
            let throttled = |counts: &client::Counts| {
                counts.attempts.iter().fold(0, |sum: u64, c| sum.wrapping_add(c.throttled))
            };
            let before = self.counted.get(n).unwrap_or(counts);
            let rate = |now: u64, before: u64| per(now.wrapping_sub(before), seconds);
            let requests = rate(counts.retries.requests, before.retries.requests);
            let retries = rate(counts.retries.retries, before.retries.retries);
            let levels = layer.levels();
            let throttle = |criticality: Criticality| api::Throttle {
                criticality: criticality.name().to_owned(),
                probability: 1.0 - levels.share(criticality),
            };
            shown.clients.push(api::Client {
                service: layer.service().to_owned(),
                requests,
                retries,
                amplification: (requests > 0.0).then(|| (requests + retries) / requests),
                throttle: downward().map(throttle).to_vec(),
                budget_left: layer.budget_left(),
            });
            shown.rejections.push(api::Rejections {
                reason: Reason::Throttled.code().to_owned(),
                place: format!("before {}", layer.service()),
                rate: rate(throttled(counts), throttled(before)),
                total: throttled(counts),
            });
        }
        self.counted = counted;
        shown.queues = (self.calls.queues())
            .map(|(service, queue)| api::Queue {
                service: service.to_owned(),
                queued: queue.queued,
                queue_max: queue.queue_max,
                outstanding: queue.outstanding,
                window: queue.window,
                pace: queue.pace,
                sentence: queue.sentence,
            })
            .collect();
        for (service, backends) in self.calls.backends() {
            let sum: f64 = backends.iter().filter_map(|backend| backend.weight).sum();
            shown.backends.extend(backends.into_iter().map(|backend| api::Backend {
                service: service.to_owned(),
                endpoint: backend.endpoint.to_string(),
                share: backend.weight.filter(|_| sum > 0.0).map(|weight| weight / sum),
                active: backend.active,
                load: backend.utilization,
                state: if backend.lame_duck { "lame duck" } else { "serving" }.to_owned(),
            }));
        }
    }

    fn state(&mut self, task: &Task, now: Timestamp, of: &Snapshot, shown: &mut api::Snapshot) {
        let standing = task.standing();
        let out_of_quota: Vec<String> = (shown.customers.iter())
            .filter(|customer| customer.wanted > customer.used)
            .map(|customer| customer.name.clone())
            .collect();
        let earlier = self.earlier.as_ref().map(|(_, earlier)| earlier);
        let refused = |c: &Criticality| {
            let count = |s: &Snapshot| {
                let counts = &s.requests;
                let dark = counts.dark(Reason::Overloaded, *c);
                counts.rejected(Reason::Overloaded, *c).wrapping_add(dark)
            };
            earlier.is_some_and(|earlier| count(of) != count(earlier))
        };
        let facts = Facts {
            refused: downward().into_iter().find(refused),
            standing: &standing,
            measured: of.plan.is_some(),
            inflight: shown.work.inflight,
            offered_cpus: shown.work.offered_cpus,
            capacity_cpus: shown.work.capacity_cpus,
            out_of_quota: &out_of_quota,
        };
        let (mut state, since) = state(&facts);
        // It may shed other levels than at first: what counts is since when it sheds at all.
        let since = match self.kind {
            Some((kind, at)) if kind == state.kind => at,
            _ => since.unwrap_or(now),
        };
        self.kind = Some((state.kind, since));
        state.since_ms = shown.at_ms.saturating_sub(millis(now.since(since)));
        shown.state = state;
    }

    /// The decisions since the last look.
    fn decide(&mut self, task: &Task, shown: &api::Snapshot) -> Vec<api::Event> {
        let now = task.clock().now();
        let after = self.looked.replace(now).map(|at| at - DISORDER);
        let after = after.filter(|after| *after > Timestamp::ZERO);
        let mut new = Vec::new();
        for event in task.events_after(after) {
            let at_ms = shown.at_ms.saturating_sub(millis(now.since(event.at)));
            let limits = match &event.what {
                crate::events::What::Refused(refusal) => {
                    Some(task.limits(refusal.customer.as_deref().unwrap_or_default()))
                }
                _ => None,
            };
            let decision = Decision {
                event,
                at_ms,
                offered_cpus: shown.work.offered_cpus,
                capacity_cpus: shown.work.capacity_cpus,
                limits,
            };
            let recent = self.decisions.iter().rev();
            let known = recent
                .take_while(|known| after.is_none_or(|after| known.event.at > after))
                .any(|known| known.event == decision.event);
            if known {
                continue;
            }
            new.push(decision.shown());
            if self.decisions.len() == DECISIONS_MAX {
                self.decisions.pop_front();
            }
            self.decisions.push_back(decision);
        }
        new
    }
}

impl Source for Look {
    fn look(&mut self) -> (api::Snapshot, Vec<api::Event>) {
        let Some(inner) = self.task.upgrade() else {
            let state = api::State {
                kind: api::Kind::Gone,
                sentence: "The task is gone".to_owned(),
                ..api::State::default()
            };
            let snapshot = api::Snapshot { at_ms: wall_ms(), state, ..api::Snapshot::default() };
            return (snapshot, Vec::new());
        };
        let task = Task { inner };
        let shown = self.look_at(&task);
        let events = self.decide(&task, &shown);
        (shown, events)
    }

    fn explain(&self, id: &str) -> Option<api::Explanation> {
        self.decisions.iter().rev().find(|decision| decision.id() == id).map(Decision::explain)
    }
}

/// Two sets of counts, and the time in between.
struct Rates<'a> {
    now: &'a Snapshot,
    earlier: Option<&'a Snapshot>,
    seconds: f64,
}

impl Rates<'_> {
    /// How much `count` has grown by, a second.
    fn of(&self, count: impl Fn(&Snapshot) -> u64) -> f64 {
        let Some(earlier) = self.earlier else { return 0.0 };
        per(count(self.now).wrapping_sub(count(earlier)), self.seconds)
    }

    fn work(&self) -> api::Work {
        let now = self.now;
        let plan = now.plan.as_ref();
        let admitted = self.of(|s| over(|c| s.requests.admitted(c)));
        let rejected = self.of(|s| over(|c| rejected(s, c)));
        api::Work {
            offered: admitted + rejected,
            admitted,
            rejected,
            good: self.of(|s| over(|c| s.good[c.index()])),
            failed: self.of(|s| s.failed),
            capacity: None,
            inflight: now.requests.inflight(),
            offered_cpus: plan.map(|plan| plan.offered),
            capacity_cpus: plan.map(|plan| plan.capacity),
            usable_cpus: plan.map(|_| now.cpus),
            cost_ms: None,
            unattributed: now.unattributed,
        }
    }

    fn levels(&self) -> Vec<api::Level> {
        let degrade = self.now.plan.map(|plan| plan.degrade).unwrap_or_default();
        let level = |c: Criticality| api::Level {
            criticality: c.name().to_owned(),
            admitted: self.of(|s| s.requests.admitted(c)),
            rejected: self.of(|s| rejected(s, c)),
            good: self.of(|s| s.good[c.index()]),
            degraded: degrade[c.index()],
        };
        downward().map(level).to_vec()
    }

    fn latency(&self) -> api::Latency {
        let Some(earlier) = self.earlier else { return api::Latency::default() };
        let lately = self.now.latencies.since(&earlier.latencies);
        let at = |share| lately.quantile(share).map(|took| took.as_secs_f64() * 1e3);
        api::Latency { p50_ms: at(0.5), p90_ms: at(0.9), p99_ms: at(0.99) }
    }

    /// By reason, and in dark mode apart; only those that were ever given, and the commonest.
    fn rejections(&self) -> Vec<api::Rejections> {
        type Count = fn(&Snapshot, Reason, Criticality) -> u64;
        let places: [(&str, Count); 2] = [
            ("at the gate", |s, reason, c| s.requests.rejected(reason, c)),
            ("let in, dark", |s, reason, c| s.requests.dark(reason, c)),
        ];
        let mut rows = Vec::new();
        for (place, count) in places {
            for reason in Reason::ALL {
                let total = over(|c| count(self.now, reason, c));
                let usual = reason == Reason::Overloaded && place == places[0].0;
                if total > 0 || usual {
                    rows.push(api::Rejections {
                        reason: reason.code().to_owned(),
                        place: place.to_owned(),
                        rate: self.of(|s| over(|c| count(s, reason, c))),
                        total,
                    });
                }
            }
        }
        rows
    }

    fn retries(&self) -> api::Retries {
        let attempts = core::array::from_fn(|n| self.of(|s| s.requests.attempts()[n]));
        let all: f64 = attempts.iter().sum();
        let amplification = (attempts[0] > 0.0).then(|| all / attempts[0]);
        api::Retries { attempts, amplification }
    }
}

/// From what matters most to what matters least.
fn downward() -> [Criticality; Criticality::COUNT] {
    let mut all = Criticality::ALL;
    all.reverse();
    all
}

fn over(count: impl Fn(Criticality) -> u64) -> u64 {
    Criticality::ALL.into_iter().fold(0, |sum: u64, c| sum.wrapping_add(count(c)))
}

fn rejected(snapshot: &Snapshot, criticality: Criticality) -> u64 {
    let by_reason = |reason| snapshot.requests.rejected(reason, criticality);
    Reason::ALL.into_iter().fold(0, |sum: u64, reason| sum.wrapping_add(by_reason(reason)))
}

fn per(count: u64, seconds: f64) -> f64 {
    // Counts of several threads are not of one instant: what is below zero is the reading's doing.
    let count = u64::try_from(count as i64).unwrap_or(0);
    if seconds > 0.0 { count as f64 / seconds } else { 0.0 }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The time of day.
pub(super) fn wall_ms() -> u64 {
    millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn thresholds(task: &Task) -> Vec<api::Threshold> {
    let of = task.thresholds();
    let threshold =
        |c: Criticality| api::Threshold { criticality: c.name().to_owned(), ratio: of[c.index()] };
    downward().map(threshold).to_vec()
}

/// The signals, and before them the queue, which is the controller's own.
fn signals(snapshot: &Snapshot) -> Vec<api::Signal> {
    let reading = snapshot.plan.map(|plan| plan.reading);
    let decides = |id| reading.is_some_and(|reading| reading.signal == id);
    let queue = reading.map(|reading| {
        let ratio = decides(SignalId::QUEUE).then(|| reading.utilization.get());
        api::Signal {
            name: "queue".to_owned(),
            value: ratio,
            target: 1.0,
            ratio,
            leading: true,
            decides: decides(SignalId::QUEUE),
            trouble: None,
        }
    });
    let others = snapshot.signals.iter().map(|signal| {
        let value = signal.last.map(|(value, _)| value);
        api::Signal {
            name: signal.name.clone(),
            value,
            target: signal.target,
            ratio: value.map(|value| value / signal.target),
            leading: signal.role == crate::signals::Role::Leading,
            decides: decides(signal.id),
            trouble: signal.trouble.clone(),
        }
    });
    queue.into_iter().chain(others).collect()
}

/// Where limits come from.
fn quota(task: &Task) -> api::Quota {
    let Some(source) = task.quota_source() else {
        return api::Quota { sentence: "No quota server".to_owned(), ..api::Quota::default() };
    };
    let stale_s = source.stale.map(|stale| stale.as_secs_f64());
    api::Quota { server: source.server, leader: None, stale_s, sentence: source.sentence }
}

/// The customers who use or want most, and how many more there are.
fn customers(task: &Task, snapshot: &Snapshot) -> (Vec<api::Customer>, usize) {
    let sum = |rates: [CostRate; Criticality::COUNT]| rates.into_iter().sum::<CostRate>().as_cpus();
    let usages = snapshot.customers.iter().map(|(name, usage)| (name.as_deref(), *usage));
    let usages: BTreeMap<Option<&str>, Usage> = usages.collect();
    let row = |name: Option<&str>, limit: CostRate| {
        let usage = usages.get(&name).copied().unwrap_or_default();
        api::Customer {
            name: name.unwrap_or(OTHER).to_owned(),
            used: sum(usage.used),
            wanted: sum(usage.wanted),
            granted: None,
            limit: (limit != CostRate::MAX).then(|| limit.as_cpus()),
        }
    };
    let named = task.inner.customers();
    let mut rows: Vec<api::Customer> =
        named.iter().map(|(name, limits)| row(Some(name), limits.whole())).collect();
    rows.push(row(None, task.inner.limits(tidegate_core::CustomerId::DEFAULT).whole()));
    rows.sort_by(|a, b| b.wanted.total_cmp(&a.wanted).then_with(|| a.name.cmp(&b.name)));
    let left_out = rows.len().saturating_sub(CUSTOMERS_MAX);
    rows.truncate(CUSTOMERS_MAX);
    (rows, left_out)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests;
