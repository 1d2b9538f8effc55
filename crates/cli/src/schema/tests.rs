//! The tables have the keys that parsers know and the documentation has, and no others.

use super::kinds::Kind;
use super::proxy::ROLES;
use super::tree::{self, Row};
use super::{File, of_proxies, quota};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use tidegate_proxy::config::Role;

fn schema(file: File) -> Value {
    match file {
        File::Proxy => of_proxies(),
        File::Quota => quota::schema(),
    }
}

/// Whether `value` is as `schema` says; if not, where and why. Knows the words that our schemas
/// have, and no others.
fn validate(schema: &Value, root: &Value, value: &Value, at: &str) -> Result<(), String> {
    let Some(words) = schema.as_object() else {
        let none = schema == &Value::Bool(false);
        return if none { Err(format!("{at}: nothing may be here")) } else { Ok(()) };
    };
    let check = |schema: &Value| validate(schema, root, value, at);
    for (word, said) in words {
        match word.as_str() {
            "$ref" => {
                let name = said.as_str().unwrap().strip_prefix("#/$defs/").unwrap();
                check(root["$defs"].get(name).unwrap())?;
            }
            "type" => {
                let right = match said.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "number" => value.is_number(),
                    "integer" => value.is_i64() || value.is_u64(),
                    other => panic!("a type {other}"),
                };
                if !right {
                    return Err(format!("{at}: {value} is no {said}"));
                }
            }
            "properties" => {
                for (key, value) in value.as_object().into_iter().flatten() {
                    let within = format!("{at}.{key}");
                    let schema = said.get(key).or_else(|| words.get("additionalProperties"));
                    if let Some(schema) = schema {
                        validate(schema, root, value, &within)?;
                    }
                }
            }
            "required" => {
                for key in said.as_array().unwrap() {
                    if value.as_object().is_some_and(|o| !o.contains_key(key.as_str().unwrap())) {
                        return Err(format!("{at}: {key} is missing"));
                    }
                }
            }
            "items" => {
                for value in value.as_array().into_iter().flatten() {
                    validate(said, root, value, &format!("{at}[]"))?;
                }
            }
            "enum" if !said.as_array().unwrap().contains(value) => {
                return Err(format!("{at}: {value} is none of {said}"));
            }
            "const" if said != value => return Err(format!("{at}: {value} is not {said}")),
            "pattern" => {
                let pattern = regex::Regex::new(said.as_str().unwrap()).unwrap();
                if value.as_str().is_some_and(|text| !pattern.is_match(text)) {
                    return Err(format!("{at}: {value} does not fit {said}"));
                }
            }
            "minimum" if value.as_f64() < said.as_f64() => {
                return Err(format!("{at}: {value} is less than {said}"));
            }
            "maximum" if value.as_f64().is_some_and(|v| v > said.as_f64().unwrap()) => {
                return Err(format!("{at}: {value} is more than {said}"));
            }
            "anyOf" => {
                let all: Vec<_> = said.as_array().unwrap().iter().map(check).collect();
                if all.iter().all(Result::is_err) {
                    return Err(format!("{at}: {all:?}"));
                }
            }
            "if" => {
                let next = if check(said).is_ok() { "then" } else { "else" };
                check(words.get(next).unwrap())?;
            }
            "$schema"
            | "$defs"
            | "title"
            | "description"
            | "examples"
            | "additionalProperties"
            | "then"
            | "else"
            | "enum"
            | "const"
            | "minimum"
            | "maximum" => {}
            other => panic!("a word {other}"),
        }
    }
    Ok(())
}

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn valid(file: File, text: &str) -> Result<(), String> {
    let schema = schema(file);
    validate(&schema, &schema, &yaml(text), "")
}

