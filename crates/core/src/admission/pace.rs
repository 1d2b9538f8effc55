//! When to look again.
//!
//! Plans are made at looks, every few milliseconds. A task that nobody asks for anything need not
//! wake a hundred times a second to find that out; one that is offered more than it can do has to
//! look as often as ever, or what comes meanwhile is let in by a plan that knows nothing of it.
//!
//! What can go wrong between two looks is what is let in between them. So the next look is due
//!
//! ```text
//! a tick after the last     while something is shed, a signal is near its target, no CPU idles,
//!                           or requests use a tenth of a CPU
//! a tick after the last     once a quarter of what all CPUs do in a tick has come since
//! CALM ticks after it       in any case
//! ```
//!
//! Threads count what comes each for itself and know nothing of each other, so each asks for a look
//! once its part of that has come:
//!
//! ```text
//! part = a quarter of a tick x min(1, CPUs / threads)
//! ```
//!
//! All parts together are no more than the whole however the work is spread, and no part is more
//! than one thread can do by itself. Where few of many threads get all of it, looks come sooner
//! than they need to.
//!
//! So it is seldom only where next to nothing is to be done. A task at work is looked at as often
//! as ever: whether no CPU idled since the last look says less the longer ago that was, and a
//! machine that others are on may give a task that is overrun a fifth of a CPU.
//!
//! **When it is wrong.** Work that no request brings, and requests that cost far more than was
//! thought, are noticed up to [`Pace::CALM`] ticks late. Where a signal of the service's own is to
//! be read more often than that, the shell looks as often as it asks for.

use super::Seen;
use super::shed::Plan;
use crate::units::{Cost, Timestamp, nanos};
use core::time::Duration;

/// From this share of a target on a signal is near it: half of where the lowest criticality is shed
/// by default. What is below that has not doubled within [`Pace::CALM`] ticks unless work came.
const NEAR: f64 = 0.4;

/// A task whose requests use one in so many parts of a CPU is at work. Less than a tenth is what a
/// task that is overrun never gets, whoever else is on its machine.
const AT_WORK: u128 = 10;

/// How often to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pace {
    tick: Duration,
    calm: Duration,
}

impl Pace {
    /// Ticks from look to look in calm: twenty looks a second instead of a hundred cost next to
    /// nothing, and averages over 100 ms still see two.
    pub const CALM: u32 = 5;

    /// Looks every `tick` when it matters.
    pub const fn new(tick: Duration) -> Self {
        Self { tick, calm: tick.saturating_mul(Self::CALM) }
    }

    /// The least from one look to the next.
    pub const fn tick(&self) -> Duration {
        self.tick
    }

    /// For how long a CPU has to work to do what makes a look due, on each of `threads` that let
    /// work in for `cpus`. As for one CPU where nobody knows how many there are.
    pub fn worth(&self, cpus: f64, threads: u32) -> Duration {
        let cpus = if cpus > 0.0 { cpus } else { 1.0 };
        let share = (cpus / f64::from(threads.max(1))).min(1.0);
        // Casting a float that is too large stops at the largest integer.
        Duration::from_nanos((nanos(self.tick) as f64 / 4.0 * share) as u64)
    }

    /// How long to wait for that much work after a look that saw this, so long after the one
    /// before, and made this plan.
    pub fn rest(&self, seen: &Seen, plan: &Plan, elapsed: Duration) -> Duration {
        // Where nobody knows what requests use, they may use anything.
        let elapsed = elapsed.max(self.tick).as_nanos();
        let at_work = |used: Cost| u128::from(used.as_nanos()) * AT_WORK >= elapsed;
        let at_work = seen.used.is_none_or(at_work);
        let busy = seen.load_least.is_some_and(|least| least >= 1.0);
        let near = |level: f64| level >= NEAR;
        let signals = near(seen.reading.utilization.get()) || near(seen.reading.instant.get());
        let queue = near(plan.reading.utilization.get()) || near(plan.reading.instant.get());
        let degraded = plan.degrade.contains(&true);
        let open = plan.levels == crate::levels::Levels::OPEN;
        let calm = !at_work && !busy && !signals && !queue && !degraded && !plan.sheds() && open;
        if calm { self.calm } else { self.tick }
    }
}

