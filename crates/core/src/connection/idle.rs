//! Idle clients: drop the connection, ask for health over UDP, and not too often.
//!
//! A client wants to know which of its backends are well, also while it sends nothing. Ten thousand
//! idle clients that each ask every five seconds are 2,000 questions a second, more than
//! many active ones send. So:
//!
//! - A connection that was not used for a while is dropped ([`IdlePolicy`]); a datagram now and
//!   then replaces it, without any state at the backend.
//! - Each answer says after what time to ask again, and the backend chooses that time so that all
//!   questions together cost it no more than a budget ([`HealthPacer`]):
//!
//! ```text
//! interval = max(base, idle clients x cost per check / (0.9 x budget))
//! ```
//!
//! Counting clients takes no list of them. Whoever asks says how long it has waited since it last
//! asked (a newcomer counts as having waited `base`), and over any time a client's waits add up to
//! that time. The sum of all waits that end in a second is thus the number of clients:
//!
//! ```text
//! clients = sum of waits that ended lately / how long "lately" is
//! ```
//!
//! which holds whatever each was told. The interval goes out with much jitter: clients that went
//! idle together would else ask together for ever, be counted too high each time they do, and be
//! told to wait too long. The pacer aims a little below the budget, as the count is only good to
//! some percent.
//!
//! # Those who do not keep to it
//!
//! A datagram may come from anyone and claim anything. A claim is believed up to the longest wait
//! that was told lately and can have passed since, and a newcomer counts as `base`. And however
//! often someone asks, no more is answered than the budget pays for; the rest is dropped
//! ([`HealthAnswer::Drop`]), and counts as newcomers whatever it claims.
//!
//! One who asks `r` times a second and claims the most that is believed, `(1 + jitter) x interval`,
//! thus raises the interval to
//!
//! ```text
//! interval' = interval / (1 - r x (1 + jitter) / (0.9 x budget in checks a second))
//! ```
//!
//! which with the defaults is a tenth more for 27 lies a second, and twice as much for 150.
//!
//! When it is wrong: a crowd that arrives at once asks at the base interval until it was told
//! better, as nobody could tell it before, and settles within some multiples of the base interval.
//! Those of it that are not answered come back later. A backend that was restarted believes no long
//! waits at first, and is asked too often for some rounds. Lies that use up most of the budget
//! (300 a second, with the defaults) raise the interval for as long as they come, in the end to
//! `interval_max`: whoever has such neighbours sets that to what it can bear.

use crate::average::Rate;
use crate::rng::Rng;
use crate::units::{Cost, CostRate, InvalidNumber, NANOS, Ratio, Timestamp, nanos};
use core::time::Duration;

/// When an unused connection is dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct IdlePolicy {
    /// How long a connection may go unused. Shorter makes the next request pay for a handshake
    /// more often; longer keeps more memory for nothing. Five minutes outlast the pauses of a
    /// client that is merely slow.
    pub drop_after: Duration,
}

impl Default for IdlePolicy {
    fn default() -> Self {
        Self { drop_after: Duration::from_secs(300) }
    }
}

/// What to do with a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IdleVerdict {
    /// Keep it, and look again then, unless it is used before.
    KeepUntil(Timestamp),
    /// Close it, and ask for the backend's health over UDP from now on.
    Drop,
}

impl IdlePolicy {
    /// What to do at `now` with a connection that was last used at `last_used` and has no request
    /// on it.
    pub fn verdict(&self, last_used: Timestamp, now: Timestamp) -> IdleVerdict {
        let until = last_used + self.drop_after;
        if now < until { IdleVerdict::KeepUntil(until) } else { IdleVerdict::Drop }
    }
}