fn document(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn is_refused(file: File, text: &str) -> bool {
    match file {
        File::Proxy => Role::parse("f.yaml", text).is_err(),
        File::Quota => tidegate_quota::Config::parse("f.yaml", text).is_err(),
    }
}

#[test]
fn every_example_of_the_documentation_is_valid() {
    for (name, file) in
        [("proxy.md", File::Proxy), ("proxy-outbound.md", File::Proxy), ("quota.md", File::Quota)]
    {
        let text = document(name);
        let mut count = 0;
        for example in text.split("```yaml\n").skip(1) {
            let example = example.split("```").next().unwrap();
            // Some show a part, for which there is no file.
            if is_refused(file, example) {
                continue;
            }
            count += 1;
            assert_eq!(valid(file, example), Ok(()), "{name}: {example}");
        }
        assert!(count > 0, "{name} has no example that could be run");
    }
}

/// Keys in the first column of tables whose head is `key`: `a`, or `a.b`, `.c`.
fn documented(text: &str) -> Vec<BTreeSet<String>> {
    let mut tables = Vec::new();
    let mut inside = false;
    for line in text.lines() {
        if line.starts_with("| key |") {
            inside = true;
            tables.push(BTreeSet::new());
        } else if !line.starts_with('|') {
            inside = false;
        } else if inside {
            let first = line.split('|').nth(1).unwrap();
            let mut before = String::new();
            for name in first.split('`').skip(1).step_by(2) {
                let full = match name.strip_prefix('.') {
                    Some(last) => format!("{before}.{last}"),
                    None => name.to_owned(),
                };
                before = full.rsplit_once('.').map_or(String::new(), |(b, _)| b.to_owned());
                tables.last_mut().unwrap().insert(full.replace("NAME", "*"));
            }
        }
    }
    tables
}

/// Paths of rows, and of what they are in, as tables name them.
fn rows(tables: &[&[Row]], prefix: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    tree::paths(&tree::object(tables), "", &mut found);
    found.iter().filter_map(|path| path.strip_prefix(prefix)).map(str::to_owned).collect()
}

/// Every key has a row, but those that only hold others; and every row has a key.
#[track_caller]
fn compare(documented: &BTreeSet<String>, known: &BTreeSet<String>) {
    let holds = |path: &String| {
        let inside = [format!("{path}."), format!("{path}[]")];
        known.iter().any(|other| inside.iter().any(|start| other.starts_with(start)))
    };
    let missing: Vec<_> =
        known.iter().filter(|path| !documented.contains(*path) && !holds(path)).collect();
    assert!(missing.is_empty(), "no row in the documentation for {missing:?}");
    let gone: Vec<_> = documented.difference(known).collect();
    assert!(gone.is_empty(), "a row in the documentation for {gone:?}, which is no key");
}

fn role(name: &str) -> &'static [&'static [Row]] {
    ROLES.iter().find(|(role, _)| *role == name).unwrap().1
}

#[test]
fn the_reference_has_the_keys_of_the_schema_and_no_others() {
    let tables = documented(&document("proxy.md"));
    let mut known = rows(role("inbound"), "");
    // Every table of roles says what this one is for; the edge has a page of its own.
    known.retain(|path| path != "role" && !path.starts_with("edge."));
    compare(&tables.into_iter().flatten().collect(), &known);
    let tables = documented(&document("proxy-edge.md"));
    compare(&tables[0], &rows(role("edge"), "edge.rules[]."));
    let is_edge = |path: &String| path.starts_with("edge.") && !path.contains('[');
    let of_edge =
        |paths: &BTreeSet<String>| paths.iter().filter(|path| is_edge(path)).cloned().collect();
    compare(&of_edge(&tables[1]), &of_edge(&rows(role("edge"), "")));
    let tables = documented(&document("proxy-batch.md"));
    let is_batch = |path: &String| path.starts_with("queue.") || path.starts_with("pace.");
    let waiting = rows(role("batch"), "services[].").into_iter().filter(is_batch).collect();
    compare(&tables[0], &waiting);
    let tables = documented(&document("proxy-outbound.md"));
    let known = rows(role("outbound"), "");
    let (service, proxy): (BTreeSet<_>, BTreeSet<_>) =
        known.into_iter().partition(|path| path.starts_with("services[]"));
    let proxy =
        proxy.into_iter().filter(|path| !path.starts_with("edge") && !path.starts_with("tls"));
    compare(&tables[0], &proxy.collect());
    let service: BTreeSet<_> = service
        .iter()
        .map(|path| path.trim_start_matches("services[].").to_owned())
        // Its row names them.
        .filter(|path| !path.starts_with("datacenters[]") && !path.starts_with("tls."))
        .filter(|path| !path.starts_with("queue") && !path.starts_with("pace"))
        .chain(["tls.name".to_owned()])
        .collect();
    compare(&tables[1], &service);
    let tables = documented(&document("quota.md"));
    let known = rows(&[quota::ROWS], "quota.");
    let within = |prefix: &str| -> BTreeSet<String> {
        let of = |path: &String| path.strip_prefix(prefix).map(str::to_owned);
        known.iter().filter_map(of).collect()
    };
    let mut server: BTreeSet<String> =
        known.iter().filter(|path| !path.contains(['*', '['])).cloned().collect();
    server.extend(within("services.*."));
    server.insert("services.*".to_owned());
    server.retain(|path| !path.starts_with("doorman.") && path != "services");
    compare(&tables[0], &server);
    let mut doorman = within("doorman.resources[].");
    // Those beside the list have a row in the same table.
    doorman.insert("servers".to_owned());
    doorman.extend(within("doorman.").into_iter().filter(|path| path.starts_with("parent.")));
    compare(&tables[1], &doorman);
}

/// The objects of a schema: how to come to each in YAML, and the keys it may have.
fn objects(schema: &Value, before: &str, found: &mut Vec<(String, BTreeSet<String>)>) {
    let Some(properties) = schema["properties"].as_object() else { return };
    let by_name = schema["additionalProperties"].is_object();
    if by_name {
        objects(&schema["additionalProperties"], &format!("{before}{{ x: "), found);
    } else {
        found.push((before.to_owned(), properties.keys().cloned().collect()));
    }
    for (key, value) in properties {
        objects(value, &format!("{before}{{ {key}: "), found);
        objects(&value["items"], &format!("{before}{{ {key}: [ "), found);
    }
}

