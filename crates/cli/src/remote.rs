//! Asks the admin router of a running part: `tidegate top` and `tidegate explain`.
//!
//! One request to a connection, in HTTP/1.0: its answer ends where the connection does, be it a
//! stream or not, so that reading lines is all there is to it. No TLS: the router is for loopback,
//! and what leads to it from elsewhere (a tunnel, `kubectl port-forward`) ends on loopback too.
//!
//! **When it is slow.** Each read has a deadline, and each answer and each event of a stream one
//! for the whole of it: somebody who sends a byte now and then would be waited for without end.

use crate::Failure;
use std::io::{self, BufRead as _, BufReader, Read, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

/// Where pages are by the examples and the documentation.
pub(crate) const DEFAULT: &str = "http://127.0.0.1:9900";
/// Who does not answer on loopback in so long is not going to.
const PATIENCE: Duration = Duration::from_secs(5);
/// All of an answer: twice of that, for what comes through a slow tunnel.
const WHOLE: Duration = Duration::from_secs(10);
/// Fifteen minutes of history are some hundred kilobytes; what is longer than this is something
/// else.
const ANSWER_MAX: u64 = 16 << 20;

/// What to say about where.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Place {
    /// Where its page is
    #[arg(value_name = "URL", default_value = DEFAULT)]
    url: String,
    /// The token, if it wants one
    #[arg(long, value_name = "TOKEN", env = "TIDEGATE_TOKEN", hide_env_values = true)]
    token: Option<String>,
}

/// A part that can be asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Host and port.
    authority: String,
    /// What stands before all paths, without a slash at its end.
    prefix: String,
    token: Option<String>,
}

impl Place {
    pub(crate) fn remote(&self) -> Result<Remote, Failure> {
        Remote::parse(&self.url, self.token.clone()).map_err(|why| Failure {
            what: format!("`{}` is not where a page can be", self.url),
            why,
            next: "give the address of an admin router, such as http://127.0.0.1:9900",
        })
    }
}

impl Remote {
    pub(crate) fn parse(url: &str, token: Option<String>) -> Result<Self, String> {
        let rest = match url.split_once("://") {
            Some(("http", rest)) => rest,
            Some((scheme, _)) => {
                return Err(format!("`{scheme}` is not spoken here, only http: use a tunnel"));
            }
            None => url,
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        if authority.is_empty() || !authority.chars().all(|c| c.is_ascii_graphic()) {
            return Err("there is no host in it".to_owned());
        }
        let port = authority.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let authority = if port { authority.to_owned() } else { format!("{authority}:80") };
        // As one copies it from a browser.
        let given = query.split('&').find_map(|pair| pair.strip_prefix("token="));
        let token = token.or_else(|| given.map(str::to_owned));
        let path = path.trim_end_matches('/');
        let prefix = if path.is_empty() { String::new() } else { format!("/{path}") };
        Ok(Self { authority, prefix, token })
    }

    pub(crate) fn name(&self) -> &str {
        &self.authority
    }

    fn failure(&self, why: String) -> Failure {
        Failure {
            what: format!("could not ask {}", self.authority),
            why,
            next: "see that the service runs and serves an admin router there: docs/dashboard.md",
        }
    }

    /// Asks for `path`, and gives what comes after the head of the answer, up to this moment.
    fn open(&self, path: &str, until: Instant) -> Result<(u16, BufReader<Patient>), String> {
        let mut found = self.authority.to_socket_addrs().map_err(|error| error.to_string())?;
        let address = found.next().ok_or("nobody has this name")?;
        let text = |error: io::Error| error.to_string();
        let mut io = TcpStream::connect_timeout(&address, PATIENCE).map_err(text)?;
        io.set_write_timeout(Some(PATIENCE)).map_err(text)?;
        let token = self.token.as_deref();
        if token.is_some_and(|token| !token.chars().all(|c| c.is_ascii_graphic())) {
            return Err("the token has blanks in it".to_owned());
        }
        let authorization = token.map(|token| format!("authorization: Bearer {token}\r\n"));
        let request = format!(
            "GET {}{path} HTTP/1.0\r\nhost: {}\r\n{}\r\n",
            self.prefix,
            self.authority,
            authorization.unwrap_or_default(),
        );
        io.write_all(request.as_bytes()).map_err(text)?;
        let mut lines = BufReader::new(Patient { io, until });
        let mut line = String::new();
        lines.by_ref().take(1_024).read_line(&mut line).map_err(text)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or("what answers there does not speak HTTP")?;
        while !line.trim_end().is_empty() {
            line.clear();
            if lines.by_ref().take(64 << 10).read_line(&mut line).map_err(text)? == 0 {
                break;
            }
        }
        Ok((status, lines))
    }

    /// The answer to `path`: its status and its text.
    pub(crate) fn get(&self, path: &str) -> Result<(u16, String), Failure> {
        self.get_until(path, Instant::now() + WHOLE)
    }

    fn get_until(&self, path: &str, until: Instant) -> Result<(u16, String), Failure> {
        let (status, body) = self.open(path, until).map_err(|why| self.failure(why))?;
        let mut text = String::new();
        let read = body.take(ANSWER_MAX).read_to_string(&mut text);
        read.map_err(|error| self.failure(error.to_string()))?;
        Ok((status, text))
    }

    /// The events of a stream, one after the other.
    pub(crate) fn stream(&self, path: &str) -> Result<Stream, Failure> {
        let until = Instant::now() + WHOLE;
        let (status, mut body) = self.open(path, until).map_err(|why| self.failure(why))?;
        if status != 200 {
            let mut text = String::new();
            let _ = body.by_ref().take(2_000).read_to_string(&mut text);
            return Err(self.failure(format!("it answers {status}: {}", text.trim())));
        }
        Ok(Stream { lines: body })
    }
}

/// A connection that is given up at some moment, however much it drips until then.
#[derive(Debug)]
struct Patient {
    io: TcpStream,
    until: Instant,
}

impl Read for Patient {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now()).min(PATIENCE);
        let late = || io::Error::new(io::ErrorKind::TimedOut, "it did not answer in full in time");
        if left.is_zero() {
            return Err(late());
        }
        self.io.set_read_timeout(Some(left))?;
        self.io.read(buffer).map_err(|error| match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => late(),
            _ => error,
        })
    }
}

