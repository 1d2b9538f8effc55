//! Is it only us? What attempt numbers tell a task about its fleet.
//!
//! A task that refuses a request has to say what to do with it: try another task, or don't retry.
//! It cannot see the others, but it sees their refusals: every request carries its attempt number,
//! and a second attempt that arrives here was refused somewhere else.
//!
//! Let a share `p` of the fleet refuse everything, and let clients send what was refused to another
//! task at random, up to three attempts. Of `n1` first attempts per task, `p n1` come back as
//! second ones, spread evenly again, and `p` of those as third ones:
//!
//! ```text
//! n1 : n2 : n3 = 1 : p : p^2           p = (n2 + n3) / (n1 + n2)
//! ```
//!
//! The estimate is a proportion: of the `n1 + n2` attempts that could have been followed by
//! another, how many were. Per 1,000 first attempts it looks like this:
//!
//! | full tasks | second | third |
//! |---|---|---|
//! | 1 % | 10 | 0.1 |
//! | 10 % | 100 | 10 |
//! | 50 % | 500 | 250 |
//! | 90 % | 900 | 810 |
//!
//! # From when on
//!
//! A second attempt is worth its cost while it mostly succeeds. With three attempts a request fails
//! with chance `p^3`, and the fleet sees `1 + p + p^2` attempts for each:
//!
//! | full tasks | attempts per request | fail after three | fail after one |
//! |---|---|---|---|
//! | 10 % | 1.11 | 0.1 % | 10 % |
//! | 25 % | 1.31 | 1.6 % | 25 % |
//! | 50 % | 1.75 | 12.5 % | 50 % |
//!
//! At a tenth retries rescue nearly everything for next to nothing, and "don't retry" would turn
//! that into errors. At a quarter they add a third to the load of a fleet that has lost a quarter
//! of its tasks; that is where they stop being cheap, and where the default threshold lies.
//!
//! Clients that keep a [retry budget](crate::retry) never show that much: they retry a tenth of
//! their requests however bad things are. Each refusal is then retried with some chance `g` instead
//! of always, where `g + g^2 = 0.1`, so the estimate ends at `g = 0.1 / 1.092 = 0.092` even if
//! every task is full. They are not told to stop, and need not be: the budget bounds what their
//! retries cost. The advice is for clients without one.
//!
//! # When it is wrong
//!
//! - **Few samples.** By chance 3 of 20 requests are retries now and then. To say "don't retry" the
//!   estimate must reach the threshold *and*, lowered by two standard errors, lie above the level
//!   at which the advice is taken back. When in doubt the task invites retries: the clients'
//!   budgets bound what that can cost.
//! - **The advice destroys its evidence.** If all tasks say "don't retry", retries cease, and one
//!   window later each task invites them again. If the fleet is still full they come, as far as
//!   budgets allow, and are turned away again. That is how the end of an overload is noticed.
//! - **Lies.** A client that sends every request as a third attempt makes this task say "don't
//!   retry". It gains nothing by it, and others lose retries, not service. Numbers are only
//!   believed from peers whose headers are believed.
//! - **Subsets.** Clients of a small subset that is full see more refusals than the fleet's share.

use crate::decision::Advice;
use crate::units::{Ratio, Timestamp};
use crate::window::Window;
use core::time::Duration;

/// Steps in which the window forgets: a tenth of it, a second by default.
const BUCKETS: usize = 10;

/// Standard errors by which the estimate is lowered: with two, chance alone gets past one time in
/// forty.
const STANDARD_ERRORS: f64 = 2.0;

/// How a task reads its attempt numbers. Start from [`AttemptsConfig::default`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttemptsConfig {
    /// The share of full tasks from which on a refusal says "don't retry": 25 %, where a second
    /// attempt stops being cheap. Below 9.2 % it would also stop clients whose budget of 10 % is
    /// used up, which looks the same whether a tenth of the fleet is full or all of it: too often
    /// that takes away retries that would have succeeded.
    pub threshold: Ratio,
    /// How far back attempts are counted: ten seconds. As long as clients keep unused retries, so
    /// that the burst of them with which an overload begins is seen as a whole; and at 20 attempts
    /// a second just long enough to tell 25 % from the 19 % at which the advice is taken back.
    pub window: Duration,
    /// The least number of first and second attempts to judge by: 30, below which a standard error
    /// means little.
    pub samples_min: u64,
}

impl Default for AttemptsConfig {
    fn default() -> Self {
        Self { threshold: Ratio::percent(25), window: Duration::from_secs(10), samples_min: 30 }
    }
}

