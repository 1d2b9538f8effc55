//! A connection of HTTP/1.1, one request at a time.
//!
//! Nearly all that a request costs is the kernel's: one write, one read and a share of a wake-up.
//! What is added here is a copy into a buffer, a look at the head, and no allocation. A general
//! client brings channels, maps and bodies along, and takes several times as much.
//!
//! A connection that an attempt was given up on is closed, as its answer would be taken for that of
//! the next. One that the server has closed meanwhile is noticed before anything is sent on it.

pub(crate) mod parse;

use crate::request::{Ask, Requests};
use crate::transport::{Dial, Transport};
use crate::verdict::{ErrorKind, Failed, Verdict};
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::Method;
use parse::{HEAD_MAX, Reader};
use std::time::Instant;
use tokio::io::{AsyncRead as _, AsyncWrite as _, ReadBuf};

/// What is read at once: enough for most answers, and little for a thousand connections.
const BUFFER: usize = 16 * 1024;

/// A place for a connection.
#[derive(Debug)]
pub(crate) struct Connection {
    transport: Option<Transport>,
    reader: Reader,
    /// What has come and was not consumed is `input[start..end]`.
    input: Vec<u8>,
    start: usize,
    end: usize,
    output: Vec<u8>,
    written: usize,
    /// A request is on its way: if it still is when the next one comes, it was given up on.
    busy: bool,
}

impl Connection {
    pub(crate) fn new() -> Self {
        Self {
            transport: None,
            reader: Reader::new(),
            input: Vec::new(),
            start: 0,
            end: 0,
            output: Vec::new(),
            written: 0,
            busy: false,
        }
    }

    /// Connects, unless there is a connection.
    pub(crate) async fn connect(&mut self, dial: &Dial) -> Result<(), Failed> {
        if self.transport.is_none() {
            self.transport = Some(dial.connect().await?);
            self.input.resize(BUFFER, 0);
            (self.start, self.end) = (0, 0);
        }
        Ok(())
    }

    /// Asks, and waits for the whole answer. `sent` is when the first byte went out.
    pub(crate) async fn attempt(
        &mut self,
        dial: &Dial,
        requests: &Requests,
        ask: &Ask,
        sent: &mut Option<Instant>,
    ) -> Result<Verdict, Failed> {
        if self.busy {
            self.close();
        }
        if self.transport.is_some() && !poll_fn(|cx| Poll::Ready(self.is_quiet(cx))).await {
            self.close();
        }
        self.connect(dial).await?;
        self.output.clear();
        self.written = 0;
        requests.write(ask, &mut self.output);
        self.reader.begin(requests.method(&ask.choice) == Method::HEAD);
        self.busy = true;
        *sent = Some(Instant::now());
        let result = poll_fn(|cx| self.poll_exchange(cx)).await;
        if result.is_err() || !self.reader.keep_alive || self.start < self.end {
            self.close();
        }
        self.busy = false;
        result.map(|()| Verdict::of_http(self.reader.status, &self.reader.advice))
    }

    pub(crate) fn close(&mut self) {
        self.transport = None;
        self.busy = false;
        (self.start, self.end) = (0, 0);
    }

    /// Whether a connection that nobody uses is still open and has nothing to say. Costs no system
    /// call where the kernel has reported nothing.
    fn is_quiet(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(transport) = &mut self.transport else { return false };
        let mut byte = [0];
        let mut buffer = ReadBuf::new(&mut byte);
        Pin::new(transport).poll_read(cx, &mut buffer).is_pending()
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        // A server may refuse before it has read all, so that writing fails and an answer is there.
        let writing = self.poll_output(cx);
        match self.poll_input(cx) {
            Poll::Pending => match writing {
                Poll::Ready(Err(failed)) => Poll::Ready(Err(failed)),
                _ => Poll::Pending,
            },
            done @ Poll::Ready(_) => done,
        }
    }

    fn poll_output(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        let Some(transport) = &mut self.transport else {
            return Poll::Ready(Err(Failed::unsent(ErrorKind::ConnectionClosed)));
        };
        let failed = |error| Failed::sent(ErrorKind::of(&error));
        let mut transport = Pin::new(transport);
        while self.written < self.output.len() {
            let rest = &self.output[self.written..];
            match ready!(transport.as_mut().poll_write(cx, rest)) {
                Ok(0) => return Poll::Ready(Err(Failed::sent(ErrorKind::ConnectionClosed))),
                Ok(written) => self.written += written,
                Err(error) => return Poll::Ready(Err(failed(error))),
            }
        }
        transport.poll_flush(cx).map_err(failed)
    }

    fn poll_input(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Failed>> {
        loop {
            let Some(transport) = &mut self.transport else {
                return Poll::Ready(Err(Failed::unsent(ErrorKind::ConnectionClosed)));
            };
            let mut buffer = ReadBuf::new(&mut self.input[self.end..]);
            let arrived = match ready!(Pin::new(transport).poll_read(cx, &mut buffer)) {
                Ok(()) => buffer.filled().len(),
                Err(error) => return Poll::Ready(Err(Failed::sent(ErrorKind::of(&error)))),
            };
            if arrived == 0 {
                let kind = if self.reader.has_begun() {
                    ErrorKind::Malformed
                } else {
                    ErrorKind::ConnectionClosed
                };
                return Poll::Ready(self.reader.close().map_err(|_| Failed::sent(kind)));
            }
            self.end += arrived;
            let Ok(progress) = self.reader.read(&self.input[self.start..self.end]) else {
                return Poll::Ready(Err(Failed::sent(ErrorKind::Malformed)));
            };
            self.start += progress.consumed;
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            if progress.complete {
                return Poll::Ready(Ok(()));
            }
            self.make_room();
        }
    }

    /// A head, or a line between chunks, that fills the buffer needs a longer one.
    fn make_room(&mut self) {
        if self.end == self.input.len() {
            self.input.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
            if self.end == self.input.len() {
                self.input.resize((2 * self.end).min(2 * HEAD_MAX), 0);
            }
        }
    }
}
