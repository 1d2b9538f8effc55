//! One request that was let in: to the program, and its answer back.
//!
//! **Nobody waits any more.** A caller may leave, or its deadline may pass, while the program is at
//! work. Over HTTP/2 the stream is reset, and most programs then stop. Over HTTP/1 all that can be
//! done is to close the connection, and most programs do not look: they go on to the end, and what
//! would be closed is only our knowledge of it. A proxy that took such requests for done would let
//! in as many more, each second anew, and bury the program in work for nobody. So the exchange goes
//! on without its caller until the program has answered, and counts as in flight until then.

use crate::hop::{self, Unforwardable};
use crate::pool::{Failure, Leased, Pool, Unfinished};
use crate::refuse::Refusal;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tidegate::serve::{Peer, RequestBody, Stay};
use tidegate::server::Ticket;
use tidegate_wire::protocol::Protocol;

/// What becomes of a request that is handed on.
pub(crate) enum Handed<T> {
    /// It cannot be.
    Answered(T),
    /// It is on its way; `sent` if the program may know of it already.
    Under { way: Pin<Box<dyn Future<Output = T> + Send>>, sent: bool },
}

/// An answer, from the program or in its place.
pub(crate) type Answer = Response<ProxyBody<Leased<RequestBody>>>;

/// Hands `request` on, and makes with `finish` what is wanted of what comes back.
///
/// Nearly all requests find a free connection of HTTP/1, and are handed to it here and now: what
/// then waits is small, where a request that is moved from future to future would be copied with
/// each.
pub(crate) fn forward<T: 'static>(
    pool: &Arc<Pool<RequestBody>>,
    mut request: Request<RequestBody>,
    ticket: Ticket,
    wish: Option<Wish>,
    finish: impl FnOnce(Answer) -> T + Send + 'static,
) -> Handed<T> {
    let grpc = ticket.protocol() == Protocol::Grpc;
    let Some(http2) = pool.is_http2(grpc, wish.is_some()) else {
        let pool = Arc::clone(pool);
        let way = Box::pin(async move { finish(ask_first(pool, request, ticket, wish).await) });
        return Handed::Under { way, sent: false };
    };
    let client = match address(&mut request, http2, wish) {
        Ok(client) => client,
        Err(refusal) => return Handed::Answered(finish(refuse(ticket, refusal))),
    };
    if !http2 {
        match pool.begin(request) {
            Ok(sent) => {
                let way = Box::pin(async move { finish(settle(sent.await, ticket, client)) });
                return Handed::Under { way, sent: true };
            }
            Err(back) => request = back,
        }
    }
    let pool = Arc::clone(pool);
    let way = Box::pin(async move {
        let sent = pool.send_in_time(request, http2).await;
        finish(settle(sent, ticket, client))
    });
    Handed::Under { way, sent: false }
}

/// The same, to a program of which nobody knows yet what it speaks.
async fn ask_first(
    pool: Arc<Pool<RequestBody>>,
    mut request: Request<RequestBody>,
    ticket: Ticket,
    wish: Option<Wish>,
) -> Answer {
    let Ok(http2) = pool.ask().await else { return refuse(ticket, Refusal::Unreachable) };
    match address(&mut request, http2, wish) {
        Ok(client) => settle(pool.send_in_time(request, http2).await, ticket, client),
        Err(refusal) => refuse(ticket, refusal),
    }
}

/// Makes of a request one that goes to the program.
fn address(
    request: &mut Request<RequestBody>,
    http2: bool,
    wish: Option<Wish>,
) -> Result<Option<Tunnel>, Refusal> {
    let wish = wish.filter(|_| !http2);
    let upgrade = wish.is_some();
    let client = wish.map(|wish| wish.tunnel(request));
    // What we keep of a request in its extensions is nothing for hyper to carry along.
    request.extensions_mut().clear();
    hop::outgoing(request, http2, upgrade).map_err(|wrong| match wrong {
        Unforwardable::Connect => Refusal::NoTunnels,
        Unforwardable::Host => Refusal::BadRequest,
    })?;
    Ok(client)
}

fn settle(
    sent: Option<Result<Response<Leased<RequestBody>>, Failure>>,
    ticket: Ticket,
    client: Option<Tunnel>,
) -> Answer {
    match sent {
        Some(Ok(answer)) => answered(answer, ticket, client),
        Some(Err(Failure::Broken(_))) => refuse(ticket, Refusal::Broken),
        Some(Err(_)) => refuse(ticket, Refusal::Unreachable),
        None => refuse(ticket, Refusal::TooLate),
    }
}

#[cold]
fn refuse(mut ticket: Ticket, refusal: Refusal) -> Answer {
    let protocol = ticket.protocol();
    if refusal == Refusal::TooLate {
        ticket.failed();
    } else {
        ticket.unserved();
    }
    refusal.respond(protocol).map(ProxyBody::ours)
}

