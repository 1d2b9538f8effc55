//! Averages that forget with time, not with samples.
//!
//! An average that gives each sample a fixed weight forgets faster the busier it gets, and stands
//! still when nothing comes. Here the weight of the past falls with the time that has gone by:
//!
//! ```text
//! keep = exp(-elapsed / tau)            average = keep x average + (1 - keep) x sample
//! ```
//!
//! so a value that lasts `tau` moves the average by 63 % of the step, however often it was sampled,
//! and one that lasts a hundredth of `tau` moves it by 1 %.
//!
//! `exp` of the system's mathematical library differs in the last bit from platform to platform,
//! which is enough to make two runs of one seed drift apart. [`decay`] uses only the four basic
//! operations, which IEEE 754 fixes to the bit.

use crate::units::{Timestamp, nanos};
use core::time::Duration;

/// `exp(-elapsed / tau)`: 1 for no time, 0 for eternity. A `tau` of zero forgets everything that
/// is not of this very moment.
pub fn decay(elapsed: Duration, tau: Duration) -> f64 {
    decay_nanos(nanos(elapsed), nanos(tau))
}

/// The same, in nanoseconds.
#[inline]
fn decay_nanos(elapsed: u64, tau: u64) -> f64 {
    match (elapsed, tau) {
        (0, _) => 1.0,
        (_, 0) => 0.0,
        _ => exp_neg(to_float(elapsed) / to_float(tau)),
    }
}

/// `nanos as f64`. Processors convert signed integers by one instruction and others by several; all
/// that are worth measuring, up to 292 years, are the same as either.
#[inline]
const fn to_float(nanos: u64) -> f64 {
    if nanos <= i64::MAX as u64 { nanos as i64 as f64 } else { nanos as f64 }
}

/// Nanoseconds from one moment to a later one; none to an earlier one.
#[inline]
const fn nanos_since(now: Timestamp, then: Timestamp) -> u64 {
    now.as_nanos().saturating_sub(then.as_nanos())
}

/// `exp(-x)` for `x >= 0`, the same bits everywhere.
///
/// With `x = (n + j/64) ln 2 - r`, `j` below 64 and `r` at most `ln 2 / 128` either way:
///
/// ```text
/// exp(-x) = 2^-n x 2^(-j/64) x exp(r)
/// ```
///
/// The middle factor comes from a table, and the series of `exp` up to the fifth power leaves less
/// than 4 parts in 10^17, as `(ln 2 / 128)^6 / 6! < 4e-17`. This runs with every request that comes
/// or goes and a dozen times a tick, so the terms are summed in pairs that do not wait for each
/// other; and it is not copied into each of these places, which would take more of the instruction
/// cache than a call takes time.
#[inline(never)]
fn exp_neg(x: f64) -> f64 {
    // Below 2^-1022 lie the denormals; an average has long forgotten by then.
    if x > 708.0 {
        return 0.0;
    }
    let steps = (x * (STEPS as f64 * core::f64::consts::LOG2_E) + 0.5) as i64;
    let r = steps as f64 * (core::f64::consts::LN_2 / STEPS as f64) - x;
    let square = r * r;
    let high = (0.5 + r * (1.0 / 6.0)) + square * (1.0 / 24.0 + r * (1.0 / 120.0));
    let series = (1.0 + r) + square * high;
    let power = f64::from_bits(((1023 - steps / STEPS) as u64) << 52);
    series * ROOTS[(steps % STEPS) as usize] * power
}

/// Parts into which a halving is divided: 512 bytes of table.
const STEPS: i64 = 64;

/// `2^(-j/64)`, by the series of `exp` up to the twentieth power.
const ROOTS: [f64; STEPS as usize] = {
    let mut roots = [1.0; STEPS as usize];
    let mut j = 1;
    while j < roots.len() {
        let x = -(j as f64) * core::f64::consts::LN_2 / STEPS as f64;
        let mut k = 20;
        while k > 0 {
            roots[j] = 1.0 + x / k as f64 * roots[j];
            k -= 1;
        }
        j += 1;
    }
    roots
};

/// The average of a quantity that is sampled now and then: a queue length, a rate, a utilization.
#[derive(Debug, Clone)]
pub struct Average {
    tau_nanos: u64,
    state: Option<(f64, Timestamp)>,
}

impl Average {
    /// Forgets with time constant `tau`. The first sample is taken as it is.
    pub const fn new(tau: Duration) -> Self {
        Self { tau_nanos: nanos(tau), state: None }
    }

