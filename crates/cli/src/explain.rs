//! `tidegate explain`: why a request was refused, by the number in its answer.

use crate::remote::Place;
use crate::{Ending, Failure};
use std::fmt::Write as _;
use tidegate::admin::api::Explanation;

/// The exit code for decisions that nobody remembers.
const UNKNOWN: u8 = 1;

/// What the user may choose.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// The number in `x-tidegate-decision` of the answer, or in the list of `tidegate top`
    decision: String,
    #[command(flatten)]
    place: Place,
    /// One object of JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<Ending, Failure> {
    let remote = options.place.remote()?;
    let decision = options.decision.trim();
    // It becomes part of an address.
    if decision.is_empty() || !decision.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        let err = format!("error: `{decision}` is no decision: those are like 1f0c3a5be8d94e27\n");
        return Ok(Ending { err, code: 2, ..Ending::default() });
    }
    let (status, text) = remote.get(&format!("/api/explain/{decision}"))?;
    match status {
        200 if options.json => Ok(Ending::from(text.trim_end().to_owned() + "\n")),
        200 => {
            let explained: Explanation = serde_json::from_str(&text).map_err(|error| Failure {
                what: format!("could not read what {} says", remote.name()),
                why: error.to_string(),
                next: "see that both sides are tidegate, of about the same version",
            })?;
            Ok(Ending::from(plain(&explained)))
        }
        404 => {
            Ok(Ending { err: format!("{decision}: {text}"), code: UNKNOWN, ..Ending::default() })
        }
        other => Err(Failure {
            what: format!("could not ask {} about {decision}", remote.name()),
            why: format!("it answers {other}: {}", text.trim()),
            next: "give the address of its admin router, and the token if it wants one",
        }),
    }
}

/// As text, one thing to a line.
pub(crate) fn plain(explained: &Explanation) -> String {
    let mut text = format!("{}\n", explained.title);
    // Writing to a string cannot fail.
    let _ = writeln!(text, "  decision     {}, {}", explained.id, utc(explained.at_ms));
    for fact in &explained.facts {
        let _ = writeln!(text, "  {:<12} {}", fact.about.to_lowercase(), fact.text);
    }
    if !explained.would_change.is_empty() {
        let _ = writeln!(text, "\nWhat would change it");
        for change in &explained.would_change {
            let _ = writeln!(text, "  - {change}");
        }
    }
    text
}

/// The time of day in UTC: logs of several machines have it too.
pub(crate) fn utc(ms: u64) -> String {
    let (seconds, millis) = (ms / 1_000 % 86_400, ms % 1_000);
    let (hours, minutes) = (seconds / 3_600, seconds / 60 % 60);
    format!("{hours:02}:{minutes:02}:{:02}.{millis:03} UTC", seconds % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_day_is_that_of_greenwich() {
        assert_eq!(utc(0), "00:00:00.000 UTC");
        assert_eq!(utc(1_000 * (86_400 * 365 + 3_661) + 7), "01:01:01.007 UTC");
    }
}
