//! Files that are wrong, and what is said of them, to the letter.

#![allow(clippy::unwrap_used)]

use std::fmt::Write as _;
use tidegate_sim::scenario::Scenario;

/// A file with which nothing is wrong.
const RIGHT: &str = "\
name: right
story: Nothing is wrong here.
lasts: 30s
network: { latency: 250us, jitter: 30% }
datacenters: [east, west]
distances: { east-west: 30ms }
services:
  api:
    tasks: 4
    work: 5ms
    calls: [{ service: db, retries: budget }]
  db: { tasks: [{ count: 2, datacenter: west }], work: { mean: 2ms } }
clients:
  web:
    service: api
    load: 0.5
    mix: { CRITICAL: 60%, SHEDDABLE: 40% }
    customers: { good: 50%, others: 50% }
    balance: { policy: weighted, blackout: 2s }
customers:
  good: { limit: 2.5 }
events:
  - { at: 10s, for: 5s, load: { web: 3 } }
  - { at: 20s, speed: { api: 50% }, tasks: 0..2 }
windows: { calm: 2s..10s, surge: 11s..15s }
variants:
  bare: { services: { api: { protection: off } } }
checks:
  - { success: web, during: calm, at_least: 99% }
  - { p99: web, during: surge, at_most: 2, times: { during: calm } }
";

const CHECKS: &str = "\
checks:
  - { success: web, during: calm, at_least: 99% }
  - { p99: web, during: surge, at_most: 2, times: { during: calm } }
";

/// What is replaced by what in [`RIGHT`].
const WRONG: &[(&str, &str)] = &[
    // Not YAML, or not a scenario.
    ("name: right", "name: [right"),
    ("story: Nothing is wrong here.\n", ""),
    ("name: right", "title: right"),
    ("lasts: 30s", "lasts: 30s\nlasts: 40s"),
    (RIGHT, ""),
    (RIGHT, "- 1\n- 2\n"),
    // Unknown keys, near and far.
    ("    tasks: 4\n", "    task: 4\n"),
    ("blackout: 2s", "black_out: 2s"),
    ("blackout: 2s", "pool_size: 2"),
    ("latency: 250us", "speed_of_light: 1"),
    // Wrong types and units.
    ("lasts: 30s", "lasts: 30"),
    ("lasts: 30s", "lasts: 30sec"),
    ("lasts: 30s", "lasts: 30.5s"),
    ("lasts: 30s", "lasts: 25h"),
    ("    tasks: 4\n", "    tasks: four\n"),
    ("    tasks: 4\n", "    tasks: 0\n"),
    ("    tasks: 4\n", "    tasks: 0.5\n"),
    ("    tasks: 4\n", "    tasks: []\n"),
    ("    work: 5ms", "    work: 0s"),
    ("    work: 5ms", "    work: [5ms]"),
    ("    work: 5ms", "    work: { mean: 5ms, spread: pareto }"),
    ("    work: 5ms", "    work: { usual: 5ms, share: 1% }"),
    ("jitter: 30%", "jitter: much"),
    ("jitter: 30%", "loss: 130%"),
    ("load: 0.5", "load: -1"),
    ("load: 0.5", "rate: 100"),
    ("load: 0.5", "load: 0.5\n    rate: 100/s"),
    ("    load: 0.5\n", ""),
    ("load: 0.5", "load: 100000"),
    ("balance: { policy: weighted, blackout: 2s }", "balance: { blackout: 2s }"),
    ("balance: { policy: weighted, blackout: 2s }", "balance: weigthed"),
    ("balance: { policy: weighted, blackout: 2s }", "throttle: { k: 0.5 }"),
    ("balance: { policy: weighted, blackout: 2s }", "throttle: maybe"),
    ("balance: { policy: weighted, blackout: 2s }", "retries: { policy: never, attempts: 3 }"),
    ("policy: weighted, blackout: 2s", "policy: weighted, ratio_max: 0.1"),
    ("limit: 2.5", "limit: { CRITICAL: 1, SHEDDABLE: 2 }"),
    // Names that nobody has.
    ("    service: api", "    service: apis"),
    ("service: db", "service: store"),
    ("service: db", "service: api"),
    ("datacenter: west", "datacenter: wets"),
    ("distances: { east-west: 30ms }\n", ""),
    ("east-west: 30ms", "east-north: 30ms"),
    ("good: 50%,", "better: 50%,"),
    ("CRITICAL: 60%", "IMPORTANT: 60%"),
    ("  web:\n", "  api:\n"),
    // Shares of nothing.
    ("CRITICAL: 60%, SHEDDABLE: 40%", "CRITICAL: 0%"),
    // Events.
    ("at: 10s, for: 5s, load: { web: 3 }", "at: 10s"),
    ("at: 10s, for: 5s, load: { web: 3 }", "load: { web: 3 }"),
    ("at: 10s, for: 5s, load: { web: 3 }", "at: 40s, load: { web: 3 }"),
    ("load: { web: 3 }", "load: { wbe: 3 }"),
    ("load: { web: 3 }", "load: 3"),
    ("speed: { api: 50% }", "speed: { api: 0% }"),
    ("tasks: 0..2 }", "tasks: 3..5 }"),
    ("tasks: 0..2 }", "tasks: 2..2 }"),
    ("speed: { api: 50% }, tasks: 0..2", "join: api, tasks: 0..4"),
    // Windows.
    ("calm: 2s..10s", "calm: 10s..2s"),
    ("calm: 2s..10s", "calm: 2s..40s"),
    ("calm: 2s..10s", "calm: 10s"),
    ("calm: 2s..10s", "calm: 2s..2.55s"),
    ("calm: 2s..10s", "calm: 2s..10.5s"),
    // Variants: the place is where the variant says it, as far as it does.
    ("protection: off", "protection: of"),
    ("protection: off", "protecton: off"),
    ("{ api: { protection: off } }", "{ api: { tasks: 1 } }"),
    ("bare: { services:", "bare: { windows: {}, services:"),
    ("bare: {", "base: {"),
    ("{ services: { api: { protection: off } } }", "{ clients: { web: ~ } }"),
    // Checks.
    (CHECKS, "checks: []\n"),
    (CHECKS, ""),
    ("success: web", "sucess: web"),
    ("success: web", "success: api2"),
    ("success: web", "refused: web"),
    ("success: web, during: calm", "during: calm"),
    ("success: web", "success: web, failed: web"),
    (", at_least: 99%", ""),
    ("at_least: 99%", "at_least: 99% or so"),
    ("at_least: 99%", "at_least: 99"),
    ("at_least: 99%", "at_least: 99%, at_most: 50%"),
    ("success: web, during: calm, at_least: 99%", "goodput: web, at_least: 0.9"),
    ("success: web, during: calm, at_least: 99%", "goodput: web, at_least: 9%, at_most: 100/s"),
    ("success: web, during: calm, at_least: 99%", "p99: web, at_most: 100"),
    ("success: web, during: calm, at_least: 99%", "p99: web, during: 1.5s..3s, at_most: 1s"),
    ("success: web, during: calm, at_least: 99%", "recovery: web, at_most: 2s"),
    ("success: web, during: calm, at_least: 99%", "recovery: web, after: 29.5s, at_most: 2s"),
    ("success: web, during: calm, at_least: 99%", "recovery: web, during: calm, at_most: 2s"),
    ("success: web, during: calm, at_least: 99%", "refused: api, reason: lazy, at_most: 2"),
    ("success: web, during: calm, at_least: 99%", "utilization: db, tasks: 0..3, at_most: 1"),
    ("during: calm, at_least", "during: clam, at_least"),
    ("during: calm, at_least", "during: 20s..31s, at_least"),
    ("during: calm, at_least", "variant: bear, at_least"),
    ("during: calm, at_least", "customer: evil, at_least"),
    ("during: calm, at_least", "criticality: critical, at_least"),
    ("during: calm, at_least", "reason: quota, at_least"),
    ("times: { during: calm }", "times: {}"),
    ("times: { during: calm }", "times: 2"),
];

