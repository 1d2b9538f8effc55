//! One service: the leader's book and the streams of its tasks.
//!
//! `tidegate_core::fleet` decides; this hands it what tasks say, and hands tasks what it decides.
//! Everything a task is told waits until the end of a round and goes out as one message: the answer
//! that renews its lease, limits that changed, and customers that are new or gone. So a fleet of
//! any size is told at most once a round each, whatever happens.
//!
//! A round is done step by step, with reports between the steps, and a report is answered when all
//! limits that it moves were divided since. In a large fleet, in which one round follows the other
//! and tasks are told only when they have reported, nobody waits for a round's end: after each step
//! those are answered whose reports were seen by then, in the order in which they came. So everyone
//! waits for as long as a round takes, nobody for two, and answers leave as evenly as reports come.
//!
//! Names are written once and handed to everybody who joins, so that thousands who come at once
//! cost little more than their connections.
//!
//! **Bounds.** A task that does not read fills its channel, loses its stream, and comes back; one
//! that reads but does not acknowledge is not renewed. Names of customers come from the
//! configuration alone, and a number that nobody was told counts as everyone else, so a task cannot
//! make anything grow but its own lines, which are counted.

use super::history::History;
use super::stream::{Gone, Out, Said, StreamId, Streams, Telling};
use crate::access::Reporter;
use crate::config::Service;
use crate::message::{task_id, write_directory, write_limits, write_rates, write_task_id};
use bytes::Bytes;
use core::time::Duration;
use std::collections::BTreeMap;
use tidegate_core::fleet::{Change, Fleet, FleetConfigError, Full, Limits, Taken};
use tidegate_core::{CostRate, CustomerId, Timestamp};
use tidegate_wire::proto::tidegate::quota::v1::{self as wire, ServerMessage};
use tonic::Status;

/// Pairs of task and customer that are looked at in one step of a round: a millisecond or two.
const STEP_PAIRS: usize = 1 << 14;
/// Tasks that are told in one step: each costs some microseconds here, and ten times that until it
/// is sent.
const STEP_TASKS: usize = 128;
/// Tasks that are looked at in one step, if few have to be told: each costs a tenth of a
/// microsecond.
const STEP_LOOKS: usize = 2_048;

/// How often to look who is over.
const HISTORY_EVERY: Duration = Duration::from_secs(1);

/// Where a round stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// There is none.
    Over,
    /// Limits are divided.
    Divides,
    /// Tasks are told, from this place on.
    Tells(usize),
}

/// Who says what customers may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    File,
    /// The server above a zone's.
    Above,
}

/// What a zone may hand out, as the server above has told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Provided {
    pub(crate) default: Limits,
    pub(crate) customers: BTreeMap<String, Limits>,
}

/// How many rounds there were.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Rounds {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
}

/// One service.
#[derive(Debug)]
pub(crate) struct Book {
    service: Service,
    epoch: u64,
    fleet: Fleet,
    /// By how much the time of the fleet is ahead: a leader that has nothing to learn began to
    /// learn so long ago.
    ahead: Duration,
    /// Who is configured, by name.
    customers: BTreeMap<String, CustomerId>,
    streams: Streams,
    /// All customers, as those are told who open a stream; nothing if they have changed.
    directory: Option<Bytes>,
    learning: bool,
    history: History,
    history_due: Timestamp,
    rounds: Rounds,
    phase: Phase,
    /// When the round began.
    began: Timestamp,
    /// Tasks are told when they have reported, and not before.
    saves: bool,
    /// The leader is one of several.
    elected: bool,
    source: Source,
    changes: Vec<Change>,
}

