//! What came of the demo, as it stands in the JSON.

use super::scene::{AFTER, PATIENCE, PHASES, Phase, WORST, capacity};
use serde::Serialize;
use std::ops::Range;
use std::time::Duration;
use tidegate_core::{Criticality, Timestamp};
use tidegate_sim::world::record::{BIN, ClientBin, Record};

/// Calm is when this share of a second's requests is answered in time: with 140 of them, all but
/// one, so that a single refusal is forgiven and a run of them is not.
const CALM: f64 = 0.99;
/// How many tenths of a second have to be calm.
const CALM_TENTHS: usize = 10;

/// One run of the demo.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) virtual_time: bool,
    pub(super) seed: u64,
    /// How long each phase lasts.
    pub(super) seconds: u64,
    pub(super) machine: Machine,
    pub(super) mix: Mix,
    pub(super) sides: Sides,
}

/// The simulated backend and its callers.
#[derive(Debug, Serialize)]
pub(super) struct Machine {
    pub(super) cores: u32,
    pub(super) work_ms: u64,
    pub(super) capacity_per_second: f64,
    pub(super) patience_ms: u64,
    pub(super) refusal_us: u64,
}

/// A number for each criticality, by its name.
#[derive(Debug, Serialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub(super) struct Mix {
    pub(super) critical_plus: f64,
    pub(super) critical: f64,
    pub(super) sheddable_plus: f64,
    pub(super) sheddable: f64,
}

impl Mix {
    /// From numbers with the lowest criticality first.
    pub(super) fn new(numbers: [f64; Criticality::COUNT]) -> Self {
        let [sheddable, sheddable_plus, critical, critical_plus] = numbers;
        Self { critical_plus, critical, sheddable_plus, sheddable }
    }

