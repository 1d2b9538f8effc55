//! One request: may it be sent, how did it go, may it be sent again.
//!
//! ```text
//! throttle ── refused ──► Throttled
//!    │ sent: headers say criticality, attempt, time left
//!    ▼
//!  attempt ── answered, or its outcome comes later in trailers ──► the answer
//!    │ refused, or nobody answered
//!    ▼
//!  policy: advice, attempts, time left, throttle, budget ── no ──► the refusal as it came
//!    │ yes: waits as told, sends the body again
//!    └──► attempt
//! ```
//!
//! Only the layer right above a refusal retries. When this one gives up it tells the request that
//! it serves, so that its answer says "don't retry".

use super::body::{Along, Watched};
use super::error::{BoxError, Throttled, TimedOut, never_sent};
use super::keeper;
use super::layer::Repeat;
use super::replay::RequestBody;
use super::shared::Shared;
use super::trail::Trail;
use crate::context::Caller;
use core::fmt;
use core::future::{Future, poll_fn};
use core::mem;
use core::pin::{Pin, pin};
use core::task::{Context, Poll};
use core::time::Duration;
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use std::sync::Arc;
use std::time::SystemTime;
use tidegate_core::decision::{Advice, Reason, Rejection};
use tidegate_core::retry::RetryDecision;
use tidegate_core::{Criticality, Outcome};
use tidegate_wire::answer::{self, Answer};
use tidegate_wire::outgoing::Outgoing;
use tidegate_wire::protocol::Protocol;
use tidegate_wire::{criticality, deadline};
use tokio::time::{Instant, sleep, timeout_at};

/// A client with throttle, retries and propagation, made by a [`Layer`](super::Layer).
pub struct Service<S> {
    inner: S,
    shared: Arc<Shared>,
}

/// The body of an answer.
pub type Body<B> = Watched<B, Verdict>;

/// What a service is on its way to.
pub type ResponseFuture<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

impl<S> Service<S> {
    pub(super) const fn new(inner: S, shared: Arc<Shared>) -> Self {
        Self { inner, shared }
    }

    /// What is inside.
    pub const fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S: Clone> Clone for Service<S> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), shared: Arc::clone(&self.shared) }
    }
}

impl<S: fmt::Debug> fmt::Debug for Service<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Service").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, B, RB> tower_service::Service<Request<B>> for Service<S>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<BoxError>,
    B: RequestBody,
    RB: Send + 'static,
{
    type Response = Response<Body<RB>>;
    type Error = BoxError;
    type Future = ResponseFuture<Self::Response>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes, and leaves one that is not.
        let other = self.inner.clone();
        let inner = mem::replace(&mut self.inner, other);
        let call = Call::new(&self.shared, &request);
        Box::pin(call.run(inner, request))
    }
}

/// A request on its way, with all of its attempts.
struct Call {
    shared: Arc<Shared>,
    caller: Caller,
    protocol: Protocol,
    criticality: Criticality,
    began: Instant,
    /// Until when whoever asked wants it.
    deadline: Option<Instant>,
    /// Until when it is waited for.
    end: Option<Instant>,
    repeatable: bool,
}

/// What is to be done after an attempt.
enum Next {
    /// It stands.
    Done,
    Retry(Duration),
    GiveUp,
}

impl Call {
    fn new<B>(shared: &Arc<Shared>, request: &Request<B>) -> Self {
        let caller = Caller::current();
        let began = Instant::now();
        keeper::ensure(shared, shared.time.at(began));
        let (config, headers) = (&shared.config, request.headers());
        let protocol = Protocol::of(headers);
        let criticality = (request.extensions().get().copied())
            .or_else(|| caller.criticality())
            .or_else(|| criticality::read(headers, protocol).0)
            .unwrap_or(config.criticality);
        let (said, _) = deadline::read(headers);
        let remaining = [caller.remaining(), said].into_iter().flatten().min();
        let deadline = remaining.and_then(|remaining| began.checked_add(remaining));
        let end = [deadline, began.checked_add(config.timeout)].into_iter().flatten().min();
        let repeatable = match config.repeat {
            Repeat::Idempotent => is_idempotent(request.method()),
            Repeat::All => true,
            Repeat::Unsent => false,
        };
        let shared = Arc::clone(shared);
        Self { shared, caller, protocol, criticality, began, deadline, end, repeatable }
    }

