//! HTTP/2 as RFC 9113 has it, frame by frame, against the proxy.
//!
//! Each case (`cases`) is written by hand on a connection of its own, and says which section it is
//! of and what has to come back. A section that is not in the table has no rule for a server that
//! could be broken by what a client sends: 3.1 to 3.3 (how HTTP/2 is begun with TLS), 5.2 and 5.3
//! (flow control in words, priorities that are gone), 7 (codes), 8.4 (pushing), 8.6 to 8.8
//! (upgrades, intermediaries, examples), 9 and 10 (connections, and what floods.rs and hostile.rs
//! are for).
//!
//! The rules of HPACK (RFC 7541) that a client can break stand at the end.
//!
//! **What counts.** A case demands one thing: `RST_STREAM` or GOAWAY with the code that the
//! section names, an answer, or nothing. That the connection goes on after an error of a stream is
//! looked at, and that it ends after one of its own; to be closed without a word is neither.
//!
//! **Where we differ.** Cases say so (`but`), and fail when that changes:
//!
//! | the library that frames are read with | should say | sections |
//! |---|---|---|
//! | says `PROTOCOL_ERROR` for the connection | `COMPRESSION_ERROR` | 4.3, all of HPACK |
//! | says the same | `FRAME_SIZE_ERROR` | 6.3 (of the stream), 6.4, 6.5, 6.7, 6.9 |
//! | says the same | `FLOW_CONTROL_ERROR` | 6.5.2 |
//! | says the same | `STREAM_CLOSED`, of the stream | 5.1: DATA and HEADERS after the end |
//! | drops pseudo-headers among trailers | `PROTOCOL_ERROR`, of the stream | 8.3 |
//!
//! Nor does it insist that the first frame of a client is SETTINGS (3.4). Where it ends the
//! connection instead of a stream with the code that is asked for, that is allowed (5.4; `by`).

mod cases;

use crate::support::{Running, config, echo, program};
use bytes::Bytes;
use core::time::Duration;
use http::Response;
use http_body_util::Full;
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const PRIORITY: u8 = 2;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const WHOLE: u8 = END_STREAM | END_HEADERS;

const PROTOCOL_ERROR: u32 = 1;
const FLOW_CONTROL_ERROR: u32 = 3;
const STREAM_CLOSED: u32 = 5;
const FRAME_SIZE_ERROR: u32 = 6;
const REFUSED_STREAM: u32 = 7;
const COMPRESSION_ERROR: u32 = 9;

/// What has to come back, or came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reaction {
    /// GOAWAY with this code, and the end of the connection.
    Connection(u32),
    /// `RST_STREAM` with this code; the connection goes on.
    Stream(u32, u32),
    /// The request is answered 400; the connection goes on.
    Refused(u32),
    /// The request is answered 200.
    Served(u32),
    /// Nothing that matters: a PING after it is answered.
    Ignored,
    /// A PING with this payload is answered, and no other.
    Pong(&'static [u8; 8]),
    /// The first DATA of the stream has so many bytes.
    Data(u32, usize),
    /// The connection ends without a word.
    Closed,
}

use Reaction::{Closed, Connection, Data, Ignored, Pong, Refused, Served, Stream};
use cases::{compression, frames, framing, requests, setting};

struct Case {
    section: &'static str,
    says: &'static str,
    sends: Vec<u8>,
    /// What the section demands.
    wants: Reaction,
    /// What is done instead.
    found: Option<Reaction>,
}

impl Case {
    /// What is done is as good: an error of a stream may be one of the connection (5.4).
    fn by(mut self, found: Reaction) -> Self {
        let (Stream(_, wanted), Connection(code)) = (self.wants, found) else {
            panic!("{}: {}: that is not allowed", self.section, self.says);
        };
        assert_eq!(wanted, code, "{}: {}", self.section, self.says);
        self.found = Some(found);
        self
    }

