//! The examples, run as anybody would run them: they end by themselves or when they are told to,
//! and say what they are there to say.
//!
//! They tell their stories in real time, with numbers that differ from run to run, so what is held
//! against them are the words and what must be so of any such numbers, also on a machine that has
//! hardly any time for them. How many are served in a surge is for `server::overload` to test.

#![allow(clippy::unwrap_used, reason = "all of this is tests, also what is not marked as such")]

use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

/// Cargo builds examples along with tests, into the directory next to theirs; not if it is asked
/// for single tests by `--test`, which would run what was built before.
fn example(name: &str) -> Command {
    let mut path = std::env::current_exe().unwrap();
    path.pop();
    if path.ends_with("deps") {
        path.pop();
    }
    path.extend(["examples", name]);
    assert!(path.exists(), "no {}: `cargo build -p tidegate --examples` first", path.display());
    Command::new(path)
}

/// What it prints, line by line.
fn run(name: &str) -> Vec<String> {
    let output = example(name).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {errors}");
    String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
}

/// The whole numbers of the first line that has `what` in it, from left to right.
fn numbers(lines: &[String], what: &str) -> Vec<u64> {
    let line = lines.iter().find(|line| line.contains(what));
    let line = line.unwrap_or_else(|| panic!("no {what} in {lines:#?}"));
    line.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

#[test]
fn axum_server_sheds_what_may_be_shed() {
    let lines = run("axum_server");
    let [asked, served, refused] = numbers(&lines, "CRITICAL_PLUS")[..] else {
        panic!("{lines:#?}")
    };
    assert_eq!(asked, served + refused);
    let [asked_of_it, served_of_it, shed] = numbers(&lines, "SHEDDABLE")[..] else {
        panic!("{lines:#?}")
    };
    assert!(shed > 0 && asked_of_it == served_of_it + shed, "{lines:#?}");
    // What matters most is served rather than what may be shed, also on a machine that has hardly
    // any time for either.
    assert!(served * asked_of_it > served_of_it * asked, "{lines:#?}");
}

#[test]
fn tonic_server_shows_what_is_on_the_wire() {
    let lines = run("tonic_server");
    let [served, refused, below] = &lines[..] else { panic!("{lines:#?}") };
    let cost = served.strip_prefix("served:   Serving, request_cost.cpu = ").unwrap();
    assert!(cost.strip_suffix(" s").unwrap().parse::<f64>().unwrap() > 0.0, "{served}");
    assert_eq!(refused, "refused:  Unavailable, overloaded, pushback none");
    assert_eq!(below, "below:    ResourceExhausted, overloaded, pushback -1");
}

#[test]
fn reqwest_client_learns_to_hold_back() {
    let lines = run("reqwest_client");
    assert_eq!(lines.len(), 5, "{lines:#?}");
    let seconds: Vec<Vec<u64>> =
        lines[1..4].iter().map(|line| numbers(std::slice::from_ref(line), "")).collect();
    for (second, row) in (1..).zip(&seconds) {
        let [n, served, refused, held_back] = row[..] else { panic!("{lines:#?}") };
        assert_eq!((n, served + refused + held_back), (second, 100));
        assert!(served > 0, "{lines:#?}");
    }
    assert!(seconds[2][3] > 0, "nothing was held back: {lines:#?}");
    let [sent, retried] = numbers(&lines, "once more")[..] else { panic!("{lines:#?}") };
    assert!(retried * 10 <= sent, "{lines:#?}");
}

#[test]
fn three_layers_say_dont_retry_and_do_not_multiply() {
    let lines = run("three_layers");
    let inherited = lines.iter().any(|line| {
        line.trim()
            .starts_with("A as SHEDDABLE_PLUS, B as SHEDDABLE_PLUS, C as SHEDDABLE_PLUS found it")
    });
    assert!(inherited, "{lines:#?}");
    // The example itself fails if an answer was neither served nor "don't retry".
    let [asked, served, refused] = numbers(&lines, "CRITICAL_PLUS ")[..] else {
        panic!("{lines:#?}")
    };
    assert_eq!(asked, served + refused);
    let [asked_of_it, served_of_it, shed] = numbers(&lines, "SHEDDABLE ")[..] else {
        panic!("{lines:#?}")
    };
    assert!(shed > 0 && served_of_it > 0, "{lines:#?}");
    let [at_a, at_b, at_c, again] = numbers(&lines, "A received")[..] else { panic!("{lines:#?}") };
    assert_eq!(at_a, asked + asked_of_it);
    // A gives up as B tells it to; B's budget is a tenth.
    assert!(at_b <= at_a, "{lines:#?}");
    assert!(at_c <= at_b + again && again * 10 <= at_b, "{lines:#?}");
    let [asked, answered, degraded] = numbers(&lines, "from memory")[..] else {
        panic!("{lines:#?}")
    };
    assert!(answered == asked && degraded > 0, "{lines:#?}");
}

/// Ends what a test that fails leaves behind.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn ask(address: &str, path: &str) -> TcpStream {
    let mut io = TcpStream::connect(address).unwrap();
    write!(io, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    io
}

fn answer(mut io: TcpStream) -> String {
    let mut text = String::new();
    io.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn lame_duck_answers_everything_before_it_goes() {
    let mut command = example("lame_duck");
    let mut child = Running(command.arg("127.0.0.1:0").stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(child.0.stdout.take().unwrap()).lines();
    let mut next = || lines.next().unwrap().unwrap();
    let signal = |signal| kill_process(Pid::from_child(&child.0), signal).unwrap();
    let address = next().strip_prefix("listening on ").unwrap().to_owned();
    assert_eq!([next(), next()], ["starting", "serving"]);
    assert!(answer(ask(&address, "/readyz")).starts_with("HTTP/1.1 200"));
    let slow = ask(&address, "/slow");
    signal(Signal::TERM);
    assert_eq!(next(), "lame duck");
    assert!(answer(ask(&address, "/readyz")).starts_with("HTTP/1.1 503"));
    assert!(answer(ask(&address, "/")).ends_with("hello\n"));
    // In a hurry: it drains at once, and what it has is still finished.
    signal(Signal::INT);
    assert!(answer(slow).ends_with("done\n"));
    assert_eq!([next(), next(), next()], ["draining", "gone", "everything was answered"]);
    assert!(child.0.wait().unwrap().success());
}