impl Book {
    /// The book of the leader of `epoch`, which `learns` if there was one before.
    pub(crate) fn new(
        service: Service,
        epoch: u64,
        learns: bool,
        now: Timestamp,
    ) -> Result<Self, FleetConfigError> {
        let ahead = if learns { Duration::ZERO } else { service.fleet.learning };
        let mut fleet = Fleet::new(service.fleet.clone(), epoch, service.default, now)?;
        let mut customers = BTreeMap::new();
        for (name, limits) in &service.customers {
            // There is room for all: a configuration with more is refused.
            if let Ok(id) = fleet.set_customer(name, *limits) {
                customers.insert(name.clone(), id);
            }
        }
        Ok(Self {
            service,
            epoch,
            fleet,
            ahead,
            customers,
            streams: Streams::default(),
            directory: None,
            learning: learns,
            history: History::default(),
            history_due: now + ahead + HISTORY_EVERY,
            rounds: Rounds { begun: 0, ended: 0 },
            phase: Phase::Over,
            began: now + ahead,
            saves: false,
            elected: false,
            source: Source::File,
            changes: Vec::new(),
        })
    }

    /// The same for a leader that was elected by etcd.
    pub(crate) fn elected(self, elected: bool) -> Self {
        Self { elected, ..self }
    }

    /// A task opened a stream, where nobody has to prove who they are.
    #[cfg(test)]
    pub(crate) fn open(
        &mut self,
        hello: &wire::Hello,
        out: Out,
        now: Timestamp,
    ) -> Result<StreamId, Status> {
        self.open_for(hello, &Reporter::default(), out, now)
    }

    /// A task opened a stream, and may.
    pub(crate) fn open_for(
        &mut self,
        hello: &wire::Hello,
        reporter: &Reporter,
        out: Out,
        now: Timestamp,
    ) -> Result<StreamId, Status> {
        let now = now + self.ahead;
        if hello.epoch_seen > self.epoch {
            let remedy = if self.elected {
                "its etcd was restored from a copy. Delete the key `base` under the prefix of the \
                 election, and start it again"
            } else {
                "its clock was set back. Set the clock right, or name a file `state` in which it \
                 can remember, and start it again"
            };
            return Err(Status::failed_precondition(format!(
                "the task has seen a leader of epoch {}, and this server has epoch {}: it was \
                 replaced, or {remedy}",
                hello.epoch_seen, self.epoch
            )));
        }
        let weight = if reporter.alone { 1 } else { hello.weight.max(1) };
        let (name, reign, speaker) = (&hello.task, hello.reign, reporter.speaker(hello.reign));
        self.fleet.check_name(name, speaker).map_err(|taken| refuse(name, taken))?;
        let resumes = hello.resumes.map(task_id).filter(|id| self.fleet.is_named(*id, name));
        let resumed = resumes.filter(|id| self.fleet.resume(*id, now).is_ok());
        // What it may may have changed since it joined.
        if let Some(id) = resumed {
            self.fleet.set_weight(id, weight);
        }
        let resumed = resumed.or_else(|| self.fleet.succeed(name, reign, weight, now));
        let task = match resumed {
            Some(task) => task,
            None => self.fleet.join(name, weight, now).map_err(full)?,
        };
        self.fleet.set_speaker(task, speaker);
        let millis = |span: Duration| u32::try_from(span.as_millis()).unwrap_or(u32::MAX);
        let silence = self.service.fleet.silence;
        let next = ServerMessage {
            welcome: Some(wire::Welcome {
                task: Some(write_task_id(task)),
                joined: resumed.is_none(),
                report_every_ms: millis(self.service.report_every),
                hold_ms: millis(silence.hold),
                tau_ms: millis(silence.tau),
                safe: self.service.fleet.safe.billionths(),
            }),
            directory: self.directory(),
            places: self.fleet.places(),
            ..ServerMessage::default()
        };
        Ok(self.streams.open(task, out, next, self.learning))
    }

    /// A task said something. What makes no sense ends its stream, with what is wrong.
    pub(crate) fn hear(&mut self, of: StreamId, said: &Said, now: Timestamp) {
        let known = self.streams.take(of, &mut self.fleet, said, now + self.ahead);
        if known && said.leaves {
            self.fleet.leave(of.task);
            self.streams.close(of);
        }
    }

    /// A stream ended. Its task may come back; until its lease ends it counts.
    pub(crate) fn close(&mut self, of: StreamId) {
        self.streams.close(of);
    }

    /// The leader's time is up: nobody is told anything any more.
    pub(crate) fn end_streams(&mut self) {
        self.streams = Streams::default();
        self.phase = Phase::Over;
    }

