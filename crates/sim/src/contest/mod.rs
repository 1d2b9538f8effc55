//! One task, one surge, and whoever decides what gets in.
//!
//! Which admission controller is best is a question of evidence. Here every contender meets the
//! same arrivals on the same machine: calm at 0.7x, a surge, calm again. What counts is written
//! down in [`Verdict`]; [`trials`] are the machines. `tidegate-bench controllers` runs them all.
//!
//! A trial is small enough to look into: one queue in front of one machine, nothing between the
//! caller and the gate. What a fleet makes of it is the business of [`crate::world`].

pub mod contenders;

use crate::dice;
use crate::world::cpu::{Cpu, Sharing};
use crate::world::spec::WorkSpec;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Criticality, Timestamp};

const LEVELS: usize = Criticality::COUNT;
/// Share of each criticality in what is offered, lowest first.
pub const MIX: [f64; LEVELS] = [0.2, 0.3, 0.4, 0.1];

/// A machine and what is asked of it.
#[derive(Debug, Clone)]
pub struct Trial {
    /// Names it.
    pub name: &'static str,
    /// Cores.
    pub cores: u32,
    /// How they are shared.
    pub sharing: Sharing,
    /// CPU time of requests.
    pub work: WorkSpec,
    /// Time that each request waits for others before it needs the CPU.
    pub waits: Duration,
    /// How long callers wait.
    pub patience: Duration,
    /// How often controllers look.
    pub tick: Duration,
    /// What refusing costs.
    pub reject_cost: Duration,
    /// The surge, as a multiple of what the machine can do.
    pub surge: f64,
    /// How long each of calm and surge lasts.
    pub lasts: Duration,
    /// Names the dice.
    pub seed: u64,
}

/// A request that asks to be let in.
#[derive(Debug, Clone, Copy)]
pub struct Asked {
    /// How much it matters.
    pub criticality: Criticality,
    /// Its number.
    pub id: u32,
}

/// What a contender says to a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Serve it.
    Admit,
    /// Refuse it.
    Refuse,
    /// It waits in the contender's own queue.
    Hold,
}

/// Who decides.
pub trait Contender {
    /// May this request in? `active` are running or ready.
    fn offer(&mut self, asked: Asked, active: usize, now: Timestamp, rng: &mut SeededRng)
    -> Answer;
    /// A request is done, having used `work` of CPU and taken `took` altogether.
    fn done(&mut self, id: u32, work: Duration, took: Duration, active: usize, now: Timestamp);
    /// Time passes; requests have used so many core-seconds since the beginning.
    fn tick(&mut self, active: usize, used: f64, now: Timestamp);
    /// The number of running or ready requests has changed.
    fn sample(&mut self, _active: usize, _now: Timestamp) {}
    /// Held requests to start, and those to refuse after all.
    fn release(
        &mut self,
        _active: usize,
        _now: Timestamp,
        _start: &mut Vec<u32>,
        _refuse: &mut Vec<u32>,
    ) {
    }
}

/// Machines of many kinds, each with surges of many sizes.
///
/// A caller waits a second, or as long as the dearest request may take. Controllers look every
/// 10 ms, and every 2 ms where requests are much shorter; refusing costs 20 us, and 2 us there.
pub fn trials(seed: u64) -> Vec<Trial> {
    let (ms, us) = (Duration::from_millis, Duration::from_micros);
    let base = Trial {
        name: "1 core, 5 ms, constant",
        cores: 1,
        sharing: Sharing::Fifo,
        work: WorkSpec::Constant(ms(5)),
        waits: Duration::ZERO,
        patience: Duration::from_secs(1),
        tick: ms(10),
        reject_cost: us(20),
        surge: 2.0,
        lasts: Duration::from_secs(10),
        seed,
    };
    let shared = Trial { sharing: Sharing::Shared, ..base.clone() };
    let exponential = |name, cores, mean: Duration| Trial {
        name,
        cores,
        work: WorkSpec::Exponential(mean),
        ..base.clone()
    };
    let rare = |usual, rare, share| WorkSpec::Rare { usual, rare, share };
    let machines = vec![
        base.clone(),
        exponential("1 core, 5 ms, exponential", 1, ms(5)),
        Trial { sharing: Sharing::Shared, ..exponential("1 core shared, 5 ms, exp.", 1, ms(5)) },
        Trial {
            name: "1 core, 2.5 or 27.5 ms",
            work: rare(us(2_500), us(27_500), 0.1),
            ..base.clone()
        },
        exponential("1 core, 1 ms, exponential", 1, ms(1)),
        Trial {
            name: "1 core, 0.2 ms, constant",
            work: WorkSpec::Constant(us(200)),
            reject_cost: us(2),
            tick: ms(2),
            lasts: Duration::from_secs(5),
            ..base.clone()
        },
        exponential("8 cores, 5 ms, exponential", 8, ms(5)),
        Trial { name: "8 cores shared, 5 ms, const.", cores: 8, ..shared.clone() },
        Trial { patience: ms(3_000), ..exponential("4 cores, 50 ms, exponential", 4, ms(50)) },
        Trial {
            name: "4 cores shared, 20 ms, log-n.",
            cores: 4,
            work: WorkSpec::LogNormal { mean: ms(20), sigma: 1.0 },
            patience: ms(10_000),
            ..shared.clone()
        },
        Trial {
            name: "8 cores shared, 15 ms or 10 s",
            cores: 8,
            work: rare(ms(15), ms(10_000), 0.001),
            patience: ms(200_000),
            lasts: Duration::from_secs(20),
            ..shared
        },
        Trial { name: "1 core, 5 ms, waits 100 ms", waits: ms(100), ..base.clone() },
        Trial { waits: ms(300), ..exponential("4 cores, 5 ms, waits 300 ms", 4, ms(5)) },
    ];
    let surges = [1.2, 2.0, 5.0, 10.0];
    let each = |machine: Trial| surges.map(|surge| Trial { surge, ..machine.clone() });
    machines.into_iter().flat_map(each).collect()
}

