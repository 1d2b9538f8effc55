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
    /// A quota server; once for each of several, of which the one that leads is asked
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7300")]
    quota: Vec<Place>,
    /// The roots that certificates of quota servers come from; then they are spoken to by TLS
    #[arg(long, value_name = "PEM")]
    ca: Option<String>,
    /// The certificate that is shown to quota servers
    #[arg(long, value_name = "PEM", requires = "ca", requires = "key")]
    cert: Option<String>,
    /// Its key
    #[arg(long, value_name = "PEM", requires = "cert")]
    key: Option<String>,
    /// With RLQS: what this Envoy is called, to be known again when it comes back. No two may have
    /// one name; without it, it is known by its address
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// With RLQS: a customer that the quota server's file names; once for each. All other names
    /// share one bucket then, and cannot get past it by inventing more
    #[arg(long, value_name = "NAME")]
    customer: Vec<String>,
    /// With RLQS: how many requests a second each bucket lets through when the quota server has
    /// been away for more than five minutes
    #[arg(long, value_name = "REQUESTS", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    expired_rps: u32,
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
    check(options)?;
    let name = &options.service;
    let mut text = match options.mode {
        Mode::Rls => include_str!("rls.yaml"),
        Mode::Rlqs => include_str!("rlqs.yaml"),
    }
    .replace("@SERVICE@", name);
    let timeout = Duration::from_millis(options.timeout_ms).as_secs_f64();
    text = text.replace("@TIMEOUT@", &timeout.to_string());
    text = text.replace("@COSTS_PERCENT@", &options.costs_percent.to_string());
    text = text.replace("@QUOTA_ENDPOINTS@", &endpoints(&options.quota));
    text = text.replace("@QUOTA_TLS@", &tls(options));
    text = text.replace("@CUSTOMERS@", &customers(&options.customer));
    text = text.replace("@EXPIRED@", &expired(options.expired_rps));
    let named = options.name.as_ref().map_or_else(String::new, |name| {
        format!(", initial_metadata: [{{ key: x-tidegate-envoy, value: \"{name}\" }}]")
    });
    text = text.replace("@NAME@", &named);
    for (mark, place) in
        [("BACKEND", &options.backend), ("LISTEN", &options.listen), ("ADMIN", &options.admin)]
    {
        // An IPv6 address has colons, and so needs quotes.
        text = text
            .replace(&format!("@{mark}_HOST@"), &format!("\"{}\"", place.host))
            .replace(&format!("@{mark}_PORT@"), &place.port.to_string());
    }
    Ok(Ending::from(text))
}

/// Everything goes into a file as it is.
fn check(options: &Options) -> Result<(), Failure> {
    let plain = |text: &str, more: &str| {
        !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || more.contains(c))
    };
    let wrong = |text: &str, why: &str, next| Failure {
        what: format!("`{text}` cannot stand in a configuration"),
        why: why.to_owned(),
        next,
    };
    let name = options.service.as_str();
    if !plain(name, "._-/") {
        let next = "write the configuration for another name, and exchange it in `domain`";
        return Err(wrong(name, "letters, digits and ._-/ can", next));
    }
    for name in options.name.iter().chain(&options.customer) {
        if !plain(name, "._-/:@") || name.len() > NAME_MAX {
            let next = "give it another name, or write the configuration without it";
            return Err(wrong(name, "up to 128 letters, digits and ._-/:@ can", next));
        }
    }
    for file in [&options.ca, &options.cert, &options.key].into_iter().flatten() {
        if file.is_empty() || file.chars().any(|c| c == '"' || c == '\\' || c.is_control()) {
            let next = "put the file elsewhere";
            return Err(wrong(file, "a path without quotes and backslashes can", next));
        }
    }
    Ok(())
}

/// Names are no longer; the quota server keeps no buckets with much longer ones.
const NAME_MAX: usize = 128;

fn endpoints(quota: &[Place]) -> String {
    let line = |Place { host, port }: &Place| {
        format!(
            "        - endpoint: {{ address: {{ socket_address: {{ address: \"{host}\", \
             port_value: {port} }} }} }}\n"
        )
    };
    quota.iter().map(line).collect()
}

fn tls(options: &Options) -> String {
    let Some(ca) = &options.ca else { return String::new() };
    let own = match (&options.cert, &options.key) {
        (Some(cert), Some(key)) => format!(
            "          tls_certificates:
          - {{ certificate_chain: {{ filename: \"{cert}\" }}, \
             private_key: {{ filename: \"{key}\" }} }}\n"
        ),
        _ => String::new(),
    };
    format!(
        "    transport_socket:
      name: envoy.transport_sockets.tls
      typed_config:
        \"@type\": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext
        auto_host_sni: true
        auto_sni_san_validation: true
        common_tls_context:
          alpn_protocols: [h2]
          validation_context: {{ trusted_ca: {{ filename: \"{ca}\" }} }}\n{own}"
    )
}

/// What a header has to be to have a bucket of its own: one of these, or any that is not too long.
fn customers(names: &[String]) -> String {
    if names.is_empty() {
        return format!(".{{1,{NAME_MAX}}}");
    }
    // In a class by itself a dot is a dot.
    let names: Vec<_> = names.iter().map(|name| name.replace('.', "[.]")).collect();
    names.join("|")
}

/// What holds when the assignment has ended. Envoy obeys it only with a timeout: of a year.
fn expired(requests: u32) -> String {
    format!(
        "{{ expired_assignment_behavior_timeout: 31536000s, fallback_rate_limit: {{ \
         token_bucket: {{ max_tokens: {requests}, tokens_per_fill: {requests}, \
         fill_interval: 1s }} }} }}"
    )
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

    fn print(arguments: &[&str]) -> Result<String, String> {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: Options,
        }
        let begin = ["x", "--mode", "rlqs", "--service", "search", "--backend", "app:80"];
        let line = Line::try_parse_from(begin.iter().chain(arguments));
        let line = line.map_err(|error| error.to_string())?;
        check(&line.options).map_err(|failure| failure.why)?;
        let mut text = endpoints(&line.options.quota) + &tls(&line.options);
        text += &customers(&line.options.customer);
        Ok(text)
    }

    #[test]
    fn every_server_certificate_and_customer_is_printed_and_nonsense_is_not() {
        let one = print(&[]).unwrap();
        assert!(one.contains("\"127.0.0.1\", port_value: 7300") && one.ends_with(".{1,128}"));
        assert!(!one.contains("transport_socket"));
        let quota = ["--quota", "a:1", "--quota", "b:2", "--ca", "/ca.pem"];
        let more = ["--cert", "/c.pem", "--key", "/k.pem", "--customer", "a.b", "--customer", "c"];
        let all = print(&[quota.as_slice(), &more].concat()).unwrap();
        for part in ["\"a\", port_value: 1", "\"b\", port_value: 2", "{ filename: \"/ca.pem\" }"] {
            assert!(all.contains(part), "{part} in {all}");
        }
        assert!(all.contains("private_key: { filename: \"/k.pem\" }") && all.ends_with("a[.]b|c"));
        for wrong in [
            &["--customer", "a|b"][..],
            &["--name", "a\" b"],
            &["--ca", "/a\"b"],
            &["--cert", "/c.pem"],
            &["--ca", "/a", "--cert", "/c.pem"],
            &["--expired-rps", "0"],
        ] {
            assert!(print(wrong).is_err(), "{wrong:?}");
        }
    }
}
