//! What we depend on: bans, licences and sources always, advisories where they can be had.
//!
//! The first three need only `Cargo.lock` and the sources of the crates. Advisories live in a
//! repository of their own, which a machine behind a proxy may not reach. That is said in so many
//! words and is no failure: a red run that nobody can mend would soon be one that nobody reads.

use crate::command::{cargo, run, run_within};
use std::time::Duration;

/// A shallow clone of the advisories takes two or three seconds; longer means that somebody drops
/// our packets.
const FETCH_LIMIT: Duration = Duration::from_secs(20);

/// Checks the dependency tree against `deny.toml`.
pub(crate) fn step() -> Result<(), String> {
    run(&mut cargo("deny --all-features check bans licenses sources"))?;
    let mut fetch = cargo("deny fetch db");
    // Never ask for a password: nobody may be there to type one.
    fetch.env("GIT_TERMINAL_PROMPT", "0");
    match run_within(&mut fetch, FETCH_LIMIT) {
        Ok(()) => run(&mut cargo("deny --all-features --offline check advisories")),
        Err(why) => {
            println!("  advisories: not checked, the database cannot be had here ({why})");
            Ok(())
        }
    }
}
