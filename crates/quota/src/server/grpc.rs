//! The server's end of gRPC: streams in, checked, and streams out.
//!
//! What a task says is checked here, line by line, before anyone else sees it: a name that is none,
//! rates that do not fit their levels, a second hello, messages that come too fast. Each ends the
//! stream with `INVALID_ARGUMENT` (or `RESOURCE_EXHAUSTED`) and the reason. Rates are whole numbers
//! on the wire, so there is nothing negative and no NaN to check for.

use super::owner::{Opened, Owner};
use super::seat::{NotLeader, Seat};
use super::stream::{Said, StreamId, Words};
use super::{Inner, Server};
use crate::access::{Access, Caller, Pass, Reporter};
use crate::election::fence::Fence;
use crate::message::{check_usages, generation};
use crate::name::is_name;
use core::pin::Pin;
use core::task::{Context, Poll};
use core::time::Duration;
use futures_util::Stream;
use std::sync::Arc;
use tidegate_core::Timestamp;
use tidegate_wire::customer::NAME_MAX;
use tidegate_wire::proto::tidegate::quota::v1::quota_server::{Quota, QuotaServer};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage, TaskMessage};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tonic::{Request, Response, Status, Streaming};

/// A report of 4,096 customers with large numbers has some 300 KB.
const MESSAGE_MAX: usize = 1 << 20;
/// Whoever opens a stream has something to say.
const HELLO_WITHIN: Duration = Duration::from_secs(10);
/// A task says two things in an interval, a report and an acknowledgement, and acknowledges once a
/// round at most. Eight times as much is no longer haste.
const MESSAGES_PER_REPORT: u32 = 16;
/// What may come at once after a long pause.
const MESSAGES_MAX: u32 = 8 * MESSAGES_PER_REPORT;

/// The service for a router of tonic.
pub(crate) fn service(server: &Server) -> QuotaServer<Answers> {
    let answers = Answers { inner: Arc::clone(&server.inner) };
    QuotaServer::new(answers).max_decoding_message_size(MESSAGE_MAX)
}

/// Answers tasks.
#[derive(Debug)]
pub(crate) struct Answers {
    inner: Arc<Inner>,
}

#[tonic::async_trait]
impl Quota for Answers {
    type ReportStream = Told;

    async fn report(
        &self,
        request: Request<Streaming<TaskMessage>>,
    ) -> Result<Response<Told>, Status> {
        let caller = Caller::of(&request);
        if let Err(elsewhere) = self.inner.seat.check() {
            return Ok(Response::new(Told::elsewhere(Arc::clone(&self.inner.seat), elsewhere)));
        }
        let mut said = request.into_inner();
        let first = timeout(HELLO_WITHIN, said.message()).await;
        let first = first.map_err(|_| Status::deadline_exceeded("no hello came"))??;
        let mut first = first.ok_or_else(|| Status::invalid_argument("no hello came"))?;
        let hello = first.hello.take();
        let hello =
            hello.ok_or_else(|| Status::invalid_argument("the first message needs hello"))?;
        for (what, name) in [("service", &hello.service), ("task", &hello.task)] {
            if !is_name(name) {
                let right = format!("1 to {NAME_MAX} printable ASCII characters without blanks");
                let what = format!("{name:?} cannot be the name of a {what}: {right}");
                return Err(Status::invalid_argument(what));
            }
        }
        let pass = Pass::new(&self.inner.access, caller, &hello.service);
        let stands = hello.reign > 0;
        let reporter = pass.report(stands)?;
        let right = (stands || hello.weight > 1).then(|| reporter.clone());
        let owner = self.inner.owner(&hello.service)?;
        let first = read(first)?;
        // After an election everybody resumes what another leader knows of.
        let leads = self.inner.seat.check().unwrap_or(0);
        let resumes = hello.resumes.is_some_and(|id| id.epoch == leads);
        if !resumes && !stands {
            owner.turn(self.inner.clock.now()).await?;
        }
        let Opened { id, messages, out } = owner.open(hello, reporter).await?;
        let haste = Haste::new(&owner, self.inner.clock.now());
        let (fence, seat) = (owner.fence.clone(), Arc::clone(&self.inner.seat));
        let clock = self.inner.clock.clone();
        let reader = tokio::spawn(async move {
            let listener = Listener { owner, id, haste, pass, stands, right };
            let ended = listener.listen(first, said, || clock.now()).await;
            if let (Err(status), Some(out)) = (ended, out.upgrade()) {
                // One that does not read does not learn why, either.
                let _ = out.try_send(Err(status));
            }
        });
        Ok(Response::new(Told { messages, fence, seat, reader: Some(reader.abort_handle()) }))
    }

    async fn status(
        &self,
        request: Request<wire::StatusRequest>,
    ) -> Result<Response<wire::StatusResponse>, Status> {
        let (caller, access) = (Caller::of(&request), self.inner.access.load_full());
        let service = request.into_inner().service;
        if !service.is_empty() && !access.sees(&caller, &service) {
            return Err(Access::unseen(&caller, &service));
        }
        // Who does not lead says who does.
        if !service.is_empty() && self.inner.seat.check().is_ok() {
            self.inner.known(&service)?;
        }
        let sees =
            |name: &str| (service.is_empty() || name == service) && access.sees(&caller, name);
        let mut status = self.inner.status(sees).await;
        if !access.operates(&caller) {
            // A follower knows of no services, but who takes part may know who leads.
            if status.services.is_empty() && (status.leads || !access.takes_part(&caller)) {
                return Err(Access::unseen(&caller, ""));
            }
            // They quote the file and etcd, and so may name what others have.
            status.refused.clear();
            status.trouble.clear();
        }
        Ok(Response::new(status))
    }
}

