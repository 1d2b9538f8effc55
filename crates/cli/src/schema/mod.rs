//! `tidegate schema`: what may stand in a configuration file, for editors and for CI.
//!
//! A JSON Schema says what keys there are and what shape their values have. It cannot say what only
//! makes sense together (`upstream_tls` with an upstream that has TLS); `tidegate check` can, and
//! explains itself.
//!
//! Keys stand in tables (`proxy`, `quota`), each with its kind and a sentence. Deriving a schema
//! from the types that files are read into was rejected: most values are words of ours (`250ms`,
//! `unix:/PATH`), of which a derived schema knows no more than that they are strings. That the
//! tables have the keys that the parsers know and the documentation has, all of them and no others,
//! is for tests to see to.

mod kinds;
mod proxy;
mod quota;
mod tree;

use crate::Ending;
use serde_json::{Value, json};

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Which kind of file
    #[arg(value_enum)]
    file: File,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum File {
    /// Of `tidegate proxy --config`, in any role
    Proxy,
    /// Of `tidegate quota --config`
    Quota,
}

pub(crate) fn run(options: &Options) -> Ending {
    let schema = match options.file {
        File::Proxy => of_proxies(),
        File::Quota => quota::schema(),
    };
    // Values of ours, and no map has other keys than strings.
    let text = serde_json::to_string_pretty(&schema).unwrap_or_default();
    Ending::from(format!("{text}\n"))
}

/// One schema for all roles, by what `role` says.
fn of_proxies() -> Value {
    let mut definitions = serde_json::Map::new();
    // The last stands for files without a role.
    let mut choice = json!({ "$ref": "#/$defs/inbound" });
    for (role, rows) in proxy::ROLES {
        definitions.insert((*role).to_owned(), tree::object(rows));
        if *role != "inbound" {
            choice = json!({
                "if": { "required": ["role"], "properties": { "role": { "const": role } } },
                "then": { "$ref": format!("#/$defs/{role}") },
                "else": choice,
            });
        }
    }
    definitions.extend(kinds::definitions());
    let mut schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "tidegate proxy",
        "$defs": definitions,
    });
    if let (Value::Object(schema), Value::Object(choice)) = (&mut schema, choice) {
        schema.extend(choice);
    }
    schema
}

#[cfg(test)]
mod tests;
