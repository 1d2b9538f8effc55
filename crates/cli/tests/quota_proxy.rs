//! A quota server and a proxy, as processes: limits that are pushed hold at the proxy, whatever
//! becomes of the server.
//!
//! The program behind the proxy says what its requests cost, so that nothing here depends on how
//! much of the machine others take.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, SanType};
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::{Duration, Instant};
use tidegate_tls::rustls::{ClientConnection, StreamOwned};
use tidegate_tls::{Client, ClientOptions, Identity, Roots};

/// What a request costs, as the program says.
const COST: f64 = 0.01;
/// What the bad one may use, in CPUs: five requests a second.
const LIMIT: f64 = 0.05;

/// A program that says `ok` to whatever comes, and what that was worth.
fn program() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for io in listener.incoming() {
            std::thread::spawn(move || {
                let mut io = io.unwrap();
                let mut buffer = [0; 4096];
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nendpoint-load-metrics: TEXT request_cost.cpu={COST}\r\n\
                     content-length: 2\r\n\r\nok"
                );
                while io.read(&mut buffer).unwrap_or(0) > 0 {
                    let _ = io.write_all(answer.as_bytes());
                }
            });
        }
    });
    address
}

/// A directory with an authority, and certificates of whoever is asked for.
struct Files {
    directory: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

impl Files {
    fn new() -> Self {
        let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("quota-proxy");
        std::fs::create_dir_all(&directory).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let root = params.self_signed(&key).unwrap().pem();
        std::fs::write(directory.join("ca.pem"), root).unwrap();
        Self { directory, issuer: Issuer::new(params, key) }
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn sign(&self, file: &str, name: SanType) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.subject_alt_names = vec![name];
        let certificate = params.signed_by(&key, &self.issuer).unwrap().pem();
        self.write(&format!("{file}.pem"), &certificate);
        self.write(&format!("{file}.key"), &key.serialize_pem());
    }
}

fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    command.args(arguments).stdin(Stdio::null());
    command
}

/// A process that is killed with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Proxy {
    process: Process,
    lines: std::io::Lines<BufReader<ChildStderr>>,
}

impl Proxy {
    fn start(arguments: &[&str]) -> (Self, SocketAddr) {
        let mut child = command(arguments).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let mut proxy = Self { process: Process(child), lines };
        let line = proxy.said("listening at https://");
        let address = line.split("https://").nth(1).unwrap().split(' ').next().unwrap();
        let address = address.parse().unwrap();
        (proxy, address)
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
}

/// One who calls by its certificate.
struct Caller {
    client: Client,
    address: SocketAddr,
    stream: Option<BufReader<StreamOwned<ClientConnection, TcpStream>>>,
}

impl Caller {
    fn new(files: &Files, who: &str, address: SocketAddr) -> Self {
        let mut options = ClientOptions::default();
        options.roots = Roots::Given(PathBuf::from(files.path("ca.pem")).into());
        let (cert, key) = (files.path(&format!("{who}.pem")), files.path(&format!("{who}.key")));
        options.identity = Some(Identity::new(PathBuf::from(cert), PathBuf::from(key)));
        Self { client: Client::new(options).unwrap(), address, stream: None }
    }

