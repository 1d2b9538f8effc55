//! Servers that elect one, and the tasks they lead, in a world where processes pause and die,
//! networks are cut and deliver late, and clocks are not the same.
//!
//! True time goes in steps. A server's answers are given by its own clock, read when it gets to
//! them; what arrived while it was paused waits. What is sent over a line that is cut arrives when
//! it is whole again.

use super::*;
use crate::customer::CustomerId;
use crate::fleet::{
    Change, FailStatic, Fleet, FleetConfig, Generation, Limits, Silence, Standing, TaskId, Usage,
};
use crate::rng::{Rng, SeededRng};
use crate::units::CostRate;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

mod operation;

use operation::{Operation, operation};

/// True time in milliseconds.
type Millis = u64;

const SERVERS: usize = 3;
const TASKS: usize = 4;
const STEP: Millis = 20;
const TTL_MS: Millis = 3_000;
/// Hold for 10 s, then fade: a lease of 17 s.
const SILENCE: Silence = Silence { hold: Duration::from_secs(10), tau: Duration::from_secs(1) };
const LIMIT: u64 = 1_000_000_000;
/// Over so long nobody may use more than 1.1 times the limit.
const WINDOW: Millis = 10_000;
const CUSTOMER: CustomerId = CustomerId(1);
/// A task that hears nothing for so long tries another server.
const DEAF: Duration = Duration::from_secs(4);
/// A lease by a slow clock, and what was said in it may be on its way until the task gives up.
const LEARNING: Millis = 17_200 + 5_000;

/// A clock that is ahead by something and runs at some thousandths of the true one.
#[derive(Debug, Clone, Copy)]
struct Clock {
    ahead: Millis,
    rate: u64,
}

impl Clock {
    fn at(self, now: Millis) -> Timestamp {
        Timestamp::from_nanos((self.ahead + now * self.rate / 1_000) * 1_000_000)
    }
}

#[derive(Debug, Default)]
struct Store {
    revision: u64,
    holder: Option<Holder>,
    leases: BTreeMap<LeaseId, Millis>,
    last: LeaseId,
}

#[derive(Debug, Clone)]
enum Reply {
    Seen(Option<Holder>),
    Granted(LeaseId),
    Renewed(LeaseId, bool),
}

impl Store {
    fn expire(&mut self, now: Millis) {
        self.leases.retain(|_, end| now < *end);
        let leases = &self.leases;
        self.holder = self.holder.take().filter(|holder| leases.contains_key(&holder.lease));
    }

    fn ask(&mut self, by: usize, ask: Ask, now: Millis) -> Option<Reply> {
        self.expire(now);
        Some(match ask {
            Ask::Look => Reply::Seen(self.holder.clone()),
            Ask::Grant => {
                self.last += 1;
                self.leases.insert(self.last, now + TTL_MS);
                Reply::Granted(self.last)
            }
            Ask::Claim(lease) => {
                if self.holder.is_none() && self.leases.contains_key(&lease) {
                    self.revision += 1;
                    let (name, revision) = (by.to_string(), self.revision);
                    self.holder = Some(Holder { name, revision, lease });
                }
                Reply::Seen(self.holder.clone())
            }
            Ask::Renew(lease) => {
                let end = self.leases.get_mut(&lease);
                let there = end.map(|end| *end = now + TTL_MS).is_some();
                Reply::Renewed(lease, there)
            }
            Ask::Revoke(lease) => {
                self.leases.remove(&lease);
                self.expire(now);
                return None;
            }
        })
    }
}

#[derive(Debug, Clone, Copy)]
enum Up {
    Hello { resumes: Option<TaskId> },
    Report { sent: Timestamp, acked: Option<Generation>, usage: Usage },
}

#[derive(Debug, Clone)]
enum Down {
    Welcome { id: TaskId, joined: bool, unseen: Limits },
    Told { answered: Option<Timestamp>, changes: Vec<Change>, unseen: Option<Limits> },
    Redirect(Option<usize>),
}

