use super::*;
use crate::clock::Hand;
use core::cell::RefCell;
use core::pin::{Pin, pin};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Wake;
use tidegate_core::Timestamp;

/// Probes know the time to 128 ns; in multiples of it they are exact.
const STEP: Duration = Duration::from_nanos(128);

#[derive(Debug, Default)]
struct Calls(AtomicU64);

impl Wake for Calls {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

impl Calls {
    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Pending,
    Ready,
    Panic,
}

/// What a future is to do when it is polled, and what it saw.
#[derive(Debug)]
struct Script {
    executor: Executor,
    outcome: Outcome,
    wakes: bool,
    wakers: Vec<Waker>,
    active_in_poll: u64,
}

#[derive(Debug, Clone)]
struct Scripted(Rc<RefCell<Script>>);

impl Scripted {
    fn new(executor: &Executor) -> Self {
        Self(Rc::new(RefCell::new(Script {
            executor: executor.clone(),
            outcome: Outcome::Pending,
            wakes: false,
            wakers: Vec::new(),
            active_in_poll: 0,
        })))
    }

    fn wake(&self) {
        let waker = self.0.borrow().wakers.last().cloned().expect("it was polled");
        waker.wake_by_ref();
    }
}

impl Future for Scripted {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut script = self.0.borrow_mut();
        script.active_in_poll = script.executor.active();
        if !script.wakers.last().is_some_and(|waker| waker.will_wake(context.waker())) {
            script.wakers.push(context.waker().clone());
        }
        if script.wakes {
            context.waker().wake_by_ref();
        }
        match script.outcome {
            Outcome::Pending => Poll::Pending,
            Outcome::Ready => Poll::Ready(()),
            Outcome::Panic => std::panic::panic_any("scripted"),
        }
    }
}

fn executor() -> (Executor, Hand) {
    let (clock, hand) = Clock::manual();
    (Executor::builder(clock).timed_one_in(1).build(), hand)
}

fn poll<F: Future>(future: Pin<&mut F>, calls: &Arc<Calls>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(&Waker::from(Arc::clone(calls))))
}

#[test]
fn a_task_counts_from_its_wake_to_the_end_of_its_poll() {
    let (executor, _) = executor();
    let (script, calls) = (Scripted::new(&executor), Arc::new(Calls::default()));
    let mut task = pin!(executor.track(script.clone()));
    assert_eq!(executor.active(), 1, "it waits for its first poll");
    assert!(poll(task.as_mut(), &calls).is_pending());
    assert_eq!((script.0.borrow().active_in_poll, executor.active()), (1, 0));
    for _ in 0..3 {
        script.wake();
        assert_eq!(executor.active(), 1, "once, however often it is woken");
    }
    assert_eq!(calls.count(), 3, "every wake goes on");
    assert!(poll(task.as_mut(), &calls).is_pending());
    assert_eq!((script.0.borrow().active_in_poll, executor.active()), (1, 0));
    // Polled without a wake, as by `select!`.
    assert!(poll(task.as_mut(), &calls).is_pending());
    assert_eq!((script.0.borrow().active_in_poll, executor.active()), (1, 0));
    // Woken while it runs: ready again when it stops.
    script.0.borrow_mut().wakes = true;
    assert!(poll(task.as_mut(), &calls).is_pending());
    assert_eq!(executor.active(), 1);
    // Woken in its last poll: nothing is left to be run.
    script.0.borrow_mut().outcome = Outcome::Ready;
    assert!(poll(task.as_mut(), &calls).is_ready());
    assert_eq!(executor.active(), 0);
    script.wake();
    assert_eq!(executor.active(), 0);
}

#[test]
fn nothing_is_allocated_while_the_waker_stays_the_same() {
    let (executor, _) = executor();
    let (script, calls) = (Scripted::new(&executor), Arc::new(Calls::default()));
    let mut task = pin!(executor.track_in_place(script.clone()));
    for _ in 0..5 {
        assert!(poll(task.as_mut(), &calls).is_pending());
    }
    // The future would have seen a new waker.
    assert_eq!(script.0.borrow().wakers.len(), 1);
}

