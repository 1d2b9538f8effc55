//! The thread that has the queues.

use super::send::{Item, Reply, Sender};
use crate::outbound::{At, QueueConfig, ServiceConfig};
use crate::pool::Protocol as Speaks;
use crate::run::{End, ProxyError, Worker};
use core::pin::pin;
use core::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use core::time::Duration;
use futures_util::future::join_all;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use tidegate::Task;
use tidegate::client::Balancer;
use tidegate::clock::Clock;
use tidegate::life::{Life, Phase};
use tidegate::metrics::Queue;
use tidegate_core::batch::gate::BatchGate;
use tidegate_core::batch::pace::Hold;
use tidegate_core::batch::queue::Ticket;
use tidegate_core::batch::{BatchProxy, Offer, Release};
use tidegate_core::decision::{Advice, Cause, Reason, Rejection};
use tidegate_core::{Criticality, Outcome, Timestamp};
use tokio::sync::mpsc;

/// What is said to an owner.
#[derive(Debug)]
pub(super) enum Message {
    /// Somebody waits.
    Offer(Box<Item>),
    /// Somebody waits no more.
    Left(u64),
    /// What was sent has come to its end.
    Done { outcome: Outcome, latency: Duration },
    /// It was refused, and wants to wait again.
    Again { item: Box<Item>, outcome: Outcome, latency: Duration },
    /// A backend says how busy it is.
    Load(f64),
}

/// How many messages are taken in before the next look at what may go on: a flood of workers must
/// not keep those waiting that were there before.
const MESSAGES_MAX: usize = 256;

/// What those know who are not the owner.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) gate: Arc<BatchGate>,
    messages: mpsc::UnboundedSender<Message>,
    /// Requests that were handed over and not handed on.
    waiting: AtomicUsize,
    /// What all requests take that wait, or were sent and may have to wait again.
    bytes: AtomicU64,
    limits: QueueConfig,
    numbers: AtomicU64,
    counts: Counts,
    standing: Mutex<Standing>,
}

#[derive(Debug, Default)]
struct Counts {
    sent: AtomicU64,
    again: AtomicU64,
    full: AtomicU64,
    late: AtomicU64,
    left: AtomicU64,
}

/// Where the queue stood when its owner last looked.
#[derive(Debug, Clone, Copy)]
struct Standing {
    outstanding: u64,
    window: f64,
    spacing: Duration,
    hold: Hold,
}

/// Room for a request until this is dropped, and a place among those that wait while it does.
#[derive(Debug)]
pub(super) struct Place {
    shared: Arc<Shared>,
    bytes: u64,
    waits: bool,
}

impl Place {
    /// It waits no more, and others may; or it waits again.
    pub(super) fn waits(&mut self, waits: bool) {
        match (core::mem::replace(&mut self.waits, waits), waits) {
            (true, false) => _ = self.shared.waiting.fetch_sub(1, Relaxed),
            (false, true) => _ = self.shared.waiting.fetch_add(1, Relaxed),
            _ => {}
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.waits(false);
        self.shared.bytes.fetch_sub(self.bytes, Relaxed);
    }
}

impl Shared {
    /// A place for a request of so many bytes, or why there is none. Whether there is one in the
    /// queue itself is its owner's to say; this bounds what is on its way there.
    pub(super) fn enter(
        self: &Arc<Self>,
        criticality: Criticality,
        bytes: u64,
    ) -> Result<Place, Rejection> {
        let checked = self.gate.check(criticality).and_then(|()| {
            let place = Place { shared: Arc::clone(self), bytes, waits: true };
            let waiting = self.waiting.fetch_add(1, Relaxed);
            let held = self.bytes.fetch_add(bytes, Relaxed);
            // As many again as may wait: the more critical displace others, and come here first.
            let room = self.limits.batch.queue_max.saturating_mul(2).max(1);
            if waiting < room && held.saturating_add(bytes) <= self.limits.bytes_max {
                return Ok(place);
            }
            let at_most = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
            Err(Rejection {
                reason: Reason::QueueFull,
                advice: Advice::RetryAfter(RETRY_AFTER),
                criticality,
                cause: Some(Cause::Queue { queued: at_most(waiting), limit: at_most(room) }),
            })
        });
        if checked.is_err() {
            self.counts.full.fetch_add(1, Relaxed);
        }
        checked
    }

