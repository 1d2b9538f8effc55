//! `tidegate demo` as a user runs it: real processes, on whatever machine this is.
//!
//! Nothing here depends on how fast that is: what is measured is checked for sense, not for size.

#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Processes of a test have it in their environment, so that what it leaves behind can be found.
const MARK: &str = "TIDEGATE_DEMO_MARK";

struct Marked {
    command: Command,
    mark: String,
}

fn tidegate(arguments: &[&str]) -> Marked {
    marked(Command::new(env!("CARGO_BIN_EXE_tidegate")), arguments)
}

fn marked(mut command: Command, arguments: &[&str]) -> Marked {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mark = format!("{}-{number}", std::process::id());
    command.args(arguments).env(MARK, &mark);
    Marked { command, mark }
}

/// Services that were started under this mark and still run.
fn services(mark: &str) -> usize {
    let wanted = format!("{MARK}={mark}");
    let has = |path: PathBuf, word: &str| {
        let text = std::fs::read(path).unwrap_or_default();
        text.split(|byte| *byte == 0).any(|part| part == word.as_bytes())
    };
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|process| {
            let path = process.path();
            has(path.join("cmdline"), "demo-service") && has(path.join("environ"), &wanted)
        })
        .count()
}

fn run(arguments: &[&str]) -> Output {
    let mut tidegate = tidegate(arguments);
    let output = tidegate.command.output().unwrap();
    assert_eq!(services(&tidegate.mark), 0, "{arguments:?} left services behind");
    output
}

fn stdout(output: &Output) -> &str {
    std::str::from_utf8(&output.stdout).unwrap()
}

fn stderr(output: &Output) -> &str {
    std::str::from_utf8(&output.stderr).unwrap()
}

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

const LEVELS: [&str; 4] = ["CRITICAL_PLUS", "CRITICAL", "SHEDDABLE_PLUS", "SHEDDABLE"];

/// What may be said of figures whatever the machine does.
fn assert_sane(figures: &Value) {
    let number = |key: &str| figures[key].as_f64().unwrap_or_else(|| panic!("{key}: {figures}"));
    // Nobody tries more than three times.
    assert!((1.0..=3.0).contains(&number("amplification")), "{figures}");
    assert!(number("goodput_rps") <= number("offered_rps"), "{figures}");
    let success = figures["success"].as_object().unwrap();
    for level in LEVELS {
        assert!(success[level].as_f64().is_none_or(|share| (0.0..=1.0).contains(&share)));
    }
    assert_eq!(success.len(), LEVELS.len());
    match (figures["p50_ms"].as_f64(), figures["p99_ms"].as_f64()) {
        (Some(p50), Some(p99)) => assert!(0.0 < p50 && p50 <= p99, "{figures}"),
        (p50, p99) => assert_eq!((p50, p99, number("goodput_rps")), (None, None, 0.0), "{figures}"),
    }
}

