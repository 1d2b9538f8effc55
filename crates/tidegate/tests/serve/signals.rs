//! A real process, and a real SIGTERM.

#![cfg(unix)]

use crate::common::{SOON, soon, until};
use crate::drain::slow;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use tidegate::clock::Clock;
use tidegate::health::Health;
use tidegate::life::{Life, LifeConfig};

/// By this the test that is a server knows that it is to be one.
const ROLE: &str = "TIDEGATE_TEST_SERVER";

/// Not a test by itself: the process that the others start.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server() {
    let Ok(kind) = std::env::var(ROLE) else { return };
    let mut config = LifeConfig::default();
    // Ended by a second signal, long before.
    config.drain_delay = SOON;
    config.drain_max = SOON;
    let life = Life::new(config, Clock::monotonic());
    life.stop_on_signals().unwrap();
    let (router, mut begins, gate) = slow();
    std::thread::spawn(move || {
        // Whatever the parent writes lets a request end.
        let _ = std::io::stdin().read_exact(&mut [0]);
        gate.add_permits(1);
    });
    let router = router.merge(Health::new(life.clone()).router());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistening {}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        while begins.recv().await.is_some() {
            println!("\nbegun");
        }
    });
    match kind.as_str() {
        "tidegate" => {
            tidegate::serve(listener, router.into_make_service()).life(life).await.unwrap();
        }
        "axum" => {
            life.ready();
            let server = axum::serve(listener, router).with_graceful_shutdown(life.draining());
            life.bound(server.into_future()).await.unwrap().unwrap();
        }
        "few descriptors" => {
            // Three of them are input and output; the runtime and the listener have some.
            let few = Some(40);
            let limits = rustix::process::Rlimit { current: few, maximum: few };
            rustix::process::setrlimit(rustix::process::Resource::Nofile, limits).unwrap();
            let serve = tidegate::serve(listener, router.into_make_service()).life(life);
            let counters = serve.counters();
            tokio::spawn(async move {
                until(|| counters.accept_errors.load(Relaxed) > 0).await;
                println!("\nfull");
            });
            serve.await.unwrap();
        }
        other => panic!("{other}"),
    }
    println!("\nended");
}

struct Process {
    child: Child,
    lines: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Process {
    fn start(kind: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "signals::the_server", "--nocapture"])
            .env(ROLE, kind)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The rest of the next line that begins so.
    fn says(&mut self, beginning: &str) -> String {
        let mut lines = self.lines.by_ref().map(Result::unwrap);
        let rest = lines.find_map(|line| Some(line.strip_prefix(beginning)?.to_owned()));
        rest.unwrap_or_else(|| panic!("it never says `{beginning}`"))
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

fn ask(address: &str, path: &str) -> TcpStream {
    let mut io = TcpStream::connect(address).unwrap();
    io.set_read_timeout(Some(SOON)).unwrap();
    write!(io, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    io
}

fn answer(mut io: TcpStream) -> String {
    let mut text = String::new();
    io.read_to_string(&mut text).unwrap();
    text
}

fn status(address: &str, path: &str) -> String {
    answer(ask(address, path))[9..12].to_owned()
}

/// SIGTERM: ready no more, still serving; then nobody is taken, what is in flight finishes, and the
/// exit code is 0.
fn leaves_in_good_order(kind: &str) {
    let mut process = Process::start(kind);
    let address = process.says("listening ");
    while status(&address, "/readyz") != "200" {}
    let slow = ask(&address, "/slow");
    process.says("begun");
    process.signal(Signal::TERM);
    while status(&address, "/readyz") == "200" {}
    assert_eq!(status(&address, "/livez"), "200");
    assert_eq!(status(&address, "/"), "200");
    // Again, as process managers do: it changes nothing. Then somebody who is in a hurry.
    process.signal(Signal::TERM);
    assert_eq!(status(&address, "/"), "200");
    process.signal(Signal::INT);
    while TcpStream::connect(&address).is_ok() {}
    process.child.stdin.take().unwrap().write_all(b"!").unwrap();
    let slow = answer(slow);
    assert!(slow.starts_with("HTTP/1.1 200") && slow.ends_with("done"), "{slow}");
    process.says("ended");
    assert!(process.child.wait().unwrap().success());
}

#[tokio::test]
async fn sigterm_ends_a_server_of_ours_in_good_order() {
    soon(tokio::task::spawn_blocking(|| leaves_in_good_order("tidegate"))).await.unwrap();
}

#[tokio::test]
async fn sigterm_ends_a_server_of_axum_in_good_order() {
    soon(tokio::task::spawn_blocking(|| leaves_in_good_order("axum"))).await.unwrap();
}

/// More connections than it has file descriptors for; when they have gone it serves again.
fn survives_a_lack_of_descriptors() {
    let mut process = Process::start("few descriptors");
    let address = process.says("listening ");
    while status(&address, "/readyz") != "200" {}
    let crowd: Vec<_> = (0..64).map(|_| TcpStream::connect(&address).unwrap()).collect();
    process.says("full");
    // Behind all others in the queue.
    let last = ask(&address, "/");
    drop(crowd);
    assert!(answer(last).ends_with("hello"));
    process.signal(Signal::TERM);
    while status(&address, "/readyz") == "200" {}
    process.signal(Signal::INT);
    process.says("ended");
    assert!(process.child.wait().unwrap().success());
}

#[tokio::test]
async fn a_server_without_file_descriptors_recovers() {
    soon(tokio::task::spawn_blocking(survives_a_lack_of_descriptors)).await.unwrap();
}
