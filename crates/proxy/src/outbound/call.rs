//! One call of the program's, on its way to the backends.

use super::answer::{Whole, refused};
use super::at::{At, Content, Roomed, Sent, TriedBefore};
use super::config::{Host, ServiceConfig};
use crate::edge::{Meet, Told};
use crate::exchange::{ProxyBody, Wish, answered};
use crate::hop::{self, Unforwardable};
use crate::pool::Protocol as Speaks;
use crate::refuse::Refusal;
use bytes::Bytes;
use core::convert::Infallible;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::header::HOST;
use http::{Request, Response};
use std::sync::Arc;
use tidegate::client::{self, Balanced, Balancer, Replay, Watched};
use tidegate::serve::{Peer, RequestBody};
use tidegate::server::{Admission, PeerIdentity, Ticket};
use tidegate::{Criticality, Task};
use tidegate_wire::protocol::Protocol;
use tower_service::Service;

/// Sends the calls of a connection to one service.
#[derive(Debug, Clone)]
pub(super) struct Outbound {
    pub(super) task: Task,
    pub(super) client: client::Service<Balancer<At>>,
    pub(super) about: Arc<About>,
    pub(super) identity: PeerIdentity,
    pub(super) peer: Peer,
}

impl Meet for Outbound {
    fn meet(&self, peer: &Peer) -> Self {
        let identity = self.task.peer(peer.identity());
        Self { identity, peer: peer.clone(), ..self.clone() }
    }
}

/// What is the same for all calls to a service.
#[derive(Debug)]
pub(crate) struct About {
    pub(crate) name: String,
    pub(super) protocol: Speaks,
    pub(super) host: Option<Host>,
    pub(crate) criticality: Option<Criticality>,
    /// Whether an edge has told what requests count as.
    pub(super) told: bool,
}

/// What the layer hands on.
type Watching = client::Body<Watched<Roomed, Balanced>>;

type Answer = Response<ProxyBody<Whole<Watching>>>;

impl Service<Request<RequestBody>> for Outbound {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let about = &self.about;
        let told = if about.told { request.extensions().get::<Told>().copied() } else { None };
        let level = told.map(|told| told.0).or(about.criticality);
        match self.task.admit_from(&self.identity, &request, Some(&about.name), level) {
            Admission::Rejected(response) => {
                Box::pin(core::future::ready(Ok(response.map(ProxyBody::ours))))
            }
            Admission::Admitted(ticket) => {
                let (client, about) = (self.client.clone(), Arc::clone(about));
                let wish = Wish::of(&request, &self.peer);
                Box::pin(async move { Ok(call(client, &about, request, ticket, wish).await) })
            }
        }
    }
}

async fn call(
    mut client: client::Service<Balancer<At>>,
    about: &About,
    mut request: Request<RequestBody>,
    ticket: Ticket,
    wish: Option<Wish>,
) -> Answer {
    let (protocol, version) = (ticket.protocol(), request.version());
    let http2 = about.http2(protocol);
    let wish = wish.filter(|_| !http2);
    let upgrade = wish.is_some();
    let tunnel = wish.map(|wish| wish.tunnel(&mut request));
    if let Err(wrong) = about.address(&mut request, http2, upgrade) {
        return failed(ticket, wrong.respond(protocol));
    }
    let extensions = request.extensions_mut();
    extensions.clear();
    extensions.insert(ticket.criticality());
    extensions.insert(TriedBefore(ticket.attempt().saturating_sub(1)));
    let request: Request<Sent> = request.map(|body| Replay::new(Content::Theirs(body)));
    let answer = match poll_fn(|context| client.poll_ready(context)).await {
        Ok(()) => client.call(request).await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(response) => {
            let version = response.version();
            answered(response.map(|body| Whole::new(body, version)), ticket, tunnel)
        }
        Err(error) => failed(ticket, refused(&error, protocol, version)),
    }
}

/// There is no answer but ours.
fn failed(mut ticket: Ticket, response: Response<Bytes>) -> Answer {
    ticket.failed();
    response.map(ProxyBody::ours)
}

impl About {
    pub(crate) fn new(service: &ServiceConfig, told: bool) -> Arc<Self> {
        Arc::new(Self {
            name: service.name.clone(),
            protocol: service.pool.protocol,
            host: service.host.clone(),
            criticality: service.criticality,
            told,
        })
    }

    /// Whether a call goes by HTTP/2.
    pub(crate) const fn http2(&self, protocol: Protocol) -> bool {
        match self.protocol {
            Speaks::Auto => matches!(protocol, Protocol::Grpc),
            Speaks::Http1 => false,
            Speaks::Http2 => true,
        }
    }

    /// Makes a request that came to us one that goes to an endpoint, whichever that is.
    pub(crate) fn address<B>(
        &self,
        request: &mut Request<B>,
        http2: bool,
        upgrade: bool,
    ) -> Result<(), Refusal> {
        if let Some(host) = &self.host {
            // The program has named us; what stands in a target counts more than the header.
            if request.uri().authority().is_some() {
                let mut parts = core::mem::take(request.uri_mut()).into_parts();
                parts.authority = Some(host.authority.clone());
                // It had all of its parts before.
                let uri = http::Uri::from_parts(parts).map_err(|_| Refusal::BadRequest)?;
                *request.uri_mut() = uri;
            }
            request.headers_mut().insert(HOST, host.value.clone());
        }
        hop::outgoing(request, http2, upgrade).map_err(|wrong| match wrong {
            Unforwardable::Connect => Refusal::NoTunnels,
            Unforwardable::Host => Refusal::BadRequest,
        })
    }
}
