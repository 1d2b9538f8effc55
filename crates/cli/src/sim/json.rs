//! What came of the scenarios, for machines.

use super::jobs::{Spread, Told};
use crate::Failure;
use serde::Serialize;
use std::collections::BTreeMap;
use tidegate_sim::scenario::{Figure, Judged, Series};

#[derive(Serialize)]
struct Report<'a> {
    virtual_time: bool,
    passed: bool,
    scenarios: Vec<One<'a>>,
}

#[derive(Serialize)]
struct One<'a> {
    name: &'a str,
    file: &'a str,
    story: &'a str,
    seed: u64,
    lasts_seconds: u64,
    passed: bool,
    /// From when to when, in seconds.
    windows: BTreeMap<&'a str, [f64; 2]>,
    variants: BTreeMap<&'a str, VariantReport<'a>>,
    checks: Vec<CheckReport<'a>>,
}

#[derive(Serialize)]
struct VariantReport<'a> {
    requests: u64,
    events: u64,
    inflight_max: usize,
    windows: Vec<Figure>,
    series: &'a Series,
}

#[derive(Serialize)]
struct CheckReport<'a> {
    #[serde(flatten)]
    judged: &'a Judged,
    bound: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    spread: Option<Spread>,
}

/// One object.
pub(super) fn text(told: &[Told<'_>]) -> Result<String, Failure> {
    let report = Report {
        virtual_time: true,
        passed: told.iter().all(Told::passed),
        scenarios: told.iter().map(one).collect(),
    };
    let mut json = serde_json::to_string(&report).map_err(|error| Failure {
        what: "could not write the verdict as JSON".to_owned(),
        why: error.to_string(),
        next: "this is a fault of tidegate: please report it; the text works without --json",
    })?;
    json.push('\n');
    Ok(json)
}

fn one<'a>(told: &'a Told<'_>) -> One<'a> {
    let scenario = told.scenario;
    let variants = scenario.variants.iter().zip(&told.records).zip(&told.series);
    let variants = variants.map(|((variant, record), series)| {
        let report = VariantReport {
            requests: record.requests,
            events: record.events,
            inflight_max: record.inflight_max,
            windows: scenario.figures(variant, record),
            series,
        };
        (variant.name.as_str(), report)
    });
    let many = told.verdicts.len() > 1;
    let checks = told.checks().iter().enumerate().map(|(index, judged)| CheckReport {
        judged,
        bound: judged.bounds(),
        spread: many.then(|| told.spread(index)),
    });
    let seconds = |(name, span): &'a (String, core::ops::Range<core::time::Duration>)| {
        (name.as_str(), [span.start.as_secs_f64(), span.end.as_secs_f64()])
    };
    One {
        name: &scenario.name,
        file: told.file,
        story: &scenario.story,
        seed: told.seed,
        lasts_seconds: scenario.lasts.as_secs(),
        passed: told.passed(),
        windows: scenario.windows.iter().map(seconds).collect(),
        variants: variants.collect(),
        checks: checks.collect(),
    }
}