#[test]
fn an_old_waker_wakes_its_task_but_not_this_one() {
    let (executor, _) = executor();
    let (script, here, there) =
        (Scripted::new(&executor), Arc::new(Calls::default()), Arc::new(Calls::default()));
    let mut task = pin!(executor.track_in_place(script.clone()));
    assert!(poll(task.as_mut(), &here).is_pending());
    script.wake();
    // It goes elsewhere while it is ready.
    assert!(poll(task.as_mut(), &there).is_pending());
    assert_eq!((script.0.borrow().active_in_poll, executor.active()), (1, 0));
    let old = script.0.borrow().wakers[0].clone();
    old.wake_by_ref();
    assert_eq!((here.count(), there.count(), executor.active()), (2, 0, 0));
    script.wake();
    assert_eq!((here.count(), there.count(), executor.active()), (2, 1, 1));
}

#[test]
fn a_request_inside_a_connection_counts_as_one_with_it() {
    let (executor, _) = executor();
    let (script, calls) = (Scripted::new(&executor), Arc::new(Calls::default()));
    let request = executor.track(script.clone());
    let mut connection = pin!(executor.track(request));
    assert_eq!(executor.active(), 2, "nobody knows yet that they are one");
    assert!(poll(connection.as_mut(), &calls).is_pending());
    assert_eq!((script.0.borrow().active_in_poll, executor.active()), (1, 0));
    script.wake();
    assert_eq!((calls.count(), executor.active()), (1, 1));
    script.0.borrow_mut().outcome = Outcome::Ready;
    assert!(poll(connection.as_mut(), &calls).is_ready());
    assert_eq!(executor.active(), 0);
    // By two executors it is two tasks.
    let (other, _) = self::executor();
    let script = Scripted::new(&other);
    let mut both = pin!(executor.track(other.track(script.clone())));
    assert!(poll(both.as_mut(), &calls).is_pending());
    script.wake();
    assert_eq!((executor.active(), other.active()), (1, 1));
}

#[test]
fn the_least_load_is_that_between_two_looks() {
    let (executor, _) = executor();
    let calls = Arc::new(Calls::default());
    let mut watch = executor.watch();
    let mut tasks: Vec<_> =
        (0..3).map(|_| Box::pin(executor.track(Scripted::new(&executor)))).collect();
    let read = |watch: &mut Watch| {
        let load = watch.read(Timestamp::ZERO);
        (load.active, load.least)
    };
    assert_eq!(read(&mut watch), (3, Some(0)), "there was nothing when it began to watch");
    assert_eq!(read(&mut watch), (3, Some(3)));
    for task in &mut tasks {
        assert!(poll(task.as_mut(), &calls).is_pending());
    }
    for task in &tasks {
        task.get_ref().wake();
    }
    assert_eq!(read(&mut watch), (3, Some(0)), "all three rested in between");
    tasks.pop();
    assert_eq!(read(&mut watch), (2, Some(2)));
    // Threads that count apart do not know.
    let apart = Executor::builder(Clock::monotonic()).threads(2).build();
    assert_eq!(apart.watch().read(Timestamp::ZERO).least, None);
}

/// One task that is woken at `at`, polled so that it waits.
struct Waiter {
    task: Pin<Box<Tracked<Scripted>>>,
    calls: Arc<Calls>,
}

impl Waiter {
    fn new(executor: &Executor) -> Self {
        Self { task: Box::pin(executor.track(Scripted::new(executor))), calls: Arc::default() }
    }

    fn poll(&mut self) {
        assert!(poll(self.task.as_mut(), &self.calls).is_pending());
    }
}

