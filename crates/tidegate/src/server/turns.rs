//! Who waits for the CPU waits where it can be seen.
//!
//! A handler that never awaits is done within one poll. While it runs nobody reads: on a runtime of
//! one thread, ten requests of 5 ms that were admitted together keep the next one unread in its
//! socket for 50 ms, where no gate can tell whether it matters more than they do. So while no CPU
//! idles, requests that were admitted **take turns**:
//!
//! ```text
//! admitted --> waiting, first come first served --> called --> yields once --> runs --> next
//!              counted as ready to run               |
//!              at most one called per worker --------+
//! ```
//!
//! The one that is called yields before it runs. As everyone else waits for their turn, the runtime
//! has nothing left to poll but what has just arrived: all of that is read and passes the gate
//! before the next handler runs. So whoever arrives meets the gate after one handler at most.
//!
//! **What takes a turn** is the first piece of work of a request that is worth one: it is expected
//! to cost at least [`WORTH_A_TURN`], and has used less than [`BEGUN`] yet. What was begun goes on
//! without, so that it is done before others begin. A request whose deadline has passed when it is
//! called has not begun, and does not.
//!
//! **When it is wrong.** Whoever is called and does not come (a future that is woken and held
//! without being polled) or runs for long without using the CPU (a blocking call) keeps its turn
//! from others. Then a worker idles, which the next tick sees: it lets everyone in who waits, and
//! no more turns are taken until all CPUs are busy again.

use crate::executor::Waiting;
#[cfg(feature = "tokio")]
use core::future::Future;
#[cfg(feature = "tokio")]
use core::pin::pin;
use core::task::{Context as Waking, Poll, Waker};
use core::time::Duration;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tidegate_core::Cost;

/// A turn costs two polls more, about a microsecond. And a hundred requests of less than this are
/// read and done in 10 ms, so that nobody is kept from the gate for long.
pub(super) const WORTH_A_TURN: Cost = Cost::from_micros(100);

/// More than it takes to find out that the request's body has not come yet, or to call somebody
/// else before the real work; less than anything that is worth a turn.
pub(super) const BEGUN: Duration = Duration::from_micros(50);

/// The turns of a task.
#[derive(Debug)]
pub(crate) struct Turns {
    workers: usize,
    queue: Mutex<Queue>,
}

#[derive(Debug, Default)]
struct Queue {
    /// How many have been called and are not done, of this round.
    called: usize,
    /// Turns of earlier rounds are nobody's.
    round: u64,
    /// The number of the first who waits.
    first: u64,
    /// Those who wait, in the order of their numbers; nothing where one has gone.
    waiting: VecDeque<Option<Waker>>,
}

