#![allow(clippy::unwrap_used)]

use super::shed::{Done, Facts, Plan, ShedConfig, Shedder};
use super::*;
use crate::attempts::AttemptsConfig;
use crate::decision::{Advice, Cause, Reason, SignalId, Thousandths};
use crate::fleet::Limits;
use crate::levels::Levels;
use crate::quota::{QuotaConfig, UsageMeter};
use crate::rng::{Rng as _, SeededRng};
use crate::signal::Reading;
use crate::units::{CostRate, Ratio, Utilization};
use Criticality::{Critical, Sheddable};
use core::time::Duration;
use std::sync::Arc;

const TICK: Duration = Duration::from_millis(10);
const MS: Cost = Cost::from_millis(1);

fn utilization(value: f64) -> Utilization {
    Utilization::new(value).unwrap()
}

fn reading(value: f64) -> Reading {
    Reading { utilization: utilization(value), instant: utilization(value), signal: SignalId(3) }
}

fn gate() -> Arc<AdmissionGate> {
    let quota = QuotaConfig { customers_max: 4, ..QuotaConfig::default() };
    AdmissionGate::new(quota)
}

/// Drives a [`Shedder`] with constant rates (CPUs offered by level, CPUs done) and utilization.
fn hold(
    shedder: &mut Shedder,
    now: &mut Timestamp,
    ticks: u32,
    utilization: f64,
    offered: [f64; 4],
    done: f64,
) -> Plan {
    let mut plan = None;
    let cost = |cpus: f64| CostRate::from_cpus(cpus).unwrap().over(TICK);
    for _ in 0..ticks {
        *now += TICK;
        let facts = Facts {
            reading: reading(utilization),
            beyond_cpu: reading(utilization),
            load: None,
            load_least: None,
            used: None,
            offered: offered.map(cost),
            over: [Cost::ZERO; 4],
            // Every request costs a millisecond, and takes one: nothing waits.
            admitted: cost(done),
            done: cost(done).as_nanos() / MS.as_nanos(),
            completed: cost(done),
            worked: cost(done),
            degraded: Done::default(),
            inflight: CostRate::from_cpus(done).unwrap().over(TICK / 10),
            dark: false,
        };
        plan = Some(shedder.tick(&facts, *now));
    }
    plan.unwrap()
}

fn shares(plan: &Plan) -> [f64; 4] {
    Criticality::ALL.map(|c| plan.levels.share(c))
}

/// A machine that does requests of a millisecond in order, one on each CPU; they come at even
/// intervals and get in as the plan says.
struct Machine {
    shedder: Shedder,
    now: Timestamp,
    cpus: usize,
    limit: [Cost; 4],
    limit_over: [Cost; 4],
    shares: [f64; 4],
    /// The share of what comes that is of customers who are over, and the part of one of them that
    /// has come.
    over: f64,
    over_coming: f64,
    /// Requests that did not get in: of customers within their quotas, and of those over.
    refused: [u64; 2],
    rng: SeededRng,
    waiting: u64,
    /// Steps that are left of each request that runs.
    running: Vec<u32>,
    /// Requests in flight that never end.
    hung: u64,
    /// Whether the controller is told of CPUs and load, as it is by a real task.
    told: bool,
    /// Whether all signals are of the CPU.
    of_cpu: bool,
    /// How many times longer a request takes than it costs, as others use the CPUs, too.
    slow: u32,
    /// Part of a request that has come, by level.
    coming: [f64; 4],
}

impl Machine {
    fn new(cpus: usize) -> Self {
        let now = Timestamp::ZERO;
        let shedder = Shedder::new(ShedConfig::default(), now);
        Self {
            shedder,
            now,
            cpus,
            limit: Plan::UNLIMITED,
            limit_over: Plan::UNLIMITED,
            shares: [1.0; 4],
            over: 0.0,
            over_coming: 0.0,
            refused: [0; 2],
            rng: SeededRng::new(1),
            waiting: 0,
            running: Vec::new(),
            hung: 0,
            told: false,
            of_cpu: false,
            slow: 1,
            coming: [0.0; 4],
        }
    }

    fn told(cpus: usize) -> Self {
        let config = ShedConfig::default().cpus(cpus as f64).unwrap();
        let shedder = Shedder::new(config, Timestamp::ZERO);
        Self { shedder, told: true, ..Self::new(cpus) }
    }

