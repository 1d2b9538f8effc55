//! The future of an answer.

use super::body::Body;
use super::serving::{Serving, Turn};
use super::turns::Place;
use crate::context;
use crate::executor::InPlace;
use crate::task::Inner;
use bytes::Bytes;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context as Waking, Poll, ready};
use http::{Request, Response};
use tower_service::Service;

pin_project_lite::pin_project! {
    /// The answer of a [`Service`](super::Service), to be.
    pub struct ResponseFuture<S, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        state: State<S, B>,
    }
}

pin_project_lite::pin_project! {
    #[project = StateProjection]
    enum State<S, B>
    where
        S: Service<Request<B>>,
    {
        Rejected { response: Option<Response<Bytes>> },
        Within { call: Call<S, B> },
        Served { #[pin] handler: Handler<S, B> },
    }
}

impl<S, B> core::fmt::Debug for ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let state = match &self.state {
            State::Rejected { .. } => "rejected",
            State::Within { .. } => "within",
            State::Served { .. } => "served",
        };
        f.debug_tuple("ResponseFuture").field(&state).finish()
    }
}

impl<S, B> ResponseFuture<S, B>
where
    S: Service<Request<B>>,
{
    pub(super) const fn rejected(response: Response<Bytes>) -> Self {
        Self { state: State::Rejected { response: Some(response) } }
    }

    /// Of a request inside a request.
    pub(super) const fn within(call: Call<S, B>) -> Self {
        Self { state: State::Within { call } }
    }

    #[inline]
    pub(super) fn serving(task: &Inner, serving: Serving, call: Call<S, B>) -> Self {
        let handler = Handler::new(task, serving, call);
        Self { state: State::Served { handler } }
    }
}

impl<S, B, RB> Future for ResponseFuture<S, B>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes>,
{
    type Output = Result<Response<Body<RB>>, S::Error>;