/// What came of a trial.
#[derive(Debug, Clone, Default)]
pub struct Verdict {
    /// Useful work during the surge over what the machine can do.
    pub goodput: f64,
    /// Share of the seconds of the surge, after its first, with less than two thirds of that.
    pub starved: f64,
    /// p99 in the surge over p99 in the calm.
    pub p99_ratio: f64,
    /// p99 in the calm before, in seconds.
    pub p99_calm: f64,
    /// Requests of the calm before that were refused, and all of them.
    pub calm_refused: (u32, u32),
    /// Share lost of the levels which fit into 90 % of what the machine can do, if any do.
    pub fitting_lost: Option<f64>,
    /// Share of `CRITICAL_PLUS` served in the surge.
    pub plus: f64,
    /// Seconds after the surge until nothing is refused and latency is below twice the calm p99.
    pub recovery: f64,
    /// Mean of running or ready requests per core in the surge.
    pub load: f64,
}

#[derive(Debug, Clone, Copy)]
struct Job {
    asked: Timestamp,
    criticality: Criticality,
    work: Duration,
    phase: u8,
}

/// Runs a trial.
pub fn run(trial: &Trial, contender: &mut dyn Contender) -> Verdict {
    let mut dice = SeededRng::new(trial.seed);
    let (mut arrivals, mut gate) = (dice.fork(), dice.fork());
    let mean = trial.work.mean();
    let cores = f64::from(trial.cores);
    let capacity = cores / mean;
    let mut cpu: Cpu<u32> = Cpu::new(trial.sharing, cores, 1.0);
    let mut jobs: Vec<Job> = Vec::new();
    let mut waiting: BinaryHeap<Reverse<(Timestamp, u32)>> = BinaryHeap::new();
    let patience = trial.patience;
    let bounds = [trial.lasts, 2 * trial.lasts, 2 * trial.lasts + Duration::from_secs(5)];
    let ends = bounds.map(|b| Timestamp::ZERO + b);
    let warm = Timestamp::ZERO + Duration::from_secs(1);
    let mut offered = [[0_u32; LEVELS]; 3];
    let mut good = [[0_u32; LEVELS]; 3];
    let mut refused = [0_u32; 3];
    let mut latencies: [Vec<f64>; 3] = Default::default();
    let mut useful = vec![0.0; (trial.lasts.as_secs() as usize).max(1)];
    let mut trouble: Vec<Timestamp> = Vec::new();
    let mut slow: Vec<(Timestamp, f64)> = Vec::new();
    let (mut load_sum, mut load_count) = (0.0, 0.0);
    let (mut start, mut refuse) = (Vec::new(), Vec::new());

    let mut chores = 0.0;
    let mut next_arrival = Timestamp::ZERO;
    let mut next_tick = Timestamp::ZERO + trial.tick;
    loop {
        let finish = cpu.next_finish().unwrap_or(Timestamp::MAX);
        let ready = waiting.peek().map_or(Timestamp::MAX, |r| r.0.0);
        let now = finish.min(next_arrival).min(next_tick).min(ready);
        if now >= ends[2] {
            break;
        }
        let phase = ends.iter().position(|&e| now < e).unwrap_or(2);
        if now == finish {
            while let Some(id) = cpu.finish(now) {
                let job = jobs[id as usize];
                let took = now.since(job.asked);
                contender.done(id, job.work, took, cpu.active(), now);
                if took <= patience {
                    good[job.phase as usize][job.criticality.index()] += 1;
                    if job.asked >= warm {
                        latencies[job.phase as usize].push(took.as_secs_f64());
                    }
                    if phase == 1 {
                        let second = now.since(ends[0]).as_secs() as usize;
                        useful[second] += job.work.as_secs_f64();
                    }
                }
                if job.phase == 2 {
                    slow.push((job.asked, took.as_secs_f64()));
                }
            }
            contender.sample(cpu.active(), now);
        } else if now == ready {
            if let Some(Reverse((_, id))) = waiting.pop() {
                cpu.start(id, jobs[id as usize].work, now);
            }
            contender.sample(cpu.active(), now);
        } else if now == next_arrival {
            let rate = capacity * if phase == 1 { trial.surge } else { 0.7 };
            next_arrival = now + dice::exponential(1.0 / rate, &mut arrivals);
            let mut draw = arrivals.unit();
            let level = MIX.iter().position(|share| {
                draw -= share;
                draw < 0.0
            });
            let criticality = Criticality::ALL[level.unwrap_or(2)];
            let work = trial.work.draw(&mut arrivals);
            let id = jobs.len() as u32;
            jobs.push(Job { asked: now, criticality, work, phase: phase as u8 });
            offered[phase][criticality.index()] += 1;
            match contender.offer(Asked { criticality, id }, cpu.active(), now, &mut gate) {
                Answer::Admit if trial.waits.is_zero() => {
                    cpu.start(id, work, now);
                    contender.sample(cpu.active(), now);
                }
                Answer::Admit => waiting.push(Reverse((now + trial.waits, id))),
                Answer::Refuse => refuse.push(id),
                Answer::Hold => {}
            }
        } else {
            next_tick = now + trial.tick;
            let used = cpu.busy(now) - chores;
            contender.tick(cpu.active(), used, now);
            if phase == 1 && now.since(ends[0]) > Duration::from_secs(1) {
                load_sum += cpu.active() as f64 / cores;
                load_count += 1.0;
            }
        }
        contender.release(cpu.active(), now, &mut start, &mut refuse);
        for id in start.drain(..) {
            cpu.start(id, jobs[id as usize].work, now);
            contender.sample(cpu.active(), now);
        }
        for id in refuse.drain(..) {
            let job = jobs[id as usize];
            cpu.chore(trial.reject_cost, now);
            chores += trial.reject_cost.as_secs_f64();
            if job.asked >= warm {
                refused[job.phase as usize] += 1;
            }
            if job.phase == 2 {
                trouble.push(job.asked);
            }
        }
    }
    let [mut calm, mut surge, _] = latencies;
    let p99 = |all: &mut Vec<f64>| {
        all.sort_by(f64::total_cmp);
        all.get(all.len() * 99 / 100).copied().unwrap_or(f64::INFINITY)
    };
    let (p99_calm, p99_surge) = (p99(&mut calm), p99(&mut surge));
    for (asked, took) in slow {
        if took > 2.0 * p99_calm {
            trouble.push(asked);
        }
    }
    // Trouble lasts until a second goes by without any.
    trouble.sort();
    let mut last_trouble = ends[1];
    for at in trouble {
        if at.since(last_trouble) < Duration::from_secs(1) {
            last_trouble = last_trouble.max(at);
        }
    }
    let (mut room, mut fitting) = (0.9, (0, 0));
    for level in (0..LEVELS).rev() {
        room -= MIX[level] * trial.surge;
        if room >= 0.0 {
            fitting.0 += offered[1][level];
            fitting.1 += good[1][level];
        }
    }
    let useful_rest = &useful[1..];
    Verdict {
        goodput: useful.iter().sum::<f64>() / trial.lasts.as_secs_f64() / cores,
        starved: useful_rest.iter().filter(|&&s| s < cores * 2.0 / 3.0).count() as f64
            / useful_rest.len().max(1) as f64,
        p99_ratio: p99_surge / p99_calm,
        p99_calm,
        calm_refused: (refused[0], offered[0].iter().sum()),
        fitting_lost: (fitting.0 > 0).then(|| 1.0 - f64::from(fitting.1) / f64::from(fitting.0)),
        plus: f64::from(good[1][3]) / f64::from(offered[1][3].max(1)),
        recovery: last_trouble.since(ends[1]).as_secs_f64(),
        load: load_sum / load_count,
    }
}
