//! Every way by which a waker that is lent can be used, for checkers of memory to look at: what
//! matters here is less what is asserted than that nothing is touched that is no longer there.

use super::*;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake};
use std::thread;

#[derive(Default)]
struct Bell(AtomicU32);

impl Bell {
    fn rung(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// On the heap and with something to free, so that a use after its end is one that can be seen.
#[derive(Default)]
struct Lender {
    bell: Arc<Bell>,
    kept: Box<AtomicU32>,
}

impl Lend for Lender {
    fn keep(&self) -> Waker {
        self.kept.fetch_add(1, Ordering::Relaxed);
        Waker::from(Arc::clone(&self.bell))
    }
}

impl Lender {
    fn seen(&self) -> (u32, u32, usize) {
        (self.kept.load(Ordering::Relaxed), self.bell.rung(), Arc::strong_count(&self.bell))
    }
}

#[test]
fn who_keeps_none_leaves_nothing_behind() {
    let lender = Lender::default();
    assert_eq!(lend(&lender, |_| 7), 7);
    assert_eq!(lender.seen(), (0, 0, 1));
    lend(&lender, Waker::wake_by_ref);
    assert_eq!(lender.seen(), (1, 1, 1));
}

#[test]
fn what_is_kept_outlives_the_lender() {
    let lender = Box::new(Lender::default());
    let bell = Arc::clone(&lender.bell);
    let kept = lend(&*lender, |waker| [waker.clone(), waker.clone(), waker.clone()]);
    assert_eq!(lender.seen(), (3, 0, 5));
    assert!(kept[0].will_wake(&kept[1]));
    drop(lender);
    let [first, second, third] = kept;
    thread::spawn(move || first.wake()).join().unwrap();
    thread::spawn(move || drop(second)).join().unwrap();
    let fourth = third.clone();
    fourth.wake();
    third.wake_by_ref();
    drop(third);
    assert_eq!((bell.rung(), Arc::strong_count(&bell)), (3, 1));
}

#[test]
fn a_clone_replaces_what_was_kept_before() {
    let [first, second] = [(); 2].map(|()| Lender::default());
    let mut kept = lend(&first, Waker::clone);
    // As futures do at each poll: what is lent is never the same as what was kept.
    lend(&first, |waker| kept.clone_from(waker));
    assert_eq!(first.seen(), (2, 0, 2));
    lend(&second, |waker| kept.clone_from(waker));
    assert_eq!((first.seen(), second.seen()), ((2, 0, 1), (1, 0, 2)));
    kept.wake();
    assert_eq!((first.seen(), second.seen()), ((2, 0, 1), (1, 1, 1)));
}

#[test]
fn a_thread_within_the_poll_may_use_it() {
    let lender = Lender::default();
    let kept = lend(&lender, |waker| {
        thread::scope(|scope| {
            scope.spawn(|| waker.wake_by_ref());
            scope.spawn(|| waker.clone()).join().unwrap()
        })
    });
    drop(kept);
    assert_eq!(lender.seen(), (2, 1, 1));
}

/// Lends what it was lent, and has a way of its own to be woken.
struct Between<'a> {
    outer: &'a Waker,
    woken: &'a AtomicU32,
}

impl Lend for Between<'_> {
    fn keep(&self) -> Waker {
        self.outer.clone()
    }

    fn wake(&self) {
        self.woken.fetch_add(1, Ordering::Relaxed);
        self.outer.wake_by_ref();
    }
}

#[test]
fn what_is_lent_may_be_lent_on() {
    let (lender, woken) = (Lender::default(), AtomicU32::new(0));
    let bell = Arc::clone(&lender.bell);
    let kept = lend(&lender, |outer| {
        let between = Between { outer, woken: &woken };
        lend(&between, |middle| {
            middle.wake_by_ref();
            let innermost = Between { outer: middle, woken: &woken };
            lend(&innermost, |inner| {
                inner.wake_by_ref();
                inner.clone()
            })
        })
    });
    // The innermost wakes through the one between, so both have counted it.
    assert_eq!((woken.load(Ordering::Relaxed), lender.seen()), (3, (3, 2, 3)));
    drop(lender);
    thread::spawn(move || kept.wake()).join().unwrap();
    assert_eq!((bell.rung(), Arc::strong_count(&bell)), (3, 1));
}

