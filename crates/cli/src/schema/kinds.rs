//! Kinds of values, and how a JSON Schema describes them.

use serde_json::{Map, Value, json};

/// What a value is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// A file.
    File,
    /// A span of time with its unit.
    Span,
    /// `127.0.0.1:8000`.
    Address,
    /// The same, or `off`.
    AddressOrOff,
    /// A port, or `same`.
    PortOrSame,
    /// Where a program is.
    Place,
    /// The same, and maybe a datacenter.
    Endpoint,
    /// `NAME:PORT`.
    Named,
    /// What to look at of a program.
    Watch,
    /// A path of HTTP.
    Path,
    /// A criticality.
    Level,
    /// A number of CPUs.
    Cpus,
    /// CPUs in all, or by criticality.
    Quota,
    /// What a customer may use, as the quota server has it.
    Limit,
    /// Bytes with their unit.
    Memory,
    /// A number of 0 or more, whole or not.
    Number,
    /// Any number.
    Any,
    /// A whole number of 0 or more.
    Count,
    /// A whole number of 1 or more.
    Some,
    /// A whole number.
    Whole,
    /// `2%`, or `0.02`.
    Share,
    /// `on` or `off`.
    Switch,
    /// `true` or `false`.
    Bool,
    /// One of these words.
    Word(&'static [&'static str]),
    /// Any number of these.
    List(&'static Self),
    /// What has keys of its own, in other rows.
    Nested,
    /// What is passed over.
    Ignored,
}

/// In capitals, as they are written everywhere; a parser takes them in small letters as well.
const LEVELS: [&str; 4] = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];

/// An address of IPv4 or, in brackets, IPv6, with its port.
const ADDRESS: &str = r"(\d{1,3}(\.\d{1,3}){3}|\[[0-9a-fA-F:.]+(%\d+)?\]):\d{1,5}";
const NAMED: &str = r"[A-Za-z0-9._-]+:\d{1,5}";
/// A number as people write it, as YAML has `1e3` for one as well.
const NUMBER: &str = r"^\s*[0-9.eE+-]+\s*$";

fn pattern(pattern: &str, example: &str) -> Value {
    json!({ "type": "string", "pattern": pattern, "examples": [example] })
}

/// A number, or text that is one.
fn number(minimum: f64, example: &str) -> Value {
    json!({ "anyOf": [{ "type": "number", "minimum": minimum }, pattern(NUMBER, example)] })
}

/// Those that many keys have.
pub(super) fn definitions() -> Map<String, Value> {
    let mut all = Map::new();
    let span = r"^\s*(\d+(\.\d*)?|\.\d+)\s*(us|µs|ms|s|m|h)\s*$";
    for (name, schema) in [
        ("span", pattern(span, "250ms")),
        ("address", pattern(&format!("^{ADDRESS}$"), "127.0.0.1:8000")),
        (
            "place",
            pattern(
                &format!(r"^\s*(https?://)?({ADDRESS}|{NAMED}|unix:/.+)/?\s*$"),
                "127.0.0.1:8080",
            ),
        ),
        ("level", json!({ "enum": LEVELS })),
        ("cpus", number(0.0, "2.5")),
    ] {
        all.insert(name.to_owned(), schema);
    }
    let cpus = json!({ "$ref": "#/$defs/cpus" });
    let mut levels = Map::new();
    for name in ["total"].into_iter().chain(LEVELS) {
        levels.insert(name.to_owned(), cpus.clone());
    }
    let by_level = json!({ "type": "object", "properties": levels, "additionalProperties": false });
    all.insert("quota".to_owned(), json!({ "anyOf": [cpus, by_level] }));
    all
}

impl Kind {
    pub(super) fn schema(self) -> Value {
        let shared = |name: &str| json!({ "$ref": format!("#/$defs/{name}") });
        match self {
            Self::Text | Self::File => json!({ "type": "string" }),
            Self::Span => shared("span"),
            Self::Address => shared("address"),
            // For YAML 1.1 `off` is `false`.
            Self::AddressOrOff => {
                json!({ "anyOf": [shared("address"), { "enum": ["off", false] }] })
            }
            Self::PortOrSame => json!({ "anyOf": [
                { "type": "integer", "minimum": 1, "maximum": 65_535 },
                { "const": "same" },
            ] }),
            Self::Place => shared("place"),
            Self::Endpoint => {
                let places = format!(r"^\s*({ADDRESS}|{NAMED}|unix:/\S+)(\s+\S+)?\s*$");
                pattern(&places, "10.0.0.1:8080")
            }
            Self::Named => pattern(&format!("^{NAMED}$"), "inventory:8080"),
            Self::Watch => pattern(r"^(auto|nothing|pid:\d+|cgroup:/.*)$", "auto"),
            Self::Path => pattern("^/", "/readyz"),
            Self::Level => shared("level"),
            Self::Cpus => shared("cpus"),
            Self::Quota => shared("quota"),
            Self::Limit => {
                let cpus = json!({ "type": "number", "minimum": 0 });
                let levels = ["cpu", "critical", "sheddable_plus", "sheddable"];
                let mut levels: Map<_, _> =
                    levels.map(|level| (level.to_owned(), cpus.clone())).into_iter().collect();
                levels.insert("memory".to_owned(), Self::Memory.schema());
                levels.insert("identities".to_owned(), Self::List(&Self::Text).schema());
                json!({ "anyOf": [
                    cpus,
                    { "const": "unlimited" },
                    { "type": "object", "properties": levels, "additionalProperties": false },
                ] })
            }
            Self::Memory => pattern(r"^[0-9.]+\s*(Ki|Mi|Gi|Ti)B$", "1.5GiB"),
            Self::Number => json!({ "type": "number", "minimum": 0 }),
            Self::Any => json!({ "type": "number" }),
            Self::Count => json!({ "type": "integer", "minimum": 0 }),
            Self::Some => json!({ "type": "integer", "minimum": 1 }),
            Self::Whole => json!({ "type": "integer" }),
            Self::Share => json!({ "anyOf": [
                { "type": "number", "minimum": 0, "maximum": 1 },
                pattern(r"^[0-9.]+\s*%?$", "2%"),
            ] }),
            // As above.
            Self::Switch => json!({ "enum": ["on", "off", "true", "false", true, false] }),
            Self::Bool => json!({ "type": "boolean" }),
            Self::Word(words) => json!({ "enum": words }),
            Self::List(kind) => json!({ "type": "array", "items": kind.schema() }),
            Self::Nested => json!({}),
            Self::Ignored => json!(true),
        }
    }
}