/// Server-sent events.
#[derive(Debug)]
pub(crate) struct Stream {
    lines: BufReader<Patient>,
}

impl Stream {
    /// The data of the next event; nothing once the stream has ended.
    pub(crate) fn next(&mut self) -> Option<String> {
        self.lines.get_mut().until = Instant::now() + WHOLE;
        let mut data = String::new();
        loop {
            let mut line = String::new();
            if self.lines.by_ref().take(ANSWER_MAX).read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(more) = line.strip_prefix("data:") {
                data.push_str(more.strip_prefix(' ').unwrap_or(more));
            } else if line.is_empty() && !data.is_empty() {
                return Some(data);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers one request with a head, and then with a byte now and then until nobody listens.
    fn drips() -> Remote {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        std::thread::spawn(move || {
            let (mut io, _) = listener.accept().unwrap();
            let mut bytes = b"HTTP/1.0 200 OK\r\n\r\n".to_vec();
            while io.write_all(&bytes).is_ok() {
                bytes = b".".to_vec();
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        Remote::parse(&address, None).unwrap()
    }

    #[test]
    fn who_drips_is_given_up() {
        let remote = drips();
        let failure = remote.get_until("/", Instant::now() + Duration::from_millis(200));
        assert!(failure.unwrap_err().why.contains("in full"));
        let remote = drips();
        let until = Instant::now() + Duration::from_millis(200);
        let (status, lines) = remote.open("/", until).unwrap();
        assert_eq!(status, 200);
        let error = { lines }.read_line(&mut String::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn a_place_may_be_written_in_many_ways() {
        let remote = |authority: &str, prefix: &str, token: Option<&str>| Remote {
            authority: authority.into(),
            prefix: prefix.into(),
            token: token.map(str::to_owned),
        };
        for (url, expected) in [
            ("http://127.0.0.1:9900", remote("127.0.0.1:9900", "", None)),
            ("127.0.0.1:9900/", remote("127.0.0.1:9900", "", None)),
            ("http://host/admin/", remote("host:80", "/admin", None)),
            ("http://[::1]:9900/?token=abc", remote("[::1]:9900", "", Some("abc"))),
        ] {
            assert_eq!(Remote::parse(url, None), Ok(expected), "{url}");
        }
        for (url, why) in
            [("https://host", "tunnel"), ("http://", "no host"), ("http:///x", "no host")]
        {
            let error = Remote::parse(url, None).unwrap_err();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
