//! How fast this machine is, as a number to compare machines by.
//!
//! A CPU-second here is not one elsewhere. Costs are therefore written in the time of a *reference
//! machine*:
//!
//! ```text
//! factor = time of a piece of work on the reference / time of the same work here
//! ```
//!
//! The factor comes from a table by the processor's model, which somebody has measured with the
//! real service; or, for a model that is not in it, from [`calibrate`]: 20 ms of work that is the
//! same everywhere to the last bit. The work is integer arithmetic and dependent loads and stores
//! over a table that fits a second-level cache and no first-level one, in four chains that do not
//! depend on each other: like the parsing, hashing and copying of a service, rather than like
//! matrices.
//!
//! It runs in ten pieces, and the fastest counts. A neighbour can only make a piece slower,
//! and a factor that depends on who else was there would be no property of the machine.
//!
//! What happens when it is wrong: costs of this machine are off by that ratio, all of them alike,
//! and its customers' quotas with them. The spread between a calibration and the truth for one
//! service is some tens of percent, as services differ; a table is better where fleets are mixed.

use crate::sys::cpu;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// What [`calibrate`] takes on the reference machine, one vCPU of an Intel Xeon (family 6, model
/// 207) at 2.3 GHz under KVM: measured there, twelve times within 0.3 %.
pub const REFERENCE: Duration = Duration::from_micros(19_370);

/// Ten, so that each is shorter than what a scheduler gives a thread at a time.
const PIECES: u32 = 10;

/// Steps of the four chains together in one piece: 2 ms on the reference.
const STEPS: u32 = 1_020_000;

/// 256 KiB of words: five times a first-level cache, a fraction of a second-level one.
const TABLE_LEN: usize = 1 << 15;

/// An odd number with bits all over, from the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The same work in two places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Calibration {
    /// On the reference machine.
    pub reference: Duration,
    /// Here.
    pub here: Duration,
}

impl Calibration {
    /// How fast this machine is, as a multiple of the reference: 0.01 to 100, as nothing else is a
    /// machine.
    pub fn factor(&self) -> f64 {
        let factor = self.reference.as_nanos() as f64 / self.here.as_nanos() as f64;
        if factor.is_nan() { 1.0 } else { factor.clamp(0.01, 100.0) }
    }
}

/// Measures this machine, in some 20 ms of CPU time. The result means something in optimised builds
/// only.
pub fn calibrate() -> Calibration {
    let mut table = vec![0_u64; TABLE_LEN];
    let fastest = (0..PIECES).map(|_| time(|| piece(&mut table))).min();
    Calibration { reference: REFERENCE, here: fastest.unwrap_or(REFERENCE / PIECES) * PIECES }
}

/// The model of the processor, as `/proc/cpuinfo` has it.
pub fn model() -> Option<String> {
    model_in(&std::fs::read_to_string("/proc/cpuinfo").ok()?)
}

/// How fast this machine is, as a multiple of the reference: by its model if `table` knows that,
/// else by [`calibrate`].
///
/// A build with debug assertions does not calibrate, as it would measure the build and not the
/// machine; its factor is 1.
///
/// ```
/// use tidegate_meter::machine;
///
/// let factor = machine::factor(|model| model.starts_with("AMD EPYC").then_some(1.2));
/// assert!((0.01..=100.0).contains(&factor));
/// ```
pub fn factor(table: impl FnOnce(&str) -> Option<f64>) -> f64 {
    let known = model().and_then(|model| table(&model));
    known.unwrap_or_else(|| if cfg!(debug_assertions) { 1.0 } else { calibrate().factor() })
}

fn model_in(cpuinfo: &str) -> Option<String> {
    let field = |wanted| {
        let fields = cpuinfo.lines().filter_map(|line| line.split_once(':'));
        let mut found = fields.filter(|(key, _)| key.trim() == wanted);
        found.next().map(|(_, value)| value.trim()).filter(|value| !value.is_empty())
    };
    if let Some(name) = field("model name") {
        return Some(name.to_owned());
    }
    // Arm gives numbers instead of a name.
    let (implementer, part) = (field("CPU implementer")?, field("CPU part")?);
    Some(format!("implementer {implementer} part {part}"))
}

fn time(work: impl FnOnce() -> u64) -> Duration {
    if let Some(start) = cpu::thread() {
        black_box(work());
        let stop = cpu::thread().unwrap_or(start);
        Duration::from_nanos(stop.saturating_sub(start))
    } else {
        let start = Instant::now();
        black_box(work());
        start.elapsed()
    }
}

/// The work. It fills the table first, so that each piece begins alike.
fn piece(table: &mut [u64]) -> u64 {
    let mut seed = black_box(MIX);
    for word in &mut *table {
        seed = (seed ^ (seed >> 29)).wrapping_mul(MIX);
        *word = seed;
    }
    let mask = table.len() - 1;
    let mut chains = [1, 2, 3, 4].map(|chain: u64| chain.wrapping_mul(MIX));
    for _ in 0..STEPS / 4 {
        for chain in &mut chains {
            let at = (*chain >> 40) as usize & mask;
            *chain = (*chain ^ table[at]).rotate_left(23).wrapping_mul(MIX);
            table[at] = *chain;
        }
    }
    chains.iter().fold(0, |sum, chain| sum ^ chain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is compared between machines has to be the same work. The number is that of a program
    /// written for this in another language.
    #[test]
    fn the_work_is_the_same_to_the_last_bit() {
        let mut table = vec![0; TABLE_LEN];
        let first = piece(&mut table);
        assert_eq!(first, CHECKSUM);
        assert_eq!(piece(&mut table), first, "whatever was in the table before");
    }

    const CHECKSUM: u64 = 0x967a_1d08_b519_9141;

    #[test]
    fn the_factor_is_the_ratio_of_times() {
        let factor = |reference, here| {
            let millis = Duration::from_millis;
            Calibration { reference: millis(reference), here: millis(here) }.factor()
        };
        assert_eq!(factor(20, 50), 0.4);
        assert_eq!(factor(20, 10), 2.0);
        assert_eq!(factor(20, 0), 100.0);
        assert_eq!(factor(0, 0), 1.0);
        assert_eq!(factor(1, 1_000_000), 0.01);
    }

    #[test]
    fn the_table_goes_first() {
        if model().is_some() {
            assert_eq!(factor(|_| Some(0.7)), 0.7);
        }
    }

    #[test]
    fn models_are_read_as_the_kernel_writes_them() {
        let intel = "processor\t: 0\nvendor_id\t: GenuineIntel\nmodel\t\t: 207\n\
                     model name\t: Intel(R) Xeon(R) Processor: new @ 2.30GHz\n";
        let arm = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n";
        for (cpuinfo, model) in [
            (intel, Some("Intel(R) Xeon(R) Processor: new @ 2.30GHz")),
            (arm, Some("implementer 0x41 part 0xd0c")),
            ("model name\t:\n", None),
            ("CPU part\t: 0xd0c\n", None),
            ("", None),
        ] {
            assert_eq!(model_in(cpuinfo).as_deref(), model, "{cpuinfo:?}");
        }
    }
}
