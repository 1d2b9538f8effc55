//! How long answers take, over what they take at best.
//!
//! A program that can only be seen from outside may queue where nobody can count: in its own
//! threads, in its accept queue, behind a lock. Its answers tell: what waits takes longer. The
//! value is a gradient, the mean of the latest answers over the best mean of the last minutes:
//!
//! ```text
//! best'  = min(best x e^(elapsed / FORGET), mean)    while mean < CALM x best, or fallen
//! best'  = min(best, mean)                           else
//! fallen = rate < peak / 2 within LINGER             rate: answers per second
//! peak'  = max(peak x e^(-elapsed / FORGET), rate)
//! value  = mean / best'
//! ```
//!
//! The best is forgotten slowly, so that a release that made everything slower is not an overload
//! for ever; and mostly while answers are near it, so that in a long overload it does not follow
//! what it is to be held against.
//!
//! A service whose answers become [`CALM`] times as slow at once and for good, without any queue,
//! looks like one that is full. Shedding tells them apart: a full one goes on answering as fast as
//! it can, and what is let in beyond that is what waits; the other answers less and less as less is
//! let in, and no answer is the faster for it. So the best is also forgotten while less than half
//! of what was answered in the last minutes is, and for a little longer, so that it ends below
//! [`CALM`] and not where shedding does. A program that is full and gets done an `n`th of what it
//! did is thereby given less than `n` times as long: the peak is forgotten as fast as the best.
//!
//! When it is wrong: a service that is [`CALM`] times as slow for good and is not shed for it, as
//! that is below the target, stays so until its traffic falls by half within minutes, or until its
//! program is started anew. That is why this signal has a target of four and others decide first.

use crate::average::decay;
use crate::units::Timestamp;
use core::time::Duration;

/// Fewer answers than this say little about how long others take.
const ANSWERS_MIN: u64 = 5;
/// The best is forgotten in a few minutes.
const FORGET: Duration = Duration::from_secs(200);
/// A silence is no reason to forget: whoever comes back after a quiet night is held against what
/// was known before. Looks are ten a second, and in traffic few find no answers for that long.
const GAP_MAX: Duration = Duration::from_secs(1);
/// Beyond so many times the best it is not forgotten: this is a queue, not a slower program…
const CALM: f64 = 3.0;
/// …unless less than this share of the peak is answered. Traffic varies by less within minutes, and
/// whoever sheds for a queue that is not there goes far below.
const FALLEN: f64 = 0.5;
/// For so long after it. What is shed is let in again at 0.85 of the target or below; from there to
/// CALM it takes an eighth of FORGET, as `ln(3.4/3)` is that. Twice as long is safe.
const LINGER: Duration = Duration::from_secs(50);
/// Looks are tens of milliseconds apart and find answers enough within seconds, within a minute
/// where a hundredth of little is let in. A rate over less or more is none.
const RATE_OVER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(60));

/// Answers and how long they took together, as counters that only grow and may wrap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Answers {
    /// How many there were.
    pub count: u64,
    /// Nanoseconds from request to answer, all together.
    pub nanos: u64,
}

/// The gradient of latency: see the module's words.
#[derive(Debug, Clone, Default)]
pub struct LatencyGradient {
    /// As of the last look that had answers enough.
    last: Answers,
    best: Option<(f64, Timestamp)>,
    /// Answers per second, the most of the last minutes.
    peak: f64,
    /// When less than half of it was answered last.
    fallen_at: Option<Timestamp>,
}

impl LatencyGradient {
    /// Answers may take so many times what they take at best. Work counts as waiting from less than
    /// half of it on, so that what gets done then is known to be all that can be.
    pub const TARGET: f64 = 4.0;

    /// Knows nothing yet; counters began at zero.
    pub fn new() -> Self {
        Self::default()
    }

