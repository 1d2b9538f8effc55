//! A thread that sends.
//!
//! ```text
//! schedule ── due ──► a free line, or a new one, or the backlog
//!                        │ serves the request with all of its attempts, then takes the next one
//!                        ▼
//!                     fate, counted
//! ```
//!
//! A **line** is what carries one request at a time: a connection of HTTP/1.1, a stream of HTTP/2.
//! Each is a task of a runtime with one thread, so nothing is shared and nothing is locked. The
//! **pacer** is one more task: it sleeps until something is due and gives it to a line. A line that
//! gets free looks for itself what is due, so under load the pacer has little to do.
//!
//! What is outstanding is bounded by the lines that there may be and by the backlog. What does not
//! fit is not sent, and counted as that: a generator that quietly sends later, or less, shows a
//! server in a better light than its callers would see it in.

mod feed;
mod line;
mod serve;
mod timer;

use crate::h2;
use crate::plan::{Course, Plan, Protocol};
use crate::request::Requests;
use crate::run::Shared;
use crate::stats::{NotSent, Stats};
use crate::transport::Dial;
use core::cell::{Cell, RefCell, RefMut};
use core::task::{Context, Poll, Waker};
use core::time::Duration;
use feed::{Feed, Job};
use line::Line;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Instant;
use tidegate_core::Criticality;
use tidegate_core::retry::BudgetLane;
use tidegate_core::rng::SeededRng;
use tidegate_core::throttle::ThrottleLane;
use timer::Timer;
use tokio::sync::Notify;
use tokio::task::LocalSet;

/// A course that has begun.
#[derive(Debug)]
pub(crate) struct Act {
    /// How many there were before.
    pub(crate) number: u64,
    pub(crate) course: Course,
    pub(crate) requests: Requests,
    pub(crate) begin: Instant,
    /// From then on nothing new is due.
    pub(crate) end: Instant,
    pub(crate) warmup: Duration,
}

/// Each request has one of its own, without touching what threads share.
type ActRef = Rc<Arc<Act>>;

/// What a thread hands over.
pub(crate) enum Told {
    /// It is connected, as far as that is possible.
    Ready,
    /// What has happened in an interval, by its number.
    Interval {
        worker: usize,
        number: u64,
        /// By course; at least the one that goes on.
        stats: Vec<(u64, Box<Stats>)>,
        /// It has nothing more to tell.
        last: bool,
    },
}

/// After how many polls of tasks the runtime looks for what has arrived, and with that for the
/// time: 61 by default, which at ten microseconds each is more than half a millisecond late.
const EVENTS: u32 = 16;

/// How long a run that was ended waits for answers.
const GRACE: Duration = Duration::from_secs(1);

/// Connections that are asked for before the start have to come within this.
const CONNECT_MAX: Duration = Duration::from_secs(2);

/// This thread's way through the client's gates.
struct Lanes {
    throttle: ThrottleLane,
    budget: BudgetLane,
    rng: SeededRng,
}

/// A line that waits for something to do.
#[derive(Default)]
struct Mail {
    job: Option<Job>,
    waker: Option<Waker>,
}

/// A request that is to be tried again later.
struct Delayed {
    at: Instant,
    job: Job,
}

impl PartialEq for Delayed {
    fn eq(&self, other: &Self) -> bool {
        self.at == other.at
    }
}

impl Eq for Delayed {}

