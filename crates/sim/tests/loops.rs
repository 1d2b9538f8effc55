//! The admission controller in loops that are harder than a queue in front of a CPU: requests that
//! wait for others first, requests that are long or rarely very dear, signals that only confirm,
//! dark mode.
#![allow(clippy::unwrap_used, clippy::many_single_char_names, clippy::too_many_lines)]

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;
use tidegate_core::admission::shed::ShedConfig;
use tidegate_core::admission::{AdmissionGate, Controller, Decision, Permit, Request, Seen};
use tidegate_core::attempts::AttemptsConfig;
use tidegate_core::decision::Cause;
use tidegate_core::quota::QuotaConfig;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::signal::{Combine, LoadAverage, Role, Signal, Signals, Slope};
use tidegate_core::{Cost, Criticality, Timestamp};
use tidegate_sim::story::{Phase, Spread, Story};
use tidegate_sim::task::TaskConfig;

#[derive(Clone)]
struct World {
    cores: usize,
    /// Work by draw.
    work: fn(&mut SeededRng) -> Duration,
    mean: Duration,
    estimate: Duration,
    /// Waits this long for others before it needs the CPU.
    wait: Duration,
    load: f64,
    secs: u64,
    /// What happens before is not judged.
    settle: u64,
    dark: bool,
    cpu_signal: bool,
    seed: u64,
}

#[derive(Debug, Default)]
struct Report {
    /// Share of core time busy, by second.
    busy: Vec<f64>,
    offered: [u64; 4],
    refused: [u64; 4],
    would_refuse: u64,
    /// Rejections by signal whose utilization was below the threshold they cite.
    lies: u64,
    overload_rejections: u64,
    /// After the time to settle, in tasks per core.
    max_load: f64,
    load_sum: f64,
    load_count: f64,
    latencies: Vec<f64>,
    opened: u64,
}

