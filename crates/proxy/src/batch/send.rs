//! One request of a worker's, on its way to a backend.

use super::owner::{Message, Place, Shared};
use crate::outbound::{At, Content, Roomed, Sent, Whole, refused};
use crate::pool::Unfinished;
use bytes::Bytes;
use core::future::poll_fn;
use core::pin::Pin;
use core::task::{Context, Poll, ready};
use core::time::Duration;
use http::request::Parts;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use std::sync::Arc;
use std::time::SystemTime;
use tidegate::client::{Balanced, Balancer, BoxError, Replay, Unsent, Watched};
use tidegate::clock::Clock;
use tidegate_core::decision::{Advice, Rejection};
use tidegate_core::{Criticality, Outcome, Timestamp};
use tidegate_wire::outgoing::Outgoing;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::{answer, orca};
use tokio::sync::oneshot;
use tower_service::Service;

/// A request that waits, or is on its way.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) number: u64,
    /// Addressed already.
    pub(super) head: Parts,
    pub(super) body: Kept,
    pub(super) protocol: Protocol,
    pub(super) criticality: Criticality,
    pub(super) deadline: Option<Timestamp>,
    /// Which try it was, as its caller says, and how often we have sent it.
    pub(super) attempt: u32,
    pub(super) tried: u32,
    pub(super) reply: oneshot::Sender<Reply>,
    pub(super) place: Place,
}

/// The body of a request that waits.
#[derive(Debug)]
pub(super) enum Kept {
    /// All of it.
    Whole(Bytes),
    /// What of it was read, and the rest. Gone once it was sent.
    Part(Option<Content>),
}

/// What a worker's request comes to.
#[derive(Debug)]
pub(super) enum Reply {
    /// What a backend has answered.
    Answer(Response<Watching>),
    /// It was not sent.
    Refused(Rejection),
    /// There is no answer but ours.
    Failed(Response<Bytes>),
    /// There was none in time.
    TooLate,
}

/// Sends what an owner releases.
pub(super) struct Sender {
    pub(super) balancer: Balancer<At>,
    pub(super) shared: Arc<Shared>,
    pub(super) clock: Clock,
    pub(super) answer_timeout: Duration,
    pub(super) attempts_max: u32,
}

type Answer = Response<Watched<Roomed, Balanced>>;

impl Sender {
    pub(super) async fn send(self: Arc<Self>, mut item: Box<Item>) {
        item.place.waits(false);
        item.tried += 1;
        let mut report = Report::new(&self);
        let request = item.request(&self.clock);
        let (protocol, version) = (item.protocol, item.head.version);
        let mut balancer = self.balancer.clone();
        let call = async {
            poll_fn(|context| Service::<Request<Sent>>::poll_ready(&mut balancer, context)).await?;
            balancer.call(request).await
        };
        let answered = tokio::select! {
            biased;
            // Its caller has left: what it was for goes with it.
            () = item.reply.closed() => return,
            answered = tokio::time::timeout(self.answer_timeout, call) => answered,
        };
        match answered {
            Ok(Ok(response)) => self.answered(item, response, report),
            Ok(Err(error)) => {
                report.outcome = Outcome::NoAnswer;
                if unsent(&error) && self.may_wait_again(&item) {
                    return self.again(item, report);
                }
                drop(report);
                let _ = item.reply.send(Reply::Failed(refused(&error, protocol, version)));
            }
            Err(_) => {
                report.outcome = Outcome::NoAnswer;
                drop(report);
                let _ = item.reply.send(Reply::TooLate);
            }
        }
    }

    fn answered(&self, item: Box<Item>, response: Answer, mut report: Report) {
        let (status, headers) = (response.status(), response.headers());
        report.load(headers);
        report.is_final = answer::is_final(status, headers, item.protocol);
        if report.is_final {
            let read = answer::read(status, headers, None, item.protocol, SystemTime::now);
            report.outcome = read.outcome;
            let refused =
                matches!(read.outcome, Outcome::Refused(advice) if advice != Advice::DontRetry);
            if refused && self.may_wait_again(&item) {
                return self.again(item, report);
            }
        }
        let version = response.version();
        let response = response.map(|body| Watching { body: Whole::new(body, version), report });
        // If its caller has left, the body says so when it is dropped.
        let _ = item.reply.send(Reply::Answer(response));
    }