impl PartialOrd for Delayed {
    fn partial_cmp(&self, other: &Self) -> Option<core::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Delayed {
    /// The earliest is the greatest, for the heap.
    fn cmp(&self, other: &Self) -> core::cmp::Ordering {
        other.at.cmp(&self.at)
    }
}

/// How much a thread may have, its part of the whole.
#[derive(Debug, Clone, Copy)]
struct Room {
    connections: u32,
    lines_max: u32,
    /// In a closed loop.
    lines_closed: u32,
    backlog: usize,
}

impl Room {
    fn new(plan: &Plan, index: u32) -> Self {
        let part = |all: u32| {
            let extra = u32::from(index < all % plan.threads.max(1));
            (all / plan.threads.max(1) + extra).max(1)
        };
        let streams = if plan.protocol == Protocol::Http1 { 1 } else { plan.streams.max(1) };
        let connections = part(plan.connections);
        Self {
            connections,
            lines_max: part(plan.connections_max.max(plan.connections)).saturating_mul(streams),
            lines_closed: connections.saturating_mul(streams),
            backlog: part(plan.backlog) as usize,
        }
    }
}

struct Worker {
    shared: Arc<Shared>,
    index: usize,
    room: Room,
    dial: Dial,
    lanes: RefCell<Lanes>,
    feed: RefCell<Option<Feed>>,
    mail: RefCell<Vec<Mail>>,
    /// Lines that wait, the last one to be used again first: its caches are warm.
    idle: RefCell<Vec<u32>>,
    /// Connections of HTTP/2.
    connections: RefCell<Vec<Rc<h2::Shared>>>,
    backlog: RefCell<VecDeque<Job>>,
    delayed: RefCell<BinaryHeap<Delayed>>,
    /// Of the course that goes on.
    stats: RefCell<Box<Stats>>,
    course: Cell<u64>,
    /// Of those before it, as long as requests of theirs are under way.
    stats_before: RefCell<BTreeMap<u64, Box<Stats>>>,
    /// Requests whose fate is open.
    outstanding: Cell<u64>,
    /// Of these, those that count, by criticality.
    open: [Cell<u64>; Criticality::COUNT],
    /// Nothing more is due, and the pacer waits until all fates are known.
    ending: Cell<bool>,
    settled: Notify,
    closing: Cell<bool>,
}

/// Runs a thread until its course is over.
pub(crate) fn run(shared: &Arc<Shared>, index: usize, tell: &Sender<Told>) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .event_interval(EVENTS)
        .build()?;
    LocalSet::new().block_on(&runtime, async {
        let worker = Rc::new(Worker::new(shared, index));
        worker.connect().await;
        // Nobody listens if the run was dropped.
        let _ = tell.send(Told::Ready);
        Pacer::new(worker, tell)?.run().await
    })
}

impl Worker {
    fn new(shared: &Arc<Shared>, index: usize) -> Self {
        let plan = &shared.plan;
        // The client's own dice are apart from those of the schedule.
        let seed = tidegate_core::rng::mix(plan.course.seed ^ (index as u64 + 1));
        Self {
            room: Room::new(plan, index as u32),
            dial: Dial::new(&plan.target, shared.tls.clone(), plan.protocol),
            lanes: RefCell::new(Lanes {
                throttle: shared.throttle.lane(),
                budget: shared.budget.lane(),
                rng: SeededRng::new(seed),
            }),
            feed: RefCell::new(None),
            mail: RefCell::default(),
            idle: RefCell::default(),
            connections: RefCell::default(),
            backlog: RefCell::default(),
            delayed: RefCell::default(),
            stats: RefCell::default(),
            course: Cell::new(0),
            stats_before: RefCell::default(),
            outstanding: Cell::new(0),
            open: Default::default(),
            ending: Cell::new(false),
            settled: Notify::new(),
            closing: Cell::new(false),
            shared: Arc::clone(shared),
            index,
        }
    }

    /// Makes the connections that are there from the start. What does not come now is tried again
    /// by the requests that need it, and counted then.
    async fn connect(self: &Rc<Self>) {
        let tasks: Vec<_> = (0..self.room.connections)
            .map(|_| {
                let mut line = self.new_line();
                let worker = Rc::clone(self);
                tokio::task::spawn_local(async move {
                    let _ = tokio::time::timeout(CONNECT_MAX, line.connect(&worker.dial)).await;
                    line
                })
            })
            .collect();
        for task in tasks {
            if let Ok(line) = task.await {
                self.start_line(line, None);
            }
        }
    }

    /// A line that is the next one in number.
    fn new_line(&self) -> Line {
        let protocol = self.shared.plan.protocol;
        if protocol == Protocol::Http1 {
            return Line::http1();
        }
        let mut connections = self.connections.borrow_mut();
        // First every connection of the start has all its streams, one by one; then there are more.
        let (first, streams) = (self.room.connections as usize, self.shared.plan.streams as usize);
        let number = self.mail.borrow().len().max(connections.len().min(first));
        let place = if number < first * streams { number % first } else { number / streams };
        while connections.len() <= place {
            connections.push(Rc::default());
        }
        Line::h2(Rc::clone(&connections[place]), protocol)
    }

