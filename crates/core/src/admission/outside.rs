//! How busy a program is, seen from outside.
//!
//! Inside of a program one can count who is running or ready to run. From outside there are two
//! numbers: how many requests are in it, and how much CPU it uses. Together they mostly tell
//! whether work waits for a CPU:
//!
//! | requests inside | CPU used lately | work waits |
//! |---|---|---|
//! | no more than CPUs | whatever | no: each could have one of its own |
//! | more | all there is | yes |
//! | more all the time | half a CPU or less | no: requests wait for something else |
//! | more all the time | more than that, and not about one whole CPU, or two, or three | no: the same |
//! | more all the time | about one whole CPU, or two, or three, of more | perhaps: a program of one thread can use no more |
//! | more, but not all the time | less | perhaps: a queue that has just begun |
//!
//! Where it is "perhaps", and that is also where it uses nearly all, [`shed`](super::shed) goes by
//! what is in flight alone. Time in which the program could have run and somebody else did counts
//! as used: it is as busy as it can be.
//!
//! When the number of CPUs is wrong, or the machine itself is given less than it thinks, "all there
//! is" is never reached. Far below, it counts as waiting for something else: then what requests
//! take by themselves is thought longer than it is, and more is let in.

use crate::units::Timestamp;
use core::time::Duration;
use std::collections::VecDeque;

/// CPU time is counted in steps of four to ten milliseconds, so that over this long a busy CPU is
/// seen to be busy to a tenth, and most requests have come and gone.
const WINDOW: Duration = Duration::from_millis(80);
/// All there is, but for the steps of the count…
const ALL: f64 = 0.92;
/// …and clearly less: what is above may be all that there was to have.
const LESS: f64 = 0.6;
/// A program of one thread uses one CPU if it is busy, and one of four uses four. By the steps of
/// the count, by what others take and by what the system does for it, it is seen to use so much
/// less or more. To take it for one that waits for others is a grave mistake, as a queue then looks
/// like what requests take by themselves; the other mistake is a slight one.
const WHOLE: f64 = 0.3;

/// What was seen at one look.
#[derive(Debug, Clone, Copy)]
struct Look {
    at: Timestamp,
    elapsed: Duration,
    used: Duration,
    inside: f64,
}

/// Running or ready to run per CPU, as far as can be told.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct OutsideLoad {
    /// At this moment.
    pub load: f64,
    /// The least of it since the last look.
    pub least: f64,
}

/// Looks at a program from outside.
#[derive(Debug, Clone, Default)]
pub struct Outside {
    looks: VecDeque<Look>,
}

