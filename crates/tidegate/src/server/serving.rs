//! A request that was admitted, until it is done.
//!
//! [`Serving`] owns the permit. The future of the handler has it first, then the body of the
//! response; whoever of them ends, fails, panics or is dropped ends it, and its drop gives the
//! permit back. As it is owned by one at a time, that happens once.
//!
//! **What is a good answer.** One that is no failure, within its deadline, of which the server has
//! taken everything that goes out: a body that fails, or is dropped before that, was cut off. A
//! server stops asking after as many bytes as the head has told, and asks for none where there is
//! no body on the wire (HEAD, 204, 304): that is no cut. What is lost after the server has taken it
//! is not seen here.

use super::below;
use super::body::Body;
use super::decide::Why;
use super::trace::Trace;
use super::turns::{BEGUN, Place};
use crate::context::{Context, saying};
use crate::events::{Answer, EndedSample, Ending};
use crate::metrics::cell;
use crate::report::Wanted;
use crate::task::Inner;
use core::task::Context as Waking;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Response, StatusCode, Version};
use std::sync::Arc;
use tidegate_core::Cost;
use tidegate_core::admission::Permit;
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_meter::Scope;
use tidegate_wire::answer;
use tidegate_wire::grpc::Code;
use tidegate_wire::grpc_web::Scan;
use tidegate_wire::headers::{GRPC_STATUS, X_TIDEGATE_DECISION};
use tidegate_wire::protocol::Protocol;

/// How much of an answer's body is to go out still.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Owed {
    /// Nobody knows before it ends.
    ToItsEnd,
    /// So many bytes, as its head says or as there is no body on the wire.
    Bytes(u64),
    /// So many bytes, as the body itself says.
    OfBody(u64),
}

/// Whether a handler may be polled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    Now,
    Later,
    /// It has not begun, and its deadline has passed.
    TooLate,
}

/// A request that was admitted and is not done.
///
/// It is moved from the future to the body, and both through whatever is around them. So what does
/// not change and is asked for once stands in the context, which stays where it is.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is found out at a moment of its own")]
pub(super) struct Serving {
    /// Gone once it was given back.
    permit: Option<Permit>,
    /// Charges the account that the context rides on.
    scope: Scope,
    protocol: Protocol,
    version: Version,
    /// Whether it was answered, and not by a failure.
    good: bool,
    /// Whether a piece of its work has begun and not come back: then it has panicked.
    running: bool,
    /// Whether it is settled if its method gets an entry: the first to tell decides.
    entered: bool,
    owed: Owed,
    /// The load report that its answer is to carry.
    wanted: Option<Wanted>,
    /// Whether it is worth a turn.
    dear: bool,
    /// Looks for the status in the body of an answer to a browser.
    web: Option<Box<Scan>>,
    trace: Trace,
}

impl Serving {
    /// `version` is the request's.
    #[inline]
    pub(super) fn new(
        permit: Permit,
        context: Context,
        protocol: Protocol,
        wanted: Option<Wanted>,
        version: Version,
        dear: bool,
    ) -> Self {
        Self {
            trace: Trace::of(&permit, context.id),
            permit: Some(permit),
            scope: Scope::with_context(context),
            protocol,
            version,
            good: false,
            running: false,
            entered: false,
            owed: Owed::ToItsEnd,
            wanted,
            dear,
            web: None,
        }
    }

    /// Runs a piece of the request's work.
    #[inline]
    pub(super) fn run<R>(&mut self, work: impl FnOnce() -> R) -> R {
        if core::mem::replace(&mut self.running, true) {
            self.failed();
        }
        let Self { scope, trace, .. } = self;
        let done = scope.run(|| saying(None, || trace.run(work)));
        self.running = false;
        done
    }

    #[inline]
    pub(super) fn with_context<R>(&self, ask: impl FnOnce(&Context) -> R) -> Option<R> {
        self.scope.account().context::<Context>().map(ask)
    }

    #[inline]
    pub(super) fn task(&self) -> Option<&Arc<Inner>> {
        self.scope.account().context::<Context>().map(|context| &context.task.inner)
    }

    /// Whether its handler may be polled.
    #[inline]
    pub(super) fn turn(&self, place: &mut Place, waking: &mut Waking<'_>) -> Turn {
        if !self.dear {
            return Turn::Now;
        }
        match self.task() {
            Some(task) if place.is_taken() || task.is_busy() => self.take_turn(task, place, waking),
            _ => Turn::Now,
        }
    }

