//! Rates, spans of time and lists with weights, as people write them.
//!
//! The command line and the plan file use the same words, and so the same readers: each says what
//! was found and what would be right. Where it stood is for whoever has the line.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};

/// A text that does not mean what it should.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}; right: {right}")]
#[non_exhaustive]
pub struct Unreadable {
    /// What was found.
    pub what: String,
    /// What would be right.
    pub right: String,
}

impl Unreadable {
    /// Says what was found, and what would be right.
    pub fn new(what: impl Into<String>, right: impl Into<String>) -> Self {
        Self { what: what.into(), right: right.into() }
    }
}

/// No run is longer, and arithmetic in nanoseconds stays far from its ends.
const SPAN_MAX: Duration = Duration::from_secs(7 * 86_400);

/// More a second than any machine sends; what is above is a slip of the keyboard.
pub(crate) const RATE_MAX: f64 = 1e8;

/// A span of time, such as `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let wrong = || {
            let right = "a number and its unit (us, ms, s, m, h), at most a week, such as 250ms";
            Unreadable::new(format!("`{text}` is no span of time"), right)
        };
        let digits = text.find(|c: char| !is_decimal(c)).ok_or_else(wrong)?;
        let (number, unit) = text.split_at(digits);
        let unit = match unit.trim() {
            "us" | "µs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(wrong()),
        };
        let seconds = decimal(number).ok_or_else(wrong)? * unit;
        let span = Duration::try_from_secs_f64(seconds).map_err(|_| wrong())?;
        if span > SPAN_MAX { Err(wrong()) } else { Ok(Self(span)) }
    }
}

/// Requests a second: `500`, `500/s`, `2k/s`, `90/m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate(pub f64);

impl FromStr for Rate {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        let wrong = || {
            let right = "requests a second, up to a hundred million, such as 500, 2k or 90/m";
            Unreadable::new(format!("`{text}` is no rate"), right)
        };
        let (number, per) = match text.trim().split_once('/') {
            None => (text.trim(), 1.0),
            Some((number, "s")) => (number, 1.0),
            Some((number, "m")) => (number, 60.0),
            Some((number, "h")) => (number, 3_600.0),
            Some(_) => return Err(wrong()),
        };
        let (number, times) = match number.strip_suffix('k') {
            Some(number) => (number, 1e3),
            None => (number, 1.0),
        };
        let rate = decimal(number).ok_or_else(wrong)? * times / per;
        if rate <= RATE_MAX { Ok(Self(rate)) } else { Err(wrong()) }
    }
}

const fn is_decimal(c: char) -> bool {
    c.is_ascii_digit() || c == '.'
}

/// A number without sign or exponent.
fn decimal(text: &str) -> Option<f64> {
    (!text.is_empty() && text.chars().all(is_decimal)).then(|| text.parse().ok()).flatten()
}

/// `a:3,b` as `a` with weight 3 and `b` with weight 1. A comma or colon behind a backslash belongs
/// to the value, and so does a colon that no number follows. `name-{1..50}` stands for fifty
/// values that share the weight's place, each with all of it.
pub(crate) fn weighted_list(text: &str) -> Result<Vec<(String, u32)>, Unreadable> {
    let mut list = Vec::new();
    for item in split(text) {
        let (value, weight) = match item.rsplit_once(':') {
            Some((value, number)) if !value.ends_with('\\') && is_number(number) => {
                (value, weight(number)?)
            }
            _ => (item.as_str(), 1),
        };
        if value.is_empty() {
            return Err(Unreadable::new(
                format!("there is nothing before a comma or colon in `{text}`"),
                "values with commas between, each with a weight after a colon if it is not 1",
            ));
        }
        for value in expanded(value)? {
            list.push((value.replace("\\:", ":").replace("\\,", ","), weight));
        }
    }
    Ok(list)
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// At most so many times as likely as the least likely, so that sums stay small.
const WEIGHT_MAX: u32 = 1_000_000;

fn weight(text: &str) -> Result<u32, Unreadable> {
    let weight = text.parse().ok().filter(|weight| (1..=WEIGHT_MAX).contains(weight));
    weight.ok_or_else(|| {
        let right = "a whole number from 1 to 1000000";
        Unreadable::new(format!("`{text}` is no weight"), right)
    })
}

/// At the commas that no backslash precedes.
fn split(text: &str) -> Vec<String> {
    let mut items = vec![String::new()];
    let mut escaped = false;
    for c in text.chars() {
        match items.last_mut() {
            Some(item) if c != ',' || escaped => item.push(c),
            _ => items.push(String::new()),
        }
        escaped = c == '\\' && !escaped;
    }
    for item in &mut items {
        *item = item.trim().to_owned();
    }
    items
}

/// So many values are more than a summary or a server's table of customers can show.
const EXPANDED_MAX: u64 = 100_000;

/// `team-{1..3}` as `team-1`, `team-2`, `team-3`; anything else as it is.
fn expanded(text: &str) -> Result<Vec<String>, Unreadable> {
    let Some((before, rest)) = text.split_once('{') else { return Ok(vec![text.to_owned()]) };
    let wrong = || {
        let right =
            "two whole numbers, the lower first, such as team-{1..50}, at most 100000 apart";
        Unreadable::new(format!("`{text}` is no range"), right)
    };
    let (range, after) = rest.split_once('}').ok_or_else(wrong)?;
    let (from, to) = range.split_once("..").ok_or_else(wrong)?;
    let (from, to): (u64, u64) =
        from.parse().ok().zip(to.parse().ok()).filter(|(from, to)| from <= to).ok_or_else(wrong)?;
    if to - from >= EXPANDED_MAX {
        return Err(wrong());
    }
    Ok((from..=to).map(|n| format!("{before}{n}{after}")).collect())
}

/// Reads a scalar of a plan file by its text.
struct Parsed<T>(core::marker::PhantomData<T>);

impl<T: FromStr<Err = Unreadable>> Visitor<'_> for Parsed<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text or a number")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
        text.parse().map_err(E::custom)
    }

    fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_bool<E: serde::de::Error>(self, flag: bool) -> Result<T, E> {
        self.visit_str(if flag { "true" } else { "false" })
    }
}