impl Outside {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The program used `used` of the CPU in the last `elapsed`, or could have, of `cpus`, and
    /// `inside` requests are in it. Nothing if it cannot be told whether work waits.
    pub fn observe(
        &mut self,
        inside: u64,
        used: Duration,
        cpus: f64,
        elapsed: Duration,
        now: Timestamp,
    ) -> Option<OutsideLoad> {
        let inside = inside as f64;
        self.looks.push_back(Look { at: now, elapsed, used, inside });
        while self.looks.front().is_some_and(|look| now.since(look.at) >= WINDOW) {
            self.looks.pop_front();
        }
        let mut sums = [0.0; 2];
        let mut least = inside;
        for look in &self.looks {
            sums[0] += look.used.as_secs_f64();
            sums[1] += look.elapsed.as_secs_f64();
            least = least.min(look.inside);
        }
        let rate = sums[0] / sums[1];
        if !(rate.is_finite() && cpus > 0.0 && cpus.is_finite()) {
            return None;
        }
        // However many threads wait for a CPU, there are no more to be had. Not look by look: the
        // clock may show nothing at one and twice as much at the next.
        let rate = rate.min(cpus);
        let share = rate / cpus;
        if inside <= cpus {
            return Some(OutsideLoad { load: inside / cpus, least: share.min(inside / cpus) });
        }
        if share >= ALL {
            return Some(OutsideLoad { load: inside / cpus, least: least.min(cpus) / cpus });
        }
        let whole = rate.round().max(1.0);
        let is_whole = (rate - whole).abs() <= WHOLE || whole == 1.0 && rate > LESS;
        let for_long = least > cpus && now.since(self.looks.front()?.at) >= WINDOW / 2;
        (share < LESS && for_long && !is_whole).then_some(OutsideLoad { load: share, least: share })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    const TICK: Duration = Duration::from_millis(10);

    /// What is said after ten looks at the same; CPU in CPUs.
    fn steady(inside: u64, rate: f64, cpus: f64) -> Option<OutsideLoad> {
        let mut outside = Outside::new();
        let mut now = Timestamp::ZERO;
        let mut said = None;
        for _ in 0..10 {
            now += TICK;
            said = outside.observe(inside, TICK.mul_f64(rate), cpus, TICK, now);
        }
        said
    }

    #[test]
    fn the_table() {
        for (inside, rate, cpus, waits) in [
            (0, 0.0, 1.0, Some(false)),
            (1, 1.0, 1.0, Some(false)),
            (2, 2.0, 4.0, Some(false)),
            (2, 1.0, 1.0, Some(true)),
            (50, 0.97, 1.0, Some(true)),
            (5, 1.9, 2.0, Some(true)),
            // Waits for a database.
            (50, 0.5, 1.0, Some(false)),
            (50, 2.4, 4.0, Some(false)),
            (50, 0.5, 4.0, Some(false)),
            // One thread, or one at a time.
            (50, 1.0, 2.0, None),
            (50, 0.75, 2.0, None),
            (50, 1.25, 4.0, None),
            (50, 1.1, 4.0, None),
            (50, 1.95, 4.0, None),
            // Neither.
            (50, 0.88, 1.0, None),
            (50, 0.7, 1.0, None),
        ] {
            let said = steady(inside, rate, cpus).map(|said| said.load > 1.0);
            assert_eq!(said, waits, "{inside} inside, {rate} of {cpus} CPUs");
        }
    }

    #[test]
    fn a_queue_that_has_just_begun_is_not_taken_for_a_wait_elsewhere() {
        let mut outside = Outside::new();
        let mut now = Timestamp::ZERO;
        for (inside, said) in [(0, true), (1, true), (9, false), (9, false)] {
            now += TICK;
            let load = outside.observe(inside, TICK / 2, 1.0, TICK, now);
            assert_eq!(load.is_some(), said, "{inside}");
        }
    }

    #[test]
    fn a_clock_in_steps_of_ten_milliseconds_will_do() {
        let mut outside = Outside::new();
        let mut now = Timestamp::ZERO;
        let tick = Duration::from_millis(7);
        let (mut burnt, mut read) = (Duration::ZERO, Duration::ZERO);
        let mut loads = Vec::new();
        for _ in 0..100 {
            now += tick;
            burnt += tick;
            let steps = burnt.as_millis() as u64 / 10 * 10;
            let used = Duration::from_millis(steps).saturating_sub(read);
            read += used;
            loads.push(outside.observe(8, used, 1.0, tick, now));
        }
        // All of it is used, and it is not taken for less.
        let waits = loads[12..].iter().flatten().filter(|said| said.load > 1.0).count();
        assert!(waits > 60, "{waits}");
        assert!(loads[12..].iter().flatten().all(|said| said.load > 1.0));
    }

    #[test]
    fn steps_that_fall_on_every_other_look_add_up() {
        let mut outside = Outside::new();
        let mut now = Timestamp::ZERO;
        for n in 0..20 {
            now += TICK;
            let used = if n % 2 == 0 { Duration::ZERO } else { 2 * TICK };
            let said = outside.observe(40, used, 1.0, TICK, now);
            let waits = said.is_none_or(|said| said.load > 1.0);
            assert!(n < 8 || waits, "look {n}: {said:?}");
        }
    }

    #[test]
    fn nonsense_says_nothing() {
        assert_eq!(steady(5, 1.0, 0.0), None);
        assert_eq!(steady(5, 1.0, f64::NAN), None);
        let mut outside = Outside::new();
        assert_eq!(outside.observe(5, TICK, 1.0, Duration::ZERO, Timestamp::ZERO), None);
    }
}
