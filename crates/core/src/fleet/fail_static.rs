//! What a task does when the quota server falls silent: nothing, for a long while.
//!
//! A task goes on with its last limits for `hold`, then fades to the **safe share** that came with
//! them. It is never without a limit and never at zero because somebody else is down. Not to change
//! anything is right most of the time: traffic a minute ago is the best guess of traffic now. But
//! limits must end some day, or a server that cannot reach a task could never give its share away:
//!
//! ```text
//! silence <= hold           the limits
//! hold < silence < lease    safe + (limits - safe) x exp(-(silence - hold) / tau)
//! silence >= lease          the safe share, until a new grant comes        lease = hold + 7 tau
//! ```
//!
//! Never less than its **unseen share** either, whatever it was granted: a task that comes back may
//! be granted nothing for a round, until the others have let go of what it is to get, and the
//! server may fall silent in that very round. That share of the limit is set aside for every task
//! anyway, with a grant or without, so the sum of what all enforce stays within the limit.
//!
//! Silence counts from when the task **sent** the last report that the server answered. The server
//! counts the same lease from when that report arrived, which is later: whatever the network does
//! to the answers, a task has let go before the server thinks so. Their clocks need not agree,
//! only run equally fast.
//!
//! An answer within the lease brings the limits back at once; after it only a new grant does, as
//! the server may have given the old one to others. A task that lapsed should resume, once, so that
//! the server tells it all its grants again. If the server does not know it any more it has to join
//! as a new one, and what that same leader granted it before has ended ([`FailStatic::rejoin`]).

use super::{Generation, Limits};
use crate::average::decay;
use crate::criticality::Criticality;
use crate::units::{CostRate, Ratio, Timestamp};
use core::time::Duration;

/// Time constants until the safe share: what is left by then, `exp(-7)`, is a thousandth.
const FADES: u32 = 7;

/// How long a task bears silence. The server and all tasks must agree on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Silence {
    /// How long the last limits stay as they are.
    pub hold: Duration,
    /// How fast they fade after that.
    pub tau: Duration,
}

impl Silence {
    /// How long a grant may be in use after the last contact.
    pub fn lease(&self) -> Duration {
        self.hold.saturating_add(self.tau.saturating_mul(FADES))
    }
}

impl Default for Silence {
    /// A minute, in which a server restarts or another one is elected, and gone after two.
    fn default() -> Self {
        Self { hold: Duration::from_secs(60), tau: Duration::from_secs(8) }
    }
}

/// Where a task stands with the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// The limits apply as they were granted.
    Held,
    /// The limits are on their way down to the safe share.
    Fading,
    /// The grant has ended. The safe share applies, and the task should resume or join anew.
    Lapsed,
}

/// The limits of one customer at one task, and what becomes of them in silence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailStatic {
    silence: Silence,
    limits: Limits,
    safe: Limits,
    /// What the task may always use.
    unseen: Limits,
    generation: Option<Generation>,
    answered: Timestamp,
    lapsed: bool,
}

impl FailStatic {
    /// Before the first grant: the share that every task has ([`Fleet::unseen`](super::Fleet)).
    pub const fn new(silence: Silence, unseen: Limits) -> Self {
        Self {
            silence,
            limits: Limits::ZERO,
            safe: Limits::ZERO,
            unseen,
            generation: None,
            answered: Timestamp::ZERO,
            lapsed: false,
        }
    }

    /// The server told all tasks what each may use without a grant.
    pub const fn set_unseen(&mut self, unseen: Limits) {
        self.unseen = unseen;
    }

    /// A grant arrived at `now`, in a message that answers the report sent at `answered`. Returns
    /// whether it was taken: a grant older than the one in force (of a leader since replaced, or
    /// out of order) is not.
    pub fn grant(
        &mut self,
        generation: Generation,
        limits: Limits,
        safe: Limits,
        answered: Timestamp,
        now: Timestamp,
    ) -> bool {
        if self.generation.is_some_and(|current| generation < current) {
            return false;
        }
        self.limits = limits;
        self.safe = safe.min(limits);
        self.generation = Some(generation);
        self.lapsed = false;
        self.answered = self.answered.max(answered).min(now);
        true
    }

