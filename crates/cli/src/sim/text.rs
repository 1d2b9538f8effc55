//! The verdict for people.

use super::jobs::Told;
use std::fmt::Write as _;

/// All scenarios, one after the other.
pub(super) fn verdicts(told: &[Told<'_>]) -> String {
    let mut text = String::new();
    for told in told {
        let lasts = told.scenario.lasts.as_secs();
        let _ = writeln!(
            text,
            "{}  ({}), seed {}, {lasts} s of virtual time",
            { &told.scenario.name },
            told.file,
            told.seed
        );
        let _ = writeln!(text, "{}", told.scenario.story);
        for judged in &told.verdict {
            let _ = writeln!(text, "  {}", judged.line());
        }
    }
    text
}
