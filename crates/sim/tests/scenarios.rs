//! Every file in `scenarios/` shows what it says it shows, and wrong files are refused.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use tidegate_sim::scenario::{Judged, Scenario};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scenarios")
}

fn read(name: &str) -> Scenario {
    let text = std::fs::read_to_string(folder().join(name)).unwrap();
    Scenario::parse(name, &text).unwrap_or_else(|refused| panic!("{refused}"))
}

/// Runs a file with its own seed and fails with the whole verdict if a check does.
fn shows(name: &str) {
    let scenario = read(name);
    shows_with(&scenario, name, scenario.seed);
}

fn shows_with(scenario: &Scenario, name: &str, seed: u64) {
    let verdict = scenario.verdict(seed);
    let lines: Vec<String> = verdict.iter().map(Judged::line).collect();
    assert!(
        verdict.iter().all(|judged| judged.passed),
        "again with `tidegate sim scenarios/{name} --seed {seed}`\n{}",
        lines.join("\n")
    );
}

/// Whoever fits loses nothing, not by bad luck either: one seed has too little of that to tell.
#[test]
fn criticality_with_other_dice() {
    let scenario = read("criticality.yaml");
    for seed in 4..8 {
        shows_with(&scenario, "criticality.yaml", seed);
    }
}

macro_rules! scenarios {
    ($($test:ident: $file:literal,)*) => {
        $(
            #[test]
            fn $test() {
                shows($file);
            }
        )*

        /// A file without a test would say what it likes.
        #[test]
        fn every_file_has_its_test() {
            let listed: BTreeSet<&str> = [$($file),*].into();
            let files: BTreeSet<String> = std::fs::read_dir(folder())
                .unwrap()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            assert_eq!(listed, files.iter().map(String::as_str).collect());
        }
    };
}

scenarios! {
    antagonist: "antagonist.yaml",
    attempt_histogram: "attempt_histogram.yaml",
    bad_customer: "bad_customer.yaml",
    batch_proxy: "batch_proxy.yaml",
    cost_jump: "cost_jump.yaml",
    criticality: "criticality.yaml",
    deep_stack: "deep_stack.yaml",
    degraded: "degraded.yaml",
    doorman: "doorman.yaml",
    expensive_queries: "expensive_queries.yaml",
    fanout_spike: "fanout_spike.yaml",
    idle_health_checks: "idle_health_checks.yaml",
    machine_diversity: "machine_diversity.yaml",
    metastable: "metastable.yaml",
    oversubscribed: "oversubscribed.yaml",
    quota_criticality: "quota_criticality.yaml",
    quota_server_loss: "quota_server_loss.yaml",
    restarts: "restarts.yaml",
    retry_budget: "retry_budget.yaml",
    sinkhole: "sinkhole.yaml",
    spillover: "spillover.yaml",
    sporadic_clients: "sporadic_clients.yaml",
    subsetting: "subsetting.yaml",
    surge: "surge.yaml",
    throttle: "throttle.yaml",
}