    /// The server answered the report sent at `answered`, and has nothing to change.
    pub fn renew(&mut self, answered: Timestamp, now: Timestamp) {
        if now.since(self.answered) >= self.silence.lease() {
            self.limits = self.safe;
            self.lapsed = true;
        }
        self.answered = self.answered.max(answered).min(now);
    }

    /// The task joined the leader of `epoch` as a new one. If that leader granted this, it soon no
    /// longer counts it: only the safe share is left. The grant of an earlier leader stays, as the
    /// new one learns it.
    pub fn rejoin(&mut self, epoch: u64) {
        if self.generation.is_some_and(|generation| generation.epoch == epoch) {
            self.limits = self.safe;
            self.lapsed = true;
        }
    }

    /// What to enforce: zero only at a level whose limit is zero across the fleet, or too small to
    /// be divided (see [`FleetConfig::unseen`](super::FleetConfig)).
    pub fn enforced(&self, now: Timestamp) -> Limits {
        self.granted(now).max(self.unseen)
    }

    /// What is left of the last grant.
    fn granted(&self, now: Timestamp) -> Limits {
        let silence = now.since(self.answered);
        if silence <= self.silence.hold {
            return self.limits;
        }
        if silence >= self.silence.lease() {
            return self.safe;
        }
        let keep = decay(silence.saturating_sub(self.silence.hold), self.silence.tau);
        let keep = Ratio::new(keep).unwrap_or(Ratio::ZERO);
        Limits::clamped(Criticality::ALL.map(|level| {
            let (limit, safe) = (self.limits[level], self.safe[level]);
            let above = keep.share_of((limit - safe).as_nanos_per_sec());
            safe + CostRate::from_nanos_per_sec(above)
        }))
    }

    /// What the task may go back to when the server answers: what a new leader has to count. The
    /// unseen share it counts anyway.
    pub fn holds(&self, now: Timestamp) -> Limits {
        let lapsed = now.since(self.answered) >= self.silence.lease();
        if lapsed { self.safe } else { self.limits }
    }

    /// Where the task stands.
    pub fn standing(&self, now: Timestamp) -> Standing {
        let silence = now.since(self.answered);
        if self.generation.is_none() {
            return Standing::Held;
        }
        if self.lapsed || silence >= self.silence.lease() {
            Standing::Lapsed
        } else if silence > self.silence.hold {
            Standing::Fading
        } else {
            Standing::Held
        }
    }