/// What is on its way, and until when.
#[derive(Debug, Clone)]
enum Parcel {
    Asked { server: usize, life: u32, number: u64, ask: Ask },
    Answered { server: usize, life: u32, number: u64, reply: Reply },
    Up { task: usize, stream: u64, server: usize, up: Up },
    Down { task: usize, stream: u64, server: usize, down: Down },
}

struct Stream {
    serial: u64,
    id: TaskId,
    answered: Option<Timestamp>,
}

struct Reign {
    revision: u64,
    fleet: Fleet,
    streams: BTreeMap<usize, Stream>,
    ticked: Timestamp,
}

struct Server {
    clock: Clock,
    elector: Elector,
    /// Which of its lives this is.
    life: u32,
    alive: bool,
    paused: bool,
    cut: bool,
    /// Questions that were not answered yet: number, what and when.
    open: BTreeMap<u64, (Ask, Timestamp)>,
    number: u64,
    inbox: VecDeque<Parcel>,
    reign: Option<Reign>,
}

struct Task {
    clock: Clock,
    held: FailStatic,
    stream: Option<(usize, u64)>,
    welcomed: bool,
    serials: u64,
    id: Option<TaskId>,
    epoch: u64,
    acked: Option<Generation>,
    told: bool,
    untold: bool,
    /// The leader by which epoch knows what it holds.
    known: u64,
    next: usize,
    heard: Timestamp,
    reported: Timestamp,
    wants: u64,
    /// Lines to servers that are cut.
    cut: [bool; SERVERS],
}

struct World {
    now: Millis,
    store: Store,
    servers: Vec<Server>,
    tasks: Vec<Task>,
    parcels: Vec<(Millis, Parcel)>,
    dice: SeededRng,
    delay_max: Millis,
    /// The latest revision that anyone led by, and until when it learned.
    latest: u64,
    learning_until: Millis,
    /// What tasks may have used, step by step, for the last ten seconds.
    window: VecDeque<u64>,
    /// What they held in the step before.
    held: u64,
}

fn config() -> FleetConfig {
    FleetConfig {
        silence: SILENCE,
        learning: SILENCE.lease(),
        // For ever: a task that nobody has heard of for so long is nobody's fault.
        forget: Duration::from_secs(1_000_000),
        ack_timeout: Duration::from_secs(5),
        ..FleetConfig::default()
    }
}

fn rates(nanos: u64) -> [CostRate; 4] {
    [0, 0, nanos, 0].map(CostRate::from_nanos_per_sec)
}

impl World {
    /// Clocks of servers run at 1 ± `skew` thousandths.
    fn new(seed: u64, skew: u64) -> Self {
        let mut dice = SeededRng::new(seed);
        let mut clock = || Clock {
            ahead: 1_000 + dice.below(1_000_000),
            rate: 1_000 - skew + dice.below(2 * skew + 1),
        };
        let clocks: Vec<Clock> = (0..SERVERS + TASKS).map(|_| clock()).collect();
        let server = |clock: &Clock| Server {
            clock: *clock,
            elector: stands(clock.at(0)),
            life: 0,
            alive: true,
            paused: false,
            cut: false,
            open: BTreeMap::new(),
            number: 0,
            inbox: VecDeque::new(),
            reign: None,
        };
        let task = |clock: &Clock| Task {
            clock: *clock,
            held: FailStatic::new(SILENCE, Limits::ZERO),
            stream: None,
            welcomed: false,
            serials: 0,
            id: None,
            epoch: 0,
            acked: None,
            told: false,
            untold: true,
            known: 0,
            next: 0,
            heard: clock.at(0),
            reported: clock.at(0),
            wants: 0,
            cut: [false; SERVERS],
        };
        Self {
            now: 0,
            store: Store::default(),
            servers: clocks[..SERVERS].iter().map(server).collect(),
            tasks: clocks[SERVERS..].iter().map(task).collect(),
            parcels: Vec::new(),
            dice,
            delay_max: 40,
            latest: 0,
            learning_until: 0,
            window: VecDeque::new(),
            held: 0,
        }
    }

