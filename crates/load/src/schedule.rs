//! When requests start: a pure function of a seed and a profile.
//!
//! An open loop does not wait for answers, so all starts are known beforehand. With `rate(t)` the
//! wanted requests a second, the expected number of starts until `t` is
//!
//! ```text
//! expected(t) = ∫ rate        r s + (r' - r) s² / 2 d   within a piece of d seconds from r to r'
//! ```
//!
//! and start number `n` is where `expected` reaches `n` (even), or the sum of `n + 1` draws of the
//! exponential distribution of mean 1 (Poisson). That one rule covers constants, ramps and steps,
//! and a Poisson process stays one while its rate changes. Within a ramp the place `s` of a given
//! `y` is
//!
//! ```text
//! s = 2 y / (r + sqrt(r² + 2 k y)),   k = (r' - r) / d
//! ```
//!
//! which does not cancel when the ramp is nearly flat. Only the four operations and the square root
//! are used, and a logarithm of our own, so that a seed names the same starts on every machine.
//!
//! What number `n` asks for is drawn from `n` and the seed alone ([`dice_of`]): threads that share
//! a schedule by turns need not draw for each other, and more threads change nothing.

use crate::text::{Rate, Span, Unreadable};
use core::str::FromStr;
use core::time::Duration;
use tidegate_core::rng::{Rng, SeededRng, mix};

/// A part of the profile, as it is written: `500 for 10s`, `100..500 for 30s`,
/// `100..500 in 5 steps for 30s`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Stage {
    from: f64,
    to: f64,
    steps: Option<u32>,
    duration: Duration,
}

/// As many steps as anybody can tell apart in a chart.
const STEPS_MAX: u32 = 1_000;

impl Stage {
    /// The same rate throughout.
    pub fn constant(rate: Rate, duration: Duration) -> Self {
        Self { from: rate.0, to: rate.0, steps: None, duration }
    }

    /// From one rate to the other in a straight line.
    pub fn ramp(from: Rate, to: Rate, duration: Duration) -> Self {
        Self { from: from.0, to: to.0, steps: None, duration }
    }

    /// From one rate to the other in so many steps of the same length; less than two count as two.
    pub fn steps(from: Rate, to: Rate, steps: u32, duration: Duration) -> Self {
        Self { steps: Some(steps.clamp(2, STEPS_MAX)), ..Self::ramp(from, to, duration) }
    }

    /// How long it lasts.
    pub const fn duration(&self) -> Duration {
        self.duration
    }

    /// The rate that it begins with, in requests a second.
    pub const fn rate_first(&self) -> f64 {
        self.from
    }

    /// Reads what stands before `for`, given how long it lasts.
    pub fn parse(text: &str, duration: Duration) -> Result<Self, Unreadable> {
        let (range, steps) = match text.split_once(" in ") {
            None => (text, None),
            Some((range, steps)) => (range, Some(parse_steps(steps)?)),
        };
        let (from, to) = match range.split_once("..") {
            None => (range.parse::<Rate>()?, None),
            Some((from, to)) => (from.parse()?, Some(to.parse::<Rate>()?)),
        };
        match (to, steps) {
            (None, None) => Ok(Self::constant(from, duration)),
            (Some(to), None) => Ok(Self::ramp(from, to, duration)),
            (Some(to), Some(steps)) => Ok(Self::steps(from, to, steps, duration)),
            (None, Some(_)) => Err(Unreadable::new(
                format!("`{text}` has steps but only one rate"),
                "the first and the last rate, such as 100..500 in 5 steps",
            )),
        }
    }

    fn pieces(self, into: &mut Vec<Piece>) {
        let seconds = self.duration.as_secs_f64();
        match self.steps {
            None => into.push(Piece { from: self.from, to: self.to, seconds }),
            Some(steps) => {
                let each = (self.to - self.from) / f64::from(steps - 1);
                into.extend((0..steps).map(|step| {
                    let rate = self.from + each * f64::from(step);
                    Piece { from: rate, to: rate, seconds: seconds / f64::from(steps) }
                }));
            }
        }
    }
}

fn parse_steps(text: &str) -> Result<u32, Unreadable> {
    let number = text.trim().trim_end_matches("steps").trim_end().parse().ok();
    number.filter(|steps| (2..=STEPS_MAX).contains(steps)).ok_or_else(|| {
        let right = "from 2 to 1000, such as 100..500 in 5 steps";
        Unreadable::new(format!("`{}` is no number of steps", text.trim()), right)
    })
}

