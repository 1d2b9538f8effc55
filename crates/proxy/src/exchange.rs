//! One request that was let in: to the program, and its answer back.
//!
//! **Nobody waits any more.** A caller may leave, or its deadline may pass, while the program is at
//! work. Over HTTP/2 the stream is reset, and most programs then stop. Over HTTP/1 all that can be
//! done is to close the connection, and most programs do not look: they go on to the end, and what
//! would be closed is only our knowledge of it. A proxy that took such requests for done would let
//! in as many more, each second anew, and bury the program in work for nobody. So the exchange goes
//! on without its caller until the program has answered, and counts as in flight until then.

use crate::hop::{self, Unforwardable};
use crate::pool::{Failure, Leased, Pool};
use crate::refuse::Refusal;
use bytes::Bytes;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::header::{CONNECTION, UPGRADE};
use http::{HeaderValue, Request, Response, StatusCode, Version};
use http_body::{Body, Frame, SizeHint};
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use std::sync::Arc;
use tidegate::serve::RequestBody;
use tidegate::server::Ticket;
use tidegate_wire::protocol::Protocol;

/// Hands `request` on and answers with what comes back.
pub(crate) async fn forward(
    pool: Arc<Pool<RequestBody>>,
    answer_timeout: Option<Duration>,
    mut request: Request<RequestBody>,
    ticket: Ticket,
) -> Response<ProxyBody<Leased<RequestBody>>> {
    let protocol = ticket.protocol();
    let refuse = |mut ticket: Ticket, refusal: Refusal| {
        if refusal == Refusal::TooLate {
            ticket.failed();
        } else {
            ticket.unserved();
        }
        refusal.respond(protocol).map(ProxyBody::ours)
    };
    let upgrade = hop::wants_upgrade(&request);
    let http2 = match pool.is_http2(protocol == Protocol::Grpc, upgrade) {
        Some(known) => known,
        None => match pool.ask().await {
            Ok(http2) => http2,
            Err(_) => return refuse(ticket, Refusal::Unreachable),
        },
    };
    let upgrade = !http2 && upgrade;
    let client = upgrade.then(|| hyper::upgrade::on(&mut request));
    // What we keep of a request in its extensions is nothing for hyper to carry along.
    request.extensions_mut().clear();
    match hop::outgoing(&mut request, http2, upgrade) {
        Ok(()) => {}
        Err(Unforwardable::Connect) => return refuse(ticket, Refusal::NoTunnels),
        Err(Unforwardable::Host) => return refuse(ticket, Refusal::BadRequest),
    }
    let sent = pool.send(request, http2);
    let sent = match answer_timeout {
        Some(limit) => tokio::time::timeout(limit, sent).await,
        None => Ok(sent.await),
    };
    match sent {
        Ok(Ok(answer)) => answered(answer, ticket, client),
        Ok(Err(Failure::Broken(_))) => refuse(ticket, Refusal::Broken),
        Ok(Err(_)) => refuse(ticket, Refusal::Unreachable),
        Err(_) => refuse(ticket, Refusal::TooLate),
    }
}

/// The head of the answer has come.
pub(crate) fn answered<B>(
    mut response: Response<B>,
    mut ticket: Ticket,
    client: Option<OnUpgrade>,
) -> Response<ProxyBody<B>>
where
    B: Body<Data = Bytes, Error = hyper::Error> + Send + Unpin + 'static,
{
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        return switched(response, ticket, client);
    }
    hop::strip(response.headers_mut());
    *response.version_mut() = Version::HTTP_11;
    let (mut head, incoming) = response.into_parts();
    let over = incoming.is_end_stream();
    ticket.answered(head.status, &mut head.headers, over);
    let body = Forwarded { incoming, ticket: Some(ticket).filter(|_| !over) };
    if over {
        return Response::from_parts(head, ProxyBody::ours(Bytes::new()));
    }
    Response::from_parts(head, ProxyBody { kind: Kind::Theirs(body) })
}

/// The program changes the protocol: what follows is none of our business, and no request.
fn switched<B: Send + 'static>(
    mut response: Response<B>,
    mut ticket: Ticket,
    client: Option<OnUpgrade>,
) -> Response<ProxyBody<B>> {
    let Some(client) = client else {
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
        // Its connection.
        let _body = body;
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
    Theirs(Forwarded<B>),
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

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Forwarded<B> {
    fn poll_frame(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
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

impl<B: Body<Data = Bytes, Error = hyper::Error> + Unpin> Body for ProxyBody<B> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
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
