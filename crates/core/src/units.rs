//! The quantities that decisions are made of, each a type that cannot hold nonsense.
//!
//! A load report from a stranger may say `NaN`, a clock may step backwards, a counter may be fed
//! for years. If such a value reached a sum, every later decision would be wrong without anyone
//! noticing. So nonsense is turned away where it enters: constructors refuse what is not a number,
//! and arithmetic stops at the ends of its range instead of wrapping.
//!
//! Times, costs and rates are whole nanoseconds in a `u64` (584 years); shares are whole
//! billionths. Integers add up the same in every order and on every machine, which is what makes
//! budgets exact and traces repeatable.

use core::fmt;
use core::ops::{Add, AddAssign, Sub, SubAssign};
use core::time::Duration;

/// Nanoseconds in a second.
pub(crate) const NANOS: u64 = 1_000_000_000;

/// A number that a quantity cannot take.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{quantity} must be {wanted}, but it is {found}")]
#[non_exhaustive]
pub struct InvalidNumber {
    /// What was being set.
    pub quantity: &'static str,
    /// What would be right.
    pub wanted: &'static str,
    /// What was given.
    pub found: f64,
}

impl InvalidNumber {
    /// Says that `found` is no value for `quantity`, and what would be.
    pub const fn new(quantity: &'static str, wanted: &'static str, found: f64) -> Self {
        Self { quantity, wanted, found }
    }
}

/// A point in time: nanoseconds since an epoch that the shell chooses.
///
/// Unlike `Instant` it has a zero, so that a simulation starts at the same time in every run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The epoch.
    pub const ZERO: Self = Self(0);
    /// The end of time, for "never".
    pub const MAX: Self = Self(u64::MAX);

    /// The point `nanos` nanoseconds after the epoch.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The point `millis` milliseconds after the epoch.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// The point `secs` seconds after the epoch.
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(NANOS))
    }

    /// Nanoseconds since the epoch.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Time passed since `earlier`; zero if `earlier` is later (a clock that stepped back).
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    /// Stops at [`Timestamp::MAX`].
    fn add(self, span: Duration) -> Self {
        Self(self.0.saturating_add(nanos(span)))
    }
}

impl AddAssign<Duration> for Timestamp {
    fn add_assign(&mut self, span: Duration) {
        *self = *self + span;
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;

    /// Stops at [`Timestamp::ZERO`].
    fn sub(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(span)))
    }
}

/// A span in whole nanoseconds, stopping at `u64::MAX`.
pub(crate) const fn nanos(span: Duration) -> u64 {
    let n = span.as_nanos();
    if n > u64::MAX as u128 { u64::MAX } else { n as u64 }
}

/// What a request consumes: CPU time in nanoseconds, normalised to the reference machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Cost(u64);

impl Cost {
    /// No cost.
    pub const ZERO: Self = Self(0);
    /// More than anything costs.
    pub const MAX: Self = Self(u64::MAX);

    /// `nanos` nanoseconds of reference CPU time.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `micros` microseconds of reference CPU time.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// `millis` milliseconds of reference CPU time.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Nanoseconds of reference CPU time.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Seconds of reference CPU time.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// The rate of spending this much in every `span`. An empty span gives the highest rate there
    /// is for any cost, and none for no cost.
    pub fn per(self, span: Duration) -> CostRate {
        let span = u128::from(nanos(span).max(1));
        let rate = u128::from(self.0) * u128::from(NANOS) / span;
        CostRate(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

impl Add for Cost {
    type Output = Self;

    /// Stops at [`Cost::MAX`].
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Cost {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Cost {
    type Output = Self;

    /// Stops at [`Cost::ZERO`].
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl SubAssign for Cost {
    fn sub_assign(&mut self, other: Self) {
        *self = *self - other;
    }
}

impl core::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&Duration::from_nanos(self.0), f)
    }
}

/// Cost per second: CPU-seconds per second, in whole nanoseconds of CPU time per second.
///
/// This is what quotas are written in. One CPU of the reference machine is `from_cpus(1.0)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CostRate(u64);

impl CostRate {
    /// Nothing at all: a customer who is blocked.
    pub const ZERO: Self = Self(0);
    /// The highest rate, for "no limit".
    pub const MAX: Self = Self(u64::MAX);

    /// `nanos` nanoseconds of CPU time per second.
    pub const fn from_nanos_per_sec(nanos: u64) -> Self {
        Self(nanos)
    }

    /// `cpus` CPU-seconds per second, rounded to the nanosecond.
    pub fn from_cpus(cpus: f64) -> Result<Self, InvalidNumber> {
        if cpus.is_finite() && cpus >= 0.0 {
            Ok(Self((cpus * NANOS as f64).round() as u64))
        } else {
            Err(InvalidNumber::new("a rate of CPU time", "zero or more, and finite", cpus))
        }
    }

    /// Nanoseconds of CPU time per second.
    pub const fn as_nanos_per_sec(self) -> u64 {
        self.0
    }

    /// CPU-seconds per second.
    pub fn as_cpus(self) -> f64 {
        self.0 as f64 / NANOS as f64
    }

    /// What this rate comes to over `span`, rounded down.
    pub fn over(self, span: Duration) -> Cost {
        let cost = u128::from(self.0) * u128::from(nanos(span)) / u128::from(NANOS);
        Cost(u64::try_from(cost).unwrap_or(u64::MAX))
    }
}

impl Add for CostRate {
    type Output = Self;

    /// Stops at [`CostRate::MAX`].
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for CostRate {
    type Output = Self;

    /// Stops at [`CostRate::ZERO`].
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl core::iter::Sum for CostRate {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, Add::add)
    }
}

impl fmt::Display for CostRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} CPU", self.as_cpus())
    }
}

