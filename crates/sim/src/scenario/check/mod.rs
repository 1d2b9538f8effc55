//! What a scenario must show: a measure, of somebody, at some time, in some variant, within bounds.
//!
//! A check that names several windows, variants, criticalities or customers is as many checks.

mod read;

pub use read::check_keys;
pub(super) use read::{Context, checks, windows};

use super::measure::{Measure, Sample, Unit};
use super::variant::Variant;
use crate::world::record::Record;
use core::ops::Range;
use core::time::Duration;
use tidegate_core::Criticality;

/// Columns of `ServiceBin::reasons`.
pub const REASONS: [&str; 4] = ["lame_duck", "deadline", "quota", "overload"];

/// Whose measure, when, and of which requests.
#[derive(Debug, Clone)]
struct Place {
    of: String,
    clients: Vec<usize>,
    services: Vec<usize>,
    variant: usize,
    /// In words: `during surge`.
    when: String,
    span: Range<Duration>,
    criticality: Option<Criticality>,
    customer: Option<(usize, String)>,
    reason: Option<usize>,
    tasks: Option<Range<usize>>,
    holding: f64,
}

/// One thing that must show.
#[derive(Debug, Clone)]
pub struct Check {
    line: u64,
    measure: &'static Measure,
    place: Place,
    times: Option<Place>,
    order: bool,
    /// Whether bounds are shares of capacity.
    of_capacity: bool,
    at_least: Option<f64>,
    at_most: Option<f64>,
}

/// What came of a check.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct Judged {
    /// What was measured, in words.
    pub what: String,
    /// The line of the check.
    pub line: u64,
    /// The name of the variant.
    pub variant: String,
    /// What came out; none if there was nothing to measure, or no end to it.
    pub measured: Option<f64>,
    /// The unit of `measured` and of the bounds: `share`, `seconds`, `count`, `times` or
    /// `per_second`.
    pub unit: &'static str,
    /// The lower bound.
    pub at_least: Option<f64>,
    /// The upper bound.
    pub at_most: Option<f64>,
    /// Whether it held.
    pub passed: bool,
}

impl Judged {
    /// The bounds, with their unit: `≥ 95 %`.
    pub fn bounds(&self) -> String {
        let bound = |word: &str, value: Option<f64>| {
            value.map(|value| format!("{word} {}", written(value, self.unit)))
        };
        let both = [bound("≥", self.at_least), bound("≤", self.at_most)];
        both.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// What was measured, with its unit.
    pub fn measured_text(&self) -> String {
        self.measured.map_or_else(|| "nothing".to_owned(), |value| written(value, self.unit))
    }

    /// The verdict in a line.
    pub fn line(&self) -> String {
        let word = if self.passed { "PASS" } else { "FAIL" };
        format!("{word}  {}: {} ({})", self.what, self.measured_text(), self.bounds())
    }
}

/// A value with its unit.
pub fn written(value: f64, unit: &str) -> String {
    let digits = |value: f64| match value.abs() {
        size if value.fract() == 0.0 && size < 1e15 => format!("{value:.0}"),
        size if size >= 100.0 => format!("{value:.0}"),
        size if size >= 10.0 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    };
    match unit {
        // 99.99 % must not read as 100 %.
        "share" if (0.9..1.0).contains(&value) && value > 0.998 => {
            format!("{:.3} %", (value * 1e5).floor() / 1e3)
        }
        "share" => format!("{} %", digits((value * 1e6).round() / 1e4)),
        "seconds" if value == 0.0 => "0 s".to_owned(),
        "seconds" if value < 1e-3 => format!("{} µs", digits(value * 1e6)),
        "seconds" if value < 1.0 => format!("{} ms", digits(value * 1e3)),
        "seconds" => format!("{} s", digits(value)),
        "times" => format!("{}x", digits(value)),
        "per_second" => format!("{}/s", digits(value)),
        _ => digits(value),
    }
}

impl Check {
    /// The variants that have to run for it.
    pub fn variants(&self) -> impl Iterator<Item = usize> {
        [Some(self.place.variant), self.times.as_ref().map(|t| t.variant)].into_iter().flatten()
    }

