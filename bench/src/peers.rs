//! Programs that people put in front of theirs, started and stopped.

use crate::Outcome;
use rustix::process::{Resource, getrlimit, setrlimit};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// A proxy, ours or another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Peer {
    Nginx,
    Haproxy,
    Envoy,
    Tidegate,
}

impl Peer {
    pub(crate) const ALL: [Self; 4] = [Self::Nginx, Self::Haproxy, Self::Envoy, Self::Tidegate];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
            Self::Envoy => "envoy",
            Self::Tidegate => "tidegate",
        }
    }

    /// Where it is, if it is anywhere.
    pub(crate) fn program(self) -> Option<PathBuf> {
        let found = |path: PathBuf| path.is_file().then_some(path);
        match self {
            Self::Nginx => found("/usr/sbin/nginx".into()),
            Self::Haproxy => found("/usr/sbin/haproxy".into()),
            Self::Envoy => {
                let peers = std::env::var_os("TIDEGATE_PEERS").map(PathBuf::from);
                found(peers.unwrap_or_else(|| "target/peers/venv".into()).join("bin/envoy"))
            }
            Self::Tidegate => std::env::current_exe().ok(),
        }
    }

    /// Where it is, or a word to whoever looks that it is left out.
    pub(crate) fn found(self) -> Option<PathBuf> {
        let program = self.program();
        if program.is_none() {
            eprintln!("{} is not there and is left out; {} gets it", self.name(), self.source());
        }
        program
    }

    const fn source(self) -> &'static str {
        match self {
            Self::Nginx => "`apt install nginx-light`",
            Self::Haproxy => "`apt install haproxy`",
            Self::Envoy => "`cargo xtask test --only install`",
            Self::Tidegate => "",
        }
    }
}

/// As many connections as `wanted`, if the system allows for so many.
pub(crate) fn raise_file_limit(wanted: u64) {
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum.map_or(Some(wanted), |maximum| Some(maximum.min(wanted)));
    // With less there are fewer connections, and whoever finds none says so.
    let _ = setrlimit(Resource::Nofile, limit);
}

/// What a proxy is told: its file, or for ours its arguments.
pub(crate) enum Told {
    File(String),
    Arguments(Vec<String>),
}

/// A proxy that runs.
pub(crate) struct Running {
    child: Child,
    pub(crate) address: SocketAddr,
    directory: PathBuf,
}

impl Running {
    /// Starts `program`, told what `told` makes of where it is to listen and of a directory for
    /// its files, on `cpu`.
    pub(crate) fn start(
        peer: Peer,
        program: &Path,
        cpu: Option<usize>,
        told: impl FnOnce(SocketAddr, &Path) -> Told,
    ) -> Outcome<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tidegate-bench-{}-{number}", std::process::id());
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&directory)?;
        // Somebody else may take it before the proxy does; then it is not reached, and says so.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new("taskset");
        command.arg("-c").arg(cpu.unwrap_or(0).to_string()).arg(program);
        match told(address, &directory) {
            Told::Arguments(arguments) => {
                command.args(arguments);
            }
            Told::File(text) => {
                let file = directory.join("proxy.conf");
                std::fs::write(&file, &text)?;
                match peer {
                    Peer::Nginx => command.arg("-c").arg(&file).arg("-p").arg(&directory),
                    Peer::Haproxy => command.arg("-db").arg("-f").arg(&file),
                    Peer::Envoy | Peer::Tidegate => command
                        .args(["--concurrency", "1", "--log-level", "error"])
                        .args(["--base-id", &address.port().to_string()])
                        .args(["--config-yaml", &text]),
                };
            }
        }
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        let running = Self { child, address, directory };
        for _ in 0..500 {
            if TcpStream::connect(address).is_ok() {
                return Ok(running);
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Err(format!("{} does not listen at {address}", peer.name()).into())
    }

    /// What the kernel says of its memory under this name, in KiB.
    pub(crate) fn memory(&self, name: &str) -> Outcome<f64> {
        let text = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        let number = line.and_then(|line| line.split_whitespace().next());
        Ok(number.ok_or("no such figure of memory")?.parse()?)
    }

    /// CPU time of the process and its children, in seconds.
    pub(crate) fn cpu_seconds(&self) -> Outcome<f64> {
        let mut ticks = 0.0;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok())
            else {
                continue;
            };
            let Ok(stat) = std::fs::read_to_string(entry.path().join("stat")) else { continue };
            let fields = stat.rsplit(')').next().unwrap_or_default();
            let fields: Vec<&str> = fields.split_whitespace().collect();
            // After the name in brackets comes field 3.
            let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
            if pid == self.child.id() || field(4) == Some(f64::from(self.child.id())) {
                ticks += field(14).zip(field(15)).map_or(0.0, |(user, system)| user + system);
            }
        }
        Ok(ticks / 100.0)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // nginx's worker ends with its master only if that is told, not killed.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        for _ in 0..100 {
            if matches!(self.child.try_wait(), Ok(Some(_))) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}