    /// Gives a line its task.
    fn start_line(self: &Rc<Self>, line: Line, first: Option<Job>) {
        let number = {
            let mut mail = self.mail.borrow_mut();
            mail.push(Mail::default());
            mail.len() as u32 - 1
        };
        tokio::task::spawn_local(serve::serve_all(Rc::clone(self), number, line, first));
    }

    fn may_add_line(&self) -> bool {
        (self.mail.borrow().len() as u32) < self.room.lines_max
    }

    /// The next request for a line that is free; it is woken if there is none yet.
    fn poll_job(&self, number: u32, cx: &Context<'_>) -> Poll<Option<Job>> {
        {
            let mail = &mut self.mail.borrow_mut()[number as usize];
            if let Some(job) = mail.job.take() {
                return Poll::Ready(Some(job));
            }
            // Who is on the list of those that wait must not take anything by itself: the next one
            // that is given to it would find it busy.
            if let Some(waker) = &mut mail.waker {
                waker.clone_from(cx.waker());
                return Poll::Pending;
            }
        }
        if self.closing.get() {
            return Poll::Ready(None);
        }
        if let Some(job) = self.pull(Instant::now()) {
            return Poll::Ready(Some(job));
        }
        self.idle.borrow_mut().push(number);
        self.mail.borrow_mut()[number as usize].waker = Some(cx.waker().clone());
        Poll::Pending
    }

    /// The request that has waited longest, or the next that is due.
    fn pull(&self, now: Instant) -> Option<Job> {
        loop {
            let waiting = self.backlog.borrow_mut().pop_front();
            match waiting {
                None => break,
                Some(job) if now < job.gives_up() => return Some(job),
                Some(job) => self.not_sent(&job, NotSent::NoConnection),
            }
        }
        if let Some(job) = self.due(now) {
            return Some(job);
        }
        let job = self.feed.borrow_mut().as_mut()?.take_closed(now)?;
        self.count_offered(&job);
        Some(job)
    }

    /// The next request that is due.
    fn due(&self, now: Instant) -> Option<Job> {
        let job = self.feed.borrow_mut().as_mut()?.take(now)?;
        self.count_offered(&job);
        if job.measured {
            let late = now.saturating_duration_since(job.intended);
            self.stats(&job).record_late(late);
        }
        Some(job)
    }