/// Reads what one task says.
struct Listener {
    owner: Owner,
    id: StreamId,
    haste: Haste,
    pass: Pass,
    /// For other tasks.
    stands: bool,
    /// By which right it counts as more than one; nothing if it does not.
    right: Option<Reporter>,
}

impl Listener {
    /// Whether it may go on, by lists that have changed. Whoever counts as more than one by another
    /// right than it came with has to come again, to be given the weight that it has by that.
    fn check(&mut self) -> Result<(), Status> {
        let now = self.pass.report(self.stands)?;
        match &self.right {
            Some(before) if *before != now => {
                Err(Status::aborted("who may stand for other tasks has changed: open a new stream"))
            }
            _ => Ok(()),
        }
    }

    async fn listen(
        mut self,
        first: Said,
        mut said: Streaming<TaskMessage>,
        now: impl Fn() -> Timestamp,
    ) -> Result<(), Status> {
        let mut next = first;
        let ended = loop {
            if !self.owner.hear(self.id, next).await {
                break Ok(());
            }
            let message = match said.message().await {
                Ok(Some(message)) => message,
                Ok(None) => break Ok(()),
                Err(status) => break Err(status),
            };
            if message.hello.is_some() {
                break Err(Status::invalid_argument("hello belongs into the first message only"));
            }
            if let Err(status) = self.haste.count(now()) {
                break Err(status);
            }
            if self.pass.is_stale()
                && let Err(status) = self.check()
            {
                break Err(status);
            }
            match read(message) {
                Ok(said) => next = said,
                Err(status) => break Err(status),
            }
        };
        if ended.is_ok() {
            self.owner.close(self.id).await;
        }
        ended
    }
}

/// Counts messages of a stream, so that one task cannot keep the owner busy. What has waited as the
/// server was slow comes all at once, and is no haste: time that has passed counts.
#[derive(Debug)]
struct Haste {
    every: Duration,
    since: Timestamp,
    /// How many more may come.
    left: u32,
}

impl Haste {
    fn new(owner: &Owner, now: Timestamp) -> Self {
        Self { every: owner.service.report_every, since: now, left: MESSAGES_PER_REPORT }
    }

    fn count(&mut self, now: Timestamp) -> Result<(), Status> {
        let intervals = now.since(self.since).as_nanos() / self.every.as_nanos().max(1);
        if intervals > 0 {
            let more = u32::try_from(intervals).unwrap_or(u32::MAX);
            let more = more.saturating_mul(MESSAGES_PER_REPORT);
            (self.since, self.left) = (now, self.left.saturating_add(more).min(MESSAGES_MAX));
        }
        self.left = self.left.checked_sub(1).ok_or_else(|| {
            Status::resource_exhausted(format!(
                "more than {MESSAGES_PER_REPORT} messages within {:?}: report once in that time",
                self.every
            ))
        })?;
        Ok(())
    }
}

/// What makes sense by itself.
pub(crate) fn read(message: TaskMessage) -> Result<Said, Status> {
    if let Some(report) = &message.report {
        check_usages(report).map_err(|wrong| Status::invalid_argument(wrong.to_string()))?;
    }
    let acked = message.acked.map(generation);
    Ok(Said { report: message.report, acked, leaves: message.leaves })
}

/// What one task is told. When nobody reads it any more, nobody listens to the task either. What
/// waited here until the reign was over is not sent any more: the task is sent elsewhere.
#[derive(Debug)]
pub(crate) struct Told {
    messages: mpsc::Receiver<Words>,
    fence: Fence,
    seat: Arc<Seat>,
    /// Nothing once the task was sent elsewhere.
    reader: Option<AbortHandle>,
}

impl Told {
    /// Sends the task elsewhere.
    fn elsewhere(seat: Arc<Seat>, elsewhere: NotLeader) -> Self {
        let (out, messages) = mpsc::channel(1);
        // The channel is new and so has room.
        let _ = out.try_send(Ok(Box::new(elsewhere.redirect())));
        Self { messages, fence: Fence::never(), seat, reader: None }
    }
}

impl Stream for Told {
    type Item = Result<ServerMessage, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next =
            self.messages.poll_recv(cx).map(|next| next.map(|next| next.map(|boxed| *boxed)));
        if next.is_pending() || self.fence.is_open(self.seat.clock.now()) {
            return next;
        }
        match self.reader.take() {
            None => Poll::Ready(None),
            Some(reader) => {
                reader.abort();
                let leader = self.seat.check().err().and_then(|elsewhere| elsewhere.leader);
                Poll::Ready(Some(Ok(NotLeader { leader }.redirect())))
            }
        }
    }
}

impl Drop for Told {
    fn drop(&mut self) {
        if let Some(reader) = &self.reader {
            reader.abort();
        }
    }
}