/// When one task looks, for a shell that does everything on one thread. Three words, as every
/// request needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Looks {
    /// So much more work, and a look is due as soon as may be…
    left: Cost,
    /// …which is then…
    soonest: Timestamp,
    /// …and else then.
    due: Timestamp,
}

impl Looks {
    /// Looks first at `first`, whatever comes.
    pub const fn new(first: Timestamp) -> Self {
        Self { left: Cost::MAX, soonest: first, due: first }
    }

    /// When the next look is due.
    pub const fn due(&self) -> Timestamp {
        self.due
    }

    /// So much work has come, let in or not. Gives when the next look is due, if that is sooner
    /// than it was before.
    #[inline]
    pub fn came(&mut self, cost: Cost, now: Timestamp) -> Option<Timestamp> {
        self.left -= cost;
        if self.left > Cost::ZERO || self.due <= self.soonest {
            return None;
        }
        let due = self.soonest.max(now);
        let sooner = due < self.due;
        self.due = self.due.min(due);
        sooner.then_some(due)
    }

    /// It looks now, and will rest as [`Pace::rest`] says; there are `cpus`. Gives when the next
    /// look is due.
    pub fn looked(&mut self, pace: &Pace, cpus: f64, rest: Duration, now: Timestamp) -> Timestamp {
        let (soonest, due) = (now + pace.tick(), now + rest.max(pace.tick()));
        *self = Self { left: Cost::from_nanos(nanos(pace.worth(cpus, 1))), soonest, due };
        due
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::admission::shed::ShedConfig;
    use crate::admission::{AdmissionGate, Controller};
    use crate::attempts::AttemptsConfig;
    use crate::criticality::Criticality;
    use crate::levels::Levels;
    use crate::quota::QuotaConfig;
    use crate::signal::Reading;
    use crate::units::Utilization;
    use proptest::prelude::*;

    const TICK: Duration = Duration::from_millis(10);
    const CALM: Duration = Duration::from_millis(50);

    fn at(level: f64) -> Reading {
        let level = Utilization::new(level).expect("a utilization");
        Reading { utilization: level, instant: level, ..Reading::IDLE }
    }

    /// What a controller makes of a task that nobody asks for anything.
    fn idle() -> Plan {
        let gate = AdmissionGate::new(QuotaConfig::default());
        let (shed, attempts) = (ShedConfig::default(), AttemptsConfig::default());
        let mut controller = Controller::new(shed, attempts, &gate, Timestamp::ZERO);
        controller.tick(&gate, Seen::new(Reading::IDLE), Timestamp::from_millis(10))
    }

    #[test]
    fn it_looks_seldom_while_nothing_happens_and_often_when_it_might_matter() {
        let idles = |reading| Seen::new(reading).used(Cost::ZERO);
        let (pace, plan, seen) = (Pace::new(TICK), idle(), idles(Reading::IDLE));
        let used = |micros| seen.used(Cost::from_micros(micros));
        let instant = Reading { instant: at(0.4).instant, ..Reading::IDLE };
        let degrade = [true, false, false, false];
        let cut = Some(Criticality::Sheddable);
        let closed = Levels::from_shares([0.9, 1.0, 1.0, 1.0]);
        for (about, seen, plan, expected) in [
            ("nothing", seen, plan, CALM),
            ("a CPU idles", seen.load_least(0.9), plan, CALM),
            ("signals are low", idles(at(0.39)), plan, CALM),
            ("little is done", used(4_999), plan, CALM),
            ("something is done", used(5_000), plan, TICK),
            ("nobody knows what is done", Seen::new(Reading::IDLE), plan, TICK),
            ("no CPU idles", seen.load_least(1.0), plan, TICK),
            ("a signal is near", idles(at(0.4)), plan, TICK),
            ("a signal is near now", idles(instant), plan, TICK),
            ("a queue is near", seen, Plan { reading: at(0.4), ..plan }, TICK),
            ("something is degraded", seen, Plan { degrade, ..plan }, TICK),
            ("something is shed", seen, Plan { cut, ..plan }, TICK),
            ("something was refused", seen, Plan { refused: Cost::from_nanos(1), ..plan }, TICK),
            ("a level is thinned out", seen, Plan { levels: closed, ..plan }, TICK),
        ] {
            assert_eq!(pace.rest(&seen, &plan, CALM), expected, "{about}");
        }
    }

    #[test]
    fn a_quarter_of_what_all_cpus_do_in_a_tick_is_worth_a_look() {
        let pace = Pace::new(TICK);
        assert_eq!(pace.tick(), TICK);
        for (cpus, threads, micros) in [
            (1.0, 1, 2_500),
            (2.0, 2, 2_500),
            // A thread does no more than a CPU can.
            (8.0, 1, 2_500),
            (8.0, 4, 2_500),
            // 5 ms of all eight together, and 1.25 ms of half a CPU.
            (2.0, 8, 625),
            (0.5, 1, 1_250),
            (1.5, 2, 1_875),
            // Nobody knows, or has let anything in.
            (0.0, 2, 1_250),
            (f64::NAN, 1, 2_500),
            (4.0, 0, 2_500),
        ] {
            let expected = Duration::from_micros(micros);
            assert_eq!(pace.worth(cpus, threads), expected, "{cpus} CPUs, {threads} threads");
        }
        assert!(Pace::new(Duration::MAX).worth(1.0, 1) > Duration::from_secs(1 << 30));
    }

    proptest! {
        /// However the work is spread over threads, a look is asked for before more has come than
        /// a quarter of what the CPUs do in a tick.
        #[test]
        fn no_thread_holds_its_question_back_for_too_long(
            tick_micros in 1_000_u64..1_000_000,
            cpus in 0.01_f64..512.0,
            threads in 1_u32..1_024,
        ) {
            let tick = Duration::from_micros(tick_micros);
            let worth = Pace::new(tick).worth(cpus, threads);
            let whole = tick.as_secs_f64() / 4.0;
            prop_assert!(worth.as_secs_f64() * f64::from(threads) <= whole * cpus + 1e-9);
            prop_assert!(worth.as_secs_f64() <= whole + 1e-9);
            // And none asks without need: its part, but for less than a nanosecond.
            let part = whole * (cpus / f64::from(threads)).min(1.0);
            prop_assert!(worth.as_secs_f64() >= part - 2e-9);
        }
    }

    #[test]
    fn work_that_comes_makes_the_next_look_due_once_it_is_worth_one() {
        /// When work comes, how much of it, and when the next look is due then.
        type Comes = (u64, u64, u64);
        let (ms, us) = (Timestamp::from_millis, Cost::from_micros);
        let pace = Pace::new(TICK);
        // How long it rests after a look at 100 ms, and what comes then.
        let table: [(Duration, &[Comes]); 5] = [
            // Too little.
            (CALM, &[(110, 1_000, 150), (120, 1_499, 150)]),
            // Enough, by two requests: at once, as a tick has gone by.
            (CALM, &[(110, 1_000, 150), (120, 1_500, 120)]),
            // Enough before that: when it has.
            (CALM, &[(101, 2_500, 110), (102, 9_000, 110), (130, 9_000, 110)]),
            // Enough when the look is due anyway.
            (CALM, &[(150, 9_000, 150)]),
            // It does not rest.
            (TICK, &[(101, 9_000, 110), (109, 9_000, 110)]),
        ];
        for (rest, come) in table {
            let mut looks = Looks::new(ms(100));
            assert_eq!(looks.came(Cost::MAX, ms(50)), None);
            assert_eq!(looks.looked(&pace, 1.0, rest, ms(100)), ms(100) + rest);
            for &(at, cost, due) in come {
                let before = looks.due();
                let sooner = looks.came(us(cost), ms(at));
                assert_eq!(looks.due(), ms(due), "{come:?}");
                assert_eq!(sooner, (ms(due) < before).then_some(ms(due)), "{come:?}");
            }
        }
    }
}
