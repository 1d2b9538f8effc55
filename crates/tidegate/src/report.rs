//! What the task says about itself with every answer: ORCA, in band.
//!
//! The report of a moment is the same for all answers, so it is encoded once, when it is made, and
//! answers carry a copy of the header's value, which is a count of references; HTTP/2 sends what it
//! has sent before as a number. Only what the request itself has cost is not the same:
//!
//! ```text
//! base64(report + cost) = base64(report) + base64(cost)      if the report is 3n bytes long
//! ```
//!
//! which it is, as each of its numbers takes nine bytes and a number that is zero none. Protobuf
//! lets fields be appended, so the answer's own part is 14 bytes to encode.
//!
//! **Over HTTP/2** a header that is new each time would be put into a table at both ends, where it
//! pushes out what is of use and is compared with whatever comes after. So a value with a cost is
//! marked as one that never comes again; HTTP/2's word for that is *sensitive*.
//!
//! Where hardly anybody looks at the cost, [`LoadReports::cost`] keeps it for those who ask.
//!
//! Where they go: into the trailers of gRPC, or the headers if there are none. Over HTTP they go
//! into the headers, if the request asks by `endpoint-load-metrics-format: BIN`, `JSON` or `TEXT`;
//! nobody else would read them, and Envoy passes them on to whoever asked.

use arc_swap::ArcSwap;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::{HeaderMap, HeaderValue};
use std::sync::Arc;
use tidegate_core::Cost;
use tidegate_wire::headers::ENDPOINT_LOAD_METRICS_BIN;
use tidegate_wire::orca::{self, Format, OrcaLoadReport};
use tidegate_wire::protocol::Protocol;

/// What the cost of a request is called: CPU time of the reference machine, in seconds.
pub const COST_NAME: &str = "cpu";

/// The named metric of a load report that tells how many requests are in flight.
pub const METRIC_RIF: &str = "tidegate.rif";
/// The one that tells how long requests have taken of late, in seconds.
pub const METRIC_LATENCY: &str = "tidegate.latency_seconds";

/// When answers carry a report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum When {
    /// They do not.
    Never,
    /// If the request asks for one.
    Asked,
    /// Always; in binary if the request does not say.
    Always,
}

/// Which answers carry load reports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub struct LoadReports {
    grpc: When,
    http: When,
    cost: When,
}

impl Default for LoadReports {
    /// Over gRPC all of them, over HTTP those that were asked for; all with cost.
    fn default() -> Self {
        Self { grpc: When::Always, http: When::Asked, cost: When::Always }
    }
}

impl LoadReports {
    /// None at all: for services that face strangers.
    pub const NEVER: Self = Self { grpc: When::Never, http: When::Never, cost: When::Never };

    /// Over gRPC.
    pub const fn grpc(mut self, when: When) -> Self {
        self.grpc = when;
        self
    }

    /// Over HTTP.
    pub const fn http(mut self, when: When) -> Self {
        self.http = when;
        self
    }

    /// When with what the request has cost (`request_cost.cpu`, in seconds). To tell everybody
    /// makes each answer's report a new one, to be encoded and sent in full. [`When::Asked`] is for
    /// services whose callers do not look at it; a proxy before them learns it from them.
    pub const fn cost(mut self, cost: When) -> Self {
        self.cost = cost;
        self
    }

    /// How the answer to a request that asks for one of `asked` is to be written, if at all.
    #[inline]
    pub(crate) fn wanted(self, protocol: Protocol, asked: Option<Format>) -> Option<Wanted> {
        let when = match protocol {
            Protocol::Grpc => self.grpc,
            Protocol::Http => self.http,
        };
        let format = match when {
            When::Never => return None,
            When::Asked => asked?,
            // gRPC reads the binary one only, so there is nothing to ask for.
            When::Always if protocol == Protocol::Grpc => Format::Binary,
            When::Always => asked.unwrap_or_default(),
        };
        let cost = match self.cost {
            When::Never => false,
            When::Asked => asked.is_some(),
            When::Always => true,
        };
        Some(Wanted { format, cost })
    }
}

/// How a report is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Wanted {
    format: Format,
    cost: bool,
}

/// The report of the moment.
#[derive(Debug)]
pub(crate) struct Reports {
    current: ArcSwap<Encoded>,
}

#[derive(Debug)]
struct Encoded {
    report: OrcaLoadReport,
    binary: HeaderValue,
}

impl Default for Reports {
    fn default() -> Self {
        let nothing =
            Encoded { report: OrcaLoadReport::default(), binary: HeaderValue::from_static("") };
        Self { current: ArcSwap::from_pointee(nothing) }
    }
}

impl Reports {
    pub(crate) fn report(&self) -> OrcaLoadReport {
        self.current.load().report.clone()
    }

    /// From now on this is the report. One with a number that is none changes nothing.
    pub(crate) fn publish(&self, report: OrcaLoadReport) {
        if let Ok((_, binary)) = orca::encode(&report, Format::Binary) {
            self.current.store(Arc::new(Encoded { report, binary }));
        }
    }