#[test]
fn a_wait_is_seen_while_it_lasts_and_when_it_is_over() {
    let (executor, hand) = executor();
    let mut watch = executor.watch();
    let mut delay = |steps: u32| {
        let now = Timestamp::ZERO + STEP * steps;
        hand.set(now);
        watch.read(now).delay
    };
    assert_eq!(delay(1), Some(Duration::ZERO), "nobody waits");
    let mut waiter = Waiter::new(&executor);
    assert_eq!(delay(3), Some(STEP * 2));
    assert_eq!(delay(11), Some(STEP * 10));
    waiter.poll();
    assert_eq!(delay(12), Some(STEP * 10), "it ended after the last look");
    assert_eq!(delay(13), Some(Duration::ZERO));
    waiter.task.get_ref().wake();
    assert_eq!(delay(20), Some(STEP * 7));
    // Dropped, it waits for nothing.
    drop(waiter);
    assert_eq!(delay(30), Some(Duration::ZERO));
    // What is woken while it runs waits from the end of its poll on.
    let mut waiter = Waiter::new(&executor);
    waiter.task.get_ref().0.borrow_mut().wakes = true;
    waiter.poll();
    assert_eq!(delay(35), Some(STEP * 5));
}

#[test]
fn a_future_that_was_forgotten_is_no_delay_of_the_executor() {
    let (executor, hand) = executor();
    let mut watch = executor.watch();
    let mut look = |millis: u64| {
        hand.set(Timestamp::from_millis(millis));
        watch.read(Timestamp::from_millis(millis)).delay.map(|delay| delay.as_millis())
    };
    let mut waiter = Waiter::new(&executor);
    waiter.poll();
    let forgotten = Waiter::new(&executor);
    assert_eq!(look(500), Some(500), "so far nobody was served");
    // A slot is chosen by dice and may be taken, in which case the wake is not timed.
    let serve = |waiter: &mut Waiter, executor: &Executor| {
        let ended = executor.shared.probes.ended();
        while executor.shared.probes.ended().mean_since(ended).is_none() {
            waiter.task.get_ref().wake();
            waiter.poll();
        }
    };
    serve(&mut waiter, &executor);
    assert_eq!(look(600), Some(0), "the mean of one that was served at once");
    assert_eq!(look(700), None, "one is ready, and nothing is known of the executor");
    assert_eq!((executor.active(), executor.forgotten()), (1, 0));
    hand.set(Timestamp::from_secs(11));
    serve(&mut waiter, &executor);
    assert_eq!(look(11_001), Some(0));
    assert_eq!(executor.forgotten(), 1);
    drop(forgotten);
    assert_eq!(executor.active(), 0);
}

#[test]
fn where_many_are_overtaken_the_executor_is_unfair() {
    let (executor, hand) = executor();
    let mut watch = executor.watch();
    // So many that four of them are timed, for certain: sixteen slots, chosen by dice.
    let starved: Vec<Waiter> = (0..200).map(|_| Waiter::new(&executor)).collect();
    hand.set(Timestamp::from_millis(100));
    executor.shared.probes.end(Timestamp::from_millis(100).as_nanos());
    let load = watch.read(Timestamp::from_millis(100));
    assert_eq!((load.active, load.delay), (200, Some(Duration::from_millis(100))));
    drop(starved);
    assert_eq!(executor.active(), 0);
    let load = watch.read(Timestamp::from_millis(200));
    assert_eq!((load.active, load.delay), (0, Some(Duration::ZERO)));
}

#[derive(Debug, Clone)]
enum Operation {
    Track { in_place: bool },
    Wake { task: usize },
    WakeOld { task: usize },
    Poll { task: usize, by: usize, wakes: bool, outcome: Outcome },
    Drop { task: usize },
    Advance { steps: u32 },
}

fn operation() -> impl Strategy<Value = Operation> {
    let outcome = prop_oneof![
        8 => Just(Outcome::Pending), 1 => Just(Outcome::Ready), 1 => Just(Outcome::Panic)
    ];
    let poll = (0..6_usize, 0..2_usize, any::<bool>(), outcome)
        .prop_map(|(task, by, wakes, outcome)| Operation::Poll { task, by, wakes, outcome });
    prop_oneof![
        2 => any::<bool>().prop_map(|in_place| Operation::Track { in_place }),
        4 => (0..6_usize).prop_map(|task| Operation::Wake { task }),
        1 => (0..6_usize).prop_map(|task| Operation::WakeOld { task }),
        6 => poll,
        1 => (0..6_usize).prop_map(|task| Operation::Drop { task }),
        2 => (0..100_u32).prop_map(|steps| Operation::Advance { steps }),
    ]
}

