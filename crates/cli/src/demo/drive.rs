//! Drives one side through the script, and finds out beforehand what a service can do.
//!
//! One run of the load generator is for everyone who behaves and one for the bad customer, with
//! connections of their own. Both are connected while all is well, and exchange their course where
//! a phase ends: connections and requests under way stay as they are, as those of real callers do.
//!
//! Keys change the load of the side that is driven. What the first side got is written down and
//! given to the second at the same moments, so that both get the same.

use super::record::{BIN, Record};
use super::script::{self, PHASES, Timing, Tweak, Who};
use super::{Outcome, cpus, lock};
use core::time::Duration;
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use tidegate_core::rng;
use tidegate_load::{Handle, Load, Plan, Run, Target};

/// As few as leave no gap between two requests, so that nothing waits long.
const CALIBRATION_CALLERS: u32 = 4;
/// Connections from the start: calm needs a few of them.
const CONNECTIONS: u32 = 64;
/// How many there may be: as many as ten times the capacity needs if nobody is answered within the
/// deadline. What finds none waits for one, and is counted as not sent if it waits too long.
const CONNECTIONS_MAX: u32 = 1_000;
/// A course lasts longer than its phase by this: it is to be exchanged, not to end.
const SLACK: Duration = Duration::from_secs(5);

/// What the user has changed, and when from the beginning of the side.
pub(super) type Tape = Vec<(Duration, Tweak)>;

/// Whether tweaks come from the user or from the tape of the side before.
#[derive(Debug)]
pub(super) enum Tweaks {
    Record(Arc<Mutex<Tape>>),
    Replay(Tape),
}

/// One side and all that it takes to drive it.
#[derive(Debug)]
pub(super) struct Drive {
    pub(super) address: SocketAddr,
    pub(super) capacity: f64,
    pub(super) seed: u64,
    pub(super) timing: Timing,
    pub(super) record: Arc<Mutex<Record>>,
    /// Loads that the user wants.
    pub(super) wanted: Receiver<Tweak>,
    pub(super) tweaks: Tweaks,
}

/// Requests a second that bare services can answer, each asked without a pause: the mean of the
/// middle half of quarters of a second, as whoever else uses the machine for a moment is not the
/// service's fault, and of several services the mean.
pub(super) fn capacity(addresses: &[SocketAddr], timing: &Timing, seed: u64) -> Outcome<f64> {
    let runs = addresses.iter().map(|&address| {
        let mut plan = Plan::new(Target::loopback(address), Vec::new(), seed);
        plan.course.load = Load::Closed { duration: timing.calibration };
        plan.connections = CALIBRATION_CALLERS;
        plan.warmup = timing.warmup;
        plan.interval = BIN;
        Run::start(plan)
    });
    let runs = runs.collect::<Result<Vec<_>, _>>()?;
    let finish = |run: Run| {
        std::thread::spawn(move || -> Outcome<f64> {
            let mut counts = Vec::new();
            let told = run.finish(|interval| counts.push(interval.stats.sum(|level| level.ok)))?;
            // The last one is of what came after the end.
            counts.pop();
            let middle = middle(&mut counts) / BIN.as_secs_f64();
            // On a machine that stands still at times, answers come in few of the quarters.
            Ok(if middle > 0.0 { middle } else { told.ok_rps })
        })
    };
    let rates: Vec<_> = runs.into_iter().map(finish).collect();
    let mut sum = 0.0;
    for rate in rates {
        sum += rate.join().map_err(|_| "the calibration failed")??;
    }
    let capacity = sum / addresses.len().max(1) as f64;
    if capacity <= 0.0 {
        return Err("the service answered nobody while its capacity was to be found".into());
    }
    Ok(capacity)
}

/// The mean of the middle half: a median of counts of two dozen would be right to a few percent
/// only.
fn middle(counts: &mut [u64]) -> f64 {
    counts.sort_unstable();
    let quarter = counts.len() / 4;
    let half = &counts[quarter..counts.len() - quarter];
    half.iter().sum::<u64>() as f64 / half.len().max(1) as f64
}

/// A run of the load generator and what it takes to change it.
struct Callers {
    who: Who,
    plan: Plan,
    handle: Handle,
}