    /// Where a request counts: with the course that has asked it.
    #[inline]
    fn stats(&self, job: &Job) -> RefMut<'_, Stats> {
        let number = job.act.number;
        if number == self.course.get() {
            RefMut::map(self.stats.borrow_mut(), |stats| &mut **stats)
        } else {
            let before = self.stats_before.borrow_mut();
            RefMut::map(before, |before| &mut **before.entry(number).or_default())
        }
    }

    /// From now on this course goes on.
    fn begin(&self, number: u64) {
        let before = self.course.replace(number);
        if before != number {
            let stats = core::mem::take(&mut *self.stats.borrow_mut());
            self.stats_before.borrow_mut().insert(before, stats);
        }
    }

    fn count_offered(&self, job: &Job) {
        self.outstanding.set(self.outstanding.get() + 1);
        if job.measured {
            let level = job.choice.criticality;
            self.stats(job).level(level).offered += 1;
            let open = &self.open[level.index()];
            open.set(open.get() + 1);
        }
    }

    /// The fate of a request is known.
    fn settle(&self, job: &Job) {
        let outstanding = self.outstanding.get() - 1;
        self.outstanding.set(outstanding);
        if job.measured {
            let open = &self.open[job.choice.criticality.index()];
            open.set(open.get() - 1);
        }
        if outstanding == 0 && self.ending.get() {
            self.settled.notify_one();
        }
    }

    fn not_sent(&self, job: &Job, why: NotSent) {
        if job.measured {
            let mut stats = self.stats(job);
            let level = stats.level(job.choice.criticality);
            if job.attempt == 1 {
                level.not_sent[why as usize] += 1;
            } else {
                level.failed += 1;
            }
        }
        self.settle(job);
    }

    /// Gives a request to a line, or has it wait for one.
    fn dispatch(self: &Rc<Self>, job: Job) {
        let idle = self.idle.borrow_mut().pop();
        if let Some(number) = idle {
            let mail = &mut self.mail.borrow_mut()[number as usize];
            mail.job = Some(job);
            if let Some(waker) = mail.waker.take() {
                waker.wake();
            }
        } else if self.may_add_line() {
            let line = self.new_line();
            self.start_line(line, Some(job));
        } else if self.backlog.borrow().len() < self.room.backlog {
            if job.measured {
                self.stats(&job).queued += 1;
            }
            self.backlog.borrow_mut().push_back(job);
        } else {
            self.not_sent(&job, NotSent::BacklogFull);
        }
    }

    /// Everything that is due by now.
    fn dispatch_due(self: &Rc<Self>, now: Instant) {
        loop {
            let mut delayed = self.delayed.borrow_mut();
            match delayed.peek() {
                Some(first) if first.at <= now => {}
                _ => break,
            }
            let Some(Delayed { job, .. }) = delayed.pop() else { break };
            drop(delayed);
            self.dispatch(job);
        }
        while let Some(job) = self.due(now) {
            self.dispatch(job);
        }
        // In a closed loop whoever is free asks.
        loop {
            if self.idle.borrow().is_empty() {
                break;
            }
            let job = self.feed.borrow_mut().as_mut().and_then(|feed| feed.take_closed(now));
            let Some(job) = job else { break };
            self.count_offered(&job);
            self.dispatch(job);
        }
    }

    /// Drops what waits, as the run was ended.
    fn drop_waiting(&self) {
        if let Some(feed) = &mut *self.feed.borrow_mut() {
            feed.stop();
        }
        let mut waiting: Vec<Job> = self.backlog.borrow_mut().drain(..).collect();
        waiting.extend(self.delayed.borrow_mut().drain().map(|delayed| delayed.job));
        for job in waiting {
            self.not_sent(&job, NotSent::Ended);
        }
    }

    /// What is still open when nobody waits any longer, of whatever course.
    fn count_unfinished(&self) {
        let mut stats = self.stats.borrow_mut();
        for (open, level) in self.open.iter().zip(Criticality::ALL) {
            stats.level(level).unfinished += open.get();
            open.set(0);
        }
    }

    /// Ends the tasks of lines that wait.
    fn close(&self) {
        self.closing.set(true);
        for mail in self.mail.borrow_mut().iter_mut() {
            if let Some(waker) = mail.waker.take() {
                waker.wake();
            }
        }
    }
}

/// The task that looks at the clock.
struct Pacer<'a> {
    worker: Rc<Worker>,
    tell: &'a Sender<Told>,
    timer: Timer,
    /// The command that was heard last.
    version: u64,
    act: Option<ActRef>,
    /// When the run gives up waiting for answers.
    grace_ends: Option<Instant>,
    /// The interval that goes on.
    number: u64,
    interval_ends: Option<Instant>,
    /// Until then nothing counts.
    counts_from: Option<Instant>,
    /// CPU time and traffic that were told.
    cpu: Duration,
    told: [u64; 3],
}

impl<'a> Pacer<'a> {
    fn new(worker: Rc<Worker>, tell: &'a Sender<Told>) -> io::Result<Self> {
        Ok(Self {
            worker,
            tell,
            timer: Timer::new()?,
            version: 0,
            act: None,
            grace_ends: None,
            number: 0,
            interval_ends: None,
            counts_from: None,
            cpu: Duration::ZERO,
            told: [0; 3],
        })
    }

    async fn run(mut self) -> io::Result<()> {
        loop {
            let now = Instant::now();
            self.listen(now);
            self.worker.dispatch_due(now);
            self.count(now);
            if self.is_over(now) {
                break;
            }
            let next = self.next_event(now);
            let shared = Arc::clone(&self.worker.shared);
            tokio::select! {
                woken = self.timer.until(next) => woken?,
                () = shared.heard[self.worker.index].notified() => {}
                () = self.worker.settled.notified() => {}
            }
        }
        self.worker.count_unfinished();
        self.worker.close();
        self.tell(true);
        Ok(())
    }

