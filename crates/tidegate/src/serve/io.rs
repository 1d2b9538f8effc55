//! What hyper leaves to the transport.
//!
//! **The first bytes.** A server for HTTP/1 and HTTP/2 on one port has to see how a connection
//! begins before it knows which it is.
//!
//! **Rest.** hyper is told that the connection has ended when that is a way to be rid of hyper
//! (`protocol`).
//!
//! **Stalls.** A client that asks for much and reads nothing keeps its request in flight for ever.
//! Writing fails when nothing could be written for too long.
//!
//! **Lingering.** A server that closes a socket with bytes in it that nobody has read makes the
//! kernel send a reset, and a reset makes the peer's kernel throw away the answer that it has not
//! read yet. There are such bytes more often than not when it is the server that closes first: the
//! rest of a body, a request that was sent before the answer said `connection: close`, the updates
//! of HTTP/2's windows that follow each piece of an answer. So closing says that no more will be
//! written, and then goes on reading until the peer closes too, which good ones do within a round
//! trip. Others have [`Limits::discard_timeout`](super::Limits) and `discard_max` bytes: who goes
//! on sending for longer may lose the answer, and keeps its place for no longer than that. The rest
//! of a body has the time only: it was announced, its sender is honest for all one knows, and looks
//! for the answer when all of it is sent.

use super::connection::Shared;
use super::stall::Stall;
use core::mem::MaybeUninit;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
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
    /// While it may yet be HTTP/2's greeting.
    opening: Option<Greeting>,
    /// What was read before there was anybody to read it, and how much of that was read again.
    unread: (Vec<u8>, usize),
    /// The end was told, although it has not come.
    rested: bool,
    /// Closing it harms nobody: the peer has closed, or was told nothing that it may not have read.
    settled: bool,
    shared: Arc<Shared>,
    linger: Linger,
    stall: Stall,
}

enum Linger {
    /// Not yet.
    No,
    /// Until then, if that is known: it is not before there was nothing to read.
    Yes { until: Option<Pin<Box<Sleep>>>, left: u64 },
}

impl<I> Transport<I> {
    pub(super) fn new(io: I, shared: Arc<Shared>) -> Self {
        let limits = shared.limits;
        Self {
            io,
            opening: Some(Greeting(0)),
            unread: (Vec::new(), 0),
            rested: false,
            settled: false,
            shared,
            linger: Linger::No,
            stall: Stall::new(limits.stall_max),
        }
    }

    /// Whether it is not known yet which protocol it is.
    pub(super) const fn is_opening(&self) -> bool {
        self.opening.is_some()
    }

    /// These come first when it is read the next time.
    pub(super) fn unread(&mut self, bytes: Vec<u8>) {
        self.unread = (bytes, 0);
    }

    /// Whether the end was told that has not come. From now on it was not.
    pub(super) fn has_rested(&mut self) -> bool {
        core::mem::take(&mut self.rested)
    }

    /// Nothing was said to the peer of late, so that closing needs no care.
    pub(super) const fn settle(&mut self) {
        self.settled = true;
    }

    /// Reads again what was read before.
    #[cold]
    fn read_again(&mut self, buffer: &mut ReadBuf<'_>) {
        let (bytes, from) = &mut self.unread;
        let rest = bytes.get(*from..).unwrap_or_default();
        let length = rest.len().min(buffer.remaining());
        buffer.put_slice(rest.get(..length).unwrap_or_default());
        *from += length;
        if *from >= bytes.len() {
            self.unread = (Vec::new(), 0);
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
        self.shared.activity.hold_up();
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
        if !this.unread.0.is_empty() {
            this.read_again(buffer);
            return Poll::Ready(Ok(()));
        }
        let before = buffer.filled().len();
        let outcome = Pin::new(&mut this.io).poll_read(context, buffer);
        if let Poll::Ready(Ok(())) = &outcome {
            this.settled = buffer.filled().len() == before && buffer.remaining() > 0;
            if buffer.filled().len() > before {
                this.shared.activity.hear();
            }
        }
        // Asked for at a moment in which nobody used it, and that moment is now.
        if this.shared.rest.is_due() && outcome.is_pending() {
            this.rested = true;
            return Poll::Ready(Ok(()));
        }
        if let (Some(greeting), Poll::Ready(Ok(()))) = (&mut this.opening, &outcome)
            && let Some(http2) = greeting.is_http2(&buffer.filled()[before..])
        {
            this.shared.http2.store(http2, Relaxed);
            this.opening = None;
        }
        outcome
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
        if outcome.is_ready() {
            self.shared.activity.flushed();
        }
        self.written(context, outcome)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.rested {
            return Poll::Ready(Ok(()));
        }
        if let Linger::No = this.linger {
            ready!(Pin::new(&mut this.io).poll_shutdown(context))?;
            let given_up = this.shared.given_up.load(Relaxed);
            let left = if given_up { u64::MAX } else { this.shared.limits.discard_max };
            this.linger = Linger::Yes { until: None, left };
        }
        if this.settled {
            return Poll::Ready(Ok(()));
        }
        this.shared.lingers.store(true, Relaxed);
        this.poll_linger(context).map(Ok)
    }
}

impl<I: AsyncRead + Unpin> Transport<I> {
    /// Reads what nobody wants, until the peer closes or has had its time.
    fn poll_linger(&mut self, context: &mut Context<'_>) -> Poll<()> {
        let Linger::Yes { until, left } = &mut self.linger else { return Poll::Ready(()) };
        // Reads that are always ready would keep the timer from being asked.
        if until.as_ref().is_some_and(|until| until.deadline() <= Instant::now()) {
            return Poll::Ready(());
        }
        loop {
            let mut scrap = [MaybeUninit::uninit(); 8 * 1024];
            let mut buffer = ReadBuf::uninit(&mut scrap);
            let outcome = Pin::new(&mut self.io).poll_read(context, &mut buffer);
            let came = buffer.filled().len() as u64;
            match outcome {
                Poll::Ready(Ok(())) if came > 0 && came < *left => *left -= came,
                Poll::Ready(_) => return Poll::Ready(()),
                Poll::Pending => {
                    let span = self.shared.limits.discard_timeout;
                    let until = until.get_or_insert_with(|| Box::pin(sleep(span)));
                    return until.as_mut().poll(context);
                }
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