fn parse(text: &str) -> Result<Scenario, String> {
    Scenario::parse("a.yaml", text).map_err(|refused| refused.to_string())
}

/// `UPDATE_GOLDEN=1` accepts a change.
#[test]
fn golden_refusals() {
    parse(RIGHT).unwrap();
    let mut told = String::new();
    for (right, wrong) in WRONG {
        assert_eq!(RIGHT.matches(right).count().min(2), 1, "{right:?} is not there once");
        let Err(refused) = parse(&RIGHT.replacen(right, wrong, 1)) else {
            panic!("nothing is found wrong with {wrong:?}");
        };
        let wrong =
            if *right == RIGHT { format!("nothing but {wrong:?}") } else { format!("{wrong:?}") };
        writeln!(told, "{wrong}\n{refused}\n").unwrap();
    }
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/refused.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, &told).unwrap();
    }
    let golden = std::fs::read_to_string(path).unwrap();
    for (told, golden) in told.split("\n\n").zip(golden.split("\n\n")) {
        assert_eq!(told, golden, "UPDATE_GOLDEN=1 accepts the change");
    }
    assert_eq!(told.len(), golden.len(), "UPDATE_GOLDEN=1 accepts the change");
}

/// Whatever is cut off a file or put into it, reading it ends with a scenario or a reason.
#[test]
fn damaged_files_never_panic() {
    for (place, _) in RIGHT.char_indices() {
        let _ = parse(&RIGHT[..place]);
        for junk in ["\u{0}", "\"", "[", "}", ": ", "&a ", "*a", "-1", "9e999", "~"] {
            let _ = parse(&format!("{}{junk}{}", &RIGHT[..place], &RIGHT[place + 1..]));
        }
    }
}
