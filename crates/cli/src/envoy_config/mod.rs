//! `tidegate envoy-config`: a configuration with which an Envoy takes part in quotas.
//!
//! It is a file to begin with: everything in it that is not about quotas is the least that Envoy
//! takes. Tests run a real Envoy by it.

use crate::{Ending, Failure};
use std::str::FromStr;
use std::time::Duration;

/// How an Envoy takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Mode {
    /// It asks about each request, and tells what each has cost
    Rls,
    /// It counts requests, and is told how many may pass
    Rlqs,
}

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// How it takes part
    #[arg(long, value_enum, default_value = "rls")]
    mode: Mode,
    /// The service, as the quota server's file has it
    #[arg(long, value_name = "NAME")]
    service: String,
    /// The quota server
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7300")]
    quota: Place,
    /// What the Envoy stands before
    #[arg(long, value_name = "HOST:PORT")]
    backend: Place,
    /// Where the Envoy listens
    #[arg(long, value_name = "HOST:PORT", default_value = "0.0.0.0:8080")]
    listen: Place,
    /// Where its own page is
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9901")]
    admin: Place,
    /// With RLS: how many milliseconds it waits for the quota server before it lets a request pass
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = timeout_range())]
    timeout_ms: u64,
    /// With RLQS: of how many in a hundred answers the quota server is told what they have cost
    #[arg(long, value_name = "PERCENT", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(0..=100))]
    costs_percent: u64,
}

/// Longer than a minute is no limit, and nothing at all is none either.
fn timeout_range() -> clap::builder::RangedU64ValueParser {
    clap::value_parser!(u64).range(1..=60_000)
}

/// A host and a port.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    host: String,
    port: u16,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let right = || format!("`{text}` is no host and port: one would be quota.local:7300");
        let (host, port) = text.rsplit_once(':').ok_or_else(right)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        // It goes into a file as it is.
        let plain = |c: char| c.is_ascii_alphanumeric() || ".-_:".contains(c);
        if host.is_empty() || !host.chars().all(plain) {
            return Err(right());
        }
        Ok(Self { host: host.to_owned(), port: port.parse().map_err(|_| right())? })
    }
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let name = &options.service;
    if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c)) {
        return Err(Failure {
            what: format!("`{name}` cannot stand in a configuration"),
            why: "letters, digits and ._-/ can".to_owned(),
            next: "write the configuration for another name, and exchange it in `domain`",
        });
    }
    let mut text = match options.mode {
        Mode::Rls => include_str!("rls.yaml"),
        Mode::Rlqs => include_str!("rlqs.yaml"),
    }
    .replace("@SERVICE@", name);
    let timeout = Duration::from_millis(options.timeout_ms).as_secs_f64();
    text = text.replace("@TIMEOUT@", &timeout.to_string());
    text = text.replace("@COSTS_PERCENT@", &options.costs_percent.to_string());
    for (mark, place) in [
        ("QUOTA", &options.quota),
        ("BACKEND", &options.backend),
        ("LISTEN", &options.listen),
        ("ADMIN", &options.admin),
    ] {
        // An IPv6 address has colons, and so needs quotes.
        text = text
            .replace(&format!("@{mark}_HOST@"), &format!("\"{}\"", place.host))
            .replace(&format!("@{mark}_PORT@"), &place.port.to_string());
    }
    Ok(Ending::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_by_the_table() {
        for (text, expected) in [
            ("quota.local:7300", Some(("quota.local", 7300))),
            ("[::1]:1", Some(("::1", 1))),
            ("10.0.0.1:65535", Some(("10.0.0.1", 65_535))),
            ("quota", None),
            (":7300", None),
            ("a:65536", None),
            ("a\" b:1", None),
        ] {
            let found = text.parse::<Place>().ok();
            let expected = expected.map(|(host, port)| Place { host: host.to_owned(), port });
            assert_eq!(found, expected, "{text}");
        }
    }
}