    /// What is done is not what it should be.
    fn but(mut self, found: Reaction) -> Self {
        assert_ne!(self.wants, found, "{}: {}", self.section, self.says);
        self.found = Some(found);
        self
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// A frame that came.
#[derive(Debug)]
struct Came {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Vec<u8>,
}

impl Came {
    fn code(&self, at: usize) -> Option<u32> {
        Some(u32::from_be_bytes(self.payload.get(at..at + 4)?.try_into().ok()?))
    }
}

struct Wire(TcpStream);

impl Wire {
    async fn open(address: SocketAddr) -> Self {
        let mut io = TcpStream::connect(address).await.unwrap();
        io.write_all(PREFACE).await.unwrap();
        io.write_all(&frame(SETTINGS, 0, 0, &[])).await.unwrap();
        Self(io)
    }

    /// The next frame; nothing at the end.
    async fn next(&mut self) -> Option<Came> {
        let mut head = [0; 9];
        self.0.read_exact(&mut head).await.ok()?;
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let mut payload = vec![0; length];
        self.0.read_exact(&mut payload).await.ok()?;
        let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        if head[3] == SETTINGS && head[4] & ACK == 0 {
            // It may be gone already.
            let _ = self.0.write_all(&frame(SETTINGS, ACK, 0, &[])).await;
        }
        Some(Came { kind: head[3], flags: head[4], stream, payload })
    }

    /// Reads until it is clear what was made of what was sent.
    async fn reacts(&mut self, wants: Reaction) -> Result<Reaction, String> {
        loop {
            let Some(came) = self.next().await else { return Ok(Closed) };
            match came.kind {
                GOAWAY => {
                    let code = came.code(4).unwrap_or(u32::MAX);
                    self.ends().await?;
                    return Ok(Connection(code));
                }
                RST_STREAM => {
                    let code = came.code(0).unwrap_or(u32::MAX);
                    self.goes_on().await?;
                    return Ok(Stream(came.stream, code));
                }
                // Its body is what is looked at.
                HEADERS if matches!(wants, Data(..)) => {}
                // By their indices in the static table.
                HEADERS => match came.payload.first() {
                    Some(0x88) => return Ok(Served(came.stream)),
                    Some(0x8c) => {
                        self.goes_on().await?;
                        return Ok(Refused(came.stream));
                    }
                    other => return Err(format!("a head that begins with {other:?}")),
                },
                DATA => return Ok(Data(came.stream, came.payload.len())),
                PING if came.flags & ACK != 0 => {
                    return match wants {
                        Ignored => Ok(Ignored),
                        Pong(payload) if came.payload == payload => Ok(wants),
                        _ => Err(format!("PING with {:?}", came.payload)),
                    };
                }
                SETTINGS | WINDOW_UPDATE | PING => {}
                kind => return Err(format!("a frame of kind {kind}")),
            }
        }
    }

    /// Whether a PING is still answered.
    async fn goes_on(&mut self) -> Result<(), String> {
        let _ = self.0.write_all(&frame(PING, 0, 0, b"goes on?")).await;
        loop {
            match self.next().await {
                Some(came) if came.kind == PING && came.payload == b"goes on?" => return Ok(()),
                Some(came) if came.kind == GOAWAY => {
                    return Err(format!("GOAWAY with {:?} after it", came.code(4)));
                }
                Some(_) => {}
                None => return Err("closed after it".to_owned()),
            }
        }
    }

    async fn ends(&mut self) -> Result<(), String> {
        while let Some(came) = self.next().await {
            if came.kind == HEADERS {
                return Err("served on".to_owned());
            }
        }
        Ok(())
    }
}

/// Ten bytes, after a while: streams that are half closed stay so.
async fn slowly(_: http::Request<hyper::body::Incoming>) -> Response<Full<Bytes>> {
    tokio::time::sleep(Duration::from_millis(200)).await;
    Response::new(Full::new(Bytes::from_static(b"0123456789")))
}

async fn run(cases: Vec<Case>) {
    let proxy = Running::start(config(program(slowly).await));
    let mut wrong = Vec::new();
    for Case { section, says, sends, wants, found } in cases {
        let mut wire = Wire::open(proxy.address()).await;
        // A peer that has had enough closes.
        let _ = wire.0.write_all(&sends).await;
        if let Ignored = wants {
            let _ = wire.0.write_all(&frame(PING, 0, 0, b"tidegate")).await;
        }
        let reacted = tokio::time::timeout(Duration::from_secs(10), wire.reacts(wants)).await;
        let reacted = reacted.unwrap_or_else(|_| Err("nothing in ten seconds".to_owned()));
        let right = found.unwrap_or(wants);
        if reacted != Ok(right) {
            wrong.push(format!("{section}: {says}: wanted {right:?}, found {reacted:?}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn frames_and_streams() {
    run(framing()).await;
}

#[tokio::test]
async fn each_kind_of_frame() {
    run(frames()).await;
}

#[tokio::test]
async fn what_a_request_is() {
    run(requests()).await;
}

#[tokio::test]
async fn compressed_headers() {
    run(compression()).await;
}

/// 3.4: what does not begin as HTTP/2 is none, and what begins so goes on so.
#[tokio::test]
async fn the_beginning_of_a_connection() {
    let proxy = Running::start(config(program(echo).await));
    for bytes in [&b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n"[..], b"INVALID PREFACE\r\n\r\n"] {
        let mut io = TcpStream::connect(proxy.address()).await.unwrap();
        io.write_all(bytes).await.unwrap();
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(10), io.read_to_end(&mut answer));
        let _ = read.await.expect("the connection ends");
        let text = String::from_utf8_lossy(&answer);
        assert!(text.is_empty() || text.starts_with("HTTP/1.1 400"), "{text}");
    }
}

/// 6.5.3: SETTINGS are acknowledged.
#[tokio::test]
async fn settings_are_acknowledged() {
    let proxy = Running::start(config(program(echo).await));
    let mut wire = Wire::open(proxy.address()).await;
    let mut acknowledged = 0;
    wire.0.write_all(&setting(3, 100)).await.unwrap();
    while acknowledged < 2 {
        let came = wire.next().await.expect("it stays open");
        acknowledged += usize::from(came.kind == SETTINGS && came.flags & ACK != 0);
    }
}