    fn inflight(&self) -> Cost {
        Cost::from_nanos(MS.as_nanos() * (self.hung + self.waiting + self.running.len() as u64))
    }

    /// One tick with `offered` CPUs by level: the plan, and the CPUs by level that got in.
    fn tick(&mut self, utilization: f64, offered: [f64; 4]) -> (Plan, [f64; 4]) {
        const STEPS: u32 = 200;
        const STEPS_EACH: u32 = STEPS / 10;
        let millis = TICK.as_secs_f64() * 1e3;
        let (mut came, mut admitted, mut done) = ([0_u64; 4], [0.0; 4], 0);
        let mut came_over = [0_u64; 4];
        for _ in 0..STEPS {
            for level in (0..4).rev() {
                self.coming[level] += offered[level] * millis / f64::from(STEPS);
                if self.coming[level] >= 1.0 {
                    self.coming[level] -= 1.0;
                    came[level] += 1;
                    self.over_coming += self.over;
                    let over = self.over_coming >= 1.0;
                    self.over_coming -= f64::from(over);
                    came_over[level] += u64::from(over);
                    let limit = if over { self.limit_over } else { self.limit };
                    let lucky = self.rng.unit() < self.shares[level];
                    if self.inflight() < limit[level] && lucky {
                        self.waiting += 1;
                        admitted[level] += 1.0 / millis;
                    } else {
                        self.refused[usize::from(over)] += 1;
                    }
                }
            }
            while self.waiting > 0 && self.running.len() < self.cpus {
                self.waiting -= 1;
                self.running.push(STEPS_EACH * self.slow);
            }
            let before = self.running.len();
            self.running.iter_mut().for_each(|left| *left -= 1);
            self.running.retain(|&left| left > 0);
            done += (before - self.running.len()) as u64;
        }
        self.now += TICK;
        let active = self.waiting + self.running.len() as u64;
        let load = active as f64 / self.cpus.max(1) as f64;
        let cost = |requests: u64| Cost::from_nanos(MS.as_nanos() * requests);
        let plan = self.shedder.tick(
            &Facts {
                reading: reading(utilization),
                beyond_cpu: reading(if self.of_cpu { 0.0 } else { utilization }),
                load: self.told.then_some(load),
                load_least: self.told.then_some(load),
                used: self.told.then_some(cost(done)),
                offered: came.map(cost),
                over: came_over.map(cost),
                admitted: cost(admitted.iter().map(|cpus| (cpus * millis).round() as u64).sum()),
                done,
                completed: cost(done),
                worked: cost(done),
                degraded: Done::default(),
                inflight: self.inflight(),
                dark: false,
            },
            self.now,
        );
        (self.limit, self.limit_over, self.shares) = (plan.limit, plan.limit_over, shares(&plan));
        (plan, admitted)
    }

    /// CPUs by level that got in, on average.
    fn run(&mut self, ticks: u32, utilization: f64, offered: [f64; 4]) -> [f64; 4] {
        let mut sums = [0.0; 4];
        for _ in 0..ticks {
            let (_, admitted) = self.tick(utilization, offered);
            for (sum, admitted) in sums.iter_mut().zip(admitted) {
                *sum += admitted / f64::from(ticks);
            }
        }
        sums
    }
}

#[test]
fn the_first_check_that_fails_is_the_reason() {
    let gate = gate();
    let now = Timestamp::from_secs(1);
    gate.quota().set_limits(CustomerId(1), Limits::ZERO, now);
    gate.set_levels(Levels::CLOSED);
    gate.set_lame_duck(true);
    let mut lane = gate.lane();
    let mut rng = SeededRng::new(1);
    let request = Request::new(Critical, MS).customer(CustomerId(1)).deadline(now);
    let mut reason = |gate_open: &dyn Fn(), request: &Request| {
        gate_open();
        match lane.admit(request, now, &mut rng) {
            Decision::Admit(_) => None,
            Decision::Reject(refusal) => Some((refusal.reason(), refusal.advice())),
        }
    };
    let lame_duck_ends = || gate.set_lame_duck(false);
    let in_time = request.deadline(Timestamp::MAX);
    let in_quota = in_time.customer(CustomerId(2));
    let calm = || gate.set_levels(Levels::OPEN);
    for (change, request, expected) in [
        (&(|| ()) as &dyn Fn(), request, Some((Reason::LameDuck, Advice::RetryElsewhere))),
        (&lame_duck_ends, request, Some((Reason::DeadlinePassed, Advice::DontRetry))),
        (&|| (), in_time, Some((Reason::OutOfQuota, Advice::DontRetry))),
        (&|| (), in_quota, Some((Reason::Overloaded, Advice::RetryElsewhere))),
        (&calm, in_quota, None),
    ] {
        assert_eq!(reason(change, &request), expected);
    }
    let counts = gate.counts();
    for reason in [Reason::LameDuck, Reason::DeadlinePassed, Reason::OutOfQuota, Reason::Overloaded]
    {
        assert_eq!(counts.rejected(reason, Critical), 1, "{reason}");
        assert_eq!(counts.rejected(reason, Sheddable), 0, "{reason}");
    }
    assert_eq!(counts.rejected(Reason::Throttled, Critical), 0);
    assert_eq!(counts.admitted(Critical), 1);
    assert_eq!(counts.inflight(), 1);
}

