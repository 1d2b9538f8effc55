//! A future that is asked only when it was woken itself.
//!
//! A connection is one task of many parts: the protocol, which moves with each request, and what
//! ends it (age, idleness, the end of the process), which moves once in minutes. A task that is
//! polled polls all that it is made of, so that each request would look at three timers and the
//! life of the process, for nothing. So the second part has a waker of its own, which leaves a mark
//! and wakes the task; without the mark it is not polled.
//!
//! **When it is wrong.** A future that does not wake its waker, but counts on being polled with its
//! neighbours, is never polled again. What is made of timers and channels wakes.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use pin_project_lite::pin_project;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;

pin_project! {
    /// A future that is polled only when it was woken.
    pub(super) struct Seldom<F> {
        #[pin]
        future: F,
        bell: Arc<Bell>,
        waker: Waker,
        // Whom the bell wakes.
        task: Option<Waker>,
    }
}

struct Bell {
    rung: AtomicBool,
    task: Mutex<Option<Waker>>,
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        // Before the task is woken, which may then be polled at once.
        self.rung.store(true, Ordering::Release);
        let task = self.task.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(task) = task {
            task.wake();
        }
    }
}

impl<F> Seldom<F> {
    pub(super) fn new(future: F) -> Self {
        // The first poll is for everybody.
        let bell = Arc::new(Bell { rung: AtomicBool::new(true), task: Mutex::new(None) });
        let waker = Waker::from(Arc::clone(&bell));
        Self { future, bell, waker, task: None }
    }
}

impl<F: Future> Future for Seldom<F> {
    type Output = F::Output;

    #[inline]
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.project();
        let waker = context.waker();
        if !this.task.as_ref().is_some_and(|task| task.will_wake(waker)) {
            *this.task = Some(waker.clone());
            let mut task = this.bell.task.lock().unwrap_or_else(PoisonError::into_inner);
            *task = Some(waker.clone());
        }
        // The second is a swap, not a store: a store may wait in the CPU until after the future has
        // looked at whatever it waits for, and then wipe out a ring that came in between.
        if !this.bell.rung.load(Ordering::Acquire) || !this.bell.rung.swap(false, Ordering::AcqRel)
        {
            return Poll::Pending;
        }
        this.future.poll(&mut Context::from_waker(this.waker))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::cell::Cell;
    use core::future::poll_fn;
    use core::pin::pin;
    use std::sync::atomic::AtomicUsize;

    #[derive(Default)]
    struct Count(AtomicUsize);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    #[test]
    fn only_a_wake_of_its_own_has_it_polled() {
        let (polls, inner) = (Cell::new(0), Cell::new(None::<Waker>));
        let mut seldom = pin!(Seldom::new(poll_fn(|context| {
            polls.set(polls.get() + 1);
            inner.set(Some(context.waker().clone()));
            if polls.get() < 3 { Poll::Pending } else { Poll::Ready(()) }
        })));
        let (first, second) = (Arc::new(Count::default()), Arc::new(Count::default()));
        let mut poll = |count: &Arc<Count>| {
            let waker = Waker::from(Arc::clone(count));
            seldom.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
        };
        assert!(!poll(&first) && !poll(&first));
        assert_eq!(polls.get(), 1);
        inner.take().unwrap().wake();
        assert_eq!(first.0.load(Ordering::Relaxed), 1, "the task hears of it");
        assert!(!poll(&first) && !poll(&second));
        assert_eq!(polls.get(), 2);
        inner.take().unwrap().wake();
        assert_eq!(second.0.load(Ordering::Relaxed), 1, "whoever polled it last");
        assert!(poll(&second));
        assert_eq!((polls.get(), first.0.load(Ordering::Relaxed)), (3, 1));
    }
}
