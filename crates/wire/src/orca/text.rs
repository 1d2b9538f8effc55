//! Reports in text: `name=value,name=value`.
//!
//! Envoy knows five names and `named_metrics.*` here, and drops a report with any other, so no
//! other is written. Read are all names of the message; unknown ones are skipped. Envoy takes a
//! colon for the equals sign, and so do we.

use super::{InvalidReport, OrcaLoadReport};
use std::fmt::Write;

const UNREADABLE: InvalidReport = InvalidReport::Unreadable("text");

pub(super) fn encode(report: &OrcaLoadReport) -> Result<String, InvalidReport> {
    for (name, absent) in [
        ("request_cost", report.request_cost.is_empty()),
        ("utilization", report.utilization.is_empty()),
        ("rps", report.rps == 0),
    ] {
        if !absent {
            return Err(InvalidReport::NotInText(name));
        }
    }
    let mut text = String::from("TEXT ");
    let mut pair = |prefix: &str, name: &str, value: f64| {
        let comma = if text.ends_with(' ') { "" } else { "," };
        // A string takes whatever it is given.
        _ = write!(text, "{comma}{prefix}{name}={value:?}");
    };
    for (name, value) in report.scalars() {
        if value != 0.0 {
            pair("", name, value);
        }
    }
    for (name, &value) in &report.named_metrics {
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_graphic() && !b",=:".contains(&b)) {
            return Err(InvalidReport::NotInText("a name"));
        }
        pair("named_metrics.", name, value);
    }
    // A report that says nothing still has to say something.
    if text.ends_with(' ') {
        text.push_str("cpu_utilization=0");
    }
    Ok(text)
}

pub(super) fn decode(text: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    let text = core::str::from_utf8(text).map_err(|_| UNREADABLE)?;
    let mut report = OrcaLoadReport::default();
    let mut seen = 0_u8;
    for pair in text.split(',') {
        let (name, value) = pair.split_once(['=', ':']).ok_or(UNREADABLE)?;
        let (name, value) = (name.trim(), value.trim());
        let value: f64 = value.parse().map_err(|_| UNREADABLE)?;
        let (bit, slot) = match name {
            "cpu_utilization" => (0, &mut report.cpu_utilization),
            "mem_utilization" => (1, &mut report.mem_utilization),
            "rps_fractional" => (2, &mut report.rps_fractional),
            "eps" => (3, &mut report.eps),
            "application_utilization" => (4, &mut report.application_utilization),
            _ => {
                let Some((map, name)) = name.split_once('.') else { continue };
                let map = match map {
                    "named_metrics" => &mut report.named_metrics,
                    "request_cost" => &mut report.request_cost,
                    "utilization" => &mut report.utilization,
                    _ => continue,
                };
                if map.insert(name.to_owned(), value).is_some() {
                    return Err(InvalidReport::Duplicate("a name"));
                }
                continue;
            }
        };
        if seen >> bit & 1 == 1 {
            return Err(InvalidReport::Duplicate("a field"));
        }
        seen |= 1 << bit;
        *slot = value;
    }
    report.check()?;
    Ok(report)
}
