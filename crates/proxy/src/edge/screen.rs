//! The edge as a service around a role's.

use super::body::EdgeBody;
use super::config::forget_senders;
use super::{Client, Edge, Guard, Known};
use crate::hop;
use crate::refuse::{BROKEN, Refusal};
use bytes::Bytes;
use core::convert::Infallible;
use core::pin::Pin;
use core::sync::atomic::{AtomicU64, Ordering::Relaxed};
use core::task::{Context, Poll, ready};
use http::header::HeaderName;
use http::{HeaderMap, Request, Response};
use http_body::Body;
use std::net::SocketAddr;
use std::sync::Arc;
use tidegate::serve::{Breach, Breached, Peer, RequestBody};
use tidegate_core::connection::gate::ConnectionGate;
use tidegate_wire::edge;
use tidegate_wire::headers::{X_ENVOY_RATELIMITED, X_TIDEGATE_CAUSE, X_TIDEGATE_REASON};
use tidegate_wire::protocol::Protocol;
use tower_service::Service;

/// A role's service, before it is known whom it is for.
pub(crate) trait Meet {
    /// The same for one connection.
    fn meet(&self, peer: &Peer) -> Self;
}

/// Makes the service of each connection behind an edge.
#[derive(Debug, Clone)]
pub(crate) struct Make<S> {
    edge: Arc<Edge>,
    inner: S,
}

impl<S> Make<S> {
    pub(crate) const fn new(edge: Arc<Edge>, inner: S) -> Self {
        Self { edge, inner }
    }
}

impl<S: Meet> Service<Peer> for Make<S> {
    type Response = Screen<S>;
    type Error = Infallible;
    type Future = core::future::Ready<Result<Screen<S>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, peer: Peer) -> Self::Future {
        let (edge, address) = (&self.edge, peer.address());
        let about = Arc::new(Connection {
            edge: Arc::clone(edge),
            address,
            secure: peer.is_secure(),
            client: address.map(|address| edge.clients.at(address, edge.clock.now())),
            known: edge.rules.known(peer.identity()),
            // It could be had when the edge was made.
            gate: edge.config.each_connection.gate().ok(),
        });
        core::future::ready(Ok(Screen { about, inner: self.inner.meet(&peer) }))
    }
}

/// Makes the service of each connection where there is no edge, and is that service: nothing stands
/// between a connection and the role but what all requests need.
#[derive(Debug, Clone)]
pub(crate) struct Bare<S>(pub(crate) S);

impl<S: Meet> Service<Peer> for Bare<S> {
    type Response = Self;
    type Error = Infallible;
    type Future = core::future::Ready<Result<Self, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, peer: Peer) -> Self::Future {
        core::future::ready(Ok(Self(self.0.meet(&peer))))
    }
}

impl<S: Service<Request<RequestBody>>> Service<Request<RequestBody>> for Bare<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.0.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, mut request: Request<RequestBody>) -> S::Future {
        // Copies would be chosen by what the program never sees.
        hop::arrived(&mut request);
        request.body_mut().on_trailers(hop::strip);
        self.0.call(request)
    }
}

/// What all requests of a connection share.
#[derive(Debug)]
struct Connection {
    edge: Arc<Edge>,
    address: Option<SocketAddr>,
    secure: bool,
    /// None for what has no address: a socket in the file system.
    client: Option<Arc<Client>>,
    known: Known,
    gate: Option<ConnectionGate>,
}

/// A role's service behind an edge.
#[derive(Debug, Clone)]
pub(crate) struct Screen<S> {
    about: Arc<Connection>,
    inner: S,
}

impl<S, B> Service<Request<RequestBody>> for Screen<S>
where
    S: Service<Request<RequestBody>, Response = Response<B>, Error = Infallible>,
    B: Body<Data = Bytes>,
{
    type Response = Response<EdgeBody<B>>;
    type Error = Infallible;
    type Future = Screened<S::Future>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, mut request: Request<RequestBody>) -> Self::Future {
        // Before anything is written: a stranger could name it in `connection` and have it taken
        // out again, and copies would be chosen by what the program never sees.
        hop::arrived(&mut request);
        let about = &self.about;
        let protocol = Protocol::of(request.headers());
        match about.enter(&mut request) {
            Err(refusal) => Screened::Refused { refusal, protocol },
            Ok((held, breached)) => Screened::Handed {
                future: self.inner.call(request),
                held,
                breached,
                about: Arc::clone(about),
                protocol,
            },
        }
    }
}

