//! `tidegate load` as a user runs it, against a server on this machine.

#![allow(clippy::unwrap_used)]

use serde_json::Value;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A server that says 200 to all, and 503 to what is sheddable.
fn server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            std::thread::spawn(move || {
                let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let mut stream = stream;
                let mut sheddable = false;
                while let Some(Ok(line)) = lines.next() {
                    sheddable |= line == "x-criticality: SHEDDABLE";
                    if line.is_empty() {
                        let answer: &[u8] = if sheddable {
                            b"HTTP/1.1 503 No\r\nx-tidegate-reason: overloaded\r\n\
                              content-length: 0\r\n\r\n"
                        } else {
                            b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"
                        };
                        if stream.write_all(answer).is_err() {
                            return;
                        }
                        sheddable = false;
                    }
                }
            });
        }
    });
    address
}

fn load(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.arg("load").args(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

#[test]
fn one_object_of_json_with_all_the_figures() {
    let url = format!("http://{}/x", server());
    let histogram = scratch("latency.hgrm");
    let output = load(&[
        &url,
        "--rate=200",
        "--duration=500ms",
        "--arrivals=even",
        "--seed=7",
        "--mix=criticality=CRITICAL,SHEDDABLE",
        "--mix=deadline=5s",
        "--json",
        "--histogram",
        histogram.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "", "no progress where there is no terminal");
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((json["total"]["offered"].as_u64(), json["seed"].as_u64()), (Some(100), Some(7)));
    let count = |level: &str, key: &str| json["criticality"][level][key].as_u64().unwrap();
    assert_eq!(count("CRITICAL", "ok"), count("CRITICAL", "offered"));
    assert_eq!((count("SHEDDABLE", "ok"), count("SHEDDABLE", "good")), (0, 0));
    let refused = json["criticality"]["SHEDDABLE"]["reasons"]["overloaded"].as_u64();
    assert_eq!(refused, Some(count("SHEDDABLE", "offered")));
    for key in ["offered_rps", "sent_rps", "ok_rps", "goodput_rps", "amplification"] {
        assert!(json[key].as_f64().unwrap() > 0.0, "{key}");
    }
    for spans in ["latency_ms", "service_ms", "unhappy_ms"] {
        assert!(json[spans]["p99"].as_f64() >= json[spans]["p50"].as_f64(), "{spans}");
    }
    assert!(json["generator"]["late_ms"]["p50"].is_number());
    let written = std::fs::read_to_string(&histogram).unwrap();
    let good = count("CRITICAL", "ok").to_string();
    assert!(written.lines().any(|line| line.contains("Total count") && line.contains(&good)));
}

#[test]
fn the_same_seed_offers_the_same() {
    let url = format!("http://{}/", server());
    let offered = |seed: &str| {
        let mix = "--mix=criticality=CRITICAL,SHEDDABLE";
        let output = load(&[&url, "--rate=400", "--duration=300ms", "--json", mix, "--seed", seed]);
        let json: Value = serde_json::from_slice(&output.stdout).unwrap();
        let level = |name: &str| json["criticality"][name]["offered"].as_u64().unwrap();
        (level("CRITICAL"), level("SHEDDABLE"))
    };
    assert_eq!(offered("3"), offered("3"));
}

#[test]
fn a_summary_for_people() {
    let plan = scratch("plan.yaml");
    std::fs::write(
        &plan,
        "stages: [100 for 200ms, 100..300 in 2 steps for 200ms]\nseed: 5\n\
         criticality: { CRITICAL: 3, SHEDDABLE: 1 }\nretry: naive:2\n",
    )
    .unwrap();
    let output = load(&[&server().to_string(), "--plan", plan.to_str().unwrap()]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let summary = text(&output.stdout);
    for part in [
        "offered",
        "goodput",
        "ok, as due",
        "ok, as sent",
        "CRITICAL ",
        "503",
        "overloaded",
        "amplification",
        "schedule",
        "--seed 5",
    ] {
        assert!(summary.contains(part), "{part} is missing in:\n{summary}");
    }
    assert!(!summary.contains('\x1b'), "no colours where there is no terminal");
    assert!(summary.lines().all(|line| line.chars().count() <= 100), "{summary}");
}

#[test]
fn what_is_refused_is_not_sent_and_says_what_would_be_right() {
    let plan = scratch("wrong.yaml");
    std::fs::write(&plan, "target: http://127.0.0.1:1/\nratee: 5\n").unwrap();
    let plan = plan.to_str().unwrap();
    for (arguments, parts) in [
        (&["http://192.0.2.1/"][..], &["192.0.2.1", "not a loopback", "--allow-remote"][..]),
        (&["127.0.0.1:1", "--rate=fast"], &["`fast` is no rate", "right: "]),
        (&["127.0.0.1:1", "--mix=colour=red"], &["`colour` cannot be mixed", "criticality"]),
        (&["127.0.0.1:1", "--mix=criticality=HIGH"], &["`HIGH` is no criticality", "SHEDDABLE"]),
        (&["127.0.0.1:1", "--stage=5 for 1s", "--rate=5"], &["both a rate and stages"]),
        (&["127.0.0.1:1", "--header=nonsense"], &["`nonsense` is no header", "colon"]),
        (&["127.0.0.1:1", "--duration=10"], &["`10` is no span of time", "250ms"]),
        (&["127.0.0.1:1", "--retry=always"], &["`always` is no retry behaviour", "budgeted"]),
        (&["--plan", plan], &["wrong.yaml:2:1: ", "unknown field `ratee`", "rate, "]),
        (&["--plan", "nowhere.yaml"], &["nowhere.yaml cannot be read", "right: "]),
        (&[], &["URL"]),
    ] {
        let output = load(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {}", text(&output.stdout));
        let error = text(&output.stderr);
        for part in parts {
            assert!(error.contains(part), "{arguments:?}: {part} is missing in:\n{error}");
        }
    }
}

#[test]
fn nothing_answered_is_a_failure_with_a_hint() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let output = load(&[&nobody.to_string(), "--rate=50", "--duration=200ms"]);
    assert_eq!(output.status.code(), Some(1));
    let summary = text(&output.stdout);
    assert!(summary.contains("connection_refused: does the server listen there?"), "{summary}");
}

#[test]
fn help_has_examples() {
    let help = text(&load(&["--help"]).stdout);
    for part in ["Examples:", "--rate max", "naive:3", "--allow-remote", "Exit code"] {
        assert!(help.contains(part), "{part} is missing");
    }
}

/// Ctrl-C, as a terminal sends it.
#[cfg(unix)]
#[test]
fn an_interrupt_ends_it_with_a_summary() {
    let url = server().to_string();
    let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["load", &url, "--rate=100", "--duration=1h", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It listens for Ctrl-C once it has begun to send; until then the signal would just end it.
    let caught = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|m| m & 2 != 0)
    };
    while !caught(child.id()) {
        std::thread::yield_now();
    }
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let json: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["ended_early"], true);
    assert!(text(&output.stderr).contains("ending"));
}
