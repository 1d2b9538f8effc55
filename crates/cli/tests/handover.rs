//! Requests through a proxy that is reloaded, replaced and ended meanwhile: none is lost.
//!
//! Real processes, real sockets, and a program that remembers what it was asked. A request that the
//! program has seen and whose caller got no answer was admitted and lost. One that nobody has seen
//! and whose connection was refused or reset was lost, too, except at the very end, when nobody
//! serves any more.
//!
//! `TIDEGATE_HANDOVER_REQUESTS=100000` asks for more of them than the 20,000 of every day.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// What the program was asked.
type Seen = Arc<Mutex<BTreeSet<u64>>>;

/// Answers each request with its number. Every hundredth takes long enough to be in flight while
/// something happens to the proxy.
fn program() -> (SocketAddr, Seen) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let seen = Seen::default();
    let all = Arc::clone(&seen);
    std::thread::spawn(move || {
        for io in listener.incoming() {
            let all = Arc::clone(&all);
            std::thread::spawn(move || {
                let mut io = BufReader::new(io.unwrap());
                while let Some(head) = head(&mut io) {
                    let number: u64 = head.split(' ').nth(1).unwrap()[1..].parse().unwrap();
                    assert!(all.lock().unwrap().insert(number), "{number} came twice");
                    if number.is_multiple_of(100) {
                        std::thread::sleep(Duration::from_millis(200));
                    }
                    let body = number.to_string();
                    let answer =
                        format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
                    if io.get_mut().write_all(answer.as_bytes()).is_err() {
                        return;
                    }
                }
            });
        }
    });
    (address, seen)
}

/// Everything up to the empty line; nothing if the connection has ended.
fn head(io: &mut BufReader<TcpStream>) -> Option<String> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if io.read_line(&mut head).unwrap_or(0) == 0 {
            return None;
        }
    }
    Some(head)
}

/// What all clients share.
#[derive(Default)]
struct Crowd {
    next: AtomicU64,
    answered: AtomicU64,
    refused: AtomicU64,
    /// Requests without an answer, and what became of them.
    lost: Mutex<Vec<(u64, String)>>,
    /// Whether the last proxy is on its way out.
    ending: AtomicU64,
}

impl Crowd {
    /// Asks until nobody serves any more. `kept` is how many requests a connection may have.
    fn ask(&self, address: SocketAddr, kept: usize) {
        loop {
            let io = TcpStream::connect(address);
            let Ok(io) = io else {
                if self.ending.load(Relaxed) == 0 {
                    self.lost.lock().unwrap().push((0, format!("no connection: {io:?}")));
                }
                return;
            };
            let mut io = BufReader::new(io);
            for _ in 0..kept {
                let number = self.next.fetch_add(1, Relaxed);
                match exchange(&mut io, number) {
                    Ok(answer) if answer.status == 200 => {
                        assert_eq!(answer.body, number.to_string());
                        self.answered.fetch_add(1, Relaxed);
                        if answer.closes {
                            break;
                        }
                    }
                    Ok(answer) => {
                        assert!(answer.reasoned, "{} without a reason", answer.status);
                        self.refused.fetch_add(1, Relaxed);
                        if answer.closes {
                            break;
                        }
                    }
                    Err(what) => {
                        self.lost.lock().unwrap().push((number, what));
                        break;
                    }
                }
            }
        }
    }
}

struct Answer {
    status: u16,
    closes: bool,
    reasoned: bool,
    body: String,
}

fn exchange(io: &mut BufReader<TcpStream>, number: u64) -> Result<Answer, String> {
    let request = format!("GET /{number} HTTP/1.1\r\nhost: x\r\n\r\n");
    io.get_mut().write_all(request.as_bytes()).map_err(|error| format!("write: {error}"))?;
    let head = head(io).ok_or("the connection ended without an answer")?;
    let field = |name: &str| head.lines().find_map(|line| line.strip_prefix(name));
    let length = field("content-length: ").ok_or_else(|| head.clone())?;
    let mut body = vec![0; length.parse().unwrap()];
    io.read_exact(&mut body).map_err(|error| format!("read: {error}"))?;
    Ok(Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        closes: field("connection: ") == Some("close"),
        reasoned: field("x-tidegate-reason: ").is_some(),
        body: String::from_utf8(body).unwrap(),
    })
}

struct Proxy {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStderr>>,
}

