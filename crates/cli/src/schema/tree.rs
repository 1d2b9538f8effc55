//! From rows of keys to the schema of an object.
//!
//! A row's path says where a key is: `timeouts.connect` is within an object, `customers.*.quota`
//! within one for each name, `services[].name` within each of a list.

use super::kinds::Kind;
use serde_json::{Value, json};

/// A key: its path (with `!` at its end if it has to be there), what its value is, and what it is
/// for.
pub(super) type Row = (&'static str, Kind, &'static str);

/// The schema of an object with the keys of all these tables.
pub(super) fn object(tables: &[&[Row]]) -> Value {
    let mut object = empty();
    for (path, kind, about) in tables.iter().copied().flatten() {
        let (path, required) = path.strip_suffix('!').map_or((*path, false), |path| (path, true));
        let mut value = kind.schema();
        if let Value::Object(value) = &mut value {
            value.insert("description".to_owned(), Value::from(*about));
        }
        insert(&mut object, path, value, required);
    }
    object
}

fn empty() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

fn insert(object: &mut Value, path: &str, value: Value, required: bool) {
    let (first, rest) = path.split_once('.').map_or((path, None), |(a, b)| (a, Some(b)));
    let (name, listed) = first.strip_suffix("[]").map_or((first, false), |name| (name, true));
    let place = if name == "*" {
        // What an object has whose keys are names.
        if object["additionalProperties"] == Value::Bool(false) {
            object["additionalProperties"] = Value::Null;
        }
        &mut object["additionalProperties"]
    } else {
        &mut object["properties"][name]
    };
    let Some(rest) = rest else {
        // An object may have been made by one of its keys.
        match (place.as_object_mut(), value) {
            (Some(there), Value::Object(said)) => there.extend(said),
            (_, said) => *place = said,
        }
        if required {
            require(object, name);
        }
        return;
    };
    if place.get("type").is_none() {
        let described = place.as_object().cloned().unwrap_or_default();
        *place = if listed { json!({ "type": "array", "items": empty() }) } else { empty() };
        if let Some(place) = place.as_object_mut() {
            place.extend(described);
        }
    }
    let within = if listed { &mut place["items"] } else { place };
    insert(within, rest, value, required);
}

fn require(object: &mut Value, name: &str) {
    if let Some(object) = object.as_object_mut() {
        let required = object.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(required) = required {
            required.push(Value::from(name));
        }
    }
}

/// All paths of a schema, as rows have them.
#[cfg(test)]
pub(super) fn paths(schema: &Value, before: &str, found: &mut std::collections::BTreeSet<String>) {
    let none = serde_json::Map::new();
    let within = |name: &str| {
        if before.is_empty() { name.to_owned() } else { format!("{before}.{name}") }
    };
    for (name, value) in schema["properties"].as_object().unwrap_or(&none) {
        let path = within(name);
        match value["items"].get("properties") {
            Some(_) => paths(&value["items"], &format!("{path}[]"), found),
            None => paths(value, &path, found),
        }
        found.insert(path);
    }
    if schema["additionalProperties"].is_object() {
        paths(&schema["additionalProperties"], &within("*"), found);
        found.insert(within("*"));
    }
}
