//! Signals of the user's own: a number in a file, or behind a URL.
//!
//! What fills a program first may be nothing that can be seen from outside: rows in a queue, lag
//! behind a stream, seats in a pool. Whoever knows it writes the number into a file, or answers
//! with it over HTTP, and says what it should not exceed.
//!
//! Each source is read by a thread of its own, as files may hang and servers may be slow, and the
//! sampler must not wait. What was read is good for a while. After that, and if it is no number, it
//! is as if there was no such signal (`ignore`), or the last value goes on counting (`hold`). To
//! shed because nobody knows anything would make an outage out of a script that has died.

use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::time::Duration;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Instant, SystemTime};
use tidegate::signals::Signal;
use tidegate_core::{Timestamp, Utilization};

/// A number has fewer digits than this; the rest is not looked at.
const TEXT_MAX: u64 = 4_096;

/// Where a number comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Source {
    /// A file with nothing else in it.
    File(PathBuf),
    /// `http://HOST:PORT/PATH`, which answers with nothing else.
    Url {
        /// Host and port.
        authority: String,
        /// What to ask for.
        path: String,
    },
}

/// What counts when there is nothing new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WhenStale {
    /// It is as if there was no such signal.
    Ignore,
    /// The last value goes on counting.
    Hold,
}

/// A signal of the user's own.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SignalConfig {
    /// What it is called.
    pub name: String,
    /// Where it comes from.
    pub source: Source,
    /// What it should not exceed, in its own unit.
    pub target: f64,
    /// How often it is read.
    pub period: Duration,
    /// How long what was read is good; of a file, since it was written.
    pub stale_after: Duration,
    /// What counts after that.
    pub when_stale: WhenStale,
}

impl SignalConfig {
    /// Read once a second, good for ten, ignored after.
    pub const fn new(name: String, source: Source, target: f64) -> Self {
        let (period, stale_after) = (Duration::from_secs(1), Duration::from_secs(10));
        Self { name, source, target, period, stale_after, when_stale: WhenStale::Ignore }
    }
}

/// What was read last.
#[derive(Debug, Default)]
struct Found {
    /// The bits of the value; nothing yet if they are no number.
    value: AtomicU64,
    /// What is wrong with the source, and when it last was right.
    state: Mutex<(Option<String>, Option<Instant>)>,
}

/// A signal whose source is read on a thread of its own, for as long as this lives.
pub(crate) struct Own {
    config: SignalConfig,
    found: Arc<Found>,
}

impl Own {
    pub(crate) fn start(config: SignalConfig) -> io::Result<Self> {
        let found = Arc::new(Found::default());
        found.value.store(f64::NAN.to_bits(), Relaxed);
        let reader = Reader { config: config.clone(), found: Arc::downgrade(&found) };
        let thread = std::thread::Builder::new().name("tidegate-signal".to_owned());
        drop(thread.spawn(move || reader.run())?);
        Ok(Self { config, found })
    }
}

struct Reader {
    config: SignalConfig,
    found: Weak<Found>,
}

impl Reader {
    fn run(self) {
        loop {
            let read = self.config.source.read(&self.config);
            let Some(found) = self.found.upgrade() else { return };
            let mut state = found.state.lock().unwrap_or_else(PoisonError::into_inner);
            match read {
                Ok((value, age)) => {
                    found.value.store(value.to_bits(), Relaxed);
                    *state = (None, Instant::now().checked_sub(age));
                }
                Err(wrong) => state.0 = Some(wrong),
            }
            drop(state);
            drop(found);
            std::thread::sleep(self.config.period);
        }
    }
}

impl Signal for Own {
    fn name(&self) -> &str {
        &self.config.name
    }

    fn target(&self) -> f64 {
        self.config.target
    }

    fn sample(&mut self, _: Timestamp) -> Option<Utilization> {
        let value = f64::from_bits(self.found.value.load(Relaxed));
        let state = self.found.state.lock().unwrap_or_else(PoisonError::into_inner);
        let stale = state.1.is_none_or(|right| right.elapsed() > self.config.stale_after);
        drop(state);
        if stale && self.config.when_stale == WhenStale::Ignore {
            return None;
        }
        Utilization::new(value).ok()
    }

    fn trouble(&self) -> Option<String> {
        let state = self.found.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0.clone().or_else(|| {
            let stale = state.1.is_none_or(|right| right.elapsed() > self.config.stale_after);
            stale.then(|| "there is nothing new".to_owned())
        })
    }

    fn period(&self) -> Duration {
        // It cannot change more often.
        self.config.period
    }
}

impl Source {
    /// The number, and how old it is.
    fn read(&self, config: &SignalConfig) -> Result<(f64, Duration), String> {
        let wrong = |error: io::Error| format!("{self}: {error}");
        let (text, age) = match self {
            Self::File(path) => file(path).map_err(wrong)?,
            Self::Url { authority, path } => {
                // As long as what it says is good, half of it for each of two tries.
                let patience = (config.stale_after / 2).max(Duration::from_millis(100));
                (fetch(authority, path, patience).map_err(wrong)?, Duration::ZERO)
            }
        };
        let value: Option<f64> = text.trim().parse().ok();
        if let Some(value) = value.filter(|value| value.is_finite() && *value >= 0.0) {
            return Ok((value, age));
        }
        let text: String = text.trim().chars().take(40).collect();
        Err(format!("{self}: `{text}` is no number of zero or more"))
    }
}

impl core::fmt::Display for Source {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::File(path) => path.display().fmt(f),
            Self::Url { authority, path } => write!(f, "http://{authority}{path}"),
        }
    }
}

fn file(path: &Path) -> io::Result<(String, Duration)> {
    let file = File::open(path)?;
    let written = file.metadata()?.modified()?;
    let mut text = String::new();
    file.take(TEXT_MAX).read_to_string(&mut text)?;
    // One that was written in the future is new.
    Ok((text, SystemTime::now().duration_since(written).unwrap_or_default()))
}

/// A request of HTTP/1.0: what answers is short, and ends with the connection.
fn fetch(authority: &str, path: &str, patience: Duration) -> io::Result<String> {
    let address = authority.to_socket_addrs()?.next().ok_or(io::ErrorKind::NotFound)?;
    let mut io = TcpStream::connect_timeout(&address, patience)?;
    io.set_read_timeout(Some(patience))?;
    io.set_write_timeout(Some(patience))?;
    write!(io, "GET {path} HTTP/1.0\r\nhost: {authority}\r\nuser-agent: tidegate\r\n\r\n")?;
    let mut answer = Vec::new();
    let due = Instant::now() + patience;
    let mut bytes = [0; 1_024];
    while (answer.len() as u64) < TEXT_MAX && Instant::now() < due {
        match io.read(&mut bytes)? {
            0 => break,
            came => answer.extend_from_slice(bytes.get(..came).unwrap_or_default()),
        }
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
    let status = head.split(' ').nth(1).unwrap_or_default();
    if status != "200" {
        return Err(io::Error::other(format!("it answers with status `{status}`")));
    }
    Ok(body.to_owned())
}
