//! When a leader does which part of a round.
//!
//! A round looks at every pair of task and customer of which something has changed. In a large
//! fleet that is all of them, every time: a million pairs take a tenth of a second and more. Done
//! at once it would keep reports waiting for as long, and have all tasks told in one burst. So a
//! round has steps of a millisecond or two, with pauses between them:
//!
//! ```text
//! pause after a step    three times what it took, but no more than the round can afford
//! a round may last      four times what the last one took, 2/5 of a report's interval at most
//! rounds begin          so often, but not more often than was configured
//! ```
//!
//! A report that arrives in the middle of one round has been seen whole when the next has come as
//! far, and is answered then: after as long as a round lasts, 2/5 of its interval however large the
//! fleet, as long as the machine can do the work at all. What is left of the interval is for the
//! way there and back, and for a machine that is late. In a fleet that is not busy everyone is told
//! at the ends of rounds, which are short then.
//!
//! **When it is wrong.** A fleet that is too much for the machine makes rounds longer than they may
//! be. Half of the time is left for reports even then: limits come later, and nobody is lost.

use core::time::Duration;

/// Of a step's own time, for others after it.
const PAUSE: u32 = 3;
/// A fleet of which a round costs more than this part of a report's interval keeps its leader busy.
/// A message costs as much as ten pairs, so it is best told in few.
const BUSY: u32 = 16;

/// Decides when the next step is.
#[derive(Debug, Clone)]
pub struct Pace {
    round_every: Duration,
    /// The most that a round may last, if the machine can do it.
    round_max: Duration,
    busy_from: Duration,
    /// What the steps of this round took, and all of the last.
    cost: Duration,
    last: Duration,
}

impl Pace {
    /// Rounds begin every `round_every` or less often, and tasks report every `report_every`.
    pub fn new(round_every: Duration, report_every: Duration) -> Self {
        Self {
            round_every,
            round_max: report_every * 2 / 5,
            busy_from: report_every / BUSY,
            cost: Duration::ZERO,
            last: Duration::ZERO,
        }
    }

    /// How long rounds are to last.
    fn span(&self) -> Duration {
        self.last.max(self.cost).saturating_mul(PAUSE + 1).min(self.round_max)
    }

    /// A step took so long. It was one of some `steps`, of which so many are `done`, and the round
    /// began `since`. Returns how long to pause.
    pub fn step(&mut self, took: Duration, since: Duration, done: usize, steps: usize) -> Duration {
        self.cost = self.cost.saturating_add(took);
        let share = done as f64 / steps.max(done).max(1) as f64;
        let due = self.span().mul_f64(share).saturating_sub(since);
        took.saturating_mul(PAUSE).min(due.max(took))
    }

    /// The step was the last of its round. Returns how long to pause until the next begins.
    pub fn end(&mut self, took: Duration, since: Duration) -> Duration {
        self.last = self.cost.saturating_add(took);
        self.cost = Duration::ZERO;
        self.span().max(self.round_every).saturating_sub(since).max(took)
    }