    /// So many answers there have been until now. The value, or nothing if there were too few since
    /// it was last known.
    pub fn record(&mut self, answers: Answers, now: Timestamp) -> Option<f64> {
        let count = answers.count.wrapping_sub(self.last.count);
        if count < ANSWERS_MIN {
            return None;
        }
        let nanos = answers.nanos.wrapping_sub(self.last.nanos);
        self.last = answers;
        // No answer takes less than a nanosecond, and nothing is divided by zero.
        let mean = (nanos as f64 / count as f64).max(1.0);
        let best = self.best.map_or(mean, |(best, at)| {
            let elapsed = now.since(at);
            let rate = count as f64 / elapsed.max(RATE_OVER.0).as_secs_f64();
            let keep = decay(elapsed.min(GAP_MAX), FORGET);
            self.peak = (self.peak * keep).max(rate);
            if rate < FALLEN * self.peak && elapsed < RATE_OVER.1 {
                self.fallen_at = Some(now);
            }
            let fallen = self.fallen_at.is_some_and(|at| now.since(at) < LINGER);
            let forgets = mean < CALM * best || fallen;
            let kept = if forgets { best / keep } else { best };
            kept.min(mean)
        });
        self.best = Some((best, now));
        Some(mean / best)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Feeds looks of so many answers, each of so many milliseconds, a tenth of a second apart.
    struct Program {
        gradient: LatencyGradient,
        answers: Answers,
        now: Timestamp,
    }

    impl Program {
        fn new() -> Self {
            let (gradient, answers) = (LatencyGradient::new(), Answers::default());
            Self { gradient, answers, now: Timestamp::from_secs(1) }
        }

        fn after(&mut self, elapsed: Duration, count: u64, millis: u64) -> Option<f64> {
            self.now += elapsed;
            self.answers.count += count;
            self.answers.nanos += count * millis * 1_000_000;
            self.gradient.record(self.answers, self.now)
        }

        fn look(&mut self, count: u64, millis: u64) -> Option<f64> {
            self.after(Duration::from_millis(100), count, millis)
        }
    }

    #[test]
    fn values_by_the_table() {
        let mut program = Program::new();
        assert_eq!(program.look(10, 20), Some(1.0), "the first is the best");
        assert!((program.look(10, 30).unwrap() - 1.5).abs() < 0.01);
        assert_eq!(program.look(10, 10), Some(1.0), "a better one");
        assert!((program.look(5, 80).unwrap() - 8.0).abs() < 0.01);
    }

    #[test]
    fn few_answers_are_kept_until_there_are_enough() {
        let mut program = Program::new();
        assert_eq!(program.look(10, 10), Some(1.0));
        assert_eq!(program.look(4, 40), None);
        assert_eq!(program.look(0, 0), None);
        // The mean of all four and of one more.
        let value = program.look(1, 90).unwrap();
        assert!((value - 5.0).abs() < 0.01, "{value}");
    }

    #[test]
    fn the_best_is_forgotten_by_time_and_not_by_looks() {
        let slower = |looks: u32| {
            let mut program = Program::new();
            program.look(10, 10);
            let each = FORGET / 2 / looks;
            (0..looks).map(|_| program.after(each, 10, 25).unwrap()).last().unwrap()
        };
        // A release made everything 2.5 times as slow. After half the time constant the best is
        // e^0.5 times what it was, after however many looks.
        for looks in [100, 400, 2_000] {
            let value = slower(looks);
            assert!((value - 2.5 / 1.648_72).abs() < 0.01, "{value} after {looks} looks");
        }
    }

    #[test]
    fn a_silence_forgets_nothing() {
        let mut program = Program::new();
        program.look(10, 10);
        let value = program.after(Duration::from_secs(8 * 3_600), 10, 25).unwrap();
        assert!((value - 2.5).abs() < 0.02, "{value}");
    }

    #[test]
    fn in_an_overload_the_best_stays() {
        let mut program = Program::new();
        program.look(10, 10);
        let last = (0..36_000).map(|_| program.look(10, 50).unwrap()).last().unwrap();
        assert!((last - 5.0).abs() < 0.01, "after an hour: {last}");
    }

    /// A release made every answer five times as slow, and nothing waits. What is seen of it has
    /// the task shed down to a hundredth, which makes no answer faster: that is no queue.
    #[test]
    fn what_is_slow_for_good_is_no_overload_for_good() {
        let mut program = Program::new();
        for _ in 0..100 {
            program.look(100, 10);
        }
        let mut value = 1.0;
        let mut shed = Vec::new();
        for second in 0..3_600 {
            // Shed from 0.85 of the target on: one answer a look instead of a hundred.
            let sheds = value >= 0.85 * LatencyGradient::TARGET;
            for _ in 0..10 {
                value = program.look(if sheds { 1 } else { 100 }, 50).unwrap_or(value);
            }
            if sheds {
                shed.push(second);
            }
        }
        assert_eq!(shed.first(), Some(&1), "five times the best is too much at first");
        assert!(shed.len() < 300 && shed.last() < Some(&300), "{:?}", shed.last());
        assert!(value < 1.1, "{value}");
    }

    /// A fifth of the capacity is left, and more is asked for all the time: what gets done is less
    /// than it was, which is forgotten, but a queue of forty times the best is not.
    #[test]
    fn an_overload_of_what_has_become_slower_is_seen_for_good() {
        let mut program = Program::new();
        for _ in 0..100 {
            program.look(100, 10);
        }
        let last = (0..36_000).map(|_| program.look(20, 400).unwrap()).last().unwrap();
        assert!((12.4..=40.0).contains(&last), "after an hour: {last}");
    }

    proptest! {
        #[test]
        fn no_counters_make_it_anything_but_a_number(
            looks in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 0..50),
        ) {
            let mut gradient = LatencyGradient::new();
            for (count, nanos, at) in looks {
                let now = Timestamp::from_nanos(at);
                if let Some(value) = gradient.record(Answers { count, nanos }, now) {
                    prop_assert!(value.is_finite() && value >= 1.0 - 1e-9, "{}", value);
                }
            }
        }
    }
}
