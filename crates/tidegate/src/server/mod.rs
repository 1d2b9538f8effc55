//! The layer around what a task serves.
//!
//! ```text
//! headers  ->  customer  ->  criticality  ->  deadline  ->  the gate
//!                                                            |  |
//!                    a cheap answer that says why <-- refused   admitted --> the handler, metered
//! ```
//!
//! It goes around any `tower::Service` over `http`: axum's `Router::layer`, tonic's
//! `Server::layer`, a service under plain hyper.
//!
//! **Who says what.** What a request claims about itself is read from its headers
//! ([`tidegate_wire::incoming`]). The customer is that of the connection ([`PeerIdentity`]), or the
//! one whom the request names, if the peer may speak for others. The criticality is the claim, held
//! against what the peer may claim; without a claim it is the route's default.
//!
//! **Refused.** A 503, 429 or 504, or a gRPC answer of headers only, made of constants. It does not
//! wait for the inner service to be ready.
//!
//! **Admitted.** Each poll of the handler and of the response's body is charged to the request, and
//! so is what it spawns by [`tidegate::spawn`](crate::spawn()). The request is done when the body
//! has ended or was dropped: then the permit goes back with what was measured, once, however it
//! ended. Bodies that stream for hours are requests in flight for hours; a connection that was
//! upgraded is no request any more.
//!
//! **Deadlines** are checked at the gate. A handler that is running when its deadline passes goes
//! on, unless `Builder::cancel_at_deadline` says otherwise; a body that has begun goes on in any
//! case.
//!
//! **Who waits is seen.** While no CPU idles, requests that were admitted and are worth it take
//! turns, so that whatever arrives meets the gate after one handler at most, and all who wait count
//! as wanting the CPU; see `turns`. It takes a task that was started inside of its runtime; see
//! [`executor`](crate::executor) for how to count connections besides.
//!
//! **Within a request** of the same task (a layer inside a layer, a call in process) the layer does
//! nothing: it is the same request.

mod below;
mod body;
mod decide;
mod future;
mod peer;
mod serving;
mod ticket;
mod trace;
mod turns;

pub use body::Body;
pub use future::ResponseFuture;
pub use peer::PeerIdentity;
pub use ticket::{Admission, Ticket};
pub(crate) use turns::Turns;

use crate::context;
use crate::task::Task;
use bytes::Bytes;
use core::task::{Context as Waking, Poll};
use decide::{Verdict, decide};
use http::{Request, Response};
use std::sync::Arc;
use tidegate_core::Criticality;

/// Puts a [`Service`] around what is served. Made by [`Task::layer`].
#[derive(Debug, Clone)]
pub struct Layer {
    task: Task,
    criticality: Option<Criticality>,
}

impl Layer {
    pub(crate) const fn new(task: Task) -> Self {
        Self { task, criticality: None }
    }

    /// What requests count as that do not say, for a layer around some routes only.
    #[must_use]
    pub const fn default_criticality(mut self, criticality: Criticality) -> Self {
        self.criticality = Some(criticality);
        self
    }
}

impl<S> tower_layer::Layer<S> for Layer {
    type Service = Service<S>;

    fn layer(&self, inner: S) -> Service<S> {
        let (task, criticality) = (self.task.clone(), self.criticality);
        Service { task, criticality, inner, ready: false }
    }
}

/// A service behind the gate of a task.
#[derive(Debug)]
pub struct Service<S> {
    task: Task,
    criticality: Option<Criticality>,
    inner: S,
    /// Whether the inner service has said so since it was last called.
    ready: bool,
}

impl<S: Clone> Clone for Service<S> {
    fn clone(&self) -> Self {
        // A clone has to become ready by itself.
        let (task, criticality) = (self.task.clone(), self.criticality);
        Self { task, criticality, inner: self.inner.clone(), ready: false }
    }
}

impl<S, B, RB> tower_service::Service<Request<B>> for Service<S>
where
    S: tower_service::Service<Request<B>, Response = Response<RB>> + Clone,
    RB: http_body::Body<Data = Bytes>,
{
    type Response = Response<Body<RB>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, B>;

    /// Ready at once, as a refusal does not need the inner service. If that is not ready, those who
    /// are admitted wait for it.
    #[inline]
    fn poll_ready(&mut self, waking: &mut Waking<'_>) -> Poll<Result<(), S::Error>> {
        if !self.ready
            && let Poll::Ready(ready) = self.inner.poll_ready(waking)
        {
            ready?;
            self.ready = true;
        }
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<B>) -> Self::Future {
        let inner = &self.task.inner;
        if context::with(|_, context| Arc::ptr_eq(&context.task.inner, inner)).unwrap_or(false) {
            return ResponseFuture::within(self.hand_on(request));
        }
        match decide(&self.task, &request, self.criticality) {
            Verdict::Reject(response) => ResponseFuture::rejected(response),
            Verdict::Serve(mut serving) => {
                let call = serving.run(|| self.hand_on(request));
                ResponseFuture::serving(&self.task.inner, serving, call)
            }
        }
    }
}

impl<S: Clone> Service<S> {
    /// Calls the inner service, now if it is ready.
    #[inline]
    fn hand_on<B>(&mut self, request: Request<B>) -> future::Call<S, B>
    where
        S: tower_service::Service<Request<B>>,
    {
        if core::mem::take(&mut self.ready) {
            return future::Call::Running(Box::pin(self.inner.call(request)));
        }
        // The one that was asked whether it is ready is the one to wait for.
        let clone = self.inner.clone();
        let service = core::mem::replace(&mut self.inner, clone);
        future::Call::Waiting(Box::new((service, Some(request))))
    }
}
