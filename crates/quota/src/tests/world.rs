//! Tasks with real gates, their members, and a book; messages arrive at once or not at all.

use crate::client::member::{Member, Next};
use crate::config::{Config, Service};
use crate::server::book::Book;
use crate::server::grpc::read;
use crate::server::stream::{StreamId, Words};
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate::Task;
use tidegate::clock::{Clock, Hand};
use tidegate_core::quota::QuotaLane;
use tidegate_core::{Cost, CostRate, Criticality, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::TaskMessage;
use tokio::sync::mpsc;

/// A request costs a millisecond.
const COST: Cost = Cost::from_millis(1);
pub(super) const STEP: Duration = Duration::from_millis(10);
pub(super) const STEPS_PER_REPORT: u64 = 100;
pub(super) const STEPS_PER_ROUND: u64 = 25;

type Inbox = mpsc::Receiver<Words>;

/// What a customer asks a task for: name, criticality, CPUs.
pub(super) type Demand = (&'static str, Criticality, f64);

/// CPU seconds that were served and refused.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Tally {
    pub(super) served: f64,
    pub(super) refused: f64,
}

pub(super) struct Peer {
    pub(super) task: Task,
    pub(super) member: Member,
    lane: QuotaLane,
    pub(super) stream: Option<(StreamId, Inbox)>,
    pub(super) demand: Vec<Demand>,
    /// Requests that are due, by place in `demand`.
    due: Vec<f64>,
    /// Why the last stream ended.
    pub(super) trouble: Option<String>,
}

pub(super) struct World {
    pub(super) service: Service,
    pub(super) book: Book,
    pub(super) peers: Vec<Peer>,
    clock: Clock,
    hand: Hand,
    steps: u64,
    /// The server cannot be reached.
    pub(super) down: bool,
    pub(super) tally: BTreeMap<(&'static str, Criticality), Tally>,
}

pub(super) fn service(lines: &str) -> Service {
    let text = format!("quota:\n  services:\n    search: {lines}\n");
    Config::parse("test.yaml", &text).unwrap().services.remove("search").unwrap()
}

impl World {
    /// A leader that has nothing to learn, and so many tasks.
    pub(super) fn new(lines: &str, tasks: usize) -> Self {
        Self::on(Clock::manual(), lines, tasks)
    }

    /// The same by a clock that others may have.
    pub(super) fn on((clock, hand): (Clock, Hand), lines: &str, tasks: usize) -> Self {
        let service = service(lines);
        let book = Book::new(service.clone(), 1, false, clock.now()).unwrap();
        let mut world = Self {
            service,
            book,
            peers: Vec::new(),
            clock,
            hand,
            steps: 0,
            down: false,
            tally: BTreeMap::new(),
        };
        for n in 0..tasks {
            world.start(&format!("task-{n}"));
        }
        world
    }

    pub(super) fn start(&mut self, name: &str) -> usize {
        let task = Task::builder("search").clock(self.clock.clone()).build().unwrap();
        let lane = task.gate().quota().lane();
        let member = Member::new(task.clone(), name.to_owned(), 1);
        let (demand, due) = (Vec::new(), Vec::new());
        self.peers.push(Peer { task, member, lane, stream: None, demand, due, trouble: None });
        self.connect(self.peers.len() - 1);
        self.peers.len() - 1
    }

    pub(super) fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub(super) fn demand(&mut self, peer: usize, demand: &[Demand]) {
        self.peers[peer].demand = demand.to_vec();
        self.peers[peer].due = vec![0.0; demand.len()];
    }

    /// Opens a stream, if there is a server.
    pub(super) fn connect(&mut self, peer: usize) {
        if self.down {
            return;
        }
        let hello = self.peers[peer].member.hello();
        let (out, inbox) = mpsc::channel(8);
        let opened = self.book.open(hello.hello.as_ref().unwrap(), out, self.clock.now());
        let peer = &mut self.peers[peer];
        match opened {
            Ok(id) => peer.stream = Some((id, inbox)),
            Err(status) => peer.trouble = Some(status.message().to_owned()),
        }
    }

    /// Another leader takes over; all streams break.
    pub(super) fn elect(&mut self, epoch: u64) {
        self.book = Book::new(self.service.clone(), epoch, true, self.clock.now()).unwrap();
        for peer in &mut self.peers {
            peer.stream = None;
        }
    }

    fn say(&mut self, peer: usize, message: TaskMessage) {
        let said = read(message).unwrap();
        if let Some((id, _)) = &self.peers[peer].stream {
            self.book.hear(*id, &said, self.clock.now());
        }
    }

    /// Everything that has arrived at a task.
    fn listen(&mut self, peer: usize) {
        loop {
            let Some((_, inbox)) = &mut self.peers[peer].stream else { return };
            let message = match inbox.try_recv() {
                Ok(Ok(message)) => message,
                Ok(Err(status)) => {
                    self.peers[peer].trouble = Some(status.message().to_owned());
                    self.peers[peer].stream = None;
                    return;
                }
                Err(mpsc::error::TryRecvError::Empty) => return,
                Err(mpsc::error::TryRecvError::Disconnected) => {
                    self.peers[peer].stream = None;
                    return;
                }
            };
            match self.peers[peer].member.hear(&message) {
                Ok(Next::Say(None)) => {}
                Ok(Next::Say(Some(words))) => self.say(peer, *words),
                Ok(Next::Resume | Next::Go(_)) => self.connect(peer),
                Err(nonsense) => {
                    self.peers[peer].trouble = Some(nonsense.to_string());
                    self.peers[peer].stream = None;
                }
            }
        }
    }

    fn serve(&mut self, peer: usize) {
        let now = self.clock.now();
        let peer = &mut self.peers[peer];
        for (&(name, level, cpus), due) in peer.demand.iter().zip(&mut peer.due) {
            *due += cpus * STEP.as_secs_f64() / COST.as_secs_f64();
            let customer = peer.task.customer(name);
            let tally = self.tally.entry((name, level)).or_default();
            while *due >= 1.0 {
                *due -= 1.0;
                if peer.lane.gate().check(customer, level, now).is_ok() {
                    let _ = peer.lane.charge(customer, level, COST, now);
                    tally.served += COST.as_secs_f64();
                } else {
                    peer.lane.refuse(customer, level, COST);
                    tally.refused += COST.as_secs_f64();
                }
            }
        }
    }

    fn step(&mut self) {
        self.hand.advance(STEP);
        self.act();
    }

    /// What happens at this moment.
    pub(super) fn act(&mut self) {
        self.steps += 1;
        for peer in 0..self.peers.len() {
            self.serve(peer);
            // Tasks report at different times.
            if (self.steps + 17 * peer as u64).is_multiple_of(STEPS_PER_REPORT) {
                if !self.down {
                    if self.peers[peer].stream.is_none() {
                        self.connect(peer);
                    }
                    self.listen(peer);
                }
                let report = self.peers[peer].member.tick();
                if let Some(report) = report.filter(|_| !self.down) {
                    self.say(peer, report);
                }
            }
        }
        if !self.down && self.steps.is_multiple_of(STEPS_PER_ROUND) {
            self.book.tick(self.clock.now(), self.clock.now().as_nanos() / 1_000_000);
            for peer in 0..self.peers.len() {
                self.listen(peer);
            }
        }
    }

    /// So many seconds pass. Returns what was served and refused in them.
    pub(super) fn run(&mut self, seconds: f64) -> BTreeMap<(&'static str, Criticality), Tally> {
        self.tally.clear();
        for _ in 0..(seconds / STEP.as_secs_f64()).round() as u64 {
            self.step();
        }
        core::mem::take(&mut self.tally)
    }

    /// What all tasks together may admit of a customer, in CPUs.
    pub(super) fn enforced(&self, customer: &str) -> f64 {
        let limits = |peer: &Peer| peer.task.limits(customer).whole();
        self.peers.iter().map(limits).map(CostRate::as_cpus).sum()
    }
}

/// The rate of what was served, per second.
pub(super) fn served(
    tally: &BTreeMap<(&'static str, Criticality), Tally>,
    customer: &'static str,
    seconds: f64,
) -> f64 {
    let mine = tally.iter().filter(|((name, _), _)| *name == customer);
    mine.map(|(_, tally)| tally.served).sum::<f64>() / seconds
}

pub(super) fn refused(
    tally: &BTreeMap<(&'static str, Criticality), Tally>,
    customer: &'static str,
) -> f64 {
    let mine = tally.iter().filter(|((name, _), _)| *name == customer);
    mine.map(|(_, tally)| tally.refused).sum()
}
