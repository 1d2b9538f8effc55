//! One task, one surge, and whoever decides what gets in.
//!
//! Which admission controller is best is a question of evidence. Here every contender meets the
//! same arrivals on the same machine: calm at 0.7x, a surge, calm again. What counts is written
//! down in [`Verdict`]; [`trials`] are the machines. `tidegate-bench controllers` runs them all.
//!
//! A trial is small enough to look into: one queue in front of one machine, nothing between the
//! caller and the gate. What a fleet makes of it is the business of [`crate::world`].

pub mod contenders;
mod trials;

pub use trials::trials;

use crate::dice;
use crate::world::cpu::{Cpu, Sharing};
use crate::world::spec::WorkSpec;
use core::time::Duration;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::{Criticality, Timestamp};

const LEVELS: usize = Criticality::COUNT;
/// Offered load in calm, as a multiple of what the machine can do.
pub const CALM: f64 = 0.7;
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
    /// Share of the answers in the surge that a lower level got while a higher one went without.
    pub inverted: f64,
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
    phase: usize,
}

/// Phases: calm, surge, calm again.
const PHASES: usize = 3;
/// How long the last phase is watched.
const AFTER: Duration = Duration::from_secs(5);
/// What happens before is not judged.
const WARM: Timestamp = Timestamp::from_secs(1);
/// Trouble lasts until this long goes by without any.
const QUIET: Duration = Duration::from_secs(1);

/// A trial under way.
struct Stage<'a> {
    trial: &'a Trial,
    contender: &'a mut dyn Contender,
    cpu: Cpu<u32>,
    jobs: Vec<Job>,
    /// Those that wait for others, by when they come back.
    away: BinaryHeap<Reverse<(Timestamp, u32)>>,
    /// When each phase ends.
    ends: [Timestamp; PHASES],
    arrivals: SeededRng,
    gate: SeededRng,
    /// CPU time of refusals.
    chores: f64,
    offered: [[u32; LEVELS]; PHASES],
    good: [[u32; LEVELS]; PHASES],
    refused: [u32; PHASES],
    latencies: [Vec<(Timestamp, f64)>; PHASES],
    /// Useful work by second of the surge.
    useful: Vec<f64>,
    /// When requests were refused after the surge.
    trouble: Vec<Timestamp>,
    loads: (f64, f64),
}

/// Runs a trial.
pub fn run(trial: &Trial, contender: &mut dyn Contender) -> Verdict {
    let mut dice = SeededRng::new(trial.seed);
    let bounds = [trial.lasts, 2 * trial.lasts, 2 * trial.lasts + AFTER];
    let mut stage = Stage {
        trial,
        contender,
        cpu: Cpu::new(trial.sharing, f64::from(trial.cores), 1.0),
        jobs: Vec::new(),
        away: BinaryHeap::new(),
        ends: bounds.map(|bound| Timestamp::ZERO + bound),
        arrivals: dice.fork(),
        gate: dice.fork(),
        chores: 0.0,
        offered: [[0; LEVELS]; PHASES],
        good: [[0; LEVELS]; PHASES],
        refused: [0; PHASES],
        latencies: Default::default(),
        useful: vec![0.0; (trial.lasts.as_secs() as usize).max(1)],
        trouble: Vec::new(),
        loads: (0.0, 0.0),
    };
    stage.play();
    stage.verdict()
}

