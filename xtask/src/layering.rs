//! Which crate may depend on which.
//!
//! ```text
//! core, meter <- wire <- tls <- tidegate, load, sim <- quota <- proxy <- cli
//! ```
//!
//! A crate depends on crates of lower layers only, in its tests as well, so that each can be read,
//! built and published without what stands above it. And core stays free of networks and runtimes:
//! that is what lets the simulator run the very same decisions.

use crate::command::{cargo, read};

/// From the lowest. Crates of one layer do not see each other.
const LAYERS: &[&[&str]] = &[
    &["tidegate-core", "tidegate-meter"],
    &["tidegate-wire"],
    &["tidegate-tls"],
    &["tidegate", "tidegate-load", "tidegate-sim"],
    &["tidegate-quota"],
    &["tidegate-proxy"],
    &["tidegate-cli"],
];

/// Beside the layers: these may depend on anything, and nothing depends on them.
const OUTSIDE: &[&str] = &["tidegate-bench", "tidegate-codegen", "xtask"];

/// What core must not pull in, nor anything of the same family (`tokio-util`, `http-body`).
const NOT_IN_CORE: &[&str] = &["axum", "h2", "http", "hyper", "reqwest", "tokio", "tonic", "tower"];

/// Checks the direction of every dependency between our crates, and what core drags in.
pub(crate) fn step() -> Result<(), String> {
    let ours = "tree --workspace --all-features --target all --edges normal,build,dev \
                --depth 1 --prefix depth --no-dedupe";
    let core = "tree --package tidegate-core --target all --edges normal --prefix none";
    let mut wrong = wrong_directions(&parse_members(&read(&mut cargo(ours))?));
    wrong.extend(impurities(&read(&mut cargo(core))?));
    if wrong.is_empty() {
        return Ok(());
    }
    Err(format!("these point the wrong way:\n    {}", wrong.join("\n    ")))
}

/// A crate of the workspace and what it names in its manifest.
struct Member {
    name: String,
    dependencies: Vec<String>,
}

/// Reads `cargo tree --depth 1 --prefix depth`: `0name v1.2.3 (path)` is a member, and the lines
/// that begin with 1 are its dependencies.
fn parse_members(tree: &str) -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for line in tree.lines() {
        if let Some(name) = line.strip_prefix('0').and_then(first_word) {
            members.push(Member { name: name.to_owned(), dependencies: Vec::new() });
        } else if let Some(name) = line.strip_prefix('1').and_then(first_word)
            && let Some(member) = members.last_mut()
        {
            member.dependencies.push(name.to_owned());
        }
    }
    members
}

fn wrong_directions(members: &[Member]) -> Vec<String> {
    let mut wrong = Vec::new();
    for member in members {
        let from = &member.name;
        let outside = OUTSIDE.contains(&from.as_str());
        let layer = layer(from);
        if layer.is_none() && !outside {
            wrong.push(format!("{from} has no layer: give it one in xtask/src/layering.rs"));
            continue;
        }
        for to in &member.dependencies {
            // A crate that names itself gives its own tests more features.
            if to == from || !members.iter().any(|other| other.name == *to) {
                continue;
            }
            // A crate without a layer is reported once, as itself.
            let Some(below) = self::layer(to) else {
                if OUTSIDE.contains(&to.as_str()) {
                    wrong.push(format!("{from} -> {to}: nothing depends on {to}"));
                }
                continue;
            };
            if layer.is_some_and(|layer| below >= layer) {
                wrong.push(format!("{from} -> {to}: {to} is not below {from}"));
            }
        }
    }
    wrong
}

fn impurities(tree: &str) -> Vec<String> {
    let mut found: Vec<&str> = tree.lines().filter_map(first_word).collect();
    found.sort_unstable();
    found.dedup();
    found.retain(|name| {
        NOT_IN_CORE.iter().any(|banned| {
            name.strip_prefix(banned).is_some_and(|rest| rest.is_empty() || rest.starts_with('-'))
        })
    });
    let report =
        |name| format!("tidegate-core -> {name}: see cargo tree -p tidegate-core -i {name}");
    found.into_iter().map(report).collect()
}

fn layer(name: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| layer.contains(&name))
}

fn first_word(line: &str) -> Option<&str> {
    line.split_whitespace().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(tree: &str) -> Vec<String> {
        wrong_directions(&parse_members(tree))
    }

    #[test]
    fn downward_is_right() {
        let tree = "\
0tidegate-core v0.1.0 (/here/crates/core)
1thiserror v2.0.0

0tidegate-wire v0.1.0 (/here/crates/wire)
1tidegate-core v0.1.0 (/here/crates/core)

0tidegate-cli v0.1.0 (/here/crates/cli)
1tidegate-core v0.1.0 (/here/crates/core)
1tidegate-wire v0.1.0 (/here/crates/wire)

0tidegate-bench v0.1.0 (/here/bench)
1tidegate-cli v0.1.0 (/here/crates/cli)
";
        assert_eq!(wrong(tree), [""; 0]);
        let members = parse_members(tree);
        assert_eq!(members.len(), 4);
        assert_eq!(members[2].dependencies, ["tidegate-core", "tidegate-wire"]);
    }

    #[test]
    fn upward_sideways_and_unknown_are_wrong() {
        let cases = [
            ("0tidegate-core v1\n1tidegate-sim v1\n0tidegate-sim v1\n", "core -> tidegate-sim"),
            ("0tidegate-sim v1\n1tidegate v1\n0tidegate v1\n", "tidegate-sim -> tidegate:"),
            ("0tidegate-cli v1\n1xtask v1\n0xtask v1\n", "nothing depends on xtask"),
            ("0xtask v1\n1tidegate-bench v1\n0tidegate-bench v1\n", "xtask -> tidegate-bench"),
            ("0tidegate-new v1\n", "tidegate-new has no layer"),
        ];
        for (tree, expected) in cases {
            let found = wrong(tree);
            assert_eq!(found.len(), 1, "{tree}{found:?}");
            assert!(found[0].contains(expected), "{found:?}");
        }
    }

    #[test]
    fn a_crate_that_only_sounds_like_ours_is_none_of_ours() {
        assert_eq!(wrong("0tidegate-core v1\n1tidegate-sim v9\n"), [""; 0]);
    }

    #[test]
    fn core_has_no_network_and_no_runtime() {
        let tree = "tidegate-core v1\nthiserror v2\nhttparse v1\nh2o v1\n";
        assert_eq!(impurities(tree), [""; 0]);
        for name in ["tokio", "tokio-util", "http", "http-body", "tower-service", "h2"] {
            let found = impurities(&format!("{tree}{name} v1\n{name} v1 (*)\n"));
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(name));
        }
    }
}