#[test]
fn a_rejection_carries_the_signal_the_number_and_the_threshold() {
    let gate = gate();
    let mut now = Timestamp::ZERO;
    let mut controller =
        Controller::new(ShedConfig::default(), AttemptsConfig::default(), &gate, now);
    let mut lane = gate.lane();
    let mut rng = SeededRng::new(1);
    let mut refusals = Vec::new();
    for _ in 0..50 {
        for _ in 0..10 {
            match lane.admit(&Request::new(Sheddable, MS), now, &mut rng) {
                Decision::Admit(_) => {}
                Decision::Reject(refusal) => refusals.push(refusal),
            }
        }
        now += TICK;
        controller.tick(&gate, reading(2.5), now);
    }
    let expected = Cause::Signal {
        signal: SignalId(3),
        utilization: Thousandths(2_500),
        threshold: Thousandths(850),
    };
    assert_eq!(refusals.last().unwrap().cause(), Some(expected));

    gate.quota().set_limits(CustomerId(1), Limits::total(CostRate::from_cpus(1.0).unwrap()), now);
    gate.set_levels(Levels::OPEN);
    let big = Request::new(Critical, Cost::from_millis(2_000)).customer(CustomerId(1));
    assert!(lane.admit(&big, now, &mut rng).is_admitted());
    let Decision::Reject(refusal) = lane.admit(&big, now, &mut rng) else { panic!() };
    let Some(Cause::Quota { opens_in }) = refusal.cause() else { panic!("{refusal:?}") };
    // 2 s deep and a lease of 1/128 s, open to CRITICAL below 0.75 s.
    assert_eq!(opens_in.as_millis(), 1_257);
}

#[test]
fn dark_mode_decides_and_lets_pass() {
    let gate = gate();
    gate.set_levels(Levels::CLOSED);
    gate.set_dark(true);
    let mut lane = gate.lane();
    let mut rng = SeededRng::new(1);
    let Decision::Admit(permit) =
        lane.admit(&Request::new(Sheddable, MS), Timestamp::ZERO, &mut rng)
    else {
        panic!("refused in dark mode")
    };
    assert_eq!(permit.would_reject(), Some(Reason::Overloaded));
    assert_eq!(gate.counts().dark(Reason::Overloaded, Sheddable), 1);
    assert_eq!(gate.counts().rejected(Reason::Overloaded, Sheddable), 0);
    assert_eq!(gate.counts().inflight(), 1);
    lane.complete(permit, MS, Timestamp::ZERO);
    assert_eq!(gate.counts().inflight(), 0);
    // A task that is about to exit must not take what it cannot finish.
    gate.set_lame_duck(true);
    assert!(!lane.admit(&Request::new(Sheddable, MS), Timestamp::ZERO, &mut rng).is_admitted());
}

#[test]
fn dark_mode_reports_demand_once() {
    let gate = gate();
    let customer = CustomerId(1);
    gate.quota().set_limits(customer, Limits::ZERO, Timestamp::ZERO);
    gate.set_dark(true);
    let mut meter = UsageMeter::new(gate.quota(), Timestamp::ZERO);
    let mut lane = gate.lane();
    let request = Request::new(Critical, Cost::from_millis(100)).customer(customer);
    let mut rng = SeededRng::new(1);
    let Decision::Admit(permit) = lane.admit(&request, Timestamp::ZERO, &mut rng) else { panic!() };
    lane.complete(permit, Cost::from_millis(100), Timestamp::ZERO);
    let mut wanted = CostRate::ZERO;
    meter.collect(gate.quota(), Timestamp::from_secs(1), |_, usage| {
        wanted = usage.wanted[Critical.index()];
    });
    assert_eq!(wanted, CostRate::from_cpus(0.1).unwrap());
}

