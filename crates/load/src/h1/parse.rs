//! Where a response ends, and the little of it that matters.
//!
//! Bytes come in pieces of any size. The reader is told what has arrived since, says how much of it
//! it is done with, and when a response is complete. Heads have to be in one piece for `httparse`,
//! so what it has not consumed has to be shown again, with more; bodies are skipped as they come.
//!
//! How long a body is follows RFC 9112, 6.3: none for `HEAD`, 204, 304 and 1xx; chunks where the
//! last transfer coding says so; `content-length`; else until the connection closes. Both together,
//! two lengths that differ, or a length that is no number are faults: guessing would take one
//! response's end for another's beginning.

use http::{HeaderMap, HeaderName, HeaderValue};
use tidegate_wire::headers as names;

/// More headers than a response under test has.
const HEADERS_MAX: usize = 64;

/// More bytes than a head has. It is also what is read at once.
pub(crate) const HEAD_MAX: usize = 64 * 1024;

/// A line between chunks is a length in hexadecimal; with extensions it may be longer.
const CHUNK_LINE_MAX: usize = 4 * 1024;

/// What is no response.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Malformed {
    #[error("no head of a response")]
    Head,
    #[error("a head of more than 64 KiB or 64 headers")]
    HeadTooLong,
    #[error("a body whose length cannot be told")]
    Length,
    #[error("chunks that make no sense")]
    Chunk,
    #[error("the connection closed within a response")]
    CutOff,
}

/// What is left of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Length(u64),
    Chunk(Chunk),
    UntilClose,
}

/// Where within chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// The line with its length.
    Line,
    /// So many bytes, and the line end after them.
    Data(u64),
    /// Trailers, until an empty line.
    Trailers,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Head,
    Body(Body),
}

/// A reader of one response after the other.
#[derive(Debug)]
pub(crate) struct Reader {
    state: State,
    /// The request was `HEAD`.
    bodiless: bool,
    /// Status of the response.
    pub(crate) status: u16,
    /// Whether another request may follow on this connection.
    pub(crate) keep_alive: bool,
    /// What the server says about a refusal. Empty for statuses that are none.
    pub(crate) advice: HeaderMap,
}

/// How far a reader came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Bytes that need not be shown again.
    pub(crate) consumed: usize,
    /// Whether the response is complete.
    pub(crate) complete: bool,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Self {
            state: State::Head,
            bodiless: false,
            status: 0,
            keep_alive: true,
            advice: HeaderMap::new(),
        }
    }

    /// A new response is expected.
    pub(crate) fn begin(&mut self, bodiless: bool) {
        self.state = State::Head;
        self.bodiless = bodiless;
        self.status = 0;
        self.keep_alive = true;
        self.advice.clear();
    }

    /// Looks at what has arrived and was not consumed yet.
    pub(crate) fn read(&mut self, input: &[u8]) -> Result<Progress, Malformed> {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            match self.state {
                State::Head => match self.head(rest)? {
                    None => return Ok(Progress { consumed, complete: false }),
                    Some((used, body)) => {
                        consumed += used;
                        match body {
                            None if self.status < 200 => {}
                            None => return Ok(Progress { consumed, complete: true }),
                            Some(body) => self.state = State::Body(body),
                        }
                    }
                },
                State::Body(Body::UntilClose) => {
                    return Ok(Progress { consumed: input.len(), complete: false });
                }
                State::Body(Body::Length(left)) => {
                    let here = left.min(rest.len() as u64);
                    consumed += here as usize;
                    self.state = State::Body(Body::Length(left - here));
                    return Ok(Progress { consumed, complete: here == left });
                }
                State::Body(Body::Chunk(chunk)) => match read_chunk(chunk, rest)? {
                    ChunkStep::More => return Ok(Progress { consumed, complete: false }),
                    ChunkStep::Next(used, next) => {
                        consumed += used;
                        self.state = State::Body(Body::Chunk(next));
                    }
                    ChunkStep::End(used) => {
                        consumed += used;
                        return Ok(Progress { consumed, complete: true });
                    }
                },
            }
        }
    }

    /// The connection has closed: whether that completes the response.
    pub(crate) fn close(&mut self) -> Result<(), Malformed> {
        self.keep_alive = false;
        match self.state {
            State::Body(Body::UntilClose) => Ok(()),
            _ => Err(Malformed::CutOff),
        }
    }

    /// Whether anything of a response has come.
    pub(crate) const fn has_begun(&self) -> bool {
        self.status != 0
    }

    /// The head's length, and the body if there is one. Nothing if there is no whole head yet.
    fn head(&mut self, input: &[u8]) -> Result<Option<(usize, Option<Body>)>, Malformed> {
        let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
        let mut response = httparse::Response::new(&mut headers);
        let length = match response.parse(input) {
            Ok(httparse::Status::Complete(length)) => length,
            Ok(httparse::Status::Partial) if input.len() < HEAD_MAX => return Ok(None),
            Ok(httparse::Status::Partial) | Err(httparse::Error::TooManyHeaders) => {
                return Err(Malformed::HeadTooLong);
            }
            Err(_) => return Err(Malformed::Head),
        };
        self.status = response.code.unwrap_or(0);
        self.keep_alive = response.version == Some(1);
        let refusal = matches!(self.status, 429 | 500..);
        let (mut sized, mut chunked, mut coded) = (None, false, false);
        for header in response.headers.iter() {
            let name = header.name;
            if name.eq_ignore_ascii_case("content-length") {
                let length = length_of(header.value).ok_or(Malformed::Length)?;
                if sized.is_some_and(|other| other != length) {
                    return Err(Malformed::Length);
                }
                sized = Some(length);
            } else if name.eq_ignore_ascii_case("transfer-encoding") {
                coded = true;
                chunked = last_word(header.value).eq_ignore_ascii_case(b"chunked");
            } else if name.eq_ignore_ascii_case("connection") {
                for word in header.value.split(|&b| b == b',').map(<[u8]>::trim_ascii) {
                    if word.eq_ignore_ascii_case(b"close") {
                        self.keep_alive = false;
                    } else if word.eq_ignore_ascii_case(b"keep-alive") {
                        self.keep_alive = true;
                    }
                }
            } else if refusal {
                keep(&mut self.advice, name, header.value);
            }
        }
        if self.status == 101 {
            // Nobody has asked for another protocol.
            return Err(Malformed::Head);
        }
        if self.status < 200 {
            return Ok(Some((length, None)));
        }
        if self.bodiless || matches!(self.status, 204 | 304) {
            return Ok(Some((length, None)));
        }
        let body = match (coded, chunked, sized) {
            (true, _, Some(_)) => return Err(Malformed::Length),
            (true, true, None) => Body::Chunk(Chunk::Line),
            (false, _, Some(0)) => return Ok(Some((length, None))),
            (false, _, Some(sized)) => Body::Length(sized),
            (true, false, None) | (false, _, None) => {
                self.keep_alive = false;
                Body::UntilClose
            }
        };
        Ok(Some((length, Some(body))))
    }
}

