//! The role beside a program: lets in what it can do.
//!
//! **Callers that leave.** What the program has begun goes on without its caller (see `exchange`),
//! what was not sent yet is not sent. In dark mode nobody is refused, so a client that asks and
//! leaves, again and again, could have any number of requests go on: beyond a number of them the
//! next is dropped with its connection, and what the program still does for it is not counted.

use crate::edge::{Meet, Told};
use crate::exchange::{self, Handed, Wish, forward};
use crate::hop;
use crate::pool::{self, Leased, Pool};
use crate::refuse::Refusal;
use crate::stale::{Anew, Question, Recorded, Stale};
use bytes::Bytes;
use core::convert::Infallible;
use core::pin::Pin;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::{Request, Response};
use http_body_util::BodyExt as _;
use std::sync::Arc;
use tidegate::Task;
use tidegate::serve::{Peer, RequestBody};
use tidegate::server::{Admission, PeerIdentity, Ticket};
use tidegate_wire::criticality;
use tidegate_wire::protocol::Protocol;
use tokio::time::Sleep;
use tower_service::Service;

/// How long it may take to have a new copy, all in all. While it is asked for nobody else asks, so
/// that an answer without an end would leave the old one in use for ever. As long as the head of an
/// answer alone may take if nobody says; what is longer is too large to be kept.
const RENEWAL_MAX: Duration = Duration::from_secs(60);

type ProxyBody = Recorded<exchange::ProxyBody<Leased<RequestBody>>>;

/// A body that is not the program's.
fn ours(bytes: Bytes) -> ProxyBody {
    Recorded::plain(exchange::ProxyBody::ours(bytes))
}

/// Decides about each request of a connection, and hands it on. Cloned for each of them, and hence
/// one pointer.
#[derive(Debug, Clone)]
pub(crate) struct Inbound(Arc<Inner>);

#[derive(Debug, Clone)]
struct Inner {
    task: Task,
    /// Who is at the other end, and what that may do.
    peer: Peer,
    identity: PeerIdentity,
    pool: Arc<Pool<RequestBody>>,
    alone: Arc<Alone>,
    /// Whether an edge has told what requests count as.
    told: bool,
    stale: Option<Arc<Stale>>,
}

/// Requests of this worker whose callers have left.
#[derive(Debug)]
struct Alone {
    count: AtomicUsize,
    max: usize,
}

impl Alone {
    /// One more, if there is room.
    fn enter(self: &Arc<Self>) -> Option<Without> {
        let without = Without(Arc::clone(self));
        (self.count.fetch_add(1, Ordering::Relaxed) < self.max).then_some(without)
    }
}

/// A request without its caller, until this is dropped.
struct Without(Arc<Alone>);

impl Drop for Without {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What it is made of.
pub(crate) struct Parts {
    pub(crate) task: Task,
    pub(crate) pool: Arc<Pool<RequestBody>>,
    /// How many requests may go on without their callers.
    pub(crate) alone_max: usize,
    /// Whether it is behind an edge: what a request counts as is told beside it, and handed on with
    /// it.
    pub(crate) told: bool,
    /// Copies of answers, to be given out where there is none.
    pub(crate) stale: Option<Arc<Stale>>,
}

impl From<Parts> for Inbound {
    fn from(parts: Parts) -> Self {
        let Parts { task, pool, alone_max, told, stale } = parts;
        let alone = Arc::new(Alone { count: AtomicUsize::new(0), max: alone_max });
        let (peer, identity) = (Peer::default(), task.peer(None));
        Self(Arc::new(Inner { task, peer, identity, pool, alone, told, stale }))
    }
}

impl Meet for Inbound {
    fn meet(&self, peer: &Peer) -> Self {
        let (peer, identity) = (peer.clone(), self.0.task.peer(peer.identity()));
        Self(Arc::new(Inner { peer, identity, ..Inner::clone(&self.0) }))
    }
}

impl Inner {
    fn forward(
        &self,
        request: Request<RequestBody>,
        ticket: Ticket,
        question: Option<Box<Question>>,
    ) -> Handed<Response<ProxyBody>> {
        let wish = Wish::of(&request, &self.peer);
        forward(&self.pool, request, ticket, wish, |answer| match question {
            None => answer.map(Recorded::plain),
            Some(question) => question.settle(answer, exchange::ProxyBody::ours),
        })
    }

