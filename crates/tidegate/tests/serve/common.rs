//! A server to test, and a client that sees every byte.

use axum::Router;
use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::clock::Clock;
use tidegate::life::{Life, LifeConfig};
use tidegate::serve::{Counters, Serve, ServeError};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

/// Longer than anything takes, on any machine.
pub(crate) const SOON: Duration = Duration::from_secs(60);

/// Waits for `event`, but not for ever.
pub(crate) async fn soon<F: Future>(event: F) -> F::Output {
    tokio::time::timeout(SOON, event).await.expect("it never happens")
}

/// Looks until `what` is so.
pub(crate) async fn until(mut what: impl FnMut() -> bool) {
    soon(async {
        while !what() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}

/// A life whose phases end only by [`Life::hasten`].
pub(crate) fn patient() -> Life {
    let mut config = LifeConfig::default();
    config.drain_delay = Duration::from_secs(3_600);
    config.drain_max = Duration::from_secs(3_600);
    Life::new(config, Clock::monotonic())
}

type MakeRouter = axum::routing::IntoMakeService<Router>;

/// A server that runs.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) life: Life,
    pub(crate) counters: Arc<Counters>,
    pub(crate) running: JoinHandle<Result<(), ServeError>>,
}

impl Server {
    pub(crate) async fn start(router: Router) -> Self {
        Self::with(router, |serve| serve).await
    }

    pub(crate) async fn with(
        router: Router,
        set: impl FnOnce(Serve<TcpListener, MakeRouter>) -> Serve<TcpListener, MakeRouter>,
    ) -> Self {
        let life = patient();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serve = tidegate::serve(listener, router.into_make_service()).life(life.clone());
        let serve = set(serve);
        let counters = serve.counters();
        let running = tokio::spawn(serve.into_future());
        Self { address, life, counters, running }
    }

    pub(crate) async fn connect(&self) -> Client {
        self.try_connect().await.unwrap()
    }

    /// An error if it is refused before this end has noticed that it was connected.
    pub(crate) async fn try_connect(&self) -> io::Result<Client> {
        soon(TcpStream::connect(self.address)).await.map(Client::new)
    }

    /// What the server returns in the end.
    pub(crate) async fn ended(self) -> Result<(), ServeError> {
        soon(self.running).await.unwrap()
    }
}

/// A connection, by hand.
pub(crate) struct Client {
    pub(crate) io: TcpStream,
    read: Vec<u8>,
}

/// An answer of HTTP/1 with a length.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// In lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn has(&self, header: &str) -> bool {
        self.head.lines().any(|line| line == header)
    }
}

impl Client {
    pub(crate) const fn new(io: TcpStream) -> Self {
        Self { io, read: Vec::new() }
    }

    pub(crate) async fn send(&mut self, text: &str) {
        soon(self.io.write_all(text.as_bytes())).await.unwrap();
    }

    pub(crate) async fn get(&mut self, path: &str) -> Answer {
        self.send(&format!("GET {path} HTTP/1.1\r\nhost: a\r\n\r\n")).await;
        self.answer().await.expect("an answer")
    }

    /// The next answer; nothing if the connection ends first.
    pub(crate) async fn answer(&mut self) -> Option<Answer> {
        let end = loop {
            match self.read.windows(4).position(|window| window == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if self.more().await => {}
                None => return None,
            }
        };
        let head = String::from_utf8_lossy(&self.read[..end]).to_lowercase();
        let status = head[9..12].parse().unwrap();
        let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let length: usize = length.map_or(0, |length| length.parse().unwrap());
        while self.read.len() < end + length {
            assert!(self.more().await, "the body is cut");
        }
        let body = String::from_utf8_lossy(&self.read[end..end + length]).into_owned();
        self.read.drain(..end + length);
        Some(Answer { status, head, body })
    }

    /// What has come after the last answer.
    pub(crate) fn left(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.read)
    }

    /// Returns when the server has closed the connection, by whatever means.
    pub(crate) async fn closed(&mut self) {
        while self.more().await {}
    }

    async fn more(&mut self) -> bool {
        let mut buffer = [0; 4096];
        let length = soon(self.io.read(&mut buffer)).await.unwrap_or(0);
        self.read.extend_from_slice(&buffer[..length]);
        length > 0
    }
}
