//! Runs variants on all cores; what comes out is in the order of what went in.

use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use std::fmt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tidegate_sim::scenario::{Judged, Scenario, Series};
use tidegate_sim::world::record::Record;

/// A scenario that has run.
#[derive(Debug)]
pub(super) struct Told<'a> {
    pub(super) file: &'a str,
    pub(super) scenario: &'a Scenario,
    /// The first seed, by which everything is shown in detail.
    pub(super) seed: u64,
    /// With the first seed, by variant.
    pub(super) records: Vec<Record>,
    pub(super) series: Vec<Series>,
    /// By seed, then by check.
    pub(super) verdicts: Vec<Vec<Judged>>,
}

impl Told<'_> {
    pub(super) fn passed(&self) -> bool {
        self.verdicts.iter().flatten().all(|judged| judged.passed)
    }

    /// Checks, with the first seed.
    pub(super) fn checks(&self) -> &[Judged] {
        &self.verdicts[0]
    }

    /// How check number `check` came out over all seeds.
    pub(super) fn spread(&self, check: usize) -> Spread {
        let all: Vec<&Judged> = self.verdicts.iter().map(|verdict| &verdict[check]).collect();
        let mut values: Vec<f64> = all.iter().filter_map(|judged| judged.measured).collect();
        values.sort_by(f64::total_cmp);
        let failed = all.iter().enumerate().filter(|(_, judged)| !judged.passed);
        let failed = failed.map(|(offset, _)| self.seed.wrapping_add(offset as u64));
        Spread {
            seeds: all.len(),
            failed_seeds: failed.collect(),
            min: values.first().copied(),
            median: values.get(values.len() / 2).copied(),
            max: values.last().copied(),
        }
    }
}

/// A check over several seeds.
#[derive(Debug, serde::Serialize)]
pub(super) struct Spread {
    pub(super) seeds: usize,
    pub(super) failed_seeds: Vec<u64>,
    /// Of those that measured something.
    pub(super) min: Option<f64>,
    pub(super) median: Option<f64>,
    pub(super) max: Option<f64>,
}

/// Runs every variant of every scenario, from its own seed or from `seed` on.
pub(super) fn tell(
    scenarios: &[(String, Scenario)],
    seed: Option<u64>,
    seeds: u64,
) -> Vec<Told<'_>> {
    let first: Vec<(usize, usize)> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(i, (_, scenario))| (0..scenario.variants.len()).map(move |v| (i, v)))
        .collect();
    let further: Vec<(usize, u64)> =
        (0..scenarios.len()).flat_map(|i| (1..seeds).map(move |s| (i, s))).collect();
    let seed_of = |scenario: &Scenario| seed.unwrap_or(scenario.seed);
    let variants = |i: usize| scenarios[i].1.variants.len();
    let runs = first.len() + further.iter().map(|&(i, _)| variants(i)).sum::<usize>();
    let progress = progress(runs);

    let records = all(first.len(), |job| {
        let (i, v) = first[job];
        let scenario = &scenarios[i].1;
        let record = scenario.variants[v].run(seed_of(scenario));
        progress.inc(1);
        record
    });
    // Of the further seeds only the verdicts are kept: records of thousands would fill memory.
    let swept = all(further.len(), |job| {
        let (i, offset) = further[job];
        let scenario = &scenarios[i].1;
        let verdict = scenario.verdict(seed_of(scenario).wrapping_add(offset));
        progress.inc(variants(i) as u64);
        verdict
    });
    progress.finish_and_clear();

    let (mut records, mut swept) = (records.into_iter(), swept.into_iter());
    let mut told = Vec::new();
    for (file, scenario) in scenarios {
        let records: Vec<Record> = records.by_ref().take(scenario.variants.len()).collect();
        let mut verdicts = vec![scenario.judge(&records.iter().collect::<Vec<_>>())];
        verdicts.extend(swept.by_ref().take(further.len() / scenarios.len()));
        let variants = scenario.variants.iter().zip(&records);
        let series = variants.map(|(variant, record)| scenario.series(variant, record)).collect();
        told.push(Told { file, scenario, seed: seed_of(scenario), records, series, verdicts });
    }
    told
}

/// A bar on standard error, if that is a terminal and there is something to wait for.
fn progress(runs: usize) -> ProgressBar {
    if runs < 2 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(runs as u64);
    let style = ProgressStyle::with_template("{wide_bar} {pos} of {len} runs{left}");
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
    // Before the first run has ended nobody knows.
    let left = |state: &ProgressState, text: &mut dyn fmt::Write| {
        if state.pos() > 0 {
            let _ = write!(text, ", {}s left", state.eta().as_secs());
        }
    };
    let bar = bar.with_style(style.with_key("left", left));
    // There from the start, and alive while one run takes long.
    bar.enable_steady_tick(Duration::from_millis(500));
    bar
}

/// `job(0)`, `job(1)` and so on, as many at once as there are cores.
fn all<T: Send>(count: usize, job: impl Fn(usize) -> T + Sync) -> Vec<T> {
    let next = AtomicUsize::new(0);
    let done: Mutex<Vec<(usize, T)>> = Mutex::new(Vec::with_capacity(count));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(count);
    let work = || loop {
        let index = next.fetch_add(1, Ordering::Relaxed);
        if index >= count {
            break;
        }
        let result = job(index);
        if let Ok(mut done) = done.lock() {
            done.push((index, result));
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads {
            scope.spawn(work);
        }
        work();
    });
    let mut done = done.into_inner().unwrap_or_default();
    done.sort_by_key(|(index, _)| *index);
    done.into_iter().map(|(_, result)| result).collect()
}