    fn poll(self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<Self::Output> {
        match self.project().state.project() {
            StateProjection::Rejected { response } => match response.take() {
                Some(response) => Poll::Ready(Ok(response.map(Body::ours))),
                None => polled_again(),
            },
            StateProjection::Within { call } => {
                Pin::new(call).poll(waking).map_ok(|response| response.map(Body::within))
            }
            StateProjection::Served { handler } => handler.poll(waking),
        }
    }
}

#[cold]
fn polled_again() -> ! {
    panic!("polled after it was ready")
}

/// A call of the inner service, which may have to become ready first.
///
/// Futures of handlers are hundreds of bytes long, and are moved from one wrapper into the next
/// before they are polled: a pointer to one is moved for less.
pub(super) enum Call<S, B>
where
    S: Service<Request<B>>,
{
    Waiting(Box<(S, Option<Request<B>>)>),
    Running(Pin<Box<S::Future>>),
}

// What is pinned is on the heap.
impl<S: Service<Request<B>>, B> Unpin for Call<S, B> {}

impl<S, B> Future for Call<S, B>
where
    S: Service<Request<B>>,
{
    type Output = Result<S::Response, S::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<Self::Output> {
        loop {
            match &mut *self {
                Self::Running(future) => return future.as_mut().poll(waking),
                Self::Waiting(waiting) => {
                    let (service, request) = &mut **waiting;
                    ready!(service.poll_ready(waking))?;
                    let Some(request) = request.take() else { polled_again() };
                    let future = Box::pin(service.call(request));
                    *self = Self::Running(future);
                }
            }
        }
    }
}

pin_project_lite::pin_project! {
    /// The handler of a request that was admitted. Each poll is charged to the request, and counts
    /// as one who wants the CPU.
    struct Handler<S, B>
    where
        S: Service<Request<B>>,
    {
        call: Option<Call<S, B>>,
        // While there is a call.
        count: InPlace,
        // Gone once the body of the answer has it.
        serving: Option<Serving>,
        place: Place,
        limit: Limit,
    }

    impl<S, B> PinnedDrop for Handler<S, B>
    where
        S: Service<Request<B>>,
    {
        fn drop(this: Pin<&mut Self>) {
            this.drop_call();
        }
    }
}

impl<S, B> Handler<S, B>
where
    S: Service<Request<B>>,
{
    #[inline]
    fn new(task: &Inner, serving: Serving, call: Call<S, B>) -> Self {
        let limit = Limit::of(task, &serving);
        let count = InPlace::new(&task.executor);
        Self { call: Some(call), count, serving: Some(serving), place: Place::default(), limit }
    }

    /// Drops what is left of the handler at the cost of the request.
    fn drop_call(self: Pin<&mut Self>) {
        let this = self.project();
        let Some(serving) = this.serving else { return };
        serving.leave(this.place);
        if this.call.is_some() {
            serving.run(|| {
                context::with(|_, context| this.count.leave(&context.task.inner.executor));
                *this.call = None;
            });
        }
    }
}

impl<S, B, RB> Future for Handler<S, B>
where
    S: Service<Request<B>, Response = Response<RB>>,
    RB: http_body::Body<Data = Bytes>,
{
    type Output = Result<Response<Body<RB>>, S::Error>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<Self::Output> {
        let this = self.as_mut().project();
        let Some(serving) = this.serving.as_mut() else { polled_again() };
        let turn = serving.turn(this.place, waking);
        let outcome = match turn {
            Turn::Now => serving.run(|| {
                let Some(call) = this.call.as_mut() else { polled_again() };
                let outcome = context::with(|_, context| {
                    this.count.poll(&context.task.inner.executor, Pin::new(call), waking)
                });
                let Some(outcome) = outcome else { polled_again() };
                // What is left of it goes at the cost of the request, too.
                if outcome.is_ready() {
                    *this.call = None;
                }
                outcome
            }),
            Turn::Later | Turn::TooLate => Poll::Pending,
        };
        let Poll::Ready(outcome) = outcome else {
            if turn != Turn::TooLate && !this.limit.has_passed(waking) {
                serving.turn_over(this.place, turn);
                return Poll::Pending;
            }
            self.as_mut().drop_call();
            let serving = self.project().serving.take();
            return match serving.as_ref().and_then(Serving::cancelled) {
                Some(response) => Poll::Ready(Ok(response.map(Body::ours))),
                None => polled_again(),
            };
        };
        serving.leave(this.place);
        let Some(mut serving) = this.serving.take() else { polled_again() };
        Poll::Ready(match outcome {
            Ok(response) => Ok(serving.answer(response)),
            Err(error) => {
                serving.failed();
                Err(error)
            }
        })
    }
}

/// The time at which a handler is dropped, if it is to be at all.
#[derive(Debug)]
struct Limit {
    #[cfg(feature = "tokio")]
    sleep: Option<Pin<Box<tokio::time::Sleep>>>,
}

impl Limit {
    #[cfg(feature = "tokio")]
    #[inline]
    fn of(task: &Inner, serving: &Serving) -> Self {
        if !task.policy.cancel_at_deadline {
            return Self { sleep: None };
        }
        let deadline = serving.with_context(|context| context.deadline).flatten();
        let left = deadline.map(|deadline| deadline.since(task.clock.now()));
        Self { sleep: left.map(|left| Box::pin(tokio::time::sleep(left))) }
    }

    #[cfg(feature = "tokio")]
    fn has_passed(&mut self, waking: &mut Waking<'_>) -> bool {
        self.sleep.as_mut().is_some_and(|sleep| sleep.as_mut().poll(waking).is_ready())
    }

    #[cfg(not(feature = "tokio"))]
    const fn of(_: &Inner, _: &Serving) -> Self {
        Self {}
    }

    #[cfg(not(feature = "tokio"))]
    #[expect(clippy::unused_self, reason = "the same signature with and without a timer")]
    const fn has_passed(&mut self, _: &mut Waking<'_>) -> bool {
        false
    }
}
