//! The future that counts itself.

use super::state::{Ready, State};
use super::{Executor, Shared, thread};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::{Arc, OnceLock};
use std::task::Wake;
use tidegate_meter::{Lend, lend};

pin_project_lite::pin_project! {
    /// A future that is counted while it is running or ready to run. Made by [`Executor::track`]
    /// and [`Executor::track_in_place`].
    #[derive(Debug)]
    #[must_use = "futures do nothing unless polled"]
    pub struct Tracked<F> {
        // Before the future, so that it is dropped first: a future that wakes itself as it is
        // dropped is not ready.
        task: Task,
        #[pin]
        future: F,
    }
}

impl<F> Tracked<F> {
    #[inline]
    pub(super) fn new(executor: &Executor, ready: Option<Ready>, future: F) -> Self {
        let link = match ready {
            _ if !executor.counted => Link::Silent,
            Some(ready) => Link::Spawned(ready),
            None => Link::Unseen,
        };
        Self { task: Task { shared: Arc::clone(&executor.shared), link }, future }
    }

    /// The future inside.
    pub const fn get_ref(&self) -> &F {
        &self.future
    }
}

impl<F: Future> Future for Tracked<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let Task { shared, link } = this.task;
        link.poll(shared, this.future, context)
    }
}

/// The part of a future in the count, for whoever has the executor at hand at each poll and when it
/// goes: a reference less to count than in a [`Tracked`].
#[derive(Debug)]
pub(crate) struct InPlace(Link);

impl InPlace {
    /// Of a future that is polled by whoever makes it.
    #[inline]
    pub(crate) const fn new(executor: &Executor) -> Self {
        Self(if executor.counted { Link::Unseen } else { Link::Silent })
    }

    /// Polls `future`, always the same one and by the same executor.
    #[inline]
    pub(crate) fn poll<F: Future>(
        &mut self,
        executor: &Executor,
        future: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        self.0.poll(&executor.shared, future, context)
    }

    /// The future goes, after this: it counts no more, not even if it wakes itself as it is
    /// dropped. One that was ready has gone already.
    #[inline]
    pub(crate) fn leave(&mut self, executor: &Executor) {
        if !matches!(self.0, Link::Silent) {
            self.0.settle(&executor.shared, Link::Silent);
        }
    }
}

/// A task's part in the count.
#[derive(Debug)]
struct Task {
    shared: Arc<Shared>,
    link: Link,
}

#[derive(Debug)]
enum Link {
    /// Not polled yet and not known to wait for it, or polled as part of a task that is counted.
    Unseen,
    /// Not polled yet, and waiting for it.
    Spawned(Ready),
    /// Waiting by this waker.
    Live(Arc<Node>, Waker),
    /// Done, or nobody counts.
    Silent,
}

/// What a task is woken by. It is made when a task first keeps its waker, and again only if the
/// task's own waker changes, which it hardly ever does.
#[derive(Debug)]
struct Node {
    state: State,
    inner: Waker,
    shared: Arc<Shared>,
}

impl Wake for Node {
    #[inline]
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    #[inline]
    fn wake_by_ref(self: &Arc<Self>) {
        self.state.wake(&self.shared);
        // In any case: one wake too many does no harm, one too few hangs a task.
        self.inner.wake_by_ref();
    }
}

impl Link {
    #[inline]
    fn poll<F: Future>(
        &mut self,
        shared: &Arc<Shared>,
        future: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        if let Self::Silent = self {
            return future.poll(context);
        }
        let Some(entered) = thread::enter(Arc::as_ptr(shared).addr()) else {
            self.hush(shared);
            return future.poll(context);
        };
        if let Self::Unseen = self {
            return self.first(shared, future, context);
        }
        let mut turn = self.turn(shared, context.waker(), entered);
        let waker = turn.waker().unwrap_or(context.waker());
        let outcome = future.poll(&mut Context::from_waker(waker));
        turn.done = outcome.is_ready();
        outcome
    }