impl Proxy {
    fn start(config: &Path, socket: &Path) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.arg("proxy").arg("--config").arg(config).arg("--handover").arg(socket);
        Self::of(command)
    }

    fn of(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        Self { child, lines }
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

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for its end, and returns how many requests it has handed on.
    fn ended(mut self) -> u64 {
        let line = self.said("requests handed on");
        assert!(line.ends_with(" 0 of them not finished"), "{line}");
        assert!(self.child.wait().unwrap().success());
        line.split(' ').nth(1).unwrap().parse().unwrap()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Files {
    folder: PathBuf,
    upstream: SocketAddr,
}

impl Files {
    fn new(name: &str, upstream: SocketAddr) -> Self {
        let folder = std::env::temp_dir().join(format!("tidegate-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self { folder, upstream }
    }

    fn config(&self) -> PathBuf {
        self.folder.join("proxy.yaml")
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("handover.sock")
    }

    /// Somebody who asks to take over.
    fn heir(&self) -> std::os::unix::net::UnixStream {
        let began = std::time::Instant::now();
        loop {
            // It waits for successors some time after it serves.
            match std::os::unix::net::UnixStream::connect(self.socket()) {
                Ok(io) => return io,
                Err(error) if began.elapsed().as_secs() > 60 => panic!("{error}"),
                Err(_) => std::thread::yield_now(),
            }
        }
    }

    fn write(&self, rest: &str) {
        let text = format!(
            "upstream: {}\nlisten: 127.0.0.1:0\nadmin: 127.0.0.1:0\n\
             drain: {{ delay: 3s, limit: 20s }}\n{rest}",
            self.upstream
        );
        // At once, as the proxy looks at it whenever it likes.
        let new = self.folder.join("new.yaml");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.config()).unwrap();
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

fn address(said: &str) -> SocketAddr {
    said.split("http://").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn nothing_admitted_is_lost_by_reloads_successors_and_the_end() {
    let wanted = std::env::var("TIDEGATE_HANDOVER_REQUESTS").ok();
    let wanted: u64 = wanted.map_or(20_000, |text| text.parse().unwrap());
    let (upstream, seen) = program();
    let files = Files::new("handover", upstream);
    files.write("workers: 2\n");
    let mut proxy = Proxy::start(&files.config(), &files.socket());
    let place = address(&proxy.said("listening at"));
    proxy.said("dashboard at");
    let crowd = Arc::new(Crowd::default());
    // Some keep their connections for long, some for a while, some for one request.
    let clients: Vec<JoinHandle<()>> = [10_000, 10_000, 10_000, 50, 50, 1]
        .map(|kept| {
            let crowd = Arc::clone(&crowd);
            std::thread::spawn(move || crowd.ask(place, kept))
        })
        .into();
    let (mut retired, mut rounds, mut workers) = (Vec::new(), 0, 2);
    while rounds < 3 || crowd.answered.load(Relaxed) < wanted {
        let lost = crowd.lost.lock().unwrap();
        assert!(lost.is_empty(), "after {rounds} rounds: {lost:?}");
        drop(lost);
        rounds += 1;
        // What it can change while it runs, and a signal for nothing.
        files.write(&format!("workers: {workers}\nmode: enforce\n"));
        proxy.signal(rustix::process::Signal::HUP);
        proxy.said("read anew: what is too much is refused");
        proxy.signal(rustix::process::Signal::HUP);
        proxy.said("read anew: what is too much is refused");
        // What it cannot read.
        files.write("workers: some\n");
        proxy.signal(rustix::process::Signal::HUP);
        proxy.said("the configuration is refused, it goes on as before");
        // A successor that cannot read it either.
        let mut bad = Proxy::start(&files.config(), &files.socket());
        bad.said("the configuration is refused");
        assert!(!bad.child.wait().unwrap().success());
        // What it cannot do.
        let nowhere = "tls: { cert: /nowhere, key: /nowhere }";
        files.write(&format!("workers: {workers}\n{nowhere}\n"));
        proxy.signal(rustix::process::Signal::HUP);
        proxy.said("the configuration cannot run, it goes on as before");
        // Other workers: another proxy in the same process, at the same sockets.
        workers = workers % 3 + 1;
        files.write(&format!("workers: {workers}\n"));
        proxy.signal(rustix::process::Signal::HUP);
        let said = proxy.said("read anew, and started anew for: ");
        assert!(said.contains("workers"), "{said}");
        assert_eq!(address(&proxy.said("listening at")), place);
        // Another process.
        let mut successor = Proxy::start(&files.config(), &files.socket());
        assert_eq!(address(&successor.said("listening at")), place);
        successor.said("taken over");
        proxy.said("a successor has taken over");
        retired.push(core::mem::replace(&mut proxy, successor));
    }
    assert!(crowd.lost.lock().unwrap().is_empty(), "{:?}", crowd.lost.lock().unwrap());
    crowd.ending.store(1, Relaxed);
    proxy.signal(rustix::process::Signal::TERM);
    retired.push(proxy);
    let handed: u64 = retired.into_iter().map(Proxy::ended).sum();
    for client in clients {
        client.join().unwrap();
    }
    let (seen, lost) = (seen.lock().unwrap(), crowd.lost.lock().unwrap());
    let admitted: Vec<_> = lost.iter().filter(|(number, _)| seen.contains(number)).collect();
    assert!(admitted.is_empty(), "admitted and lost: {admitted:?}");
    let answered = crowd.answered.load(Relaxed);
    assert_eq!((handed, answered), (seen.len() as u64, seen.len() as u64));
    eprintln!(
        "{answered} requests answered, {} refused, {rounds} rounds, {} met a closed door at last",
        crowd.refused.load(Relaxed),
        lost.len(),
    );
}

#[test]
fn strangers_and_the_dead_are_no_predecessors() {
    let (upstream, _) = program();
    let files = Files::new("heirs", upstream);
    files.write("");
    // A socket that somebody has left behind.
    drop(std::os::unix::net::UnixListener::bind(files.socket()).unwrap());
    let mut proxy = Proxy::start(&files.config(), &files.socket());
    proxy.said("dashboard at");
    // Who does not speak our language changes nothing.
    let mut other = files.heir();
    other.write_all(b"hello\n").unwrap();
    let mut answer = String::new();
    other.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "this is tidegate-handover 1\n");
    proxy.said("nobody has taken over: a successor says `hello`");
    // Nor who takes the sockets and dies.
    let mut dies = std::os::unix::net::UnixStream::connect(files.socket()).unwrap();
    dies.write_all(b"tidegate-handover 1\n").unwrap();
    let mut line = [0; 9];
    dies.read_exact(&mut line).unwrap();
    assert_eq!(&line, b"listener ");
    drop(dies);
    proxy.said("nobody has taken over: it broke off");
    // One that was killed leaves its file, and nobody minds.
    proxy.signal(rustix::process::Signal::KILL);
    proxy.child.wait().unwrap();
    assert!(files.socket().exists());
    let mut next = Proxy::start(&files.config(), &files.socket());
    next.said("dashboard at");
    // It has put its own there once it answers.
    drop(files.heir());
    next.said("nobody has taken over: it broke off");
    next.signal(rustix::process::Signal::INT);
    next.said("leaving");
    next.signal(rustix::process::Signal::INT);
    next.said("0 requests handed on");
    assert!(next.child.wait().unwrap().success());
    assert!(!files.socket().exists(), "what it has made it takes away");
}

#[test]
fn one_that_was_replaced_leaves_the_place_to_its_successor() {
    let (upstream, _) = program();
    let files = Files::new("place", upstream);
    files.write("");
    let mut proxy = Proxy::start(&files.config(), &files.socket());
    proxy.said("dashboard at");
    let mut successor = files.heir();
    successor.write_all(b"tidegate-handover 1\nserving\n").unwrap();
    proxy.said("a successor has taken over");
    assert_eq!(proxy.ended(), 0);
    assert!(files.socket().exists(), "it is not the replaced one's any more");
}

#[test]
fn a_service_manager_is_told_who_serves() {
    let (upstream, _) = program();
    let files = Files::new("notify", upstream);
    files.write("");
    let path = files.folder.join("notify.sock");
    let manager = std::os::unix::net::UnixDatagram::bind(&path).unwrap();
    let hear = || {
        let mut bytes = [0; 256];
        let length = manager.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    let main_pid = |said: &str| -> u32 {
        assert!(said.starts_with("READY=1\nMAINPID="), "{said}");
        said.lines().nth(1).unwrap().trim_start_matches("MAINPID=").parse().unwrap()
    };
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.env("NOTIFY_SOCKET", &path).arg("proxy").arg("--config").arg(files.config());
    command.arg("--handover").arg(files.socket()).stderr(Stdio::piped());
    let mut proxy = Proxy::of(command);
    assert_eq!(main_pid(&hear()), proxy.child.id());
    proxy.signal(rustix::process::Signal::USR2);
    let started = proxy.said("a successor starts: process ");
    // It says so itself, and the first does not say that the service ends.
    let successor = main_pid(&hear());
    assert!(started.ends_with(&format!(" {successor}")), "{started}");
    proxy.said("a successor has taken over");
    let pid = rustix::process::Pid::from_raw(successor.cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(hear().starts_with("STOPPING=1"));
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert!(proxy.child.wait().unwrap().success());
}

/// It would warm up for an hour.
#[test]
fn nobody_who_is_impatient_waits_for_a_successor_that_nobody_needs() {
    let upstream = TcpListener::bind("127.0.0.1:0").unwrap();
    let files = Files::new("impatient", upstream.local_addr().unwrap());
    files.write("workers: 1\n");
    let mut proxy = Proxy::start(&files.config(), &files.socket());
    proxy.said("dashboard at");
    files.write("workers: 2\nprewarm: { paths: [/], limit: 3600s }\n");
    proxy.signal(rustix::process::Signal::HUP);
    // The program is asked, and does not answer.
    let (_asked, _) = upstream.accept().unwrap();
    proxy.signal(rustix::process::Signal::INT);
    proxy.said("leaving");
    proxy.signal(rustix::process::Signal::INT);
    assert_eq!(proxy.ended(), 0);
}
