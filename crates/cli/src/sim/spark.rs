//! Curves of one line of text.

use super::jobs::Told;
use core::ops::Range;
use core::time::Duration;
use tidegate_sim::scenario::{Series, written};

/// Characters of a curve: with name and scale it fits into 80 columns.
pub(super) const WIDTH: usize = 48;
/// From nothing to the top of the scale.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// One curve: its name, its unit and a value for each character.
pub(super) struct Curve {
    pub(super) name: &'static str,
    unit: &'static str,
    values: Vec<Option<f64>>,
}

impl Curve {
    fn top(&self) -> f64 {
        self.values.iter().flatten().copied().fold(0.0, f64::max)
    }

    fn line(&self, top: f64) -> String {
        let most = (BLOCKS.len() - 1) as f64;
        let block = |value: &Option<f64>| match value {
            // What is little is still not nothing.
            Some(value) if *value > 0.0 => {
                BLOCKS[(value / top * most).round().clamp(1.0, most) as usize]
            }
            _ => ' ',
        };
        self.values.iter().map(block).collect()
    }
}

/// The curves of every variant, and for each of them a scale that all variants share.
pub(super) fn lines(told: &Told<'_>) -> Vec<Vec<(&'static str, String, String)>> {
    let curves: Vec<Vec<Curve>> = told.series.iter().map(curves).collect();
    let top = |row: usize| curves.iter().map(|curves| curves[row].top()).fold(0.0, f64::max);
    let line = |(row, curve): (usize, &Curve)| {
        let top = top(row);
        let scale =
            if top > 0.0 { format!("top {}", written(top, curve.unit)) } else { "none".to_owned() };
        (curve.name, curve.line(top), scale)
    };
    curves.iter().map(|curves| curves.iter().enumerate().map(line).collect()).collect()
}

/// Offered, goodput, latency and refusals of all clients and services together.
fn curves(series: &Series) -> Vec<Curve> {
    let clients = &series.clients;
    let sum = |of: &mut dyn Iterator<Item = &Vec<u32>>| -> Vec<f64> {
        of.fold(Vec::new(), |mut sum, counts| {
            sum.resize(counts.len(), 0.0);
            sum.iter_mut().zip(counts).for_each(|(sum, &count)| *sum += f64::from(count));
            sum
        })
    };
    let rate = |name, counts: Vec<f64>| {
        let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
        let per_second = |part: &[f64]| Some(mean(part) / series.step_seconds);
        Curve { name, unit: "per_second", values: stretched(&counts, per_second) }
    };
    let seconds = clients.iter().map(|client| client.p99.len()).max().unwrap_or_default();
    let worst: Vec<Option<f64>> = (0..seconds)
        .map(|second| {
            let all = clients.iter().filter_map(|client| client.p99[second]);
            all.reduce(f64::max)
        })
        .collect();
    let highest = |part: &[Option<f64>]| part.iter().flatten().copied().reduce(f64::max);
    let refused = series.services.iter().flat_map(|service| &service.refused_by_criticality);
    vec![
        rate("offered", sum(&mut clients.iter().map(|client| &client.offered))),
        rate("goodput", sum(&mut clients.iter().map(|client| &client.goodput))),
        Curve { name: "p99", unit: "seconds", values: stretched(&worst, highest) },
        rate("refused", sum(&mut refused.map(|level| &level.counts))),
    ]
}

/// `values` as [`WIDTH`] values, by stretches; repeated if there are fewer.
fn stretched<T>(values: &[T], of: impl Fn(&[T]) -> Option<f64>) -> Vec<Option<f64>> {
    if values.is_empty() {
        return vec![None; WIDTH];
    }
    (0..WIDTH)
        .map(|i| {
            let from = i * values.len() / WIDTH;
            let to = ((i + 1) * values.len() / WIDTH).max(from + 1);
            of(&values[from..to])
        })
        .collect()
}

/// The windows under the curves, as far as they have room beside each other: `[calm  ][surge ]`.
pub(super) fn marks(windows: &[(String, Range<Duration>)], lasts: Duration) -> String {
    let mut marks = vec![' '; WIDTH];
    let column =
        |at: Duration| (at.as_secs_f64() / lasts.as_secs_f64() * WIDTH as f64).round() as usize;
    for (name, span) in windows {
        let (from, to) = (column(span.start), column(span.end).min(WIDTH));
        if to < from + 2 || marks[from..to].iter().any(|mark| *mark != ' ') {
            continue;
        }
        marks[from..to].fill('·');
        marks[from] = '[';
        marks[to - 1] = ']';
        for (mark, letter) in marks[from + 1..to - 1].iter_mut().zip(name.chars()) {
            *mark = letter;
        }
    }
    marks.into_iter().collect()
}
