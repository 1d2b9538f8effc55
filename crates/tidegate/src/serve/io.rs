//! What hyper leaves to the transport.
//!
//! **The first bytes.** A server for HTTP/1 and HTTP/2 on one port has to see how a connection
//! begins before it knows which it is. hyper's timer for headers starts only after that, so someone
//! who connects and sends nothing, or the first byte of HTTP/2's greeting and then nothing, would
//! stay for ever. Until the greeting is over or is none, reading here fails when time is up.
//!
//! **Stalls.** A client that asks for much and reads nothing keeps its request in flight for ever.
//! Writing fails when nothing could be written for too long.
//!
//! **Lingering.** A server that closes a socket with bytes in it that nobody has read makes the
//! kernel send a reset, and a reset makes the peer's kernel throw away the answer that it has not
//! read yet. So when a body was given up, closing says first that no more will be written, and then
//! goes on reading for a while.

use super::Limits;
use super::stall::Stall;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// How an HTTP/2 connection begins.
const GREETING: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How many bytes of the greeting have come.
#[derive(Debug, Clone, Copy)]
struct Greeting(usize);

impl Greeting {
    /// Whether it is HTTP/2, if that is known after these bytes. None at all are the end.
    fn is_http2(&mut self, bytes: &[u8]) -> Option<bool> {
        let expected = GREETING.get(self.0..).unwrap_or_default();
        self.0 = self.0.saturating_add(bytes.len());
        let whole = bytes.starts_with(expected) && !bytes.is_empty();
        (whole || bytes.is_empty() || !expected.starts_with(bytes)).then_some(whole)
    }
}

/// A transport that waits for nobody for ever, and does not reset what it has said last.
pub(super) struct Transport<I> {
    io: I,
    /// While it may yet be HTTP/2's greeting: what has come of it, and when the rest is due.
    opening: Option<(Greeting, Pin<Box<Sleep>>)>,
    /// Whether a body was given up.
    given_up: Arc<AtomicBool>,
    /// Whether it was HTTP/2's greeting.
    http2: Arc<AtomicBool>,
    linger: Linger,
    stall: Stall,
}

enum Linger {
    For(Duration),
    Until(Pin<Box<Sleep>>),
}

impl<I> Transport<I> {
    pub(super) fn new(
        io: I,
        limits: &Limits,
        given_up: Arc<AtomicBool>,
        http2: Arc<AtomicBool>,
    ) -> Self {
        Self {
            io,
            opening: Some((Greeting(0), Box::pin(sleep(limits.header_timeout)))),
            given_up,
            http2,
            linger: Linger::For(limits.discard_timeout),
            stall: Stall::new(limits.stall_max),
        }
    }

    /// What became of an attempt to write.
    fn written<T>(
        &mut self,
        context: &mut Context<'_>,
        outcome: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if outcome.is_ready() {
            self.stall.moved();
            return outcome;
        }
        ready!(self.stall.poll_waiting(context));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Transport<I> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buffer.filled().len();
        match Pin::new(&mut this.io).poll_read(context, buffer) {
            Poll::Ready(Ok(())) => {
                if let Some((greeting, _)) = &mut this.opening
                    && let Some(http2) = greeting.is_http2(&buffer.filled()[before..])
                {
                    this.http2.store(http2, Relaxed);
                    this.opening = None;
                }
                Poll::Ready(Ok(()))
            }
            Poll::Pending => {
                if let Some((_, sleep)) = &mut this.opening {
                    ready!(sleep.as_mut().poll(context));
                    return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
                }
                Poll::Pending
            }
            failed @ Poll::Ready(Err(_)) => failed,
        }
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Transport<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write(context, bytes);
        self.written(context, outcome)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let outcome = Pin::new(&mut self.io).poll_write_vectored(context, bytes);
        self.written(context, outcome)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let outcome = Pin::new(&mut self.io).poll_flush(context);
        self.written(context, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Linger::For(span) = this.linger {
            ready!(Pin::new(&mut this.io).poll_shutdown(context))?;
            if !this.given_up.load(Relaxed) {
                return Poll::Ready(Ok(()));
            }
            this.linger = Linger::Until(Box::pin(sleep(span)));
        }
        let Linger::Until(end) = &mut this.linger else { return Poll::Ready(Ok(())) };
        // Reads that are always ready would keep the timer from being asked.
        if end.deadline() <= Instant::now() {
            return Poll::Ready(Ok(()));
        }
        loop {
            let mut scrap = [0; 8 * 1024];
            let mut buffer = ReadBuf::new(&mut scrap);
            match Pin::new(&mut this.io).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => {}
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return end.as_mut().poll(context).map(Ok),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// However the bytes are cut up, it is over with the first that is no part of the greeting,
        /// or with the last that is.
        #[test]
        fn a_greeting_is_over_when_it_is_complete_or_none(
            cut in 0..=GREETING.len(),
            rest in proptest::collection::vec(any::<u8>(), 0..40),
            length in 1_usize..30,
        ) {
            let bytes = [&GREETING[..cut], &rest].concat();
            let same = bytes.iter().zip(GREETING).take_while(|(a, b)| a == b).count();
            // The number of bytes after which it is known.
            let known = (same + 1).min(GREETING.len());
            let (mut greeting, mut seen) = (Greeting(0), 0);
            for chunk in bytes.chunks(length) {
                seen += chunk.len();
                let http2 = greeting.is_http2(chunk);
                let right = (seen >= known).then_some(same == GREETING.len());
                prop_assert_eq!(http2, right, "{} of {:?}", seen, bytes);
                if http2.is_some() {
                    return Ok(());
                }
            }
            prop_assert_eq!(greeting.is_http2(&[]), Some(false));
        }
    }
}
