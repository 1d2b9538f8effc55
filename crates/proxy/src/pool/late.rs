//! How long an answer may take, for many requests at once.
//!
//! All requests of a pool have the same limit, so those who wait stand in the order in which they
//! are late: a list, with one timer for its head. To join and to leave it is to write a few
//! numbers, where a timer of each request's own is put into the runtime's wheel and taken out
//! again, under its lock, for nothing in all cases but the rare one.
//!
//! The one who looks sleeps until the head of that moment would be late, though it may have left by
//! then: whoever comes meanwhile is late after it. If nobody waits when it wakes up, it ends; the
//! next to join sees so under the lock of the list, and sends another. So nobody waits unseen.
//!
//! A request joins when it is first polled, and its time runs since it came. With HTTP/2 another
//! may join in between and stand before it, and it is told so much later that it is late.

use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::time::Instant;

/// Nobody.
const NONE: u32 = u32::MAX;

/// Those who wait for an answer.
#[derive(Debug)]
pub(crate) struct Late {
    limit: Option<Duration>,
    queue: Mutex<Queue>,
}

#[derive(Debug)]
struct Queue {
    places: Vec<Place>,
    free: u32,
    head: u32,
    tail: u32,
    /// Whether somebody looks.
    watched: bool,
}

#[derive(Debug)]
struct Place {
    since: Instant,
    /// None once it is late, or free.
    waker: Option<Waker>,
    before: u32,
    /// The next in the list, or the next that is free.
    after: u32,
}

impl Queue {
    fn join(&mut self, since: Instant, waker: Waker) -> u32 {
        let place = Place { since, waker: Some(waker), before: self.tail, after: NONE };
        let number = if self.free == NONE {
            self.places.push(place);
            // As many as that do not fit into memory.
            u32::try_from(self.places.len() - 1).unwrap_or(NONE)
        } else {
            let number = self.free;
            self.free = self.places[number as usize].after;
            self.places[number as usize] = place;
            number
        };
        match self.tail {
            NONE => self.head = number,
            tail => self.places[tail as usize].after = number,
        }
        self.tail = number;
        number
    }

    /// Takes it out of the list. It keeps its number until that is given back.
    fn unlink(&mut self, number: u32) {
        let Place { before, after, .. } = self.places[number as usize];
        match before {
            NONE => self.head = after,
            before => self.places[before as usize].after = after,
        }
        match after {
            NONE => self.tail = before,
            after => self.places[after as usize].before = before,
        }
    }

    fn leave(&mut self, number: u32) {
        if self.places[number as usize].waker.take().is_some() {
            self.unlink(number);
        }
        self.places[number as usize].after = self.free;
        self.free = number;
    }

    /// Wakes all who are late at `now`. Returns when the next will be, if anybody waits.
    fn look(&mut self, now: Instant, limit: Duration) -> Option<Instant> {
        while self.head != NONE {
            let head = self.head;
            let due = self.places[head as usize].since + limit;
            if due > now {
                return Some(due);
            }
            self.unlink(head);
            if let Some(waker) = self.places[head as usize].waker.take() {
                waker.wake();
            }
        }
        None
    }
}

impl Late {
    pub(crate) fn new(limit: Option<Duration>) -> Arc<Self> {
        let (free, head, tail) = (NONE, NONE, NONE);
        let queue = Queue { places: Vec::new(), free, head, tail, watched: false };
        Arc::new(Self { limit, queue: Mutex::new(queue) })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place in the list, and somebody who looks if there is nobody.
    fn join(self: &Arc<Self>, since: Instant, waker: Waker) -> u32 {
        let mut queue = self.queue();
        let number = queue.join(since, waker);
        let watched = core::mem::replace(&mut queue.watched, true);
        drop(queue);
        if !watched {
            self.send_watch();
        }
        number
    }

    #[cold]
    fn send_watch(self: &Arc<Self>) {
        let late = Arc::downgrade(self);
        tokio::spawn(async move {
            loop {
                let next = late.upgrade().and_then(|late| late.watch(Instant::now()));
                let Some(next) = next else { return };
                tokio::time::sleep_until(next).await;
            }
        });
    }

    /// Looks, and returns until when there is nothing to be seen. Nothing if nobody waits and there
    /// is no need to look any more.
    fn watch(&self, now: Instant) -> Option<Instant> {
        let limit = self.limit?;
        let mut queue = self.queue();
        let next = queue.look(now, limit);
        queue.watched = next.is_some();
        next
    }

    /// `future`, or nothing if it takes longer than there is time since `since`.
    pub(crate) const fn limit<F>(self: &Arc<Self>, future: F, since: Instant) -> Limited<'_, F> {
        Limited { future, seat: Seat { late: self, number: NONE }, since }
    }
}

/// A place in the list, until this is dropped.
struct Seat<'a> {
    late: &'a Arc<Late>,
    number: u32,
}