    /// Takes what was said to all threads.
    fn listen(&mut self, now: Instant) {
        let Some(command) = self.worker.shared.command_after(self.version) else { return };
        self.version = command.version;
        if let Some(act) = command.act {
            let act = Rc::new(act);
            self.worker.begin(act.number);
            let (stride, offset) = (self.worker.shared.plan.threads, self.worker.index);
            let feed = Feed::new(Rc::clone(&act), stride.into(), offset as u64);
            *self.worker.feed.borrow_mut() = Some(feed);
            if self.interval_ends.is_none() {
                self.counts_from = Some(act.begin + act.warmup);
            }
            self.grace_ends = Some(act.end + act.course.timeout + GRACE);
            if matches!(act.course.load, crate::plan::Load::Closed { .. }) {
                let lines = self.worker.mail.borrow().len() as u32;
                for _ in lines..self.worker.room.lines_closed {
                    let line = self.worker.new_line();
                    self.worker.start_line(line, None);
                }
            }
            self.act = Some(act);
        }
        if command.stop {
            self.worker.drop_waiting();
            self.grace_ends = Some(now + GRACE);
        }
    }

    fn is_over(&self, now: Instant) -> bool {
        let Some(act) = &self.act else { return self.grace_ends.is_some() };
        let stopped = self.grace_ends.is_some_and(|end| end < act.end);
        let nothing_due = (stopped || now >= act.end)
            && self.worker.feed.borrow().as_ref().is_none_or(|feed| feed.next_at().is_none());
        self.worker.ending.set(nothing_due);
        nothing_due
            && (self.worker.outstanding.get() == 0 || self.grace_ends.is_some_and(|end| now >= end))
    }

    fn next_event(&self, now: Instant) -> Instant {
        let feed = self.worker.feed.borrow().as_ref().and_then(Feed::next_at);
        let delayed = self.worker.delayed.borrow().peek().map(|delayed| delayed.at);
        let act = self.act.as_ref();
        let begin = act.map(|act| act.begin).filter(|&begin| begin > now);
        let end = act.map(|act| act.end).filter(|&end| end > now).or(self.grace_ends);
        let events = [feed, delayed, begin, end, self.interval_ends, self.counts_from];
        let far = now + Duration::from_secs(3_600);
        events.into_iter().flatten().min().unwrap_or(far).min(far)
    }

    /// Hands over what has happened whenever an interval ends.
    fn count(&mut self, now: Instant) {
        if let Some(from) = self.counts_from
            && now >= from
            && self.interval_ends.is_none()
        {
            self.baseline();
            self.interval_ends = Some(from + self.worker.shared.plan.interval);
            self.counts_from = None;
        }
        while let Some(end) = self.interval_ends
            && now >= end
        {
            self.tell(false);
            self.interval_ends = Some(end + self.worker.shared.plan.interval);
        }
    }

    /// What was used until now does not count.
    fn baseline(&mut self) {
        self.cpu = thread_cpu();
        self.told = self.traffic();
    }

    fn traffic(&self) -> [u64; 3] {
        let traffic = &self.worker.dial.traffic;
        [&traffic.received, &traffic.sent, &traffic.connections].map(Cell::get)
    }

    fn tell(&mut self, last: bool) {
        let mut stats = core::mem::take(&mut *self.worker.stats.borrow_mut());
        let (cpu, traffic) = (thread_cpu(), self.traffic());
        stats.cpu = cpu.saturating_sub(self.cpu);
        stats.received = traffic[0] - self.told[0];
        stats.sent = traffic[1] - self.told[1];
        stats.connections = traffic[2] - self.told[2];
        (self.cpu, self.told) = (cpu, traffic);
        let before = core::mem::take(&mut *self.worker.stats_before.borrow_mut());
        let stats = before.into_iter().chain([(self.worker.course.get(), stats)]).collect();
        let (worker, number) = (self.worker.index, self.number);
        self.number += 1;
        // Nobody listens if the run was dropped.
        let _ = self.tell.send(Told::Interval { worker, number, stats, last });
    }
}

/// CPU time of this thread.
fn thread_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
