//! Whether a new connection is taken.
//!
//! Two limits, each with room that only higher criticalities may use:
//!
//! ```text
//! open connections      taken while  open < room(criticality) x open_max
//! new ones per second   a bucket of `burst` tokens, refilled at `accepts_per_second`;
//!                       taken while  tokens left afterwards >= (1 - room(criticality)) x burst
//! ```
//!
//! where the room of a limit is at least one connection, unless the share is zero.
//!
//! Room rises with criticality and both counts are common to all, so a level is refused only when
//! every lower one would be as well. Refilled tokens go to the highest level first: a lower one
//! gets any only once the reserve above it is whole again.
//!
//! The decision comes before the handshake, so nobody knows yet who is calling. Such a peer counts
//! as the configured class. When the handshake has told, [`ConnectionGate::confirm`] looks again,
//! and a peer that was overrated may have to go after all.
//!
//! What the bucket lacks is kept as the time at which it will be full. When limits change, that is
//! converted: as many tokens are owed as before, at most a bucketful. A time further ahead than a
//! bucketful can only come from a clock that has stepped back since, and counts as an empty bucket.
//!
//! Both counts are single atomics changed by compare and swap: racing threads cannot exceed a limit
//! together. There is no order between the two. A thread that got a token and then finds
//! the last place taken has wasted the token, which matters to nobody while there is no place.
//!
//! When it is wrong: limits that are too low refuse peers that would have been served, and those go
//! to other tasks; limits that are too high cost memory, and the admission of requests still stands
//! behind them.

use crate::criticality::Criticality;
use crate::decision::{Advice, Cause, Reason, Rejection};
use crate::sync::{AtomicU64, Ordering::Relaxed};
use crate::units::{InvalidNumber, NANOS, Ratio, Timestamp};

/// The limits of a [`ConnectionGate`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct ConnectionLimits {
    /// Open connections. At some 15 KiB each, the default is 150 MiB. Too low refuses idle peers
    /// for nothing; too high runs out of memory or file descriptors.
    pub open_max: u64,
    /// New connections a second, in the long run. A TLS handshake takes up to 1 ms of CPU,
    /// so the default keeps handshakes below half of one CPU.
    pub accepts_per_second: u32,
    /// New connections at once, after a quiet time. Too low refuses a fleet that reconnects after
    /// a restart; too high lets handshakes displace requests.
    pub burst: u32,
    /// The share of `open_max` and `burst` that each criticality may use, lowest first. At least
    /// one connection, however small the limit; only a share of zero is none.
    pub room: [Ratio; Criticality::COUNT],
    /// What a peer counts as while nobody knows who it is.
    pub unknown: Criticality,
}

impl Default for ConnectionLimits {
    fn default() -> Self {
        Self {
            open_max: 10_000,
            accepts_per_second: 500,
            burst: 500,
            room: [70, 80, 90, 100].map(Ratio::percent),
            unknown: Criticality::Critical,
        }
    }
}

impl ConnectionLimits {
    /// Refuses room that falls while criticality rises.
    fn check(&self) -> Result<(), InvalidNumber> {
        match self.room.windows(2).find(|pair| pair[0] > pair[1]) {
            Some(pair) => Err(InvalidNumber::new(
                "the room of a criticality",
                "at least that of the criticality below",
                pair[1].get(),
            )),
            None => Ok(()),
        }
    }

    /// Nanoseconds from token to token; rounded up, so that no second gets more than it may.
    fn interval(&self) -> u64 {
        match self.accepts_per_second {
            0 => NEVER,
            rate => NANOS.div_ceil(u64::from(rate)),
        }
    }

    /// What `criticality` may use of a limit.
    fn room_of(&self, criticality: Criticality, limit: u64) -> u64 {
        match self.room[criticality.index()] {
            Ratio::ZERO => 0,
            room => room.share_of(limit).max(limit.min(1)),
        }
    }

    /// How far ahead of now the bucket may be, for `criticality`: all the tokens it may use.
    fn ahead_max(&self, criticality: Criticality) -> u64 {
        let tokens = self.room_of(criticality, u64::from(self.burst));
        match self.interval() {
            NEVER => 0,
            interval => tokens.saturating_mul(interval),
        }
    }
}