    #[cold]
    fn take_turn(&self, task: &Inner, place: &mut Place, waking: &mut Waking<'_>) -> Turn {
        if !place.is_taken() && self.scope.account().so_far() >= BEGUN {
            return Turn::Now;
        }
        if place.poll(&task.turns, waking, || task.executor.wait()).is_pending() {
            return Turn::Later;
        }
        place.begin();
        let deadline = self.with_context(|context| context.deadline).flatten();
        if deadline.is_some_and(|deadline| deadline <= task.clock.now()) {
            return Turn::TooLate;
        }
        Turn::Now
    }

    /// Its handler was polled, and waits for something.
    #[inline]
    pub(super) fn turn_over(&self, place: &mut Place, turn: Turn) {
        if turn == Turn::Now {
            self.leave(place);
        }
    }

    /// It has run, or never will.
    #[inline]
    pub(super) fn leave(&self, place: &mut Place) {
        if place.is_taken()
            && let Some(task) = self.task()
        {
            place.leave(&task.turns);
        }
    }

    #[cold]
    fn count(&self, cell: usize) {
        if let Some(task) = self.task() {
            task.with_lane(|lane| lane.count(cell));
        }
    }

    /// What it has cost so far.
    fn cost(&self) -> Cost {
        let so_far = self.scope.account().so_far();
        self.task().map_or(Cost::from_nanos(0), |task| task.factor.cost_of(so_far))
    }

    /// The handler has answered: the request goes on until the body ends.
    #[inline]
    pub(super) fn answer<RB>(mut self, response: Response<RB>) -> Response<Body<RB>>
    where
        RB: http_body::Body<Data = bytes::Bytes>,
    {
        let (mut head, body) = response.into_parts();
        let over = body.is_end_stream();
        let last = over || answer::is_final(head.status, &head.headers, self.protocol);
        if last {
            let status = head.status;
            if let Some(turned) = self.end(status, &mut head.headers) {
                head.status = turned;
            }
            self.enter(head.status, &head.headers);
        }
        if self.protocol == Protocol::Http || last {
            self.report(&mut head.headers);
        }
        let body = if over {
            Body::ended(self)
        } else {
            if !last && self.with_context(|context| context.grpc_web) == Some(true) {
                let content_type = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
                self.web = Some(Box::new(Scan::new(content_type.unwrap_or_default())));
            }
            self.owed = self.owes(head.status, &head.headers, &body);
            Body::theirs(body, self)
        };
        Response::from_parts(head, body)
    }

    /// How many bytes of `body` a server will ask for.
    fn owes<RB: http_body::Body>(
        &self,
        status: StatusCode,
        headers: &HeaderMap,
        body: &RB,
    ) -> Owed {
        let no_body = matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
        let bodiless = self.with_context(|context| context.bodiless) == Some(true);
        if bodiless || no_body || status.is_informational() {
            return Owed::Bytes(0);
        }
        let told = || headers.get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok();
        match body.size_hint().exact() {
            Some(length) => Owed::OfBody(length),
            None => told().map_or(Owed::ToItsEnd, Owed::Bytes),
        }
    }

    /// How many bytes of the body are left, if that has said so: asking again goes through all that
    /// is around it.
    #[inline]
    pub(super) const fn left(&self) -> Option<u64> {
        match self.owed {
            Owed::OfBody(left) => Some(left),
            Owed::ToItsEnd | Owed::Bytes(_) => None,
        }
    }

    /// The server has taken this part of the answer.
    #[inline]
    pub(super) fn taken(&mut self, data: &[u8]) {
        if let Owed::Bytes(left) | Owed::OfBody(left) = &mut self.owed {
            *left = left.saturating_sub(data.len() as u64);
        }
        if let Some(web) = &mut self.web {
            web.take(data);
        }
    }

    /// The body was dropped, and had not said that it was over.
    pub(super) const fn dropped(&mut self) {
        if !matches!(self.owed, Owed::Bytes(0) | Owed::OfBody(0)) {
            self.good = false;
        }
    }

    /// The trailers have come.
    pub(super) fn trailers(&mut self, trailers: &mut HeaderMap) {
        if self.protocol == Protocol::Http {
            return;
        }
        self.end(StatusCode::OK, trailers);
        self.enter(StatusCode::OK, trailers);
        self.report(trailers);
    }

