//! Least squares over the windows of the last minute or so.
//!
//! The windows themselves are not kept, only what the solution needs of them:
//!
//! ```text
//! A = sum of x x'      b = sum of x y      n = sum of x       older ones weigh less
//! ```
//!
//! **Windows of several lengths.** Work that is half done at the ends of a window is an error of
//! the same size whatever the length, while chance moves the counts of a long window more: then
//! every length tells as much as any other. Requests of one class that differ in cost are an error
//! that grows with the length, and the longer windows tell nothing new. Which it is shows in how
//! far the solution is off: each length counts by the inverse of its mean squared error.
//!
//! The solution is improved a little at every window, one cost after the other, each set to
//! what is best while the others stay (Gauss-Seidel), and to zero where that is below.

use super::CLASSES;

/// The shortest window, times these: up to a minute, a third of what is remembered.
const LENGTHS: [u32; 4] = [1, 4, 16, 64];
/// So much is left of a window's weight after one more window: three minutes' worth. A cheap class
/// that is a tenth of the work needs that long to be known to 15 %; a release that changes costs is
/// followed in about as long.
const KEEP: f64 = 1.0 - 1.0 / 180.0;
/// Errors are averaged over so many windows of a length.
const ERRORS: f64 = 10.0;
/// How strongly costs are drawn to the mean, in units of the information that chance gives (the
/// variance of a Poisson count is its mean): enough to settle what cannot be told apart, and a few
/// per mille of error where it can.
const RIDGE: f64 = 0.004;
/// A class that has not been seen for so many windows (a minute and a half) makes room.
const FORGET: u32 = 90;
/// Improvements per window. Costs go on from what they were, so few are enough.
const SWEEPS: usize = 4;

#[derive(Debug, Clone)]
pub(super) struct Fit {
    /// Symmetric; row by row.
    products: Vec<f64>,
    moments: [f64; CLASSES],
    counts: [f64; CLASSES],
    costs: [f64; CLASSES],
    used: f64,
    /// Windows since each was last seen; `FORGET` and more are not there.
    unseen: [u32; CLASSES],
    lengths: [Long; LENGTHS.len()],
}

/// A window that is longer than the shortest.
#[derive(Debug, Clone)]
struct Long {
    length: u32,
    has: u32,
    requests: Vec<f64>,
    used: f64,
    /// The mean squared error, in square nanoseconds; nothing before the first.
    error: Option<f64>,
}

impl Default for Fit {
    fn default() -> Self {
        Self {
            products: vec![0.0; CLASSES * CLASSES],
            moments: [0.0; CLASSES],
            counts: [0.0; CLASSES],
            costs: [0.0; CLASSES],
            used: 0.0,
            unseen: [FORGET; CLASSES],
            lengths: LENGTHS.map(|length| Long {
                length,
                has: 0,
                requests: vec![0.0; CLASSES],
                used: 0.0,
                error: None,
            }),
        }
    }
}

impl Fit {
    fn active(&self) -> Vec<usize> {
        (0..CLASSES).filter(|&class| self.unseen[class] < FORGET).collect()
    }

    /// One more window.
    pub(super) fn add(&mut self, requests: &[f64], used: f64) {
        let mut new = Vec::new();
        for (class, &count) in requests.iter().enumerate() {
            if count <= 0.0 {
                self.unseen[class] = self.unseen[class].saturating_add(1);
                continue;
            }
            if self.unseen[class] >= FORGET {
                new.push(class);
            }
            self.unseen[class] = 0;
        }
        let active = self.active();
        for &row in &active {
            self.moments[row] *= KEEP;
            self.counts[row] = self.counts[row] * KEEP + requests[row];
            for &column in &active {
                self.products[row * CLASSES + column] *= KEEP;
            }
        }
        // What is used while nobody is there is nobody's.
        let anybody = active.iter().any(|&class| requests[class] > 0.0);
        self.used = self.used * KEEP + if anybody { used } else { 0.0 };
        // Whoever is new costs what others do, until there is more to go by.
        for class in new {
            self.costs[class] = self.mean().unwrap_or(0.0);
        }
        for index in 0..self.lengths.len() {
            let long = &mut self.lengths[index];
            for &class in &active {
                long.requests[class] += requests[class];
            }
            long.used += if anybody { used } else { 0.0 };
            long.has += 1;
            if long.has < long.length {
                continue;
            }
            let window = core::mem::replace(&mut long.requests, vec![0.0; CLASSES]);
            let used = core::mem::replace(&mut long.used, 0.0);
            long.has = 0;
            let explained: f64 = active.iter().map(|&j| window[j] * self.costs[j]).sum();
            let squared = (used - explained) * (used - explained);
            long.error =
                Some(long.error.map_or(squared, |error| error + (squared - error) / ERRORS));
            let weight = self.weight(index);
            self.take(&active, &window, used, weight);
        }
    }

    /// What a window of a length counts, the shortest being 1: no more, as it is off by no less.
    fn weight(&self, index: usize) -> f64 {
        let [shortest, own] = [0, index].map(|index| self.lengths[index].error.unwrap_or(0.0));
        let weight = shortest / own;
        if weight.is_finite() { weight.clamp(0.0, 1.0) } else { 1.0 }
    }

    fn take(&mut self, active: &[usize], window: &[f64], used: f64, weight: f64) {
        for &row in active {
            self.moments[row] += weight * window[row] * used;
            if window[row] > 0.0 {
                let count = weight * window[row];
                for &column in active {
                    self.products[row * CLASSES + column] += count * window[column];
                }
            }
        }
    }

    /// What a request costs, whichever it is.
    fn mean(&self) -> Option<f64> {
        let mean = self.used / self.counts.iter().sum::<f64>();
        (mean.is_finite() && mean > 0.0).then_some(mean)
    }

    /// Takes out whoever was not seen for long.
    pub(super) fn forgotten(&mut self) -> Vec<usize> {
        let gone: Vec<usize> = (0..CLASSES).filter(|&class| self.unseen[class] == FORGET).collect();
        for &class in &gone {
            self.unseen[class] = FORGET + 1;
            (self.moments[class], self.counts[class]) = (0.0, 0.0);
            self.costs[class] = 0.0;
            for other in 0..CLASSES {
                self.products[class * CLASSES + other] = 0.0;
                self.products[other * CLASSES + class] = 0.0;
            }
            for long in &mut self.lengths {
                long.requests[class] = 0.0;
            }
        }
        gone
    }

    /// What each class costs, in nanoseconds.
    pub(super) fn solve(&mut self) -> Vec<(usize, f64)> {
        let Some(mean) = self.mean() else { return Vec::new() };
        let active = self.active();
        for _ in 0..SWEEPS {
            for &row in &active {
                let products = &self.products[row * CLASSES..][..CLASSES];
                let others: f64 = active
                    .iter()
                    .filter(|&&column| column != row)
                    .map(|&column| products[column] * self.costs[column])
                    .sum();
                let ridge = RIDGE * LENGTHS.len() as f64 * self.counts[row];
                let best = (self.moments[row] - others + ridge * mean) / (products[row] + ridge);
                self.costs[row] = if best.is_finite() { best.max(0.0) } else { mean };
            }
        }
        active.into_iter().map(|class| (class, self.costs[class])).collect()
    }
}
