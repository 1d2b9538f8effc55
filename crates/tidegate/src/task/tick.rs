//! What is done at each look, every ten milliseconds or less often, off the request path.
//!
//! ```text
//! signals, load, CPU used by requests  ->  the controller  ->  the gate
//! ten times a second:  rates, utilization  ->  the load report, written once for all answers
//! every second:  CPU that nobody explains, what customers used
//! every minute:  forget costs of methods that are not used
//! ```

use super::Inner;
use super::remote::RemoteTicker;
use crate::metrics::Answers;
use crate::signals::Tick;
use core::time::Duration;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{Controller, Counts};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::average::{Average, Rate};
use tidegate_core::quota::UsageMeter;
use tidegate_meter::Totals;
use tidegate_wire::orca::OrcaLoadReport;

/// Over how long reported rates are averaged: clients update their weights once a second.
const REPORT_TAU: Duration = Duration::from_secs(1);
/// How often a load report is made. Rates are averaged over ten times that; and over HTTP/2 one
/// that stays is sent as a number, again and again.
const REPORT_PERIOD: Duration = Duration::from_millis(100);
/// Long against a poll, so that those which are running do not matter.
const SHARES_PERIOD: Duration = Duration::from_secs(1);
/// A method that is called once in a minute keeps its estimate.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// Ticks a task.
#[derive(Debug)]
pub(super) struct Ticker {
    controller: Controller,
    shed: ShedConfig,
    /// As the controller was told.
    cpus: f64,
    totals: Totals,
    counts: Counts,
    answers: Answers,
    at: Timestamp,
    report_due: Timestamp,
    rps: Rate,
    eps: Rate,
    cpu: Average,
    /// Seconds that requests have taken.
    latency: Average,
    slow: Slow,
    /// Where the work is done elsewhere.
    pub(super) remote: Option<RemoteTicker>,
}

/// What is looked at less often.
#[derive(Debug)]
struct Slow {
    totals: Totals,
    usage: UsageMeter,
    shares_due: Timestamp,
    sweep_due: Timestamp,
}

impl Ticker {
    pub(super) fn new(task: &Inner, shed: ShedConfig, attempts: AttemptsConfig) -> Self {
        let (now, totals) = (task.clock.now(), Totals::now());
        Self {
            controller: Controller::new(shed.clone(), attempts, &task.gate, now),
            shed,
            cpus: 0.0,
            totals,
            counts: task.gate.counts(),
            answers: Answers::default(),
            at: now,
            report_due: now,
            rps: Rate::new(REPORT_TAU, now),
            eps: Rate::new(REPORT_TAU, now),
            cpu: Average::new(REPORT_TAU),
            latency: Average::new(REPORT_TAU),
            slow: Slow {
                totals,
                usage: UsageMeter::new(task.gate.quota(), now),
                shares_due: now + SHARES_PERIOD,
                sweep_due: now + SWEEP_PERIOD,
            },
            remote: None,
        }
    }

    pub(super) fn tick(&mut self, task: &Arc<Inner>, tick: &Tick) {
        let totals = Totals::now();
        let before = core::mem::replace(&mut self.totals, totals);
        let mut tick = *tick;
        let seen = if let Some(remote) = &mut self.remote {
            let seen = remote.look(task, tick.seen, tick.now);
            tick.cpus = remote.cpus().unwrap_or(0.0);
            seen
        } else {
            let used = totals.attributed.saturating_sub(before.attributed);
            // As many as there are CPUs at every moment.
            let busy = tick.seen.load_least.is_some_and(|least| least >= 1.0);
            task.set_busy(busy);
            tick.seen.used(task.factor.cost_of(used))
        };
        let tick = &tick;
        self.count_cpus(task, tick.cpus);
        let plan = self.controller.tick(&task.gate, seen, tick.now);
        let elapsed = tick.now.since(self.at);
        let (pacer, pace) = (&task.pacer, task.pacer.pace());
        pacer.set_rest(pace.rest(&seen, &plan, elapsed));
        pacer.set_worth(task.factor.cost_of(pace.worth(tick.cpus, pacer.threads())));
        task.events.tick(&task.gate, &plan, tick.now);
        self.measure(tick, &before);
        self.report(task, tick);
        self.slow.tick(task, &totals, tick.now);
        let mut observed = task.observed();
        observed.plan = Some(plan);
        observed.cpus = tick.cpus;
        observed.delay = tick.delay;
        observed.latency =
            self.latency.get().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    }