impl Turns {
    /// For a runtime of so many workers.
    pub(crate) fn new(workers: usize) -> Self {
        Self { workers: workers.max(1), queue: Mutex::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker idles: lets everyone in.
    pub(crate) fn open(&self) {
        let waiting = {
            let mut queue = self.queue();
            if queue.called == 0 && queue.waiting.is_empty() {
                return;
            }
            queue.round += 1;
            queue.called = 0;
            queue.first += queue.waiting.len() as u64;
            core::mem::take(&mut queue.waiting)
        };
        waiting.into_iter().flatten().for_each(Waker::wake);
    }

    #[cfg(all(test, not(feature = "loom")))]
    fn waiting(&self) -> usize {
        self.queue().waiting.iter().flatten().count()
    }
}

impl Queue {
    /// Calls as many as may run.
    fn call(&mut self, workers: usize) -> Option<Waker> {
        while self.called < workers {
            let next = self.waiting.pop_front()?;
            self.first += 1;
            if next.is_some() {
                self.called += 1;
                return next;
            }
        }
        None
    }
}

/// Where a request stands.
#[derive(Debug, Default)]
pub(super) struct Place {
    state: State,
    /// While it waits it counts as ready to run.
    counted: Option<Waiting>,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum State {
    #[default]
    Elsewhere,
    /// By number and round.
    Waiting(u64, u64),
    /// In this round, and has yielded.
    Called(u64),
}

impl Place {
    /// Whether it waits for a turn or has one.
    pub(super) fn is_taken(&self) -> bool {
        self.state != State::Elsewhere
    }

    /// Waits for a turn.
    pub(super) fn poll(
        &mut self,
        turns: &Turns,
        waking: &mut Waking<'_>,
        count: impl FnOnce() -> Waiting,
    ) -> Poll<()> {
        match self.state {
            State::Called(_) => return Poll::Ready(()),
            State::Waiting(number, round) => {
                let mut queue = turns.queue();
                if let Some(index) = number.checked_sub(queue.first) {
                    let place = queue.waiting.get_mut(index as usize);
                    if let Some(waker) = place.and_then(Option::as_mut) {
                        waker.clone_from(waking.waker());
                    }
                    return Poll::Pending;
                }
                // In a round that is over it is one who was let in.
                self.state = State::Called(round);
            }
            State::Elsewhere => {
                self.counted = Some(count());
                let mut queue = turns.queue();
                if queue.called >= turns.workers {
                    let number = queue.first + queue.waiting.len() as u64;
                    queue.waiting.push_back(Some(waking.waker().clone()));
                    self.state = State::Waiting(number, queue.round);
                    return Poll::Pending;
                }
                queue.called += 1;
                self.state = State::Called(queue.round);
            }
        }
        yield_now(waking);
        Poll::Pending
    }

    /// It runs now, and is counted where it runs.
    pub(super) fn begin(&mut self) {
        if let Some(counted) = self.counted.take() {
            counted.served();
        }
    }

    /// It has run, or never will: the next one may.
    pub(super) fn leave(&mut self, turns: &Turns) {
        self.counted = None;
        let next = match core::mem::take(&mut self.state) {
            State::Elsewhere => return,
            State::Called(round) => turns.queue().give_back(round, turns.workers),
            State::Waiting(number, round) => {
                let mut queue = turns.queue();
                match number.checked_sub(queue.first) {
                    Some(index) => {
                        if let Some(place) = queue.waiting.get_mut(index as usize) {
                            *place = None;
                        }
                        None
                    }
                    // Called, and did not know.
                    None => queue.give_back(round, turns.workers),
                }
            }
        };
        if let Some(next) = next {
            next.wake();
        }
    }
}

impl Queue {
    fn give_back(&mut self, round: u64, workers: usize) -> Option<Waker> {
        if round != self.round {
            return None;
        }
        self.called -= 1;
        self.call(workers)
    }
}

/// To be polled again after everyone else, and after the runtime has looked for what arrived.
fn yield_now(waking: &mut Waking<'_>) {
    #[cfg(feature = "tokio")]
    {
        // It notes the waker, which is all that it does.
        let _ = pin!(tokio::task::yield_now()).poll(waking);
    }
    #[cfg(not(feature = "tokio"))]
    waking.waker().wake_by_ref();
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;
    use crate::clock::Clock;
    use crate::executor::Executor;
    use bytes::Bytes;
    use core::convert::Infallible;
    use core::pin::Pin;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::task::Wake;
    use tower_service::Service;

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    struct Caller {
        place: Place,
        woken: Arc<Woken>,
        seen: usize,
    }

    struct Rig {
        turns: Turns,
        executor: Executor,
    }

    impl Rig {
        fn new(workers: usize) -> Self {
            let (clock, _) = Clock::manual();
            Self { turns: Turns::new(workers), executor: Executor::single_threaded(clock) }
        }

        fn caller() -> Caller {
            Caller { place: Place::default(), woken: Arc::default(), seen: 0 }
        }

        fn poll(&self, caller: &mut Caller) -> bool {
            caller.seen = caller.woken.0.load(Ordering::Relaxed);
            let waker = Waker::from(Arc::clone(&caller.woken));
            let mut waking = Waking::from_waker(&waker);
            let ready = caller.place.poll(&self.turns, &mut waking, || self.executor.wait());
            ready.is_ready()
        }

        fn is_woken(caller: &Caller) -> bool {
            caller.woken.0.load(Ordering::Relaxed) > caller.seen
        }
    }

    #[test]
    fn one_runs_at_a_time_in_the_order_they_came() {
        let rig = Rig::new(1);
        let mut callers: Vec<_> = (0..4).map(|_| Rig::caller()).collect();
        for caller in &mut callers {
            assert!(!rig.poll(caller), "it yields or waits");
        }
        assert_eq!(rig.turns.waiting(), 3);
        assert_eq!(rig.executor.active(), 4, "who waits wants the CPU");
        for n in 0..4 {
            assert!(Rig::is_woken(&callers[n]), "{n} is called");
            if n > 0 {
                assert!(!rig.poll(&mut callers[n]), "it yields first");
            }
            assert!(rig.poll(&mut callers[n]));
            for later in &callers[n + 1..] {
                assert!(!Rig::is_woken(later));
            }
            callers[n].place.begin();
            assert_eq!(rig.executor.active(), 3 - n as u64, "who runs is counted where it runs");
            callers[n].place.leave(&rig.turns);
        }
    }

    #[test]
    fn who_goes_away_keeps_nobody_waiting() {
        let rig = Rig::new(1);
        let [mut first, mut second, mut third, mut fourth] = [(); 4].map(|()| Rig::caller());
        for caller in [&mut first, &mut second, &mut third, &mut fourth] {
            assert!(!rig.poll(caller));
        }
        second.place.leave(&rig.turns);
        first.place.leave(&rig.turns);
        assert!(!Rig::is_woken(&second) && Rig::is_woken(&third));
        // Called, and gone before it knows.
        third.place.leave(&rig.turns);
        assert!(Rig::is_woken(&fourth));
        fourth.place.leave(&rig.turns);
        assert_eq!(rig.executor.active(), 0);
    }

    #[test]
    fn who_is_called_and_does_not_come_is_passed_when_a_worker_idles() {
        let rig = Rig::new(1);
        let [mut lost, mut second, mut third] = [(); 3].map(|()| Rig::caller());
        for caller in [&mut lost, &mut second, &mut third] {
            assert!(!rig.poll(caller));
        }
        rig.turns.open();
        for caller in [&mut second, &mut third] {
            assert!(Rig::is_woken(caller));
            assert!(!rig.poll(caller) && rig.poll(caller));
        }
        let mut later = Rig::caller();
        assert!(!rig.poll(&mut later) && rig.poll(&mut later), "a new round");
        let mut next = Rig::caller();
        assert!(!rig.poll(&mut next));
        // Turns of the round that is over call nobody.
        second.place.leave(&rig.turns);
        lost.place.leave(&rig.turns);
        assert!(!Rig::is_woken(&next) && rig.turns.waiting() == 1);
        later.place.leave(&rig.turns);
        assert!(Rig::is_woken(&next));
    }

    /// A task whose CPUs are all busy, and what its handlers have done.
    struct Busy {
        task: crate::Task,
        hand: crate::clock::Hand,
        begun: Arc<AtomicUsize>,
    }

    type Answer = http::Response<super::super::Body<http_body_util::Empty<Bytes>>>;

    impl Busy {
        fn new() -> Self {
            let (clock, hand) = Clock::manual();
            let task = crate::Task::builder("test").clock(clock).build().expect("defaults");
            task.inner.set_busy(true);
            Self { task, hand, begun: Arc::default() }
        }

        fn call(
            &self,
            header: Option<(&'static str, &'static str)>,
        ) -> impl Future<Output = Result<Answer, Infallible>> + use<> {
            let begun = Arc::clone(&self.begun);
            let handler = tower::service_fn(move |_: http::Request<()>| {
                let begun = Arc::clone(&begun);
                async move {
                    begun.fetch_add(1, Ordering::Relaxed);
                    Ok(http::Response::new(http_body_util::Empty::new()))
                }
            });
            let mut request = http::Request::new(());
            if let Some((name, value)) = header {
                request.headers_mut().insert(name, http::HeaderValue::from_static(value));
            }
            let mut service = tower::Layer::layer(&self.task.layer(), handler);
            let mut waking = Waking::from_waker(Waker::noop());
            assert!(service.poll_ready(&mut waking).is_ready());
            service.call(request)
        }

        fn begun(&self) -> usize {
            self.begun.load(Ordering::Relaxed)
        }
    }

    fn poll<F: Future>(future: &mut Pin<Box<F>>) -> Poll<F::Output> {
        future.as_mut().poll(&mut Waking::from_waker(Waker::noop()))
    }

    #[test]
    fn all_that_arrives_meets_the_gate_before_any_of_it_runs() {
        let busy = Busy::new();
        let workers = busy.task.inner.turns.workers;
        let mut calls: Vec<_> = (0..workers + 2).map(|_| Box::pin(busy.call(None))).collect();
        for call in &mut calls {
            assert!(poll(call).is_pending());
        }
        assert_eq!((busy.begun(), busy.task.gate().counts().inflight()), (0, workers as u64 + 2));
        assert_eq!(busy.task.executor().active(), workers as u64 + 2);
        for call in &mut calls {
            while poll(call).is_pending() {}
        }
        assert_eq!(busy.begun(), workers + 2);
        drop(calls);
        assert_eq!(busy.task.gate().counts().inflight(), 0);
        assert_eq!(busy.task.executor().active(), 0);
    }

    #[test]
    fn nobody_takes_turns_while_a_cpu_idles_or_for_next_to_nothing() {
        let busy = Busy::new();
        busy.task.inner.set_busy(false);
        assert!(poll(&mut Box::pin(busy.call(None))).is_ready());
        let (clock, _) = Clock::manual();
        let cheap = crate::Task::builder("test").clock(clock).cost_guess(Cost::from_micros(99));
        let busy = Busy { task: cheap.build().expect("defaults"), ..Busy::new() };
        busy.task.inner.set_busy(true);
        assert!(poll(&mut Box::pin(busy.call(None))).is_ready());
    }

    #[test]
    fn a_request_whose_deadline_passes_before_its_turn_does_not_begin() {
        let busy = Busy::new();
        let mut late = Box::pin(busy.call(Some(("x-envoy-expected-rq-timeout-ms", "50"))));
        assert!(poll(&mut late).is_pending());
        busy.hand.advance(Duration::from_millis(51));
        let Poll::Ready(Ok(answer)) = poll(&mut late) else { panic!("no answer") };
        assert_eq!(answer.status(), http::StatusCode::GATEWAY_TIMEOUT);
        assert_eq!(busy.begun(), 0);
        drop((late, answer));
        assert_eq!(busy.task.gate().counts().inflight(), 0);
        assert_eq!(busy.task.inner.turns.queue().called, 0, "its turn came back");
    }

    proptest! {
        /// Whatever callers do: never more at once than there are workers, unless all were let in;
        /// and nobody waits while a worker is free.
        #[test]
        fn turns_are_neither_lost_nor_doubled(
            workers in 1_usize..4,
            steps in proptest::collection::vec((0_usize..8, 0_u8..8), 1..200),
        ) {
            let rig = Rig::new(workers);
            let mut callers: Vec<_> = (0..8).map(|_| Rig::caller()).collect();
            for (who, what) in steps {
                match what {
                    0..4 => {
                        if rig.poll(&mut callers[who]) {
                            callers[who].place.begin();
                        }
                    }
                    4..7 => callers[who].place.leave(&rig.turns),
                    _ => rig.turns.open(),
                }
                let queue = rig.turns.queue();
                let round = queue.round;
                let holds = |caller: &&Caller| match caller.place.state {
                    State::Called(of) => of == round,
                    State::Waiting(number, of) => of == round && number < queue.first,
                    State::Elsewhere => false,
                };
                prop_assert_eq!(callers.iter().filter(holds).count(), queue.called);
                prop_assert!(queue.called <= workers);
                let waiting = queue.waiting.iter().flatten().count();
                prop_assert!(waiting == 0 || queue.called == workers);
            }
            for caller in &mut callers {
                caller.place.leave(&rig.turns);
            }
            prop_assert_eq!(rig.executor.active(), 0);
            prop_assert_eq!(rig.turns.waiting(), 0);
        }
    }
}