/// How [`HealthPacer`] behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HealthPacerConfig {
    /// The interval while there are few clients. Longer notices a dead backend later. At least a
    /// millisecond: who waits for no time cannot be counted by its waits.
    pub base: Duration,
    /// The longest interval, `base` or more. With more clients than this allows for, some of them
    /// get no answer.
    pub interval_max: Duration,
    /// What one check costs the backend: to receive, look up and send a datagram takes about 10 µs.
    pub cost_per_check: Cost,
    /// What all checks may cost. Half a percent of a CPU is less than one active client takes, and
    /// pays for 500 checks a second. More than nothing, as nobody would be answered.
    pub budget: CostRate,
    /// By how much an interval may be longer or shorter at random; never shorter than `base`. Half
    /// takes a crowd apart within a few rounds.
    pub jitter: Ratio,
}

impl Default for HealthPacerConfig {
    fn default() -> Self {
        Self {
            base: Duration::from_secs(5),
            interval_max: Duration::from_secs(3_600),
            cost_per_check: Cost::from_micros(10),
            budget: CostRate::from_nanos_per_sec(NANOS / 200),
            jitter: Ratio::percent(50),
        }
    }
}

impl HealthPacerConfig {
    fn check(&self) -> Result<(), InvalidNumber> {
        let invalid = |quantity, wanted, found| Err(InvalidNumber::new(quantity, wanted, found));
        let base = self.base.as_secs_f64();
        if self.base < BASE_MIN {
            return invalid("the base interval in seconds", "0.001 or more", base);
        }
        if self.interval_max < self.base {
            let longest = self.interval_max.as_secs_f64();
            return invalid("the longest interval", "the base interval or more", longest);
        }
        if self.budget == CostRate::ZERO {
            return invalid("the budget of health checks", "more than zero", 0.0);
        }
        Ok(())
    }

    /// Checks a second that the budget pays for.
    fn checks_per_second(&self) -> f64 {
        let cost = self.cost_per_check.as_nanos().max(1);
        self.budget.as_nanos_per_sec() as f64 / cost as f64
    }

    /// How long the count of clients remembers: several checks of a lone client, and enough checks
    /// of a crowd (64, for a spread of some 9 %) that chance does not decide.
    fn memory(&self) -> Duration {
        let rate = self.checks_per_second();
        let lone = self.base.saturating_mul(4);
        lone.max(seconds(64.0 / rate)).min(self.interval_max.max(lone))
    }
}

/// The shortest base interval: a thousand questions a second from one client.
const BASE_MIN: Duration = Duration::from_millis(1);

/// The share of the budget that is aimed at; see the module's text.
const AIM: f64 = 0.9;

/// How many seconds' worth of the budget may be spent at once. A crowd has to be answered to be
/// slowed down, and comes back in clumps: by default this is 120,000 answers, or 1.2 s of CPU.
const BURST_SECS: f64 = 240.0;

/// The same in answers, at the least, for budgets so small that they pay for none in that time.
const BURST_MIN: f64 = 64.0;

/// What to do with a question for health.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum HealthAnswer {
    /// Answer, and say that the next question is welcome after this time.
    AskAgainAfter(Duration),
    /// The budget is spent: do not answer. A client that hears nothing doubles its wait.
    Drop,
}

/// The longest wait that may end about now.
///
/// That is one that was told, and also had the time to pass: what is believed grows by no more than
/// a second a second, however much longer the waits are that are being told.
#[derive(Debug, Clone)]
struct LongestTold {
    wait: Duration,
    /// Until when clients come back that were told so.
    until: Timestamp,
    /// The longest that was told since.
    since: Duration,
    /// What was believed, and when.
    believed: (Duration, Timestamp),
}

impl LongestTold {
    const fn new(now: Timestamp) -> Self {
        let none = Duration::ZERO;
        Self { wait: none, until: now, since: none, believed: (none, now) }
    }

    fn record(&mut self, wait: Duration, now: Timestamp) {
        let _ = self.get(now);
        if now >= self.until {
            let since = core::mem::take(&mut self.since);
            self.set(since, now);
        }
        if wait >= self.wait {
            self.since = Duration::ZERO;
            self.set(wait, now);
        } else {
            self.since = self.since.max(wait);
        }
    }