    /// A poll by which nobody knows yet how to wake it: if it is ready at once, nobody needs to.
    #[inline]
    fn first<F: Future>(
        &mut self,
        shared: &Arc<Shared>,
        future: Pin<&mut F>,
        context: &mut Context<'_>,
    ) -> Poll<F::Output> {
        shared.tally.enter();
        let mut first = First {
            by: Lender { shared, inner: context.waker(), kept: OnceLock::new() },
            link: self,
            done: false,
        };
        let outcome = lend(&first.by, |waker| future.poll(&mut Context::from_waker(waker)));
        first.done = outcome.is_ready();
        outcome
    }

    /// The task is polled, and whoever polls it is to be woken by `waker`.
    #[inline]
    fn turn<'a>(
        &'a mut self,
        shared: &'a Arc<Shared>,
        waker: &Waker,
        entered: thread::Entered,
    ) -> Turn<'a> {
        match self {
            Self::Live(node, _) if node.inner.will_wake(waker) => node.state.begin(shared),
            _ => self.renew(shared, waker),
        }
        Turn { link: self, shared, done: false, _entered: entered }
    }

    /// A new waker around `waker`. Wakes by the old one go on to whom they belong to, but do not
    /// make this task ready.
    #[cold]
    fn renew(&mut self, shared: &Arc<Shared>, waker: &Waker) {
        let before = match core::mem::replace(self, Self::Silent) {
            Self::Spawned(ready) => Some(ready),
            Self::Live(node, _) => node.state.retire(shared),
            Self::Unseen | Self::Silent => None,
        };
        let state = State::running(before, shared);
        let node = Arc::new(Node { state, inner: waker.clone(), shared: Arc::clone(shared) });
        *self = Self::Live(Arc::clone(&node), Waker::from(node));
    }

    /// It is part of another task from here on, as far as anybody knows.
    #[inline]
    fn hush(&mut self, shared: &Shared) {
        if !matches!(self, Self::Unseen | Self::Silent) {
            self.settle(shared, Self::Unseen);
        }
    }

    /// Takes the task out of the count and leaves `link` behind.
    fn settle(&mut self, shared: &Shared, link: Self) {
        let ready = match core::mem::replace(self, link) {
            Self::Spawned(ready) => Some(ready),
            Self::Live(node, _) => node.state.retire(shared),
            Self::Unseen | Self::Silent => None,
        };
        if let Some(ready) = ready {
            ready.forget(shared);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.link.settle(&self.shared, Link::Silent);
    }
}

/// Lends a waker to a task that has none yet.
struct Lender<'a> {
    shared: &'a Arc<Shared>,
    inner: &'a Waker,
    /// What the task is woken by from here on. All that are kept are clones of one waker, so that
    /// who compares wakers takes them for the same.
    kept: OnceLock<(Arc<Node>, Waker)>,
}

impl Lend for Lender<'_> {
    #[cold]
    fn keep(&self) -> Waker {
        let (_, waker) = self.kept.get_or_init(|| {
            let (inner, shared) = (self.inner.clone(), Arc::clone(self.shared));
            let node = Arc::new(Node { state: State::counted(), inner, shared });
            (Arc::clone(&node), Waker::from(node))
        });
        waker.clone()
    }
}

/// A poll with a waker that is lent, also if it ends by a panic.
struct First<'a> {
    by: Lender<'a>,
    link: &'a mut Link,
    done: bool,
}

impl Drop for First<'_> {
    #[inline]
    fn drop(&mut self) {
        let shared = self.by.shared;
        match self.by.kept.take() {
            // Nobody can wake it: it is done, or whoever polls it knows when to.
            None => shared.tally.leave(),
            Some((node, _)) if self.done => _ = node.state.retire(shared),
            Some((node, waker)) => {
                node.state.end(shared);
                *self.link = Link::Live(node, waker);
            }
        }
        if self.done {
            *self.link = Link::Silent;
        }
    }
}

/// One poll, also if it ends by a panic.
#[derive(Debug)]
struct Turn<'a> {
    link: &'a mut Link,
    shared: &'a Shared,
    done: bool,
    _entered: thread::Entered,
}

impl Turn<'_> {
    #[inline]
    fn waker(&self) -> Option<&Waker> {
        match &*self.link {
            Link::Live(_, waker) => Some(waker),
            _ => None,
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.done {
            self.link.settle(self.shared, Link::Silent);
        } else if let Link::Live(node, _) = &*self.link {
            node.state.end(self.shared);
        }
    }
}