/// Keeps a header that says what a refusal means.
fn keep(advice: &mut HeaderMap, name: &str, value: &[u8]) {
    let wanted = [
        &names::X_TIDEGATE_REASON,
        &names::X_ENVOY_RATELIMITED,
        &names::X_ENVOY_IMMEDIATE_HEALTH_CHECK_FAIL,
        &http::header::RETRY_AFTER,
    ];
    let found: Option<&&HeaderName> =
        wanted.iter().find(|wanted| wanted.as_str().eq_ignore_ascii_case(name));
    if let (Some(&name), Ok(value)) = (found, HeaderValue::from_bytes(value)) {
        advice.insert(name, value);
    }
}

fn last_word(value: &[u8]) -> &[u8] {
    value.rsplit(|&b| b == b',').next().unwrap_or_default().trim_ascii()
}

/// A decimal number, or the same number several times over, as RFC 9110 allows.
fn length_of(value: &[u8]) -> Option<u64> {
    let mut lengths = value.split(|&b| b == b',').map(|text| digits(text.trim_ascii(), 10));
    let first = lengths.next()??;
    lengths.all(|length| length == Some(first)).then_some(first)
}

fn digits(text: &[u8], base: u32) -> Option<u64> {
    let text = core::str::from_utf8(text).ok().filter(|text| !text.starts_with('+'))?;
    u64::from_str_radix(text, base).ok()
}

enum ChunkStep {
    More,
    Next(usize, Chunk),
    End(usize),
}

fn read_chunk(chunk: Chunk, input: &[u8]) -> Result<ChunkStep, Malformed> {
    match chunk {
        Chunk::Data(0) => match input {
            [b'\r', b'\n', ..] => Ok(ChunkStep::Next(2, Chunk::Line)),
            [] | [b'\r'] => Ok(ChunkStep::More),
            _ => Err(Malformed::Chunk),
        },
        Chunk::Data(left) => {
            let here = left.min(input.len() as u64);
            if here == 0 {
                return Ok(ChunkStep::More);
            }
            Ok(ChunkStep::Next(here as usize, Chunk::Data(left - here)))
        }
        Chunk::Line => {
            let Some((line, used)) = line(input)? else { return Ok(ChunkStep::More) };
            let size = line.split(|&b| b == b';').next().unwrap_or_default();
            let size = digits(size.trim_ascii(), 16).ok_or(Malformed::Chunk)?;
            let next = if size == 0 { Chunk::Trailers } else { Chunk::Data(size) };
            Ok(ChunkStep::Next(used, next))
        }
        Chunk::Trailers => {
            let Some((line, used)) = line(input)? else { return Ok(ChunkStep::More) };
            if line.is_empty() {
                return Ok(ChunkStep::End(used));
            }
            Ok(ChunkStep::Next(used, Chunk::Trailers))
        }
    }
}

/// A line without its end, and its length with it.
fn line(input: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    match input.iter().position(|&b| b == b'\n') {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some((&input[..end - 1], end + 1))),
        Some(_) => Err(Malformed::Chunk),
        None if input.len() > CHUNK_LINE_MAX => Err(Malformed::Chunk),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests;