/// An interval that no bucket refills in.
const NEVER: u64 = u64::MAX;

/// The criticality that may use most.
const TOP: Criticality = Criticality::CriticalPlus;

/// How far the clocks of two threads may be apart, in nanoseconds. A thread may be held up between
/// reading the clock and asking, and must not refill the bucket for that; a clock that stepped back
/// by less shuts the gate for no longer than this second.
const CLOCK_SPREAD: u64 = NANOS;

/// `span x to / from`, rounded up.
fn scaled(span: u64, to: u64, from: u64) -> u64 {
    let scaled = (u128::from(span) * u128::from(to)).div_ceil(u128::from(from.max(1)));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Which limit refused a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConnectionLimit {
    /// As many are open as this criticality may see.
    Open,
    /// New ones come faster than this criticality may use.
    AcceptRate,
}

/// A connection that was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct Refused {
    /// What to tell the peer, if it is told anything.
    pub rejection: Rejection,
    /// The limit that was met.
    pub limit: ConnectionLimit,
}

impl Refused {
    const fn new(limit: ConnectionLimit, criticality: Criticality, cause: Cause) -> Self {
        let rejection = Rejection {
            reason: Reason::TooManyConnections,
            // Other tasks have connections of their own; this says nothing about them.
            advice: Advice::RetryElsewhere,
            criticality,
            cause: Some(cause),
        };
        Self { rejection, limit }
    }
}

/// Counts connections and new ones per second, and says which to take.
///
/// ```
/// use tidegate_core::{Criticality, Timestamp};
/// use tidegate_core::connection::gate::{ConnectionGate, ConnectionLimits};
///
/// let gate = ConnectionGate::new(ConnectionLimits::default())?;
/// assert!(gate.accept(None, Timestamp::ZERO).is_ok());
/// assert!(gate.confirm(Criticality::Sheddable).is_ok());
/// gate.release();
/// assert_eq!(gate.open(), 0);
/// # Ok::<(), tidegate_core::units::InvalidNumber>(())
/// ```
#[derive(Debug)]
pub struct ConnectionGate {
    open: AtomicU64,
    /// The time at which the bucket will be full again, in nanoseconds: each token taken puts it
    /// one interval later.
    full_at: AtomicU64,
    open_max: [AtomicU64; Criticality::COUNT],
    ahead_max: [AtomicU64; Criticality::COUNT],
    interval: AtomicU64,
    unknown: AtomicU64,
    accepts_per_second: AtomicU64,
}

impl ConnectionGate {
    /// A gate with nothing open and a full bucket.
    pub fn new(limits: ConnectionLimits) -> Result<Self, InvalidNumber> {
        let zeros = || core::array::from_fn(|_| AtomicU64::new(0));
        let gate = Self {
            open: AtomicU64::new(0),
            full_at: AtomicU64::new(0),
            open_max: zeros(),
            ahead_max: zeros(),
            interval: AtomicU64::new(NEVER),
            unknown: AtomicU64::new(0),
            accepts_per_second: AtomicU64::new(0),
        };
        gate.publish(limits, Timestamp::ZERO)?;
        Ok(gate)
    }

    /// Puts other limits in place. Connections beyond the new ones stay open until they close by
    /// themselves. A decision that runs beside this may see some old and some new limits.
    pub fn publish(&self, limits: ConnectionLimits, now: Timestamp) -> Result<(), InvalidNumber> {
        limits.check()?;
        for criticality in Criticality::ALL {
            let i = criticality.index();
            self.open_max[i].store(limits.room_of(criticality, limits.open_max), Relaxed);
            self.ahead_max[i].store(limits.ahead_max(criticality), Relaxed);
        }
        let interval = limits.interval();
        let before = self.interval.swap(interval, Relaxed);
        if interval != NEVER {
            let (now, most) = (now.as_nanos(), limits.ahead_max(TOP));
            let _ = self.full_at.fetch_update(Relaxed, Relaxed, |full_at| {
                let owed = full_at.saturating_sub(now);
                let owed = if before == NEVER { owed } else { scaled(owed, interval, before) };
                Some(now.saturating_add(owed.min(most)))
            });
        }
        self.accepts_per_second.store(limits.accepts_per_second.into(), Relaxed);
        self.unknown.store(limits.unknown.index() as u64, Relaxed);
        Ok(())
    }