#[test]
fn headless_json_is_one_object_with_all_that_was_measured() {
    let (page, chart) = (file("demo-report.html"), file("demo-chart.svg"));
    let [page, chart] = [&page, &chart].map(|path| path.to_str().unwrap());
    let output = run(&[
        "demo",
        "--headless",
        "--json",
        "--seed",
        "7",
        "--seconds",
        "10",
        "--report",
        page,
        "--svg",
        chart,
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stdout(&output).lines().count(), 1);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let capacity = report["capacity_rps"].as_f64().unwrap();
    let ratio = report["goodput_ratio_at_10x"].as_f64().unwrap();
    for side in ["bare", "protected"] {
        let recovery = &report["recovery_seconds"][side];
        assert!(recovery.is_null() || recovery.as_f64().unwrap() >= 0.0, "{recovery}");
        let phases = report[side]["phases"].as_array().unwrap();
        let names: Vec<&str> = phases.iter().map(|phase| phase["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["calm", "surge 2x", "surge 10x", "bad customer", "recovery"]);
        for phase in phases {
            assert_sane(phase);
            let bad = phase["name"] == "bad customer";
            for part in ["others", "bad_customer"] {
                assert_eq!(phase[part].is_object(), bad, "{part}: {phase}");
                if bad {
                    assert_sane(&phase[part]);
                }
            }
        }
        let offered = |phase: usize| phases[phase]["offered_rps"].as_f64().unwrap();
        // Between 0.7x and 2x chance may decide in half a second of a slow machine.
        assert!(offered(0) < offered(2), "{} {}", offered(0), offered(2));
    }
    let worst = &report["protected"]["phases"][2];
    assert!((worst["goodput_rps"].as_f64().unwrap() / capacity - ratio).abs() < 1e-9);
    // Ten times of what fits does not fit: one side says so, the other leaves callers without.
    assert!(worst["refused"].as_u64().unwrap() > 0, "{worst}");
    let bare = &report["bare"]["phases"][2];
    assert_eq!(bare["refused"], 0);
    assert!(bare["unanswered"].as_u64().unwrap() > 0, "{bare}");
    let goodput = |phase: &Value| phase["goodput_rps"].as_f64().unwrap();
    assert!(goodput(worst) > goodput(bare), "{worst} {bare}");
    assert_eq!(report["report"], page);
    let (page, chart) = (std::fs::read_to_string(page), std::fs::read_to_string(chart));
    assert!(page.unwrap().contains("Goodput") && chart.unwrap().starts_with("<svg"));
}

#[test]
fn lines_and_a_verdict_where_there_is_no_terminal() {
    // Somebody else has the port.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let page = file("demo-at-once.html");
    let output = run(&[
        "demo",
        "--seconds",
        "10",
        "--sides",
        "at-once",
        "--port",
        &port,
        "--report",
        page.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    for words in ["no terminal", "seed 7", "capacity", "protected: surge 10x", "is taken"] {
        assert!(stderr(&output).contains(words), "{words} in {}", stderr(&output));
    }
    let text = stdout(&output);
    for words in ["bare", "protected", "At 10x", "CRITICAL_PLUS success", "well again", "Plots: "] {
        assert!(text.contains(words), "{words} in {text}");
    }
    assert!(!text.contains('\u{1b}'), "text for a file has no escape codes");
    assert!(std::fs::read_to_string(page).unwrap().contains("is taken"));
}

/// What is at `path` of the page.
fn get(authority: &str, path: &str) -> Option<Value> {
    let mut io = std::net::TcpStream::connect(authority).ok()?;
    write!(io, "GET {path} HTTP/1.0\r\nhost: {authority}\r\n\r\n").ok()?;
    let mut answer = String::new();
    io.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// How all parts of the page stand, once a second, for as long as it is served.
fn snapshots(authority: &str) -> impl Iterator<Item = Value> {
    let mut io = std::net::TcpStream::connect(authority).unwrap();
    let head = format!("GET /api/stream?parts=all HTTP/1.0\r\nhost: {authority}\r\n\r\n");
    io.write_all(head.as_bytes()).unwrap();
    let lines = BufReader::new(io).lines().map_while(Result::ok);
    lines.filter_map(|line| {
        let update: Value = serde_json::from_str(line.strip_prefix("data: ")?).ok()?;
        Some(update["snapshot"].clone())
    })
}

#[test]
fn both_sides_are_on_one_page_while_it_goes_on() {
    let mut tidegate = tidegate(&["demo", "--headless", "--seconds", "60", "--sides", "at-once"]);
    tidegate.command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tidegate.command.spawn().unwrap();
    let lines = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let mut said = lines.take_while(|line| !line.contains("protected: calm")).collect::<Vec<_>>();
    let page = said.drain(..).find_map(|line| line.split_once("http://").map(|at| at.1.to_owned()));
    let page = page.unwrap();
    let authority = page.trim_end_matches('/');
    for part in ["bare", "protected"] {
        let seen = |snapshot: &Value| {
            snapshot["part"] == part && snapshot["work"]["offered"].as_f64() > Some(0.0)
        };
        let shown = snapshots(authority).find(seen);
        let shown = shown.unwrap_or_else(|| panic!("nothing was seen of {part}"));
        assert_eq!(shown["parts"], serde_json::json!(["protected", "bare"]));
        assert_ne!(shown["state"]["kind"], "gone", "{}", shown["state"]);
        assert_eq!(shown["levels"].as_array().map(Vec::len), Some(4));
        // Only one of them knows how full it is.
        let signals = shown["signals"].as_array().map_or(0, Vec::len);
        assert_eq!(signals > 0, part == "protected", "{part}");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert_eq!(services(&tidegate.mark), 0);
    assert!(get(authority, "/api/snapshot").is_none(), "the page has gone with the demo");
}

/// Starts the demo and waits until a side is driven.
fn begin(arguments: &[&str]) -> (Child, BufReader<std::process::ChildStderr>, String) {
    let mut tidegate = tidegate(arguments);
    tidegate.command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = tidegate.command.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("bare: calm") {
        line.clear();
        assert_ne!(lines.read_line(&mut line).unwrap(), 0, "it ended early");
    }
    assert_eq!(services(&tidegate.mark), 1);
    (child, lines, tidegate.mark)
}

#[test]
fn ctrl_c_ends_every_process_and_says_where_things_are() {
    for (signal, json) in [(Signal::INT, false), (Signal::TERM, true)] {
        let page = file(if json { "demo-ended-json.html" } else { "demo-ended.html" });
        let page = page.to_str().unwrap();
        let mut arguments = vec!["demo", "--headless", "--seconds", "60", "--report", page];
        arguments.extend(json.then_some("--json"));
        let (mut child, mut lines, mark) = begin(&arguments);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(130));
        assert_eq!(services(&mark), 0);
        let (mut err, mut out) = (String::new(), String::new());
        lines.read_to_string(&mut err).unwrap();
        child.stdout.take().unwrap().read_to_string(&mut out).unwrap();
        assert!(err.contains("interrupted: its service is ended"), "{err}");
        // Either something was measured by then, and is there, or that is said.
        assert!(err.contains(page) || err.contains("no report was written"), "{err}");
        assert_eq!(out, "");
    }
}

#[test]
fn services_end_by_themselves_if_the_demo_is_killed() {
    let (mut child, _lines, mark) = begin(&["demo", "--headless", "--seconds", "60"]);
    child.kill().unwrap();
    child.wait().unwrap();
    // They see their input close; nextest ends a test that waits for ever.
    while services(&mark) > 0 {
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What was drawn without escape codes and blanks: a screen is told only what changes on it, and
/// the cursor jumps over blanks that are there.
fn letters(drawn: &str) -> String {
    let mut letters = String::new();
    for (index, part) in drawn.split("\u{1b}[").enumerate() {
        let code = |c: char| c.is_ascii_alphabetic();
        let rest =
            if index == 0 { part } else { part.split_once(code).map_or("", |found| found.1) };
        letters.extend(rest.chars().filter(|c| !c.is_whitespace()));
    }
    letters
}

/// The demo in a terminal that `script` makes, with keys to press once it has drawn what is named
/// so many times.
fn in_terminal(
    size: &str,
    arguments: &str,
    keys: &[(&str, usize, &[u8])],
) -> (Option<i32>, String) {
    let tidegate = env!("CARGO_BIN_EXE_tidegate");
    let page = file(&format!("demo-terminal-{}.html", size.replace(' ', "-")));
    let page = page.display();
    let line = format!("stty {size}; exec {tidegate} demo {arguments} --report {page}");
    let mut script = marked(Command::new("script"), &["-qec", &line, "/dev/null"]);
    script.command.env("TERM", "xterm-256color").env_remove("NO_COLOR");
    script.command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = script.command.spawn().unwrap();
    let (mut input, mut output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut seen, mut bytes) = (String::new(), Vec::new());
    let mut keys = keys.iter().peekable();
    let mut buffer = [0; 4_096];
    loop {
        let count = output.read(&mut buffer).unwrap_or(0);
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buffer[..count]);
        seen = String::from_utf8_lossy(&bytes).into_owned();
        if let Some((words, times, pressed)) = keys.peek()
            && letters(&seen).matches(words).count() >= *times
        {
            input.write_all(pressed).unwrap();
            keys.next();
        }
    }
    let code = child.wait().unwrap().code();
    assert_eq!(services(&script.mark), 0);
    (code, seen)
}

/// What terminals are told when a picture begins and when it ends.
const PICTURE: [&str; 2] = ["\u{1b}[?1049h", "\u{1b}[?1049l"];

#[test]
fn the_live_view_takes_keys_and_gives_the_terminal_back() {
    // Both sides are live: until then a title that changes may keep some of its letters.
    let keys: [(&str, usize, &[u8]); 3] =
        [("live", 2, b"+"), ("loadx1.25", 1, b"d"), (",dark", 1, b"q")];
    let (code, seen) = in_terminal("rows 30 cols 100", "--seconds 40", &keys);
    assert_eq!(code, Some(0), "{seen}");
    let [begin, end] = PICTURE.map(|code| seen.find(code).unwrap());
    let verdict = seen.find("The same surge").unwrap();
    assert!(begin < end && end < verdict, "{begin} {end} {verdict}");
    assert!(seen.contains("It was ended before its time"), "{seen}");
}

#[test]
fn the_second_side_gets_what_keys_did_to_the_first() {
    let arguments = "--seconds 10 --sides in-turn";
    let (code, seen) = in_terminal("rows 35 cols 110", arguments, &[("live", 1, b"b")]);
    assert_eq!(code, Some(0), "{seen}");
    assert!(seen.contains("changed by keys"), "{seen}");
    let verdict = &seen[seen.find("The same surge").unwrap()..];
    // A bad customer who was called asks in more than the one phase that has one by itself.
    let lines: Vec<&str> = verdict.lines().map(str::trim_start).collect();
    let bad_after = |side: &str| {
        let pairs = lines.windows(2);
        pairs.filter(|pair| pair[0].contains(side) && pair[1].contains("the bad one")).count()
    };
    assert!(bad_after("bare") > 1, "{verdict}");
    assert_eq!(bad_after("bare"), bad_after("protected"), "{verdict}");
}

#[test]
fn ctrl_c_in_the_live_view_gives_the_terminal_back_and_says_so() {
    let (code, seen) = in_terminal("rows 40 cols 120", "--seconds 40", &[("live", 1, b"\x03")]);
    assert_eq!(code, Some(130), "{seen}");
    let end = seen.find(PICTURE[1]).unwrap();
    let said = seen.find("interrupted: its 2 services are ended").unwrap();
    assert!(end < said);
}

#[test]
fn a_small_terminal_gets_lines() {
    let (code, seen) = in_terminal("rows 20 cols 60", "--seconds 40", &[("bare:calm", 1, b"\x03")]);
    assert_eq!(code, Some(130), "{seen}");
    assert!(seen.contains("the terminal has 60x20, the live view needs 80x24"), "{seen}");
    assert!(!seen.contains(PICTURE[0]));
}

#[test]
fn help_and_version_are_there() {
    let help = run(&["demo", "--help"]);
    assert!(help.status.success());
    for word in ["--headless", "--seed", "--seconds", "--json", "--svg", "--report", "--sides"] {
        assert!(stdout(&help).contains(word), "{word} in {}", stdout(&help));
    }
    assert!(!stdout(&run(&["--help"])).contains("demo-service"));
    let version = run(&["--version"]);
    assert_eq!(stdout(&version), concat!("tidegate ", env!("CARGO_PKG_VERSION"), "\n"));
}

#[test]
fn bad_arguments_are_named_and_exit_with_2() {
    let table: [(&[&str], &str); 6] = [
        (&[], "Usage"),
        (&["demonstrate"], "demonstrate"),
        (&["demo", "--seed", "dice"], "--seed"),
        (&["demo", "--seconds", "9"], "10..=3600"),
        (&["demo", "--sides", "both"], "in-turn"),
        (&["demo", "--width", "3"], "--width"),
    ];
    for (arguments, word) in table {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(stderr(&output).contains(word), "{arguments:?}: {}", stderr(&output));
        assert!(output.stdout.is_empty());
    }
}