/// A future that leaves its waker where others find it, and is done when it is told.
struct Parked {
    waker: Arc<Mutex<Option<Waker>>>,
    polls_left: u32,
    /// What goes with it, on the heap.
    text: String,
}

impl Parked {
    fn new(waker: &Arc<Mutex<Option<Waker>>>, polls_left: u32) -> Self {
        Self { waker: Arc::clone(waker), polls_left, text: "of a task".repeat(10) }
    }
}

impl Future for Parked {
    type Output = usize;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<usize> {
        if self.polls_left == 0 {
            return Poll::Ready(self.text.len());
        }
        self.polls_left -= 1;
        *self.waker.lock().unwrap() = Some(context.waker().clone());
        Poll::Pending
    }
}

fn poll_lent<F: Future>(lender: &Lender, future: Pin<&mut F>) -> Poll<F::Output> {
    lend(lender, |waker| future.poll(&mut Context::from_waker(waker)))
}

#[test]
fn a_wake_after_the_task_has_gone_reaches_nobody_and_harms_nobody() {
    let slot = Arc::default();
    let bell = {
        let lender = Lender::default();
        let mut future = Box::pin(Parked::new(&slot, 2));
        assert!(poll_lent(&lender, future.as_mut()).is_pending());
        // Woken in time, from elsewhere, and polled again.
        let waker = slot.lock().unwrap().take().unwrap();
        thread::spawn(move || waker.wake()).join().unwrap();
        assert_eq!(lender.bell.rung(), 1);
        assert!(poll_lent(&lender, future.as_mut()).is_pending());
        drop(future);
        Arc::clone(&lender.bell)
    };
    let late = slot.lock().unwrap().take().unwrap();
    thread::spawn(move || {
        late.wake_by_ref();
        drop(late);
    })
    .join()
    .unwrap();
    assert_eq!((bell.rung(), Arc::strong_count(&bell)), (2, 1));
}

#[test]
fn wakers_of_every_poll_wake_the_same_task() {
    let (slot, lender) = (Arc::default(), Lender::default());
    let mut future = pin!(Parked::new(&slot, 3));
    let mut kept = Vec::new();
    let length = loop {
        match poll_lent(&lender, future.as_mut()) {
            Poll::Ready(length) => break length,
            Poll::Pending => kept.extend(slot.lock().unwrap().take()),
        }
    };
    assert_eq!((length, kept.len()), (90, 3));
    let threads: Vec<_> = kept.into_iter().map(|waker| thread::spawn(|| waker.wake())).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(lender.seen(), (3, 3, 1));
}

#[test]
fn a_panic_passes_and_leaves_nothing_behind() {
    let lender = Lender::default();
    let mut escaped = None;
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        lend(&lender, |waker| {
            let _kept = waker.clone();
            escaped = Some(waker.clone());
            panic!("in a poll");
        });
    }));
    assert!(outcome.is_err());
    assert_eq!(lender.seen(), (2, 0, 2));
    escaped.unwrap().wake();
    assert_eq!(lender.seen(), (2, 1, 1));
}

/// Cannot be kept, and cannot be woken.
struct Stingy(Box<u32>);

impl Lend for Stingy {
    fn keep(&self) -> Waker {
        panic!("number {} is not kept", self.0);
    }
}

#[test]
fn a_lender_that_panics_has_lent_nothing() {
    let stingy = Stingy(Box::new(7));
    for by in [|waker: &Waker| drop(waker.clone()), Waker::wake_by_ref] {
        assert!(catch_unwind(AssertUnwindSafe(|| lend(&stingy, by))).is_err());
    }
    assert_eq!(lend(&stingy, |_| *stingy.0), 7);
}
