//! Load reports: what a task says about itself with every answer, in the terms of ORCA.
//!
//! A client can only weigh its backends by what they can do if they say so. ORCA is how gRPC and
//! Envoy say it: a protobuf message in a trailer or header, or streamed on request. We write and
//! read all forms that are in use:
//!
//! ```text
//! endpoint-load-metrics-bin: CQAAAAAAAOA/          base64 of the protobuf, padded
//! endpoint-load-metrics: BIN CQAAAAAAAOA/          the same
//! endpoint-load-metrics: JSON {"cpuUtilization":0.5}
//! endpoint-load-metrics: TEXT cpu_utilization=0.5,named_metrics.queue=3
//! ```
//!
//! In text Envoy knows neither `request_cost` nor `utilization`, and drops a report that has them,
//! so we do not write one.
//!
//! A report is a stranger's word. A number in it that is not finite or negative, a name that is
//! there twice, a text that cannot be read: each drops the whole report, as half a report would
//! give a wrong weight. A report of our own with such a number is not sent either.

mod bin;
mod json;
mod text;

pub use crate::proto::xds::data::orca::v3::OrcaLoadReport;

use crate::faults::{Fault, Faults};
use crate::headers::{ENDPOINT_LOAD_METRICS, ENDPOINT_LOAD_METRICS_BIN};
use http::{HeaderMap, HeaderName, HeaderValue};
use std::collections::BTreeMap;
use tidegate_core::balance::LoadReport;

/// Longer reports are not read. Ours have some fifty bytes; a thousand named metrics fit.
pub const REPORT_BYTES_MAX: usize = 64 * 1_024;

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Format {
    /// `endpoint-load-metrics-bin`: what gRPC reads, and Envoy too.
    #[default]
    Binary,
    /// `endpoint-load-metrics: BIN …`.
    PrefixedBinary,
    /// `endpoint-load-metrics: JSON …`.
    Json,
    /// `endpoint-load-metrics: TEXT …`.
    Text,
}

impl Format {
    /// Reads an `endpoint-load-metrics-format`, in any case.
    pub fn asked(value: &[u8]) -> Option<Self> {
        let formats = [(&b"bin"[..], Self::Binary), (b"json", Self::Json), (b"text", Self::Text)];
        let format = formats.into_iter().find(|(name, _)| value.eq_ignore_ascii_case(name));
        format.map(|(_, format)| format)
    }
}