    /// As [`Average::new`], but the quantity is known to have been `value` until `now`: a first
    /// sample that is a spike moves it no more than any other. A `value` that is not finite is no
    /// knowledge, and the average starts as [`Average::new`] does.
    pub const fn starting_at(tau: Duration, value: f64, now: Timestamp) -> Self {
        let tau_nanos = nanos(tau);
        Self { tau_nanos, state: if value.is_finite() { Some((value, now)) } else { None } }
    }

    /// The quantity was `sample` since the last call. Samples that are not finite are left out:
    /// returns whether this one was taken.
    pub fn record(&mut self, sample: f64, now: Timestamp) -> bool {
        if !sample.is_finite() {
            return false;
        }
        self.state = Some(match self.state {
            None => (sample, now),
            Some((value, last)) => {
                let keep = decay_nanos(nanos_since(now, last), self.tau_nanos);
                (keep * value + (1.0 - keep) * sample, now.max(last))
            }
        });
        true
    }

    /// Forgets with time constant `tau` from now on.
    pub const fn set_tau(&mut self, tau: Duration) {
        self.tau_nanos = nanos(tau);
    }

    /// The average, if there was any sample.
    pub fn get(&self) -> Option<f64> {
        self.state.map(|(value, _)| value)
    }
}

/// Several averages over the same time: what fades is worked out once for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Averages<const N: usize> {
    tau_nanos: u64,
    state: Option<([f64; N], Timestamp)>,
}

impl<const N: usize> Averages<N> {
    /// As [`Average::new`].
    pub(crate) const fn new(tau: Duration) -> Self {
        Self { tau_nanos: nanos(tau), state: None }
    }

    /// As [`Average::set_tau`].
    pub(crate) const fn set_tau(&mut self, tau: Duration) {
        self.tau_nanos = nanos(tau);
    }

    /// As [`Average::record`] of each. One whose sample is not finite stays as it is, and at zero
    /// if it is the first.
    pub(crate) fn record(&mut self, samples: [f64; N], now: Timestamp) {
        let (keep, values, last) = match self.state {
            None => (0.0, [0.0; N], now),
            Some((values, last)) => {
                (decay_nanos(nanos_since(now, last), self.tau_nanos), values, now.max(last))
            }
        };
        let blend = |i: usize| match (values[i], samples[i]) {
            (value, sample) if sample.is_finite() => keep * value + (1.0 - keep) * sample,
            (value, _) => value,
        };
        self.state = Some((core::array::from_fn(blend), last));
    }

    /// The averages; zero before the first samples.
    pub(crate) fn get(&self) -> [f64; N] {
        self.state.map_or([0.0; N], |(values, _)| values)
    }
}

/// How much of something happens per second, lately.
///
/// Each amount fades with the time constant; what is left over `tau` is the rate. Early on less
/// time than `tau` has passed, and the rate is divided by what has: a steady stream reads right
/// from the start.
#[derive(Debug, Clone)]
pub struct Rate {
    time: Fading,
    faded: f64,
}

/// The time over which amounts fade.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Fading {
    tau_nanos: u64,
    start: Timestamp,
    last: Timestamp,
    /// The weight that all moments since the start have together, in seconds, once somebody has
    /// asked for it as of `last`. It takes as long to work out as everything else.
    seen: Option<f64>,
}

impl Fading {
    const fn new(tau: Duration, now: Timestamp) -> Self {
        Self { tau_nanos: nanos(tau), start: now, last: now, seen: None }
    }

    /// Fades with time constant `tau` from now on. Gives by how much amounts have to be multiplied
    /// to read the same as before.
    fn set_tau(&mut self, tau: Duration) -> Option<f64> {
        let (tau_nanos, before) = (nanos(tau), self.tau_nanos);
        if tau_nanos == before || before == 0 {
            return None;
        }
        self.tau_nanos = tau_nanos;
        self.seen = None;
        Some(tau_nanos as f64 / before as f64)
    }

    /// Lets time pass and returns how much of the past is left.
    #[inline]
    fn pass(&mut self, now: Timestamp) -> f64 {
        if now <= self.last {
            return 1.0;
        }
        let keep = decay_nanos(nanos_since(now, self.last), self.tau_nanos);
        self.last = now;
        self.seen = None;
        keep
    }