    async fn run<S, B, RB>(
        self,
        mut inner: S,
        request: Request<B>,
    ) -> Result<Response<Body<RB>>, BoxError>
    where
        S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone,
        S::Error: Into<BoxError>,
        B: RequestBody,
    {
        self.admit()?;
        let attempts_max = self.shared.config.policy.attempts_max.get();
        let (mut parts, body) = request.into_parts();
        let (mut body, mut kept) = if attempts_max > 1 {
            let (body, kept) = body.keep(self.shared.config.kept_bytes_max);
            (body, Some(kept))
        } else {
            (body, None)
        };
        let trail = Trail::default();
        parts.extensions.insert(trail.clone());
        let mut attempt = 1;
        loop {
            let again = kept.is_some().then(|| parts.clone());
            self.write(&mut parts, attempt);
            let request = Request::from_parts(parts, body);
            let answer = self.send(&mut inner, request, &trail).await;
            let (answer, next) =
                self.judge(answer, attempt, || kept.as_mut().is_none_or(|kept| B::is_lost(kept)));
            let wait = match next {
                Next::Done => return answer,
                Next::GiveUp => {
                    self.caller.gave_up();
                    return answer;
                }
                Next::Retry(wait) => wait,
            };
            // The answer lets go of its connection, and that of the request's body.
            let head = answer.map(|response| response.map(drop));
            if !wait.is_zero() {
                sleep(wait).await;
            }
            let copy = match kept.take() {
                Some(kept) => B::again(kept).await,
                None => None,
            };
            let (Some((copy, rest)), Some(again)) = (copy, again) else {
                self.shared.count_unrepeatable();
                self.caller.gave_up();
                return head.map(|head| head.map(|()| Watched::new(None, None)));
            };
            (parts, body, kept) = (again, copy, Some(rest));
            attempt += 1;
        }
    }

    /// Whether the request may be sent at all.
    fn admit(&self) -> Result<(), Throttled> {
        let rejection = if self.deadline.is_some_and(|deadline| deadline <= self.began) {
            Rejection {
                reason: Reason::DeadlinePassed,
                advice: Advice::DontRetry,
                criticality: self.criticality,
                cause: None,
            }
        } else {
            let decided = self.shared.lane(|lane| {
                lane.throttle.decide(self.criticality, &mut lane.rng)?;
                lane.budget.deposit();
                Ok(())
            });
            match decided {
                Ok(()) => return Ok(()),
                Err(rejection) => {
                    self.caller.gave_up();
                    rejection
                }
            }
        };
        Err(Throttled::new(rejection))
    }

    /// Makes the headers say what this attempt is.
    fn write(&self, parts: &mut Parts, attempt: u32) {
        if self.shared.config.propagate {
            let remaining = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
            Outgoing::new(self.criticality)
                .attempt(attempt)
                .deadline(self.deadline.map(remaining))
                .write(&mut parts.headers, self.protocol);
        }
    }

    /// One attempt.
    async fn send<S, B, RB>(
        &self,
        inner: &mut S,
        request: Request<B>,
        trail: &Trail,
    ) -> Result<Response<RB>, BoxError>
    where
        S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone,
        S::Error: Into<BoxError>,
    {
        trail.renew();
        let mut answer = pin!(async {
            poll_fn(|cx| inner.poll_ready(cx)).await.map_err(Into::into)?;
            inner.call(request).await.map_err(Into::into)
        });
        let began = Instant::now();
        let patience = began.checked_add(self.shared.config.attempt_timeout);
        let Some(end) = [self.end, patience].into_iter().flatten().min() else {
            return answer.await;
        };
        if let Ok(answer) = timeout_at(end, answer.as_mut()).await {
            return answer;
        }
        // Said before the attempt is dropped, at the end of this function.
        trail.expire();
        Err(Box::new(TimedOut::new(end.saturating_duration_since(began))))
    }