impl AttemptsConfig {
    /// The share below which the advice is taken back: three quarters of the threshold. Any gap
    /// keeps the advice from flapping; this one lies at twice the 9.2 % that budgets alone show.
    fn release(&self) -> f64 {
        self.threshold.get() * 0.75
    }
}

/// How much of the fleet seems to be full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FleetOverload {
    /// The share of tasks that refuse, as far as retries show it.
    pub share: Ratio,
    /// First and second attempts that this rests on.
    pub samples: u64,
}

impl FleetOverload {
    /// The share, lowered by what may be chance.
    fn share_at_least(self) -> f64 {
        let share = self.share.get();
        let variance = share * (1.0 - share) / self.samples.max(1) as f64;
        share - STANDARD_ERRORS * variance.sqrt()
    }
}

/// The recent attempt numbers of one task, and what they say about the others.
///
/// This is a controller. Threads count attempts 1, 2 and 3 or more in counters of their own; the
/// tick of the task's admission feeds them in and publishes the advice.
///
/// ```
/// use tidegate_core::Timestamp;
/// use tidegate_core::attempts::{AttemptHistogram, AttemptsConfig};
/// use tidegate_core::decision::Advice;
///
/// let mut attempts = AttemptHistogram::new(AttemptsConfig::default());
/// let now = Timestamp::from_secs(1);
/// attempts.record_counts([1_000, 50, 2], now);
/// assert_eq!(attempts.advice(now), Advice::RetryElsewhere);
/// attempts.record_counts([1_000, 900, 810], now);
/// assert_eq!(attempts.advice(now), Advice::DontRetry);
/// ```
#[derive(Debug, Clone)]
pub struct AttemptHistogram {
    config: AttemptsConfig,
    recent: Window<[u64; 3]>,
    widespread: bool,
}

impl AttemptHistogram {
    /// A histogram that has seen nothing, and so invites retries.
    pub fn new(config: AttemptsConfig) -> Self {
        Self { config, recent: Window::new(config.window, BUCKETS), widespread: false }
    }

    /// Which of the three counts a request belongs to, for counters that are fed in later. The
    /// first attempt is number 1; 0 is nonsense and counts as the first, everything above 3 as the
    /// third.
    ///
    /// For the shell's request path; two compares.
    #[inline]
    pub const fn slot(attempt: u32) -> usize {
        match attempt {
            0 | 1 => 0,
            2 => 1,
            _ => 2,
        }
    }

    /// A request with this attempt number arrived, whether it is served or refused. O(1). For a
    /// single owner; threads count by [`AttemptHistogram::slot`].
    pub fn record(&mut self, attempt: u32, now: Timestamp) {
        let mut counts = [0; 3];
        counts[Self::slot(attempt)] = 1;
        self.record_counts(counts, now);
    }

