//! `tidegate check`: whether files can be run, before anything does.
//!
//! What a file is for is told by its one key at the top. Nothing is started and nothing is asked.

use crate::{Ending, Failure};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use tidegate_quota::Config;

/// The exit code if a file is refused.
const REFUSED: u8 = 2;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Configurations of quota servers
    #[arg(value_name = "FILE", required = true)]
    files: Vec<PathBuf>,
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let mut ending = Ending::default();
    for file in &options.files {
        let name = file.display().to_string();
        let text = fs::read_to_string(file).map_err(|error| Failure {
            what: format!("could not read {name}"),
            why: error.to_string(),
            next: "give files that can be read",
        })?;
        match check(&name, &text) {
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

fn check(name: &str, text: &str) -> Result<String, String> {
    match kind(text) {
        Some("quota") => match Config::parse(name, text) {
            Ok(config) => {
                Ok(format!("a quota server\n  {}", config.summary().replace('\n', "\n  ")))
            }
            Err(refused) => Err(refused.to_string()),
        },
        _ => Err(format!(
            "{name}:1:1: it is not told what this file is for\n  right: `quota:` at the top, for a \
             quota server"
        )),
    }
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