/// Used over reserved: zero or more, and finite. 1 is a resource used as much as it should be.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Utilization(f64);

impl Utilization {
    /// Nothing used.
    pub const ZERO: Self = Self(0.0);
    /// Used exactly as much as reserved.
    pub const FULL: Self = Self(1.0);

    /// A utilization of `value`.
    pub fn new(value: f64) -> Result<Self, InvalidNumber> {
        if value.is_finite() && value >= 0.0 {
            // Adding zero turns a negative zero into the one zero there is.
            Ok(Self(value + 0.0))
        } else {
            Err(InvalidNumber::new("a utilization", "zero or more, and finite", value))
        }
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }
}

impl Eq for Utilization {}

impl PartialOrd for Utilization {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Utilization {
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl fmt::Display for Utilization {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}", self.0)
    }
}

/// A share of a whole, from 0 to 1, in whole billionths: 0.1 is exactly a tenth, 0.4 is not 0.5.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Ratio(u32);

impl Ratio {
    /// The whole in billionths.
    pub const WHOLE: u32 = 1_000_000_000;
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// Everything.
    pub const ONE: Self = Self(Self::WHOLE);

    /// `value` rounded to the nearest billionth.
    pub fn new(value: f64) -> Result<Self, InvalidNumber> {
        if (0.0..=1.0).contains(&value) {
            Ok(Self((value * f64::from(Self::WHOLE)).round() as u32))
        } else {
            Err(InvalidNumber::new("a ratio", "between 0 and 1", value))
        }
    }

    /// `percent` hundredths; more than a hundred counts as everything.
    pub const fn percent(percent: u32) -> Self {
        let billionths = percent.saturating_mul(10_000_000);
        Self(if billionths > Self::WHOLE { Self::WHOLE } else { billionths })
    }

    /// `part` of `whole`, rounded down; everything if `part` is larger, nothing of nothing.
    pub fn of(part: u64, whole: u64) -> Self {
        if whole == 0 {
            return Self::ZERO;
        }
        let billionths = u128::from(part.min(whole)) * u128::from(Self::WHOLE) / u128::from(whole);
        Self(billionths as u32)
    }

    /// The share in billionths.
    pub const fn billionths(self) -> u32 {
        self.0
    }

    /// The share as a number from 0 to 1.
    pub fn get(self) -> f64 {
        f64::from(self.0) / f64::from(Self::WHOLE)
    }

    /// What is left of the whole.
    #[must_use]
    pub const fn complement(self) -> Self {
        Self(Self::WHOLE - self.0)
    }

    /// This share of `amount`, rounded down.
    pub fn share_of(self, amount: u64) -> u64 {
        // In two parts that stay within 64 bits: to divide 128 of them takes ten times as long.
        let (whole, ratio) = (u64::from(Self::WHOLE), u64::from(self.0));
        amount / whole * ratio + amount % whole * ratio / whole
    }
}

