//! From nodes to numbers, names and spans of time; whatever does not fit is refused with its place.

use super::fault::{At, Fault, choices, suggestion};
use super::tree::{Entry, Node, Value};
use core::fmt::Display;
use core::ops::Range;
use core::time::Duration;

/// The keys of one kind of map.
#[derive(Debug, Clone, Copy)]
pub struct Keys {
    /// What has them, with its article: `a service`.
    pub of: &'static str,
    /// Their names.
    pub names: &'static [&'static str],
}

/// A map whose keys are all known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fields<'a> {
    keys: &'static Keys,
    pub(crate) node: &'a Node,
}

impl<'a> Fields<'a> {
    /// What stands under `key`; a key with nothing after it is as good as none.
    pub(crate) fn get(&self, key: &str) -> Option<&'a Node> {
        debug_assert!(self.keys.names.contains(&key), "{key} is no key of {}", self.keys.of);
        let node = &self.node.entry(key)?.node;
        (!matches!(node.value, Value::Nothing)).then_some(node)
    }

    /// What stands under a key that has to be there.
    pub(crate) fn need(&self, key: &str, example: &str) -> Result<&'a Node, Fault> {
        self.get(key).ok_or_else(|| {
            let what = format!("{} needs `{key}`", self.keys.of);
            Fault::new(self.node.at, what, format!("add `{key}: {example}`"))
        })
    }

    /// What stands under `key`, read by `read`, or `default`.
    pub(crate) fn or<T>(
        &self,
        key: &str,
        default: T,
        read: impl FnOnce(&'a Node) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.get(key).map_or(Ok(default), read)
    }

    /// As [`Fields::or`], into a place that holds the default.
    pub(crate) fn set<T>(
        &self,
        key: &str,
        place: &mut T,
        read: impl FnOnce(&'a Node) -> Result<T, Fault>,
    ) -> Result<(), Fault> {
        if let Some(node) = self.get(key) {
            *place = read(node)?;
        }
        Ok(())
    }
}

impl Node {
    /// This is something else than `wanted`.
    pub(crate) fn not(&self, wanted: impl Display) -> Fault {
        Fault::new(
            self.at,
            format!("expected {wanted}, found {}", self.found()),
            format!("{wanted}"),
        )
    }

    /// This stands for something that it must not be.
    pub(crate) fn wrong(&self, what: impl Into<String>, right: impl Into<String>) -> Fault {
        Fault::new(self.at, what, right)
    }

    /// A map with no keys but these.
    pub(crate) fn fields(&self, keys: &'static Keys) -> Result<Fields<'_>, Fault> {
        for entry in self.entries(format_args!("a map of {}", choices(keys.names)))? {
            if !keys.names.contains(&entry.key.as_str()) {
                let what = format!("unknown key `{}` of {}", entry.key, keys.of);
                return Err(Fault::new(entry.at, what, suggestion(&entry.key, keys.names)));
            }
        }
        Ok(Fields { keys, node: self })
    }

    /// A map, whatever its keys.
    pub(crate) fn entries(&self, wanted: impl Display) -> Result<&[Entry], Fault> {
        match &self.value {
            Value::Map(entries) => Ok(entries),
            _ => Err(self.not(wanted)),
        }
    }

    /// A list, or one thing instead of a list of one.
    pub(crate) fn one_or_more(&self) -> &[Self] {
        match &self.value {
            Value::List(list) => list,
            _ => core::slice::from_ref(self),
        }
    }

    pub(crate) fn list(&self, wanted: impl Display) -> Result<&[Self], Fault> {
        match &self.value {
            Value::List(list) => Ok(list),
            _ => Err(self.not(wanted)),
        }
    }

    pub(crate) fn text(&self, wanted: impl Display) -> Result<&str, Fault> {
        match &self.value {
            Value::Text(text) => Ok(text),
            _ => Err(self.not(wanted)),
        }
    }

    /// A text, or a number that somebody uses as a name.
    pub(crate) fn name(&self, wanted: impl Display) -> Result<String, Fault> {
        match &self.value {
            Value::Text(text) => Ok(text.clone()),
            Value::Whole(number) => Ok(number.to_string()),
            _ => Err(self.not(wanted)),
        }
    }

    /// The place among `names`, which are those of a `kind`.
    pub(crate) fn one_of<T: AsRef<str>>(&self, kind: &str, names: &[T]) -> Result<usize, Fault> {
        let name = self.name(format_args!("the name of a {kind}"))?;
        place(&name, self.at, kind, names)
    }

    /// `on` and `off`, or what YAML calls true and false.
    pub(crate) fn switch(&self) -> Option<bool> {
        match &self.value {
            Value::Flag(flag) => Some(*flag),
            Value::Text(text) if text == "on" => Some(true),
            Value::Text(text) if text == "off" => Some(false),
            _ => None,
        }
    }

    pub(crate) fn whole(&self, from: u64, to: u64) -> Result<u64, Fault> {
        match self.value {
            Value::Whole(number) if (from..=to).contains(&number) => Ok(number),
            _ => Err(self.not(format_args!("a whole number from {from} to {to}"))),
        }
    }

    /// A finite number, not below zero.
    pub(crate) fn number(&self) -> Result<f64, Fault> {
        match self.value {
            Value::Whole(number) => Ok(number as f64),
            Value::Number(number) if number.is_finite() && number >= 0.0 => Ok(number),
            _ => Err(self.not("a number, not below 0")),
        }
    }

    pub(crate) fn positive(&self) -> Result<f64, Fault> {
        match self.number() {
            Ok(number) if number > 0.0 => Ok(number),
            _ => Err(self.not("a number above 0")),
        }
    }

    /// A share: `30%` or `0.3`. May be above the whole.
    pub(crate) fn portion(&self) -> Result<f64, Fault> {
        let wanted = "a share, such as 30% or 0.3";
        match &self.value {
            Value::Text(text) => {
                let number = text.strip_suffix('%').and_then(|text| decimal(text.trim_end()));
                number.map(|number| number / 100.0).ok_or_else(|| self.not(wanted))
            }
            _ => self.number().map_err(|_| self.not(wanted)),
        }
    }

    /// A share above nothing, and not so little that a request would take for ever.
    pub(crate) fn speed(&self) -> Result<f64, Fault> {
        let speed = self.portion()?;
        let usable = (0.001..=1_000.0).contains(&speed);
        if usable { Ok(speed) } else { Err(self.not("a speed, such as 50%, from 0.001 to 1000")) }
    }

    /// A share of at most the whole.
    pub(crate) fn share(&self) -> Result<f64, Fault> {
        let share = self.portion()?;
        if share <= 1.0 { Ok(share) } else { Err(self.not("a share from 0% to 100%")) }
    }

    pub(crate) fn duration(&self) -> Result<Duration, Fault> {
        let wanted = "a span of time with its unit (ns, us, ms, s, m, h), such as 5ms";
        match &self.value {
            Value::Text(text) => duration(text).ok_or_else(|| self.not(wanted)),
            Value::Whole(0) => Ok(Duration::ZERO),
            _ => Err(self.not(wanted)),
        }
    }

    /// More than no time.
    pub(crate) fn some_time(&self) -> Result<Duration, Fault> {
        let span = self.duration()?;
        if span.is_zero() { Err(self.not("more than no time, such as 5ms")) } else { Ok(span) }
    }

    /// `100/s`.
    pub(crate) fn per_second(&self) -> Result<f64, Fault> {
        let text = self.text("a rate, such as 100/s").ok();
        let number = text.and_then(|text| text.strip_suffix("/s"));
        number.and_then(|n| decimal(n.trim_end())).ok_or_else(|| self.not("a rate, such as 100/s"))
    }

    /// `2s..10s`, or the name of one of `windows`.
    pub(crate) fn span(&self) -> Option<Result<Range<Duration>, Fault>> {
        let Value::Text(text) = &self.value else { return None };
        let (from, to) = text.split_once("..")?;
        let wanted = "two moments, the earlier first, such as 2s..10s";
        let both = moment(from).zip(moment(to)).filter(|(from, to)| from < to);
        Some(both.map(|(from, to)| from..to).ok_or_else(|| self.not(wanted)))
    }

    /// Numbers of tasks: `3`, or `0..4` for the first four.
    pub(crate) fn tasks(&self, count: usize) -> Result<Range<usize>, Fault> {
        let wanted = format_args!(
            "the number of a task or a range such as 0..2 (the first two), within 0..{count}"
        )
        .to_string();
        let range = match &self.value {
            Value::Whole(task) => Some(*task as usize..(*task as usize).saturating_add(1)),
            Value::Text(text) => text
                .split_once("..")
                .and_then(|(from, to)| Some(from.trim().parse().ok()?..to.trim().parse().ok()?)),
            _ => None,
        };
        range.filter(|r| r.start < r.end && r.end <= count).ok_or_else(|| self.not(wanted))
    }
}

/// The place of `name`, found at `at`, among `names`.
pub(crate) fn place<T: AsRef<str>>(
    name: &str,
    at: At,
    kind: &str,
    names: &[T],
) -> Result<usize, Fault> {
    names.iter().position(|n| n.as_ref() == name).ok_or_else(|| {
        Fault::new(at, format!("there is no {kind} `{name}`"), suggestion(name, names))
    })
}

/// A number without sign or exponent.
fn decimal(text: &str) -> Option<f64> {
    let digits = |c: char| c.is_ascii_digit() || c == '.';
    (!text.is_empty() && text.chars().all(digits)).then(|| text.parse().ok()).flatten()
}

fn moment(text: &str) -> Option<Duration> {
    let text = text.trim();
    if text == "0" { Some(Duration::ZERO) } else { duration(text) }
}

fn duration(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.')?;
    let (number, unit) = text.split_at(digits);
    let nanos = match unit.trim_start() {
        "ns" => 1.0,
        "us" | "µs" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        "m" => 60e9,
        "h" => 3600e9,
        _ => return None,
    };
    let nanos = (decimal(number)? * nanos).round();
    // A year is longer than any story, and far from where arithmetic ends.
    (nanos <= 365.0 * 86_400e9).then(|| Duration::from_nanos(nanos as u64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_of_time_by_the_table() {
        for (text, nanos) in [
            ("5ms", Some(5_000_000)),
            ("2.5 s", Some(2_500_000_000)),
            ("250us", Some(250_000)),
            ("250µs", Some(250_000)),
            ("1m", Some(60_000_000_000)),
            ("0s", Some(0)),
            ("5", None),
            ("ms", None),
            ("-5ms", None),
            ("1e3ms", None),
            ("5 msec", None),
            ("1.2.3s", None),
            ("9999999h", None),
        ] {
            assert_eq!(duration(text), nanos.map(Duration::from_nanos), "{text}");
        }
    }

    #[test]
    fn shares_ranges_and_rates_by_the_table() {
        let node = |text: &str| Node::parse(text).unwrap();
        assert_eq!(node("30%").share().unwrap(), 0.3);
        assert_eq!(node("0.1 %").share().unwrap(), 0.001);
        assert_eq!(node("0.3").share().unwrap(), 0.3);
        assert!(node("300%").share().is_err());
        assert_eq!(node("300%").portion().unwrap(), 3.0);
        assert!(node("-1").portion().is_err() && Node::parse(".nan").is_err());
        assert_eq!(node("100/s").per_second().unwrap(), 100.0);
        assert!(node("100").per_second().is_err());
        assert_eq!(node("0..2").tasks(4).unwrap(), 0..2);
        assert_eq!(node("3").tasks(4).unwrap(), 3..4);
        for wrong in ["4", "0..5", "2..2", "a..b", "on"] {
            assert!(node(wrong).tasks(4).is_err(), "{wrong}");
        }
        let span = node("2s..10s").span().unwrap().unwrap();
        assert_eq!((span.start.as_secs(), span.end.as_secs()), (2, 10));
        assert!(node("10s..2s").span().unwrap().is_err() && node("surge").span().is_none());
    }
}
