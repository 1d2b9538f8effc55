//! `tidegate quota` as a user runs it: a server, five tasks and three customers, as processes.

#![allow(clippy::unwrap_used)]

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments);
    command
}

fn run(arguments: &[&str]) -> Output {
    command(arguments).stdin(Stdio::null()).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A process that is killed with the test.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    fn start(arguments: &[&str]) -> Self {
        let mut command = command(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Self { child, out }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut complaint = String::new();
            let _ = self.child.stderr.take().unwrap().read_to_string(&mut complaint);
            panic!("it has ended: {complaint}");
        }
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server by its file, and its address.
fn server(file: &Path, more: &[&str]) -> (Process, String) {
    let file = file.to_str().unwrap();
    let arguments = [&["quota", "--config", file, "--listen", "127.0.0.1:0"], more].concat();
    let mut process = Process::start(&arguments);
    let hello = process.line();
    let address = hello.strip_prefix("tidegate quota: listens on ").unwrap();
    let address = address.split(',').next().unwrap();
    (process, format!("http://{address}"))
}

fn status(url: &str) -> Value {
    let output = run(&["quota", "status", url, "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(40), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// How a part of the page stands; nothing if nobody answers.
fn snapshot(page: &str, query: &str) -> Value {
    let authority = page.trim_start_matches("http://").trim_end_matches('/');
    let Ok(mut stream) = TcpStream::connect(authority) else { return Value::Null };
    let request = format!(
        "GET /api/snapshot{query} HTTP/1.1\r\nhost: {authority}\r\nconnection: close\r\n\r\n"
    );
    let mut answer = String::new();
    if stream.write_all(request.as_bytes()).is_err() || stream.read_to_string(&mut answer).is_err()
    {
        return Value::Null;
    }
    let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).unwrap_or(Value::Null)
}

/// How many answers there were of a customer and criticality, by status.
type Answers = BTreeMap<(&'static str, &'static str, u16), u64>;

/// Callers of one service that pace themselves, and can be told to ask for more or less.
struct Callers {
    answers: Arc<Mutex<Answers>>,
    /// Microseconds between two requests of each; 0 for none at all.
    pauses: Vec<Arc<AtomicU64>>,
}

/// One request; its status.
fn ask(stream: &mut BufReader<TcpStream>, customer: &str, criticality: &str) -> Option<u16> {
    let request = format!(
        "GET / HTTP/1.1\r\nhost: x\r\nx-customer: {customer}\r\n\
         x-criticality: {criticality}\r\n\r\n"
    );
    stream.get_mut().write_all(request.as_bytes()).ok()?;
    let (mut status, mut length) = (None, 0);
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim_end();
        if line.is_empty() {
            break;
        }
        if status.is_none() {
            status = line.split(' ').nth(1)?.parse().ok();
        } else if let Some(found) = line.strip_prefix("content-length: ") {
            length = found.parse().ok()?;
        }
    }
    stream.read_exact(&mut vec![0; length]).ok()?;
    status
}

impl Callers {
    /// Calls the service at `port`: each asks by itself, and is silent at first.
    fn start(
        &mut self,
        port: u16,
        customer: &'static str,
        criticality: &'static str,
    ) -> Arc<AtomicU64> {
        let pause = Arc::new(AtomicU64::new(0));
        self.pauses.push(Arc::clone(&pause));
        let (answers, told) = (Arc::clone(&self.answers), Arc::clone(&pause));
        std::thread::spawn(move || {
            let mut stream = None;
            loop {
                let pause = told.load(Ordering::Relaxed);
                if pause == u64::MAX {
                    return;
                }
                let began = Instant::now();
                if pause > 0 {
                    let open =
                        || Some(BufReader::new(TcpStream::connect(("127.0.0.1", port)).ok()?));
                    if stream.is_none() {
                        stream = open();
                    }
                    let status =
                        stream.as_mut().and_then(|stream| ask(stream, customer, criticality));
                    if status.is_none() {
                        stream = None;
                    }
                    let key = (customer, criticality, status.unwrap_or(0));
                    *answers.lock().unwrap().entry(key).or_default() += 1;
                }
                let wait = Duration::from_micros(if pause == 0 { 20_000 } else { pause });
                std::thread::sleep(wait.saturating_sub(began.elapsed()));
            }
        });
        pause
    }

    fn take(&self) -> Answers {
        std::mem::take(&mut self.answers.lock().unwrap())
    }
}

impl Drop for Callers {
    fn drop(&mut self) {
        for pause in &self.pauses {
            pause.store(u64::MAX, Ordering::Relaxed);
        }
    }
}

/// How many of `answers` are of a customer and criticality, and of these how many were served.
fn share(answers: &Answers, customer: &str, criticality: &str) -> f64 {
    let mine = |served: bool| -> u64 {
        let mine = answers.iter().filter(|((name, level, status), _)| {
            *name == customer && *level == criticality && (!served || *status == 200)
        });
        mine.map(|(_, count)| count).sum()
    };
    mine(true) as f64 / mine(false).max(1) as f64
}

fn count(answers: &Answers, customer: &str, status: u16) -> u64 {
    let mine = answers.iter().filter(|((name, _, found), _)| *name == customer && *found == status);
    mine.map(|(_, count)| count).sum()
}

/// What the bad customer uses, by the server's book, on average over `seconds`.
fn used(url: &str, seconds: u64) -> f64 {
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut samples = Vec::new();
    while Instant::now() < end {
        let status = status(url);
        let customers = status["services"][0]["customers"].as_array().unwrap();
        let bad = customers.iter().find(|customer| customer["name"] == "bad").unwrap();
        let levels = bad["used"].as_object().unwrap();
        samples.push(levels.values().map(|rate| rate.as_f64().unwrap()).sum::<f64>());
        std::thread::sleep(Duration::from_millis(200));
    }
    samples.iter().sum::<f64>() / samples.len() as f64
}

const FLEET: &str = "\
quota:
  state: STATE
  services:
    demo:
      capacity: { cpu: 1 }
      default: 0.5
      customers: { good: 0.4, fair: 0.4, bad: 0.2 }
";

/// What the bad one may use.
const LIMIT: f64 = 0.2;

#[test]
fn one_customer_at_ten_times_its_limit_is_held_to_it_and_the_others_see_nothing() {
    let (file, state) = (scratch("quota-fleet.yaml"), scratch("quota-fleet.state"));
    let _ = std::fs::remove_file(&state);
    std::fs::write(&file, FLEET.replace("STATE", state.to_str().unwrap())).unwrap();
    let (server, url) = server(&file, &[]);
    let mut ports = Vec::new();
    let mut tasks = Vec::new();
    for n in 0..5 {
        let name = format!("task-{n}");
        let arguments = ["demo-service", "protected", "1000000", "--quota", &url, "--name", &name];
        let mut task = Process::start(&arguments);
        let hello: Value = serde_json::from_str(&task.line()).unwrap();
        ports.push(u16::try_from(hello["port"].as_u64().unwrap()).unwrap());
        tasks.push(task);
    }
    while status(&url)["services"][0]["tasks"] != 5 {
        std::thread::sleep(Duration::from_millis(50));
    }
    // What a request takes, at best: whoever else is on this machine only makes it longer. The
    // first ones find next to nothing set aside for a task that never served the customer.
    let mut first = BufReader::new(TcpStream::connect(("127.0.0.1", ports[0])).unwrap());
    let (mut cost, mut served) = (f64::INFINITY, 0);
    while served < 20 {
        let began = Instant::now();
        if ask(&mut first, "good", "CRITICAL") == Some(200) {
            cost = cost.min(began.elapsed().as_secs_f64());
            served += 1;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let pause = |cpus: f64| (cost / cpus * 1e6) as u64;

    let mut callers = Callers { answers: Arc::default(), pauses: Vec::new() };
    let mut bad = Vec::new();
    for &port in &ports {
        for customer in ["good", "fair"] {
            callers.start(port, customer, "CRITICAL").store(pause(0.02), Ordering::Relaxed);
        }
        // A quarter of its limit matters more than the rest, which alone is ten times of it.
        let plus = callers.start(port, "bad", "CRITICAL");
        let rest = [(); 2].map(|()| callers.start(port, "bad", "SHEDDABLE"));
        bad.push((plus, rest));
    }
    let demand = |tasks: &[usize], cpus: f64| {
        for (n, (plus, rest)) in bad.iter().enumerate() {
            let here = tasks.contains(&n);
            let each = |cpus: f64| if here { pause(cpus / tasks.len() as f64) } else { 0 };
            plus.store(each(LIMIT / 4.0), Ordering::Relaxed);
            for rest in rest {
                rest.store(each(cpus / 2.0), Ordering::Relaxed);
            }
        }
    };
    let others_see_nothing = |answers: &Answers| {
        for customer in ["good", "fair"] {
            assert_eq!(count(answers, customer, 429), 0, "{answers:?}");
            // A machine that stands still may make a task shed; that is not for quota.
            assert!(share(answers, customer, "CRITICAL") > 0.95, "{answers:?}");
        }
    };
    std::thread::sleep(Duration::from_secs(3));
    callers.take();
    demand(&[0, 1, 2, 3, 4], 10.0 * LIMIT);
    std::thread::sleep(Duration::from_secs(3));
    others_see_nothing(&callers.take());
    let held = used(&url, 4);
    let answers = callers.take();
    assert!((0.9 * LIMIT..=1.1 * LIMIT).contains(&held), "{held} of {LIMIT}: {answers:?}");
    others_see_nothing(&answers);
    assert!(count(&answers, "bad", 429) > 0, "{answers:?}");
    let (plus, rest) = (share(&answers, "bad", "CRITICAL"), share(&answers, "bad", "SHEDDABLE"));
    assert!(plus > 0.9 && rest < 0.5, "{plus} {rest}: {answers:?}");

    // The same at two tasks only.
    demand(&[1, 3], 10.0 * LIMIT);
    std::thread::sleep(Duration::from_secs(3));
    callers.take();
    let moved = used(&url, 3);
    let answers = callers.take();
    assert!((0.85 * LIMIT..=1.1 * LIMIT).contains(&moved), "{moved} of {LIMIT}: {answers:?}");
    others_see_nothing(&answers);

    let table = text(&run(&["quota", "status", &url, "--service", "demo"]).stdout);
    for words in ["demo: 5 tasks, 1.000 CPU, of which 150 % are promised", "bad has been over"] {
        assert!(table.contains(words), "no {words} in\n{table}");
    }
    drop((callers, tasks, server));
}

#[test]
fn a_server_follows_its_file_and_ends_when_it_is_told_to() {
    let (file, state) = (scratch("quota-reload.yaml"), scratch("quota-reload.state"));
    let _ = std::fs::remove_file(&state);
    let config = FLEET.replace("STATE", state.to_str().unwrap());
    std::fs::write(&file, &config).unwrap();
    let (mut first, url) = server(&file, &["--page", "127.0.0.1:0"]);
    let page = first.line();
    let page = page.strip_prefix("tidegate quota: page at ").unwrap().to_owned();
    assert_eq!(first.line(), "tidegate quota: demo: 3 customers, 150 % of the capacity promised");
    let before = status(&url);
    let epoch = before["epoch"].as_u64().unwrap();
    assert_eq!(before["services"][0]["learning"], false, "nobody has led before");

    std::fs::write(&file, config.replace("bad: 0.2", "bad: lots")).unwrap();
    first.signal(Signal::HUP);
    while status(&url)["refused"].is_null() {
        std::thread::sleep(Duration::from_millis(20));
    }
    let refused = status(&url)["refused"].as_str().unwrap().to_owned();
    assert!(refused.contains(":7:") && refused.contains("right: a number of CPUs"), "{refused}");
    std::fs::write(&file, config.replace("bad: 0.2", "bad: 0.1, new: 1")).unwrap();
    first.signal(Signal::HUP);
    while status(&url)["services"][0]["customers"].as_array().unwrap().len() != 5 {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(status(&url)["refused"].is_null());
    let top = text(&run(&["top", &page, "--once"]).stdout);
    assert!(top.contains("demo: ") && top.contains("This is the quota server"), "{top}");
    // A service that comes later has its part on the page, and one that goes has none.
    let more = config.replace("    demo:", "    late: { default: 1 }\n    demo:");
    std::fs::write(&file, &more).unwrap();
    first.signal(Signal::HUP);
    let parts = |names: &[&str]| {
        let found = snapshot(&page, "");
        found["parts"].as_array().is_some_and(|parts| parts.iter().eq(names.iter()))
    };
    until("both services are on the page", || parts(&["demo", "late"]));
    assert_eq!(snapshot(&page, "?part=late")["service"], "late");
    std::fs::write(&file, &config).unwrap();
    first.signal(Signal::HUP);
    until("one service is on the page", || parts(&["demo"]));

    first.signal(Signal::TERM);
    assert_eq!(first.child.wait().unwrap().code(), Some(0));
    let (_second, url) = server(&file, &[]);
    let after = status(&url);
    assert!(after["epoch"].as_u64().unwrap() > epoch);
    assert_eq!(after["services"][0]["learning"], true, "tasks may hold something");
}

#[test]
fn files_are_checked_and_refused_before_anything_starts() {
    let (good, bad, other) =
        (scratch("check-good.yaml"), scratch("check-bad.yaml"), scratch("check-other.yaml"));
    std::fs::write(&good, FLEET).unwrap();
    std::fs::write(&bad, FLEET.replace("default: 0.5", "default: -1")).unwrap();
    std::fs::write(&other, "proxy: {}\n").unwrap();
    let [good, bad, other] = [&good, &bad, &other].map(|path| path.to_str().unwrap());
    let output = run(&["check", good]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    assert!(
        out.ends_with(
            "check-good.yaml: a quota server\n  demo: 3 customers, 150 % of the capacity promised\n"
        ),
        "{out}"
    );
    for arguments in [&["check", good, bad][..], &["quota", "--config", bad]] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(2));
        let complaint = text(&output.stderr);
        assert!(complaint.contains("check-bad.yaml:6:16: -1 is no number of CPUs"), "{complaint}");
        assert!(complaint.contains("right: "), "{complaint}");
    }
    let output = run(&["check", other]);
    assert!(text(&output.stderr).contains("`quota:` at the top"), "{}", text(&output.stderr));
    assert_eq!(run(&["quota"]).status.code(), Some(2), "clap asks for a file");
    let nobody = run(&["quota", "status", "http://127.0.0.1:1"]);
    assert_eq!(nobody.status.code(), Some(1));
    assert!(text(&nobody.stderr).contains("no quota server answers"), "{}", text(&nobody.stderr));
}
