//! Words of a configuration, read where they stand so that an error has its line.

use core::fmt;
use core::str::FromStr;
use core::time::Duration;
use serde::de::{Deserialize, Deserializer, Error as _, Visitor};
use std::net::SocketAddr;
use tidegate::Criticality;

/// Separates what is wrong from what would be right on the way through the parser, which knows
/// errors of one line only.
pub(super) const RIGHT: &str = "; right: ";

/// Something that is written as one word.
#[derive(Debug, Clone)]
pub(super) struct Place<T>(pub(super) T);

/// A span of time, such as `250ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

/// `on` or `off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Switch(pub bool);

/// A number of CPUs, whole or not.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cpus(pub(super) f64);

/// A criticality by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Level(pub(super) Criticality);

/// An address, or `off`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Admin(pub(super) Option<SocketAddr>);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{text}` is no span of time{RIGHT}a number and its unit (ms, s, m, h), such as \
                 250ms"
            )
        };
        let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, unit) = text.split_at(split);
        let unit = match unit.trim() {
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3_600.0,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        // A day is longer than any connection lives.
        let seconds =
            Some(number * unit).filter(|seconds| *seconds <= 86_400.0).ok_or_else(wrong)?;
        Duration::try_from_secs_f64(seconds).map(Self).map_err(|_| wrong())
    }
}

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" => Ok(Self(true)),
            "off" | "false" => Ok(Self(false)),
            _ => Err(format!("`{text}` is no switch{RIGHT}on or off")),
        }
    }
}

impl FromStr for Cpus {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no number of CPUs{RIGHT}zero or more, such as 2.5");
        let cpus: f64 = text.parse().map_err(|_| wrong())?;
        if cpus.is_finite() && (0.0..=1e6).contains(&cpus) { Ok(Self(cpus)) } else { Err(wrong()) }
    }
}

impl FromStr for Level {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| {
            format!(
                "`{text}` is no criticality{RIGHT}CRITICAL_PLUS, CRITICAL, SHEDDABLE_PLUS or \
                 SHEDDABLE"
            )
        })
    }
}

impl FromStr for Admin {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self(None));
        }
        let wrong = |_| format!("`{text}` is no address{RIGHT}such as 127.0.0.1:8001, or off");
        text.parse().map(|address| Self(Some(address))).map_err(wrong)
    }
}

macro_rules! words {
    ($($word:ty),*) => {$(
        impl<'de> Deserialize<'de> for $word {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                parsed(deserializer)
            }
        }
    )*};
}

words!(Span, Switch, Cpus, Level);

/// Reads a word or a number as text, and that as what it should be.
pub(super) fn parsed<'de, D, T>(deserializer: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr,
    T::Err: fmt::Display,
{
    struct Word<T>(core::marker::PhantomData<T>);

    impl<T> Visitor<'_> for Word<T>
    where
        T: FromStr,
        T::Err: fmt::Display,
    {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("one word or number")
        }

        fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<T, E> {
            text.trim().parse().map_err(|error: T::Err| E::custom(error))
        }

        fn visit_i64<E: serde::de::Error>(self, number: i64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_u64<E: serde::de::Error>(self, number: u64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<T, E> {
            self.visit_str(&number.to_string())
        }

        fn visit_bool<E: serde::de::Error>(self, value: bool) -> Result<T, E> {
            self.visit_str(if value { "on" } else { "off" })
        }
    }

    deserializer.deserialize_any(Word(core::marker::PhantomData)).map_err(D::Error::custom)
}

/// What is wrong and what would be right, out of an error of the parser.
pub(super) fn explained(error: &str) -> (String, String) {
    // Where it stands is said elsewhere.
    let text = error.split(" at line ").next().unwrap_or(error);
    let text = text.rsplit_once("error: ").map_or(text, |(_, text)| text).trim();
    if let Some((what, right)) = text.split_once(RIGHT) {
        return (what.to_owned(), right.to_owned());
    }
    if let Some((what, right)) = text.split_once(", expected ") {
        return (what.to_owned(), right.to_owned());
    }
    (text.to_owned(), "as in docs/proxy.md".to_owned())
}
