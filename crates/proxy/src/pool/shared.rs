//! Connections of HTTP/2, each for many requests at once.
//!
//! The program says how many streams a connection may have. What goes beyond would wait inside h2
//! where nobody counts it, so there is another connection when all are full: the first that has
//! room is taken, so that those at the end run empty when traffic falls, and are closed; the first
//! is, too, when nobody has called for long.
//!
//! A connection is used once the program has said how many: to guess would be to have requests wait
//! behind each other that need not. Whoever comes while a connection is being made waits for that
//! one rather than make another.

use core::future::poll_fn;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::Poll;
use core::time::Duration;
use hyper::client::conn::http2::SendRequest;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;
use tokio::time::Instant;

/// No more than this of one worker: a program that allows so few streams that this is not enough
/// does not want more. Requests then wait in h2 for a stream to end.
const CONNECTIONS_MAX: usize = 16;

/// The connections of one worker to one program.
#[derive(Debug)]
pub(super) struct Shared<B> {
    connections: Mutex<Vec<Connection<B>>>,
}

#[derive(Debug)]
struct Connection<B> {
    sender: SendRequest<B>,
    streams: Arc<Streams>,
}

/// How many there are on one connection.
#[derive(Debug)]
pub(super) struct Streams {
    open: AtomicUsize,
    /// Zero until the program has said it.
    max: AtomicUsize,
    /// For whoever waits for that, or for the end.
    said: Notify,
    /// When the last one began or ended.
    used: Mutex<Instant>,
}

impl Streams {
    fn used(&self) -> MutexGuard<'_, Instant> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            open: AtomicUsize::new(0),
            max: AtomicUsize::new(0),
            said: Notify::new(),
            used: Mutex::new(Instant::now()),
        })
    }

    /// What the program allows from now on.
    fn allow(&self, max: usize) {
        if self.max.swap(max, Ordering::Relaxed) == 0 && max > 0 {
            self.said.notify_one();
        }
    }

    /// Waits until the program has allowed any, or the connection has ended.
    pub(super) async fn said(&self) {
        if self.max.load(Ordering::Relaxed) == 0 {
            self.said.notified().await;
        }
    }

    fn open(self: &Arc<Self>) -> Stream {
        self.open.fetch_add(1, Ordering::Relaxed);
        Stream(Arc::clone(self))
    }
}

/// A stream in use, until this is dropped.
#[derive(Debug)]
pub(super) struct Stream(Arc<Streams>);

impl Drop for Stream {
    fn drop(&mut self) {
        if self.0.open.fetch_sub(1, Ordering::Relaxed) == 1 {
            *self.0.used() = Instant::now();
        }
    }
}

impl<B> Default for Shared<B> {
    fn default() -> Self {
        Self { connections: Mutex::default() }
    }
}

impl<B> Shared<B> {
    fn connections(&self) -> MutexGuard<'_, Vec<Connection<B>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A stream on a connection that has room; if there are as many connections as there may be,
    /// on that with the fewest streams.
    pub(super) fn take(&self) -> Option<(SendRequest<B>, Stream)> {
        let connections = self.connections();
        let alive = || connections.iter().filter(|connection| !connection.sender.is_closed());
        let room = |connection: &&Connection<B>| {
            let streams = &connection.streams;
            streams.open.load(Ordering::Relaxed) < streams.max.load(Ordering::Relaxed)
        };
        let found = match alive().find(room) {
            Some(found) => found,
            None if alive().count() < CONNECTIONS_MAX => return None,
            None => least(alive())?,
        };
        Some((found.sender.clone(), found.streams.open()))
    }

    /// The same if no other connection can be had.
    pub(super) fn take_full(&self) -> Option<(SendRequest<B>, Stream)> {
        let connections = self.connections();
        let alive = connections.iter().filter(|connection| !connection.sender.is_closed());
        least(alive).map(|found| (found.sender.clone(), found.streams.open()))
    }

    /// There is one more, with a stream for whoever has made it.
    pub(super) fn put(&self, sender: SendRequest<B>, streams: Arc<Streams>) -> Stream {
        let stream = streams.open();
        let mut connections = self.connections();
        connections.retain(|connection| !connection.sender.is_closed());
        connections.push(Connection { sender, streams });
        stream
    }

    /// Closes what has had no stream for `idle_max`, and the first of them after `first_max`.
    /// Returns whether there are any left.
    pub(super) fn sweep(&self, now: Instant, idle_max: Duration, first_max: Duration) -> bool {
        let mut connections = self.connections();
        connections.retain(|connection| !connection.sender.is_closed());
        let mut index = 0;
        connections.retain(|Connection { streams, .. }| {
            index += 1;
            let max = if index == 1 { first_max } else { idle_max };
            let idle = now.saturating_duration_since(*streams.used()) >= max;
            streams.open.load(Ordering::Relaxed) > 0 || !idle
        });
        !connections.is_empty()
    }
}

fn least<'a, B: 'a>(
    connections: impl Iterator<Item = &'a Connection<B>>,
) -> Option<&'a Connection<B>> {
    connections.min_by_key(|connection| connection.streams.open.load(Ordering::Relaxed))
}

/// How often a new connection is asked whether the program has said something: hyper wakes nobody
/// for it. As long as a short way to another machine.
const LOOK: Duration = Duration::from_millis(1);

/// Drives `connection` to its end, and tells `streams` what `allowed` says after each step.
pub(super) async fn drive<C: Future + Unpin>(
    mut connection: C,
    streams: Arc<Streams>,
    allowed: impl Fn(&C) -> usize,
) {
    let mut look = Box::pin(tokio::time::sleep(Duration::ZERO));
    poll_fn(|context| {
        loop {
            let over = Pin::new(&mut connection).poll(context);
            if over.is_ready() {
                return over.map(drop);
            }
            let max = allowed(&connection);
            streams.allow(max);
            if max > 0 || look.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            look.as_mut().reset(Instant::now() + LOOK);
        }
    })
    .await;
    streams.said.notify_one();
}
