//! A connection: nothing but its transport while nobody speaks, and HTTP once somebody does.
//!
//! Most connections of a busy server are idle, and hyper keeps 30 KiB for each of them that has
//! ever been used: buffers to read and to write, the map of the last headers, room for a request.
//! So HTTP is made when the first bytes are there, and unmade when a connection of HTTP/1 has not
//! been used for a while ([`Limits::rest_after`](super::Limits)):
//!
//! ```text
//! Resting --- bytes ---> Http1 (or Http2, by the greeting)
//!    ^                     |
//!    '-- told that it is --'
//!        the end, ends
//! ```
//!
//! hyper has no word for that, but it knows the end of a connection. [`Transport`] says that it has
//! come, if there is nothing to read and no request, and does not pass on that hyper closes it
//! then; hyper ends in good order and gives back the transport and whatever it had read of a next
//! request. That, and what comes later, goes into the next connection of hyper, which cannot tell.
//!
//! No byte can be lost on the way. All of this happens in one task: a byte is either read before
//! the end is told, and then it is not told; or it waits in the socket. A head of which only a part
//! has come rests as that part.
//!
//! **The end of an idle connection.** hyper drops what has come of a next request when it is asked
//! to end between two of them. So it is not asked: it rests, and of what it gives back one sees
//! whether there is somebody to wait for. If there is, a new connection of hyper gets it, and that
//! one waits for its first request, asked to end or not.
//!
//! HTTP/2 stays what it is: its end would have to be said, and its tables are shared with the peer.

use super::connection::Shared;
use super::io::Transport;
use super::stream::Streams;
use super::{BoxError, Common};
use core::mem::{MaybeUninit, replace};
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::{HttpService, Service};
use hyper_util::rt::TokioIo;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read before HTTP is made: a request without a body, in nearly all cases, so that
/// there is nothing more to read for hyper. It lies on the stack.
const FIRST_READ: usize = 2048;

/// hyper's builders.
pub(super) struct Http {
    pub(super) http1: http1::Builder,
    pub(super) http2: http2::Builder<Streams>,
}

/// A connection, to be polled until it ends.
pub(super) struct Protocol<'a, I, S: HttpService<Incoming>> {
    common: &'a Common,
    shared: Arc<Shared>,
    state: State<I, S>,
    /// It was asked to end.
    ending: bool,
    /// hyper is to be told so after it was polled: without having read what came of a request it
    /// would end.
    tell_end: bool,
}

type Http1<I, S> = http1::UpgradeableConnection<TokioIo<Transport<I>>, S>;
type Http2<I, S> = http2::Connection<TokioIo<Transport<I>>, S, Streams>;

enum State<I, S: HttpService<Incoming>> {
    /// With what has come of a request, or of HTTP/2's greeting.
    Resting {
        transport: Transport<I>,
        service: S,
        came: Vec<u8>,
    },
    Http1(Box<Http1<I, S>>),
    Http2(Pin<Box<Http2<I, S>>>),
    Closing(Transport<I>),
    Over,
}

/// What is pinned is in a box.
impl<I, S: HttpService<Incoming>> Unpin for Protocol<'_, I, S> {}