#[test]
fn permits_may_come_back_through_another_lane() {
    let gate = gate();
    let (mut a, mut b) = (gate.lane(), gate.lane());
    let mut rng = SeededRng::new(1);
    for _ in 0..10 {
        let Decision::Admit(permit) =
            a.admit(&Request::new(Critical, MS), Timestamp::ZERO, &mut rng)
        else {
            panic!()
        };
        b.complete(permit, MS, Timestamp::ZERO);
    }
    drop(a);
    assert_eq!(gate.counts().inflight(), 0);
    assert_eq!(gate.counts().admitted(Critical), 10);
}

#[test]
fn many_retries_turn_the_advice() {
    let gate = gate();
    let mut now = Timestamp::ZERO;
    let mut controller =
        Controller::new(ShedConfig::default(), AttemptsConfig::default(), &gate, now);
    let mut lane = gate.lane();
    let mut rng = SeededRng::new(1);
    let mut advice_after = |retries: u32, now: &mut Timestamp| {
        for _ in 0..500 {
            for i in 0..20 {
                let attempt = if i < retries { 2 } else { 1 };
                let request = Request::new(Critical, MS).attempt(attempt);
                let _ = lane.admit(&request, *now, &mut rng);
            }
            *now += TICK;
            controller.tick(&gate, reading(0.0), *now);
        }
        gate.set_levels(Levels::CLOSED);
        let Decision::Reject(refusal) = lane.admit(&Request::new(Critical, MS), *now, &mut rng)
        else {
            panic!()
        };
        refusal.advice()
    };
    assert_eq!(advice_after(0, &mut now), Advice::RetryElsewhere);
    assert_eq!(advice_after(10, &mut now), Advice::DontRetry);
    now += Duration::from_secs(60);
    assert_eq!(advice_after(0, &mut now), Advice::RetryElsewhere);
}

#[test]
fn what_can_be_done_goes_to_the_most_important() {
    // On one CPU: what is offered by level, and the share of it that gets in.
    for (offered, expected) in [
        ([0.4, 0.3, 0.2, 0.1], [1.0, 1.0, 1.0, 1.0]),
        ([0.8, 0.3, 0.2, 0.1], [0.5, 1.0, 1.0, 1.0]),
        ([2.0, 1.0, 0.4, 0.1], [0.0, 0.5, 1.0, 1.0]),
        ([2.0, 3.0, 4.0, 0.2], [0.0, 0.0, 0.2, 1.0]),
        ([2.0, 3.0, 4.0, 4.0], [0.0, 0.0, 0.0, 0.25]),
        ([0.0, 0.0, 4.0, 0.2], [0.0, 0.0, 0.2, 1.0]),
    ] {
        let mut machine = Machine::new(1);
        machine.run(300, 0.5, offered);
        let found = machine.run(300, 0.5, offered);
        for level in 0..4 {
            let wanted = expected[level] * offered[level];
            assert!((found[level] - wanted).abs() < 0.02, "{offered:?}: {found:?}");
        }
    }
}

/// Five queues where CRITICAL stands, and three more: 5.25 ms each, besides the one that runs.
#[test]
fn what_fits_has_no_room_for_the_luck_of_levels_that_are_cut() {
    let mut machine = Machine::told(1);
    machine.run(300, 0.1, [2.0, 3.0, 4.0, 0.4]);
    let most = machine.limit[3];
    assert!((40.0..44.0).contains(&(most.as_secs_f64() * 1e3)), "{most:?}");
}

#[test]
fn a_level_is_touched_only_from_its_threshold_on() {
    let offered = [1.0; 4];
    for (utilization, touched) in [
        (0.5, None),
        (0.84, None),
        (0.86, Some(Sheddable)),
        (0.91, Some(Criticality::SheddablePlus)),
        (0.96, Some(Critical)),
        (1.01, Some(Criticality::CriticalPlus)),
    ] {
        let (mut now, mut shedder) =
            (Timestamp::ZERO, Shedder::new(ShedConfig::default(), Timestamp::ZERO));
        let plan = hold(&mut shedder, &mut now, 300, utilization, offered, 0.5);
        assert_eq!(plan.cut, touched, "{utilization}");
    }
}