fn run(world: &World) -> Report {
    let mut rng = SeededRng::new(world.seed);
    let shed = ShedConfig::default().cpus(world.cores as f64).unwrap();
    let mut quota = QuotaConfig::default();
    quota.customers_max = 4;
    let gate = AdmissionGate::new(quota);
    gate.set_dark(world.dark);
    let mut lane = gate.lane();
    let mut controller = Controller::new(shed, AttemptsConfig::default(), &gate, Timestamp::ZERO);
    let mut signals = Signals::new(Combine::Highest);
    let load_id = signals.register(Signal::new("load", 16.0).unwrap()).unwrap();
    let cpu_id = world.cpu_signal.then(|| {
        signals.register(Signal::new("cpu", 0.8).unwrap().role(Role::Confirming)).unwrap()
    });
    let cores = world.cores as f64;
    let mut load = LoadAverage::new(LoadAverage::TAU_DEFAULT, cores, Timestamp::ZERO).unwrap();
    let mut cpu = Slope::new(Duration::from_millis(100), cores).unwrap();
    let (mut busy_total, mut used_seen) = (Duration::ZERO, Duration::ZERO);

    // Events: (time, number); jobs by number.
    let mut waits: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut runs: BinaryHeap<Reverse<(u64, usize)>> = BinaryHeap::new();
    let mut ready: VecDeque<usize> = VecDeque::new();
    let mut jobs: Vec<Option<(Duration, Permit, u64)>> = Vec::new();
    let mut report = Report { busy: vec![0.0; world.secs as usize], ..Report::default() };
    let interval = world.mean.as_secs_f64() / cores / world.load;
    let mut arrival = 0_u64;
    let mut tick = 10_000_000_u64;
    let end = world.secs * 1_000_000_000;
    let mut last = 0_u64;
    let mut was_open = true;
    loop {
        let w = waits.peek().map_or(u64::MAX, |r| r.0.0);
        let r = runs.peek().map_or(u64::MAX, |r| r.0.0);
        let now = arrival.min(tick).min(w).min(r);
        if now >= end {
            break;
        }
        let t = Timestamp::from_nanos(now);
        let busy = (now - last) as f64 * runs.len() as f64;
        report.busy[(last / 1_000_000_000) as usize] += busy / 1e9 / cores;
        busy_total += Duration::from_nanos(busy as u64);
        last = now;
        if now == r {
            let Reverse((_, i)) = runs.pop().unwrap();
            let (work, permit, arrived) = jobs[i].take().unwrap();
            report.latencies.push((now - arrived) as f64 / 1e6);
            lane.complete(permit, Cost::from_nanos(work.as_nanos() as u64), t);
        } else if now == w {
            let Reverse((_, i)) = waits.pop().unwrap();
            ready.push_back(i);
        } else if now == arrival {
            let c = match rng.below(10) {
                0 | 1 => 0,
                2..=4 => 1,
                5..=8 => 2,
                _ => 3,
            };
            let work = (world.work)(&mut rng);
            report.offered[c] += 1;
            let cost = Cost::from_nanos(world.estimate.as_nanos() as u64);
            match lane.admit(&Request::new(Criticality::ALL[c], cost), t, &mut rng) {
                Decision::Admit(permit) => {
                    report.would_refuse += u64::from(permit.would_reject().is_some());
                    let i = jobs.len();
                    jobs.push(Some((work, permit, now)));
                    if world.wait.is_zero() {
                        ready.push_back(i);
                    } else {
                        waits.push(Reverse((now + world.wait.as_nanos() as u64, i)));
                    }
                }
                Decision::Reject(rejection) => {
                    report.refused[c] += 1;
                    report.overload_rejections += 1;
                    if let Some(Cause::Signal { utilization, threshold, .. }) = rejection.cause {
                        report.lies += u64::from(utilization < threshold);
                    }
                }
            }
            let gap = -interval * (1.0 - rng.unit()).ln();
            arrival = now + (gap * 1e9) as u64 + 1;
        }
        while runs.len() < world.cores {
            let Some(i) = ready.pop_front() else { break };
            let work = jobs[i].as_ref().unwrap().0.as_nanos() as u64;
            runs.push(Reverse((now + work, i)));
        }
        let active = (ready.len() + runs.len()) as u64;
        let smoothed = load.record(active, t);
        signals.record_smoothed(load_id, smoothed, active as f64 / cores, t);
        if now == tick {
            if let Some(id) = cpu_id
                && let Some(value) = cpu.record(busy_total, t)
            {
                signals.record(id, value, t);
            }
            if now >= world.settle * 1_000_000_000 {
                report.max_load = report.max_load.max(smoothed);
                report.load_sum += smoothed;
                report.load_count += 1.0;
            }
            let used = Cost::from_nanos(busy_total.saturating_sub(used_seen).as_nanos() as u64);
            used_seen = busy_total;
            let seen = Seen::new(signals.reading(t)).load(active as f64 / cores).used(used);
            let plan = controller.tick(&gate, seen, t);
            let open = !plan.sheds();
            report.opened += u64::from(open && !was_open);
            was_open = open;
            tick += 10_000_000;
        }
    }
    report.latencies.sort_by(f64::total_cmp);
    report
}

fn exponential(mean: f64, rng: &mut SeededRng) -> Duration {
    Duration::from_secs_f64(-mean * (1.0 - rng.unit()).ln())
}

const CALM: World = World {
    cores: 1,
    work: |rng| exponential(0.005, rng),
    mean: Duration::from_millis(5),
    estimate: Duration::from_millis(5),
    wait: Duration::ZERO,
    load: 0.7,
    secs: 30,
    settle: 5,
    dark: false,
    cpu_signal: false,
    seed: 1,
};

fn settled(report: &Report) -> (f64, f64) {
    settled_after(report, 5)
}

fn settled_after(report: &Report, secs: usize) -> (f64, f64) {
    let busy = &report.busy[secs..];
    let mean = busy.iter().sum::<f64>() / busy.len() as f64;
    (mean, busy.iter().copied().fold(f64::MAX, f64::min))
}