    /// A copy was given out for a request that was let in. It is done, unless it is the one that
    /// asks for another.
    fn spare(
        &self,
        request: Request<RequestBody>,
        mut ticket: Ticket,
        question: Option<Box<Question>>,
        anew: Option<Anew>,
    ) {
        let (Some(anew), Ok(runtime)) = (anew, tokio::runtime::Handle::try_current()) else {
            return ticket.spared();
        };
        let handed = self.forward(request, ticket, question);
        runtime.spawn(async move {
            let renewed = async {
                let answer = match handed {
                    Handed::Answered(answer) => answer,
                    Handed::Under { way, .. } => way.await,
                };
                let mut body = answer.into_body();
                while let Some(Ok(_)) = body.frame().await {}
            };
            let _ = tokio::time::timeout(RENEWAL_MAX, renewed).await;
            drop(anew);
        });
    }
}

impl Service<Request<RequestBody>> for Inbound {
    type Response = Response<ProxyBody>;
    type Error = Infallible;
    type Future = Exchange;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Exchange {
        self.0.call(request)
    }
}

impl Inner {
    fn call(&self, mut request: Request<RequestBody>) -> Exchange {
        let question = self.stale.as_ref().filter(|_| !hop::wants_upgrade(&request));
        let question = question.and_then(|stale| stale.question(&request)).map(Box::new);
        let told = if self.told { request.extensions().get::<Told>().copied() } else { None };
        let level = told.map(|told| told.0);
        match self.task.admit_from(&self.identity, &request, Some(method_name(&request)), level) {
            Admission::Rejected(response) => {
                let copy = question.and_then(|question| question.instead_of(&response));
                Exchange::Answered(Some(copy.unwrap_or(response).map(ours)))
            }
            Admission::Admitted(ticket) => {
                if let Some(level) = level {
                    criticality::write(request.headers_mut(), level);
                }
                let wanted = question.as_ref();
                let wanted = wanted.filter(|_| ticket.degrade() && !self.task.gate().is_dark());
                if let Some((copy, anew)) = wanted.and_then(|question| question.spared()) {
                    self.spare(request, ticket, question, anew);
                    return Exchange::Answered(Some(copy.map(ours)));
                }
                let protocol = ticket.protocol();
                let left = ticket.remaining();
                // Over HTTP/2 the program hears of it.
                let http2 = self.pool.is_http2(protocol == Protocol::Grpc, false) == Some(true);
                match self.forward(request, ticket, question) {
                    Handed::Answered(answer) => Exchange::Answered(Some(answer)),
                    Handed::Under { way, sent } => Exchange::Forwarded(Forwarding {
                        future: Some(way),
                        deadline: left.map(|left| Box::pin(tokio::time::sleep(left))),
                        protocol,
                        sent,
                        alone: (!http2).then(|| Arc::clone(&self.alone)),
                    }),
                }
            }
        }
    }
}

/// From a request to the head of its answer. A refusal takes no memory of its own.
pub(crate) enum Exchange {
    Answered(Option<Response<ProxyBody>>),
    Forwarded(Forwarding),
}

type Answering = Pin<Box<dyn Future<Output = Response<ProxyBody>> + Send>>;

/// A request on its way, until its answer comes or nobody waits for it any more.
pub(crate) struct Forwarding {
    /// Gone once it has answered, or goes on by itself.
    future: Option<Answering>,
    deadline: Option<Pin<Box<Sleep>>>,
    protocol: Protocol,
    /// Whether the program may have begun with it.
    sent: bool,
    /// Where it goes on when nobody waits.
    alone: Option<Arc<Alone>>,
}

impl Forwarding {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Response<ProxyBody>> {
        let Some(future) = &mut self.future else { panic!("polled after it was ready") };
        let (polled, sent) = pool::watching(|| future.as_mut().poll(context));
        self.sent |= sent;
        if let Poll::Ready(response) = polled {
            self.future = None;
            return Poll::Ready(response);
        }
        let Some(deadline) = &mut self.deadline else { return Poll::Pending };
        ready!(deadline.as_mut().poll(context));
        self.leave();
        Poll::Ready(Refusal::TooLate.respond(self.protocol).map(ours))
    }

    /// Nobody waits any more.
    fn leave(&mut self) {
        let Some(future) = self.future.take().filter(|_| self.sent) else { return };
        let Some(without) = self.alone.take().and_then(|alone| alone.enter()) else { return };
        // At the end of a runtime it is too late for everything.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                drop(future.await);
                drop(without);
            });
        }
    }
}

impl Drop for Forwarding {
    fn drop(&mut self) {
        if self.future.is_some() {
            self.leave();
        }
    }
}

impl Future for Exchange {
    type Output = Result<Response<ProxyBody>, Infallible>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Self::Forwarded(forwarding) => forwarding.poll(context).map(Ok),
            Self::Answered(response) => match response.take() {
                Some(response) => Poll::Ready(Ok(response)),
                None => panic!("polled after it was ready"),
            },
        }
    }
}

/// What requests are told apart by: the path of a gRPC call, or the first part of any other.
fn method_name<B>(request: &Request<B>) -> &str {
    let path = request.uri().path();
    if Protocol::of(request.headers()) == Protocol::Grpc {
        return path;
    }
    let first = path.get(1..).and_then(|rest| rest.find('/')).map_or(path.len(), |end| end + 1);
    &path[..first]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_the_first_part_of_a_path() {
        for (path, name) in [
            ("/", "/"),
            ("/search", "/search"),
            ("/search/", "/search"),
            ("/users/7/orders", "/users"),
            ("//a", "/"),
        ] {
            let request = Request::builder().uri(path).body(()).unwrap();
            assert_eq!(method_name(&request), name, "{path}");
        }
        let call = Request::builder().uri("/a.B/C").header("content-type", "application/grpc");
        assert_eq!(method_name(&call.body(()).unwrap()), "/a.B/C");
    }
}