    /// What the answer to an attempt means, counted, and what follows.
    fn judge<RB>(
        &self,
        answer: Result<Response<RB>, BoxError>,
        attempt: u32,
        is_lost: impl FnOnce() -> bool,
    ) -> (Result<Response<Body<RB>>, BoxError>, Next) {
        let response = match answer {
            Ok(response) => response,
            Err(error) => {
                let next = self.after_error(&error, attempt, is_lost);
                return (Err(error), next);
            }
        };
        let (status, headers) = (response.status(), response.headers());
        if !answer::is_final(status, headers, self.protocol) {
            let (shared, criticality) = (Arc::clone(&self.shared), self.criticality);
            let caller = self.caller.clone();
            let verdict = Verdict { shared, criticality, caller, told: false };
            let response = response.map(|body| Watched::new(Some(body), Some(verdict)));
            return (Ok(response), Next::Done);
        }
        let read = answer::read(status, headers, None, self.protocol, SystemTime::now);
        record(&self.shared, self.criticality, &read);
        let response = response.map(|body| Watched::new(Some(body), None));
        let repeatable = self.repeatable && read.outcome == Outcome::NoAnswer;
        let advice = read.advice.or(repeatable.then_some(Advice::RetryElsewhere));
        let next = match (read.outcome, advice) {
            (Outcome::Served | Outcome::Abandoned, _) | (_, None) => Next::Done,
            (_, Some(advice)) => self.after_failure(advice, attempt, is_lost),
        };
        (Ok(response), next)
    }

    fn after_error(&self, error: &BoxError, attempt: u32, is_lost: impl FnOnce() -> bool) -> Next {
        if Throttled::find(&**error).is_some() {
            return Next::GiveUp;
        }
        self.shared.lane(|lane| lane.throttle.on_response(self.criticality, Outcome::NoAnswer));
        if self.repeatable || never_sent(&**error) {
            self.after_failure(Advice::RetryElsewhere, attempt, is_lost)
        } else {
            Next::Done
        }
    }

    /// Whether to try again after a failure with this advice.
    fn after_failure(&self, advice: Advice, attempt: u32, is_lost: impl FnOnce() -> bool) -> Next {
        let remaining =
            self.end.map_or(Duration::MAX, |end| end.saturating_duration_since(Instant::now()));
        let (mut lost, mut throttled) = (false, false);
        let policy = self.shared.config.policy;
        let decision = policy.decide(attempt, advice, remaining, || {
            lost = is_lost();
            !lost
                && self.shared.lane(|lane| {
                    let decided = lane.throttle.decide(self.criticality, &mut lane.rng);
                    throttled = decided.is_err();
                    !throttled && lane.budget.withdraw()
                })
        });
        match decision {
            RetryDecision::Retry { after } => return Next::Retry(after),
            RetryDecision::GiveUp(_) if lost => self.shared.count_unrepeatable(),
            // The throttle has counted it.
            RetryDecision::GiveUp(_) if throttled => {}
            RetryDecision::GiveUp(reason) => self.shared.count_given_up(reason),
        }
        Next::GiveUp
    }
}

fn record(shared: &Shared, criticality: Criticality, answer: &Answer) {
    shared.lane(|lane| lane.throttle.on_response(criticality, answer.outcome));
    if !answer.faults.is_empty() {
        shared.count_faults(answer.faults);
    }
}

fn is_idempotent(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::PUT, Method::DELETE, Method::OPTIONS, Method::TRACE]
        .contains(method)
}

/// Waits for the status in the trailers of a gRPC call, and counts it. Such a call is not retried:
/// a part of its answer has been handed on.
pub struct Verdict {
    shared: Arc<Shared>,
    criticality: Criticality,
    caller: Caller,
    told: bool,
}

impl Verdict {
    fn tell(&mut self, trailers: Option<&HeaderMap>) {
        if mem::replace(&mut self.told, true) {
            return;
        }
        let (none, now) = (HeaderMap::new(), SystemTime::now);
        let answer = answer::read(StatusCode::OK, &none, trailers, Protocol::Grpc, now);
        record(&self.shared, self.criticality, &answer);
        if matches!(answer.outcome, Outcome::Refused(_)) {
            self.caller.gave_up();
        }
    }
}

impl Along for Verdict {
    fn on_trailers(&mut self, trailers: &HeaderMap) {
        self.tell(Some(trailers));
    }

    fn on_end(&mut self) {
        self.tell(None);
    }

    fn on_error(&mut self) {
        self.tell(None);
    }
}

impl fmt::Debug for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verdict").field("told", &self.told).finish_non_exhaustive()
    }
}
