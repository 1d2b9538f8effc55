//! One endpoint: its connections, and what is said to it besides the request.
//!
//! **Transport.** The inbound role's pool, one for each worker, behind one service for the balancer
//! to pick. There is one balancer in the process, as what one worker learns of an endpoint (errors,
//! weights, active requests) is worth as much to the others; but a connection lives on the runtime
//! it was made on, and a request that left its worker would wait for two threads to wake. So a pick
//! is everybody's, and the connection that follows is the worker's own. The library's own client of
//! hyper-util has one pool for all threads under one lock, and does not know what was never sent.
//!
//! **Attempts.** The layer above numbers its own attempts from 1. A program that retries through us
//! has made some before: they are added, so that a backend sees how often it was really tried.

use crate::hop;
use crate::pool::{Failure, Leased, Pool, PoolConfig, Secure, Unfinished, Upstream};
use crate::run;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::{HeaderMap, HeaderValue, Request, Response, Version};
use http_body::{Body, Frame, SizeHint};
use std::sync::Arc;
use tidegate::client::{BoxError, Replay, Unsent};
use tidegate::serve::{BodyError, RequestBody};
use tidegate_wire::headers::ENDPOINT_LOAD_METRICS_FORMAT;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::{attempt, criticality, deadline};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service;

/// What goes to endpoints.
#[derive(Debug)]
pub(crate) enum Content {
    /// A caller's body.
    Theirs(RequestBody),
    /// What we ask ourselves, or have kept.
    Ours(Option<Bytes>),
    /// A caller's body of which we have read some.
    Begun(Option<Bytes>, RequestBody),
}

impl Default for Content {
    fn default() -> Self {
        Self::Ours(None)
    }
}

/// As far as it is short it can be sent twice.
pub(crate) type Sent = Replay<Content>;

/// How often a caller has tried before, in a request's extensions.
#[derive(Debug, Clone, Copy)]
pub(super) struct TriedBefore(pub(super) u32);

/// One endpoint.
#[derive(Debug, Clone)]
pub(crate) struct At {
    /// One for each worker.
    pools: Arc<[Arc<Pool<Sent>>]>,
    says: Says,
    /// How many connections there may be, if that is limited.
    room: Option<Arc<Semaphore>>,
}

/// What endpoints of a service are told besides the request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Says {
    /// That load reports are wanted.
    pub(super) asks: bool,
    /// How much it matters, until when, and which try it is.
    pub(super) propagate: bool,
}

impl At {
    pub(super) fn new(
        place: &Upstream,
        config: PoolConfig,
        secure: Option<&Secure>,
        workers: usize,
        says: Says,
    ) -> Self {
        let pools = (0..workers).map(|_| Pool::new(place.clone(), config, secure.cloned()));
        let pools = pools.collect();
        Self { pools, says, room: None }
    }

    /// With so many connections at the most, which whoever finds none free waits for. Over HTTP/2
    /// there are few anyway.
    pub(super) fn at_most(mut self, connections: Option<usize>) -> Self {
        self.room = connections.map(|count| Arc::new(Semaphore::new(count)));
        self
    }

    /// The pool of the worker whose thread this is.
    fn pool(&self) -> &Arc<Pool<Sent>> {
        &self.pools[run::worker() % self.pools.len()]
    }
}

impl Service<Request<Sent>> for At {
    type Response = Response<Roomed>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Sent>) -> Self::Future {
        let protocol = Protocol::of(request.headers());
        let before = request.extensions().get::<TriedBefore>().map_or(0, |tried| tried.0);
        if !self.says.propagate {
            tell_nothing(request.headers_mut(), protocol);
        } else if before > 0 {
            let (ours, _) = attempt::read(request.headers());
            attempt::write(request.headers_mut(), protocol, ours.saturating_add(before));
        }
        // Over gRPC they come unasked.
        if self.says.asks && protocol == Protocol::Http {
            let format = HeaderValue::from_static("BIN");
            request.headers_mut().insert(&ENDPOINT_LOAD_METRICS_FORMAT, format);
        }
        // What is kept of a request in its extensions is nothing for hyper to carry along.
        request.extensions_mut().clear();
        let (pool, room) = (Arc::clone(self.pool()), self.room.clone());
        Box::pin(async move {
            let told = |failure: Failure| -> BoxError {
                match failure {
                    Failure::Broken(_) => failure.into(),
                    unconnected => Unsent(unconnected.into()).into(),
                }
            };
            let mut http2 = request.version() == Version::HTTP_2;
            if !http2 {
                // It was written for what is spoken without TLS.
                http2 = match pool.is_http2(false, hop::wants_upgrade(&request)) {
                    Some(known) => known,
                    None => pool.ask().await.map_err(told)?,
                };
                if http2 {
                    hop::to_http2(&mut request)?;
                }
            }
            let place = match room.filter(|_| !http2) {
                // Nobody closes it.
                Some(room) => room.acquire_owned().await.ok(),
                None => None,
            };
            let response = pool.send(request, http2).await.map_err(told)?;
            Ok(response.map(|body| Roomed { body, _place: place }))
        })
    }
}

/// The body of an answer, on a connection that has its place until the end of it.
#[derive(Debug)]
pub(crate) struct Roomed {
    // Given back first, so that whoever comes next finds the connection free.
    body: Leased<Sent>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Body for Roomed {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// For hosts that are not ours: how much it matters to us, and how often we tried, is none of their
/// business. How long a gRPC call is waited for is.
fn tell_nothing(headers: &mut HeaderMap, protocol: Protocol) {
    criticality::strip(headers);
    attempt::strip(headers);
    if protocol == Protocol::Http {
        deadline::strip(headers);
    }
}

impl Body for Content {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        match &mut *self {
            Self::Theirs(body) => Pin::new(body).poll_frame(context),
            Self::Ours(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Self::Begun(first, rest) => match first.take() {
                Some(first) => Poll::Ready(Some(Ok(Frame::data(first)))),
                None => Pin::new(rest).poll_frame(context),
            },
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Theirs(body) => body.is_end_stream(),
            Self::Ours(bytes) => bytes.is_none(),
            Self::Begun(first, rest) => first.is_none() && rest.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Theirs(body) => body.size_hint(),
            Self::Ours(bytes) => SizeHint::with_exact(bytes.as_ref().map_or(0, Bytes::len) as u64),
            Self::Begun(first, rest) => {
                let read = first.as_ref().map_or(0, Bytes::len) as u64;
                let mut hint = SizeHint::new();
                hint.set_lower(rest.size_hint().lower().saturating_add(read));
                if let Some(upper) = rest.size_hint().upper() {
                    hint.set_upper(upper.saturating_add(read));
                }
                hint
            }
        }
    }
}