    /// Its method gets an entry, if it has none yet and the service knows it.
    fn enter(&mut self, status: StatusCode, headers: &HeaderMap) {
        if core::mem::replace(&mut self.entered, true) {
            return;
        }
        self.with_context(|context| {
            if let Some(name) = &context.unknown
                && is_known(status, headers)
            {
                context.task.inner.methods.enter(name);
            }
        });
    }

    /// It is known how it ended. Returns the status to answer with if that is another.
    fn end(&mut self, status: StatusCode, headers: &mut HeaderMap) -> Option<StatusCode> {
        let below = self.with_context(Context::is_overloaded_below) == Some(true);
        if below && let Some(turned) = below::turn(status, headers, self.protocol) {
            self.count(cell::OVERLOADED_BELOW);
            if let Some(id) = self.with_context(|context| context.id) {
                headers.insert(&X_TIDEGATE_DECISION, id.value());
            }
            let answer = Answer::new(turned, headers, Advice::DontRetry);
            self.tell(Ending::OverloadedBelow, answer);
            return Some(turned);
        }
        // A gRPC answer without a status was cut off, unless it is not over yet.
        self.good = !answer::is_failure(status, headers, self.protocol);
        if !self.good {
            self.count(cell::FAILED);
        }
        None
    }

    /// The handler has failed without an answer, or its body has.
    #[cold]
    pub(super) fn failed(&mut self) {
        (self.good, self.web) = (false, None);
        self.count(cell::FAILED);
    }

    /// The deadline has passed: the answer in the handler's place.
    pub(super) fn cancelled(&self) -> Option<Response<bytes::Bytes>> {
        self.count(cell::CANCELLED);
        let response = self.with_context(|context| {
            let rejection = Rejection {
                reason: Reason::DeadlinePassed,
                advice: Advice::DontRetry,
                criticality: context.admitted_as,
                cause: None,
            };
            let peer = context.peer.as_ref().unwrap_or(&context.task.inner.stranger);
            let why = Why { task: &context.task, peer, customer: context.customer };
            why.reject(&rejection, context.id, self.protocol, self.version)
        })?;
        let answer = Answer::new(response.status(), response.headers(), Advice::DontRetry);
        self.tell(Ending::Cancelled, answer);
        Some(response)
    }

    /// It got another answer than its handler's.
    #[cold]
    fn tell(&self, how: Ending, answer: Answer) {
        self.with_context(|context| {
            let task = &context.task.inner;
            task.events.ended(&EndedSample {
                at: task.clock.now(),
                id: context.id,
                how,
                criticality: context.admitted_as,
                customer: context.customer,
                attempt: context.attempt,
                answer,
            });
        });
    }

    fn report(&mut self, headers: &mut HeaderMap) {
        let Some(wanted) = self.wanted.take() else { return };
        let cost = self.cost();
        if let Some(task) = self.task() {
            task.reports.write(headers, wanted, cost);
        }
    }

    /// The body of an answer to a browser is over, and may have told how it ended.
    #[cold]
    fn end_web(&mut self, scan: &Scan) {
        let Some(code) = scan.code() else { return };
        let trailers = HeaderMap::from_iter([(GRPC_STATUS.clone(), code.value())]);
        self.good = !answer::is_failure(StatusCode::OK, &trailers, self.protocol);
        if !self.good {
            self.count(cell::FAILED);
        }
        self.enter(StatusCode::OK, &trailers);
    }

    /// It is done. What happens after that is nobody's.
    pub(super) fn finish(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if core::mem::take(&mut self.running) {
            self.failed();
        }
        if let Some(scan) = self.web.take() {
            self.end_web(&scan);
        }
        let account = self.scope.account();
        let Some(context) = account.context::<Context>() else { return };
        let task = &context.task.inner;
        let cost = task.factor.cost_of(context.settle(account));
        self.trace.done(cost);
        let now = task.clock.now();
        let in_time = context.deadline.is_none_or(|deadline| now <= deadline);
        let good = (self.good && in_time).then_some(context.admitted_as);
        let permit = if context.has_heard() { permit } else { permit.in_full() };
        task.with_lane(|lane| {
            lane.complete(permit, context.method, cost, now);
            lane.ended(now.since(context.began), good);
        });
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.finish();
    }
}

/// Whether the service has this method at all.
pub(super) fn is_known(status: StatusCode, headers: &HeaderMap) -> bool {
    let code = headers.get(&GRPC_STATUS).map(|value| Code::parse(value.as_bytes()));
    code != Some(Code::Unimplemented)
        && !matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED)
}