    /// The newest grant, to be acknowledged in the next report.
    pub const fn generation(&self) -> Option<Generation> {
        self.generation
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SILENCE: Silence =
        Silence { hold: Duration::from_secs(60), tau: Duration::from_secs(10) };

    fn generation(epoch: u64, number: u64) -> Generation {
        Generation { epoch, number }
    }

    fn cpus(rates: [u64; 4]) -> Limits {
        Limits::clamped(rates.map(|r| CostRate::from_nanos_per_sec(r * 1_000_000_000)))
    }

    fn at(secs: u64) -> Timestamp {
        Timestamp::from_secs(secs)
    }

    fn granted() -> FailStatic {
        let mut task = FailStatic::new(SILENCE, cpus([1; 4]));
        assert!(task.grant(
            generation(1, 1),
            cpus([20, 40, 80, 80]),
            cpus([10, 20, 40, 40]),
            at(0),
            at(0)
        ));
        task
    }

    #[test]
    fn silence_by_the_table() {
        let task = granted();
        // Above the safe 40, of another 40: exp(-1) = 0.367879, exp(-3) = 0.049787.
        for (secs, total, lowest, standing) in [
            (0, 80.0, 20.0, Standing::Held),
            (60, 80.0, 20.0, Standing::Held),
            (70, 54.715_178, 13.678_794, Standing::Fading),
            (90, 41.991_483, 10.497_871, Standing::Fading),
            (129, 40.040_311, 10.010_078, Standing::Fading),
            (130, 40.0, 10.0, Standing::Lapsed),
            (1_000_000, 40.0, 10.0, Standing::Lapsed),
        ] {
            let found = task.enforced(at(secs));
            assert!((found.whole().as_cpus() - total).abs() < 1e-6, "{secs} s: {found:?}");
            let low = found[Criticality::Sheddable].as_cpus();
            assert!((low - lowest).abs() < 1e-6, "{secs} s: {found:?}");
            assert_eq!(task.standing(at(secs)), standing, "{secs} s");
        }
    }

    #[test]
    fn an_answer_in_time_brings_the_limits_back_and_a_late_one_does_not() {
        let mut task = granted();
        assert_eq!(task.holds(at(129)), cpus([20, 40, 80, 80]));
        assert_eq!(task.holds(at(130)), cpus([10, 20, 40, 40]));
        task.renew(at(100), at(101));
        assert_eq!(task.enforced(at(101)), cpus([20, 40, 80, 80]));
        // Silence counts from when the answered report was sent.
        assert_eq!(task.standing(at(160)), Standing::Held);
        assert_eq!(task.standing(at(161)), Standing::Fading);

        task.renew(at(230), at(231));
        assert_eq!(task.enforced(at(231)), cpus([10, 20, 40, 40]));
        assert_eq!(task.standing(at(231)), Standing::Lapsed);
        assert!(task.grant(generation(1, 2), cpus([9; 4]), cpus([3; 4]), at(230), at(232)));
        assert_eq!(task.enforced(at(232)), cpus([9; 4]));
        assert_eq!(task.standing(at(232)), Standing::Held);
    }

    #[test]
    fn a_leader_that_no_longer_knows_the_task_leaves_it_the_safe_share() {
        let mut task = granted();
        task.rejoin(2);
        assert_eq!(task.enforced(at(1)), cpus([20, 40, 80, 80]));
        task.rejoin(1);
        assert_eq!(task.enforced(at(1)), cpus([10, 20, 40, 40]));
        task.renew(at(1), at(2));
        assert_eq!(task.holds(at(2)), cpus([10, 20, 40, 40]));
        assert_eq!(task.standing(at(2)), Standing::Lapsed);
    }

    #[test]
    fn a_grant_that_took_longer_than_its_lease_gives_only_the_safe_share() {
        let mut task = granted();
        assert!(task.grant(generation(1, 2), cpus([9; 4]), cpus([3; 4]), at(5), at(500)));
        assert_eq!(task.enforced(at(500)), cpus([3; 4]));
    }

    #[test]
    fn grants_of_the_past_are_refused() {
        let mut task = FailStatic::new(SILENCE, cpus([1; 4]));
        assert_eq!(task.enforced(at(999)), cpus([1; 4]));
        let mut offer = |epoch, number| {
            task.grant(generation(epoch, number), cpus([9; 4]), cpus([3; 4]), at(0), at(0))
        };
        assert!(offer(7, 100));
        assert!(!offer(6, 900));
        assert!(!offer(7, 99));
        assert!(offer(7, 100));
        assert!(offer(8, 1));
    }

    proptest! {
        /// Silence only lowers, never below the safe share nor above the limits, and keeps the
        /// order of criticalities.
        #[test]
        fn silence_never_raises(limits: [u64; 4], safe: [u64; 4], step in 1..20_u64) {
            let rates = |r: [u64; 4]| Limits::clamped(r.map(CostRate::from_nanos_per_sec));
            let (limits, safe) = (rates(limits), rates(safe).min(rates(limits)));
            let mut task = FailStatic::new(SILENCE, Limits::ZERO);
            task.grant(generation(1, 1), limits, safe, at(0), at(0));
            let mut before = limits;
            for secs in (0..200).step_by(step as usize) {
                let now = task.enforced(at(secs));
                prop_assert!(now.as_array().is_sorted());
                for level in Criticality::ALL {
                    prop_assert!(now[level] <= before[level] && now[level] >= safe[level]);
                }
                before = now;
            }
        }
    }
}