    fn count_cpus(&mut self, task: &Inner, cpus: f64) {
        if cpus.to_bits() == self.cpus.to_bits() {
            return;
        }
        self.cpus = cpus;
        // What is no number of CPUs tells nothing new.
        if let Ok(shed) = self.shed.clone().cpus(cpus * task.factor.get()) {
            self.controller.reconfigure(shed);
        }
    }

    fn measure(&mut self, tick: &Tick, before: &Totals) {
        let now = tick.now;
        let elapsed = now.since(core::mem::replace(&mut self.at, now)).as_secs_f64();
        let used = match &self.remote {
            Some(remote) => remote.used(),
            None => {
                self.totals.process.zip(before.process).map(|(now, then)| now.saturating_sub(then))
            }
        };
        if let Some(used) = used
            && tick.cpus > 0.0
        {
            self.cpu.record(used.as_secs_f64() / (elapsed * tick.cpus), now);
        }
    }

    fn report(&mut self, task: &Inner, tick: &Tick) {
        let now = tick.now;
        if now < self.report_due {
            return;
        }
        self.report_due = now + REPORT_PERIOD;
        let counts = task.gate.counts();
        let last = core::mem::replace(&mut self.counts, counts);
        let done = counts.completed().wrapping_sub(last.completed());
        self.rps.add_since_last(done as f64, now);
        let answers = task.counting.answers();
        let answered = answers.since(&core::mem::replace(&mut self.answers, answers));
        self.eps.add_since_last(answered.failed as f64, now);
        if answered.done > 0 {
            self.latency.record(answered.nanos as f64 / 1e9 / answered.done as f64, now);
        }
        let report = OrcaLoadReport {
            cpu_utilization: self.cpu.get().unwrap_or(0.0),
            application_utilization: tick.seen.reading.utilization.get(),
            rps_fractional: self.rps.per_second(now),
            eps: self.eps.per_second(now),
            ..OrcaLoadReport::default()
        };
        task.reports.publish(report);
    }
}