/// The head of the answer has come.
pub(crate) fn answered<B>(
    mut response: Response<B>,
    mut ticket: Ticket,
    client: Option<Tunnel>,
) -> Response<ProxyBody<B>>
where
    B: Body<Data = Bytes, Error = Unfinished> + Send + Unpin + 'static,
{
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switched(response, ticket, client);
    }
    hop::strip(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    let (mut head, incoming) = response.into_parts();
    let over = incoming.is_end_stream();
    ticket.answered(head.status, &mut head.headers, over);
    if over {
        return Response::from_parts(head, ProxyBody::ours(Bytes::new()));
    }
    let body = Box::new(Forwarded { incoming, ticket: Some(ticket) });
    Response::from_parts(head, ProxyBody { kind: Kind::Theirs(body) })
}

/// A request's wish to change the protocol of its connection.
pub(crate) struct Wish {
    /// What follows is no HTTP, but a connection of somebody's all the same.
    stay: Option<Stay>,
}

impl Wish {
    /// Nothing if it has none.
    pub(crate) fn of<B>(request: &Request<B>, peer: &Peer) -> Option<Self> {
        hop::wants_upgrade(request).then(|| Self { stay: peer.stay() })
    }

    /// To be asked before the request is handed on.
    pub(crate) fn tunnel<B>(self, request: &mut Request<B>) -> Tunnel {
        Tunnel { client: hyper::upgrade::on(request), stay: self.stay }
    }
}

/// The near end of a connection that may be about to change its protocol.
pub(crate) struct Tunnel {
    client: OnUpgrade,
    stay: Option<Stay>,
}

/// The program changes the protocol: what follows is none of our business, and no request.
fn switched<B: Send + 'static>(
    mut response: Response<B>,
    mut ticket: Ticket,
    client: Option<Tunnel>,
) -> Response<ProxyBody<B>> {
    let Some(Tunnel { client, stay }) = client else {
        // Nobody has asked for that.
        ticket.failed();
        return Refusal::Broken.respond(ticket.protocol()).map(ProxyBody::ours);
    };
    let program = hyper::upgrade::on(&mut response);
    let protocol = response.headers().get(UPGRADE).cloned();
    hop::strip(response.headers_mut());
    let (mut head, body) = response.into_parts();
    head.headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    if let Some(protocol) = protocol {
        head.headers.insert(UPGRADE, protocol);
    }
    ticket.answered(head.status, &mut head.headers, true);
    tokio::spawn(async move {
        // Its connection, and its caller's place.
        let _held = (body, stay);
        // If one of them does not come, there is nobody to tell.
        if let (Ok(client), Ok(program)) = tokio::join!(client, program) {
            let (mut client, mut program) = (TokioIo::new(client), TokioIo::new(program));
            let _ = tokio::io::copy_bidirectional(&mut client, &mut program).await;
        }
    });
    Response::from_parts(head, ProxyBody::ours(Bytes::new()))
}

/// The body of an answer: the program's, or a short one of ours.
#[derive(Debug)]
pub(crate) struct ProxyBody<B> {
    kind: Kind<B>,
}

#[derive(Debug)]
enum Kind<B> {
    Ours(Option<Bytes>),
    /// On the heap: an answer is moved through many hands before anybody reads its body.
    Theirs(Box<Forwarded<B>>),
}

impl<B> ProxyBody<B> {
    pub(crate) fn ours(bytes: Bytes) -> Self {
        Self { kind: Kind::Ours(Some(bytes).filter(|bytes| !bytes.is_empty())) }
    }
}

/// The request is in flight until this has ended.
#[derive(Debug)]
struct Forwarded<B> {
    incoming: B,
    /// None once all of it was read: the request is done.
    ticket: Option<Ticket>,
}

impl<B: Body<Data = Bytes, Error = Unfinished> + Unpin> Forwarded<B> {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let mut frame = ready!(Pin::new(&mut self.incoming).poll_frame(context));
        match &mut frame {
            Some(Ok(frame)) => {
                if let (Some(trailers), Some(ticket)) = (frame.trailers_mut(), &mut self.ticket) {
                    hop::strip(trailers);
                    ticket.trailers(trailers);
                }
                if frame.is_trailers() || self.incoming.is_end_stream() {
                    self.ticket = None;
                }
            }
            None => self.ticket = None,
            Some(Err(_)) => {
                if let Some(mut ticket) = self.ticket.take() {
                    ticket.failed();
                }
            }
        }
        Poll::Ready(frame)
    }
}

impl<B> Drop for Forwarded<B> {
    fn drop(&mut self) {
        // The caller has gone away in the middle of it.
        if let Some(ticket) = &mut self.ticket {
            ticket.abandoned();
        }
    }
}

impl<B: Body<Data = Bytes, Error = Unfinished> + Unpin> Body for ProxyBody<B> {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        match &mut self.kind {
            Kind::Ours(bytes) => Poll::Ready(bytes.take().map(Frame::data).map(Ok)),
            Kind::Theirs(body) => body.poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Ours(bytes) => bytes.is_none(),
            Kind::Theirs(body) => body.incoming.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Ours(bytes) => {
                SizeHint::with_exact(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64))
            }
            Kind::Theirs(body) => body.incoming.size_hint(),
        }
    }
}