    /// Twice the wait: some ask late, and datagrams take their time.
    fn set(&mut self, wait: Duration, now: Timestamp) {
        (self.wait, self.until) = (wait, now + wait.saturating_mul(2));
    }

    fn get(&mut self, now: Timestamp) -> Duration {
        let longest = if now < self.until { self.wait } else { self.since };
        let (believed, then) = self.believed;
        let believed = believed.saturating_add(now.since(then)).min(longest);
        self.believed = (believed, now.max(then));
        believed
    }
}

/// Tells idle clients how long to wait before they ask for health again.
#[derive(Debug, Clone)]
pub struct HealthPacer {
    config: HealthPacerConfig,
    /// Seconds of waits that ended, per second: the number of clients.
    waits: Rate,
    told: LongestTold,
    /// Answers that the budget pays for, as of `paid_until`.
    allowance: f64,
    paid_until: Timestamp,
}

impl HealthPacer {
    /// A pacer without clients so far.
    pub fn new(config: HealthPacerConfig, now: Timestamp) -> Result<Self, InvalidNumber> {
        config.check()?;
        let waits = Rate::new(config.memory(), now);
        let (told, allowance) = (LongestTold::new(now), f64::INFINITY);
        Ok(Self { config, waits, told, allowance, paid_until: now })
    }