impl Stage<'_> {
    fn play(&mut self) {
        let mut arrival = Timestamp::ZERO;
        let mut tick = Timestamp::ZERO + self.trial.tick;
        let (mut start, mut refuse) = (Vec::new(), Vec::new());
        loop {
            let finish = self.cpu.next_finish().unwrap_or(Timestamp::MAX);
            let back = self.away.peek().map_or(Timestamp::MAX, |next| next.0.0);
            let now = finish.min(arrival).min(tick).min(back);
            let Some(phase) = self.ends.iter().position(|&end| now < end) else { return };
            if now == finish {
                while let Some(id) = self.cpu.finish(now) {
                    self.done(id, phase, now);
                }
                self.contender.sample(self.cpu.active(), now);
            } else if now == back {
                start.extend(self.away.pop().map(|next| next.0.1));
            } else if now == arrival {
                arrival = now + self.interval(phase);
                let asked = self.ask(phase, now);
                let active = self.cpu.active();
                match self.contender.offer(asked, active, now, &mut self.gate) {
                    Answer::Admit if self.trial.waits.is_zero() => start.push(asked.id),
                    Answer::Admit => self.away.push(Reverse((now + self.trial.waits, asked.id))),
                    Answer::Refuse => refuse.push(asked.id),
                    Answer::Hold => {}
                }
            } else {
                tick = now + self.trial.tick;
                self.tick(phase, now);
            }
            let running = self.cpu.active() + start.len();
            self.contender.release(running, now, &mut start, &mut refuse);
            for id in start.drain(..) {
                self.cpu.start(id, self.jobs[id as usize].work, now);
                self.contender.sample(self.cpu.active(), now);
            }
            for id in refuse.drain(..) {
                self.refuse(id, now);
            }
        }
    }

    fn interval(&mut self, phase: usize) -> Duration {
        let load = if phase == 1 { self.trial.surge } else { CALM };
        let capacity = f64::from(self.trial.cores) / self.trial.work.mean();
        dice::exponential(1.0 / (capacity * load), &mut self.arrivals)
    }

    fn ask(&mut self, phase: usize, now: Timestamp) -> Asked {
        let mut draw = self.arrivals.unit();
        let level = MIX.iter().position(|share| {
            draw -= share;
            draw < 0.0
        });
        let criticality = Criticality::ALL[level.unwrap_or(LEVELS - 1)];
        let work = self.trial.work.draw(&mut self.arrivals);
        self.offered[phase][criticality.index()] += 1;
        self.jobs.push(Job { asked: now, criticality, work, phase });
        Asked { criticality, id: self.jobs.len() as u32 - 1 }
    }

    fn done(&mut self, id: u32, phase: usize, now: Timestamp) {
        let job = self.jobs[id as usize];
        let took = now.since(job.asked);
        self.contender.done(id, job.work, took, self.cpu.active(), now);
        if took > self.trial.patience {
            return;
        }
        self.good[job.phase][job.criticality.index()] += 1;
        if job.asked >= WARM {
            self.latencies[job.phase].push((job.asked, took.as_secs_f64()));
        }
        if phase == 1 {
            let second = now.since(self.ends[0]).as_secs() as usize;
            self.useful[second] += job.work.as_secs_f64();
        }
    }

    fn refuse(&mut self, id: u32, now: Timestamp) {
        let job = self.jobs[id as usize];
        self.cpu.chore(self.trial.reject_cost, now);
        self.chores += self.trial.reject_cost.as_secs_f64();
        if job.asked >= WARM {
            self.refused[job.phase] += 1;
        }
        if job.phase == 2 {
            self.trouble.push(job.asked);
        }
    }

    fn tick(&mut self, phase: usize, now: Timestamp) {
        let used = self.cpu.busy(now) - self.chores;
        self.contender.tick(self.cpu.active(), used, now);
        if phase == 1 && now.since(self.ends[0]) > Duration::from_secs(1) {
            self.loads.0 += self.cpu.active() as f64 / f64::from(self.trial.cores);
            self.loads.1 += 1.0;
        }
    }

    fn verdict(mut self) -> Verdict {
        let cores = f64::from(self.trial.cores);
        let p99 = |latencies: &[(Timestamp, f64)]| {
            let mut all: Vec<f64> = latencies.iter().map(|(_, took)| *took).collect();
            all.sort_by(f64::total_cmp);
            all.get(all.len() * 99 / 100).copied().unwrap_or(f64::INFINITY)
        };
        let p99_calm = p99(&self.latencies[0]);
        let slow = self.latencies[2].iter().filter(|(_, took)| *took > 2.0 * p99_calm);
        self.trouble.extend(slow.map(|(asked, _)| *asked));
        self.trouble.sort();
        let well = self.trouble.iter().fold(self.ends[1], |last, &at| {
            if at.since(last) < QUIET { last.max(at) } else { last }
        });
        let (mut room, mut fitting) = (0.9, (0, 0));
        for level in (0..LEVELS).rev() {
            room -= MIX[level] * self.trial.surge;
            if room >= 0.0 {
                fitting.0 += self.offered[1][level];
                fitting.1 += self.good[1][level];
            }
        }
        let all: u32 = self.good[1].iter().sum();
        let (mut unused, mut inverted) = (all, 0);
        for level in (0..LEVELS).rev() {
            let due = unused.min(self.offered[1][level]);
            inverted += self.good[1][level].saturating_sub(due);
            unused -= due;
        }
        let rest = &self.useful[1..];
        let starved = rest.iter().filter(|&&second| second < cores * 2.0 / 3.0).count();
        let plus = LEVELS - 1;
        Verdict {
            goodput: self.useful.iter().sum::<f64>() / self.trial.lasts.as_secs_f64() / cores,
            starved: starved as f64 / rest.len().max(1) as f64,
            p99_ratio: p99(&self.latencies[1]) / p99_calm,
            p99_calm,
            calm_refused: (self.refused[0], self.offered[0].iter().sum()),
            fitting_lost: (fitting.0 > 0)
                .then(|| 1.0 - f64::from(fitting.1) / f64::from(fitting.0)),
            inverted: f64::from(inverted) / f64::from(all.max(1)),
            plus: f64::from(self.good[1][plus]) / f64::from(self.offered[1][plus].max(1)),
            recovery: well.since(self.ends[1]).as_secs_f64(),
            load: self.loads.0 / self.loads.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::contenders::{Bare, Queue, Tidegate};
    use super::*;

    /// The promises, as far as they can be kept on every machine with one seed: nobody starves,
    /// what fits is served, calm traffic passes.
    #[test]
    fn tidegate_keeps_every_machine_busy_with_what_matters() {
        for trial in trials(1) {
            let mut tidegate = Tidegate::new(trial.cores, trial.work.mean());
            let verdict = run(&trial, &mut tidegate);
            let what = format!("{} at {}x: {verdict:?}", trial.name, trial.surge);
            let refused = f64::from(verdict.calm_refused.0) / f64::from(verdict.calm_refused.1);
            assert!(refused <= 0.02, "{what}");
            // 10 s in a hundred thousand are too few to measure goodput by.
            let rare = matches!(trial.work, WorkSpec::Rare { rare, .. } if rare.as_secs() > 1);
            assert!(rare || verdict.goodput >= 0.75 && verdict.starved == 0.0, "{what}");
            assert!(verdict.fitting_lost.is_none_or(|lost| lost <= 0.02), "{what}");
            // Worst where a level asks for just what there is: its queue wanders to its limit.
            assert!(rare || verdict.p99_ratio <= 4.5, "{what}");
            assert!(rare || verdict.recovery <= 3.0, "{what}");
        }
    }

    #[test]
    fn bare_machines_collapse_and_a_queue_by_criticality_does_not() {
        let surge = |trial: &Trial| trial.surge == 5.0 && trial.waits.is_zero();
        for trial in trials(1).into_iter().filter(surge).take(3) {
            let bare = run(&trial, &mut Bare);
            assert!(bare.goodput < 0.3 && bare.calm_refused.0 == 0, "{} {bare:?}", trial.name);
            let queue = run(&trial, &mut Queue::new(trial.cores, 7));
            assert!(queue.goodput > 0.9 && queue.plus > 0.95, "{} {queue:?}", trial.name);
        }
    }

    #[test]
    fn the_same_trial_comes_out_the_same() {
        let trial = &trials(3)[1];
        let twice = [(); 2].map(|()| run(trial, &mut Tidegate::new(1, 0.005)));
        assert_eq!(format!("{:?}", twice[0]), format!("{:?}", twice[1]));
    }
}