    /// Highest first.
    pub(super) fn descending(&self) -> [f64; Criticality::COUNT] {
        [self.critical_plus, self.critical, self.sheddable_plus, self.sheddable]
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Sides {
    pub(super) bare: Side,
    pub(super) tidegate: Side,
}

impl Sides {
    /// Both, with their names.
    pub(super) fn named(&self) -> [(&'static str, &Side); 2] {
        [("bare", &self.bare), ("tidegate", &self.tidegate)]
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Side {
    pub(super) phases: Vec<PhaseReport>,
    /// Seconds from the end of the surge to the first second that is calm; none if there was none
    /// as long as the demo watched.
    pub(super) calm_after_seconds: Option<f64>,
    /// How long the demo watched after the surge.
    pub(super) watched_seconds: f64,
}

/// What came of one phase on one side.
#[derive(Debug, Serialize)]
pub(super) struct PhaseReport {
    pub(super) name: &'static str,
    /// Offered load over capacity.
    pub(super) load: f64,
    pub(super) offered_per_second: f64,
    pub(super) offered: u64,
    pub(super) refused: u64,
    /// Neither refused nor answered in time.
    pub(super) late: u64,
    /// Answers in time over what the machine can do.
    pub(super) goodput: f64,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// Share of requests answered in time.
    pub(super) success: Mix,
    /// Goodput in each tenth of a second.
    pub(super) curve: Vec<f64>,
}

impl Side {
    /// The first phases, of so many seconds each, are shown; what comes after them until `watched`
    /// shows when calm returns.
    pub(super) fn new(record: &Record, seconds: u64, watched: u64) -> Self {
        let span = |i: usize| seconds * i as u64..seconds * (i as u64 + 1);
        let phases = PHASES.iter().enumerate();
        let after = bins(&(span(AFTER).start..watched));
        let answered: Vec<(u64, u64)> = record.clients[0][after].iter().map(answered).collect();
        Self {
            phases: phases.map(|(i, phase)| PhaseReport::new(phase, span(i), record)).collect(),
            calm_after_seconds: calm_after(&answered).map(|tenths| tenths as f64 / 10.0),
            watched_seconds: answered.len() as f64 / 10.0,
        }
    }

    /// The phase at the height of the surge.
    pub(super) fn worst(&self) -> &PhaseReport {
        &self.phases[WORST]
    }
}

/// The bins of a record between two seconds: tenths of a second each.
fn bins(seconds: &Range<u64>) -> Range<usize> {
    let bin = |seconds| (u128::from(seconds) * 1_000_000_000 / BIN.as_nanos()) as usize;
    bin(seconds.start)..bin(seconds.end)
}

/// Requests made in a bin, and those of them that were answered in time.
fn answered(bin: &ClientBin) -> (u64, u64) {
    (bin.offered.iter().sum::<u32>().into(), bin.served.iter().sum::<u32>().into())
}

/// Tenths of a second until the first second in which nearly everything is answered in time.
fn calm_after(answered: &[(u64, u64)]) -> Option<usize> {
    answered.windows(CALM_TENTHS).position(|second| {
        let offered: u64 = second.iter().map(|tenth| tenth.0).sum();
        let good: u64 = second.iter().map(|tenth| tenth.1).sum();
        good as f64 >= CALM * offered as f64
    })
}

impl PhaseReport {
    fn new(phase: &Phase, seconds: Range<u64>, record: &Record) -> Self {
        let (clients, service) = (&record.clients[0], &record.services[0]);
        let bins = bins(&seconds);
        let lasts = (seconds.end - seconds.start) as f64;
        let of_level = |counts: fn(&ClientBin) -> &[u32; 4]| {
            let level = |level| clients[bins.clone()].iter().map(|bin| counts(bin)[level]).sum();
            core::array::from_fn::<u32, { Criticality::COUNT }, _>(level)
        };
        let (offered, served) = (of_level(|bin| &bin.offered), of_level(|bin| &bin.served));
        let success = |level: usize| match offered[level] {
            0 => 1.0,
            offered => f64::from(served[level]) / f64::from(offered),
        };
        let refused = service[bins.clone()].iter().flat_map(|bin| bin.rejected);
        let refused: u64 = refused.map(u64::from).sum();
        let per_bin = capacity() * BIN.as_secs_f64();
        let curve: Vec<f64> =
            clients[bins.clone()].iter().map(|bin| f64::from(bin.answers) / per_bin).collect();
        let [from, to] = [seconds.start, seconds.end].map(Timestamp::from_secs);
        let latencies = record.latencies(0, from, to);
        // The histogram rounds up; no answer that counts took longer than the callers' patience.
        let millis = |latency: Duration| latency.min(PATIENCE).as_secs_f64() * 1e3;
        let asked = offered.map(u64::from).iter().sum();
        let good: u64 = served.map(u64::from).iter().sum();
        Self {
            name: phase.name,
            load: phase.load,
            offered_per_second: asked as f64 / lasts,
            offered: asked,
            refused,
            late: asked.saturating_sub(refused + good),
            goodput: curve.iter().sum::<f64>() / curve.len() as f64,
            p50_ms: latencies.quantile(0.5).map(millis),
            p99_ms: latencies.quantile(0.99).map(millis),
            success: Mix::new(core::array::from_fn(success)),
            curve,
        }
    }

    /// Goodput in `count` equal stretches of the phase, as far as it has so many tenths.
    pub(super) fn stretches(&self, count: usize) -> Vec<f64> {
        stretches(&self.curve, count)
    }
}

fn stretches(curve: &[f64], count: usize) -> Vec<f64> {
    let tenths = curve.len();
    let count = count.clamp(1, tenths.max(1));
    let bounds = |i| i * tenths / count..(i + 1) * tenths / count;
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len().max(1) as f64;
    (0..count).map(|i| mean(curve.get(bounds(i)).unwrap_or_default())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calm_is_the_first_second_with_at_most_one_in_a_hundred_lost() {
        let lost = (14, 0);
        let one_lost = (14, 13);
        let fine = (14, 14);
        let cases = [
            (vec![fine; 10], Some(0)),
            // One of 140 is less than one in a hundred, two are more.
            ([&[one_lost][..], &[fine; 9]].concat(), Some(0)),
            ([&[one_lost; 2][..], &[fine; 9]].concat(), Some(1)),
            ([&[lost; 5][..], &[fine; 20]].concat(), Some(5)),
            ([&[fine; 9][..], &[lost]].concat(), None),
            (vec![fine; 9], None),
        ];
        for (answered, expected) in cases {
            assert_eq!(calm_after(&answered), expected, "{answered:?}");
        }
    }

    #[test]
    fn stretches_are_means_of_equal_parts() {
        let curve = [0.0, 1.0, 0.5, 0.5, 1.0];
        let table: [(usize, &[f64]); 4] = [
            (1, &[0.6]),
            (2, &[0.5, 2.0 / 3.0]),
            (5, &[0.0, 1.0, 0.5, 0.5, 1.0]),
            (9, &[0.0, 1.0, 0.5, 0.5, 1.0]),
        ];
        for (count, expected) in table {
            assert_eq!(stretches(&curve, count), expected, "{count} stretches");
        }
    }
}