    pub(super) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Relaxed)
    }

    /// Tells the owner. At the end of the process there may be none.
    pub(super) fn tell(&self, message: Message) {
        let _ = self.messages.send(message);
    }

    /// Where it stands, for people.
    pub(super) fn state(&self, service: &str) -> Queue {
        let standing = *self.standing.lock().unwrap_or_else(PoisonError::into_inner);
        let mut queue = Queue::default();
        queue.queued = self.gate.queued().into();
        queue.queue_max = self.limits.batch.queue_max as u64;
        queue.bytes = self.bytes.load(Relaxed);
        queue.outstanding = standing.outstanding;
        queue.window = standing.window;
        if queue.queued > 0 {
            queue.pace = 1.0 / standing.spacing.as_secs_f64().max(1e-6);
        }
        queue.sent = self.counts.sent.load(Relaxed);
        queue.again = self.counts.again.load(Relaxed);
        queue.full = self.counts.full.load(Relaxed);
        queue.late = self.counts.late.load(Relaxed);
        queue.left = self.counts.left.load(Relaxed);
        queue.sentence = sentence(service, &queue, standing.hold);
        queue
    }
}

/// The queue's own shortest: below a second, ten thousand workers are themselves a load.
const RETRY_AFTER: Duration = Duration::from_secs(1);

fn sentence(service: &str, queue: &Queue, hold: Hold) -> String {
    if queue.queued == 0 {
        return format!("Nothing waits for {service}.");
    }
    let why = match hold {
        Hold::Growing => "and more and more while it takes them",
        Hold::Refused => "as it refuses more",
        Hold::Pushback => "and none before the time that it has asked for",
        Hold::Busy => "as it is busy and others need it too",
        Hold::Slow => "as its answers take longer than they did",
        Hold::WindowMax => "as there are no more connections to it",
        _ => "as it takes next to nothing",
    };
    format!(
        "{} of {} wait for {service}; {:.0} a second go on, {:.0} at once, {why}.",
        queue.queued,
        queue.queue_max,
        queue.pace,
        queue.window.ceil(),
    )
}

/// The owner of one queue.
pub(super) struct Owner {
    proxy: BatchProxy<Box<Item>>,
    tickets: HashMap<u64, Ticket>,
    messages: mpsc::UnboundedReceiver<Message>,
    shared: Arc<Shared>,
    sender: Arc<Sender>,
    balancer: Balancer<At>,
    /// Requests that may be at one endpoint at once; none for any number.
    each: Option<usize>,
    clock: Clock,
    /// When it was last asked how many endpoints there are.
    widened: Option<Timestamp>,
    closed: bool,
}

impl Owner {
    pub(super) fn new(
        service: &ServiceConfig,
        limits: QueueConfig,
        balancer: Balancer<At>,
        task: &Task,
    ) -> Result<(Self, Arc<Shared>), ProxyError> {
        let proxy = BatchProxy::new(limits.batch)?;
        let (tell, messages) = mpsc::unbounded_channel();
        let pace = proxy.pace();
        let standing = Standing {
            outstanding: 0,
            window: pace.window(),
            spacing: pace.spacing(),
            hold: Hold::Growing,
        };
        let shared = Arc::new(Shared {
            gate: proxy.gate(),
            messages: tell,
            waiting: AtomicUsize::new(0),
            bytes: AtomicU64::new(0),
            limits,
            numbers: AtomicU64::new(0),
            counts: Counts::default(),
            standing: Mutex::new(standing),
        });
        let clock = task.clock().clone();
        let sender = Arc::new(Sender {
            balancer: balancer.clone(),
            shared: Arc::clone(&shared),
            clock: clock.clone(),
            answer_timeout: service.answer_timeout,
            attempts_max: limits.attempts_max.get(),
        });
        let alone = service.pool.protocol != Speaks::Http2;
        let each = alone.then(|| limits.connections_max.get());
        let tickets = HashMap::new();
        let owner = Self {
            proxy,
            tickets,
            messages,
            shared: Arc::clone(&shared),
            sender,
            balancer,
            each,
            clock,
            widened: None,
            closed: false,
        };
        Ok((owner, shared))
    }

    /// Takes in and hands on, until nobody needs it any more.
    async fn run(mut self, life: Life, patience: Duration) {
        let mut gone = pin!(life.reached(Phase::Gone));
        let mut late = pin!(async {
            life.draining().await;
            tokio::time::sleep(patience).await;
        });
        loop {
            self.widen();
            self.hand_on();
            self.publish();
            let now = self.clock.now();
            let next = self.proxy.next_deadline();
            let wait = next.map_or(Duration::MAX, |next| next.since(now));
            tokio::select! {
                _ = &mut gone => return,
                () = &mut late, if !self.closed => self.close(),
                Some(message) = self.messages.recv() => {
                    self.take(message);
                    for _ in 1..MESSAGES_MAX {
                        let Ok(message) = self.messages.try_recv() else { break };
                        self.take(message);
                    }
                }
                () = tokio::time::sleep(wait.min(LOOK)) => {}
            }
        }
    }