    fn send(&mut self, parcel: Parcel) {
        let delay = 1 + self.dice.below(self.delay_max);
        self.parcels.push((self.now + delay, parcel));
    }

    fn is_held_up(&self, parcel: &Parcel) -> bool {
        match parcel {
            Parcel::Asked { server, .. } | Parcel::Answered { server, .. } => {
                self.servers[*server].cut
            }
            Parcel::Up { task, server, .. } | Parcel::Down { task, server, .. } => {
                self.tasks[*task].cut[*server]
            }
        }
    }

    fn step(&mut self) {
        self.now += STEP;
        self.store.expire(self.now);
        let parcels = core::mem::take(&mut self.parcels);
        for (due, parcel) in parcels {
            if due > self.now || self.is_held_up(&parcel) {
                self.parcels.push((due, parcel));
            } else {
                self.deliver(parcel);
            }
        }
        for n in 0..SERVERS {
            self.serve(n);
        }
        for n in 0..TASKS {
            self.take_part(n);
        }
    }

    fn deliver(&mut self, parcel: Parcel) {
        match parcel {
            Parcel::Asked { server, life, number, ask } => {
                if let Some(reply) = self.store.ask(server, ask, self.now) {
                    self.send(Parcel::Answered { server, life, number, reply });
                }
            }
            Parcel::Answered { server, .. } | Parcel::Up { server, .. } => {
                if self.servers[server].alive {
                    self.servers[server].inbox.push_back(parcel);
                }
            }
            Parcel::Down { task, stream, server, down } => self.hear(task, stream, server, down),
        }
    }

    fn serve(&mut self, n: usize) {
        let server = &mut self.servers[n];
        if !server.alive || server.paused {
            return;
        }
        let now = server.clock.at(self.now);
        for parcel in core::mem::take(&mut server.inbox) {
            match parcel {
                Parcel::Answered { life, number, reply, .. } => {
                    let server = &mut self.servers[n];
                    if life != server.life {
                        continue;
                    }
                    // Who has given up on a question does not listen to the answer.
                    let Some((_, sent)) = server.open.remove(&number) else { continue };
                    match reply {
                        Reply::Seen(holder) => server.elector.seen(holder, now),
                        Reply::Granted(lease) => server.elector.granted(lease, sent, now),
                        Reply::Renewed(lease, there) => {
                            server.elector.renewed(lease, there, sent, now);
                        }
                    }
                }
                Parcel::Up { task, stream, up, .. } => self.answer(n, task, stream, up, now),
                _ => {}
            }
        }
        let server = &mut self.servers[n];
        let patience = server.elector.patience();
        for (number, (ask, sent)) in server.open.clone() {
            if now.since(sent) >= patience {
                server.open.remove(&number);
                match ask {
                    Ask::Renew(lease) => server.elector.not_renewed(lease, now),
                    _ => server.elector.unanswered(now),
                }
            }
        }
        while let Some(ask) = self.servers[n].elector.next(now) {
            let server = &mut self.servers[n];
            server.number += 1;
            let (number, life) = (server.number, server.life);
            if !matches!(ask, Ask::Revoke(_)) {
                server.open.insert(number, (ask, now));
            }
            self.send(Parcel::Asked { server: n, life, number, ask });
        }
        self.lead(n, now);
    }

