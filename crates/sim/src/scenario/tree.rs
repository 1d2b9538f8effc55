//! A YAML file as a tree in which every node knows its place.
//!
//! Variants are the file with some keys replaced. If that replaced text, or values that have lost
//! their place, a mistake in a variant could only be reported somewhere else. So the file is read
//! into a tree first, trees are laid over each other, and only then is their meaning asked for:
//! each node still says which line it came from.

use super::fault::{At, Fault};
use core::fmt;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// A value and its place.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub(crate) at: At,
    pub(crate) value: Value,
}

#[derive(Debug, Clone)]
pub(crate) enum Value {
    Nothing,
    Flag(bool),
    Whole(u64),
    Number(f64),
    Text(String),
    List(Vec<Node>),
    Map(Vec<Entry>),
}

/// A key and its value.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    /// Where the key stands.
    pub(crate) at: At,
    pub(crate) node: Node,
}

impl Node {
    /// Reads a file.
    pub(crate) fn parse(text: &str) -> Result<Self, Fault> {
        let options = serde_saphyr::options! {
            // `on` and `off` are words of ours, and YAML 1.1's `no` is a country of others.
            strict_booleans: true,
            with_snippet: false,
        };
        match serde_saphyr::from_str_with_options::<Spanned<Raw>>(text, options) {
            Ok(raw) => Ok(raw.into()),
            Err(error) => {
                let error = error.without_snippet();
                let at = error.location().map_or(At::START, |l| At::new(l.line(), l.column()));
                // The place is at the head of the line already.
                let what = error.to_string();
                let what = what.split(" at line ").next().unwrap_or_default();
                let what = what.trim_start_matches("error: ");
                Err(Fault::new(at, format!("not YAML: {what}"), "see docs/scenarios.md"))
            }
        }
    }

    /// Lays `over` over this: keys that both have are laid over each other, keys of `over` alone
    /// are added, a key with nothing in `over` goes away, and everything else is replaced.
    pub(crate) fn overlaid(&self, over: &Self) -> Self {
        let (Value::Map(mine), Value::Map(theirs)) = (&self.value, &over.value) else {
            return over.clone();
        };
        let mut entries = mine.clone();
        for theirs in theirs {
            match entries.iter_mut().find(|entry| entry.key == theirs.key) {
                Some(entry) => {
                    entry.node = entry.node.overlaid(&theirs.node);
                    entry.at = theirs.at;
                }
                None => entries.push(theirs.clone()),
            }
        }
        entries.retain(|entry| !matches!(entry.node.value, Value::Nothing));
        Self { at: self.at, value: Value::Map(entries) }
    }

    /// The entry under `key`, if this is a map that has it.
    pub(crate) fn entry(&self, key: &str) -> Option<&Entry> {
        match &self.value {
            Value::Map(entries) => entries.iter().find(|entry| entry.key == key),
            _ => None,
        }
    }

    /// What stands there, in words, for somebody who expected something else.
    pub(crate) fn found(&self) -> String {
        match &self.value {
            Value::Nothing => "nothing".to_owned(),
            Value::Flag(flag) => format!("`{flag}`"),
            Value::Whole(number) => format!("`{number}`"),
            Value::Number(number) => format!("`{number}`"),
            Value::Text(text) => format!("`{text}`"),
            Value::List(_) => "a list".to_owned(),
            Value::Map(_) => "a map".to_owned(),
        }
    }
}

/// A node as the YAML reader gives it.
enum Raw {
    Scalar(Value),
    List(Vec<Spanned<Raw>>),
    Map(Vec<(Spanned<String>, Spanned<Raw>)>),
}

impl From<Spanned<Raw>> for Node {
    fn from(raw: Spanned<Raw>) -> Self {
        let at = At::new(raw.referenced.line(), raw.referenced.column());
        let value = match raw.value {
            Raw::Scalar(value) => value,
            Raw::List(list) => Value::List(list.into_iter().map(Self::from).collect()),
            Raw::Map(map) => Value::Map(
                map.into_iter()
                    .map(|(key, node)| Entry {
                        at: At::new(key.referenced.line(), key.referenced.column()),
                        key: key.value,
                        node: node.into(),
                    })
                    .collect(),
            ),
        };
        Self { at, value }
    }
}

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

struct RawVisitor;

impl<'de> Visitor<'de> for RawVisitor {
    type Value = Raw;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list or a map")
    }

    fn visit_unit<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Nothing))
    }

    fn visit_none<E>(self) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Nothing))
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Raw, D::Error> {
        deserializer.deserialize_any(self)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Flag(flag)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Whole(number)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Raw, E> {
        Ok(Raw::Scalar(match u64::try_from(number) {
            Ok(number) => Value::Whole(number),
            Err(_) => Value::Number(number as f64),
        }))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Number(number)))
    }

    fn visit_str<E>(self, text: &str) -> Result<Raw, E> {
        Ok(Raw::Scalar(Value::Text(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Raw, A::Error> {
        let mut list = Vec::new();
        while let Some(node) = seq.next_element()? {
            list.push(node);
        }
        Ok(Raw::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Raw::Map(entries))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(node: &Node) -> (u64, u64) {
        (node.at.line, node.at.column)
    }

    #[test]
    fn every_node_knows_its_place() {
        let tree = Node::parse("a: 1\nb:\n  - on\n  - { c: 30% }\nd: 0.5 # no\n").unwrap();
        let b = tree.entry("b").unwrap();
        assert_eq!((b.at.line, b.at.column), (2, 1));
        let Value::List(list) = &b.node.value else { panic!("{b:?}") };
        assert!(matches!(&list[0].value, Value::Text(text) if text == "on"), "{list:?}");
        assert_eq!(place(&list[0]), (3, 5));
        let c = list[1].entry("c").unwrap();
        assert_eq!((c.at.line, c.at.column, c.node.found().as_str()), (4, 7, "`30%`"));
        assert_eq!(place(&c.node), (4, 10));
        assert!(matches!(tree.entry("a").unwrap().node.value, Value::Whole(1)));
        assert!(matches!(tree.entry("d").unwrap().node.value, Value::Number(0.5)));
    }

    #[test]
    fn trees_are_laid_over_each_other_and_keep_their_places() {
        let tree = Node::parse(
            "base:\n  a: { b: 1, c: 2 }\n  d: [1, 2]\n  gone: 3\n\
             over:\n  a: { c: 5, e: 6 }\n  d: [3]\n  gone: ~\n",
        )
        .unwrap();
        let [base, over] = ["base", "over"].map(|key| &tree.entry(key).unwrap().node);
        let both = base.overlaid(over);
        let a = &both.entry("a").unwrap().node;
        let line = |key| (a.entry(key).unwrap().node.found(), a.entry(key).unwrap().node.at.line);
        assert_eq!(line("b"), ("`1`".to_owned(), 2));
        assert_eq!(line("c"), ("`5`".to_owned(), 6));
        assert_eq!(line("e"), ("`6`".to_owned(), 6));
        let Value::List(d) = &both.entry("d").unwrap().node.value else { panic!("{both:?}") };
        assert_eq!(d.len(), 1);
        assert!(both.entry("gone").is_none());
    }
}
