//! One CPU-second is not like another.
//!
//! A second on an old core does less than a second on a new one. Quotas and costs are therefore
//! written in the time of a *reference machine*, and each task converts what it measures:
//!
//! ```text
//! reference time = local time x factor        factor = speed here / speed of the reference
//! ```
//!
//! If 2 CPUs of a slow machine do what 0.8 of the reference does, its factor is 0.4. The factor
//! comes from a table by CPU model, or from a short calibration: the time that a fixed piece of
//! work takes on the reference over the time it takes here. With neither it is 1, which is right in
//! a fleet of equals and elsewhere only makes the slow machines look dear.

use crate::units::{Cost, InvalidNumber, nanos};
use core::time::Duration;
use std::collections::BTreeMap;

/// How fast this machine is, as a multiple of the reference machine.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub struct MachineFactor(f64);

impl MachineFactor {
    /// This machine is the reference, or nobody knows.
    pub const REFERENCE: Self = Self(1.0);

    /// The slowest and fastest factors that make sense. A factor beyond them is a mistake of
    /// units, not a machine: two decades either way span every CPU of the last thirty years.
    pub const RANGE: core::ops::RangeInclusive<f64> = 0.01..=100.0;

    /// A machine that does `factor` times what the reference does in the same time.
    pub fn new(factor: f64) -> Result<Self, InvalidNumber> {
        if Self::RANGE.contains(&factor) {
            Ok(Self(factor))
        } else {
            Err(InvalidNumber::new("a machine factor", "between 0.01 and 100", factor))
        }
    }

    /// From the time that the same work takes on the reference and here.
    pub fn from_calibration(reference: Duration, here: Duration) -> Result<Self, InvalidNumber> {
        Self::new(nanos(reference) as f64 / nanos(here) as f64)
    }

    /// The number.
    pub const fn get(self) -> f64 {
        self.0
    }

    /// What `local` CPU time on this machine costs.
    pub fn cost_of(self, local: Duration) -> Cost {
        // Casting a float that is too large stops at the largest integer.
        Cost::from_nanos((nanos(local) as f64 * self.0) as u64)
    }
}

impl Default for MachineFactor {
    fn default() -> Self {
        Self::REFERENCE
    }
}

/// Factors by CPU model, as in the `model name` of `/proc/cpuinfo`.
///
/// ```
/// use tidegate_core::machine::{MachineFactor, MachineTable};
///
/// let table = MachineTable::from_iter([
///     ("Intel(R) Xeon(R)".to_owned(), MachineFactor::new(0.8)?),
///     ("Intel(R) Xeon(R) Platinum 8481C".to_owned(), MachineFactor::new(1.0)?),
/// ]);
/// let found = table.lookup("Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz");
/// assert_eq!(found, Some(MachineFactor::REFERENCE));
/// # Ok::<(), tidegate_core::units::InvalidNumber>(())
/// ```
#[derive(Debug, Clone, Default)]
pub struct MachineTable {
    by_model: BTreeMap<String, MachineFactor>,
}

impl MachineTable {
    /// The factor of `model`: of its exact name, else of the longest entry it begins with (names
    /// often end in a clock rate). Case and surrounding white space do not matter.
    pub fn lookup(&self, model: &str) -> Option<MachineFactor> {
        let model = Self::key(model);
        self.by_model
            .range(..=model.clone())
            .rev()
            .find(|(entry, _)| model.starts_with(entry.as_str()))
            .map(|(_, factor)| *factor)
    }

    fn key(model: &str) -> String {
        model.trim().to_lowercase()
    }
}

impl FromIterator<(String, MachineFactor)> for MachineTable {
    fn from_iter<I: IntoIterator<Item = (String, MachineFactor)>>(entries: I) -> Self {
        let by_model = entries
            .into_iter()
            .map(|(model, factor)| (Self::key(&model), factor))
            .filter(|(model, _)| !model.is_empty())
            .collect();
        Self { by_model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_units_of_a_slow_machine_are_four_fifths_of_the_reference() {
        let slow = MachineFactor::new(0.4).unwrap();
        assert_eq!(slow.cost_of(Duration::from_secs(2)), Cost::from_millis(800));
        let measured =
            MachineFactor::from_calibration(Duration::from_millis(40), Duration::from_millis(100));
        assert_eq!(measured, Ok(slow));
    }

    #[test]
    fn a_factor_that_is_no_machine_is_refused() {
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e6] {
            assert!(MachineFactor::new(bad).is_err(), "{bad}");
        }
        assert!(MachineFactor::from_calibration(Duration::ZERO, Duration::ZERO).is_err());
        assert!(MachineFactor::from_calibration(Duration::from_secs(1), Duration::ZERO).is_err());
        assert_eq!(MachineFactor::new(100.0).unwrap().cost_of(Duration::MAX), Cost::MAX);
    }

    #[test]
    fn the_longest_prefix_wins() {
        let f = |x| MachineFactor::new(x).unwrap();
        let table = MachineTable::from_iter([
            ("AMD EPYC".to_owned(), f(0.9)),
            ("AMD EPYC 7B13".to_owned(), f(1.1)),
            ("AMD EPYC 7B12".to_owned(), f(0.7)),
        ]);
        for (model, factor) in [
            ("AMD EPYC 7B13", Some(1.1)),
            (" amd epyc 7b13 64-Core Processor\n", Some(1.1)),
            ("AMD EPYC 9B14", Some(0.9)),
            ("AMD Ryzen", None),
            ("", None),
        ] {
            assert_eq!(table.lookup(model).map(MachineFactor::get), factor, "{model}");
        }
        assert_eq!(MachineTable::default().lookup("anything"), None);
    }
}