/// Why a report was dropped.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidReport {
    /// A number that is none, or negative.
    #[error("{0} has to be zero or more, and finite")]
    Number(&'static str),
    /// A name, or the whole report, is there twice.
    #[error("{0} is there twice")]
    Duplicate(&'static str),
    /// It cannot be read.
    #[error("cannot be read as {0}")]
    Unreadable(&'static str),
    /// It does not say how it is written.
    #[error("a report begins with BIN, JSON or TEXT and a blank")]
    Prefix,
    /// It is too long.
    #[error("longer than 65536 bytes")]
    TooLong,
    /// It has something that cannot be said in text.
    #[error("{0} cannot be said in text: write JSON, or binary")]
    NotInText(&'static str),
}

impl From<InvalidReport> for Faults {
    fn from(_: InvalidReport) -> Self {
        Fault::BadLoadReport.into()
    }
}

impl OrcaLoadReport {
    fn scalars(&self) -> [(&'static str, f64); 5] {
        [
            ("cpu_utilization", self.cpu_utilization),
            ("mem_utilization", self.mem_utilization),
            ("rps_fractional", self.rps_fractional),
            ("eps", self.eps),
            ("application_utilization", self.application_utilization),
        ]
    }

    fn maps(&self) -> [(&'static str, &BTreeMap<String, f64>); 3] {
        [
            ("request_cost", &self.request_cost),
            ("utilization", &self.utilization),
            ("named_metrics", &self.named_metrics),
        ]
    }

    /// Whether every number is zero or more, and finite.
    pub fn check(&self) -> Result<(), InvalidReport> {
        let maps = self.maps().into_iter();
        let mapped = maps.flat_map(|(name, map)| map.values().map(move |&value| (name, value)));
        let wrong = |&(_, value): &(_, f64)| !(value.is_finite() && value >= 0.0);
        match self.scalars().into_iter().chain(mapped).find(wrong) {
            Some((name, _)) => Err(InvalidReport::Number(name)),
            None => Ok(()),
        }
    }
}

impl From<&OrcaLoadReport> for LoadReport {
    /// What a balancer looks at. As in gRPC and Envoy, `rps` does not count.
    fn from(report: &OrcaLoadReport) -> Self {
        Self {
            rps: report.rps_fractional,
            eps: report.eps,
            application_utilization: report.application_utilization,
            cpu_utilization: report.cpu_utilization,
        }
    }
}

impl From<&LoadReport> for OrcaLoadReport {
    fn from(report: &LoadReport) -> Self {
        Self {
            rps_fractional: report.rps,
            eps: report.eps,
            application_utilization: report.application_utilization,
            cpu_utilization: report.cpu_utilization,
            ..Self::default()
        }
    }
}

/// The header that carries `report`, to be inserted into headers or trailers.
///
/// Off the request path where the report is the same for all answers of a tick; a `HeaderValue`
/// made of it is cheap to clone.
pub fn encode(
    report: &OrcaLoadReport,
    format: Format,
) -> Result<(HeaderName, HeaderValue), InvalidReport> {
    report.check()?;
    let (name, value) = match format {
        Format::Binary => (&ENDPOINT_LOAD_METRICS_BIN, bin::encode(report, "")),
        Format::PrefixedBinary => (&ENDPOINT_LOAD_METRICS, bin::encode(report, "BIN ")),
        Format::Json => (&ENDPOINT_LOAD_METRICS, json::encode(report)),
        Format::Text => (&ENDPOINT_LOAD_METRICS, text::encode(report)?),
    };
    if value.len() > REPORT_BYTES_MAX {
        return Err(InvalidReport::TooLong);
    }
    let value = HeaderValue::try_from(value).map_err(|_| InvalidReport::NotInText("a name"))?;
    Ok((name.clone(), value))
}

/// Puts `report` into headers or trailers, in the place of any other. Nothing is written if it has
/// a number that is none.
pub fn write(
    headers: &mut HeaderMap,
    report: &OrcaLoadReport,
    format: Format,
) -> Result<(), InvalidReport> {
    strip(headers);
    let (name, value) = encode(report, format)?;
    headers.insert(name, value);
    Ok(())
}

/// Takes reports out: nobody outside needs to know.
pub fn strip(headers: &mut HeaderMap) {
    headers.remove(&ENDPOINT_LOAD_METRICS_BIN);
    headers.remove(&ENDPOINT_LOAD_METRICS);
}

/// The report in headers or trailers, if there is one. The binary header counts first.
///
/// ```
/// use http::HeaderMap;
/// use tidegate_wire::orca::{self, Format, OrcaLoadReport};
///
/// let report = OrcaLoadReport { cpu_utilization: 0.5, eps: 1.5, ..Default::default() };
/// let mut trailers = HeaderMap::new();
/// orca::write(&mut trailers, &report, Format::Binary)?;
/// assert_eq!(orca::read(&trailers)?, Some(report));
///
/// trailers.insert("endpoint-load-metrics-bin", "nonsense".parse().unwrap());
/// assert!(orca::read(&trailers).is_err());
/// # Ok::<(), orca::InvalidReport>(())
/// ```
pub fn read(headers: &HeaderMap) -> Result<Option<OrcaLoadReport>, InvalidReport> {
    if let Some(value) = only(headers, &ENDPOINT_LOAD_METRICS_BIN)? {
        return bin::decode(value).map(Some);
    }
    match only(headers, &ENDPOINT_LOAD_METRICS)? {
        Some(value) => decode_prefixed(value).map(Some),
        None => Ok(None),
    }
}

fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a [u8]>, InvalidReport> {
    let mut values = headers.get_all(name).iter();
    let first = values.next().map(HeaderValue::as_bytes);
    match values.next() {
        Some(_) => Err(InvalidReport::Duplicate("the header")),
        None if first.is_some_and(|value| value.len() > REPORT_BYTES_MAX) => {
            Err(InvalidReport::TooLong)
        }
        None => Ok(first),
    }
}

/// Reads the value of an `endpoint-load-metrics-bin`.
pub fn decode_binary(value: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    bin::decode(value)
}

/// Reads the value of an `endpoint-load-metrics`, prefix and all.
pub fn decode_prefixed(value: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    if let Some(base64) = value.strip_prefix(b"BIN ") {
        bin::decode(base64)
    } else if let Some(json) = value.strip_prefix(b"JSON ") {
        json::decode(json)
    } else if let Some(text) = value.strip_prefix(b"TEXT ") {
        text::decode(text)
    } else {
        Err(InvalidReport::Prefix)
    }
}

#[cfg(test)]
mod tests;