/// What the count should know of a task.
struct Model {
    task: Option<Pin<Box<Tracked<Scripted>>>>,
    script: Scripted,
    /// Since when.
    ready: Option<Timestamp>,
    /// Whose waker it holds.
    by: Option<usize>,
    finished: bool,
}

proptest! {
    #[test]
    fn the_count_is_that_of_a_model(
        operations in proptest::collection::vec(operation(), 1..120),
        threads in 1_usize..3,
    ) {
        let (clock, hand) = Clock::manual();
        let executor = Executor::builder(clock.clone()).threads(threads).timed_one_in(1).build();
        let mut watch = executor.watch();
        let callers = [Arc::new(Calls::default()), Arc::new(Calls::default())];
        let mut expected_calls = [0, 0];
        let mut tasks: Vec<Model> = Vec::new();
        // The longest that anybody has waited since the last look.
        let mut longest = Duration::ZERO;
        for operation in operations {
            let now = clock.now();
            match operation {
                Operation::Track { in_place } if tasks.len() < 6 => {
                    let script = Scripted::new(&executor);
                    let task = if in_place {
                        executor.track_in_place(script.clone())
                    } else {
                        executor.track(script.clone())
                    };
                    let ready = (!in_place).then_some(now);
                    let task = Some(Box::pin(task));
                    tasks.push(Model { task, script, ready, by: None, finished: false });
                }
                Operation::Track { .. } => {}
                Operation::Wake { task } => if let Some(model) = tasks.get_mut(task)
                    && let Some(by) = model.by
                {
                    model.script.wake();
                    expected_calls[by] += 1;
                    if model.task.is_some() && !model.finished {
                        model.ready = model.ready.or(Some(now));
                    }
                },
                Operation::WakeOld { task } => if let Some(model) = tasks.get_mut(task)
                    && let wakers = model.script.0.borrow().wakers.clone()
                    && wakers.len() > 1
                {
                    // With two callers in turn, the last but one was of the other.
                    wakers[wakers.len() - 2].wake_by_ref();
                    expected_calls[1 - model.by.unwrap()] += 1;
                },
                Operation::Poll { task, by, wakes, outcome } => if
                    let Some(model) = tasks.get_mut(task)
                    && !model.finished
                    && let Some(task) = &mut model.task
                {
                    let others = executor.active() - u64::from(model.ready.is_some());
                    {
                        let mut script = model.script.0.borrow_mut();
                        (script.wakes, script.outcome) = (wakes, outcome);
                    }
                    let polled =
                        catch_unwind(AssertUnwindSafe(|| poll(task.as_mut(), &callers[by])));
                    prop_assert_eq!(polled.is_err(), outcome == Outcome::Panic);
                    prop_assert_eq!(model.script.0.borrow().active_in_poll, others + 1);
                    if let Some(since) = model.ready.take() {
                        longest = longest.max(now.since(since));
                    }
                    model.by = Some(by);
                    if wakes {
                        expected_calls[by] += 1;
                        model.ready = (outcome != Outcome::Ready).then_some(now);
                    }
                    model.finished = outcome == Outcome::Ready;
                    if outcome == Outcome::Panic {
                        // As a runtime does.
                        model.task = None;
                        model.ready = None;
                    }
                },
                Operation::Drop { task } => if let Some(model) = tasks.get_mut(task) {
                    model.task = None;
                    model.ready = None;
                },
                Operation::Advance { steps } => {
                    hand.advance(STEP * steps);
                    let now = clock.now();
                    let waits = tasks.iter().filter_map(|model| Some(now.since(model.ready?)));
                    longest = longest.max(waits.max().unwrap_or_default());
                    let load = watch.read(now);
                    prop_assert!(load.delay.unwrap_or_default() <= longest);
                    longest = Duration::ZERO;
                }
            }
            let ready = tasks.iter().filter(|model| model.ready.is_some()).count() as u64;
            prop_assert_eq!(executor.active(), ready);
            prop_assert_eq!([callers[0].count(), callers[1].count()], expected_calls);
        }
        drop(tasks);
        prop_assert_eq!(executor.active(), 0);
        prop_assert_eq!(executor.shared.probes.outstanding(clock.now()), None);
    }
}
