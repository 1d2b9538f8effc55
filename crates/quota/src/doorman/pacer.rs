//! Keeps a client to its lease: a bucket that fills at the rate of the lease.
//!
//! ```text
//! rate   = the lease's capacity while it holds, else the safe capacity; below 0 is any rate
//! tokens = min(tokens + rate x time, max(rate x 1 s, 5))
//! ```
//!
//! A second's worth may be saved up, and no fewer than five: with one alone, and twice as much
//! wanted as leased, a third of the lease would go unused.

use core::time::Duration;
use tidegate_core::Timestamp;

const BURST_MIN: f64 = 5.0;
/// Nobody waits for longer before looking again: the lease may have changed.
const WAIT_MAX: Duration = Duration::from_secs(1);

#[derive(Debug, Clone)]
pub(super) struct Pacer {
    lease: Option<(f64, Timestamp)>,
    /// What applies without a lease.
    safe: f64,
    tokens: f64,
    last: Timestamp,
}

impl Pacer {
    /// Before the first lease: nothing is known to be safe.
    pub(super) const fn new(now: Timestamp) -> Self {
        Self { lease: None, safe: 0.0, tokens: 0.0, last: now }
    }

    /// A new lease until `expiry`.
    pub(super) fn grant(&mut self, capacity: f64, expiry: Timestamp, safe: f64, now: Timestamp) {
        // What was earned before was earned at the rate before.
        self.earn(now);
        let sane = |rate: f64| if rate.is_finite() { rate.max(-1.0) } else { 0.0 };
        self.lease = Some((sane(capacity).max(0.0), expiry));
        self.safe = sane(safe);
    }

    /// The lease that the server should hear of.
    pub(super) fn lease(&self, now: Timestamp) -> Option<(f64, Timestamp)> {
        self.lease.filter(|(_, expiry)| now < *expiry)
    }

    /// What may be used a second; below 0 is anything.
    pub(super) fn rate(&self, now: Timestamp) -> f64 {
        self.lease(now).map_or(self.safe, |(capacity, _)| capacity)
    }

    fn earn(&mut self, now: Timestamp) -> f64 {
        let rate = self.rate(now);
        let earned = now.since(self.last).as_secs_f64() * rate.max(0.0);
        self.last = now;
        self.tokens = (self.tokens + earned).min(rate.max(BURST_MIN));
        rate
    }

    /// Takes one if there is one; else says in how long to look again.
    pub(super) fn take(&mut self, now: Timestamp) -> Result<(), Duration> {
        let rate = self.earn(now);
        if rate < 0.0 {
            return Ok(());
        }
        if self.tokens >= 1.0 {
            self.tokens -= 1.0;
            return Ok(());
        }
        let wait = (1.0 - self.tokens) / rate;
        let wait = if wait.is_finite() { wait.min(WAIT_MAX.as_secs_f64()) } else { 1.0 };
        // Never at once again: rounding must not make anybody spin.
        Err(Duration::from_secs_f64(wait).max(Duration::from_millis(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// How many of those who ask every millisecond are let through.
    fn taken(pacer: &mut Pacer, from: u64, to: u64) -> usize {
        (from..to).filter(|&millis| pacer.take(at(millis)).is_ok()).count()
    }

    #[test]
    fn a_client_keeps_to_its_lease_and_then_to_the_safe_capacity() {
        let mut pacer = Pacer::new(at(0));
        assert_eq!(taken(&mut pacer, 0, 1_000), 0, "nothing was said yet");
        pacer.grant(100.0, at(11_000), 10.0, at(1_000));
        let leased = taken(&mut pacer, 1_000, 11_000);
        assert!((995..=1_000).contains(&leased), "{leased}");
        let safe = taken(&mut pacer, 11_000, 21_000);
        assert!((98..=105).contains(&safe), "{safe}");
        pacer.grant(0.0, at(31_000), -1.0, at(21_000));
        assert!(taken(&mut pacer, 21_000, 31_000) <= 5, "what was saved up");
        assert_eq!(taken(&mut pacer, 31_000, 32_000), 1_000, "anything is safe");
        pacer.grant(f64::NAN, at(99_000), f64::INFINITY, at(32_000));
        assert!(taken(&mut pacer, 32_000, 99_000) <= 5, "no number is nothing");
    }

    #[test]
    fn who_has_to_wait_is_told_how_long() {
        let mut pacer = Pacer::new(at(0));
        pacer.grant(4.0, at(60_000), 0.0, at(0));
        assert_eq!(pacer.take(at(0)), Err(Duration::from_millis(250)));
        assert_eq!(pacer.take(at(100)), Err(Duration::from_millis(150)));
        assert_eq!(pacer.take(at(250)), Ok(()));
        pacer.grant(0.0, at(60_000), 0.0, at(250));
        assert_eq!(pacer.take(at(251)), Err(WAIT_MAX));
    }
}