    /// Does what a leader does in a round, if it leads.
    fn lead(&mut self, n: usize, now: Timestamp) {
        let server = &mut self.servers[n];
        let revision = match server.elector.role(now) {
            Role::Leads { revision, .. } => revision,
            Role::Suspended { .. } => return,
            Role::Follows(_) => {
                server.reign = None;
                return;
            }
        };
        if server.reign.as_ref().is_none_or(|reign| reign.revision != revision) {
            let mut fleet = Fleet::new(config(), revision, Limits::ZERO, now).unwrap();
            let limits = Limits::total(CostRate::from_nanos_per_sec(LIMIT));
            assert_eq!(fleet.set_customer("a", limits).unwrap(), CUSTOMER);
            let streams = BTreeMap::new();
            server.reign = Some(Reign { revision, fleet, streams, ticked: now });
            assert!(revision > self.latest, "a leader by a revision that has led before");
            self.latest = revision;
            self.learning_until = self.now + LEARNING;
        }
        let Some(reign) = &mut server.reign else { return };
        if now.since(reign.ticked) < Duration::from_millis(250) {
            return;
        }
        reign.ticked = now;
        let mut changes = Vec::new();
        let round = reign.fleet.tick(now, &mut changes);
        let unseen = round.unseen.then(|| reign.fleet.unseen(CUSTOMER));
        let mut told = Vec::new();
        for (&task, stream) in &reign.streams {
            let of = |change: &&Change| change.task == stream.id;
            let changes: Vec<Change> = changes.iter().filter(of).copied().collect();
            if !changes.is_empty() || unseen.is_some() {
                let down = Down::Told { answered: stream.answered, changes, unseen };
                told.push(Parcel::Down { task, stream: stream.serial, server: n, down });
            }
        }
        for parcel in told {
            self.send(parcel);
        }
    }

    /// A task has said something, and the server has got to it now.
    fn answer(&mut self, n: usize, task: usize, serial: u64, up: Up, now: Timestamp) {
        let server = &mut self.servers[n];
        let role = server.elector.role(now);
        let elsewhere = match role {
            Role::Follows(Some(holder)) => holder.name.parse().ok(),
            _ => None,
        };
        let leads = matches!(role, Role::Leads { .. });
        let down = match &mut server.reign {
            Some(reign) if leads => reign.answer(task, serial, up, now),
            _ => Some(Down::Redirect(elsewhere)),
        };
        if let Some(down) = down {
            self.send(Parcel::Down { task, stream: serial, server: n, down });
        }
    }

    fn take_part(&mut self, n: usize) {
        let task = &mut self.tasks[n];
        let now = task.clock.at(self.now);
        if now.since(task.heard) >= DEAF {
            (task.stream, task.heard) = (None, now);
            task.next = (task.next + 1) % SERVERS;
        }
        if now.since(task.reported) < Duration::from_secs(1) {
            return;
        }
        task.reported = now;
        let Some((server, stream)) = task.stream else {
            task.serials += 1;
            let (server, stream) = (task.next, task.serials);
            task.stream = Some((server, stream));
            (task.welcomed, task.untold) = (false, true);
            let up = Up::Hello { resumes: task.id };
            return self.send(Parcel::Up { task: n, stream, server, up });
        };
        if task.welcomed {
            let has = !task.told && task.held.generation().is_some();
            let has = has.then(|| task.held.holds(now));
            let (used, demand) = (rates(0), rates(task.wants));
            let usage = Usage { customer: CUSTOMER, used, demand, has };
            let up = Up::Report { sent: now, acked: task.acked, usage };
            self.send(Parcel::Up { task: n, stream, server, up });
        }
    }