impl FromStr for Stage {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let Some((rate, span)) = text.split_once(" for ") else {
            let right = "a rate and how long, such as `500 for 10s` or `100..500 for 30s`";
            return Err(Unreadable::new(format!("`{text}` does not say for how long"), right));
        };
        let Span(duration) = span.trim().parse()?;
        Self::parse(rate.trim(), duration)
    }
}

impl<'de> serde::Deserialize<'de> for Stage {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parsed(deserializer)
    }
}

/// How starts lie around what is expected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Spacing {
    /// Independent of each other, as those of many callers are.
    #[default]
    Poisson,
    /// Evenly spaced.
    Even,
}

impl Spacing {
    /// How it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Poisson => "poisson",
            Self::Even => "even",
        }
    }
}

impl FromStr for Spacing {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        match text {
            "poisson" => Ok(Self::Poisson),
            "even" => Ok(Self::Even),
            _ => Err(Unreadable::new(
                format!("`{text}` is no way to space arrivals"),
                "poisson (as many independent callers) or even",
            )),
        }
    }
}

impl<'de> serde::Deserialize<'de> for Spacing {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        crate::text::parsed(deserializer)
    }
}

/// A stretch in which the rate is a straight line.
#[derive(Debug, Clone, Copy)]
struct Piece {
    from: f64,
    to: f64,
    seconds: f64,
}

impl Piece {
    fn expected(self) -> f64 {
        f64::midpoint(self.from, self.to) * self.seconds
    }

    /// Where within the piece `y` starts are expected; `y` is at most what the piece has.
    fn place(self, y: f64) -> f64 {
        let slope = (self.to - self.from) / self.seconds;
        let root = (self.from * self.from + 2.0 * slope * y).max(0.0).sqrt();
        let place = 2.0 * y / (self.from + root);
        if place.is_nan() { 0.0 } else { place.min(self.seconds) }
    }
}

/// The starts of a profile, in order.
#[derive(Debug, Clone)]
pub struct Arrivals {
    pieces: Vec<Piece>,
    piece: usize,
    /// Seconds and expected starts before the current piece.
    begun: f64,
    passed: f64,
    /// How many starts are expected until the next one.
    target: f64,
    spacing: Spacing,
    rng: SeededRng,
    number: u64,
}

/// One start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// How many were before.
    pub number: u64,
    /// When, from the beginning.
    pub at: Duration,
}

/// Dice for times and dice for what is asked are apart, so that another mix leaves times as they
/// are.
const TIMES: u64 = 0x7469_6d65;
const KINDS: u64 = 0x6b69_6e64;

impl Arrivals {
    /// The starts of `stages`, one after the other.
    pub fn new(stages: &[Stage], spacing: Spacing, seed: u64) -> Self {
        let mut pieces = Vec::new();
        for stage in stages {
            stage.pieces(&mut pieces);
        }
        let mut arrivals = Self {
            pieces,
            piece: 0,
            begun: 0.0,
            passed: 0.0,
            target: 0.0,
            spacing,
            rng: SeededRng::new(mix(seed ^ TIMES)),
            number: 0,
        };
        if spacing == Spacing::Poisson {
            arrivals.target = exponential(&mut arrivals.rng);
        }
        arrivals
    }
}

impl Iterator for Arrivals {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        loop {
            let piece = *self.pieces.get(self.piece)?;
            let within = self.target - self.passed;
            let expected = piece.expected();
            if within >= expected {
                self.piece += 1;
                self.begun += piece.seconds;
                self.passed += expected;
                continue;
            }
            let at = Duration::try_from_secs_f64(self.begun + piece.place(within)).ok()?;
            let arrival = Arrival { number: self.number, at };
            self.number += 1;
            self.target += match self.spacing {
                Spacing::Even => 1.0,
                Spacing::Poisson => exponential(&mut self.rng),
            };
            return Some(arrival);
        }
    }
}

/// The dice that say what start number `number` asks for.
pub fn dice_of(seed: u64, number: u64) -> SeededRng {
    SeededRng::new(mix(mix(seed ^ KINDS).wrapping_add(number)))
}

/// A draw from the exponential distribution of mean 1.
fn exponential(rng: &mut impl Rng) -> f64 {
    -ln(1.0 - rng.unit())
}