/// A parser that meets a key it does not know names those that it does.
fn expected(file: File, text: &str) -> Option<BTreeSet<String>> {
    let error = match file {
        File::Proxy => Role::parse("f.yaml", text).unwrap_err().to_string(),
        File::Quota => tidegate_quota::Config::parse("f.yaml", text).unwrap_err().to_string(),
    };
    let (what, right) = error.split_once("right: ")?;
    assert!(what.contains("`zzz`"), "{text}: {error}");
    Some(right.trim().trim_start_matches("one of ").split(", ").map(str::to_owned).collect())
}

#[test]
fn the_parsers_know_the_keys_of_the_schema_and_no_others() {
    let of_role =
        |(role, tables): &(&'static str, &[&[Row]])| (File::Proxy, *role, tree::object(tables));
    let mut all: Vec<(File, &str, Value)> = ROLES.iter().map(of_role).collect();
    all.push((File::Quota, "", quota::schema()));
    let mut count = 0;
    for (file, role, schema) in all {
        let mut found = Vec::new();
        objects(&schema, "", &mut found);
        for (way, keys) in found {
            let closes = |open: char| match open {
                '{' => Some('}'),
                '[' => Some(']'),
                _ => None,
            };
            let closing: String = way.chars().rev().filter_map(closes).collect();
            let role = if role.is_empty() { String::new() } else { format!("role: {role}, ") };
            let inner = "{ zzz: 1 }";
            let text = match way.strip_prefix("{ ") {
                Some(rest) => format!("{{ {role}{rest}{inner} {closing}"),
                None => format!("{{ {role}zzz: 1 }}"),
            };
            let Some(expected) = expected(file, &text) else { panic!("{text}") };
            assert_eq!(expected, keys, "{text}");
            count += 1;
        }
    }
    assert!(count >= 25, "only {count} objects found");
}

#[test]
fn unknown_keys_and_wrong_values_are_refused_as_the_parser_does() {
    let inbound = "upstream: 127.0.0.1:8080\n";
    for (rest, right) in [
        ("", true),
        ("zzz: 1", false),
        ("role: inbound", true),
        ("role: sideways", false),
        ("timeouts: { connect: 250ms, answer: 0s }", true),
        ("timeouts: { connect: 250 }", false),
        ("timeouts: { connect: 1 day }", false),
        ("timeouts: { zzz: 1s }", false),
        ("listen: '[::1]:80'", true),
        ("listen: here", false),
        ("admin: off", true),
        ("admin: 127.0.0.1:1", true),
        ("admin: never", false),
        ("mode: enforce", true),
        ("mode: loud", false),
        ("cpus: 2.5", true),
        ("cpus: -1", false),
        ("cpus: many", false),
        ("workers: 1", true),
        ("workers: 0", false),
        ("watch: pid:17", true),
        ("watch: cgroup:/a/b", true),
        ("watch: me", false),
        ("ceiling: CRITICAL_PLUS", true),
        ("ceiling: urgent", false),
        ("everyone_else: 4", true),
        ("everyone_else: { total: 4, SHEDDABLE: 1 }", true),
        ("everyone_else: { most: 4 }", false),
        ("connections: { open_max: 5, streams_max: 10 }", true),
        ("connections: { open_max: -5 }", false),
        ("customers: 5", false),
        ("services: []", false),
    ] {
        let text = format!("{inbound}{rest}\n");
        let found = valid(File::Proxy, &text);
        assert_eq!(found.is_ok(), right, "{text}: {found:?}");
        assert_eq!(!is_refused(File::Proxy, &text), right, "{text}");
    }
    for upstream in ["app:8080", "https://app:8443", "unix:/run/app", "http://10.0.0.1:80/"] {
        let text = format!("upstream: {upstream}\n");
        assert_eq!(valid(File::Proxy, &text), Ok(()));
        assert!(!is_refused(File::Proxy, &text));
    }
    for text in ["upstream: here", "upstream: 7", "{}", "role: outbound", "upstream: unix:run"] {
        assert!(valid(File::Proxy, text).is_err(), "{text}");
        assert!(is_refused(File::Proxy, text), "{text}");
    }
    for text in ["quota: { services: { shop: { default: lots } } }", "quotas: {}", "{}"] {
        assert!(valid(File::Quota, text).is_err(), "{text}");
        assert!(is_refused(File::Quota, text), "{text}");
    }
}

#[test]
fn every_pattern_can_be_used() {
    for kind in [Kind::Endpoint, Kind::Named, Kind::Watch, Kind::Path, Kind::Share] {
        let schema = kind.schema();
        let patterns = schema["anyOf"].as_array().cloned().unwrap_or_else(|| vec![schema.clone()]);
        for pattern in patterns.iter().filter(|schema| schema.get("pattern").is_some()) {
            let example = &pattern["examples"][0];
            assert_eq!(validate(pattern, pattern, example, ""), Ok(()));
        }
    }
}