    /// As many at once as there are connections for.
    fn widen(&mut self) {
        let now = self.clock.now();
        if self.widened.is_some_and(|before| now.since(before) < LOOK) {
            return;
        }
        self.widened = Some(now);
        if let Some(each) = self.each {
            let room = self.balancer.endpoints().len().max(1).saturating_mul(each);
            let room = u32::try_from(room).unwrap_or(u32::MAX);
            self.proxy.set_window_max(room.min(self.shared.limits.batch.pace.window_max));
        }
    }

    fn take(&mut self, message: Message) {
        let now = self.clock.now();
        match message {
            Message::Offer(item) => self.offer(item),
            Message::Left(number) => {
                let ticket = self.tickets.remove(&number);
                if ticket.and_then(|ticket| self.proxy.cancel(ticket)).is_some() {
                    self.shared.counts.left.fetch_add(1, Relaxed);
                }
            }
            Message::Done { outcome, latency } => self.proxy.on_result(outcome, latency, now),
            Message::Again { item, outcome, latency } => {
                self.proxy.on_result(outcome, latency, now);
                self.shared.counts.again.fetch_add(1, Relaxed);
                self.offer(item);
            }
            Message::Load(utilization) => self.proxy.on_load(utilization, now),
        }
    }

    fn offer(&mut self, item: Box<Item>) {
        // Its caller has left on the way.
        if item.reply.is_closed() {
            return;
        }
        let (number, criticality) = (item.number, item.criticality);
        if self.closed {
            return item.refuse(leaving(criticality));
        }
        let counts = &self.shared.counts;
        let count = |rejection: &Rejection| {
            let late = rejection.reason == Reason::DeadlinePassed;
            if late { &counts.late } else { &counts.full }.fetch_add(1, Relaxed);
        };
        let deadline = item.deadline;
        match self.proxy.offer(item, criticality, deadline, self.clock.now()) {
            Offer::Queued(ticket) => _ = self.tickets.insert(number, ticket),
            Offer::Displaced { ticket, item: old, rejection } => {
                count(&rejection);
                self.tickets.remove(&old.number);
                self.tickets.insert(number, ticket);
                old.refuse(rejection);
            }
            Offer::Refused { item, rejection } => {
                count(&rejection);
                item.refuse(rejection);
            }
        }
    }

    /// Hands on all that may go now.
    fn hand_on(&mut self) {
        while let Some(release) = self.proxy.release(self.clock.now()) {
            match release {
                Release::Expired { item, rejection } => {
                    self.tickets.remove(&item.number);
                    self.shared.counts.late.fetch_add(1, Relaxed);
                    item.refuse(rejection);
                }
                Release::Send { item, .. } => {
                    self.tickets.remove(&item.number);
                    if item.reply.is_closed() {
                        let now = self.clock.now();
                        self.proxy.on_result(Outcome::Abandoned, Duration::ZERO, now);
                        continue;
                    }
                    self.shared.counts.sent.fetch_add(1, Relaxed);
                    tokio::spawn(Arc::clone(&self.sender).send(item));
                }
            }
        }
    }

    /// What still waits would be cut off: it is told before.
    fn close(&mut self) {
        self.closed = true;
        while let Some((item, criticality)) = self.proxy.give_back() {
            self.tickets.remove(&item.number);
            item.refuse(leaving(criticality));
        }
    }

    fn publish(&self) {
        let pace = self.proxy.pace();
        let standing = Standing {
            outstanding: pace.outstanding(),
            window: pace.window(),
            spacing: pace.spacing(),
            hold: pace.hold(self.clock.now()),
        };
        *self.shared.standing.lock().unwrap_or_else(PoisonError::into_inner) = standing;
    }
}

/// How often an owner looks without being told: endpoints come and go, and people watch.
const LOOK: Duration = Duration::from_millis(500);

const fn leaving(criticality: Criticality) -> Rejection {
    let advice = Advice::RetryElsewhere;
    Rejection { reason: Reason::LameDuck, advice, criticality, cause: None }
}

impl Item {
    fn refuse(self: Box<Self>, rejection: Rejection) {
        // If it has left nobody is to hear it.
        let _ = self.reply.send(Reply::Refused(rejection));
    }
}

/// The thread of all owners. Those who still wait `patience` after draining began are refused.
pub(super) fn spawn(
    owners: Vec<Owner>,
    life: &Life,
    patience: Duration,
) -> Result<Worker, ProxyError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (life, end) = (life.clone(), End(life.clone()));
    let thread = std::thread::Builder::new().name("tidegate-batch".to_owned());
    let run = move || {
        // Without it nobody would be served: however it ends, the workers end with it.
        let _end = end;
        let all = owners.into_iter().map(|owner| owner.run(life.clone(), patience));
        runtime.block_on(join_all(all));
        Ok(())
    };
    Ok(thread.spawn(run)?)
}
