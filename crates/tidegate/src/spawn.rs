//! Children of a request.
//!
//! `tokio::spawn` starts a task that belongs to nobody: its CPU time is not the request's, and what
//! it calls has no criticality. [`spawn`] and [`spawn_blocking`] take the request along: the child
//! is charged to it, inherits its context, and counts as one who wants the CPU.
//!
//! **When the child outlives the request.** A request is done when its answer is out: then its
//! permit goes back, with what it and its children have cost until then. What a child uses after
//! that is charged to the request's customer when the child ends, and counted as late
//! ([`Snapshot::late`](crate::metrics::Snapshot::late)). The alternative, to hold the permit until
//! the last child ends, would let a child that lives for an hour count as a request in flight, and
//! the controller sheds by what is in flight. So the cost model learns what a request costs up to
//! its answer; a method that leaves most of its work to such children looks cheaper than it is.
//!
//! Outside of a request both do what tokio's do.

use crate::context::{self, Context, said, saying};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context as Waking, Poll};
use tidegate_core::Criticality;
use tidegate_meter::{Account, Metered};
use tokio::task::JoinHandle;

/// Starts a task that belongs to the request at hand.
///
/// Panics outside of a tokio runtime, as `tokio::spawn` does.
pub fn spawn<F>(future: F) -> JoinHandle<F::Output>
where
    F: Future + Send + 'static,
    F::Output: Send + 'static,
{
    match Tie::here() {
        Some((tie, executor)) => {
            let said = said();
            let metered = tie.account.meter(future);
            executor.spawn(Child { metered, said, tie })
        }
        None => tokio::spawn(future),
    }
}

/// Runs `work`, which may block, on a thread for such work, at the cost of the request at hand.
///
/// Panics outside of a tokio runtime, as `tokio::task::spawn_blocking` does.
pub fn spawn_blocking<F, R>(work: F) -> JoinHandle<R>
where
    F: FnOnce() -> R + Send + 'static,
    R: Send + 'static,
{
    match Tie::here() {
        Some((tie, _)) => {
            let said = said();
            tokio::task::spawn_blocking(move || tie.account.run(|| saying(said, work)))
        }
        None => tokio::task::spawn_blocking(work),
    }
}

/// Holds a child to its request, and settles when the child is gone.
#[derive(Debug)]
struct Tie {
    account: Account,
}

impl Tie {
    fn here() -> Option<(Self, crate::executor::Executor)> {
        context::with(|account, context| {
            context.spawns();
            (Self { account: account.clone() }, context.task.inner.executor.clone())
        })
    }
}

impl Drop for Tie {
    fn drop(&mut self) {
        let Some(context) = self.account.context::<Context>() else { return };
        let Some(late) = context.settle_late(&self.account) else { return };
        let task = &context.task.inner;
        let (cost, now) = (task.factor.cost_of(late), task.clock.now());
        task.with_lane(|lane| {
            lane.charge_late(context.customer, context.admitted_as, cost, now);
        });
    }
}

pin_project_lite::pin_project! {
    struct Child<F> {
        // First, so that it is dropped, at the account's cost, before the tie settles.
        #[pin]
        metered: Metered<F>,
        said: Option<Criticality>,
        tie: Tie,
    }
}

impl<F: Future> Future for Child<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, waking: &mut Waking<'_>) -> Poll<F::Output> {
        let this = self.project();
        saying(*this.said, || this.metered.poll(waking))
    }
}
