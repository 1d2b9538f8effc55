//! Reports in JSON, as protobuf maps to it.
//!
//! Names are read in both spellings (`cpuUtilization`, `cpu_utilization`), numbers also as strings,
//! `null` as absent, and unknown names are skipped. A name that is there twice, in whatever
//! spelling, drops the report.

use super::{InvalidReport, OrcaLoadReport};
use serde::de::{Deserialize, Deserializer, Error, IgnoredAny, MapAccess, Visitor};
use std::collections::BTreeMap;
use std::fmt::{self, Write};

pub(super) fn encode(report: &OrcaLoadReport) -> String {
    let mut text = String::from("JSON {");
    for (name, value) in [
        ("cpuUtilization", report.cpu_utilization),
        ("memUtilization", report.mem_utilization),
        ("rpsFractional", report.rps_fractional),
        ("eps", report.eps),
        ("applicationUtilization", report.application_utilization),
    ] {
        if value != 0.0 {
            field(&mut text, name);
            number(&mut text, value);
        }
    }
    if report.rps != 0 {
        field(&mut text, "rps");
        // Protobuf writes 64 bits as a string, lest JavaScript rounds them. A string takes
        // whatever it is given.
        _ = write!(text, "\"{}\"", report.rps);
    }
    for (name, map) in [
        ("requestCost", &report.request_cost),
        ("utilization", &report.utilization),
        ("namedMetrics", &report.named_metrics),
    ] {
        if map.is_empty() {
            continue;
        }
        field(&mut text, name);
        text.push('{');
        for (name, &value) in map {
            field(&mut text, name);
            number(&mut text, value);
        }
        text.push('}');
    }
    text.push('}');
    text
}

/// Begins a field, after a comma if it is not the first. Names are written in ASCII, as they go
/// into a header.
fn field(text: &mut String, name: &str) {
    if !text.ends_with('{') {
        text.push(',');
    }
    text.push('"');
    for c in name.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            ' '..='~' => text.push(c),
            _ => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    _ = write!(text, "\\u{unit:04x}");
                }
            }
        }
    }
    text.push_str("\":");
}

/// The shortest digits that are read as the same number.
fn number(text: &mut String, value: f64) {
    _ = write!(text, "{value:?}");
}

pub(super) fn decode(text: &[u8]) -> Result<OrcaLoadReport, InvalidReport> {
    let Report { report, twice } =
        serde_json::from_slice(text).map_err(|_| InvalidReport::Unreadable("JSON"))?;
    if let Some(name) = twice {
        return Err(InvalidReport::Duplicate(name));
    }
    report.check()?;
    Ok(report)
}

/// A report, and what was there twice.
struct Report {
    report: OrcaLoadReport,
    twice: Option<&'static str>,
}

impl<'de> Deserialize<'de> for Report {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Fields)
    }
}

struct Fields;

impl<'de> Visitor<'de> for Fields {
    type Value = Report;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a load report")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Report, A::Error> {
        let mut report = OrcaLoadReport::default();
        let mut twice = None;
        let mut seen = 0_u16;
        while let Some(name) = map.next_key::<Name>()? {
            if seen >> name as u16 & 1 == 1 && name != Name::Other {
                twice = Some("a field");
            }
            seen |= 1 << name as u16;
            match name {
                Name::Cpu => report.cpu_utilization = map.next_value::<Number>()?.0,
                Name::Mem => report.mem_utilization = map.next_value::<Number>()?.0,
                Name::RpsFractional => report.rps_fractional = map.next_value::<Number>()?.0,
                Name::Eps => report.eps = map.next_value::<Number>()?.0,
                Name::Application => {
                    report.application_utilization = map.next_value::<Number>()?.0;
                }
                Name::Rps => report.rps = map.next_value::<Whole>()?.0,
                Name::Cost => report.request_cost = map.next_value::<Named>()?.into(&mut twice),
                Name::Utilization => {
                    report.utilization = map.next_value::<Named>()?.into(&mut twice);
                }
                Name::Named => report.named_metrics = map.next_value::<Named>()?.into(&mut twice),
                Name::Other => _ = map.next_value::<IgnoredAny>()?,
            }
        }
        Ok(Report { report, twice })
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Name {
    Cpu,
    Mem,
    Rps,
    Cost,
    Utilization,
    RpsFractional,
    Eps,
    Named,
    Application,
    Other,
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Names;

        impl Visitor<'_> for Names {
            type Value = Name;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a field")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<Name, E> {
                Ok(match name {
                    "cpuUtilization" | "cpu_utilization" => Name::Cpu,
                    "memUtilization" | "mem_utilization" => Name::Mem,
                    "rps" => Name::Rps,
                    "requestCost" | "request_cost" => Name::Cost,
                    "utilization" => Name::Utilization,
                    "rpsFractional" | "rps_fractional" => Name::RpsFractional,
                    "eps" => Name::Eps,
                    "namedMetrics" | "named_metrics" => Name::Named,
                    "applicationUtilization" | "application_utilization" => Name::Application,
                    _ => Name::Other,
                })
            }
        }

        deserializer.deserialize_str(Names)
    }
}

/// A double: a number, a string of one, or `null`.
struct Number(f64);

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Numbers;

        impl Visitor<'_> for Numbers {
            type Value = f64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number")
            }

            fn visit_f64<E>(self, value: f64) -> Result<f64, E> {
                Ok(value)
            }

            fn visit_u64<E>(self, value: u64) -> Result<f64, E> {
                Ok(value as f64)
            }

            fn visit_i64<E>(self, value: i64) -> Result<f64, E> {
                Ok(value as f64)
            }

            fn visit_unit<E>(self) -> Result<f64, E> {
                Ok(0.0)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<f64, E> {
                text.parse().map_err(|_| E::custom("not a number"))
            }
        }

        deserializer.deserialize_any(Numbers).map(Number)
    }
}

/// A `uint64`: a number, a string of one, or `null`.
struct Whole(u64);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Wholes;

        impl Visitor<'_> for Wholes {
            type Value = u64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a whole number")
            }

            fn visit_u64<E>(self, value: u64) -> Result<u64, E> {
                Ok(value)
            }

            fn visit_unit<E>(self) -> Result<u64, E> {
                Ok(0)
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<u64, E> {
                text.parse().map_err(|_| E::custom("not a whole number"))
            }
        }

        deserializer.deserialize_any(Wholes).map(Whole)
    }
}

/// A map of doubles, or `null`, and whether a name was there twice.
struct Named {
    map: BTreeMap<String, f64>,
    twice: bool,
}

impl Named {
    fn into(self, twice: &mut Option<&'static str>) -> BTreeMap<String, f64> {
        if self.twice {
            *twice = Some("a name");
        }
        self.map
    }
}

impl<'de> Deserialize<'de> for Named {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Maps;

        impl<'de> Visitor<'de> for Maps {
            type Value = Named;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("numbers by name")
            }

            fn visit_unit<E>(self) -> Result<Named, E> {
                Ok(Named { map: BTreeMap::new(), twice: false })
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Named, A::Error> {
                let mut named = Named { map: BTreeMap::new(), twice: false };
                while let Some((name, Number(value))) = access.next_entry::<String, Number>()? {
                    named.twice |= named.map.insert(name, value).is_some();
                }
                Ok(named)
            }
        }

        deserializer.deserialize_any(Maps)
    }
}