impl Slow {
    fn tick(&mut self, task: &Inner, totals: &Totals, now: Timestamp) {
        if now >= self.shares_due {
            self.shares_due = now + SHARES_PERIOD;
            let earlier = core::mem::replace(&mut self.totals, *totals);
            let mut observed = task.observed();
            observed.unattributed = totals.unattributed_since(&earlier);
            observed.customers.clear();
            self.usage.collect(task.gate.quota(), now, |customer, usage| {
                observed.customers.push((customer, usage));
            });
        }
        if now >= self.sweep_due {
            self.sweep_due = now + SWEEP_PERIOD;
            task.costs.sweep();
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::clock::{Clock, Hand};
    use crate::metrics::cell;
    use crate::task::Task;
    use tidegate_core::admission::{Decision, Request, Seen};
    use tidegate_core::cost::MethodId;
    use tidegate_core::signal::Reading;
    use tidegate_core::{Cost, Criticality, CustomerId, Utilization};

    const TICK: Duration = Duration::from_millis(10);

    struct Rig {
        task: Task,
        hand: Hand,
        ticker: Ticker,
    }

    impl Rig {
        fn new() -> Self {
            let (clock, hand) = Clock::manual();
            let task = Task::builder("test").clock(clock).build().expect("defaults are right");
            let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
            let ticker = Ticker::new(&task.inner, shed, attempts);
            Self { task, hand, ticker }
        }

        fn serve(&self, failed: bool) {
            let (inner, now) = (&self.task.inner, self.task.clock().now());
            inner.with_lane(|lane| {
                let (customer, criticality) = (CustomerId::DEFAULT, Criticality::Critical);
                let cost = lane.estimate(customer, MethodId::default(), criticality);
                let request = Request::new(criticality, cost);
                let Decision::Admit(permit) = lane.admit(&request, now) else { return };
                lane.complete(permit, MethodId::default(), Cost::from_micros(100), now);
                if failed {
                    lane.count(cell::FAILED);
                }
            });
        }

        fn tick(&mut self, seen: Seen) {
            self.hand.advance(TICK);
            let now = self.task.clock().now();
            let tick = Tick { seen, cpus: 2.0, delay: None, now };
            self.ticker.tick(&self.task.inner, &tick);
        }
    }

    #[test]
    fn rates_are_per_second_and_utilization_is_that_of_the_signals() {
        let mut rig = Rig::new();
        let half = Utilization::new(0.5).expect("a utilization");
        let reading = Reading { utilization: half, instant: half, ..Reading::IDLE };
        for n in 0..300 {
            // Two requests a tick are 200 a second; one in ten ticks has a failure, which are 10.
            rig.serve(n % 10 == 0);
            rig.serve(false);
            rig.tick(Seen::new(reading));
        }
        let report = rig.task.load_report();
        assert!((report.rps_fractional - 200.0).abs() < 2.0, "{report:?}");
        assert!((report.eps - 10.0).abs() < 1.0, "{report:?}");
        assert_eq!(report.application_utilization, 0.5);
        let snapshot = rig.task.snapshot();
        assert_eq!((snapshot.failed, snapshot.requests.completed()), (30, 600));
        assert_eq!(snapshot.costs.sum, Cost::from_micros(60_000));
        // 600 requests of 100 µs in three seconds: 0.02 CPUs, in the last second as in any other.
        let (name, usage) = snapshot.customers.first().expect("everyone else");
        assert_eq!(name, &None);
        let used = usage.used[Criticality::Critical.index()].as_cpus();
        assert!((used - 0.02).abs() < 0.001, "{used}");
    }

    /// The rig's task has two CPUs and ticks of 10 ms: 5 ms of work are worth a look.
    #[test]
    fn threads_ask_for_a_look_after_their_part_of_a_quarter_of_what_the_cpus_do() {
        let mut rig = Rig::new();
        let task = rig.task.clone();
        let come = |micros| {
            let (inner, cost) = (&task.inner, Cost::from_micros(micros));
            inner.with_lane(|lane| lane.pace(&inner.pacer, cost));
        };
        let worth = |rig: &mut Rig| {
            rig.tick(Seen::new(Reading::IDLE));
            rig.task.inner.pacer.worth()
        };
        assert_eq!(worth(&mut rig), Cost::from_micros(2_500), "nobody lets anything in");
        let barrier = std::sync::Barrier::new(8);
        let (of_eight, asked) = std::thread::scope(|scope| {
            let others = [(); 7].map(|()| {
                scope.spawn(|| {
                    come(1);
                    barrier.wait();
                    barrier.wait();
                })
            });
            come(1);
            barrier.wait();
            let of_eight = worth(&mut rig);
            task.inner.pacer.looked();
            let asked = [624, 1].map(|micros| {
                come(micros);
                task.inner.pacer.is_asked()
            });
            barrier.wait();
            // A thread that is joined has dropped its lane.
            for other in others {
                other.join().expect("it does not panic");
            }
            (of_eight, asked)
        });
        assert_eq!((of_eight, asked), (Cost::from_micros(625), [false, true]));
        assert_eq!(worth(&mut rig), Cost::from_micros(2_500), "the others have gone");
    }

    #[test]
    fn a_task_is_busy_while_no_cpu_idles() {
        let mut rig = Rig::new();
        let seen = Seen::new(Reading::IDLE);
        for (least, busy) in [(None, false), (Some(0.5), false), (Some(1.0), true), (None, false)] {
            rig.tick(least.map_or(seen, |least| seen.load_least(least)));
            assert_eq!(rig.task.inner.is_busy(), busy, "{least:?}");
        }
    }
}