    /// Tasks are told when they have reported, and not before: messages cost more than the leader
    /// can afford.
    pub(crate) const fn save_messages(&mut self, saves: bool) {
        self.saves = saves;
    }

    /// One round; `wall` is the time in milliseconds since 1970.
    #[cfg(test)]
    pub(crate) fn tick(&mut self, now: Timestamp, wall: u64) {
        self.begin(now, wall);
        while self.step(now) {}
    }

    /// Begins a round. Returns how many steps it has, or about so.
    pub(crate) fn begin(&mut self, now: Timestamp, wall: u64) -> usize {
        let now = now + self.ahead;
        // What tasks say may have waited for a round, and what they are told for another.
        self.fleet.set_lag(now.since(self.began).saturating_mul(2));
        (self.began, self.phase) = (now, Phase::Divides);
        self.rounds.begun += 1;
        if self.customers.len() < self.service.customers.len() {
            self.enrol_late();
        }
        let round = self.fleet.begin(now);
        if round.unseen {
            let places = self.fleet.places();
            self.streams.each(|stream| stream.next().places = places);
        }
        if now >= self.history_due {
            self.history_due = now + HISTORY_EVERY;
            let everyone_else = ("", CustomerId::DEFAULT);
            let named = self.customers.iter().map(|(name, id)| (name.as_str(), *id));
            for (name, id) in named.chain([everyone_else]) {
                if let Some(status) = self.fleet.status(id) {
                    self.history.note(name, &status, wall);
                }
            }
        }
        let places = if self.saves { STEP_LOOKS } else { STEP_TASKS };
        2 + round.pairs / STEP_PAIRS + self.streams.places() / places
    }

    /// Goes on with the round. Returns whether there is more to do.
    pub(crate) fn step(&mut self, now: Timestamp) -> bool {
        let now = now + self.ahead;
        match self.phase {
            Phase::Over => false,
            Phase::Divides => {
                let more = self.fleet.step(now, STEP_PAIRS, &mut self.changes);
                for change in self.changes.drain(..) {
                    if let Some(stream) = self.streams.of(change.task) {
                        stream.grant(&change);
                    }
                }
                if !more {
                    self.learning = self.fleet.is_learning(now);
                    self.phase = Phase::Tells(0);
                }
                if self.saves {
                    self.streams.answer(self.fleet.divided(), STEP_TASKS, self.telling());
                }
                true
            }
            Phase::Tells(from) => {
                self.streams.look_all(self.fleet.divided());
                let to = self.streams.tell(from..from + STEP_LOOKS, STEP_TASKS, self.telling());
                let more = to < self.streams.places();
                self.phase = if more { Phase::Tells(to) } else { Phase::Over };
                self.rounds.ended += u64::from(!more);
                more
            }
        }
    }

    const fn telling(&self) -> Telling {
        Telling { learning: self.learning, saves: self.saves }
    }

    /// Whether a round was begun and has not ended.
    pub(crate) fn is_amid(&self) -> bool {
        self.phase != Phase::Over
    }

    /// Another file. Where limits come from above only the rest of it counts.
    pub(crate) fn reload(&mut self, mut service: Service) {
        if self.source == Source::Above {
            service.default = self.service.default;
            service.customers.clone_from(&self.service.customers);
        }
        self.limit(service);
    }

    /// The server above has told what this one may hand out; from now on that counts, and not the
    /// file.
    pub(crate) fn provide(&mut self, provided: Provided) {
        self.source = Source::Above;
        let Provided { default, customers } = provided;
        self.limit(Service { default, customers, ..self.service.clone() });
    }

