//! A story: phases of offered load against one task, and what came of each.

use crate::dice::exponential_by_inverse as exponential;
use crate::task::{Done, Task, TaskConfig};
use core::time::Duration;
use tidegate_core::admission::Request;
use tidegate_core::histogram::RecentHistogram;
use tidegate_core::rng::{Rng, SeededRng};
use tidegate_core::units::InvalidNumber;
use tidegate_core::{Cost, Criticality, Ratio, Timestamp};

/// A stretch of time with the same offered load.
#[derive(Debug, Clone)]
pub struct Phase {
    /// What it is called.
    pub name: &'static str,
    /// Offered load, as a multiple of what the task can do.
    pub load: f64,
    /// How long it lasts.
    pub lasts: Duration,
}

/// How the work of requests varies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Spread {
    /// All the same.
    Constant,
    /// Exponential: most are cheap, some several times the mean.
    Exponential,
    /// Nine in ten take half the mean; the tenth takes five and a half times the mean.
    Bimodal,
}

/// Everything that makes a run: the same story gives the same outcome.
#[derive(Debug, Clone)]
pub struct Story {
    /// Names the dice.
    pub seed: u64,
    /// The machine and its protection.
    pub task: TaskConfig,
    /// Mean CPU time of a request.
    pub work: Duration,
    /// How it varies.
    pub spread: Spread,
    /// Share of each criticality in what is offered, lowest first.
    pub mix: [f64; Criticality::COUNT],
    /// How long a caller waits.
    pub patience: Duration,
    /// What happens.
    pub phases: Vec<Phase>,
}

/// What came of a phase.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The phase.
    pub name: &'static str,
    /// Requests offered, by criticality, lowest first.
    pub offered: [u64; Criticality::COUNT],
    /// Requests answered in time, by criticality of those offered in this phase.
    pub good: [u64; Criticality::COUNT],
    /// Answers in time during this phase, over what the task can do.
    pub goodput: f64,
    /// 99 of 100 answers took no longer; nothing if there were none.
    pub p99: Option<Duration>,
    /// Half of the answers took no longer.
    pub p50: Option<Duration>,
    /// Requests refused.
    pub refused: u64,
    /// Highest and mean instantaneous utilization that the controller saw after the first second.
    pub utilization: (f64, f64),
    /// Answers in time in each tenth of a second, over what the task can do.
    pub curve: Vec<f64>,
    /// Requests offered in each tenth of a second, and how many of them were answered in time.
    pub answered: Vec<(u64, u64)>,
}

impl Outcome {
    /// The share of requests of `criticality` that were answered in time; all if none was offered.
    pub fn success(&self, criticality: Criticality) -> f64 {
        let i = criticality.index();
        if self.offered[i] == 0 { 1.0 } else { self.good[i] as f64 / self.offered[i] as f64 }
    }
}

struct Tally {
    outcome: Outcome,
    ends: Timestamp,
    starts: Timestamp,
    latencies: RecentHistogram,
    readings: (f64, f64, u32),
}

impl Story {
    /// Requests per second that the task can do.
    pub fn capacity(&self) -> f64 {
        f64::from(self.task.cores) / self.work.as_secs_f64()
    }

    /// Runs it.
    pub fn run(&self) -> Result<Vec<Outcome>, InvalidNumber> {
        let mut dice = SeededRng::new(self.seed);
        let (mut arrivals, mut gate_dice) = (dice.fork(), dice.fork());
        let mut task = Task::new(self.task.clone())?;
        let mut tallies: Vec<Tally> = Vec::new();
        let mut starts = Timestamp::ZERO;
        for phase in &self.phases {
            let ends = starts + phase.lasts;
            tallies.push(Tally::new(phase, starts));
            let interval = 1.0 / (self.capacity() * phase.load);
            let mut next = starts + exponential(interval, &mut arrivals);
            loop {
                let now = next.min(task.next_event());
                if now >= ends {
                    break;
                }
                if task.next_event() <= now {
                    let (done, plan) = task.advance(now);
                    if let Some(done) = done {
                        self.count(&mut tallies, &done);
                    }
                    if let (Some(plan), Some(tally)) = (plan, tallies.last_mut()) {
                        tally.saw(plan.reading.instant.get(), now);
                    }
                } else {
                    let criticality = self.criticality(&mut arrivals);
                    if let Some(tally) = tallies.last_mut() {
                        tally.outcome.offered[criticality.index()] += 1;
                        if let Some((offered, _)) = tally.tenth_of(now) {
                            *offered += 1;
                        }
                        let work = self.work(&mut arrivals);
                        let mean = self.work.as_nanos() as u64;
                        let request = Request::new(criticality, Cost::from_nanos(mean))
                            .deadline(now + self.patience);
                        let taken = task.offer(&request, work, now, &mut gate_dice);
                        tally.outcome.refused += u64::from(taken.is_err());
                    }
                    next = now + exponential(interval, &mut arrivals);
                }
            }
            starts = ends;
        }
        // What is still under way counts for the phase that asked.
        while !task.is_idle() {
            if let (Some(done), _) = task.advance(task.next_event()) {
                self.count(&mut tallies, &done);
            }
        }
        Ok(tallies.into_iter().map(|tally| tally.finish(self)).collect())
    }

