//! An etcd of three members on loopback.

use crate::until;
use core::time::Duration;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

pub(crate) const MEMBERS: usize = 3;

/// A process that is killed with the test.
pub(crate) struct Process(pub(crate) Child);

impl Process {
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.0), signal).unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ports that nobody has, for now.
pub(crate) fn ports<const N: usize>() -> [SocketAddr; N] {
    let listeners = [(); N].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    listeners.map(|listener| listener.local_addr().unwrap())
}

pub(crate) struct Etcd {
    clients: [SocketAddr; MEMBERS],
    peers: [SocketAddr; MEMBERS],
    members: [Option<Process>; MEMBERS],
    folder: PathBuf,
}

impl Etcd {
    pub(crate) fn start(name: &str) -> Self {
        // In memory, where there is such a place: what disks do is no part of this.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
        let folder = folder.join(format!("tidegate-etcd-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&folder);
        std::fs::create_dir_all(&folder).unwrap();
        let all: [SocketAddr; 2 * MEMBERS] = ports();
        let clients = core::array::from_fn(|n| all[n]);
        let peers = core::array::from_fn(|n| all[MEMBERS + n]);
        let mut etcd = Self { clients, peers, members: [const { None }; MEMBERS], folder };
        for n in 0..MEMBERS {
            etcd.run(n);
        }
        for n in 0..MEMBERS {
            until("a member listens", || TcpStream::connect(etcd.clients[n]).is_ok());
        }
        etcd
    }

    /// Starts a member, which goes on with what it has written down.
    pub(crate) fn run(&mut self, n: usize) {
        let (client, peer) = (self.clients[n], self.peers[n]);
        let all: Vec<String> =
            self.peers.iter().enumerate().map(|(n, peer)| format!("m{n}=http://{peer}")).collect();
        let log = std::fs::File::create(self.folder.join(format!("m{n}.log"))).unwrap();
        let child = Command::new("etcd")
            .arg("--data-dir")
            .arg(self.folder.join(format!("m{n}")))
            .args(["--name", &format!("m{n}"), "--initial-cluster", &all.join(",")])
            .args(["--listen-client-urls", &format!("http://{client}")])
            .args(["--advertise-client-urls", &format!("http://{client}")])
            .args(["--listen-peer-urls", &format!("http://{peer}")])
            .args(["--initial-advertise-peer-urls", &format!("http://{peer}")])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn();
        let next = "TIDEGATE_PEERS is set, but there is no etcd: `cargo xtask test --only install`";
        self.members[n] = Some(Process(child.expect(next)));
    }

    /// Kills a member.
    pub(crate) fn kill(&mut self, n: usize) {
        self.members[n] = None;
    }

    /// Whether a member says that it can read what most of them agree on.
    pub(crate) fn is_healthy(&self, n: usize) -> bool {
        let ask = || {
            let mut member = TcpStream::connect(self.clients[n])?;
            member.set_read_timeout(Some(Duration::from_secs(2)))?;
            member.write_all(b"GET /health HTTP/1.0\r\n\r\n")?;
            let mut answer = String::new();
            member.read_to_string(&mut answer)?;
            std::io::Result::Ok(answer)
        };
        ask().is_ok_and(|answer| answer.contains(r#""health":"true""#))
    }

    pub(crate) const fn clients(&self) -> [SocketAddr; MEMBERS] {
        self.clients
    }

    pub(crate) fn urls(&self) -> [String; MEMBERS] {
        self.clients.map(|client| format!("http://{client}"))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.members = [const { None }; MEMBERS];
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