    /// Other limits from now on.
    fn limit(&mut self, service: Service) {
        let mut gone = Gone::default();
        let mut changed = Vec::new();
        self.customers.retain(|name, id| {
            let stays = service.customers.contains_key(name);
            if !stays {
                self.fleet.remove_customer(name);
                self.history.end(name);
                gone.insert(id.0);
            }
            stays
        });
        for (name, limits) in &service.customers {
            if self.service.customers.get(name) == Some(limits) {
                continue;
            }
            // Who finds no room has to wait until others are taken back, and is one of everyone
            // else until then.
            if let Ok(id) = self.fleet.set_customer(name, *limits) {
                self.customers.insert(name.clone(), id);
                changed.push((name.as_str(), id));
            }
        }
        if self.service.default != service.default {
            self.fleet.set_default(service.default);
            changed.push(("", CustomerId::DEFAULT));
        }
        let changed: Vec<_> = changed.iter().map(|(name, id)| self.announce(name, *id)).collect();
        self.directory = None;
        let changed = write_directory(changed);
        self.streams.each(|stream| {
            stream.retire(&mut gone);
            stream.introduce(&changed);
        });
        self.service = service;
    }

    /// Gives those a place who found none when the file was read.
    fn enrol_late(&mut self) {
        let mut late = Vec::new();
        for (name, limits) in &self.service.customers {
            if self.customers.contains_key(name) {
                continue;
            }
            let Ok(id) = self.fleet.set_customer(name, *limits) else { break };
            self.customers.insert(name.clone(), id);
            late.push(self.announce(name, id));
        }
        if !late.is_empty() {
            self.directory = None;
            let late = write_directory(late);
            self.streams.each(|stream| stream.introduce(&late));
        }
    }

    /// Who has limits of its own: by the file, or by the server above once that was heard.
    pub(crate) fn named(&self) -> impl Iterator<Item = &String> {
        self.service.customers.keys()
    }

    /// How many rounds there were.
    pub(crate) const fn rounds(&self) -> Rounds {
        self.rounds
    }

    /// How things stand.
    pub(crate) fn status(&self, name: &str) -> wire::ServiceStatus {
        let everyone_else = [("", CustomerId::DEFAULT)];
        let named = self.customers.iter().map(|(name, id)| (name.as_str(), *id));
        let customers = everyone_else.into_iter().chain(named).filter_map(|(name, id)| {
            let status = self.fleet.status(id)?;
            Some(wire::CustomerStatus {
                name: name.to_owned(),
                limits: write_limits(status.limits),
                used: write_rates(status.used),
                demand: write_rates(status.demand),
                counted: write_rates(status.counted),
                tasks: u32::try_from(status.tasks).unwrap_or(u32::MAX),
                memory: self.service.memory.of(name).unwrap_or(0),
            })
        });
        let overs = self.history.latest().map(|over| wire::Over {
            customer: over.customer.clone(),
            began_ms: over.began,
            ended_ms: if over.ended { over.last } else { 0 },
            demand_max: over.demand_max.as_nanos_per_sec(),
        });
        wire::ServiceStatus {
            service: name.to_owned(),
            learning: self.learning,
            tasks: u32::try_from(self.streams.count()).unwrap_or(u32::MAX),
            capacity: self.service.capacity.map_or(0, CostRate::as_nanos_per_sec),
            customers: customers.collect(),
            overs: overs.collect(),
            memory: self.service.memory.capacity.unwrap_or(0),
        }
    }

    /// All customers.
    fn directory(&mut self) -> Bytes {
        if let Some(written) = &self.directory {
            return written.clone();
        }
        let named = self.customers.iter().map(|(name, id)| self.announce(name, *id));
        let all = named.chain([self.announce("", CustomerId::DEFAULT)]).collect();
        self.directory.insert(write_directory(all)).clone()
    }

    fn announce(&self, name: &str, id: CustomerId) -> wire::Customer {
        let aside = write_limits(self.fleet.aside(id));
        wire::Customer { number: id.0, name: name.to_owned(), aside }
    }
}

/// Somebody else has the name.
fn refuse(name: &str, taken: Taken) -> Status {
    match taken {
        Taken::Another => Status::permission_denied(format!(
            "{name:?}: {taken}, and the caller is another: show the same identity, or be one of \
             `zones` in the server's file"
        )),
        _ => Status::failed_precondition(format!("{name:?}: {taken}")),
    }
}

fn full(full: Full) -> Status {
    Status::resource_exhausted(full.to_string())
}

#[cfg(test)]
mod tests;