    /// The weight that all moments since the start have together, in seconds.
    #[inline]
    fn seen(&mut self) -> f64 {
        if let Some(seen) = self.seen {
            return seen;
        }
        let age = nanos_since(self.last, self.start);
        // A tenth of `tau` at the least: a first event at the very start is no infinite rate. After
        // forty times `tau`, an `f64` cannot tell it from the whole.
        let weight = if age > self.tau_nanos.saturating_mul(40) {
            1.0
        } else {
            (1.0 - decay_nanos(age, self.tau_nanos)).max(0.1)
        };
        *self.seen.insert(weight * Duration::from_nanos(self.tau_nanos).as_secs_f64())
    }
}

impl Rate {
    /// Forgets with time constant `tau`; counting begins at `now`.
    pub const fn new(tau: Duration, now: Timestamp) -> Self {
        Self { time: Fading::new(tau, now), faded: 0.0 }
    }

    /// Forgets with time constant `tau` from now on, reading the same as before at first.
    pub fn set_tau(&mut self, tau: Duration) {
        if let Some(scale) = self.time.set_tau(tau) {
            self.faded *= scale;
        }
    }

    /// `amount` happens at `now`. Amounts that are not finite or are negative are left out: returns
    /// whether this one was taken.
    pub fn add(&mut self, amount: f64, now: Timestamp) -> bool {
        self.faded *= self.time.pass(now);
        self.take(amount)
    }

    /// `amount` happened little by little since the last call, for whoever looks at a counter now
    /// and then. The early part has already faded when it is told; counting all of it as of `now`
    /// would read too high, by `interval / (2 tau)`. Otherwise as [`Rate::add`].
    pub fn add_since_last(&mut self, amount: f64, now: Timestamp) -> bool {
        let interval = nanos_since(now, self.time.last);
        let keep = self.time.pass(now);
        self.add_over(amount, interval, keep)
    }

    /// Several at once: each as by [`Rate::add_since_last`], then [`Rate::per_second`]. For those
    /// that are always told of at the same moments what fades is worked out once, not for each.
    pub fn add_together<const N: usize>(
        rates: &mut [Self; N],
        amounts: [f64; N],
        now: Timestamp,
    ) -> [f64; N] {
        let mut last: Option<(Fading, Fading, f64)> = None;
        core::array::from_fn(|i| {
            let rate = &mut rates[i];
            let interval = nanos_since(now, rate.time.last);
            let (time, keep) = match last {
                Some((before, after, keep)) if before == rate.time => (after, keep),
                _ => {
                    let mut after = rate.time;
                    let keep = after.pass(now);
                    after.seen();
                    last = Some((rate.time, after, keep));
                    (after, keep)
                }
            };
            rate.time = time;
            rate.add_over(amounts[i], interval, keep);
            rate.read()
        })
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[doc(hidden)]
    #[inline]
    #[must_use]
    pub const fn touch(&self) -> u64 {
        self.faded.to_bits() ^ self.time.tau_nanos
    }

    /// Per second, as of `now`.
    pub fn per_second(&mut self, now: Timestamp) -> f64 {
        self.faded *= self.time.pass(now);
        self.read()
    }

    /// Per second, as of the last moment.
    #[inline]
    fn read(&mut self) -> f64 {
        let seen = self.time.seen();
        if seen > 0.0 { (self.faded / seen).min(f64::MAX) } else { 0.0 }
    }

    /// Keeps so much of the past, and takes an amount that came little by little since.
    #[inline]
    fn add_over(&mut self, amount: f64, interval: u64, keep: f64) -> bool {
        self.faded *= keep;
        if interval == 0 {
            return self.take(amount);
        }
        self.take(amount * (1.0 - keep) * to_float(self.time.tau_nanos) / to_float(interval))
    }

    fn take(&mut self, amount: f64) -> bool {
        let taken = amount.is_finite() && amount >= 0.0;
        if taken {
            self.faded = (self.faded + amount).min(f64::MAX);
        }
        taken
    }
}

/// Several rates over the same time: what fades is worked out once for all of them.
#[derive(Debug, Clone)]
pub(crate) struct Rates<const N: usize> {
    time: Fading,
    faded: [f64; N],
}

impl<const N: usize> Rates<N> {
    pub(crate) const fn new(tau: Duration, now: Timestamp) -> Self {
        Self { time: Fading::new(tau, now), faded: [0.0; N] }
    }

    /// As [`Rate::set_tau`].
    pub(crate) fn set_tau(&mut self, tau: Duration) {
        if let Some(scale) = self.time.set_tau(tau) {
            self.faded = self.faded.map(|faded| faded * scale);
        }
    }

    /// As [`Lane::touch`](crate::admission::Lane::touch).
    #[inline]
    pub(crate) fn touch(&self) -> u64 {
        let last = self.faded.last().map_or(0, |faded| faded.to_bits());
        last ^ self.faded[0].to_bits() ^ self.time.tau_nanos
    }

