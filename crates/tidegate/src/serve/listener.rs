//! Where connections come from, and what to do when they cannot be taken.
//!
//! An error of `accept` is one of three kinds:
//!
//! | kind | for instance | what to do |
//! |---|---|---|
//! | the peer's | it hung up while it waited (`ECONNABORTED`) | take the next |
//! | ours, and it passes | no file descriptors (`EMFILE`, `ENFILE`), no memory | wait |
//! | anything else | the listener is broken | wait too: a server that ends helps nobody |
//!
//! Waiting matters. The connection that could not be taken stays in the queue, so that the next
//! `accept` is ready at once and fails at once: without a wait the loop takes a whole CPU, in the
//! very moment in which others should close connections.

use core::time::Duration;
use std::io;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};

/// Where connections come from.
pub trait Listener: Send + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// The next connection, and the address it is from, if it has one. Must be safe to drop before
    /// it is done.
    fn accept(&mut self)
    -> impl Future<Output = io::Result<(Self::Io, Option<SocketAddr>)>> + Send;

    /// Closes a connection that is not taken.
    fn refuse(io: Self::Io) {
        drop(io);
    }
}

impl Listener for tokio::net::TcpListener {
    type Io = tokio::net::TcpStream;

    async fn accept(&mut self) -> io::Result<(Self::Io, Option<SocketAddr>)> {
        let (io, address) = Self::accept(self).await?;
        // Answers are written whole; to hold them back for more to come only delays them. It fails
        // on a connection that is dead already, and that will be found out soon enough.
        let _ = io.set_nodelay(true);
        Ok((io, Some(address)))
    }

    /// By a reset: the peer learns at once that this was no answer, and no state is left behind.
    fn refuse(io: Self::Io) {
        let _ = io.set_zero_linger();
    }
}

#[cfg(unix)]
impl Listener for tokio::net::UnixListener {
    type Io = tokio::net::UnixStream;

    async fn accept(&mut self) -> io::Result<(Self::Io, Option<SocketAddr>)> {
        let (io, _) = Self::accept(self).await?;
        Ok((io, None))
    }
}

/// How long to wait after an error: doubling from the first, to the last.
///
/// 5 ms is about as soon as a busy server will have closed something; it costs 200 system calls a
/// second. One second is what clients still wait for a connection.
const FIRST: Duration = Duration::from_millis(5);
const LAST: Duration = Duration::from_secs(1);

/// How long to wait before the next `accept`.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    last: Option<Duration>,
}

impl Backoff {
    pub(super) fn on_accept(&mut self) {
        self.last = None;
    }

    /// Nothing to wait for if it was the peer's own fault.
    pub(super) fn on_error(&mut self, error: &io::Error) -> Option<Duration> {
        if is_of_the_peer(error) {
            return None;
        }
        let wait = self.last.map_or(FIRST, |last| (last * 2).min(LAST));
        self.last = Some(wait);
        Some(wait)
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_not_the_peers_fault_makes_it_wait() {
        // EMFILE, ENFILE, ECONNABORTED and ENOMEM on Linux.
        let [emfile, enfile, aborted, enomem] = [24, 23, 103, 12].map(io::Error::from_raw_os_error);
        let mut backoff = Backoff::default();
        let mut wait = |error: &io::Error| backoff.on_error(error).map(|wait| wait.as_millis());
        assert_eq!(wait(&aborted), None);
        let waits: Vec<_> = (0..10).map(|_| wait(&emfile)).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 320, 640, 1_000, 1_000].map(Some));
        assert_eq!(wait(&aborted), None);
        assert_eq!(wait(&enfile), Some(1_000));
        backoff.on_accept();
        assert_eq!(backoff.on_error(&enomem), Some(FIRST));
    }
}