#[test]
fn what_fits_is_served_however_short_others_make_the_cpu() {
    // Lowest first, and twice too much in all. Signals of the CPU, such as the time that threads
    // wait for one, stand at three times their targets because of somebody else.
    let offered = [15.0, 3.0, 1.0, 1.0];
    for (of_cpu, served) in [(true, 0.99..1.01), (false, 0.0..0.5)] {
        let mut machine = Machine { of_cpu, ..Machine::told(10) };
        machine.run(9_000, 3.0, offered);
        let got = machine.run(1_000, 3.0, offered);
        assert!(served.contains(&got[3]), "{got:?}, of the CPU: {of_cpu}");
        assert!(got[0] < 6.0, "{got:?}");
    }
}

#[test]
fn what_fits_is_served_where_others_leave_next_to_nothing_of_the_cpu() {
    // A fiftieth of a CPU is left: 20 requests a second. A thousand come that may be shed, and five
    // that must not.
    let mut machine = Machine { of_cpu: true, slow: 50, ..Machine::told(1) };
    let offered = [1.0, 0.0, 0.0, 0.005];
    machine.run(500, 3.0, offered);
    let got = machine.run(6_000, 3.0, offered);
    assert!(got[3] > 0.95 * offered[3], "{got:?}");
    assert!(got[0] > 0.5 * (0.02 - offered[3]), "{got:?}");
}

#[test]
fn a_stuck_signal_does_not_shut_the_task() {
    for mut machine in [Machine::new(10), Machine::told(10)] {
        // Whatever is let in gets done, and utilization does not move: a memory leak, say.
        machine.run(9_000, 3.0, [1.0; 4]);
        let served: f64 = machine.run(1_000, 3.0, [1.0; 4]).iter().sum();
        // A hundredth at the least, and not much more.
        let told = machine.told;
        assert!((0.03..0.1).contains(&served), "{served} of 4 offered, told: {told}");
        // And when the signal is well, everything gets in again within two seconds.
        let opened = (0..1_000).position(|_| !machine.tick(0.1, [1.0; 4]).0.sheds());
        assert!(opened.unwrap() <= 200, "{opened:?} ticks, told: {told}");
    }
}

#[test]
fn a_stall_does_not_make_a_large_machine_small_for_good() {
    let mut machine = Machine::told(8);
    machine.run(300, 0.1, [0.5; 4]);
    let before = machine.limit[0];
    // Everything stands still for a fifth of a second, with more than a CPU's worth waiting.
    machine.cpus = 0;
    machine.run(20, 0.1, [1.0; 4]);
    machine.cpus = 8;
    machine.run(100, 0.1, [0.0; 4]);
    // Nothing is in flight, and somebody gets in.
    assert!(machine.run(100, 0.1, [0.01; 4]).iter().all(|&cpus| cpus > 0.0));
    machine.run(6_500, 0.1, [0.1; 4]);
    let after = machine.limit[0];
    assert!(after.as_nanos() >= before.as_nanos() / 2, "{after:?}, and before {before:?}");
}

#[test]
fn requests_that_hang_do_not_shut_the_task() {
    let mut machine = Machine::new(1);
    machine.run(300, 0.5, [0.2, 0.3, 2.0, 0.5]);
    machine.hung = 2 * machine.limit[3].as_nanos() / MS.as_nanos();
    let served: f64 = machine.run(1_000, 0.5, [0.2, 0.3, 2.0, 0.5]).iter().sum();
    assert!((0.02..0.15).contains(&served), "{served} of 3 offered");
}

#[test]
fn a_stall_in_which_nothing_gets_done_is_recovered_from() {
    let mut machine = Machine::new(0);
    machine.run(200, 3.0, [1.0; 4]);
    machine.cpus = 10;
    let opened = (0..1_000).position(|_| !machine.tick(0.0, [1.0; 4]).0.sheds());
    assert!(opened.unwrap() <= 300, "{opened:?} ticks");
}

#[test]
fn a_level_that_asks_for_nothing_is_as_closed_as_one_that_asks_for_little() {
    for little in [0.0, 0.001] {
        let mut machine = Machine::new(1);
        machine.run(300, 0.5, [little, 0.0, 4.0, 0.0]);
        assert_eq!(machine.shares, [0.0, 0.0, 1.0, 1.0], "{little}");
    }
}