#[test]
fn long_requests_keep_the_queue_at_what_it_should_be() {
    for load in [2.0, 10.0] {
        let mut world = World { cores: 4, load, secs: 120, ..CALM };
        (world.mean, world.estimate) = (Duration::from_millis(500), Duration::from_millis(500));
        world.work = |_| Duration::from_millis(500);
        let report = run(&world);
        let mean = report.load_sum / report.load_count;
        // One running, a quarter and a quarter of 5 waiting: 2.5 at the threshold of the highest,
        // 2.3 at that of the lowest. At 10x the highest asks for all that there is, and its queue
        // wanders up to 2.5 times as long.
        assert!((2.0..4.5).contains(&mean), "{load}x: load {mean}");
        assert!(settled(&report).1 > 0.95, "{load}x: {:?}", settled(&report));
    }
}

#[test]
fn rare_dear_requests_do_not_make_the_task_refuse_the_cheap() {
    for (cores, load) in [(4, 2.0), (8, 2.0), (8, 10.0), (32, 2.0)] {
        // 15 ms usually, 10 s one time in a thousand: 25 ms in the mean.
        let mut world = World { cores, load, secs: 120, ..CALM };
        world.mean = Duration::from_millis(25);
        world.estimate = Duration::from_millis(15);
        world.work = |rng| Duration::from_millis(if rng.below(1_000) == 0 { 10_000 } else { 15 });
        let (mean, worst) = settled(&run(&world));
        assert!(mean > 0.95 && worst > 0.8, "{cores} cores at {load}x: busy {mean}, {worst}");
    }
}

/// Utilization shows what was admitted only after the wait. However long that is, the cores stay
/// busy, and no second goes by in which they are idle for more than a third.
#[test]
fn requests_that_wait_for_others_first_do_not_make_it_swing() {
    for wait_ms in [0, 100, 300, 1_000] {
        for load in [1.5, 2.0, 10.0] {
            let wait = Duration::from_millis(wait_ms);
            let world = World { wait, load, secs: 120, settle: 30, ..CALM };
            let report = run(&world);
            let (mean, worst) = settled_after(&report, 30);
            let what = format!("{wait_ms} ms of waiting at {load}x: busy {mean}, {worst}");
            assert!(mean > 0.95 && worst > 0.67, "{what}");
            if wait_ms == 0 {
                let load = report.load_sum / report.load_count;
                // One running and 5.25 waiting, times the threshold.
                assert!((4.5..7.5).contains(&load), "{what}, load {load}");
            }
        }
    }
}

#[test]
fn a_confirming_signal_refuses_nobody_by_itself() {
    for load in [0.5, 0.7] {
        let confirmed = run(&World { load, cpu_signal: true, ..CALM });
        assert_eq!(confirmed.refused.iter().sum::<u64>(), 0, "{load}x");
    }
}

/// At 2x half would be refused. What dark mode says must be near that, or it is of no use.
#[test]
fn dark_mode_tells_what_would_be_refused() {
    let report = run(&World { load: 2.0, dark: true, secs: 20, ..CALM });
    let would = report.would_refuse as f64 / report.offered.iter().sum::<u64>() as f64;
    assert!((0.4..0.6).contains(&would), "{would}");
}

#[test]
fn a_rejection_cites_a_threshold_that_was_passed() {
    let report = run(&World { load: 2.0, ..CALM });
    assert_eq!(report.lies, 0, "of {} rejections", report.overload_rejections);
}

#[test]
fn a_phase_without_load_is_a_pause() {
    let phase = |load| Phase { name: "", load, lasts: Duration::from_secs(2) };
    let story = Story {
        seed: 1,
        task: TaskConfig::default(),
        work: Duration::from_millis(5),
        spread: Spread::Constant,
        mix: [1.0; 4],
        patience: Duration::from_secs(1),
        phases: vec![phase(0.5), phase(0.0), phase(0.5)],
    };
    let outcomes = story.run().unwrap();
    assert_eq!(outcomes[1].offered, [0; 4]);
    assert!(outcomes[2].goodput > 0.4);
}
