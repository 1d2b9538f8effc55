//! `tidegate proxy` as a process: what it says, what it reads again, how it ends.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A program that says `ok` to whatever comes.
fn program() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for io in listener.incoming() {
            std::thread::spawn(move || {
                let mut io = io.unwrap();
                let mut buffer = [0; 4096];
                while io.read(&mut buffer).unwrap_or(0) > 0 {
                    let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                }
            });
        }
    });
    address
}

struct Proxy {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
    address: String,
}

impl Proxy {
    fn start(arguments: &[&str]) -> Self {
        Self::run(&[&["--listen", "127.0.0.1:0", "--admin", "off"], arguments].concat())
    }

    fn run(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("proxy").args(arguments);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut proxy = Self { child, lines, address: String::new() };
        let line = proxy.said("listening at http://");
        let address = line.split("http://").nth(1).unwrap().split(' ').next().unwrap();
        address.clone_into(&mut proxy.address);
        proxy
    }

    /// The next line that has `words`.
    fn said(&mut self, words: &str) -> String {
        let mut before = Vec::new();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            if line.contains(words) {
                return line;
            }
            before.push(line);
        }
        panic!("it never said `{words}`, but: {before:#?}");
    }

    fn ask(&self) -> String {
        let mut io = TcpStream::connect(&self.address).unwrap();
        io.write_all(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        io.read_to_string(&mut answer).unwrap();
        answer
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn file(name: &str, text: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("tidegate-cli-proxy-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path
}

#[test]
fn it_begins_in_the_dark_sees_the_program_and_ends_in_order() {
    let upstream = program();
    let mut proxy = Proxy::start(&["--upstream", &upstream.to_string()]);
    proxy.said("dark: nothing is refused");
    let watching = proxy.said("watching ");
    assert!(watching.contains(&format!("process {}", std::process::id())), "{watching}");
    assert!(proxy.ask().ends_with("ok"));
    proxy.signal(rustix::process::Signal::TERM);
    proxy.said("leaving");
    // The second one ends the delay in which others hear of it.
    proxy.signal(rustix::process::Signal::TERM);
    proxy.said("1 requests handed on, 0 of them not finished");
    assert!(proxy.child.wait().unwrap().success());
}

#[test]
fn a_file_is_read_again_and_a_bad_one_changes_nothing() {
    let upstream = program();
    let good = format!("upstream: {upstream}\nmode: enforce\n");
    let path = file("reload.yaml", &good);
    let mut proxy = Proxy::start(&["--config", path.to_str().unwrap()]);
    assert!(proxy.ask().contains("200 OK"));
    std::fs::write(&path, format!("{good}everyone_else: 0\n")).unwrap();
    proxy.signal(rustix::process::Signal::HUP);
    proxy.said("read anew: what is too much is refused");
    assert!(proxy.ask().contains("429"), "{}", proxy.ask());
    std::fs::write(&path, format!("{good}everyone_else: some\n")).unwrap();
    let said = proxy.said("the configuration is refused, it goes on as before");
    assert!(said.contains("reload.yaml:3:"), "{said}");
    assert!(proxy.ask().contains("429"));
    // By itself, without a signal.
    std::fs::write(&path, format!("{good}workers: 7\n")).unwrap();
    proxy.said("read anew, and started anew for: workers");
    assert!(proxy.ask().contains("200 OK"));
}

#[test]
fn a_file_may_give_it_the_other_role() {
    let upstream = program();
    let text = format!(
        "role: outbound\nservices:\n- name: shop\n  listen: 127.0.0.1:0\n  \
         endpoints: ['{upstream}']\n"
    );
    let path = file("outbound.yaml", &text);
    let proxy = Proxy::run(&["--config", path.to_str().unwrap()]);
    let answer = proxy.ask();
    assert!(answer.ends_with("ok"), "{answer}");
}

#[test]
fn what_is_wrong_is_said_before_anything_is_served() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let _taken = TcpListener::bind(taken).unwrap();
    let listen = taken.to_string();
    let bad = file("bad.yaml", "upstream: 127.0.0.1:1\nmod: dark\n");
    for (arguments, words) in [
        (
            vec!["--upstream", "127.0.0.1:1", "--listen", &listen],
            "give it another place by --listen",
        ),
        (vec!["--config", bad.to_str().unwrap()], "bad.yaml:2:"),
        (vec!["--config", "/nowhere.yaml"], "cannot be read"),
        (vec!["--upstream", "nowhere"], "127.0.0.1:8080"),
        (vec![], "--upstream"),
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let output = command.args(["proxy", "--admin", "off"]).args(&arguments).output().unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{arguments:?}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    }
}

#[test]
fn a_file_runs_the_edge_and_the_batch_role() {
    let upstream = program();
    for role in ["edge", "batch"] {
        let service = format!("{{ name: shop, listen: '127.0.0.1:0', endpoints: ['{upstream}'] }}");
        let text = format!("role: {role}\nservices: [{service}]\n");
        let path = file(&format!("{role}.yaml"), &text);
        let mut proxy = Proxy::run(&["--config", path.to_str().unwrap()]);
        assert!(proxy.ask().ends_with("\r\n\r\nok"), "{role}");
        proxy.signal(rustix::process::Signal::TERM);
        proxy.said("leaving");
    }
}

/// What the kernel has given it, in KiB.
fn memory(proxy: &Proxy) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", proxy.child.id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Waits until it has no more than that. Connections are put to rest after a second or two, and the
/// allocator gives back in its own time.
fn settles(proxy: &Proxy, at_most: u64, what: &str) {
    let mut seen = 0;
    for _ in 0..600 {
        seen = memory(proxy);
        if seen <= at_most {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    panic!("{what}: {seen} KiB, and there may be {at_most}");
}

/// Ten thousand idle connections are to fit into 150 MiB, those that were used as those that were
/// not: 15 KiB each. Here there are fewer, and all that is not theirs is left out.
#[test]
fn idle_connections_take_little_memory_before_and_after_use() {
    const COUNT: u64 = 800;
    const EACH: u64 = 15;
    let upstream = program();
    // Those that are closed take none.
    let text = format!("upstream: {upstream}\nworkers: 2\ntimeouts: {{ header: 1h }}\n");
    let path = file("idle.yaml", &text);
    let proxy = Proxy::start(&["--config", path.to_str().unwrap()]);
    // What it takes to serve at all.
    for _ in 0..20 {
        assert!(proxy.ask().ends_with("ok"));
    }
    let base = memory(&proxy);
    let connect = |_| TcpStream::connect(&proxy.address).unwrap();
    let mut all: Vec<TcpStream> = (0..COUNT).map(connect).collect();
    settles(&proxy, base + COUNT * EACH, "fresh");
    let ask = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n";
    // More than once: what was given back can be had again.
    for _ in 0..2 {
        for io in &mut all {
            io.write_all(ask).unwrap();
            let mut answer = Vec::new();
            while !answer.ends_with(b"ok") {
                let mut piece = [0; 512];
                let length = io.read(&mut piece).unwrap();
                assert!(length > 0, "it has hung up");
                answer.extend_from_slice(&piece[..length]);
            }
        }
        settles(&proxy, base + COUNT * EACH, "after use");
    }
}

/// A program that holds `/warm` and `/slow` back until it is told.
struct Holding {
    address: SocketAddr,
    /// How many of each are in it.
    inside: Arc<[AtomicUsize; 2]>,
    go: Arc<[AtomicUsize; 2]>,
}

const WARM: usize = 0;
const SLOW: usize = 1;

impl Holding {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let holding = Self { address, inside: Arc::default(), go: Arc::default() };
        let (inside, go) = (holding.inside.clone(), holding.go.clone());
        std::thread::spawn(move || {
            for io in listener.incoming() {
                let (inside, go) = (inside.clone(), go.clone());
                std::thread::spawn(move || {
                    let mut io = io.unwrap();
                    let mut buffer = [0; 4096];
                    while let Ok(length @ 1..) = io.read(&mut buffer) {
                        let kind = usize::from(buffer[..length].starts_with(b"GET /slow"));
                        inside[kind].fetch_add(1, SeqCst);
                        while go[kind].load(SeqCst) == 0 {
                            std::thread::sleep(std::time::Duration::from_millis(1));
                        }
                        let _ = io.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
                    }
                });
            }
        });
        holding
    }

    fn has(&self, kind: usize, count: usize) {
        let began = std::time::Instant::now();
        while self.inside[kind].load(SeqCst) < count {
            assert!(began.elapsed().as_secs() < 60, "{count} requests never come");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
}

/// How many sockets listen at `address`.
fn listeners(address: &str) -> usize {
    let port = address.rsplit(':').next().unwrap().parse::<u16>().unwrap();
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let local = format!(":{port:04X} 00000000:0000 0A");
    table.lines().filter(|line| line.contains(&local)).count()
}

/// One that starts for a reload shares the sockets, and serves as soon as it is there, also if
/// SIGTERM came meanwhile. What it has taken by then is answered.
#[test]
fn one_that_comes_up_when_the_end_has_come_finishes_what_it_has_taken() {
    const SOCKETS: usize = 32;
    const REQUESTS: usize = 6;
    let program = Holding::start();
    let upstream = program.address;
    let text = format!("upstream: {upstream}\nworkers: 1\ndrain: {{ delay: 5s, limit: 60s }}\n");
    let path = file("late.yaml", &text);
    let mut proxy = Proxy::start(&["--config", path.to_str().unwrap()]);
    assert_eq!(listeners(&proxy.address), 1);
    // It warms up, which takes as long as the test wants, and has sockets of its own beside.
    let more = format!("prewarm: {{ paths: [/warm], limit: 60s }}\nworkers: {SOCKETS}\n");
    std::fs::write(&path, text.replace("workers: 1\n", &more)).unwrap();
    program.has(WARM, 1);
    assert_eq!(listeners(&proxy.address), SOCKETS);
    proxy.signal(rustix::process::Signal::TERM);
    proxy.said("leaving");
    program.go[WARM].store(1, SeqCst);
    // Nearly all of these are dealt to sockets that only the late one has.
    let asked: Vec<TcpStream> = (0..REQUESTS)
        .map(|_| {
            let mut io = TcpStream::connect(&proxy.address).unwrap();
            io.write_all(b"GET /slow HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            io
        })
        .collect();
    program.has(SLOW, REQUESTS);
    // Nobody takes connections any more.
    let began = std::time::Instant::now();
    while TcpStream::connect(&proxy.address).is_ok() {
        assert!(began.elapsed().as_secs() < 60, "it goes on to take connections");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    program.go[SLOW].store(1, SeqCst);
    for mut io in asked {
        let mut answer = String::new();
        let _ = io.read_to_string(&mut answer);
        assert!(answer.ends_with("ok"), "{answer:?}");
    }
    proxy.said("0 of them not finished");
    assert!(proxy.child.wait().unwrap().success());
}
