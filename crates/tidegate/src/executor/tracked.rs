//! The future that counts itself.

use super::state::{Ready, State};
use super::{Executor, Shared, thread};
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use std::sync::Arc;
use std::task::Wake;

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
        let link = ready.map_or(Link::Unseen, Link::Spawned);
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
        let Some(mut turn) = this.task.turn(context.waker()) else {
            return this.future.poll(context);
        };
        let waker = turn.waker().unwrap_or(context.waker());
        let outcome = this.future.poll(&mut Context::from_waker(waker));
        turn.done = outcome.is_ready();
        outcome
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
    /// Done.
    Silent,
}

/// What a task is woken by. It is made when a task is first polled, and again only if the task's
/// own waker changes, which it hardly ever does.
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

impl Task {
    /// The task is polled, and whoever polls it is to be woken by `waker`. Nothing if it does not
    /// count: it is done, or part of a task that counts itself.
    #[inline]
    fn turn(&mut self, waker: &Waker) -> Option<Turn<'_>> {
        let Some(entered) = thread::enter(Arc::as_ptr(&self.shared).addr()) else {
            self.hush();
            return None;
        };
        match &self.link {
            Link::Silent => return None,
            Link::Live(node, _) if node.inner.will_wake(waker) => node.state.begin(&self.shared),
            _ => self.link(waker),
        }
        Some(Turn { task: self, done: false, _entered: entered })
    }

    /// A new waker around `waker`. Wakes by the old one go on to whom they belong to, but do not
    /// make this task ready.
    #[cold]
    fn link(&mut self, waker: &Waker) {
        let before = match core::mem::replace(&mut self.link, Link::Silent) {
            Link::Spawned(ready) => Some(ready),
            Link::Live(node, _) => node.state.retire(&self.shared),
            Link::Unseen | Link::Silent => None,
        };
        let state = State::running(before, &self.shared);
        let node = Arc::new(Node { state, inner: waker.clone(), shared: Arc::clone(&self.shared) });
        self.link = Link::Live(Arc::clone(&node), Waker::from(node));
    }

    /// It is part of another task from here on, as far as anybody knows.
    #[inline]
    fn hush(&mut self) {
        if !matches!(self.link, Link::Unseen | Link::Silent) {
            self.settle(Link::Unseen);
        }
    }

    /// Takes the task out of the count and leaves `link` behind.
    fn settle(&mut self, link: Link) {
        let ready = match core::mem::replace(&mut self.link, link) {
            Link::Spawned(ready) => Some(ready),
            Link::Live(node, _) => node.state.retire(&self.shared),
            Link::Unseen | Link::Silent => None,
        };
        if let Some(ready) = ready {
            ready.forget(&self.shared);
        }
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        self.settle(Link::Silent);
    }
}

/// One poll, also if it ends by a panic.
#[derive(Debug)]
struct Turn<'a> {
    task: &'a mut Task,
    done: bool,
    _entered: thread::Entered,
}

impl Turn<'_> {
    #[inline]
    fn waker(&self) -> Option<&Waker> {
        match &self.task.link {
            Link::Live(_, waker) => Some(waker),
            _ => None,
        }
    }
}

impl Drop for Turn<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.done {
            self.task.settle(Link::Silent);
        } else if let Link::Live(node, _) = &self.task.link {
            node.state.end(&self.task.shared);
        }
    }
}
