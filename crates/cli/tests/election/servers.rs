//! Three quota servers, each with its own lines to etcd, and somebody who asks each how it stands.

use crate::etcd::{Etcd, Process, ports};
use crate::relay::Relay;
use crate::{scratch, until};
use rustix::process::Signal;
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tidegate_wire::proto::tidegate::quota::v1::StatusResponse;

pub(crate) const SERVERS: usize = 3;

/// An answer of a server.
#[derive(Debug, Clone)]
pub(crate) struct Told {
    pub(crate) server: usize,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    pub(crate) status: StatusResponse,
}

pub(crate) struct Servers {
    pub(crate) addresses: [SocketAddr; SERVERS],
    processes: [Option<Process>; SERVERS],
    files: Vec<String>,
    relays: Vec<Vec<Relay>>,
    told: Arc<Mutex<Vec<Told>>>,
    ended: Arc<AtomicBool>,
}

/// Asks a server how it stands, if it answers.
fn ask(runtime: &tokio::runtime::Runtime, url: &str) -> Option<StatusResponse> {
    runtime.block_on(tidegate_quota::status(url, "", None)).ok()
}

/// The same, once.
pub(crate) fn status(url: &str) -> Option<StatusResponse> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    ask(&runtime, url)
}

fn watch(server: usize, url: String, told: Arc<Mutex<Vec<Told>>>, ended: Arc<AtomicBool>) {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        while !ended.load(Ordering::Relaxed) {
            let asked = Instant::now();
            if let Some(status) = ask(&runtime, &url) {
                let answered = Instant::now();
                told.lock().unwrap().push(Told { server, asked, answered, status });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    });
}

impl Servers {
    /// Servers by a file that ends with `services`.
    pub(crate) fn start(name: &str, etcd: &Etcd, services: &str) -> Self {
        let addresses: [SocketAddr; SERVERS] = ports();
        let mut relays = Vec::new();
        let mut files = Vec::new();
        let (told, ended) = (Arc::default(), Arc::default());
        for (n, address) in addresses.iter().enumerate() {
            let mine: Vec<Relay> = etcd.clients().map(Relay::to).into();
            let endpoints = mine.iter().map(|relay| format!("'http://{}'", relay.address));
            let endpoints: Vec<String> = endpoints.collect();
            let text = format!(
                "quota:\n  listen: {address}\n  election: {{ etcd: [{}], prefix: /{name} }}\n\
                 {services}",
                endpoints.join(", ")
            );
            let file = scratch(&format!("election-{name}-{n}.yaml"));
            std::fs::write(&file, text).unwrap();
            files.push(file.to_str().unwrap().to_owned());
            relays.push(mine);
            watch(n, format!("http://{address}"), Arc::clone(&told), Arc::clone(&ended));
        }
        let processes = [const { None }; SERVERS];
        let mut servers = Self { addresses, processes, files, relays, told, ended };
        for n in 0..SERVERS {
            servers.run(n);
        }
        servers
    }

    pub(crate) fn run(&mut self, n: usize) {
        self.processes[n] = Some(Self::process(&self.files[n]));
    }

    /// A server by this file.
    pub(crate) fn process(file: &str) -> Process {
        let child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["quota", "--config", file])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Process(child.unwrap())
    }

    pub(crate) fn urls(&self) -> [String; SERVERS] {
        self.addresses.map(|address| format!("http://{address}"))
    }

    pub(crate) fn kill(&mut self, n: usize) {
        self.processes[n] = None;
    }

    pub(crate) fn signal(&self, n: usize, signal: Signal) {
        self.processes[n].as_ref().unwrap().signal(signal);
    }

    /// Cuts a server off from etcd, or connects it again.
    pub(crate) fn cut(&self, n: usize, cut: bool) {
        self.relays[n].iter().for_each(|relay| relay.cut(cut));
    }

    /// All that was answered so far.
    pub(crate) fn told(&self) -> Vec<Told> {
        self.told.lock().unwrap().clone()
    }

    /// The latest answer of a server to a question after `since`.
    pub(crate) fn latest(&self, n: usize, since: Instant) -> Option<StatusResponse> {
        let told = self.told.lock().unwrap();
        let mine = told.iter().rev().find(|told| told.server == n && told.asked >= since);
        mine.map(|told| told.status.clone())
    }

    /// What a server says that is asked now.
    pub(crate) fn status(&self, n: usize) -> StatusResponse {
        let since = Instant::now();
        let mut status = None;
        until("there is an answer", || {
            status = self.latest(n, since);
            status.is_some()
        });
        status.unwrap()
    }

    /// Waits for a leader with a later epoch than `after`, which is not `but`: who, its epoch, and
    /// in how long it had answered so.
    pub(crate) fn leader(&self, after: u64, but: Option<usize>) -> (usize, u64, Duration) {
        let since = Instant::now();
        let mut found = None;
        until("there is a leader", || {
            let told = self.told.lock().unwrap();
            let leads = |told: &&Told| {
                told.status.leads && told.status.epoch > after && Some(told.server) != but
            };
            found = told.iter().find(leads).cloned();
            found.is_some()
        });
        let Told { server, answered, status, .. } = found.unwrap();
        (server, status.epoch, answered.saturating_duration_since(since))
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.relays.iter().flatten().for_each(Relay::end);
    }
}
