//! Runs variants on all cores; what comes out is in the order of what went in.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use tidegate_sim::scenario::{Judged, Scenario};
use tidegate_sim::world::record::Record;

/// A scenario that has run.
#[derive(Debug)]
pub(super) struct Told<'a> {
    pub(super) file: &'a str,
    pub(super) scenario: &'a Scenario,
    pub(super) seed: u64,
    /// By variant.
    pub(super) records: Vec<Record>,
    pub(super) verdict: Vec<Judged>,
}

impl Told<'_> {
    pub(super) fn passed(&self) -> bool {
        self.verdict.iter().all(|judged| judged.passed)
    }
}

/// Runs every variant of every scenario, with its own seed or with `seed`.
pub(super) fn tell(scenarios: &[(String, Scenario)], seed: Option<u64>) -> Vec<Told<'_>> {
    let jobs: Vec<(usize, usize)> = scenarios
        .iter()
        .enumerate()
        .flat_map(|(i, (_, scenario))| (0..scenario.variants.len()).map(move |v| (i, v)))
        .collect();
    let seed_of = |scenario: &Scenario| seed.unwrap_or(scenario.seed);
    let mut records = all(jobs.len(), |job| {
        let (i, v) = jobs[job];
        let scenario = &scenarios[i].1;
        scenario.variants[v].run(seed_of(scenario))
    })
    .into_iter();
    scenarios
        .iter()
        .map(|(file, scenario)| {
            let records: Vec<Record> = records.by_ref().take(scenario.variants.len()).collect();
            let verdict = scenario.judge(&records.iter().collect::<Vec<_>>());
            Told { file, scenario, seed: seed_of(scenario), records, verdict }
        })
        .collect()
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