    /// Whether rounds cost so much that messages to tasks are best saved.
    pub fn is_busy(&self) -> bool {
        self.last > self.busy_from
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{Fleet, FleetConfig, Limits, Usage};
    use crate::units::{CostRate, Timestamp};
    use std::collections::VecDeque;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn a_small_fleet_has_its_rounds_when_they_are_due() {
        let mut pace = Pace::new(ms(250), ms(1_000));
        assert_eq!(pace.end(ms(2), ms(2)), ms(248));
        assert!(!pace.is_busy());
        // Late, as something else took long.
        assert_eq!(pace.end(ms(2), ms(300)), ms(2));
    }

    #[test]
    fn the_steps_of_a_large_one_are_spread() {
        let mut pace = Pace::new(ms(250), ms(1_000));
        // A hundred steps of 2 ms each: after two hundred they would be done in 400 ms.
        let mut now = Duration::ZERO;
        for done in 1..100 {
            now += ms(2);
            now += pace.step(ms(2), now, done, 100);
        }
        now += ms(2);
        // Nobody knew how long it would be: four times the cost so far, and that is the most.
        assert!(now > ms(390) && now <= ms(402), "{now:?}");
        assert!(pace.end(ms(2), now) <= ms(10));
        assert!(pace.is_busy());
        let mut now = Duration::ZERO;
        for done in 1..100 {
            now += ms(2);
            now += pace.step(ms(2), now, done, 100);
        }
        assert!(now > ms(390) && now <= ms(402), "{now:?}");
    }

    #[test]
    fn a_fleet_that_is_too_large_leaves_half_of_the_time_for_reports() {
        let mut pace = Pace::new(ms(250), ms(1_000));
        let mut now = Duration::ZERO;
        for done in 1..1_000 {
            now += ms(2);
            now += pace.step(ms(2), now, done, 1_000);
        }
        assert!(now >= ms(3_990) && now <= ms(4_100), "{now:?}");
    }

    /// The longest that a report waits until all of it was seen, in milliseconds, where a round has
    /// 64 steps that take so long each, and a hundred tasks report once a second, one after the
    /// other: in the first second, when nobody knows yet what a round costs, and later.
    fn seen_within(took: Duration) -> [u128; 2] {
        let start = Timestamp::from_secs(1_000);
        let mut fleet =
            Fleet::new(FleetConfig::default(), 1, Limits::ZERO, Timestamp::ZERO).unwrap();
        let limits = Limits::total(CostRate::from_cpus(1.0).unwrap());
        let customers: Vec<_> =
            (0..64).map(|n| fleet.set_customer(&format!("{n}"), limits).unwrap()).collect();
        let tasks: Vec<_> =
            (0..100).map(|n| fleet.join(&format!("{n}"), 1, start).unwrap()).collect();
        let mut pace = Pace::new(ms(250), ms(1_000));
        let (mut now, mut began, mut done, mut steps) = (Duration::ZERO, Duration::ZERO, 0, 0);
        let (mut reports, mut waiting) = (0, VecDeque::new());
        let (mut first, mut later) = (Duration::ZERO, Duration::ZERO);
        while now < ms(6_000) {
            while ms(10) * reports <= now {
                let (at, round) = (ms(10) * reports, u64::from(reports) / 100);
                let demand = [CostRate::from_nanos_per_sec(1_000 + round); 4];
                let used = demand;
                let lines =
                    customers.iter().map(|&customer| Usage { customer, used, demand, has: None });
                let task = tasks[reports as usize % 100];
                let said = fleet.report(task, None, lines, start + now).unwrap();
                waiting.push_back((said.due, at));
                reports += 1;
            }
            if done == 0 {
                (began, steps) = (now, fleet.begin(start + now).customers);
            }
            let more = fleet.step(start + now, 1, &mut Vec::new());
            now += took;
            done += 1;
            while let Some(&(_, at)) = waiting.front().filter(|(due, _)| *due <= fleet.divided()) {
                waiting.pop_front();
                let longest = if at < ms(1_000) { &mut first } else { &mut later };
                *longest = (*longest).max(now.saturating_sub(at));
            }
            let since = now.saturating_sub(began);
            now += if more { pace.step(took, since, done, steps) } else { pace.end(took, since) };
            done = if more { done } else { 0 };
        }
        assert!(waiting.iter().all(|(_, at)| *at + later >= ms(6_000)), "all others were seen");
        [first, later].map(|longest| longest.as_millis())
    }

    #[test]
    fn all_of_a_report_was_seen_after_as_long_as_a_round_may_last() {
        // Rounds of 32, 128 and 256 ms of work. Of the first there are four a second, and the last
        // has to leave as much time again for reports.
        for (took, most) in [(ms(1) / 2, 252), (ms(2), 402), (ms(4), 520)] {
            let [first, later] = seen_within(took);
            assert!(first <= 525 && later <= most, "{took:?}: {first} ms, then {later} ms");
        }
    }

    #[test]
    fn steps_that_were_not_foreseen_do_no_harm() {
        let mut pace = Pace::new(ms(250), ms(1_000));
        assert_eq!(pace.step(ms(1), ms(1), 5, 0), ms(3));
        assert_eq!(pace.step(Duration::MAX, Duration::MAX, 5, 0), Duration::MAX);
    }
}