    /// A client asks that has `waited` that long since it last asked, or asks for the first time.
    /// Returns how long it is to wait now, or that it is not to be answered.
    pub fn on_check(
        &mut self,
        waited: Option<Duration>,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> HealthAnswer {
        if self.on_checks(1, waited, now) == 0 {
            return HealthAnswer::Drop;
        }
        let interval = nanos(self.interval(now));
        let swing = self.config.jitter.share_of(interval);
        let drawn = rng.below(swing.saturating_mul(2).saturating_add(1));
        let wait = Duration::from_nanos((interval - swing).saturating_add(drawn));
        HealthAnswer::AskAgainAfter(wait.max(self.config.base))
    }

    /// `count` clients ask that have `waited` the same: for whoever answers in bulk and draws the
    /// jitter itself. Returns how many of them to answer.
    pub fn on_checks(&mut self, count: u64, waited: Option<Duration>, now: Timestamp) -> u64 {
        // Casting a float that is too large stops at the largest integer.
        let answered = count.min(self.answers_left(now) as u64);
        self.count(answered, count - answered, waited, now);
        answered
    }

    /// How many more answers the budget pays for.
    fn answers_left(&mut self, now: Timestamp) -> f64 {
        let rate = self.config.checks_per_second();
        let earned = rate * now.since(self.paid_until).as_secs_f64();
        self.paid_until = self.paid_until.max(now);
        self.allowance = (self.allowance + earned).min((BURST_SECS * rate).max(BURST_MIN));
        self.allowance
    }

    fn count(&mut self, answered: u64, dropped: u64, waited: Option<Duration>, now: Timestamp) {
        self.allowance = (self.allowance - answered as f64).max(0.0);
        let base = self.config.base;
        let believed = waited.unwrap_or(base).min(self.told.get(now)).max(base);
        let seconds =
            answered as f64 * believed.as_secs_f64() + dropped as f64 * base.as_secs_f64();
        self.waits.add(seconds, now);
        if answered > 0 {
            let interval = self.interval(now);
            let swing = Duration::from_nanos(self.config.jitter.share_of(nanos(interval)));
            self.told.record(interval.saturating_add(swing), now);
        }
    }

    /// The interval as of now, without jitter.
    pub fn interval(&mut self, now: Timestamp) -> Duration {
        let affordable = self.clients(now) / (AIM * self.config.checks_per_second());
        seconds(affordable).clamp(self.config.base, self.config.interval_max)
    }

    /// How many idle clients there are, about.
    pub fn clients(&mut self, now: Timestamp) -> f64 {
        self.waits.per_second(now)
    }
}

/// A span of so many seconds, stopping at the longest there is.
fn seconds(secs: f64) -> Duration {
    // Casting a float that is too large stops at the largest integer.
    Duration::from_nanos((secs * NANOS as f64) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Rng, SeededRng};
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[test]
    fn an_unused_connection_goes_when_its_time_is_up() {
        let policy = IdlePolicy { drop_after: Duration::from_secs(60) };
        let used = Timestamp::from_secs(100);
        for (secs, verdict) in [
            (100, IdleVerdict::KeepUntil(Timestamp::from_secs(160))),
            (159, IdleVerdict::KeepUntil(Timestamp::from_secs(160))),
            (160, IdleVerdict::Drop),
            (900, IdleVerdict::Drop),
            // A clock that stepped back.
            (50, IdleVerdict::KeepUntil(Timestamp::from_secs(160))),
        ] {
            assert_eq!(policy.verdict(used, Timestamp::from_secs(secs)), verdict, "{secs}");
        }
    }

    /// As many clients that do the same.
    #[derive(Clone, Copy)]
    struct Cohort {
        size: u64,
        asked: bool,
        waits: Duration,
    }

    /// Cohorts of clients by the time at which they ask next.
    struct Crowd {
        due: BTreeMap<Timestamp, Cohort>,
        pacer: HealthPacer,
        rng: SeededRng,
    }

    impl Crowd {
        /// All clients go idle within the first second, in cohorts.
        fn new(clients: u64, config: HealthPacerConfig) -> Self {
            let cohorts = clients.min(8_000);
            let mut rng = SeededRng::new(clients);
            let due = (0..cohorts)
                .map(|i| {
                    let size = clients / cohorts + u64::from(i < clients % cohorts);
                    let cohort = Cohort { size, asked: false, waits: config.base };
                    (Timestamp::from_nanos(rng.below(NANOS)), cohort)
                })
                .collect();
            Self { due, pacer: HealthPacer::new(config, Timestamp::ZERO).unwrap(), rng }
        }

        /// Runs until `end` and returns how many checks came in.
        fn run(&mut self, end: Timestamp) -> u64 {
            let mut checks = 0;
            while let Some(entry) = self.due.first_entry().filter(|e| *e.key() < end) {
                let (now, mut cohort) = entry.remove_entry();
                checks += cohort.size;
                let waited = cohort.asked.then_some(cohort.waits);
                cohort.asked = true;
                // All of a cohort or none is answered.
                if self.pacer.answers_left(now) >= cohort.size as f64 {
                    self.pacer.on_checks(cohort.size - 1, waited, now);
                    let answer = self.pacer.on_check(waited, now, &mut self.rng);
                    let HealthAnswer::AskAgainAfter(wait) = answer else { panic!("{now:?}") };
                    cohort.waits = wait;
                } else {
                    self.pacer.count(0, cohort.size, waited, now);
                    cohort.waits = cohort.waits.saturating_mul(2);
                }
                self.due.insert(now + cohort.waits, cohort);
            }
            checks
        }
    }

    #[test]
    fn all_checks_together_stay_within_the_budget() {
        // By hand: at most clients / 5 s, at most 0.9 x 500. With few, jitter cannot shorten the
        // base interval and lengthens it by an eighth on average.
        for (clients, wanted) in [
            (1, 0.2 / 1.125),
            (10, 2.0 / 1.125),
            (1_000, 200.0 / 1.125),
            (10_000, 450.0),
            (100_000, 450.0),
            (1_000_000, 450.0),
        ] {
            let mut crowd = Crowd::new(clients, HealthPacerConfig::default());
            let round = (clients as f64 / 450.0).max(5.0) as u64;
            let settled = Timestamp::from_secs(200 + 4 * round);
            let end = settled + Duration::from_secs(20 * round);
            crowd.run(settled);
            let checks = crowd.run(end);
            let rate = checks as f64 / end.since(settled).as_secs_f64();
            assert!(rate <= 500.0, "{clients}: {rate} a second");
            assert!((rate / wanted - 1.0).abs() < 0.1, "{clients}: {rate} of {wanted} a second");
            let counted = crowd.pacer.clients(end) / clients as f64;
            assert!((0.7..1.3).contains(&counted), "{clients}: counted {counted} of it");
        }
    }

    #[test]
    fn a_lone_client_is_answered_with_the_base_interval() {
        let config = HealthPacerConfig { jitter: Ratio::ZERO, ..HealthPacerConfig::default() };
        let mut pacer = HealthPacer::new(config, Timestamp::ZERO).unwrap();
        let (mut now, mut told) = (Timestamp::from_secs(9), None);
        for _ in 0..100 {
            let answer = pacer.on_check(told, now, &mut SeededRng::new(1));
            assert_eq!(answer, HealthAnswer::AskAgainAfter(config.base));
            now += config.base;
            told = Some(config.base);
        }
    }

    #[test]
    fn one_liar_does_not_switch_health_checks_off() {
        let mut pacer = pacer();
        let mut rng = SeededRng::new(1);
        // A hundred datagrams a second, of someone who claims to have been told to wait an hour.
        for tick in 0..60_000 {
            let told = Some(Duration::from_secs(3_600));
            let _ = pacer.on_check(told, Timestamp::from_millis(tick * 10), &mut rng);
        }
        let interval = pacer.interval(Timestamp::from_secs(600));
        assert!(interval <= Duration::from_secs(10), "everyone is told to wait {interval:?}");
    }

    /// By the formula: `1 / (1 - 100 x 1.5 / 450)` times the 22 s that ten thousand clients get.
    #[test]
    fn a_liar_in_a_crowd_is_believed_no_more_than_the_crowd() {
        let mut crowd = Crowd::new(10_000, HealthPacerConfig::default());
        for tick in 0..60_000 {
            let now = Timestamp::from_millis(tick * 10);
            crowd.run(now);
            let _ = crowd.pacer.on_check(Some(Duration::MAX), now, &mut crowd.rng);
        }
        let interval = crowd.pacer.interval(Timestamp::from_secs(600));
        assert!((25.0..45.0).contains(&interval.as_secs_f64()), "{interval:?}");
    }

    #[test]
    fn no_more_is_answered_than_the_budget_pays_for() {
        let (mut pacer, mut rng) = (pacer(), SeededRng::new(1));
        let mut answered = 0_u64;
        // Ten thousand a second for a minute, half of them as newcomers.
        for tick in 0..600_000 {
            let told = (tick % 2 == 0).then_some(Duration::from_secs(3_600));
            let now = Timestamp::from_nanos(tick * 100_000);
            answered += u64::from(pacer.on_check(told, now, &mut rng) != HealthAnswer::Drop);
        }
        // 120,000 at once and 500 a second.
        assert_eq!(answered, 120_000 + 60 * 500 - 1);
        // A quarter of a second pays for 125.
        let _ = pacer.on_checks(1_000, None, Timestamp::from_secs(60));
        assert_eq!(pacer.on_checks(1_000, None, Timestamp::from_millis(60_250)), 125);
        assert_eq!(pacer.on_checks(1_000, None, Timestamp::from_millis(60_250)), 0);
    }

    /// In ten seconds nobody can have waited for longer than that: 10,000 x 10 s / 450 = 222 s.
    #[test]
    fn a_short_flood_of_lies_does_little_and_not_for_long() {
        let (mut pacer, mut rng) = (pacer(), SeededRng::new(1));
        for tick in 0..100_000 {
            let now = Timestamp::from_nanos(tick * 100_000);
            let _ = pacer.on_check(Some(Duration::from_secs(3_600)), now, &mut rng);
        }
        let interval = pacer.interval(Timestamp::from_secs(10));
        assert!(interval < Duration::from_secs(222), "{interval:?}");
        let later = pacer.interval(Timestamp::from_secs(120));
        assert_eq!(later, Duration::from_secs(5));
    }

    #[test]
    fn the_longest_wait_is_forgotten_when_it_is_over() {
        let mut longest = LongestTold::new(Timestamp::ZERO);
        for (at, wait, found) in [
            // Nobody can have waited yet.
            (0, 10, 0),
            (5, 4, 5),
            (9, 4, 9),
            (12, 4, 10),
            // Until 20 s someone may come who was told 10 s; after that, only who was told 4 s.
            (19, 3, 10),
            (20, 2, 4),
            (27, 1, 4),
            // Told 4 s at 5 s, believed again at 20 s, and over at 28 s.
            (28, 1, 2),
            (29, 7, 2),
            (40, 1, 7),
        ] {
            let now = Timestamp::from_secs(at);
            longest.record(Duration::from_secs(wait), now);
            assert_eq!(longest.get(now), Duration::from_secs(found), "at {at} s");
        }
        assert_eq!(longest.get(Timestamp::from_secs(99)), Duration::from_secs(1));
    }

    fn pacer() -> HealthPacer {
        HealthPacer::new(HealthPacerConfig::default(), Timestamp::ZERO).unwrap()
    }

    #[test]
    fn a_crowd_settles_soon_and_is_forgotten_when_it_leaves() {
        let mut crowd = Crowd::new(100_000, HealthPacerConfig::default());
        // 100,000 newcomers ask at once, and nothing could be done about it.
        assert!(crowd.run(Timestamp::from_secs(5)) >= 100_000);
        crowd.run(Timestamp::from_secs(120));
        let checks = crowd.run(Timestamp::from_secs(180));
        // Still in clumps, so that a minute may have more than its share.
        assert!(checks <= 60 * 500 * 5 / 4, "{checks}");
        crowd.due.clear();
        let later = Timestamp::from_secs(180 + 20 * 6);
        assert_eq!(crowd.pacer.interval(later), Duration::from_secs(5));
    }

    #[test]
    fn settings_that_switch_it_off_are_refused() {
        let default = HealthPacerConfig::default();
        for (config, quantity) in [
            (HealthPacerConfig { base: Duration::ZERO, ..default }, "the base interval in seconds"),
            (HealthPacerConfig { interval_max: Duration::ZERO, ..default }, "the longest interval"),
            (HealthPacerConfig { base: Duration::MAX, ..default }, "the longest interval"),
            (
                HealthPacerConfig { budget: CostRate::ZERO, ..default },
                "the budget of health checks",
            ),
        ] {
            let error = HealthPacer::new(config, Timestamp::ZERO).unwrap_err();
            assert_eq!(error.quantity, quantity);
        }
    }

    #[test]
    fn extreme_configurations_do_no_harm() {
        let default = HealthPacerConfig::default();
        for (config, interval) in [
            (HealthPacerConfig { cost_per_check: Cost::ZERO, ..default }, default.base),
            (HealthPacerConfig { cost_per_check: Cost::MAX, ..default }, default.interval_max),
            (
                HealthPacerConfig { base: Duration::MAX, interval_max: Duration::MAX, ..default },
                Duration::from_nanos(u64::MAX),
            ),
        ] {
            let mut pacer = HealthPacer::new(config, Timestamp::ZERO).unwrap();
            assert_eq!(pacer.on_checks(10, None, Timestamp::from_secs(1)), 10);
            let found = pacer.interval(Timestamp::from_secs(1));
            assert_eq!(nanos(found), nanos(interval), "{config:?}");
        }
    }

    proptest! {
        /// Whatever clients claim, the interval stays between its ends.
        #[test]
        fn intervals_keep_their_bounds(
            checks in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..50),
        ) {
            let config = HealthPacerConfig::default();
            let mut pacer = pacer();
            let mut rng = SeededRng::new(5);
            for (count, told, at) in checks {
                let (told, now) = (Some(Duration::from_nanos(told)), Timestamp::from_nanos(at));
                prop_assert!(pacer.on_checks(count, told, now) <= count);
                if let HealthAnswer::AskAgainAfter(wait) = pacer.on_check(told, now, &mut rng) {
                    prop_assert!(wait >= config.base);
                    prop_assert!(wait <= config.interval_max + config.interval_max / 2);
                }
                prop_assert!(pacer.clients(now).is_finite());
            }
        }
    }
}
