//! `tidegate check`: whether files can be run, before anything does.
//!
//! A file for a quota server has one key at the top, `quota`; one for a proxy has `upstream` or
//! `role` among its keys, and may have a key `quota` as well. Nothing is started and nothing is
//! asked.

use crate::{Ending, Failure};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use tidegate_proxy::ServiceConfig;
use tidegate_proxy::config::Role;
use tidegate_quota::Config;
use tidegate_quota::config::Own;

/// The exit code if a file is refused.
const REFUSED: u8 = 2;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Configurations of quota servers and proxies
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
    /// The file of a quota server that takes its limits from etcd: the others are such limits
    #[arg(long, value_name = "FILE")]
    limits_of: Option<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let mut ending = Ending::default();
    let own = match &options.limits_of {
        None => None,
        Some(file) => {
            let (name, text) = read(file)?;
            match Config::parse(&name, &text) {
                Ok(config) => Some(Own::of(&config)),
                Err(refused) => {
                    let err = format!("error: {refused}\n");
                    return Ok(Ending { err, code: REFUSED, ..ending });
                }
            }
        }
    };
    for file in &options.files {
        let (name, text) = read(file)?;
        let found = match &own {
            Some(own) => check_limits(&name, &text, own),
            None => check(&name, &text),
        };
        match found {
            // Writing to a string cannot fail.
            Ok(found) => writeln!(ending.out, "{name}: {found}").unwrap_or_default(),
            Err(refused) => {
                writeln!(ending.err, "error: {refused}").unwrap_or_default();
                ending.code = REFUSED;
            }
        }
    }
    Ok(ending)
}

fn read(file: &Path) -> Result<(String, String), Failure> {
    let name = file.display().to_string();
    let text = fs::read_to_string(file).map_err(|error| Failure {
        what: format!("could not read {name}"),
        why: error.to_string(),
        next: "give files that can be read",
    })?;
    Ok((name, text))
}

/// Limits for etcd, as a server with such a file of its own would read them.
fn check_limits(name: &str, text: &str, own: &Own) -> Result<String, String> {
    let config = Config::parse_limits(name, text, own).map_err(|refused| refused.to_string())?;
    Ok(format!("limits for quota servers\n  {}", config.summary().replace('\n', "\n  ")))
}

fn check(name: &str, text: &str) -> Result<String, String> {
    match kind(text) {
        Some("quota") if !is_proxy_at_the_top(text) => match Config::parse(name, text) {
            Ok(config) => {
                Ok(format!("a quota server\n  {}", config.summary().replace('\n', "\n  ")))
            }
            Err(refused) => Err(refused.to_string()),
        },
        _ if is_proxy(text) => match Role::parse(name, text) {
            Ok(Role::Inbound(config)) => {
                let mode = if config.dark { "dark" } else { "refuses what is too much" };
                let edge = config.edge.as_ref().map_or("", |_| ", for strangers");
                Ok(format!("a proxy at {} for {}, {mode}{edge}", config.listen, config.upstream))
            }
            Ok(Role::Batch(config)) => {
                Ok(format!("a proxy for batch work{}", services(&config.services)))
            }
            Ok(Role::Outbound(config)) if config.edge.is_some() => {
                Ok(format!("a proxy for strangers{}", services(&config.services)))
            }
            Ok(Role::Outbound(config)) => {
                Ok(format!("a proxy for calls, in the outbound role{}", services(&config.services)))
            }
            Ok(_) => Ok("a proxy".to_owned()),
            Err(refused) => Err(refused.to_string()),
        },
        _ => Err(format!(
            "{name}:1:1: it is not told what this file is for\n  right: `quota:` at the top, for a \
             quota server, or `upstream:`, for a proxy"
        )),
    }
}

/// Where each of them is called.
fn services(services: &[ServiceConfig]) -> String {
    let each = services.iter().map(|service| format!("\n  {} at {}", service.name, service.listen));
    each.collect()
}

