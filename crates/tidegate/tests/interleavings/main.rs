//! Every interleaving of those who wake, poll and drop a task that is counted.
//!
//! ```text
//! cargo xtask test --only interleavings
//! ```
#![cfg(feature = "loom")]
#![allow(clippy::unwrap_used)]

use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use loom::sync::Mutex;
use std::sync::Arc;
use std::task::Wake;
use tidegate::clock::Clock;
use tidegate::executor::{Executor, Tracked};

/// Runs `body` under every interleaving with at most three preemptions, unless the environment
/// (`LOOM_MAX_PREEMPTIONS`) says otherwise. A race that is lost takes one or two.
fn explore(body: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = builder.preemption_bound.or(Some(3));
    builder.check(body);
}

/// What a runtime does when a task is woken: it remembers to poll it.
struct Scheduled(Mutex<bool>);

impl Wake for Scheduled {
    fn wake(self: Arc<Self>) {
        *self.0.lock().unwrap() = true;
    }
}

impl Scheduled {
    fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::new(false)))
    }

    fn take(&self) -> bool {
        core::mem::take(&mut *self.0.lock().unwrap())
    }
}

/// Waits for ever, looks whether something has happened, and leaves its waker where others find it.
#[derive(Clone)]
struct Pending(Arc<Mutex<Event>>);

#[derive(Default)]
struct Event {
    waker: Option<Waker>,
    happened: bool,
    seen: bool,
}

impl Pending {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(Event::default())))
    }

    fn waker(&self) -> Waker {
        self.0.lock().unwrap().waker.clone().expect("it was polled")
    }

    /// It happens, and the task is told.
    fn happen(&self) {
        self.0.lock().unwrap().happened = true;
        self.waker().wake();
    }

    fn seen(&self) -> bool {
        self.0.lock().unwrap().seen
    }
}

impl Future for Pending {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut event = self.0.lock().unwrap();
        event.waker = Some(context.waker().clone());
        event.seen = event.happened;
        Poll::Pending
    }
}

fn poll(task: &mut Pin<Box<Tracked<Pending>>>, by: &Arc<Scheduled>) {
    let waker = Waker::from(Arc::clone(by));
    assert!(task.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
}

/// Every wake is timed, so that probes are part of it.
fn executor() -> Executor {
    let (clock, _) = Clock::manual();
    Executor::builder(clock).timed_one_in(1).build()
}

/// A task that was polled once, what it waits for, and who is to poll it.
fn task(executor: &Executor) -> (Pin<Box<Tracked<Pending>>>, Pending, Arc<Scheduled>) {
    let (pending, scheduled) = (Pending::new(), Scheduled::new());
    let mut task = Box::pin(executor.track_in_place(pending.clone()));
    poll(&mut task, &scheduled);
    (task, pending, scheduled)
}

#[test]
fn a_task_that_has_not_seen_what_it_was_woken_for_is_ready() {
    explore(|| {
        let executor = executor();
        let (mut task, pending, scheduled) = task(&executor);
        let other = {
            let pending = pending.clone();
            loom::thread::spawn(move || pending.happen())
        };
        poll(&mut task, &scheduled);
        other.join().unwrap();
        let active = executor.active();
        assert!(active <= 1);
        assert!(pending.seen() || active == 1, "there is something for it to do");
        assert!(scheduled.take(), "the wake was lost");
        poll(&mut task, &scheduled);
        assert!(pending.seen());
        assert_eq!(executor.active(), 0);
        drop(task);
        assert_eq!(executor.active(), 0);
        let delay = executor.watch().read(Clock::manual().0.now()).delay;
        assert_eq!(delay, Some(core::time::Duration::ZERO), "a probe was left behind");
    });
}

#[test]
fn a_task_that_two_wake_is_counted_once() {
    explore(|| {
        let executor = executor();
        let (mut task, pending, scheduled) = task(&executor);
        let wakers = [pending.waker(), pending.waker()];
        let wakers = wakers.map(|waker| loom::thread::spawn(move || waker.wake()));
        for waker in wakers {
            waker.join().unwrap();
        }
        assert_eq!(executor.active(), 1);
        poll(&mut task, &scheduled);
        assert_eq!(executor.active(), 0);
    });
}

#[test]
fn a_task_that_is_dropped_while_it_is_woken_leaves_nothing_behind() {
    explore(|| {
        let executor = executor();
        let (task, pending, _) = task(&executor);
        let waker = pending.waker();
        let other = loom::thread::spawn(move || waker.wake());
        drop(task);
        other.join().unwrap();
        assert_eq!(executor.active(), 0);
        assert_eq!(executor.watch().read(Clock::manual().0.now()).active, 0);
    });
}

#[test]
fn a_task_that_goes_elsewhere_while_it_is_woken_is_settled_by_its_next_poll() {
    explore(|| {
        let executor = executor();
        let (mut task, pending, _) = task(&executor);
        let waker = pending.waker();
        let other = loom::thread::spawn(move || waker.wake());
        let elsewhere = Scheduled::new();
        poll(&mut task, &elsewhere);
        other.join().unwrap();
        assert_eq!(executor.active(), 0, "its old waker does not make it ready");
        pending.waker().wake();
        assert_eq!(executor.active(), 1);
        assert!(elsewhere.take());
        poll(&mut task, &elsewhere);
        assert_eq!(executor.active(), 0);
    });
}