/// For types that are written as one word or number.
pub(crate) fn parsed<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: FromStr<Err = Unreadable>,
    D: Deserializer<'de>,
{
    deserializer.deserialize_any(Parsed(core::marker::PhantomData))
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        parsed(deserializer)
    }
}

/// A map of values to weights, a list, or the short syntax of the command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedList(pub(crate) Vec<(String, u32)>);

impl WeightedList {
    /// This one value, as it is.
    pub fn only(value: String) -> Self {
        Self(vec![(value, 1)])
    }
}

impl FromStr for WeightedList {
    type Err = Unreadable;

    fn from_str(text: &str) -> Result<Self, Unreadable> {
        weighted_list(text).map(Self)
    }
}

impl<'de> Deserialize<'de> for WeightedList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;

        impl<'de> Visitor<'de> for Either {
            type Value = WeightedList;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of values to weights, such as { CRITICAL: 3, SHEDDABLE: 1 }")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<WeightedList, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<WeightedList, E> {
                self.visit_str(&number.to_string())
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(
                self,
                mut seq: A,
            ) -> Result<WeightedList, A::Error> {
                let mut list = Vec::new();
                while let Some(value) = seq.next_element::<String>()? {
                    list.extend(weighted_list(&value).map_err(A::Error::custom)?);
                }
                Ok(WeightedList(list))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<WeightedList, A::Error> {
                let mut list = Vec::new();
                while let Some((value, number)) = map.next_entry::<String, u32>()? {
                    let weight = weight(&number.to_string()).map_err(A::Error::custom)?;
                    for value in expanded(&value).map_err(A::Error::custom)? {
                        list.push((value, weight));
                    }
                }
                Ok(WeightedList(list))
            }
        }

        deserializer.deserialize_any(Either)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_rates_by_the_table() {
        for (text, micros) in [
            ("250ms", Some(250_000)),
            ("1.5s", Some(1_500_000)),
            ("10us", Some(10)),
            ("2m", Some(120_000_000)),
            ("1h", Some(3_600_000_000)),
            ("10", None),
            ("s", None),
            ("-1s", None),
            ("1e3s", None),
            ("9000h", None),
            ("1 s", Some(1_000_000)),
        ] {
            let found = text.parse::<Span>().ok().map(|span| span.0.as_micros());
            assert_eq!(found, micros, "{text}");
        }
        for (text, rate) in [
            ("500", Some(500.0)),
            ("500/s", Some(500.0)),
            ("2.5k", Some(2_500.0)),
            ("2k/s", Some(2_000.0)),
            ("90/m", Some(1.5)),
            ("0", Some(0.0)),
            ("fast", None),
            ("5/d", None),
            ("-5", None),
            ("1000000000", None),
        ] {
            assert_eq!(text.parse::<Rate>().ok().map(|rate| rate.0), rate, "{text}");
        }
    }

    #[test]
    fn lists_by_the_table() {
        for (text, list) in [
            ("a", &[("a", 1)][..]),
            ("a:3,b", &[("a", 3), ("b", 1)]),
            ("GET /a:2, POST /b", &[("GET /a", 2), ("POST /b", 1)]),
            (r"/x\,y:2,/v\:1", &[("/x,y", 2), ("/v:1", 1)]),
            ("/a:b", &[("/a:b", 1)]),
            ("t{1..3}:2", &[("t1", 2), ("t2", 2), ("t3", 2)]),
        ] {
            let found = weighted_list(text).unwrap();
            let found: Vec<_> = found.iter().map(|(value, weight)| (&**value, *weight)).collect();
            assert_eq!(found, list, "{text}");
        }
        for text in ["", "a,,b", ":3", "a:0", "a:99999999", "t{3..1}", "t{1..", "t{0..100000}"] {
            assert!(weighted_list(text).is_err(), "{text}");
        }
    }
}