    /// An answer counts for its level in the phase that asked, and as goodput when it was given.
    fn count(&self, tallies: &mut [Tally], done: &Done) {
        let latency = done.finished.since(done.arrived);
        if latency > self.patience {
            return;
        }
        for tally in tallies {
            if (tally.starts..tally.ends).contains(&done.arrived) {
                tally.outcome.good[done.criticality.index()] += 1;
                tally.latencies.record(latency.as_nanos() as u64, Timestamp::ZERO);
                if let Some((_, good)) = tally.tenth_of(done.arrived) {
                    *good += 1;
                }
            }
            if (tally.starts..tally.ends).contains(&done.finished) {
                let tenth = done.finished.since(tally.starts).as_millis() as usize / 100;
                if let Some(answers) = tally.outcome.curve.get_mut(tenth) {
                    *answers += 1.0;
                }
            }
        }
    }

    fn criticality(&self, rng: &mut impl Rng) -> Criticality {
        let mut draw = rng.unit() * self.mix.iter().sum::<f64>();
        for (criticality, share) in Criticality::ALL.into_iter().zip(self.mix) {
            if draw < share {
                return criticality;
            }
            draw -= share;
        }
        Criticality::Critical
    }

    fn work(&self, rng: &mut impl Rng) -> Duration {
        let mean = self.work.as_secs_f64();
        match self.spread {
            Spread::Constant => self.work,
            Spread::Exponential => exponential(mean, rng),
            Spread::Bimodal if rng.below(10) == 0 => Duration::from_secs_f64(mean * 5.5),
            Spread::Bimodal => Duration::from_secs_f64(mean * 0.5),
        }
    }
}

impl Tally {
    fn new(phase: &Phase, starts: Timestamp) -> Self {
        let tenths = phase.lasts.as_millis() as usize / 100;
        Self {
            outcome: Outcome {
                name: phase.name,
                offered: [0; Criticality::COUNT],
                good: [0; Criticality::COUNT],
                goodput: 0.0,
                p99: None,
                p50: None,
                refused: 0,
                utilization: (0.0, 0.0),
                curve: vec![0.0; tenths.max(1)],
                answered: vec![(0, 0); tenths.max(1)],
            },
            starts,
            ends: starts + phase.lasts,
            // Longer than any run: nothing is forgotten.
            latencies: RecentHistogram::new(Duration::from_secs(1 << 30)),
            readings: (0.0, 0.0, 0),
        }
    }

    /// Offered and answered in the tenth of a second in which a request `arrived`.
    fn tenth_of(&mut self, arrived: Timestamp) -> Option<&mut (u64, u64)> {
        let tenth = arrived.since(self.starts).as_millis() as usize / 100;
        self.outcome.answered.get_mut(tenth)
    }

    fn saw(&mut self, utilization: f64, now: Timestamp) {
        if now.since(self.starts) < Duration::from_secs(1) {
            return;
        }
        let (highest, sum, count) = &mut self.readings;
        *highest = highest.max(utilization);
        *sum += utilization;
        *count += 1;
    }

    fn finish(mut self, story: &Story) -> Outcome {
        let capacity = story.capacity();
        let per_tenth = capacity / 10.0;
        let answers: f64 = self.outcome.curve.iter().sum();
        for tenth in &mut self.outcome.curve {
            *tenth /= per_tenth;
        }
        let secs = self.ends.since(self.starts).as_secs_f64();
        self.outcome.goodput = answers / secs / capacity;
        let mut quantile = |percent| {
            self.latencies
                .quantile(Ratio::percent(percent), Timestamp::ZERO)
                // The histogram rounds up; no answer that counts took longer than this.
                .map(|nanos| Duration::from_nanos(nanos).min(story.patience))
        };
        (self.outcome.p50, self.outcome.p99) = (quantile(50), quantile(99));
        let (highest, sum, count) = self.readings;
        self.outcome.utilization = (highest, sum / f64::from(count.max(1)));
        self.outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenths_of_a_second_add_up_to_the_phase() {
        let phase = |load| Phase { name: "", load, lasts: Duration::from_secs(2) };
        let story = Story {
            seed: 3,
            task: TaskConfig { shed: None, ..TaskConfig::default() },
            work: Duration::from_millis(5),
            spread: Spread::Constant,
            mix: [1.0; 4],
            patience: Duration::from_millis(1_500),
            phases: vec![phase(2.0), phase(0.5)],
        };
        for outcome in story.run().unwrap() {
            assert_eq!(outcome.answered.len(), 20);
            let sums = outcome.answered.iter().fold((0, 0), |sum, t| (sum.0 + t.0, sum.1 + t.1));
            let (offered, good) = (outcome.offered.iter().sum(), outcome.good.iter().sum());
            assert_eq!(sums, (offered, good));
            assert!(0 < good && good < offered);
            assert!(outcome.answered.iter().all(|tenth| tenth.1 <= tenth.0));
            assert!(outcome.p99 <= Some(story.patience));
        }
    }
}