impl Drive {
    /// From the first phase to the last answer.
    pub(super) fn run(self) -> Outcome {
        let mut runs = Vec::new();
        let mut all = Vec::new();
        for who in [Who::Bad, Who::Everyone] {
            let mut plan = self.plan(who).ok_or("the mix of requests is empty")?;
            let first = (0, Tweak::NONE);
            plan.course = self.course(&plan, who, first, self.timing.ends()[0] + SLACK);
            lock(&self.record).begin(who, 0);
            let run = Run::start(plan.clone())?;
            all.push(Callers { who, plan, handle: run.handle() });
            runs.push((who, run));
        }
        lock(&self.record).phase = Some(0);
        std::thread::scope(|scope| {
            let counting: Vec<_> = runs
                .into_iter()
                .map(|(who, run)| {
                    let record = &self.record;
                    let count = move || {
                        cpus::give_way();
                        run.finish(|interval| lock(record).take(who, interval))
                    };
                    (who, scope.spawn(count))
                })
                .collect();
            self.direct(&all)?;
            for (who, thread) in counting {
                let report = thread.join().map_err(|_| "counting failed")??;
                if who == Who::Everyone {
                    lock(&self.record).generator = Some(report.generator);
                }
            }
            lock(&self.record).phase = None;
            Ok(())
        })
    }

    fn plan(&self, who: Who) -> Option<Plan> {
        let mut plan = Plan::new(Target::loopback(self.address), Vec::new(), self.seed);
        let mut route = plan.course.routes.items()[0].clone();
        route.mix = script::mix(who)?;
        plan.course.routes = tidegate_load::Weighted::only(route);
        plan.connections = CONNECTIONS;
        plan.connections_max = CONNECTIONS_MAX;
        plan.interval = BIN;
        Some(plan)
    }

    fn course(
        &self,
        plan: &Plan,
        who: Who,
        (phase, tweak): (usize, Tweak),
        lasts: Duration,
    ) -> tidegate_load::Course {
        // Each phase has dice of its own, and so has each of the two who ask.
        let seed = rng::mix(self.seed ^ ((phase as u64 + 1) << 8 | who as u64));
        let phase = (&PHASES[phase], tweak);
        script::course(plan, who, phase, (self.capacity, seed), lasts)
    }

    /// Exchanges courses where phases end, and where somebody wants it.
    fn direct(&self, all: &[Callers]) -> Outcome {
        let began = Instant::now();
        let ends = self.timing.ends();
        let last = PHASES.len() - 1;
        let (mut phase, mut tweak) = (0, Tweak::NONE);
        let mut replayed = match &self.tweaks {
            Tweaks::Record(_) => [].iter(),
            Tweaks::Replay(tape) => tape.iter(),
        }
        .copied()
        .peekable();
        loop {
            let next = replayed.peek().map_or(ends[phase], |(at, _)| (*at).min(ends[phase]));
            match self.wait(began + next) {
                Some(wanted) => {
                    // The second side gets what the first one got, and nothing else.
                    let Tweaks::Record(tape) = &self.tweaks else { continue };
                    lock(tape).push((began.elapsed(), wanted));
                    tweak = wanted;
                    lock(&self.record).changed[phase] = true;
                }
                None if next < ends[phase] => {
                    tweak = replayed.next().map_or(tweak, |(_, tweak)| tweak);
                    lock(&self.record).changed[phase] = true;
                }
                None => {
                    lock(&self.record).over = phase + 1;
                    if phase == last {
                        return Ok(());
                    }
                    phase += 1;
                    let mut record = lock(&self.record);
                    record.phase = Some(phase);
                    record.changed[phase] |= tweak != Tweak::NONE;
                }
            }
            let rest = ends[phase].saturating_sub(began.elapsed());
            let lasts = if phase == last { rest } else { rest + SLACK };
            for callers in all {
                let course = self.course(&callers.plan, callers.who, (phase, tweak), lasts);
                lock(&self.record).begin(callers.who, phase);
                callers.handle.switch(course)?;
            }
        }
    }

    /// What the user wants next, if that comes before `end`.
    fn wait(&self, end: Instant) -> Option<Tweak> {
        let rest = end.saturating_duration_since(Instant::now());
        match self.wanted.recv_timeout(rest) {
            Ok(tweak) => Some(tweak),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                std::thread::sleep(end.saturating_duration_since(Instant::now()));
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_by_hand() {
        let table = [
            (&[][..], 0.0),
            (&[3], 3.0),
            (&[9, 1, 4], 14.0 / 3.0),
            (&[4, 1, 90, 5], 4.5),
            (&[0, 0, 7, 7, 8, 9, 99, 99], 7.75),
        ];
        for (counts, expected) in table {
            assert_eq!(middle(&mut counts.to_vec()), expected, "{counts:?}");
        }
    }
}
