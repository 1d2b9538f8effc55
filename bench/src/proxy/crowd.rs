//! Many connections, in a process of their own: descriptors are counted by process.
//!
//! It opens all, and says so; then each line that it reads is something to do, and is answered by
//! one line of JSON. It ends when there are no more.
//!
//! | line | is |
//! |---|---|
//! | `ask` | a request on each, [`AT_ONCE`] at a time |
//! | `rush` | a request on each, all at once; one that is refused asks again when it was told to, for a minute |

use crate::Outcome;
use crate::peers::raise_file_limit;
use clap::Args;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::rc::Rc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::{JoinSet, LocalSet};

/// As a server sees from clients that do not know of each other.
const AT_ONCE: usize = 64;

/// Connections from one address: well below the ports that a system gives out.
const EACH: usize = 20_000;

/// How long somebody who is refused goes on asking.
const PATIENCE: Duration = Duration::from_secs(60);

const H1: &[u8] = b"GET / HTTP/1.1\r\nhost: bench\r\n\r\n";

/// HTTP/2's greeting with settings that say nothing; and GET / on stream 1, all of it by indices
/// but for the authority `x`.
const H2_GREETING: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
const H2_GET: &[u8] = b"\0\0\x06\x01\x05\0\0\0\x01\x82\x84\x86\x41\x01x";

#[derive(Args)]
pub(crate) struct Options {
    address: SocketAddr,
    count: usize,
    /// Speak HTTP/2.
    #[arg(long)]
    http2: bool,
}

/// The child's side.
pub(crate) fn run(options: &Options) -> Outcome {
    raise_file_limit(options.count as u64 + 64);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        let mut all = Vec::with_capacity(options.count);
        for number in 0..options.count {
            let mut io = connect(options.address, number / EACH).await?;
            if options.http2 {
                io.write_all(H2_GREETING).await?;
            }
            all.push(io);
        }
        println!("{}", json!({ "open": all.len() }));
        for line in std::io::stdin().lines() {
            let (http2, rushes) = (options.http2, line? == "rush");
            let start = Instant::now();
            let at_once = Rc::new(Semaphore::new(if rushes { all.len() } else { AT_ONCE }));
            let mut asked = JoinSet::new();
            for mut io in all.drain(..) {
                let at_once = Rc::clone(&at_once);
                asked.spawn_local(async move {
                    let _one = at_once.acquire().await;
                    let answer = match (http2, rushes) {
                        (true, _) => once_by_http2(&mut io).await.map(|status| (status, 0)),
                        (false, false) => once(&mut io).await.map(|(status, _)| (status, 0)),
                        (false, true) => until_served(&mut io).await,
                    };
                    (io, answer)
                });
            }
            let (mut statuses, mut again) = (BTreeMap::new(), 0);
            while let Some(done) = asked.join_next().await {
                let (io, answer) = done?;
                all.push(io);
                let name = match answer {
                    Ok((status, tries)) => {
                        again += tries;
                        status.to_string()
                    }
                    Err(_) => "failed".to_owned(),
                };
                *statuses.entry(name).or_insert(0_u64) += 1;
            }
            let seconds = start.elapsed().as_secs_f64();
            println!("{}", json!({ "statuses": statuses, "again": again, "seconds": seconds }));
        }
        Ok(())
    })
}

/// From 127.0.0.1 and on, as one address has only so many ports.
pub(super) async fn connect(to: SocketAddr, from: usize) -> Outcome<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    let last = u8::try_from(1 + from)?;
    if from > 0 {
        socket.bind((Ipv4Addr::new(127, 0, 0, last), 0).into())?;
    }
    let io = socket.connect(to).await?;
    io.set_nodelay(true)?;
    Ok(io)
}

/// A request, and the status of its answer with what `retry-after` says.
pub(super) async fn once(io: &mut TcpStream) -> Outcome<(u16, Option<Duration>)> {
    io.write_all(H1).await?;
    let mut read = Vec::with_capacity(512);
    let end = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        if io.read_buf(&mut read).await? == 0 {
            return Err("it has hung up".into());
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).to_lowercase();
    let number = |name: &str| -> Option<u64> {
        head.lines().find_map(|line| line.strip_prefix(name))?.trim().parse().ok()
    };
    let length = end + number("content-length:").unwrap_or(0) as usize;
    while read.len() < length {
        if io.read_buf(&mut read).await? == 0 {
            return Err("it has hung up".into());
        }
    }
    let status = head.get(9..12).and_then(|status| status.parse().ok()).ok_or("no status")?;
    Ok((status, number("retry-after:").map(Duration::from_secs)))
}

async fn once_by_http2(io: &mut TcpStream) -> Outcome<u16> {
    io.write_all(H2_GET).await?;
    // Until a frame of the stream has the flag that ends it.
    loop {
        let mut head = [0; 9];
        io.read_exact(&mut head).await?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; length as usize];
        io.read_exact(&mut payload).await?;
        let (kind, flags, stream) = (head[3], head[4], head[8]);
        if stream == 1 && kind <= 1 && flags & 1 == 1 {
            return Ok(200);
        }
        if kind == 3 || kind == 7 {
            return Err("it was refused".into());
        }
    }
}

/// Until it is served or has had enough, with how often it had to ask again.
async fn until_served(io: &mut TcpStream) -> Outcome<(u16, u32)> {
    let (start, mut again) = (Instant::now(), 0);
    loop {
        match once(io).await? {
            (503, after) if start.elapsed() < PATIENCE => {
                tokio::time::sleep(after.unwrap_or(Duration::from_secs(1))).await;
                again += 1;
            }
            (status, _) => return Ok((status, again)),
        }
    }
}

/// The parent's side.
pub(super) struct Crowd {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    pub(super) open: u64,
}

impl Crowd {
    /// Returns when all are there.
    pub(super) fn start(address: SocketAddr, count: usize, http2: bool) -> Outcome<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["proxy-crowd", &address.to_string(), &count.to_string()]);
        command.args(http2.then_some("--http2"));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let input = child.stdin.take().ok_or("it has no input")?;
        let output = child.stdout.take().ok_or("it has no output")?;
        let mut crowd = Self { child, input, output: BufReader::new(output), open: 0 };
        crowd.open = crowd.answer()?["open"].as_u64().ok_or("the crowd did not get in")?;
        Ok(crowd)
    }

    /// Has it do something.
    pub(super) fn tell(&mut self, line: &str) -> Outcome {
        Ok(writeln!(self.input, "{line}")?)
    }

    /// What came of it.
    pub(super) fn answer(&mut self) -> Outcome<Value> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
