//! How long answers take, over what they take at best.
//!
//! A program that can only be seen from outside may queue where nobody can count: in its own
//! threads, in its accept queue, behind a lock. Its answers tell: what waits takes longer. The
//! value is a gradient, the mean of the latest answers over the best mean of the last minutes:
//!
//! ```text
//! best'  = min(best x e^(elapsed / FORGET), mean)    while mean < CALM x best
//! best'  = min(best, mean)                           else
//! value  = mean / best'
//! ```
//!
//! The best is forgotten slowly, so that a release that made everything slower is not an overload
//! for ever; and only while answers are near it, so that in a long overload it does not follow what
//! it is to be held against. What that cannot tell apart is a service whose answers become
//! [`CALM`] times as slow at once and for good, without any queue: it is taken for full until its
//! program is started anew, or until a look finds it near its best again. That is why this signal
//! has a target of four and others decide first.

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
/// Beyond so many times the best it is not forgotten: this is a queue, not a slower program.
const CALM: f64 = 3.0;

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
            let grown = best / decay(now.since(at).min(GAP_MAX), FORGET);
            let kept = if mean < CALM * best { grown } else { best };
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