    /// So many first, second and later attempts arrived since the last call. O(1). For the
    /// controller's tick.
    pub fn record_counts(&mut self, counts: [u64; 3], now: Timestamp) {
        self.recent.add(counts, now);
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[inline]
    pub(crate) const fn touch(&self) -> u64 {
        self.recent.touch() ^ self.config.samples_min
    }

    /// How much of the fleet seems to be full. A few divisions; for the controller's tick.
    pub fn estimate(&mut self, now: Timestamp) -> FleetOverload {
        let [first, second, third] = self.recent.total(now);
        let samples = first.saturating_add(second);
        FleetOverload { share: Ratio::of(second.saturating_add(third), samples), samples }
    }

    /// What to tell those who are refused for overload.
    ///
    /// For the controller's tick, which publishes it; a square root and a few divisions.
    pub fn advice(&mut self, now: Timestamp) -> Advice {
        let estimate = self.estimate(now);
        let release = self.config.release();
        self.widespread = if estimate.samples < self.config.samples_min {
            false
        } else if self.widespread {
            estimate.share.get() >= release
        } else {
            estimate.share >= self.config.threshold && estimate.share_at_least() > release
        };
        if self.widespread { Advice::DontRetry } else { Advice::RetryElsewhere }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::retry::{BudgetConfig, RetryBudget, RetryDecision, RetryPolicy};
    use crate::rng::{Rng, SeededRng};
    use Advice::{DontRetry, RetryElsewhere};
    use proptest::prelude::*;

    const NOW: Timestamp = Timestamp::from_secs(100);

    fn histogram(threshold: u32, counts: [u64; 3]) -> AttemptHistogram {
        let threshold = Ratio::percent(threshold);
        let mut h = AttemptHistogram::new(AttemptsConfig { threshold, ..Default::default() });
        h.record_counts(counts, NOW);
        h
    }

    /// 1,000 first attempts in a fleet of which so many are full, and clients without budgets.
    #[test]
    fn the_share_of_full_tasks_comes_back() {
        // Counts, share in billionths, advice at 25 %, advice at 50 %.
        for (counts, share, at_25, at_50) in [
            // None, 1 %, 5 %, 10 %, 20 %, 25 %, 50 %, 90 %, all.
            ([1_000, 0, 0], 0, RetryElsewhere, RetryElsewhere),
            ([1_000, 10, 0], 9_900_990, RetryElsewhere, RetryElsewhere),
            ([10_000, 100, 1], 10_000_000, RetryElsewhere, RetryElsewhere),
            ([1_000, 50, 2], 49_523_809, RetryElsewhere, RetryElsewhere),
            ([1_000, 100, 10], 100_000_000, RetryElsewhere, RetryElsewhere),
            ([1_000, 200, 40], 200_000_000, RetryElsewhere, RetryElsewhere),
            ([10_000, 2_500, 625], 250_000_000, DontRetry, RetryElsewhere),
            ([1_000, 500, 250], 500_000_000, DontRetry, DontRetry),
            ([1_000, 900, 810], 900_000_000, DontRetry, DontRetry),
            ([1_000, 1_000, 1_000], 1_000_000_000, DontRetry, DontRetry),
        ] {
            let mut h = histogram(25, counts);
            let estimate = h.estimate(NOW);
            assert_eq!(estimate.share.billionths(), share, "{counts:?}");
            assert_eq!(estimate.samples, counts[0] + counts[1], "{counts:?}");
            assert_eq!(h.advice(NOW), at_25, "{counts:?} at 25 %");
            assert_eq!(histogram(50, counts).advice(NOW), at_50, "{counts:?} at 50 %");
        }
    }

    /// Twenty tasks of which the first `full` refuse everything, and clients with this budget that
    /// retry whatever they are told, unless they `obey`. The mean estimate, how many tasks advise
    /// against it, and which share of the requests of the last fifteen seconds failed.
    fn fleet(full: usize, budget: BudgetConfig, obey: bool) -> (f64, usize, f64) {
        let mut rng = SeededRng::new(11);
        let mut budget = RetryBudget::new(budget);
        let mut tasks = vec![AttemptHistogram::new(AttemptsConfig::default()); 20];
        let mut advice = [RetryElsewhere; 20];
        let mut failed = 0;
        let mut now = Timestamp::ZERO;
        for ms in 1..=30_000 {
            now = Timestamp::from_millis(ms);
            budget.deposit(now);
            for attempt in 1.. {
                let task = rng.below(20) as usize;
                tasks[task].record(attempt, now);
                if task >= full {
                    break;
                }
                let heard = if obey { advice[task] } else { RetryElsewhere };
                let remaining = Duration::from_secs(1);
                let withdraw = || budget.withdraw(now);
                let decision = RetryPolicy::default().decide(attempt, heard, remaining, withdraw);
                if let RetryDecision::GiveUp(_) = decision {
                    failed += u32::from(ms > 15_000);
                    break;
                }
            }
            if ms % 100 == 0 {
                for (advice, task) in advice.iter_mut().zip(&mut tasks) {
                    *advice = task.advice(now);
                }
            }
        }
        let share: f64 = tasks.iter_mut().map(|t| t.estimate(now).share.get()).sum();
        let dont_retry = advice.iter().filter(|&&a| a == DontRetry).count();
        (share / 20.0, dont_retry, f64::from(failed) / 15_000.0)
    }

    #[test]
    fn a_fleet_shows_in_the_attempts_of_each_task() {
        let budget = BudgetConfig::default();
        let unlimited = BudgetConfig { retries_min_per_second: u32::MAX, ..budget };
        // Full tasks of 20, clients' budget, share that the tasks see on average, and how many of
        // them say "don't retry". Each sees some 500 attempts in ten seconds.
        for (full, budget, share, dont_retry) in [
            (0, budget, 0.0, 0..=0),
            (1, budget, 0.05, 0..=0),
            (10, budget, 0.092, 0..=0),
            (20, budget, 0.092, 0..=0),
            (1, unlimited, 0.05, 0..=0),
            (2, unlimited, 0.1, 0..=0),
            (6, unlimited, 0.3, 18..=20),
            (10, unlimited, 0.5, 20..=20),
            (18, unlimited, 0.9, 20..=20),
            (20, unlimited, 1.0, 20..=20),
        ] {
            let (seen, found, _) = fleet(full, budget, false);
            assert!((seen - share).abs() < 0.02, "{full} full: {seen}");
            assert!(dont_retry.contains(&found), "{full} full: {found} say so");
        }
    }

    /// Two tasks of twenty are full. A retry succeeds nine times in ten and the budget pays for it:
    /// the advice must not take that away.
    #[test]
    fn with_a_tenth_of_the_fleet_full_retries_rescue_requests() {
        let budget = BudgetConfig::default();
        let (_, _, without) = fleet(2, budget, false);
        let (_, _, with) = fleet(2, budget, true);
        assert!(without < 0.03, "{without} of all requests fail");
        assert!(with <= without, "{with} fail with the advice, {without} without");
    }

    /// What budgets of 10 % leave to see when everything is full: 916 second and 84 third attempts
    /// of 10,000. That is the budgets' business.
    #[test]
    fn a_saturated_budget_is_left_to_itself() {
        let mut h = histogram(25, [10_000, 916, 84]);
        assert_eq!(h.estimate(NOW).share.billionths(), 91_608_647);
        assert_eq!(h.advice(NOW), RetryElsewhere);
        assert_eq!(AttemptsConfig::default().threshold, Ratio::percent(25));
    }

    /// A quarter, seen in 200 attempts of ten seconds, can just be told; in half of that it cannot.
    #[test]
    fn twenty_attempts_a_second_are_enough() {
        assert_eq!(histogram(25, [160, 40, 10]).advice(NOW), DontRetry);
        assert_eq!(histogram(25, [80, 20, 5]).advice(NOW), RetryElsewhere);
    }

    #[test]
    fn few_samples_invite_retries() {
        for (counts, advice) in [
            ([0, 0, 0], RetryElsewhere),
            ([1, 1, 1], RetryElsewhere),
            ([0, 0, 1_000], RetryElsewhere),
            ([15, 14, 14], RetryElsewhere),
            ([16, 14, 14], DontRetry),
            // A quarter of 40, of 120 and of 1,200.
            ([30, 10, 0], RetryElsewhere),
            ([90, 30, 0], RetryElsewhere),
            ([900, 300, 0], DontRetry),
            ([u64::MAX, u64::MAX, u64::MAX], DontRetry),
        ] {
            assert_eq!(histogram(25, counts).advice(NOW), advice, "{counts:?}");
        }
    }

    #[test]
    fn the_advice_does_not_flap() {
        // One second's counts of 1,000 first attempts each: the share of retries in percent as it
        // wanders, and what is advised.
        let mut h = AttemptHistogram::new(AttemptsConfig {
            window: Duration::from_nanos(1),
            ..Default::default()
        });
        for (second, (percent, advice)) in [
            (20, RetryElsewhere),
            (26, DontRetry),
            (20, DontRetry),
            (26, DontRetry),
            (20, DontRetry),
            (15, RetryElsewhere),
            (20, RetryElsewhere),
            (26, DontRetry),
            (0, RetryElsewhere),
        ]
        .into_iter()
        .enumerate()
        {
            let now = Timestamp::from_secs(second as u64);
            h.record_counts([10_000 - percent * 100, percent * 100, 0], now);
            assert_eq!(h.advice(now), advice, "second {second}");
        }
    }

    #[test]
    fn the_past_is_forgotten() {
        let mut h = histogram(25, [1_000, 900, 810]);
        assert_eq!(h.advice(NOW), DontRetry);
        assert_eq!(h.advice(NOW + Duration::from_secs(8)), DontRetry);
        assert_eq!(h.advice(NOW + Duration::from_secs(10)), RetryElsewhere);
    }

    #[test]
    fn nonsense_attempts_have_a_place() {
        let mut h = AttemptHistogram::new(AttemptsConfig::default());
        for attempt in [0, 1, 2, 3, 4, 255, u32::MAX] {
            h.record(attempt, NOW);
        }
        // Two first, one second, four third.
        assert_eq!(h.recent.total(NOW), [2, 1, 4]);
        assert_eq!(h.estimate(NOW), FleetOverload { share: Ratio::ONE, samples: 3 });
    }

    proptest! {
        /// Whatever arrives: fewer samples than the least never advise against retries, more
        /// retries never turn that advice round.
        #[test]
        fn more_retries_never_invite_retries(
            steps in proptest::collection::vec((any::<[u16; 3]>(), 0_u64..5_000), 1..50),
        ) {
            let mut h = AttemptHistogram::new(AttemptsConfig::default());
            let mut now = Timestamp::ZERO;
            for (counts, ms) in steps {
                now += Duration::from_millis(ms);
                h.record_counts(counts.map(u64::from), now);
                let advice = h.advice(now);
                if h.estimate(now).samples < 30 {
                    prop_assert_eq!(advice, RetryElsewhere);
                }
                let mut worse = h.clone();
                worse.record_counts([0, 0, 1_000], now);
                if advice == DontRetry {
                    prop_assert_eq!(worse.advice(now), DontRetry);
                }
            }
        }
    }
}