    /// Whether to take a new connection, and if so counts it; [`ConnectionGate::release`] it when
    /// it closes. `peer` is its criticality, if anything (an address, a port) tells before the
    /// handshake.
    pub fn accept(&self, peer: Option<Criticality>, now: Timestamp) -> Result<(), Refused> {
        let criticality = peer.unwrap_or_else(|| self.unknown());
        let open_max = self.open_max[criticality.index()].load(Relaxed);
        let open = self.open.load(Relaxed);
        if open >= open_max {
            return Err(too_many_open(open, open_max, criticality));
        }
        let ahead_max = self.ahead_max[criticality.index()].load(Relaxed);
        let interval = self.interval.load(Relaxed);
        self.forget_a_later_clock(interval, now);
        self.full_at
            .fetch_update(Relaxed, Relaxed, |full_at| {
                let later = full_at.max(now.as_nanos()).checked_add(interval)?;
                (later - now.as_nanos() <= ahead_max).then_some(later)
            })
            .map_err(|_| self.too_fast(criticality))?;
        self.open
            .fetch_update(Relaxed, Relaxed, |open| (open < open_max).then_some(open + 1))
            .map_err(|open| too_many_open(open, open_max, criticality))?;
        Ok(())
    }

    /// The handshake has told that the peer of an accepted connection is `criticality`. Refused
    /// means that it would stand in the room of others: close it, and release it like any other.
    pub fn confirm(&self, criticality: Criticality) -> Result<(), Refused> {
        let (open, limit) = (self.open(), self.open_max[criticality.index()].load(Relaxed));
        if open > limit {
            return Err(too_many_open(open, limit, criticality));
        }
        Ok(())
    }

    /// A connection that was taken has closed.
    pub fn release(&self) {
        // A release too many must not wrap around to a gate that is full for ever.
        let _ = self.open.fetch_update(Relaxed, Relaxed, |open| open.checked_sub(1));
    }

    /// Open connections.
    pub fn open(&self) -> u64 {
        self.open.load(Relaxed)
    }

    /// Whether nothing is open and the bucket is full: what there is to know is forgotten.
    pub fn is_quiet(&self, now: Timestamp) -> bool {
        self.open() == 0 && self.full_at.load(Relaxed) <= now.as_nanos()
    }

    fn too_fast(&self, criticality: Criticality) -> Refused {
        let per_second = at_most_u32(self.accepts_per_second.load(Relaxed));
        let cause = Cause::AcceptRate { per_second };
        Refused::new(ConnectionLimit::AcceptRate, criticality, cause)
    }

    /// Takes the bucket for empty if it is to be full later than an empty one would be.
    fn forget_a_later_clock(&self, interval: u64, now: Timestamp) {
        let latest = now.as_nanos().saturating_add(self.ahead_max[TOP.index()].load(Relaxed));
        let full_at = self.full_at.load(Relaxed);
        if interval != NEVER && full_at > latest.saturating_add(CLOCK_SPREAD) {
            // Whoever was quicker has seen the same clock.
            let _ = self.full_at.compare_exchange(full_at, latest, Relaxed, Relaxed);
        }
    }

    fn unknown(&self) -> Criticality {
        Criticality::from_index(self.unknown.load(Relaxed) as usize).unwrap_or_default()
    }
}

fn too_many_open(open: u64, limit: u64, criticality: Criticality) -> Refused {
    let cause = Cause::Connections { open: at_most_u32(open), limit: at_most_u32(limit) };
    Refused::new(ConnectionLimit::Open, criticality, cause)
}