    /// One request; its status, or nothing if the connection had ended.
    fn try_ask(&mut self) -> Option<u16> {
        if self.stream.is_none() {
            let name = Client::name("127.0.0.1").unwrap();
            let tls = ClientConnection::new(self.client.config(), name).unwrap();
            let io = TcpStream::connect(self.address).ok()?;
            self.stream = Some(BufReader::new(StreamOwned::new(tls, io)));
        }
        let stream = self.stream.as_mut()?;
        let mut exchange = || {
            stream.get_mut().write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").ok()?;
            let (mut status, mut length) = (None, 0);
            loop {
                let mut line = String::new();
                if stream.read_line(&mut line).ok()? == 0 {
                    return None;
                }
                let line = line.trim_end().to_ascii_lowercase();
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
        };
        let status = exchange();
        if status.is_none() {
            self.stream = None;
        }
        status
    }

    fn ask(&mut self) -> u16 {
        (0..10).find_map(|_| self.try_ask()).expect("it answers")
    }
}

/// The bad one asks as fast as it can and the good one ten times a second. Returns what the bad one
/// was served of, in CPUs, and how often each was refused.
fn load(good: &mut Caller, bad: &mut Caller, seconds: u64) -> (f64, [u64; 2]) {
    let (began, mut served, mut refused) = (Instant::now(), 0.0, [0, 0]);
    let mut due = began;
    while began.elapsed() < Duration::from_secs(seconds) {
        match bad.ask() {
            200 => served += COST,
            429 => refused[1] += 1,
            _ => {}
        }
        if Instant::now() >= due {
            due += Duration::from_millis(100);
            refused[0] += u64::from(good.ask() == 429);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    (served / began.elapsed().as_secs_f64(), refused)
}

fn tasks(url: &str) -> Option<u64> {
    let output = command(&["quota", "status", url, "--json"]).output().unwrap();
    let status: Value = serde_json::from_slice(&output.stdout).ok()?;
    status["services"][0]["tasks"].as_u64()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn limits_of_a_server_hold_at_a_proxy_also_when_that_is_gone() {
    let files = Files::new();
    files.sign("proxy", SanType::IpAddress("127.0.0.1".parse().unwrap()));
    for who in ["good", "bad"] {
        files.sign(who, SanType::DnsName(format!("{who}.internal").try_into().unwrap()));
    }
    let state = files.path("quota.state");
    let _ = std::fs::remove_file(&state);
    let file = files.write(
        "quota.yaml",
        &format!(
            "quota:\n  state: {state}\n  services:\n    demo:\n      default: 0.01\n      \
             customers: {{ good: 4, bad: {LIMIT} }}\n"
        ),
    );
    let mut server = command(&["quota", "--config", &file, "--listen", "127.0.0.1:0"]);
    let mut server = Process(server.stdout(Stdio::piped()).spawn().unwrap());
    let mut hello = String::new();
    BufReader::new(server.0.stdout.take().unwrap()).read_line(&mut hello).unwrap();
    let at = hello.split_once("listens on ").unwrap().1.split(',').next().unwrap();
    let url = format!("http://{at}");
    let text = format!(
        "upstream: {}\nwatch: nothing\nmode: enforce\nservice: front\nworkers: 1\n\
         drain: {{ delay: 100ms, limit: 1s }}\n\
         tls: {{ cert: {}, key: {}, client_ca: {} }}\n\
         quota: {{ servers: ['{url}'], service: demo, name: proxy-1 }}\n\
         customers:\n  good: {{ identities: [dns:good.internal] }}\n  \
         bad: {{ identities: [dns:bad.internal] }}\n",
        program(),
        files.path("proxy.pem"),
        files.path("proxy.key"),
        files.path("ca.pem")
    );
    let file = files.write("proxy.yaml", &text);
    let checked = command(&["check", &file]).output().unwrap();
    assert!(checked.status.success(), "{checked:?}");
    let (mut proxy, address) =
        Proxy::start(&["proxy", "--config", &file, "--listen", "127.0.0.1:0"]);
    assert_eq!(tasks(&url), Some(1), "it takes part before it serves");
    let (mut good, mut bad) =
        (Caller::new(&files, "good", address), Caller::new(&files, "bad", address));
    // A task that never served a customer finds next to nothing set aside for it.
    let warm = |caller: &mut Caller| {
        let mut row = 0;
        until("it is served ten times in a row", || {
            row = if caller.ask() == 200 { row + 1 } else { 0 };
            std::thread::sleep(Duration::from_millis(50));
            row == 10
        });
    };
    warm(&mut good);
    // Within a report and a round the bad one has all of its limit, and no more.
    load(&mut good, &mut bad, 3);
    let held = |used: f64, refused: [u64; 2], when: &str| {
        assert!((0.8 * LIMIT..=1.1 * LIMIT).contains(&used), "{when}: {used} of {LIMIT}");
        assert_eq!(refused[0], 0, "{when}: the good one is refused");
        assert!(refused[1] > 0, "{when}: the bad one is not");
    };
    let (used, refused) = load(&mut good, &mut bad, 6);
    held(used, refused, "with a server");

    // What the file says of limits is nothing, and stays nothing.
    files.write("proxy.yaml", &format!("{text}# as before\n"));
    proxy.said("read anew: ");
    let (used, refused) = load(&mut good, &mut bad, 6);
    held(used, refused, "after a reload");

    // Another proxy in its place is another task; the one before leaves.
    files.write("proxy.yaml", &text.replace("workers: 1", "workers: 2"));
    proxy.said("started anew for: workers");
    warm(&mut good);
    until("the one before has left", || tasks(&url) == Some(1));
    load(&mut good, &mut bad, 3);
    let (used, refused) = load(&mut good, &mut bad, 6);
    held(used, refused, "with a successor");

    server.0.kill().unwrap();
    server.0.wait().unwrap();
    let (used, refused) = load(&mut good, &mut bad, 8);
    held(used, refused, "without a server");
    drop(proxy.process);
}