/// Whether one of the keys at the top is a proxy's.
fn is_proxy(text: &str) -> bool {
    let key = |line: &str| line.split_once(':').map(|(key, _)| key.trim().to_owned());
    text.lines().filter_map(key).any(|key| key == "upstream" || key == "role")
}

/// The same of one that begins as a quota server's does.
fn is_proxy_at_the_top(text: &str) -> bool {
    text.lines().any(|line| line.starts_with("upstream:") || line.starts_with("role:"))
}

/// The first key at the top of a file.
fn kind(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| {
        let line = line.trim_end();
        !line.is_empty() && !line.starts_with(['#', ' ', '%']) && line != "---"
    })?;
    Some(line.split_once(':')?.0.trim_matches(['"', '\'', '{', ' ']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_proxies_are_told_by_their_keys() {
        let good = check("p.yaml", "listen: 127.0.0.1:9\nupstream: 127.0.0.1:8080\n").unwrap();
        assert_eq!(good, "a proxy at 127.0.0.1:9 for 127.0.0.1:8080, dark");
        let service = "services: [{ name: shop, listen: '127.0.0.1:7', dns: 'shop:80' }]\n";
        for (role, words) in [
            ("outbound", "a proxy for calls, in the outbound role\n  shop at 127.0.0.1:7"),
            ("edge", "a proxy for strangers\n  shop at 127.0.0.1:7"),
            ("batch", "a proxy for batch work\n  shop at 127.0.0.1:7"),
        ] {
            let good = check("p.yaml", &format!("role: {role}\n{service}")).unwrap();
            assert_eq!(good, words);
        }
        let edge = "upstream: 127.0.0.1:8080\nedge: { rules: [{ path: /a, ceiling: CRITICAL }] }\n";
        let good = check("p.yaml", edge).unwrap();
        assert_eq!(good, "a proxy at 127.0.0.1:8000 for 127.0.0.1:8080, dark, for strangers");
        let quota = "quota: { servers: ['http://q:1'], service: a }\nupstream: 127.0.0.1:8080\n";
        assert_eq!(
            check("p.yaml", quota).unwrap(),
            "a proxy at 127.0.0.1:8000 for 127.0.0.1:8080, dark"
        );
        let bad = check("p.yaml", "role: edge\nedge:\n  rules:\n    - path: /a\n").unwrap_err();
        assert!(bad.starts_with("p.yaml:4:") && bad.contains("right: criticality"), "{bad}");
        let bad = check("p.yaml", "upstream: 127.0.0.1:8080\nmod: dark\n").unwrap_err();
        assert!(bad.starts_with("p.yaml:2:"), "{bad}");
        assert!(check("p.yaml", "a: 1\n").unwrap_err().contains("`upstream:`"));
    }

    #[test]
    fn limits_for_etcd_are_read_as_a_server_would() {
        let server = "quota:\n  tls: { cert: c, key: k, client_ca: a }\n  election: { etcd: \
                      ['http://e:1'] }\n";
        let own = Own::of(&Config::parse("server.yaml", server).unwrap());
        let listed = "quota: { services: { search: { default: 1, tasks: [dns:a] } } }\n";
        let found = check_limits("limits.yaml", listed, &own).unwrap();
        assert!(found.starts_with("limits for quota servers\n  ") && found.contains("search"));
        assert!(check("limits.yaml", listed).unwrap_err().contains("not asked for any"));
        let open = "quota: { services: { search: { default: 1 } } }\n";
        assert!(check_limits("limits.yaml", open, &own).unwrap_err().contains("nobody may report"));
    }

    #[test]
    fn the_first_key_tells_the_kind() {
        for (text, expected) in [
            ("quota:\n  a: 1\n", Some("quota")),
            ("# proxy: no\n\n---\nquota: {}\n", Some("quota")),
            ("proxy:\n", Some("proxy")),
            ("{quota: {}}\n", Some("quota")),
            ("- quota\n", None),
            ("", None),
        ] {
            assert_eq!(kind(text), expected, "{text}");
        }
    }
}