    fn hear(&mut self, n: usize, stream: u64, server: usize, down: Down) {
        let task = &mut self.tasks[n];
        if task.stream != Some((server, stream)) {
            return;
        }
        let now = task.clock.at(self.now);
        task.heard = now;
        match down {
            Down::Redirect(leader) => {
                task.stream = None;
                task.next = leader.unwrap_or((task.next + 1) % SERVERS);
            }
            Down::Welcome { id, joined, unseen } => {
                if id.epoch() < task.epoch {
                    task.stream = None;
                    return;
                }
                (task.id, task.epoch, task.welcomed) = (Some(id), id.epoch(), true);
                if joined {
                    (task.acked, task.told) = (None, false);
                    task.held.rejoin(id.epoch());
                }
                task.held.set_unseen(unseen);
            }
            Down::Told { answered, changes, unseen } => {
                if let Some(answered) = answered {
                    task.held.renew(answered, now);
                }
                if let Some(unseen) = unseen {
                    task.held.set_unseen(unseen);
                }
                for change in changes {
                    let sent = answered.unwrap_or(Timestamp::ZERO);
                    let Change { generation, limits, safe, .. } = change;
                    if task.held.grant(generation, limits, safe, sent, now) {
                        (task.told, task.known) = (true, task.epoch);
                        if change.revoked {
                            task.held = FailStatic::new(SILENCE, limits);
                        }
                    }
                    task.untold = false;
                    task.acked = task.acked.max(Some(generation));
                }
                if !task.untold && task.held.standing(now) == Standing::Lapsed {
                    (task.stream, task.next) = (None, server);
                }
            }
        }
    }

    /// Who leads, by its own clock.
    fn leaders(&self) -> Vec<usize> {
        let leads = |server: &Server| {
            let role = server.elector.role(server.clock.at(self.now));
            server.alive && matches!(role, Role::Leads { .. })
        };
        (0..SERVERS).filter(|n| leads(&self.servers[*n])).collect()
    }

    /// What all tasks together may use. Who has been without a server for so long that its grant
    /// has ended, and has not been heard of by the leader, is left out: nobody can know of it.
    fn enforced(&self) -> u64 {
        let in_sight = |task: &&Task| {
            let lapsed = task.held.standing(task.clock.at(self.now)) == Standing::Lapsed;
            !lapsed || task.known == self.latest
        };
        let enforced =
            |task: &Task| task.held.enforced(task.clock.at(self.now)).whole().as_nanos_per_sec();
        self.tasks.iter().filter(in_sight).map(enforced).sum()
    }

    /// Whether tasks may have used more than 1.1 times the limit over the last ten seconds, or are
    /// given more while they may. While a leader learns they may, if one of them comes back that
    /// was out of sight; so windows begin when it has learned.
    fn is_over(&mut self) -> bool {
        let holds = |task: &Task| {
            let holds = task.held.holds(task.clock.at(self.now));
            holds.whole().as_nanos_per_sec()
        };
        let held = self.tasks.iter().map(holds).sum();
        let raised = held > core::mem::replace(&mut self.held, held);
        if self.now < self.learning_until {
            self.window.clear();
            return false;
        }
        let enforced = self.enforced();
        if raised && enforced > LIMIT / 10 * 11 {
            return true;
        }
        self.window.push_back(enforced);
        if self.window.len() <= (WINDOW / STEP) as usize {
            return false;
        }
        self.window.pop_front();
        let mean = self.window.iter().sum::<u64>() / self.window.len() as u64;
        mean > LIMIT / 10 * 11
    }

    fn apply(&mut self, operation: &Operation) {
        match *operation {
            Operation::Pause(n, paused) => self.servers[n].paused = paused,
            Operation::Cut(n, cut) => self.servers[n].cut = cut,
            Operation::CutTask(task, n, cut) => self.tasks[task].cut[n] = cut,
            Operation::Slow(slow) => self.delay_max = if slow { 900 } else { 40 },
            Operation::Kill(n) => {
                let server = &mut self.servers[n];
                (server.alive, server.reign) = (false, None);
                server.inbox.clear();
                server.open.clear();
            }
            Operation::Start(n) => {
                let server = &mut self.servers[n];
                if !server.alive {
                    (server.alive, server.paused) = (true, false);
                    server.life += 1;
                    server.elector = stands(server.clock.at(self.now));
                }
            }
            Operation::Resign(n) => self.servers[n].elector.resign(),
            Operation::Want(task, wants) => self.tasks[task].wants = wants,
            Operation::Wait(_) => {}
        }
    }

