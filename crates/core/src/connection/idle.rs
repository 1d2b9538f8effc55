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
//! Counting clients takes no list of them. Whoever asks says how long it was told to wait (a
//! newcomer counts as having waited `base`), and over any time a client's waits add up to that
//! time. The sum of all waits that end in a second is thus the number of clients:
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
//! When it is wrong: a crowd that arrives at once asks at the base interval until it was told
//! better, as nobody could tell it before, and settles within some multiples of the base interval.
//! Clients that lie about their wait, or whose answers get lost, are counted too high, and
//! everyone asks less often, at worst every `interval_max`.

use crate::average::Rate;
use crate::rng::Rng;
use crate::units::{Cost, CostRate, NANOS, Ratio, Timestamp, nanos};
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
    /// The interval while there are few clients. Longer notices a dead backend later.
    pub base: Duration,
    /// The longest interval. With more clients than this allows for, the budget is exceeded, as
    /// clients would otherwise know nothing at all.
    pub interval_max: Duration,
    /// What one check costs the backend: to receive, look up and send a datagram takes about 10 µs.
    pub cost_per_check: Cost,
    /// What all checks may cost. Half a percent of a CPU is less than one active client takes, and
    /// pays for 500 checks a second.
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
    /// Checks a second that the budget pays for.
    fn checks_per_second(&self) -> f64 {
        let cost = self.cost_per_check.as_nanos().max(1);
        self.budget.as_nanos_per_sec() as f64 / cost as f64
    }

    /// How long the count of clients remembers: several checks of a lone client, and enough checks
    /// of a crowd (64, for a spread of some 9 %) that chance does not decide.
    fn memory(&self) -> Duration {
        let rate = self.checks_per_second();
        let enough = if rate > 0.0 { 64.0 / rate } else { 0.0 };
        let lone = self.base.saturating_mul(4);
        lone.max(seconds(enough)).min(self.interval_max.max(lone))
    }
}

/// The share of the budget that is aimed at; see the module's text.
const AIM: f64 = 0.9;

/// Tells idle clients how long to wait before they ask for health again.
#[derive(Debug, Clone)]
pub struct HealthPacer {
    config: HealthPacerConfig,
    /// Seconds of waits that ended, per second: the number of clients.
    waits: Rate,
}

impl HealthPacer {
    /// A pacer without clients so far.
    pub fn new(config: HealthPacerConfig, now: Timestamp) -> Self {
        Self { waits: Rate::new(config.memory(), now), config }
    }

    /// A client asks that was `told` to wait that long, or nothing yet. Returns how long it is to
    /// wait now.
    pub fn on_check(
        &mut self,
        told: Option<Duration>,
        now: Timestamp,
        rng: &mut impl Rng,
    ) -> Duration {
        self.on_checks(1, told, now);
        let interval = nanos(self.interval(now));
        let swing = self.config.jitter.share_of(interval);
        let drawn = rng.below(swing.saturating_mul(2).saturating_add(1));
        let wait = Duration::from_nanos((interval - swing).saturating_add(drawn));
        wait.max(self.config.base.min(self.config.interval_max))
    }

    /// `count` clients ask that were `told` the same: for whoever answers in bulk and draws the
    /// jitter itself.
    pub fn on_checks(&mut self, count: u64, told: Option<Duration>, now: Timestamp) {
        // With jitter, waits up to that much longer are honest.
        let longest = nanos(self.config.interval_max);
        let longest = longest.saturating_add(self.config.jitter.share_of(longest));
        let wait = nanos(told.unwrap_or(self.config.base))
            .clamp(nanos(self.config.base).min(longest), longest);
        self.waits.add(count as f64 * (wait as f64 / NANOS as f64), now);
    }

    /// The interval as of now, without jitter.
    pub fn interval(&mut self, now: Timestamp) -> Duration {
        let affordable = self.clients(now) / (AIM * self.config.checks_per_second());
        // Without a budget this is infinite, or with no clients either not a number: the longest.
        let affordable = if affordable.is_nan() { f64::INFINITY } else { affordable };
        let base = self.config.base.min(self.config.interval_max);
        seconds(affordable).clamp(base, self.config.interval_max)
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

    /// Cohorts of clients by the time at which they ask next.
    struct Crowd {
        due: BTreeMap<Timestamp, (u64, Option<Duration>)>,
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
                    (Timestamp::from_nanos(rng.below(NANOS)), (size, None))
                })
                .collect();
            Self { due, pacer: HealthPacer::new(config, Timestamp::ZERO), rng }
        }

        /// Runs until `end` and returns how many checks came in.
        fn run(&mut self, end: Timestamp) -> u64 {
            let mut checks = 0;
            while let Some(entry) = self.due.first_entry().filter(|e| *e.key() < end) {
                let (now, (size, told)) = entry.remove_entry();
                checks += size;
                self.pacer.on_checks(size - 1, told, now);
                let wait = self.pacer.on_check(told, now, &mut self.rng);
                self.due.insert(now + wait, (size, Some(wait)));
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
        let mut pacer = HealthPacer::new(config, Timestamp::ZERO);
        let (mut now, mut told) = (Timestamp::from_secs(9), None);
        for _ in 0..100 {
            let wait = pacer.on_check(told, now, &mut SeededRng::new(1));
            assert_eq!(wait, config.base);
            now += wait;
            told = Some(wait);
        }
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
    fn degenerate_configurations_do_no_harm() {
        let default = HealthPacerConfig::default();
        for (config, interval) in [
            (HealthPacerConfig { budget: CostRate::ZERO, ..default }, default.interval_max),
            (HealthPacerConfig { cost_per_check: Cost::ZERO, ..default }, default.base),
            (HealthPacerConfig { cost_per_check: Cost::MAX, ..default }, default.interval_max),
            (HealthPacerConfig { interval_max: Duration::ZERO, ..default }, Duration::ZERO),
            (HealthPacerConfig { base: Duration::MAX, ..default }, default.interval_max),
        ] {
            let mut pacer = HealthPacer::new(config, Timestamp::ZERO);
            pacer.on_checks(10, None, Timestamp::from_secs(1));
            assert_eq!(pacer.interval(Timestamp::from_secs(1)), interval, "{config:?}");
        }
    }

    proptest! {
        /// Whatever clients claim, the interval stays between its ends.
        #[test]
        fn intervals_keep_their_bounds(
            checks in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u64>()), 1..50),
        ) {
            let config = HealthPacerConfig::default();
            let mut pacer = HealthPacer::new(config, Timestamp::ZERO);
            let mut rng = SeededRng::new(5);
            for (count, told, at) in checks {
                let (told, now) = (Some(Duration::from_nanos(told)), Timestamp::from_nanos(at));
                pacer.on_checks(count, told, now);
                let wait = pacer.on_check(told, now, &mut rng);
                prop_assert!(wait >= config.base);
                prop_assert!(wait <= config.interval_max + config.interval_max / 2);
                prop_assert!(pacer.clients(now).is_finite());
            }
        }
    }
}