    /// One of them reads `factor` times as much from now on.
    pub(crate) fn scale(&mut self, of: usize, factor: f64) {
        if let Some(faded) = self.faded.get_mut(of)
            && factor.is_finite()
            && factor >= 0.0
        {
            *faded = (*faded * factor).min(f64::MAX);
        }
    }

    /// As [`Rate::add_since_last`], then [`Rate::per_second`], of each.
    pub(crate) fn add_since_last(&mut self, amounts: [f64; N], now: Timestamp) -> [f64; N] {
        let interval = nanos_since(now, self.time.last);
        let keep = self.time.pass(now);
        let spread = match interval {
            0 => 1.0,
            _ => (1.0 - keep) * to_float(self.time.tau_nanos) / to_float(interval),
        };
        // Without branches, so that several are worked out at once.
        let bound = |value: f64| if value < f64::MAX { value } else { f64::MAX };
        for (faded, amount) in self.faded.iter_mut().zip(amounts) {
            let taken = if (0.0..=f64::MAX).contains(&amount) { amount } else { 0.0 };
            *faded = bound(*faded * keep + taken * spread);
        }
        let seen = self.time.seen();
        if seen > 0.0 { self.faded.map(|faded| bound(faded / seen)) } else { [0.0; N] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TAU: Duration = Duration::from_secs(1);

    #[test]
    #[expect(clippy::disallowed_methods, reason = "the system's own, to compare with")]
    fn decay_by_the_table() {
        for (elapsed_ms, keep) in [
            (0, 1.0),
            (10, 0.990_049_833_749_168),
            (100, 0.904_837_418_035_96),
            (693, 0.500_073_595_695_767_7),
            (1_000, 0.367_879_441_171_442),
            (5_000, 0.006_737_946_999_085),
            (50_000, 1.928_749_847_963_918e-22),
            (10_000_000, 0.0),
        ] {
            let found = decay(Duration::from_millis(elapsed_ms), TAU);
            assert!(
                (found - keep).abs() <= 1e-13 * keep.max(1e-12),
                "{elapsed_ms}: {found} {keep}"
            );
        }
        for nanos in (0..20_000_000_000_u64).step_by(9_999_991) {
            let (found, exact) =
                (decay(Duration::from_nanos(nanos), TAU), (-(nanos as f64) / 1e9).exp());
            assert!((found / exact - 1.0).abs() < 1e-14, "{nanos} ns: {found} {exact}");
        }
        assert_eq!(decay(Duration::from_secs(1), Duration::ZERO), 0.0);
        assert_eq!(decay(Duration::ZERO, Duration::ZERO), 1.0);
        assert_eq!(decay(Duration::MAX, Duration::from_nanos(1)), 0.0);
    }

    #[test]
    fn a_short_spike_is_swallowed_and_a_lasting_rise_is_not() {
        let mut a = Average::starting_at(TAU, 1.0, Timestamp::ZERO);
        a.record(100.0, Timestamp::from_millis(5));
        assert!(a.get().unwrap() < 1.6);
        for ms in (10..=3_000).step_by(5) {
            a.record(100.0, Timestamp::from_millis(ms));
        }
        assert!(a.get().unwrap() > 94.0);
    }

    #[test]
    fn a_start_that_is_no_number_is_no_start() {
        for start in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            let mut a = Average::starting_at(TAU, start, Timestamp::ZERO);
            assert_eq!(a.get(), None);
            a.record(3.0, Timestamp::from_secs(1));
            assert_eq!(a.get(), Some(3.0));
        }
    }

    #[test]
    fn a_steady_stream_reads_right_from_early_on() {
        let mut r = Rate::new(TAU, Timestamp::ZERO);
        for ms in 1..=10_000 {
            r.add(0.25, Timestamp::from_millis(ms));
            if ms >= 200 {
                let found = r.per_second(Timestamp::from_millis(ms));
                assert!((found - 250.0).abs() < 2.0, "{found} after {ms} ms");
            }
        }
    }

    #[test]
    fn a_counter_that_is_looked_at_now_and_then_reads_right() {
        for step_ms in [1, 10, 50, 500] {
            let mut r = Rate::new(Duration::from_millis(100), Timestamp::ZERO);
            for i in 1..=5_000 / step_ms {
                r.add_since_last(0.25 * step_ms as f64, Timestamp::from_millis(i * step_ms));
            }
            let found = r.per_second(Timestamp::from_secs(5));
            assert!((found - 250.0).abs() < 0.1, "{found} by steps of {step_ms} ms");
        }
    }

    #[test]
    fn several_rates_read_as_each_would_alone() {
        let mut all = Rates::<3>::new(TAU, Timestamp::ZERO);
        let mut each = [(); 3].map(|()| Rate::new(TAU, Timestamp::ZERO));
        for i in 1..200_u64 {
            let now = Timestamp::from_millis(i * (7 + i % 5));
            let amounts = [i as f64, 1.0, (i % 3) as f64];
            if i == 100 {
                all.set_tau(2 * TAU);
                for rate in &mut each {
                    rate.set_tau(2 * TAU);
                }
            }
            let found = all.add_since_last(amounts, now);
            for ((rate, amount), found) in each.iter_mut().zip(amounts).zip(found) {
                rate.add_since_last(amount, now);
                let alone = rate.per_second(now);
                assert!((found - alone).abs() <= 1e-12 * alone.max(1.0), "{found} {alone}");
            }
        }
    }

    /// To the bit, whether they were always told of together or one of them alone at times.
    #[test]
    fn rates_that_are_told_of_together_read_as_each_would_alone() {
        let mut together = [(); 3].map(|()| Rate::new(TAU, Timestamp::ZERO));
        let mut alone = together.clone();
        for i in 1..300_u64 {
            let now = Timestamp::from_millis(i / 2 * (7 + i % 5));
            if i % 50 == 0 {
                together[1].add(3.0, now);
                alone[1].add(3.0, now);
            }
            let amounts = [i as f64, f64::NAN, (i % 3) as f64];
            let found = Rate::add_together(&mut together, amounts, now);
            for ((rate, amount), found) in alone.iter_mut().zip(amounts).zip(found) {
                rate.add_since_last(amount, now);
                assert_eq!(rate.per_second(now).to_bits(), found.to_bits(), "step {i}");
            }
        }
    }

    #[test]
    fn several_averages_read_as_each_would_alone() {
        let mut all = Averages::<3>::new(TAU);
        let mut each = [(); 3].map(|()| Average::new(TAU));
        assert_eq!(all.get(), [0.0; 3]);
        for i in 1..200_u64 {
            let now = Timestamp::from_millis(i * (7 + i % 5));
            if i == 100 {
                all.set_tau(2 * TAU);
                for average in &mut each {
                    average.set_tau(2 * TAU);
                }
            }
            let samples = [i as f64, 1.0, (i % 3) as f64];
            all.record(samples, now);
            for (average, sample) in each.iter_mut().zip(samples) {
                average.record(sample, now);
            }
            assert_eq!(all.get().map(Some), [0, 1, 2].map(|i| each[i].get()), "step {i}");
        }
        let before = all.get();
        all.record([f64::NAN, 1.0, f64::INFINITY], Timestamp::from_secs(9));
        assert_eq!(all.get(), before, "what is no number moves nothing, and 1 is where it was");
    }

    proptest! {
        /// How often a lasting value is sampled does not change where the average goes.
        #[test]
        fn the_number_of_samples_does_not_matter(
            steps in proptest::collection::vec(1_u64..500, 1..50),
        ) {
            let total: u64 = steps.iter().sum();
            let mut often = Average::starting_at(TAU, 0.0, Timestamp::ZERO);
            let mut now = Timestamp::ZERO;
            for ms in steps {
                now += Duration::from_millis(ms);
                often.record(7.0, now);
            }
            let mut once = Average::starting_at(TAU, 0.0, Timestamp::ZERO);
            once.record(7.0, Timestamp::from_millis(total));
            prop_assert!((often.get().unwrap() - once.get().unwrap()).abs() < 1e-9);
        }

        #[test]
        fn nothing_fed_in_yields_a_nan(
            start in proptest::num::f64::ANY,
            samples in proptest::collection::vec(
                (proptest::num::f64::ANY, any::<u64>()),
                0..50,
            ),
        ) {
            let mut started = Average::starting_at(TAU, start, Timestamp::ZERO);
            let mut a = Average::new(TAU);
            let mut r = Rate::new(TAU, Timestamp::ZERO);
            for (sample, at) in samples {
                let now = Timestamp::from_nanos(at);
                a.record(sample, now);
                started.record(sample, now);
                prop_assert!(started.get().is_none_or(f64::is_finite));
                r.add(sample, now);
                r.add_since_last(sample, Timestamp::from_nanos(at.rotate_left(7)));
                prop_assert!(a.get().is_none_or(f64::is_finite));
                prop_assert!(r.per_second(now).is_finite());
            }
        }
    }
}