    /// Everyone runs again, and everything arrives.
    fn heal(&mut self) {
        self.delay_max = 40;
        for n in 0..SERVERS {
            self.apply(&Operation::Kill(n));
            self.apply(&Operation::Start(n));
            self.servers[n].cut = false;
        }
        self.tasks.iter_mut().for_each(|task| task.cut = [false; SERVERS]);
    }
}

impl Reign {
    fn answer(&mut self, task: usize, serial: u64, up: Up, now: Timestamp) -> Option<Down> {
        match up {
            Up::Hello { resumes } => {
                let resumed = resumes.filter(|id| self.fleet.resume(*id, now).is_ok());
                let name = format!("task-{task}");
                let id = resumed.or_else(|| self.fleet.join(&name, 1, now).ok())?;
                self.streams.insert(task, Stream { serial, id, answered: None });
                let unseen = self.fleet.unseen(CUSTOMER);
                Some(Down::Welcome { id, joined: resumed.is_none(), unseen })
            }
            Up::Report { sent, acked, usage } => {
                let stream = self.streams.get_mut(&task);
                let stream = stream.filter(|stream| stream.serial == serial)?;
                match self.fleet.report(stream.id, acked, [usage], now) {
                    Ok(answer) if answer.renewed => {
                        stream.answered = Some(sent);
                        let (answered, changes) = (Some(sent), Vec::new());
                        Some(Down::Told { answered, changes, unseen: None })
                    }
                    _ => {
                        self.streams.remove(&task);
                        Some(Down::Redirect(None))
                    }
                }
            }
        }
    }
}

fn stands(now: Timestamp) -> Elector {
    let mut elector = Elector::new(Duration::from_millis(TTL_MS), now);
    elector.set_eligible();
    elector
}

proptest! {
    /// Clocks of servers differ by up to a fifth in how fast they run.
    #[test]
    fn never_do_two_lead_at_once_and_somebody_does_again(
        operations in vec(operation(), 1..80),
        seed: u64,
    ) {
        let mut world = World::new(seed, 200);
        for operation in &operations {
            world.apply(operation);
            let steps = if let Operation::Wait(span) = operation { *span / STEP } else { 2 };
            for _ in 0..=steps {
                world.step();
                let leaders = world.leaders();
                prop_assert!(leaders.len() <= 1, "{leaders:?} lead after {operation:?}");
            }
        }
        world.heal();
        // The lease of the one before, and a look by a slow clock.
        for _ in 0..5_000 / STEP {
            world.step();
        }
        prop_assert_eq!(world.leaders().len(), 1);
    }

    /// Whatever happens to servers, tasks and lines: outside learning tasks together are given no
    /// more than 1.1 times the limit, and none is shut. Clocks run equally fast, to half a percent.
    #[test]
    fn through_all_elections_tasks_stay_within_the_limit(
        operations in vec(operation(), 1..80),
        seed: u64,
    ) {
        let mut world = World::new(seed, 5);
        for wants in 0..TASKS {
            world.tasks[wants].wants = LIMIT;
        }
        for _ in 0..10_000 / STEP {
            world.step();
        }
        for operation in &operations {
            world.apply(operation);
            let steps = if let Operation::Wait(span) = operation { *span / STEP } else { 2 };
            for _ in 0..=steps {
                world.step();
                prop_assert!(
                    !world.is_over(),
                    "{} of {LIMIT} after {operation:?} at {} ms", world.enforced(), world.now
                );
            }
        }
        world.heal();
        for _ in 0..20_000 / STEP {
            world.step();
        }
        let leader = world.latest;
        for task in &world.tasks {
            prop_assert_eq!(task.epoch, leader, "it is with the leader");
            let enforced = task.held.enforced(task.clock.at(world.now)).whole();
            prop_assert!(enforced > CostRate::ZERO);
        }
    }
}
