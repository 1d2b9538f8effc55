//! Distributions, from the four basic operations and the square root alone.
//!
//! A system's own logarithm differs in the last bit from platform to platform, and runs of the
//! same seed would drift apart with it.

use core::time::Duration;
use tidegate_core::rng::Rng;

/// A span that is exponentially distributed around `mean` seconds. A mean without end (nobody asks)
/// is a span without end.
#[inline]
pub(crate) fn exponential(mean: f64, rng: &mut impl Rng) -> Duration {
    if !mean.is_finite() {
        return Duration::MAX;
    }
    Duration::from_nanos(exponential_nanos(mean * 1e9, rng))
}

/// The same, in nanoseconds around a finite `mean`.
#[inline]
pub(crate) fn exponential_nanos(mean: f64, rng: &mut impl Rng) -> u64 {
    // Casting a float that is too large stops at the largest integer.
    (mean * standard_exponential(rng)) as u64
}

/// A draw from the exponential distribution of mean 1, by the ziggurat of Marsaglia and Tsang.
///
/// The area under `exp(-x)` is covered by 256 layers of the same area: rectangles from 0 to
/// `EDGES[i]`, the lowest with the tail beyond `TAIL` in place of its right end. A layer and a
/// place in it are drawn at once. Left of the next layer's edge, as in 99 of 100 draws, the place
/// is under the curve and is the result; otherwise it has to be looked at.
#[inline]
fn standard_exponential(rng: &mut impl Rng) -> f64 {
    let bits = rng.next_u64();
    let layer = (bits & 0xFF) as usize;
    // The layer is drawn by the lowest bits, the place by the 53 highest.
    let x = (bits >> 11) as f64 / (1_u64 << 53) as f64 * EDGES[layer];
    if x < EDGES[layer + 1] { x } else { at_an_edge(layer, x, rng) }
}

#[cold]
fn at_an_edge(layer: usize, x: f64, rng: &mut impl Rng) -> f64 {
    if layer == 0 {
        // Beyond the tail's beginning the distribution is itself again.
        return TAIL - ln(1.0 - rng.unit());
    }
    let (low, high) = (HEIGHTS[layer], HEIGHTS[layer + 1]);
    if low + (high - low) * rng.unit() < exp(-x) { x } else { standard_exponential(rng) }
}

const LAYERS: usize = 256;
/// Where the lowest layer's rectangle ends, and the area of each layer: the one pair for which the
/// 256th layer ends where the curve begins.
const TAIL: f64 = 7.697_117_470_131_05;
const AREA: f64 = 3.949_659_822_581_572e-3;

/// The right edge of each layer, from the lowest. The lowest is as wide as its area asks for.
const EDGES: [f64; LAYERS + 1] = {
    let mut edges = [0.0; LAYERS + 1];
    edges[0] = AREA / exp(-TAIL);
    edges[1] = TAIL;
    let mut i = 2;
    while i < LAYERS {
        let below = edges[i - 1];
        edges[i] = -ln(AREA / below + exp(-below));
        i += 1;
    }
    edges
};

/// The curve at each edge.
const HEIGHTS: [f64; LAYERS + 1] = {
    let mut heights = [1.0; LAYERS + 1];
    let mut i = 0;
    while i < LAYERS {
        heights[i] = exp(-EDGES[i]);
        i += 1;
    }
    heights
};

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
pub(crate) const fn exp(x: f64) -> f64 {
    let halvings = 10;
    let y = x / (1 << halvings) as f64;
    let mut power = 1.0;
    let mut k = 8;
    while k > 0 {
        power = 1.0 + y / k as f64 * power;
        k -= 1;
    }
    let mut squared = 0;
    while squared < halvings {
        power *= power;
        squared += 1;
    }
    power
}

/// `secs` seconds; what is no span is none.
pub(crate) fn seconds(secs: f64) -> Duration {
    Duration::try_from_secs_f64(secs).unwrap_or_default()
}

/// The natural logarithm of a number between 2^-1022 and 1.
///
/// With `x = m 2^e` and `m` from 1 to 2: `ln x = e ln 2 + 2 atanh((m - 1)/(m + 1))`, and as the
/// argument is below 1/3, sixteen terms of the series of `atanh` leave less than 10^-16.
pub(crate) const fn ln(x: f64) -> f64 {
    let bits = x.to_bits();
    let exponent = (bits >> 52) as i32 - 1023;
    let mantissa = f64::from_bits(bits & ((1 << 52) - 1) | 1023 << 52);
    let z = (mantissa - 1.0) / (mantissa + 1.0);
    let mut series = 0.0;
    let mut k = 16;
    while k > 0 {
        k -= 1;
        series = series * z * z + 1.0 / (2 * k + 1) as f64;
    }
    exponent as f64 * core::f64::consts::LN_2 + 2.0 * z * series
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

    /// The layers fit together: the last ends where the curve begins, all have the same area.
    #[test]
    fn the_layers_cover_the_curve() {
        assert_eq!(EDGES[LAYERS], 0.0);
        assert!(EDGES.is_sorted_by(|wide, narrow| wide > narrow));
        for i in 1..LAYERS {
            let area = EDGES[i] * (HEIGHTS[i + 1] - HEIGHTS[i]);
            assert!((area / AREA - 1.0).abs() < 1e-9, "{i}: {area}");
        }
        // The lowest: its rectangle, and the tail whose area is the height at its beginning.
        let lowest = (TAIL + 1.0) * exp(-TAIL);
        assert!((lowest / AREA - 1.0).abs() < 1e-9, "{lowest}");
    }

    /// Against the distribution function, in places that hold a little of everything: the body, the
    /// edges, the tail.
    #[test]
    fn exponential_draws_follow_the_curve() {
        let mut rng = SeededRng::new(8);
        let n = 1_000_000_u32;
        let draws: Vec<f64> = (0..n).map(|_| standard_exponential(&mut rng)).collect();
        for x in [0.001, 0.01, 0.1, 0.5, 1.0, 2.0, 3.0, 5.0, 7.0, 7.7, 9.0] {
            let expected = f64::from(n) * exp(-x);
            let found = draws.iter().filter(|&&draw| draw > x).count() as f64;
            let deviation = (expected * (1.0 - exp(-x))).sqrt();
            assert!((found - expected).abs() < 4.0 * deviation, "beyond {x}: {found} {expected}");
        }
    }
}