impl Connection {
    /// Lets a request in that may come in, as it may.
    fn enter(
        &self,
        request: &mut Request<RequestBody>,
    ) -> Result<(Option<Guard>, Option<Breached>), Refusal> {
        let (edge, now) = (&self.edge, self.edge.clock.now());
        let refuse = |counter: &AtomicU64, refusal| {
            counter.fetch_add(1, Relaxed);
            refusal
        };
        if let Some(gate) = &self.gate {
            if gate.accept(None, now).is_err() {
                return Err(refuse(&edge.counts.refused_connection, Refusal::TooFast));
            }
            // Only their pace counts; how many there are at once is limited by HTTP/2 itself.
            gate.release();
        }
        let held = match &self.client {
            Some(client) => match client.request(now) {
                None => return Err(refuse(&edge.counts.refused_client, Refusal::TooMany)),
                held => held,
            },
            None => None,
        };
        edge.screen(request, &self.known, self.address, self.secure);
        let limits = edge.body_limits(request.uri().path());
        let body = request.body_mut();
        body.on_trailers(|trailers| {
            hop::strip(trailers);
            edge::strip_request(trailers);
            // Nobody who may say who asks does so at the end.
            forget_senders(trailers);
        });
        let Some(limits) = limits.filter(|_| !body.is_end_stream()) else {
            return Ok((held, None));
        };
        if limits.bytes_max.is_some_and(|max| body.size_hint().lower() > max) {
            return Err(refuse(&edge.counts.too_long, Refusal::TooLong));
        }
        Ok((held, Some(body.limit(limits))))
    }

    /// What to answer instead of `response`, if that only says that the request broke off, and it
    /// did so for a limit that its body has met.
    fn breach<B>(&self, breached: Option<&Breached>, response: &Response<B>) -> Option<Refusal> {
        let breach = breached?.get()?;
        let counts = &self.edge.counts;
        let (counter, refusal) = match breach {
            Breach::TooLong => (&counts.too_long, Refusal::TooLong),
            _ => (&counts.too_slow, Refusal::TooSlow),
        };
        counter.fetch_add(1, Relaxed);
        let broken = response.headers().get(&X_TIDEGATE_REASON).is_some_and(|why| why == BROKEN);
        broken.then_some(refusal)
    }
}

pin_project_lite::pin_project! {
    /// From a request to the head of its answer.
    #[project = ScreenedProjection]
    pub(crate) enum Screened<F> {
        Handed {
            #[pin]
            future: F,
            held: Option<Guard>,
            breached: Option<Breached>,
            about: Arc<Connection>,
            protocol: Protocol,
        },
        Refused { refusal: Refusal, protocol: Protocol },
    }
}

impl<F, B> Future for Screened<F>
where
    F: Future<Output = Result<Response<B>, Infallible>>,
{
    type Output = Result<Response<EdgeBody<B>>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.project() {
            ScreenedProjection::Refused { refusal, protocol } => {
                Poll::Ready(Ok(ours(*refusal, *protocol)))
            }
            ScreenedProjection::Handed { future, held, breached, about, protocol } => {
                let Ok(mut response) = ready!(future.poll(context));
                if let Some(refusal) = about.breach(breached.as_ref(), &response) {
                    return Poll::Ready(Ok(ours(refusal, *protocol)));
                }
                strip_response(response.headers_mut());
                let held = held.take();
                Poll::Ready(Ok(response.map(|body| EdgeBody::Theirs { body, _held: held })))
            }
        }
    }
}

fn ours<B>(refusal: Refusal, protocol: Protocol) -> Response<EdgeBody<B>> {
    let response = refusal.respond(protocol);
    response.map(|bytes| EdgeBody::Ours(Some(bytes).filter(|bytes| !bytes.is_empty())))
}

/// What is no stranger's business. Load reports are out already; that it should not try again is
/// for it to know.
fn strip_response(headers: &mut HeaderMap) {
    edge::strip_response(headers);
    headers.remove(&X_TIDEGATE_CAUSE);
    let of_envoy =
        |name: &&HeaderName| name.as_str().starts_with("x-envoy-") && *name != X_ENVOY_RATELIMITED;
    if headers.keys().any(|name| of_envoy(&name)) {
        let names: Vec<HeaderName> = headers.keys().filter(of_envoy).cloned().collect();
        for name in names {
            headers.remove(name);
        }
    }
}