    /// Puts the report into `headers`, which may be trailers.
    pub(crate) fn write(&self, headers: &mut HeaderMap, wanted: Wanted, cost: Cost) {
        let current = self.current.load();
        if wanted.format == Format::Binary {
            let value = if wanted.cost { with_cost(&current, cost) } else { None };
            let value = value.unwrap_or_else(|| current.binary.clone());
            headers.insert(&ENDPOINT_LOAD_METRICS_BIN, value);
            return;
        }
        let mut report = current.report.clone();
        // In text there is no cost, and Envoy would drop the report for it.
        if wanted.cost && wanted.format != Format::Text {
            report.request_cost.insert(COST_NAME.to_owned(), cost.as_secs_f64());
        }
        // It was checked when it was published.
        let _ = orca::write(headers, &report, wanted.format);
    }
}

/// An entry of the map `request_cost`, which is field 4: its length, then the name (field 1) and
/// the number (field 2).
fn cost_entry(cost: Cost) -> [u8; ENTRY] {
    let mut entry = [0; ENTRY];
    let name = COST_NAME.as_bytes();
    entry[..4].copy_from_slice(&[4 << 3 | 2, ENTRY as u8 - 2, 1 << 3 | 2, name.len() as u8]);
    entry[4..4 + name.len()].copy_from_slice(name);
    entry[4 + name.len()] = 2 << 3 | 1;
    entry[5 + name.len()..].copy_from_slice(&cost.as_secs_f64().to_le_bytes());
    entry
}

const ENTRY: usize = 5 + COST_NAME.len() + 8;

/// Five numbers and an entry are 84 characters.
const TEXT_MAX: usize = 128;

/// The report with a cost; nothing if it is none that can be appended to.
fn with_cost(encoded: &Encoded, cost: Cost) -> Option<HeaderValue> {
    let report = encoded.binary.as_bytes();
    if report.ends_with(b"=") {
        return None;
    }
    let mut text = [0; TEXT_MAX];
    text.get_mut(..report.len())?.copy_from_slice(report);
    let added = STANDARD.encode_slice(cost_entry(cost), &mut text[report.len()..]).ok()?;
    let mut value = HeaderValue::from_bytes(&text[..report.len() + added]).ok()?;
    value.set_sensitive(true);
    Some(value)
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(reports: &Reports, format: Format, cost: Cost) -> OrcaLoadReport {
        let mut headers = HeaderMap::new();
        reports.write(&mut headers, Wanted { format, cost: true }, cost);
        orca::read(&headers).expect("as it was written").expect("a report")
    }

    proptest! {
        /// What is put together by hand is what an encoder would have written.
        #[test]
        fn a_report_with_its_cost_is_read_as_it_was_meant(
            numbers in prop::array::uniform5(prop_oneof![Just(0.0), 0.0..1e9]),
            cost in any::<u64>(),
        ) {
            let [cpu_utilization, mem_utilization, rps_fractional, eps, application] = numbers;
            let mut report = OrcaLoadReport {
                cpu_utilization, mem_utilization, rps_fractional, eps,
                application_utilization: application,
                ..OrcaLoadReport::default()
            };
            let reports = Reports::default();
            reports.publish(report.clone());
            let cost = Cost::from_nanos(cost);
            let value = with_cost(&reports.current.load(), cost);
            prop_assert!(value.is_some_and(|value| value.is_sensitive()));
            report.request_cost.insert("cpu".to_owned(), cost.as_secs_f64());
            prop_assert_eq!(&read(&reports, Format::Binary, cost), &report);
            prop_assert_eq!(&read(&reports, Format::Json, cost), &report);
            report.request_cost.clear();
            prop_assert_eq!(&read(&reports, Format::Text, cost), &report);
        }
    }

    #[test]
    fn a_report_that_is_none_is_not_published() {
        let reports = Reports::default();
        reports.publish(OrcaLoadReport { eps: 2.0, ..OrcaLoadReport::default() });
        reports.publish(OrcaLoadReport { eps: f64::NAN, ..OrcaLoadReport::default() });
        assert_eq!(reports.report().eps, 2.0);
    }

    #[test]
    fn who_gets_one() {
        let (silent, asks, default) = (None, Some(Format::Json), LoadReports::default());
        let format = |reports: LoadReports, protocol, asked| {
            reports.wanted(protocol, asked).map(|wanted| wanted.format)
        };
        let cost = |when, asked| default.cost(when).wanted(Protocol::Grpc, asked).unwrap().cost;
        let found = [When::Never, When::Asked, When::Always];
        let found = found.map(|when| (cost(when, silent), cost(when, asks)));
        assert_eq!(found, [(false, false), (false, true), (true, true)]);
        for (reports, protocol, asked, expected) in [
            (default, Protocol::Grpc, silent, Some(Format::Binary)),
            (default, Protocol::Grpc, asks, Some(Format::Binary)),
            (default, Protocol::Http, silent, None),
            (default, Protocol::Http, asks, Some(Format::Json)),
            (default.http(When::Always), Protocol::Http, silent, Some(Format::Binary)),
            (default.grpc(When::Asked), Protocol::Grpc, silent, None),
            (LoadReports::NEVER, Protocol::Grpc, asks, None),
            (LoadReports::NEVER, Protocol::Http, asks, None),
        ] {
            assert_eq!(format(reports, protocol, asked), expected, "{reports:?} {protocol:?}");
        }
    }
}
