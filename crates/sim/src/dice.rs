//! Distributions, from the four basic operations and the square root alone.
//!
//! A system's own logarithm differs in the last bit from platform to platform, and runs of the
//! same seed would drift apart with it.

use core::time::Duration;
use tidegate_core::rng::Rng;

/// A span that is exponentially distributed around `mean` seconds. A mean without end (nobody asks)
/// is a span without end.
pub(crate) fn exponential(mean: f64, rng: &mut impl Rng) -> Duration {
    Duration::try_from_secs_f64(-mean * ln(1.0 - rng.unit())).unwrap_or(Duration::MAX)
}

/// A draw from the standard normal distribution, by Marsaglia's polar method: a point in the unit
/// disc gives a direction and, through its radius, a length.
pub(crate) fn normal(rng: &mut impl Rng) -> f64 {
    loop {
        let (x, y) = (2.0 * rng.unit() - 1.0, 2.0 * rng.unit() - 1.0);
        let square = x * x + y * y;
        if square > 0.0 && square < 1.0 {
            return x * (-2.0 * ln(square) / square).sqrt();
        }
    }
}

/// `exp(x)`, by `exp(x) = exp(x / 2^k)^(2^k)` and the series.
pub(crate) fn exp(x: f64) -> f64 {
    let halvings = 10;
    let y = x / f64::from(1 << halvings);
    let mut series = 1.0;
    for k in (1..=8).rev() {
        series = 1.0 + y / f64::from(k) * series;
    }
    (0..halvings).fold(series, |power, _| power * power)
}

/// `secs` seconds; what is no span is none.
pub(crate) fn seconds(secs: f64) -> Duration {
    Duration::try_from_secs_f64(secs).unwrap_or_default()
}

/// The natural logarithm of a number between 2^-1022 and 1.
///
/// With `x = m 2^e` and `m` from 1 to 2: `ln x = e ln 2 + 2 atanh((m - 1)/(m + 1))`, and as the
/// argument is below 1/3, sixteen terms of the series of `atanh` leave less than 10^-16.
pub(crate) fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let series = (0..16).rev().fold(0.0, |sum, k| sum * z * z + 1.0 / f64::from(2 * k + 1));
    f64::from(exponent) * core::f64::consts::LN_2 + 2.0 * z * series
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::rng::SeededRng;

    #[test]
    fn logarithm_and_power_agree_with_the_system_s() {
        let mut rng = SeededRng::new(5);
        for _ in 0..10_000 {
            let x = 1.0 - rng.unit();
            assert!((ln(x) - x.ln()).abs() < 1e-14, "{x}");
            let y = 20.0 * rng.unit() - 10.0;
            assert!((exp(y) / y.exp() - 1.0).abs() < 1e-11, "{y}");
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn moments_are_right() {
        let mut rng = SeededRng::new(6);
        let n = 100_000;
        let draws: Vec<f64> = (0..n).map(|_| normal(&mut rng)).collect();
        let mean = draws.iter().sum::<f64>() / f64::from(n);
        let square = draws.iter().map(|x| x * x).sum::<f64>() / f64::from(n);
        assert!(mean.abs() < 0.01 && (square - 1.0).abs() < 0.02, "{mean} {square}");
        let sum: f64 = (0..n).map(|_| exponential(0.25, &mut rng).as_secs_f64()).sum();
        assert!((sum / f64::from(n) - 0.25).abs() < 0.003);
    }
}