impl Drop for Seat<'_> {
    fn drop(&mut self) {
        if self.number != NONE {
            self.late.queue().leave(self.number);
        }
    }
}

pin_project_lite::pin_project! {
    /// Made by [`Late::limit`].
    pub(crate) struct Limited<'a, F> {
        #[pin]
        future: F,
        seat: Seat<'a>,
        since: Instant,
    }
}

impl<F: Future> Future for Limited<'_, F> {
    type Output = Option<F::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<F::Output>> {
        let this = self.project();
        if let Poll::Ready(output) = this.future.poll(context) {
            return Poll::Ready(Some(output));
        }
        let late = this.seat.late;
        if late.limit.is_none() {
            return Poll::Pending;
        }
        if this.seat.number == NONE {
            this.seat.number = late.join(*this.since, context.waker().clone());
            return Poll::Pending;
        }
        let mut queue = late.queue();
        match &mut queue.places[this.seat.number as usize].waker {
            None => Poll::Ready(None),
            Some(waker) => {
                waker.clone_from(context.waker());
                Poll::Pending
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::future::{pending, ready};
    use core::pin::pin;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const LIMIT: Duration = Duration::from_secs(10);

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_for_longer_is_late_and_nobody_else() {
        let late = Late::new(Some(LIMIT));
        let start = Instant::now();
        assert_eq!(late.limit(ready(7), start).await, Some(7));
        assert!(!late.queue().watched, "nobody has had to wait");
        let slow = async {
            tokio::time::sleep(LIMIT / 2).await;
            late.limit(pending::<()>(), Instant::now()).await
        };
        let quick = late.limit(tokio::time::sleep(LIMIT * 9 / 10), start);
        let (first, slow, quick) = tokio::join!(late.limit(pending::<()>(), start), slow, quick);
        assert_eq!((first, slow, quick), (None, None, Some(())));
        assert_eq!(start.elapsed(), LIMIT * 3 / 2);
        tokio::task::yield_now().await;
        assert!(!late.queue().watched, "nobody waits, and nobody looks");
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_joins_after_the_last_look_is_seen_all_the_same() {
        let late = Late::new(Some(LIMIT));
        for _ in 0..3 {
            let start = Instant::now();
            let waits = late.limit(pending::<()>(), start);
            // It is there, and for a while nobody polls it.
            let quick = late.limit(tokio::time::sleep(LIMIT / 4), start);
            assert_eq!(quick.await, Some(()));
            assert_eq!(waits.await, None);
            assert_eq!(start.elapsed(), LIMIT);
            // Here the last look is over before it is polled, and it is late when it comes.
            let waits = late.limit(pending::<()>(), Instant::now());
            tokio::time::sleep(LIMIT * 2).await;
            assert!(!late.queue().watched);
            assert_eq!(waits.await, None);
            assert_eq!(start.elapsed(), LIMIT * 3);
        }
    }

    #[test]
    fn without_a_limit_nobody_stands_in_line() {
        let late = Late::new(None);
        let mut waits = pin!(late.limit(pending::<()>(), Instant::now()));
        let mut context = Context::from_waker(Waker::noop());
        assert!(waits.as_mut().poll(&mut context).is_pending());
        assert!(late.queue().places.is_empty() && !late.queue().watched);
    }

    proptest! {
        /// Whoever comes and goes, the list is that of those who wait, in their order, and takes no
        /// more places than ever waited at once.
        #[test]
        fn the_list_is_that_of_those_who_wait(
            steps in proptest::collection::vec((0_u8..3, any::<prop::sample::Index>()), 0..200),
        ) {
            let late = Late::new(Some(LIMIT));
            let start = Instant::now();
            let (mut waiting, mut done): (VecDeque<(u64, u32)>, Vec<u32>) = Default::default();
            let (mut now, mut most) = (0, 0);
            for (step, which) in steps {
                now += 1;
                let at = start + Duration::from_secs(now);
                match step {
                    0 => waiting.push_back((now, late.queue().join(at, Waker::noop().clone()))),
                    1 if !waiting.is_empty() => {
                        let (_, number) = waiting.remove(which.index(waiting.len())).unwrap();
                        late.queue().leave(number);
                    }
                    2 => {
                        let next = late.watch(at);
                        while waiting.front().is_some_and(|(since, _)| since + 10 <= now) {
                            done.push(waiting.pop_front().unwrap().1);
                        }
                        let due = |since: u64| start + Duration::from_secs(since + 10);
                        let due = waiting.front().map(|(since, _)| due(*since));
                        prop_assert_eq!(next, due);
                        for number in done.drain(..) {
                            prop_assert!(late.queue().places[number as usize].waker.is_none());
                            late.queue().leave(number);
                        }
                    }
                    _ => {}
                }
                most = most.max(waiting.len());
                prop_assert!(late.queue().places.len() <= most.max(1));
            }
        }
    }
}
