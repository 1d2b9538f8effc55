//! A worker's request, from when it comes to the answer.

use super::owner::{Message, Place, Shared};
use super::send::{Item, Kept, Reply, Watching};
use crate::edge::Meet;
use crate::exchange::{ProxyBody, answered};
use crate::outbound::{About, Content, QueueConfig};
use crate::refuse::Refusal;
use bytes::{Bytes, BytesMut};
use core::convert::Infallible;
use core::pin::Pin;
use core::task::{Context, Poll};
use http::request::Parts;
use http::{Request, Response, Version};
use http_body::Body as _;
use http_body_util::BodyExt;
use std::sync::Arc;
use tidegate::Task;
use tidegate::serve::{BodyError, Peer, RequestBody};
use tidegate::server::{Admission, PeerIdentity, Ticket};
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_wire::reject::Reject;
use tokio::sync::oneshot;
use tower_service::Service;

/// What a request takes besides its headers and body: its place in tables and on the heap.
const ITEM_BYTES: u64 = 1_024;

/// Lets the requests of a connection wait for one service.
#[derive(Clone)]
pub(super) struct Batch {
    task: Task,
    about: Arc<About>,
    shared: Arc<Shared>,
    queue: QueueConfig,
    peer: PeerIdentity,
}

impl Meet for Batch {
    fn meet(&self, peer: &Peer) -> Self {
        Self { peer: self.task.peer(peer.identity()), ..self.clone() }
    }
}

type Answer = Response<ProxyBody<Watching>>;

impl Batch {
    pub(super) fn new(
        task: Task,
        about: Arc<About>,
        shared: Arc<Shared>,
        queue: QueueConfig,
    ) -> Self {
        Self { peer: task.peer(None), task, about, shared, queue }
    }
}

impl Service<Request<RequestBody>> for Batch {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<RequestBody>) -> Self::Future {
        let about = &self.about;
        let now = |answer| Box::pin(core::future::ready(Ok(answer)));
        let ticket = match self.task.admit_from(
            &self.peer,
            &request,
            Some(&about.name),
            about.criticality,
        ) {
            Admission::Admitted(ticket) => ticket,
            Admission::Rejected(response) => return now(response.map(ProxyBody::ours)),
        };
        // Nothing is read of a request that finds no room.
        let bytes = bytes_of(&request, self.queue.body_max);
        match self.shared.enter(ticket.criticality(), bytes) {
            Ok(place) => {
                let batch = self.clone();
                Box::pin(async move { Ok(batch.wait(request, ticket, place).await) })
            }
            Err(rejection) => now(refuse(ticket, &rejection, request.version())),
        }
    }
}

/// What it takes to keep a request, at the most.
fn bytes_of(request: &Request<RequestBody>, body_max: usize) -> u64 {
    let headers = request.headers().iter();
    let head: usize = headers.map(|(name, value)| name.as_str().len() + value.len() + 64).sum();
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let hint = request.body().size_hint();
    let body = hint.upper().unwrap_or(u64::MAX).min(body_max as u64);
    ITEM_BYTES.saturating_add((head + path) as u64).saturating_add(body)
}

/// Takes a request back whose caller has left, when it is dropped.
struct Leaves {
    shared: Arc<Shared>,
    number: u64,
    stays: bool,
}

impl Drop for Leaves {
    fn drop(&mut self) {
        if !self.stays {
            self.shared.tell(Message::Left(self.number));
        }
    }
}

impl Batch {
    async fn wait(self, mut request: Request<RequestBody>, ticket: Ticket, place: Place) -> Answer {
        let (protocol, version) = (ticket.protocol(), request.version());
        if let Err(wrong) = self.about.address(&mut request, self.about.http2(protocol), false) {
            return failed(ticket, wrong.respond(protocol));
        }
        let (head, body) = request.into_parts();
        let end = ticket.remaining().map(|left| tokio::time::Instant::now() + left);
        let too_late = async {
            match end {
                Some(end) => tokio::time::sleep_until(end).await,
                None => core::future::pending().await,
            }
        };
        let through = async {
            let Ok(body) = keep(body, self.queue.body_max).await else {
                // Whoever did not send it will hardly read this.
                return Reply::Failed(Refusal::TooSlow.respond(protocol));
            };
            let (reply, answer) = oneshot::channel();
            let number = self.shared.number();
            let item = item(number, (head, body), &ticket, (reply, place));
            self.shared.tell(Message::Offer(Box::new(item)));
            let mut leaves = Leaves { shared: Arc::clone(&self.shared), number, stays: false };
            let answer = answer.await;
            leaves.stays = true;
            // An owner that is gone has gone with the process.
            answer.unwrap_or_else(|_| Reply::Failed(Refusal::Unreachable.respond(protocol)))
        };
        let reply = tokio::select! {
            biased;
            reply = through => reply,
            () = too_late => Reply::Refused(Rejection {
                reason: Reason::DeadlinePassed,
                advice: Advice::DontRetry,
                criticality: ticket.criticality(),
                cause: None,
            }),
        };
        match reply {
            Reply::Answer(response) => answered(response, ticket, None),
            Reply::Refused(rejection) => refuse(ticket, &rejection, version),
            Reply::Failed(response) => failed(ticket, response),
            Reply::TooLate => failed(ticket, Refusal::TooLate.respond(protocol)),
        }
    }
}

/// What is handed over.
fn item(
    number: u64,
    (mut head, body): (Parts, Kept),
    ticket: &Ticket,
    (reply, place): (oneshot::Sender<Reply>, Place),
) -> Item {
    head.extensions.clear();
    Item {
        number,
        head,
        body,
        protocol: ticket.protocol(),
        criticality: ticket.criticality(),
        deadline: ticket.deadline(),
        attempt: ticket.attempt(),
        tried: 0,
        reply,
        place,
    }
}

/// Reads a body, if it is short; else as much of it as may be kept.
async fn keep(mut body: RequestBody, max: usize) -> Result<Kept, BodyError> {
    let mut read = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // Trailers of requests are nobody's but the edge's: short bodies go without.
        let Ok(data) = frame?.into_data() else { break };
        if read.is_empty() && body.is_end_stream() {
            return Ok(Kept::Whole(data));
        }
        read.extend_from_slice(&data);
        if read.len() > max {
            return Ok(Kept::Part(Some(Content::Begun(Some(read.freeze()), body))));
        }
        if body.is_end_stream() {
            break;
        }
    }
    Ok(Kept::Whole(read.freeze()))
}

/// It did not go on.
fn refuse(mut ticket: Ticket, rejection: &Rejection, version: Version) -> Answer {
    let reject = Reject::new(rejection, ticket.decision());
    let response = reject.respond(ticket.protocol(), version);
    ticket.unserved();
    response.map(ProxyBody::ours)
}

fn failed(mut ticket: Ticket, response: Response<Bytes>) -> Answer {
    ticket.failed();
    response.map(ProxyBody::ours)
}