    /// Judges a check by what was written down of each variant.
    pub(super) fn judge(&self, variants: &[Variant], records: &[&Record]) -> Judged {
        let value = |place: &Place| self.value(place, variants, records);
        let measured = match &self.times {
            Some(other) => value(&self.place).zip(value(other)).map(|(this, that)| this / that),
            None => value(&self.place),
        };
        let measured = measured.filter(|value| value.is_finite());
        let passed = measured.is_some_and(|value| {
            self.at_least.is_none_or(|least| value >= least)
                && self.at_most.is_none_or(|most| value <= most)
        });
        Judged {
            what: self.what(variants),
            line: self.line,
            variant: variants[self.place.variant].name.clone(),
            measured,
            unit: self.unit(),
            at_least: self.at_least,
            at_most: self.at_most,
            passed,
        }
    }

    fn value(&self, place: &Place, variants: &[Variant], records: &[&Record]) -> Option<f64> {
        let variant = &variants[place.variant];
        let (record, span) = (records[place.variant], place.span.clone());
        let sample = Sample {
            criticality: place.criticality,
            customer: place.customer.as_ref().map(|(index, _)| *index),
            reason: place.reason,
            tasks: place.tasks.clone(),
            holding: place.holding,
            ..Sample::whole(variant, record, &place.clients, &place.services, span)
        };
        if self.order {
            return inversion(self.measure, &sample);
        }
        let value = (self.measure.value)(&sample)?;
        if self.of_capacity {
            let capacity = sample.capacity();
            return (capacity > 0.0).then(|| value / capacity);
        }
        Some(value)
    }

    fn unit(&self) -> &'static str {
        let unit = match self.measure.unit {
            _ if self.times.is_some() => Unit::Times,
            Unit::PerSecond if self.of_capacity => Unit::Share,
            unit => unit,
        };
        unit.name()
    }

    /// The check in words.
    pub(super) fn what(&self, variants: &[Variant]) -> String {
        let mut what = format!("{} of {}", self.measure.name, self.place.of);
        if self.order {
            what = format!("{what} out of order");
        }
        if let Some(criticality) = self.place.criticality {
            what = format!("{what}, {}", criticality.name());
        }
        if let Some((_, customer)) = &self.place.customer {
            what = format!("{what}, customer {customer}");
        }
        if let Some(reason) = self.place.reason {
            what = format!("{what}, {}", REASONS[reason]);
        }
        if let Some(tasks) = &self.place.tasks {
            what = format!("{what}, tasks {}..{}", tasks.start, tasks.end);
        }
        what = format!("{what} {}", self.place.when);
        if self.place.variant > 0 {
            what = format!("{what} in {}", variants[self.place.variant].name);
        }
        if let Some(times) = &self.times {
            let place = &self.place;
            let mut other = Vec::new();
            if times.of != place.of {
                other.push(format!("of {}", times.of));
            }
            if times.criticality != place.criticality {
                other.extend(times.criticality.map(|c| c.name().to_owned()));
            }
            if times.customer != place.customer {
                other.extend(times.customer.as_ref().map(|(_, name)| name.clone()));
            }
            if times.when != place.when {
                other.push(times.when.clone());
            }
            if times.variant != place.variant {
                other.push(format!("in {}", variants[times.variant].name));
            }
            what = format!("{what}, against {}", other.join(" "));
        }
        what
    }
}

/// By how much a criticality has less than one below it; none of them, and it is 0.
fn inversion(measure: &Measure, sample: &Sample<'_>) -> Option<f64> {
    let levels = Criticality::ALL.map(|criticality| {
        (measure.value)(&Sample { criticality: Some(criticality), ..sample.clone() })
    });
    let present: Vec<f64> = levels.into_iter().flatten().collect();
    let pairs = present.windows(2).map(|pair| pair[0] - pair[1]);
    (present.len() > 1).then(|| pairs.fold(0.0, f64::max))
}
