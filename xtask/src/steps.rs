//! The steps of `cargo xtask test`, in order, and the loop that runs them.

use crate::command::{cargo, default_env, run as execute};
use crate::install::{self, PEERS};
use crate::{layering, supply, tidy};
use std::time::{Duration, Instant};

/// One thing that has to hold.
pub(crate) struct Step {
    name: &'static str,
    /// What holds when it succeeds.
    about: &'static str,
    /// What to do when it fails.
    next: &'static str,
    check: fn() -> Result<(), String>,
}

/// To add a check, add it here; `.ci/run` runs them all.
const STEPS: &[Step] = &[
    Step {
        name: "install",
        about: "the tools are there",
        next: "run the command above by hand and see why it fails; what is needed, and under \
               which name, stands in xtask/src/install.rs",
        check: install::step,
    },
    Step {
        name: "fmt",
        about: "code is formatted",
        next: "cargo xtask fix",
        check: || execute(&mut cargo("fmt --all --check")),
    },
    Step {
        name: "clippy",
        about: "no lint warns",
        next: "cargo xtask fix mends some; the rest is for you. To allow a lint, say why there",
        check: || {
            execute(&mut cargo("clippy --workspace --all-targets -- -D warnings"))?;
            let core = "clippy -p tidegate-core --features loom --all-targets -- -D warnings";
            execute(&mut cargo(core))?;
            let tidegate =
                "clippy -p tidegate --features loom --lib --test interleavings -- -D warnings";
            execute(&mut cargo(tidegate))
        },
    },
    Step {
        name: "doc",
        about: "documentation builds, and its links lead somewhere",
        next: "mend the comment that rustdoc points at",
        check: || {
            let mut doc = cargo("doc --workspace --no-deps");
            execute(doc.env("RUSTDOCFLAGS", "-D warnings"))
        },
    },
    Step {
        name: "deny",
        about: "dependencies are allowed, licensed, from crates.io and without known holes",
        next: "choose another dependency, or change deny.toml and give the reason there",
        check: supply::step,
    },
    Step {
        name: "test",
        about: "tests pass",
        next: "cargo nextest run NAME runs one; a property test prints the input that breaks it \
               and writes its seed to a proptest-regressions file, which is to be committed",
        check: || {
            let mut test = cargo("nextest run --workspace");
            let root = std::env::current_dir().map_err(|error| error.to_string())?;
            // Tests with peers fail without them; where this is not set they are left out.
            default_env(&mut test, "TIDEGATE_PEERS", &root.join(PEERS).to_string_lossy());
            execute(&mut test)
        },
    },
    Step {
        name: "doctest",
        about: "examples in the documentation run",
        next: "cargo test --doc -p CRATE NAME runs one",
        check: || execute(&mut cargo("test --workspace --doc")),
    },
    Step {
        name: "interleavings",
        about: "gates are right under every interleaving of threads",
        next: "run the command above with LOOM_LOG=trace and the name of the test",
        check: || {
            for of in ["tidegate-core", "tidegate"] {
                let mut loom = cargo(&format!(
                    "nextest run -p {of} --features loom --test interleavings \
                     --cargo-profile interleavings",
                ));
                // Nearly every known race needs two preemptions; each one more multiplies the time.
                default_env(&mut loom, "LOOM_MAX_PREEMPTIONS", "3");
                execute(&mut loom)?;
            }
            Ok(())
        },
    },
    Step {
        name: "layering",
        about: "crates depend on lower layers only, and core on no network and no runtime",
        next: "move the code to the layer that it belongs to; xtask/src/layering.rs says which",
        check: layering::step,
    },
    Step {
        name: "tidy",
        about: "the house rules hold that no other tool knows",
        next: "mend the lines above; CONTRIBUTING.md gives the rules and their reasons",
        check: tidy::step,
    },
];

pub(crate) fn all() -> Vec<&'static Step> {
    STEPS.iter().collect()
}

/// The steps of a comma-separated list, in the order in which they always run.
pub(crate) fn named(names: &str) -> Result<Vec<&'static Step>, String> {
    let names: Vec<&str> = names.split(',').map(str::trim).collect();
    for name in &names {
        if !STEPS.iter().any(|step| step.name == *name) {
            let known: Vec<&str> = STEPS.iter().map(|step| step.name).collect();
            return Err(format!("`{name}` is not a step; the steps are {}", known.join(", ")));
        }
    }
    Ok(STEPS.iter().filter(|step| names.contains(&step.name)).collect())
}

pub(crate) fn list() {
    for step in STEPS {
        println!("{:<14} {}", step.name, step.about);
    }
}

/// Runs them up to the first that fails.
pub(crate) fn run(steps: &[&Step]) -> Result<(), String> {
    let mut times = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        println!("[{}/{}] {}: {}", index + 1, steps.len(), step.name, step.about);
        let start = Instant::now();
        let outcome = (step.check)();
        times.push((step.name, start.elapsed()));
        if let Err(why) = outcome {
            let (name, next) = (step.name, step.next);
            let report = format!("failed: {name}\n  why:  {why}\n  next: {next}");
            let again = format!("  then: cargo xtask test --only {name}, and cargo xtask test");
            return Err(format!("{}\n\n{report}\n{again}", summary(&times)));
        }
    }
    println!("\n{}", summary(&times));
    Ok(())
}

fn summary(times: &[(&str, Duration)]) -> String {
    let total: Duration = times.iter().map(|(_, time)| *time).sum();
    let rows = times.iter().copied().chain([("total", total)]);
    let rows = rows.map(|(name, time)| format!("{name:<14} {:>7.1} s", time.as_secs_f64()));
    rows.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn steps_are_chosen_by_name_and_keep_their_order() {
        let chosen = named("tidy, fmt").unwrap();
        let names: Vec<&str> = chosen.iter().map(|step| step.name).collect();
        assert_eq!(names, ["fmt", "tidy"]);
        let Err(error) = named("fmt,format") else { panic!("`format` is not a step") };
        assert!(error.contains("`format`") && error.contains("interleavings"), "{error}");
        assert!(named("").is_err());
    }

    #[test]
    fn the_first_failure_ends_the_run_and_says_what_why_and_what_next() {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        fn step(name: &'static str, check: fn() -> Result<(), String>) -> Step {
            Step { name, about: "it holds", next: "mend it", check }
        }
        let good = step("good", || {
            RUNS.fetch_add(1, Ordering::Relaxed);
            Ok(())
        });
        let bad = step("bad", || Err("it does not".to_owned()));
        assert_eq!(run(&[&good, &good]), Ok(()));
        let error = run(&[&good, &bad, &good]).unwrap_err();
        for part in ["failed: bad", "it does not", "mend it", "--only bad", "total"] {
            assert!(error.contains(part), "{part} is missing in:\n{error}");
        }
        assert_eq!(RUNS.load(Ordering::Relaxed), 3);
    }
}