impl fmt::Display for Ratio {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Out of the whole billionths: a float would print 7 % as 7.000000000000001 %.
        let (whole, mut rest) = (self.0 / 10_000_000, self.0 % 10_000_000);
        if rest == 0 {
            return write!(f, "{whole} %");
        }
        let mut places = 7;
        while rest % 10 == 0 {
            rest /= 10;
            places -= 1;
        }
        write!(f, "{whole}.{rest:0places$} %")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nonsense_is_refused_with_what_would_be_right() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.5] {
            assert!(Utilization::new(bad).is_err());
            assert!(CostRate::from_cpus(bad).is_err());
            assert!(Ratio::new(bad).is_err());
        }
        assert_eq!(
            Ratio::new(1.5).unwrap_err().to_string(),
            "a ratio must be between 0 and 1, but it is 1.5"
        );
    }

    #[test]
    fn arithmetic_stops_at_the_ends() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::ZERO - Duration::from_secs(1), Timestamp::ZERO);
        assert_eq!(Timestamp::ZERO.since(Timestamp::from_secs(9)), Duration::ZERO);
        assert_eq!(Timestamp::ZERO + Duration::MAX, Timestamp::MAX);
        assert_eq!(Cost::MAX + Cost::from_millis(1), Cost::MAX);
        assert_eq!(Cost::ZERO - Cost::from_millis(1), Cost::ZERO);
        assert_eq!(CostRate::MAX.over(Duration::MAX), Cost::MAX);
        assert_eq!(Cost::MAX.per(Duration::ZERO), CostRate::MAX);
        assert_eq!(Cost::ZERO.per(Duration::ZERO), CostRate::ZERO);
        assert_eq!(CostRate::from_cpus(1e300).unwrap(), CostRate::MAX);
    }

    #[test]
    fn ratios_are_exact() {
        for (value, billionths) in
            [(0.1, 100_000_000), (0.4, 400_000_000), (0.6, 600_000_000), (1.0 / 3.0, 333_333_333)]
        {
            assert_eq!(Ratio::new(value).unwrap().billionths(), billionths);
        }
        assert_eq!(Ratio::percent(10), Ratio::new(0.1).unwrap());
        assert_eq!(Ratio::percent(700), Ratio::ONE);
        assert_eq!(Ratio::of(1, 4), Ratio::percent(25));
        assert_eq!(Ratio::of(u64::MAX, u64::MAX), Ratio::ONE);
        assert_eq!(Ratio::of(5, 0), Ratio::ZERO);
        assert_eq!(Ratio::percent(10).share_of(1_000), 100);
    }

    proptest! {
        #[test]
        fn shares_are_exact(amount: u64, billionths in 0..=Ratio::WHOLE) {
            let exact = u128::from(amount) * u128::from(billionths) / u128::from(Ratio::WHOLE);
            prop_assert_eq!(u128::from(Ratio(billionths).share_of(amount)), exact);
        }
    }

    #[test]
    fn ratios_print_as_they_were_written() {
        for percent in 0..=100 {
            assert_eq!(Ratio::percent(percent).to_string(), format!("{percent} %"));
        }
        for (value, printed) in [
            (0.001, "0.1 %"),
            (1.0 / 3.0, "33.3333333 %"),
            (0.123, "12.3 %"),
            (0.010_000_001, "1.0000001 %"),
            (1e-9, "0.0000001 %"),
            (0.999_999_999, "99.9999999 %"),
        ] {
            assert_eq!(Ratio::new(value).unwrap().to_string(), printed);
        }
    }

    proptest! {
        #[test]
        fn a_rate_over_a_span_and_back(cpus in 0.0..10_000.0_f64, millis in 1_u64..100_000) {
            let rate = CostRate::from_cpus(cpus).unwrap();
            let span = Duration::from_millis(millis);
            let back = rate.over(span).per(span);
            prop_assert!(back <= rate);
            // Rounding down twice loses less than one nanosecond of cost.
            prop_assert!(rate.as_nanos_per_sec() - back.as_nanos_per_sec() <= 1_000 / millis + 1);
        }

        #[test]
        fn no_bit_pattern_makes_a_quantity_that_is_not_a_number(bits: u64) {
            let value = f64::from_bits(bits);
            if let Ok(u) = Utilization::new(value) {
                prop_assert!(u.get().is_finite() && u.get() >= 0.0);
            }
            if let Ok(r) = Ratio::new(value) {
                prop_assert!(r <= Ratio::ONE);
            }
        }
    }
}