/// The natural logarithm of a number above 2^-1022, up to 1.
///
/// With `x = m 2^e` and `m` from 1 to 2: `ln x = e ln 2 + 2 atanh((m - 1)/(m + 1))`, and as the
/// argument is below 1/3, sixteen terms of the series of `atanh` leave less than 10^-16.
fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1_023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1_023 << 52);
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..16).rev().fold(0.0, |sum, k| sum * z * z + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * core::f64::consts::LN_2 + 2.0 * z * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop, prop_assert, proptest};

    fn stages(texts: &[&str]) -> Vec<Stage> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn millis(texts: &[&str]) -> Vec<u128> {
        let arrivals = Arrivals::new(&stages(texts), Spacing::Even, 1);
        arrivals.map(|arrival| arrival.at.as_millis()).collect()
    }

    #[test]
    fn even_starts_by_hand() {
        assert_eq!(millis(&["4 for 1s"]), [0, 250, 500, 750]);
        // expected(t) = 2 t², so number n is at sqrt(n / 2).
        assert_eq!(millis(&["0..4 for 1s"]), [0, 707]);
        // expected(t) = 4 t - 2 t²: number 1 at 1 - sqrt(1/2).
        assert_eq!(millis(&["4..0 for 1s"]), [0, 292]);
        assert_eq!(millis(&["2..6 in 3 steps for 3s"]).len(), 2 + 4 + 6);
        assert_eq!(millis(&["2 for 1s", "0 for 10s", "1 for 2s"]), [0, 500, 11_000, 12_000]);
        assert_eq!(millis(&["0 for 5s"]), [0_u128; 0]);
    }

    #[test]
    fn the_same_seed_is_the_same_starts_and_another_is_not() {
        let stages = stages(&["200..800 for 5s", "800 for 1s"]);
        let starts = |seed| Arrivals::new(&stages, Spacing::Poisson, seed).collect::<Vec<_>>();
        assert_eq!(starts(7), starts(7));
        assert_ne!(starts(7), starts(8));
        // Named once, for every machine.
        let first: Vec<_> = starts(7).iter().take(3).map(|a| a.at.as_nanos()).collect();
        assert_eq!(first, FIRST_OF_SEED_7);
    }

    const FIRST_OF_SEED_7: [u128; 3] = [22_195_105, 34_647_874, 36_089_516];

    #[test]
    fn poisson_has_the_mean_and_the_variance_of_one() {
        let arrivals = Arrivals::new(&stages(&["1000 for 100s"]), Spacing::Poisson, 3);
        let mut counts = vec![0_f64; 1_000];
        for arrival in arrivals {
            counts[(arrival.at.as_secs_f64() * 10.0) as usize] += 1.0;
        }
        let mean = counts.iter().sum::<f64>() / 1_000.0;
        let variance = counts.iter().map(|n| (n - mean) * (n - mean)).sum::<f64>() / 1_000.0;
        // Three standard errors: 100 ± 0.95, and a variance of 100 ± 13.4.
        assert!((mean - 100.0).abs() < 0.95, "{mean}");
        assert!((variance - 100.0).abs() < 13.4, "{variance}");
    }

    #[test]
    fn logarithm_agrees_with_the_system_s() {
        let mut rng = SeededRng::new(5);
        for _ in 0..10_000 {
            let x = 1.0 - rng.unit();
            assert!((ln(x) - x.ln()).abs() < 1e-14, "{x}");
        }
    }

    #[test]
    fn what_is_no_stage_says_what_would_be() {
        for (text, part) in [
            ("500", "does not say for how long"),
            ("500 for 10", "no span of time"),
            ("fast for 10s", "no rate"),
            ("500 in 5 steps for 10s", "only one rate"),
            ("1..5 in 1 steps for 10s", "no number of steps"),
        ] {
            let error = text.parse::<Stage>().unwrap_err().to_string();
            assert!(error.contains(part) && error.contains("right: "), "{error}");
        }
    }

    proptest! {
        #[test]
        fn starts_are_in_order_inside_and_as_many_as_expected(
            rates in prop::collection::vec((0_u32..500, 0_u32..500, 1_u32..2_000), 1..6),
            seed: u64,
            even: bool,
        ) {
            let stages: Vec<_> = rates.iter().map(|&(from, to, millis)| {
                let duration = Duration::from_millis(u64::from(millis));
                Stage::ramp(Rate(f64::from(from)), Rate(f64::from(to)), duration)
            }).collect();
            let spacing = if even { Spacing::Even } else { Spacing::Poisson };
            let starts: Vec<_> = Arrivals::new(&stages, spacing, seed).collect();
            prop_assert!(starts.is_sorted_by_key(|a| a.at));
            let end: Duration = stages.iter().map(Stage::duration).sum();
            prop_assert!(starts.iter().all(|a| a.at <= end));
            let expected: f64 = rates.iter()
                .map(|&(from, to, ms)| f64::from(from + to) / 2.0 * f64::from(ms) / 1e3).sum();
            let room = if even { 1.0 } else { 1.0 + 6.0 * expected.max(1.0).sqrt() };
            prop_assert!((starts.len() as f64 - expected).abs() <= room, "{}", starts.len());
        }
    }
}