/// Four CPUs are asked for 1.5 by customers within their quotas, and then for 8 by one who is over.
#[test]
fn who_is_over_goes_first() {
    for (over, within_lost, later) in [(0.0, 0.4..0.7, true), (8.0 / 9.5, 0.0..0.04, false)] {
        let mut machine = Machine::told(4);
        machine.run(200, 0.1, [0.0, 0.0, 1.5, 0.0]);
        assert_eq!(machine.refused, [0, 0]);
        machine.over = over;
        let served = machine.run(100, 0.1, [0.0, 0.0, 9.5, 0.0])[2];
        assert!((3.9..4.3).contains(&served), "{served} of 4 CPUs");
        let within = 100.0 * 10.0 * 9.5 * (1.0 - over);
        let lost = machine.refused[0] as f64 / within;
        assert!(within_lost.contains(&lost), "{lost}, over: {over}");
        // After the first moments, none.
        machine.refused = [0; 2];
        machine.run(100, 0.1, [0.0, 0.0, 9.5, 0.0]);
        assert_eq!(machine.refused[0] > 0, later, "{:?}", machine.refused);
    }
}

/// Customers within their quotas who do not fit are shed as ever: the queue is no longer for them.
#[test]
fn who_is_within_and_does_not_fit_has_no_longer_queue() {
    for over in [0.0, 0.1] {
        let mut machine = Machine::told(4);
        machine.run(200, 0.1, [0.0, 0.0, 1.5, 0.0]);
        machine.over = over;
        machine.run(100, 0.1, [0.0, 0.0, 9.5, 0.0]);
        let waiting = machine.inflight().as_nanos() / MS.as_nanos() - 4;
        assert!(waiting <= 7, "{waiting} wait, over: {over}");
    }
}

#[test]
fn a_burst_that_finds_no_room_in_calm_shows_in_the_plan() {
    let mut machine = Machine::told(1);
    machine.run(200, 0.1, [0.0, 0.0, 0.5, 0.0]);
    let (before, after) =
        (machine.tick(0.1, [0.0; 4]).0, machine.tick(0.1, [0.0, 0.0, 9.0, 0.0]).0);
    assert!(!before.sheds() && before.refused == Cost::ZERO);
    assert_eq!(after.sheds(), machine.refused[0] > 0);
    assert!(after.refused > Cost::ZERO, "{after:?}");
}

#[test]
fn degraded_answers_come_before_errors() {
    let (mut now, mut shedder) =
        (Timestamp::ZERO, Shedder::new(ShedConfig::default(), Timestamp::ZERO));
    let mut step = |utilization, ticks| {
        let plan = hold(&mut shedder, &mut now, ticks, utilization, [0.2; 4], 0.8);
        (plan.degrade, plan.sheds())
    };
    assert_eq!(step(0.59, 10), ([false; 4], false));
    assert_eq!(step(0.66, 10), ([true, true, false, false], false));
    assert_eq!(step(0.84, 10), ([true; 4], false));
    // Well again: not at once, and not for a dip.
    assert_eq!(step(0.2, 50), ([true; 4], false));
    assert_eq!(step(0.2, 60), ([false; 4], false));
    assert_eq!(step(0.76, 1).0, [true; 4]);
    assert_eq!(step(0.58, 500).0, [true; 4]);
}

#[test]
fn thresholds_that_do_not_rise_are_refused() {
    for bad in [[0.9, 0.8, 1.0, 1.0], [0.0, 0.8, 1.0, 1.0], [f64::NAN, 0.8, 1.0, 1.0]] {
        assert!(ShedConfig::default().thresholds(bad).is_err());
        assert!(ShedConfig::default().degrade_from(bad).is_err());
    }
    assert!(ShedConfig::default().thresholds([1.0; 4]).is_ok());
    // Degrade before shed.
    assert!(ShedConfig::default().degrade_from([2.0; 4]).is_err());
    assert!(ShedConfig::default().thresholds([0.5; 4]).is_err());
}

#[test]
fn what_would_switch_protection_off_or_shut_the_task_is_refused() {
    let config = ShedConfig::default;
    assert!(config().floor(Ratio::ZERO).is_err());
    for set in [
        ShedConfig::offered_tau,
        ShedConfig::offered_tau_lately,
        ShedConfig::capacity_tau,
        ShedConfig::bias_tau,
        ShedConfig::horizon,
    ] {
        assert!(set(config(), Duration::ZERO).is_err());
        assert!(set(config(), Duration::from_millis(20)).is_ok());
    }
}