    const fn may_wait_again(&self, item: &Item) -> bool {
        item.tried < self.attempts_max && matches!(item.body, Kept::Whole(_))
    }

    fn again(&self, mut item: Box<Item>, mut report: Report) {
        let (outcome, latency) = report.take();
        item.place.waits(true);
        self.shared.tell(Message::Again { item, outcome, latency });
    }
}

/// Whether nothing of it has reached a backend.
fn unsent(error: &BoxError) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&**error);
    while let Some(error) = next {
        if error.is::<Unsent>() {
            return true;
        }
        next = error.source();
    }
    false
}

impl Item {
    /// What is sent, with what it says of itself.
    fn request(&mut self, clock: &Clock) -> Request<Sent> {
        let content = match &mut self.body {
            Kept::Whole(bytes) => {
                Content::Ours(Some(bytes.clone()).filter(|bytes| !bytes.is_empty()))
            }
            Kept::Part(rest) => rest.take().unwrap_or_default(),
        };
        let mut request = Request::new(Replay::new(content));
        let (method, uri, version) =
            (self.head.method.clone(), self.head.uri.clone(), self.head.version);
        *request.method_mut() = method;
        *request.uri_mut() = uri;
        *request.version_mut() = version;
        *request.headers_mut() = self.head.headers.clone();
        Outgoing::new(self.criticality)
            .attempt(self.attempt.saturating_add(self.tried - 1))
            .deadline(self.deadline.map(|deadline| deadline.since(clock.now())))
            .write(request.headers_mut(), self.protocol);
        request
    }
}

/// Tells the owner how it ended, when it has: by being dropped.
#[derive(Debug)]
struct Report {
    shared: Arc<Shared>,
    clock: Clock,
    began: Timestamp,
    outcome: Outcome,
    is_final: bool,
    told: bool,
}

impl Report {
    fn new(sender: &Sender) -> Self {
        Self {
            shared: Arc::clone(&sender.shared),
            clock: sender.clock.clone(),
            began: sender.clock.now(),
            outcome: Outcome::Abandoned,
            is_final: false,
            told: false,
        }
    }

    fn take(&mut self) -> (Outcome, Duration) {
        self.told = true;
        (self.outcome, self.clock.now().since(self.began))
    }

    /// What a backend says of itself.
    fn load(&self, headers: &HeaderMap) {
        if let Ok(Some(report)) = orca::read(headers) {
            let utilization = if report.application_utilization > 0.0 {
                report.application_utilization
            } else {
                report.cpu_utilization
            };
            self.shared.tell(Message::Load(utilization));
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        if !self.told {
            let (outcome, latency) = self.take();
            self.shared.tell(Message::Done { outcome, latency });
        }
    }
}

/// The body of a backend's answer: outstanding until its end.
#[derive(Debug)]
pub(super) struct Watching {
    body: Whole<Watched<Roomed, Balanced>>,
    report: Report,
}

impl Watching {
    /// It has ended as it should.
    fn ended(&mut self) {
        if !self.report.told {
            if self.report.outcome == Outcome::Abandoned {
                // A call of gRPC without a status was cut off.
                self.report.outcome = Outcome::Failed;
            }
            let (outcome, latency) = self.report.take();
            self.report.shared.tell(Message::Done { outcome, latency });
        }
    }
}

impl Body for Watching {
    type Data = Bytes;
    type Error = Unfinished;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Unfinished>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => {
                if let Some(trailers) = frame.trailers_ref() {
                    self.report.load(trailers);
                    if !self.report.is_final {
                        let (none, protocol) = (HeaderMap::new(), Protocol::Grpc);
                        let trailers = Some(trailers);
                        let now = SystemTime::now;
                        let read = answer::read(StatusCode::OK, &none, trailers, protocol, now);
                        self.report.outcome = read.outcome;
                    }
                    self.ended();
                } else if self.body.is_end_stream() {
                    self.ended();
                }
            }
            Some(Err(_)) => self.report.outcome = Outcome::NoAnswer,
            None => self.ended(),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            self.ended();
        } else if !self.report.told && self.report.outcome != Outcome::NoAnswer {
            self.report.outcome = Outcome::Abandoned;
        }
    }
}