fn at_most_u32(count: u64) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Criticality::{Critical, CriticalPlus, Sheddable, SheddablePlus};
    use proptest::prelude::*;

    fn limits(open_max: u64, accepts_per_second: u32, burst: u32) -> ConnectionLimits {
        ConnectionLimits { open_max, accepts_per_second, burst, ..ConnectionLimits::default() }
    }

    /// How many of `offered` connections at once are taken.
    fn taken(gate: &ConnectionGate, peer: Criticality, offered: u32, now: Timestamp) -> usize {
        (0..offered).filter(|_| gate.accept(Some(peer), now).is_ok()).count()
    }

    #[test]
    fn quiet_is_nothing_open_and_a_full_bucket() {
        let gate = ConnectionGate::new(limits(10, 10, 10)).unwrap();
        let at = Timestamp::from_millis;
        assert!(gate.is_quiet(at(0)));
        assert_eq!(taken(&gate, CriticalPlus, 2, at(0)), 2);
        assert!(!gate.is_quiet(at(1_000)));
        gate.release();
        gate.release();
        assert!(!gate.is_quiet(at(199)));
        assert!(gate.is_quiet(at(200)));
    }

    #[test]
    fn room_for_the_more_critical_is_kept_free() {
        let gate = ConnectionGate::new(limits(100, 1_000_000, 1_000_000)).unwrap();
        for (peer, more, open) in [
            (Sheddable, 70, 70),
            (SheddablePlus, 10, 80),
            (Sheddable, 0, 80),
            (Critical, 10, 90),
            (CriticalPlus, 10, 100),
            (CriticalPlus, 0, 100),
        ] {
            assert_eq!(taken(&gate, peer, 200, Timestamp::ZERO), more, "{peer}");
            assert_eq!(gate.open(), open);
        }
        let refused = gate.accept(None, Timestamp::ZERO).unwrap_err();
        assert_eq!(refused.limit, ConnectionLimit::Open);
        assert_eq!(
            refused.rejection.to_string(),
            "too_many_connections (CRITICAL): 100 connections open, with room for 90; may be \
             retried elsewhere"
        );
        for _ in 0..31 {
            gate.release();
        }
        assert_eq!(taken(&gate, Sheddable, 200, Timestamp::ZERO), 1);
    }

    #[test]
    fn tokens_go_to_the_more_critical_first() {
        // A hundred tokens, ten more a second.
        let gate = ConnectionGate::new(limits(1_000_000, 10, 100)).unwrap();
        for (secs, peer, more) in [
            (0, Sheddable, 70),
            (0, SheddablePlus, 10),
            (0, CriticalPlus, 20),
            // Ten new ones are within the reserve of the highest.
            (1, Critical, 0),
            (1, CriticalPlus, 10),
            // Thirty are the whole reserve of all that is above the lowest.
            (4, Sheddable, 0),
            (4, SheddablePlus, 10),
            (5, SheddablePlus, 10),
            (6, SheddablePlus, 10),
            (60, Sheddable, 70),
        ] {
            let now = Timestamp::from_secs(secs);
            assert_eq!(taken(&gate, peer, 200, now), more, "{peer} at {secs} s");
        }
        let refused = gate.accept(Some(Sheddable), Timestamp::from_secs(60)).unwrap_err();
        assert_eq!(refused.limit, ConnectionLimit::AcceptRate);
        assert_eq!(refused.rejection.cause, Some(Cause::AcceptRate { per_second: 10 }));
    }

    #[test]
    fn who_was_overrated_has_to_go_after_the_handshake() {
        let gate = ConnectionGate::new(limits(100, 1_000, 1_000)).unwrap();
        for open in 1..=90 {
            assert!(gate.accept(None, Timestamp::ZERO).is_ok());
            let confirmed = gate.confirm(Sheddable).map_err(|refused| refused.rejection.cause);
            let cause = Some(Cause::Connections { open, limit: 70 });
            assert_eq!(confirmed, if open <= 70 { Ok(()) } else { Err(cause) });
            assert!(gate.confirm(CriticalPlus).is_ok());
        }
        assert!(gate.accept(None, Timestamp::ZERO).is_err());
    }

    #[test]
    fn limits_change_while_connections_stay() {
        let gate = ConnectionGate::new(limits(100, 1_000, 1_000)).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 100, Timestamp::ZERO), 100);
        gate.publish(limits(50, 1_000, 1_000), Timestamp::ZERO).unwrap();
        assert!(gate.accept(Some(CriticalPlus), Timestamp::ZERO).is_err());
        gate.publish(limits(150, 1_000, 1_000), Timestamp::ZERO).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 100, Timestamp::ZERO), 50);
    }

    #[test]
    fn raising_the_accept_rate_opens_the_gate() {
        // 400 tokens are owed. At the old rate they took 400 s, at the new one 0.4 s.
        let gate = ConnectionGate::new(limits(1_000, 1, 500)).unwrap();
        assert_eq!(taken(&gate, Critical, 400, Timestamp::ZERO), 400);
        gate.publish(limits(1_000, 1_000, 500), Timestamp::ZERO).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 200, Timestamp::ZERO), 100);
        assert_eq!(taken(&gate, Critical, 1, Timestamp::from_secs(10)), 1);
    }

    #[test]
    fn tokens_that_are_owed_stay_owed_when_limits_change() {
        // Rate and burst before and after, then how many get in at once: 60 of 100 were taken.
        for (rate, burst, more) in [
            (10, 100, 40),
            (1, 100, 40),
            (1_000, 100, 40),
            (10, 200, 140),
            (10, 80, 20),
            // No more can be owed than fits.
            (1_000, 50, 0),
            (0, 100, 0),
        ] {
            let gate = ConnectionGate::new(limits(1_000, 10, 100)).unwrap();
            let now = Timestamp::from_secs(50);
            assert_eq!(taken(&gate, CriticalPlus, 60, now), 60);
            gate.publish(limits(1_000, rate, burst), now).unwrap();
            assert_eq!(taken(&gate, CriticalPlus, 500, now), more, "{rate} {burst}");
        }
        // Shut for a second and opened again: ten tokens came back meanwhile.
        let gate = ConnectionGate::new(limits(1_000, 10, 100)).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 60, Timestamp::ZERO), 60);
        gate.publish(limits(1_000, 0, 100), Timestamp::ZERO).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 60, Timestamp::ZERO), 0);
        gate.publish(limits(1_000, 10, 100), Timestamp::from_secs(1)).unwrap();
        assert_eq!(taken(&gate, CriticalPlus, 200, Timestamp::from_secs(1)), 50);
    }

    #[test]
    fn a_clock_that_stepped_back_does_not_shut_the_accept_gate() {
        let gate = ConnectionGate::new(ConnectionLimits::default()).unwrap();
        gate.accept(None, Timestamp::from_secs(3_600)).unwrap();
        // The bucket is taken for empty, and a second later it is full.
        assert_eq!(taken(&gate, CriticalPlus, 1_000, Timestamp::ZERO), 0);
        assert_eq!(taken(&gate, CriticalPlus, 1_000, Timestamp::from_secs(1)), 500);
    }

    #[test]
    fn threads_that_read_the_clock_a_little_early_get_no_more() {
        let gate = ConnectionGate::new(limits(10_000, 500, 500)).unwrap();
        let (early, late) = (Timestamp::from_millis(9_900), Timestamp::from_secs(10));
        assert_eq!(taken(&gate, CriticalPlus, 1_000, late), 500);
        for _ in 0..100 {
            assert_eq!(taken(&gate, CriticalPlus, 10, early), 0);
            assert_eq!(taken(&gate, CriticalPlus, 10, late), 0);
        }
    }

    #[test]
    fn small_limits_let_everyone_in_who_has_any_room() {
        for peer in Criticality::ALL {
            let gate = ConnectionGate::new(limits(1, 1, 1)).unwrap();
            assert_eq!(taken(&gate, peer, 9, Timestamp::ZERO), 1, "{peer}");
        }
        let room = [0, 0, 50, 100].map(Ratio::percent);
        let gate = ConnectionGate::new(ConnectionLimits { room, ..limits(9, 9, 9) }).unwrap();
        for (peer, more) in [(Sheddable, 0), (SheddablePlus, 0), (Critical, 4), (CriticalPlus, 5)] {
            assert_eq!(taken(&gate, peer, 9, Timestamp::ZERO), more, "{peer}");
        }
    }

    #[test]
    fn nonsense_is_refused_and_extremes_do_no_harm() {
        let falling = ConnectionLimits {
            room: [70, 60, 90, 100].map(Ratio::percent),
            ..ConnectionLimits::default()
        };
        assert_eq!(
            ConnectionGate::new(falling).unwrap_err().to_string(),
            "the room of a criticality must be at least that of the criticality below, but it is \
             0.6"
        );
        for (open_max, rate, burst) in [(0, 1, 1), (1, 0, 1), (1, 1, 0), (u64::MAX, 0, u32::MAX)] {
            let gate = ConnectionGate::new(limits(open_max, rate, burst)).unwrap();
            for now in [Timestamp::ZERO, Timestamp::MAX] {
                assert!(gate.accept(Some(CriticalPlus), now).is_err(), "{open_max} {rate} {burst}");
            }
            gate.release();
            assert_eq!(gate.open(), 0);
        }
        let gate = ConnectionGate::new(limits(u64::MAX, u32::MAX, u32::MAX)).unwrap();
        assert!(gate.accept(Some(Sheddable), Timestamp::ZERO).is_ok());
    }

    #[test]
    fn racing_threads_exceed_no_limit_together() {
        const THREADS: usize = 4;
        // The bucket runs out at 9,000 of CRITICAL_PLUS, the places at 5,000.
        for (open_max, burst, most) in [(5_000, 9_000, 5_000), (9_000, 5_000, 5_000)] {
            let gate = ConnectionGate::new(limits(open_max, 1, burst)).unwrap();
            let taken: usize = std::thread::scope(|scope| {
                let threads: Vec<_> = (0..THREADS)
                    .map(|_| scope.spawn(|| taken(&gate, CriticalPlus, 4_000, Timestamp::ZERO)))
                    .collect();
                threads.into_iter().map(|t| t.join().unwrap()).sum()
            });
            assert_eq!(taken, most);
            assert_eq!(gate.open(), most as u64);
            std::thread::scope(|scope| {
                for _ in 0..THREADS {
                    scope.spawn(|| (0..most / THREADS).for_each(|_| gate.release()));
                }
            });
            assert_eq!(gate.open(), 0);
        }
    }

    #[derive(Debug, Clone)]
    enum Operation {
        Accept(usize),
        Release,
        Wait(u64),
    }

    fn operation() -> impl Strategy<Value = Operation> {
        prop_oneof![
            4 => (0..Criticality::COUNT).prop_map(Operation::Accept),
            1 => Just(Operation::Release),
            1 => (0_u64..3_000).prop_map(Operation::Wait),
        ]
    }

    proptest! {
        /// After any history: a level that is taken means that every higher one would have been.
        #[test]
        fn no_level_is_refused_before_a_lower_one(
            operations in proptest::collection::vec(operation(), 0..200),
            open_max in 0_u64..40, rate in 0_u32..20, burst in 0_u32..20,
            room in proptest::array::uniform4(0_u32..=100),
        ) {
            let mut room = room.map(Ratio::percent);
            room.sort_unstable();
            let limits = ConnectionLimits { room, ..limits(open_max, rate, burst) };
            // One gate for each level, all with the same history, tell what each would get.
            let gates = Criticality::ALL.map(|_| ConnectionGate::new(limits).unwrap());
            let mut now = Timestamp::ZERO;
            let mut accepted = 0_u64;
            for operation in operations {
                match operation {
                    Operation::Wait(ms) => now += core::time::Duration::from_millis(ms),
                    Operation::Release => gates.iter().for_each(ConnectionGate::release),
                    Operation::Accept(level) => {
                        let before: Vec<(u64, u64)> = gates
                            .iter()
                            .map(|g| (g.open.load(Relaxed), g.full_at.load(Relaxed)))
                            .collect();
                        let answers: Vec<bool> = Criticality::ALL
                            .iter()
                            .zip(&gates)
                            .map(|(c, g)| g.accept(Some(*c), now).is_ok())
                            .collect();
                        prop_assert!(answers.is_sorted(), "{:?}", answers);
                        accepted += u64::from(answers[level]);
                        // Everyone's history is that of `level`.
                        for (gate, before) in gates.iter().zip(before) {
                            let (open, full_at) = if answers[level] {
                                (gates[level].open(), gates[level].full_at.load(Relaxed))
                            } else {
                                before
                            };
                            gate.open.store(open, Relaxed);
                            gate.full_at.store(full_at, Relaxed);
                        }
                        prop_assert!(gates[0].open() <= open_max);
                    }
                }
                // No more in all than the bucket held and what has come since.
                let refilled = now.as_nanos() as f64 / 1e9 * f64::from(rate);
                prop_assert!(accepted as f64 <= f64::from(burst) + refilled + 1e-6);
            }
        }
    }
}