impl<'a, I, S, B> Protocol<'a, I, S>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    pub(super) fn new(common: &'a Common, io: I, service: S, shared: &Arc<Shared>) -> Self {
        let transport = Transport::new(io, Arc::clone(shared));
        let state = State::Resting { transport, service, came: Vec::new() };
        Self { common, shared: Arc::clone(shared), state, ending: false, tell_end: false }
    }

    /// Asks it to end: at once if it rests and nothing has come of a request.
    pub(super) fn graceful_shutdown(&mut self) {
        self.ending = true;
        match &mut self.state {
            State::Http1(_) => self.tell_end = true,
            State::Http2(connection) => connection.as_mut().graceful_shutdown(),
            state => {
                if let State::Resting { mut transport, service, came } = replace(state, State::Over)
                {
                    // Thousands may rest when a task leaves, and each would have to be waited for.
                    if came.is_empty() {
                        transport.settle();
                    }
                    self.end(transport, service, came);
                }
            }
        }
    }

    /// hyper's HTTP/1 has nothing to do for now, and was asked to end. Whether it has to be polled
    /// again.
    fn tell_end(&mut self) -> bool {
        let State::Http1(connection) = &mut self.state else { return false };
        if !replace(&mut self.tell_end, false) {
            return false;
        }
        let shared = &self.shared;
        let between = !shared.activity.is_busy() && !shared.given_up.load(Relaxed);
        // If it does not even read when it is asked to, it has something to do after all.
        if between && shared.rest.tire() {
            self.tell_end = true;
        } else {
            shared.rest.never();
            Pin::new(&mut **connection).graceful_shutdown();
        }
        true
    }

    /// There is nothing but its transport, and it was asked to end.
    fn end(&mut self, transport: Transport<I>, service: S, came: Vec<u8>) {
        if came.is_empty() {
            self.state = State::Closing(transport);
            return;
        }
        self.wake(transport, service, came);
        self.shared.rest.never();
        self.tell_end = true;
    }

    /// Somebody speaks.
    fn wake(&mut self, mut transport: Transport<I>, service: S, came: Vec<u8>) {
        self.shared.rest.over();
        transport.unread(came);
        let io = TokioIo::new(transport);
        let http = &self.common.http;
        self.state = if self.shared.http2.load(Relaxed) {
            State::Http2(Box::pin(http.http2.serve_connection(io, service)))
        } else {
            State::Http1(Box::new(http.http1.serve_connection(io, service).with_upgrades()))
        };
    }

    /// hyper's HTTP/1 has ended, by itself or because it was told that there is no more to come.
    fn ended(&mut self, connection: Http1<I, S>) {
        // Of an upgraded one there are no parts any more.
        let Some(parts) = connection.into_parts() else { return };
        let mut transport = parts.io.into_inner();
        if !transport.has_rested() {
            return;
        }
        let (service, came) = (parts.service, parts.read_buf.to_vec());
        if self.ending {
            return self.end(transport, service, came);
        }
        if !came.is_empty() {
            self.shared.activity.hear();
        }
        self.shared.rest.begin();
        self.common.counters.rested.fetch_add(1, Relaxed);
        self.state = State::Resting { transport, service, came };
    }
}

/// Reads what has come, until it is known what it is. Whether there is more to come.
fn poll_first<I: AsyncRead + Unpin>(
    transport: &mut Transport<I>,
    came: &mut Vec<u8>,
    context: &mut Context<'_>,
) -> Poll<io::Result<bool>> {
    loop {
        let mut space = [MaybeUninit::uninit(); FIRST_READ];
        let mut buffer = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *transport).poll_read(context, &mut buffer))?;
        if buffer.filled().is_empty() {
            return Poll::Ready(Ok(false));
        }
        came.extend_from_slice(buffer.filled());
        if !transport.is_opening() {
            return Poll::Ready(Ok(true));
        }
    }
}

impl<I, S, B> Future for Protocol<'_, I, S>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    S: Service<Request<Incoming>, Response = Response<B>, Error = BoxError>,
    S::Future: Send + 'static,
    B: Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
{
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        // What goes wrong is the peer's business: it hung up, or sent what is not HTTP.
        loop {
            match &mut this.state {
                State::Http1(connection) => {
                    if Pin::new(&mut **connection).poll(context).is_pending() {
                        if this.tell_end() {
                            continue;
                        }
                        return Poll::Pending;
                    }
                    let state = replace(&mut this.state, State::Over);
                    if let State::Http1(connection) = state {
                        this.ended(*connection);
                    }
                }
                State::Http2(connection) => {
                    let _ = ready!(connection.as_mut().poll(context));
                    return Poll::Ready(());
                }
                State::Resting { transport, came, .. } => {
                    let more = ready!(poll_first(transport, came, context));
                    let state = replace(&mut this.state, State::Over);
                    if let State::Resting { transport, service, came } = state {
                        match more {
                            Ok(true) => this.wake(transport, service, came),
                            Ok(false) => this.state = State::Closing(transport),
                            Err(_) => {}
                        }
                    }
                }
                State::Closing(transport) => {
                    let _ = ready!(Pin::new(transport).poll_shutdown(context));
                    this.state = State::Over;
                }
                State::Over => return Poll::Ready(()),
            }
        }
    }
}
